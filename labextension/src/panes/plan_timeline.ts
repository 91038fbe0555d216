// Draw the plan over time: columns of barrier groups, a bar per dispatch, hazards as arrows, an axis and a legend.

import type { Hazard, Plan } from "../doc/doc.ts";
import { bytes, plural, seconds } from "../doc/format.ts";
import { boxOf, listen, s, svgPath, type Child } from "../draw/dom.ts";
import { cut, familyClass } from "../draw/labels.ts";
import { Merged } from "../draw/merged.ts";
import { moves } from "../draw/motion.ts";
import { timeline, type Timeline } from "../layout/timeline.ts";
import { ticks } from "./chart.ts";
import { groupReason, hazardText, timeText } from "./dispatch_words.ts";
import { bytesMoved } from "./tabcounts.ts";
import { entity } from "./pane.ts";

const SIDE = 16,
  ARCS = 26, // above the bars
  BAR = 30,
  AXIS = 34, // ticks, and the legend below them
  GAP = 3, // between columns
  LETTER = 6.6,
  FADE = 600, // ms of a pulse
  DENSE = 400, // dispatches that are elements of their own
  MOST_ARROWS = 80; // with more, only those of what is lit are drawn

/** Say what the width of a bar means. */
function widthText({ times, machine }: Plan): string {
  if (times) return "measured time";
  return machine ? `time predicted for ${machine.name.replace(/^nominal$/, "a nominal GPU")}` : "bytes moved";
}

export class PlanTimeline {
  readonly svg: SVGSVGElement;
  readonly #plan: Plan;
  readonly #width: number;
  readonly #timeline: Timeline;
  readonly #dense: boolean;
  readonly #merged = new Merged();
  readonly #arrows = s("g", { class: "gd-hazards" });

