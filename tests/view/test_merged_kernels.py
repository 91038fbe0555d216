"""The document of a study whose dispatches merge: every result of a kernel, its lines and its links."""

from __future__ import annotations

import copy
from dataclasses import replace

from documents import brute, doc_of
from machine import needs

from gdlab import Study, ops
from gdlab.graph import Graph
from gdlab.session.builders import resolve_device


def gated() -> Graph:
    """A gate between two products, behind a bias, and its loss."""
    with Graph() as g:
        x, y = ops.input("x", (24, 32)), ops.input("y", (24, 8))
        gate, up, down = (ops.parameter(n, s) for n, s in (("gate", (32, 48)), ("up", (32, 48)), ("down", (48, 8))))
        h = ops.gelu(ops.bias_add(x @ gate, ops.parameter("bias", (48,)))) * (x @ up)
        g.set_outputs({"loss": ops.mse_loss(h @ down, y)})
    return g


def test_every_result_of_a_merged_dispatch_has_its_links_and_lines() -> None:
    needs("wgpu")
    device = copy.copy(resolve_device("wgpu"))
    device.target = replace(device.target, adapter_class="hardware", merges=True)
    study = Study(gated(), train=True, device=device, name="gated")
    several = [d for d in study.plan.dispatches if any(r.value is not None for r in d.results)]
    assert len(several) == 2 and {d.phase for d in several} == {"forward", "backward"}
    document = doc_of(study)
    for d in several:
        lit = brute(document, f"dispatch:{d.index}")
        assert {f"interval:{r.buffer}" for r in d.results} <= lit
        assert any(name.startswith("wgsl:") for name in lit)
    study.close()
