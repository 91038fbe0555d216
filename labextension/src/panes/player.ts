// A slider over the states of something, with buttons that step through them and play them.

import { h, write } from "../draw/dom.ts";
import { mini } from "./pane.ts";

export interface PlayerOptions {
  /** The slider's `data-command`, and the beginning of those of the buttons. */
  command: string;
  label: string;
  /** The word for one state, as in "previous iteration". */
  unit: string;
  play: string;
  /** Whether the buttons name their keys. */
  keys?: boolean;
  go(to: number): void;
  /** Milliseconds between two states while it plays. */
  period(): number;
}

export class Player {
  readonly slider: HTMLInputElement;
  readonly before: HTMLButtonElement;
  readonly after: HTMLButtonElement;
  readonly play: HTMLButtonElement;
  readonly #options: PlayerOptions;
  #at = 0;
  #first = 0;
  #last = 0;
  #timer: ReturnType<typeof setInterval> | undefined;

  constructor(options: PlayerOptions) {
    const { command, label, unit, go, keys = true } = options;
    const key = (text: string) => (keys ? ` (${text})` : "");
    this.#options = options;
    this.slider = h("input", {
      type: "range",
      min: 0,
      value: 0,
      "aria-label": label,
      "data-command": command,
      on: { input: () => go(Number(this.slider.value)) },
    });
    this.before = mini(`previous ${unit}${key(",")}`, `${command}-previous`, "\u2039", () => go(this.#at - 1));
    this.after = mini(`next ${unit}${key(".")}`, `${command}-next`, "\u203a", () => go(this.#at + 1));
    this.play = mini(options.play, `${command}-play`, "▶", () => (this.#timer ? this.stop() : this.start()));
  }

  /** Show state `at` of those from `first` to `last`. */
  show(at: number, last: number, first = 0): void {
    this.#at = at;
    this.#first = first;
    this.#last = last;
    this.slider.min = String(first);
    this.slider.max = String(last);
    this.slider.value = String(at);
    this.before.disabled = at === first;
    this.after.disabled = at === last;
  }

  get playing(): boolean {
    return this.#timer !== undefined;
  }

  start(): void {
    const { go, period } = this.#options;
    clearInterval(this.#timer);
    write(this.play, "❚❚");
    if (this.#at >= this.#last) go(this.#first);
    this.#timer = setInterval(() => (this.#at < this.#last ? go(this.#at + 1) : this.stop()), period());
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
    write(this.play, "▶");
  }
}
