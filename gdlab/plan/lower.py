"""Lower terms to dispatches and buffers, and record the fate of every term."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gdlab.base.errors import CompileError
from gdlab.base.types import TensorType
from gdlab.graph import Graph
from gdlab.op import REGISTRY, Alias, Contraction, Reduction, Shader, Work
from gdlab.op.storage import trained_parameters
from gdlab.plan import labels, spread
from gdlab.plan.candidates import schedule_of, stored_dtype
from gdlab.plan.chains import Clusters, TermCluster, is_leaf, needs_of, product_of
from gdlab.plan.dispatch import (
    Arg,
    Columns,
    Custom,
    Dispatch,
    DispatchPhase,
    Gather,
    Operand,
    PointOp,
    Reduce,
    Result,
    RowNorm,
)
from gdlab.plan.parts import Parts, fold_stages
from gdlab.plan.records import BufferKind, MissedFusion, PlanBuffer
from gdlab.plan.schedule import before_reordering, numbered, scheduled
from gdlab.plan.spread import Schedule
from gdlab.plan.target import CompileOptions, Target
from gdlab.plan.terms import Term, Terms, movement_of, terms_of

COPY = "copy"


@dataclass(slots=True)
class Lowered:
    """Buffers and dispatches of a graph, with maps from terms to both. While they are written dispatches stand in
    program order, with index and group 0; `lowered` puts them in the order in which they run."""

    terms: Terms
    buffers: list[PlanBuffer] = field(default_factory=list)
    dispatches: list[Dispatch] = field(default_factory=list)
    buffer_of: dict[int, int] = field(default_factory=dict)  # term → buffer
    parts_of: dict[int, tuple[int, int]] = field(default_factory=dict)  # term → buffer of its parts, and their number
    copies: dict[int, int] = field(default_factory=dict)  # leaf term → buffer of the copy that an output reads
    dispatch_of: dict[int, int] = field(default_factory=dict)  # term → dispatch that computes it
    missed: list[MissedFusion] = field(default_factory=list)
    order_before: tuple[int, ...] = ()  # of reordered dispatches each one's place without, and the number of groups
    groups_before: int = 0

    def leaf_buffer(self, node: int) -> int:
        """Return the buffer of a leaf."""
        return self.buffer_of[self.terms.term_of[node]]

    def home_of(self, term: int) -> tuple[int, int]:
        """Return the buffer that a core reads a term from, and the number of parts in which it lies there."""
        return (self.buffer_of[term], 1) if term in self.buffer_of else self.parts_of[term]

    def output_buffer(self, node: int) -> int:
        """Return the buffer that an output is read from: of a leaf or an alias of one, its copy."""
        term = self.terms.base[self.terms.term_of[node]]
        return self.copies.get(term, self.buffer_of[term])

    def constants(self) -> tuple[tuple[int, bytes], ...]:
        """Return the elements of every constant that has a buffer."""
        terms = self.terms.terms
        held = ((terms[term], buffer) for term, buffer in self.buffer_of.items())
        return tuple((buffer, dict(term.attrs)["data"].raw) for term, buffer in held if term.op.name == "constant")


def lowered(graph: Graph, backward: Sequence[bool], options: CompileOptions, target: Target) -> Lowered:
    """Lower the outputs of a graph to dispatches in barrier groups; `backward[node]` tells the phase of every node.

    Plans and pieces both come from here, so that equal work has equal kernels and schedules. Raises `CompileError`.
    """
    terms = terms_of(graph, backward)
    needs = needs_of(terms, tuple(terms.term_of[i] for i in graph.output_ids))
    _check_sizes(graph, terms, needs.needed, target)
    clusters = Clusters(terms, needs, options, target)
    found = Lowering(graph, terms, target, options.tile).run(clusters.assign(), needs.needed)
    found.missed = clusters.missed
    order, groups = scheduled(found.dispatches, options.serial, options.reorder, target.merges)
    if options.reorder:
        found.order_before, found.groups_before = before_reordering(found.dispatches, order, target.merges)
    place = {old: new for new, old in enumerate(order)}
    found.dispatches = [*numbered(found.dispatches, order, groups)]
    found.dispatch_of = {term: place[old] for term, old in found.dispatch_of.items()}
    return found


def _check_sizes(graph: Graph, terms: Terms, needed: bytearray, target: Target) -> None:
    """Refuse by name a tensor that no binding can hold."""
    for id in graph.output_ids:
        type = graph.nodes[id].type
        if type.dtype.is_storage and not _is_stored(graph, id):
            raise CompileError("compile", f"output %{id}", str(type), "f32 or u32: to_f32(x) decodes 16 bits", node=id)
    most = target.limits.binding_bytes
    for term in terms.terms:
        if needed[term.id] and term.type.size_bytes > most:
            name = graph.nodes[term.node].name or f"%{term.node}, {term.op.name}"
            given = f"{term.type.size_bytes} bytes"
            wanted = f"at most {most}, the largest binding of this device"
            raise CompileError("compile", f"tensor {name} {term.type}", given, wanted, node=term.node)


def _is_stored(graph: Graph, id: int) -> bool:
    """Return whether a kernel writes this value in its storage dtype, reshaped or not; false for parameters."""
    node = graph.nodes[id]
    while isinstance(REGISTRY[node.op].kernel, Alias):
        node = graph.nodes[node.inputs[0]]
    return REGISTRY[node.op].stores


class Lowering:
    """The lowering of clusters: one dispatch each (a fold over separated axes: one per run of axes)."""

    def __init__(self, graph: Graph, terms: Terms, target: Target, tile: spread.Tile | None = None) -> None:
        self.graph, self.terms, self.target, self.tile = graph, terms, target, tile
        self.nodes = graph.nodes  # once: the property copies
        self.out = Lowered(terms)
        self.holders: dict[int, list[int]] = {}
        for node, term in enumerate(terms.term_of):
            if term >= 0:
                self.holders.setdefault(terms.base[term], []).append(node)
        self.kinds = self._output_kinds()

    def run(self, clusters: Iterable[TermCluster], needed: bytearray) -> Lowered:
        """Make all buffers, leaves first, then all dispatches."""
        for term in self.terms.terms:
            if is_leaf(term) and (needed[term.id] or term.op.name != "constant"):
                self._leaf(term)
        for cluster in clusters:
            self._cluster(cluster)
        for node in self.graph.output_ids:
            base = self.terms.terms[self.terms.base[self.terms.term_of[node]]]
            if is_leaf(base) and base.id not in self.out.copies:
                self._copy(base)
        return self.out

    # buffers
    def _output_kinds(self) -> dict[int, tuple[BufferKind, str]]:
        """Return kind and name of the buffers that outputs lie in; of outputs in one buffer the earlier decides."""
        kinds: dict[int, tuple[BufferKind, str]] = {}
        ids, names, users = self.graph.output_ids, self.graph.output_names, self.graph.num_user_outputs
        parameters = trained_parameters(self.graph) if len(ids) > users else ()
        for i, node in enumerate(ids):
            term = self.terms.base[self.terms.term_of[node]]
            scalar = self.nodes[node].type == TensorType((1,))
            name = names[i] or self.nodes[node].name
            if i < users:
                kinds.setdefault(term, ("loss" if i == 0 and scalar else "output", name))
            else:
                kinds.setdefault(term, ("gradient", f"∂{parameters[i - users][1]}"))
        return kinds

    def _leaf(self, term: Term) -> None:
        kind: BufferKind = {"input": "input", "parameter": "parameter"}.get(term.op.name, "constant")  # type: ignore[assignment]
        attrs, name = dict(term.attrs), self.nodes[term.node].name
        if "derived" in attrs:
            kind, name = "derived", attrs["name"]
        self._buffer(term.type, kind, name, self.holders.get(term.id, term.nodes), term.id)

    def _buffer(self, type: TensorType, kind: BufferKind, name: str, nodes: Iterable[int], term: int = -1) -> int:
        id = len(self.out.buffers)
        self.out.buffers.append(PlanBuffer(id, type.size_bytes, type.dtype, type.shape, kind, name, tuple(nodes)))
        if term >= 0:
            self.out.buffer_of[term] = id
        return id

    def _result(self, term: Term) -> int:
        kind, name = self.kinds.get(term.id, ("intermediate", ""))
        nodes = self.holders.get(term.id, [])
        name = next((self.nodes[n].name for n in nodes if self.nodes[n].name), name)
        return self._buffer(term.type, kind, name if kind != "gradient" else self.kinds[term.id][1], nodes, term.id)

    # dispatches
    def _cluster(self, cluster: TermCluster) -> None:
        root = self.terms.terms[cluster.root]
        core = self.terms.terms[cluster.core] if cluster.core >= 0 else None
        kernel = None if core is None else core.op.kernel
        parts = Parts(self, cluster, core)
        if core is None:
            self._emit_pointwise(root, parts)
        elif isinstance(kernel, Contraction):
            self._emit_matmul(root, core, parts)
        elif isinstance(kernel, Reduction):
            self._emit_reduce(root, core, kernel, parts)
        elif isinstance(kernel, Shader):
            self._emit_custom(root, core, kernel, parts)
        else:
            self._emit_gather(root, core, parts)
        later = cluster.epilogue if cluster.root in self.out.parts_of else []
        for member in [*self._chain_before(cluster), *(t for t in cluster.members if t not in later)]:
            self.out.dispatch_of.setdefault(member, len(self.out.dispatches) - 1)  # a norm: where it is stored

    def _chain_before(self, cluster: TermCluster) -> list[int]:
        """Return the chain on a product in parts that a cluster runs as it reads them."""
        return cluster.sums.epilogue if cluster.sums is not None and cluster.sums.root in self.out.parts_of else []

    def _sum_stored(self, cluster: TermCluster) -> list[int]:
        """Return the product in parts, or the end of its chain, that a cluster stores as it reads it."""
        made = cluster.sums is not None and cluster.stores_sum and cluster.sums.root in self.out.parts_of
        return [cluster.sums.root] if cluster.sums is not None and made else []

    def _emit_pointwise(self, root: Term, parts: Parts) -> None:
        chain = parts.epilogue()
        size = root.type.num_elements
        operands = tuple(parts.operands)
        self._emit(
            "pointwise", root, parts, labels.pointwise(chain, size),
            spread.pointwise(size, operands, self.target), epilogue=chain, flops=size * len(chain),
        )  # fmt: skip

    def _emit_matmul(self, root: Term, core: Term, parts: Parts) -> None:
        (m, n), product, inputs, inside = core.type.shape, product_of(core, self.terms), core.inputs, ""
        if parts.cluster.norm >= 0:
            norm = self.terms.terms[parts.cluster.norm]
            inputs, inside = (norm.inputs[0], core.inputs[1], norm.inputs[1]), norm.op.name
            product = replace(product, norm=RowNorm(dict(norm.attrs)["eps"], norm.node))
        if parts.cluster.dual >= 0:
            dual = self.terms.terms[parts.cluster.dual]
            apart = parts.cluster.rows >= 0
            inputs = (*inputs, dual.inputs[1], *dual.inputs[:1] * apart)
            product = replace(product, dual=dual.node, dual_rows=apart)
        parts.read_whole(inputs)
        schedule = schedule_of(product, self.target, self.tile, stored_dtype(parts.operands))
        split = spread.split_of(schedule)
        flops = (2 if product.dual is None else 4) * m * n * product.k + (4 * m * product.k if product.norm else 0)
        if split > 1:
            scratch = TensorType((split, m, n))
            buffer = self._buffer(scratch, "intermediate", "", ())
            product = replace(product, parts=split)
            label = labels.matmul(product, "")
            self._append(
                "matmul",
                root,
                parts,
                label,
                schedule,
                (Result(buffer, scratch),),
                matmul=product,
                flops=flops,
                nodes=(core.node,),
            )
            if parts.cluster.added_later:
                self.out.parts_of[root.id] = buffer, split
                return
            parts.operands, parts.index = [Operand(buffer, scratch.shape)], {}
        chain = parts.epilogue()
        via = core.via if "matmul" in core.via else ""
        after = [self.terms.terms[t] for t in parts.cluster.epilogue]
        tail = labels.suffix(chain, [t.op.name for t in after if via and t.via == via])
        if split > 1:
            fold = Reduce("sum", "acc", 1, split, m * n, split, core.node)
            self._emit(
                "reduce", root, parts, labels.reduce(fold, ()) + tail, spread.reduce(fold, self.target),
                epilogue=chain, reduce=fold, flops=m * n * (split + len(chain)),
            )  # fmt: skip
            return
        self._emit(
            "matmul", root, parts, labels.matmul(product, via, inside) + tail, schedule, epilogue=chain, matmul=product,
            flops=flops + m * n * len(chain),
        )  # fmt: skip

    def _results(self, root: Term, parts: Parts) -> tuple[Result, ...]:
        """Make and return the results of a cluster: those of root, statistics and what it stores besides, or one per
        column range."""
        cluster, terms = parts.cluster, self.terms.terms
        if not cluster.ranges:
            own = dict.fromkeys((root.id, *cluster.statistics)) | {t: parts.made(t) for t in cluster.stored}
            own |= {t: Arg("read") for t in self._sum_stored(cluster)}
            return tuple(Result(self._result(terms[t]), terms[t].type, terms[t].node, None, v) for t, v in own.items())
        width, results = self.terms.terms[cluster.core].type.shape[1], []
        for term in (self.terms.terms[t] for t in cluster.ranges):
            ends = dict(term.attrs)
            columns = Columns(ends["start"], ends["stop"], width)
            results.append(Result(self._result(term), term.type, term.node, columns))
        return tuple(results)

    def _emit_reduce(self, root: Term, core: Term, kernel: Reduction, parts: Parts) -> None:
        operand = self.terms.terms[core.inputs[0]].type
        runs = fold_stages(operand.shape, kernel.axes(operand, dict(core.attrs)))
        stages = [stage for run in runs for stage in spread.split_fold(*run, self.target)]
        count = math.prod(length for _, length, _ in stages)  # elements of a sum: `n` in WGSL
        chain = parts.prologue(core)
        for i, (outer, length, inner) in enumerate(stages):
            last = i == len(stages) - 1
            fold = Reduce(kernel.combine, kernel.finish if last else "acc", outer, length, inner, count, core.node)
            after = parts.epilogue() if last else ()
            schedule = spread.reduce(fold, self.target)
            label = labels.reduce(fold, chain) + labels.suffix(after)
            flops = outer * length * inner * (1 + len(chain)) + outer * inner * len(after)
            if last:
                self._emit(
                    "reduce", root, parts, label, schedule, prologue=chain, epilogue=after, reduce=fold, flops=flops
                )
                return
            partial = TensorType((outer, inner))
            buffer = self._buffer(partial, "intermediate", "", ())
            self._append(
                "reduce",
                root,
                parts,
                label,
                schedule,
                (Result(buffer, partial),),
                prologue=chain,
                reduce=fold,
                flops=flops,
            )
            parts.operands, chain = [Operand(buffer, partial.shape)], ()

    def _emit_custom(self, root: Term, core: Term, kernel: Shader, parts: Parts) -> None:
        if core.id in self.terms.states and kernel.in_place is not None:
            return self._emit_in_place(root, core, kernel.in_place, parts)
        form, work = self._form(core, kernel)
        custom = _custom(core, kernel, form, work, core.op.operand_names(len(core.inputs)))
        if parts.cluster.statistics:
            known = {statistic.op: statistic for statistic in kernel.statistics}
            stored = [known[self.terms.terms[t].op.name] for t in parts.cluster.statistics]
            custom = replace(custom, results=tuple(statistic.name for statistic in stored))
            work = replace(work, flops=round(work.flops * (1 + sum(statistic.more for statistic in stored))))
        parts.read_whole(core.inputs)
        if work.partial and form.fold is not None:
            custom, work = self._emit_partial(root, core, form.fold, custom, work, parts)
        before = parts.before(self._chain_before(parts.cluster))
        chain = parts.epilogue()
        shape = f"{work.units}x{work.length}" if work.length else "x".join(map(str, core.type.shape))
        label = labels.custom(core.op.name, before, work.extents or shape) + labels.suffix(chain)
        self._emit(
            "custom", root, parts, label, spread.custom(custom, self.target), prologue=before, epilogue=chain,
            custom=custom, scalars=kernel.scalars, flops=work.flops + core.type.num_elements * len((*before, *chain)),
        )  # fmt: skip

    def _emit_partial(
        self, root: Term, core: Term, fold: Shader, custom: Custom, work: Work, parts: Parts
    ) -> tuple[Custom, Work]:
        """Lower a kernel to parts in scratch memory; return record and work of the dispatch that adds the parts."""
        scratch = TensorType(work.partial)
        buffer = self._buffer(scratch, "intermediate", "", ())
        self._append(
            "custom", root, parts, f"{labels.display(core.op.name)}[{work.extents}]",
            spread.custom(custom, self.target), (Result(buffer, scratch),), custom=custom, flops=work.flops,
            nodes=(core.node,),
        )  # fmt: skip
        parts.operands, parts.index = [Operand(buffer, scratch.shape)], {}
        types = tuple(self.terms.terms[i].type for i in core.inputs)
        more = fold.work(types, core.type, dict(core.attrs))
        assert more is not None  # a fold fits whatever its kernel does
        return _custom(core, fold, fold, more, ("chunks",)), more

    def _emit_in_place(self, root: Term, core: Term, kernel: Shader, parts: Parts) -> None:
        """Lower a cache write into the buffer of the parameter, which becomes the result's buffer."""
        cache = self.out.buffer_of[core.id] = self.out.buffer_of[self.terms.states[core.id]]
        home = self.out.buffers[cache]
        self.out.buffers[cache] = replace(home, nodes=(*home.nodes, *self.holders.get(core.id, ())))
        _, work = self._form(core, kernel)
        names, (new, _, *counts) = core.op.operand_names(len(core.inputs)), core.inputs
        custom = _custom(core, kernel, kernel, work, (names[0], *names[2:]))
        parts.read_whole((new, *counts))
        label = f"{labels.display(core.op.name)}[{'x'.join(map(str, core.type.shape))}]"
        schedule, written = spread.custom(custom, self.target), self.terms.terms[new].type.size_bytes
        self._append("custom", root, parts, label, schedule, (Result(cache, core.type, core.node),), custom=custom)
        self.out.dispatches[-1] = replace(self.out.dispatches[-1], in_place=(cache,), bytes_written=written)

    def _form(self, core: Term, kernel: Shader) -> tuple[Shader, Work]:
        """Return the form of a kernel that fits the target, and its work."""
        types = tuple(self.terms.terms[i].type for i in core.inputs)
        return spread.form_of(kernel, types, core.type, dict(core.attrs), self.target)

    def _emit_gather(self, root: Term, core: Term, parts: Parts) -> None:
        offset, axes, fill = movement_of(core, self.terms.terms[core.inputs[0]].type)
        parts.read_whole(core.inputs)
        chain = parts.epilogue()
        size = root.type.num_elements
        self._emit(
            "movement", root, parts, f"{labels.display(core.op.name)}[{size}]" + labels.suffix(chain),
            spread.gather(size, self.target), epilogue=chain, flops=size * len(chain),
            gather=Gather(core.type.shape, offset, axes, float(fill), core.node),
        )  # fmt: skip

    def _copy(self, leaf: Term) -> None:
        """Copy an output that is a leaf to a buffer of its own: its value before the step's update."""
        kind, name = self.kinds[leaf.id]
        outputs = dict.fromkeys(self.graph.output_ids)
        nodes = [n for n in outputs if self.terms.base[self.terms.term_of[n]] == leaf.id]
        buffer = self.out.copies[leaf.id] = self._buffer(leaf.type, kind, name, nodes)
        parts = Parts(self, TermCluster(leaf.id, leaf.type.num_elements, leaf.id), None)
        parts.operand(leaf.id, "full", 1, leaf.type.shape)
        line = PointOp(COPY, "x", ("x",), (Arg("operand", 0),), (), nodes[0])
        size = leaf.type.num_elements
        schedule = spread.pointwise(size, tuple(parts.operands), self.target)
        self._append(
            "pointwise", leaf, parts, f"Copy[{size}]", schedule, (Result(buffer, leaf.type, nodes[0]),), phase="copy",
            epilogue=(line,), nodes=nodes,
        )  # fmt: skip

    def _emit(self, kernel: str, root: Term, parts: Parts, label: str, schedule: Schedule, **fields: Any) -> None:
        self._append(kernel, root, parts, label, schedule, self._results(root, parts), **fields)

    def _append(
        self,
        kernel: str,
        root: Term,
        parts: Parts,
        label: str,
        schedule: Schedule,
        results: tuple[Result, ...],
        phase: DispatchPhase | None = None,
        nodes: Iterable[int] | None = None,
        **fields: Any,
    ) -> None:
        operands = tuple(parts.operands)
        fields.setdefault("bytes_written", sum(r.type.size_bytes for r in results))
        read = sum(self.out.buffers[b].nbytes for b in dict.fromkeys(o.buffer for o in operands))
        self.out.dispatches.append(
            Dispatch(
                0, kernel, label, phase or ("backward" if root.backward else "forward"), operands, results,  # type: ignore[arg-type]
                workgroups=schedule.workgroups, workgroup_size=schedule.workgroup_size, params=schedule.params,
                variant=schedule.variant, variant_reason=schedule.reason,
                origin=self._origin(parts.cluster) if nodes is None else tuple(nodes),
                bytes_read=read, **fields,
            )
        )  # fmt: skip

    def _origin(self, cluster: TermCluster) -> tuple[int, ...]:
        """Return the nodes that a cluster computes, and those it reads as literals, aliases or by broadcast access."""
        terms, found = self.terms, dict.fromkeys(self.holders.get(cluster.root, ()))
        for root in (*cluster.ranges, *cluster.statistics, *cluster.stored, *self._sum_stored(cluster)):
            found.update(dict.fromkeys(self.holders.get(root, ())))
        for member in (*self._chain_before(cluster), *cluster.members):
            found.update(dict.fromkeys(terms.terms[member].nodes))
        stack = [i for n in found for i in self.nodes[n].inputs]
        while stack:
            node = stack.pop()
            term = terms.term_of[node]
            if node not in found and not terms.is_stored(term):
                found[node] = None
                stack.extend(self.nodes[node].inputs)
        return tuple(sorted(found))


def _custom(core: Term, kernel: Shader, form: Shader, work: Work, names: tuple[str, ...]) -> Custom:
    """Return the record of `kernel` in the chosen form; its NumPy form is that of the kernel."""
    integers = tuple((k, v) for k, v in work.constants.items() if isinstance(v, int))
    numbers = tuple((k, v) for k, v in work.constants.items() if isinstance(v, float))
    tables = tuple(work.tables.items())
    return Custom(core.op.family, kernel.name, form.file, names, work.units, work.length, work.group, integers, numbers,
                  core.node, tables, work.trips)  # fmt: skip
