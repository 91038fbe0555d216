// The replay: a slider over the rewrites of a pass. Nodes keep their places; marks show the nodes that a step adds and
// removes.

import { optimizeReport, optimizerPasses, passName, typeText, type GraphDoc, type Pass } from "../doc/doc.ts";
import { plural, priced, put, sig } from "../doc/format.ts";
import { replayed, type Replay } from "../doc/union.ts";
import { div, h, listen, setFlag, span, write, type Child } from "../draw/dom.ts";
import type { Dress } from "../draw/picture.ts";
import { Canvas } from "./canvas.ts";
import { modes } from "./egraph.ts";
import { body, choice, empty, frame, pane, refill, replace, retitle, select, UNOPTIMIZED } from "./pane.ts";
import type { Context, Pane, PaneRecord } from "./pane.ts";
import { Player } from "./player.ts";
import { rewritesOf } from "./tabcounts.ts";
import { selecting } from "./state.ts";
import { zoomButtons } from "./zoom.ts";

type Tenant = Replay["tenants"][number][number];
type Wire = Replay["wires"][number];

const LIMITS = ["iterations", "enodes", "time"]; // reasons to stop that are limits
const SPEEDS: [string, string][] = [
  ["1", "1 step/s"],
  ["2", "2 steps/s"],
  ["5", "5 steps/s"],
];
const SHOWN = 12; // nodes of one step that are listed

/** A pass after so many of its steps: the node in each place, and the changes of the last step. */
class Replayed {
  readonly union: Replay;
  readonly #wires = new Map<string, Wire[]>();
  at = 0;

