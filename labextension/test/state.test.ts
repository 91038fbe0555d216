// The reducer: selection with history, tabs, faces.

import assert from "node:assert/strict";
import { test } from "node:test";
import { initialUi, reduce, TABS, type Action, type Ui } from "../src/panes/state.ts";
import { faceOf, PANES, panesOf } from "../src/panes/table.ts";

const after = (...actions: Action[]): Ui => actions.reduce(reduce, initialUi());
const select = (entity: string, add = false): Action => ({ do: "select", entities: [entity], add });

test("a click selects, shift adds and takes away, Esc clears", () => {
  assert.deepEqual(after(select("a"), select("b")).selected, ["b"]);
  assert.deepEqual(after(select("a"), select("b", true)).selected, ["a", "b"]);
  assert.deepEqual(after(select("a"), select("b", true), select("a", true)).selected, ["b"]);
  assert.deepEqual(after(select("a"), { do: "clear" }).selected, []);
});

test("history walks back and forward; a new selection forgets what lay ahead", () => {
  const walked = after(select("a"), select("b"), { do: "back" });
  assert.deepEqual([walked.selected, reduce(walked, { do: "forward" }).selected], [["a"], ["b"]]);
  assert.deepEqual(after(select("a"), { do: "clear" }, { do: "back" }).selected, ["a"]);
  assert.deepEqual(after(select("a"), select("b"), { do: "back" }, select("c"), { do: "forward" }).selected, ["c"]);
  assert.deepEqual(after({ do: "back" }, { do: "forward" }).selected, []);
});

test("selecting the same again is no step of history, and history is bounded", () => {
  const once = after(select("a"));
  assert.equal(reduce(once, select("a")), once);
  assert.equal(after(...Array.from({ length: 300 }, (_, i) => select(`n${i}`))).past.length, 100);
});

test("a tab remembers its face; changing tabs ends the hover", () => {
  const ui = after({ do: "hover", entity: "x" }, { do: "face", face: "after" }, { do: "tab", tab: "plan" });
  assert.deepEqual(
    [ui.hover, faceOf(ui), faceOf(reduce(ui, { do: "tab", tab: "opt" })), faceOf(initialUi("opt"))],
    [null, "plan", "after", "before"],
  );
  assert.equal(faceOf(after({ do: "face", face: "kernels" })), "before");
});

test("every pane stands once, in the order of each tab that shows it, under a key of its own", () => {
  const places = PANES.map(pane => pane.key);
  assert.equal(new Set(places).size, PANES.length);
  for (const tab of TABS) {
    const shown = panesOf(tab).map(pane => places.indexOf(pane.key));
    assert.deepEqual(shown, [...shown].sort((a, b) => a - b), tab);
  }
});

test("what changes nothing gives the same state", () => {
  const ui = initialUi("plan");
  for (const action of [
    { do: "tab", tab: "plan" },
    { do: "hover", entity: null },
    { do: "clear" },
    { do: "help", on: false },
  ] as Action[])
    assert.equal(reduce(ui, action), ui);
});
