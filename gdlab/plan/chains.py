"""Divide terms among dispatches: pointwise chains, prologues of reductions, epilogues of products."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from gdlab.base.types import DType
from gdlab.op import REGISTRY, Contraction, Elementwise, Leaf, Movement, Reduction, Shader, Statistic
from gdlab.plan.dispatch import Matmul
from gdlab.plan.labels import display
from gdlab.plan.records import MissedFusion
from gdlab.plan.spread import doubles, form_of, normalizes, product_kernel
from gdlab.plan.target import CompileOptions, Limits, Target
from gdlab.plan.terms import Term, Terms

Side = Literal["epilogue", "prologue"]
_CORES = (Contraction, Movement, Reduction, Shader)
MAX_CHAIN = 64  # lines of one kernel: beyond, drivers take seconds to compile it


@dataclass(slots=True)
class TermCluster:
    """The terms of one dispatch: at most one core, a chain before it and one after it; `root` is the term it writes,
    `norm` one that a product computes as it reads, `dual` a second product for the chain. Clusters are lowered in the
    order of `place`: that of the first term which it writes, since none of its readers comes before."""

    root: int
    size: int
    place: int
    core: int = -1
    norm: int = -1
    dual: int = -1
    rows: int = -1  # of the second product, where they are not those of the first
    prologue: list[int] = field(default_factory=list)
    epilogue: list[int] = field(default_factory=list)
    ranges: list[int] = field(default_factory=list)  # terms it writes instead of the core: columns of it
    statistics: list[int] = field(default_factory=list)  # terms it writes besides: values that the core computes
    stored: list[int] = field(default_factory=list)  # and those of core, dual and epilogue that others read, too
    added_later: bool = False  # whether a dispatch that reads it can add up its parts, if it is in several
    sums: TermCluster | None = None  # a product with a chain, or with more readers: this makes it of its parts
    stores_sum: bool = False  # whether others read that, too
    reads: dict[int, None] = field(default_factory=dict)  # terms with buffers of their own

    @property
    def members(self) -> list[int]:
        """All terms of the cluster."""
        core = [t for t in (self.norm, self.core, self.dual) if t >= 0]
        return [*self.prologue, *core, *self.epilogue, *self.ranges, *self.statistics]


@dataclass(frozen=True, slots=True)
class TermEdge:
    """A read of a stored term by `reader`; `whole`: element i for its element i; `chain`: as an operand of a pointwise
    op or as the elements of a reduction."""

    reader: int
    whole: bool
    chain: bool


@dataclass(slots=True)
class Needs:
    """The terms to compute or hold: which are `needed`, the edges to their readers, and which must stay readable."""

    needed: bytearray
    edges: list[list[TermEdge]]
    protected: bytearray


def operand_terms(term: Term, terms: Terms) -> list[tuple[int, bool, bool]]:
    """Return the stored terms that a term reads: (term, whole, chain)."""
    kernel = term.op.kernel
    if isinstance(kernel, (Elementwise, Reduction)):
        return [(v.term, v.access == "full", True) for v in terms.reads[term.id] if not v.is_literal]
    if isinstance(kernel, (Contraction, Movement, Shader)):
        return [(terms.base[i], True, False) for i in term.inputs]
    return []


def needs_of(terms: Terms, outputs: tuple[int, ...]) -> Needs:
    """Find the needs of the output terms, walking back from them."""
    count = len(terms.terms)
    needs = Needs(bytearray(count), [[] for _ in range(count)], bytearray(count))
    for t in outputs:
        needs.needed[terms.base[t]] = needs.protected[terms.base[t]] = 1
    for term in reversed(terms.terms):
        if needs.needed[term.id]:
            if term.op.own_buffer or term.id in terms.states:
                needs.protected[term.id] = 1
            for other, whole, chain in operand_terms(term, terms):
                needs.needed[other] = 1
                needs.edges[other].append(TermEdge(term.id, whole, chain))
    return needs


class Clusters:
    """The assignment of needed terms to clusters, last to first, with notes of the fusions it could not make."""

    def __init__(self, terms: Terms, needs: Needs, options: CompileOptions, target: Target) -> None:
        self.terms, self.needs, self.options = terms, needs, options
        self.target, self.limits = target, target.limits
        self.rows_once = options.fuse_dispatches and options.tile is None and target.adapter_class == "hardware"
        self.of: list[TermCluster | None] = [None] * len(terms.terms)
        self.side: list[Side] = ["epilogue"] * len(terms.terms)
        self.missed: list[MissedFusion] = []
        self.all: list[TermCluster] = []
        self.in_ranges = in_ranges(terms, needs, target.limits) if options.fuse_dispatches else {}
        self.product_of = {t: product for product, ranges in self.in_ranges.items() for t in ranges}
        self.statistics = _statistics(terms, needs) if options.fuse_dispatches else {}

    @cached_property
    def depth(self) -> list[int]:
        """The most cores on any way to each term, its own included: how many groups it waits for, at least."""
        depths: list[int] = []
        for term in self.terms.terms:
            before = [depths[t] for t, _, _ in operand_terms(term, self.terms)]
            depths.append(max(before, default=0) + isinstance(term.op.kernel, _CORES))
        return depths

    @cached_property
    def of_product(self) -> list[bool]:
        """Whether each term is a product, or a chain on one, element for element."""
        found: list[bool] = []
        for term in self.terms.terms:
            chain = isinstance(term.op.kernel, Elementwise)
            reads = operand_terms(term, self.terms) if chain else []
            product = isinstance(term.op.kernel, Contraction)
            found.append(product or any(found[t] for t, whole, _ in reads if whole))
        return found

    def assign(self) -> list[TermCluster]:
        """Return the clusters, in the order of the terms that they write."""
        for term in reversed(self.terms.terms):
            taken = term.id in self.product_of or self.of[term.id] is not None
            if self.needs.needed[term.id] and not is_leaf(term) and not taken:
                self._place(term)
        self.all.reverse()
        for cluster in self.all:
            for terms in (cluster.prologue, cluster.epilogue, cluster.stored):
                terms.sort()
        for cluster in self.all:
            self._add_later(cluster)
        self.missed.reverse()
        return self.all

    def _place(self, term: Term) -> None:
        products, all = self._computed_in(term)
        for product in products:
            product.norm = term.id
            product.reads.pop(term.id, None)  # once, also where both of its products read the rows
            product.reads |= dict.fromkeys(self.terms.base[i] for i in term.inputs)
        if products and all:
            self.of[term.id] = min(products, key=lambda host: host.place)
            return
        readers = self.needs.edges[term.id] if term.id not in self.in_ranges else []
        host, side, refusal = self._host(term, readers)
        beside = self._beside(term, readers) if refusal is not None else None
        if beside is not None:
            host, side, refusal = beside, "epilogue", None
        if refusal is not None:
            if any(e.chain for e in readers) and self.options.fuse_dispatches and isinstance(
                term.op.kernel, (Elementwise, Contraction)
            ):
                self.missed.append(self._missed(term, readers, *refusal))
            host = TermCluster(term.id, term.type.num_elements, term.id, ranges=self.in_ranges.get(term.id, []))
            self.all.append(host)
        assert host is not None  # either joined or made above
        self.of[term.id], self.side[term.id] = host, side
        if isinstance(term.op.kernel, _CORES) and host.core >= 0:
            host.dual = term.id
            (own, _), (rows, _) = (self.terms.terms[t].inputs for t in (host.core, term.id))
            host.rows = -1 if self.terms.base[own] == self.terms.base[rows] else self.terms.base[rows]
        elif isinstance(term.op.kernel, _CORES):
            host.core = term.id
            self._take_statistics(host, term)
        else:
            (host.prologue if side == "prologue" else host.epilogue).append(term.id)
        host.reads.pop(term.id, None)
        for other, _, _ in operand_terms(term, self.terms):
            host.reads[other] = None

    def _add_later(self, cluster: TermCluster) -> None:
        """Leave the parts of a product, if it is in several, to the first kernel that reads it, which must read each
        element once: it runs the product's chain, too, and stores what others read."""
        root = self.terms.terms[cluster.root]
        edges = [e for e in self.needs.edges[root.id] if not self._is_statistic(e.reader)]
        is_product = cluster.core >= 0 and isinstance(self.terms.terms[cluster.core].op.kernel, Contraction)
        more = cluster.ranges or cluster.stored or cluster.dual >= 0 or cluster.prologue
        if not is_product or more or not edges or self.needs.protected[root.id] or not self.target.merges:
            return
        first = min(edges, key=self._place_of)
        core, host = self.terms.terms[first.reader], self.of[first.reader]
        behind = all(self._place_of(e) > self._place_of(first) for e in edges if e is not first)
        if host is None or host.core != core.id or not behind or not self._reads_each_once(core, root):
            return
        if cluster.epilogue or len(edges) > 1:
            chain = {t for m in cluster.epilogue for t, _, _ in operand_terms(self.terms.terms[m], self.terms)}
            reads = {*host.reads, *chain} - {root.id, *cluster.members}
            alike = (core.type.num_elements, core.backward) == (root.type.num_elements, root.backward)
            count = len(reads) + 3 + len(host.statistics) + len(host.stored)  # the parts, both results
            if not alike or count > self.limits.storage_buffers:
                return
            host.sums, host.stores_sum = cluster, len(edges) > 1
        cluster.added_later = True

    def _is_statistic(self, term: int) -> bool:
        """Return whether a term is written by the kernel of another one, which reads the same operands."""
        host = self.of[term]
        return host is not None and term in host.statistics

    def _reads_each_once(self, core: Term, root: Term) -> bool:
        """Return whether the kernel of `core` reads a term as its first operand alone, each element once."""
        kernel, reads = core.op.kernel, [self.terms.base[i] for i in core.inputs]
        if not isinstance(kernel, Shader) or reads[0] != root.id or root.id in reads[1:]:
            return False
        types = tuple(self.terms.terms[i].type for i in core.inputs)
        return kernel.each_once or form_of(kernel, types, core.type, dict(core.attrs), self.target)[0].each_once

    def _computed_in(self, term: Term) -> tuple[list[TermCluster], bool]:
        """Return the products that compute a term as they read it, and whether nothing else reads it. Beside other
        readers products with K in parts do so, too: they need not wait for the dispatch that stores it."""
        kernel, found = term.op.kernel, dict[TermEdge, tuple[TermCluster, str]]()
        if not (isinstance(kernel, Shader) and kernel.as_read and self.rows_once):
            return [], False
        for edge in self.needs.edges[term.id]:
            host, core = self.of[edge.reader], self.terms.terms[edge.reader]
            if host is None or core.id not in (host.core, host.dual) or not isinstance(core.op.kernel, Contraction):
                continue
            reads = {*host.reads, *(self.terms.base[i] for i in term.inputs)} - {term.id}
            rows, other = (self.terms.base[i] for i in core.inputs)
            product = replace(product_of(core, self.terms), dual_rows=host.rows >= 0)
            alone = rows == term.id != other and product.k == term.type.shape[-1]
            fits = len(reads) + max(1, len(host.ranges)) + len(host.stored) <= self.limits.storage_buffers
            at_work = product_kernel(product, self.target)
            if alone and fits and normalizes(product, at_work):
                found[edge] = host, at_work
        if len(found) == len(self.needs.edges[term.id]) and not self.needs.protected[term.id]:
            return [host for host, _ in found.values()], True
        return [host for host, at_work in found.values() if at_work == "k-parallel"], False

    def _beside(self, term: Term, readers: list[TermEdge]) -> TermCluster | None:
        """Return the cluster whose chain reads a term and which can compute it, though it is a second product or, of a
        product or a chain on one, others read it, too. Those come later and read what the cluster stores; clusters that
        are chains alone join the first. Nothing waits longer for it: what the cluster reads is there before the term.
        """
        if not self.rows_once or self.needs.protected[term.id] or not readers:
            return None
        chains = {id(host): host for e in readers if (host := self._chain_of(e)) is not None}
        hosts = sorted(chains.values(), key=lambda host: host.place)
        hosts = [host for host in hosts if host is hosts[0] or (_is_chain(host) and self._stores(term, [host]))]
        others = [e for e in readers if self._chain_of(e) not in hosts]
        if not hosts or any(self._place_of(e) <= hosts[0].place for e in others):
            return None
        if (others or len(hosts) > 1) and not self._stores(term, hosts):
            return None
        reads = {t: None for host in hosts for t in host.reads if t != term.id}
        results = sum(1 + len(host.statistics) + len(host.stored) for host in hosts) + bool(others)
        joined = replace(hosts[0], reads=reads, epilogue=[t for host in hosts for t in host.epilogue])
        reason = self._misfit(term, joined, "epilogue", results)
        if reason is not None and not (hosts[0].core >= 0 and self._doubles(term, joined, results)):
            return None
        self._join(hosts, reads)
        if others:
            hosts[0].stored.append(term.id)
        return hosts[0]

    def _chain_of(self, edge: TermEdge) -> TermCluster | None:
        """Return the cluster whose epilogue reads a term, element for element, if one does."""
        host = self.of[edge.reader]
        inside = host is not None and edge.whole and edge.chain and edge.reader in host.epilogue
        return host if inside else None

    def _place_of(self, edge: TermEdge) -> int:
        """Return the place of the cluster that reads; of a reader before the term at hand its own."""
        host = self.of[edge.reader]
        return edge.reader if host is None else host.place

    def _stores(self, term: Term, hosts: list[TermCluster]) -> bool:
        """Return whether clusters can be one that stores a term, too, as soon as it could be stored alone."""
        terms = self.terms.terms
        late = any(t > term.id and not is_leaf(terms[t]) for host in hosts for t in host.reads)
        if late or not self.target.merges or not self.of_product[term.id]:
            return False
        written = (term, *(terms[host.root] for host in hosts))
        alike = {(t.type.num_elements, t.type.dtype, t.backward) for t in written}
        return alike == {(term.type.num_elements, DType.f32, term.backward)} and not any(host.ranges for host in hosts)

    def _join(self, hosts: list[TermCluster], reads: dict[int, None]) -> None:
        """Make one cluster of several: the first, which writes what all of them write."""
        first, *others = hosts
        for host in others:
            self.all.remove(host)
            for member in host.members:
                self.of[member] = first
            first.epilogue += host.epilogue
            first.stored += [*host.stored, min(first.root, host.root)]
            first.root = max(first.root, host.root)
        first.reads = reads

    def _doubles(self, term: Term, host: TermCluster, results: int) -> bool:
        """Return whether the cluster of a product can compute another one for its chain: of the same rows, or of rows
        that are there at the same time (an earlier product runs beside what the others wait for)."""
        core = self.terms.terms[host.core]
        both = isinstance(core.op.kernel, Contraction) and isinstance(term.op.kernel, Contraction)
        if not both or host.ranges or host.dual >= 0 or term.id in self.in_ranges:
            return False
        own, more = ([self.terms.base[i] for i in each.inputs] for each in (core, term))
        dtypes = [[self.terms.terms[i].type.dtype for i in inputs] for inputs in (own, more)]
        product = product_of(core, self.terms)
        alike = product_of(term, self.terms) == replace(product, node=term.node) and dtypes[0] == dtypes[1]
        product = replace(product, dual_rows=own[0] != more[0])
        if product.dual_rows and (not self.target.merges or self.depth[more[0]] != self.depth[own[0]]):
            return False
        fits = alike and len({*host.reads, *more}) + results <= self.limits.storage_buffers
        return fits and doubles(product, product_kernel(product, self.target))

    def _host(self, term: Term, readers: list[TermEdge]) -> tuple[TermCluster | None, Side, tuple[str, str] | None]:
        """Return the cluster that can take the term, and the side of its core; else the reason in words."""
        if not self.options.fuse_dispatches or not readers:
            return None, "epilogue", ("disabled", "fuse_dispatches is off")
        if self.needs.protected[term.id]:
            return None, "epilogue", ("is_output", "it is an output, so its value stays readable")
        first = readers[0].reader
        host, side = self.of[first], self._side_of(first)
        assert host is not None  # readers come first in this order
        for edge in readers:
            if self.of[edge.reader] is not host or self._side_of(edge.reader) != side:
                return None, "epilogue", ("multi_use", f"%{self._node(edge.reader)} reads it in another dispatch")
            if not edge.chain:
                return None, "epilogue", ("kernel", f"{self._op(edge.reader)} reads it from memory")
            if not edge.whole:
                return None, "epilogue", ("shape", f"{self._op(edge.reader)} reads an element more than once")
        reason = self._misfit(term, host, side)
        return (host, side, None) if reason is None else (None, "epilogue", reason)

    def _take_statistics(self, host: TermCluster, core: Term) -> None:
        """Let the dispatch write statistics that its kernel computes anyway, instead of dispatches of their own."""
        known = core.op.kernel.statistics if isinstance(core.op.kernel, Shader) else ()
        buffers = len({*host.reads, *(self.terms.base[i] for i in core.inputs)} - {core.id}) + 1 + len(host.stored)
        for statistic in known:
            taken = self._asked_for(statistic, host, core)
            if taken is not None and buffers + len(host.statistics) < self.limits.storage_buffers:
                alone = self.of[taken.id]
                if alone is not None:
                    self.all.remove(alone)
                host.statistics.append(taken.id)
                self.of[taken.id] = host

    def _asked_for(self, statistic: Statistic, host: TermCluster, core: Term) -> Term | None:
        """Return the term that is this statistic of a core, if it stands alone and no reader of it comes too early."""
        if not statistic.fits(dict(core.attrs)):
            return None
        inputs = statistic.inputs(core.inputs, len(REGISTRY[statistic.op].operands))
        for term in self.statistics.get((statistic.op, tuple(self.terms.base[i] for i in inputs)), []):
            wanted, alone = dict(term.attrs), self.of[term.id]
            joined = alone is not None and (alone.root, alone.members) != (term.id, [term.id])
            early = any(self._place_of(e) <= host.place for e in self.needs.edges[term.id])
            if not joined and not early and statistic.attrs(dict(core.attrs), wanted) == wanted:
                return term
        return None

    def _side_of(self, reader: int) -> Side:
        core = isinstance(self.terms.terms[reader].op.kernel, _CORES)
        return "prologue" if core else self.side[reader]

    def _misfit(self, term: Term, host: TermCluster, side: Side, results: int = 0) -> tuple[str, str] | None:
        if isinstance(term.op.kernel, _CORES) and (host.core >= 0 or side == "prologue"):
            return "kernel", f"its reader's dispatch has a core already: {self._op(host.core)}"
        if not isinstance(term.op.kernel, (*_CORES, Elementwise)):
            return "kernel", "it is filled once"
        if len(host.prologue) + len(host.epilogue) >= MAX_CHAIN:
            return "length", f"the chain has {MAX_CHAIN} ops already"
        reads = {*host.reads, *(t for t, _, _ in operand_terms(term, self.terms))} - {term.id}
        kernels = (self.terms.terms[t].op.kernel for t in (term.id, host.core) if t >= 0)
        reads |= {-1 for kernel in kernels if isinstance(kernel, Shader) and kernel.scalars}  # one more binding
        count = len(reads) + (results or 1 + len(host.statistics) + len(host.stored))
        if count > self.limits.storage_buffers:
            return "bindings", f"{count} buffers in one dispatch, wanted at most {self.limits.storage_buffers}"
        return None

    def _missed(self, term: Term, readers: list[TermEdge], reason: str, detail: str) -> MissedFusion:
        reader = next(e.reader for e in reversed(readers) if e.chain)
        return MissedFusion(f"{display(self._op(term.id))}+{display(self._op(reader))}", term.node, reason, detail)

    def _op(self, term: int) -> str:
        return self.terms.terms[term].op.name

    def _node(self, term: int) -> int:
        return self.terms.terms[term].node


