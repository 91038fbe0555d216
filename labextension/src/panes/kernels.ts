// The kernels: WGSL as it is sent to the device, the nodes of each line in the gutter, and the buffers that the kernel
// binds.

import type { GraphDoc, KernelRecord, Plan } from "../doc/doc.ts";
import { plural, seconds, whole } from "../doc/format.ts";
import { parseEntity } from "../doc/select.ts";
import { all, div, h, pointed, replace, setFlag, span, type Child } from "../draw/dom.ts";
import { familyClass } from "../draw/graph.ts";
import { partsOfLines } from "../layout/kernel_tiles.ts";
import { kernelPicture } from "./kernel_picture.ts";
import { body, chip, entity, facts, frame, highlighted, notCompiled, pane, retitle, swatch } from "./pane.ts";
import type { Context, Pane, PaneRecord } from "./pane.ts";

/** "matmul ×5, relu": names once, with their counts. */
function counted(names: string[]): string {
  const times = new Map<string, number>();
  for (const name of names) times.set(name, (times.get(name) ?? 0) + 1);
  return [...times].map(([name, n]) => (n > 1 ? `${name} ×${n}` : name)).join(", ");
}

/** The nodes that a WGSL row came from, by the node-wgsl links. */
function nodesOfLines(doc: GraphDoc): (kernel: number, line: number) => string {
  const links = doc.links.filter(({ a, b }) => b === "wgsl" && a.startsWith("node:"));
  return (kernel, line) =>
    counted(
      links.flatMap(({ a, back }) => {
        const row = (doc.wgslBase[kernel] ?? 0) + line - 1,
          stage = doc.stages[Number(a.slice(5))];
        return back(row).map(index => {
          const node = stage?.nodes[index];
          return node ? node.name || node.op : String(index);
        });
      }),
    );
}

function codeLines(doc: GraphDoc, kernel: KernelRecord, index: number): HTMLElement {
  const nodes = nodesOfLines(doc),
    parts = partsOfLines(kernel.parts);
  return div(
    "gd-code gd-wgsl",
    ...kernel.wgsl
      .replace(/\n$/, "")
      .split("\n")
      .map((text, i) => {
        const from = nodes(index, i + 1);
        return h(
          "div",
          {
            class: "gd-line",
            ...entity(
              `wgsl:${index}.${i + 1}`,
              `WGSL line ${i + 1}: ${text.trim() || "empty"}${from ? `, from ${from}` : ""}`,
            ),
            title: from ? `from ${from}` : null,
            "data-parts": parts.get(i + 1)?.join(",") ?? null,
          },
          span("gd-lineno", i + 1),
          span("gd-linetext", ...highlighted(text, "wgsl")),
          span("gd-from", from),
        );
      }),
  );
}

/** The intervals that a dispatch binds, in binding order: first those that it only reads. */
function boundTo(plan: Plan, dispatch: number | undefined): number[] {
  const { reads = [], writes = [] } = plan.dispatches[dispatch ?? -1] ?? {};
  return [...reads.filter(each => !writes.includes(each)), ...writes];
}

function kernelFacts(plan: Plan, kernel: KernelRecord, index: number): HTMLElement {
  const constants = Object.entries(kernel.constants ?? {})
    .map(([name, value]) => `${name} = ${String(value)}`)
    .join(", ");
  const used = plan.dispatches.flatMap((dispatch, k) => (dispatch.kernel === index ? [k] : []));
  const bound = boundTo(plan, used[0]);
  const bindings = (kernel.bindings ?? []).map(({ index: at, access, role }) => {
    const text = `${at} ${plan.intervals[bound[at] ?? -1]?.name || role}`,
      interval = used.length === 1 && bound[at] !== undefined ? `interval:${bound[at]}` : null;
    const told = `${used.length === 1 ? text : `${at} ${role}`}${access === "read" ? "" : ", written"}`;
    return chip(interval, `binding ${text}`, told, `${role}, ${access.replace("_", " ")}`);
  });
  const chips = used.slice(0, 12).map(k => chip(`dispatch:${k}`, `dispatch ${k}`, k));
  const rows: [string, Child][] = [
    [
      "variant",
      [span("gd-mono", kernel.variant || "–"), kernel.variant_reason && span("gd-muted", ` ${kernel.variant_reason}`)],
    ],
    ["workgroup", span("gd-mono", kernel.workgroup_size.join(" × "))],
    ...(constants ? [["constants", span("gd-mono", constants)] as [string, Child]] : []),
    ...(bindings.length > 0 ? [["bindings", bindings] as [string, Child]] : []),
    ...(plan.times
      ? [
          [
            "time",
            h(
              "span",
              { title: "median, all its dispatches" },
              seconds(used.reduce((sum, k) => sum + plan.times!.median[k]!, 0)),
            ),
          ] as [string, Child],
        ]
      : []),
    ["used by", [plural(used.length, "dispatch"), " ", ...chips, used.length > 12 && ` and ${used.length - 12} more`]],
  ];
  return facts(rows);
}

