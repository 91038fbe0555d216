// The autodiff stepper: one forward op at a time, backwards from the loss; its rule, its cotangents, the values it
// keeps. Where the document has the value of every node, as that of a tape, the ops as they ran forward come first.

import { keptBytes } from "../doc/adjoints.ts";
import { nodeName, typeText } from "../doc/doc.ts";
import type { DiffReport, DiffStep, GraphDoc, Pass, Stage } from "../doc/doc.ts";
import { bytes, whole } from "../doc/format.ts";
import { div, h, paragraph, replace, span, type Child } from "../draw/dom.ts";
import { asking, enliven } from "./ask.ts";
import { laneStages } from "./graphs.ts";
import { body, empty, entity, frame, mini, pane, select, sourceLine } from "./pane.ts";
import type { Context, Pane, PaneRecord } from "./pane.ts";
import { Player } from "./player.ts";
import { ruleShown } from "./rule.ts";
import { selecting } from "./state.ts";

const SPEEDS: [string, string][] = [
  ["0.5", "½ op/s"],
  ["1", "1 op/s"],
  ["2", "2 ops/s"],
];

const keptBy = (step: DiffStep): number => (step.residuals ?? []).reduce((sum, each) => sum + each.nbytes, 0);

/** One node as a row: its role in this step, its name, and a fact. */
const nodeRow = (entityName: string, spoken: string, role: Child, name: Child[], fact: string, mono = ""): Child =>
  h(
    "div",
    { class: "gd-row", ...entity(entityName, spoken), title: spoken },
    span("gd-muted", role),
    span("gd-mono gd-ellipsis", name),
    h("span", { class: `gd-end ${mono}`, title: fact }, fact),
  );

const nodeList = (doc: GraphDoc, stage: Stage, label: string, nodes: readonly number[]): Child =>
  nodes.map((index, i) => {
    const node = stage.nodes[index];
    if (!node) return null;
    const name = [node.op, node.name && h("em", null, ` ${node.name}`)];
    return nodeRow(
      `node:${stage.index}.${index}`,
      `${label} ${node.op} ${node.name}`,
      i === 0 ? label : "",
      name,
      typeText(doc, node),
      "gd-mono",
    );
  });

function saved(doc: GraphDoc, pass: Pass, at: number, to: Stage): Child[] {
  const step = pass.diffs[at]!,
    residuals = step.residuals ?? [];
  const all =
    (pass.report as unknown as DiffReport).residual_bytes || pass.diffs.reduce((sum, each) => sum + keptBy(each), 0);
  const sofar = keptBytes(pass, at + 1);
  const rows = residuals.map(({ node, nbytes }) => {
    const name = to.nodes[node] ? nodeName(to.nodes[node]) : String(node);
    return nodeRow(`node:${to.index}.${node}`, `saved ${name}`, "", [name], bytes(nbytes));
  });
  const meter = h(
    "div",
    { class: "gd-meter", role: "img", "aria-label": `${bytes(sofar)} of ${bytes(all)} saved` },
    h("span", { style: `width:${all > 0 ? Math.min(100, (100 * sofar) / all) : 0}%` }),
  );
  return [
    h("h4", null, "Saved for this step"),
    ...(rows.length > 0 ? rows : [paragraph("gd-muted", "nothing")]),
    meter,
    div("gd-muted", `${bytes(sofar)} saved so far, ${bytes(all)} in all`),
  ];
}

type Checks = Map<string, HTMLElement>;

/** "Is this rule the slope?": ask the kernel, and show its answer in green or red; the numbers are in the drawn answer.
 */
