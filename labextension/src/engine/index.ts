// The engine of a standalone page: it tells the front end beside it that this page can compute.

import { page } from "../live/page.ts";
import { makeModel } from "./model.ts";

page().engine = () => Promise.resolve(makeModel);
