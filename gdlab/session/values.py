"""Data in and out of a session, by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError, DTypeError, OutputIndexError, SessionError, ShapeError
from gdlab.base.types import Array, u32
from gdlab.base.words import plural
from gdlab.session.arrays import into
from gdlab.session.initial import DEFAULT, check_init, initial_values
from gdlab.session.state import State

_BYTES = (bytes, bytearray, memoryview)


class Values(State):
    """`set_input`, `set_parameter`, `read_param`, `read_output` and their kin."""

    def set_input(self, name: str, data: Any) -> None:
        """Copy `data` (declared shape, or flat) into input `name`, until replaced; a submitted step keeps its data."""
        self._write("set_input", name, data, self._inputs)
        self._unset_inputs.discard(name)

    def set_input_u32(self, name: str, data: Any) -> None:
        """`set_input` of an input of indices; `DTypeError` for another."""
        type = self._types[self._lookup("set_input_u32", name, self._inputs)]
        if type.dtype is not u32:
            raise DTypeError("set_input_u32", repr(name), f"an input of {type}", "an input of u32: set_input for this")
        self._write("set_input_u32", name, data, self._inputs)
        self._unset_inputs.discard(name)

    def set_parameter(self, name: str, data: Any) -> None:
        """Copy `data` (declared shape, or flat) into parameter `name`; optimizer moments are not touched."""
        self._write("set_parameter", name, data, self._parameters)
        self._unset_parameters.difference_update(self._sources(name))

    def upload_param(self, name: str, data: Any) -> None:
        """`set_parameter`, for state that is kept in a parameter, such as a cache that is emptied."""
        self._write("upload_param", name, data, self._parameters)
        self._unset_parameters.difference_update(self._sources(name))

    def set_parameter_packed(self, name: str, data: bytes) -> None:
        """Parameter `name` in the bytes of its storage: f16, or the blocks of q4 and q8 (`gdlab.base.formats`)."""
        buffer = self._lookup("set_parameter_packed", name, self._parameters)
        type = self._types[buffer]
        if not type.dtype.is_storage:
            wanted = "one of f16, q4 or q8: set_parameter for this"
            raise DTypeError("set_parameter_packed", repr(name), f"a parameter of {type}", wanted)
        if not isinstance(data, _BYTES) or memoryview(data).nbytes != type.size_bytes:
            given = f"{memoryview(data).nbytes} bytes" if isinstance(data, _BYTES) else data.__class__.__name__
            raise ShapeError("set_parameter_packed", repr(name), given, f"{type.size_bytes} bytes ({type})")
        assert isinstance(buffer, int)  # only f32 lies in ranges of another parameter
        words = np.frombuffer(bytes(data) + bytes(-type.size_bytes % 4), np.uint32)
        self._do(lambda: self._program.upload_words(buffer, words))
        self._unset_parameters.discard(name)

    def read_param(self, name: str, out: Array | None = None) -> Array:
        """Parameter `name` as float32 of its declared shape, after everything submitted. `out`: filled and returned."""
        buffer = self._lookup("read_param", name, self._parameters)
        return into("read_param", name, out, self._download(buffer).astype(np.float32, copy=False))

    get_parameter = read_param

    def read_params(self, names: Iterable[str]) -> dict[str, Array]:
        """Several parameters, all between the same two steps."""
        self._alive("read_params")
        names = list(names)
        buffers = [self._lookup("read_params", name, self._parameters) for name in names]
        read = self._do(lambda: [self._read_now(b) for b in buffers])
        return {name: data.astype(np.float32, copy=False) for name, data in zip(names, read, strict=True)}

    def read_param_grad(self, name: str, out: Array | None = None) -> Array:
        """The gradient of parameter `name` in the last step, float32 of its declared shape."""
        buffer = self._lookup("read_param_grad", name, self._parameters)
        self._trainable_read("read_param_grad", repr(name))
        grad = self._gradients.get(buffer)
        if grad is None:
            raise SessionError("read_param_grad", repr(name), "a parameter that is not trained", "one with a gradient")
        self._stepped("read_param_grad", repr(name))
        return into("read_param_grad", name, out, self._download(grad).reshape(self._types[buffer].shape))

    def read_input(self, name: str) -> Array:
        """Input `name` as it was set last, in its declared shape."""
        buffer = self._lookup("read_input", name, self._inputs)
        if name in self._unset_inputs:
            raise SessionError("read_input", repr(name), "no value yet", "set_input before it")
        return self._download(buffer).reshape(self._types[buffer].shape)

    def read_buffer(self, ref: int) -> Array:
        """The logical extent of a buffer of the plan, as it lies on the device now (others may lie there too)."""
        self._alive("read_buffer")
        count = len(self._plan.buffers)
        if not isinstance(ref, (int, np.integer)) or isinstance(ref, bool) or not 0 <= ref < count:
            raise ArgumentError("read_buffer", "ref", repr(ref), f"0 … {count - 1}: {plural(count, 'buffer')}")
        return self._download(int(ref))

    # names ------------------------------------------------------------------------------------------------------------
    def param_names(self) -> list[str]:
        """The parameters' names, in node order."""
        self._alive("param_names")
        return list(self._parameters)

    def input_names(self) -> list[str]:
        """The inputs' names, in node order."""
        self._alive("input_names")
        return list(self._inputs)

    def param_size(self, name: str) -> int:
        """Number of elements of parameter `name`."""
        return self._types[self._lookup("param_size", name, self._parameters)].num_elements

    def has_parameter(self, name: str) -> bool:
        """Whether the graph has this parameter."""
        self._alive("has_parameter")
        return name in self._parameters

    def has_input(self, name: str) -> bool:
        """Whether the graph has this input."""
        self._alive("has_input")
        return name in self._inputs

    def initialize(self, seed: int = 0, zeros: bool = False) -> None:
        """Fill every parameter that has no value by its declared initializer; without a declaration uniform ±1/√fan-in
        for rank ≥ 2 and zeros for rank 1 (`zeros=True`: all zeros). The same seed gives the same values on every device
        and machine (Philox, keyed by the seed, a stream for each name)."""
        self._alive("initialize")
        if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or not 0 <= seed < 2**64:
            raise ArgumentError("initialize", "seed", repr(seed), "an int in 0 … 2^64 − 1")
        declared = {n.name: dict(n.attrs).get("init") or DEFAULT for n in self._plan.graph.parameters}
        values: dict[str, Array] = {}
        for name in self.unset_parameters:
            shape, init = self._plan.param_types[name].shape, check_init(name, declared[name])
            values[name] = np.zeros(shape, np.float32) if zeros else initial_values(name, shape, int(seed), init)
        for name, data in values.items():
            self.set_parameter(name, data)

    # results ----------------------------------------------------------------------------------------------------------
    def read_loss(self) -> float:
        """The loss of the last step; 0.0 if the graph has no loss output. Waits for the step by itself."""
        self._alive("read_loss")
        if self._plan.loss_buffer is None:
            return 0.0
        self._stepped("read_loss", "loss")
        return float(self._download(self._plan.loss_buffer)[0])

    def read_output_by_index(self, index: int, out: Array | None = None) -> Array:
        """User output `index` after the last step, in its shape; gradients are not counted."""
        self._alive("read_output")
        count = len(self._plan.output_buffers)
        if not isinstance(index, (int, np.integer)) or isinstance(index, bool) or not 0 <= index < count:
            raise OutputIndexError("read_output", "index", index, f"0 … {count - 1}: {plural(count, 'output')}")
        self._stepped("read_output", f"output {index}")
        data = self._download(self._plan.output_buffers[index])
        shape = self._plan.graph.outputs[index].shape  # the buffer may be another view of the same elements
        return into("read_output", f"output {index}", out, data.reshape(shape))

    def read_output(self) -> Array:
        """User output 0."""
        return self.read_output_by_index(0)

    wait_read_output = read_output_by_index

    def num_outputs(self) -> int:
        """Number of user outputs."""
        self._alive("num_outputs")
        return len(self._plan.output_buffers)

    def _sources(self, name: str) -> list[str]:
        """The parameters that `name` stands for: itself, or those that a derived one is the storage of."""
        return next(([n for n, _ in d.sources] for d in self._plan.derived_params if d.name == name), [name])

    def _trainable_read(self, where: str, what: str) -> None:
        if self._plan.mode != "training":
            raise SessionError(where, what, "an inference session", "a training session")