function check(context: Context, pass: Pass, at: number, known: Checks): Child[] {
  const { node } = pass.diffs[at]!,
    stage = context.doc.stages[pass.from]!.key,
    id = stage + node,
    holder = div("gd-checked"),
    show = () => replace(holder, known.get(id) ?? null);
  const ask = asking(
    context,
    "check",
    "check this op's gradient",
    "Check against differences",
    "a central difference in float64, on the operands of now",
    () => ({ node, stage }),
    ({ ok, text }) => {
      const told = { class: "gd-note", "data-level": ok ? "ok" : "error", "data-value": "check", role: "alert" };
      known.set(id, h("p", told, `${ok ? "\u2713" : "\u2717"} ${text}`));
      show();
    },
  );
  show();
  return [h("h4", null, "Is it right?"), ask, holder];
}

function details(context: Context, pass: Pass, at: number, known: Checks): Child[] {
  const { doc } = context,
    step = pass.diffs[at]!,
    from = doc.stages[pass.from]!,
    to = doc.stages[pass.to]!;
  const op = from.nodes[step.node],
    rule = pass.sources[step.rule];
  return [
    h(
      "h4",
      { class: "gd-mono gd-strong", "data-value": "op" },
      op ? [op.op, op.name && h("em", null, ` ${op.name}`)] : "–",
    ),
    sourceLine(doc, step.line),
    step.reason && paragraph("gd-note", step.reason),
    ...(rule ? [h("h4", null, `Gradient rule${rule.math ? "" : ": of its body"}`), ...ruleShown(rule.math, rule)] : []),
    ...check(context, pass, at, known),
    h("h4", null, "Cotangents"),
    nodeList(doc, to, "in", step.cotangents),
    nodeList(doc, to, "added", step.added),
    nodeList(doc, to, "summed", step.accumulated),
    step.cotangents.length + step.added.length === 0 && paragraph("gd-muted", "no gradient flows through here"),
    ...saved(doc, pass, at, to),
  ];
}

/** The values of a stage by node, if the document has them. */
const valuesOf = (doc: GraphDoc, stage: number): Record<string, unknown> | undefined =>
  doc.overlays.find(each => each.id === "value" && each.stage === stage)?.values;

/** An op as it ran: its operands and its result. */
function ran(doc: GraphDoc, stage: Stage, index: number, line: number): Child[] {
  const node = stage.nodes[index]!,
    values = valuesOf(doc, stage.index) ?? {};
  const valued = (role: string, at: number): Child => {
    const each = stage.nodes[at]!,
      name = [each.op, each.name && h("em", null, ` ${each.name}`)],
      value = [...new Set([typeText(doc, each), String(values[at] ?? "")])].join(" ").trim();
    const spoken = `${role} ${nodeName(each)}: ${value}`;
    return nodeRow(`node:${stage.index}.${at}`, spoken, role, name, value, "gd-mono");
  };
  return [
    h("h4", { class: "gd-mono gd-strong", "data-value": "op" }, node.op, node.name && h("em", null, ` ${node.name}`)),
    sourceLine(doc, line),
    h("h4", null, "As it ran"),
    node.inputs.map((at, i) => valued(i === 0 ? "reads" : "", at)),
    valued("gives", index),
  ];
}

/** The number of steps, backwards and forwards, and the stage that shows them. Steps below 0 are the ops as they ran
 * forward, the last of them -1. */
function ranges(doc: GraphDoc, passOf: () => Pass | undefined) {
  const lone = doc.stages.length === 1 && valuesOf(doc, 0) ? doc.stages[0]! : undefined;
  const forward = (pass: Pass | undefined) => {
    if (!pass) return lone?.nodes.length ?? 0;
    return valuesOf(doc, pass.to) ? doc.stages[pass.from]!.nodes.length : 0;
  };
  return {
    many: () => passOf()?.diffs.length ?? 0,
    forward: () => forward(passOf()),
    stage: () => doc.stages[passOf()?.to ?? 0]!,
  };
}

/** The place of a step in words. */
const placeText = (at: number, forward: number, many: number): string =>
  at < 0
    ? `op ${whole(forward + at + 1)} of ${whole(forward)}, forward as it ran`
    : `op ${whole(at + 1)} of ${whole(many)}, backwards from the loss`;

