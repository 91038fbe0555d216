// The pictures: the graph as written, the optimized one, and lanes. Arrows walk along edges.

import type { Built } from "../doc/adjoints.ts";
import type { GraphDoc, Layout, Stage } from "../doc/doc.ts";
import { plural } from "../doc/format.ts";
import { selecting } from "./state.ts";
import { brackets, folded, innermost, opened, type Folded } from "../doc/groups.ts";
import { paint, type Painted } from "../draw/overlays.ts";
import { LINE, NODE, ROW } from "../doc/metrics.ts";
import { Camera, type CameraGroup, type Sheets } from "../draw/camera.ts";
import { extraRoom, stretched } from "../layout/stretch.ts";
import { glide, placesIn, type Places } from "../draw/motion.ts";
import { all, div, h, listen, paragraph, replace, s, type Child } from "../draw/dom.ts";
import { edgeLabels } from "../draw/edgelabels.ts";
import { drawStage, MANY, type Dress, type Picture } from "../draw/graph.ts";
import { Minimap } from "../draw/minimap.ts";
import { buildingDress, builtFor, changedBetween, keptWords, meterOf } from "./building.ts";
import { around, partLayout } from "../layout/explore.ts";
import { densitiesOf, hasLanes, layoutAt, layoutOf, type Laying } from "../layout/layouts.ts";
import { spread } from "../layout/matched.ts";
import { keptOf } from "../live/kept.ts";
import { zoomAfterClick, zoomButtons } from "./zoom.ts";
import { besideIn, closedRows, drawnHole, matchedRows, showRows } from "./matching.ts";
import { button, choice, empty, frame, pane, refill, retitle } from "./pane.ts";
import type { Context, MakePane, Pane, PaneRecord } from "./pane.ts";

const HELP =
  "Arrow left and right follow an edge to an input or a user, up and down go to the neighbour, " +
  "Enter opens the kernel, plus, minus and zero zoom.";
const WAIT = 300; // ms before it is said that a layout takes time

interface Choice {
  stage: Stage;
  text: string;
}

/** The parts that a pane with the picture of a stage is made from. */
interface Options {
  pane: PaneRecord;
  group: CameraGroup;
  title: (stage: Stage) => string;
  fact: (stage: Stage) => string;
  choices: Choice[];
  zoom: boolean;
  /** The place in a comparison of two graphs. */
  side?: "left" | "right";
  /** The text to show without a stage. */
  missing: string;
}

/** The part of a stage that is drawn: all, with closed groups as single nodes, or the nodes in reach. */
interface View {
  stage: Stage;
  fold: Folded | null;
  part: ReadonlySet<number> | null;
}

const layingNote = (stage: Stage, ...parts: Child[]): HTMLElement =>
  h(
    "div",
    { class: "gd-laying", role: "status" },
    h("p", null, ...parts),
    paragraph("gd-muted", `${nodesFact(stage)}; the Text tab lists them.`),
  );

const nodesFact = (stage: Stage): string => plural(stage.nodes.length, "node");

/** The lit nodes of a stage. */
const litNodes = (stage: Stage, lit: ReadonlySet<string>): string[] =>
  [...lit].filter(each => each.startsWith(`node:${stage.index}.`));

/** Say how many nodes are drawn. */
function drawnFact({ stage, fold, part }: View, fact: string): string {
  if (part) return `showing ${part.size} of ${fact}`;
  if (!fold) return fact;
  const forced = fold.forced && `; ${fold.forced} stays open, closed it would make a circle`;
  return `${nodesFact(fold.stage)} for ${fact}${forced}`;
}

/** The attributes and words that nodes get: the colour of the overlay, the group that a click opens or closes. */
function dressOf({ stage, fold }: View, painted: Painted | null, grouped: boolean): Pick<Dress, "node" | "told"> {
  const closed = (index: number) => fold?.group[index] ?? -1;
  return {
    node: index => {
      const style = painted?.style(index) ?? null;
      const open = () => (grouped ? stage.nodes[fold ? fold.members[index]![0]! : index]!.group : -1);
      const group = closed(index) >= 0 ? closed(index) : open();
      return { style, "data-heat": style !== null, "data-group": group >= 0 ? group : null };
    },
    told: index =>
      [painted?.told(index), closed(index) >= 0 ? "double click, or Space: open" : ""].filter(Boolean).join("\n"),
  };
}

