"""Build a session from a graph: optimize, differentiate, optimize, compile, load."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gdlab.base.errors import ArgumentError, GraphError
from gdlab.base.kinds import FLAG, Kind, check_kind, instance, kinds
from gdlab.devices.base import Device
from gdlab.devices.calibrate import device_roofline
from gdlab.devices.choose import device as choose_device
from gdlab.devices.tune import check_seconds, tune, tuned_target
from gdlab.graph import Graph
from gdlab.op.cost import DEVICE, Cost
from gdlab.op.storage import check_caches
from gdlab.plan import plan_cache
from gdlab.plan.candidates import products_of
from gdlab.plan.records import ExecutionPlan, PlanMode
from gdlab.plan.target import CompileOptions, Target
from gdlab.rewrite import RULES, OptimizeReport
from gdlab.rewrite.rules.packing import PACKING
from gdlab.session.node_places import Nodes
from gdlab.session.session import Session, open_session
from gdlab.session.stages import Pipeline

DeviceLike = str | Device | None
_NAMES = Kind("a list of names of parameters", lambda given: isinstance(given, Collection)
              and not isinstance(given, (str, bytes)) and all(isinstance(name, str) for name in given))  # fmt: skip
_OPTIONS = {"allow", "cost", "enable", "disable", "only", "budget"}


@dataclass(frozen=True)
class SessionConfig:
    """The settings by which a session is built. `optimize`: arguments of `gdlab.optimize` (`allow`, `enable`,
    `disable`, `only`, `cost`, `budget`), None: no optimization at all. `skip_full_optimize`: none after
    differentiation. `debug`: no dispatch fusion and no aliasing, so that every node which the optimizer leaves can be
    read. `cache`: a file. `share_parameters_from`: a session on the same device whose parameters this one reads and
    writes too; `shared`: those of these names alone. `tune`: use the schedules of products that were measured on this
    adapter, after a search for missing ones of at most so many seconds (0: none are used; on cpu, and with a tile in
    `compile`, there is nothing to choose). They are kept in `tuning-<adapter>.json` in gdlab's cache folder."""


    mode: PlanMode = "training"
    device: DeviceLike = "auto"
    optimize: Mapping[str, Any] | None = field(default_factory=dict)
    compile: CompileOptions = CompileOptions()
    cache: str | os.PathLike[str] | None = None
    skip_full_optimize: bool = False
    debug: bool = False
    share_parameters_from: Session | None = None
    shared: Collection[str] | None = None
    tune: float = 0.0

    @property
    def options(self) -> CompileOptions:
        """The options of `compile`, without fusion and aliasing for debugging."""
        return replace(self.compile, fuse_dispatches=False, alias=False) if self.debug else self.compile


class _Debug:
    """A descriptor: on the class `SessionConfig.debug(...)` makes a configuration, on an instance it is the field
    `debug`."""

    def __get__(self, instance: SessionConfig | None, owner: type[SessionConfig]) -> Callable[..., SessionConfig]:
        return lambda **fields: owner(**{**fields, "debug": True})


SessionConfig.debug = _Debug()  # type: ignore[assignment]


@dataclass(frozen=True)
class Compiled:
    """A plan, the report of the optimizer, and where the nodes of the written graph went."""

    plan: ExecutionPlan
    report: OptimizeReport
    nodes: Nodes


def build_session(graph: Graph, device: DeviceLike = "auto") -> Session:
    """Return a training session: optimize, differentiate, optimize, compile, load. Output 0 is the loss, f32[1]."""
    return build(graph, SessionConfig(device=device))[0]


def build_session_with_report(graph: Graph, device: DeviceLike = "auto") -> tuple[Session, OptimizeReport]:
    """Return a training session and the report of the optimizer over both of its phases."""
    return build(graph, SessionConfig(device=device))


def build_inference_session(graph: Graph, device: DeviceLike = "auto") -> Session:
    """Return a session that runs the graph forward only, with the fusions of inference."""
    return build(graph, SessionConfig(mode="inference", device=device))[0]


def build_session_unoptimized(graph: Graph, device: DeviceLike = "auto") -> Session:
    """Return a training session of the graph as it is written, differentiated: no rewrite at all."""
    return build(graph, SessionConfig(device=device, optimize=None))[0]


def build(graph: Graph, config: SessionConfig | None = None) -> tuple[Session, OptimizeReport]:
    """Return a session as `config` says, and the report of the optimizer: the general form."""
    config = SessionConfig() if config is None else config
    _check_config(config)
    _checked(graph)
    device = resolve_device(config.device)
    if config.optimize and "cost" in config.optimize:
        priced = {**config.optimize, "cost": cost_on(config.optimize["cost"], device)}
        config = replace(config, optimize=priced)
    other = config.share_parameters_from
    if _gates_apart(config, device.target, other):
        config = replace(config, optimize=_without_packing(config.optimize or {}))
    made = _tuned(graph, config, device)
    if isinstance(other, Session) and not set(made.plan.derived_params) <= set(other.loaded.plan.derived_params):
        made = _tuned(graph, replace(config, optimize=_without_packing(config.optimize or {})), device)
    return open_session(made.plan, device, made.nodes, other, config.shared), made.report


