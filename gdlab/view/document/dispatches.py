"""The plan section of a document: kernels with their WGSL, dispatches, barrier groups, buffers, and their links."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

from gdlab.base.memo import LruCache
from gdlab.base.words import nbytes, plural
from gdlab.graph import Graph
from gdlab.kernels.coverage import Coverage, coverage
from gdlab.kernels.dispatch_wgsl import wgsl_with_parts
from gdlab.kernels.line_parts import LineParts
from gdlab.kernels.reasons import reason as reason_of
from gdlab.op.machines import Machine
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.kernel_digest import source_hash
from gdlab.plan.memory import padded
from gdlab.plan.records import BarrierGroup, ExecutionPlan, Hazard, LineMap, PlanBuffer, Update
from gdlab.plan.schedule import buffer_hazards, groups_of
from gdlab.plan.target import Target
from gdlab.session.totals import dispatch_words, totals
from gdlab.view.document.columns import Json, ragged, sparse, words
from gdlab.view.document.document import machine_json
from gdlab.view.document.links import Row, link, link_of_rows
from gdlab.view.document.stage_table import Fates, family

_SIZES = (
    "logical_bytes", "physical_bytes", "peak_bytes", "peak_group", "padding_bytes", "parameter_bytes", "state_bytes"
)  # fmt: skip
_FATES = {"dead": "dead", "aliased": "aliased", "merged": "folded", "folded": "literal", "operand view": "operand"}


@dataclass(frozen=True, slots=True)
class _Alike:
    """Dispatches that differ only in buffers and nodes, such as those of equal layers: their WGSL is made once."""

    kernel: int
    lines: LineMap  # of the first of them: 1-based line → its nodes
    first: tuple[int, ...]  # the nodes of that first one, which may be of another plan
    nodes: list[tuple[int, ...]]  # of each of this plan: where the first has one, each has one


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A text of WGSL, and the dispatches that run it."""

    dispatch: Dispatch  # the first that runs it
    text: str
    parts: LineParts
    alike: list[_Alike]

    @property
    def lines(self) -> int:
        return self.text.count("\n") + 1


@dataclass(frozen=True, slots=True)
class PlanSection:
    """The `plan` of a document, its links (`texts`: the JSON of large ones, by `id()`), and where each kernel's lines
    begin among all WGSL lines."""

    plan: Json
    links: list[Json]
    texts: dict[int, str]
    wgsl_base: list[int]
    fates: Fates


@dataclass(frozen=True, slots=True)
class Labels:
    """The nodes of a stage by name, and the path of the module that each lies in, "" for none."""

    names: Sequence[str]
    paths: Sequence[str]

    def inside(self, node: int, label: str) -> str:
        """Return a name for a buffer that has none: its label behind the path of its node."""
        return f"{self.paths[node]}.{label}" if node >= 0 and self.paths[node] else label


def plan_section(
    plan: ExecutionPlan, update: Update | None, stage: int, optimizer: str | None, labels: Labels, machine: Machine
) -> PlanSection:
    """Return the section of a plan that was compiled from a stage, whose nodes have these names, with the dispatches of
    the configured update behind; the figures of `machine` predict their times."""
    step = totals(plan, update)
    dispatches = [*plan.dispatches, *(update.dispatches if update else ())]
    buffers = [*plan.buffers, *(update.buffers if update else ())]
    groups = [*plan.groups, *(_update_groups(plan, update) if step.updates and update else ())]
    group_of = [g for g, group in enumerate(groups) for _ in range(group.start, group.stop)]
    kernels, kernel_of = _kernels(plan, dispatches)
    base = [0]
    for kernel in kernels:
        base.append(base[-1] + kernel.lines)
    section = {
        "stage": stage,
        "updates": step.updates,
        "optimizer": optimizer,
        "kernels": _kernel_table(kernels),
        "dispatches": _dispatch_table(plan.graph, dispatches, kernel_of, group_of),
        "groups": _group_table(groups),
        "intervals": _intervals(plan, buffers, dispatches, group_of, labels),
        "slots": _slots(plan, buffers),
        "machine": machine_json(machine),
        "memory": {name: getattr(step, name) for name in _SIZES} | {"parts": dict(step.parts)},
    }
    links, texts = _links(plan, stage, dispatches, len(buffers), kernels, kernel_of, base)
    return PlanSection(section, links, texts, base[:-1], _fates(plan))


