"""Graphs and samples run on a tape."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from op_checks import Wired, board, spread, wire

from gdlab.autodiff import differentiate
from gdlab.base.types import Array, u32
from gdlab.eager import EagerSession, TensorRef
from gdlab.graph import Graph
from gdlab.op import Op, Sample
from gdlab.op.reference import compare, evaluate, magnitudes

__all__ = ["Wired", "board", "check_gradients", "check_values", "replayed", "spread"]


def replayed(session: EagerSession, graph: Graph, feeds: Mapping[str, Array]) -> list[TensorRef]:
    """Run every node of a graph on the session's tape, in order."""
    refs: list[TensorRef] = []
    for node in graph:
        if node.op in ("input", "parameter"):
            data = np.asarray(feeds[node.attr("name")])
            made = session.input(data.astype(np.uint32 if node.type.dtype is u32 else np.float32), node.name)
        else:
            made = session.tape.append(node.op, tuple(refs[i].id for i in node.inputs), node.attrs, node.type)
        refs.append(made)
    return refs


def check_values(op: Op, device: str, rtol: float) -> None:
    """Compare a tape's values of all samples, and of the nodes of their gradients, with the reference."""
    b = board(op)
    values = evaluate(b.graph, b.feeds)
    scales = magnitudes(b.graph, values)
    session = EagerSession(device=device, checks="off")
    try:
        refs = replayed(session, b.graph, b.feeds)
        for label, id in zip(b.labels, b.graph.output_ids, strict=True):
            got = refs[id].numpy()
            assert got.dtype == b.graph.node(id).type.dtype.numpy
            failure = compare(got, values[id], scales[id], rtol)
            assert failure is None, f"{label} on {device}: {failure}"
    finally:
        session.close()


def check_gradients(op: Op, sample: Sample, device: str, rtol: float) -> None:
    """`backward` of a sample on the tape gives the gradients of `differentiate`."""
    w = wire(op, sample)
    full, report = differentiate(w.graph, wrt=w.inputs)
    values = evaluate(full, w.feeds)
    scales = magnitudes(full, values)
    session = EagerSession(device=device, checks="off")
    try:
        refs: list[TensorRef] = []
        inputs = {v.id for v in w.inputs}
        for node in w.graph:
            if node.op == "input":
                data = np.asarray(w.feeds[node.attr("name")])
                data = data.astype(np.uint32 if node.type.dtype is u32 else np.float32)
                refs.append(session.input(data, node.name, requires_grad=node.id in inputs))
            else:
                refs.append(session.tape.append(node.op, tuple(refs[i].id for i in node.inputs), node.attrs, node.type))
        length, text = len(session.tape), session.tape.text()
        loss = refs[w.graph.output_ids[0]]
        if not session.tape.needs_grad[loss.id]:
            assert set(report.zero_gradients) == inputs
            return
        grads = session.backward(loss)
        assert (len(session.tape), session.tape.text()) == (length, text)
        for x, id in zip(w.inputs, full.output_ids[1:], strict=True):
            if x.id in report.zero_gradients:
                assert refs[x.id].grad is None and refs[x.id].id in grads.missing
                continue
            failure = compare(grads.numpy(refs[x.id]), values[id], scales[id], rtol)
            assert failure is None, f"{op.name}, gradient of {x.name}: {failure}"
            np.testing.assert_array_equal(refs[x.id].grad, grads.numpy(refs[x.id]))
        again = session.backward(loss)
        for id in grads:
            assert grads.numpy(id).tobytes() == again.numpy(id).tobytes()
    finally:
        session.close()
    grads.release()
    again.release()
    assert session.engine.live_bytes == 0
