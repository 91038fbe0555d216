"""Fixtures of the tests of cells and panels."""

from typing import Any

import pytest
from networks import mlp as tour_network
from shells import GATED, run

from gdlab.jupyter import widget
from gdlab.jupyter.widget import Panel
from gdlab.study.study import Study


@pytest.fixture
def panel(monkeypatch):
    """A panel whose messages to the page are kept in `sent`."""
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(widget.GraphWidget, "send", lambda self, content, buffers=None: sent.append(content))
    study = Study(tour_network(), train=True, device="cpu", name="mlp")
    panel = Panel(study)
    panel.sent = sent
    panel.show(study.doc)
    yield panel
    panel.close()
    study.close()


@pytest.fixture
def mlp(shell):
    run(shell, f"%%graph mlp --train --quiet --device cpu\n{GATED}")
    return shell.user_ns["mlp"]