def _update_groups(plan: ExecutionPlan, update: Update) -> Iterable[BarrierGroup]:
    """Return the groups of the update, each with its conflicts with the group before it."""
    for i, group in enumerate(groups_of(update.dispatches)):
        because: tuple[Hazard, ...] = group.because
        if i == 0:
            last = plan.dispatches[plan.groups[-1].start :] if plan.groups else ()
            because = tuple(buffer_hazards(last, update.dispatches[group.start : group.stop]))
        count = len(plan.dispatches)
        yield BarrierGroup(group.start + count, group.stop + count, because)


# kernels -------------------------------------------------------------------------------------------------------------
def kernel_texts(plan: ExecutionPlan, dispatches: Sequence[Dispatch]) -> tuple[list[str], list[int]]:
    """Return the WGSL of the different kernels, and for each dispatch the one it runs."""
    kernels, kernel_of = _kernels(plan, dispatches)
    return [kernel.text for kernel in kernels], kernel_of


def _kernels(plan: ExecutionPlan, dispatches: Sequence[Dispatch]) -> tuple[list[_Kernel], list[int]]:
    """Return the different kernels, and for each dispatch the one it runs."""
    known: dict[tuple[str, tuple[int, int, int]], int] = {}
    alike: dict[Hashable, _Alike] = {}
    kernels: list[_Kernel] = []
    kernel_of = []
    for d in dispatches:
        nodes = _nodes_of(d)
        shape = _shape_of(d, nodes)
        if shape not in alike:
            text, line_map, parts, first = _text(shape, plan.target, d, nodes)
            kernel = known.setdefault((text, d.workgroup_size), len(kernels))
            if kernel == len(kernels):
                kernels.append(_Kernel(d, text, parts, []))
            alike[shape] = _Alike(kernel, line_map, first, [])
            kernels[kernel].alike.append(alike[shape])
        one = alike[shape]
        one.nodes.append(nodes)
        kernel_of.append(one.kernel)
    return kernels, kernel_of


# Equal for all dispatches that are alike, in other documents too: a cell that runs again changes few kernels.
_texts: LruCache[Hashable, tuple[str, LineMap, LineParts, tuple[int, ...]]] = LruCache(2 << 20)
_LINE_BYTES, _KEY_BYTES = 160, 1024  # of a line's place in the map; of what a text is found by


def _text(
    shape: Hashable, target: Target, dispatch: Dispatch, nodes: tuple[int, ...]
) -> tuple[str, LineMap, LineParts, tuple[int, ...]]:
    """Return the text of the first dispatch of this shape that asked, its line map, its parts and its nodes."""
    known = _texts.get((shape, target))
    if known is None:
        text, lines, parts = wgsl_with_parts(dispatch)
        known = text.removesuffix("\n"), lines, parts, nodes
        _texts.put((shape, target), known, len(text) + _LINE_BYTES * len(lines) + _KEY_BYTES)
    return known


def _nodes_of(d: Dispatch) -> tuple[int, ...]:
    """Return all nodes that a line of a dispatch's WGSL may stand for, by place."""
    cores = (d.reduce, d.matmul, d.matmul and d.matmul.norm, d.gather, d.custom)
    dual = () if d.matmul is None or d.matmul.dual is None else (d.matmul.dual,)
    return (
        *(p.node for p in d.prologue),
        *(p.node for p in d.epilogue),
        *(c.node for c in cores if c is not None),
        *dual,
        *(r.node for r in d.results if r.node >= 0),
        *(p.node for p in (d.update.parameters if d.update else ())),
        *d.origin,
    )


def _shape_of(d: Dispatch, nodes: Sequence[int]) -> Hashable:
    """Return a key of everything that the WGSL and its lines depend on; of nodes it tells only which are the same."""
    written = d.source_hash or source_hash(d)  # an update's have none
    first = dict(zip(reversed(nodes), range(len(nodes) - 1, -1, -1), strict=True))
    return written, len(d.prologue), tuple([o.shape for o in d.operands]), tuple([first[n] for n in nodes])


