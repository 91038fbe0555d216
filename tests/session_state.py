"""Everything of a session that a failed call must leave alone, as one value to compare."""

from __future__ import annotations

import hashlib
from typing import Any

from gdlab.device.base import owner
from gdlab.session import Session


def download(session: Session, buffer: int) -> Any:
    """A buffer of the plan, or of the update, as it is on the device now."""
    return owner().call(lambda: session._program.download(buffer))


def state_of(session: Session) -> tuple[object, ...]:
    """Counters, update rule, unset names, and the bits of all that the session holds between two steps."""
    plan, traffic = session._plan, session.traffic
    kept = [b for _, b in (*plan.param_buffers, *plan.input_buffers)]
    kept += [*plan.output_buffers, *(g for _, g in plan.param_grad_pairs)]
    kept += [buffer.id for buffer in session._update_buffers]
    bits = hashlib.sha256()
    for buffer in kept:
        bits.update(download(session, buffer).tobytes())
    counters = (session.step_count, session._adam_steps, traffic.steps, traffic.dispatches, traffic.submissions)
    names = (tuple(session.unset_inputs), tuple(session.unset_parameters))
    return (*counters, traffic.bytes_up, session.optimizer, names, session.update, bits.hexdigest())