def _gates_apart(config: SessionConfig, target: Target, other: object) -> bool:
    """Return whether the weights of a gate stay apart: on hardware, where one dispatch computes both products and the
    gate, unless the caller asks for packed ones, or shares them (a step of 4 layers of 64 rows on an NVIDIA H100 takes
    147 µs instead of 162, of 8 layers of 512 rows 4.15 ms instead of 4.20). In training where dispatches merge: then
    one stores both products beside the gate, and one adds their gradients (the 4 layers with Adam on an NVIDIA H200:
    503 µs instead of 523, which without merging are 562 and 532; 8 layers of 512 rows 14.15 ms instead of 14.10)."""
    hardware = target.adapter_class == "hardware" and (config.mode == "inference" or target.merges)
    if not hardware or config.optimize is None:
        return False
    asked = [name for key in ("enable", "only") for name in _names(config.optimize.get(key))]
    shared = isinstance(other, Session) and other.loaded.plan.derived_params
    return not shared and not set(PACKING) & set(asked)


def _names(given: Any) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def _without_packing(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return these arguments of `optimize` without the rules that pack weights."""
    return {**options, "disable": (*_names(options.get("disable")), *(name for name in PACKING if name in RULES))}


def build_session_cached(graph: Graph, cache_path: str | os.PathLike[str], device: DeviceLike = "auto") -> Session:
    """Return a training session whose plan is read from a file, if it holds the plan of this very graph for this device
    and version of gdlab; else compile the plan and write the file. A damaged file is reported by a warning and never
    trusted."""
    return build(graph, SessionConfig(device=device, cache=cache_path))[0]


@kinds(target=instance(Target, "a Target"))
def compile_training_graph(graph: Graph, target: Target | None = None) -> ExecutionPlan:
    """Return the plan that `build_session` would run, for a target (the portable one): needs no device."""
    return compiled(graph, SessionConfig(), Target.portable() if target is None else target).plan


def compiled(graph: Graph, config: SessionConfig, target: Target) -> Compiled:
    """Return the plan of a graph, as `build` makes it."""
    written = _checked(graph)
    if config.mode not in ("training", "inference"):
        raise ArgumentError("build", "mode", repr(config.mode), "'training' or 'inference'")
    made = Pipeline(
        written, config.mode, config.optimize, skip_full_optimize=config.skip_full_optimize, compile=config.options
    )
    return Compiled(made.plan(target), made.report, made.nodes(graph))


def resolve_device(device: DeviceLike) -> Device:
    """Return the device that `"auto"`, `"wgpu"`, `"wgpu:1"`, `"wgpu:NAME"`, `"cpu"` or a `Device` stands for."""
    return device if isinstance(device, Device) else choose_device("auto" if device is None else device)


def cost_on(cost: str | Cost, device: DeviceLike) -> str | Cost:
    """Return a cost model of `optimize`; `"device"` becomes the roofline of this device, measured now if no figures are
    kept."""
    return device_roofline(resolve_device(device)) if isinstance(cost, str) and cost == DEVICE else cost


def _tuned(graph: Graph, config: SessionConfig, device: Device) -> Compiled:
    """Return the plan of a graph, with measured schedules if the configuration asks for them."""
    if not config.tune or config.options.tile is not None:
        return _from_cache(graph, config, device.target)
    made = _from_cache(graph, config, tuned_target(device))
    target = tuned_target(device, tune(device, products_of(made.plan), config.tune))
    return made if target == made.plan.target else _from_cache(graph, config, target)


def _from_cache(graph: Graph, config: SessionConfig, target: Target) -> Compiled:
    """Return the plan of a graph as `compiled` does, read from the plan cache if the configuration names one."""
    written = _checked(graph)
    key = None
    if config.cache is not None:
        facts = config.mode, config.optimize, config.skip_full_optimize, config.options, target
        key = plan_cache.key_of(written, *facts)
    if config.cache is None or key is None:
        return compiled(graph, config, target)
    cached = plan_cache.load(config.cache, key, written)
    if cached is not None:
        return Compiled(cached.plan, OptimizeReport.empty(), Nodes(written, graph, cached.place, cached.why))
    made = compiled(graph, config, target)
    plan_cache.save(config.cache, key, plan_cache.Cached(made.plan, made.nodes.place, made.nodes.why), written)
    return made


def _check_config(config: SessionConfig) -> None:
    if not isinstance(config, SessionConfig):
        raise ArgumentError("build", "config", type(config).__name__, "a SessionConfig")
    if not isinstance(config.compile, CompileOptions):
        raise ArgumentError("build", "compile", type(config.compile).__name__, "CompileOptions(...)")
    if config.optimize is not None and (not isinstance(config.optimize, Mapping) or set(config.optimize) - _OPTIONS):
        raise ArgumentError("build", "optimize", repr(config.optimize), f"a dict of {', '.join(sorted(_OPTIONS))}")
    if config.cache is not None and not isinstance(config.cache, (str, os.PathLike)):
        raise ArgumentError("build", "cache", repr(config.cache), "a path")
    for name, flag in (("skip_full_optimize", config.skip_full_optimize), ("debug", config.debug)):
        check_kind("build", name, flag, FLAG)
    if config.shared is not None:
        check_kind("build", "shared", config.shared, _NAMES)
        if config.shared and config.share_parameters_from is None:
            raise ArgumentError("build", "shared", f"{config.shared!r:.80}", "share_parameters_from=SESSION with it")
    check_seconds("build", config.tune)


def _checked(graph: Graph) -> Graph:
    if not isinstance(graph, Graph):
        raise GraphError("session", "graph", type(graph).__name__, "a Graph")
    if not graph.outputs:
        raise GraphError("session", "outputs", "none", "graph.set_outputs(...) first")
    check_caches(graph, "session")
    return graph.copy()
