"""A list, a plan and a tape that compute the same op have one pipeline (doors.md §1, K6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest
from machine import needs

from gdlab import ops
from gdlab.eager import EagerSession
from gdlab.graph import Graph
from gdlab.record.executor import GraphExecutor
from gdlab.session import SessionConfig, build

COUNT = iter(range(131, 10_000, 2))  # columns that no other test has
Made = dict[str, int]


def planned(x: np.ndarray) -> Made:
    with Graph() as g:
        g.set_outputs([ops.input("x", x.shape).softmax()])
    session, _ = build(g, SessionConfig("inference", "wgpu"))
    with session:
        session.step(feeds=[{"x": x}])
        assert np.allclose(session.read_output().sum(1), 1.0)
        return session.traffic.as_dict()


def on_a_tape(x: np.ndarray) -> Made:
    with closing(EagerSession(device="wgpu")) as s:
        assert np.allclose(s.input(x).softmax().numpy().sum(1), 1.0)
        return s.counters()


def listed(x: np.ndarray) -> Made:
    with GraphExecutor("wgpu") as ex:
        a, b = (ex.alloc_buffer(x.nbytes, "f32", x.shape) for _ in range(2))
        a.write(x)
        with ex.begin() as s:
            s.softmax(a, b, *x.shape)
        assert np.allclose(b.read().sum(1), 1.0)
        return ex.counters()


DOORS: dict[str, Callable[[np.ndarray], Made]] = {"plan": planned, "tape": on_a_tape, "list": listed}


@pytest.fixture
def x() -> Iterator[np.ndarray]:
    needs("wgpu")
    yield np.random.default_rng(0).normal(size=(7, next(COUNT))).astype(np.float32)


@pytest.mark.parametrize("first", DOORS)
def test_a_list_a_plan_and_a_tape_have_one_pipeline(first: str, x: np.ndarray) -> None:
    assert DOORS[first](x)["pipelines_created"] == 1
    for door in DOORS.keys() - {first}:
        assert DOORS[door](x)["pipelines_created"] == 0, door
