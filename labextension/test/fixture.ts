// Small documents for the tests: one by hand that uses every form of a column, and random ones with random links.

type Json = Record<string, unknown>;

export const ragged = (rows: number[][]): { start: number[]; ids: number[] } => {
  const start = [0],
    ids: number[] = [];
  for (const row of rows) {
    ids.push(...row);
    start.push(ids.length);
  }
  return { start, ids };
};

/** A link from pairs (a row, b row), both directions sorted and without doubles. */
export function link(a: string, b: string, sizeA: number, sizeB: number, pairs: [number, number][]): Json {
  const side = (size: number, own: 0 | 1) =>
    ragged(
      Array.from({ length: size }, (_, i) =>
        [...new Set(pairs.filter(pair => pair[own] === i).map(pair => pair[1 - own]!))].sort((x, y) => x - y),
      ),
    );
  return { a, b, out: side(sizeA, 0), back: side(sizeB, 1) };
}

const layout = {
  engine: "layered",
  x: [-1, -1, 0],
  y: [-1, -1, 0],
  w: [-1, -1, 96],
  row: [-1, -1, 0],
  pills: { count: 0 },
  edges: { count: 0 },
  rails: { count: 0 },
  wires: { count: 0 },
  lanes: { count: 0 },
  width: 96,
  height: 72,
};

/** h = relu(x @ w): a line with two calls, a step that fuses them, one dispatch, one kernel of three lines. */
export const smallDoc = (): Json => ({
  format: "gdlab.graph.v1",
  id: "00000000000000aa",
  study: "s1",
  title: "small",
  summary: "graph small: 4 nodes",
  producer: {},
  new_field: { unknown: true },
  types: {
    count: 2,
    text: ["f32[2, 3]", "f32[2, 2]"],
    shape: ragged([
      [2, 3],
      [2, 2],
    ]),
    dtype: { words: ["f32"], index: [0, 0] },
    nbytes: [24, 16],
  },
  sources: [
    { id: "cell0", kind: "cell", name: "Cell 1", language: "python", text: "h = relu(x @ w)\n", first_line: 2 },
  ],
  lines: { count: 2, source: [0, 0], line: [2, 2], col: [9, 4], end_line: [2, 2], end_col: [14, 15], stack: {} },
  stages: [
    {
      key: "written",
      role: "written",
      title: "As written",
      parent: -1,
      groups: { count: 0 },
      layouts: {},
      nodes: {
        count: 4,
        key: ["n0", "n1", "n2", "n3"],
        op: ["input", "parameter", "matmul", "relu"],
        family: { words: ["leaf", "contraction", "elementwise"], index: [0, 0, 1, 2] },
        name: { 0: "x", 1: "w", 3: "h" },
        type: [0, 0, 1, 1],
        inputs: ragged([[], [], [0, 1], [2]]),
        flags: { ...ragged([[1], [1], [], [0]]), words: ["output", "leaf"] },
        twin: {},
        cost_seconds: [0, "nan", "inf", 1],
      },
      outputs: { count: 1, node: [3], name: ["h"], kind: ["user"], of: [""] },
    },
    {
      key: "optimized",
      role: "optimized",
      title: "Optimized",
      parent: 0,
      groups: { count: 0 },
      layouts: { auto: layout },
      nodes: {
        count: 3,
        key: ["n0", "n1", "0.0.0"],
        op: ["input", "parameter", "matmul_relu"],
        type: [0, 0, 1],
        inputs: ragged([[], [], [0, 1]]),
      },
      outputs: { count: 0 },
    },
  ],
  passes: [
    {
      key: "optimize",
      role: "optimize",
      from: 0,
      to: 1,
      seconds: 0.001,
      sources: {},
      report: {
        rules: [
          { id: "other", label: "Other" },
          { id: "fuse", label: "Fuse" },
        ],
      },
      steps: {
        count: 2,
        rule: ["fuse", "sweep"],
        label: ["Fuse", "sweep"],
        at: { ...ragged([[0], []]), words: ["n3"] },
        removed: { 0: ["n3"] },
        cost_before: [2, 1],
        cost_after: [1, 1],
        iteration: [1, null],
      },
    },
  ],
  plan: {
    stage: 1,
    updates: 0,
    optimizer: null,
    memory: {},
    groups: { count: 1, start: [0], stop: [1], because: [[]] },
    slots: { count: 0 },
    kernels: { count: 1, entry: ["k"], wgsl: ["a\nb\nc"] },
    dispatches: { count: 1, label: ["MatMul"], kernel: [0], reads: ragged([[0]]), writes: ragged([[1]]) },
    intervals: { count: 2, name: ["x", "h"], first: [-1, 0], pinned: { 0: "input" } },
  },
  links: [
    link("line", "node:0", 2, 4, [
      [0, 2],
      [1, 3],
    ]),
    link("node:0", "node:1", 4, 3, [
      [0, 0],
      [1, 1],
      [2, 2],
      [3, 2],
    ]),
    link("node:0", "step:0", 4, 2, [
      [2, 0],
      [3, 0],
    ]),
    link("step:0", "node:1", 2, 3, [[0, 2]]),
    link("node:1", "dispatch", 3, 1, [[2, 0]]),
    link("dispatch", "interval", 1, 2, [[0, 1]]),
    link("node:1", "interval", 3, 2, [[0, 0]]),
    link("dispatch", "kernel", 1, 1, [[0, 0]]),
    link("kernel", "wgsl", 1, 3, [
      [0, 0],
      [0, 1],
      [0, 2],
    ]),
    link("node:1", "wgsl", 3, 3, [[2, 1]]),
  ],
  runs: [],
  overlays: [],
  notes: [],
  view: null,
  wgsl_base: [0],
});

