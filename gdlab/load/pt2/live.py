"""Export a live module of PyTorch, and write its parameters back: the one place that imports PyTorch, at first use."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError, LoadError
from gdlab.base.types import Array

EVAL = "the module is read as after eval(): dropout is off, batch norms use their running statistics"


Saved = Callable[[], bytes]


def exported(where: str, thing: Any, examples: Sequence[Any]) -> tuple[Saved, Saved, tuple[str, ...]]:
    """Return (the bytes that `torch.export.save` writes of a module or an exported program, the same in core operators,
    notes on assumptions)."""
    torch = _torch(where)
    notes: tuple[str, ...] = ()
    if isinstance(thing, torch.nn.Module):
        if not examples:
            raise ArgumentError(where, "example_inputs", "none", "the module's inputs: load_torch(net, x)")
        given = tuple(_tensor(torch, x) for x in examples)
        with _evaluating(thing) as was_training:
            thing = _export(where, torch, thing, given)
        notes = (EVAL,) if was_training else ()
    elif not isinstance(thing, torch.export.ExportedProgram):
        wanted = "a torch.nn.Module with inputs, or a torch.export.ExportedProgram"
        raise ArgumentError(where, "module", type(thing).__name__, wanted)
    elif examples:
        raise ArgumentError(where, "example_inputs", f"{len(examples)}", "none: an exported program has its own")
    program = thing
    return lambda: _saved(where, torch, program), lambda: _bytes_of(torch, program.run_decompositions()), notes


def written_back(module: Any, values: Mapping[str, Array]) -> None:
    """Copy values into the parameters of a module or an exported program, all of them or none."""
    torch = _torch("into_module")
    live = isinstance(module, torch.nn.Module)
    own = dict(module.named_parameters(remove_duplicate=False) if live else module.named_parameters())
    for name, array in values.items():
        if name not in own or tuple(own[name].shape) not in (np.shape(array), np.shape(array)[1:]):
            shape = list(own[name].shape) if name in own else "no such parameter"
            raise ArgumentError("into_module", f"parameter {name!r:.80}", list(np.shape(array)), f"{shape}")
    with torch.no_grad():
        for name, array in values.items():
            own[name].copy_(torch.from_numpy(np.array(array, np.float32)).reshape(own[name].shape))


def _torch(where: str) -> Any:
    try:
        import torch
        import torch.export
    except ImportError:
        raise LoadError(where, "package torch", "none", "pip install torch; load_pt2 needs none") from None
    return torch


def _tensor(torch: Any, x: Any) -> Any:
    return torch.from_numpy(x) if isinstance(x, np.ndarray) else x


@contextmanager
def _evaluating(module: Any) -> Iterator[bool]:
    """Put the module in evaluation mode inside the block, and restore the mode of each of its modules after it."""
    was = [(part, part.training) for part in module.modules()]
    for part, _ in was:
        part.training = False
    try:
        yield any(training for _, training in was)
    finally:
        for part, training in was:
            part.training = training


def _export(where: str, torch: Any, module: Any, examples: tuple[Any, ...]) -> Any:
    takes = inspect.signature(torch.export.export).parameters
    options = {"strict": False} if "strict" in takes else {}
    try:
        return torch.export.export(module, examples, **options)
    except Exception as error:  # of whatever the module's code does
        given = f"{type(error).__name__}: {error}"
        raise LoadError(where, type(module).__name__, f"{given:.400}", "what torch.export.export takes") from error


def _saved(where: str, torch: Any, program: Any) -> bytes:
    """Return the bytes of the program as it is or, if PyTorch cannot write it (`vmap` in masks of transformers), in
    core operators."""
    try:
        return _bytes_of(torch, program)
    except Exception as first:  # whatever PyTorch's serializer meets
        try:
            return _bytes_of(torch, program.run_decompositions())
        except Exception:
            given = f"{type(first).__name__}: {first}"
            raise LoadError(where, "program", f"{given:.400}", "what torch.export.save takes") from first


def _bytes_of(torch: Any, program: Any) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue()
