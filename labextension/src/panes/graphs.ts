// The pictures: the graph as written, the optimized one, and lanes. Arrows walk along edges.

import { Camera, type CameraGroup } from "../draw/camera.ts";
import type { Layout, Stage } from "../doc/doc.ts";
import { div, h, type Child } from "../draw/dom.ts";
import { edgeLabels } from "../draw/edgelabels.ts";
import { around, partLayout } from "../layout/explore.ts";
import { plural } from "../doc/format.ts";
import { glide, placesIn } from "../draw/motion.ts";
import { drawStage, MANY, type Picture } from "../draw/graph.ts";
import { brackets, folded, opened, type Folded } from "../doc/groups.ts";
import { keptOf } from "../live/kept.ts";
import { hasLanes, layoutOf, type Laying } from "../layout/layouts.ts";
import { minimap, type Minimap } from "../draw/minimap.ts";
import { paint } from "../draw/overlays.ts";
import { button, choice, empty, frame, refill, retitle, type Context, type MakePane, type Pane } from "./pane.ts";
import type { PaneKey } from "./state.ts";

const HELP =
  "Arrow left and right follow an edge to an input or a user, up and down go to the neighbour, Enter opens the kernel, plus, minus and zero zoom.";

const TITLES: Partial<Record<PaneKey, string>> = { before: "As written", after: "Optimized", lanes: "Derivative" };

interface Choice {
  stage: Stage;
  text: string;
}

function zoomButtons(group: CameraGroup): HTMLElement {
  return h(
    "span",
    { class: "gd-zoom", role: "group", "aria-label": "zoom" },
    button(
      "zoom out",
      { "data-command": "zoom-out", class: "gd-mini", on: { click: () => Camera.step(group, -1) } },
      "\u2212",
    ),
    button(
      "fit: what can be read; again: all of it (0)",
      { "data-command": "zoom-fit", class: "gd-mini", on: { click: () => group.fit() } },
      "fit",
    ),
    button("zoom in", { "data-command": "zoom-in", class: "gd-mini", on: { click: () => Camera.step(group, 1) } }, "+"),
  );
}

