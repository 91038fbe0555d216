// The e-graph as it grows: classes as dotted boxes, the ways to compute each, what every iteration adds, and the choice.

import { Camera } from "../draw/camera.ts";
import { optimizeReport, type Pass, type Stage } from "../doc/doc.ts";
import { div, h, replace, s, setFlag, span, write, type Child } from "../draw/dom.ts";
import { plural, sig } from "../doc/format.ts";
import type { Picture } from "../draw/graph.ts";
import {
  everIn,
  growthOf,
  HEAD,
  held,
  nameAt,
  planned,
  shown,
  TAIL,
  tall,
  type EClass,
  type ENode,
  type Growth,
  type Held,
  type Plan,
} from "../doc/growth.ts";
import { cut, familyClass } from "../draw/labels.ts";
import {
  body,
  button,
  chip,
  choice,
  empty,
  entity,
  frame,
  refill,
  retitle,
  row,
  table,
  type Context,
  type MakePane,
} from "./pane.ts";
import { faceOf } from "./state.ts";

const CALL = 34, // letters of operands that are drawn
  MARGIN = 18;
type Way = { node: ENode; children: string[] };

/** The rewrites that were chosen, or the e-graph behind them. */
export const modes = (context: Context, now: string): Child =>
  choice(
    "what is shown",
    [["scrub", "rewrites"] as const, ["egraph", "e-graph"] as const].map(([value, text]) => ({ value, text })),
    now as "scrub",
    face => context.act({ do: "face", face }),
  );

