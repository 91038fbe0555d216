"""Turn a graph into terms to lower: composites expanded, equal work merged, operands followed to their storage."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gdlab.base.errors import CompileError
from gdlab.base.types import Shape, TensorType, f32
from gdlab.graph import Attrs, Graph, Node, attrs_key, reachable, scratch
from gdlab.op import REGISTRY, Alias, Axis, Contraction, Elementwise, Fill, Leaf, Movement, Op, Reduction, Shader
from gdlab.op.storage import derived_of, written_in_place
from gdlab.plan.dispatch import Access
from gdlab.plan.expr import evaluate

OPERANDS = 7  # that a kernel can read: 8 storage buffers with the result


@dataclass(slots=True)
class Term:
    """One operation of the lowered graph. `nodes` are the graph's nodes it works for, the composites that were expanded
    included; `via` is the first such composite, or empty."""

    id: int
    op: Op
    inputs: tuple[int, ...]
    attrs: Attrs
    type: TensorType
    nodes: list[int]
    backward: bool
    via: str

    @property
    def node(self) -> int:
        """Id of the first node that the term computes."""
        return self.nodes[0]


@dataclass(frozen=True, slots=True)
class View:
    """A view of a term: element i is element `access(i)` of the term `term`, or `value` (then `term` is −1)."""

    term: int
    access: Access = "full"
    extent: int = 1
    value: float = 0.0

    @property
    def is_literal(self) -> bool:
        """Whether the view needs no storage."""
        return self.term < 0


@dataclass(slots=True)
class Terms:
    """All terms in topological order; for every node its term (−1: dead); for every term its view, its `base` (the term
    whose buffer it shares, aliases followed), and the views of its inputs; for every cache write in place the term of
    the parameter (`states`)."""

    terms: list[Term]
    term_of: list[int]
    views: list[View]
    base: list[int]
    reads: list[tuple[View, ...]]
    states: dict[int, int]

    def is_stored(self, term: int) -> bool:
        """Return whether readers of the term read its own elements: it is no alias, literal or broadcast access."""
        return self.views[term].term == term


def terms_of(graph: Graph, backward: Sequence[bool]) -> Terms:
    """Expand, merge and resolve `graph`; `backward[node]` tells the phase of every node."""
    builder = _TermBuilder()
    live = reachable(graph, graph.output_ids)
    term_of = [-1] * len(graph)
    derived = derived_of(graph)
    inside = {i for id in derived for i in graph.node(id).inputs}
    for node in graph:
        if node.id in inside:
            continue  # it lies in the derived parameter
        if node.id in derived:
            attrs = (("name", derived[node.id].name), ("derived", True))
            term_of[node.id] = builder.add(REGISTRY["parameter"], (), attrs, node.type, node.id, False, "")
        elif live[node.id] or node.op in ("input", "parameter"):
            inputs = tuple(term_of[i] for i in node.inputs)
            term_of[node.id] = builder.add(_op_of(node), inputs, node.attrs, node.type, node.id, backward[node.id], "")
    views: list[View] = []
    base: list[int] = []
    for term in builder.terms:
        views.append(_view(term, builder.terms, views))
        aliased = isinstance(term.op.kernel, Alias) or (
            isinstance(term.op.kernel, Movement) and views[-1].access == "full" and views[-1].term not in (term.id, -1)
        )
        base.append(base[term.inputs[0]] if aliased else term.id)
    reads = [_reads(term, builder.terms, views, base) for term in builder.terms]
    written = written_in_place(graph).items()
    states = {term_of[write]: term_of[parameter] for write, parameter in written if term_of[write] >= 0}
    return Terms(builder.terms, term_of, views, base, reads, states)


def _op_of(node: Node) -> Op:
    op = REGISTRY.get(node.op)
    if op is None:
        raise CompileError("compile", "op", node.op, "an op of the registry", node=node.id)
    return op


class _TermBuilder:
    """A builder of terms; equal ones (op, attributes bit by bit, inputs, type) become one."""

    def __init__(self) -> None:
        self.terms: list[Term] = []
        self.known: dict[tuple[object, ...], int] = {}

    def add(
        self, op: Op, inputs: tuple[int, ...], attrs: Attrs, type: TensorType, node: int, backward: bool, via: str
    ) -> int:
        """Return the term of this operation: an equal one if there is one, else a new one."""
        if op.kernel is None:
            return self.expand(op, inputs, attrs, node, backward, via)
        if op.variadic and len(inputs) > OPERANDS:
            return self.gather(op, inputs, attrs, type, node, backward, via)
        key = (op.name, attrs_key(attrs), inputs, str(type))
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = len(self.terms)
            self.terms.append(Term(found, op, inputs, attrs, type, [node], backward, via))
            return found
        term = self.terms[found]
        if term.nodes[-1] != node:
            term.nodes.append(node)
        term.backward = term.backward and backward
        return found

    def gather(
        self, op: Op, inputs: tuple[int, ...], attrs: Attrs, type: TensorType, node: int, backward: bool, via: str
    ) -> int:
        """Add a variadic (associative) op with more operands than a kernel can read, in several levels."""
        while len(inputs) > OPERANDS:
            parts = [inputs[i : i + OPERANDS] for i in range(0, len(inputs), OPERANDS)]
            inputs = tuple(
                part[0] if len(part) == 1
                else self.add(op, part, attrs, self._result(op, part, attrs), node, backward, via or op.name)
                for part in parts
            )  # fmt: skip
        return self.add(op, inputs, attrs, type, node, backward, via or op.name)

    def _result(self, op: Op, inputs: tuple[int, ...], attrs: Attrs) -> TensorType:
        with scratch() as g, g.silent():
            operands = [g.append("var", (), (("name", f"v{i}"),), self.terms[i].type) for i in inputs]
            return op.infer(operands, dict(attrs))

    def expand(self, op: Op, inputs: tuple[int, ...], attrs: Attrs, node: int, backward: bool, via: str) -> int:
        """Add the body of a composite that has no kernel of its own."""
        if op.body is None:
            raise CompileError("compile", "op", op.name, "an op with a kernel or a body", node=node)
        body = op.trace(tuple(self.terms[i].type for i in inputs), attrs)
        wanted = reachable(body, body.output_ids)
        made = list(inputs)
        for inner in body.nodes[len(inputs) :]:
            operands = tuple(made[i] for i in inner.inputs)
            made.append(
                self.add(_op_of(inner), operands, inner.attrs, inner.type, node, backward, via or op.name)
                if wanted[inner.id]
                else -1
            )
        return made[body.output_ids[0]]


# views: what is read instead of computed ------------------------------------------------------------------------------
def _view(term: Term, terms: list[Term], views: list[View]) -> View:
    return _VIEWS[type(term.op.kernel)](term, terms, views)


def _stored(term: Term, terms: list[Term], views: list[View]) -> View:
    return View(term.id)


def _leaf(term: Term, terms: list[Term], views: list[View]) -> View:
    """View a constant of one element as a literal (WGSL has no literal for a NaN or an infinity)."""
    if term.op.name == "constant" and term.type == TensorType((1,), f32):
        value = float(dict(term.attrs)["data"].array[0])
        if math.isfinite(value):
            return View(-1, value=value)
    return View(term.id)


def _fill(term: Term, terms: list[Term], views: list[View]) -> View:
    return View(-1, value=fill_value(term))


def fill_value(term: Term) -> float:
    """Return the value of every element of a fill."""
    kernel = term.op.kernel
    assert isinstance(kernel, Fill)  # the table sends only fills here
    return float(eval(kernel.expr, {"__builtins__": {}}, dict(term.attrs)))


def _elementwise(term: Term, terms: list[Term], views: list[View]) -> View:
    """View an op on literals alone as a literal, as long as its value is finite."""
    kernel = term.op.kernel
    inputs = [views[i] for i in term.inputs]
    if not inputs or not all(v.is_literal for v in inputs):
        return View(term.id)
    assert isinstance(kernel, Elementwise)  # the table sends only these here
    numbers = {name: value for name, value in term.attrs if isinstance(value, (int, float))}
    text = kernel.text(term.attrs)
    value = evaluate(text, numbers | {n: v.value for n, v in zip(term.op.operands, inputs, strict=True)})
    return View(-1, value=value) if math.isfinite(value) else View(term.id)


def _alias(term: Term, terms: list[Term], views: list[View]) -> View:
    return views[term.inputs[0]]


def _movement(term: Term, terms: list[Term], views: list[View]) -> View:
    source = terms[term.inputs[0]]
    offset, axes, fill = movement_of(term, source.type)
    inner = views[source.id]
    flat = flat_access(offset, axes, term.type.shape, source.type.num_elements)
    if inner.is_literal and (flat is not None or fill == inner.value):
        return inner
    composed = None if flat is None else _compose(*flat, inner)
    return View(term.id) if composed is None else composed


def movement_of(term: Term, operand: TensorType) -> tuple[int, tuple[Axis, ...], float]:
    """Return offset, axes and fill value of a movement of `operand`."""
    kernel = term.op.kernel
    assert isinstance(kernel, Movement)  # the table sends only movements here
    return kernel.map(operand, term.type, dict(term.attrs))


_VIEWS: dict[type, Callable[[Term, list[Term], list[View]], View]] = {
    Leaf: _leaf,
    Alias: _alias,
    Fill: _fill,
    Movement: _movement,
    Elementwise: _elementwise,
    Reduction: _stored,
    Shader: _stored,
    Contraction: _stored,
}


def _reads(term: Term, terms: list[Term], views: list[View], base: list[int]) -> tuple[View, ...]:
    """Return the views through which a pointwise op or a reduction reads its inputs: a smaller operand (a bias) is
    repeated by NumPy's rule."""
    if isinstance(term.op.kernel, Reduction):
        return (views[term.inputs[0]],)
    if not isinstance(term.op.kernel, Elementwise):
        return ()
    size = term.type.num_elements
    return tuple(
        views[i] if terms[i].type.num_elements == size else _repeated(term, terms[i], views[i], base[i])
        for i in term.inputs
    )