/** The zoom and the picture of one stage, or of what is around the selection in it. */
function picturePane(
  context: Context,
  key: PaneKey,
  group: CameraGroup,
  title: (stage: Stage) => string,
  fact: (stage: Stage) => string,
  choices: Choice[],
  zoom: boolean,
  missing = "This document holds no graph for this pane.",
): Pane {
  const { doc } = context;
  let at = 0,
    camera: Camera | null = null,
    picture: Picture | null = null,
    map: Minimap | null = null,
    laying: Laying | null = null,
    waiting: ReturnType<typeof setTimeout> | undefined,
    open: { stage: Stage; groups: Set<number> } | null = null,
    walked: Stage | null = null,
    shown = ""; // overlay, reach and seeds of the picture
  const el = frame(key, "", "", []),
    beside = () => keptOf(doc).value;
  const end = () => {
    clearTimeout(waiting);
    laying?.cancel();
    camera?.destroy();
    map?.destroy();
    laying = camera = picture = map = null;
  };
  const tell = (stage: Stage, ...parts: Child[]) =>
    h(
      "div",
      { class: "gd-laying", role: "status" },
      h("p", null, ...parts),
      h("p", { class: "gd-muted" }, `${plural(stage.nodes.length, "node")}; the Text tab lists them.`),
    );
  /** What the reach leaves of a stage: null for all of it. */
  const part = (stage: Stage): ReadonlySet<number> | null => {
    const { reach } = context.ui();
    if (reach === "all") return null;
    const seeds = [...context.lit()].flatMap(each =>
      each.startsWith(`node:${stage.index}.`) ? [Number(each.split(".")[1])] : [],
    );
    return seeds.length > 0 ? around(stage, seeds, reach) : null;
  };
  const wanted = (stage: Stage): string => {
    const { overlay, reach } = context.ui();
    return `${overlay} ${beside().labels} ${reach} ${reach === "all" ? "" : [...context.lit()].filter(each => each.startsWith(`node:${stage.index}.`)).join()}`;
  };
  const draw = () => {
    const before = placesIn(el),
      glided = () => {
        camera!.placed();
        glide(camera!, before, [context.ui().hover, ...context.ui().selected]);
      };
    end();
    const stage = choices[at]?.stage;
    const options = choices.map(({ text }, value) => ({ value, text }));
    const pick = (value: number) => {
      at = value;
      draw();
      context.redrawn(key);
    };
    const controls = [choice("stage", options, at, pick), zoom && stage ? zoomButtons(group) : null];
    const kept = stage ? part(stage) : null;
    if (stage && open?.stage !== stage) open = { stage, groups: opened(stage, context.doc.view?.depth) };
    const fold = stage && !kept && stage.groups.length > 0 ? folded(doc, stage, open!.groups) : null;
    const told = !stage
      ? ""
      : fold
        ? `${plural(fold.stage.nodes.length, "node")} for ${fact(stage)}${fold.forced && `; ${fold.forced} stays open, closed it would make a circle`}`
        : kept
          ? `showing ${kept.size} of ${fact(stage)}`
          : fact(stage);
    retitle(el, stage ? title(stage) : (TITLES[key] ?? key), told, controls);
    const put = (...parts: Node[]) => refill(el, parts);
    if (!stage) return put(empty(missing));
    shown = wanted(stage);
    const layout = kept ? partLayout(stage, doc.types, kept) : layoutOf(fold?.stage ?? stage, doc.types);
    if (!("done" in layout)) {
      put(...drawn(stage, layout, fold, Boolean(kept)));
      return glided();
    }
    const mine = (laying = layout);
    const holder = div("gd-camera");
    put(holder);
    waiting = setTimeout(() => {
      const stop = button(
        "cancel",
        { on: { click: () => (end(), holder.replaceChildren(tell(stage, "Not laid out."))) } },
        "Cancel",
      );
      holder.append(tell(stage, `Laying out ${plural(stage.nodes.length, "node")} … `, stop));
    }, 300);
    mine.done.then(
      done => {
        if (laying !== mine) return;
        clearTimeout(waiting);
        laying = null;
        holder.replaceWith(...drawn(stage, done, fold, false));
        glided();
        context.redrawn(key);
        look(context.lit());
      },
      () => {},
    );
  };
  /** Opens a closed group, closes an open one. */
  const toggle = (group: number) => {
    if (!open || !camera) return;
    if (!open.groups.delete(group)) open.groups.add(group);
    draw();
    context.redrawn(key);
    brought = null;
    look(context.lit());
  };
  const drawn = (stage: Stage, layout: Layout, fold: Folded | null, part: boolean): Node[] => {
    const painted = paint(doc, stage, context.ui().overlay, fold?.members),
      grouped = stage.groups.length > 0 && !part;
    const node = (index: number) => {
      const style = painted?.style(index) ?? null,
        closed = fold?.group[index] ?? -1,
        group = closed >= 0 ? closed : grouped ? stage.nodes[fold ? fold.members[index]![0]! : index]!.group : -1;
      return { style, "data-heat": style !== null, "data-group": group >= 0 ? group : null };
    };
    walked = fold?.stage ?? stage;
    picture = drawStage(doc, walked, layout, {
      node,
      told: index =>
        [painted?.told(index), (fold?.group[index] ?? -1) >= 0 ? "double click, or Space: open" : ""]
          .filter(Boolean)
          .join("\n"),
      ...(fold ? { members: fold.members } : {}),
      brackets: grouped ? brackets(stage, fold?.open ?? open!.groups, layout, fold?.members ?? null) : [],
    });
    const label = `${title(stage)}, ${plural(stage.nodes.length, "node")}. ${HELP}`,
      made = new Camera(group, picture, label, () => context.redrawn(key));
    camera = made;
    made.refound = () => {
      brought = null;
      look(context.lit());
    };
    const groupAt = (event: Event) =>
      (event.target as Element).closest("[data-group]")?.getAttribute("data-group") ?? null;
    made.el.addEventListener("gd-toggle", event => toggle(Number(groupAt(event))));
    made.el.addEventListener("dblclick", event => {
      if (
        (event.target as Element).closest(".gd-node") &&
        groupAt(event) !== null &&
        (event.target as Element).closest(".gd-node")!.querySelector(".gd-sheet")
      )
        toggle(Number(groupAt(event)));
    });
    made.el.addEventListener("click", event => {
      if ((event.target as Element).closest(".gd-bracket")) return toggle(Number(groupAt(event)));
      const { x, y } = made.pointAt(event),
        entity = picture?.at(x, y);
      if (!entity) return;
      event.stopPropagation();
      context.act({ do: "select", entities: [entity], add: event.shiftKey });
    });
    if (beside().labels && !picture.culled) picture.svg.append(edgeLabels(doc, walked, layout));
    map = minimap(made, layout, () => beside().map);
    return painted ? [made.el, map.el, painted.legend] : [made.el, map.el];
  };
  /** Nodes of this stage that are the same as lit ones of the stage it was made from: drawn with the accent, but not lit. */
  const showPartners = (lit: ReadonlySet<string>): ReadonlySet<string> => {
    const stage = choices[at]?.stage,
      parent = stage && doc.stages[stage.parent];
    el.querySelectorAll("[data-partner]").forEach(each => each.removeAttribute("data-partner"));
    if (!stage || !parent || key !== "lanes") return lit;
    const keys = new Set(parent.nodes.flatMap((node, i) => (lit.has(`node:${parent.index}.${i}`) ? [node.key] : [])));
    const partners = stage.nodes
      .flatMap((node, i) => (keys.has(node.key) ? [`node:${stage.index}.${i}`] : []))
      .filter(entity => !lit.has(entity));
    if (partners.length === 0) return lit;
    const same = new Set(partners);
    el.querySelectorAll(".gd-node").forEach(each => {
      if (same.has(each.getAttribute("data-entity")!)) each.setAttribute("data-partner", "");
    });
    return new Set([...lit, ...partners]);
  };
  let brought: ReadonlySet<string> | null = null;
  /** In a large picture what is lit may not be drawn yet: go to the first of it, once, so that scrolling stays free. */
  const look = (lit: ReadonlySet<string>): boolean => {
    if (lit === brought || !picture?.culled || !camera) return false;
    brought = lit;
    const places = [...lit].map(entity => picture!.placeOf(entity)).filter(place => place !== null);
    if (places.length === 0 || places.some(place => camera!.inSight(place))) return false;
    camera.bring(places.reduce((a, b) => (b.y < a.y ? b : a)));
    return true;
  };
  draw();
  return {
    el,
    choose(lit) {
      map?.place();
      const stage = choices[at]?.stage;
      if (!stage || wanted(stage) === shown) return look(lit);
      draw();
      look(lit);
      return true;
    },
    lit(lit) {
      picture?.join(showPartners(lit));
      map?.light(lit);
    },
    walked: () => walked,
    destroy: end,
  };
}

