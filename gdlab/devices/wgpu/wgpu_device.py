"""Run plans on any Vulkan, Metal or DX12 adapter: list the adapters, open one, load plans on it.

The only module that imports wgpu, and only when an adapter is asked for. All of it runs on the owner thread.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from gdlab import kernels
from gdlab.base import process
from gdlab.base.errors import ArgumentError, CompileError, DeviceUnavailableError, SessionError
from gdlab.base.files import cache_folder
from gdlab.base.memo import LruCache
from gdlab.base.threads import OwnerThread
from gdlab.base.words import natural
from gdlab.devices.base import Device, DeviceInfo, QueueCounters, Region, SharedBuffers, owner
from gdlab.devices.buffer_pool import Pool
from gdlab.devices.fit import Bounds, free_bytes, round_up
from gdlab.devices.wgpu.c_types import read_types_quickly
from gdlab.devices.wgpu.held_steps import HoldingPrograms
from gdlab.devices.wgpu.pass_recording import CLoop
from gdlab.devices.wgpu.plan_replay import WgpuProgram
from gdlab.devices.wgpu.readback import Mapped
from gdlab.devices.wgpu.wgpu_queue import WgpuQueue
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.kernel_digest import source_hash
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.spread import in_bounds
from gdlab.plan.target import ALIGN, Limits, Target

__all__ = ["Gpu", "WgpuDevice", "WgpuProgram", "adapters", "open"]

# Every C function that we call. Some forty others of the header end the process when called: a test runs each of these.
RAW = (
    "BufferGetConstMappedRange",
    "BufferGetMappedRange",
    "BufferMapAsync",
    "BufferUnmap",
    "CommandBufferRelease",
    "CommandEncoderBeginComputePass",
    "CommandEncoderClearBuffer",
    "CommandEncoderCopyBufferToBuffer",
    "CommandEncoderFinish",
    "CommandEncoderRelease",
    "CommandEncoderResolveQuerySet",
    "ComputePassEncoderDispatchWorkgroups",
    "ComputePassEncoderEnd",
    "ComputePassEncoderRelease",
    "ComputePassEncoderSetBindGroup",
    "ComputePassEncoderSetPipeline",
    "ComputePassEncoderWriteTimestamp",
    "DeviceCreateBindGroup",
    "DeviceCreateCommandEncoder",
    "DeviceCreateShaderModuleTrusted",
    "DevicePoll",
    "QueueGetTimestampPeriod",
    "QueueSubmitForIndex",
    "QueueWriteBuffer",
)
BINDING = {"r": "read-only-storage", "w": "storage"}
BACKENDS = ("Vulkan", "Metal", "DX12")  # not GL: slower to open, and its software adapter shows up twice
STAMPS, STAMPS_INSIDE = "timestamp-query", "timestamp-query-inside-passes"
FEATURES = (STAMPS, STAMPS_INSIDE)
PREFERENCE = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "Unknown", "CPU")


# finding adapters -----------------------------------------------------------------------------------------------------
def adapters() -> list[DeviceInfo]:
    """Return the available adapters, best first; empty when there are none, or no wgpu."""
    with contextlib.suppress(DeviceUnavailableError):
        return [_info(a, "listed") for a in owner().call(_adapters)]
    return []


def listed() -> None:
    """List the adapters on this thread, without a cache; library and drivers are loaded then."""
    with contextlib.suppress(DeviceUnavailableError):
        _adapters()


def open(reason: str = "asked for", adapter: str = "") -> WgpuDevice:
    """Open an adapter as a device, once per process: the best, or the one whose number in `adapters()` or part of whose
    name is given. `DeviceUnavailableError` when none answers."""
    return owner().call(lambda: _open(reason, adapter))


_opened: dict[tuple[int, int], Gpu] = {}  # by process (after a fork the parent's objects must be neither used nor
# released) and number of the adapter: adapters may have one name, and every listing makes new objects


def check_process(where: str, pid: int | None = None) -> None:
    """Raise `SessionError` if an adapter was opened (or that of `pid` was) before this process was forked: the driver's
    threads stayed in the other, and a call would wait for ever."""
    if (pid or next((opened for opened, _ in _opened), process.id)) != process.id:
        wanted = 'a process that is started with spawn, or device="cpu"'
        raise SessionError(where, "device wgpu", "one that was opened before this process was forked", wanted)


def _open(reason: str, adapter: str) -> WgpuDevice:
    check_process("device")
    number = 0
    if adapter:
        number = chosen_adapter(adapter, [str(a.info["device"]) for a in _adapters()])
    gpu = _opened.get((os.getpid(), number))
    if gpu is None or gpu.lost:
        found = _adapters()
        if not found:
            raise _no_adapter("wgpu")
        gpu = _opened[os.getpid(), number] = Gpu(found[number], owner() if number == 0 else OwnerThread("device"))
    return WgpuDevice(gpu, reason)


def _no_adapter(given: str) -> DeviceUnavailableError:
    wanted = 'a Vulkan driver (Debian: mesa-vulkan-drivers) or device="cpu"'
    return DeviceUnavailableError("device", given, "no adapter", wanted)


def chosen_adapter(text: str, names: Sequence[str]) -> int:
    """Return the number of the adapter that `text` names: a number, or a part of one name in any case."""
    if not names:
        raise _no_adapter(f"wgpu:{text}")
    listed = ", ".join(f"{i} {name}" for i, name in enumerate(names))
    word = text.strip()
    text = text if len(text) <= 60 else text[:57] + "…"
    if word.isdecimal() and word.isascii():
        number = natural(word)
        if number is not None and number < len(names):
            return number
        raise ArgumentError("device", "adapter", f'"wgpu:{text}"', f"a number of the list: {listed}")
    fitting = [i for i, name in enumerate(names) if word.casefold() in name.casefold()]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        several = " or ".join(f'"wgpu:{i}"' for i in fitting)
        given = f'"wgpu:{text}", which fits several'
        raise ArgumentError("device", "adapter", given, f"{several}, of the list: {listed}")
    raise ArgumentError("device", "adapter", f'"wgpu:{text}"', f"a number, or a part of a name, of the list: {listed}")


_listing = threading.Lock()  # one instance for all: the first list makes it


def _adapters() -> list[Any]:
    check_process("device")
    with _listing, _driver_environment():
        wgpu = _wgpu()
        found = [a for a in wgpu.gpu.enumerate_adapters_sync() if "GL" not in a.info["backend_type"]]
    return best_first(found)


def best_first(found: Sequence[Any]) -> list[Any]:
    """Sort adapters by preference; equals keep their order."""
    return sorted(found, key=lambda adapter: PREFERENCE.index(_adapter_type(adapter)))


def _adapter_type(adapter: Any) -> str:
    given = str(adapter.info["adapter_type"])
    return given if given in PREFERENCE else "Unknown"


def _adapter_class(adapter: Any) -> str:
    return "software" if _adapter_type(adapter) == "CPU" else "hardware"


def _info(adapter: Any, reason: str) -> DeviceInfo:
    return DeviceInfo("wgpu", str(adapter.info["device"]), _adapter_class(adapter), reason)


def _wgpu() -> Any:
    """Return the library, set to its backends."""
    wanted = 'wgpu 0.32 (pip install "wgpu==0.32.*") or device="cpu"'
    try:
        import wgpu
        from wgpu.backends.wgpu_native import extras, ffi
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceUnavailableError("device", "wgpu", str(error), wanted) from error
    if not wgpu.__version__.startswith("0.32."):  # we call its private C layer
        raise DeviceUnavailableError("device", "wgpu", f"wgpu {wgpu.__version__}", wanted)
    read_types_quickly(ffi)
    with contextlib.suppress(RuntimeError):  # somebody in this process made the instance before us: theirs will do
        extras.set_instance_extras(backends=BACKENDS)
    return wgpu


@contextlib.contextmanager
def _driver_environment() -> Iterator[None]:
    """Set Mesa's disk cache of kernels to an existing folder, and a runtime folder, which it else asks for."""
    if sys.platform != "linux":
        yield
        return
    with contextlib.suppress(OSError, RuntimeError):  # no home, or one that cannot be written: no disk cache
        cache = str(cache_folder() / "mesa")
        os.makedirs(os.environ.setdefault("MESA_SHADER_CACHE_DIR", cache), exist_ok=True)  # Mesa makes no parents
    if "XDG_RUNTIME_DIR" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="gdlab-") as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("XDG_RUNTIME_DIR", None)


