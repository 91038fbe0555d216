"""Data in and out of a session by name, and which inputs and parameters have a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from gdlab.base.errors import ArgumentError, DTypeError, OutputIndexError, SessionError, ShapeError, unknown_name
from gdlab.base.formats.packed_bytes import Packed
from gdlab.base.kinds import is_several
from gdlab.base.types import FORMATS, Array, u32
from gdlab.base.words import listed, plural
from gdlab.op.storage import SourceRange
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.records import Place
from gdlab.session.arrays import as_array, into
from gdlab.session.initial import DEFAULT, check_init, initial_values
from gdlab.session.loaded import TRAINING, LoadedPlan
from gdlab.session.progress import Progress
from gdlab.session.tensor_places import places_of, slices_of

P = TypeVar("P", bound=Place)
_BYTES = (bytes, bytearray, memoryview)
_REMEDIES = "initialize(seed), initialize(zeros=True), set_parameter or load_checkpoint"


class UnsetParameters:
    """The set of a session's parameters that have no value yet. `holders`: by parameter the set that tells, which is
    one for all sessions that share the parameter."""

    def __init__(self, names: Iterable[str], shared: Mapping[str, set[str]] | None = None) -> None:
        own = set(names)
        self.holders = dict.fromkeys(own, own) | dict(shared or {})
        own.difference_update(shared or ())
        self._sets = tuple({id(held): held for held in self.holders.values()}.values())

    def __bool__(self) -> bool:
        """Return False if every parameter has a value; True if some may have none, perhaps only those of another
        session."""
        return any(self._sets)

    def __contains__(self, name: object) -> bool:
        return name in self.holders and name in self.holders[str(name)]

    def have(self, names: Iterable[str]) -> None:
        """Note that these parameters have a value now."""
        for name in names:
            self.holders[name].discard(name)

    def lack(self, names: Iterable[str]) -> None:
        """Note that these parameters have no value."""
        for name in names:
            self.holders[name].add(name)


class Values:
    """The values of a session's tensors. `unset_parameters` has its sets in common with sessions that share parameters.
    Methods without a docstring are those of `Session`."""

    def __init__(
        self, loaded: LoadedPlan, progress: Progress, unset_parameters: Mapping[str, set[str]] | None = None
    ) -> None:
        self.loaded, self.progress = loaded, progress
        self.places = places_of(loaded.plan)
        self.unset_inputs = set(self.places.inputs)
        self.unset_parameters = UnsetParameters(self.places.parameters, unset_parameters)

    # what has a value -------------------------------------------------------------------------------------------------
    def inputs_without_value(self) -> list[str]:
        """Return the inputs without a value, in node order."""
        return [n for n in self.places.inputs if n in self.unset_inputs]

    def parameters_without_value(self) -> list[str]:
        """Return the parameters without a value, in node order."""
        return [n for n in self.places.parameters if n in self.unset_parameters]

    def check_ready(self, where: str, inputs: bool = True) -> None:
        """Raise `SessionError` unless every parameter and (with `inputs`) every input has a value."""
        self.loaded.check_open(where)
        if inputs and self.unset_inputs:
            names = listed(self.inputs_without_value())
            raise SessionError(where, "inputs", f"no value for {names}", "set_input for each")
        if self.unset_parameters and (missing := self.parameters_without_value()):  # shared with a larger session?
            raise SessionError(where, "parameters", f"no value for {listed(missing)}", _REMEDIES)

    # places -----------------------------------------------------------------------------------------------------------
    def parameter(self, where: str, name: str) -> Place:
        """Return the place of a parameter, or of a derived one."""
        self.loaded.check_open(where)
        if isinstance(name, str) and name in self.places.derived:
            return self.places.derived[name]
        return _lookup(where, name, self.places.parameters)

    def input(self, where: str, name: str) -> int:
        """Return the buffer of an input."""
        self.loaded.check_open(where)
        return _lookup(where, name, self.places.inputs)

    def output(self, where: str, index: int) -> int:
        """Return the buffer of a user output."""
        self.loaded.check_open(where)
        buffers = self.loaded.plan.output_buffers
        if not isinstance(index, (int, np.integer)) or isinstance(index, bool) or not 0 <= index < len(buffers):
            wanted = f"0 … {len(buffers) - 1}: {plural(len(buffers), 'output')}"
            raise OutputIndexError(where, "index", repr(index), wanted)
        return buffers[index]

    def has_param_grad(self, name: str) -> bool:
        self.loaded.check_open("has_param_grad")
        places = self.places
        known = isinstance(name, str)
        return known and places.parameters.get(name, places.derived.get(name, -1)) in places.gradients

    # transfers --------------------------------------------------------------------------------------------------------
    def read(self, place: Place) -> Array:
        """Return a copy of the data at a place now."""
        return self.loaded.exclusively(lambda: self.download(place))

    def read_results(self, dispatch: Dispatch) -> tuple[Array, ...]:
        """Return the present data of each result of a dispatch; ranges of columns side by side as one."""
        if not dispatch.in_columns:
            return tuple(self.read(b) for b in dispatch.outputs)
        rows = dispatch.type.shape[0]
        return (np.concatenate([self.read(b).reshape(rows, -1) for b in dispatch.outputs], 1),)

    def download(self, place: Place) -> Array:
        """Return a copy of the data at a place; call it on the owner thread, or `exclusively`."""
        if isinstance(place, int):
            return self.loaded.program.download(place)
        return np.ascontiguousarray(self._storage(place)[slices_of(place)])

    def upload(self, place: Place, data: Array) -> None:
        """Write a buffer, or a part of one and nothing else; call it as `download`."""
        if isinstance(place, int):
            return self.loaded.program.upload(place, data)
        storage = self._storage(place).copy()
        storage[slices_of(place)] = data
        self.loaded.program.upload(place.buffer, storage)

    def _storage(self, part: SourceRange) -> Array:
        """Return the derived parameter, its gradient or its moment that `part` lies in; it may be stored flat."""
        data, shapes = self.loaded.program.download(part.buffer), self.places.shapes
        rows, columns = shapes[part.buffer] if part.buffer in shapes else data.shape
        return data.reshape(rows, columns)

    # data in ----------------------------------------------------------------------------------------------------------
    def set_input(self, name: str, data: Any, where: str = "set_input") -> None:
        buffer = self.input(where, name)
        array = as_array(where, name, data, self.places.types[buffer], self.places.index_bounds.get(name))
        self.loaded.exclusively(lambda: self.loaded.program.upload(buffer, array))
        self.unset_inputs.discard(name)

    def batch(self, where: str, feed: Mapping[str, Any]) -> list[tuple[int, Array]]:
        """Return (buffer, array) of every input in a mapping from names to data, checked."""
        if not isinstance(feed, Mapping):
            raise ArgumentError(where, "feed", type(feed).__name__, "a mapping from input names to arrays")
        found = [(self.input(where, name), name, data) for name, data in feed.items()]
        bounds, types = self.places.index_bounds, self.places.types
        return [(b, as_array(where, name, data, types[b], bounds.get(name))) for b, name, data in found]

    def fed(self, buffers: Iterable[int]) -> None:
        """Note that the inputs in these buffers have a value now."""
        written = set(buffers)
        self.unset_inputs -= {name for name, buffer in self.places.inputs.items() if buffer in written}

    def set_input_u32(self, name: str, data: Any) -> None:
        type = self.places.types[self.input("set_input_u32", name)]
        if type.dtype is not u32:
            raise DTypeError("set_input_u32", repr(name), f"an input of {type}", "an input of u32: set_input for this")
        self.set_input(name, data, "set_input_u32")

    def set_parameter(self, name: str, data: Any, where: str = "set_parameter") -> None:
        place = self.parameter(where, name)
        if isinstance(data, Packed) and data.type == self.places.types[place]:
            return self.set_parameter_packed(name, data.data)
        array = as_array(where, name, data, self.places.types[place])
        self.loaded.exclusively(lambda: self.upload(place, array))
        derived = next((d for d in self.loaded.plan.derived_params if d.name == name), None)
        self.unset_parameters.have([name] if derived is None else [n for n, _ in derived.sources])

    def set_parameter_packed(self, name: str, data: bytes) -> None:
        buffer = self.parameter("set_parameter_packed", name)
        type = self.places.types[buffer]
        if not type.dtype.is_storage:
            wanted = f"one of {', '.join(map(str, FORMATS))}: set_parameter for this"
            raise DTypeError("set_parameter_packed", repr(name), f"a parameter of {type}", wanted)
        if not isinstance(data, _BYTES) or memoryview(data).nbytes not in (type.data_bytes, type.size_bytes):
            given = f"{memoryview(data).nbytes} bytes" if isinstance(data, _BYTES) else data.__class__.__name__
            raise ShapeError("set_parameter_packed", repr(name), given, f"{type.data_bytes} bytes ({type})")
        assert isinstance(buffer, int)  # only f32 lies in parts of another parameter
        words = Packed(type.dtype, type.shape, bytes(data)).words
        self.loaded.exclusively(lambda: self.loaded.program.upload_words(buffer, words))
        self.unset_parameters.have([name])

    def initialize(self, seed: int, zeros: bool) -> None:
        self.loaded.check_open("initialize")
        self.check_seed(seed)
        plan = self.loaded.plan
        declared = {n.name: dict(n.attrs).get("init") or DEFAULT for n in plan.graph.parameters}
        values: dict[str, Array] = {}  # all are made before one is set: a refusal changes nothing
        for name in self.parameters_without_value():
            shape, init = plan.param_types[name].shape, check_init(name, declared[name])
            data = np.zeros(shape, np.float32) if zeros else initial_values(name, shape, int(seed), init)
            values[name] = as_array("initialize", name, data, plan.param_types[name])
        for name, data in values.items():
            self.set_parameter(name, data, "initialize")

    def check_seed(self, seed: int) -> None:
        """Raise `ArgumentError` for what is no seed of initial values."""
        if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or not 0 <= seed < 2**64:
            raise ArgumentError("initialize", "seed", repr(seed), "an int in 0 … 2^64 − 1")

    # data out ---------------------------------------------------------------------------------------------------------
    def read_param(self, name: str, out: Array | None) -> Array:
        place = self.parameter("read_param", name)
        return into("read_param", name, out, self.read(place).astype(np.float32, copy=False))

    def held(self, name: str) -> Array | Packed:
        """Return the value of a parameter as another session takes it bit by bit: blocks in their bytes."""
        place = self.parameter("read_param", name)
        type = self.places.types[place]
        if not type.dtype.in_blocks:
            return self.read_param(name, None)
        assert isinstance(place, int)  # only f32 lies in parts of another parameter
        return Packed.of_words(self.loaded.exclusively(lambda: self.loaded.program.words(place)), type)

    def read_params(self, names: Iterable[str]) -> dict[str, Array]:
        self.loaded.check_open("read_params")
        if isinstance(names, (str, bytes)) or not is_several(names):
            raise ArgumentError("read_params", "names", type(names).__name__, "several names: read_param for one")
        names = list(names)
        places = [self.parameter("read_params", name) for name in names]
        read = self.loaded.exclusively(lambda: [self.download(p) for p in places])
        return {name: data.astype(np.float32, copy=False) for name, data in zip(names, read, strict=True)}

    def read_param_grad(self, name: str, out: Array | None) -> Array:
        place = self.parameter("read_param_grad", name)
        if self.loaded.plan.mode != "training":
            raise SessionError("read_param_grad", repr(name), "an inference session", TRAINING)
        gradient = self.places.gradients.get(place)
        if gradient is None:
            raise SessionError("read_param_grad", repr(name), "a parameter that is not trained", "one with a gradient")
        self.progress.check_stepped("read_param_grad", repr(name))
        return into("read_param_grad", name, out, self.read(gradient).reshape(self.places.types[place].shape))

    def read_input(self, name: str) -> Array:
        buffer = self.input("read_input", name)
        if name in self.unset_inputs:
            raise SessionError("read_input", repr(name), "no value yet", "set_input before it")
        return self.read(buffer).reshape(self.places.types[buffer].shape)

    def read_buffer(self, ref: int) -> Array:
        self.loaded.check_open("read_buffer")
        count = len(self.loaded.plan.buffers)
        if not isinstance(ref, (int, np.integer)) or isinstance(ref, bool) or not 0 <= ref < count:
            raise ArgumentError("read_buffer", "ref", repr(ref), f"0 … {count - 1}: {plural(count, 'buffer')}")
        return self.read(int(ref))

    def read_loss(self) -> float:
        self.loaded.check_open("read_loss")
        buffer = self.loaded.plan.loss_buffer
        if buffer is None:
            return 0.0
        self.progress.check_stepped("read_loss", "loss")
        return float(self.read(buffer).reshape(-1)[0])  # a loss may be a reshape of [1, 1]

    def read_output_by_index(self, index: int, out: Array | None) -> Array:
        buffer = self.output("read_output", index)
        self.progress.check_stepped("read_output", f"output {index}")
        shape = self.loaded.plan.graph.outputs[index].shape  # the buffer may be another view of the same elements
        return into("read_output", f"output {index}", out, self.read(buffer).reshape(shape))


def _lookup(where: str, name: str, known: Mapping[str, P]) -> P:
    if not isinstance(name, str) or name not in known:
        raise unknown_name(where, "name", str(name), known)
    return known[name]
