// Make variants of a study with other rules and options, and compare them in a table; a variant is never run.

import { opening } from "./state.ts";
import { optimizeReport, optimizerPasses, type GraphDoc, type RuleStat, type VariantRow } from "../doc/doc.ts";
import { bytes, sig, whole } from "../doc/format.ts";
import { all, div, h, td, type Child } from "../draw/dom.ts";
import { asking } from "./ask.ts";
import { button, dot, fold, select, table, type Context } from "./pane.ts";

const SAFETIES = ["exact", "rounding", "reassoc", "approx"];
const SWITCHES: [key: string, text: string, on: boolean][] = [
  ["fuse", "fusion", true],
  ["alias", "aliasing", true],
  ["serial", "serial", false],
];

/** Show the variant of an answer in the Diff tab. */
export const showing =
  (context: Context) =>
  ({ name }: Record<string, unknown>): void => {
    context.doc.view = { ...context.doc.view, variant: String(name) };
    context.act(opening("diff"));
  };

/** Make a variant and show its graph. */
export const making = (
  context: Context,
  label: string,
  text: string,
  args: () => Record<string, unknown>,
  key = "what-if",
): HTMLButtonElement =>
  asking(
    context,
    "optimize",
    label,
    text,
    "optimizes again, as a variant beside this one",
    args,
    showing(context),
    key,
  );

/** Return the stages that the diff shows at first: the result and the newest variant, else those asked for. */
export function compared({ stages, view }: GraphDoc): readonly [number, number] {
  const at = (key: string) => stages.findIndex(stage => stage.key === key),
    variant = at(`variant:${view?.variant}`);
  return variant >= 0 ? [at("optimized"), variant] : (view?.diff ?? [0, 1]);
}

/** The rules that found something, without the merging of equal nodes, which always happens. */
function rulesOf(doc: GraphDoc): RuleStat[] {
  const found = optimizerPasses(doc)
    .flatMap(pass => optimizeReport(pass).rules)
    .filter(({ matched, id }) => matched > 0 && id !== "cse");
  return [...new Map(found.map(rule => [rule.id, rule])).values()];
}

const tick = (value: string, checked: boolean, text: string, sign?: Child): HTMLElement =>
  h("label", { class: "gd-tickbox" }, h("input", { type: "checkbox", value, checked, "aria-label": text }), sign, text);

function form(context: Context): HTMLElement {
  let allow = "rounding";
  const options = div(
      "gd-inline",
      ...SWITCHES.map(([key, text, on]) => tick(key, on, text)),
      select(
        "rules that are allowed",
        SAFETIES.map(each => [each, `allow ${each}`] as const),
        allow,
        value => (allow = value),
      ),
    ),
    rules = div("gd-ticks2", ...rulesOf(context.doc).map(rule => tick(rule.id, true, rule.label, dot(rule.tag)))),
    boxes = (el: HTMLElement) => all<HTMLInputElement>(el, "input");
  const args = () => ({
    disable: boxes(rules).flatMap(each => (each.checked ? [] : [each.value])),
    allow,
    ...Object.fromEntries(boxes(options).map(each => [each.value, each.checked])),
  });
  return div("", options, rules, making(context, "make the variant", "Apply", args, "apply"));
}

/** The switch, the form below it, and the table once there are variants to compare. */
export function whatIf(context: Context, show: (left: number, right: number) => void): HTMLElement {
  const { variants } = context.doc,
    held = div(""),
    { el } = fold("What if \u2026", open => held.replaceChildren(...(open ? [form(context)] : [])));
  const row = ({
    name,
    stage,
    nodes,
    dispatches,
    groups,
    bytes_moved,
    peak_bytes,
    physical_bytes,
    step_seconds: step,
  }: VariantRow) => {
    const time = step ? `${sig(step.median * 1e6)} \u00b1 ${sig(step.mad * 1e6)}` : "\u2013";
    return h(
      "tr",
      null,
      h(
        "td",
        { class: "gd-label", title: name },
        button(`show ${name}`, { class: "gd-link", on: { click: () => show(variants[0]!.stage, stage) } }, name),
      ),
      ...[
        whole(nodes),
        whole(dispatches),
        whole(groups),
        ...[bytes_moved, peak_bytes, physical_bytes].map(bytes),
        time,
      ].map(text => td("gd-num", text)),
    );
  };
  if (variants.length === 0) return div("gd-whatif", el, held);
  const head = ["nodes", "dispatches", "groups", "moved", "peak", "memory", "\u00b5s/step"].map(
    (text): [string, string] => ["gd-num", text],
  );
  const measure = asking(
    context,
    "measure",
    "measure",
    "measure",
    "times 20 steps of each in sessions of their own: median \u00b1 median absolute deviation",
    () => ({ steps: 20 }),
    () => {},
  );
  return div(
    "gd-whatif",
    div("gd-inline", el, measure),
    held,
    table("gd-variants", [["", "variant"], ...head], h("tbody", null, ...variants.map(row))),
  );
}