/** Numbers in [0, n) from a seed: the same on every machine. */
export function random(seed: number): (n: number) => number {
  let state = ((seed * 2654435761) % 4294967296) + 1;
  return n => {
    state = (state * 1664525 + 1013904223) >>> 0;
    return Math.floor((state / 4294967296) * n);
  };
}

/** A document whose links are random: sizes of levels, pairs, kernels and their lines. */
export function randomDoc(seed: number): { doc: Json; sizes: Map<string, number>; pairs: [string, string][] } {
  const next = random(seed),
    size = () => 1 + next(6);
  const kernels = Array.from({ length: 1 + next(3) }, () => 1 + next(4)),
    lines = kernels.reduce((a, b) => a + b, 0);
  const sizes = new Map([
    ["line", size()],
    ["node:0", size()],
    ["step:0", size()],
    ["node:1", size()],
    ["step:1", size()],
    ["node:2", size()],
    ["dispatch", size()],
    ["interval", size()],
    ["kernel", kernels.length],
    ["wgsl", lines],
  ]);
  const ways = [
    ["line", "node:0"],
    ["node:0", "step:0"],
    ["step:0", "node:1"],
    ["node:0", "node:1"],
    ["node:1", "step:1"],
    ["step:1", "node:2"],
    ["node:1", "node:2"],
    ["node:2", "dispatch"],
    ["dispatch", "interval"],
    ["node:2", "interval"],
    ["dispatch", "kernel"],
    ["node:2", "wgsl"],
  ] as const;
  const base = kernels.map((_, k) => kernels.slice(0, k).reduce((a, b) => a + b, 0));
  const name = (level: string, row: number): string => {
    if (level === "wgsl") {
      const k = base.filter(first => first <= row).length - 1;
      return `wgsl:${k}.${row - base[k]! + 1}`;
    }
    const [kind, part] = level.split(":");
    return part === undefined ? `${kind}:${row}` : `${kind}:${part}.${row}`;
  };
  const pairs: [string, string][] = [];
  const make = (a: string, b: string, rows: [number, number][]) => {
    pairs.push(...rows.map(([x, y]): [string, string] => [name(a, x), name(b, y)]));
    return link(a, b, sizes.get(a)!, sizes.get(b)!, rows);
  };
  const links = ways.map(([a, b]) =>
    make(
      a,
      b,
      Array.from({ length: next(8) }, (): [number, number] => [next(sizes.get(a)!), next(sizes.get(b)!)]),
    ),
  );
  links.push(
    make(
      "kernel",
      "wgsl",
      kernels.flatMap((count, k) => Array.from({ length: count }, (_, i): [number, number] => [k, base[k]! + i])),
    ),
  );
  const stage = (key: string, index: number) => ({
    key,
    role: "written",
    parent: index - 1,
    nodes: { count: sizes.get(`node:${index}`)! },
    outputs: { count: 0 },
    layouts: {},
  });
  const pass = (index: number) => ({
    key: `p${index}`,
    role: "optimize",
    from: index,
    to: index + 1,
    report: { rules: [{ id: "r0" }, { id: "r1" }] },
    steps: {
      count: sizes.get(`step:${index}`)!,
      rule: Array.from({ length: sizes.get(`step:${index}`)! }, () => `r${next(2)}`),
    },
  });
  const doc = {
    format: "gdlab.graph.v1",
    id: "b",
    title: "random",
    summary: "",
    types: { count: 0 },
    sources: [],
    lines: { count: sizes.get("line")! },
    stages: [0, 1, 2].map(i => stage(`s${i}`, i)),
    passes: [pass(0), pass(1)],
    plan: null,
    links,
    runs: [],
    notes: [],
    view: null,
    wgsl_base: base,
  };
  return { doc, sizes, pairs };
}
