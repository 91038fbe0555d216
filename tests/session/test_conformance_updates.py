"""Random sequences of every updating call against an independent model of them in float64."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conforming import packed
from matrix import count
from session_state import X, Y, line

import gdlab as gd

Arrays = dict[str, Any]
X64, Y64 = X.astype(np.float64), Y.astype(np.float64)


def of_line(p: Arrays) -> Arrays:
    d = 2 * (X64 @ p["w"] + p["b"] - Y64) / 8
    return {"w": X64.T @ d, "b": d.sum(0)}


def of_packed(p: Arrays) -> Arrays:
    a, b = X64 @ p["net.gate"], X64 @ p["net.up"]
    s = 1 / (1 + np.exp(-a))
    d = 2 * (a * s * b - Y64) / 8
    return {"net.gate": X64.T @ (d * b * (s + a * s * (1 - s))), "net.up": X64.T @ (d * a * s)}


@dataclass
class Model:
    """A model of the calls: it does what they are documented to do."""

    gradient: Callable[[Arrays], Arrays]
    p: Arrays
    m: Arrays = field(default_factory=dict)
    v: Arrays = field(default_factory=dict)
    total: Arrays = field(default_factory=dict)
    g: Arrays = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    rule: tuple[Any, ...] | None = None
    clip: tuple[float, ...] = ()
    t: int = 0
    n: int = 1
    window: int = 0

    def __post_init__(self) -> None:
        self.m, self.v = ({k: np.zeros_like(x) for k, x in self.p.items()} for _ in range(2))
        self.begin()

    def begin(self) -> None:
        self.window, self.total = 0, {k: np.zeros_like(x) for k, x in self.p.items()}

    def step(self) -> None:
        self.g = self.gradient(self.p)
        if self.rule is None:
            return
        self.total = {k: self.total[k] + self.g[k] / self.n for k in self.g}
        self.window += 1
        if self.window == self.n:
            self.update(self.rule, self.total)
            self.begin()

    def update(self, rule: tuple[Any, ...], g: Arrays) -> None:
        kind, lr, b1, b2, eps, decay = rule
        self.t += kind != "sgd"
        self.p = {k: x - self.moved(kind, lr * self.rate(k), b1, b2, eps, decay, k, g) for k, x in self.p.items()}

    def moved(self, kind: str, lr: float, b1: float, b2: float, eps: float, decay: float, k: str, g: Arrays) -> Any:
        d = g[k] * self.factor(k, g)
        if kind == "sgd":
            return lr * d
        self.v[k] = b2 * self.v[k] + (1 - b2) * d * d
        root = np.sqrt(self.v[k] / (1 - b2**self.t)) + eps
        self.m[k] = b1 * self.m[k] + (1 - b1) * (d / root if kind == "laprop" else d)
        m = self.m[k] / (1 - b1**self.t)
        return lr * (m if kind == "laprop" else m / root) + lr * decay * self.p[k]

    def rate(self, name: str) -> float:
        return self.rates[max(found, key=len)] if (found := [q for q in self.rates if name.startswith(q)]) else 1.0

    def factor(self, name: str, g: Arrays) -> float:
        if not self.clip:
            return 1.0
        limit, *floor = self.clip
        if not floor:
            return float(min(1, limit / np.sqrt(sum((x**2).sum() for x in g.values()))))
        return float(min(1, limit * max(floor[0], np.linalg.norm(self.p[name])) / np.linalg.norm(g[name])))


CALLS = (
    "step step step step sgd adam adamw laprop clear rate frozen same norm adaptive loose accumulate zero sgd_step "
    "adam_step sgd_step_cpu moment count set save load"
).split()


def play(s: gd.Session, model: Model, seed: int, path: Path) -> None:
    """The same calls to both, and after each the same state."""
    rng, data, saved = random.Random(seed), np.random.default_rng(seed), None
    for _ in range(25):
        call, lr = rng.choice(CALLS), rng.choice([0.01, 0.05, 0.2])
        more = rng.choice([0.0, 0.5, 0.9]), rng.choice([0.9, 0.99]), rng.choice([1e-3, 1e-2])
        name = rng.choice(list(model.p))
        match call:
            case "step":
                s.step()
                model.step()
            case "sgd":
                s.set_learning_rate(lr)
                model.rule = ("sgd", lr, *more, 0)
            case "adam" | "laprop":
                (s.set_adam if call == "adam" else s.set_laprop)(lr, *more)
                model.rule = (call, lr, *more, 0)
            case "adamw":
                s.set_adamw(lr, *more, 0.1)
                model.rule = ("adamw", lr, *more, 0.1)
            case "clear":
                s.clear_optimizer()
                model.rule = None
            case "rate" | "frozen":
                prefix = rng.choice(["", name, name[:1]])
                model.rates[prefix] = rng.choice([0.5, 2.0]) if call == "rate" else 0.0
                s.set_lr_multiplier(prefix, model.rates[prefix])
            case "same":
                s.clear_lr_multipliers()
                model.rates = {}
            case "norm":
                s.set_grad_clip_norm(3 * lr)
                model.clip = (3 * lr,)
            case "adaptive":
                s.set_adaptive_grad_clip(lr, 0.5)
                model.clip = lr, 0.5
            case "loose":
                rng.choice([s.set_grad_clip_norm, s.set_adaptive_grad_clip])(None)
                model.clip = ()
            case "accumulate":
                model.n = rng.choice([1, 2, 3])
                s.set_grad_accumulate(model.n)
                model.begin()
            case "zero":
                s.zero_grad()
                model.begin()
            case "sgd_step" | "sgd_step_cpu" if model.g:
                getattr(s, call)(lr)
                model.update(("sgd", lr, *more, 0), model.g)
            case "adam_step" if model.g:
                s.adam_step(lr, *more)
                model.update(("adam", lr, *more, 0), model.g)
            case "moment":
                model.v[name] = data.random(model.p[name].shape)
                s.write_adam_v(name, model.v[name])
            case "count":
                model.t = rng.choice([0, 5])
                s.set_adam_step_count(model.t)
            case "set":
                model.p[name] = data.normal(size=model.p[name].shape)
                s.set_parameter(name, model.p[name])
            case "save":
                s.save_checkpoint(path)
                saved = dict(model.p), dict(model.m), dict(model.v), model.t
            case "load" if saved is not None:
                s.load_checkpoint(path)
                model.p, model.m, model.v, model.t = dict(saved[0]), dict(saved[1]), dict(saved[2]), saved[3]
                model.begin()
        check(s, model, f"seed {seed}, {call}")


def check(s: gd.Session, model: Model, where: str) -> None:
    reads = (("value", s.read_param, model.p), ("m", s.read_adam_m, model.m), ("v", s.read_adam_v, model.v))
    for what, read, wanted in reads:
        for name, want in wanted.items():
            got = read(name)
            allowed = 3e-4 * max(1e-3, np.abs(want).max())
            assert (np.abs(got - want) <= allowed).all(), f"{where}: {what} of {name}: {got}, wanted {want}"
            wanted[name] = got.astype(np.float64)  # both go on from the same bits
    for name, g in model.g.items():
        np.testing.assert_allclose(s.read_param_grad(name), g, rtol=1e-3, atol=1e-4, err_msg=where)
    assert s.adam_step_count() == model.t, where


@pytest.mark.parametrize("seed", range(count(4, 8)))
def test_any_order_of_calls_does_what_it_says(device: str, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    with gd.build_session(line() if seed % 2 else packed(), device) as s:
        values = {n: rng.normal(size=s.plan().param_types[n].shape).astype(np.float32) for n in s.param_names()}
        for name, data in ({"x": X, "y": Y} | values).items():
            (s.set_parameter if name in values else s.set_input)(name, data)
        model = Model(of_line if seed % 2 else of_packed, {n: v.astype(np.float64) for n, v in values.items()})
        play(s, model, seed, tmp_path / "run")
