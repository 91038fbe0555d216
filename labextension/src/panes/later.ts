// The panes of the second part of the front end: it comes when one of them is first needed (table.ts).
//
// Panes that read alike stand together here, because gzip looks back 32 KB: another order costs up to 0.6 KB.

import { outlinePane } from "./outline.ts";
import { arenaPane } from "./arena.ts";
import { planPane } from "./plan.ts";
import { kernelsPane } from "./kernels.ts";
import { sourcePane } from "./source.ts";
import { textPane } from "./text.ts";
import { reportPane } from "./report.ts";
import { rewritesPane } from "./rewrites.ts";
import { stepperPane } from "./stepper.ts";
import { diffPane } from "./diff.ts";
import { scrubPane } from "./scrub.ts";
import { sessionPane } from "./session.ts";
import { sweepPane } from "./sweep.ts";
import { egraphPane } from "./egraph.ts";
import { addPanes } from "./table.ts";

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
