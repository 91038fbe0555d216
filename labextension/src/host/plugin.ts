// The JupyterLab extension: draws our MIME type (before the widget's renderer), opens `.gdlab.json` files, lights the
// cells that graphs were written in, and puts a graph beside its notebook.

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette } from "@jupyterlab/apputils";
import { IRenderMimeRegistry, type MimeModel, type Renderer } from "@jupyterlab/rendermime";
import { Widget } from "@lumino/widgets";
import type { Payload } from "../doc/doc.ts";
import { MIME } from "../doc/version.ts";
import { page, type Mounted } from "../live/page.ts";
import cells from "./editor.css";
import { core, loadCore, offerParts } from "./parts.ts";
import { meanwhile, stillPicture, type Output } from "./still.ts";

/** A widget of the host that draws a document, live as long as the study's host is in the page. */
class GraphWidget extends Widget {
  output: Output | null = null;
  #view: Mounted | null = null;
  #stop = () => {};

  draw(output: Output): void {
    this.output = output;
    if (this.#view) return this.#view.update(output.doc);
    this.node.style.overflow = "auto";
    if (core()) this.#mount();
    else this.#load(output);
  }

  /** Show the picture of the output until the part that draws it is loaded. */
  #load(output: Output): void {
    const said = meanwhile(this.node, output, () => this.#load(output));
    loadCore().then(
      () => this.isDisposed || this.#view || this.#mount(),
      (error: unknown) => said(error),
    );
  }

  #mount(): void {
    const { doc, study, svg } = this.output!,
      { mount } = core()!;
    this.#stop();
    if (typeof doc.picture === "string") {
      // A kernel that has the study sends all of it.
      this.node.replaceChildren(...stillPicture(svg, doc.picture));
      if (study)
        this.#stop = page().when(study, host => {
          this.node.replaceChildren();
          this.#view ??= mount(this.node, null, host);
        });
      return;
    }
    this.node.querySelectorAll(".gd-still").forEach(each => each.remove());
    const view = mount(this.node, doc, null);
    this.#view = view;
    if (study) this.#stop = page().when(study, host => view.goLive(host));
  }

  override dispose(): void {
    this.#stop();
    this.#view?.destroy();
    this.#view = null;
    super.dispose();
  }
}

const shown = new Set<GraphRenderer>();

class GraphRenderer extends GraphWidget implements Renderer {
  #model: MimeModel | null = null;

  /** Write saved settings into the output, if it is one of this study (or document). */
  save(key: string, kept: object): void {
    const model = this.#model,
      { study, doc } = this.node.querySelector<HTMLElement>(".gdlab")?.dataset ?? {},
      payload = model?.data[MIME] as Payload | undefined;
    if (typeof payload?.gz === "string" && (study || doc) === key)
      model!.setData({ data: { ...model!.data, [MIME]: { ...payload, kept: structuredClone(kept) } } });
  }

  /** Become one line while the graph stands beside the notebook. */
  away(beside: Widget): void {
    const line = document.createElement("p"),
      back = document.createElement("button");
    line.className = "gd-away";
    line.append("shown beside the notebook ", back);
    back.textContent = "show it here";
    back.addEventListener("click", () => beside.dispose());
    this.node.querySelector(".gd-away")?.remove();
    this.node.prepend(line);
    beside.disposed.connect(() => line.remove());
  }

  async renderModel(model: MimeModel): Promise<void> {
    this.#model = model;
    const doc = model.data[MIME] as Payload,
      told = model.metadata[MIME] as { study?: string } | undefined;
    shown.add(this);
    const text = (type: string) => [model.data[type] ?? ""].flat().join("");
    const study = String(told?.study ?? doc.study ?? "");
    this.draw({ doc, study, svg: text("image/svg+xml"), text: text("text/plain") });
  }

  override dispose(): void {
    shown.delete(this);
    super.dispose();
  }
}

let opened = 0;

