// The panes of the second part of the front end: it comes when one of them is first needed (table.ts).

import { arenaPane } from "./arena.ts";
import { diffPane } from "./diff.ts";
import { egraphPane } from "./egraph.ts";
import { kernelsPane } from "./kernels.ts";
import { outlinePane } from "./outline.ts";
import { planPane } from "./plan.ts";
import { reportPane } from "./report.ts";
import { rewritesPane } from "./rewrites.ts";
import { scrubPane } from "./scrub.ts";
import { sessionPane } from "./session.ts";
import { sourcePane } from "./source.ts";
import { stepperPane } from "./stepper.ts";
import { sweepPane } from "./sweep.ts";
import { addPanes } from "./table.ts";
import { textPane } from "./text.ts";

addPanes(
  sourcePane,
  rewritesPane,
  reportPane,
  scrubPane,
  egraphPane,
  stepperPane,
  diffPane,
  planPane,
  kernelsPane,
  sessionPane,
  sweepPane,
  arenaPane,
  outlinePane,
  textPane,
);