export const egraphPane: MakePane = context => {
  const { doc } = context,
    passes = doc.passes.filter(({ role }) => role === "optimize"),
    el = frame("egraph", "E-graph", "", [], [modes(context, "egraph")]),
    canvas = div("gd-canvas"),
    aside = body({ class: "gd-easide" }),
    slider = h("input", {
      type: "range",
      min: 0,
      value: 0,
      "aria-label": "iteration",
      "data-command": "egraph",
      on: { input: () => go(Number(slider.value)) },
    }),
    said = span("gd-strong gd-nowrap"),
    counts = span("gd-muted gd-ellipsis"),
    mini = (name: string, label: string, sign: string, click: () => void) =>
      button(label, { class: "gd-mini", "data-command": `egraph-${name}`, on: { click } }, sign),
    before = mini("previous", "previous iteration (,)", "\u2039", () => go(at - 1)),
    after = mini("next", "next iteration (.)", "\u203a", () => go(at + 1)),
    play = mini("play", "play the growth", "▶", () => (timer ? stop() : start()));
  let pass: Pass | undefined,
    growth: Growth | null = null,
    names: string[] = [],
    plan: Plan,
    picture: Picture,
    camera: Camera | undefined,
    now: Held = new Map(),
    at = 0,
    end = false,
    picked = "",
    timer: ReturnType<typeof setInterval> | undefined;

  const classOf = (name: string): EClass => growth!.classes.get(name)!,
    title = (name: string): string => cut(classOf(name).title, 24),
    type = (name: string): string => doc.types[classOf(name).type]?.text ?? "",
    called = (node: ENode, children: string[]): string =>
      `${node.op}(${[...children.map(child => classOf(child).title), ...Object.entries(node.attrs ?? {}).map(([key, value]) => `${key}=${JSON.stringify(value)}`)].join(", ")})`,
    fresh = (node: ENode): boolean => node.since === at && node.label !== "",
    chosen = (node: ENode): boolean => end && node.chosen > 0;
  const ruleOf = (label: string): string | null => {
    const found = optimizeReport(pass!).rules.findIndex(each => each.label === label && each.fired > 0); // several may share a label
    return found < 0 ? null : `rule:${pass!.index}.${found}`;
  };
  const width = (name: string): number =>
    Math.ceil(
      Math.max(
        7.25 * title(name).length + 6.4 * type(name).length + 34,
        ...everIn(growth!, name).map(({ op, children, label }) =>
          Math.max(
            7.25 * op.length + 6.7 * Math.min(CALL, children.map(title).join(", ").length) + 90,
            6.6 * Math.min(48, label.length) + 58,
          ),
        ),
      ),
    );

  // The picture.
  const enode = ({ node, children }: Way, made: number, y: number, w: number): SVGElement => {
    let left = CALL;
    const operands = children.flatMap((child, i): Child[] => {
      const text = cut(title(child), Math.max(3, left));
      left -= text.length + 2;
      return [
        i > 0 && ", ",
        classOf(child).leaf
          ? s("tspan", { class: "gd-leafname gd-f-leaf", "data-entity": classOf(child).entity }, text)
          : text,
      ];
    });
    return s(
      "g",
      {
        class: `gd-enode ${familyClass(node.family)}`,
        "data-new": fresh(node),
        "data-chosen": chosen(node),
        transform: `translate(6 ${y})`,
        "data-entity": chosen(node) && made >= 0 ? `node:${pass!.to}.${made}` : null,
      },
      s("title", null, called(node, children)),
      s("rect", { class: "gd-wayshape", width: w - 12, height: tall(node) - 3, rx: 5 }),
      s("text", { class: "gd-op", x: 8, y: 14 }, node.op, s("tspan", { class: "gd-args" }, "(", operands, ")")),
      node.label &&
        s(
          "text",
          { class: "gd-madeby", x: 8, y: 26, "data-entity": ruleOf(node.label) },
          fresh(node) && "new · ",
          cut(node.label, 48),
        ),
      end && node.cost >= 0 && s("text", { class: "gd-price", x: w - 20, y: 14 }, `${sig(node.cost)} µs`),
    );
  };
  /** Where its e-nodes begin; the last is where they end. */
  const lines = (name: string): number[] =>
    (now.get(name) ?? []).reduce((ys, { node }) => [...ys, ys.at(-1)! + tall(node)], [HEAD]);
  const eclass = (name: string): SVGElement | null => {
    const { x, y, w } = plan.boxes.get(name)!,
      own = now.get(name) ?? [],
      ys = lines(name),
      into = growth!.merged[at]!.find(([, goes]) => goes === name)?.[0];
    if (own.length === 0 && !into) return null;
    return s(
      "g",
      {
        class: "gd-node gd-class",
        "data-class": name,
        "data-merged": growth!.merged[at]!.some(([stays]) => stays === name),
        "data-idle": Boolean(into) || (end && !own.some(({ node }) => node.chosen)),
        ...entity(classOf(name).entity, ""),
        tabindex: -1,
        role: "button",
        "aria-label": `class ${title(name)}, ${type(name)}, ${plural(own.length, "way")}: ${own.map(({ node }) => (chosen(node) ? "chosen " : "") + node.op).join(", ")}`,
        transform: `translate(${x} ${y})`,
        on: { click: () => pick(name) },
      },
      s("rect", { class: "gd-shape", width: w, height: ys.at(-1)! + TAIL, rx: 9 }),
      s("text", { class: "gd-classname", x: 10, y: 14 }, title(name)),
      s("text", { class: "gd-type", x: w - 10, y: 14, "text-anchor": "end" }, into ? `now ${title(into)}` : type(name)),
      own.map((way, i) => enode(way, classOf(name).made, ys[i]!, w)),
    );
  };
  /** From the class that is read down to the e-node that reads it. */
  const path = (from: string, name: string, y: number): string => {
    const a = plan.boxes.get(from)!,
      b = plan.boxes.get(name)!,
      wire = plan.wires.get(`${name} ${from}`),
      x = a.x + a.w / 2;
    if (!wire)
      return `M${a.x + a.w} ${a.y + 12}C${a.x + a.w + 46} ${a.y + 12} ${b.x + b.w + 46} ${y} ${b.x + b.w - 6} ${y}`;
    let d = `M${x} ${a.y + lines(from).at(-1)! + TAIL}`,
      last = x,
      low = plan.bottoms[a.row]!;
    [...wire.way, wire.beside].forEach((to, i) => {
      const r = a.row + i + 1,
        middle = (low + plan.tops[r]!) / 2;
      d += `V${low}C${last} ${middle} ${to} ${middle} ${(last = to)} ${plan.tops[r]}`;
      low = plan.bottoms[r]!;
    });
    const way = wire.beside < b.x ? 1 : -1;
    return `${d}V${y - 5}q0 5 ${5 * way} 5H${way > 0 ? b.x + 6 : b.x + b.w - 6}`;
  };
  const edges = (): SVGElement[] =>
    names
      .flatMap(name =>
        (now.get(name) ?? []).flatMap(({ node, children }, i) =>
          [...new Set(children)]
            .filter(child => plan.boxes.has(child) && child !== name)
            .map(child => {
              const kind = fresh(node)
                ? "added"
                : chosen(node)
                  ? "chosen"
                  : end
                    ? "idle"
                    : plan.wires.has(`${name} ${child}`)
                      ? "data"
                      : "control";
              return s(
                "g",
                { class: `gd-edge gd-edge-${kind}`, "data-ends": `${child} ${name}` },
                s("path", { class: "gd-stroke", d: path(child, name, plan.boxes.get(name)!.y + lines(name)[i]! + 10) }),
              );
            }),
        ),
      )
      .sort((a, b) => Number(a.matches(".gd-edge-chosen")) - Number(b.matches(".gd-edge-chosen")));
  const light = (lit: ReadonlySet<string>): void => {
    const has = (name: string) => name === picked || classOf(name).nodes.some(i => lit.has(`node:${pass!.from}.${i}`));
    for (const each of picture.svg.querySelectorAll<SVGElement>("[data-class]"))
      setFlag(each, "data-some", has(each.dataset.class!));
    for (const each of picture.svg.querySelectorAll<SVGElement>("[data-ends]"))
      setFlag(each, "data-joined", each.dataset.ends!.split(" ").every(has));
  };
  /** Scrolls to these classes, to the first where not all fit. */
  const look = (wanted: readonly string[]): void =>
    camera!.gather(
      wanted
        .flatMap(name => plan.boxes.get(name) ?? [])
        .map(({ x, y, w }) => ({ x: MARGIN + x + w / 2, y: MARGIN + y })),
    );

  // Beside it, in words.
  const line = (...cells: Child[]): Child =>
    row(
      "td",
      cells.map((cell, i) => [i > 0 ? "gd-num gd-nowrap" : "", cell]),
    );
  const news = (): Child[] => {
    const { stop_reason: why, stop_detail: more, cost_before: cost, cost_after: least } = optimizeReport(pass!),
      came = growth!.enodes.filter(({ since, label }) => since === at && label),
      fired = new Map([...came.map(({ label }) => [label, 1] as const), ...growth!.fired[at]!]);
    return [
      h("h4", null, at > 0 ? `Iteration ${at}` : "The graph as it came in"),
      fired.size > 0
        ? table(
            "gd-came",
            [
              ["", "rule"],
              ["gd-num", "fired"],
              ["gd-num", "new"],
            ],
            [...fired].map(([label, times]) =>
              line(
                chip(ruleOf(label), `rule ${label}`, label, label),
                times,
                came.filter(each => each.label === label).length || "–",
              ),
            ),
          )
        : h("p", { class: "gd-muted" }, at > 0 ? "Nothing new." : "One way to compute each value."),
      growth!.merged[at]!.map(([stays, goes]) => h("p", null, `${title(goes)} and ${title(stays)} are one class now.`)),
      end &&
        h(
          "p",
          null,
          why === "saturated"
            ? "Saturated: no rule has anything left to say. "
            : `It ended by a limit: ${more || why}. `,
          `The choice, in bold, is what makes the whole cost least: ${sig(cost)} → ${sig(least)} µs.`,
        ),
    ];
  };
  const detail = (): Child[] => {
    const own = [...(now.get(picked) ?? [])].sort((a, b) => Number(chosen(b.node)) - Number(chosen(a.node)));
    if (own.length === 0)
      return [h("p", { class: "gd-muted" }, "Select a class to read its ways and what each would cost.")];
    const ways = own.map(({ node, children }) =>
      line(
        [
          div(`gd-mono gd-wrap${chosen(node) ? " gd-strong" : ""}`, called(node, children)),
          div("gd-muted", [chosen(node) && "chosen", node.label].filter(Boolean).join(" · ")),
        ],
        end && node.cost >= 0 ? sig(node.cost) : "",
        end && (node.more >= 0 ? (node.more > 0 ? "+" : "") + sig(node.more) : "–"),
      ),
    );
    return [
      h("h4", null, `Class ${title(picked)} `, span("gd-muted gd-mono", type(picked))),
      table(
        "gd-ways",
        [
          ["", plural(own.length, "way")],
          ["gd-num", "µs"],
          ["gd-num", "whole"],
        ],
        ways,
      ),
    ];
  };
  const tell = (): void => replace(aside, news(), detail());

  const go = (to: number): void => {
    if (!growth) return;
    const { last, classes, merged } = growth,
      inner = [...classes.values()].filter(({ leaf }) => !leaf).length,
      leaves = classes.size - inner;
    at = Math.min(last, Math.max(0, to));
    end = at === last;
    now = held(growth, at);
    slider.max = String(last);
    slider.value = String(at);
    before.disabled = at === 0;
    after.disabled = end;
    write(said, `iteration ${at} of ${last}`);
    const total = [...now.values()].reduce((sum, own) => sum + own.length, 0);
    write(
      counts,
      `${plural(now.size, "class")}, ${plural(total, "e-node")} and ${leaves === 1 ? "a leaf" : `${leaves} leaves`}${names.length < inner ? `; showing ${names.length} of ${inner} classes, select a node to see others` : ""}`,
    );
    slider.ariaValueText = `${said.textContent}: ${counts.textContent}`;
    tell();
    const focused =
      picture.svg.contains(document.activeElement) &&
      document.activeElement!.closest<SVGElement>("[data-class]")?.dataset.class;
    replace(picture.svg, edges(), names.map(eclass));
    if (focused)
      (picture.svg.querySelector<SVGElement>(`[data-class="${focused}"]`) ?? slider).focus({ preventScroll: true });
    light(context.lit());
    context.redrawn("egraph");
    look(
      names.filter(
        name => now.get(name)?.some(({ node }) => fresh(node)) || merged[at]!.some(([stays]) => stays === name),
      ),
    );
  };
  const stop = (): void => {
    clearInterval(timer);
    timer = undefined;
    write(play, "▶");
  };
  const start = (): void => {
    write(play, "❚❚");
    if (end) go(0);
    timer = setInterval(() => (end ? stop() : go(at + 1)), 1400);
  };
  const pick = (name: string): void => {
    picked = name;
    tell();
    light(context.lit());
  };
  const lay = (wanted: string[]): void => {
    camera?.destroy();
    names = shown(growth!, wanted);
    plan = planned(growth!, names, names.map(width));
    const size = { width: plan.width + 2 * MARGIN, height: plan.height + 2 * MARGIN },
      svg = s("svg", {
        class: "gd-picture gd-egraph",
        ...size,
        viewBox: `${-MARGIN} ${-MARGIN} ${size.width} ${size.height}`,
      }),
      no = () => false;
    picture = {
      svg,
      ...size,
      boxes: names.length,
      culled: false,
      lanes: [],
      axis: size.width / 2,
      join: light,
      look: no,
      more: no,
      again: no,
      at: () => null,
      placeOf: () => null,
    };
    camera = new Camera(
      context.cameras.union,
      picture,
      "E-graph. Comma and full stop step through its iterations.",
      () => context.redrawn("egraph"),
    );
    canvas.replaceChildren(camera.el);
    camera.placed();
  };
  const take = (next: Pass): void => {
    pass = next;
    growth = growthOf(pass, doc.stages);
    const options = passes.map(value => ({ value, text: value.key.slice(9) })); // without "optimize:"
    retitle(el, "E-graph", "", choice("pass", options, pass, take), modes(context, "egraph"));
    if (!growth)
      return refill(
        el,
        empty(
          `How its e-graph grew was not recorded: ${doc.stages[pass.from]!.nodes.length} nodes. `,
          h("code", null, "%%graph NAME --egraph"),
          " records it.",
        ),
      );
    refill(
      el,
      div("gd-slide gd-player", play, before, div("gd-track", slider), after, said, counts),
      div("gd-esplit", canvas, aside),
    );
    lay([]);
    go(0);
  };
  return {
    el,
    choose(lit) {
      if (faceOf(context.ui()) !== "egraph") return false;
      const fresh = !pass;
      if (fresh && passes.length > 0) take(passes.find(each => each.deltas) ?? passes[0]!);
      if (!growth) return fresh;
      const found = [...growth.classes.values()]
        .filter(
          ({ name, nodes, leaf }) =>
            !leaf &&
            nodes.some(i => lit.has(`node:${pass!.from}.${i}`)) &&
            name === nameAt(growth!, name, growth!.last),
        )
        .map(({ name }) => name);
      if (found.length > 0 && !found.includes(picked)) picked = found[0]!;
      if (found.length > 0 && !found.some(name => names.includes(name))) {
        lay(found);
        go(at);
      } else if (!fresh) tell();
      if (found.length > 0) look([picked]);
      return fresh;
    },
    lit: lit => growth && light(lit),
    turn: by => go(at + by),
    walked() {
      const reads = names.map(name =>
        [...plan.wires.keys()].flatMap(key =>
          key.startsWith(`${name} `) ? names.indexOf(key.slice(name.length + 1)) : [],
        ),
      );
      return {
        nodes: reads.map(inputs => ({ inputs })),
        users: names.map((_, a) => reads.flatMap((inputs, b) => (inputs.includes(a) ? b : []))),
        entities: names.map(name => classOf(name).entity ?? ""),
        layout: { boxes: [...plan.boxes.values()] },
      } as unknown as Stage;
    },
    destroy() {
      stop();
      camera?.destroy();
    },
  };
};
