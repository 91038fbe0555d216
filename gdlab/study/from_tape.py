"""Go on with an eager recording as a study: optimized, planned, trained."""

from __future__ import annotations

from typing import Any

from gdlab.eager import EagerSession, TensorRef
from gdlab.eager.export import to_graph
from gdlab.study.study import Study


def to_study(session: EagerSession, loss: TensorRef, name: str = "graph", **options: Any) -> Study:
    """Return a study of the recording on the session's device, with its parameters and inputs as they are now.

    It trains where the loss has one element and a parameter before it is trainable. `options` are those of `Study`.
    """
    export = session.locked(to_graph, session, loss)
    trains = loss.shape == (1,) and any(p.requires_grad for p in export.params.values())
    options = {"train": trains, "device": session._device, "weights": export.weights, **options}
    made = Study(export.graph, name=name, **options)
    if export.feeds or not export.graph.inputs:
        made.execution.prepare(feed=export.feeds)
        made.session.progress.draw_offset = export.step
    return made
