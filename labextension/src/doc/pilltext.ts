// The texts of a pill at each density: 0 all texts; 1 no types on pills; 2 nor on boxes; 3 first letters of pill names.

const PILL_CUT = 24,
  FIRST_LETTERS = 4,
  ARROW = "⤳"; // between the name of a leaf and the shape that it is brought into

/** Code points of a pill's name. */
export const pillCut = (density: number): number => (density < 3 ? PILL_CUT : FIRST_LETTERS);

/** What follows the name on a pill: its type, or an arrow and the shape that the leaf is brought into. */
export function pillTail(type: string, via: boolean, echo: boolean, density: number): string {
  const bare = echo || density > 0;
  if (via) return bare ? ARROW : `${ARROW} ${type.slice(Math.max(0, type.indexOf("[")))}`;
  return bare ? "" : type;
}
