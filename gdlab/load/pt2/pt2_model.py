"""Open a module of PyTorch as a graph of gdlab: from a file of `torch.export.save`, without PyTorch, or live.

    model = gd.load_pt2("model.pt2")                         # PyTorch is not needed
    model = gd.load_torch(net, x, train=True)                # a torch.nn.Module of this process
    session = gd.build_inference_session(model.graph)
    model.set_parameters(session)

Parameters keep their dotted names, and every node the line of the module's code that made it. Floats of any width are
f32; masks are f32 of 0 and 1; integer inputs are u32. Buffers are constants.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from gdlab.base.errors import ArgumentError, LoadError
from gdlab.base.files import open_regular
from gdlab.base.kinds import PATH, either, instance, kinds
from gdlab.base.types import Array
from gdlab.base.words import plural
from gdlab.graph import Graph
from gdlab.graph.source import Location
from gdlab.load.pt2.archive import WHERE
from gdlab.load.pt2.build import as_written, built, quoted
from gdlab.load.pt2.live import Saved, exported, written_back
from gdlab.load.pt2.program import ExportedProgram, read
from gdlab.load.shared import load_errors

if TYPE_CHECKING:
    from gdlab.session import Session

LIVE = "load_torch"
SOURCE = either("a path or bytes", PATH, instance((bytes, bytearray, memoryview), "bytes"))


@dataclass(frozen=True, slots=True)
class TorchModel:
    """The graph, the values of its parameters (float32) by their dotted names, assumptions (`notes`), and the live
    module that it was read from, if any."""

    graph: Graph
    weights: Mapping[str, Array]
    notes: tuple[str, ...] = ()
    module: object | None = None

    def __repr__(self) -> str:
        return f"<TorchModel: {plural(len(self.graph), 'node')}, {plural(len(self.weights), 'parameter')}>"

    def set_parameters(self, session: Session) -> None:
        """Set all parameters of a session of the graph."""
        for name, values in self.weights.items():
            if session.has_parameter(name):
                session.set_parameter(name, values)

    def into_module(self, trained: Session | Mapping[str, Array] | None = None) -> None:
        """Write parameters back into the live module: those of a session, of a dict by name, or `weights`. All are
        checked first: a refusal changes nothing."""
        if self.module is None:
            raise ArgumentError("into_module", "module", "none", "a model of load_torch, whose module lives here")
        if trained is None or isinstance(trained, Mapping):
            values = dict(self.weights if trained is None else trained)
        else:
            values = trained.read_params(name for name in self.weights if trained.has_parameter(name))
        written_back(self.module, values)


@kinds(source=SOURCE)
def load_pt2(
    source: str | os.PathLike[str] | bytes, *, dims: Mapping[str, int] | None = None, train: bool = False
) -> TorchModel:  # fmt: skip
    """Return the program in a file that `torch.export.save` wrote (or in its bytes), in the layouts of PyTorch 2.3 and
    later; PyTorch is not needed, and nothing in the file is executed. `dims`: a number for each extent that was
    exported as dynamic, by the name that the file has for it; without them `LoadError` lists names, places and ranges.
    `train`: gradients are those of PyTorch: `detach` and `no_grad` stop them, and parameters without `requires_grad`
    are constants.

    All operators and arguments that are not understood are listed in one `LoadError`, each with its module and the
    user's line; it is also what anything damaged raises.
    """
    name = "module" if isinstance(source, (bytes, bytearray, memoryview)) else Path(os.fspath(source)).name
    return _loaded(WHERE, lambda: _read(source, dims), train, lambda program: quoted(program, name), None, ())


def load_torch(module: Any, *example_inputs: Any, train: bool = False) -> TorchModel:
    """Return the graph of a `torch.nn.Module`, exported with these inputs as `torch.export.export` does, or of a
    program that it gave. The module is exported as in `eval()`: dropout is off, batch norms use their running
    statistics. `train`: as in `load_pt2`; `into_module` writes trained parameters back."""
    as_it_is, in_core_operators, notes = exported(LIVE, module, example_inputs)

    def model(saved: Saved) -> TorchModel:
        data = saved()
        return _loaded(LIVE, lambda: read(data, len(data)), train, lambda program: as_written, module, notes)

    try:
        return model(as_it_is)
    except LoadError:  # recurrent layers, say, which PyTorch can write out
        with suppress(Exception):
            return model(in_core_operators)
        raise


def _read(source: Any, dims: Mapping[str, int] | None) -> ExportedProgram:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return read(bytes(source), len(source), dims)
    try:
        file: BinaryIO = open_regular(source)
    except (OSError, TypeError, ValueError) as error:
        raise LoadError(WHERE, f"{source!r:.80}", f"{type(error).__name__}: {error}", "a path or bytes") from None
    try:
        return read(file, os.fstat(file.fileno()).st_size, dims)
    except BaseException:
        file.close()
        raise


def _loaded(
    where: str,
    make: Callable[[], ExportedProgram],
    train: bool,
    places: Callable[[ExportedProgram], Callable[[Location], Location]],
    module: object | None,
    notes: tuple[str, ...],
) -> TorchModel:
    """Return the model of a program; turn every error into one `LoadError`."""
    with load_errors(where, "program", "a file that torch.export.save wrote"):
        program = make()
        try:
            graph, weights = built(program, train, places(program))
        finally:
            program.archive.file.close()
        return TorchModel(graph, weights, notes, module)
