"""For tests of documented names: a graph with two weights in one buffer, and calls that change nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from session_state import state_of

import gdlab as gd


def packed() -> gd.Graph:
    """mse(silu(x·gate) ⊙ (x·up), y): x[4, 3], y[4, 2], two weights [3, 2] in one buffer."""
    with gd.Graph() as g:
        x, y = gd.input("x", (4, 3)), gd.input("y", (4, 2))
        gate, up = gd.parameter("net.gate", (3, 2)), gd.parameter("net.up", (3, 2))
        g.set_outputs([gd.mse_loss((x @ gate).silu() * (x @ up), y)])
    return g


def refused(session: gd.Session, call: Callable[[], object], kind: type[gd.GdlabError]) -> gd.GdlabError:
    """The error of a call that changes nothing."""
    before = state_of(session)
    with pytest.raises(kind) as error:
        call()
    assert type(error.value) is kind and state_of(session) == before
    text = f"{error.value.where}: {error.value.what}: given {error.value.given}, wanted {error.value.wanted}"
    assert str(error.value).startswith(text)
    return error.value
