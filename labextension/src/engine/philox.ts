// Uniform numbers of an initializer, as gdlab/base/philox.py makes them: Philox4x32-10 (Salmon and others, 2011).

const DOMAIN = 3; // of initial values

/** The upper and lower half of a product of two 32-bit numbers. */
function product(a: number, b: number): [number, number] {
  const low = Math.imul(a, b) >>> 0,
    aHigh = a >>> 16,
    aLow = a & 0xffff,
    bHigh = b >>> 16,
    bLow = b & 0xffff;
  const middle = aHigh * bLow + ((aLow * bLow) >>> 16);
  const high = aHigh * bHigh + Math.floor(middle / 65536) + (((middle % 65536) + aLow * bHigh) / 65536);
  return [Math.floor(high) >>> 0, low];
}

/** The four words of block `index`. */
function block(index: number, stream: number, seed: number): [number, number, number, number] {
  let c0 = index >>> 0,
    c1 = DOMAIN,
    c2 = stream >>> 0,
    c3 = 0,
    k0 = seed >>> 0,
    k1 = Math.floor(seed / 2 ** 32) >>> 0;
  for (let round = 0; round < 10; round++) {
    const [high0, low0] = product(0xd2511f53, c0),
      [high1, low1] = product(0xcd9e8d57, c2);
    c0 = (high1 ^ c1 ^ k0) >>> 0;
    c2 = (high0 ^ c3 ^ k1) >>> 0;
    c1 = low1;
    c3 = low0;
    k0 = (k0 + 0x9e3779b9) >>> 0;
    k1 = (k1 + 0xbb67ae85) >>> 0;
  }
  return [c0, c1, c2, c3];
}

/** `count` numbers between ± `bound` from element `first` on (of 4, 8 …), the same bits as those of a session. */
export function uniform(
  count: number,
  seed: number,
  stream: number,
  bound: number,
  first = 0,
): Float32Array<ArrayBuffer> {
  const made = new Float32Array(count);
  for (let at = 0; at < count; at += 4) {
    const words = block((first + at) / 4, stream, seed);
    for (let i = 0; i < 4 && at + i < count; i++) made[at + i] = (2 * ((words[i]! >>> 8) * 2 ** -24) - 1) * bound;
  }
  return made;
}
