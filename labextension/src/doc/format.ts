// Numbers as people read them: three significant digits, units in words, a true minus.

const MINUS = "\u2212";

/** Write three significant digits without trailing zeros: 0.148, 12.3, 1,914; thousands and more with a unit. */
export function sig(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : `${MINUS}∞`;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return exponent(value);
  if (size >= 100) return whole(value);
  return String(Number(value.toPrecision(3))).replace("-", MINUS);
}

/** Write a number as 3.1e−5, because plain `e`, unlike ·10⁻⁵, stays in one font. */
const exponent = (value: number): string =>
  value
    .toExponential(2)
    .replace(/\.?0+e/, "e")
    .replace("e+", "e")
    .replaceAll("-", MINUS);

/** Write a whole number: 1914 -> "1,914". */
export const whole = (value: number): string =>
  // not toLocaleString: it costs 60 µs a call
  String(Math.round(value))
    .replace(/\B(?=(\d{3})+$)/g, ",")
    .replace("-", MINUS);

/** Write a number for a table: .08, never 0.080000. */
export const tight = (value: number): string => sig(value).replace(/^(\u2212?)0\./, "$1.");

/** Write a number for a column: 1.05, .08, and <.01 where more digits would not matter. */
export const cell = (value: number): string =>
  value > 0 && value < 0.005 ? "<.01" : value < 1 ? tight(Math.round(value * 100) / 100) : tight(value);

const scaled = (value: number, units: string[]): string => {
  let unit = 0;
  while (unit + 1 < units.length && value >= 999.5) {
    value /= 1000;
    unit++;
  }
  return `${unit === 0 ? whole(value) : sig(value)} ${units[unit]}`;
};

/** Write bytes in powers of ten: 401408 -> "401 KB". */
export const bytes = (value: number): string => scaled(value, ["B", "KB", "MB", "GB", "TB"]);

export const flops = (value: number): string => scaled(value, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"]);

/** Write seconds with the unit that keeps the number between 1 and 1000. */
export function seconds(value: number): string {
  if (!(value >= 0)) return "–";
  if (value >= 1) return `${sig(value)} s`;
  return value >= 1e-3 ? `${sig(value * 1e3)} ms` : `${sig(value * 1e6)} µs`;
}

/** Write the change from before to after in percent, with its sign; "0 %" where nothing changed. */
export function change(before: number, after: number): string {
  if (!(before > 0) || !Number.isFinite(after)) return "–";
  const percent = Math.round((100 * (after - before)) / before);
  return `${percent > 0 ? "+" : percent < 0 ? MINUS : ""}${Math.abs(percent)} %`;
}

/** Say in words which costs a report's `cost_model` means. */
export function priced(model: string): string {
  if (model === "roofline") return "modelled for a nominal GPU";
  const [, machine] = /^roofline\((.*): [^:]*\)$/.exec(model) ?? [];
  return machine ? `modelled for ${machine}` : model ? `as ${model} counts` : "modelled";
}

export const plural = (n: number, word: string): string =>
  `${whole(n)} ${word}${n === 1 ? "" : /(s|sh|ch|x)$/.test(word) ? "es" : "s"}`;

/** Write a type for a screen reader: "f32[32, 128]" -> "f32 32 by 128". */
export const spokenType = (text: string): string =>
  text.replace(/\[(.*)\]/, (_, inside: string) => ` ${inside.replaceAll(", ", " by ")}`);

/** Add a value to those of a key. */
export function put<K, V>(all: Map<K, V[]>, key: K, value: V): void {
  const known = all.get(key);
  if (known) known.push(value);
  else all.set(key, [value]);
}
