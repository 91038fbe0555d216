// The JupyterLab extension: draws our MIME type (before the widget's renderer) and opens `.gdlab.json` files.

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { MimeDocumentFactory } from "@jupyterlab/docregistry";
import { IRenderMimeRegistry, type MimeModel, type Renderer } from "@jupyterlab/rendermime";
import { Widget } from "@lumino/widgets";
import { MIME, type Payload } from "./doc.ts";
import * as core from "./index.ts";
import { page, type Mounted } from "./page.ts";
import { VERSION } from "./version.ts";

class GraphRenderer extends Widget implements Renderer {
  #view: Mounted | null = null;
  #stop = () => {};

  async renderModel(model: MimeModel): Promise<void> {
    const doc = model.data[MIME] as Payload;
    if (this.#view) return this.#view.update(doc);
    this.node.style.overflow = "auto";
    const view = core.mount(this.node, doc, null);
    this.#view = view;
    const study = (model.metadata[MIME] as { study?: string } | undefined)?.study ?? doc.study;
    if (typeof study === "string") this.#stop = page().when(study, host => view.goLive(host));
  }

  override dispose(): void {
    this.#stop();
    this.#view?.destroy();
    this.#view = null;
    super.dispose();
  }
}

const plugin: JupyterFrontEndPlugin = {
  id: "gdlab:plugin",
  description: "Draws gdlab documents in notebooks and opens .gdlab.json files.",
  autoStart: true,
  requires: [IRenderMimeRegistry],
  activate(app: JupyterFrontEnd, rendermime: IRenderMimeRegistry) {
    page().core[VERSION] ??= Promise.resolve(core);
    // -20 comes before the widget renderer's -10; safe: it builds elements and runs nothing of the document.
    rendermime.addFactory({ safe: true, mimeTypes: [MIME], createRenderer: () => new GraphRenderer() }, -20);
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
  },
};

export default plugin;
