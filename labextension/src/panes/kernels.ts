// The kernels: WGSL as it is sent to the device, the nodes of each line in the gutter, and what the kernel is bound to.

import type { GraphDoc, KernelRecord, Plan } from "../doc.ts";
import { h, replace, type Child } from "../dom.ts";
import { plural, whole } from "../format.ts";
import { familyClass } from "../graph.ts";
import { body, empty, entity, facts, frame, highlighted, swatch, type MakePane } from "../pane.ts";
import { parseEntity } from "../select.ts";

/** "matmul ×5, relu": names once, with how often. */
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
        return back.ids.slice(back.start[row], back.start[row + 1]).map(index => {
          const node = stage?.nodes[index];
          return node ? node.name || node.op : String(index);
        });
      }),
    );
}

function codeLines(doc: GraphDoc, kernel: KernelRecord, index: number): HTMLElement {
  const nodes = nodesOfLines(doc);
  return h(
    "div",
    { class: "gd-code gd-wgsl" },
    ...kernel.wgsl
      .replace(/\n$/, "")
      .split("\n")
      .map((text, i) => {
        const from = nodes(index, i + 1);
        return h(
          "div",
          {
            class: "gd-line",
            ...entity(`wgsl:${index}.${i + 1}`, `WGSL line ${i + 1}: ${text.trim() || "empty"}${from ? `, from ${from}` : ""}`),
            title: from ? `from ${from}` : null,
          },
          h("span", { class: "gd-lineno" }, i + 1),
          h("span", { class: "gd-linetext" }, ...highlighted(text, "wgsl")),
          h("span", { class: "gd-from" }, from),
        );
      }),
  );
}

/** The intervals that a dispatch binds, in binding order: what it only reads, then what it writes. */
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
    return h("button", { type: "button", class: "gd-chip", ...entity(interval, `binding ${text}`), title: `${role}, ${access.replace("_", " ")}` }, used.length === 1 ? text : `${at} ${role}`, access === "read" ? "" : ", written");
  });
  const chips = used
    .slice(0, 12)
    .map(k =>
      h("button", { type: "button", class: "gd-chip", "data-entity": `dispatch:${k}`, tabindex: -1, "aria-label": `dispatch ${k}` }, k),
    );
  const rows: [string, Child][] = [
    [
      "variant",
      [
        h("span", { class: "gd-mono" }, kernel.variant || "–"),
        kernel.variant_reason && h("span", { class: "gd-muted" }, ` ${kernel.variant_reason}`),
      ],
    ],
    ["workgroup", h("span", { class: "gd-mono" }, kernel.workgroup_size.join(" × "))],
    ...(constants ? [["constants", h("span", { class: "gd-mono" }, constants)] as [string, Child]] : []),
    ...(bindings.length > 0 ? [["bindings", bindings] as [string, Child]] : []),
    ["used by", [plural(used.length, "dispatch"), " ", ...chips, used.length > 12 && ` and ${used.length - 12} more`]],
  ];
  return facts(rows);
}

/** The first kernel that is lit, itself or by one of its lines. */
function litKernel(lit: ReadonlySet<string>): number | null {
  let first: number | null = null;
  for (const text of lit) {
    const entity = parseEntity(text);
    if (entity && (entity.kind === "kernel" || entity.kind === "wgsl") && (first === null || entity.at[0]! < first)) first = entity.at[0]!;
  }
  return first;
}

export const kernelsPane: MakePane = context => {
  const { doc } = context,
    { plan } = doc;
  if (!plan || plan.kernels.length === 0)
    return { el: frame("kernels", "Kernels", "", [body(null, empty("No plan, so no kernels yet."))]) };
  const uses = plan.kernels.map((_, index) => plan.dispatches.filter(dispatch => dispatch.kernel === index).length);
  // Entry points repeat ("main"); what a kernel does is told by the first dispatch that runs it.
  const labels = plan.kernels.map((kernel, index) => plan.dispatches.find(dispatch => dispatch.kernel === index)?.label ?? kernel.entry);
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
        h("span", { class: "gd-ellipsis" }, labels[index]!),
        h("span", { class: "gd-muted gd-end" }, uses[index]! > 1 ? `×${whole(uses[index]!)}` : ""),
      ),
    ),
  );
  const code = body({ class: "gd-codebody" });
  const el = frame("kernels", "Kernels", "", [h("div", { class: "gd-kernelsplit" }, listed, code)]);
  const fact = el.querySelector(".gd-fact")!,
    title = el.querySelector("h3")!;
  let at = -1;
  const show = (index: number): boolean => {
    if (index === at) return false;
    at = index;
    const kernel = plan.kernels[index]!;
    title.textContent = "WGSL";
    fact.textContent = `kernel ${index} of ${plan.kernels.length}: ${labels[index]}, ${plural(lines[index]!, "line")}`;
    replace(code, kernelFacts(plan, kernel, index), codeLines(doc, kernel, index));
    code.scrollTop = 0;
    listed.querySelectorAll(".gd-kernel").forEach((each, i) => each.toggleAttribute("data-shown", i === index));
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
  };
};
