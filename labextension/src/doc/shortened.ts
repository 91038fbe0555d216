// The forms that state a repetition once (docs/graphdoc.md, "Shortened lists"), read back: `restored(json)`.

type Raw = Record<string, unknown>;
type Reader = (raw: Raw, room: { left: number }) => unknown[];

/** The limit of values that the runs of a document may stand for: a few bytes can state any number of them. */
const MOST = 2 ** 25;

const nested = (value: unknown): boolean => typeof value === "object" && value !== null;

/** A JSON value with every shortened list written out. */
export const restored = (value: unknown): unknown => restore(value, { left: MOST });

function restore(value: unknown, room: { left: number }): unknown {
  if (Array.isArray(value)) return nested(value[0]) ? value.map(each => restore(each, room)) : value;
  if (!nested(value)) return value;
  const raw = value as Raw;
  if ("~" in raw) return FORMS[String(raw["~"])]!(raw, room);
  return Object.fromEntries(Object.entries(raw).map(([name, each]) => [name, restore(each, room)]));
}

const FORMS: Record<string, Reader> = {
  runs({ of, lengths }, room) {
    const values = restore(of, room) as unknown[];
    return (restore(lengths, room) as number[]).flatMap((length, i) => {
      if ((room.left -= length) < 0) throw new Error(`document: runs of more than ${MOST} values`);
      return Array.from({ length }, () => values[i]);
    });
  },
  differences({ of }, room) {
    let sum = 0;
    return (restore(of, room) as number[]).map(each => (sum += each));
  },
  lists({ of, lengths }, room) {
    const values = restore(of, room) as unknown[];
    let start = 0;
    return (restore(lengths, room) as number[]).map(length => values.slice(start, (start += length)));
  },
  words: ({ words, index }, room) => (restore(index, room) as number[]).map(i => (words as unknown[])[i]),
  records({ of }, room) {
    const columns = Object.entries(restore(of, room) as Record<string, unknown[]>);
    return columns[0]![1].map((_, row) => Object.fromEntries(columns.map(([name, values]) => [name, values[row]])));
  },
};