  constructor(
    readonly doc: GraphDoc,
    readonly pass: Pass,
  ) {
    this.union = replayed(doc, pass);
    for (const wire of this.union.wires) put(this.#wires, `${wire.a} ${wire.b}`, wire);
  }

  get stage() {
    return this.union.stage;
  }

  readonly born = ({ life }: Tenant): boolean => this.at > 0 && life.born === this.at;
  readonly died = ({ life }: Tenant): boolean => this.at > 0 && life.died === this.at;
  readonly alive = ({ born, died }: { born: number; died: number }): boolean => born <= this.at && this.at < died;

  /** Move to a step; return the places that differ now. */
  move(to: number): Set<number> {
    const { steps, touched } = this.union;
    const from = this.at;
    this.at = Math.min(steps, Math.max(0, Math.round(to) || 0));
    // The marks of the step that is left change, too.
    const changed = new Set(touched.slice(Math.min(from, this.at), Math.max(from, this.at) + 1).flat());
    this.settle(changed);
    return changed;
  }

  /** Put into these places the node that came last, alive or not. */
  settle(places: Iterable<number>): void {
    const { nodes, entities } = this.stage;
    for (const i of places) {
      const all = this.union.tenants[i]!;
      const now = all.filter(({ life }) => life.born <= this.at).at(-1) ?? all[0]!;
      const { inputs, twin } = nodes[i]!;
      nodes[i] = { ...now.node, inputs, twin };
      entities![i] = now.entity;
    }
  }

  /** The entities of the places where the last step did this. */
  touched(how: (tenant: Tenant) => boolean): string[] {
    const { touched, tenants } = this.union;
    return touched[this.at]!.filter(i => tenants[i]!.some(how)).map(i => this.stage.entities![i]!);
  }

  readonly dress: Dress = {
    node: i => {
      const all = this.union.tenants[i]!;
      if (all.some(this.born)) return { "data-diff": "added" };
      if (all.some(({ life }) => this.alive(life))) return {};
      return all.some(this.died) ? { "data-diff": "removed" } : { "data-gone": true, "aria-hidden": true };
    },
    edge: (a, b) => {
      const { at } = this;
      const own = this.#wires.get(`${a} ${b}`) ?? [];
      if (own.some(this.alive)) return at > 0 && own.some(wire => wire.born === at) ? "gd-edge-added" : "";
      return at > 0 && own.some(wire => wire.died === at) ? "gd-edge-removed" : "gd-edge-gone";
    },
  };
}

/** The nodes that the last step adds and removes, as text. */
function changeLines(replay: Replayed): Child[] {
  const { union, at, born, died, doc } = replay;
  const line = (tenant: Tenant): Child[] => {
    const { node, reads } = tenant;
    const sign = born(tenant) ? "+" : died(tenant) ? "−" : "";
    const call = `${node.op}${node.name && ` "${node.name}"`}(${reads.join(", ")})`;
    const text = `${sign} ${call} : ${typeText(doc, node)}`;
    return sign ? [h("div", { class: sign === "+" ? "gd-plus" : "gd-minus", title: text }, text)] : [];
  };
  return union.touched[at]!.flatMap(i => union.tenants[i]!)
    .sort((a, b) => Number(born(b)) - Number(born(a)))
    .flatMap(line)
    .slice(0, SHOWN);
}

class ReplayPane implements Pane {
  readonly el = frame(scrubPane, "", []);
  readonly #context: Context;
  readonly #passes: readonly Pass[];
  readonly #canvas: Canvas;
  readonly #player: Player;
  readonly #field = h("input", {
    type: "number",
    min: 0,
    value: 0,
    class: "gd-number-field",
    "aria-label": "step number",
    "data-value": "scrub",
  });
  readonly #said = span("gd-ellipsis gd-strong");
  readonly #end = span("gd-broken gd-nowrap");
  readonly #cost = span("gd-muted gd-nowrap gd-end");
  readonly #ticks = h("div", { class: "gd-ticks", "aria-hidden": "true" });
  readonly #changes = div("gd-code gd-changes");
  readonly #speeds: HTMLElement;
  #replay!: Replayed;
  #marks: HTMLElement[] = [];
  #speed = "2";

  constructor(context: Context, passes: readonly Pass[]) {
    this.#context = context;
    this.#passes = passes;
    const help = "Replay of the rewrites. Comma and full stop step through them.";
    this.#canvas = new Canvas(context, "scrub", context.cameras.union, help);
    this.#player = new Player({
      command: "scrub",
      label: "rewrite step",
      unit: "step",
      play: "play the rewrites",
      go: to => this.#go(to),
      period: () => 1000 / Number(this.#speed),
    });
    this.#speeds = select("speed", SPEEDS, this.#speed, value => {
      this.#speed = value;
      if (this.#player.playing) this.#player.start();
    });
    const enter = () => this.#go(Number(this.#field.value));
    listen(this.#field, "change", enter);
    // A notebook keeps Enter for itself.
    listen(this.#field, "keydown", event => event.key === "Enter" && enter());
    this.#take(passes[0]!);
  }

  /** Move to the step that is selected. */
  choose(): boolean {
    const { selected } = this.#context.ui();
    const [, index, k = -1] = selected.flatMap(each => /^step:(\d+)\.(\d+)$/.exec(each) ?? []).map(Number);
    const pass = this.#passes.find(each => each.index === index);
    const step = k + 1;
    if (!pass || step < 1 || (pass === this.#replay.pass && step === this.#replay.at)) return false;
    if (pass !== this.#replay.pass) this.#take(pass);
    this.#move(step);
    return true;
  }

  lit(lit: ReadonlySet<string>): void {
    this.#canvas.join(lit);
  }

  walked() {
    return this.#canvas.stage;
  }

  destroy(): void {
    this.#player.stop();
    this.#canvas.destroy();
  }

  #go(to: number): void {
    this.#move(to);
    const { at, pass } = this.#replay;
    this.#context.redrawn("scrub");
    this.#context.act(selecting(at > 0 ? [`step:${pass.index}.${at - 1}`] : []));
  }

  #move(to: number): void {
    const replay = this.#replay;
    const changed = replay.move(to);
    this.#canvas.look([...replay.touched(replay.born), ...replay.touched(replay.died)]);
    this.#canvas.again(changed);
    this.#show();
  }

  #take(pass: Pass): void {
    const replay = new Replayed(this.#context.doc, pass);
    this.#replay = replay;
    this.#layOut(pass);
    this.#mark(pass, replay.union.steps);
    this.#canvas.draw(replay.stage, replay.dress); // with room for the widest node of each place
    replay.settle(replay.union.tenants.keys());
    this.#canvas.again();
    this.#show();
  }

  #layOut(pass: Pass): void {
    const options = this.#passes.map(value => ({ value, text: passName(value) }));
    const pick = choice("pass", options, pass, chosen => this.#take(chosen));
    retitle(this.el, scrubPane.title, "", [
      pick,
      modes(this.#context, "scrub"),
      zoomButtons(this.#context.cameras.union),
    ]);
    const { play, before, slider, after } = this.#player;
    const track = div("gd-track", slider, this.#ticks);
    refill(
      this.el,
      div("gd-slide gd-player", play, before, track, after, this.#field, this.#speeds),
      div("gd-said", this.#said, this.#end, this.#cost),
      this.#canvas.el,
      this.#changes,
    );
  }

  /** Mark the steps along the slider, and why the pass ended, if a limit ended it. */
  #mark(pass: Pass, steps: number): void {
    const { stop_reason: why, stop_detail: detail } = optimizeReport(pass);
    const stopped = LIMITS.includes(why) && (detail || `the limit of ${why} was reached`);
    this.#marks = pass.rewrites.map((step, i) =>
      h("span", { style: `left:${(100 * (i + 1)) / steps}%`, title: step.label }),
    );
    this.#marks.at(-1)!.toggleAttribute("data-stopped", Boolean(stopped));
    replace(this.#ticks, this.#marks);
    write(this.#end, stopped ? `ended early: ${stopped}` : "");
  }

  #show(): void {
    const { pass, at, union, doc } = this.#replay;
    const step = pass.rewrites[at - 1];
    const text = step ? step.label : doc.stages[pass.from]!.title || "before";
    this.#player.show(at, union.steps);
    this.#field.max = String(union.steps);
    if (document.activeElement !== this.#field) this.#field.value = String(at);
    write(this.#said, text);
    this.#said.title = text;
    this.#player.slider.ariaValueText = `${at} of ${union.steps}: ${text}`;
    const whose = priced(optimizeReport(pass).cost_model);
    write(this.#cost, step ? `${sig(step.cost_before)} → ${sig(step.cost_after)} µs, ${whose}` : "");
    replace(this.#changes, ...changeLines(this.#replay));
    this.#marks.forEach((mark, i) => setFlag(mark, "data-some", pass.rewrites[i]!.label === step?.label));
    const all = rewritesOf(pass).length;
    const done = `${Math.min(at, all)} of ${plural(all, "rewrite")}${at > all ? ", swept" : ""}`;
    const fact = `${plural(union.alive[at]!, "node")} after ${done}`;
    write(this.el.querySelector(".gd-fact")!, fact);
  }
}

function make(context: Context): Pane {
  const passes = context.doc.passes.filter(pass =>
    pass.rewrites.some(({ label, removed }) => label !== "sweep" || removed.length > 0),
  );
  if (passes.length > 0) return new ReplayPane(context, passes);
  const said = optimizerPasses(context.doc).map(pass => {
    const { outcome, stop_reason: why } = optimizeReport(pass);
    return h("p", { class: LIMITS.includes(why) ? "gd-note" : "gd-empty", "data-level": "error" }, outcome);
  });
  const content = body(null, ...(said.length > 0 ? said : [empty(UNOPTIMIZED)]));
  return { el: frame(scrubPane, "", [content], [modes(context, "scrub")]) };
}

export const scrubPane: PaneRecord = pane("scrub", make);
