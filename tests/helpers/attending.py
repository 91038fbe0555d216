"""A layer whose query, key and value can be made by one product, and sessions of it, packed and not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from optimizing import graph_of, p

from gdlab import ops
from gdlab.devices.base import Program
from gdlab.devices.choose import device as device_of
from gdlab.graph import Graph, Value
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.target import Target
from gdlab.rewrite.rules.packing import PRODUCTS
from gdlab.session import Session, SessionConfig, build
from gdlab.session.builders import compiled

ROWS, K = 5, 6
ENABLED = {"enable": PRODUCTS}


@dataclass(frozen=True)
class Heads:
    """Widths of query (and of key and value), and whether weights are [out, in]."""

    wide: int
    narrow: int
    turned: bool = False

    def __str__(self) -> str:
        return f"{self.wide}+{self.narrow}+{self.narrow}" + "T" * self.turned

    @property
    def axis(self) -> int:
        """Of the pack."""
        return 0 if self.turned else 1

    @property
    def rule(self) -> str:
        return PRODUCTS[self.turned]

    @property
    def widths(self) -> dict[str, int]:
        return {"q": self.wide, "k": self.narrow, "v": self.narrow}

    def shape(self, name: str) -> tuple[int, int]:
        n = self.widths[name]
        return (n, K) if self.turned else (K, n)

    def product(self, h: Value, name: str) -> Value:
        w = p(name, *self.shape(name))
        return ops.matmul_bt(h, w) if self.turned else h @ w


# ranges that begin where four neighbours do, and ranges that do not
FOURS, ODD, FOURS_T, ODD_T = FORMS = Heads(16, 8), Heads(6, 3), Heads(16, 8, True), Heads(6, 3, True)
forms = pytest.mark.parametrize("heads", FORMS, ids=str)
both = pytest.mark.parametrize("heads", (FOURS, ODD_T), ids=str)


def layer(heads: Heads = FOURS) -> Graph:
    """mse(attention(norm(x)·q, norm(x)·k, norm(x)·v)·o, y), and the prediction."""
    with Graph() as g:
        x, y = ops.input("x", (ROWS, K)), ops.input("y", (ROWS, K))
        h = ops.rms_norm(x, p("norm", K), 1e-5)
        q, k, v = (heads.product(h, n).named(n * 2) for n in "qkv")
        mixed = ops.causal_attention(q, k, v, heads.wide // heads.narrow, 1, heads.narrow)
        out = x + mixed @ p("o", heads.wide, K)
        g.set_outputs({"loss": ops.mse_loss(out, y), "out": out})
    return g


def session_of(device: str, heads: Heads = FOURS, pack: bool = True, mode: Any = "training", **fields: Any) -> Session:
    """A session of `layer` with its inputs."""
    options = ENABLED if pack else {}
    session, _ = build(layer(heads), SessionConfig(mode=mode, device=device, optimize=options, **fields))
    assert bool(session.plan().derived_params) is pack
    rng = np.random.default_rng(5)
    for name in "xy":
        session.set_input(name, rng.normal(size=(ROWS, K)))
    return session


def two(device: str, heads: Heads = FOURS) -> tuple[Session, Session]:
    """The same session packed and not, with the same initial values."""
    made = session_of(device, heads), session_of(device, heads, pack=False)
    for s in made:
        s.initialize(7)
    return made


def products(m: int, k: int, *widths: int) -> Graph:
    """Products of one input, as outputs."""

    def make() -> list[Value]:
        x = ops.input("x", (m, k))
        return [x @ p(f"w{i}", k, n) for i, n in enumerate(widths)]

    return graph_of(make)


def plan_of(graph: Graph, mode: Any = "inference", target: Target | None = None, **fields: Any) -> ExecutionPlan:
    config = SessionConfig(mode=mode, optimize=ENABLED, **fields)  # type: ignore[arg-type]
    return compiled(graph, config, target or Target.portable()).plan


def ran(plan: ExecutionPlan, feeds: dict[str, np.ndarray], kind: str = "cpu") -> list[np.ndarray]:
    """The outputs of a plan, run twice with poisoned slots."""
    program = loaded(plan, feeds, kind)
    for _ in range(2):
        program.poison()
        program.step(None)
    found = [program.download(b).copy() for b in plan.output_buffers]
    program.close()
    return found


def loaded(plan: ExecutionPlan, feeds: dict[str, np.ndarray], kind: str) -> Program:
    """A program of the plan with its data."""
    program = device_of(kind).load(plan)  # type: ignore[arg-type]
    for name, buffer in plan.input_buffers:
        program.upload(buffer, feeds[name])
    inside = {s for d in plan.derived_params for s, _ in d.sources}
    for name, buffer in plan.param_buffers:
        if name not in inside:
            program.upload(buffer, feeds[name])  # type: ignore[arg-type]
    for d in plan.derived_params:
        whole = np.concatenate([feeds[s] for s, _ in d.sources], d.axis)
        program.upload(dict(plan.stored_params)[d.name], whole)
    return program
