"""A small session for the tests, and all of its state as one value to compare before and after."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from gdlab import ops
from gdlab.devices.base import owner
from gdlab.devices.cpu import cpu_device
from gdlab.devices.wgpu import wgpu_device
from gdlab.graph import Graph
from gdlab.session import Session

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
W = np.array([[0.5, -1], [0.25, 2], [-0.75, 1]], np.float32)
Y = np.linspace(0, 1, 8, dtype=np.float32).reshape(4, 2)


def line() -> Graph:
    """mse(x @ w + b, y): inputs x[4, 3], y[4, 2], parameters w[3, 2], b[2]; a second output, the prediction."""
    with Graph() as g:
        x, y = ops.input("x", (4, 3)), ops.input("y", (4, 2))
        z = x @ ops.parameter("w", (3, 2)) + ops.parameter("b", (2,))
        g.set_outputs([ops.mse_loss(z, y), z])
    return g


def fitted(session: Session) -> Session:
    """With values for everything."""
    for name, data in (("x", X), ("y", Y)):
        session.set_input(name, data)
    for name, data in (("w", W), ("b", np.zeros(2))):
        session.set_parameter(name, data)
    return session


def download(session: Session, buffer: int) -> Any:
    """A buffer of the plan, or of the update, as it is on the device now."""
    return owner().call(lambda: session.loaded.program.download(buffer))


def set_free_bytes(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Let every device find so many bytes free, an adapter with memory of its own too, which does not tell."""
    monkeypatch.setattr(cpu_device, "free_bytes", lambda: nbytes)
    monkeypatch.setattr(wgpu_device.Gpu, "free_bytes", lambda gpu: nbytes)


def state_of(session: Session) -> tuple[object, ...]:
    """Counters, update rule, unset names, and the bits of all that the session holds between two steps."""
    plan, traffic = session.loaded.plan, session.traffic
    kept = [b if isinstance(b, int) else b.buffer for _, b in (*plan.param_buffers, *plan.input_buffers)]
    kept += [*plan.output_buffers, *(g for _, g in plan.param_grad_pairs)]
    kept += [buffer.id for buffer in session.updates.state_buffers]
    bits = hashlib.sha256()
    for buffer in kept:
        bits.update(download(session, buffer).tobytes())
    counters = session.step_count, session.updates.adam_steps, traffic.forwards, traffic.dispatches
    names = (tuple(session.unset_inputs), tuple(session.unset_parameters))
    settings = (session.updates.settings, session.updates.window, session.profiling.window, session.profiling.reason)
    return (*counters, traffic.upload_bytes, session.optimizer, settings, names, session.update, bits.hexdigest())
