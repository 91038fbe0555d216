// The e-graph of a pass as it grows, iteration by iteration: its picture, and beside it the news in words.

import { optimizerPasses, passName, type Pass, type Stage } from "../doc/doc.ts";
import { growthOf, held, nameAt, planned, shown, type Growth } from "../doc/growth.ts";
import { Camera } from "../draw/camera.ts";
import { all, div, h, replace, setFlag, span, write, type Child } from "../draw/dom.ts";
import type { Picture } from "../draw/picture.ts";
import { classOf, classWidth, drawEGraph, emptyPicture, isNew, MARGIN } from "./egraph_picture.ts";
import type { Iteration, Places } from "./egraph_picture.ts";
import { classDetail, iterationNews, sizeText } from "./egraph_words.ts";
import { body, choice, empty, frame, pane, refill, retitle } from "./pane.ts";
import type { Context, MakePane, Pane, PaneRecord } from "./pane.ts";
import { Player } from "./player.ts";
import { faceOf } from "./state.ts";
import { zoomAfterClick, zoomButtons } from "./zoom.ts";

const HELP = "E-graph. Comma and full stop step through its iterations.";
const PERIOD = 1400; // ms for an iteration while it plays

/** The switch between the rewrites that were chosen and the e-graph behind them. */
export const modes = (context: Context, now: string): Child =>
  choice(
    "what is shown",
    [["scrub", "rewrites"] as const, ["egraph", "e-graph"] as const].map(([value, text]) => ({ value, text })),
    now as "scrub",
    face => context.act({ do: "face", face }),
  );

class EGraphPane implements Pane {
  readonly el: HTMLElement;
  readonly #context: Context;
  readonly #passes: readonly Pass[];
  readonly #canvas = div("gd-canvas");
  readonly #aside = body({ class: "gd-easide" });
  readonly #said = span("gd-strong gd-nowrap");
  readonly #counts = span("gd-muted gd-ellipsis");
  readonly #player: Player;
  #pass: Pass | undefined;
  #growth: Growth | null = null;
  #now: Iteration | null = null;
  #places: Places | null = null;
  #picture: Picture | null = null;
  #camera: Camera | null = null;
  /** The classes that were scrolled to last. */
  #looked: readonly string[] = [];
  /** The class whose e-nodes are listed. */
  #picked = "";

