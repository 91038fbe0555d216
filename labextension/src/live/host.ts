// A host speaks with the kernel for one study: hello, commands answered by `req`, metrics acknowledged after drawing.

import type { SweepSection } from "../doc/doc.ts";
import { keptNamed } from "./kept.ts";
import { noSession, withEvent, withMetrics, type Live } from "./live.ts";
import { PROTOCOL, type CommandName, type Event, type Reply, type ToKernel, type ToPage } from "./messages.ts";
import { selectionNamed, type Shared } from "./page.ts";

/** The part of an anywidget model that is used. */
export interface Model {
  get(name: string): unknown;
  on(event: string, callback: (...args: never[]) => void): void;
  off(event: string, callback: (...args: never[]) => void): void;
  send(content: unknown, callbacks?: unknown, buffers?: ArrayBuffer[]): void;
  set?(name: string, value: unknown): void;
  save_changes?(): void;
  /** Set where the page itself computes (engine/model.ts), without a kernel. */
  readonly inPage?: boolean;
  /** Not every host has one; in JupyterLab and Notebook it knows the kernel. */
  widget_manager?: { kernel?: Kernel | null };
}

interface Signal {
  connect(slot: (sender: unknown, value: string) => void): void;
  disconnect(slot: (sender: unknown, value: string) => void): void;
}
interface Kernel {
  statusChanged: Signal;
  disposed: Signal;
}

export interface Answer {
  ok: boolean;
  result: Record<string, unknown> | null;
  error: Reply["error"];
}
export interface Pending {
  req: number;
  name: CommandName;
  since: number;
  queued: boolean;
}
interface Waiting extends Pending {
  resolve: (answer: Answer) => void;
  timer: ReturnType<typeof setTimeout>;
}
export interface Handle {
  show(shown: boolean): void;
  detach(): void;
}

export const QUEUED_AFTER = 300;
/** The milliseconds after which an answer that a later command has overtaken counts as lost: its subshell died with a
 * page. */
export const LOST_AFTER = 5000;

const ENDED = ["dead", "terminating", "restarting", "autorestarting"];
const LOST: Answer = {
  ok: false,
  result: null,
  error: { kind: "Lost", message: "no reply came from the kernel", about: null },
};
const GONE: Answer = { ok: false, result: null, error: { kind: "Closed", message: "the kernel is gone", about: null } };

const hostName = (): string =>
  (globalThis as { jupyterapp?: unknown }).jupyterapp
    ? "jupyterlab"
    : (globalThis.location?.protocol ?? "page").replace(":", "");

function afterPaint(then: () => void): void {
  // A hidden page paints no frame: the timer keeps the kernel from waiting for ever.
  let done = false;
  const once = () => {
    if (!done) {
      done = true;
      then();
    }
  };
  globalThis.requestAnimationFrame?.(() => setTimeout(once));
  setTimeout(once, 200);
}

export class Host {
  readonly #model: Model;
  readonly #now: () => number;
  live: Live = noSession;
  doc: { rev: number; payload: Record<string, unknown> } | null = null;
  dead = false;
  #known: Event[] = [];
  #have: string | null | undefined = undefined;
  #nextReq = 1;
  readonly #waiting = new Map<number, Waiting>();
  readonly #listeners = new Set<() => void>();
  readonly #views = new Map<object, boolean>();
  readonly #undo: (() => void)[] = [];

  constructor(model: Model, now: () => number = () => Date.now()) {
    this.#model = model;
    this.#now = now;
    this.#listenTo("msg:custom", (content: ToPage) => this.#receive(content));
    this.#listenTo("change:state", () => this.#fromTraits());
    this.#listenTo("change:step", () => this.#fromTraits());
    const ended = () => this.close(this.replaced ? "replaced by a newer run" : undefined);
    for (const event of ["destroy", "comm:close"]) this.#listenTo(event, ended);
    this.#watchKernel();
    this.#share("selected", selectionNamed(this.study));
    this.#share("kept", keptNamed(this.study));
    this.#fromTraits();
  }

