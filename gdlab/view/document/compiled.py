"""Make the document of a compiled graph: its plan, and where inputs come from and outputs go between two forwards."""

from __future__ import annotations

from gdlab.base.types import Shape
from gdlab.base.words import plural
from gdlab.compiled import CompiledGraph
from gdlab.session.stages import WRITTEN
from gdlab.view.document.columns import Json
from gdlab.view.document.document import Document
from gdlab.view.document.make import DocumentDraft, graph_summary
from gdlab.view.document.overlays import overlay_of


def compiled_document(graph: CompiledGraph, name: str = "graph") -> Document:
    """Return the document of a compiled graph as it is now: slots, handles, feeds, extent, arena and counters beside
    its plan. Reads no tensor back."""
    edge = edge_json(graph)
    draft = DocumentDraft(graph.graph, name, False, {})
    draft.compile(graph.plan, WRITTEN.key, graph.session)
    draft.notes += [{"level": "info", "text": text, "about": None} for text in edge["lines"]]
    counts = plural(len(graph.plan.dispatches), "dispatch"), plural(graph.epoch, "run")
    summary = f"{graph_summary(graph.graph, name)}; compiled for {graph.device.kind}: {', '.join(counts)}"
    overlays = [overlay_of("edge", "inputs and outputs", 0, _at_nodes(graph, edge))]
    return draft.document(summary, device=str(graph.device), extra={"compiled": edge}, overlays=overlays)


def edge_json(graph: CompiledGraph) -> Json:
    """Return inputs with their handles and feeds, outputs with their slots, extent, arena, counters and memory."""
    inputs = [
        {"name": s.name, "type": _type(s.dtype, s.shape), "value": _source(graph, s.name), **_kept(graph, s.name),
         "interval": graph.signature.inputs[s.name].buffer}
        for s in graph.inputs
    ]  # fmt: skip
    outputs = [
        {"name": s.name, "type": _type(s.dtype, s.shape), "byte_offset": s.byte_offset, "nbytes": s.nbytes,
         "place": f"bytes {s.byte_offset} … {s.byte_offset + s.nbytes - 1} of the arena", "interval": port.buffer}
        for s, port in zip(graph.output_slots, graph.signature.outputs, strict=True)
    ]  # fmt: skip
    upper = graph.signature.upper
    made = {
        "inputs": inputs, "outputs": outputs, "extent": _extent(graph), "arena": _arena(graph),
        "arena_bytes": graph.launcher.arena_bytes,
        "active": None if upper is None else list(graph.active_extent or (upper, upper)),
        "epoch": graph.epoch, "counters": graph.counters(), "memory": graph.memory_summary(),
    }  # fmt: skip
    lines = [f"input {row['name']} : {row['type']}; {row['value']}" for row in inputs]
    lines += [f"output {i} {row['name']} : {row['type']}; {row['place']}" for i, row in enumerate(outputs)]
    return {**made, "lines": [*lines, f"extent: {made['extent']}", f"arena: {made['arena']}"]}


def _type(dtype: str, shape: Shape) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _source(graph: CompiledGraph, name: str) -> str:
    """Say where the value of an input comes from in the next forward."""
    handles = graph.handles
    if name in handles.gpu:
        index = handles.feeds.get(name)
        return "gpu handle" + ("" if index is None else f", fed by output {index} {graph.output_names[index]}")
    host = handles.host.get(name)
    if host is None:
        return "a value in each call"
    return "host handle" + ("" if host.source is None else f", fed by output {host.source}")


def _kept(graph: CompiledGraph, name: str) -> Json:
    """Return the kind of an input's handle (`gpu`, `host` or none), and the output that feeds it (−1: none)."""
    handles = graph.handles
    if name in handles.gpu:
        return {"handle": "gpu", "feed": handles.feeds.get(name, -1)}
    host = handles.host.get(name)
    if host is None:
        return {"handle": "", "feed": -1}
    return {"handle": "host", "feed": -1 if host.source is None else host.source}


def _extent(graph: CompiledGraph) -> str:
    upper = graph.signature.upper
    if upper is None:
        return "no bucket axes"
    axes = ", ".join(f"{name} {list(found)}" for name, found in graph.signature.axes.items())
    actual, _ = graph.active_extent or (upper, upper)
    return f"{actual} of {upper} entries along {axes}"


def _arena(graph: CompiledGraph) -> str:
    filled, retired = graph.views.current, graph.views.retired_count
    told = "not filled by the last run" if filled is None else f"{filled.nbytes} bytes, of run {filled.epoch}"
    return told + (f"; {retired} retired so far" if retired else "")


def _at_nodes(graph: CompiledGraph, edge: Json) -> dict[int, str]:
    """Return the words beside the nodes of inputs and outputs."""
    of_input = {row["name"]: row["value"] for row in edge["inputs"]}
    found = {node.id: of_input[node.name] for node in graph.graph.inputs if node.name in of_input}
    for id, row in zip(graph.graph.output_ids, edge["outputs"], strict=False):  # behind them stand hidden ones
        found[id] = f"{found[id]}; {row['place']}" if id in found else row["place"]
    return found
