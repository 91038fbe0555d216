"""Train or run a graph by name: set inputs, step, read. A session is a plan on a device.

    session = build_session(graph)          # optimize, differentiate, optimize, compile, load
    session.initialize(seed=0)
    session.set_adam(1e-3)
    session.set_input("x", x); session.set_input("y", y)
    session.step(); print(session.read_loss())
"""

from gdlab.session.allocated_bytes import MemorySummary
from gdlab.session.builders import (
    DeviceLike,
    SessionConfig,
    build,
    build_inference_session,
    build_session,
    build_session_cached,
    build_session_unoptimized,
    build_session_with_report,
    compile_training_graph,
    resolve_device,
)
from gdlab.session.initial import initial_values
from gdlab.session.inspect import by_buffer
from gdlab.session.node_places import Nodes, nodes_of
from gdlab.session.profile import DispatchProfile, SessionProfile, Timings
from gdlab.session.run.nonfinite import Anomaly, DebugStepReport, TraceRow
from gdlab.session.session import Session, open_session
from gdlab.session.stages import Pipeline, PipelineStage, lanes_of
from gdlab.session.update_settings import Optimizer

__all__ = [
    "Anomaly",
    "DebugStepReport",
    "DeviceLike",
    "DispatchProfile",
    "MemorySummary",
    "Nodes",
    "Optimizer",
    "Pipeline",
    "PipelineStage",
    "Session",
    "SessionConfig",
    "SessionProfile",
    "Timings",
    "TraceRow",
    "build",
    "build_inference_session",
    "build_session",
    "build_session_cached",
    "build_session_unoptimized",
    "build_session_with_report",
    "by_buffer",
    "compile_training_graph",
    "initial_values",
    "lanes_of",
    "nodes_of",
    "open_session",
    "resolve_device",
]
