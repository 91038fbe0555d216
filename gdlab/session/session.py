"""A plan on a device with its state: `session.set_input("x", x)`, `session.step()`, `session.read_loss()`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from gdlab.base.binding import bound
from gdlab.base.closing import Closing
from gdlab.base.copies import refuse_copies
from gdlab.base.errors import SessionError, UnknownNameError, unknown_name
from gdlab.base.types import Array
from gdlab.base.words import plural
from gdlab.devices.base import Device, DeviceInfo, QueueCounters, SharedBuffers
from gdlab.graph import Value
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.records import ExecutionPlan, Update
from gdlab.session.allocated_bytes import MemorySummary, summary
from gdlab.session.checkpoint import CheckpointContent, Checkpoints
from gdlab.session.external import ExternalMemory, Slot
from gdlab.session.inspect import Inspection, Space
from gdlab.session.loaded import LoadedPlan
from gdlab.session.node_places import Nodes, nodes_as_compiled
from gdlab.session.profile import Profiling, SessionProfile, Timings
from gdlab.session.progress import Progress
from gdlab.session.run.nonfinite import DebugStepReport, NonfiniteSearch, TraceRow
from gdlab.session.steps import Steps
from gdlab.session.tensor_places import Output, outputs_of
from gdlab.session.totals import StepTotals, totals
from gdlab.session.update_settings import Optimizer, checked, optimizer
from gdlab.session.updates import Updates
from gdlab.session.values import Values


@bound
class Session(Closing):
    """A plan on a device with its state; made by `build_session` and its siblings, closed by `close` or `with`.

    Every failed call raises `SessionError` (or `ShapeError`, `DTypeError`, `UnknownNameError`) and changes nothing. The
    work is done by the parts: `values`, `updates`, `steps`, `inspection`, `search`, `profiling`, `checkpoints`,
    `external`. They share `loaded` (plan, device, program) and `progress`.
    """

    def __init__(
        self, loaded: LoadedPlan | None = None, nodes: Nodes | None = None,
        unset_parameters: Mapping[str, set[str]] | None = None, *_: object, **__: object,
    ) -> None:  # fmt: skip
        if not isinstance(loaded, LoadedPlan):
            make = "build_session(graph), build_inference_session(graph) or Study(graph).session"
            raise TypeError(f"Session(): use {make}")
        self.loaded, self.progress = loaded, Progress()
        self.nodes = nodes_as_compiled(loaded.plan.graph) if nodes is None else nodes
        self.values = Values(loaded, self.progress, unset_parameters)
        self.updates = Updates(loaded, self.values, self.progress)
        self.steps = Steps(loaded, self.values, self.updates, self.progress)
        self.inspection = Inspection(loaded, self.nodes, self.values, self.steps)
        self.search = NonfiniteSearch(self.inspection)
        self.profiling = Profiling(loaded, self.values, self.updates, self.steps)
        self.checkpoints = Checkpoints(loaded, self.values, self.updates, self.progress)
        self.external = ExternalMemory(loaded, self.values, self.progress)

    # life -------------------------------------------------------------------------------------------------------------
    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.loaded.closed

    def close(self) -> None:
        """Release the device buffers; idempotent. Every later call raises `SessionError`."""
        self.loaded.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{plural(self.step_count, 'step')}, {self.optimizer}"
        dispatches = totals(self.loaded.plan, self.updates.update).dispatch_words
        return f"<Session: {self.mode} on {self.device}, {dispatches}, {state}>"

    __reduce__ = refuse_copies(
        "session", "snapshot() and restore(), or build_session(…, share_parameters_from=session)"
    )

    def __getattr__(self, name: str) -> NoReturn:
        hint = "; use step() and wait()" if name == "run" else ""
        raise AttributeError(f"Session has no attribute {name!r}{hint}")

    if TYPE_CHECKING:  # bound in gdlab/__init__.py

        def compile(self, **options: Any) -> Any: ...
        def controls(self) -> Any: ...

    # data in ----------------------------------------------------------------------------------------------------------
    def set_input(self, name: str, data: Any) -> None:
        """Copy `data` (declared shape, or flat) into input `name`, until replaced; a submitted step keeps its data."""
        self.values.set_input(name, data)

    def set_input_u32(self, name: str, data: Any) -> None:
        """Set an input of indices as `set_input` does; `DTypeError` for another input."""
        self.values.set_input_u32(name, data)

    def set_parameter(self, name: str, data: Any) -> None:
        """Copy `data` (declared shape, or flat) into parameter `name`; optimizer moments are not touched."""
        self.values.set_parameter(name, data)

    def upload_param(self, name: str, data: Any) -> None:
        """Set a parameter as `set_parameter` does, if it holds state, such as a cache to be emptied."""
        self.values.set_parameter(name, data, "upload_param")

    def set_parameter_packed(self, name: str, data: bytes) -> None:
        """Set parameter `name` in the bytes of its storage, such as f16 or blocks (`gdlab.base.formats`)."""
        self.values.set_parameter_packed(name, data)

    def initialize(self, seed: int = 0, zeros: bool = False) -> None:
        """Fill every parameter that has no value by its declared initializer; without a declaration uniform ±1/√fan-in
        for rank ≥ 2 and zeros for rank 1 (`zeros=True`: all zeros). The same seed gives the same values on every device
        and machine (Philox, keyed by the seed, a stream for each name)."""
        self.values.initialize(seed, zeros)

    # data out ---------------------------------------------------------------------------------------------------------
    def read_param(self, name: str, out: Array | None = None) -> Array:
        """Return parameter `name` as float32 of its declared shape, after everything submitted. `out`: filled and
        returned."""
        return self.values.read_param(name, out)

    get_parameter = read_param

    def read_params(self, names: Iterable[str]) -> dict[str, Array]:
        """Return several parameters, all between the same two steps."""
        return self.values.read_params(names)

    def read_param_grad(self, name: str, out: Array | None = None) -> Array:
        """Return the gradient of parameter `name` in the last step, float32 of its declared shape."""
        return self.values.read_param_grad(name, out)

    def read_input(self, name: str) -> Array:
        """Return input `name` as it was set last, in its declared shape."""
        return self.values.read_input(name)

    def read_buffer(self, ref: int) -> Array:
        """Return the logical extent of a buffer of the plan, as it lies on the device now (others may lie there
        too)."""
        return self.values.read_buffer(ref)

    def read_loss(self) -> float:
        """Return the loss of the last step; 0.0 if the graph has no loss output. Waits for the step by itself."""
        return self.values.read_loss()

    def read_output_by_index(self, index: int, out: Array | None = None) -> Array:
        """Return user output `index` after the last step, in its shape; gradients are not counted."""
        return self.values.read_output_by_index(index, out)

    wait_read_output = read_output_by_index

    def read_output(self) -> Array:
        """Return user output 0."""
        return self.values.read_output_by_index(0, None)

    def outputs(self) -> tuple[Output, ...]:
        """Return name, shape and place of every user output, then of the gradient of every trained parameter."""
        self.loaded.check_open("outputs")
        return outputs_of(self.loaded.plan, self.values.places)

    # names ------------------------------------------------------------------------------------------------------------
    def param_names(self) -> list[str]:
        """Return the parameters' names, in node order."""
        self.loaded.check_open("param_names")
        return list(self.values.places.parameters)

    def input_names(self) -> list[str]:
        """Return the inputs' names, in node order."""
        self.loaded.check_open("input_names")
        return list(self.values.places.inputs)

    def param_size(self, name: str) -> int:
        """Return the number of elements of parameter `name`."""
        return self.values.places.types[self.values.parameter("param_size", name)].num_elements

    def has_parameter(self, name: str) -> bool:
        """Return whether the graph has this parameter."""
        self.loaded.check_open("has_parameter")
        return isinstance(name, str) and name in self.values.places.parameters

    def has_input(self, name: str) -> bool:
        """Return whether the graph has this input."""
        self.loaded.check_open("has_input")
        return isinstance(name, str) and name in self.values.places.inputs

    def has_param_grad(self, name: str) -> bool:
        """Return whether a gradient of this parameter is computed."""
        return self.values.has_param_grad(name)

    def num_outputs(self) -> int:
        """Return the number of user outputs."""
        self.loaded.check_open("num_outputs")
        return len(self.loaded.plan.output_buffers)

    @property
    def unset_inputs(self) -> list[str]:
        """Inputs that have no value yet."""
        return self.values.inputs_without_value()

    @property
    def unset_parameters(self) -> list[str]:
        """Parameters that have no value yet."""
        return self.values.parameters_without_value()

    def check_ready(self, where: str, *, inputs: bool = True) -> None:
        """Raise `SessionError` unless every parameter and (with `inputs`) every input has a value."""
        self.values.check_ready(where, inputs)

    # steps ------------------------------------------------------------------------------------------------------------
    def step(self, n: int | None = None, feeds: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Submit forward, backward (training) and the configured update at once. Returns at once where the device
        can. Of steps in a row an adapter gets several in one submission: at the latest half a millisecond after the
        last, or before anything else that is asked of it.

        `n`: so many steps (default 1), with the inputs as they are set, or with `feeds`, for each step a mapping from
        input names to data, all checked before the first. Losses, counters, random numbers and updates are those of n
        calls. An adapter gets several steps in one submission. If step k fails, k − 1 are made; Ctrl-C ends between
        submissions.
        """
        self.steps.step(n, feeds)

    def wait(self) -> None:
        """Return when nothing is in flight."""
        self.steps.wait()

    @property
    def step_count(self) -> int:
        """Steps made so far."""
        return self.progress.steps

    @property
    def traffic(self) -> QueueCounters:
        """Running totals: forwards (steps), dispatches, submissions, uploads and readbacks with their bytes, …"""
        return self.loaded.program.counters

    def take_losses(self, wait: bool) -> list[tuple[int, float]]:
        """Return the (step, loss) pairs that became readable since the last call; call it on the owner thread."""
        return self.steps.take_losses(wait)

    @property
    def under_way(self) -> bool:
        """Whether a step has begun and is not over."""
        return self.progress.under_way

    @property
    def position(self) -> int:
        """The number of dispatches of the step under way that have run; 0 between steps."""
        return self.dispatches_made if self.progress.under_way else 0

    @property
    def dispatches_made(self) -> int:
        """The number of dispatches that have run of the step that is, or was last, run dispatch by dispatch."""
        return 0 if self.progress.partial is None else self.progress.partial.position

    def last_dispatches(self) -> tuple[Dispatch, ...]:
        """Return the dispatches of the step that is, or was last, run dispatch by dispatch."""
        self.loaded.check_open("last_dispatches")
        return () if self.progress.partial is None else self.progress.partial.dispatches

    def step_dispatches(self) -> tuple[Dispatch, ...]:
        """Return the dispatches of the step under way, or of the next one: the plan's, then the update's."""
        self.loaded.check_open("step_dispatches")
        return self.steps.dispatches()

    # the update -------------------------------------------------------------------------------------------------------
    def set_learning_rate(self, lr: float) -> None:
        """Use SGD from the next step on, until changed: p ← p − lr·k(p)·g, k as `set_lr_multiplier` says."""
        self.updates.configure("set_learning_rate", optimizer("set_learning_rate", "sgd", lr=lr))

    def set_adam(self, lr: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        """Use Adam from the next step on, until changed (Kingma and Ba, 2015): m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g²,
        p ← p − lr·k(p)·(m/(1−β₁ᵗ)) / (√(v/(1−β₂ᵗ)) + ε). Moments start at zero and are kept when the rule changes."""
        numbers = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        self.updates.configure("set_adam", optimizer("set_adam", "adam", **numbers))

    def set_adamw(
        self, lr: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.01
    ) -> None:
        """Use Adam that also takes −lr·k(p)·weight_decay·p (Loshchilov and Hutter, 2019)."""
        numbers = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
        self.updates.configure("set_adamw", optimizer("set_adamw", "adamw", **numbers))

    def set_laprop(self, lr: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        """Use LaProp (Ziyin, Wang and Ueda, 2020): v as Adam, m ← β₁m + (1−β₁)·g/(√v̂ + ε), p ← p − lr·k(p)·m̂."""
        numbers = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        self.updates.configure("set_laprop", optimizer("set_laprop", "laprop", **numbers))

    def set_optimizer(self, rule: Optimizer) -> None:
        """Use any update rule from the next step on, until changed: `session.set_optimizer(Optimizer.of("lion",
        lr=1e-4))`. `Optimizer()` makes no update."""
        self.updates.configure("set_optimizer", checked("set_optimizer", rule))

    def clear_optimizer(self) -> None:
        """Make no update from now on; moments and counter are kept."""
        self.updates.configure("clear_optimizer", Optimizer())

    @property
    def optimizer(self) -> Optimizer:
        """The configured update rule."""
        return self.updates.optimizer

    @property
    def update(self) -> Update:
        """The configured update: dispatches and state buffers."""
        return self.updates.update

    def update_dispatches(self) -> tuple[Dispatch, ...]:
        """Return the dispatches of the configured update, which follow the plan's in every step that updates."""
        self.loaded.check_open("update_dispatches")
        return self.updates.update.dispatches

    def sgd_step(self, lr: float) -> None:
        """Make one SGD update now, with the gradients of the last step; the configured rule stays as it is."""
        self.updates.update_once("sgd_step", optimizer("sgd_step", "sgd", lr=lr))

    def adam_step(self, lr: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        """Make one Adam update now, with the gradients of the last step; the configured rule stays as it is."""
        numbers = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        self.updates.update_once("adam_step", optimizer("adam_step", "adam", **numbers))

    def sgd_step_cpu(self, lr: float) -> None:
        """Make one SGD update on the host: read parameters and gradients, update in float32, write back."""
        self.updates.sgd_step_cpu(lr)

    def set_lr_multiplier(self, prefix: str, k: float) -> None:
        """Multiply the rate of parameters whose name starts with `prefix` by `k` from the next update on: ≥ 0, and 0
        freezes them while moments still move. The longest prefix of a name counts; `""` is a prefix of all."""
        self.updates.set_lr_multiplier(prefix, k)

    def clear_lr_multipliers(self) -> None:
        """Make all factors 1 again."""
        self.updates.clear_lr_multipliers()

    def set_grad_clip_norm(self, max: float | None) -> None:
        """Let updates see g·min(1, max/‖all g‖); gradients that are read stay as they are. None: no clipping any
        more."""
        self.updates.set_grad_clip_norm(max)

    def set_adaptive_grad_clip(self, clip: float | None, pmin: float = 1e-3) -> None:
        """Let updates see g·min(1, clip·max(pmin, ‖p‖)/‖g‖) of each parameter (Brock and others, 2021, here by
        parameter); replaces clipping by norm. None: no clipping any more."""
        self.updates.set_adaptive_grad_clip(clip, pmin)

    def set_grad_accumulate(self, n: int) -> None:
        """Update on every n-th step from now on, with the mean of the gradients of n steps; a window that was begun is
        dropped. Steps without an update rule add nothing up."""
        self.updates.set_grad_accumulate(n)

    def zero_grad(self) -> None:
        """Drop the gradients that were added up so far: the window begins anew."""
        self.updates.zero_grad()

    def read_adam_m(self, name: str) -> Array:
        """Return the first moment of parameter `name`, float32 of its shape; zeros before Adam was ever configured."""
        return self.updates.read_moment("read_adam_m", "adam_m.", name)

    def read_adam_v(self, name: str) -> Array:
        """Return the second moment of parameter `name`."""
        return self.updates.read_moment("read_adam_v", "adam_v.", name)

    def write_adam_m(self, name: str, data: Any) -> None:
        """Set the first moment of parameter `name`."""
        self.updates.write_moment("write_adam_m", "adam_m.", name, data)

    def write_adam_v(self, name: str, data: Any) -> None:
        """Set the second moment of parameter `name`."""
        self.updates.write_moment("write_adam_v", "adam_v.", name, data)

    def adam_step_count(self) -> int:
        """Return the number of Adam updates made so far."""
        self.loaded.check_open("adam_step_count")
        return self.updates.adam_steps

    def set_adam_step_count(self, t: int) -> None:
        """Make the next Adam update number t + 1."""
        self.updates.set_adam_step_count(t)

    # inspection -------------------------------------------------------------------------------------------------------
    def read_node(self, node: int | Value, space: Space = "forward") -> Array:
        """Return the value of a node after a step, in its shape: an id or Value of the graph as written, or
        (`space="full"`) of the graph that is compiled, gradients included. A node that was rewritten into an equal one
        has its value."""
        return self.inspection.read_node(node, space)

    def read_node_by_name(self, name: str) -> Array:
        """Return the value of the last node of that name in the graph as written."""
        return self.inspection.read_node_by_name(name)

    def node_names(self) -> list[str]:
        """Return the names of the graph as written, in node order, as `read_node_by_name` takes them."""
        return self.inspection.node_names()

    def step_debug(self) -> DebugStepReport:
        """Make one real step, its update included, and scan all elements of every dispatch's output, by bits: group by
        group, before anything lies where they lie."""
        return self.search.step_debug()

    def trace_dispatches(self, threshold: float = 1e6) -> list[TraceRow]:
        """Return the dispatches whose output is not finite, above `threshold` somewhere, or all zero with more than 100
        elements. Runs forward and backward group by group with the values as they are; no update, and no step is
        counted."""
        return self.search.trace_dispatches(threshold)

    def dispatch_outputs(self) -> list[tuple[Dispatch, Array]]:
        """Return every dispatch with its output, in order, read before anything lies where it lies. Runs forward and
        backward group by group with the values as they are; no update, and no step is counted."""
        return self.inspection.dispatch_outputs()

    def read_all_param_norms(self) -> list[tuple[str, float]]:
        """Return (name, L2 norm) of every parameter in node order, accumulated in float64."""
        return self.inspection.param_norms()

    def read_all_param_grad_norms(self) -> list[tuple[str, float]]:
        """Return (name, L2 norm) of every gradient of the last step in node order, accumulated in float64."""
        return self.inspection.grad_norms()

    def dump_grad_summary(self, top_n: int = 10) -> str:
        """Print, and return, the parameters with the largest gradients (NaN first), their norms and the ratio."""
        return self.inspection.dump_grad_summary(top_n)

    def memory_summary(self) -> MemorySummary:
        """Return the memory allocated now."""
        self.loaded.check_open("memory_summary")
        return summary(self.loaded.plan, self.updates.update)

    def totals(self) -> StepTotals:
        """Return the dispatches, groups and bytes of a step, the configured update included."""
        self.loaded.check_open("totals")
        return totals(self.loaded.plan, self.updates.update)

    def plan(self) -> ExecutionPlan:
        """Return the plan that really runs."""
        self.loaded.check_open("plan")
        return self.loaded.plan

    def num_groups(self) -> int:
        """Return the number of barrier groups per step, the update's included."""
        self.loaded.check_open("num_groups")
        return self.totals().groups

    def device_information(self) -> str:
        """Return the device in one line."""
        self.loaded.check_open("device_information")
        return f"{self.device}: {self.device.reason}"

    @property
    def device(self) -> DeviceInfo:
        """Kind, name and class of the device, and why it was chosen."""
        return self.loaded.device.info

    @property
    def mode(self) -> str:
        """`training` or `inference`."""
        return self.loaded.plan.mode

    # profiles ---------------------------------------------------------------------------------------------------------
    def set_profiling(self, on: bool) -> None:
        """Time every step from now on, dispatch by dispatch (off by default): by timestamps of the adapter, on cpu by
        the clock. On a software adapter a stamp itself takes 12–70 µs (measured): believe what is above 100 µs."""
        self.profiling.set_profiling(on)

    def set_profiling_window(self, start: int, stop: int) -> None:
        """Time the dispatches start … stop − 1 alone, the update's counted after the plan's. A set of stamps is enough
        for 2,047 at a time: longer plans are timed window by window."""
        self.profiling.set_profiling_window(start, stop)

    def profiled_dispatch_timings(self) -> Timings:
        """Return (dispatch, label, seconds) of the last completed step that was timed; empty, with `.reason`, without
        one."""
        return self.profiling.timings()

    gpu_timings = profiled_dispatch_timings

    def dump_gpu_timings(self) -> str:
        """Print, and return, the dispatches of the last timed step, the longest first."""
        return self.profiling.dump_gpu_timings()

    def capture_profile(self, samples: int = 3, train: bool = True) -> SessionProfile:
        """Make `samples` steps with the clock on (times the windows of a long plan) and sum them up. They are real
        steps; without `train` the session is put back as it was, and losses that nobody has read are dropped."""
        return self.profiling.capture(samples, train)

    @property
    def last_profile(self) -> SessionProfile | None:
        """The last result of `capture_profile`, if a step still has the same dispatches; else None."""
        return self.profiling.last()

    # checkpoints ------------------------------------------------------------------------------------------------------
    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write parameters, moments and the Adam counter, after everything submitted. The file at `path` is the old or
        the new one, whole, at every moment. Not saved: the rule and its rates, inputs, where a loader is, and the
        number of steps, by which random ops choose their numbers."""
        self.checkpoints.save(path)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Take parameters, moments and the Adam counter from a file that `save_checkpoint` wrote, on any device.
        `CheckpointError` names the first tensor that does not fit, and then nothing has changed. An inference session
        takes a training file and leaves the moments. Sums of gradients under way are dropped."""
        self.checkpoints.load(path)

    def snapshot(self) -> CheckpointContent:
        """Return parameters, moments and the Adam counter as they are now, in memory, for `restore`."""
        return self.checkpoints.snapshot()

    def restore(self, snapshot: CheckpointContent, steps: int = 0) -> None:
        """Go back to a snapshot of this session, and count steps from `steps` on."""
        self.checkpoints.restore(snapshot, steps)

    # memory shared with others ----------------------------------------------------------------------------------------
    def input_buffer(self, name: str) -> Any:
        """Return the memory that input `name` lies in; on cpu in its shape."""
        return self.external.input_buffer(name)

    def output_buffer(self, index: int = 0) -> Any:
        """Return the memory that user output `index` lies in after a step; on cpu in its shape. Not to be written."""
        return self.external.output_buffer(index)

    def slot_size(self, slot: Slot) -> int:
        """Return the bytes that memory bound in the place of an input (by name) or an output (by index) must have."""
        return self.external.slot_size(slot)

    def input_host_ptr(self, name: str) -> tuple[int, int] | None:
        """Return (address, bytes) of input `name` where the host sees its memory, which is on cpu; else None."""
        return self.external.input_host_ptr(name)

    def bind_external_buffer(self, slot: Slot, memory: Any) -> None:
        """Place an input (by name) or an output (by index) in `memory` from the next step on: a writable C-contiguous
        array of 4-byte elements on cpu, a buffer of the same `GPUDevice` for storage and copies on wgpu. Elements lie
        there from its beginning; indices in it are not checked. Kernels store four elements at a time: bytes between
        the last element and `slot_size` may be overwritten, none behind. Inputs may share memory, what a step writes
        shares none. Raises `ExternalBindError`: `UnknownSlot`, `TooSmall(required, got)`, or memory in use."""
        self.external.bind(slot, memory)


def open_session(
    plan: ExecutionPlan, device: Device, nodes: Nodes | None = None, share_parameters_from: Session | None = None,
    shared: Collection[str] | None = None,
) -> Session:  # fmt: skip
    """Return a session of a plan that is compiled already, on a device. `nodes` says where the nodes of the written
    graph went; parameters (`shared`: those of these names) are those of another session where one is given, not
    copies."""
    if share_parameters_from is None:
        return Session(LoadedPlan(plan, device), nodes)
    other = share_parameters_from
    buffers = _shared(plan, device, other, plan.param_types if shared is None else shared)
    holders = other.values.unset_parameters.holders
    common = {name: holders[name] for name in plan.param_types if shared is None or name in shared}
    return Session(LoadedPlan(plan, device, buffers), nodes, common)


def _shared(plan: ExecutionPlan, device: Device, other: Session, names: Collection[str]) -> SharedBuffers:
    """Return the parameters `names` of a plan as buffers of another session on the same device."""
    where = "share_parameters_from"
    if not isinstance(other, Session) or other.closed:
        given = "a closed one" if isinstance(other, Session) else repr(other)
        raise SessionError(where, "session", given, "an open one")
    if other.device.kind != device.info.kind or other.device.name != device.info.name:
        raise SessionError(where, "device", str(other.device), str(device.info))
    theirs = other.loaded.plan
    for name in names:
        if name not in plan.param_types:
            raise unknown_name(where, "parameter", name, plan.param_types)
        type = plan.param_types[name]
        if name not in theirs.param_types:
            raise UnknownNameError(where, f"parameter {name}", "nothing in the other session", str(type))
        if theirs.param_types[name] != type:
            raise SessionError(where, f"parameter {name}", theirs.param_types[name], str(type))
    sources = {d.name: [name for name, _ in d.sources] for d in plan.derived_params}
    stored = [(name, b) for name, b in plan.stored_params if any(n in names for n in sources.get(name, [name]))]
    for name in (n for home, _ in stored for n in sources.get(home, [home])):
        here, there = _storage_of(plan, name), _storage_of(theirs, name)
        if here != there or name not in names:
            wanted = f"one stored in {here}" + ("" if name in names else ", shared too")
            raise SessionError(where, f"parameter {name}", f"one stored in {there}", wanted)
    places = dict(theirs.stored_params)
    return SharedBuffers(other.loaded.program, tuple((b, places[name]) for name, b in stored))


def _storage_of(plan: ExecutionPlan, name: str) -> str:
    """Describe the storage of a parameter, with all parameters in it."""
    packed = (d for d in plan.derived_params if name in dict(d.sources))
    return next((f"{d.name} {d.sources} along axis {d.axis}" for d in packed), "a buffer of its own")
