"""Identify the kernel text of a dispatch without writing it: equal digests, equal WGSL."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache

from gdlab.graph import attrs_key
from gdlab.plan.dispatch import Dispatch, ParameterUpdate, PointOp


def source_hash(d: Dispatch) -> str:
    """Return 16 hex digits over everything that the text is written from; buffers and nodes do not count."""
    place = {buffer: i for i, (buffer, _) in enumerate(d.bindings)}
    operands = tuple((place[o.buffer], o.access, o.extent, o.dtype, o.parts) for o in d.operands)
    r, m, c, g = d.reduce, d.matmul, d.custom, d.gather
    core = (
        r and (r.combine, r.finish, r.outer, r.length, r.inner, r.count),
        m and (m.m, m.n, m.k, m.a, m.b, m.parts, m.norm and repr(m.norm.eps), m.dual is None, m.dual_rows),
        c and (c.file, c.names, c.units, c.length, c.integers, repr(c.numbers), c.tables, c.results),
        g and (g.shape, g.offset, g.axes, repr(g.fill)),
        d.update and (d.update.rule, tuple(_update_key(p, place) for p in d.update.parameters)),
    )
    written = tuple(place[b] for b in d.writes)
    schedule = d.variant, d.params, d.workgroup_size
    chains = _lines(d.prologue), _lines(d.epilogue)
    columns = (r.columns and (r.columns.start, r.columns.stop, r.columns.width) for r in d.results)
    values = (r.value and (r.value.kind, r.value.index) for r in d.results)
    results = d.num_elements, *((r.type.dtype, c, v) for r, c, v in zip(d.results, columns, values, strict=True))
    return _digest((d.kernel, d.label, results, operands, written, core, chains, schedule, d.scalars))


def _update_key(p: ParameterUpdate, place: Mapping[int, int]) -> tuple[object, ...]:
    stretches = tuple((s.stop, s.factor, None if s.clip is None else place[s.clip]) for s in p.stretches)
    return p.type.num_elements, tuple(place[b] for b in p.buffers), stretches


def _lines(chain: Sequence[PointOp]) -> tuple[object, ...]:
    return tuple(
        (p.op, p.expr, p.names, attrs_key(p.attrs), tuple((a.kind, a.index, repr(a.value)) for a in p.args))
        for p in chain
    )


@lru_cache(maxsize=256)  # keys of about 4 KB
def _digest(key: tuple[object, ...]) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:16]
