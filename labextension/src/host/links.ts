// Links of drawn answers (gdlab/view/answer/answer_html.py): a click selects their entity in the open views of a study.

import { all, listen } from "../draw/dom.ts";
import { selectionNamed } from "../live/page.ts";

const LINK = "[data-gdlab-study][data-gdlab-entity]";

/** The views of a study that are drawn in the page; a hidden one has no box. */
const viewsOf = (study: string): HTMLElement[] =>
  all<HTMLElement>(document, ".gdlab").filter(view => view.dataset.study === study && view.getClientRects().length > 0);

function inSight(view: HTMLElement): boolean {
  const { top, bottom } = view.getBoundingClientRect();
  return bottom > 0 && top < innerHeight;
}

function follow(link: HTMLElement): void {
  const { gdlabStudy: study = "", gdlabEntity: entity = "" } = link.dataset,
    views = viewsOf(study),
    selection = selectionNamed(study);
  selection.value = [entity];
  for (const listener of selection.listeners) listener(selection.value);
  if (views.length === 0) link.dataset.gdlabNone = "(no view of this graph is open)";
  else delete link.dataset.gdlabNone;
  if (!views.some(inSight)) views.at(-1)?.scrollIntoView({ block: "nearest" });
}

/** Follow links from now on; answers show them as links from then on. The second module of a page changes nothing. */
export function followLinks(): void {
  const root = document.documentElement;
  if (root.dataset.gdlabLinks !== undefined) return;
  root.dataset.gdlabLinks = "";
  const linkAt = (event: Event) => (event.target as Element).closest<HTMLElement>(LINK);
  listen(root, "click", event => {
    const link = linkAt(event);
    if (link) follow(link);
  });
  listen(root, "keydown", event => {
    const link = event.key === "Enter" || event.key === " " ? linkAt(event) : null;
    if (!link) return;
    event.preventDefault();
    follow(link);
  });
}