# an open adapter ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CompiledKernel:
    """A compiled kernel; `keep` owns the raw handle, `layout` is the layout of its bind groups."""

    raw: Any
    layout: Any
    keep: Any


# Pipelines of nobody that are kept for the next plan: on lavapipe one takes about half a megabyte.
KEPT_BYTES, PIPELINE_BYTES = 24 << 20, 400 << 10
RECIPE_BYTES = 1 << 10
FREE_BYTES = 64 << 20  # of tensors, and of readbacks, that nobody uses and that are kept for the next


class Gpu:
    """An open adapter: the raw C layer, and the state that plans share. Keeps the owner of every raw handle alive."""

    def __init__(self, adapter: Any, turn: OwnerThread) -> None:
        import wgpu
        from wgpu.backends.wgpu_native import ffi, lib
        from wgpu.backends.wgpu_native._api import error_handler
        from wgpu.backends.wgpu_native._helpers import ErrorSlot

        self.pid, self.turn = process.id, turn
        self.ffi, self.lib, self.errors, self.error_slot = ffi, lib, error_handler, ErrorSlot
        self.raw = SimpleNamespace(**{name: getattr(lib, f"wgpu{name}") for name in RAW})
        self.usage, self.map_usage, self.upload_usage, self.resolve_usage = _usages(wgpu.BufferUsage)
        self.refused: type[Exception] = wgpu.GPUError
        self.adapter, self.device = adapter, _opened_device(adapter)
        self.adapter_class = _adapter_class(adapter)
        self.names_reads = self.adapter_class == "hardware"  # to a software adapter a barrier is nothing
        self.no_stamps = "" if STAMPS in self.device.features else f"this adapter has no {STAMPS}"
        self.stamps_inside = STAMPS_INSIDE in self.device.features
        self.d, self.q, self.null = self.device._internal, self.device.queue._internal, ffi.NULL
        self.bounds = _bounds(self.device.limits)
        self.lost, self.pending, self.pipelines_created = False, 0, 0
        self.holding = HoldingPrograms(self)
        self.lent: weakref.WeakSet[Any] = weakref.WeakSet()  # memory that others use, too
        self.lendings = 0  # how often some was lent
        self.submitted = self.ended = -1  # the last submission, and the last one that is known to have run
        self.layouts: dict[str, tuple[Any, Any]] = {}
        self.pipelines: weakref.WeakValueDictionary[tuple[str, str], CompiledKernel] = weakref.WeakValueDictionary()
        self.kept: LruCache[tuple[str, str], CompiledKernel] = LruCache(
            KEPT_BYTES
        )  # the others live as long as their plans
        self.address, self.floats = ffi.typeof("uintptr_t"), ffi.typeof("const float *")
        self.c_loop: CLoop | None = None
        self.one_command = ffi.new("WGPUCommandBuffer[1]")  # for submissions
        # the data that the text of a dispatch is written from → key of its kernel
        self.recipes: LruCache[Any, tuple[str, str]] = LruCache(2 << 20)
        self.warm: weakref.WeakSet[CompiledKernel] = weakref.WeakSet()
        self.mapped: weakref.WeakValueDictionary[int, Mapped] = weakref.WeakValueDictionary()
        self.tensors: Pool[Any] = Pool(self.buffer, FREE_BYTES)
        self.readbacks: Pool[Mapped] = Pool(partial(Mapped, self), FREE_BYTES)
        self.numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # of tensors of the pool
        # One callback for life: a callback of its own would die with a program dropped while a map is under way.
        # Its pointers are numbers of ours: declared as such, they need no casts.
        kind = "void(WGPUMapAsyncStatus, WGPUStringView, uintptr_t, uintptr_t)"
        self._callback = self.ffi.callback(kind, self._mapped)
        self.callback = self.ffi.cast("WGPUBufferMapCallback", self._callback)
        atexit.register(_leave_pipelines, weakref.ref(self.pipelines))

    def _mapped(self, status: int, _message: Any, key: int, map: int) -> None:
        mapped = self.mapped.get(key)
        if mapped is not None:
            mapped.ended(map, status)

    # making things ----------------------------------------------------------------------------------------------------
    def buffer(
        self, nbytes: int, *, name: str = "", mapped: bool = False, upload: bool = False, resolve: bool = False
    ) -> Any:  # fmt: skip
        """Make a zeroed device buffer for `name`, a staging buffer to map for reading or (`upload`, mapped at once) for
        writing, or one that stamps are resolved into; its size is rounded up."""
        self.alive("device")
        size = round_up(nbytes)
        staging = self.map_usage if mapped else self.upload_usage if upload else None
        usage = staging or (self.resolve_usage if resolve else self.usage)
        try:
            return self.device.create_buffer(size=size, usage=usage, mapped_at_creation=upload)
        except self.refused as error:
            self.note_loss(_message(error))
            self.alive("device")
            what = f"tensor {name}, {size} bytes" if name else f"buffer of {size} bytes"
            wanted = f"memory for it on {self.adapter.info['device']}"
            raise SessionError("device", what, _message(error), wanted) from error

    def free_bytes(self) -> int | None:
        """Return the bytes left for buffers, where known: a software adapter has the memory of the machine."""
        return free_bytes() if _adapter_type(self.adapter) == "CPU" else None

    def query_set(self, count: int) -> Any:
        """Make a set of timestamps."""
        self.alive("profile")
        try:
            return self.device.create_query_set(type="timestamp", count=count)
        except self.refused as error:
            self.note_loss(_message(error))
            self.alive("profile")
            raise SessionError("profile", "timestamps", _message(error), "those of an adapter that has them") from error

    def stamped_pass(self, query_set: Any, first: int) -> Any:
        """Return the descriptor of a compute pass with the stamps `first` and `first` + 1 at its begin and end."""
        writes = self.ffi.new(
            "WGPUPassTimestampWrites *",
            {"querySet": query_set, "beginningOfPassWriteIndex": first, "endOfPassWriteIndex": first + 1},
        )
        described = self.ffi.new("WGPUComputePassDescriptor *", {"timestampWrites": writes})
        self.described = described, writes  # the descriptor holds a bare pointer
        return described

    def stamp_seconds(self) -> float:
        """Return the seconds per tick of a timestamp."""
        return float(self.raw.QueueGetTimestampPeriod(self.q)) * 1e-9

    def layout(self, access: str) -> tuple[Any, Any]:
        """Return (bind group layout, pipeline layout) of an access signature: "rrw" is two reads, one write."""
        if access not in self.layouts:
            entries = [{"binding": i, "visibility": 4, "buffer": {"type": BINDING[a]}} for i, a in enumerate(access)]
            group = self.device.create_bind_group_layout(entries=entries)
            self.layouts[access] = group, self.device.create_pipeline_layout(bind_group_layouts=[group])
        return self.layouts[access]

    def kernel(self, where: str, dispatch: Dispatch, target: Target, counters: QueueCounters) -> CompiledKernel:
        """Return the compiled kernel of a dispatch; the text of equal dispatches is written once."""
        access = "".join(a for _, a in dispatch.bindings) + "r" * bool(dispatch.scalars)
        shapes, written = tuple(o.shape for o in dispatch.operands), dispatch.source_hash or source_hash(dispatch)
        recipe = written, shapes, target, access
        known = self.recipes.get(recipe)
        pipeline = self.known(known) if known is not None else None
        if known is not None and pipeline is not None:
            return pipeline
        text, _ = kernels.wgsl(dispatch, target)
        trusted, created = target.adapter_class == "hardware" and in_bounds(dispatch), self.pipelines_created
        key, pipeline = self.pipeline(where, text, access, trusted)
        counters.pipelines_created += self.pipelines_created - created
        self.recipes.put(recipe, key, RECIPE_BYTES)
        return pipeline

    def pipeline(
        self, where: str, wgsl: str, access: str, trusted: bool = False
    ) -> tuple[tuple[str, str], CompiledKernel]:
        """Return (key, compiled kernel); the same text is compiled once per access signature. `trusted`: without checks
        of indices and loops, for kernels that leave no binding whatever the data."""
        key = hashlib.sha256(wgsl.encode()).hexdigest() + "!" * trusted, access
        pipeline = self.known(key)
        if pipeline is None:
            pipeline = self.pipelines[key] = self._compile(where, wgsl, key)
            self.pipelines_created += 1
            self.kept.put(key, pipeline, PIPELINE_BYTES)
        return key, pipeline

    def known(self, key: tuple[str, str]) -> CompiledKernel | None:
        """Return the compiled kernel of this key, now the most recently used; None once nothing uses or caches it."""
        pipeline = self.kept.get(key) or self.pipelines.get(key)
        if pipeline is not None:
            self.kept.put(key, pipeline, PIPELINE_BYTES)
        return pipeline

    def _compile(self, where: str, wgsl: str, key: tuple[str, str]) -> CompiledKernel:
        text, access = key
        group, layout = self.layout(access)
        try:
            make = self._unchecked_module if text.endswith("!") else self.device.create_shader_module
            compute = {"module": make(label=where, code=wgsl), "entry_point": "main"}
            made = self.device.create_compute_pipeline(label=where, layout=layout, compute=compute)
        except self.refused as error:
            raise CompileError(where, "WGSL", _message(error), "a kernel that this adapter takes") from error
        return CompiledKernel(made._internal, group, made)

    def _unchecked_module(self, label: str, code: str) -> Any:
        """Compile a module without bounds checks: a tenth to a half faster (H200); a wrong index is undefined."""
        from wgpu.backends.wgpu_native._api import GPUShaderModule

        texts = [self.ffi.new("char[]", text.encode()) for text in (code, label)]
        views = [{"data": text, "length": len(text) - 1} for text in texts]
        source = self.ffi.new("WGPUShaderSourceWGSL *", {"code": views[0]})
        source.chain.sType = self.lib.WGPUSType_ShaderSourceWGSL
        chain = self.ffi.cast("WGPUChainedStruct *", source)
        descriptor = self.ffi.new("WGPUShaderModuleDescriptor *", {"nextInChain": chain, "label": views[1]})
        self.errors.capture("module")
        try:
            raw = self.raw.DeviceCreateShaderModuleTrusted(self.d, descriptor, 0)
        finally:
            error = self.errors.release("module")
        if error:
            raise self.refused(error[1])
        return GPUShaderModule(label, raw, self.device)

    def group(self, where: str, pipeline: CompiledKernel, regions: Sequence[Region]) -> Any:
        """Make a bind group of regions, in binding order. Made by the raw call: plans have hundreds, and a session that
        is opened makes them all."""
        from wgpu.backends.wgpu_native._api import GPUBindGroup

        rows = [
            {"binding": i, "buffer": r.memory._internal, "offset": r.offset, "size": r.nbytes}
            for i, r in enumerate(regions)
        ]
        entries = self.ffi.new("WGPUBindGroupEntry[]", rows)
        fields = {"layout": pipeline.layout._internal, "entryCount": len(rows), "entries": entries}
        descriptor = self.ffi.new("WGPUBindGroupDescriptor *", fields)
        self.errors.capture("bindings")
        try:
            raw = self.raw.DeviceCreateBindGroup(self.d, descriptor)
        finally:
            error = self.errors.release("bindings")
        if error:
            raise CompileError(where, "bindings", _message(error[1]), "bindings that this adapter takes")
        return GPUBindGroup("", raw, self.device)

    # talking to the queue ---------------------------------------------------------------------------------------------
    def checked(self, where: str) -> CheckedCalls:
        """Raise the errors of raw calls at the end of a `with` block: those return nothing, and invalid submissions end
        the process. A block takes 1.5 µs."""
        return CheckedCalls(self, where)

    def alive(self, where: str) -> None:
        """Refuse every call after the loss of the device: most would end the process."""
        if self.pid != process.id:
            check_process(where, self.pid)
        if self.lost:
            raise SessionError(where, "device", "one that was lost", "a session on a new device")

    def note_loss(self, text: str) -> None:
        """Remember that the device is lost, where the text of one of its errors says so."""
        self.lost = self.lost or "is lost" in text

    def record(self, where: str, encode: Callable[[Any], None]) -> Any:
        """Return a finished command buffer that `encode` records; an invalid recording raises."""
        raw, commands = self.raw, self.null
        try:
            with self.checked(where):
                encoder = raw.DeviceCreateCommandEncoder(self.d, self.null)
                encode(encoder)
                commands = raw.CommandEncoderFinish(encoder, self.null)
                raw.CommandEncoderRelease(encoder)
        except SessionError:
            if commands != self.null:
                raw.CommandBufferRelease(commands)
            raise
        return commands

    def poll(self, submission: int | None = None) -> None:
        """Fire callbacks and free finished work; with a submission, sleep until it has run."""
        if submission is None:
            # of the answer (nothing is under way) only the lowest byte is written: a bool of Rust, read as uint32
            if self.raw.DevicePoll(self.d, False, self.null) & 0xFF:
                self.ended = self.submitted
            return
        self.raw.DevicePoll(self.d, True, self.ffi.new("WGPUSubmissionIndex *", submission))
        self.ended = max(self.ended, submission)