const nodesFact = (stage: Stage): string => plural(stage.nodes.length, "node");

export const beforePane: MakePane = context => {
  const written = context.doc.stages.filter(stage => stage.role === "written");
  return picturePane(
    context,
    "before",
    context.cameras.graph,
    stage => stage.title || "As written",
    nodesFact,
    written.map(stage => ({ stage, text: stage.key })),
    false,
  );
};

export const afterPane: MakePane = context => {
  const { stages } = context.doc;
  const optimized = stages.filter(stage => stage.role === "optimized");
  const after = optimized.length > 0 ? optimized : stages.filter(stage => stage.role === "final");
  return picturePane(
    context,
    "after",
    context.cameras.graph,
    stage => stage.title || "Optimized",
    nodesFact,
    after.map(stage => ({ stage, text: stage.title || stage.key })),
    true,
    "This document holds no optimized graph.",
  );
};

/** The stages that have lanes: the derivative of the graph as written first, because it is the one to learn from. */
export function laneStages(stages: readonly Stage[]): Choice[] {
  const found = stages.filter(hasLanes);
  const text = (stage: Stage) =>
    stage.role === "final" ? "trained" : stages[stage.parent]?.role === "written" ? "as written" : "optimized";
  const rank = (stage: Stage) => ["as written", "optimized", "trained"].indexOf(text(stage));
  return [...found].sort((a, b) => rank(a) - rank(b)).map(stage => ({ stage, text: text(stage) }));
}

export const lanesPane: MakePane = context => {
  const choices = laneStages(context.doc.stages);
  const many = (stage: Stage) => stage.nodes.filter(node => node.inputs.length > 0).length > MANY;
  const fact = (stage: Stage) =>
    `${nodesFact(stage)}; dashed = kept${many(stage) ? ", where lit" : " for the way back"}`;
  return picturePane(
    context,
    "lanes",
    context.cameras.lanes,
    () => "Derivative",
    fact,
    choices,
    true,
    `No derivative in this document: a graph has one when it is for training, as in %%graph ${context.doc.title || "NAME"} --train.`,
  );
};