def _kernel_table(kernels: Sequence[_Kernel]) -> Json:
    first = [k.dispatch for k in kernels]
    return {
        "count": len(kernels),
        "key": [hashlib.sha256(f"{k.dispatch.workgroup_size}{k.text}".encode()).hexdigest()[:12] for k in kernels],
        "entry": words([d.entry for d in first]),
        "family": words([d.custom.family if d.custom else _FAMILY[d.kernel] for d in first]),
        "wgsl": [k.text for k in kernels],
        "workgroup_size": ragged([d.workgroup_size for d in first]),
        "constants": [{"params": list(d.params)} if d.params else {} for d in first],
        "bindings": [_bindings(d) for d in first],
        "variant": words([d.variant for d in first]),
        "variant_reason": words([d.variant_reason for d in first]),
        "boilerplate": [_runs(_plain_lines(k)) for k in kernels],
        "covers": [_covers(coverage(k.dispatch)) for k in kernels],
        "parts": [{part: list(runs) for part, runs in k.parts} for k in kernels],
        "why": [reason_of(k.dispatch, k.text) for k in kernels],
    }


def _covers(c: Coverage) -> Json:
    """Return the picture of a kernel in numbers; absent numbers have their defaults (docs/graphdoc.md)."""
    told: Json = {"over": c.over, "shape": list(c.shape), "cell": list(c.cell)}
    told |= {name: value for name, value in (("per", c.per), ("share", c.share)) if value != 1}
    told |= {"flip": 1} if c.flip else {}
    told |= {"each": list(c.each)} if c.each else {}
    if c.loop:
        told["loop"] = [c.loop.over, c.loop.length, c.loop.step, c.loop.split, c.loop.side]
    if c.reads:
        told["reads"] = [[r.operand, r.place, r.rows, r.columns] for r in c.reads]
    return told | {name: list(numbers) for name, numbers in c.numbers.items()}


def _plain_lines(kernel: _Kernel) -> list[int]:
    """Return the lines that compute no node."""
    computed = {line for one in kernel.alike for line, nodes in one.lines if nodes}
    return [n for n in range(1, kernel.lines + 1) if n not in computed]


_FAMILY = {
    "pointwise": "elementwise", "reduce": "reduction", "matmul": "contraction",
    "movement": "movement", "update": "update",
}  # fmt: skip


def _bindings(d: Dispatch) -> list[Json]:
    found: list[Json] = []
    for index, (buffer, access) in enumerate(d.bindings):
        operands = [k for k, o in enumerate(d.operands) if o.buffer == buffer]
        role = "result" if buffer in d.outputs else "in place" if buffer in d.in_place else ""
        role = role or f"operand {', '.join(map(str, operands))}"
        found.append({"index": index, "access": "read" if access == "r" else "read_write", "role": role})
    if d.scalars:
        found.append({"index": len(found), "access": "read", "role": f"scalars {', '.join(d.scalars)}"})
    return found


def _runs(lines: Sequence[int]) -> list[list[int]]:
    """Return [first, last] of every run of consecutive lines."""
    runs: list[list[int]] = []
    for line in lines:
        if runs and runs[-1][1] == line - 1:
            runs[-1][1] = line
        else:
            runs.append([line, line])
    return runs


# dispatches and groups -----------------------------------------------------------------------------------------------
def _dispatch_table(
    graph: Graph, dispatches: Sequence[Dispatch], kernel_of: Sequence[int], group_of: Sequence[int]
) -> Json:
    return {
        "count": len(dispatches),
        "label": [d.label for d in dispatches],
        "phase": words([d.phase for d in dispatches]),
        "kernel": list(kernel_of),
        "workgroups": ragged([d.workgroups for d in dispatches]),
        "reads": ragged([d.reads for d in dispatches]),
        "writes": ragged([d.writes for d in dispatches]),
        "group": list(group_of),
        "flops": [d.flops for d in dispatches],
        "bytes_read": [d.bytes_read for d in dispatches],
        "bytes_written": [d.bytes_written for d in dispatches],
        "family": words([_dispatch_family(graph, d) for d in dispatches]),
    }


