"""Many steps leave nothing behind: memory stays flat, the losses are exact, in order, and none is missing."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import numpy as np
from session_state import W, X, Y, fitted, line

from gdlab.devices.base import owner
from gdlab.session import Session, build_session

STEPS = int(os.environ.get("GDLAB_SOAK", "2000"))  # `make soak`: 100,000


def resident_bytes() -> int:
    """Memory that the process holds now; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0


def kept_by_wgpu() -> dict[str, int]:
    """Count the objects that wgpu holds for its users, by kind; none before it is loaded."""
    if "wgpu" not in sys.modules:
        return {}
    from wgpu.backends.wgpu_native import ffi, lib
    from wgpu.backends.wgpu_native._helpers import get_wgpu_instance

    report = ffi.new("WGPUGlobalReport *")
    lib.wgpuGenerateReport(get_wgpu_instance(), report)
    names = ("buffers", "bindGroups", "commandBuffers", "computePipelines", "querySets", "textures")
    return {name: getattr(report.hub, name).numKeptFromUser for name in names if hasattr(report.hub, name)}


class Losses:
    """Every (step, loss) in the order in which it came, in memory that was there before the first."""

    def __init__(self) -> None:
        self.pairs, self.count = np.zeros((STEPS, 2)), 0

    def take(self, session: Session, all_of_them: bool = False) -> None:
        for pair in owner().call(lambda: session.take_losses(all_of_them)):
            self.pairs[self.count] = pair
            self.count += 1


def make_steps(session: Session, first: int, count: int, losses: Losses) -> None:
    """Steps whose loss can be told beforehand: y is the prediction plus k."""
    for k in range(first, first + count):
        if k % 10 == 0:
            session.set_input("y", X @ W + np.float32(k % 97))
        session.step()
        if k % 50 == 0:
            losses.take(session)


def test_a_long_run_leaves_nothing_behind(device: str) -> None:
    with build_session(line(), device) as session:
        fitted(session).set_adam(0.0)
        session.set_input("y", Y)
        warm = STEPS // 4 // 10 * 10
        losses = Losses()
        make_steps(session, 0, warm, losses)
        session.wait()
        gc.collect()
        before, kept = resident_bytes(), owner().call(kept_by_wgpu)
        make_steps(session, warm, STEPS - warm, losses)
        losses.take(session, True)
        gc.collect()
        grown = resident_bytes() - before
        after = owner().call(kept_by_wgpu)
        readbacks = after.get("buffers", 0) - kept.get("buffers", 0)  # as many as were under way at once, by chance
        assert after == {**kept, "buffers": after["buffers"]} if kept else not after
        assert readbacks <= 3
        assert grown < 8 << 20, f"{grown / 1e6:.1f} MB more after {STEPS - warm} steps"
        np.testing.assert_array_equal(losses.pairs[:, 0], np.arange(1, STEPS + 1))
        want = [(k // 10 * 10 % 97) ** 2 for k in range(STEPS)]
        np.testing.assert_allclose(losses.pairs[:, 1], want, rtol=1e-5, atol=1e-6)
        assert session.adam_step_count() == session.traffic.forwards == STEPS >= session.traffic.submissions
