// The hits of a search in all tabs: nodes of every stage, dispatches and buffers, each with its kind and its tab.

import { nodeName, type GraphDoc } from "../doc/doc.ts";
import { put, whole } from "../doc/format.ts";
import { hits, parseQuery } from "../doc/query.ts";
import { parseEntity } from "../doc/select.ts";
import { h, replace, span, type Child } from "../draw/dom.ts";
import { ARRANGEMENT, opening, selecting, type Action, type Tab } from "./state.ts";

/** A thing that a search finds: `place` says where it stands. */
export interface Hit {
  entity: string;
  kind: string;
  name: string;
  place: string;
  tab: Tab;
}
export interface Found {
  hits: readonly Hit[];
  error: string | null;
}

const TABS: Record<string, Tab> = { written: "opt", optimized: "opt", derivative: "grad", final: "grad" };
const MOST = 200; // rows of the list
const WORDS = /^[^:/<>=*]+$/; // a query of nothing but words: only these look at names that are no node's

function nodes(doc: GraphDoc, query: string): Found {
  const parsed = parseQuery(query);
  const found = hits(
    doc,
    doc.stages.map(({ index }) => index),
    parsed,
  );
  const told = (entity: string): Hit => {
    const [at, i] = parseEntity(entity)!.at as [number, number],
      stage = doc.stages[at]!,
      node = stage.nodes[i]!,
      name = node.name && node.name !== node.op ? `${node.op} ${node.name}` : nodeName(node);
    return { entity, kind: "node", name, place: stage.title || stage.key, tab: TABS[stage.role] ?? "diff" };
  };
  return { hits: found.map(told), error: parsed.error };
}

function ofPlan({ plan }: GraphDoc, query: string): Hit[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!plan || !WORDS.test(query)) return [];
  const has = (name: string) => words.every(word => name.toLowerCase().includes(word));
  return [
    ...plan.dispatches.map(({ label }, k): Hit => {
      const entity = `dispatch:${k}`;
      return { entity, kind: "dispatch", name: label, place: `dispatch ${k}`, tab: "plan" };
    }),
    ...plan.intervals.map(({ name, kind: place }, i): Hit => {
      const entity = `interval:${i}`;
      return { entity, kind: "buffer", name, place, tab: "arena" };
    }),
  ].filter(({ name }) => has(name));
}

/** Everything that a query finds, nodes first. */
export function allHits(doc: GraphDoc, query: string): Found {
  if (!query.trim()) return { hits: [], error: null };
  const found = nodes(doc, query);
  return { ...found, hits: [...found.hits, ...(found.error ? [] : ofPlan(doc, query))] };
}

/** Return whether a tab draws a hit: all nodes are in those that name no roles. */
export const isHere = (doc: GraphDoc, tab: Tab, { entity, kind, tab: own }: Hit): boolean => {
  const { roles } = ARRANGEMENT[tab];
  if (kind !== "node") return own === tab;
  return !roles || roles.includes(doc.stages[parseEntity(entity)!.at[0]!]!.role);
};

/** The list of hits, and the links to those of other tabs. */
export class HitList {
  readonly #act: (action: Action) => void;
  readonly elsewhere = h("span", { class: "gd-elsewhere" });
  readonly list = h("div", { class: "gd-hitlist gd-scroll", role: "group", "aria-label": "hits", hidden: true });
  readonly opener = h(
    "button",
    { class: "gd-mini", "data-command": "search-list", "aria-expanded": "false", title: "list of hits", hidden: true },
    "list",
  );
  #hits: readonly Hit[] = [];

  constructor(act: (action: Action) => void) {
    this.#act = act;
    this.opener.addEventListener("click", () => this.open(this.list.hidden === true));
    this.list.addEventListener("keydown", event => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.open(false);
      this.opener.focus();
    });
  }

  open(on: boolean): void {
    this.list.hidden = !on;
    this.opener.ariaExpanded = String(on);
    if (on) this.#fill();
  }

  /** Show the hits, with links to those in other tabs; return their number in words. */
  show(doc: GraphDoc, tab: Tab, found: Found): string {
    const others = new Map<Tab, Hit[]>();
    for (const hit of found.hits) if (!isHere(doc, tab, hit)) put(others, hit.tab, hit);
    const told = ([key, hits]: [Tab, Hit[]]) => `${hits.length} in ${ARRANGEMENT[key].name}`;
    replace(
      this.elsewhere,
      [...others].map((each): Child => {
        const go = () => this.#go(each[1][0]!);
        return h("button", { class: "gd-link", "data-elsewhere": each[0], on: { click: go } }, told(each));
      }),
    );
    this.opener.hidden = found.hits.length === 0;
    if (this.#hits !== found.hits) {
      this.#hits = found.hits;
      if (found.hits.length === 0) this.open(false);
      else if (!this.list.hidden) this.#fill();
    }
    return [...others].map(told).join(", ");
  }

  /** Go to the tab of a hit; select a hit that the search does not mark there. */
  #go({ entity, kind, tab }: Hit, select = kind !== "node"): void {
    this.#act(opening(tab));
    if (select) this.#act(selecting([entity]));
  }

  #fill(): void {
    const row = (hit: Hit) =>
      h(
        "button",
        { class: "gd-hitrow", "data-hit-of": hit.entity, on: { click: () => this.#go(hit, true) } },
        span("gd-muted", hit.kind),
        span("gd-ellipsis gd-mono", hit.name),
        span("gd-muted gd-end", hit.place),
      );
    const more = this.#hits.length - MOST;
    replace(
      this.list,
      this.#hits.slice(0, MOST).map(row),
      more > 0 && h("p", { class: "gd-muted" }, `and ${whole(more)} more: say more in the search`),
    );
  }
}