  constructor(plan: Plan, width: number, alike: boolean) {
    this.#plan = plan;
    this.#width = width;
    this.#timeline = timeline(plan, alike);
    this.#dense = plan.dispatches.length > DENSE;
    const { groups, arrows } = this.#timeline;
    const height = ARCS + BAR + AXIS;
    this.svg = s(
      "svg",
      {
        class: "gd-timeline",
        width,
        height,
        viewBox: `0 0 ${width} ${height}`,
        role: "group",
        "aria-label": `dispatches over time: ${plural(groups.length, "barrier group")}, width = ${widthText(plan)}`,
      },
      groups.map((_, g) => this.#column(g)),
      this.#dense ? this.#shapes() : plan.dispatches.map((_, k) => this.#bar(k)),
      this.#axis(),
      this.#legend(),
      this.#arrows,
    );
    this.#drawArrows(arrows.length <= MOST_ARROWS ? arrows : []);
    if (this.#dense) this.#choose();
  }

  light(lit: ReadonlySet<string>): void {
    this.#merged.light(lit);
    const { arrows } = this.#timeline;
    if (arrows.length <= MOST_ARROWS) return;
    const touched = ({ from, to }: Hazard) => lit.has(`dispatch:${from}`) || lit.has(`dispatch:${to}`);
    this.#drawArrows(arrows.filter(touched).slice(0, MOST_ARROWS));
  }

  /** Let the bar of the dispatch under way light up and fade. */
  pulse(k: number): void {
    if (k < 0 || k >= this.#plan.dispatches.length || !moves()) return;
    const [x, right] = this.#span(k);
    const made = s("rect", { class: "gd-pulse", x, y: ARCS, width: Math.max(2, right - x), height: BAR, rx: 2 });
    this.svg.append(made);
    made.animate([{ opacity: 0.7 }, { opacity: 0 }], { duration: FADE, easing: "ease-out" }).onfinish = () =>
      made.remove();
  }

  #x(at: number): number {
    const { starts } = this.#timeline;
    return SIDE + ((this.#width - 2 * SIDE) * at) / (starts.at(-1) || 1);
  }

  /** Left and right of a dispatch; its column ends a little before the next one begins. */
  #span(k: number): [left: number, right: number] {
    const { starts, groups } = this.#timeline,
      group = groups[this.#plan.dispatches[k]!.group],
      left = this.#x(starts[k]!),
      right = this.#x(starts[k + 1]!),
      room = Math.min(group?.stop === k + 1 ? GAP : 1, (right - left) / 3);
    return [left, Math.max(left + 0.5, right - room)];
  }

  #column(g: number): SVGElement {
    const { starts, groups, unit } = this.#timeline,
      { start, stop } = groups[g]!,
      x = this.#x(starts[start]!),
      right = this.#span(stop - 1)[1];
    const reason = this.#plan.groups[g] && groupReason(this.#plan, this.#plan.groups[g]);
    const why = reason ? `\nbegins because ${reason}` : "",
      told = unit && `, ${this.#text(starts[stop]! - starts[start]!)}`;
    return s(
      "g",
      { class: "gd-column" },
      s("title", null, `group ${g}: ${plural(stop - start, "dispatch")}${told}${why}`),
      s("rect", { x, y: ARCS - 2, width: Math.max(0.5, right - x), height: BAR + 8, rx: 2 }),
    );
  }

  #text(value: number): string {
    return this.#timeline.unit === "B" ? bytes(value) : seconds(value);
  }

  #bar(k: number): SVGElement {
    const { label, family } = this.#plan.dispatches[k]!,
      { starts, unit, basis } = this.#timeline,
      [x, right] = this.#span(k),
      width = right - x,
      name = `${k} ${label}`,
      letters = Math.floor((width - 8) / LETTER),
      text = letters >= 8 ? cut(name, letters) : letters >= String(k).length ? String(k) : "";
    const measured = this.#plan.times ? `\n${timeText(this.#plan.times, k)}` : "",
      told = basis === "predicted" && unit ? `\n${seconds(starts[k + 1]! - starts[k]!)} predicted` : measured;
    return s(
      "g",
      { class: `gd-tick ${familyClass(family)}`, ...entity(`dispatch:${k}`, `dispatch ${k}, ${label}`) },
      s("title", null, `${name}\n${bytes(bytesMoved(this.#plan.dispatches[k]!))} moved${told}`),
      s("rect", { x, y: ARCS, width, height: BAR, rx: 2 }),
      text && s("text", { x: x + 4, y: ARCS + BAR / 2 + 4 }, text),
    );
  }

  /** All bars as a few shapes. */
  #shapes(): SVGElement {
    this.#merged.show(
      this.#plan.dispatches.map(({ family }, k) => {
        const [left, right] = this.#span(k);
        return { left, right, top: ARCS, bottom: ARCS + BAR, entity: `dispatch:${k}`, family: familyClass(family) };
      }),
      new Set(),
    );
    return this.#merged.el;
  }

  /** Make the bar under the pointer the entity of the drawing while the pointer is there. */
  #choose(): void {
    const { svg } = this;
    const at = (event: MouseEvent) => {
      const { left, top } = boxOf(svg),
        found = this.#merged.at(event.clientX - left, event.clientY - top, BAR);
      if (found) svg.dataset.entity = found;
    };
    listen(svg, "pointerdown", at);
    listen(svg, "click", event => (at(event), setTimeout(() => delete svg.dataset.entity)));
  }

  #drawArrows(arrows: readonly Hazard[]): void {
    this.#arrows.replaceChildren(...arrows.map(each => this.#arrow(each)));
  }

  /** Draw an arrow from the end of one bar to the beginning of the other, higher for a longer way. */
  #arrow(each: Hazard): SVGElement {
    const { from, to, interval, hazard } = each,
      x1 = this.#span(from)[1] - 2,
      x2 = this.#span(to)[0] + 3,
      rise = ARCS - Math.min(ARCS + 6, 14 + Math.abs(x2 - x1) / 8);
    return s(
      "g",
      { class: "gd-hazard", "data-hazard": hazard, ...entity(`interval:${interval}`, hazardText(this.#plan, each)) },
      s("title", null, hazardText(this.#plan, each)),
      svgPath("gd-shape gd-arc", `M${x1} ${ARCS - 1}C${x1} ${rise} ${x2} ${rise} ${x2} ${ARCS - 5}`),
      svgPath("gd-arrowhead", `M${x2 - 3} ${ARCS - 6}h6l-3 5z`),
    );
  }

  #axis(): Child {
    const { starts, unit } = this.#timeline,
      y = ARCS + BAR + 18;
    if (!unit) return null;
    const most = Math.max(2, Math.floor(this.#width / 130));
    return ticks(0, starts.at(-1)!, most).map(tick => {
      const x = this.#x(tick),
        anchor = x < 40 ? "start" : x > this.#width - 40 ? "end" : "middle";
      return [
        svgPath("gd-phaseline", `M${x} ${ARCS + BAR + 2}v5`),
        s("text", { class: "gd-axis", x, y, "text-anchor": anchor }, tick ? this.#text(tick) : "0"),
      ];
    });
  }

  /** The signs, in words. */
  #legend(): Child {
    const { unit, arrows } = this.#timeline,
      y = ARCS + BAR + AXIS - 3,
      width = unit ? widthText(this.#plan) : "one dispatch",
      all = arrows.length <= MOST_ARROWS ? "arrow" : "arrow (of what is selected)";
    const signs = `${all} = hazard: — reads what was written, ┄ writes over it`,
      letters = Math.floor((this.#width - 2 * SIDE) / 5.4);
    const fits = ["column = barrier group, ", ""]
      .map(each => `${each}width = ${width}, ${signs}`)
      .find(each => each.length <= letters);
    return s("text", { class: "gd-axis gd-legend", x: SIDE, y }, fits ?? cut(signs, letters));
  }
}
