// Return the layout of a stage: from the document, else made here, for large graphs in a worker.

import { engine } from "layout-engine";
import { readLayout, type Layout, type Stage } from "../doc/doc.ts";
import type { Drawn } from "./boxes.ts";

/** Boxes that are laid out at once; above it a worker does it, so that the page goes on. */
const AT_ONCE = 1000;

export const drawnOf = (stage: Stage, types: readonly { text: string }[]): Drawn[] =>
  stage.nodes.map(({ op, raw, label, type, inputs, lane, twin, told, lines }) => ({
    op,
    name: label || raw,
    type: told ?? types[type]?.text ?? "",
    inputs,
    leaf: inputs.length === 0 && told === undefined,
    lane,
    twin,
    ...(told === undefined ? {} : { closed: true }),
    ...(lines ? { lines } : {}),
  }));

export interface Laying {
  done: Promise<Layout>;
  cancel(): void;
}

const program = (): string => `const { layout } = (${engine})(); onmessage = ({ data }) => postMessage(layout(data));`;

function inWorker(nodes: Drawn[]): Laying {
  const url = URL.createObjectURL(new Blob([program()], { type: "text/javascript" }));
  let end = () => {};
  const done = new Promise<Layout>((resolve, reject) => {
    const here = () => resolve(readLayout(engine().layout(nodes), nodes.length)!);
    const close = () => URL.revokeObjectURL(url);
    try {
      const worker = new Worker(url);
      end = () => {
        worker.terminate();
        close();
        reject(new Error("cancelled"));
      };
      worker.onmessage = ({ data }) => {
        worker.terminate();
        close();
        resolve(readLayout(data, nodes.length)!);
      };
      // A host may forbid workers: then the page does it itself.
      worker.onerror = event => {
        event.preventDefault();
        worker.terminate();
        close();
        here();
      };
      worker.postMessage(nodes);
    } catch {
      close();
      here();
    }
  });
  done.catch(() => {});
  return { done, cancel: () => end() };
}

/** The layout, or the promise of one. It is kept: a stage is laid out once. */
export function layoutOf(stage: Stage, types: readonly { text: string }[]): Layout | Laying {
  if (stage.layout) return stage.layout;
  const nodes = drawnOf(stage, types);
  if (nodes.length <= AT_ONCE) return (stage.layout = readLayout(engine().layout(nodes), nodes.length)!);
  const laying = inWorker(nodes);
  laying.done.then(
    layout => (stage.layout = layout),
    () => {},
  );
  return laying;
}

const DENSITIES = [0, 1, 2, 3] as const;
const denser = new WeakMap<Stage, Map<number, Layout>>();

/** The densities at which a stage can be laid out at once: a large one, or one of another engine, only at its own.
 * Numbers on nodes (`--values`) stand in the place of the types, which denser pictures leave out. */
export function densitiesOf({ nodes, layout }: Stage): readonly number[] {
  const asItIs = nodes.length > AT_ONCE || layout?.engine === "dot" || nodes.some(({ lines }) => lines !== undefined);
  return asItIs ? DENSITIES.slice(0, 1) : DENSITIES;
}

/** The layout of a stage at a density, by the engine of its layout at density 0. */
export function layoutAt(stage: Stage, types: readonly { text: string }[], density: number): Layout {
  if (density === 0) return stage.layout!;
  const known = denser.get(stage) ?? new Map<number, Layout>();
  denser.set(stage, known);
  const nodes = drawnOf(stage, types);
  if (!known.has(density))
    known.set(
      density,
      readLayout(engine().layout(nodes, stage.layout!.engine as "layered" | "lanes", density), nodes.length)!,
    );
  return known.get(density)!;
}

/** Whether a stage is drawn in lanes. */
export const hasLanes = (stage: Stage): boolean => stage.nodes.some(node => node.lane.startsWith("adjoint"));
