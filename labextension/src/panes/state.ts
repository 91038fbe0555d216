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
/** The key of a pane (table.ts). */
export type PaneKey = string;

/** The tabs of a document: that of a sweep where there was one. */
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

const same = (a: readonly string[], b: readonly string[]): boolean =>
  a.length === b.length && a.every((each, i) => each === b[i]);

function select(ui: Ui, selected: readonly string[]): Ui {
  if (same(ui.selected, selected)) return ui;
  return { ...ui, selected, past: [...ui.past, ui.selected].slice(-KEPT), future: [] };
}

/** Shift adds what is not selected yet and takes away what is. */
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