/** Whether a group is the other one, or lies in it. */
function inside({ groups }: Stage, group: number, outer: number): boolean {
  while (group >= 0 && group !== outer) group = groups[group]!.parent;
  return group >= 0;
}

/** The group that an event points at. */
const groupAt = (event: Event): string | null =>
  (event.target as Element).closest("[data-group]")?.getAttribute("data-group") ?? null;

/** A pane with the picture of one stage, or of the part around the selection. */
class PicturePane implements Pane {
  readonly el: HTMLElement;
  readonly #context: Context;
  readonly #options: Options;
  #chosen = 0;
  #camera: Camera | null = null;
  #picture: Picture | null = null;
  #map: Minimap | null = null;
  #laying: Laying | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #open: { stage: Stage; groups: Set<number>; toggled: boolean } | null = null;
  #walked: Stage | null = null;
  /** The boxes of a group that opens or closes, of which the topmost stays at its height. */
  #toggled: ReadonlySet<string> | null = null;
  /** The overlay, reach and seeds of the picture. */
  #shown = "";
  /** The selection that was scrolled to. */
  #brought: ReadonlySet<string> | null = null;
  /** The places of the rows beside those of the left pane, and the layouts with their rows there. */
  #places: number[] | null = null;
  #spread = new Map<Layout, Layout>();
  /** Lanes: the step of the stepper, its meter, the layout and members of the picture, the header's fact. */
  #built: Built | null = null;
  #meter = s("g", { class: "gd-keptmeter" });
  #layout: Layout | null = null;
  #members: readonly (readonly number[])[] | null = null;
  #fact = "";

  constructor(context: Context, options: Options) {
    this.#context = context;
    this.#options = options;
    if (options.side === "right")
      besideIn(context.doc).redraw = () =>
        queueMicrotask(() => {
          this.#draw();
          this.#redrawn();
        });
    this.el = frame(options.pane, "", []);
    this.#draw();
  }

