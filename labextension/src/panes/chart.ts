// The loss chart: ticks, a robust range, smoothing, the drawing and its read-out. All but `drawChart` is pure.

import { sig, whole } from "../doc/format.ts";
import { s, svgPath, type Child } from "../draw/dom.ts";
import { extremes, type Point } from "../live/live.ts";

/** Round numbers from low to high, at most about `most` of them: 1, 2, 2.5 or 5 times a power of ten apart. */
export function ticks(low: number, high: number, most = 5): number[] {
  if (!(high > low) || !Number.isFinite(high - low)) return [low];
  const rough = (high - low) / Math.max(1, most),
    power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(each => each * power).find(each => each >= rough * 0.999) ?? 10 * power;
  const first = Math.ceil(low / step - 1e-9),
    last = Math.floor(high / step + 1e-9);
  // Multiples of the step, rounded where binary fractions would show: 0.30000000000000004.
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

const quantile = (sorted: readonly number[], q: number): number =>
  sorted[Math.min(sorted.length - 1, Math.max(0, Math.round(q * (sorted.length - 1))))]!;

/** A range that one spike does not flatten: the middle 98 %, values no farther from it than its own width, the last
 * value, and a little air; never empty. */
export function robustRange(values: readonly number[], log = false): [low: number, high: number] {
  const finite = values.filter(Number.isFinite);
  if (finite.length === 0) return [0, 1];
  const sorted = [...finite].sort((a, b) => a - b),
    last = finite.at(-1)!;
  let low = Math.min(quantile(sorted, finite.length > 50 ? 0.01 : 0), last),
    high = Math.max(quantile(sorted, finite.length > 50 ? 0.99 : 1), last);
  const span = high - low;
  if (high + span >= sorted.at(-1)!) high = sorted.at(-1)!;
  if (low - span <= sorted[0]!) low = sorted[0]!;
  // Losses are read against zero while they are near it.
  if (log) return low === high ? [low - 1, high + 1] : [low - 0.04 * (high - low), high + 0.04 * (high - low)];
  if (low > 0 && low < 0.4 * high) low = 0;
  if (low === high) return low === 0 ? [0, 1] : [Math.min(0, 2 * low), Math.max(0, 2 * low)];
  const air = 0.04 * (high - low);
  return [low === 0 ? 0 : low - air, high + air];
}

/** Exponential mean over about `span` values, without the pull of its start. */
function trailing(values: readonly number[], span: number): number[] {
  const keep = 1 - 1 / span;
  let sum = 0,
    weight = 0;
  return values.map(value => {
    sum = keep * sum + value;
    weight = keep * weight + 1;
    return sum / weight;
  });
}

/** Smooth with the mean of the points before, never with later ones. Non-finite points are left out. */
export function smoothed(points: readonly Point[], span = 20): Point[] {
  const finite = points.filter(point => Number.isFinite(point[1])),
    means = trailing(
      finite.map(point => point[1]),
      span,
    );
  return finite.map(([step], i) => [step, means[i]!]);
}

/** The end of the axis of steps: the next 1, 2 or 5 times a power of ten above the data, at most the end of the run. */
export function axisEnd(last: number, wanted: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, last)));
  const round = [1, 2, 5, 10].map(each => each * power).find(each => each >= last)!;
  return Math.max(1, last, last <= wanted ? Math.min(wanted, Math.max(10, round)) : last);
}

/** At most two points per column of pixels, lowest and highest, which look the same as all points. */
export function decimated(points: readonly Point[], columns: number): readonly Point[] {
  if (points.length <= 2 * columns) return points;
  const size = points.length / columns,
    kept: Point[] = [];
  for (let column = 0; column < columns; column++) {
    kept.push(...extremes(points.slice(Math.floor(column * size), Math.floor((column + 1) * size))));
  }
  if (kept.at(-1) !== points.at(-1)) kept.push(points.at(-1)!);
  return kept;
}

const RIGHT = 18,
  TOP = 12,
  BOTTOM = 24;

/** A run that a reset ended: a thin line, told apart by its dashes. */
export interface Earlier {
  label: string;
  points: readonly Point[];
}
const DASHES = ["none", "5 3", "1.5 2.5", "9 3"];

export interface Size {
  width: number;
  height: number;
  log: boolean;
}
type Label = (value: number) => string;

