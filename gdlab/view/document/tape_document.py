"""The document of an eager recording: its graph, with the value and the gradient of each node."""

from __future__ import annotations

from collections.abc import Mapping

from gdlab.base.statistics import array_words
from gdlab.eager import AnyBuffer, EagerSession
from gdlab.session.stages import WRITTEN, PipelineStage
from gdlab.view.document.document import Document
from gdlab.view.document.make import DocumentDraft, graph_summary
from gdlab.view.document.overlays import overlay_of

MOST_READ = 200  # nodes whose values are read back


def tape_doc(session: EagerSession, name: str = "tape", cells: Mapping[str, str] | None = None) -> Document:
    """Return the document of the tape as it is now; after a backward pass with its derivative, step by step with
    numbers. `cells`: the text of each cell by its file name."""
    tape = session.tape
    trace = session.backward_trace(MOST_READ)
    graph = tape.copy()
    if not graph.outputs and len(graph):
        graph.set_outputs(graph.value(len(graph) - 1 if trace is None else trace.graph.output_ids[0]))
    draft = DocumentDraft(graph, name, False, cells or {})
    values, gradients = _values(session), _gradients(session)
    if len(graph) > MOST_READ:
        draft.note(f"the values of the first {MOST_READ} nodes are shown here")
    overlays = [overlay_of("value", "value", 0, values)] if values else []
    if trace is not None:
        title = "The backward pass, as it ran"
        draft.add(PipelineStage("derivative:written", "derivative", title, WRITTEN.key, trace.graph, trace.report))
        numbers = {i: array_words(value) for i, value in enumerate(trace.values) if value is not None}
        overlays.append(overlay_of("value", "value", 1, numbers))
    overlays += [overlay_of("gradient", "gradient of the loss", 0, gradients)] if gradients else []
    return draft.document(graph_summary(graph, name), overlays=overlays, device=str(session.device))


def _values(session: EagerSession) -> dict[int, str]:
    held = enumerate(session.tape.buffers[:MOST_READ])
    return {id: array_words(session.read_buffer(buffer)) for id, buffer in held if not buffer.released}


def _gradients(session: EagerSession) -> dict[int, str]:
    found = {id: g for id, g in session.tape.grads.items() if id < MOST_READ}
    arrays = {id: session.read_buffer(g) if isinstance(g, AnyBuffer) else g.numpy() for id, g in found.items()}
    return {id: array_words(array) for id, array in arrays.items()}
