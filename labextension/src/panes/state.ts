// The open tab, selection and tools: a pure reducer (state, action) -> state. Views of one study share the selection.

export const TABS = [
  "opt",
  "rewrites",
  "grad",
  "diff",
  "plan",
  "arena",
  "kernels",
  "session",
  "text",
  "sweep",
] as const;
export type Tab = (typeof TABS)[number];

/** The names of a pane before it is made. */
export interface PaneNames {
  readonly title: string;
  /** Its name on the switch of panes, where that is not its title. */
  readonly name?: string;
  /** The view that has the pane's content as text (gdlab/view/text/twin.py). */
  readonly twin: string;
}

/** All panes, in the order in which they stand, whichever tab shows them. */
const NAMES = {
  source: { title: "Source", twin: "graph" },
  rewrites: { title: "Rewrites", name: "Steps", twin: "rewrites" },
  before: { title: "As written", twin: "graph" },
  after: { title: "Optimized", twin: "opt" },
  report: { title: "OptimizeReport", twin: "opt" },
  scrub: { title: "Replay", twin: "rewrites" },
  egraph: { title: "E-graph", twin: "egraph" },
  lanes: { title: "Derivative", twin: "grad" },
  stepper: { title: "Step", twin: "grad" },
  diff: { title: "Diff", twin: "diff" },
  plan: { title: "Plan", name: "Dispatches", twin: "plan" },
  kernels: { title: "WGSL", twin: "kernels" },
  session: { title: "Session", twin: "session" },
  sweep: { title: "Sweep", twin: "sweep" },
  arena: { title: "Arena", twin: "arena" },
  outline: { title: "Outline", twin: "text" },
  text: { title: "Text", twin: "text" },
};
export type PaneKey = keyof typeof NAMES;
export const PANES: Readonly<Record<PaneKey, PaneNames>> = NAMES;

/** A tab: its faces stand side by side and take turns where it is narrow, `below` stays under them then. */
interface TabRecord {
  name: string;
  faces: PaneKey[];
  below: PaneKey[];
  /** Whether the tools stand above the panes. */
  tools?: boolean;
  /** The roles of the stages that are searched; all by default. */
  roles?: string[];
}
const OPTIMIZED = ["written", "optimized"];
export const ARRANGEMENT: Record<Tab, TabRecord> = {
  opt: {
    name: "Graph",
    faces: ["source", "before", "after"],
    below: ["report", "session"],
    tools: true,
    roles: OPTIMIZED,
  },
  rewrites: { name: "Rewrites", faces: ["rewrites", "scrub", "egraph"], below: [], tools: true, roles: OPTIMIZED },
  grad: { name: "Derivative", faces: ["lanes"], below: ["stepper"], tools: true, roles: ["derivative", "final"] },
  diff: { name: "Diff", faces: ["diff"], below: [], tools: true },
  plan: { name: "Plan", faces: ["plan", "kernels"], below: ["arena"] },
  arena: { name: "Arena", faces: ["arena"], below: [] },
  kernels: { name: "Kernels", faces: ["kernels"], below: [] },
  session: { name: "Session", faces: ["session"], below: ["arena"] },
  text: { name: "Text", faces: ["outline", "text"], below: [], tools: true },
  sweep: { name: "Sweep", faces: ["sweep"], below: [] },
};

/** The tabs of a document, with that of a sweep if there was one. */
export const tabsOf = (doc: { sweep: unknown }): Tab[] => TABS.filter(tab => tab !== "sweep" || doc.sweep);


export interface Ui {
  tab: Tab;
  faces: Partial<Record<Tab, PaneKey>>;
  selected: readonly string[];
  hover: string | null;
  past: readonly (readonly string[])[];
  future: readonly (readonly string[])[];
  source: boolean;
  help: boolean;
  /** The search, the reach of pictures around the selection, and the overlay that colours them. */
  query: string;
  reach: string;
  overlay: string;
  /** The saved additions to pictures (kept.ts) as text, so that a change draws the pictures anew. */
  beside: string;
}

export type Action =
  | { do: "tab"; tab: Tab }
  | { do: "face"; face: PaneKey }
  | { do: "select"; entities: readonly string[]; add?: boolean | undefined }
  | { do: "hover"; entity: string | null }
  | { do: "clear" }
  | { do: "back" }
  | { do: "forward" }
  | { do: "source" }
  | { do: "tool"; tool: "query" | "reach" | "overlay" | "beside"; value: string }
  | { do: "help"; on: boolean };

/** The action that selects these entities; with `add` those that are selected already are taken away. */
export const selecting = (entities: readonly string[], add?: boolean): Action => ({ do: "select", entities, add });

/** The action that opens a tab. */
export const opening = (tab: Tab): Action => ({ do: "tab", tab });

const KEPT = 100;

export const initialUi = (tab: Tab = "opt", selected: readonly string[] = []): Ui => ({
  tab,
  faces: {},
  selected,
  hover: null,
  past: [],
  future: [],
  source: false,
  help: false,
  query: "",
  reach: "all",
  overlay: "",
  beside: "",
});

export const faceOf = (ui: Ui): PaneKey => {
  const { faces } = ARRANGEMENT[ui.tab];
  const chosen = ui.faces[ui.tab];
  if (chosen && faces.includes(chosen)) return chosen;
  return faces.find(face => face !== "source")!;
};

const same = (a: readonly string[], b: readonly string[]): boolean =>
  a.length === b.length && a.every((each, i) => each === b[i]);

function select(ui: Ui, selected: readonly string[]): Ui {
  if (same(ui.selected, selected)) return ui;
  return { ...ui, selected, past: [...ui.past, ui.selected].slice(-KEPT), future: [] };
}

/** Add entities that are not selected yet, and remove those that are, as Shift does. */
function toggled(selected: readonly string[], entities: readonly string[]): string[] {
  const kept = selected.filter(each => !entities.includes(each));
  return kept.length < selected.length ? kept : [...selected, ...entities];
}

export function reduce(ui: Ui, action: Action): Ui {
  switch (action.do) {
    case "tab":
      return ui.tab === action.tab ? ui : { ...ui, tab: action.tab, hover: null };
    case "face":
      return { ...ui, faces: { ...ui.faces, [ui.tab]: action.face }, hover: null };
    case "select":
      return select(ui, action.add ? toggled(ui.selected, action.entities) : action.entities);
    case "hover":
      return ui.hover === action.entity ? ui : { ...ui, hover: action.entity };
    case "clear":
      return select(ui, []);
    case "back": {
      const selected = ui.past.at(-1);
      return selected ? { ...ui, selected, past: ui.past.slice(0, -1), future: [ui.selected, ...ui.future] } : ui;
    }
    case "forward": {
      const [selected, ...future] = ui.future;
      return selected ? { ...ui, selected, past: [...ui.past, ui.selected], future } : ui;
    }
    case "source":
      return { ...ui, source: !ui.source };
    case "tool":
      return ui[action.tool] === action.value ? ui : { ...ui, [action.tool]: action.value };
    case "help":
      return ui.help === action.on ? ui : { ...ui, help: action.on };
  }
}