  /** Mirror the selection or saved settings in a trait: Python reads and sets it, a reloaded page finds it again. */
  #share<T extends object>(name: string, all: Shared<T>): void {
    const model = this.#model,
      known = () => model.get(name) as T | undefined;
    const told = (value: T) => {
      model.set?.(name, structuredClone(value));
      model.save_changes?.();
    };
    const hear = () => {
      const value = known();
      if (!value || JSON.stringify(value) === JSON.stringify(all.value)) return;
      all.value = value;
      for (const listener of all.listeners) if (listener !== told) listener(value);
    };
    all.listeners.add(told);
    this.#undo.push(() => all.listeners.delete(told));
    this.#listenTo(`change:${name}`, hear);
    if (Object.keys(known() ?? {}).length > 0) hear();
  }

  /** Watch the connection for a kernel that is shut down or restarted, because that closes no comm. */
  #watchKernel(): void {
    const kernel = this.#model.widget_manager?.kernel,
      end = () => this.close("the kernel has ended; run the cell again"),
      changed = (_: unknown, status: string) => ENDED.includes(status) && end();
    kernel?.statusChanged.connect(changed);
    kernel?.disposed.connect(end);
    this.#undo.push(() => {
      kernel?.statusChanged.disconnect(changed);
      kernel?.disposed.disconnect(end);
    });
  }

  get study(): string {
    return String(this.#model.get("study") ?? "");
  }

  /** The key of the study that has this one's name now; empty while it is this one. */
  get replaced(): string {
    return String(this.#model.get("replaced") ?? "");
  }

  /** Whether the page itself computes, without a kernel. */
  get inPage(): boolean {
    return this.#model.inPage === true;
  }

  get pending(): Pending[] {
    return [...this.#waiting.values()];
  }

  /** Call back after every change; return the function that ends it. */
  listen(callback: () => void): () => void {
    this.#listeners.add(callback);
    return () => this.#listeners.delete(callback);
  }

  /** Add a view that draws document `id` (or none yet); the first message says what need not be sent. */
  attach(id: string | null): Handle {
    const view = {};
    this.#views.set(view, true);
    if (this.#have === undefined || (this.#have !== id && this.doc === null)) {
      this.#have = id;
      this.#send({ type: "hello", version: PROTOCOL, host: hostName(), views: this.#views.size, have: id });
    } else {
      this.#sayVisible();
    }
    const change = (act: () => void) => {
      act();
      this.#sayVisible();
    };
    return {
      show: shown => {
        if (this.#views.has(view) && this.#views.get(view) !== shown) change(() => this.#views.set(view, shown));
      },
      detach: () => {
        if (this.#views.has(view)) change(() => this.#views.delete(view));
      },
    };
  }

  /** Send a command; the promise always resolves, with the kernel's answer or with the reason why none will come. */
  command(name: CommandName, args: Record<string, unknown> = {}): Promise<Answer> {
    if (this.dead) return Promise.resolve(GONE);
    const req = this.#nextReq++;
    return new Promise(resolve => {
      const timer = setTimeout(() => this.#markQueued(req), QUEUED_AFTER);
      this.#waiting.set(req, { req, name, since: this.#now(), queued: false, resolve, timer });
      this.#send({ type: "command", name, args, req });
      this.#changed();
    });
  }

  /** Begin with the figures of a host that has ended, until a run of this one begins. */
  adopt({ live }: Host): void {
    this.live = { ...live, state: "none", reason: "", error: "", frame: -1 };
  }

  close(reason = "replaced by a newer run, or the kernel is gone"): void {
    if (this.dead) return;
    this.dead = true;
    this.live = {
      ...this.live,
      state: this.live.state === "none" ? "none" : "closed",
      reason,
    };
    for (const req of [...this.#waiting.keys()]) this.#settle(req, GONE);
    this.#undo.forEach(each => each());
    this.#changed();
  }

  #listenTo(event: string, callback: (...args: never[]) => void): void {
    this.#model.on(event, callback);
    this.#undo.push(() => this.#model.off(event, callback));
  }

  #send(message: ToKernel): void {
    if (!this.dead) this.#model.send(message);
  }

  #sayVisible(): void {
    this.#send({ type: "visible", views: this.#views.size, shown: [...this.#views.values()].includes(true) });
  }

  #changed(): void {
    [...this.#listeners].forEach(callback => callback());
  }

  #markQueued(req: number): void {
    const waiting = this.#waiting.get(req);
    if (!waiting) return;
    waiting.queued = true;
    this.#changed();
  }

  #settle(req: number, answer: Answer): void {
    const waiting = this.#waiting.get(req);
    if (!waiting) return; // answered before, or never asked by this page
    clearTimeout(waiting.timer);
    this.#waiting.delete(req);
    waiting.resolve(answer);
  }

  #receive(message: ToPage): void {
    switch (message?.type) {
      case "reply":
        this.#takeReply(message);
        break;
      case "metrics": {
        this.live = { ...withMetrics(this.live, message), error: this.live.error };
        if (message.full) this.#known = [...this.live.events];
        const rev = Number(this.#model.get("rev") ?? 0);
        afterPaint(() => this.#send({ type: "ack", rev, frame: message.frame }));
        break;
      }
      case "sweep":
        this.live = { ...this.live, sweep: message.section as unknown as SweepSection };
        break;
      case "event": {
        // With a full frame the kernel says all events again, for a page that was reloaded.
        const known = this.#known.findIndex(
          ({ step, kind, text }) => step === message.step && kind === message.kind && text === message.text,
        );
        if (known >= 0) this.#known.splice(known, 1);
        else this.live = withEvent(this.live, message);
        break;
      }
      case "doc": {
        if (this.doc && message.rev < this.doc.rev) return;
        this.doc = { rev: message.rev, payload: message.doc };
        break;
      }
      default:
        return console.info("gdlab: unknown message", message);
    }
    this.#changed();
  }

  #takeReply(reply: Reply): void {
    const name = this.#waiting.get(reply.req)?.name,
      known = name !== undefined && name !== "value"; // the microscope says itself what it was refused
    this.#settle(reply.req, { ok: reply.ok, result: reply.result, error: reply.error });
    if (known && reply.ok) this.live = { ...this.live, error: "" };
    if (known && !reply.ok) this.live = { ...this.live, error: reply.error?.message ?? "refused" };
    const late = this.pending.filter(each => each.req < reply.req && this.#now() - each.since > LOST_AFTER);
    for (const { req } of late) this.#settle(req, LOST);
  }

  /** Read the state from the two traits, which are all that is known of a session before the first frame. */
  #fromTraits(): void {
    if (this.live.frame >= 0) return;
    const state = (this.#model.get("state") as Live["state"] | undefined) ?? "none";
    this.live = { ...this.live, state, step: Number(this.#model.get("step") ?? 0) };
    this.#changed();
  }
}
