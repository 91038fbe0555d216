// The paths of edges and wires, as text for an SVG path.

/** A smooth curve, vertical at both ends; two points of one height are joined by a straight line. */
export function smooth(flat: number[]): string {
  const path = [`M${flat[0]} ${flat[1]}`];
  for (let i = 2; i + 1 < flat.length; i += 2) {
    const [x0, y0, x1, y1] = flat.slice(i - 2, i + 2) as [number, number, number, number];
    const middle = (y0 + y1) / 2;
    path.push(y0 === y1 || x0 === x1 ? `L${x1} ${y1}` : `C${x0} ${middle} ${x1} ${middle} ${x1} ${y1}`);
  }
  return path.join("");
}

/** Straight pieces with corners of radius 4. */
export function orthogonal(flat: number[], radius = 4): string {
  const points = Array.from({ length: flat.length / 2 }, (_, i) => [flat[2 * i]!, flat[2 * i + 1]!] as const);
  const toward = (from: readonly [number, number], to: readonly [number, number], by: number) => {
    const dx = Math.sign(to[0] - from[0]),
      dy = Math.sign(to[1] - from[1]);
    return `${from[0] + dx * by} ${from[1] + dy * by}`;
  };
  const length = (a: readonly [number, number], b: readonly [number, number]) =>
    Math.abs(a[0] - b[0]) + Math.abs(a[1] - b[1]);
  return points
    .map((point, i) => {
      const before = points[i - 1],
        after = points[i + 1];
      if (!before) return `M${point[0]} ${point[1]}`;
      if (!after) return `L${point[0]} ${point[1]}`;
      const r = Math.min(radius, length(before, point) / 2, length(point, after) / 2);
      return `L${toward(point, before, r)}Q${point[0]} ${point[1]} ${toward(point, after, r)}`;
    })
    .join("");
}
