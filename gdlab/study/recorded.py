"""Open the list of a recorded session as a study, to see the plan that the compiler makes of the same ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdlab.record.list_as_graph import exported
from gdlab.study.study import Study

if TYPE_CHECKING:
    from gdlab.record.graph_session import GraphSession


def to_study(session: GraphSession, name: str = "list") -> Study:
    """Return a study of `to_graph()` on the session's device, fed with the present contents of the buffers."""
    nodes = session.graph.nodes
    made = exported(nodes)
    study = Study(made.graph, device=session.device, name=name)
    study.prepare(feed=made.feed(nodes))
    return study