def _is_chain(cluster: TermCluster) -> bool:
    """Return whether a cluster has no core, and results only of its chain."""
    return cluster.core < 0 and not cluster.ranges and not cluster.statistics


def _statistics(terms: Terms, needs: Needs) -> dict[tuple[str, tuple[int, ...]], list[Term]]:
    """Return the terms that the kernel of another op may compute as a statistic, by op and operands."""
    kernels = {term.op.name: term.op.kernel for term in terms.terms}
    names = {s.op for k in kernels.values() if isinstance(k, Shader) for s in k.statistics}
    found: dict[tuple[str, tuple[int, ...]], list[Term]] = {}
    for term in terms.terms if names else ():
        if needs.needed[term.id] and term.op.name in names:
            found.setdefault((term.op.name, tuple(terms.base[i] for i in term.inputs)), []).append(term)
    return found


def in_ranges(terms: Terms, needs: Needs, limits: Limits) -> dict[int, list[int]]:
    """Return the products that are read in column ranges alone (few enough for a dispatch), with these in order."""
    found = {t.id: _ranges_of(t, terms, needs) for t in terms.terms if isinstance(t.op.kernel, Contraction)}
    return {product: ranges for product, ranges in found.items() if 0 < len(ranges) <= limits.storage_buffers - 2}


def _ranges_of(term: Term, terms: Terms, needs: Needs) -> list[int]:
    readers = {e.reader: terms.terms[e.reader] for e in needs.edges[term.id]}
    if needs.protected[term.id] or any(t.op.packing != "columns" or t.inputs != (term.id,) for t in readers.values()):
        return []
    return sorted(readers, key=lambda id: (dict(readers[id].attrs)["start"], id))


def product_of(core: Term, terms: Terms) -> Matmul:
    """Return the product that a contraction computes."""
    kernel = core.op.kernel
    assert isinstance(kernel, Contraction)  # the caller has looked
    (m, n), shape = core.type.shape, terms.terms[core.inputs[0]].type.shape
    return Matmul(m, n, shape[1] if kernel.a == "mk" else shape[0], kernel.a, kernel.b, core.node)


def is_leaf(term: Term) -> bool:
    """Return whether no dispatch of the step writes a term's buffer."""
    return isinstance(term.op.kernel, Leaf)