/** A graph beside its notebook; when it is closed, the output shows the graph again. */
class BesideWidget extends GraphWidget {
  protected override onCloseRequest(): void {
    this.dispose();
  }
}

/** The graph of an output a second time, in a place of its own: the notebook scrolls, the graph stays. */
function openBeside(app: JupyterFrontEnd, shown: GraphRenderer): void {
  const { node, output } = shown;
  if (!output) return;
  const made = new BesideWidget();
  made.id = `gdlab-beside-${++opened}`;
  made.title.label = node.querySelector(".gd-title")?.textContent || "graph";
  made.title.caption = "A graph of the notebook; what is selected there is selected here";
  made.title.closable = true;
  made.addClass("gd-beside");
  const lab = app.name === "JupyterLab";
  app.shell.add(made, lab ? "main" : "right", { mode: "split-right" });
  made.draw(output);
  app.shell.activateById(made.id);
  shown.away(made);
}

function addBeside(app: JupyterFrontEnd, palette: ICommandPalette | null): void {
  const holding = (el: Element | null): GraphRenderer | undefined =>
    [...shown].find(each => el !== null && each.node.contains(el));
  // The output of the active cell, else the first that is in sight.
  const current = (): GraphRenderer | undefined => {
    const inCell = [...shown].find(each => each.node.closest(".jp-mod-active"));
    const inSight = ({ node }: GraphRenderer) => node.getBoundingClientRect().bottom > 0 && node.offsetParent !== null;
    return inCell ?? [...shown].find(inSight);
  };
  page().beside = el => {
    const found = holding(el);
    if (found) openBeside(app, found);
  };
  const command = "gdlab:open-beside";
  app.commands.addCommand(command, {
    label: "Open the Graph Beside the Notebook",
    caption: "Draws the graph of the active cell a second time, in a place of its own",
    isEnabled: () => current() !== undefined,
    execute: () => {
      const found = current();
      if (found) openBeside(app, found);
    },
  });
  palette?.addItem({ command, category: "gdlab" });
}

/** Load the editor's part, a module of its own so that a page that does not share the editor lacks only this. */
async function lightCells(app: JupyterFrontEnd): Promise<void> {
  try {
    const { IEditorExtensionRegistry, register } = await import("./editor.ts");
    const registry = await app.resolveOptionalService(IEditorExtensionRegistry);
    if (registry) register(registry);
  } catch (error) {
    console.warn(`gdlab: the cells of graphs are not lit here: ${String(error)}`);
  }
}

/** Register files of documents by the same rule. */
async function openFiles(app: JupyterFrontEnd, rendermime: IRenderMimeRegistry): Promise<void> {
  try {
    (await import("./opener.ts")).register(app, rendermime);
  } catch (error) {
    console.warn(`gdlab: .gdlab.json files do not open as pictures here: ${String(error)}`);
  }
}

const plugin: JupyterFrontEndPlugin = {
  id: "gdlab:plugin",
  description: "Draws gdlab documents in notebooks, opens .gdlab.json files, lights the cells of graphs.",
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [ICommandPalette],
  // Notebooks are opened after all of this: their editors come with what is registered here.
  async activate(app: JupyterFrontEnd, rendermime: IRenderMimeRegistry, palette: ICommandPalette | null) {
    offerParts();
    // -20 comes before the widget renderer's -10; safe: it builds elements and runs nothing of the document.
    rendermime.addFactory({ safe: true, mimeTypes: [MIME], createRenderer: () => new GraphRenderer() }, -20);
    page().save = (key, kept) => shown.forEach(each => each.save(key, kept));
    const style = document.createElement("style");
    style.textContent = cells;
    document.head.append(style);
    addBeside(app, palette);
    page().engine = async () => (await import("../engine/model.ts")).makeModel;
    // When the page has nothing else to do; a picture that is shown before asks for it itself.
    void app.restored.then(() => loadCore()).catch(() => {});
    await Promise.all([openFiles(app, rendermime), lightCells(app)]);
  },
};

export default plugin;
