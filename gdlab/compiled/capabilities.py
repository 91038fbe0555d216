"""State the features of compiled graphs that work on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gdlab.base.formats import BOUNDARY
from gdlab.devices.base import Device

# Feature -> the methods that it consists of.
METHODS: Mapping[str, tuple[str, ...]] = {
    "persistent_handles": ("bind_handle", "read_handle", "set_handle_feed", "unbind_handle"),
    "gpu_handles": ("bind_gpu_handle", "has_gpu_handle", "read_gpu_handle", "unbind_gpu_handle"),
    "gpu_handle_feeds": ("set_gpu_handle_feed", "clear_gpu_handle_feed", "run_feed_gpu_handle"),
    "zero_copy_outputs": ("run_raw",),
    "slots": ("run_slots", "arena_ptr", "arena_view"),
    "active_extent": ("set_active_extent",),
    "moe_residency": ("set_moe_resident_experts", "set_moe_resident_experts_per_layer"),
    "moe_topk_capture": ("enable_moe_topk_capture", "take_moe_topk_capture"),
    "moe_stats": ("take_moe_residency_stats",),
    "async_commit": ("commit_no_wait", "run_async", "sync_pending", "read_outputs"),
    "pipelined": ("run_pipelined",),
    "typed_params": ("set_param_typed",),
    "typed_io": ("run_typed",),
    "clone": ("clone", "clone_from"),
    "contexts": ("context",),
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features of a compiled graph on its device. `boundary_dtypes`: of inputs and outputs; `timestamps`: whether
    the device times dispatches; `limits`: those of kernels and bindings, by name."""

    persistent_handles: bool
    gpu_handles: bool
    gpu_handle_feeds: bool
    zero_copy_outputs: bool
    slots: bool
    active_extent: bool
    moe_residency: bool
    moe_topk_capture: bool
    moe_stats: bool
    async_commit: bool
    pipelined: bool
    typed_params: bool
    typed_io: bool
    clone: bool
    contexts: bool
    boundary_dtypes: tuple[str, ...]
    timestamps: bool
    max_in_flight: int
    adapter_class: str
    limits: Mapping[str, int]


def capabilities_of(kind: type, device: Device, max_in_flight: int, timestamps: bool) -> Capabilities:
    """Return the capabilities of a class of compiled graphs on a device: a feature works if its methods exist."""
    flags = {feature: all(hasattr(kind, name) for name in methods) for feature, methods in METHODS.items()}
    return Capabilities(
        **flags, boundary_dtypes=tuple(BOUNDARY), timestamps=timestamps, max_in_flight=max_in_flight,
        adapter_class=device.info.adapter_class, limits=asdict(device.target.limits),
    )  # fmt: skip
