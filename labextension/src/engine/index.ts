// The engine of a standalone page: it tells the front end, which was loaded before it, that this page can compute.

import type { Page } from "../live/page.ts";
import { makeModel } from "./model.ts";

(globalThis as unknown as { gdlab: Page }).gdlab.engine = () => Promise.resolve(makeModel);
