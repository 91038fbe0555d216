"""An op is one record: `@op`, `@fused` make builder, shape rule, reference, gradient, kernel, samples of one function.

The registry here is what everything else is derived from: methods of a `Value`, shape inference, the reference,
autodiff, the e-graph, WGSL, the docs table, completion and the tests.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np

from gdlab.errors import ArgumentError, DTypeError, GdlabError, GraphError, ShapeError
from gdlab.graph import METHODS, Attrs, AttrVar, ConstantData, Graph, Value, capture, current_graph, scratch, whole
from gdlab.types import DType, Shape, TensorType, broadcast_shapes, f16, f32, u32

Array = np.ndarray[Any, Any]
Values = tuple[Value, ...]
Extended = Annotated[float, "or an infinity"]  # annotates attributes such as the bounds of clamp
Grad = Value | Callable[[], Value] | None
Grads = tuple[Grad, ...]
Family = Literal[
    "leaf", "elementwise", "contraction", "reduction", "loss", "movement", "index", "random", "update"
]
Safety = Literal["exact", "rounding", "reassoc", "approx"]
Phase = Literal["forward", "full", "inference"]
ALL_PHASES: tuple[Phase, ...] = ("forward", "full", "inference")


# kernels: what lowering needs to know of an op ------------------------------------------------------------------------
@dataclass(frozen=True)
class Leaf:
    """An input, parameter or constant: a buffer that no dispatch writes."""


@dataclass(frozen=True)
class Alias:
    """The operand's own elements in row-major order: no dispatch."""


@dataclass(frozen=True)
class Elementwise:
    """One WGSL expression over the operand and attribute names of the builder, such as ``"x / (1.0 + exp(-x)) * y"``.

    It is also a Python expression: the cpu device runs the same text (`select(false, true, condition)` as in WGSL).
    """

    expr: str


@dataclass(frozen=True)
class Reduction:
    """A fold over axes: `combine` over all elements, then `finish`, an expression over `acc` and the count `n`."""

    combine: Literal["sum", "max", "min"]
    finish: str = "acc"
    axes: Callable[[TensorType, Mapping[str, Any]], tuple[int, ...]] = lambda t, attrs: attrs["axes"]


@dataclass(frozen=True)
class Work:
    """What a `Shader` has to do on operands of given types: `units` independent pieces of `length` steps each, which
    neighbouring invocations may share (0: one invocation does a piece alone); the constants that its text names (ints
    become `u32`, floats `f32`); floating point operations. With `group` the file brings its own `main`, and `units`
    counts workgroups of `group` invocations. `tables` are constant arrays of u32; `trips` counts the loop turns of one
    invocation, where they may be many; `extents` is what the label shows instead of units and length."""

    units: int
    length: int = 0
    constants: Mapping[str, int | float] = field(default_factory=dict)
    flops: int = 0
    group: int = 0
    tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    trips: int = 0
    extents: str = ""


# (operand types, result type, attributes) -> the work, or None where this form does not fit
WorkRule = Callable[[tuple[TensorType, ...], TensorType, Mapping[str, Any]], Work | None]


@dataclass(frozen=True)
class Shader:
    """A kernel of its own: `file` in `shaders/` (what it may call: `gdlab/kernels/custom.py`), and a NumPy form by that
    name in the cpu device (`gdlab/device/forms/`). `a.wgsl + b.wgsl`: two files that call each other's functions.

    `hardware` is a second form for hardware adapters, used where its `work` is not None, else its own; `fours` is one
    for software adapters, which works by four. `linear`:
    |result| on absolute operands bounds the rounding error (sums of products, selections); `bound(*scales, **attrs)`
    says it of a sum of products with signs of its own, from the error scales of the operands. `scalars` names the
    per-step numbers it reads. `in_place` is the form of a cache write that leaves in the cache what it does not write:
    its operand 1 is then its result, and its work counts what is written.
    """

    file: str
    work: WorkRule
    hardware: Shader | None = None
    linear: bool = False
    scalars: tuple[str, ...] = ()
    bound: Callable[..., Array] | None = None
    in_place: Shader | None = None
    fours: Shader | None = None


