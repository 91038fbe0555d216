// The page as a kernel: a model that answers the messages of a panel by computing on the reader's own adapter. The
// panel cannot tell it from a kernel's model but by the text of `device`.

import type { GraphDoc, RunSection } from "../doc/doc.ts";
import { bytes, sig } from "../doc/format.ts";
import { indexesOf } from "../doc/select.ts";
import type { Model } from "../live/host.ts";
import type { Lit } from "../live/page.ts";
import type { BreakRow, Command, CommandName, Event, Metrics, State, ToKernel, WatchRow } from "../live/messages.ts";
import { figureOf, type Subject } from "./conditions.ts";
import { inWords, numbersOf, summarize, windowOf, word, type Numbers } from "./numbers.ts";
import { EngineError, MOST_AT_ONCE, Program } from "./program.ts";
import { fault } from "./section.ts";
import { parseStop, type Stop } from "./stops.ts";

const FRAME = 50, // ms between two frames of figures
  AT_ONCE = 25, // ms of steps that are sent before anybody looks
  COURSE = 60, // samples of a watch
  EVERY = 128; // steps from one state that is kept to the next
// Names of states that are kept: before the step that is made in parts, before one of the last steps, before an earlier
// one (the last update may have spoiled the other), now, of a search.
const [PARTS, EARLIER, OLDER, NOW, LOOKED] = ["parts", "earlier", "older", "now", "looked"];

interface Watch {
  id: number;
  name: string;
  buffer: number;
  step: number;
  value: string;
  min: number;
  max: number;
  nonfinite: number;
  course: number[];
}
type Args = Record<string, unknown>;

const pause = (ms: number): Promise<void> => new Promise(resolve => setTimeout(resolve, ms));

function count(args: Args, name: string): number {
  const value = args[name] ?? 1;
  if (!Number.isInteger(value) || Number(value) < 1 || Number(value) > 1e9)
    throw new Error(`run: ${name}: given ${String(value)}, wanted an int in 1 … 1000000000`);
  return Number(value);
}

export class PageModel implements Model {
  readonly inPage = true;
  readonly #doc: GraphDoc;
  readonly #run: RunSection;
  readonly #listeners = new Map<string, Set<(...args: never[]) => void>>();
  readonly #lit: Lit;
  /** The dispatch that writes each buffer last (−1: none), and whether the buffer remains after a step. */
  readonly #written: number[];
  readonly #stays: boolean[];
  #program: Program | null = null;
  #state: State = "none";
  #reason = "";
  #step = 0;
  #wanted = 0;
  /** Dispatches made of the step under way. */
  #position = 0;
  #stopping = "";
  #speed = 0;
  #watched = "loss";
  /** The first step, from 1, with a result that is not finite. */
  #bad = 0;
  #losses: [number, number][] = [];
  #told = 0;
  #frame = 0;
  #asked = 0;
  #rate: [number, number][] = [];
  #watches: Watch[] = [];
  #stops: Stop[] = [];
  #ids = 0;
  #device = "WebGPU, in this page";
  /** The work under way: a page computes one thing at a time. */
  #work: Promise<unknown> = Promise.resolve();

  constructor(doc: GraphDoc, run: RunSection, lit: Lit) {
    const wrong = fault(run);
    if (wrong) throw new EngineError(`this page cannot run: ${wrong}`);
    this.#doc = doc;
    this.#run = run;
    this.#lit = lit;
    const { buffers, dispatches } = run.plan;
    this.#written = buffers.map((_, b) =>
      dispatches.reduce((last, { writes }, k) => (writes.includes(b) ? k : last), -1),
    );
    this.#stays = buffers.map((_, b) => this.#holder(b, this.#last) < 0);
    globalThis.document?.addEventListener("visibilitychange", () => {
      if (document.hidden && this.#state === "running")
        this.#note("note", "the page is in the background: the browser may slow it down");
    });
  }