/** The places of steps and losses in the drawing. */
export interface Scales {
  xs: number[];
  ys: number[];
  left: number;
  low: number;
  high: number;
  x(step: number): number;
  y(loss: number): number;
}

/** The scales of a plot: losses in a range, steps from 0 to `most`, `left` pixels for the labels of `ys`. */
export function scalesIn(range: readonly number[], most: number, size: Size, left: number, ys: number[]): Scales {
  const { width, height } = size,
    [low, high] = range as [number, number],
    inside = (loss: number) => Math.min(high, Math.max(low, loss));
  return {
    xs: ticks(0, most, Math.max(2, Math.floor(width / 90))),
    ys,
    left,
    low,
    high,
    x: step => left + ((width - left - RIGHT) * step) / most,
    y: loss => height - BOTTOM - ((height - TOP - BOTTOM) * (inside(loss) - low)) / (high - low || 1),
  };
}

/** A line through points, as a path. */
export const lineOf = (points: readonly Point[], { x, y }: Scales): string =>
  points.map(([step, loss], i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(loss).toFixed(1)}`).join("");

/** An empty plot, whose content is told by `label`. */
export const plot = (label: string, { width, height }: Size, ...content: Child[]): SVGSVGElement =>
  s(
    "svg",
    { class: "gd-chart", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    ...content,
  );

/** Move the dot of a plot's read-out. */
export function moveDot(dot: Element, x: number, y: number): void {
  dot.setAttribute("cx", String(x));
  dot.setAttribute("cy", String(y));
}

function scalesOf(runs: readonly (readonly Point[])[], wanted: number, size: Size, label: Label): Scales {
  const { height, log } = size;
  const losses = runs.flatMap(run => run.map(point => point[1]));
  const range = robustRange(losses, log);
  const most = axisEnd(Math.max(0, ...runs.map(run => run.at(-1)?.[0] ?? 0)), wanted);
  const ys = ticks(...range, Math.max(2, Math.floor(height / 44)));
  const left = 14 + 6.5 * ys.reduce((longest, tick) => Math.max(longest, label(tick).length), 4);
  return scalesIn(range, most, size, left, ys);
}

/** The step at which a run began, and its words. */
export interface Began {
  step: number;
  label: string;
}
/** A chart, and the words for the place under a pointer. */
export interface Chart {
  svg: SVGSVGElement;
  read(x: number): void;
}

const OUTSIDE = 50; // points outside the range that are marked

const axisText = (x: number, y: number, anchor: string, text: Child): SVGElement =>
  s("text", { class: "gd-axis", x, y, "text-anchor": anchor }, text);

export function drawAxes({ xs, ys, left, x, y }: Scales, { width, height }: Size, label: Label): Child[] {
  return [
    ...ys.map(tick => [
      s("line", { class: "gd-gridline", x1: left, x2: width - RIGHT, y1: y(tick), y2: y(tick) }),
      axisText(left - 8, y(tick) + 4, "end", label(tick)),
    ]),
    ...xs.map(tick => {
      // The last label keeps within the picture, however many digits it has.
      const at = Math.min(x(tick), width - 3.5 * whole(tick).length);
      return axisText(at, height - 6, "middle", Number.isInteger(tick) ? whole(tick) : "");
    }),
    axisText(left - 12, height - 6, "end", "step"),
    ys.every(tick => y(tick) > TOP + 14) && axisText(left - 8, TOP, "end", "loss"),
  ];
}

/** Draw marks at the border for points that the range leaves out, and a line with a word where a run began. */
export function drawMarks(finite: readonly Point[], began: readonly Began[], scales: Scales, size: Size): Child[] {
  const { x, y, low, high } = scales,
    { width, height } = size,
    fits = (step: number, label: string) => x(step) + 4 + 6.5 * label.length <= width;
  const outside = finite.filter(([, loss]) => loss > high || loss < low).slice(-OUTSIDE);
  return [
    outside.map(([step, loss]) => {
      const [at, way] = [y(loss), loss > high ? 1 : -1];
      return svgPath("gd-outside", `M${x(step) - 4} ${at + 6 * way}h8l-4 ${-6 * way}z`);
    }),
    began.map(({ step, label }) => [
      svgPath("gd-began", `M${x(step)} ${TOP}V${height - BOTTOM}`),
      fits(step, label)
        ? axisText(x(step) + 4, height - BOTTOM - 6, "start", label)
        : axisText(x(step) - 4, height - BOTTOM - 6, "end", label),
    ]),
  ];
}

interface Read {
  el: SVGElement;
  read(x: number): void;
}

/** Step and loss of the point that is nearest to a place; the chart tells them beside a dot. */
function readOut(given: readonly Point[], scales: Scales, { width, log }: Size): Read {
  const dot = s("circle", { class: "gd-readdot", r: 3.5 }),
    words = s("text", { class: "gd-axis gd-readout", y: TOP });
  const el = s("g", { class: "gd-read", visibility: "hidden" }, dot, words);
  const read = (at: number) => {
    const near = given.reduce<Point | null>(
      (best, point) => (!best || Math.abs(scales.x(point[0]) - at) < Math.abs(scales.x(best[0]) - at) ? point : best),
      null,
    );
    el.setAttribute("visibility", near && at >= scales.left - 8 ? "visible" : "hidden");
    if (!near) return;
    const [step, loss] = near,
      x = scales.x(step),
      right = x > width / 2;
    moveDot(dot, x, Number.isFinite(loss) ? scales.y(log ? Math.log10(loss) : loss) : TOP);
    words.setAttribute("x", String(x + (right ? -8 : 8)));
    words.setAttribute("text-anchor", right ? "end" : "start");
    words.textContent = `step ${whole(step)}: loss ${sig(loss)}`;
  };
  return { el, read };
}

/** Draw the loss over the steps of a run, and thinner that of `runs` before it. */
export function drawChart(
  given: readonly Point[],
  wanted: number,
  width: number,
  height: number,
  log = false,
  runs: readonly Earlier[] = [],
  began: readonly Began[] = [],
): Chart {
  const size = { width, height, log };
  const hasLoss = (point: Point) => Number.isFinite(point[1]);
  const scaled = (points: readonly Point[]) =>
    log ? points.map(([step, loss]): Point => [step, loss > 0 ? Math.log10(loss) : NaN]) : points;
  const label = (value: number) => sig(log ? 10 ** value : value);
  const points = scaled(given);
  const earlier = runs.map(run => scaled(run.points).filter(hasLoss));
  const scales = scalesOf([points, ...earlier].reverse(), wanted, size, label);
  const { x, y, low, high } = scales;
  // A spike that the range leaves out would pull the mean for the rest of the run.
  const inside = points.filter(([, loss]) => loss >= low && loss <= high);
  const smooth = smoothed(inside, Math.max(1, Math.min(20, points.length / 30)));
  const path = (name: string, curve: readonly Point[], dashes: string | null = null) => {
    const few = decimated(curve, Math.max(50, Math.floor(width / 2)));
    return svgPath(name, lineOf(few, scales), { "stroke-dasharray": dashes });
  };
  const finite = points.filter(hasLoss);
  const [first, last, head] = [finite[0], finite.at(-1), smooth.at(-1)];
  const broken = given.filter(point => !hasLoss(point)).slice(0, 50);
  const name = last
    ? `loss ${label(last[1])} at step ${last[0]}, from ${label(first![1])} at step ${first![0]}`
    : "loss: no points yet";
  const { el, read } = readOut(given, scales, size);
  const svg = plot(
    name,
    size,
    drawAxes(scales, size, label),
    earlier.map((curve, i) => {
      const dashes = DASHES[i % 4]!;
      const below = TOP + 26 + 14 * i;
      const d = `M${width - RIGHT - 26} ${below - 4}h26`;
      return [
        path("gd-earlier", curve, dashes),
        svgPath("gd-earlier", d, { "stroke-dasharray": dashes }),
        axisText(width - RIGHT - 32, below, "end", runs[i]!.label),
      ];
    }),
    path("gd-raw", finite),
    path("gd-smooth", smooth),
    broken.map(([step]) => svgPath("gd-broken", `M${x(step)} ${TOP}V${height - BOTTOM}`)),
    drawMarks(finite, began, scales, size),
    head && s("circle", { class: "gd-headdot", cx: x(head[0]), cy: y(head[1]), r: 4 }),
    el,
  );
  return { svg, read };
}