def by_rows(passes: int) -> WorkRule:
    """The work of a kernel over rows of the last axis, `passes` operations per element."""

    def work(types: tuple[TensorType, ...], result: TensorType, attrs: Mapping[str, Any]) -> Work:
        width = result.shape[-1]
        rows = result.num_elements // width
        return Work(rows, width, {"ROWS": rows, "WIDTH": width}, passes * result.num_elements)

    return work


@dataclass(frozen=True)
class Contraction:
    """A matrix product; `a` and `b` spell the stored layouts: ``"mk"`` or ``"km"``, ``"kn"`` or ``"nk"``."""

    a: Literal["mk", "km"]
    b: Literal["kn", "nk"]


@dataclass(frozen=True)
class Axis:
    """Along one axis of the result: element i comes from coordinate (i − lo) / step of the operand, where that is a
    whole number in 0 … extent − 1, and steps `stride` elements per coordinate; elsewhere it is the fill value."""

    stride: int
    lo: int = 0
    step: int = 1
    extent: int | None = None


@dataclass(frozen=True)
class Movement:
    """An affine gather: `map(operand type, result type, attrs)` gives (offset, one Axis per result axis, fill)."""

    map: Callable[[TensorType, TensorType, Mapping[str, Any]], tuple[int, tuple[Axis, ...], float]]


@dataclass(frozen=True)
class Fill:
    """Every element is the value of this expression over the attributes; as an operand a literal, without a buffer."""

    expr: str


Kernel = Leaf | Alias | Elementwise | Reduction | Shader | Contraction | Movement | Fill
_FAMILY: dict[type, Family] = {
    Leaf: "leaf",
    Alias: "movement",
    Elementwise: "elementwise",
    Reduction: "reduction",
    Shader: "reduction",
    Contraction: "contraction",
    Movement: "movement",
    Fill: "leaf",
}


