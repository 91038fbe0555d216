"""A plan on a device with its state: inputs, parameters, steps, the update rule, what is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from gdlab.device.base import Device, DeviceInfo, Program, owner
from gdlab.errors import ArgumentError, OutputIndexError, SessionError, unknown_name
from gdlab.plan.plan import SCALARS, Buffer, Dispatch, ExecutionPlan, Update
from gdlab.plan.update import Rule, update_of
from gdlab.session.data import Array, aligned, as_array, initial_values, into, is_real, positive
from gdlab.types import TensorType


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """What is allocated now, in bytes: plan slots, constants and optimizer state; not staging or driver memory."""

    total_buffer_bytes: int
    adam_state_bytes: int
    num_buffers: int
    largest_buffer_bytes: int
    logical_buffer_bytes: int = 0

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


def sgd(where: str, lr: float) -> Optimizer:
    """SGD with this rate, or the error that says what is wrong with it."""
    return Optimizer("sgd", *positive(where, lr=lr))


def adam(where: str, lr: float, beta1: float, beta2: float, epsilon: float) -> Optimizer:
    """Adam with these numbers, or the error that says which is wrong."""
    positive(where, lr=lr)
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        if not is_real(beta) or not 0 <= beta < 1:
            raise SessionError(where, name, repr(beta), "a number in [0, 1)")
        if np.float32(beta) == 1:  # in the kernels, and then there is no 1/(1 − βᵗ)
            raise SessionError(where, name, repr(beta), "a number in [0, 1) that float32 does not round to 1")
    if not is_real(epsilon) or not epsilon > 0:
        raise SessionError(where, "epsilon", repr(epsilon), "a number > 0")
    return Optimizer("adam", float(lr), float(beta1), float(beta2), float(epsilon))


def scalars(optimizer: Optimizer, adam_steps: int) -> Array:
    """What the update kernels read, in `SCALARS` order; 1/(1 − βᵗ) in float64 of the βs that the kernels have."""
    o, t = optimizer, max(adam_steps, 1)
    beta1, beta2 = float(np.float32(o.beta1)), float(np.float32(o.beta2))  # rounded as in the kernels: 40 times closer
    values = {
        "lr": o.lr, "beta1": beta1, "beta2": beta2, "epsilon": o.epsilon,
        "correction1": 1 / (1 - beta1**t), "correction2": 1 / (1 - beta2**t),
    }  # fmt: skip
    return np.array([values[name] for name in SCALARS], np.float32)


class Session:
    """A plan on a device with its state; made by `build_session` and its siblings, closed by `close` or `with`.

    Every failed call raises `SessionError` (or `ShapeError`, `DTypeError`, `UnknownNameError`) and changes nothing.
    """

    def __init__(self, *_: object, **__: object) -> None:
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
    _multipliers: dict[str, float]  # by prefix of a parameter's name
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
        return into("read_param", name, out, self._download(buffer))

    get_parameter = read_param

    def read_param_grad(self, name: str, out: Array | None = None) -> Array:
        """The gradient of parameter `name` in the last step, float32 of its declared shape."""
        buffer = self._lookup("read_param_grad", name, self._parameters)
        grad = self._gradients.get(buffer)
        if grad is None:
            raise SessionError("read_param_grad", repr(name), "an inference session", "a training session")
        if self._steps == 0:
            raise SessionError("read_param_grad", repr(name), "no step yet", "a step before it")
        return into("read_param_grad", name, out, self._download(grad).reshape(self._types[buffer].shape))

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
        adam_steps = self._next(self._optimizer)
        self._program.step(None if self._optimizer.rule == "none" else scalars(self._optimizer, adam_steps))
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
        return into("read_output", f"output {index}", out, data.reshape(shape))

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
        """SGD from the next step on, until changed: p ← p − lr·k(p)·g, k as `set_lr_multiplier` says."""
        self._configure("set_learning_rate", sgd("set_learning_rate", lr))

    def set_adam(self, lr: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        """Adam from the next step on, until changed (Kingma and Ba, 2015): m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g²,
        p ← p − lr·k(p)·(m/(1−β₁ᵗ)) / (√(v/(1−β₂ᵗ)) + ε). Moments start at zero and are kept when the rule changes."""
        self._configure("set_adam", adam("set_adam", lr, beta1, beta2, epsilon))

    def sgd_step(self, lr: float) -> None:
        """One SGD update now, with the gradients of the last step; the configured rule stays as it is."""
        self._update_once("sgd_step", sgd("sgd_step", lr))

    def adam_step(self, lr: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        """One Adam update now, with the gradients of the last step; the configured rule stays as it is."""
        self._update_once("adam_step", adam("adam_step", lr, beta1, beta2, epsilon))

    def set_lr_multiplier(self, prefix: str, factor: float) -> None:
        """From the next update on the rate of parameters whose name starts with `prefix` is times `factor`: ≥ 0, and 0
        freezes them while moments still move. The longest prefix of a name counts; `""` is a prefix of all."""
        self._trainable("set_lr_multiplier")
        if not isinstance(prefix, str) or not any(name.startswith(prefix) for name in self._parameters):
            raise unknown_name("set_lr_multiplier", "prefix", str(prefix), self._parameters)
        (k,) = positive("set_lr_multiplier", factor=factor)
        self._multiply({**self._multipliers, prefix: k})

    def clear_lr_multipliers(self) -> None:
        """All factors are 1 again."""
        self._trainable("clear_lr_multipliers")
        self._multiply({})

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
        state = [aligned(b.nbytes) for b in self._update_buffers]
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

    def _trainable(self, where: str) -> None:
        self._alive(where)
        if self._plan.mode != "training":
            raise SessionError(where, "session", "an inference session", "a training session")

    def _configure(self, where: str, optimizer: Optimizer) -> None:
        self._trainable(where)
        owner().call(lambda: self._use(optimizer))  # there no step of a run falls between the update and its scalars

    def _use(self, optimizer: Optimizer) -> None:
        if optimizer.rule != self._optimizer.rule:
            self._load(update_of(self._plan, optimizer.rule, self._factors()))
        self._optimizer = optimizer

    def _load(self, update: Update) -> None:
        self._program.configure(update)
        self._update, self._update_buffers = update, update.buffers or self._update_buffers

    def _multiply(self, multipliers: dict[str, float]) -> None:
        def change() -> None:
            self._multipliers = multipliers
            self._load(update_of(self._plan, self._optimizer.rule, self._factors()))

        owner().call(change)

    def _factors(self) -> dict[str, float]:
        """The factor of the rate by parameter name, where it is not 1."""
        by_length = sorted(self._multipliers, key=len)
        return {n: self._multipliers[p] for p in by_length for n in self._parameters if n.startswith(p)}

    def _update_once(self, where: str, optimizer: Optimizer) -> None:
        self._trainable(where)
        if self._steps == 0:
            raise SessionError(where, "gradients", "no step yet", "a step before it")

        def once() -> None:
            update, adam_steps = update_of(self._plan, optimizer.rule, self._factors()), self._next(optimizer)
            self._program.configure(update)
            try:
                self._program.update_only(scalars(optimizer, adam_steps))
            finally:
                self._program.configure(self._update)
            self._adam_steps, self._update_buffers = adam_steps, update.buffers or self._update_buffers

        owner().call(once)

    def _next(self, optimizer: Optimizer) -> int:
        return self._adam_steps + (optimizer.rule == "adam")


def open_session(plan: ExecutionPlan, device: Device) -> Session:
    """A session of a plan that is compiled already, on a device."""
    session = object.__new__(Session)
    session._closed = True  # until everything below has worked
    session._plan, session._device = plan, device
    try:
        session._program = owner().call(lambda: device.load(plan))
    except MemoryError as error:
        raise SessionError("session", "memory", str(error), "a plan that this machine holds") from None
    session._parameters, session._inputs = dict(plan.param_buffers), dict(plan.input_buffers)
    leaves = [plan.buffers[b] for _, b in (*plan.param_buffers, *plan.input_buffers)]
    session._types = {b.id: TensorType(b.shape, b.dtype) for b in leaves}
    session._gradients = dict(plan.param_grad_pairs)
    session._unset_inputs, session._unset_parameters = set(session._inputs), set(session._parameters)
    session._optimizer, session._update, session._update_buffers = Optimizer(), update_of(plan, "none"), ()
    session._multipliers = {}
    session._steps = session._adam_steps = 0
    session._closed = False
    return session
