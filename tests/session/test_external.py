"""Memory that sessions share on a device: what lies where, what can be bound, and what cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conforming import refused
from session_state import W, X, Y, fitted, line

import gdlab as gd

F32 = np.float32


def tanh(name: str) -> gd.Graph:
    with gd.Graph() as g:
        g.set_outputs([gd.input(name, (4, 3)).tanh()])
    return g


def test_one_session_reads_what_another_computes(device: str) -> None:
    with gd.build_inference_session(tanh("a"), device) as first, fitted(gd.build_session(line(), device)) as second:
        first.set_input("a", X)
        first.step()
        first.wait()
        second.bind_external_buffer("x", first.output_buffer(0))
        second.set_learning_rate(0.1)
        second.step()
        np.testing.assert_array_equal(second.read_input("x"), first.read_output())
        want = np.mean((np.tanh(X.astype(float)) @ W - Y) ** 2)
        assert second.read_loss() == pytest.approx(want, rel=1e-5)
        first.set_input("a", 2 * X)
        first.step()
        first.wait()
        second.step()
        np.testing.assert_allclose(second.read_input("x"), np.tanh(2 * X), rtol=1e-5)
        second.set_input("x", X)
        np.testing.assert_array_equal(first.read_output(), X)


def test_an_input_that_is_bound_has_a_value_and_an_output_goes_elsewhere(device: str) -> None:
    with gd.build_inference_session(tanh("a"), device) as s, gd.build_inference_session(tanh("b"), device) as other:
        other.set_input("b", X)
        other.step()
        s.bind_external_buffer("a", other.input_buffer("b"))
        s.bind_external_buffer(0, other.output_buffer())
        assert s.slot_size("a") == s.slot_size(0) >= 48
        s.set_input("a", X / 2)
        s.step()
        s.wait()
        np.testing.assert_allclose(other.read_output(), np.tanh(X / 2), rtol=1e-5)
        place = s.input_host_ptr("a")
        assert (place is None) == (device == "wgpu") and (place is None or place[1] == 48)


def test_memory_that_cannot_be_bound(device: str) -> None:
    with fitted(gd.build_session(line(), device)) as s, gd.build_inference_session(tanh("a"), device) as small:
        s.step()
        for slot in ("xx", "w", 2, -1, None, True):
            bind: Any = lambda slot=slot: s.bind_external_buffer(slot, X)  # noqa: E731
            error: Any = refused(s, bind, gd.ExternalBindError.UnknownSlot)
            assert error.slot is slot and error.known == ("x", "y", "0", "1")
            refused(s, lambda slot=slot: s.slot_size(slot), gd.ExternalBindError.UnknownSlot)  # type: ignore[misc]
        fixed = X.copy()
        fixed.setflags(write=False)
        for memory in (None, X.tolist(), X.astype(np.float64), np.asfortranarray(X), fixed, 48):
            refused(s, lambda memory=memory: s.bind_external_buffer("x", memory), gd.ArgumentError)  # type: ignore[misc]
        if device == "cpu":
            short = np.zeros(11, F32)
            tight: Any = refused(s, lambda: s.bind_external_buffer("x", short), gd.ExternalBindError.TooSmall)
            assert (tight.required, tight.got) == (48, 44) and s.slot_size("x") == 48
            held = np.zeros(20, F32)
            s.bind_external_buffer("x", held)
            held[:12] = X.ravel()
            s.step()
            assert s.read_loss() == pytest.approx(float(np.mean((X @ W - Y) ** 2)), rel=1e-6)
        with gd.Graph() as g:
            g.set_outputs([gd.input("x", (300, 300)).tanh()])
        with gd.build_inference_session(g, device) as large:
            memory = small.input_buffer("a")
            tight = refused(large, lambda: large.bind_external_buffer("x", memory), gd.ExternalBindError.TooSmall)
            assert tight.required == large.slot_size("x") >= 360_000 and tight.got < 1000
        refused(s, lambda: s.input_buffer("w"), gd.UnknownNameError)
        refused(s, lambda: s.output_buffer(2), gd.OutputIndexError)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 70])
def test_nothing_behind_slot_size_is_overwritten(device: str, size: int) -> None:
    """Kernels store four elements at a time, also at the end of a tensor of an odd size."""
    with gd.Graph() as g:
        g.set_outputs([gd.input("x", (size,)).tanh()])
    with gd.Graph() as h:
        h.set_outputs([gd.input("home", (2000,)) * 1.0])
    with gd.build_inference_session(g, device) as s, gd.build_inference_session(h, device) as other:
        before = np.arange(2000, dtype=F32) + 1
        other.set_input("home", before)
        other.step()
        s.bind_external_buffer(0, other.input_buffer("home"))
        s.set_input("x", X.reshape(-1)[:1].repeat(size))
        s.step()
        s.wait()
        after, behind = other.read_input("home"), -(-s.slot_size(0) // 4)
        np.testing.assert_allclose(after[:size], np.tanh(X.reshape(-1)[0]), rtol=1e-5)
        np.testing.assert_array_equal(after[behind:], before[behind:])
        four = -(-size // 4) * 4
        np.testing.assert_array_equal(after[four:], before[four:])
