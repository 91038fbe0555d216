// The picture of a kernel beside its WGSL: the result in tiles of workgroups, one tile lit, the operands that it reads;
// a part of the picture and its lines light up together.

import type { Covers, KernelRecord } from "../doc/records.ts";
import { plural, whole } from "../doc/format.ts";
import { all, div, h, paragraph, pointed, replace, s, setFlag, svgPath, type Child } from "../draw/dom.ts";
import { areaOf, axis, elementsOf, fitted, movedTo, runOf, tilesOf, windowOf } from "../layout/kernel_tiles.ts";
import type { Area, Slot, Tiles } from "../layout/kernel_tiles.ts";

const WIDTH = 340,
  MAIN = 172,
  SIDE = 60,
  GAP = 22,
  TEXT = 15;

type Read = NonNullable<Covers["reads"]>[number];
type Box = readonly [x: number, y: number, width: number, height: number];

/** Say what the picture shows, for those who do not see it: the first words of its text twin. */
export function coveredText(covers: Covers): string {
  const tiles = tilesOf(covers),
    [batch, rows, columns] = covers.shape;
  const stack = batch > 1 ? `${whole(batch)} of ` : "";
  const has = tiles.run > 0 ? `a run of ${tiles.run}` : `${whole(tiles.high)} × ${whole(tiles.wide)}`;
  const share = (covers.share ?? 1) > 1 ? `, ${covers.share} workgroups share one` : "";
  const unit = covers.over === "pieces" ? "pieces" : `${stack}${whole(rows)} × ${whole(columns)}`;
  return `${unit}: ${plural(tiles.groups, "workgroup")}, ${has} each${share}`;
}

const OVER = { result: "result", input: "folded", product: "product", parameters: "parameters", pieces: "pieces" };

/** An element of the picture that stands for parts of the work. */
const part = (name: string, ...children: Child[]): SVGGElement =>
  s("g", { class: "gd-kpart", "data-part": name }, ...children);

const rect = (name: string, [x, y, width, height]: Box): SVGRectElement =>
  s("rect", { class: name, x, y, width: Math.max(1, width), height: Math.max(1, height) });

const label = (x: number, y: number, text: string, anchor = "start", name = "gd-klabel"): SVGTextElement =>
  s("text", { class: name, x, y, "text-anchor": anchor }, text);

/** A name that fits above a box of this width. */
const cut = (text: string, width: number): string => {
  const most = Math.max(4, Math.floor(width / 6));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
};

/** The place of an area of a rectangle in its box, to scale, but never thinner than a line. */
function inside([x, y, width, height]: Box, rows: number, columns: number, area: Area): Box {
  const across = width / Math.max(1, columns),
    down = height / Math.max(1, rows);
  const wide = Math.min(width, Math.max(2.5, area.columns * across)),
    high = Math.min(height, Math.max(2.5, area.rows * down));
  return [x + Math.min(area.column * across, width - wide), y + Math.min(area.row * down, height - high), wide, high];
}

interface DrawnTiles {
  lines: Child[];
  /** The place at which a tile is drawn; null if it is left out. */
  at(index: number): Box | null;
  /** The tile under a point. */
  pick(x: number, y: number): number | null;
}

