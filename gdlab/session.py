"""Train or run a graph by name: set inputs, step, read. A session is a plan on a device.

    session = build_session(graph)          # optimize, differentiate, optimize, compile, load
    session.initialize(seed=0)
    session.set_adam(1e-3)
    session.set_input("x", x); session.set_input("y", y)
    session.step(); print(session.read_loss())
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from gdlab.autodiff import AutodiffReport, differentiate
from gdlab.device import device as choose_device
from gdlab.device.base import Device, DeviceInfo, Program, owner
from gdlab.device.choose import Kind
from gdlab.errors import ArgumentError, DTypeError, GraphError, OutputIndexError, SessionError, ShapeError, unknown_name
from gdlab.graph import Graph
from gdlab.plan import compile
from gdlab.plan.plan import SCALARS, Buffer, Dispatch, ExecutionPlan, Lane, Update
from gdlab.plan.update import Rule, update_of
from gdlab.rewrite import OptimizeReport, optimize
from gdlab.types import TensorType, f32

Array = np.ndarray[Any, Any]
DeviceLike = Kind | Device | None


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """What is allocated now, in bytes: plan slots, constants and optimizer state; not staging or driver memory."""

    total_buffer_bytes: int
    adam_state_bytes: int
    num_buffers: int
    largest_buffer_bytes: int
    logical_buffer_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.num_buffers} buffers, {self.total_buffer_bytes / 1e6:.1f} MB total "
            f"({self.adam_state_bytes / 1e6:.1f} MB adam state), largest {self.largest_buffer_bytes / 1e6:.1f} MB"
        )


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The configured update rule; `none` leaves parameters as they are."""

    rule: Rule = "none"
    lr: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __str__(self) -> str:
        return {"none": "no update rule", "sgd": f"SGD, lr {self.lr:g}", "adam": f"Adam, lr {self.lr:g}"}[self.rule]


