// The protocol: replies reordered, lost and doubled; metrics out of order and sent again; hello, acks, visibility, the end.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Host, LOST_AFTER, QUEUED_AFTER, type Model } from "../src/live/host.ts";
import type { Metrics } from "../src/live/messages.ts";

type Sent = Record<string, unknown> & { type: string };

class FakeModel implements Model {
  readonly sent: Sent[] = [];
  readonly traits: Record<string, unknown> = { study: "s", rev: 3, state: "none", step: 0 };
  private readonly callbacks = new Map<string, Set<(...args: never[]) => void>>();
  get(name: string): unknown {
    return this.traits[name];
  }
  on(event: string, callback: (...args: never[]) => void): void {
    this.callbacks.set(event, (this.callbacks.get(event) ?? new Set()).add(callback));
  }
  off(event: string, callback: (...args: never[]) => void): void {
    this.callbacks.get(event)?.delete(callback);
  }
  send(content: unknown): void {
    this.sent.push(content as Sent);
  }
  emit(event: string, ...args: unknown[]): void {
    for (const callback of [...(this.callbacks.get(event) ?? [])]) callback(...(args as never[]));
  }
  message(content: unknown): void {
    this.emit("msg:custom", content);
  }
  get listening(): number {
    return [...this.callbacks.values()].reduce((sum, set) => sum + set.size, 0);
  }
  of(type: string): Sent[] {
    return this.sent.filter(each => each.type === type);
  }
}

const sleep = (ms: number) => new Promise(resolve => setTimeout(resolve, ms));
const reply = (req: number, ok = true) => ({
  type: "reply",
  req,
  ok,
  result: ok ? { n: req } : null,
  error: ok ? null : { kind: "ArgumentError", message: "no", about: null },
});
const COUNTERS = {
  steps: 0,
  dispatches: 0,
  dispatches_per_step: 13,
  submissions: 0,
  groups: 6,
  bytes_up: 0,
  bytes_down: 0,
  steps_per_second: 100,
};
const metrics = (frame: number, step: number, loss: [number, number][], full = false): Metrics & { type: string } => ({
  type: "metrics",
  frame,
  state: "running",
  reason: "",
  step,
  wanted: 100,
  loss,
  counters: COUNTERS,
  memory: "",
  device: "",
  optimizer: "",
  watch: "",
  dispatch: -1,
  place: "",
  under_way: 3,
  timed: false,
  norms: null,
  engines: null,
  norms_left_out: 0,
  watches: [],
  breaks: [],
  full,
});

test("replies in another order find their commands; a doubled one is nothing", async () => {
  const model = new FakeModel(),
    host = new Host(model);
  const first = host.command("step"),
    second = host.command("run", { steps: 5 });
  const [a, b] = model.of("command");
  assert.deepEqual([a!.name, b!.name, b!.args], ["step", "run", { steps: 5 }]);
  assert(a!.req !== b!.req && Number.isInteger(a!.req));
  model.message(reply(b!.req as number, false));
  model.message(reply(a!.req as number));
  model.message(reply(a!.req as number, false));
  model.message(reply(999, false));
  assert.deepEqual([(await first).result, (await second).error!.message], [{ n: a!.req }, "no"]);
  assert.deepEqual([host.pending.length, host.live.error], [0, ""]);
});

test("no reply within 300 ms: queued; the reply ends it", async () => {
  const model = new FakeModel(),
    host = new Host(model);
  let changes = 0;
  host.listen(() => {
    changes++;
  });
  void host.command("pause");
  assert.equal(host.pending[0]!.queued, false);
  const before = changes;
  await sleep(QUEUED_AFTER + 60);
  assert.deepEqual([host.pending[0]!.queued, changes > before], [true, true]);
  model.message(reply(host.pending[0]!.req));
  assert.equal(host.pending.length, 0);
});

test("a reply that a later one overtook by seconds is lost, a fresh one is waited for", async () => {
  let now = 0;
  const model = new FakeModel(),
    host = new Host(model, () => now);
  const lost = host.command("step");
  now = LOST_AFTER + 1;
  const fresh = host.command("pause"),
    last = host.command("resume");
  model.message(reply(3));
  assert.deepEqual(
    [(await lost).error!.kind, (await last).ok, host.pending.map(each => each.name)],
    ["Lost", true, ["pause"]],
  );
  model.message(reply(1));
  model.message(reply(2));
  assert.equal((await fresh).ok, true);
});

test("frames out of order lose no point, and old figures do not come back", () => {
  const model = new FakeModel(),
    host = new Host(model);
  model.message(
    metrics(1, 2, [
      [1, 5],
      [2, 4],
    ]),
  );
  model.message(
    metrics(3, 6, [
      [5, 1],
      [6, 0.5],
    ]),
  );
  model.message(
    metrics(2, 4, [
      [3, 3],
      [4, 2],
    ]),
  );
  model.message(
    metrics(3, 6, [
      [5, 1],
      [6, 0.5],
    ]),
  );
  assert.deepEqual(
    [host.live.step, host.live.frame, host.live.points.map(point => point[0])],
    [6, 3, [1, 2, 3, 4, 5, 6]],
  );
  model.message(metrics(4, 7, [[7, 0.1]], true));
  assert.deepEqual(host.live.points, [[7, 0.1]]);
});