/** The lines between tiles, an ellipsis where some are left out, and the place of each tile. */
function drawnTiles(tiles: Tiles, [x, y, width, height]: Box): DrawnTiles {
  const across = axis(tiles.columns, tiles.wide, width, 12),
    down = axis(tiles.rows, tiles.high, height, 10);
  const find = (slots: Slot[], index: number) => slots.find(each => each.index === index);
  const lines = [
    ...across.slice(1).map(each => svgPath("gd-ktile", `M${x + each.at} ${y}v${height}`)),
    ...down.slice(1).map(each => svgPath("gd-ktile", `M${x} ${y + each.at}h${width}`)),
    ...across.filter(each => each.index === null).map(each => dots(x + each.at, y, each.size, height, "⋯")),
    ...down.filter(each => each.index === null).map(each => dots(x, y + each.at, width, each.size, "⋮")),
  ];
  return {
    lines,
    at(index) {
      const column = find(across, index % tiles.across),
        row = find(down, Math.floor(index / tiles.across) % tiles.down);
      return column && row ? [x + column.at, y + row.at, column.size, row.size] : null;
    },
    pick(px, py) {
      const inSlot = (slots: Slot[], at: number) =>
        slots.find(each => at >= each.at && at < each.at + each.size)?.index ?? null;
      const column = inSlot(across, px - x),
        row = inSlot(down, py - y);
      return column === null || row === null ? null : row * tiles.across + column;
    },
  };
}

const dots = (x: number, y: number, width: number, height: number, sign: string): SVGGElement =>
  s("g", null, rect("gd-kgap", [x, y, width, height]), label(x + width / 2, y + height / 2 + 4, sign, "middle"));

/** Steps of a loop along a box: the first one is lit, an ellipsis stands for those left out. */
function slices(box: Box, length: number, step: number, upright: boolean, lit: number): Child[] {
  const [x, y, width, height] = box;
  const slots = axis(length, step, upright ? height : width, 6);
  return slots.map(({ index, at, size }) => {
    const one: Box = upright ? [x, y + at, width, size] : [x + at, y, size, height];
    if (index === null) return dots(...one, upright ? "⋮" : "⋯");
    return rect(index === lit ? "gd-kstep gd-klit" : "gd-kstep", one);
  });
}

export interface KernelPicture {
  el: HTMLElement;
  /** Light up these parts of the work, in the picture and in its list. */
  light(parts: readonly string[]): void;
}

const PARTS: Record<string, string> = {
  where: "finds its place",
  loop: "loops",
  work: "computes",
  meet: "exchanges",
  store: "writes",
};

/** The words of a part. */
function partText(name: string, operand: (k: number) => string): string {
  return PARTS[name] ?? `reads ${operand(Number(name.slice(5)))}`;
}

const ORDER = ["where", "loop", "read", "work", "meet", "store"];
const rank = (name: string): number => ORDER.indexOf(name.startsWith("read") ? "read" : name);

/** The drawing of workgroup `at` of a kernel: its part of the result, and its operands. */
class Drawing {
  readonly svg: SVGSVGElement;
  readonly #covers: Covers;
  readonly #tiles: Tiles;
  readonly #operand: (k: number) => string;
  readonly #has: (part: string) => boolean;
  #at: number;
  #height = 0;
  #pick: (x: number, y: number) => number | null = () => null;

