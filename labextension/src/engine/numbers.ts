// A tensor in numbers, as the microscope shows it: the same figures as gdlab/base/statistics.py.

import type { Looked } from "../live/messages.ts";
import { sig } from "../doc/format.ts";

const BINS = 32,
  SIDE = 64,
  WINDOW = 16;

type Summary = Pick<
  Looked,
  "n" | "min" | "max" | "mean" | "std" | "l2" | "nan" | "inf" | "zero" | "histogram" | "thumbnail"
>;
export type Numbers = Float32Array | Uint32Array;
/** The numbers of a tensor's bytes; null where a page does not know the dtype. */
export function numbersOf(dtype: string, bytes: ArrayBuffer, count: number): Numbers | null {
  if (dtype === "f32") return new Float32Array(bytes, 0, count);
  if (dtype === "u32") return new Uint32Array(bytes, 0, count);
  const halves = new Uint16Array(bytes, 0, Math.min(count, bytes.byteLength / 2));
  if (dtype === "bf16") return new Float32Array(Uint32Array.from(halves, bits => bits << 16).buffer);
  return dtype === "f16" ? Float32Array.from(halves, half) : null;
}

/** A number of 16 bits: sign, 5 bits of exponent, 10 of fraction. */
function half(bits: number): number {
  const exponent = (bits >> 10) & 31,
    fraction = bits & 1023,
    finite = ((exponent ? 1024 : 0) + fraction) * 2 ** (Math.max(exponent, 1) - 25),
    size = exponent < 31 ? finite : fraction ? NaN : Infinity;
  return bits >> 15 ? -size : size;
}

interface Plane {
  rows: number;
  cols: number;
  data: Numbers;
}

/** A number in a form that JSON has. */
export const word = (value: number): number | string =>
  Number.isFinite(value) ? value : Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";

/** The matrix to show: one row of a vector, the last two axes of a slice of a larger tensor. */
export function planeOf(data: Numbers, shape: number[], slice: number[]): Plane {
  const [rows, cols] = shape.length < 2 ? [1, data.length] : [shape.at(-2)!, shape.at(-1)!];
  const leading = shape.slice(0, -2);
  let at = 0;
  leading.forEach((size, i) => (at = at * size + Math.min(slice[i] ?? 0, size - 1)));
  return { rows, cols, data: data.subarray(at * rows * cols, (at + 1) * rows * cols) };
}

export function summarize(data: Numbers, shape: number[], slice: number[]): Summary {
  let low = Infinity,
    high = -Infinity,
    sum = 0,
    squares = 0,
    count = 0,
    nan = 0,
    zero = 0;
  for (const value of data) {
    if (Number.isNaN(value)) nan++;
    if (value === 0) zero++;
    if (!Number.isFinite(value)) continue;
    count++;
    sum += value;
    squares += value * value;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (count === 0) low = high = NaN;
  const mean = count ? sum / count : NaN,
    counts = new Array<number>(BINS).fill(0);
  let deviation = 0;
  for (const value of data) {
    if (!Number.isFinite(value)) continue;
    deviation += (value - mean) ** 2;
    const place = low === high ? 0 : Math.floor(((value / 2 - low / 2) / (high / 2 - low / 2)) * BINS);
    counts[Math.min(place, BINS - 1)]!++;
  }
  return {
    n: data.length,
    min: word(low),
    max: word(high),
    mean: word(mean),
    std: word(count ? Math.sqrt(deviation / count) : NaN),
    l2: word(count ? Math.sqrt(squares) : NaN),
    nan,
    inf: data.length - count - nan,
    zero,
    histogram: { low: word(low), high: word(high), counts },
    thumbnail: thumbnail(planeOf(data, shape, slice)),
  };
}

function thumbnail(plane: Plane): Summary["thumbnail"] {
  const rows = Math.min(plane.rows, SIDE),
    cols = Math.min(plane.cols, SIDE),
    means = new Float64Array(rows * cols),
    start = (i: number, of: number, parts: number) => Math.floor((i * of) / parts);
  for (let i = 0; i < rows; i++)
    for (let j = 0; j < cols; j++) {
      let sum = 0,
        n = 0;
      for (let r = start(i, plane.rows, rows); r < start(i + 1, plane.rows, rows); r++)
        for (let c = start(j, plane.cols, cols); c < start(j + 1, plane.cols, cols); c++, n++)
          sum += plane.data[r * plane.cols + c]!;
      means[i * cols + j] = sum / n;
    }
  const finite = means.filter(Number.isFinite),
    low = finite.length ? finite.reduce((a, b) => Math.min(a, b)) : 0,
    high = finite.length ? finite.reduce((a, b) => Math.max(a, b)) : 0;
  const scaled = (value: number) => (high > low ? Math.round(((value - low) / (high - low)) * 254) : 0);
  const cells = Array.from(means, value => (Number.isFinite(value) ? scaled(value) : 255));
  return { rows, cols, low, high, data: btoa(String.fromCharCode(...cells)) };
}

/** Exact values from (row, col) on, in the fewest digits that give them back. */
export function windowOf(data: Numbers, shape: number[], slice: number[], row: number, col: number): Looked["window"] {
  const plane = planeOf(data, shape, slice),
    rows: string[][] = [];
  for (let r = row; r < Math.min(row + WINDOW, plane.rows); r++) {
    const start = r * plane.cols;
    rows.push(Array.from(plane.data.subarray(start + col, start + Math.min(col + WINDOW, plane.cols)), exact));
  }
  return { row, col, rows };
}

/** The shortest text that a float32 is read back from. */
function exact(value: number): string {
  if (!Number.isFinite(value)) return String(word(value));
  for (let digits = 1; digits < 9; digits++) {
    const text = value.toPrecision(digits);
    if (Math.fround(Number(text)) === value) return String(Number(text));
  }
  return String(Number(value.toPrecision(9)));
}

/** A tensor in one line: `−1.2 … 3, mean 0.1`. */
export function inWords(data: Numbers): string {
  const { n, nan, inf, min, max, mean } = summarize(data, [data.length], []);
  if (n === nan + inf) return `${n} values, none finite`;
  const bad = nan + inf > 0 ? `, ${nan + inf} not finite` : "";
  return n === 1 ? sig(Number(mean)) : `${sig(Number(min))} … ${sig(Number(max))}, mean ${sig(Number(mean))}${bad}`;
}