def _dispatch_family(graph: Graph, d: Dispatch) -> str:
    """Return the op family of a dispatch's core; a chain that holds a loss counts as one."""
    if d.kernel == "pointwise" and any(family(graph.node(i).op) == "loss" for i in d.origin):
        return "loss"
    return d.custom.family if d.custom else _FAMILY[d.kernel]


def _group_table(groups: Sequence[BarrierGroup]) -> Json:
    return {
        "count": len(groups),
        "start": [g.start for g in groups],
        "stop": [g.stop for g in groups],
        "because": [
            [{"from": h.before, "to": h.after, "interval": h.buffer, "hazard": h.kind} for h in g.because]
            for g in groups
        ],
    }


# memory --------------------------------------------------------------------------------------------------------------
def _intervals(
    plan: ExecutionPlan,
    buffers: Sequence[PlanBuffer],
    dispatches: Sequence[Dispatch],
    group_of: Sequence[int],
    labels: Labels,
) -> Json:
    """Return one row per buffer; dispatches of the update lengthen the lives of the buffers that they use."""
    memory, count = plan.memory, len(plan.buffers)
    first = [i.first for i in memory.intervals] + [-1] * (len(buffers) - count)
    last = [i.last for i in memory.intervals] + [-1] * (len(buffers) - count)
    writer = {b: d for d in dispatches for b in d.writes if b < count and memory.intervals[b].first == d.index}
    for k in range(len(plan.dispatches), len(dispatches)):
        for b in (*dispatches[k].reads, *dispatches[k].writes):
            last[b] = k
    pinned = dict(memory.pinned) | dict.fromkeys(range(count, len(buffers)), "kept from step to step")
    slot = [*memory.slot_of, *range(len(memory.slots), len(memory.slots) + len(buffers) - count)]
    return {
        "count": len(buffers),
        "name": sparse([_name(plan.graph, b, writer, labels) for b in buffers], ""),
        "node": [b.nodes[0] if b.nodes else -1 for b in buffers],
        "kind": words([b.kind for b in buffers]),
        "slot": slot,
        "offset": [*memory.offset_of, *[0] * (len(buffers) - count)],
        "nbytes": [b.nbytes for b in buffers],
        "padded": [padded(b.nbytes, plan.target.limits.alignment) for b in buffers],
        "first": first,
        "last": last,
        "first_group": [group_of[k] if k >= 0 else -1 for k in first],
        "last_group": [group_of[k] if k >= 0 else -1 for k in last],
        "pinned": {str(b): reason for b, reason in sorted(pinned.items())},
        "alias_of": {},
        "family": words([_interval_family(plan.graph, b, writer) for b in buffers]),
    }


def _name(graph: Graph, buffer: PlanBuffer, writer: dict[int, Dispatch], labels: Labels) -> str:
    """Return a name for a buffer: that of its one tensor, or of its content (the loss, the result of an op or of a
    dispatch inside an op) with the path of the module."""
    named = next((i for i in buffer.nodes if graph.node(i).name == buffer.name != ""), -1)
    if named >= 0:
        return labels.names[named]
    if buffer.name or buffer.kind == "loss":
        return buffer.name or "loss"
    if buffer.nodes:
        return labels.inside(buffer.nodes[0], graph.node(buffer.nodes[0]).op)
    if buffer.id not in writer:
        return ""
    dispatch = writer[buffer.id]
    return labels.inside(next(iter(dispatch.origin), -1), dispatch.label.partition("[")[0])


def _interval_family(graph: Graph, buffer: PlanBuffer, writer: dict[int, Dispatch]) -> str:
    if buffer.kind == "state":
        return "update"
    return _dispatch_family(graph, writer[buffer.id]) if buffer.id in writer else "leaf"


def _slots(plan: ExecutionPlan, buffers: Sequence[PlanBuffer]) -> Json:
    state = buffers[len(plan.buffers) :]
    sizes = [padded(b.nbytes, plan.target.limits.alignment) for b in state]
    return {
        "count": len(plan.memory.slots) + len(state),
        "nbytes": [s.nbytes for s in plan.memory.slots] + sizes,
        "tenants": ragged([*(s.tenants for s in plan.memory.slots), *((b.id,) for b in state)]),
    }


