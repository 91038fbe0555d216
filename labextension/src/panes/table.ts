// All panes, in the order in which they stand, whichever tab shows them.

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
import { stepperPane } from "./stepper.ts";
import { sweepPane } from "./sweep.ts";
import { textPane } from "./text.ts";

export const PANES: readonly PaneRecord[] = [
  sourcePane,
  rewritesPane,
  beforePane,
  afterPane,
  reportPane,
  scrubPane,
  egraphPane,
  lanesPane,
  stepperPane,
  diffPane,
  planPane,
  kernelsPane,
  sessionPane,
  sweepPane,
  arenaPane,
  outlinePane,
  textPane,
];
