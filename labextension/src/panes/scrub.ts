// The replay: a slider over the rewrites of a pass. Nodes keep their places, what a step adds glows, what it removes fades.

import { optimizeReport, typeText, type Pass } from "../doc/doc.ts";
import { div, h, setFlag, span, write } from "../draw/dom.ts";
import { plural, put, sig } from "../doc/format.ts";
import { body, button, choice, empty, frame, refill, replace, retitle, select, type MakePane } from "./pane.ts";
import { replayed, type Replay } from "../doc/union.ts";
import { Canvas } from "./canvas.ts";
import { modes } from "./egraph.ts";

type Tenant = Replay["tenants"][number][number];
type Wire = Replay["wires"][number];

const LIMITS = ["iterations", "enodes", "time"]; // reasons to stop that are limits
const SPEEDS: [string, string][] = [
  ["1", "1 step/s"],
  ["2", "2 steps/s"],
  ["5", "5 steps/s"],
];

export const scrubPane: MakePane = context => {
  const { doc } = context,
    passes = doc.passes.filter(pass =>
      pass.rewrites.some(({ label, removed }) => label !== "sweep" || removed.length > 0),
    );
  const el = frame("scrub", "Replay", "", [], [modes(context, "scrub")]);
  if (passes.length === 0) {
    el.append(
      body(
        null,
        empty(
          "No rewrites here: no rule matched, or none made it cheaper. The Graph tab tells why, under \u201cNot fused\u201d.",
        ),
      ),
    );
    return { el };
  }
  const canvas = new Canvas(
    context,
    "scrub",
    context.cameras.union,
    "Replay of the rewrites. Comma and full stop step through them.",
  );
  const slider = h("input", {
      type: "range",
      min: 0,
      step: 1,
      value: 0,
      "aria-label": "rewrite step",
      "data-command": "scrub",
    }),
    field = h("input", {
      type: "number",
      min: 0,
      value: 0,
      class: "gd-number-field",
      "aria-label": "step number",
      "data-value": "scrub",
    }),
    said = span("gd-ellipsis gd-strong"),
    end = span("gd-broken gd-nowrap"),
    cost = span("gd-muted gd-nowrap gd-end"),
    ticks = h("div", { class: "gd-ticks", "aria-hidden": "true" }),
    changes = div("gd-code gd-changes");
  const before = button(
      "previous step (,)",
      { class: "gd-mini", "data-command": "scrub-previous", on: { click: () => go(at - 1) } },
      "\u2039",
    ),
    after = button(
      "next step (.)",
      { class: "gd-mini", "data-command": "scrub-next", on: { click: () => go(at + 1) } },
      "\u203a",
    ),
    play = button(
      "play the rewrites",
      { class: "gd-mini", "data-command": "scrub-play", on: { click: () => (timer ? stop() : start()) } },
      "▶",
    );
  let pass = passes[0]!,
    union!: Replay,
    wires = new Map<string, Wire[]>(),
    at = 0,
    speed = "2",
    marks: HTMLElement[] = [],
    timer: ReturnType<typeof setInterval> | undefined;
  const speeds = select("speed", SPEEDS, speed, value => {
    speed = value;
    if (timer) start();
  });
  const alive = ({ born, died }: { born: number; died: number }) => born <= at && at < died;
  const born = ({ life }: Tenant) => at > 0 && life.born === at,
    died = ({ life }: Tenant) => at > 0 && life.died === at;
  /** Who stands in these places now: the node that came last, alive or not. */
  const settle = (places: Iterable<number>) => {
    for (const i of places) {
      const all = union.tenants[i]!,
        now = all.filter(({ life }) => life.born <= at).at(-1) ?? all[0]!,
        { inputs, twin } = union.stage.nodes[i]!;
      union.stage.nodes[i] = { ...now.node, inputs, twin };
      union.stage.entities![i] = now.entity;
    }
  };
  const dress = {
    node: (i: number) => {
      const all = union.tenants[i]!;
      if (all.some(born)) return { "data-diff": "added" };
      if (all.some(({ life }) => alive(life))) return {};
      return all.some(died) ? { "data-diff": "removed" } : { "data-gone": true, "aria-hidden": true };
    },
    edge: (a: number, b: number) => {
      const own = wires.get(`${a} ${b}`) ?? [];
      return own.some(alive)
        ? at > 0 && own.some(wire => wire.born === at)
          ? "gd-edge-added"
          : ""
        : own.some(wire => wire.died === at) && at > 0
          ? "gd-edge-removed"
          : "gd-edge-gone";
    },
  };
  const stop = () => {
    clearInterval(timer);
    timer = undefined;
    write(play, "▶");
  };
  const start = () => {
    clearInterval(timer);
    write(play, "❚❚");
    if (at >= union.steps) go(0);
    timer = setInterval(() => (at < union.steps ? go(at + 1) : stop()), 1000 / Number(speed));
  };
  /** The nodes that a step takes away and adds, as text. */
  const difference = () =>
    union.touched[at]!.flatMap(i => union.tenants[i]!)
      .sort((a, b) => Number(born(b)) - Number(born(a)))
      .flatMap(tenant => {
        const { node, reads } = tenant,
          sign = born(tenant) ? "+" : died(tenant) ? "−" : "";
        const text = `${sign} ${node.op}${node.name && ` "${node.name}"`}(${reads.join(", ")}) : ${typeText(doc, node)}`;
        return sign ? [h("div", { class: sign === "+" ? "gd-plus" : "gd-minus", title: text }, text)] : [];
      })
      .slice(0, 12);
  const show = () => {
    const step = pass.rewrites[at - 1];
    slider.max = field.max = String(union.steps);
    slider.value = String(at);
    if (document.activeElement !== field) field.value = String(at);
    write(said, step ? step.label : doc.stages[pass.from]!.title || "before");
    said.title = said.textContent!;
    slider.setAttribute("aria-valuetext", `${at} of ${union.steps}: ${said.textContent}`);
    write(cost, step ? `${sig(step.cost_before)} → ${sig(step.cost_after)} µs` : "");
    before.disabled = at === 0;
    after.disabled = at === union.steps;
    replace(changes, ...difference());
    marks.forEach((mark, i) => setFlag(mark, "data-some", pass.rewrites[i]!.label === step?.label));
    write(
      el.querySelector(".gd-fact")!,
      `${plural(union.alive[at]!, "node")} after ${at} of ${plural(union.steps, "step")}`,
    );
  };
  const move = (to: number) => {
    const from = at;
    at = Math.min(union.steps, Math.max(0, Math.round(to) || 0));
    // What glowed before does no longer, so the step that is left counts, too.
    const changed = new Set(union.touched.slice(Math.min(from, at), Math.max(from, at) + 1).flat());
    settle(changed);
    const touched = (how: typeof born) =>
      union.touched[at]!.filter(i => union.tenants[i]!.some(how)).map(i => union.stage.entities![i]!);
    canvas.look([...touched(born), ...touched(died)]);
    canvas.again(changed);
    show();
  };
  const go = (to: number) => {
    move(to);
    context.redrawn("scrub");
    context.act({ do: "select", entities: at > 0 ? [`step:${pass.index}.${at - 1}`] : [] });
  };
  const take = (chosen: Pass) => {
    pass = chosen;
    union = replayed(doc, pass);
    wires = new Map();
    for (const wire of union.wires) put(wires, `${wire.a} ${wire.b}`, wire);
    at = 0;
    const controls = [
      choice(
        "pass",
        passes.map(value => ({ value, text: String(value.report.phase ?? value.key) })),
        pass,
        take,
      ),
      modes(context, "scrub"),
    ];
    retitle(el, "Replay", "", controls);
    refill(
      el,
      div("gd-slide gd-player", play, before, div("gd-track", slider, ticks), after, field, speeds),
      div("gd-said", said, end, cost),
      canvas.el,
      changes,
    );
    const { stop_reason: why, stop_detail: more } = optimizeReport(pass),
      stopped = LIMITS.includes(why) && (more || `the limit of ${why} was reached`);
    marks = pass.rewrites.map((step, i) =>
      h("span", { style: `left:${(100 * (i + 1)) / union.steps}%`, title: step.label }),
    );
    marks.at(-1)!.toggleAttribute("data-stopped", Boolean(stopped));
    replace(ticks, marks);
    write(end, stopped ? `ended early: ${stopped}` : "");
    canvas.draw(union.stage, dress); // with room for the widest node of each place
    settle(union.tenants.keys());
    canvas.again();
    show();
  };
  slider.addEventListener("input", () => go(Number(slider.value)));
  field.addEventListener("change", () => go(Number(field.value)));
  // A notebook keeps Enter for itself.
  field.addEventListener("keydown", event => event.key === "Enter" && go(Number(field.value)));
  take(pass);
  return {
    el,
    choose() {
      const chosen = context
        .ui()
        .selected.flatMap(each => /^step:(\d+)\.(\d+)$/.exec(each) ?? [])
        .map(Number);
      const wanted = passes.find(each => each.index === chosen[1]),
        step = (chosen[2] ?? -1) + 1;
      if (!wanted || step < 1 || (wanted === pass && step === at)) return false;
      if (wanted !== pass) take(wanted);
      move(step);
      return true;
    },
    lit: lit => canvas.join(lit),
    walked: () => canvas.stage,
    destroy: () => {
      stop();
      canvas.destroy();
    },
  };
};
