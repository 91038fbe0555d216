"""Steps in parts, and the buckets of gradients behind them: no engine is needed."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
from engines import batches, regression
from machine import needs

import gdlab as gd
from gdlab.devices.base import StepPart
from gdlab.distributed.gradient_buckets import LARGE_BYTES, SMALL_BYTES, layout_of, ready_order, usual_bytes
from gdlab.distributed.meeting import Meeting
from gdlab.graph import Graph

BATCHES = batches(3)
W, B, V = 16 * 32, 32, 32 * 4  # elements of the parameters of `regression`


def prepared(device: str, accumulate: int = 1) -> gd.Study:
    made = regression(device=device)
    made.prepare(init=0, adam=1e-2)
    made.session.set_grad_accumulate(accumulate)
    return made


def test_gradients_lie_in_the_order_in_which_they_are_ready() -> None:
    """The backward pass begins at the end of the network; a bucket stops behind the last gradient that it touches."""
    session = prepared("cpu").session
    assert ready_order(session)[0] == "v" and set(ready_order(session)) == {"v", "b", "w"}
    layout = layout_of(session, ("v", "b", "w"), 4 * 150)
    assert [(g.name, g.start, g.size) for g in layout.gradients] == [("v", 0, V), ("b", V, B), ("w", V + B, W)]
    assert [(b.start, b.size) for b in layout.buckets] == [(0, 150), (150, 150), (300, 150), (450, 150), (600, 72)]
    buffers = {g.name: g.buffer for g in layout.gradients}
    assert layout.buckets[0].pieces == ((buffers["v"], 0, V), (buffers["b"], 0, 150 - V))
    assert layout.buckets[1].pieces == ((buffers["b"], 150 - V, 10), (buffers["w"], 0, 140))
    dispatches = session.loaded.plan.dispatches
    written = {n: max(k for k, d in enumerate(dispatches, 1) if b in d.writes) for n, b in buffers.items()}
    first = max(written["v"], written["b"])
    assert [b.stop for b in layout.buckets] == [first, *[max(first, written["w"])] * 4]
    (whole,) = layout_of(session, ("v", "b", "w"), LARGE_BYTES).buckets
    assert (whole.start, whole.size, whole.stop) == (0, V + B + W, max(written.values()))
    backwards = layout_of(session, ("w", "b", "v"), 4 * V)  # the order of another engine's plan: no part goes back
    stops = [b.stop for b in backwards.buckets]
    assert stops == sorted(stops) and stops[-1] == max(written.values())


def test_a_gradient_that_later_dispatches_read_is_ready_behind_them_where_it_is_reduced_in_its_place() -> None:
    """∂p is the adjoint of z = x · w + p, which ∂w = xᵀ · ∂p reads."""
    needs("lavapipe")
    for device, waits in (("cpu", True), ("wgpu", False)):
        with Graph() as graph:
            x, w, p = gd.input("x", (6, 4)), gd.parameter("w", (4, 3)), gd.parameter("p", (6, 3))
            graph.output(gd.mse_loss((x @ w + p).tanh(), gd.input("y", (6, 3))))
        session = gd.build_session(graph, device)
        session.set_adam(0.1)
        (first, _) = layout_of(session, ("p", "w"), 4 * 18).buckets
        uses = [
            k for k, d in enumerate(session.loaded.plan.dispatches, 1) if first.pieces[0][0] in (*d.reads, *d.writes)
        ]
        assert len(uses) > 1 and first.stop == (uses[-1] if waits else uses[0])
        session.close()


def test_sums_of_gradients_are_ready_behind_the_plan() -> None:
    session = prepared("cpu", accumulate=3).session
    stops = {bucket.stop for bucket in layout_of(session, ready_order(session), 256).buckets}
    assert min(stops) > len(session.loaded.plan.dispatches)
    assert max(stops) == len(session.loaded.plan.dispatches) + session.updates.update.early


def test_buckets_are_small_where_a_device_of_its_own_makes_the_step() -> None:
    session = prepared("cpu").session
    plan = session.loaded.plan
    found = {}
    for kind in ("cpu", "software", "hardware"):
        target = dataclasses.replace(plan.target, adapter_class=kind)
        session.loaded.plan = dataclasses.replace(plan, target=target)
        found[kind] = usual_bytes(session)
    assert found == {"cpu": LARGE_BYTES, "software": LARGE_BYTES, "hardware": SMALL_BYTES}


class Ended:
    """A collective call that has ended."""

    def Test(self) -> bool:
        return True


class Twins:
    """A communicator of two engines with the same gradients; the other one comes `late` seconds later, and a sum takes
    `long` seconds."""

    late, long = 0.0, 0.02

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 2

    def bcast(self, given: Any) -> Any:
        return given

    def Ibarrier(self) -> Ended:
        time.sleep(self.late)
        return Ended()

    def Allreduce(self, _: Any, part: Any) -> None:
        time.sleep(self.long)
        part *= 2


def test_what_ran_beside_the_step_is_hidden_and_no_waiting_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first bucket is summed while the step goes on, the second one behind it."""
    monkeypatch.setattr("gdlab.distributed.meeting._in_place", lambda: None)  # no MPI in this process
    meeting = Meeting(comm := Twins())
    meeting.agree(session := prepared("cpu").session, 4 * 512)
    first, second = meeting.parts(session)
    meeting.send(first.landing)
    meeting._sent[0].result()  # the rest of the step takes longer
    comm.late = 0.3  # longer than this thread is kept from going on
    meeting.send(second.landing)
    meeting.finish()
    meeting.close()
    (beside, behind) = meeting.buckets
    assert beside.hidden == pytest.approx(beside.seconds) and beside.seconds >= 0.02
    assert behind.hidden < 0.02 <= behind.seconds
    assert meeting.hidden == pytest.approx(beside.hidden + behind.hidden) and meeting.hidden < meeting.reducing
    assert meeting.waiting >= 0.02


