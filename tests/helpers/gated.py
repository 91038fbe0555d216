"""A gated network in the four forms whose weights are packed, and sessions of it, packed and not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optimizing import p
from safetensors import safe_open
from safetensors.numpy import load_file

from gdlab import ops
from gdlab.graph import Graph, Value
from gdlab.rewrite.rules.packing import PACKING
from gdlab.session import Session, SessionConfig, build

K, N = 3, 5  # five columns: no range begins or ends where four neighbours do


@dataclass(frozen=True)
class Form:
    """A gate over two products, the rule that packs their weights, and along which axis."""

    gate: Callable[..., Value]
    product: Callable[[Value, Value], Value]
    rule: str
    axis: int

    @property
    def weight(self) -> tuple[int, int]:
        return (K, N) if self.axis else (N, K)

    def __str__(self) -> str:
        return self.rule

    def of(self, h: Value, gate: Value, up: Value) -> Value:
        return self.gate(self.product(h, gate), self.product(h, up))


SWIGLU, SWIGLU_BT, GEGLU, GEGLU_BT = FORMS = (
    Form(ops.swiglu, ops.matmul, "pack_swiglu", 1), Form(ops.swiglu, ops.matmul_bt, "pack_swiglu_bt", 0),
    Form(ops.geglu, ops.matmul, "pack_geglu", 1), Form(ops.geglu, ops.matmul_bt, "pack_geglu_bt", 0),
)  # fmt: skip
forms = pytest.mark.parametrize("form", FORMS, ids=str)
both = pytest.mark.parametrize("form", (SWIGLU, SWIGLU_BT), ids=str)


def ffn(form: Form = SWIGLU) -> Graph:
    """mse(down(gate(x · gate, x · up)) + bias, y), and the prediction; gate and up are packed."""
    with Graph() as g:
        x, y = ops.input("x", (4, K)), ops.input("y", (4, 2))
        gate, up, down = p("gate", *form.weight), p("up", *form.weight), p("down", N, 2)
        out = form.of(x, gate, up) @ down + p("bias", 2)
        g.set_outputs({"loss": ops.mse_loss(out, y), "out": out})
    return g


def session_of(
    device: str, form: Form = SWIGLU, pack: bool = True, mode: Any = "training", **fields: Any
) -> Session:
    """A session of `ffn` with its inputs."""
    options: dict[str, Any] = {"enable": form.rule} if pack else {"disable": PACKING}
    session, _ = build(ffn(form), SessionConfig(mode=mode, device=device, optimize=options, **fields))
    assert bool(session.plan().derived_params) is pack
    rng = np.random.default_rng(5)
    for name, shape in (("x", (4, K)), ("y", (4, 2))):
        session.set_input(name, rng.normal(size=shape))
    return session


def two(device: str, form: Form = SWIGLU) -> tuple[Session, Session]:
    """The same session packed and not, with the same initial values."""
    made = session_of(device, form), session_of(device, form, pack=False)
    for s in made:
        s.initialize(7)
    return made


def same(a: Session, b: Session, rtol: float = 1e-5) -> None:
    """Parameters, gradients and moments by name."""
    for n in a.param_names():
        for read in ("read_param", "read_param_grad", "read_adam_m", "read_adam_v"):
            np.testing.assert_allclose(
                getattr(a, read)(n), getattr(b, read)(n), rtol=rtol, atol=1e-7, err_msg=f"{read} {n}"
            )


def different(form: Form) -> dict[str, np.ndarray]:
    """Data for both sources, no element twice."""
    count = K * N
    gate, up = np.arange(count, dtype=np.float32), 100 + np.arange(count, dtype=np.float32)
    return {"gate": gate.reshape(form.weight), "up": up.reshape(form.weight)}


def content(path: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """Metadata (the digest is of every byte) and tensors, whose order in the header is no content."""
    with safe_open(path, "numpy") as file:
        return dict(file.metadata()), {n: file.get_tensor(n).tobytes() for n in file.keys()}


def alike(mine: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> None:
    """Two checkpoints of one network: the same tensors under the same names, none of a packed weight."""
    assert list(mine) == list(theirs) and not any("+" in name for name in mine)
    for name in mine:
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-4, atol=1e-6, err_msg=name)


def crosswise(a: Session, b: Session, folder: Path, source: str, reader: Session) -> None:
    """Each session goes on from the other's file, a reading one too; `source` lies in a packed weight of one."""
    for session in (a, b):
        session.set_adam(0.01)
        session.step()
    a.save_checkpoint(folder / "a")
    b.load_checkpoint(folder / "a")
    b.save_checkpoint(folder / "b")
    assert content(folder / "a") == content(folder / "b")
    b.step()
    b.save_checkpoint(folder / "b")
    a.load_checkpoint(folder / "b")
    for n in a.param_names():
        assert np.array_equal(a.read_param(n), b.read_param(n))
        assert np.array_equal(a.read_adam_v(n), b.read_adam_v(n))
    a.step()
    b.step()
    same(a, b, 2e-4)
    with reader:
        reader.load_checkpoint(folder / "b")
        assert np.array_equal(reader.read_param(source), load_file(folder / "b")[source])


def recipe(s: Session, rule: str) -> None:
    """Every setting of an update that tells parameters apart."""
    getattr(s, rule)(0.05)
    s.set_lr_multiplier("gate", 0.25)
    s.step()
    s.set_adaptive_grad_clip(0.01)
    for _ in range(2):
        s.step()
    s.set_grad_clip_norm(0.01)
    s.set_grad_accumulate(2)
    for _ in range(3):
        s.step()
    s.clear_lr_multipliers()
    s.set_lr_multiplier("up", 3)
    s.sgd_step(0.1)
    s.set_grad_clip_norm(None)
    s.adam_step(0.01)
    s.set_adaptive_grad_clip(0.02)
    s.sgd_step_cpu(0.1)
