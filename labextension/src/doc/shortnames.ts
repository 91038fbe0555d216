// Shorten names where they say least; different ones stay different. The same as gdlab/view/layout/short_names.py.

const MORE = "…",
  SIGN = "∂"; // before the name of what it is the gradient of
const PATH = /[./]/,
  PART = /[./_ ]/;

type Letters = readonly string[]; // code points

/** The long names among these, each with at most `limit` code points. */
export function shortNames(names: Iterable<string>, limit: number): Map<string, string> {
  const known = [...new Set(names)].map(name => [name, Array.from(name)] as const),
    taken = new Set(known.flatMap(([name, letters]) => (letters.length <= limit ? [name] : []))),
    alike = new Map<string, (readonly [string, Letters])[]>(),
    found = new Map<string, string>();
  for (const each of known) {
    if (taken.has(each[0])) continue;
    const text = shortened(each[1], limit);
    if (!alike.get(text)?.push(each)) alike.set(text, [each]);
  }
  for (const [text, group] of alike) {
    const same = sameEnds(group.map(each => each[1]));
    for (const [name, letters] of group) {
      const tried = group.length === 1 ? [text] : apart(letters, same, limit),
        short = tried.find(each => !taken.has(each)) ?? numbered(text, taken, limit);
      taken.add(short);
      found.set(name, short);
    }
  }
  return found;
}

/** The last parts of a path; for another name its beginning and its end. */
function shortened(name: Letters, limit: number): string {
  if (!name.some(letter => PATH.test(letter))) {
    const half = Math.floor(limit / 2);
    return [...name.slice(0, half), MORE, ...name.slice(name.length - Math.max(0, limit - half - 1))].join("");
  }
  const sign = name[0] === SIGN ? SIGN : "",
    room = limit - 1 - sign.length;
  return sign + (longPart(name, room) || MORE + end(name, room));
}

/** The last part of a path, behind the beginning of the part that has to be cut: `post_attention….weight`. Empty where
 * whole parts leave half of the room. */
function longPart(name: Letters, room: number): string {
  const marks = name.flatMap((letter, i) => (PATH.test(letter) ? [i] : [])),
    from = name.length - room,
    inside = marks.find(i => i >= from) ?? name.length,
    tail = name.slice(marks.at(-1));
  if (2 * (name.length - inside - 1) >= room || 2 * tail.length > room) return "";
  const before = marks.filter(i => i < from).at(-1) ?? name.findIndex(letter => letter !== SIGN) - 1,
    head = name.slice(before + 1, before + 1 + room - tail.length),
    word = head.lastIndexOf("_");
  return [...head.slice(0, 2 * word >= head.length ? word : undefined), MORE, ...tail].join("");
}

/** The end of a name, from the beginning of a part where that leaves half of the room. */
function end(name: Letters, room: number): string {
  const all = name.slice(name.length - Math.max(0, room)),
    at = all.findIndex(letter => PART.test(letter)) + 1;
  return all.slice(2 * (all.length - at) >= room ? at : 0).join("");
}

/** Count the code points with which all of these begin, and those with which they end besides. */
function sameEnds(group: readonly Letters[]): [number, number] {
  const [first, ...others] = group as [Letters, ...Letters[]];
  let start = first.length,
    tail = first.length;
  for (const each of others) {
    let i = 0;
    while (i < Math.min(start, each.length) && each[i] === first[i]) i++;
    start = i;
  }
  for (const each of others) {
    let i = 0;
    while (i < Math.min(tail, each.length - start, first.length - start) && each.at(-1 - i) === first.at(-1 - i)) i++;
    tail = i;
  }
  return [start, tail];
}

const begin = (name: Letters, at: number): number => {
  while (at > 0 && !PART.test(name[at - 1]!)) at--;
  return at;
};

/** Texts with the part in which a name differs from others of its group, and as much of its end as fits; then its end.
 */
function apart(name: Letters, [same, tail]: readonly [number, number], limit: number): string[] {
  const start = begin(name, same),
    sign = name[0] === SIGN && start > 0 ? 1 : 0;
  let stop = name.length - tail;
  while (stop < name.length && !PART.test(name[stop]!)) stop++;
  const found: string[] = [];
  for (const least of [Math.floor(limit / 2), 0])
    for (const from of [start, begin(name, Math.max(0, start - 1))]) {
      const head = [sign ? SIGN : "", from > sign ? MORE : "", ...name.slice(Math.max(from, sign), stop), MORE],
        room = limit - Array.from(head.join("")).length;
      if (room >= least) found.push(head.join("") + end(name, Math.min(room, name.length - stop)));
    }
  const mark = name[0] === SIGN ? SIGN : "",
    last = name.slice(name.length - Math.max(0, limit - 1 - mark.length)).join("");
  return [...found, mark + MORE + last];
}

function numbered(text: string, taken: ReadonlySet<string>, limit: number): string {
  for (let number = 2; ; number++) {
    const letters = Array.from(text).slice(0, Math.max(0, limit - String(number).length - 1)),
      short = `${letters.join("")}~${number}`;
    if (!taken.has(short)) return short;
  }
}
