// A plan on the reader's own adapter: memory, pipelines, steps. Knows WebGPU and the `run` section, nothing of panels.

import type { Initial, RunSection } from "../doc/records.ts";
import { drawn, unpacked } from "./section.ts";

// WebGPU's own flags, by their numbers: they are the same in every browser, and unknown where there is no WebGPU.
const [MAP_READ, COPY_SRC, COPY_DST, STORAGE] = [1, 4, 8, 128],
  COMPUTE = 4;
const AT_A_TIME = 4; // kernels that the browser compiles beside one another
const PATIENCE = 5000; // ms within which a submission has to end
const RING = 64; // losses of steps that are under way
const MOST_KEPT = 2 ** 28; // bytes of one earlier state, as in a session

/** All memory as it was before a step (from 0), and the updates made until then. */
interface Kept {
  slots: GPUBuffer[];
  step: number;
  updates: number;
}

/** The reason why a page cannot compute, in one sentence. */
export class EngineError extends Error {}

export interface Totals {
  submissions: number;
  dispatches: number;
  up: number;
  down: number;
}

/** Return the device of the page, or raise the reason why there is none. */
async function openDevice(bytes: number): Promise<GPUDevice> {
  const { gpu } = globalThis.navigator ?? {};
  if (!gpu) throw new EngineError("this browser has no WebGPU, so the page cannot compute here; everything else works");
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new EngineError("WebGPU finds no adapter on this machine, so the page cannot compute here");
  if (adapter.limits.maxBufferSize < bytes) throw new EngineError("this adapter's buffers are too small for the plan");
  return adapter.requestDevice();
}

/** Wait for `work`, and call `late` if it takes longer than a submission may. */
async function within<T>(work: Promise<T>, late: () => void): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const end = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      late();
      reject(new EngineError("the GPU did not end its work within 5 s, so the page has given it up"));
    }, PATIENCE);
  });
  try {
    return await Promise.race([work, end]);
  } finally {
    clearTimeout(timer);
  }
}

export class Program {
  readonly run: RunSection;
  readonly name: string;
  readonly totals: Totals = { submissions: 0, dispatches: 0, up: 0, down: 0 };
  readonly #device: GPUDevice;
  readonly #slots: GPUBuffer[];
  readonly #scalars: GPUBuffer;
  readonly #ring: GPUBuffer;
  readonly #landing: GPUBuffer;
  #launches: { pipeline: GPUComputePipeline; group: GPUBindGroup; workgroups: [number, number, number] }[] = [];
  readonly #inputs: Map<number, Uint8Array<ArrayBuffer>>[] = [];
  readonly #initial = new Map<number, Uint8Array<ArrayBuffer>>();
  #batch = -1;
  #tried = false;
  readonly #kept = new Map<string, Kept>();
  /** Updates made, for a rule that counts them. */
  updates = 0;
  lost = "";

  private constructor(run: RunSection, device: GPUDevice, name: string) {
    this.run = run;
    this.name = name;
    this.#device = device;
    const usage = STORAGE | COPY_SRC | COPY_DST;
    this.#slots = run.plan.slots.map(size => device.createBuffer({ size, usage }));
    this.#scalars = device.createBuffer({ size: 64, usage });
    this.#ring = device.createBuffer({ size: 4 * RING, usage });
    this.#landing = device.createBuffer({ size: 4 * RING, usage: MAP_READ | COPY_DST });
    void device.lost.then(({ reason, message }) => {
      if (reason !== "destroyed") this.lost ||= `the GPU was lost (${message || reason}); Reset begins anew`;
    });
    device.addEventListener("uncapturederror", event => {
      this.lost ||= `the GPU refused the work: ${event.error.message}`;
    });
  }

  /** Compile, allocate and fill; `told` gets the number of ready kernels. */
  static async open(run: RunSection, told: (made: number, all: number) => void): Promise<Program> {
    const device = await openDevice(Math.max(...run.plan.slots)),
      { vendor = "", architecture = "", description = "" } = device.adapterInfo ?? {};
    const name = description || [vendor, architecture].filter(Boolean).join(" ") || "WebGPU";
    device.pushErrorScope("out-of-memory");
    const made = new Program(run, device, name);
    const full = await device.popErrorScope();
    if (full) throw made.#given("this adapter has too little memory for the plan");
    await made.#compile(told);
    await made.#unpack();
    made.reset();
    return made;
  }