# provenance ----------------------------------------------------------------------------------------------------------
def _links(
    plan: ExecutionPlan,
    stage: int,
    dispatches: Sequence[Dispatch],
    buffers: int,
    kernels: Sequence[_Kernel],
    kernel_of: Sequence[int],
    base: Sequence[int],
) -> tuple[list[Json], dict[int, str]]:
    node, nodes, lines = f"node:{stage}", len(plan.graph), base[-1]
    leaves = [(i, b) for i, b in plan.node_buffers.items() if plan.memory.intervals[b].first < 0]
    own = [(k, base[k] + line) for k, kernel in enumerate(kernels) for line in range(kernel.lines)]
    computed, text = link_of_rows(node, "wgsl", *_computed(kernels, base, nodes))
    return [
        link(node, "dispatch", ((i, k) for k, d in enumerate(dispatches) for i in d.origin), nodes, len(dispatches)),
        link(
            "dispatch",
            "interval",
            ((k, b) for k, d in enumerate(dispatches) for b in d.writes),
            len(dispatches),
            buffers,
        ),
        link(node, "interval", leaves, nodes, buffers),
        link("dispatch", "kernel", enumerate(kernel_of), len(dispatches), len(kernels)),
        link("kernel", "wgsl", own, len(kernels), lines),
        computed,
    ], {id(computed): text}


def _computed(kernels: Sequence[_Kernel], base: Sequence[int], nodes: int) -> tuple[list[Row], list[Row]]:
    """Return the WGSL lines of each node, and the nodes of each line; equal rows are one object."""
    lines_of: list[list[Row]] = [[] for _ in range(nodes)]
    nodes_of: list[list[set[int]]] = [[] for _ in range(base[-1])]
    for kernel, start in zip(kernels, base, strict=False):
        for one in kernel.alike:
            at = dict(zip(one.first, map(set, zip(*one.nodes, strict=True)), strict=True))
            own: dict[int, Row] = {}
            for found, lines in _by_nodes(one.lines, start - 1).items():
                there = at[found[0]].union(*(at[i] for i in found[1:]))
                for line in lines:
                    nodes_of[line].append(there)
                for i in found:
                    own[i] = own.get(i, ()) + lines
            for i, row in own.items():
                for n in at[i]:
                    lines_of[n].append(row)
    return _merged(lines_of), _merged(nodes_of)


def _by_nodes(lines: LineMap, start: int) -> dict[Row, Row]:
    """Return the lines, counted from `start`, that compute the same nodes."""
    found: dict[Row, list[int]] = {}
    for line, nodes in lines:
        if nodes:
            found.setdefault(nodes, []).append(start + line)
    return {nodes: tuple(rows) for nodes, rows in found.items()}


def _merged(rows: Iterable[Sequence[Collection[int]]]) -> list[Row]:
    """Return for each row the union of its parts, in order; rows of the same parts are one object."""
    known: dict[tuple[int, ...], Row] = {}  # by id(): whoever made the parts holds them
    found = []
    for parts in rows:
        key = tuple(map(id, parts))
        row = known.get(key)
        if row is None:
            row = known[key] = tuple(sorted(set().union(*parts)))
        found.append(row)
    return found


def _fates(plan: ExecutionPlan) -> Fates:
    """Return the fates of the nodes that have no buffer of their own."""
    fates: Fates = {}
    for node, (dispatch, reason) in plan.fused_nodes.items():
        kind = _FATES.get(reason.partition(":")[0], "fused")
        into = f"dispatch:{dispatch}" if dispatch >= 0 else None
        fates[node] = {"kind": kind, "into": into, "reason": reason}
    return fates


# in words ------------------------------------------------------------------------------------------------------------
def plan_counts(plan: Json) -> str:
    """Sum a plan up in words: `9 + 4 dispatches (Adam, lr 0.001), 6 groups, physical 2.1 MB of logical 3.4 MB`."""
    rule = f" ({plan['optimizer']})" if plan["optimizer"] else ""
    memory = plan["memory"]
    sizes = f"physical {nbytes(memory['physical_bytes'])} of logical {nbytes(memory['logical_bytes'])}"
    words = dispatch_words(plan["dispatches"]["count"], plan["updates"])
    return f"{words}{rule}, {plural(plan['groups']['count'], 'group')}, {sizes}"
