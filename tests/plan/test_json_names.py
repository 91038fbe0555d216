"""Plan JSON has the names that people read: `bytes`, `pinned`, `inputs`."""

from __future__ import annotations

import json

import networks
import pytest

from gdlab.plan.codec import from_json, to_json
from gdlab.study.study import Study


@pytest.mark.parametrize("make", [networks.small_mlp, networks.transformer, networks.gated_block])
def test_a_plan_says_bytes_pinned_inputs_in_json_and_comes_back_equal(make: object) -> None:
    plan = Study(make(), train=False, device="cpu", name="net").plan  # type: ignore[operator]
    text = to_json(plan)
    data = json.loads(text)
    assert [b["bytes"] for b in data["buffers"]] == [b.bytes for b in plan.buffers]
    assert [s["bytes"] for s in data["memory"]["slots"]] == [s.bytes for s in plan.memory.slots]
    assert dict(data["memory"]["pinned"]) == dict(plan.memory.pinned)
    assert all([o["buffer"] for o in d["inputs"]] == [o.buffer for o in e.operands]
               for d, e in zip(data["dispatches"], plan.dispatches, strict=True))  # fmt: skip
    assert not any(f'"{old}":' in text for old in ("nbytes", "pins", "operands"))
    assert from_json(text) == plan
