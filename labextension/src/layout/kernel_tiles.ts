// The tile of a rectangle that each workgroup of a kernel computes, and the ones to draw of many. Pure.

import type { Covers } from "../doc/records.ts";

/** A rectangle in rows and columns of elements. */
export interface Area {
  row: number;
  column: number;
  rows: number;
  columns: number;
}

/** The tiles of workgroups over a stack of `batch` rectangles. */
export interface Tiles {
  batch: number;
  rows: number;
  columns: number;
  /** Rows and columns of a whole tile. */
  high: number;
  wide: number;
  /** Tiles below and beside one another in one rectangle. */
  down: number;
  across: number;
  /** The length of runs that begin and end inside of rows, with all counts in cells; 0: tiles are rectangles. */
  run: number;
  groups: number;
}

/** The tiles that cells in row-major order make, `per` to a workgroup: rectangles wherever they end with a row. */
export function tilesOf({ shape, cell, per = 1, share = 1 }: Covers): Tiles {
  const [batch, rows, columns] = shape,
    [h, w] = cell;
  const across = Math.ceil(columns / w),
    down = Math.ceil(rows / h),
    groups = Math.ceil((batch * down * across) / per) * share;
  const made = (high: number, wide: number, more: Partial<Tiles> = {}): Tiles => {
    const all = { batch, rows, columns, high, wide, run: 0, groups, down: 0, across: 0, ...more };
    return { ...all, down: Math.ceil(all.rows / high), across: Math.ceil(all.columns / wide) };
  };
  if (across % per === 0 || batch * down === 1) return made(h, w * per);
  if (per % across === 0) {
    const high = (per / across) * h;
    if (rows % high === 0 || batch === 1) return made(high, columns);
    if (rows % h === 0) return made(high, columns, { batch: 1, rows: batch * rows });
  }
  return made(1, across, { batch: 1, rows: batch * down, columns: across, run: per });
}

/** The elements of workgroup `index` of tiles that are rectangles, in its rectangle of the stack. */
export function areaOf(tiles: Tiles, index: number): Area {
  const at = index % (tiles.down * tiles.across),
    row = Math.floor(at / tiles.across) * tiles.high,
    column = (at % tiles.across) * tiles.wide;
  return {
    row,
    column,
    rows: Math.min(tiles.high, tiles.rows - row),
    columns: Math.min(tiles.wide, tiles.columns - column),
  };
}

/** The parts of rows that run `index` covers: at most three rectangles. */
export function runOf({ run, rows, columns }: Tiles, index: number): Area[] {
  const first = index * run,
    last = Math.min(first + run, rows * columns) - 1;
  const [r0, r1] = [Math.floor(first / columns), Math.floor(last / columns)],
    [c0, c1] = [first % columns, last % columns];
  if (r0 === r1) return [{ row: r0, column: c0, rows: 1, columns: c1 - c0 + 1 }];
  const whole = { row: r0 + 1, column: 0, rows: r1 - r0 - 1, columns };
  return [
    { row: r0, column: c0, rows: 1, columns: columns - c0 },
    ...(whole.rows > 0 ? [whole] : []),
    { row: r1, column: 0, rows: 1, columns: c1 + 1 },
  ];
}

/** The elements of workgroup `index`, of a run and of a tile alike: the places at which an operand of the same shape is
 * read. */
export function elementsOf(tiles: Tiles, { cell: [h, w] }: Covers, index: number): Area[] {
  if (tiles.run === 0) return [areaOf(tiles, index)];
  return runOf(tiles, index).map(({ row, column, rows, columns }) => ({
    row: row * h,
    column: column * w,
    rows: rows * h,
    columns: columns * w,
  }));
}

/** The tiles that are drawn along an axis of `count`, and null where others are left out. */
export function shown(count: number, most: number): (number | null)[] {
  if (count <= most) return Array.from({ length: count }, (_, i) => i);
  return [...Array.from({ length: most - 2 }, (_, i) => i), null, count - 1];
}

/** An axis in pixels: the place of each drawn tile; the last one may be smaller, gaps for left-out ones are narrow. */
export interface Slot {
  index: number | null;
  at: number;
  size: number;
}
export function axis(extent: number, tile: number, length: number, most: number): Slot[] {
  const indexes = shown(Math.ceil(extent / tile), most);
  const weights = indexes.map(i => (i === null ? 0.7 : Math.min(1, Math.max(0.12, (extent - i * tile) / tile))));
  const unit = length / weights.reduce((sum, each) => sum + each, 0);
  let at = 0;
  return indexes.map((index, k) => {
    const slot = { index, at, size: weights[k]! * unit };
    at += slot.size;
    return slot;
  });
}

/** Width and height of a rectangle of so many columns and rows: to scale from 2 : 5 to 4 : 1, inside of the room. */
export function fitted(columns: number, rows: number, width: number, height: number): [number, number] {
  const ratio = Math.min(4, Math.max(0.4, columns / Math.max(1, rows)));
  return ratio * height > width ? [width, width / ratio] : [ratio * height, height];
}

/** The elements of the operand that an affine map gives for elements `first` … `last` of the result; none outside. */
export function movedTo(map: readonly number[], first: number, last: number): number[] {
  const axes: number[][] = [];
  for (let i = 1; i + 4 < map.length; i += 5) axes.unshift(map.slice(i, i + 5));
  const found: number[] = [];
  for (let element = first; element <= last; element++) {
    let left = element,
      place = map[0]!,
      inside = true;
    for (const [n, lo, step, stride, extent] of axes as [number, number, number, number, number][]) {
      const at = (left % n) - lo,
        coordinate = at / step;
      left = Math.floor(left / n);
      inside &&= at >= 0 && Number.isInteger(coordinate) && (extent < 0 || coordinate < extent);
      place += coordinate * stride;
    }
    if (inside) found.push(place);
  }
  return found;
}

/** The window of an image that pixel `index` of the result reads: rows and columns, cut at the border. */
export function windowOf(window: readonly number[], index: number): Area {
  const [H = 1, W = 1, KH = 1, KW = 1, SH = 1, SW = 1, PH = 0, PW = 0, DH = 1, DW = 1, OH = 1, OW = 1] = window;
  const top = (Math.floor(index / OW) % OH) * SH - PH,
    left = (index % OW) * SW - PW;
  const row = Math.max(0, top),
    column = Math.max(0, left);
  return {
    row,
    column,
    rows: Math.min(H, top + (KH - 1) * DH + 1) - row,
    columns: Math.min(W, left + (KW - 1) * DW + 1) - column,
  };
}

/** Return the lines of each part, from the runs of a document: first, last, first, last, … */
export function partsOfLines(parts: Readonly<Record<string, readonly number[]>> | null): Map<number, string[]> {
  const found = new Map<number, string[]>();
  for (const [part, runs] of Object.entries(parts ?? {}))
    for (let i = 0; i + 1 < runs.length; i += 2)
      for (let line = runs[i]!; line <= runs[i + 1]!; line++) found.set(line, [...(found.get(line) ?? []), part]);
  return found;
}
