"""The record of an op, the registry, and the decorators that fill it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, get_args, get_origin

import numpy as np

from gdlab.base.errors import ArgumentError, DTypeError, GraphError, ShapeError
from gdlab.base.kinds import is_several, takes
from gdlab.base.memo import remember
from gdlab.base.types import FORMATS, HALVES, Array, DType, TensorType, broadcast_shapes, f32, u32
from gdlab.base.words import near_hint
from gdlab.graph import Attrs, AttrVar, Graph, Node, PatternGraph, Value, capture, current_graph, place, scratch, whole
from gdlab.op.extent import Follows
from gdlab.op.kernel import FAMILY, Alias, Contraction, Family, Kernel, Leaf, Shader
from gdlab.op.parameter import (
    WANTED_VALUE,
    Extended,
    Parameter,
    Refused,
    Values,
    as_f32,
    coerce,
    is_number,
    parameters_of,
    shown,
    signature_of,
)
from gdlab.op.sample import Bad, Sample

Grad = Value | Callable[[], Value] | None
Grads = tuple[Grad, ...]
Safety = Literal["exact", "rounding", "reassoc", "approx"]
Phase = Literal["forward", "full", "inference"]
ALL_PHASES: tuple[Phase, ...] = ("forward", "full", "inference")


NoGrad = Literal["ends", "stops", "refuses"]

# `vjp(g, out, *inputs, **attrs)`: one entry per input: a Value, a function that builds one when needed, or None
VJP = Callable[..., Grads]


@dataclass(frozen=True)
class IndexOperand:
    """The operand that numbers rows of something, and the rule (operand types, attributes) -> what its elements must
    stay below; whether they choose the expert of a token, which a tape checks even where they were computed."""

    operand: int
    bound: Callable[[Sequence[TensorType], Mapping[str, Any]], int]
    experts: bool = False


class Properties(TypedDict, total=False):
    """The properties that passes ask of an op, as `@op` and `@fused` take them (documented in `Op`)."""

    opaque: bool
    reads_halves: bool
    stores: bool
    reads_blocks: int
    block_axis: int
    saved: bool
    own_buffer: bool
    packing: Literal["storage", "columns"]
    indices: IndexOperand
    one_hot: int
    attention: Literal["result", "statistics"]
    commutative: bool
    passes_factor: bool
    typed_as_first: bool
    follows: Follows
    selects: bool
    by_rows: bool
    by_position: str


@dataclass(eq=False)
class Op:
    """One operation and everything that is known of it. Calling it appends a node: the only place where ops append.

    `no_grad` says why there is no gradient: the path "ends" (the derivative is 0 almost everywhere), the op "stops" it
    on purpose, or it "refuses" to be differentiated. What passes ask of an op:

    * `opaque`: nothing is computed or rewritten through it (random ops and updates always are);
    * `reads_halves`: its kernel decodes operands of 16 bits (f16, bf16) itself, as those of contractions do;
    * `stores`: its result has a storage dtype, which its kernel writes as words; others compute f32 from such operands;
    * `reads_blocks`: the operand that may lie in blocks along its axis `block_axis` (0: q4, q8; −1: formats of ggml);
    * `saved`: a value of the forward pass that the backward pass reads is an activation that has to be kept;
    * `own_buffer`: its value stays readable in a buffer of its own, as that of an output;
    * `packing`: "storage" is, of parameters that nothing else reads, the tensor in which they lie; "columns" is a range
      of a product, which a product with only such readers writes instead of itself;
    * `indices`: the operand that numbers rows of something;
    * `one_hot`: the operand whose rows are weights of classes (labels): made-up data is one-hot there;
    * `attention`: it computes the "result" of softmax attention to its first two operands q and k, or the "statistics"
      that the derivative keeps of it (the logarithms of the sums);
    * `commutative`: rules match it with its two operands in both orders;
    * `passes_factor`: a rule may take a factor of an operand out of its result;
    * `typed_as_first`: its type is that of its first operand, and rules make it where only one of them is known;
    * `follows`: which axes of its result follow a bucket axis of its operands, and what is masked there, where neither
      kernel nor body tells;
    * `selects`: its result is operand 1 where operand 0 is not 0, elsewhere operand 2, or 0 where there is none;
    * `by_rows`: row i of its result is made of row i of its first operand, and of the others whole, as of a product;
    * `by_position`: the op that does the same for rows at positions of their own, where it takes the position of one;
      caches that it reads or writes then lie one behind the other.
    """

    name: str
    rule: Callable[..., Any]  # the shape rule; of a fused op its body
    parameters: tuple[Parameter, ...]
    family: Family
    kind: Literal["primitive", "composite", "private"] = "primitive"
    broadcasts: bool = False
    any_dtype: bool = False
    numpy: Callable[..., Any] | None = None
    kernel: Kernel | None = None
    samples: tuple[Sample, ...] = ()
    bad: tuple[Bad, ...] = ()
    no_grad: NoGrad | None = None
    gradient: VJP | None = None
    body: Callable[..., Value] | None = None
    label: str = ""
    safety: Safety = "rounding"
    phases: tuple[Phase, ...] = ALL_PHASES
    labels: Mapping[str, str] = field(default_factory=dict)  # by value of the Literal attribute, where they differ
    check: Callable[..., None] | None = None  # of a fused op: refuses operands that its body would let pass
    # (*operands, or the graph where there are none, **attrs) -> attrs as the node stores them
    canonical: Callable[..., dict[str, Any]] | None = None
    # an operand that may be given last or by name, and what a call with it builds (of it, the operands, the attributes)
    optional: tuple[str, Callable[..., Value]] | None = None
    opaque: bool = False
    reads_halves: bool = False
    stores: bool = False
    reads_blocks: int | None = None
    block_axis: int = 0
    saved: bool = True
    own_buffer: bool = False
    packing: Literal["storage", "columns"] | None = None
    indices: IndexOperand | None = None
    one_hot: int | None = None
    attention: Literal["result", "statistics"] | None = None
    commutative: bool = False
    passes_factor: bool = False
    typed_as_first: bool = False
    follows: Follows | None = None
    selects: bool = False
    by_rows: bool = False
    by_position: str = ""

    def __post_init__(self) -> None:
        self.__name__, self.__doc__ = self.name, self.rule.__doc__
        self.__signature__ = signature_of(self.rule)
        self._known: dict[Hashable, tuple[tuple[int, ...], Attrs, TensorType]] = {}
        # what is known of calls with values alone, by the identities of their types, which each entry holds
        self._near: dict[tuple[int, ...], tuple[tuple[int, ...], Attrs, TensorType, object]] = {}
        self.operands = tuple(p.name for p in self.parameters if p.operand)
        self.variadic = any(p.annotation == Values for p in self.parameters)
        self.attributes = tuple(p for p in self.parameters if not p.operand)
        self._floats = tuple(p for p in self.attributes if p.annotation in (float, Extended))
        self.opaque = self.opaque or self.family in ("random", "update")
        self.reads_halves = self.reads_halves or self.family == "contraction"
        self.by_rows = self.by_rows or isinstance(self.kernel, Contraction) and self.kernel.a == "mk"

    def __repr__(self) -> str:
        return f"<op {self.name}{self.__signature__}>"

    def vjp(self, rule: VJP) -> VJP:
        """Decorator: the gradient of this op."""
        if not callable(rule):
            raise GraphError(f"op {self.name}", "vjp", shown(rule), "a function (g, out, operands…)")
        self.gradient = rule
        return rule

    def __call__(self, *args: Any, graph: Graph | None = None, **kwargs: Any) -> Value:
        near = _identities(args) if graph is None and not kwargs else ()
        known = self._near.get(near) or self._found(near, args, kwargs, graph)
        if known is None:
            return self._append(_signature(args, kwargs) if graph is None else None, *args, graph=graph, **kwargs)
        order, attrs, type, _ = known
        home: Graph = args[order[0]].graph
        if home.sealed:
            return self._append(None, *args, **kwargs)
        try:
            source = capture(True) if home.records_sources else ()
            return home.append(self.name, tuple([args[i].id for i in order]), attrs, type, source=source)
        except BaseException as error:
            place(error, home)
            raise

    def _found(
        self, near: tuple[int, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any], graph: Graph | None
    ) -> tuple[tuple[int, ...], Attrs, TensorType, object] | None:
        """Return what is known of a call by its signature; one with values alone is found by identities from now on."""
        known = self._known.get(_signature(args, kwargs)) if graph is None else None
        if known is None:
            return None
        made = (*known, [a.type for a in args] if near else None)
        if near:
            if len(self._near) >= KNOWN_CALLS:
                self._near.clear()
            self._near[near] = made
        return made

    @whole
    def _append(self, key: Hashable | None, /, *args: Any, graph: Graph | None = None, **kwargs: Any) -> Value:
        """Bind, check and append; remember what the call with this key has come to."""
        given = args
        if isinstance(self.kernel, Leaf):
            return self._leaf(*args, graph=graph, **kwargs)
        if self.optional is not None:
            name, build = self.optional
            more = args if len(args) == len(self.parameters) + 1 else (*args, kwargs.pop(name, None))
            args = more[:-1]
            if more[-1] is not None:
                operands, attrs = self._bind(args, kwargs)
                exact = self._home(operands, graph).exact
                return build(more[-1], *operands, **(attrs if exact else self.rounded(attrs)))
        operands, attrs = self._bind(args, kwargs)
        home = self._home(operands, graph)
        attrs = attrs if home.exact else self.rounded(attrs)
        if graph is not None and graph is not home:
            raise GraphError(self.name, "graph", "another graph", "that of the operands")
        inputs = self._operands(home, operands)
        if self.canonical is not None and not isinstance(home, PatternGraph):
            attrs = self._asking(partial(self._stored, home), inputs, attrs)
        type = home.untyped if isinstance(home, PatternGraph) else self.infer(inputs, attrs)
        stored = tuple(sorted(attrs.items()))
        if key is not None and self.family != "random":  # a draw is numbered by its graph
            self._remember(key, given, inputs, stored, type)
        return home.append(
            self.name,
            tuple(v.id for v in inputs),
            stored,
            type,
            source=capture(True) if home.records_sources else (),
        )

    def _leaf(self, *args: Any, **kwargs: Any) -> Value:
        """Call the rule of a leaf; one that does not take these arguments says which it takes."""
        try:
            return self.rule(*args, **kwargs)  # type: ignore[no-any-return]
        except TypeError as error:
            if takes(self.rule, *args, **kwargs):
                raise
            given = ", ".join([*map(shown, args), *(f"{n}={shown(v)}" for n, v in kwargs.items() if n != "graph")])
            raise ArgumentError(self.name, "arguments", f"({given})", str(self.__signature__)) from error

    def _home(self, operands: Sequence[Any], graph: Graph | None) -> Graph:
        """The graph of the operands, else the one given or the current one."""
        return next((v.graph for v in operands if isinstance(v, Value)), None) or current_graph(self.name, graph)

    def rounded(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Round the numbers in attributes to float32, as all graphs have them but exact ones."""
        return attrs | {p.name: as_f32(self.name, p, attrs[p.name]) for p in self._floats} if self._floats else attrs

    def _remember(
        self, key: Hashable, args: tuple[Any, ...], inputs: Sequence[Value], attrs: Attrs, type: TensorType
    ) -> None:
        """Keep attributes and type of a call that reads its operands as they are given."""
        order = tuple(i for i, a in enumerate(args) if isinstance(a, Value))
        if len(order) == len(inputs) and all(args[i] is v for i, v in zip(order, inputs, strict=True)):
            if len(self._known) >= KNOWN_CALLS:
                self._known.clear()
            self._known[key] = order, attrs, type

    def infer(self, inputs: Sequence[Value], attrs: Mapping[str, Any]) -> TensorType:
        """Return the type of the result, or raise the error that says what this op wants."""
        result = self._asking(self._infer, inputs, attrs)
        return result if isinstance(result, TensorType) else TensorType(result)

    def _stored(self, home: Graph, *inputs: Value, **attrs: Any) -> dict[str, Any]:
        assert self.canonical is not None  # asked only where there is one
        return self.canonical(*(self.spread(inputs) if self.operands else (home,)), **attrs)

    def _infer(self, *inputs: Value, **attrs: Any) -> Any:
        for i, v in enumerate(inputs):
            if not self._takes(v.type.dtype, i):
                raise Refused(_refused(v.type.dtype), error=DTypeError)
        if self.check is not None:
            self.check(*inputs, **attrs)
        if self.body is None:
            result = self.rule(*self.spread(inputs), **attrs)
            narrow = isinstance(result, TensorType) and result.dtype.is_storage
            kept = self.stores or isinstance(self.kernel, Alias)
            return TensorType(result.shape) if narrow and not kept else result  # what is computed from 16 bits is f32
        return self.trace(tuple(v.type for v in inputs), tuple(sorted(attrs.items()))).outputs[0].type

    @property
    def writes_in_place(self) -> bool:
        """Whether the plan may write its result over operand 1, where that is a parameter: a cache."""
        return isinstance(self.kernel, Shader) and self.kernel.in_place is not None

    def _takes(self, dtype: DType, operand: int) -> bool:
        """Whether this operand may have this dtype; a fused op leaves storage dtypes to its body."""
        if dtype is f32 or (dtype is u32 and self.any_dtype):
            return True
        if not dtype.is_storage or self.body is not None:
            return dtype.is_storage
        if not dtype.in_blocks:
            return self.reads_halves
        return operand == self.reads_blocks and FORMATS[dtype].axis == self.block_axis

    def operand_names(self, count: int) -> tuple[str, ...]:
        """Return the names of `count` operands: `values0`, `values1`, … of an op that takes any number."""
        return tuple(f"{self.operands[0]}{i}" for i in range(count)) if self.variadic else self.operands

    def spread(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Return operands as the rule, the reference and the gradient take them: of a variadic op all in one tuple."""
        return (tuple(operands),) if self.variadic else tuple(operands)

    def _asking(self, rule: Callable[..., Any], inputs: Sequence[Value], attrs: Mapping[str, Any]) -> Any:
        """Return the answer of `rule`; its refusal becomes the error that names the call and what was given."""
        try:
            return rule(*inputs, **attrs)
        except Refused as refused:
            given = refused.given if refused.given is not None else " and ".join(str(v.type) for v in inputs) or "none"
            error = refused.error(self.name, refused.what, given, refused.wanted)
            error.operands = tuple(inputs)
            raise error from None

    def trace(self, types: tuple[TensorType, ...], attrs: Attrs, exact: bool = False) -> Graph:
        """Return the body of a fused op on operands of these types: a graph whose first nodes are `var`s. `exact`: its
        numbers keep all digits."""
        return _trace(self, types, attrs, exact)

    def variants(self) -> tuple[tuple[dict[str, Any], str], ...]:
        """Return the rules that a fused op makes, as (attributes to fix, label): one for each value of a Literal
        attribute."""
        if self.body is None or not self.label:
            return ()
        choice = next((p for p in self.attributes if get_origin(p.annotation) is Literal), None)
        if choice is None:
            return (({}, self.label),)
        return tuple(({choice.name: v}, self.labels.get(v, self.label)) for v in get_args(choice.annotation))

    def pattern(self, **fixed: Any) -> PatternGraph:
        """Return the body of a fused op as a pattern; attributes are `AttrVar`s, but for those in `fixed`."""
        assert self.body is not None  # only fused ops have patterns
        with PatternGraph() as g:
            operands = [g.append("var", (), (("name", name),), g.untyped) for name in self.operands]
            g.set_outputs(self.body(*operands, **{p.name: AttrVar(p.name) for p in self.attributes} | fixed))
        return g

    def reference(self, arrays: Sequence[Array], attrs: Mapping[str, Any], exact: bool = False) -> Array:
        """Return the value in float64: the NumPy meaning, or of a fused op the meaning of its body, whose numbers are
        those of kernels (float32), or where `exact` those that are written."""
        if self.numpy is not None:
            with np.errstate(all="ignore"):
                return np.asarray(self.numpy(*self.spread(arrays), **attrs))
        if self.body is None:
            raise GraphError(self.name, "reference", "numpy=None and no body", "the meaning of the op in NumPy")
        types = tuple(TensorType(a.shape, u32 if a.dtype == u32.numpy else f32) for a in arrays)
        graph = self.trace(types, tuple(sorted(attrs.items())), exact)
        values: list[Array] = list(arrays)
        for node in graph.nodes[len(arrays) :]:
            values.append(REGISTRY[node.op].reference([values[i] for i in node.inputs], dict(node.attrs), exact))
        return values[graph.output_ids[0]]

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        args = self._packed(args)
        if len(args) > len(self.parameters):
            raise ArgumentError(self.name, "arguments", f"{len(args)}", f"{len(self.parameters)}: {self.__signature__}")
        bound = dict(zip((p.name for p in self._positions(args)), args, strict=False))
        for name, value in kwargs.items():
            if name in bound or name not in {p.name for p in self.parameters}:
                raise ArgumentError(self.name, "argument", name, f"{self.__signature__}, each once")
            bound[name] = value
        operands, attrs = [], {}
        for p in self.parameters:
            if p.name not in bound and p.default is inspect.Parameter.empty:
                raise ArgumentError(self.name, "argument", f"no {p.name}", str(self.__signature__))
            value = bound.get(p.name, p.default)
            if p.operand:
                operands += _several(self.name, p.name, value) if self.variadic else [value]
            else:
                attrs[p.name] = coerce(self.name, p, value)
        return operands, attrs

    def _packed(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """`x.reshape(6, 4)` as `x.reshape((6, 4))`: where the last parameter takes ints, those that follow each
        other."""
        last = len(self.parameters) - 1
        if len(args) <= last + 1 or self.parameters[last].annotation != tuple[int, ...]:
            return args
        loose = args[last:]
        return (*args[:last], loose) if all(isinstance(v, (int, np.integer)) for v in loose) else args

    def _positions(self, args: tuple[Any, ...]) -> tuple[Parameter, ...]:
        """The parameters that positional arguments fill: of an op that takes no numbers as operands a value fills the
        next operand and anything else the next attribute, so that `rope_positions(x, theta, positions, head_dim)` may
        be called in the order of the formula."""
        strays = any(isinstance(a, Value) and not p.operand for a, p in zip(args, self.parameters, strict=False))
        if not strays or self.broadcasts or self.variadic:
            return self.parameters
        operands, attributes = (iter([p for p in self.parameters if p.operand is kind]) for kind in (True, False))
        found = [next(operands if isinstance(a, Value) else attributes, None) for a in args]
        return self.parameters if None in found else tuple(p for p in found if p is not None)

    def _operands(self, home: Graph, given: list[Any]) -> list[Value]:
        """Operands as values of one graph: numbers become fills, and unequal shapes visible `broadcast_to` nodes,
        those of 16 bits visible `to_f32` ones."""
        given = [home.operand(v) for v in given]
        for v in given:
            if not isinstance(v, Value) and not (self.broadcasts and is_number(v)):
                raise ArgumentError(self.name, "operand", shown(v), WANTED_VALUE)
        values = [home.own(v, self.name) for v in given if isinstance(v, Value)]
        if given and not values:
            raise ArgumentError(self.name, "operands", "numbers alone", "a value of a graph")
        pattern = isinstance(home, PatternGraph)
        if not pattern and not self.reads_halves and any(v.type.dtype in HALVES for v in values):
            given = [REGISTRY["to_f32"](v) if isinstance(v, Value) and v.type.dtype in HALVES else v for v in given]
            values = [v for v in given if isinstance(v, Value)]
        if not self.broadcasts:
            return values
        fill, spread = REGISTRY["full"], REGISTRY["broadcast_to"]
        if pattern:  # no shapes here: a number is a `full` of any shape
            return [v if isinstance(v, Value) else fill(AttrVar("shape"), v, graph=home) for v in given]
        shapes = [v.shape for v in values]
        common = shapes[0] if all(s == shapes[0] for s in shapes) else broadcast_shapes(shapes)
        if common is None:
            types = " and ".join(str(v.type) for v in values)
            error = ShapeError(self.name, "operands", types, "shapes that broadcast to one")
            error.operands = tuple(values)
            raise error
        operands = [v if isinstance(v, Value) else fill(common, v, graph=home) for v in given]
        return [v if v.shape == common else spread(v, common) for v in operands]


def _refused(dtype: DType) -> str:
    if dtype in (DType.q4, DType.q8):
        return f"f32 operands: {dtype} may only be operand b of matmul, because its blocks run along k"
    if dtype.in_blocks:
        readers = "operand b of matmul_bt and grouped_matmul_bt, and the table of embedding"
        return f"f32 operands: {dtype} may only be {readers}"
    return "f32 operands"


KNOWN_CALLS = 1024  # signatures that an op remembers
_PLAIN = (int, str, bool, type(None))


def _identities(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the identities of the types of values of one graph; () where there is anything else."""
    home, parts = None, []
    for a in args:
        if not isinstance(a, Value) or (home is not None and a.graph is not home):
            return ()
        home = a.graph
        parts.append(id(home._nodes[a.id].type))
    if home is None or not home.typed:
        return ()
    if home.exact:
        parts.append(0)
    return tuple(parts)


def _signature(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable | None:
    """Return what attributes and type of a call follow from: operand types of one graph and plain attributes. None
    where there is anything else."""
    home, parts = None, list[Hashable]()
    for a in args:
        if isinstance(a, Value):
            if home is None:
                home = a.graph
            elif a.graph is not home:
                return None
            parts.append(home._nodes[a.id].type)
        elif not _plain(a, parts):
            return None
    for name, a in kwargs.items():
        parts.append(name)
        if not _plain(a, parts):
            return None
    if home is None or not home.typed:
        return None
    if home.exact:
        parts.append("exact")
    return tuple(parts)


def _plain(value: Any, parts: list[Hashable]) -> bool:
    """Append what tells a plain attribute from all others (1, 1.0 and True are equal, and so are both zeros)."""
    kind = type(value)
    if kind in _PLAIN:
        parts.append((kind, value))
    elif kind is float:
        parts.append((kind, value.hex()))
    elif kind is tuple:
        parts.append((kind, len(value)))
        return all(_plain(v, parts) for v in value)
    else:
        return False
    return True


REGISTRY: dict[str, Op] = {}
COMMUTATIVE: set[str] = set()  # names of the ops in it that are


def public_ops() -> Iterator[Op]:
    """Return the ops that people call, by name."""
    return (REGISTRY[n] for n in sorted(REGISTRY) if REGISTRY[n].kind != "private")


def ops_that(holds: Callable[[Op], object], nodes: Iterable[Node]) -> frozenset[str]:
    """Return the names of the ops of these nodes of whose record `holds` is true: it is asked once per op."""
    return frozenset(name for name in {n.op for n in nodes} if name in REGISTRY and holds(REGISTRY[name]))


def _several(where: str, name: str, given: Any) -> list[Any]:
    """The operands that a sequence holds."""
    if isinstance(given, Value) or not isinstance(given, Sequence) or not given:
        raise ArgumentError(where, name, f"{type(given).__name__} {given!r:.60}", "a list of at least one value")
    return list(given)


def _check_parts(rule: Any, kernel: Any, samples: Any, optional: bool = False) -> None:
    """Raise `GraphError` for parts of which no record of an op can be made."""
    if not inspect.isfunction(rule):
        raise GraphError("op", "function", shown(rule), "def name(x: Value) -> TensorType")
    where = f"op {rule.__name__}"
    if type(kernel) not in FAMILY and not (optional and kernel is None):
        raise GraphError(where, "kernel", shown(kernel), f"one of {', '.join(kind.__name__ for kind in FAMILY)}")
    if not is_several(samples) or not all(isinstance(sample, Sample) for sample in samples):
        raise GraphError(where, "samples", shown(samples), "several of Sample(shapes…)")


def _check_patterns(made: Op) -> None:
    """Trace the body as the patterns of its rules; raise its error, or `GraphError` for one that holds no op."""
    for fixed, _ in made.variants():
        pattern = made.pattern(**fixed)
        if pattern.nodes[pattern.output_ids[0]].op == "var":
            raise GraphError(f"op {made.name}", "body", "its operand", "at least one op")
        read = {i for node in pattern for i in node.inputs}
        if unread := [name for i, name in enumerate(made.operands) if i not in read]:
            raise GraphError(f"op {made.name}", "body", f"no use of {', '.join(unread)}", "one that reads all operands")


def op(
    *,
    numpy: Callable[..., Any] | None,
    kernel: Kernel,
    samples: Sequence[Sample],
    family: Family | None = None,
    kind: Literal["primitive", "private"] = "primitive",
    broadcasts: bool = False,
    any_dtype: bool = False,
    bad: Sequence[Bad] = (),
    no_grad: NoGrad | None = None,
    canonical: Callable[..., dict[str, Any]] | None = None,
    **properties: Unpack[Properties],
) -> Callable[[Callable[..., Any]], Op]:
    """Decorator: the function is the shape rule (result: TensorType or shape) and becomes the builder of a new op.

    `canonical(*operands, **attrs)` gives the attributes as the node stores them (negative axes counted from the front),
    so that equal calls make equal nodes; the shape rule sees only these.
    """

    def register(rule: Callable[..., Any]) -> Op:
        _check_parts(rule, kernel, samples)
        return _register(
            Op(
                rule.__name__, rule, parameters_of(rule), family or FAMILY[type(kernel)], kind, broadcasts, any_dtype,
                numpy, kernel, tuple(samples), tuple(bad), no_grad, canonical=canonical, **properties,
            )
        )  # fmt: skip

    return register


def leaf(*, saved: bool) -> Callable[[Callable[..., Value]], Op]:
    """Decorator: a leaf. The function appends the node itself; the record gives docs, family and completion."""

    def register(rule: Callable[..., Value]) -> Op:
        parameters = parameters_of(rule)
        return _register(Op(rule.__name__, rule, parameters, "leaf", kernel=Leaf(), no_grad="ends", saved=saved))

    return register


def fused(
    *,
    label: str | Mapping[str, str],
    samples: Sequence[Sample],
    kernel: Kernel | None = None,
    numpy: Callable[..., Any] | None = None,
    family: Family | None = None,
    private: bool = False,
    bad: Sequence[Bad] = (),
    safety: Safety = "rounding",
    phases: tuple[Phase, ...] = ALL_PHASES,
    check: Callable[..., None] | None = None,
    any_dtype: bool = False,
    **properties: Unpack[Properties],
) -> Callable[[Callable[..., Value]], Op]:
    """Decorator: the function decomposes a new op; from it follow reference, shape, default gradient and rule.

    `label` names the rewrite body → op in reports (a mapping: by the value of the op's Literal attribute); an empty
    label makes no rule. The body of an op with a rule reads no shapes and does not broadcast, because it is traced as
    a pattern too. `check(*operands, **attrs)` refuses what the body would let pass, such as shapes that broadcast.
    Without a `kernel` the op is lowered as its body.
    """

    def register(body: Callable[..., Value]) -> Op:
        _check_parts(body, kernel, samples, optional=True)
        if not isinstance(label, (str, Mapping)):
            raise GraphError(f"op {body.__name__}", "label", shown(label), "a str, or a mapping to some")
        chosen = family or (FAMILY[type(kernel)] if kernel is not None else "elementwise")
        labels = {} if isinstance(label, str) else dict(label)
        first = label if isinstance(label, str) else next(iter(labels.values()))
        made = Op(
            body.__name__, body, parameters_of(body), chosen, "private" if private else "composite", False, any_dtype,
            numpy, kernel, tuple(samples), tuple(bad), None, None, body, first, safety, phases, labels, check,
            **properties,
        )  # fmt: skip
        if not body.__module__.startswith("gdlab."):  # a body that is no pattern would stop every `optimize`
            _check_patterns(made)
        return _register(made)

    return register


def unregister(name: str) -> None:
    """Remove an op from the registry (ops of gdlab itself included: for tests and for trying things out)."""
    REGISTRY.pop(name, None)
    COMMUTATIVE.discard(name)


def _register(new: Op) -> Op:
    old = REGISTRY.get(new.name)
    if old is not None and old.rule.__module__.startswith("gdlab.") and old.rule.__module__ != new.rule.__module__:
        raise GraphError("op", "name", repr(new.name), "a name that no op of gdlab has")
    REGISTRY[new.name] = new
    (COMMUTATIVE.add if new.commutative else COMMUTATIVE.discard)(new.name)
    return new


# methods of a Value ---------------------------------------------------------------------------------------------------
def method_of(value: Value, name: str) -> Callable[..., Any]:
    """Return the op `name` with its first operand bound; `AttributeError` for a name that is no op on values."""
    op = REGISTRY.get(name)
    if op is None or not op.operands or op.kind == "private":
        near = near_hint(name, [] if name.startswith("_") else value_dir(value))
        raise AttributeError(f"Value has no method {name!r}; ops are listed by `python -m gdlab ops`{near}")
    return partial(op, value)


def value_dir(value: Value) -> list[str]:
    """Return the attributes of a value, the ops among them."""
    return [*object.__dir__(value), *(op.name for op in public_ops() if op.operands)]


_NODE_BYTES = 1500  # of a traced body, its values and its place in the cache


def _traced_bytes(body: Graph) -> int:
    return _NODE_BYTES * (len(body) + 2)


@remember(512 << 10, _traced_bytes)
def _trace(op: Op, types: tuple[TensorType, ...], attrs: Attrs, exact: bool) -> Graph:
    assert op.body is not None  # only fused ops are traced
    with scratch() as g, g.silent():
        g.exact = exact
        operands = [g.append("var", (), (("name", n),), t) for n, t in zip(op.operands, types, strict=True)]
        g.set_outputs(op.body(*operands, **dict(attrs)))
    return g
