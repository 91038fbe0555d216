// Open `.gdlab.json` files as pictures; a module of its own, so that a page without its package lacks only this.

import type { JupyterFrontEnd } from "@jupyterlab/application";
import { MimeDocumentFactory } from "@jupyterlab/docregistry";
import type { IRenderMimeRegistry } from "@jupyterlab/rendermime";
import { MIME } from "../doc/version.ts";

export function register(app: JupyterFrontEnd, rendermime: IRenderMimeRegistry): void {
  app.docRegistry.addFileType({
    name: "gdlab",
    displayName: "gdlab graph",
    extensions: [".gdlab.json"],
    mimeTypes: [MIME],
    contentType: "file",
    fileFormat: "text",
  });
  app.docRegistry.addWidgetFactory(
    new MimeDocumentFactory({
      name: "gdlab graph",
      primaryFileType: app.docRegistry.getFileType("gdlab"),
      fileTypes: ["gdlab"],
      defaultFor: ["gdlab"],
      readOnly: true,
      dataType: "json",
      modelName: "text",
      rendermime,
    }),
  );
}
