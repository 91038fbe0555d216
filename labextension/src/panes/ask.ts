// Buttons that ask the kernel: without one they say why they cannot; a refusal is told beside them.

import { all, div, listen, SMALL_BUTTON } from "../draw/dom.ts";
import type { Host } from "../live/host.ts";
import type { CommandName } from "../live/messages.ts";
import { button, h, mini, type Context } from "./pane.ts";

export const ASKED = ".gd-asked";

type Result = Record<string, unknown>;

/** A button that sends a command; `done` gets the answer. `args` is asked when it is pressed. */
export function asking(
  context: Context,
  name: CommandName,
  label: string,
  text: string,
  told: string,
  args: () => Result,
  done: (result: Result) => void,
  key: string = name,
): HTMLButtonElement {
  const made = button(label, { class: SMALL_BUTTON, "data-command": key, "data-asks": told }, text);
  let refusal: HTMLElement | undefined;
  listen(made, "click", () => {
    const place = made.closest(".gdlab")!.parentElement!;
    made.disabled = true;
    void context
      .host()
      ?.command(name, args())
      .then(({ ok, result, error }) => {
        made.disabled = false;
        refusal?.remove();
        if (ok) {
          done(result ?? {});
          if (result?.html) showAnswer(place, String(result.html));
        }
        else
          made.after(
            (refusal = h("p", { class: "gd-note", "data-level": "error", role: "alert" }, error?.message ?? "refused")),
          );
      });
  });
  enliven(made, context.host());
  return made;
}

/** Show a drawn answer (gdlab/view/answer/html.py) over the view in `place`, instead of the last one. */
function showAnswer(place: Element, html: string): void {
  const box = div("gd-asked");
  box.innerHTML = html;
  box.append(mini("close the answer", "close-answer", "\u00d7", () => box.remove()));
  place.querySelector(ASKED)?.remove();
  place.querySelector(".gd-panes")!.after(box);
}

/** Enable the buttons in `el` (or `el` itself) that can act now, and give the others the reason why they cannot. */
export function enliven(el: HTMLElement, host: Host | null): void {
  const gone = !host || host.dead;
  for (const each of el.matches("[data-asks]")
    ? [el as HTMLButtonElement]
    : all<HTMLButtonElement>(el, "[data-asks]")) {
    const quiet = gone ? "no live kernel to ask: run the cell again" : each.dataset.asks!;
    if (each.title === quiet) continue; // not while it waits for its answer
    each.title = quiet;
    each.disabled = gone;
  }
}