  choose(lit: ReadonlySet<string>): boolean {
    this.#map?.place();
    const stage = this.#stage;
    const built = this.#build();
    if (!stage || this.#wanted(stage) === this.#shown) return this.#bring(lit) || built;
    this.#draw();
    this.#bring(lit);
    return true;
  }

  /** Dress the derivative as it stands at the step that is selected; true where that drew other elements. */
  #build(): boolean {
    if (this.#options.pane.key !== "lanes") return false;
    const { doc } = this.#context,
      before = this.#built;
    const built = builtFor(doc, this.#stage, this.#context.ui().selected);
    if (built === before || (built && before && built.step === before.step && built.pass === before.pass)) return false;
    this.#built = built;
    this.#tellKept();
    const changed = changedBetween(before, built),
      behind = this.#members?.map((all, i) => (all.some(each => changed.has(each)) ? i : -1));
    if (this.#picture?.again(behind ? new Set(behind) : changed) === false) this.#camera?.seen();
    return this.#picture !== null;
  }

  /** Show the kept bytes in the header and beside the wires. */
  #tellKept(): void {
    const built = this.#built,
      layout = this.#layout;
    const fact = this.el.querySelector<HTMLElement>(".gd-fact")!;
    fact.textContent = built ? keptWords(built) : this.#fact;
    replace(this.#meter, ...(layout ? meterOf(layout, built) : []));
  }

  lit(lit: ReadonlySet<string>): void {
    this.#picture?.join(this.#showPartners(lit));
    this.#map?.light(lit);
  }

  hover(entity: string | null): void {
    this.#picture?.hover(entity);
  }

  walked(): Stage | null {
    return this.#walked;
  }

  /** Go to the first hit of this picture, unless one of them is in sight. */
  seek(hits: readonly string[]): void {
    this.#camera?.seek(hits);
  }

  destroy(): void {
    clearTimeout(this.#timer);
    this.#laying?.cancel();
    this.#camera?.destroy();
    this.#map?.destroy();
    this.#laying = this.#camera = this.#picture = this.#map = null;
  }

  get #stage(): Stage | undefined {
    return this.#options.choices[this.#chosen]?.stage;
  }

  get #beside() {
    return keptOf(this.#context.doc).value;
  }

  /** Return a text that changes whenever the picture of the stage must be drawn anew. */
  #wanted(stage: Stage): string {
    const { overlay, reach } = this.#context.ui();
    const seeds = reach === "all" ? "" : litNodes(stage, this.#context.lit()).join();
    return `${overlay} ${this.#beside.labels} ${reach} ${seeds}`;
  }

  #view(stage: Stage): View {
    const { doc } = this.#context;
    const { reach } = this.#context.ui();
    const { depth } = doc.view ?? {};
    if (this.#open?.stage !== stage) {
      const groups = opened(stage, depth, doc.stages[stage.parent]);
      this.#open = { stage, groups, toggled: typeof depth === "number" };
    }
    const seeds = reach === "all" ? [] : litNodes(stage, this.#context.lit()).map(each => Number(each.split(".")[1]));
    if (seeds.length > 0) return { stage, fold: null, part: around(stage, seeds, reach) };
    return { stage, fold: stage.groups.length > 0 ? folded(doc, stage, this.#open.groups) : null, part: null };
  }

  #draw(): void {
    const { choices, group, pane, missing, title, fact, zoom } = this.#options;
    const before = placesIn(this.el);
    this.destroy();
    const stage = this.#stage;
    const view = stage && this.#view(stage);
    if (pane.key === "lanes") this.#built = builtFor(this.#context.doc, stage, this.#context.ui().selected);
    const options = choices.map(({ text }, value) => ({ value, text }));
    const pick = choice("stage", options, this.#chosen, value => {
      this.#chosen = value;
      this.#draw();
      this.#context.redrawn(pane.key);
    });
    const controls = [pick, zoom && stage ? zoomButtons(group) : null];
    this.#fact = view ? drawnFact(view, fact(stage!)) : "";
    retitle(this.el, stage ? title(stage) : pane.title, this.#fact, controls);
    if (!view) return refill(this.el, empty(missing));
    this.#shown = this.#wanted(view.stage);
    this.#lay(view, before);
  }

  #lay(view: View, before: Places): void {
    const { stage, fold, part } = view;
    const { types } = this.#context.doc;
    const layout = part ? partLayout(stage, types, part) : layoutOf(fold?.stage ?? stage, types);
    if ("done" in layout) return this.#wait(view, layout, before);
    refill(this.el, this.#drawn(view, layout));
    this.#glide(before);
  }

  /** Draw a stage when its layout is done; until then say that it takes time. */
  #wait(view: View, laying: Laying, before: Places): void {
    const { stage } = view;
    const holder = div("gd-camera");
    this.#laying = laying;
    refill(this.el, holder);
    const cancel = () => {
      this.destroy();
      const again = button("lay it out", { on: { click: () => (this.#draw(), this.#redrawn()) } }, "Lay it out");
      holder.replaceChildren(layingNote(stage, "Not laid out. ", again));
      again.focus({ preventScroll: true });
    };
    this.#timer = setTimeout(() => {
      const stop = button("cancel", { on: { click: cancel } }, "Cancel");
      holder.append(layingNote(stage, `Laying out ${nodesFact(stage)} … `, stop));
    }, WAIT);
    laying.done.then(
      layout => {
        if (this.#laying !== laying) return;
        clearTimeout(this.#timer);
        this.#laying = null;
        holder.replaceWith(...this.#drawn(view, layout));
        this.#glide(before);
        this.#redrawn();
      },
      () => {},
    );
  }

  /** Place the camera; nodes glide from where they stood before. */
  #glide(before: Places): void {
    const { hover, selected } = this.#context.ui();
    this.#camera!.placed();
    glide(this.#camera!, before, [hover, ...selected], this.#toggled);
  }

  #redrawn(): void {
    this.#context.redrawn(this.#options.pane.key);
    this.#bring(this.#context.lit());
  }

  /** Open a closed group, close an open one. */
  #toggle(group: number): void {
    if (!this.#open || !this.#camera) return;
    const { groups } = this.#open;
    this.#open.toggled = true;
    if (!groups.delete(group)) groups.add(group);
    const { stage } = this.#open;
    this.#toggled = new Set(
      stage.nodes.flatMap((node, i) =>
        node.lane === "forward" && node.inputs.length > 0 && inside(stage, node.group, group)
          ? [`node:${stage.index}.${i}`]
          : [],
      ),
    );
    this.#camera.group.hold();
    this.#draw();
    this.#toggled = null;
    this.#brought = null;
    this.#redrawn();
  }

  /** Lanes open at the loss, where the backward pass begins: the foot of its row, with the gap that wires run in. */
  #lossFoot(shown: Stage, { boxes, lanes }: Layout): number | null {
    const [first] = lanes;
    if (!first) return null;
    const loss = shown.nodes.findIndex((node, i) => boxes[i]!.row >= 0 && node.flags.includes("loss"));
    const forward = boxes.filter(({ x, row }) => row >= 0 && x < first.x + first.width);
    const y = boxes[loss]?.y ?? forward.reduce((most, box) => Math.max(most, box.y), 0);
    return y + (boxes[loss]?.h ?? NODE) - NODE + ROW;
  }

  /** Close the innermost groups where the picture does not fit its pane as it opens. */
  #close(): boolean {
    const open = this.#open;
    if (!open || open.toggled || open.groups.size === 0 || open.stage.nodes.some(({ lines }) => lines)) return false;
    if (this.#context.ui().selected.length > 0) return false; // it might be closed away
    for (const group of innermost(open.stage, open.groups)) open.groups.delete(group);
    queueMicrotask(() => {
      this.#camera?.el.remove(); // nobody asked for it: nothing glides
      this.#draw();
      this.#redrawn();
    });
    return true;
  }

  /** The camera with the picture in it, the overview, and the legend of the overlay. */
  #drawn(view: View, layout: Layout): Node[] {
    const { stage, fold } = view;
    const { doc } = this.#context;
    const painted = paint(doc, stage, this.#context.ui().overlay, fold?.members);
    this.#walked = fold?.stage ?? stage;
    this.#match(view, layout);
    const draw = (of: Layout) => this.#paint(view, painted, of);
    const first = this.#spaced(view, layout);
    const camera = this.#makeCamera(stage, draw(first), this.#sheets(view, draw));
    this.#map = new Minimap(camera, first, () => this.#beside.map);
    return [camera.el, camera.more.el, this.#map.el, ...(painted ? [painted.legend] : [])];
  }

  /** Tell the right pane of a comparison the places of rows, or move rows to their places there. */
  #match({ stage, fold, part }: View, layout: Layout): void {
    const { side, group } = this.#options,
      members = fold?.members ?? null;
    this.#spread.clear();
    if (side === "left" && !part) showRows(this.#context.doc, stage, members, layout);
    if (side !== "right") return;
    this.#places = part ? null : matchedRows(this.#context, stage, members, layout);
    group.level = this.#places !== null;
  }

  /** The layout with its rows beside those of the left pane. */
  #spaced({ stage, fold }: View, layout: Layout): Layout {
    const known = this.#spread.get(layout);
    if (known) return known;
    const made = this.#places ? spread(layout, this.#places) : layout;
    if (this.#places) made.holes = closedRows(this.#context, stage, fold?.members ?? null, made);
    const grown = stretched(made, this.#extra(fold?.stage ?? stage, made));
    this.#spread.set(layout, grown);
    return grown;
  }

  /** The room that rows need for numbers on nodes; side by side all rows of both panes have the same. */
  #extra({ nodes }: Stage, layout: Layout): number[] {
    const own = extraRoom(layout, i => nodes[i]!.lines?.length ?? 1);
    if (!this.#options.side) return own;
    const most = this.#context.doc.stages
      .filter(stage => !hasLanes(stage))
      .reduce((lines, stage) => Math.max(lines, ...stage.nodes.map(node => node.lines?.length ?? 1)), 1);
    return own.map(() => LINE * (most - 1));
  }

  #paint(view: View, painted: Painted | null, layout: Layout): Picture {
    const { stage, fold, part } = view;
    const { doc } = this.#context;
    const grouped = stage.groups.length > 0 && !part;
    const members = fold?.members,
      dress = dressOf(view, painted, grouped),
      building = buildingDress(() => this.#built, members);
    this.#layout = layout;
    this.#members = members ?? null;
    const picture = drawStage(doc, this.#walked!, layout, {
      ...dress,
      ...building,
      node: index => ({ ...dress.node!(index), ...building.node(index) }),
      ...(members ? { members } : {}),
      brackets: grouped ? brackets(stage, fold?.open ?? this.#open!.groups, layout, members ?? null) : [],
    });
    if (this.#beside.labels && !picture.culled) picture.svg.append(edgeLabels(doc, this.#walked!, layout));
    picture.svg.append(...(layout.holes ?? []).map(drawnHole), this.#meter);
    this.#tellKept();
    this.#picture = picture;
    return picture;
  }

  /** The stage at each density; of a part there is one layout. */
  #sheets(view: View, draw: (layout: Layout) => Picture): Sheets | null {
    const { stage, fold, part } = view;
    const { types } = this.#context.doc;
    const shown = fold?.stage ?? stage;
    if (part || !shown.layout) return null;
    return {
      densities: densitiesOf(shown),
      layout: density => this.#spaced(view, layoutAt(shown, types, density)),
      draw,
      taken: layout => {
        const old = this.#map;
        this.#map = new Minimap(this.#camera!, layout, () => this.#beside.map);
        old?.destroy();
        old?.el.replaceWith(this.#map.el);
      },
      foot: layout => this.#lossFoot(shown, layout),
      fold: () => this.#close(),
    };
  }

  #makeCamera(stage: Stage, picture: Picture, sheets: Sheets | null): Camera {
    const { group, pane, title } = this.#options;
    const context = this.#context;
    const label = `${title(stage)}, ${nodesFact(stage)}. ${HELP}`;
    const camera = new Camera(group, picture, label, () => context.redrawn(pane.key), sheets);
    this.#camera = camera;
    zoomAfterClick(camera, group);
    camera.refound = () => {
      this.#brought = null;
      this.#bring(context.lit(), true);
    };
    const toggle = (event: Event) => this.#toggle(Number(groupAt(event)));
    camera.el.addEventListener("gd-toggle", toggle);
    listen(camera.el, "dblclick", event => {
      const node = (event.target as Element).closest(".gd-node");
      if (groupAt(event) !== null && node?.querySelector(".gd-sheet")) toggle(event);
    });
    listen(camera.el, "click", event => {
      if ((event.target as Element).closest(".gd-bracket")) return toggle(event);
      const { x, y } = camera.pointAt(event);
      const entity = this.#picture?.at(x, y);
      if (!entity) return;
      event.stopPropagation();
      context.act(selecting([entity], event.shiftKey));
    });
    return camera;
  }

  /** Mark the nodes that are the same as lit ones of the stage that this one was derived from; they are not lit. */
  #showPartners(lit: ReadonlySet<string>): ReadonlySet<string> {
    const stage = this.#stage;
    const parent = stage && this.#context.doc.stages[stage.parent];
    all(this.el, "[data-partner]").forEach(each => each.removeAttribute("data-partner"));
    if (!stage || !parent || this.#options.pane.key !== "lanes") return lit;
    const keys = new Set(parent.nodes.flatMap((node, i) => (lit.has(`node:${parent.index}.${i}`) ? [node.key] : [])));
    const partners = stage.nodes
      .flatMap((node, i) => (keys.has(node.key) ? [`node:${stage.index}.${i}`] : []))
      .filter(entity => !lit.has(entity));
    if (partners.length === 0) return lit;
    const same = new Set(partners);
    all(this.el, ".gd-node").forEach(each => {
      if (same.has(each.getAttribute("data-entity")!)) each.setAttribute("data-partner", "");
    });
    return new Set([...lit, ...partners]);
  }

  /** The first node that a step of the derivative added, and its forward op; of the step that is lit, or of the first
   * one while a picture opens. */
  #stepped(lit: ReadonlySet<string>, opens = false): string[] {
    const stage = this.#stage;
    const { passes, stages } = this.#context.doc;
    const pass = passes.find(each => each.role === "differentiate" && each.to === stage?.index);
    const step = pass?.diffs.find((_, k) => lit.has(`step:${pass.index}.${k}`)) ?? (opens ? pass?.diffs[0] : undefined);
    if (!stage || !pass || !step) return [];
    const { key } = stages[pass.from]!.nodes[step.node]!;
    const forward = stage.nodes.findIndex(node => node.key === key);
    return [step.added[0] ?? -1, forward].filter(i => i >= 0).map(i => `node:${stage.index}.${i}`);
  }

  /** Go to the first lit node of a large picture, where it may not be drawn; once, so that scrolling stays free. */
  #bring(lit: ReadonlySet<string>, opens = false): boolean {
    const camera = this.#camera;
    const picture = this.#picture;
    if (lit === this.#brought || !picture || !camera) return false;
    const stepped = this.#stepped(lit, opens && lit.size === 0);
    if (!picture.culled && stepped.length === 0) return false;
    this.#brought = lit;
    if (stepped.length > 0) {
      camera.gather(stepped.flatMap(entity => picture.placeOf(entity) ?? []));
      return picture.culled;
    }
    const places = [...lit].flatMap(entity => picture.placeOf(entity) ?? []);
    if (places.length === 0 || places.some(place => camera.inSight(place))) return false;
    camera.bring(places.reduce((a, b) => (b.y < a.y ? b : a)));
    return true;
  }
}

const choicesOf = (stages: readonly Stage[], text: (stage: Stage) => string): Choice[] =>
  stages.map(stage => ({ stage, text: text(stage) }));

const makeBefore: MakePane = context =>
  new PicturePane(context, {
    pane: beforePane,
    group: context.cameras.graph,
    title: stage => stage.title || "As written",
    fact: nodesFact,
    choices: choicesOf(
      context.doc.stages.filter(stage => stage.role === "written"),
      stage => stage.key,
    ),
    // The buttons stand once, at the last of the two.
    zoom: !context.doc.stages.some(({ role }) => role === "optimized" || role === "final"),
    side: "left",
    missing: "This document holds no graph for this pane.",
  });

export const beforePane: PaneRecord = pane("before", makeBefore);

const makeAfter: MakePane = context => {
  const { stages } = context.doc;
  const optimized = stages.filter(stage => stage.role === "optimized");
  return new PicturePane(context, {
    pane: afterPane,
    group: context.cameras.graph,
    title: stage => stage.title || "Optimized",
    fact: nodesFact,
    choices: choicesOf(
      optimized.length > 0 ? optimized : stages.filter(stage => stage.role === "final"),
      stage => stage.title || stage.key,
    ),
    zoom: true,
    side: "right",
    missing: "This document holds no optimized graph.",
  });
};

export const afterPane: PaneRecord = pane("after", makeAfter);

/** The stages that have lanes: the derivative of the graph as written first, because it is the one to learn from. */
export function laneStages(stages: readonly Stage[]): Choice[] {
  const text = (stage: Stage) =>
    stage.role === "final" ? "trained" : stages[stage.parent]?.role === "written" ? "as written" : "optimized";
  const rank = (stage: Stage) => ["as written", "optimized", "trained"].indexOf(text(stage));
  return choicesOf(
    stages.filter(hasLanes).sort((a, b) => rank(a) - rank(b)),
    text,
  );
}

/** The line that opens a graph for training: its cell, or for a model of a file or a library a study whose first output
 * is the loss. */
const training = ({ title, sources }: GraphDoc): string =>
  sources.some(({ kind, name }) => kind === "cell" && name.startsWith("Cell"))
    ? `%%graph ${title} --train`
    : `gdlab.Study(${title || "study"}.graph, train=True): its first output is the loss then`;

const makeLanes: MakePane = context => {
  const many = (stage: Stage) => stage.nodes.filter(node => node.inputs.length > 0).length > MANY;
  return new PicturePane(context, {
    pane: lanesPane,
    group: context.cameras.lanes,
    title: () => "Derivative",
    fact: stage => `${nodesFact(stage)}; dashed = kept${many(stage) ? ", where lit" : " for the way back"}`,
    choices: laneStages(context.doc.stages),
    zoom: true,
    missing: `No derivative in this document: a graph has one when it is for training, as in ${training(context.doc)}.`,
  });
};

export const lanesPane: PaneRecord = pane("lanes", makeLanes);
