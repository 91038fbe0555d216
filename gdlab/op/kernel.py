"""Kernels as an op states them: what lowering needs to know to launch it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gdlab.base.types import Array, Shape, TensorType
from gdlab.op.numpy_form import NumpyForm

Family = Literal[
    "leaf", "elementwise", "contraction", "reduction", "loss", "movement", "index", "random", "update"
]

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
    `choices` has the expressions of an op with a Literal attribute, by its value: then `expr` is one of them.
    """

    expr: str
    choices: Mapping[str, str] = field(default_factory=dict)

    def text(self, attrs: Sequence[tuple[str, Any]]) -> str:
        """Return the expression of a call with these attributes."""
        chosen = (self.choices[value] for _, value in attrs if isinstance(value, str) and value in self.choices)
        return next(chosen, self.expr)


@dataclass(frozen=True)
class Reduction:
    """A fold over axes: `combine` over all elements, then `finish`, an expression over `acc` and the count `n`."""

    combine: Literal["sum", "max", "min"]
    finish: str = "acc"
    axes: Callable[[TensorType, Mapping[str, Any]], tuple[int, ...]] = lambda t, attrs: attrs["axes"]


@dataclass(frozen=True)
class Work:
    """The work of a `Shader` on operands of given types: `units` independent units of `length` steps each, which
    neighbouring invocations may share (0: one invocation does a unit alone); the constants that its text names (ints
    become `u32`, floats `f32`); floating point operations. With `group` the file brings its own `main`, and `units`
    counts workgroups of `group` invocations. `tables` are constant arrays of u32; `trips` counts the loop turns of one
    invocation, where they may be many; `extents` is what the label shows instead of units and length. With `partial`
    the file writes f32 of this shape, and the kernel's `fold` makes the result of it. With `workgroup_bytes` it fits
    only a target whose workgroups have so many bytes of memory and `group` invocations."""

    units: int
    length: int = 0
    constants: Mapping[str, int | float] = field(default_factory=dict)
    flops: int = 0
    group: int = 0
    tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    trips: int = 0
    extents: str = ""
    partial: Shape = ()
    workgroup_bytes: int = 0


# (operand types, result type, attributes) -> the work, or None where this form does not fit
WorkRule = Callable[[tuple[TensorType, ...], TensorType, Mapping[str, Any]], Work | None]


@dataclass(frozen=True, slots=True)
class Statistic:
    """The value of another op that a kernel computes on its way and can store with `store_NAME(i, value)`: `op` of the
    kernel's first operands, or of those at the places `operands`, with the attributes that both have and those that are
    `fixed`; `at_most` bounds attributes. To store it takes `more` of the kernel's own floating-point operations."""

    op: str
    name: str
    fixed: tuple[tuple[str, Any], ...] = ()
    operands: tuple[int, ...] = ()
    at_most: tuple[tuple[str, int], ...] = ()
    more: float = 0.0

    def inputs(self, of: Sequence[int], count: int) -> tuple[int, ...]:
        """Return the `count` inputs of the other op, from those of the kernel's own."""
        return tuple(of[i] for i in self.operands) if self.operands else tuple(of[:count])

    def fits(self, attrs: Mapping[str, Any]) -> bool:
        """Return whether a kernel with these attributes can store it."""
        return all(attrs[name] <= most for name, most in self.at_most)

    def attrs(self, attrs: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
        """Return the attributes `names` of the other op, from those of the kernel's own."""
        known = {**attrs, **dict(self.fixed)}
        return {name: known[name] for name in names if name in known}


@dataclass(frozen=True)
class Shader:
    """A kernel of its own: `file` in `shaders/` (what it may call: `gdlab/kernels/custom.py`), and `numpy_form`, the
    same in NumPy for the cpu device. `a.wgsl + b.wgsl`: two files that call each other's functions. Kernels with the
    same first file have the same NumPy form; forms for adapters (`hardware`, `fours`) need none.

    `hardware` is a second form for hardware adapters, used where its `work` is not None and fits the target, else its
    own; `fours` is one for software adapters, which works by four. `linear`:
    |result| on absolute operands bounds the rounding error (sums of products, selections); `bound(*scales, **attrs)`
    says it of a sum of products with signs of its own, from the error scales of the operands. `scalars` names the
    per-step numbers it reads. `in_place` is the form of a cache write that leaves in the cache what it does not write:
    its operand 1 is then its result, and its work counts what is written. `in_bounds`: its indices follow from its
    constants alone, never from data, and stay inside the operands. `statistics`: what it can write besides, so that
    other ops of the same operands need no kernels of their own. `fold`: a second dispatch, whose operand `chunks` is
    what this one wrote, where its work is `partial`. `as_read`: x · w / √(mean x² + eps) of each row of operands x and
    w, which a product of few rows may compute as it reads them. `each_once`: this form, or every form of a kernel,
    reads each element of operand 0 once, so that it may as well add up the parts of a product there.
    """

    file: str
    work: WorkRule
    hardware: Shader | None = None
    linear: bool = False
    scalars: tuple[str, ...] = ()
    bound: Callable[..., Array] | None = None
    in_place: Shader | None = None
    fours: Shader | None = None
    in_bounds: bool = False
    numpy_form: NumpyForm | None = None
    statistics: tuple[Statistic, ...] = ()
    fold: Shader | None = None
    as_read: bool = False
    each_once: bool = False

    @property
    def name(self) -> str:
        """The name of its first file, without `.wgsl`."""
        return self.file.split(" + ")[0].removesuffix(".wgsl")

    @property
    def forms(self) -> tuple[Shader, ...]:
        """The kernel itself, and every form of it for adapters."""
        others = [form for form in (self.hardware, self.fours, self.fold) if form is not None]
        return self, *(form for other in others for form in other.forms)


def by_rows(passes: int) -> WorkRule:
    """Return the work of a kernel over rows of the last axis, `passes` operations per element."""

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
FAMILY: dict[type, Family] = {
    Leaf: "leaf",
    Alias: "movement",
    Elementwise: "elementwise",
    Reduction: "reduction",
    Shader: "reduction",
    Contraction: "contraction",
    Movement: "movement",
    Fill: "leaf",
}