/** The names of a kernel's operands: of its dispatch, or their numbers where several run it. */
function operandNames(plan: Plan, kernel: KernelRecord, index: number): (operand: number) => string {
  const used = plan.dispatches.flatMap((dispatch, k) => (dispatch.kernel === index ? [k] : []));
  const bound = boundTo(plan, used[0]);
  return operand => {
    const numbers = (role: string) => role.replace(/^operand /, "").split(", ");
    const of = ({ role }: { role: string }) => role.startsWith("operand ") && numbers(role).includes(String(operand));
    const at = kernel.bindings?.find(of);
    const name = (used.length === 1 && at && plan.intervals[bound[at.index] ?? -1]?.name) || `operand ${operand}`;
    // Two operands may be one buffer.
    return at && numbers(at.role)[0] !== String(operand) ? `${name} again` : name;
  };
}

/** The WGSL of a kernel with its picture at the side: the parts of the work light in both. */
function withPicture(plan: Plan, kernel: KernelRecord, index: number, lines: HTMLElement): HTMLElement {
  const ofLine = (line: Element | null | undefined): string[] => line?.getAttribute("data-parts")?.split(",") ?? [];
  const rows = all(lines, "[data-parts]");
  const light = (parts: readonly string[]): void => {
    picture?.light(parts);
    for (const row of rows) setFlag(row, "data-part-on", ofLine(row).some(each => parts.includes(each)));
  };
  const go = (part: string): void => rows.find(row => ofLine(row).includes(part))?.scrollIntoView({ block: "center" });
  const picture = kernelPicture(kernel, operandNames(plan, kernel, index), light, go);
  if (!picture) return lines;
  pointed(lines, target => light(ofLine(target?.closest(".gd-line"))));
  return div("gd-kernelbody", picture.el, lines);
}

/** The first kernel that is lit, itself or by one of its lines. */
function litKernel(lit: ReadonlySet<string>): number | null {
  let first: number | null = null;
  for (const text of lit) {
    const entity = parseEntity(text);
    if (entity && (entity.kind === "kernel" || entity.kind === "wgsl") && (first === null || entity.at[0]! < first))
      first = entity.at[0]!;
  }
  return first;
}

function make(context: Context): Pane {
  const { doc } = context,
    { plan } = doc;
  if (!plan || plan.kernels.length === 0)
    return {
      el: frame({ ...kernelsPane, title: "Kernels" }, "", [body(null, notCompiled(context, ", so no kernels"))]),
    };
  const uses = plan.kernels.map((_, index) => plan.dispatches.filter(dispatch => dispatch.kernel === index).length);
  // Entry points repeat ("main"); what a kernel does is told by the first dispatch that runs it.
  const labels = plan.kernels.map(
    (kernel, index) => plan.dispatches.find(dispatch => dispatch.kernel === index)?.label ?? kernel.entry,
  );
  const lines = plan.kernels.map(kernel => kernel.wgsl.replace(/\n$/, "").split("\n").length);
  const listed = h(
    "div",
    { class: "gd-kernellist gd-scroll", role: "group", "aria-label": "kernels" },
    ...plan.kernels.map((kernel, index) =>
      h(
        "div",
        {
          class: "gd-kernel",
          ...entity(`kernel:${index}`, `kernel ${index}, ${labels[index]}, ${lines[index]} lines`),
          title: `${labels[index]}\n${kernel.entry}, ${kernel.variant_reason}`,
        },
        swatch(familyClass(kernel.family)),
        span("gd-ellipsis", labels[index]!),
        span("gd-muted gd-end", uses[index]! > 1 ? `×${whole(uses[index]!)}` : ""),
      ),
    ),
  );
  const code = body({ class: "gd-codebody" });
  const el = frame(kernelsPane, "", [div("gd-kernelsplit", listed, code)]);
  let at = -1;
  const show = (index: number): boolean => {
    if (index === at) return false;
    at = index;
    const kernel = plan.kernels[index]!;
    retitle(el, kernelsPane.title, `${labels[index]}, kernel ${index}, ${plural(lines[index]!, "line")}`);
    replace(
      code,
      kernelFacts(plan, kernel, index),
      withPicture(plan, kernel, index, codeLines(doc, kernel, index)),
    );
    code.scrollTop = 0;
    all(listed, ".gd-kernel").forEach((each, i) => each.toggleAttribute("data-shown", i === index));
    return true;
  };
  show(0);
  return {
    el,
    choose(lit) {
      // Stay at a kernel that is lit; else go to the first lit one.
      if (lit.has(`kernel:${at}`)) return false;
      const first = litKernel(lit);
      return first !== null && show(first);
    },
    lit() {
      // All of it lit says little: quietly, then.
      setFlag(code, "data-whole", !code.querySelector(".gd-wgsl > :not([data-lit])"));
    },
  };
}

export const kernelsPane: PaneRecord = pane("kernels", make);