@pytest.mark.parametrize("device", ["cpu", pytest.param("wgpu", id="lavapipe")])
def test_a_step_in_parts_is_the_step(device: str) -> None:
    """The same bits, losses and totals; each landing holds its gradients before the step is over."""
    if device == "wgpu":
        needs("lavapipe")
    study, other = prepared(device), prepared(device)
    session, plain = study.session, other.session
    layout = layout_of(session, ready_order(session), 4 * 150)
    for batch in BATCHES:
        for each in (session, plain):
            each.set_input("x", batch["x"])
            each.set_input("y", batch["y"])
        queue, landed = session.loaded.program.queue, list[tuple[int, Any]]()
        landings = [queue.readback(4 * bucket.size) for bucket in layout.buckets]
        parts = [StepPart(b.stop, b.copies(at), at) for b, at in zip(layout.buckets, landings, strict=True)]
        keep = lambda k: landed.append((k, bytes(landings[k].view())))  # noqa: B023, E731
        session.steps.make_gradients((), parts, keep)
        assert [k for k, _ in landed] == list(range(len(parts)))
        found = np.frombuffer(b"".join(data for _, data in landed), np.float32)
        plain.steps.make_gradients(())
        for gradient in layout.gradients:
            wanted = plain.loaded.program.download(gradient.buffer).reshape(-1)
            assert np.array_equal(found[gradient.start : gradient.start + gradient.size], wanted)
        for landing in landings:
            landing.release()
        for each in (session, plain):
            each.steps.make_update()
    assert session.take_losses(True) == plain.take_losses(True) and session.step_count == plain.step_count == 3
    for name in "wbv":
        assert np.array_equal(session.read_param(name), plain.read_param(name))
    mine, theirs = session.traffic, plain.traffic
    assert (mine.forwards, mine.dispatches, mine.workgroups) == (theirs.forwards, theirs.dispatches, theirs.workgroups)
    for each in (study, other):
        each.close()
