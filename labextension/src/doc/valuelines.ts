// The numbers of a node as the lines that stand on its box: the same as gdlab/view/layout/value_lines.py.

import { ELEMENTS_CUT, WORDS_CUT } from "./metrics.ts";

const SPACE = "\u00a0"; // SVG draws several plain spaces as one

const widest = (cells: readonly string[]): number => Math.max(0, ...cells.map(cell => [...cell].length));

const padded = (cell: string, width: number): string => SPACE.repeat(Math.max(0, width - [...cell].length)) + cell;

/** Join pieces by `, `, as many on each line as fit. */
function wrapped(pieces: readonly string[], most: number): string[] {
  const lines: string[] = [];
  for (const piece of pieces) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + 2 + piece.length <= most) lines[lines.length - 1] = `${last}, ${piece}`;
    else lines.push(piece);
  }
  return lines.map((line, i) => (i < lines.length - 1 ? `${line},` : line));
}

/** A vector on one line, or on several with as many elements each, below each other. */
function vector(cells: readonly string[], sign: string): string[] {
  const plain = `[${cells.join(", ")}]${sign}`;
  if (plain.length <= ELEMENTS_CUT) return [plain];
  const width = widest(cells),
    each = Math.ceil(cells.length / Math.max(2, Math.ceil((cells.length * (width + 2)) / ELEMENTS_CUT)));
  const rows = Array.from({ length: Math.ceil(cells.length / each) }, (_, i) => cells.slice(i * each, (i + 1) * each));
  return rows.map((row, i) => {
    const line = row.map(cell => padded(cell, width)).join(", ");
    return `${i ? SPACE : "["}${line}${i < rows.length - 1 ? "," : `]${sign}`}`;
  });
}

/** The rows of a matrix below each other, its columns too, in tall brackets. */
function matrix(rows: readonly (readonly string[])[]): string[] {
  const widths = rows[0]!.map((_, j) => widest(rows.map(row => row[j] ?? "")));
  return rows.map((row, i) => {
    const [left, right] = i === 0 ? "⎡⎤" : i === rows.length - 1 ? "⎣⎦" : "⎢⎥";
    return `${left}${row.map((cell, j) => padded(cell, widths[j]!)).join(SPACE + SPACE)}${right}`;
  });
}

/** Return the lines of a value in a document: one number, a vector, a matrix (of more axes its last two, one matrix
 * below the other), else range and mean. */
export function valueLines(text: string): string[] {
  if (!text.startsWith("[")) return wrapped(text.split(", "), WORDS_CUT);
  const depth = /^\[+/.exec(text)![0].length,
    rows = (text.match(/\[[^[\]]*\]/g) ?? []).map(row => row.slice(1, -1).split(", "));
  if (rows.length < 2) return vector(rows[0] ?? [], "");
  if (rows.every(row => row.length === 1)) return vector(rows.flat(), depth === 2 ? "ᵀ" : "");
  if (depth === 2) return matrix(rows);
  const blocks = text.split("]], [[").length;
  const tall = rows.length / blocks;
  return Array.from({ length: blocks }, (_, i) => {
    const block = rows.slice(i * tall, (i + 1) * tall);
    return block.length > 1 ? matrix(block) : vector(block[0]!, "");
  }).flat();
}

/** The lines of a node's gradient, below those of its value. */
export const gradientLines = (text: string): string[] =>
  valueLines(text).map((line, i) => `${i ? SPACE : "∂"}${SPACE}${line}`);
