// Conditions of breakpoints, in the grammar of gdlab/session/run/stop_conditions.py. Text is parsed, never evaluated.

import type { Numbers } from "./numbers.ts";

interface Tensor {
  data: Numbers;
  shape: readonly number[];
}
/** The values that a condition may read. */
export interface Subject {
  step: number;
  loss: number | null;
  /** The tensors by their names in the text; null is one without a value yet, with which no condition holds. */
  tensors: ReadonlyMap<string, Tensor | null>;
}
/** Throws `NO_VALUE`. */
type Term<T> = (of: Subject) => T;
export interface Condition {
  holds(of: Subject): boolean;
  tensors: readonly string[];
}

const NO_VALUE = Symbol("no value yet");

function valueOf<T>(value: T | null | undefined): T {
  if (value == null) throw NO_VALUE;
  return value;
}

const WORDS = /(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[\p{L}_][\p{L}\d_.]*(?:#\d+)?|%\d+|[<>=!]=|\S/gu,
  DEEPEST = 50;

const COMPARED: Record<string, (a: number, b: number) => boolean> = {
  "<": (a, b) => a < b,
  "<=": (a, b) => a <= b,
  ">": (a, b) => a > b,
  ">=": (a, b) => a >= b,
  "==": (a, b) => a === b,
  "!=": (a, b) => a !== b,
};

/** One number of a tensor: where to begin, and each further element. A NaN stays one. */
const FIGURES = {
  min: [Infinity, Math.min],
  max: [-Infinity, Math.max],
  absmax: [0, (a, b) => Math.max(a, Math.abs(b))],
  mean: [0, (a, b) => a + b],
  l2: [0, (a, b) => a + b * b],
  nonfinite: [0, (a, b) => a + (Number.isFinite(b) ? 0 : 1)],
} satisfies Record<string, [start: number, next: (sum: number, value: number) => number]>;
type Figure = keyof typeof FIGURES;

export function figureOf(figure: Figure, data: Numbers): number {
  const [start, next] = FIGURES[figure];
  let sum = start;
  for (const value of data) sum = next(sum, value);
  return figure === "mean" ? sum / data.length : figure === "l2" ? Math.sqrt(sum) : sum;
}

export const natural = (text: string): number => (/^\d+$/.test(text) ? Number(text) : NaN);

/** A parser of one condition, from left to right. */
class Parser {
  readonly tensors: string[] = [];
  readonly #words: string[];
  readonly #hasLoss: boolean;
  #at = 0;
  #depth = 0;

  constructor(text: string, hasLoss: boolean) {
    this.#words = text.match(WORDS) ?? [];
    this.#hasLoss = hasLoss;
  }

  whole(): Term<boolean> {
    const holds = this.#either();
    if (this.#word) this.#fail("and, or, or the end");
    return of => {
      try {
        return holds(of);
      } catch (error) {
        if (error === NO_VALUE) return false;
        throw error;
      }
    };
  }

  get #word(): string {
    return this.#words[this.#at] ?? "";
  }

  #next(): string {
    return this.#words[this.#at++] ?? "";
  }

  #take(word: string): boolean {
    const found = this.#word === word;
    if (found) this.#at++;
    return found;
  }

  #need(word: string): void {
    if (!this.#take(word)) this.#fail(word);
  }

  #oneOf<T>(table: Record<string, T>, more = ""): T {
    if (!Object.hasOwn(table, this.#word)) this.#fail(`one of ${Object.keys(table).join(", ")}${more}`);
    return table[this.#next()]!;
  }

  #natural(): number {
    if (Number.isNaN(natural(this.#word))) this.#fail("an int ≥ 0");
    return natural(this.#next());
  }

  #fail(wanted: string): never {
    throw new Error(`break: given ${this.#word || "the end"}, wanted ${wanted}`);
  }

  #either(): Term<boolean> {
    const all = [this.#both()];
    while (this.#take("or")) all.push(this.#both());
    return of => all.some(each => each(of));
  }

  #both(): Term<boolean> {
    const all = [this.#one()];
    while (this.#take("and")) all.push(this.#one());
    return of => all.every(each => each(of));
  }

  #one(): Term<boolean> {
    let wanted = true;
    while (this.#take("not")) wanted = !wanted;
    const holds = this.#take("(") ? this.#inside() : this.#comparison();
    return of => holds(of) === wanted;
  }

  #inside(): Term<boolean> {
    if (++this.#depth > DEEPEST) this.#fail("fewer brackets");
    const holds = this.#either();
    this.#depth--;
    this.#need(")");
    return holds;
  }

  #comparison(): Term<boolean> {
    const shape = this.#shape();
    if (shape && this.#word !== "[") return this.#wholeShape(shape);
    const left = shape ? this.#axis(shape) : this.#term(),
      compared = this.#oneOf(COMPARED),
      right = this.#term();
    return of => compared(left(of), right(of));
  }

  #term(): Term<number> {
    if (this.#take("-")) {
      const inner = this.#term();
      return of => -inner(of);
    }
    const word = this.#word;
    if (/^\.?\d/.test(word)) {
      const value = Number(this.#next());
      return () => value;
    }
    if (word === "step" || (word === "loss" && this.#hasLoss)) {
      this.#at++;
      return of => valueOf(of[word]);
    }
    const shape = this.#shape();
    if (shape) return this.#axis(shape);
    this.#oneOf<unknown>(FIGURES, ", shape, loss, step, or a number");
    const tensor = this.#tensor();
    return of => figureOf(word as Figure, tensor(of).data);
  }

  #tensor(): Term<Tensor> {
    this.#need("(");
    const name = this.#next();
    this.#need(")");
    this.tensors.push(name);
    return ({ tensors }) => valueOf(tensors.get(name));
  }

  #shape(): Term<readonly number[]> | null {
    if (!this.#take("shape")) return null;
    const tensor = this.#tensor();
    return of => tensor(of).shape;
  }

  #axis(shape: Term<readonly number[]>): Term<number> {
    this.#need("[");
    const sign = this.#take("-") ? -1 : 1,
      place = this.#natural();
    this.#need("]");
    return of => shape(of).at(sign * place) ?? NaN;
  }

  #wholeShape(shape: Term<readonly number[]>): Term<boolean> {
    const same = this.#word === "==",
      wanted: number[] = [];
    if (!this.#take("==") && !this.#take("!=")) this.#fail("[AXIS], == or !=");
    this.#need("[");
    while (!this.#take("]")) {
      if (wanted.length > 0) this.#need(",");
      wanted.push(this.#take("*") ? -1 : this.#natural());
    }
    return of => {
      const found = shape(of);
      return (found.length === wanted.length && wanted.every((n, i) => n < 0 || n === found[i])) === same;
    };
  }
}

/** Parse a condition; raise at the place of a fault. */
export function parseTest(text: string, hasLoss: boolean): Condition {
  const parser = new Parser(text, hasLoss);
  return { holds: parser.whole(), tensors: parser.tensors };
}