  // the model ---------------------------------------------------------------------------------------------------------
  get(name: string): unknown {
    const { study, id } = this.#doc,
      known: Record<string, unknown> = { study: study ?? id, state: this.#state, step: this.#step };
    return known[name];
  }

  on(event: string, callback: (...args: never[]) => void): void {
    const all = this.#listeners.get(event) ?? new Set();
    this.#listeners.set(event, all.add(callback));
  }

  off(event: string, callback: (...args: never[]) => void): void {
    this.#listeners.get(event)?.delete(callback);
  }

  send(content: unknown): void {
    const message = content as ToKernel;
    if (message.type === "hello" && this.#program) this.#tell(true);
    else if (message.type === "command") void this.#answer(message);
  }

  #emit(message: object): void {
    for (const listener of [...(this.#listeners.get("msg:custom") ?? [])]) (listener as (m: object) => void)(message);
  }

  async #answer({ name, args, req }: Command): Promise<void> {
    const act = this.#commands[name];
    try {
      if (!act) throw new Error("the page cannot do this: it takes the kernel that the study was made in");
      const result = (await act(args)) ?? {};
      this.#emit({ type: "reply", req, ok: true, result, error: null });
    } catch (error) {
      const { message } = error as Error;
      if (error instanceof EngineError) this.#fail(message);
      this.#emit({ type: "reply", req, ok: false, result: null, error: { kind: "Error", message, about: null } });
    }
    this.#tell();
  }

  readonly #commands: Partial<Record<CommandName, (args: Args) => Promise<Args | void> | Args | void>> = {
    open: () => void this.#open(),
    step: args => this.#stepped(args),
    run: args => this.#ran(args),
    resume: () => this.#begin(this.#wanted - this.#step),
    pause: () => this.#request("by you"),
    stop: () => this.#stop(),
    reset: () => this.#reset(),
    speed: args => {
      this.#speed = Number(args.steps_per_second ?? 0);
    },
    watch: args => this.#watch(args),
    break: args => {
      this.#stops.push(parseStop(++this.#ids, String(args.text ?? ""), this.#run, name => this.#bufferOf(name)));
    },
    clear: ({ id }) => {
      this.#watches = this.#watches.filter(each => each.id !== id);
      this.#stops = this.#stops.filter(each => each.id !== id);
    },
    back: args => this.#back(count(args, "dispatches")),
    value: args => this.#value(args),
  };

  // running -----------------------------------------------------------------------------------------------------------
  /** Do one piece of work after the other. */
  #exclusive<T>(work: () => Promise<T>): Promise<T> {
    const next = this.#work.then(work, work);
    this.#work = next.catch(() => {});
    return next;
  }

  async #open(): Promise<Program> {
    if (this.#program && !this.#program.lost) return this.#program;
    this.#device = "WebGPU, in this page: opening …";
    this.#tell();
    const told = (made: number, all: number) => {
      this.#reason = made < all ? `${made} of ${all} kernels` : "";
      this.#tell();
    };
    const program = await Program.open(this.#run, told);
    this.#device = `${program.name}, WebGPU in this page`;
    this.#program = program;
    this.#tell(true); // of earlier steps, made elsewhere, none count here
    if (this.#run.note) this.#note("note", this.#run.note);
    return program;
  }

  async #stepped(args: Args): Promise<void> {
    if ("dispatches" in args) return this.#within(this.#position + count(args, "dispatches"));
    await this.#begin(count(args, "steps"));
  }

  async #ran(args: Args): Promise<void> {
    if (!("to" in args)) return this.#begin(count(args, "steps"));
    const to = this.#dispatchOf(String(args.to));
    if (this.#position > to) await this.#within(this.#last);
    await this.#within(to + 1);
  }

  #refuseRunning(): void {
    if (this.#state === "running") throw new Error("run: given a session that is running, wanted one that is paused");
  }

  /** Begin a run of so many steps; it goes on by itself. */
  async #begin(steps: number): Promise<void> {
    this.#refuseRunning();
    this.#enter(this.#step + Math.max(1, steps));
    void this.#exclusive(() => this.#loop()).catch(error => this.#fail((error as Error).message));
  }

  #enter(wanted: number): void {
    this.#wanted = wanted;
    this.#state = "running";
    this.#reason = this.#stopping = "";
    this.#bad = 0;
    this.#rate = [];
    this.#tell();
  }