# samples: what the tests feed -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Sample:
    """Operands for the tests: `Sample((3, 5), (5,), attrs={"axis": 0}, low=-2, high=2)`.

    Elements are uniform in low … high, or `values` (one entry per operand, None: random). `kink` marks points where the
    derivative jumps: there a central difference means nothing, and `grads`, when given, holds the gradient of the sum
    of the result by convention (one entry per operand, None: no gradient). `integers={0: 7}`: operand 0 is u32, its
    elements are below 7. Shapes of a leaf are its attributes.
    """

    shapes: tuple[Shape, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    low: float = -2.0
    high: float = 2.0
    values: tuple[Any, ...] | None = None
    kink: bool = False
    grads: tuple[Any, ...] | None = None
    integers: Mapping[int, int] = field(default_factory=dict)

    def __init__(
        self,
        *shapes: Shape,
        attrs: Mapping[str, Any] | None = None,
        low: float = -2.0,
        high: float = 2.0,
        values: tuple[Any, ...] | None = None,
        kink: bool = False,
        grads: tuple[Any, ...] | None = None,
        integers: Mapping[int, int] | None = None,
    ) -> None:
        for name, value in (
            ("shapes", shapes), ("attrs", dict(attrs or {})), ("low", low), ("high", high), ("values", values),
            ("kink", kink or grads is not None), ("grads", grads), ("integers", dict(integers or {})),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    def arrays(self, seed: int = 0) -> list[Array]:
        """The operands as float64 arrays that float32 holds exactly; those of indices as uint32."""
        rng = np.random.default_rng(seed)
        out: list[Array] = []
        for i, shape in enumerate(self.shapes):
            given = None if self.values is None else self.values[i]
            if i in self.integers:
                data = rng.integers(self.integers[i], size=shape) if given is None else np.broadcast_to(given, shape)
                out.append(np.asarray(data, np.uint32))
                continue
            data = rng.uniform(self.low, self.high, shape) if given is None else np.broadcast_to(given, shape)
            out.append(np.asarray(data, np.float32).astype(np.float64))
        return out


@dataclass(frozen=True)
class Bad:
    """A call that must be refused: operands as types (`f32[3, 5]` texts), attributes, and a part of the message."""

    types: tuple[str, ...]
    message: str
    attrs: Mapping[str, Any] = field(default_factory=dict)


class Refused(Exception):
    """Raised by a shape rule: says only what it wants. `Op` adds the call and what was given."""

    def __init__(
        self, wanted: str, given: object = None, what: str = "operands", error: type[GdlabError] = ShapeError
    ) -> None:
        self.wanted, self.given, self.what, self.error = wanted, given, what, error
        super().__init__(wanted)


def want(condition: bool, wanted: str, given: object = None, what: str = "operands") -> None:
    """Refuse the call unless `condition`; an attribute (`what` other than operands) is refused with `GraphError`."""
    if not condition:
        about_shape = what.split()[0] in ("operands", "shape", "axes", "axis")  # `axis 0` too
        raise Refused(wanted, given, what, ShapeError if about_shape else GraphError)


# the record -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a builder: an operand (`Value`; `Values`: any number of them, given as one sequence), or an
    attribute with its annotation and default."""

    name: str
    operand: bool
    annotation: Any
    default: Any


# `vjp(g, out, *inputs, **attrs)`: one entry per input: a Value, a function that builds one when needed, or None
VJP = Callable[..., Grads]


@dataclass(eq=False)
class Op:
    """One operation and everything that is known of it. Calling it appends a node: the only place where ops append."""

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
    no_grad: Literal["ends", "refuses"] | None = None
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

    def __post_init__(self) -> None:
        self.__name__, self.__doc__ = self.name, self.rule.__doc__
        self.__signature__ = _signature(self.rule)
        self.operands = tuple(p.name for p in self.parameters if p.operand)
        self.variadic = any(p.annotation == Values for p in self.parameters)
        self.attributes = tuple(p for p in self.parameters if not p.operand)

    def __repr__(self) -> str:
        return f"<op {self.name}{self.__signature__}>"

    def vjp(self, rule: VJP) -> VJP:
        """Decorator: the gradient of this op."""
        self.gradient = rule
        return rule

    @whole
    def __call__(self, *args: Any, graph: Graph | None = None, **kwargs: Any) -> Value:
        if isinstance(self.kernel, Leaf):
            return self.rule(*args, graph=graph, **kwargs)  # type: ignore[no-any-return]
        if self.optional is not None:
            name, build = self.optional
            given = args if len(args) == len(self.parameters) + 1 else (*args, kwargs.pop(name, None))
            args = given[:-1]
            if given[-1] is not None:
                operands, attrs = self._bind(args, kwargs)
                return build(given[-1], *operands, **attrs)
        operands, attrs = self._bind(args, kwargs)
        home = next((v.graph for v in operands if isinstance(v, Value)), None) or current_graph(self.name, graph)
        if graph is not None and graph is not home:
            raise GraphError(self.name, "graph", "another graph", "that of the operands")
        inputs = self._operands(home, operands)
        if self.canonical is not None and not home.pattern:
            attrs = self._asking(partial(self._stored, home), inputs, attrs)
        type = home.value_type if home.pattern else self.infer(inputs, attrs)
        return home.append(
            self.name,
            tuple(v.id for v in inputs),
            tuple(sorted(attrs.items())),
            type,
            source=capture() if home.records_sources else (),
        )

    def infer(self, inputs: Sequence[Value], attrs: Mapping[str, Any]) -> TensorType:
        """The type of the result, or the error that says what this op wants."""
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
            narrow = isinstance(result, TensorType) and result.dtype.is_storage and not isinstance(self.kernel, Alias)
            return TensorType(result.shape) if narrow else result  # what is computed from f16 is f32
        return self.trace(tuple(v.type for v in inputs), tuple(sorted(attrs.items()))).outputs[0].type

    @property
    def _reads_f16(self) -> bool:
        """Whether its kernel decodes f16 itself; to other ops f16 operands come through a visible `to_f32`."""
        return self.family == "contraction" or self.name in READS_F16

    def _takes(self, dtype: DType, operand: int) -> bool:
        """Whether this operand may have this dtype; a fused op leaves storage dtypes to its body."""
        if dtype is f32 or (dtype is u32 and self.any_dtype):
            return True
        if not dtype.is_storage or self.body is not None:
            return dtype.is_storage
        if dtype is f16:
            return self._reads_f16
        return (self.name, operand) in READS_BLOCKS

    def operand_names(self, count: int) -> tuple[str, ...]:
        """The names of `count` operands: `values0`, `values1`, … of an op that takes any number."""
        return tuple(f"{self.operands[0]}{i}" for i in range(count)) if self.variadic else self.operands

    def spread(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Operands as the rule, the reference and the gradient take them: of a variadic op all in one tuple."""
        return (tuple(operands),) if self.variadic else tuple(operands)

    def _asking(self, rule: Callable[..., Any], inputs: Sequence[Value], attrs: Mapping[str, Any]) -> Any:
        """What `rule` answers; its refusal becomes the error that names the call and what was given."""
        try:
            return rule(*inputs, **attrs)
        except Refused as refused:
            given = refused.given if refused.given is not None else " and ".join(str(v.type) for v in inputs) or "none"
            raise refused.error(self.name, refused.what, given, refused.wanted) from None

    def trace(self, types: tuple[TensorType, ...], attrs: Attrs) -> Graph:
        """The body of a fused op on operands of these types: a graph whose first nodes are `var`s."""
        return _trace(self, types, attrs)

    def variants(self) -> tuple[tuple[dict[str, Any], str], ...]:
        """The rules that a fused op makes, as (attributes to fix, label): one for each value of a Literal attribute."""
        if self.body is None or not self.label:
            return ()
        choice = next((p for p in self.attributes if get_origin(p.annotation) is Literal), None)
        if choice is None:
            return (({}, self.label),)
        return tuple(({choice.name: v}, self.labels.get(v, self.label)) for v in get_args(choice.annotation))

    def pattern(self, **fixed: Any) -> Graph:
        """The body of a fused op as a pattern; attributes are `AttrVar`s, but for those in `fixed`."""
        assert self.body is not None  # only fused ops have patterns
        with scratch(pattern=True) as g:
            operands = [g.append("var", (), (("name", name),), g.value_type) for name in self.operands]
            g.set_outputs(self.body(*operands, **{p.name: AttrVar(p.name) for p in self.attributes} | fixed))
        return g

    def reference(self, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> Array:
        """The value in float64: the NumPy meaning, or of a fused op the meaning of its body."""
        if self.numpy is not None:
            with np.errstate(all="ignore"):
                return np.asarray(self.numpy(*self.spread(arrays), **attrs))
        if self.body is None:
            raise GraphError(self.name, "reference", "numpy=None and no body", "the meaning of the op in NumPy")
        types = tuple(TensorType(a.shape, u32 if a.dtype == u32.numpy else f32) for a in arrays)
        graph = self.trace(types, tuple(sorted(attrs.items())))
        values: list[Array] = list(arrays)
        for node in graph.nodes[len(arrays) :]:
            values.append(REGISTRY[node.op].reference([values[i] for i in node.inputs], dict(node.attrs)))
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
                attrs[p.name] = _coerce(self.name, p, value)
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
        f16 visible `to_f32` ones."""
        for v in given:
            if not isinstance(v, Value) and not (self.broadcasts and is_number(v)):
                raise ArgumentError(self.name, "operand", _shown(v), _VALUE)
        values = [home.own(v) for v in given if isinstance(v, Value)]
        if given and not values:
            raise ArgumentError(self.name, "operands", "numbers alone", "a value of a graph")
        if not home.pattern and not self._reads_f16 and any(v.type.dtype is f16 for v in values):
            given = [REGISTRY["to_f32"](v) if isinstance(v, Value) and v.type.dtype is f16 else v for v in given]
            values = [v for v in given if isinstance(v, Value)]
        if not self.broadcasts:
            return values
        fill, spread = REGISTRY["full"], REGISTRY["broadcast_to"]
        if home.pattern:  # no shapes here: a number is a `full` of any shape
            return [v if isinstance(v, Value) else fill(AttrVar("shape"), float(v), graph=home) for v in given]
        shapes = [v.shape for v in values]
        common = shapes[0] if all(s == shapes[0] for s in shapes) else broadcast_shapes(shapes)
        if common is None:
            types = " and ".join(str(v.type) for v in values)
            raise ShapeError(self.name, "operands", types, "shapes that broadcast to one")
        operands = [v if isinstance(v, Value) else fill(common, float(v), graph=home) for v in given]
        return [v if v.shape == common else spread(v, common) for v in operands]


READS_F16 = ("reshape", "stop_gradient", "to_f32", "embedding", "gather")
READS_BLOCKS = (("matmul", 1), ("matmul_grad_a", 1))


def _refused(dtype: DType) -> str:
    if dtype in (DType.q4, DType.q8):
        return f"f32 operands: {dtype} may only be operand b of matmul, because its blocks run along k"
    return "f32 operands"


REGISTRY: dict[str, Op] = {}


def public_ops() -> Iterator[Op]:
    """The ops that people call, by name."""
    return (REGISTRY[n] for n in sorted(REGISTRY) if REGISTRY[n].kind != "private")


def is_number(value: object) -> bool:
    """Whether `value` is a plain real number (a bool is none)."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


_VALUE = "a value of a graph"


def _shown(given: object) -> str:
    """An operand that is none, in one line."""
    shape = f" of shape {list(given.shape)}" if isinstance(given, np.ndarray) and given.shape else f" {given!r:.60}"
    return type(given).__name__ + shape


def _several(where: str, name: str, given: Any) -> list[Any]:
    """The operands that a sequence holds."""
    if isinstance(given, Value) or not isinstance(given, Sequence) or not given:
        raise ArgumentError(where, name, f"{type(given).__name__} {given!r:.60}", "a list of at least one value")
    return list(given)


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
    no_grad: Literal["ends", "refuses"] | None = None,
    canonical: Callable[..., dict[str, Any]] | None = None,
) -> Callable[[Callable[..., Any]], Op]:
    """Decorator: the function is the shape rule (result: TensorType or shape) and becomes the builder of a new op.

    `canonical(*operands, **attrs)` gives the attributes as the node stores them (negative axes counted from the front),
    so that equal calls make equal nodes; the shape rule sees only these.
    """

    def register(rule: Callable[..., Any]) -> Op:
        return _register(
            Op(
                rule.__name__, rule, _parameters(rule), family or _FAMILY[type(kernel)], kind, broadcasts, any_dtype,
                numpy, kernel, tuple(samples), tuple(bad), no_grad, canonical=canonical,
            )
        )  # fmt: skip

    return register


def leaf(rule: Callable[..., Value]) -> Op:
    """Decorator: a leaf. The function appends the node itself; the record gives docs, family and completion."""
    return _register(Op(rule.__name__, rule, _parameters(rule), "leaf", kernel=Leaf(), no_grad="ends"))


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
) -> Callable[[Callable[..., Value]], Op]:
    """Decorator: the function decomposes a new op; from it follow reference, shape, default gradient and rule.

    `label` names the rewrite body → op in reports (a mapping: by the value of the op's Literal attribute); an empty
    label makes no rule. The body of an op with a rule reads no shapes and does not broadcast, because it is traced as
    a pattern too. `check(*operands, **attrs)` refuses what the body would let pass, such as shapes that broadcast.
    Without a `kernel` the op is lowered as its body.
    """

    def register(body: Callable[..., Value]) -> Op:
        chosen = family or (_FAMILY[type(kernel)] if kernel is not None else "elementwise")
        labels = {} if isinstance(label, str) else dict(label)
        first = label if isinstance(label, str) else next(iter(labels.values()))
        return _register(
            Op(
                body.__name__, body, _parameters(body), chosen, "private" if private else "composite", False, False,
                numpy, kernel, tuple(samples), tuple(bad), None, None, body, first, safety, phases, labels, check,
            )
        )  # fmt: skip

    return register


def unregister(name: str) -> None:
    """Remove an op from the registry (ops of gdlab itself included: for tests and for trying things out)."""
    REGISTRY.pop(name, None)
    METHODS.pop(name, None)


def _register(new: Op) -> Op:
    old = REGISTRY.get(new.name)
    if old is not None and old.rule.__module__.startswith("gdlab.") and old.rule.__module__ != new.rule.__module__:
        raise GraphError("op", "name", repr(new.name), "a name that no op of gdlab has")
    REGISTRY[new.name] = new
    if new.operands and new.kind != "private":
        METHODS[new.name] = new
    return new


def _parameters(rule: Callable[..., Any]) -> tuple[Parameter, ...]:
    hints = inspect.get_annotations(rule, eval_str=True)
    for p in inspect.signature(rule).parameters.values():
        if p.name not in hints or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise GraphError(f"op {rule.__name__}", "parameter", str(p), "one annotated Value or as an attribute")
    return tuple(
        Parameter(p.name, hints[p.name] in (Value, Values), _required(hints[p.name]), p.default)
        for p in inspect.signature(rule).parameters.values()
        if p.name != "graph"
    )


class _Spelled(str):
    """An annotation that shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _signature(rule: Callable[..., Any]) -> inspect.Signature:
    """The call as people read it: every op gives a value, whatever its shape rule answers."""
    written = inspect.signature(rule)
    spelled = {"Extended": "float", "Values": "Sequence[Value]"}
    plain = [
        p.replace(annotation=_Spelled(spelled.get(p.annotation, p.annotation))) for p in written.parameters.values()
    ]
    return written.replace(parameters=plain, return_annotation=_Spelled("Value"))


def _required(annotation: Any) -> Any:
    """`tuple[int, ...]` of `tuple[int, ...] | None`: a default None is filled in by `canonical`."""
    kinds = [k for k in get_args(annotation) if k is not type(None)] if isinstance(annotation, UnionType) else []
    return kinds[0] if len(kinds) == 1 else annotation


def _coerce(where: str, parameter: Parameter, value: Any) -> Any:
    """An attribute as its annotation says, so that equal calls make equal nodes."""
    kind, name = parameter.annotation, parameter.name
    if isinstance(value, AttrVar) or (value is None and parameter.default is None):
        return value
    try:
        if kind is float:
            return _finite(where, name, value)
        if kind == Extended:
            infinite = is_number(value) and math.isinf(value)
            return float(value) if infinite else _finite(where, name, value, _wanted(kind))
        if kind is int and not isinstance(value, bool):
            return operator.index(value)
        if kind is bool and isinstance(value, (bool, np.bool_)):
            return bool(value)
        if kind is str and isinstance(value, str):
            return value
        if kind == tuple[int, ...]:
            given = (value,) if isinstance(value, (int, np.integer)) else tuple(value)
            if not any(isinstance(v, (bool, np.bool_)) for v in given):
                return tuple(operator.index(v) for v in given)
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if kind is ConstantData and isinstance(value, ConstantData):
            return value
    except (TypeError, OverflowError):
        pass
    raise GraphError(where, name, f"{value!r:.80}", _wanted(kind))


_F32_LIMIT = 2.0**128 - 2.0**103  # from here on float32 rounds to infinity


def _finite(where: str, name: str, value: Any, wanted: str = "a finite number") -> float:
    """`value` as float32 holds it."""
    plain = float(value) if is_number(value) else float("nan")
    if not -_F32_LIMIT < plain < _F32_LIMIT:
        raise GraphError(where, name, repr(value), wanted)
    return float(np.float32(plain))


def _wanted(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    return _KINDS.get(kind, "ints")


_KINDS: dict[Any, str] = {
    float: "a finite number", Extended: "a number or an infinity", int: "an int", bool: "True or False", str: "a str",
}  # fmt: skip


@lru_cache(maxsize=4096)
def _trace(op: Op, types: tuple[TensorType, ...], attrs: Attrs) -> Graph:
    assert op.body is not None  # only fused ops are traced
    with scratch() as g, g.silent():
        operands = [g.append("var", (), (("name", n),), t) for n, t in zip(op.operands, types, strict=True)]
        g.set_outputs(op.body(*operands, **dict(attrs)))
    return g