test("every frame is acknowledged after it was drawn, with the model's revision", async () => {
  const model = new FakeModel(),
    host = new Host(model);
  model.message(metrics(7, 1, []));
  assert.equal(model.of("ack").length, 0);
  await sleep(250);
  assert.deepEqual(model.of("ack"), [{ type: "ack", rev: 3, frame: 7 }]);
  host.close();
});

test("hello once with what is drawn, again only for a document that the host has not seen", () => {
  const model = new FakeModel(),
    host = new Host(model);
  assert.equal(model.sent.length, 0);
  const first = host.attach("d1"),
    second = host.attach("d1");
  assert.deepEqual(
    model.of("hello").map(each => [each.have, each.version]),
    [["d1", 1]],
  );
  second.show(false);
  first.show(false);
  first.detach();
  first.detach();
  second.detach();
  assert.deepEqual(
    model.of("visible").map(({ views, shown }) => [views, shown]),
    [
      [2, true],
      [2, true],
      [2, false],
      [1, false],
      [0, false],
    ],
  );
  host.attach("d2");
  host.attach(null);
  assert.deepEqual(
    model.of("hello").map(each => each.have),
    ["d1", "d2", null],
  );
  model.message({ type: "doc", rev: 4, doc: {} });
  host.attach("d3");
  assert.equal(model.of("hello").length, 3);
});

test("an older document does not replace a newer one", () => {
  const model = new FakeModel(),
    host = new Host(model);
  model.message({ type: "doc", rev: 4, doc: { id: "new" } });
  model.message({ type: "doc", rev: 3, doc: { id: "old" } });
  assert.deepEqual(host.doc, { rev: 4, payload: { id: "new" } });
});

test("when the model closes, waiting commands end, later ones fail at once, nothing listens", async () => {
  const model = new FakeModel(),
    host = new Host(model);
  model.message(metrics(1, 1, []));
  const waiting = host.command("step");
  model.emit("comm:close");
  assert.deepEqual(
    [(await waiting).error!.kind, host.dead, host.live.state, model.listening],
    ["Closed", true, "closed", 0],
  );
  const sent = model.sent.length;
  assert.equal((await host.command("step")).ok, false);
  assert.equal(model.sent.length, sent);
});

test("before the first frame the traits speak", () => {
  const model = new FakeModel();
  Object.assign(model.traits, { state: "paused", step: 12 });
  const host = new Host(model);
  assert.deepEqual([host.live.state, host.live.step], ["paused", 12]);
  model.traits.step = 13;
  model.emit("change:step");
  assert.equal(host.live.step, 13);
});

class FakeSignal {
  readonly slots = new Set<(sender: unknown, value: string) => void>();
  connect(slot: (sender: unknown, value: string) => void): void {
    this.slots.add(slot);
  }
  disconnect(slot: (sender: unknown, value: string) => void): void {
    this.slots.delete(slot);
  }
  emit(value = ""): void {
    for (const slot of [...this.slots]) slot(this, value);
  }
}

test("a kernel that ends says so at once, though it closes no comm; nothing listens to it any more", async () => {
  for (const end of ["disposed", "dead", "restarting"]) {
    const kernel = { statusChanged: new FakeSignal(), disposed: new FakeSignal() },
      model = Object.assign(new FakeModel(), { widget_manager: { kernel } }),
      host = new Host(model);
    model.message(metrics(1, 7, [[7, 0.5]]));
    kernel.statusChanged.emit("busy");
    assert.equal(host.dead, false);
    const waiting = host.command("step");
    if (end === "disposed") kernel.disposed.emit();
    else kernel.statusChanged.emit(end);
    assert.deepEqual(
      [host.dead, host.live.state, host.live.reason],
      [true, "closed", "the kernel has ended; run the cell again"],
    );
    assert.deepEqual([host.live.step, (await waiting).error!.kind], [7, "Closed"]);
    assert.equal(kernel.statusChanged.slots.size + kernel.disposed.slots.size, 0);
  }
});

test("with a full frame all events come again, for a page that was reloaded: each counts once", () => {
  const model = new FakeModel(),
    host = new Host(model),
    event = (step: number, text: string) =>
      model.message({ type: "event", step, kind: "nonfinite", about: null, text }),
    texts = () => host.live.events.map(({ step, text }) => `${step} ${text}`);
  model.message(metrics(1, 3, [], true));
  event(3, "first");
  event(4, "second");
  model.message(metrics(2, 4, [], true));
  event(3, "first");
  event(4, "second");
  event(4, "second"); // it happened again
  assert.deepEqual(texts(), ["3 first", "4 second", "4 second"]);
  event(3, "first"); // without a full frame it is new
  assert.equal(texts().length, 4);
});