class CheckedCalls:
    """The block of `Gpu.checked`: a class, because every step enters two, and a generator takes three times as long.
    Its slot lies on the stack that wgpu-py writes errors of this thread into: `capture` and `release` would look for
    that once more each, and compare names (2.5 µs a block instead of 1.5; 2 shared cores, 2026-11-28)."""

    __slots__ = ("gpu", "slot", "stack", "where")

    def __init__(self, gpu: Gpu, where: str) -> None:
        self.gpu, self.where, self.slot = gpu, where, gpu.error_slot("gdlab")

    def __enter__(self) -> CheckedCalls:
        gpu = self.gpu
        if gpu.lost or gpu.pid != process.id:
            gpu.alive(self.where)
        self.stack = gpu.errors._get_proxy_stack()
        self.stack.append(self.slot)
        return self

    def raise_error(self) -> None:
        """Raise the error of the calls so far, if any."""
        if self.slot.message is not None:
            text = _message(self.slot.message)
            self.gpu.note_loss(text)
            raise SessionError(self.where, "recording", text, "a valid one (nothing was submitted)")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self.stack.pop() is not self.slot:  # never; wgpu-py forgets all of them then, too
            self.stack.clear()
        if error is None:
            self.raise_error()


def _leave_pipelines(pipelines: weakref.ref[weakref.WeakValueDictionary[tuple[str, str], CompiledKernel]]) -> None:
    """Keep every pipeline of an ending process for the system to free: a driver takes 10 ms or more for each."""
    for pipeline in list((pipelines() or {}).values()):
        pipeline.keep._internal = None  # its owner releases nothing then


