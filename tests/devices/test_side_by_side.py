"""Buffers side by side in a slot: on both devices everything that reads or writes one finds its bytes."""

from __future__ import annotations

from typing import Any

import beside
import numpy as np
import plans
import pytest
from machine import needs
from matrix import MATRIX, count
from random_graphs import random_feeds, random_graph

import gdlab
from benchmarks.memory import convolutional
from gdlab.autodiff import differentiate
from gdlab.base.errors import Aliased
from gdlab.devices.base import BufferCopy, Program, owner
from gdlab.plan import compile
from gdlab.plan.target import CompileOptions
from gdlab.session.builders import SessionConfig, build
from gdlab.session.session import Session

DEVICES = pytest.mark.parametrize("device", ["cpu", "wgpu"])
ALONE = CompileOptions(alias=False)


def on(device: str) -> Any:
    if device == "wgpu":
        needs("wgpu")
    return gdlab.device(device)


@DEVICES
def test_random_graphs_give_the_same_bits_as_with_memory_of_their_own(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside.force(monkeypatch)
    found, side = on(device), 0
    for seed in range(60 if device == "cpu" else count(12, 25)):
        graph = differentiate(random_graph(seed, scalar_loss=True, every_op=True))[0]
        some = beside.offsets(compile(graph, mode="training", target=found.target)) > 0
        side += some
        if not some and not MATRIX:  # of slots that tenants share in turn: tests/plan/test_random_graphs.py
            continue
        feeds = random_feeds(graph, seed)
        got, alone = (
            owner().call(lambda g=graph, f=feeds, o=o: plans.run(found, g, f, "training", o))
            for o in (CompileOptions(), ALONE)
        )
        assert [a.tobytes() for a in got] == [a.tobytes() for a in alone], f"seed {seed}"
    assert side > 5


def convolutions(device: Any, compiled: CompileOptions) -> Session:
    """The network of the benchmark, smaller, with its data and Adam."""
    batch = count(4, 16)
    graph = convolutional(batch, 32, (16, 32, 64))
    session, _ = build(graph, SessionConfig(mode="training", device=device, compile=compiled))
    session.initialize(seed=0)
    rng = np.random.default_rng(0)
    session.set_input("x", rng.normal(size=(batch, 3, 32, 32)).astype(np.float32))
    session.set_input("labels", np.eye(10, dtype=np.float32)[rng.integers(0, 10, batch)])
    session.set_adam(1e-3)
    return session


@DEVICES
def test_a_convolution_network_trains_as_without_shared_memory(device: str) -> None:
    losses = []
    for options in (CompileOptions(), ALONE):
        session = convolutions(on(device), options)
        assert (beside.offsets(session.plan()) > 0) == options.alias
        rows = []
        for _ in range(3):
            session.loaded.program.poison()
            session.step()
            rows.append(session.read_loss())
        losses.append((rows, [session.read_param(name).tobytes() for name in session.param_names()]))
        session.close()
    assert losses[0] == losses[1] and losses[0][0][0] > losses[0][0][2]


def pattern(program: Program, buffer: int) -> np.ndarray[Any, Any]:
    b = program.plan.buffers[buffer]
    return (np.arange(b.nbytes // 4) % 1000 + 1000 * buffer).astype(b.dtype.numpy).reshape(b.shape)


def neighbours(program: Program) -> list[int]:
    """All buffers that live at once in the slot with most of them."""
    memory, best = program.plan.memory, list[int]()
    for slot in memory.slots:
        for group in range(len(program.plan.groups)):
            lives = [memory.intervals[t] for t in slot.tenants]
            alive = [t for t, i in zip(slot.tenants, lives, strict=True) if i.first_group <= group <= i.last_group]
            best = max(best, alive, key=len)
    return best


@DEVICES
def test_what_is_written_to_a_buffer_stays_off_its_neighbours(device: str) -> None:
    session = convolutions(on(device), CompileOptions())
    program = session.loaded.program

    def check() -> None:
        several = neighbours(program)
        assert len(several) > 1 and any(program.plan.memory.offset_of[b] for b in several)
        for b in several:
            program.upload(b, pattern(program, b))
        for b in several:
            np.testing.assert_array_equal(program.download(b), pattern(program, b))
        two = max(several, key=program.plan.memory.offset_of.__getitem__)
        one = next(b for _, b in program.plan.param_buffers if isinstance(b, int))
        program.upload(one, pattern(program, one))
        landing = program.queue.readback(32)
        program.copy([BufferCopy(one, 8, two, 4, 16)], program.queue.readback(8))
        program.copy([BufferCopy(two, 0, landing, 0, 32)], landing)
        landing.wait()
        wanted = pattern(program, two).reshape(-1)
        wanted[1:5] = pattern(program, one).reshape(-1)[2:6].view(wanted.dtype)
        np.testing.assert_array_equal(program.download(two).reshape(-1), wanted)
        np.testing.assert_array_equal(np.frombuffer(landing.view(), wanted.dtype, 8), wanted[:8])
        for b in several:
            if b != two:
                np.testing.assert_array_equal(program.download(b), pattern(program, b))

    owner().call(check)
    session.close()


@DEVICES
def test_a_value_can_be_read_until_its_own_bytes_are_taken(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two tenants side by side neither takes over the other's memory, whichever is written later."""
    beside.force(monkeypatch)
    wanted = convolutions(on(device), ALONE)
    session = convolutions(on(device), CompileOptions())
    wanted.step()
    session.step()
    plan, alone = session.plan(), wanted.plan()
    assert [b.nodes for b in plan.buffers] == [b.nodes for b in alone.buffers]
    read = refused = later = 0
    for node, b in plan.node_buffers.items():
        tenants = plan.memory.slots[plan.memory.slot_of[b]].tenants
        try:
            got = session.read_node(node, "full")
        except Aliased as error:
            assert error.later
            refused += 1
        else:
            assert got.tobytes() == wanted.read_node(node, "full").tobytes()
            read += 1
            later += tenants[-1] != b
    assert read > 10 and refused > 5 and later > 0
    session.close()
    wanted.close()


@DEVICES
def test_a_step_in_parts_goes_back_and_on(device: str) -> None:
    """A snapshot stores buffers, and writes them back, without their neighbours."""
    session, other = (convolutions(on(device), CompileOptions()) for _ in range(2))
    other.step()

    def in_parts() -> None:
        steps, program = session.steps, session.loaded.program
        count = len(session.step_dispatches())
        steps.advance(count - 2, snapshots=True)
        for to in (count - 4, 18, 2):
            began = steps.rewind(to)
            assert began == to // 16 * 16
            program.wait()
        steps.advance(17, snapshots=True)
        steps.advance(count)

    session.loaded.exclusively(in_parts)
    for name in session.param_names():
        assert session.read_param(name).tobytes() == other.read_param(name).tobytes()
    assert session.read_loss() == other.read_loss()
    session.close()
    other.close()
