// The `run` section of a document (docs/graphdoc.md), with which a page computes. A document may come from anybody, so
// every number is checked before a device sees it.

import type { Initial, RunBuffer, RunDispatch, RunSection } from "../doc/records.ts";
import { uniform } from "./philox.ts";

type Uniform = Extract<Initial, { uniform: unknown }>["uniform"];

const MOST_BYTES = 2 ** 31,
  MOST_SLOT = 256 * 2 ** 20,
  MOST_GROUPS = 65535;

const whole = (value: unknown, most: number): boolean =>
  Number.isInteger(value) && Number(value) >= 0 && Number(value) <= most;
const object = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null;

/** The number of bytes in a base64 text. */
const sizeOf = (text: string): number => Math.floor((text.replace(/=+$/, "").length * 3) / 4);

/** Return the first fault of a section; empty if there is none. */
export function fault(run: RunSection): string {
  const { plan, update, inputs, batches, initial, constants } = run;
  if (![plan, update, inputs, initial, constants].every(object) || !Array.isArray(batches)) return "a part is missing";
  const { wgsl, dispatches, buffers, slots } = plan;
  if (![wgsl, dispatches, buffers, slots].every(Array.isArray)) return "the plan is missing";
  if (!slots.every(each => whole(each, MOST_SLOT) && each % 4 === 0 && each > 0)) return "a slot has no size";
  if (slots.reduce((a, b) => a + b, 0) > MOST_BYTES) return "it needs more than 2 GB";
  const known = (b: unknown): boolean => whole(b, buffers.length - 1);
  const fits = ({ slot, nbytes, bound }: RunBuffer): boolean =>
    whole(slot, slots.length - 1) && whole(bound, slots[slot]!) && whole(nbytes, bound) && bound > 0;
  const badBuffer = buffers.findIndex(each => !object(each) || !fits(each));
  if (badBuffer >= 0) return `buffer ${badBuffer} lies outside of its memory`;
  const runs = ({ kernel, workgroups, bind, writes }: RunDispatch): boolean =>
    whole(kernel, wgsl.length - 1) &&
    workgroups.length === 3 &&
    workgroups.every(each => whole(each, MOST_GROUPS)) &&
    bind.every(([b]) => known(b)) &&
    writes.every(known);
  const badDispatch = dispatches.findIndex(each => !object(each) || !runs(each));
  if (badDispatch >= 0) return `dispatch ${badDispatch} reads or writes what is not there`;
  const bytesOf = (b: number) => buffers[b]!.nbytes;
  const size = (text: unknown): number => (typeof text === "string" ? sizeOf(text) : -1);
  for (const [b, text] of Object.entries(constants))
    if (!known(Number(b)) || size(text) > buffers[Number(b)]!.bound) return `constant ${b} does not fit`;
  for (const [name, b] of Object.entries(inputs)) {
    if (!known(b)) return `input ${name} lies nowhere`;
    if (batches.some(each => size(each[name]) !== bytesOf(b))) return `a batch of ${name} has another size`;
  }
  if (batches.length === 0) return "there are no batches";
  for (const [name, value] of Object.entries(initial)) {
    const buffer = buffers.find(each => each.name === name && (each.kind === "parameter" || each.kind === "derived"));
    if (!buffer || !object(value)) return `parameter ${name} lies nowhere`;
    if ("data" in value && size(value.data) > buffer.bound) return `parameter ${name} does not fit`;
  }
  if (run.loss !== null && !known(run.loss)) return "the loss lies nowhere";
  if (!Array.isArray(update.first) || update.first.length !== 16) return "the update has no numbers";
  return "";
}

const PART = 2 ** 16; // numbers, or characters of base64, that are made in one task

/** Make an array of bytes part by part, so that a page answers meanwhile. */
export async function inParts(
  bytes: number,
  part: number,
  make: (at: number) => Uint8Array,
): Promise<Uint8Array<ArrayBuffer>> {
  const made = new Uint8Array(bytes);
  for (let at = 0; at * part < bytes; at++) {
    made.set(make(at), at * part);
    if ((at + 1) * part < bytes) await new Promise(resolve => setTimeout(resolve));
  }
  return made;
}

/** Bytes of a base64 text. */
export const unpacked = (text: string): Promise<Uint8Array<ArrayBuffer>> =>
  inParts(sizeOf(text), (PART / 4) * 3, at =>
    Uint8Array.from(atob(text.slice(at * PART, (at + 1) * PART)), each => each.charCodeAt(0)),
  );

/** Uniform numbers as bytes. */
export const drawn = (count: number, { seed, stream, bound }: Uniform): Promise<Uint8Array<ArrayBuffer>> =>
  inParts(4 * count, 4 * PART, at => {
    const first = at * PART;
    return new Uint8Array(uniform(Math.min(PART, count - first), seed, stream, bound, first).buffer);
  });
