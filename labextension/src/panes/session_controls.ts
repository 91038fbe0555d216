// The buttons and settings of a live session: they send commands, and say why one cannot be sent.

import { div, h, listen, setFlag, span, write } from "../draw/dom.ts";
import type { Host } from "../live/host.ts";
import { primary, refusal, type Live } from "../live/live.ts";
import type { CommandName } from "../live/messages.ts";
import { select, type Context } from "./pane.ts";
import { stateText } from "./session_words.ts";

interface Command {
  label: string;
  title: string;
  icon?: string;
}
const COMMANDS: Partial<Record<CommandName, Command>> = {
  run: { label: "Run", title: "makes exactly so many steps", icon: "▶" },
  step: { label: "Step", title: "makes one step (n)" },
  pause: { label: "Pause", title: "pauses before the next step (p)", icon: "❚❚" },
  resume: { label: "Resume", title: "makes the rest of the run (p)", icon: "▶" },
  stop: { label: "Stop", title: "pauses and drops the rest", icon: "■" },
  reset: { label: "Reset", title: "back to the opening state: parameters, moments, counters" },
};
const SPEEDS: [string, string][] = [
  ["", "full speed"],
  ["10", "10 steps/s"],
  ["1", "1 step/s"],
];
const WATCHES: [string, string][] = [
  ["loss", "watch the loss"],
  ["parameters", "watch parameters"],
  ["everything", "watch everything"],
  ["off", "watch nothing"],
];
const QUEUED = "queued: kernel is busy";
const SURE = 4000; // ms within which Reset is pressed again

interface Button extends Command {
  el: HTMLButtonElement;
  word: HTMLElement;
}

export class SessionControls {
  readonly el: HTMLElement;
  readonly #context: Context;
  readonly #steps = h("input", {
    class: "gd-steps-field",
    type: "number",
    min: 1,
    step: 1,
    value: 100,
    "aria-label": "number of steps to run",
    "data-command": "steps",
  });
  readonly #buttons = new Map<CommandName, Button>();
  readonly #speed: HTMLSelectElement;
  readonly #watch: HTMLSelectElement;
  readonly #state = h("span", { class: "gd-state", "data-value": "state" });
  /** The timer that runs while Reset asks for a second press. */
  #sure: ReturnType<typeof setTimeout> | undefined;

  constructor(context: Context) {
    this.#context = context;
    this.#speed = this.#setting("speed", SPEEDS, value => ({ steps_per_second: value ? Number(value) : null }));
    this.#watch = this.#setting("watch", WATCHES, mode => ({ mode }));
    const [run, ...others] = Object.keys(COMMANDS).map(name => this.#button(name as CommandName));
    const group = span("gd-rungroup", run, this.#steps);
    this.el = div("gd-buttons", group, ...others, this.#speed, this.#watch, this.#state);
    listen(this.#steps, "keydown", event => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.#press("run");
    });
  }

  destroy(): void {
    clearTimeout(this.#sure);
  }

  show(live: Live, host: Host | null): void {
    const { state } = live;
    const connected = Boolean(host) && !host!.dead;
    const queued = new Set(host?.pending.filter(each => each.queued).map(each => each.name));
    for (const [name, button] of this.#buttons) {
      const why = refusal(state, connected, name);
      this.#showButton(name, button, why, queued.has(name));
      setFlag(button.el, "data-primary", name === primary(state));
    }
    // One place for both: Pause while running, Resume while paused.
    const resumes = state === "paused";
    this.#buttons.get("resume")!.el.hidden = !resumes;
    this.#buttons.get("pause")!.el.hidden = resumes;
    this.#speed.disabled = this.#watch.disabled = !connected || state === "none";
    if (live.watch && document.activeElement !== this.#watch) this.#watch.value = live.watch;
    this.#steps.disabled = refusal(state, connected, "run") !== null;
    this.#state.dataset.state = connected ? state : "none";
    write(this.#state, stateText(live, host));
  }

  #showButton(name: CommandName, { el, word, label, title }: Button, why: string | null, waits: boolean): void {
    el.disabled = why !== null;
    el.title = why ?? (waits ? QUEUED : title);
    el.ariaLabel = waits ? `${label}, ${QUEUED}` : name === "run" ? "Run that many steps" : label;
    setFlag(el, "data-queued", waits);
    if (name !== "reset" || !this.#sure) write(word, waits ? QUEUED : label);
  }

  #button(name: CommandName): HTMLButtonElement {
    const command = COMMANDS[name]!;
    const { icon, label } = command;
    const word = h("span", null, label);
    const el = h(
      "button",
      { class: "gd-button", "data-command": name, on: { click: () => this.#press(name) } },
      icon && h("span", { class: "gd-icon", "aria-hidden": "true" }, icon),
      word,
    );
    this.#buttons.set(name, { ...command, el, word });
    return el;
  }

  #setting(
    name: CommandName,
    options: [string, string][],
    args: (value: string) => Record<string, unknown>,
  ): HTMLSelectElement {
    const made = select(name, options, options[0]![0], value => this.#context.send(name, args(value)));
    made.dataset.command = name;
    return made;
  }

  #press(name: CommandName): void {
    const context = this.#context;
    if (refusal(context.live().state, Boolean(context.host()), name)) return;
    if (name === "reset" && !this.#sure) return this.#askAgain();
    clearTimeout(this.#sure);
    this.#sure = undefined;
    const steps = Math.max(1, Math.floor(Number(this.#steps.value)) || 1);
    context.send(name, name === "run" ? { steps } : {});
  }

  /** Ask again before Reset throws steps away: a second press within four seconds resets. */
  #askAgain(): void {
    const { word } = this.#buttons.get("reset")!;
    write(word, "Reset?");
    this.#sure = setTimeout(() => {
      this.#sure = undefined;
      write(word, "Reset");
    }, SURE);
  }
}