def _repeated(term: Term, operand: Term, view: View, base: int) -> View:
    shape = (1,) * (term.type.rank - operand.type.rank) + operand.type.shape
    axes = tuple(Axis(0 if n == 1 else math.prod(shape[i + 1 :])) for i, n in enumerate(shape))
    flat = flat_access(0, axes, term.type.shape, operand.type.num_elements)
    if flat is None:
        given = f"{operand.type} for {term.type}"
        wanted = "a row, a column or a scalar"
        raise CompileError("compile", f"operand of {term.op.name}", given, wanted, node=term.node)
    composed = view if view.is_literal else _compose(*flat, view)
    return View(base, *flat) if composed is None else composed


def flat_access(offset: int, axes: tuple[Axis, ...], shape: Shape, count: int) -> tuple[Access, int] | None:
    """Return the access by flat index that equals a gather of `count` operand elements, or None where there is none."""
    pairs = list(zip(shape, axes, strict=True))
    if offset or any(a.lo or a.step != 1 or (a.extent is not None and a.extent < n) for n, a in pairs):
        return None
    wide = [(n, a.stride) for n, a in pairs if n > 1]
    total = math.prod(shape)
    if all(stride == 0 for _, stride in wide):
        return ("full", 1) if total == count == 1 else ("scalar", 1)
    if _contiguous(wide):
        return ("full", 1) if count == total else None
    lead = next((i for i, (_, stride) in enumerate(wide) if (stride == 0) != (wide[0][1] == 0)), len(wide))
    head, tail = wide[:lead], wide[lead:]
    extent = math.prod(n for n, _ in tail)
    if not tail:
        return None
    if wide[0][1] == 0 and _contiguous(tail):
        return "row", extent
    if all(stride == 0 for _, stride in tail) and _contiguous(head):
        return "column", extent
    return None


def _contiguous(wide: list[tuple[int, int]]) -> bool:
    expected = 1
    for n, stride in reversed(wide):
        if stride != expected:
            return False
        expected *= n
    return True


def _compose(access: Access, extent: int, inner: View) -> View | None:
    """Read `inner` through one more access; None where the two accesses do not combine to one."""
    if access == "full" or inner.access == "scalar":
        return inner
    if access == "scalar":
        return View(inner.term, "scalar")
    if inner.access == "full":
        return View(inner.term, access, extent)
    if inner.access != access:
        return None
    return View(inner.term, access, inner.extent if access == "row" else inner.extent * extent)