  constructor(context: Context) {
    this.#context = context;
    this.#passes = optimizerPasses(context.doc);
    this.el = frame(egraphPane, "", [], [modes(context, "egraph")]);
    this.#player = new Player({
      command: "egraph",
      label: "iteration",
      unit: "iteration",
      play: "play the growth",
      go: at => this.#go(at),
      period: () => PERIOD,
    });
  }

  choose(lit: ReadonlySet<string>): boolean {
    if (faceOf(this.#context.ui()) !== "egraph") return false;
    const fresh = !this.#pass;
    if (fresh && this.#passes.length > 0) this.#take(this.#passes.find(each => each.deltas) ?? this.#passes[0]!);
    if (!this.#growth) return fresh;
    const classes = this.#litClasses(this.#growth, lit);
    if (classes.length > 0 && !classes.includes(this.#picked)) this.#picked = classes[0]!;
    if (classes.length > 0 && !classes.some(name => this.#places!.names.includes(name))) {
      this.#lay(classes);
      this.#go(this.#now!.at);
    } else if (!fresh) this.#tell();
    if (classes.length > 0) this.#look([this.#picked]);
    return fresh;
  }

  lit(lit: ReadonlySet<string>): void {
    if (!this.#growth || !this.#picture) return;
    const has = (name: string) =>
      name === this.#picked || this.#class(name).nodes.some(i => lit.has(`node:${this.#pass!.from}.${i}`));
    const { svg } = this.#picture;
    for (const each of all<SVGElement>(svg, "[data-class]")) setFlag(each, "data-some", has(each.dataset.class!));
    for (const each of all<SVGElement>(svg, "[data-ends]"))
      setFlag(each, "data-joined", each.dataset.ends!.split(" ").every(has));
  }

  turn(by: 1 | -1): void {
    if (this.#now) this.#go(this.#now.at + by);
  }

  /** The classes as a graph, for keys that walk along its edges. */
  walked(): Stage | null {
    if (!this.#places) return null;
    const { names, plan } = this.#places;
    const reads = names.map(name =>
      [...plan.wires.keys()].flatMap(key =>
        key.startsWith(`${name} `) ? names.indexOf(key.slice(name.length + 1)) : [],
      ),
    );
    return {
      nodes: reads.map(inputs => ({ inputs })),
      users: names.map((_, a) => reads.flatMap((inputs, b) => (inputs.includes(a) ? b : []))),
      entities: names.map(name => this.#class(name).entity ?? ""),
      layout: { boxes: [...plan.boxes.values()] },
    } as unknown as Stage;
  }

  destroy(): void {
    this.#player.stop();
    this.#camera?.destroy();
  }

  #class(name: string) {
    return classOf({ growth: this.#growth! }, name);
  }

  /** The classes of the nodes that are lit, by their names at the end. */
  #litClasses(growth: Growth, lit: ReadonlySet<string>): string[] {
    const { from } = this.#pass!;
    return [...growth.classes.values()]
      .filter(
        ({ name, nodes, leaf }) =>
          !leaf && nodes.some(i => lit.has(`node:${from}.${i}`)) && name === nameAt(growth, name, growth.last),
      )
      .map(({ name }) => name);
  }

  #take(pass: Pass): void {
    const context = this.#context;
    const { doc } = context;
    this.#pass = pass;
    this.#growth = growthOf(pass, doc.stages);
    const options = this.#passes.map(value => ({ value, text: passName(value) }));
    retitle(
      this.el,
      egraphPane.title,
      "",
      choice("pass", options, pass, each => this.#take(each)),
      modes(context, "egraph"),
      this.#growth && zoomButtons(context.cameras.union),
    );
    if (!this.#growth)
      return refill(
        this.el,
        empty(
          `How its e-graph grew was not recorded: ${doc.stages[pass.from]!.nodes.length} nodes. `,
          h("code", null, "%%graph NAME --egraph"),
          " records it.",
        ),
      );
    const { play, before, slider, after } = this.#player;
    refill(
      this.el,
      div("gd-slide gd-player", play, before, div("gd-track", slider), after, this.#said, this.#counts),
      div("gd-esplit", this.#canvas, this.#aside),
    );
    this.#lay([]);
    this.#go(0);
  }

  /** Lay out the e-graph, or, of a large one, the wanted classes, in an empty picture. */
  #lay(wanted: readonly string[]): void {
    const growth = this.#growth!;
    const context = this.#context;
    this.#camera?.destroy();
    const names = shown(growth, wanted);
    const widths = names.map(name => classWidth({ doc: context.doc, growth }, name));
    this.#places = { names, plan: planned(growth, names, widths) };
    this.#picture = emptyPicture(this.#places, lit => this.lit(lit));
    this.#camera = new Camera(context.cameras.union, this.#picture, HELP, () => context.redrawn("egraph"));
    this.#looked = [];
    this.#camera.refound = () => this.#look(this.#looked);
    zoomAfterClick(this.#camera, context.cameras.union);
    this.#canvas.replaceChildren(this.#camera.el);
    this.#camera.placed();
  }

  #go(to: number): void {
    if (!this.#growth) return;
    const growth = this.#growth;
    const { last, merged } = growth;
    const { names } = this.#places!;
    const at = Math.min(last, Math.max(0, to));
    const { doc } = this.#context;
    this.#now = { doc, pass: this.#pass!, growth, at, end: at === last, held: held(growth, at) };
    this.#player.show(at, last);
    write(this.#said, `iteration ${at} of ${last}`);
    write(this.#counts, sizeText(this.#now, names.length));
    this.#player.slider.ariaValueText = `${this.#said.textContent}: ${this.#counts.textContent}`;
    this.#tell();
    this.#draw(this.#now);
    const isFresh = (name: string) => this.#now!.held.get(name)?.some(({ node }) => isNew(this.#now!, node));
    this.#look(names.filter(name => isFresh(name) || merged[at]!.some(([stays]) => stays === name)));
  }

  /** Draw the classes anew; the class that held the focus has it again. */
  #draw(now: Iteration): void {
    const { svg } = this.#picture!;
    const active = svg.contains(document.activeElement) ? document.activeElement : null;
    const focused = active?.closest<SVGElement>("[data-class]")?.dataset.class;
    replace(
      svg,
      drawEGraph(now, this.#places!, name => this.#pick(name)),
    );
    if (focused) {
      const again = svg.querySelector<SVGElement>(`[data-class="${focused}"]`) ?? this.#player.slider;
      again.focus({ preventScroll: true });
    }
    this.lit(this.#context.lit());
    this.#context.redrawn("egraph");
  }

  #pick(name: string): void {
    this.#picked = name;
    this.#tell();
    this.lit(this.#context.lit());
  }

  /** Write the news of the iteration, and the picked class. */
  #tell(): void {
    const now = this.#now!;
    replace(this.#aside, iterationNews(now), classDetail(now, this.#picked));
  }

  /** Scroll to these classes, or to the first if not all fit. */
  #look(names: readonly string[]): void {
    this.#looked = names;
    const { boxes } = this.#places!.plan;
    const places = names.flatMap(name => boxes.get(name) ?? []);
    this.#camera!.gather(places.map(({ x, y, w }) => {
      const left = MARGIN + x;
      return { x: left + w / 2, y: MARGIN + y, left, right: left + w };
    }));
  }
}

const make: MakePane = context => new EGraphPane(context);

export const egraphPane: PaneRecord = pane("egraph", make);
