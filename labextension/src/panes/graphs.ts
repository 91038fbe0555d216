// The pictures: the graph as written, the optimized one, and lanes. Arrows walk along edges.

import { Camera, type CameraGroup } from "../camera.ts";
import type { Stage } from "../doc.ts";
import { h } from "../dom.ts";
import { plural } from "../format.ts";
import { drawStage, MANY, type Picture } from "../graph.ts";
import { button, choice, empty, frame, type Context, type MakePane, type Pane } from "../pane.ts";
import type { PaneKey } from "../state.ts";

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
    button("zoom out", { "data-command": "zoom-out", class: "gd-mini", on: { click: () => Camera.step(group, -1) } }, "\u2212"),
    button("zoom to fit", { "data-command": "zoom-fit", class: "gd-mini", on: { click: () => group.fit() } }, "fit"),
    button("zoom in", { "data-command": "zoom-in", class: "gd-mini", on: { click: () => Camera.step(group, 1) } }, "+"),
  );
}

function picturePane(
  context: Context,
  key: PaneKey,
  group: CameraGroup,
  title: (stage: Stage) => string,
  fact: (stage: Stage) => string,
  choices: Choice[],
  zoom: boolean,
  missing = "This document holds no picture of the graph. The Text tab lists its nodes.",
): Pane {
  let at = 0,
    camera: Camera | null = null,
    picture: Picture | null = null;
  const el = frame(key, "", "", []);
  const draw = () => {
    camera?.destroy();
    const stage = choices[at]?.stage;
    const options = choices.map(({ text }, value) => ({ value, text }));
    const pick = (value: number) => {
      at = value;
      draw();
      context.redrawn(key);
    };
    const controls = [choice("stage", options, at, pick), zoom && stage?.layout ? zoomButtons(group) : null];
    const made = frame(key, stage ? title(stage) : (TITLES[key] ?? key), stage ? fact(stage) : "", [], controls);
    if (stage?.layout) {
      picture = drawStage(context.doc, stage);
      camera = new Camera(group, picture.svg, picture.width, picture.height, picture.boxes > MANY, picture.axis, (top, bottom) => {
        if (picture?.look(top, bottom)) context.redrawn(key);
      });
      const roles = {
        role: "application",
        "aria-roledescription": "computation graph",
        "aria-label": `${title(stage)}, ${plural(stage.nodes.length, "node")}. ${HELP}`,
      };
      Object.entries(roles).forEach(([name, value]) => camera!.el.setAttribute(name, value));
      camera.el.dataset.stage = String(stage.index);
      made.append(camera.el);
    } else {
      made.append(empty(missing));
    }
    el.setAttribute("aria-label", stage ? title(stage) : key);
    el.replaceChildren(...made.childNodes);
  };
  /** Nodes of this stage that are the same as lit ones of the stage it was made from: drawn with the accent, but not lit. */
  const showPartners = (lit: ReadonlySet<string>): ReadonlySet<string> => {
    const stage = choices[at]?.stage,
      parent = stage && context.doc.stages[stage.parent];
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
  draw();
  let brought: ReadonlySet<string> | null = null;
  return {
    el,
    choose(lit) {
      // In a large picture what is lit may not be drawn yet: go to the first of it, once, so that scrolling stays free.
      if (lit === brought || !picture?.culled || !camera) return false;
      brought = lit;
      const heights = [...lit].map(entity => picture!.heightOf(entity)).filter(y => y !== null);
      if (heights.length === 0 || heights.some(y => camera!.inSight(y))) return false;
      camera.bring(heights.reduce((a, b) => Math.min(a, b)));
      return true;
    },
    lit: lit => picture?.join(showPartners(lit)),
    destroy: () => camera?.destroy(),
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
  const found = stages.filter(stage => stage.layout?.engine === "lanes");
  const text = (stage: Stage) =>
    stage.role === "final" ? "trained" : stages[stage.parent]?.role === "written" ? "as written" : "optimized";
  const rank = (stage: Stage) => ["as written", "optimized", "trained"].indexOf(text(stage));
  return [...found].sort((a, b) => rank(a) - rank(b)).map(stage => ({ stage, text: text(stage) }));
}

export const lanesPane: MakePane = context => {
  const choices = laneStages(context.doc.stages);
  const many = (stage: Stage) => stage.layout!.boxes.filter(box => box.row >= 0).length > MANY;
  const fact = (stage: Stage) => `${nodesFact(stage)}; dashed = kept for the way back${many(stage) ? ", drawn where it is lit" : ""}`;
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
