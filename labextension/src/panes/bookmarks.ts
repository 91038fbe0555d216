// Bookmarks: names for a place and the selection there, in one field: a new name keeps them, a known one goes there.

import type { GraphDoc } from "../doc/doc.ts";
import { local, portable } from "../doc/select.ts";
import { h, replace, setFlag, span } from "../draw/dom.ts";
import { keep, keptOf } from "../live/kept.ts";
import { page } from "../live/page.ts";
import { mini } from "./pane.ts";
import { opening, selecting, TABS, type Action, type Ui } from "./state.ts";

export interface Bookmarks {
  el: HTMLElement;
  /** Go to the empty field. */
  open(): void;
  destroy(): void;
}

let lists = 0;

export function bookmarks(
  doc: GraphDoc,
  act: (action: Action) => void,
  ui: () => Ui,
  say: (text: string) => void,
): Bookmarks {
  const kept = keptOf(doc),
    list = h("datalist", { id: `gd-bookmarks-${++lists}` }),
    all = () => kept.value.bookmarks ?? [],
    named = () => all().find(each => each.name === field.value.trim()),
    label = "bookmarks (b): a new name and Enter keeps what is selected, a known one goes there";
  const leave = () => field.closest<HTMLElement>(".gdlab")!.focus();
  /** Go to the bookmark with the name in the field, else keep the selection under that name. */
  const enter = () => {
    const name = field.value.trim(),
      { selected, tab } = ui(),
      known = named(),
      here = known?.entities.flatMap(each => local(doc, each) ?? []) ?? selected;
    if (!name) return;
    if (here.length === 0)
      return say(`bookmark ${name}: ${known ? "nothing of it is in this document" : "nothing is selected"}`);
    if (!known)
      keep(kept, { bookmarks: [...all(), { name, tab, entities: selected.map(each => portable(doc, each)) }] });
    act(opening(TABS.find(each => each === known?.tab) ?? tab));
    act(selecting(here));
    field.value = name;
    listed();
    leave();
    const inOutput = page().save && field.closest(".jp-OutputArea"),
      until = inOutput ? "; save the notebook to have it later" : " until this page is closed: no live session";
    say(`bookmark ${name}${known ? "" : ` kept${page().hosts.has(doc.study!) ? "" : until}`}`);
  };
  const forget = mini("forget this bookmark", "bookmark-forget", "×", () => {
    keep(kept, { bookmarks: all().filter(each => each !== named()) });
    open();
  });
  const field: HTMLInputElement = h("input", {
    class: "gd-search",
    list: list.id,
    maxlength: 60,
    autocomplete: "off",
    "aria-label": label,
    title: label,
    "data-command": "bookmark",
    on: {
      focus: () => field.select(),
      // A name picked from the list needs no Enter.
      input: ({ inputType }: InputEvent) => (inputType === "insertReplacementText" ? enter() : listed()),
      keydown: (event: KeyboardEvent) => {
        if (event.key === "Enter") enter();
        else if (event.key === "Escape") leave();
        else return;
        event.stopPropagation();
      },
    },
  });
  const open = () => {
    if (el.offsetParent === null) return say("bookmark: select something first");
    field.value = "";
    listed();
    field.focus();
  };
  const listed = () => {
    field.placeholder = all().length > 0 ? `★ ${all().length}` : "☆ bookmark";
    forget.hidden = !named();
    setFlag(el, "data-some", all().length > 0);
    replace(
      list,
      all().map(({ name }) => h("option", { value: name })),
    );
  };
  const el = span("gd-bookmarks", field, forget, list);
  kept.listeners.add(listed);
  listed();
  return { el, open, destroy: () => kept.listeners.delete(listed) };
}