  /** Go on to a position inside of the step under way, or of the next one. */
  async #within(position: number): Promise<void> {
    this.#refuseRunning();
    this.#enter(Math.max(this.#wanted, this.#step + 1));
    await this.#exclusive(async () => {
      const program = await this.#open();
      await this.#advance(program, Math.min(position, this.#last));
      await this.#findCause(program);
      this.#end();
    });
  }

  async #loop(): Promise<void> {
    const program = await this.#open();
    let most = 1;
    while (this.#step < this.#wanted && !this.#stopping) {
      const began = performance.now(),
        looks = this.#stops.length > 0 || this.#watches.length > 0 || this.#looksAtEach;
      if (this.#watched === "everything" && (await this.#wouldBeBad(program))) break;
      if (looks || this.#speed > 0 || this.#position > 0) await this.#advance(program, this.#last);
      else await this.#several(program, Math.min(most, this.#wanted - this.#step));
      const took = performance.now() - began;
      most = took < AT_ONCE / 2 ? Math.min(2 * most, MOST_AT_ONCE) : took > AT_ONCE ? Math.max(1, most >> 1) : most;
      this.#tell();
      if (this.#speed > 0) await pause(Math.max(0, 1000 / this.#speed - took));
    }
    await this.#findCause(program);
    this.#end();
  }

  /** Go back by so many dispatches in the step that is, or was last, made dispatch by dispatch. */
  async #back(dispatches: number): Promise<Args> {
    this.#refuseRunning();
    return this.#exclusive(async () => {
      const program = this.#program,
        over = this.#position === 0,
        step = over ? this.#step - 1 : this.#step;
      if (!program || program.kept(PARTS) !== step)
        throw new Error("back: given no step that is kept, wanted one that is stepped through by dispatches");
      const to = Math.max(0, (over ? this.#last : this.#position) - dispatches);
      program.load(PARTS);
      program.begin(step);
      await program.advance(0, to);
      if (over) this.#losses = this.#losses.slice(0, -1);
      [this.#step, this.#position, this.#told] = [step, to, Math.min(this.#told, this.#losses.length)];
      [this.#state, this.#wanted] = ["paused", Math.max(this.#wanted, step + 1)];
      this.#reason = this.#place || `at the start of step ${step + 1}, before its ${this.#last} dispatches`;
      const text = `back: ${this.#reason}; replayed from the start of the step`;
      this.#note("note", text, step + 1, to > 0 ? this.#entity("dispatch", to - 1) : null);
      return { text };
    });
  }

  /** The buffer that has taken over the memory of another before a position of a step; −1: none has. */
  #holder(buffer: number, position: number): number {
    const { buffers, dispatches } = this.#run.plan,
      { slot } = buffers[buffer]!,
      order = [...dispatches.slice(position), ...dispatches.slice(0, position)].reverse();
    for (const { writes } of order) {
      if (writes.includes(buffer)) return -1;
      const other = writes.find(b => buffers[b]!.slot === slot);
      if (other !== undefined) return other;
    }
    return -1;
  }

  get #last(): number {
    return this.#run.plan.dispatches.length;
  }

  /** Make several steps into which nobody looks. */
  async #several(program: Program, steps: number): Promise<void> {
    this.#keepEarlier(program);
    program.keep(PARTS, NaN);
    for (let k = 0; k < steps; k++) {
      program.begin(this.#step + k);
      await program.advance(0, this.#last, k);
    }
    this.#add(await program.losses(steps), steps);
  }

  /** Make the step under way, or the next one, up to a position; a breakpoint may end it before. */
  async #advance(program: Program, goal: number): Promise<void> {
    const last = this.#last;
    if (this.#position === 0) this.#keepEarlier(program);
    const inside = this.#stops.flatMap(({ dispatches }) => dispatches.map(k => k + 1));
    inside.push(...this.#watches.map(({ buffer }) => (this.#stays[buffer] ? last : this.#written[buffer]! + 1)));
    const ends = [...new Set([...inside.filter(k => k > this.#position && k < goal), goal])].sort((a, b) => a - b);
    if (this.#position === 0) {
      program.begin(this.#step);
      program.keep(PARTS, ends[0]! < last ? this.#step : NaN);
    }
    for (const end of ends) {
      await program.advance(this.#position, end, end === last ? 0 : -1);
      this.#position = end;
      const passing = (buffer: number) => !this.#stays[buffer] && this.#written[buffer] === end - 1;
      if (end < last) await this.#sample(program, passing);
      if (end < last && (await this.#hit(program, end - 1))) return;
    }
    if (goal < last) return program.check();
    const losses = await program.losses(1);
    this.#position = 0;
    this.#add(losses, 1);
    if (this.#looksAtEach) await this.#lookAtParameters(program);
    await this.#sample(program, buffer => this.#stays[buffer]! || this.#written[buffer] === last - 1);
    await this.#hit(program, last - 1, true);
  }

  #add(losses: number[], steps: number): void {
    losses.forEach((loss, k) => this.#losses.push([this.#step + k + 1, loss]));
    const bad = this.#watched === "off" ? -1 : losses.findIndex(loss => !Number.isFinite(loss));
    this.#step += steps;
    this.#rate = [...this.#rate, [performance.now(), this.#step] as [number, number]].slice(-64);
    if (bad < 0) return;
    const step = this.#step - steps + bad + 1,
      about = this.#run.loss === null ? null : this.#entity("interval", this.#run.loss);
    this.#spoiled(step, `loss is ${sig(losses[bad]!)} at step ${step}`, about);
  }

  // NaN and infinity: what is watched, and its cause ------------------------------------------------------------------
  get #looksAtEach(): boolean {
    return this.#watched === "parameters" || this.#watched === "everything";
  }

  #spoiled(step: number, reason: string, about: string | null = null): void {
    if (this.#bad > 0) return;
    this.#bad = step;
    this.#note("nonfinite", reason, step, about);
    this.#request(reason);
  }

  /** Keep the state from time to time, from which the cause of a NaN is searched. */
  #keepEarlier(program: Program): void {
    if (this.#watched === "off" || this.#step - program.kept(EARLIER) < EVERY) return;
    program.swap(EARLIER, OLDER);
    program.keep(EARLIER, this.#step);
  }

  /** Check the parameters, then the gradients of the last step. */
  async #lookAtParameters(program: Program): Promise<void> {
    const { buffers } = this.#run.plan;
    for (const kinds of ["parameter derived", "gradient"])
      for (const [b, { kind, name }] of buffers.entries()) {
        const data = kinds.includes(kind) ? await this.#numbers(program, b) : [];
        if (data.every(Number.isFinite)) continue;
        const called = name.replace(/^∂/, "the gradient of ");
        return this.#spoiled(this.#step, `${called} is not finite after step ${this.#step}`);
      }
  }

  /** Whether the next step has a result that is not finite; the state is restored after it. */
  async #wouldBeBad(program: Program): Promise<boolean> {
    if (this.#position > 0) return false;
    this.#keepEarlier(program);
    program.keep(LOOKED, this.#step);
    const found = await this.#firstBad(program, this.#step, this.#last - this.#run.plan.updates);
    program.load(LOOKED);
    if (!found) return false;
    this.#spoiled(this.#step + 1, `step ${this.#step + 1} would not be finite`);
    return true;
  }

  /** Make dispatches of a step one by one until one writes a non-finite value; say which. */
  async #firstBad(program: Program, step: number, last: number): Promise<[dispatch: number, text: string] | null> {
    program.begin(step);
    for (let k = 0; k < last; k++) {
      await program.advance(k, k + 1);
      const { label, bind, writes } = this.#run.plan.dispatches[k]!;
      for (const b of writes) {
        const data = await this.#numbers(program, b),
          at = data.findIndex(value => !Number.isFinite(value));
        if (at < 0) continue;
        const read: string[] = [];
        for (const [from, access] of bind)
          if (access === "r") read.push(`${this.#called(from)} ${inWords(await this.#numbers(program, from))}`);
        const what = Number.isNaN(data[at]) ? "NaN" : "infinity";
        return [k, `first ${what}: dispatch ${k}, ${label}, from element ${at} on; it read ${read.join("; ")}`];
      }
    }
    return null;
  }

  /** Search the bad step, and the update of the one before, in the state at that time; restore the present state
   * afterwards. */
  async #findCause(program: Program): Promise<void> {
    const bad = this.#bad;
    if (bad === 0) return;
    const name = [EARLIER, OLDER].find(each => program.kept(each) < bad - 1) ?? EARLIER,
      from = program.kept(name);
    let why = `no state before step ${bad} was kept`,
      found: [number, string] | null = null;
    if (from < bad) {
      why = `all values are finite when step ${bad} is repeated`;
      program.keep(NOW, this.#step);
      program.load(name);
      for (let step = from; step < bad && !found; step++) {
        if (step >= bad - 2) found = await this.#firstBad(program, step, this.#last);
        else {
          program.begin(step);
          await program.advance(0, this.#last);
        }
      }
      program.load(NOW);
      [EARLIER, OLDER].forEach(each => program.keep(each, NaN));
    }
    if (found) this.#note("nonfinite", found[1], bad, this.#entity("dispatch", found[0]));
    else this.#note("note", `the cause is not known: ${why}; watch everything to stop before it happens`);
  }

  #called(buffer: number): string {
    return this.#run.plan.buffers[buffer]!.name || `buffer ${buffer}`;
  }

  async #sample(program: Program, due: (buffer: number) => boolean): Promise<void> {
    for (const watch of this.#watches.filter(({ buffer }) => due(buffer))) {
      const data = await this.#numbers(program, watch.buffer),
        finite = data.filter(Number.isFinite) as Numbers;
      watch.step = this.#step + (this.#position > 0 ? 1 : 0);
      watch.value = inWords(data);
      watch.nonfinite = data.length - finite.length;
      watch.min = figureOf("min", finite);
      watch.max = figureOf("max", finite);
      watch.course = [...watch.course, figureOf("mean", finite)].slice(-COURSE);
    }
  }

  /** Whether a breakpoint pauses behind a dispatch, or behind the step. */
  async #hit(program: Program, dispatch: number, over = false): Promise<boolean> {
    const hits: Stop[] = [];
    for (const stop of this.#stops) {
      const here = stop.dispatches.includes(dispatch) || (over && this.#atStep(stop));
      if (here && (await this.#holds(program, stop, dispatch))) hits.push(stop);
    }
    if (hits.length === 0) return false;
    hits.forEach(each => Object.assign(each, { hits: each.hits + 1, last: [this.#step, dispatch] }));
    const text = hits.map(({ id, text }) => `breakpoint ${id}: ${text}`).join("; ");
    this.#note("break", text, this.#step + (over ? 0 : 1), over ? null : this.#entity("dispatch", dispatch));
    this.#request(text);
    return true;
  }

  #atStep({ kind, number }: Stop): boolean {
    if (kind === "step") return this.#step === number;
    if (kind !== "loss") return false;
    const last = this.#losses.slice(-number - 1).map(([, loss]) => loss);
    return last.length === number + 1 && last.every((loss, i) => i === 0 || loss > last[i - 1]!);
  }

  async #holds(program: Program, { kind, name, test, last }: Stop, dispatch: number): Promise<boolean> {
    if (kind === "nonfinite") {
      if (last[0] === this.#step && last[1] < dispatch) return false; // once in a step
      const written = name ? [this.#bufferOf(name)] : this.#run.plan.dispatches[dispatch]!.writes;
      const bad = await Promise.all(
        written.map(async b => figureOf("nonfinite", await this.#numbers(program, b)) > 0),
      );
      if (!bad.includes(true)) return false;
    }
    return !test || test.holds(await this.#subject(program, test.tensors));
  }

  async #subject(program: Program, names: readonly string[]): Promise<Subject> {
    const tensors = new Map<string, { data: Numbers; shape: number[] } | null>();
    for (const name of names) {
      const buffer = this.#bufferOf(name),
        { shape } = this.#run.plan.buffers[buffer]!,
        gone = this.#holder(buffer, this.#position) >= 0;
      tensors.set(name, gone ? null : { data: await this.#numbers(program, buffer), shape });
    }
    return { step: this.#step, loss: this.#losses.at(-1)?.[1] ?? null, tensors };
  }

  #request(reason: string): void {
    if (this.#state === "running") this.#stopping ||= reason;
  }

  async #stop(): Promise<void> {
    if (this.#state === "running") {
      this.#stopping = "stopped";
      await this.#work;
    }
    this.#wanted = this.#step;
    if (this.#state === "paused") this.#state = this.#position > 0 ? "paused" : "ready";
    this.#reason = "";
  }

  #end(): void {
    if (this.#state !== "running") return;
    const open = this.#step < this.#wanted || this.#bad > 0;
    this.#state = open ? "paused" : "ready";
    this.#reason = this.#stopping || this.#place;
    if (this.#stopping === "by you") this.#note("pause", `paused ${this.#stopping}`);
    this.#stopping = "";
    this.#tell(false, true);
  }

  async #reset(): Promise<void> {
    this.#refuseRunning();
    if (this.#program?.lost) this.#program = null;
    else this.#program?.reset();
    this.#step = this.#position = this.#wanted = this.#told = 0;
    this.#losses = [];
    this.#state = this.#program ? "ready" : "none";
    this.#reason = "";
    this.#note("note", "reset to the opening state", 0);
    this.#tell(true);
  }

  #fail(reason: string): void {
    this.#note("error", reason);
    this.#state = "failed";
    this.#reason = reason;
    this.#device = "WebGPU, in this page";
    this.#tell(false, true);
  }

  // looking -----------------------------------------------------------------------------------------------------------
  #entity(kind: "dispatch" | "interval", row: number): string | null {
    return this.#run.same ? `${kind}:${row}` : null;
  }

  /** The buffer that a name or an entity of the document means. */
  #bufferOf(name: string): number {
    const { buffers, dispatches } = this.#run.plan,
      [, kind, row] = /^(interval|dispatch):(\d+)$/.exec(name) ?? [];
    if (this.#run.same && kind === "interval" && buffers[Number(row)]) return Number(row);
    if (this.#run.same && kind === "dispatch" && dispatches[Number(row)]) return dispatches[Number(row)]!.writes[0]!;
    const own = name.replace(/^(.+)\.grad$/, "∂$1"),
      named = buffers.findIndex(each => each.name === own);
    if (named >= 0) return named;
    const entity = /^\w+:[\d.]+$/.test(name) ? name : this.#nodeNamed(name);
    if (entity && this.#run.same) {
      const lit = this.#lit(entity),
        lying = indexesOf("interval", lit).filter(b => buffers[b]),
        made = Math.max(...indexesOf("dispatch", lit).filter(k => dispatches[k]));
      if (Number.isFinite(made) && entity.startsWith("node:")) return dispatches[made]!.writes[0]!;
      if (lying.length > 0) return Math.min(...lying);
      if (Number.isFinite(made)) return dispatches[made]!.writes[0]!;
    }
    throw new Error(`look: given ${name}, wanted a parameter, an input, or a node with memory of its own in this page`);
  }

  #nodeNamed(name: string): string {
    const id = this.#doc.stages[0]?.nodes.findIndex(each => each.name === name) ?? -1;
    return id >= 0 ? `node:0.${id}` : "";
  }

  #dispatchOf(text: string): number {
    const { dispatches } = this.#run.plan,
      row = /^(?:dispatch:)?(\d+)$/.exec(text)?.[1];
    const found = row === undefined ? dispatches.findIndex(d => d.writes.includes(this.#bufferOf(text))) : Number(row);
    if (!dispatches[found]) throw new Error(`run: given ${text}, wanted dispatch 0 … ${dispatches.length - 1}`);
    return found;
  }

  async #numbers(program: Program, buffer: number): Promise<Numbers> {
    const { dtype, shape } = this.#run.plan.buffers[buffer]!,
      count = shape.reduce((a, b) => a * b, 1),
      found = numbersOf(dtype, await program.read(buffer), count);
    if (found) return found;
    throw new Error(`look: given ${this.#called(buffer)}, ${dtype}, wanted f32, f16, bf16 or u32 in a page`);
  }

  async #value(args: Args): Promise<Args> {
    const name = String(args.name ?? ""),
      buffer = this.#bufferOf(name),
      { shape, dtype, nbytes, name: own } = this.#run.plan.buffers[buffer]!,
      slice = ((args.slice as number[] | undefined) ?? []).map(Number),
      [row, col] = [Number(args.row ?? 0), Number(args.col ?? 0)];
    const data = await this.#exclusive(async () => {
      const taken = this.#holder(buffer, this.#position);
      if (taken < 0) return this.#numbers(await this.#open(), buffer);
      const given = `${this.#called(buffer)}, whose memory ${this.#called(taken)} has taken over`;
      throw new Error(`look: given ${given}, wanted a run to dispatch ${this.#written[buffer]!}, which writes it`);
    });
    const place = this.#place || `after step ${this.#step}`,
      about = this.#entity("interval", buffer) ?? "";
    const picked = slice.length > 0 ? slice : new Array<number>(Math.max(0, shape.length - 2)).fill(0);
    return {
      name: own || name,
      about,
      type: `${dtype}[${shape.join(", ")}]`,
      shape,
      step: this.#step + (this.#position > 0 ? 1 : 0),
      dispatch: this.#position - 1,
      place,
      slice: picked,
      ...summarize(data, shape, slice),
      window: windowOf(data, shape, slice, row, col),
      difference: null,
      why: args.against ? "a page has nothing to compare with: it takes a kernel" : "",
      read: nbytes,
      text: inWords(data),
    };
  }

  #watch(args: Args): void {
    if ("name" in args) {
      const name = String(args.name),
        buffer = this.#bufferOf(name);
      const empty = { step: -1, value: "", min: NaN, max: NaN, nonfinite: 0, course: [] };
      if (!this.#watches.some(each => each.buffer === buffer))
        this.#watches.push({ id: ++this.#ids, name, buffer, ...empty });
      return;
    }
    const mode = String(args.mode);
    if (!["off", "loss", "parameters", "everything"].includes(mode))
      throw new Error(`watch: mode: given ${mode}, wanted one of off, loss, parameters, everything`);
    this.#watched = mode;
  }

  // telling -----------------------------------------------------------------------------------------------------------
  get #place(): string {
    const { dispatches } = this.#run.plan,
      at = this.#position;
    if (at === 0) return "";
    const label = dispatches[at - 1]!.label;
    return `after dispatch ${at - 1} (${label}), ${at} of ${dispatches.length} in step ${this.#step + 1}`;
  }

  #note(kind: Event["kind"], text: string, step = this.#step, about: string | null = null): void {
    this.#emit({ type: "event", step, kind, about, text });
  }

  /** Send the present figures, at most twenty times a second unless `now`. */
  #tell(full = false, now = false): void {
    if (full || now) return this.#send(full);
    if (this.#asked) return;
    this.#asked = 1;
    setTimeout(() => this.#asked && this.#send(false), FRAME);
  }

  #send(full: boolean): void {
    this.#asked = 0;
    const { plan, update, bytes: data } = this.#run,
      totals = this.#program?.totals ?? { submissions: 0, dispatches: 0, up: 0, down: 0 },
      [first, last] = [this.#rate[0], this.#rate.at(-1)];
    const rate = first && last && last[0] > first[0] ? ((last[1] - first[1]) * 1000) / (last[0] - first[0]) : 0;
    const memory = plan.slots.reduce((a, b) => a + b, 0);
    const from = full ? 0 : this.#told;
    this.#told = this.#losses.length;
    const metrics: Omit<Metrics, "timed" | "norms" | "norms_left_out" | "engines"> = {
      type: "metrics",
      frame: ++this.#frame,
      state: this.#state,
      reason: this.#reason,
      step: this.#step,
      wanted: this.#wanted,
      loss: this.#losses.slice(from).map(([step, loss]) => [step, word(loss)]),
      counters: {
        steps: this.#step,
        dispatches: totals.dispatches,
        dispatches_per_step: plan.dispatches.length,
        submissions: totals.submissions,
        groups: plan.groups,
        bytes_up: totals.up,
        bytes_down: totals.down,
        steps_per_second: rate,
      },
      memory: `${bytes(memory)} on the GPU, ${bytes(data)} in the page`,
      device: this.#device,
      optimizer: update.text,
      watch: this.#watched,
      dispatch: this.#position - 1,
      place: this.#place,
      under_way: this.#state === "running" ? this.#frame % plan.dispatches.length : -1,
      watches: this.#watches.map(
        ({ id, name, value, step, min, max, nonfinite, course }): WatchRow => ({
          id, name, value, step, min: word(min), max: word(max), nonfinite, course: course.map(word),
        }),
      ),
      breaks: this.#stops.map(({ id, text, hits }): BreakRow => ({ id, text, hits })),
      full,
    };
    this.#emit(metrics);
    for (const name of ["state", "step"])
      for (const each of [...(this.#listeners.get(`change:${name}`) ?? [])]) (each as () => void)();
  }
}

export const makeModel = (doc: GraphDoc, run: RunSection, lit: Lit): Model => new PageModel(doc, run, lit);
