"""A stand-in for PyTorch, which the tests do without: it exports the fixture `mlp`, whatever the module."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
from pt2_files import FIXTURES


class TorchParameter:
    """As much of a parameter of PyTorch as is written back."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.held = shape, np.zeros(shape, np.float32)

    def copy_(self, values: np.ndarray) -> None:
        self.held[...] = values


class Net:
    """As much of a module of PyTorch as is exported."""

    training = True

    def __init__(self) -> None:
        with np.load(FIXTURES / "mlp.npz") as held:
            shapes = {key[5:]: held[key].shape for key in held.files if key.startswith("grad.")}
        self.parameters = {name: TorchParameter(shape) for name, shape in shapes.items()}

    def modules(self) -> list[Any]:
        return [self]

    def named_parameters(self, remove_duplicate: bool = True) -> Any:
        return self.parameters.items()


class NoGrad:
    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


class TorchProgram:
    """As much of an exported program as is saved; some are readable in core operators alone."""

    core = False

    def run_decompositions(self) -> TorchProgram:
        made = TorchProgram()
        made.core = True
        return made


def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make `import torch` give the stand-in; `seen` holds what was exported last."""
    seen: dict[str, Any] = {}

    def export(module: Any, args: Any, strict: bool = True) -> Any:
        seen.update(training=module.training, args=args, strict=strict)
        return TorchProgram()

    def save(program: Any, file: Any) -> None:
        file.write((FIXTURES / "mlp.pt2").read_bytes() if program.core or not seen.get("recurrent") else b"lstm")

    made: Any = types.ModuleType("torch")
    made.nn = types.SimpleNamespace(Module=Net)
    made.export = types.ModuleType("torch.export")
    made.export.export, made.export.save, made.export.ExportedProgram = export, save, TorchProgram
    made.from_numpy, made.no_grad, made.seen = (lambda a: a), NoGrad, seen
    monkeypatch.setitem(sys.modules, "torch", made)
    monkeypatch.setitem(sys.modules, "torch.export", made.export)
    return made
