"""The document of an eager recording: its graph, with the value and the gradient of each node."""

from __future__ import annotations

from collections.abc import Mapping

from gdlab.base.statistics import array_words
from gdlab.eager import AnyBuffer, EagerSession, TensorRef
from gdlab.view.document.document import Document
from gdlab.view.document.make import Draft, graph_summary
from gdlab.view.document.overlays import overlay_of

MOST_READ = 200  # nodes whose values are read back


def tape_doc(session: EagerSession, name: str = "tape", cells: Mapping[str, str] | None = None) -> Document:
    """Return the document of the tape of now. `cells`: the text of each cell by its file name."""
    tape = session.tape
    graph = tape.copy()
    if not graph.outputs and len(graph):
        graph.set_outputs(graph.value(len(graph) - 1))
    draft = Draft(graph, name, False, cells or {})
    values: dict[int, str] = {}
    gradients: dict[int, str] = {}
    for id, buffer in enumerate(tape.buffers[:MOST_READ]):
        if not buffer.released:
            values[id] = array_words(session.read_buffer(buffer))
        found = tape.grads.get(id)
        if isinstance(found, AnyBuffer):
            gradients[id] = array_words(session.read_buffer(found))
        elif isinstance(found, TensorRef):
            gradients[id] = array_words(found.numpy())
    if len(graph) > MOST_READ:
        draft.note(f"the values of the first {MOST_READ} nodes are shown here")
    overlays = [overlay_of("value", "value", 0, values)] if values else []
    overlays += [overlay_of("gradient", "gradient of the loss", 0, gradients)] if gradients else []
    return draft.document(graph_summary(graph, name), overlays=overlays, device=str(session.device))