/** The forward step of an entity that was lit elsewhere; null if the player stands there, or there is none. */
function forwardStep(lit: ReadonlySet<string>, stage: Stage, forward: number, at: number): number | null {
  const lights = (node: number) => lit.has(`node:${stage.index}.${node}`);
  if (lights(forward + at)) return null;
  const found = [...Array(forward).keys()].find(lights);
  return found === undefined ? null : found - forward;
}

/** The player of the steps, and the choice of its speed. */
function playing(go: (to: number) => void): { player: Player; speeds: HTMLElement } {
  let speed = "1";
  const player = new Player({
    command: "autodiff",
    label: "forward op, backwards from the loss",
    unit: "op",
    play: "play the way back",
    keys: false,
    go,
    period: () => 1000 / Number(speed),
  });
  const speeds = select("speed", SPEEDS, speed, value => {
    speed = value;
    if (player.playing) player.start();
  });
  return { player, speeds };
}

function make(context: Context): Pane {
  const passes = laneStages(context.doc.stages).flatMap(({ stage }) =>
    context.doc.passes.filter(pass => pass.role === "differentiate" && pass.to === stage.index),
  );
  let pass = passes[0],
    at = 0;
  const holder = body({ class: "gd-stepper" });
  const el = frame(stepperPane, "autodiff", [holder]);
  const { many, forward, stage } = ranges(context.doc, () => pass);
  if (many() === 0 && forward() === 0) {
    holder.append(empty("Nothing to step through: without a derivative there are no gradient rules."));
    return { el };
  }
  if (many() === 0) at = -forward();
  const { player, speeds } = playing(to => go(to));
  const { slider, play, before: previous, after: next } = player;
  const place = span("gd-muted");
  const last = mini("to the end", "autodiff-end", "»", () => go(Infinity));
  const detail = div("gd-detail"),
    checks: Checks = new Map();
  const show = () => {
    const before = forward(),
      node = before + at;
    player.show(at, many() - 1, -before);
    place.textContent = placeText(at, before, many());
    slider.setAttribute("aria-valuetext", place.textContent);
    last.disabled = at === many() - 1;
    const line = pass?.diffs.find(each => each.node === node)?.line ?? -1;
    replace(detail, ...(at < 0 ? ran(context.doc, stage(), node, line) : details(context, pass!, at, checks)));
  };
  const go = (to: number) => {
    at = Math.min(many() - 1, Math.max(-forward(), to));
    show();
    context.redrawn("stepper");
    if (at < 0) context.act(selecting([`node:${stage().index}.${forward() + at}`]));
    // The op as well: a rule may add no node, as that of add.
    else context.act(selecting([`step:${pass!.index}.${at}`, `node:${pass!.to}.${pass!.diffs[at]!.node}`]));
  };
  holder.append(div("gd-slide", play, previous, slider, next, last, speeds), place, detail);
  show();
  return {
    el,
    destroy: () => player.stop(),
    live: (_, host) => enliven(el, host),
    choose(lit) {
      if (at < 0) {
        const to = forwardStep(lit, stage(), forward(), at);
        at = to ?? at;
        show();
        return to !== null;
      }
      if (!pass) return false;
      // "To this op": what is lit elsewhere moves the stepper, unless it stands there already.
      if (lit.has(`step:${pass.index}.${at}`)) return false;
      // The derivative that is stepped through now comes first: its picture stands beside.
      const ordered = [pass, ...passes.filter(each => each !== pass)];
      const steps = ordered.flatMap(each => each.diffs.map((step, i) => ({ each, step, i })));
      const lights = ({ each, step, i }: (typeof steps)[number]) =>
        lit.has(`step:${each.index}.${i}`) || lit.has(`node:${each.from}.${step.node}`);
      const found = steps.find(lights);
      if (!found) return false;
      pass = found.each;
      at = found.i;
      show();
      return true;
    },
  };
}

export const stepperPane: PaneRecord = pane("stepper", make);
