// Where every pane stands: the tabs, and the panes of each. A new pane is its own file, and a place here.

import { arenaPane } from "./arena.ts";
import { diffPane } from "./diff.ts";
import { egraphPane } from "./egraph.ts";
import { afterPane, beforePane, lanesPane } from "./graphs.ts";
import { kernelsPane } from "./kernels.ts";
import { outlinePane } from "./outline.ts";
import type { PaneRecord } from "./pane.ts";
import { planPane } from "./plan.ts";
import { reportPane } from "./report.ts";
import { rewritesPane } from "./rewrites.ts";
import { scrubPane } from "./scrub.ts";
import { sessionPane } from "./session.ts";
import { sourcePane } from "./source.ts";
import type { PaneKey, Tab, Ui } from "./state.ts";
import { stepperPane } from "./stepper.ts";
import { sweepPane } from "./sweep.ts";
import { textPane } from "./text.ts";

/** A tab: its faces stand side by side and take turns where it is narrow, `below` stays under them then. */
interface TabRecord {
  name: string;
  faces: readonly PaneRecord[];
  below: readonly PaneRecord[];
  /** The tools stand above the panes. */
  tools?: boolean;
  /** The roles of the stages that are searched; all where none is said. */
  roles?: readonly string[];
}
const OPTIMIZED = ["written", "optimized"];
export const ARRANGEMENT: Record<Tab, TabRecord> = {
  opt: {
    name: "Graph",
    faces: [sourcePane, beforePane, afterPane],
    below: [reportPane, sessionPane],
    tools: true,
    roles: OPTIMIZED,
  },
  rewrites: {
    name: "Rewrites",
    faces: [rewritesPane, scrubPane, egraphPane],
    below: [],
    tools: true,
    roles: OPTIMIZED,
  },
  grad: { name: "Derivative", faces: [lanesPane], below: [stepperPane], tools: true, roles: ["derivative", "final"] },
  diff: { name: "Diff", faces: [diffPane], below: [], tools: true },
  plan: { name: "Plan", faces: [planPane, kernelsPane], below: [arenaPane] },
  arena: { name: "Arena", faces: [arenaPane], below: [] },
  kernels: { name: "Kernels", faces: [kernelsPane], below: [] },
  session: { name: "Session", faces: [sessionPane], below: [arenaPane] },
  text: { name: "Text", faces: [outlinePane, textPane], below: [], tools: true },
  sweep: { name: "Sweep", faces: [sweepPane], below: [] },
};

/** The panes that a tab shows. */
export const panesOf = (tab: Tab): PaneRecord[] => [...ARRANGEMENT[tab].faces, ...ARRANGEMENT[tab].below];

/** All panes, in the order in which they stand. */
export const PANES: readonly PaneRecord[] = [...new Set((Object.keys(ARRANGEMENT) as Tab[]).flatMap(panesOf))];

/** The pane of the open tab that is in front where only one has room. */
export const faceOf = ({ tab, faces }: Ui): PaneKey => {
  const keys = ARRANGEMENT[tab].faces.map(pane => pane.key),
    chosen = faces[tab];
  return chosen && keys.includes(chosen) ? chosen : keys.find(key => key !== "source")!;
};