  constructor(covers: Covers, operand: (k: number) => string, has: (part: string) => boolean) {
    this.#covers = covers;
    this.#operand = operand;
    this.#has = has;
    this.#tiles = tilesOf(covers);
    const { across, down, run, groups } = this.#tiles;
    // A tile inside the rectangle shows more than one in its corner.
    this.#at = run > 0 ? Math.min(1, groups - 1) : (down > 1 ? across : 0) + (across > 1 ? 1 : 0);
    this.svg = s("svg", { class: "gd-kernelpicture", role: "img", width: WIDTH });
    this.svg.addEventListener("pointermove", event => this.#follow(event));
    this.#draw();
  }

  /** Light up the tile under the pointer. */
  #follow(event: PointerEvent): void {
    const frame = this.svg.getBoundingClientRect(),
      scale = WIDTH / Math.max(1, frame.width);
    const found = this.#pick((event.clientX - frame.left) * scale, (event.clientY - frame.top) * scale);
    if (found === null || found === this.#at || found >= this.#tiles.groups) return;
    this.#at = found;
    const lit = all(this.svg, "[data-on]").map(each => each.getAttribute("data-part")!);
    this.#draw();
    lightParts(this.svg, lit);
  }

  #draw(): void {
    const product = this.#covers.loop?.[0] === "k";
    const drawn = product ? this.#product() : this.#plain();
    this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${this.#height}`);
    this.svg.setAttribute("height", String(this.#height));
    this.svg.ariaLabel = coveredText(this.#covers);
    replace(this.svg, drawn);
  }

  /** The rectangle with its tiles in this box; its numbers above and below. */
  #main(box: Box): Child[] {
    const tiles = this.#tiles,
      [x, y, width, height] = box;
    const stack = Math.min(2, tiles.batch - 1);
    const sheets = Array.from({ length: stack }, (_, i) => {
      const off = 4 * (stack - i);
      return rect("gd-kbox", [x + off, y - off, width, height]);
    });
    if (tiles.run > 0) return [this.#runs(box)];
    const { lines, at, pick } = drawnTiles(tiles, box);
    this.#pick = pick;
    const lit = at(this.#at),
      each = this.#covers.each;
    const cell = lit && each && this.#each(lit, each);
    return [
      ...sheets,
      rect("gd-kbox", box),
      part("where", rect("gd-khit", box), ...lines),
      lit && part("store", rect("gd-klit", lit)),
      lit && this.#covers.loop?.[0] === "cell" && part("loop", ...this.#turns(lit)),
      cell && part("work", rect("gd-keach", cell)),
    ];
  }

  /** The part that one invocation computes, at the beginning of the lit tile. */
  #each(lit: Box, [high, wide]: readonly [number, number]): Box {
    const { rows, columns } = areaOf(this.#tiles, this.#at);
    const own = { row: 0, column: 0, rows: Math.min(high, rows), columns: Math.min(wide, columns) };
    return inside(lit, rows, columns, own);
  }

  /** The turns of a loop over the lit rows or columns. */
  #turns(lit: Box): Child[] {
    const [, length, step] = this.#covers.loop!;
    return slices(lit, length, step, this.#covers.cell[0] > 1, 0);
  }

  /** Rows of runs that are drawn: as many as show a few runs, or all. */
  #runRows(): number {
    const { rows, run, columns } = this.#tiles;
    return Math.min(rows, Math.max(2, Math.ceil((8 * run) / columns)));
  }

  /** The box of these rows, above an ellipsis where there are more. */
  #runRoom([x, y, width, height]: Box): Box {
    return [x, y, width, this.#runRows() < this.#tiles.rows ? height - TEXT : height];
  }

  /** The boxes, at most three, of run `index`. */
  #runBoxes(room: Box, index: number): Box[] {
    const rows = this.#runRows(),
      { columns } = this.#tiles;
    return runOf(this.#tiles, index)
      .filter(({ row }) => row < rows)
      .map(each => inside(room, rows, columns, { ...each, rows: Math.min(each.rows, rows - each.row) }));
  }

  /** Draw runs that end inside of rows: the first rows, as many as show a few runs. */
  #runs(box: Box): Child {
    const { rows: all, run, columns, groups } = this.#tiles,
      rows = this.#runRows(),
      room = this.#runRoom(box),
      [x, y, width, height] = box;
    const count = Math.min(groups, Math.ceil((rows * columns) / run));
    this.#pick = (px, py) => {
      const row = Math.floor(((py - y) / room[3]) * rows),
        column = Math.floor(((px - x) / width) * columns);
      const outside = row < 0 || column < 0 || row >= rows || column >= columns;
      return outside ? null : Math.floor((row * columns + column) / run);
    };
    const boxes = Array.from({ length: count }, (_, i) =>
      this.#runBoxes(room, i).map(each => rect(i % 2 ? "gd-krun gd-kodd" : "gd-krun", each)),
    );
    const own = runOf(this.#tiles, this.#at)[0]!,
      wide = this.#covers.cell[1] === 1 ? (this.#covers.each?.[1] ?? 0) : 1;
    const first = { ...own, rows: 1, columns: Math.min(wide, own.columns) };
    return [
      rect("gd-kbox", box),
      part("where", rect("gd-khit", room), ...boxes.flat()),
      part("store", ...this.#runBoxes(room, this.#at).map(each => rect("gd-klit", each))),
      wide > 0 && own.row < rows && part("work", rect("gd-keach", inside(room, rows, columns, first))),
      rows < all && dots(x, y + height - TEXT, width, TEXT, "⋮"),
    ];
  }

  /** The box around the lit tile. */
  #litBox(box: Box): Box {
    if (this.#tiles.run === 0) return drawnTiles(this.#tiles, box).at(this.#at) ?? box;
    const all = this.#runBoxes(this.#runRoom(box), this.#at);
    const [left, top] = [Math.min(...all.map(each => each[0])), Math.min(...all.map(each => each[1]))];
    const right = Math.max(...all.map(each => each[0] + each[2])),
      bottom = Math.max(...all.map(each => each[1] + each[3]));
    return all.length > 0 ? [left, top, right - left, bottom - top] : box;
  }

  /** A product: A at the left of the result, B above it, their slices of K. */
  #product(): Child[] {
    const covers = this.#covers,
      reads = covers.reads ?? [],
      [, m, n] = covers.shape,
      [, length, step, split, side] = covers.loop!;
    const [width, height] = fitted(n, m, WIDTH - SIDE - GAP - 16, MAIN);
    const x = SIDE + GAP,
      y = SIDE + GAP + TEXT,
      box: Box = [x, y, width, height];
    const main = this.#main(box),
      lit = this.#litBox(box);
    const own = split > 1 ? Math.floor(this.#at / (this.#tiles.down * this.#tiles.across)) : 0,
      slice = split > 1 ? Math.ceil(length / split) : step * (covers.cell[0] === 16 ? side : 1);
    const read = (k: number, of: Box, upright: boolean): Child => {
      const band: Box = upright ? [lit[0], of[1], lit[2], of[3]] : [of[0], lit[1], of[2], lit[3]];
      return [
        part(`read ${k}`, rect("gd-kbox", of), rect("gd-kband", band)),
        part("loop", ...slices(band, length, slice, upright, own)),
      ];
    };
    const window = reads.find(each => each[1] === "window"),
      a = reads.find(each => each[1] === "a")?.[0] ?? 0,
      b = (window ?? reads.find(each => each[1] === "b"))?.[0] ?? 1;
    const k = whole(length),
      above = window ? `windows of ${this.#operand(b)}` : `B ${this.#operand(b)}`,
      below = y + height + TEXT;
    this.#height = below + (this.#has("meet") ? 36 : 20);
    return [
      read(a, [0, y, SIDE, height], false),
      read(b, [x, TEXT, width, SIDE], true),
      label(0, below - 2, cut(`A ${this.#operand(a)}`, SIDE + 12)),
      label(0, below + TEXT - 4, `${whole(m)} × ${k}`),
      label(x, TEXT - 5, cut(`${above} ${k} × ${whole(n)}`, WIDTH - x)),
      window ? this.#window(b, [0, TEXT, SIDE - 8, SIDE - 8]) : this.#steps(length, slice, split),
      ...main,
      this.#foot(x, below),
      this.#has("meet") && this.#memory(x, below + 8, Math.min(width, 150)),
    ];
  }

  /** The slices of K in words, in the corner between A and B. */
  #steps(length: number, slice: number, split: number): Child {
    const count = Math.ceil(length / slice),
      plain = [`K: ${plural(count, "slice")}`, `of ${Math.min(slice, length)}`],
      parts = [`K: ${split} parts`, `of ${whole(slice)},`, `${this.#covers.loop![2]} a turn`],
      words = split > 1 ? parts : plain;
    return part("loop", ...words.map((text, i) => label(0, TEXT + 24 + 13 * i, text)));
  }

  /** The memory through which invocations of a workgroup exchange values. */
  #memory(x: number, y: number, width: number): Child {
    return part("meet", rect("gd-kmemory", [x, y, Math.max(120, width), 18]), label(x + 7, y + 13, "workgroup memory"));
  }

  /** An image, and the window that the first pixel of the lit tile reads. */
  #window(k: number, [x, y, width, height]: Box): Child {
    const window = this.#covers.window!,
      [H = 1, W = 1] = window,
      image: Box = [x, y + TEXT - 4, ...fitted(W, H, width, height - TEXT)];
    const { run, columns } = this.#tiles,
      own = run > 0 ? runOf(this.#tiles, this.#at)[0]! : areaOf(this.#tiles, this.#at);
    const first = this.#covers.over === "product" ? own.column : own.row * columns + own.column;
    return part(
      `read ${k}`,
      label(x, y + 7, cut(`${H} × ${W}`, 70)),
      rect("gd-kbox", image),
      rect("gd-klit", inside(image, H, W, windowOf(window, first))),
    );
  }

  /** The number of the lit workgroup, and of all. */
  #foot(x: number, y: number): Child {
    const { groups, down, across } = this.#tiles,
      { flip, share = 1 } = this.#covers;
    const row = Math.floor(this.#at / across) % down,
      index = (flip ? (down - 1 - row) * across + (this.#at % across) : this.#at) * share;
    return part("where", label(x, y, `workgroup ${whole(index)} of ${whole(groups)}`, "start", "gd-klabel gd-kstrong"));
  }

  /** Operands in a column at the left, the rectangle at the right; of a fold its results beside it. */
  #plain(): Child[] {
    const covers = this.#covers,
      tiles = this.#tiles;
    const fold = covers.over === "input",
      reads = (covers.reads ?? []).slice(0, 4);
    const x = reads.length > 0 ? SIDE + 24 : 0;
    const strip = fold ? 26 : 0;
    const [batch, high, wide] = covers.shape,
      [width, height] = fitted(wide, tiles.batch > 1 ? high : batch * high, WIDTH - x - 16 - strip, MAIN);
    const top = TEXT + 10;
    const box: Box = [x, top, width, height];
    const main = this.#main(box);
    const lit = tiles.run > 0 ? null : this.#litBox(box);
    let y = TEXT - 4;
    const operands = reads.flatMap(read => {
      const drawn = this.#read(read, y);
      y += drawn.height;
      return drawn.children;
    });
    const upright = covers.cell[0] === 1;
    const results: Box = upright ? [x + width + 12, top, 12, height] : [x, top + height + 12, width, 12];
    const made: Box | null = lit && (upright ? [results[0], lit[1], 12, lit[3]] : [lit[0], results[1], lit[2], 12]);
    const below = top + height + (fold && !upright ? 26 : 0) + TEXT;
    const more = (covers.reads?.length ?? 0) - reads.length;
    this.#height = Math.max(below + (this.#has("meet") ? 36 : 8), y + 8);
    const extents = covers.over === "pieces" ? [wide] : batch > 1 ? [batch, high, wide] : [high, wide];
    return [
      ...operands,
      more > 0 && label(0, y + 4, `and ${more} more`),
      label(x, TEXT - 4, `${OVER[covers.over]} ${extents.map(whole).join(" × ")}`),
      ...main,
      fold && part("store", rect("gd-kbox", results), made && rect("gd-klit", made)),
      this.#foot(x, below),
      this.#has("meet") && this.#memory(x, below + 8, Math.min(width, 150)),
    ];
  }

  /** A small operand, with the part that the lit tile reads. */
  #read([k, place, rows, columns]: Read, y: number): { children: Child[]; height: number } {
    if (place === "window" && this.#covers.window) {
      return { children: [this.#window(k, [0, y, SIDE, 62])], height: 74 };
    }
    const name = this.#operand(k),
      size: [number, number] = rows === 1 ? [columns === 1 ? 8 : SIDE, 8] : [8, 40];
    const box: Box = [0, y + 6, ...(rows === 1 || columns === 1 ? size : fitted(columns, rows, SIDE, 44))];
    const lit = this.#readAt(place, rows, columns).map(area => rect("gd-klit", inside(box, rows, columns, area)));
    const { loop } = this.#covers;
    return {
      children: [
        part(
          `read ${k}`,
          s("title", null, `${name}, ${whole(rows)} × ${whole(columns)}`),
          label(0, y, cut(name, SIDE + 16)),
          rect("gd-kbox", box),
          ...lit,
        ),
        place === "keys" && loop && part("loop", ...slices(box, loop[1], loop[2], true, 0)),
      ],
      height: box[3] + 28,
    };
  }

  /** The areas of an operand that the lit tile reads; none if they depend on data. */
  #readAt(place: string, rows: number, columns: number): Area[] {
    const tiles = this.#tiles,
      own = elementsOf(tiles, this.#covers, this.#at),
      across = this.#covers.shape[2],
      all = { row: 0, column: 0, rows, columns };
    const above = tiles.batch > 1 ? Math.floor(this.#at / (tiles.down * tiles.across)) * tiles.rows : 0;
    switch (place) {
      case "same":
        return columns === across ? own.map(each => ({ ...each, row: each.row + above })) : [];
      case "row":
        return columns === across ? own.map(each => repeated(each, rows)) : [all];
      case "a":
      case "column":
        return own.map(each => ({ ...each, column: 0, columns }));
      case "scalar":
        return [all];
      case "moved":
        return own.flatMap(each => this.#moved(each, columns));
      default:
        return [];
    }
  }

  /** The source of each element of an area; for large areas of the first ones. */
  #moved({ row, column, rows, columns: count }: Area, wide: number): Area[] {
    const rowsOf = Array.from({ length: Math.min(rows, 64) }, (_, i) => (row + i) * this.#covers.shape[2] + column);
    const places = rowsOf.flatMap(at => movedTo(this.#covers.map ?? [0], at, at + Math.min(count, 256) - 1));
    return places.map(at => ({ row: Math.floor(at / wide), column: at % wide, rows: 1, columns: 1 }));
  }
}

/** An area of an operand that repeats after so many rows. */
function repeated(area: Area, rows: number): Area {
  const row = area.row % rows;
  return { ...area, row, rows: Math.min(area.rows, rows - row) };
}

/** Mark every element that stands for one of these parts. */
function lightParts(root: Element, parts: readonly string[]): void {
  const on = (each: Element) => parts.includes(each.getAttribute("data-part")!);
  for (const each of all(root, "[data-part]")) setFlag(each, "data-on", on(each));
}

/** The picture of a kernel, its parts as a list, and the reason of its schedule. `over` gets the parts under the
 * pointer or the focus, none when it leaves; `go` goes to the lines of a part. */
export function kernelPicture(
  { covers, parts, why }: KernelRecord,
  operand: (k: number) => string,
  over: (parts: readonly string[]) => void,
  go: (part: string) => void,
): KernelPicture | null {
  if (!covers) return null;
  const names = Object.keys(parts ?? {}).sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
  const drawing = new Drawing(covers, operand, name => names.includes(name));
  const buttons = names.map(name => {
    const props = { class: "gd-chip", "data-part": name, title: "go to its lines", on: { click: () => go(name) } };
    return h("button", props, partText(name, operand));
  });
  const list = h("div", { class: "gd-kparts", role: "group", "aria-label": "parts of the work" }, ...buttons);
  const el = div("gd-kernelside", drawing.svg, paragraph("gd-kwhy", why), list);
  pointed(el, target => {
    const name = target?.closest("[data-part]")?.getAttribute("data-part");
    over(name ? [name] : []);
  });
  return { el, light: lit => lightParts(el, lit) };
}