def _opened_device(adapter: Any) -> Any:
    """Open a device with the adapter's own limits and, of its features, timestamps."""
    try:
        with _driver_environment():
            return adapter.request_device_sync(required_features=[f for f in FEATURES if f in adapter.features])
    except RuntimeError as error:
        given = f"{adapter.info['device']}, which does not open ({_message(error)})"
        raise DeviceUnavailableError("device", "wgpu", given, 'a working driver or device="cpu"') from error


def _message(error: object) -> str:
    """Return the message of a wgpu error without the lines that only frame it."""
    lines = [line.strip() for line in str(error).splitlines()]
    return "; ".join(line for line in lines if line and line not in ("Validation Error", "Caused by:"))


def _usages(flag: Any) -> tuple[int, int, int, int]:
    data, read = flag.STORAGE | flag.COPY_SRC | flag.COPY_DST, flag.MAP_READ | flag.COPY_DST
    return data, read, flag.MAP_WRITE | flag.COPY_SRC, flag.QUERY_RESOLVE | flag.COPY_SRC


def _bounds(given: Any) -> Bounds:
    limits = Limits(
        workgroups_per_axis=given["max-compute-workgroups-per-dimension"],
        binding_bytes=given["max-storage-buffer-binding-size"] // ALIGN * ALIGN,
        storage_buffers=given["max-storage-buffers-per-shader-stage"],
        alignment=max(ALIGN, given["min-storage-buffer-offset-alignment"]),
        workgroup_bytes=given["max-compute-workgroup-storage-size"],
        invocations=given["max-compute-invocations-per-workgroup"],
    )
    return Bounds(limits, given["max-buffer-size"] // ALIGN * ALIGN)


class WgpuDevice(Device):
    """An adapter behind wgpu; several of them may share one open `Gpu`."""

    def __init__(self, gpu: Gpu, reason: str) -> None:
        self.gpu = gpu
        self.info = _info(gpu.adapter, reason)
        software = self.info.adapter_class == "software"
        self.target = Target("wgpu", "software" if software else "hardware", gpu.bounds.limits, merges=not software)

    def turn(self) -> OwnerThread:
        """Return the owner thread of the adapter."""
        return self.gpu.turn

    def queue(self) -> WgpuQueue:
        """Return a queue of the adapter."""
        return WgpuQueue(self.gpu)

    def load(self, plan: ExecutionPlan, shared: SharedBuffers | None = None, *, checked: bool = True) -> WgpuProgram:
        """Validate the plan, allocate, compile, warm up; `checked=False` (for tests) leaves the validation to wgpu."""
        return self.gpu.turn.call(lambda: WgpuProgram(self.gpu, plan, checked, shared))

    def open_queue(self) -> tuple[WgpuQueue, OwnerThread]:
        """Return a queue, and the owner thread of the adapter."""
        return self.gpu.turn.call(lambda: WgpuQueue(self.gpu)), self.gpu.turn
