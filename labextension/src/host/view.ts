// One view: the document that it draws now, and the host that it is live with.

import { Scene } from "../panes/scene.ts";
import { insertStyle } from "../draw/css.ts";
import { all, h, replace } from "../draw/dom.ts";
import { Host, type Handle } from "../live/host.ts";
import { ASKED } from "../panes/ask.ts";
import { inherit, openDoc, type GraphDoc, type Payload } from "../doc/doc.ts";
import { page, type Mounted } from "../live/page.ts";

export class View implements Mounted {
  readonly #el: HTMLElement;
  host: Host | null = null;
  #scene: Scene | null = null;
  #asked = 0;
  #rev = -1;
  #handle: Handle | null = null;
  #stop = () => {};
  #destroyed = false;
  #shown = true;
  readonly #observer: IntersectionObserver;
  readonly #waiting = h("div", { class: "gdlab gd-wait", role: "status" }, "gdlab: waiting for the graph …");

  constructor(el: HTMLElement) {
    this.#el = el;
    insertStyle(el);
    el.append(this.#waiting);
    this.#observer = new IntersectionObserver(entries => {
      this.#shown = entries.at(-1)!.isIntersecting;
      this.#handle?.show(this.#shown);
    });
    this.#observer.observe(el);
  }

  /** Draw another document; what is open and selected stays. An older call that is still unpacking is dropped. */
  update(payload: Payload): void {
    const asked = ++this.#asked;
    openDoc(payload).then(
      doc => {
        if (asked !== this.#asked || this.#destroyed) return;
        insertStyle(this.#el); // by now it may stand in a shadow root
        this.#draw(doc);
      },
      (error: unknown) => {
        if (asked === this.#asked && !this.#scene)
          replace(this.#waiting, `gdlab: ${error instanceof Error ? error.message : String(error)}`);
      },
    );
  }

  goLive(host: Host): void {
    if (host === this.host || this.#destroyed) return;
    this.#leave();
    this.host = host;
    this.#rev = -1;
    this.#stop = host.listen(() => this.#hostChanged());
    if (this.#asked === 0 || this.#scene) this.#attach();
    this.#hostChanged();
  }

  destroy(): void {
    this.#destroyed = true;
    this.#leave();
    this.#observer.disconnect();
    this.#scene?.destroy();
    this.#scene = null;
    this.#waiting.remove();
  }

  /** Join the host, once it is known which document is drawn, because the first message says that. */
  #attach(): void {
    if (!this.host || this.#handle) return;
    this.#handle = this.host.attach(this.#scene?.doc.id ?? null);
    this.#handle.show(this.#shown);
  }

  #leave(): void {
    this.#stop();
    this.#handle?.detach();
    this.#handle = null;
    this.host = null;
  }

  #hostChanged(): void {
    const { host } = this;
    // The document of the output itself comes first: it says which view is open.
    const opening = this.#asked > 0 && !this.#scene;
    if (host?.doc && !opening && host.doc.rev > Math.max(this.#rev, this.#scene?.doc.rev ?? -1)) {
      this.#rev = host.doc.rev;
      this.update(host.doc.payload);
    }
    this.#scene?.showLive();
    if (host?.dead && this.#scene) this.#runHere(this.#scene.doc);
  }

  /** Let the page compute a document that brings its data along and has no kernel; it begins at a click. */
  #runHere(doc: GraphDoc): void {
    const { run } = doc,
      { engine } = page();
    if (!run || !engine || (this.host && (!this.host.dead || this.host.inPage))) return;
    const before = this.host;
    engine()
      .then(make => {
        if (this.host !== before || this.#destroyed) return;
        const host = new Host(make(doc, run, entity => this.#scene?.reached(entity) ?? new Set<string>()));
        if (before) host.adopt(before);
        this.goLive(host);
      })
      .catch((error: unknown) => this.#scene?.chrome.say(error instanceof Error ? error.message : String(error)));
  }

  #draw(doc: GraphDoc): void {
    if (this.#scene) inherit(doc, this.#scene.doc);
    // A live view knows of the run already; the message at its end is for the saved notebook.
    const live = this.host !== null && !this.host.dead,
      known = (runs: GraphDoc["runs"]) => runs.filter(run => !live || run.label).length;
    const measured = ({ id, runs, plan, variants }: GraphDoc) =>
      JSON.stringify([id, known(runs), plan?.times, variants]);
    if (!this.#scene || measured(this.#scene.doc) !== measured(doc)) {
      const scene = new Scene(doc, () => this.host, this.#scene?.snapshot ?? null);
      scene.chrome.panes.after(...all(this.#el, ASKED));
      this.#scene?.destroy();
      this.#scene = scene;
      this.#waiting.remove();
      this.#el.append(scene.chrome.root);
      scene.show(false);
    }
    this.#attach();
    this.#runHere(doc);
    if (this.host && this.host.doc && this.host.doc.rev > doc.rev) this.#hostChanged();
  }
}