class Session:
    """A plan on a device with its state; made by `build_session` and its siblings, closed by `close` or `with`.

    Every failed call raises `SessionError` (or `ShapeError`, `DTypeError`, `UnknownNameError`) and changes nothing.
    """

    def __init__(self) -> None:
        raise TypeError("Session(): use build_session(graph), build_inference_session(graph) or Study(graph).session")

    _plan: ExecutionPlan
    _device: Device
    _program: Program
    _parameters: dict[str, int]
    _inputs: dict[str, int]
    _types: dict[int, TensorType]  # of parameters and inputs, by buffer
    _gradients: dict[int, int]
    _unset_inputs: set[str]
    _unset_parameters: set[str]
    _optimizer: Optimizer
    _update: Update
    _update_buffers: tuple[Buffer, ...]
    _steps: int
    _adam_steps: int
    _closed: bool

    # -- data ----------------------------------------------------------------------------------------------------------
    def set_input(self, name: str, data: Any) -> None:
        """Copy `data` (declared shape, or flat) into input `name`, until replaced; a submitted step keeps its data."""
        self._write("set_input", name, data, self._inputs)
        self._unset_inputs.discard(name)

    def set_parameter(self, name: str, data: Any) -> None:
        """Copy `data` (declared shape, or flat) into parameter `name`; optimizer moments are not touched."""
        self._write("set_parameter", name, data, self._parameters)
        self._unset_parameters.discard(name)

    def read_param(self, name: str, out: Array | None = None) -> Array:
        """Parameter `name` as float32 of its declared shape, after everything submitted. `out`: filled and returned."""
        buffer = self._lookup("read_param", name, self._parameters)
        return _into("read_param", name, out, self._download(buffer))

    get_parameter = read_param

    def read_param_grad(self, name: str, out: Array | None = None) -> Array:
        """The gradient of parameter `name` in the last step, float32 of its declared shape."""
        buffer = self._lookup("read_param_grad", name, self._parameters)
        grad = self._gradients.get(buffer)
        if grad is None:
            raise SessionError("read_param_grad", repr(name), "an inference session", "a training session")
        if self._steps == 0:
            raise SessionError("read_param_grad", repr(name), "no step yet", "a step before it")
        return _into("read_param_grad", name, out, self._download(grad).reshape(self._types[buffer].shape))

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

    def has_param_grad(self, name: str) -> bool:
        """Whether a gradient of this parameter is computed."""
        self._alive("has_param_grad")
        return self._parameters.get(name, -1) in self._gradients

    def initialize(self, seed: int = 0, zeros: bool = False) -> None:
        """Fill every parameter that has no value: uniform ±1/√fan-in for rank ≥ 2 (fan-in: the last extent but one),
        zeros for rank 1. The same seed gives the same values on every device (Philox, keyed by seed and name)."""
        self._alive("initialize")
        if not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**64:
            raise ArgumentError("initialize", "seed", repr(seed), "an int in 0 … 2^64 − 1")
        for name in self.unset_parameters:
            shape = self._plan.param_types[name].shape
            self.set_parameter(name, np.zeros(shape, np.float32) if zeros else initial_values(name, shape, int(seed)))

    # -- steps ---------------------------------------------------------------------------------------------------------
    def step(self) -> None:
        """One submission: forward, backward (training), the configured update. Returns at once where the device can."""
        self.check_ready("step")
        owner().call(self.step_now)

    @property
    def unset_inputs(self) -> list[str]:
        """Inputs that have no value yet."""
        return [n for n in self._inputs if n in self._unset_inputs]

    @property
    def unset_parameters(self) -> list[str]:
        """Parameters that have no value yet."""
        return [n for n in self._parameters if n in self._unset_parameters]

    def check_ready(self, where: str, *, inputs: bool = True) -> None:
        """Raise `SessionError` unless every parameter and (with `inputs`) every input has a value."""
        self._alive(where)
        if inputs and self._unset_inputs:
            given = f"no value for {', '.join(self.unset_inputs)}"
            raise SessionError(where, "inputs", given, "set_input for each")
        if self._unset_parameters:
            given = f"no value for {', '.join(self.unset_parameters)}"
            raise SessionError(where, "parameters", given, "initialize(seed), initialize(zeros=True) or set_parameter")

    def step_now(self) -> None:
        """`step` without checks, for the owner thread (the runner)."""
        adam_steps = self._adam_steps + (self._optimizer.rule == "adam")
        self._program.step(self._scalars(adam_steps))
        self._steps, self._adam_steps = self._steps + 1, adam_steps  # after: a step that failed does not count

    def wait(self) -> None:
        """Return when nothing is in flight."""
        self._alive("wait")
        owner().call(self._program.wait)

    def read_loss(self) -> float:
        """The loss of the last step; 0.0 if the graph has no loss output. Waits for the step by itself."""
        self._alive("read_loss")
        if self._plan.loss_buffer is None:
            return 0.0
        if self._steps == 0:
            raise SessionError("read_loss", "loss", "no step yet", "a step before it")
        return float(self._download(self._plan.loss_buffer)[0])

    def take_losses(self, wait: bool) -> list[tuple[int, float]]:
        """(step, loss) pairs that became readable since the last call; for the runner, on the owner thread."""
        return self._program.losses(wait)

    def read_output_by_index(self, index: int, out: Array | None = None) -> Array:
        """User output `index` after the last step, in its shape; gradients are not counted."""
        self._alive("read_output")
        count = len(self._plan.output_buffers)
        if not isinstance(index, (int, np.integer)) or not 0 <= index < count:
            raise OutputIndexError("read_output", "index", index, f"0 … {count - 1}: {count} outputs")
        if self._steps == 0:
            raise SessionError("read_output", f"output {index}", "no step yet", "a step before it")
        data = self._download(self._plan.output_buffers[index])
        shape = self._plan.graph.outputs[index].shape  # the buffer may be another view of the same elements
        return _into("read_output", f"output {index}", out, data.reshape(shape))

    def read_output(self) -> Array:
        """User output 0."""
        return self.read_output_by_index(0)

    wait_read_output = read_output_by_index

    def num_outputs(self) -> int:
        """Number of user outputs."""
        self._alive("num_outputs")
        return len(self._plan.output_buffers)

    # -- update rule ---------------------------------------------------------------------------------------------------
    def set_learning_rate(self, lr: float) -> None:
        """SGD from the next step on, until changed: p ← p − lr·g."""
        self._configure("set_learning_rate", Optimizer("sgd", *_positive("set_learning_rate", lr=lr)))

    def set_adam(self, lr: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        """Adam from the next step on, until changed (Kingma and Ba, 2015): m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g²,
        p ← p − lr·(m/(1−β₁ᵗ)) / (√(v/(1−β₂ᵗ)) + ε). Moments start at zero and are kept when the rule changes."""
        _positive("set_adam", lr=lr)
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            if not _real(beta) or not 0 <= beta < 1:
                raise SessionError("set_adam", name, repr(beta), "a number in [0, 1)")
        if not _real(epsilon) or not epsilon > 0:
            raise SessionError("set_adam", "epsilon", repr(epsilon), "a number > 0")
        self._configure("set_adam", Optimizer("adam", float(lr), float(beta1), float(beta2), float(epsilon)))

    def clear_optimizer(self) -> None:
        """No update from now on; moments and counter are kept."""
        self._configure("clear_optimizer", Optimizer())

    @property
    def optimizer(self) -> Optimizer:
        """The configured update rule."""
        return self._optimizer

    def adam_step_count(self) -> int:
        """Number of Adam updates made so far."""
        self._alive("adam_step_count")
        return self._adam_steps

    # -- inspection ----------------------------------------------------------------------------------------------------
    def plan(self) -> ExecutionPlan:
        """The plan that really runs."""
        self._alive("plan")
        return self._plan

    def update_dispatches(self) -> tuple[Dispatch, ...]:
        """The dispatches of the configured update, which follow the plan's in every step."""
        self._alive("update_dispatches")
        return self._update.dispatches

    @property
    def update(self) -> Update:
        """The configured update: dispatches and state buffers."""
        return self._update

    def num_groups(self) -> int:
        """Barrier groups per step, the update's included."""
        self._alive("num_groups")
        return len(self._plan.groups) + (1 if self._update.dispatches else 0)

    @property
    def step_count(self) -> int:
        """Steps made so far."""
        return self._steps

    @property
    def mode(self) -> str:
        """`training` or `inference`."""
        return self._plan.mode

    @property
    def device(self) -> DeviceInfo:
        """Kind, name and class of the device, and why it was chosen."""
        return self._device.info

    @property
    def traffic(self) -> Any:
        """Running totals: steps, dispatches, submissions, bytes up and down."""
        return self._program.traffic

    def device_information(self) -> str:
        """The device in one line."""
        self._alive("device_information")
        return f"{self._device.info}: {self._device.info.reason}"

    def memory_summary(self) -> MemorySummary:
        """What is allocated now."""
        self._alive("memory_summary")
        slots = [s.nbytes for s in self._plan.memory.slots]
        state = [_aligned(b.nbytes) for b in self._update_buffers]
        sizes = slots + state
        logical = sum(self._plan.buffer_sizes) + sum(b.nbytes for b in self._update_buffers)
        return MemorySummary(sum(sizes), sum(state), len(sizes), max(sizes, default=0), logical)

    # -- life ----------------------------------------------------------------------------------------------------------
    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Release the device buffers; idempotent. Every later call raises `SessionError`."""
        if not self._closed:
            self._closed = True
            owner().call(self._program.close)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._steps} steps, {self._optimizer}"
        return f"<Session: {self.mode} on {self._device.info}, {len(self._plan.dispatches)} dispatches, {state}>"

    def __getattr__(self, name: str) -> NoReturn:
        hint = "; use step() and wait()" if name == "run" else ""
        raise AttributeError(f"Session has no attribute {name!r}{hint}")

    # -- inside --------------------------------------------------------------------------------------------------------
    def _alive(self, where: str) -> None:
        if self._closed:
            raise SessionError(where, "session", "closed", "an open session")

    def _lookup(self, where: str, name: str, known: dict[str, int]) -> int:
        self._alive(where)
        if not isinstance(name, str) or name not in known:
            raise unknown_name(where, "name", str(name), known)
        return known[name]

    def _write(self, where: str, name: str, data: Any, known: dict[str, int]) -> None:
        buffer = self._lookup(where, name, known)
        array = as_array(where, name, data, self._types[buffer])
        owner().call(lambda: self._program.upload(buffer, array))

    def _download(self, buffer: int) -> Array:
        return owner().call(lambda: self._program.download(buffer))

    def _configure(self, where: str, optimizer: Optimizer) -> None:
        self._alive(where)
        if self._plan.mode != "training":
            raise SessionError(where, "session", "an inference session", "a training session")
        owner().call(lambda: self._use(optimizer))  # there no step of a run falls between the update and its scalars

    def _use(self, optimizer: Optimizer) -> None:
        if optimizer.rule != self._optimizer.rule:
            update = update_of(self._plan, optimizer.rule)
            self._program.configure(update)
            self._update, self._update_buffers = update, update.buffers or self._update_buffers
        self._optimizer = optimizer

    def _scalars(self, adam_steps: int) -> Array | None:
        o, t = self._optimizer, max(adam_steps, 1)
        if o.rule == "none":
            return None
        beta1, beta2 = float(np.float32(o.beta1)), float(np.float32(o.beta2))  # as kernels have them: 40 times closer
        values = {
            "lr": o.lr, "beta1": beta1, "beta2": beta2, "epsilon": o.epsilon,
            "correction1": 1 / (1 - beta1**t), "correction2": 1 / (1 - beta2**t),
        }  # fmt: skip
        return np.array([values[name] for name in SCALARS], np.float32)


def open_session(plan: ExecutionPlan, device: Device) -> Session:
    """A session of a plan that is compiled already, on a device."""
    session = object.__new__(Session)
    session._closed = True  # until everything below has worked
    session._plan, session._device = plan, device
    session._program = owner().call(lambda: device.load(plan))
    session._parameters, session._inputs = dict(plan.param_buffers), dict(plan.input_buffers)
    leaves = [plan.buffers[b] for _, b in (*plan.param_buffers, *plan.input_buffers)]
    session._types = {b.id: TensorType(b.shape, b.dtype) for b in leaves}
    session._gradients = dict(plan.param_grad_pairs)
    session._unset_inputs, session._unset_parameters = set(session._inputs), set(session._parameters)
    session._optimizer, session._update, session._update_buffers = Optimizer(), update_of(plan, "none"), ()
    session._steps = session._adam_steps = 0
    session._closed = False
    return session


# builders -------------------------------------------------------------------------------------------------------------
def build_session(graph: Graph, device: DeviceLike = "auto") -> Session:
    """A training session: optimize, differentiate, optimize, compile, load. Output 0 must be the loss, f32[1]."""
    return build_session_with_report(graph, device)[0]


def build_session_with_report(graph: Graph, device: DeviceLike = "auto") -> tuple[Session, OptimizeReport]:
    """A training session and what the optimizer did in both of its phases."""
    chosen, written = resolve_device(device), _checked(graph)
    forward, first = optimize(written, phase="forward")
    derivative, autodiff = differentiate(forward)
    final, second = optimize(derivative, phase="full")
    plan = compile(final, mode="training", lanes=lanes_of(final, autodiff, second), target=chosen.target)
    return open_session(plan, chosen), OptimizeReport.merge(first, second)


def build_inference_session(graph: Graph, device: DeviceLike = "auto") -> Session:
    """A session that runs the graph forward only, with the fusions of inference."""
    chosen, written = resolve_device(device), _checked(graph)
    final, _ = optimize(written, phase="inference")
    return open_session(compile(final, mode="inference", target=chosen.target), chosen)


def lanes_of(final: Graph, autodiff: AutodiffReport, report: OptimizeReport) -> list[Lane]:
    """Phase and forward node of every node of the final graph, through the origins of both passes.

    A rewritten node belongs where the node it replaced did, its first origin: what it swallowed beside that (say, a
    transposed weight of the forward pass) does not move it.
    """
    lanes = []
    for node in final:
        root = report.origin.get(node.id, (0,))[0]
        forward = root < autodiff.forward_nodes
        lanes.append(Lane("forward", root) if forward else Lane("backward", autodiff.adjoint_of.get(root, -1)))
    return lanes


def resolve_device(device: DeviceLike) -> Device:
    """The device that `"auto"`, `"wgpu"`, `"cpu"` or a `Device` stands for."""
    return device if isinstance(device, Device) else choose_device(device or "auto")


def _checked(graph: Graph) -> Graph:
    if not isinstance(graph, Graph):
        raise GraphError("session", "graph", type(graph).__name__, "a Graph")
    if not graph.outputs:
        raise GraphError("session", "outputs", "none", "graph.set_outputs(...) first")
    return graph.copy()


# values ---------------------------------------------------------------------------------------------------------------
def as_array(where: str, name: str, data: Any, type: TensorType) -> Array:
    """`data` as a contiguous array of `type`, itself where it is one; accepted shapes are the declared one and flat."""
    try:
        array = np.asarray(data)
    except ValueError:
        raise ShapeError(where, repr(name), "a ragged sequence", f"shape {list(type.shape)}") from None
    if array.dtype.kind not in "fiub":
        raise DTypeError(where, repr(name), array.dtype, "real numbers")
    if array.shape not in (type.shape, (type.num_elements,)):
        sizes = " x ".join(map(str, type.shape))
        given = f"{array.size} values" if array.size != type.num_elements else f"shape {list(array.shape)}"
        product = f"{sizes} = {type.num_elements}" if type.rank > 1 else sizes
        raise ShapeError(where, repr(name), given, f"{product} ({type})")
    if type.dtype is not f32 and (array.dtype.kind == "f" or not 0 <= int(array.min()) <= int(array.max()) < 2**32):
        given = f"{array.dtype} data" if array.dtype.kind == "f" else f"values {array.min()} … {array.max()}"
        raise DTypeError(where, repr(name), given, "integers in 0 … 2^32 − 1")
    if array.dtype == type.dtype.numpy:
        return np.ascontiguousarray(array).reshape(type.shape)
    with np.errstate(over="ignore"):
        return array.astype(type.dtype.numpy, order="C").reshape(type.shape)


def initial_values(name: str, shape: Sequence[int], seed: int) -> Array:
    """The default initial value of parameter `name`: uniform ±1/√fan-in for rank ≥ 2, zeros for rank 1; float32."""
    if len(shape) < 2:
        return np.zeros(shape, np.float32)
    word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    uniform = np.random.Generator(np.random.Philox(key=[seed, word])).random(math.prod(shape))
    return ((2 * uniform - 1) / math.sqrt(shape[-2])).astype(np.float32).reshape(shape)


def _into(where: str, name: str, out: Array | None, data: Array) -> Array:
    if out is None:
        return data
    good = isinstance(out, np.ndarray) and out.dtype == data.dtype and out.flags.c_contiguous and out.flags.writeable
    if not good or out.size < data.size:
        given = f"{type(out).__name__} {getattr(out, 'dtype', '')}[{getattr(out, 'size', '?')}]"
        raise SessionError(where, f"{name}: out", given, f"a writable C-contiguous {data.dtype} array of ≥ {data.size}")
    out.reshape(-1)[: data.size] = data.reshape(-1)
    return out


def _positive(where: str, **values: float) -> Iterable[float]:
    for name, value in values.items():
        if not _real(value) or value < 0:
            raise SessionError(where, name, repr(value), "a finite number ≥ 0")
    return [float(v) for v in values.values()]


def _real(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and math.isfinite(value)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 256) * 256