  /** Constants, batches and first parameters as bytes. */
  async #unpack(): Promise<void> {
    const { constants, batches, inputs, initial, plan } = this.run;
    for (const [b, text] of Object.entries(constants)) this.#write(Number(b), await unpacked(text));
    for (const batch of batches) {
      const arrays = new Map<number, Uint8Array<ArrayBuffer>>();
      for (const [name, text] of Object.entries(batch)) arrays.set(inputs[name]!, await unpacked(text));
      this.#inputs.push(arrays);
    }
    for (const [b, { name, kind, nbytes }] of plan.buffers.entries()) {
      const value = kind === "parameter" || kind === "derived" ? initial[name] : undefined;
      if (value) this.#initial.set(b, await bytesOf(value, nbytes));
    }
  }

  #given(text: string): EngineError {
    this.destroy();
    return new EngineError(text);
  }

  async #compile(told: (made: number, all: number) => void): Promise<void> {
    const { plan } = this.run,
      device = this.#device,
      pipelines: GPUComputePipeline[] = [],
      layouts = new Map<string, GPUBindGroupLayout>();
    const layoutOf = (kinds: GPUBufferBindingType[]): GPUBindGroupLayout => {
      const key = kinds.join();
      const made =
        layouts.get(key) ??
        device.createBindGroupLayout({
          entries: kinds.map((type, binding) => ({ binding, visibility: COMPUTE, buffer: { type } })),
        });
      layouts.set(key, made);
      return made;
    };
    const kinds = plan.dispatches.map(({ bind, scalars }) => [
      ...bind.map(([, access]): GPUBufferBindingType => (access === "r" ? "read-only-storage" : "storage")),
      ...(scalars ? (["read-only-storage"] as const) : []),
    ]);
    let made = 0;
    const compile = async (kernel: number): Promise<void> => {
      const first = plan.dispatches.findIndex(each => each.kernel === kernel);
      if (first < 0) return;
      told(made, plan.wgsl.length);
      const layout = device.createPipelineLayout({ bindGroupLayouts: [layoutOf(kinds[first]!)] });
      device.pushErrorScope("validation"); // it is told below, once
      const module = device.createShaderModule({ code: plan.wgsl[kernel]! });
      void device.popErrorScope();
      try {
        pipelines[kernel] = await device.createComputePipelineAsync({ layout, compute: { module } });
      } catch (error) {
        const label = plan.dispatches[first]!.label,
          wrong = (await module.getCompilationInfo()).messages.find(({ type }) => type === "error"),
          why = wrong ? `line ${wrong.lineNum}: ${wrong.message}` : (error as Error).message;
        throw this.#given(`the kernel of ${label} does not compile here: ${why}`);
      }
      if (this.lost) throw this.#given(this.lost);
      made++;
    };
    const waiting = [...plan.wgsl.keys()],
      worker = async (): Promise<void> => {
        for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) await compile(next);
      };
    await Promise.all(Array.from({ length: AT_A_TIME }, worker));
    told(plan.wgsl.length, plan.wgsl.length);
    this.#launches = plan.dispatches.map(({ kernel, workgroups, bind, scalars }, k) => {
      const buffers = bind.map(([b]) => ({ buffer: this.#memory(b), size: plan.buffers[b]!.bound })),
        all = scalars ? [...buffers, { buffer: this.#scalars, size: 64 }] : buffers;
      const entries = all.map((resource, binding) => ({ binding, resource }));
      return {
        pipeline: pipelines[kernel]!,
        group: device.createBindGroup({ layout: layoutOf(kinds[k]!), entries }),
        workgroups,
      };
    });
  }

  #memory(buffer: number): GPUBuffer {
    return this.#slots[this.run.plan.buffers[buffer]!.slot]!;
  }

  #write(buffer: number, bytes: Uint8Array<ArrayBuffer>): void {
    const padded = bytes.length % 4 === 0 ? bytes : new Uint8Array([...bytes, 0, 0, 0].slice(0, -(-bytes.length & ~3)));
    this.#device.queue.writeBuffer(this.#memory(buffer), 0, padded);
    this.totals.up += bytes.length;
  }

  /** Parameters as the document has them, moments at zero. */
  reset(): void {
    const { plan } = this.run,
      encoder = this.#device.createCommandEncoder();
    const constant = new Set(Object.keys(this.run.constants).map(b => plan.buffers[Number(b)]!.slot));
    this.#slots.forEach((slot, i) => !constant.has(i) && encoder.clearBuffer(slot));
    this.#device.queue.submit([encoder.finish()]);
    this.#initial.forEach((bytes, b) => this.#write(b, bytes));
    this.updates = 0;
    this.#batch = -1;
    this.#kept.forEach(each => (each.step = NaN));
  }

  /** Keep the state before a step under a name, or with NaN forget it; a state that is too large is not kept. */
  keep(name: string, step: number): void {
    const { slots: sizes } = this.run.plan,
      known = this.#kept.get(name);
    if (known) known.step = step;
    if (Number.isNaN(step) || sizes.reduce((a, b) => a + b, 0) > MOST_KEPT) return;
    const made = known?.slots ?? sizes.map(size => this.#device.createBuffer({ size, usage: COPY_SRC | COPY_DST }));
    this.#kept.set(name, { slots: made, step, updates: this.updates });
    this.#copy(this.#slots, made);
  }

  /** Give each of two states that are kept the name of the other. */
  swap(one: string, other: string): void {
    const [a, b] = [this.#kept.get(one), this.#kept.get(other)];
    if (a) this.#kept.set(other, a);
    if (b) this.#kept.set(one, b);
    else this.#kept.delete(one);
  }

  /** The step before which a state was kept; NaN: none was. */
  kept(name: string): number {
    return this.#kept.get(name)?.step ?? NaN;
  }

  /** Go back to a state that was kept; inputs and numbers come with the step that begins there. */
  load(name: string): void {
    const { slots, updates } = this.#kept.get(name)!;
    this.#copy(slots, this.#slots);
    this.updates = updates;
    this.#batch = -1;
  }

  #copy(from: GPUBuffer[], to: GPUBuffer[]): void {
    const encoder = this.#device.createCommandEncoder();
    from.forEach((each, i) => encoder.copyBufferToBuffer(each, 0, to[i]!, 0, each.size));
    this.#device.queue.submit([encoder.finish()]);
  }

  /** Write inputs and numbers of step `step` (from 0) to their buffers. */
  begin(step: number): void {
    const at = step % this.#inputs.length,
      { update } = this.run,
      row = Float32Array.from(update.first);
    if (at !== this.#batch) this.#inputs[at]!.forEach((bytes, buffer) => this.#write(buffer, bytes));
    this.#batch = at;
    if (update.counts) {
      // 1 / (1 − βᵗ) from the β that the kernels have: in float32, then in float64.
      const t = this.updates + 1;
      row[4] = 1 / (1 - row[1]! ** t);
      row[5] = 1 / (1 - row[2]! ** t);
    }
    row[7] = step & 0xffff;
    row[8] = (step >>> 16) & 0xffff;
    this.#device.queue.writeBuffer(this.#scalars, 0, row);
  }

  /** Submit dispatches `start` … `stop` − 1 of the step that was begun; `place`: that of its loss in the ring, at its
   * end. */
  async advance(start: number, stop: number, place = -1): Promise<void> {
    const parts: [number, number][] = this.#tried
      ? [[start, stop]]
      : Array.from({ length: stop - start }, (_, i) => [start + i, start + i + 1]);
    for (const [first, last] of parts) {
      this.#submit(first, last, last === stop ? place : -1);
      if (!this.#tried) await this.#ended();
    }
    if (stop === this.#launches.length) {
      if (this.run.update.counts) this.updates++;
      this.#tried = true;
    }
  }

  #submit(start: number, stop: number, place: number): void {
    const encoder = this.#device.createCommandEncoder(),
      { loss } = this.run;
    if (stop > start) {
      const pass = encoder.beginComputePass();
      for (const { pipeline, group, workgroups } of this.#launches.slice(start, stop)) {
        pass.setPipeline(pipeline);
        pass.setBindGroup(0, group);
        pass.dispatchWorkgroups(...workgroups);
      }
      pass.end();
    }
    if (place >= 0 && loss !== null) encoder.copyBufferToBuffer(this.#memory(loss), 0, this.#ring, 4 * place, 4);
    this.#device.queue.submit([encoder.finish()]);
    this.totals.submissions++;
    this.totals.dispatches += stop - start;
  }

  async #ended(): Promise<void> {
    await within(this.#device.queue.onSubmittedWorkDone(), () => this.destroy());
    this.check();
  }

  /** Raise an error that the GPU has reported meanwhile. */
  check(): void {
    if (this.lost) throw new EngineError(this.lost);
  }

  /** The first `count` losses of the ring, once their steps have run. */
  async losses(count: number): Promise<number[]> {
    if (this.run.loss === null) {
      await this.#ended();
      return [];
    }
    const bytes = await this.#bytes(this.#ring, 4 * count, this.#landing);
    return [...new Float32Array(bytes)];
  }

  /** All bytes of a buffer. */
  async read(buffer: number): Promise<ArrayBuffer> {
    const size = -(-this.run.plan.buffers[buffer]!.nbytes & ~3),
      landing = this.#device.createBuffer({ size, usage: MAP_READ | COPY_DST });
    try {
      return await this.#bytes(this.#memory(buffer), size, landing);
    } finally {
      landing.destroy();
    }
  }

  async #bytes(from: GPUBuffer, size: number, landing: GPUBuffer): Promise<ArrayBuffer> {
    const encoder = this.#device.createCommandEncoder();
    encoder.copyBufferToBuffer(from, 0, landing, 0, size);
    this.#device.queue.submit([encoder.finish()]);
    try {
      await within(landing.mapAsync(MAP_READ, 0, size), () => this.destroy());
    } catch (error) {
      this.check();
      throw error;
    }
    const bytes = landing.getMappedRange(0, size).slice(0);
    landing.unmap();
    this.totals.down += size;
    this.check();
    return bytes;
  }

  destroy(): void {
    this.lost ||= "the page has given the GPU back";
    this.#device.destroy();
  }
}

export const MOST_AT_ONCE = RING;

function bytesOf(value: Initial, nbytes: number): Promise<Uint8Array<ArrayBuffer>> | Uint8Array<ArrayBuffer> {
  if ("data" in value) return unpacked(value.data);
  if ("uniform" in value) return drawn(nbytes / 4, value.uniform);
  return new Uint8Array(new Float32Array(nbytes / 4).fill(value.fill).buffer);
}
