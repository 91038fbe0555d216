"""Train or run a graph by name: set inputs, step, read. A session is a plan on a device.

    session = build_session(graph)          # optimize, differentiate, optimize, compile, load
    session.initialize(seed=0)
    session.set_adam(1e-3)
    session.set_input("x", x); session.set_input("y", y)
    session.step(); print(session.read_loss())
"""

from gdlab.session.build import (
    DeviceLike,
    build_inference_session,
    build_session,
    build_session_with_report,
    lanes_of,
    resolve_device,
)
from gdlab.session.data import initial_values
from gdlab.session.session import MemorySummary, Optimizer, Session, open_session

__all__ = [
    "DeviceLike",
    "MemorySummary",
    "Optimizer",
    "Session",
    "build_inference_session",
    "build_session",
    "build_session_with_report",
    "initial_values",
    "lanes_of",
    "open_session",
    "resolve_device",
]
