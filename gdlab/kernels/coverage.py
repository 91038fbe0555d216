"""Return the part of the result that each workgroup of a dispatch computes, and the parts of operands that it reads.

A rectangle of `shape` (batch, rows, columns) is cut into cells; workgroup 0 takes the first `per` cells in row-major
order, workgroup 1 the next ones, and so on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from gdlab.base.types import Shape
from gdlab.kernels.pieces import chain_operands
from gdlab.kernels.workgroup_tiles import Tiling
from gdlab.plan.dispatch import Custom, Dispatch, Operand, Reduce

Plane = tuple[int, int, int]  # batch, rows, columns

# The space of a rectangle: the result; the input of a fold, which makes one number of each cell; the product whose rows
# and columns a convolution stores elsewhere; parameters one after another; units of work without a place of their own.
Over = Literal["result", "input", "product", "parameters", "pieces"]

# The part of an operand that a workgroup reads: the same place; the same columns, rows or element again and again; the
# rows of its tile, or the columns, for all K; every row of it (keys); the places that an affine map gives; a window
# of an image; anywhere, as the data say.
Place = Literal["same", "row", "column", "scalar", "a", "b", "keys", "moved", "window", "any"]


@dataclass(frozen=True, slots=True)
class Read:
    """Operand k as a rectangle, and the part of it that a workgroup reads."""

    operand: int
    place: Place
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Loop:
    """The steps that a workgroup walks, `step` of `length` at a time. `split`: ranges of steps that workgroups of their
    own walk; `side`: ranges, or steps in turn, that invocations of one workgroup walk side by side."""

    over: Literal["k", "cell", "keys", "window"]
    length: int
    step: int
    split: int = 1
    side: int = 1


@dataclass(frozen=True, slots=True)
class Coverage:
    """The result cut into cells, and the reads of a cell. `share`: workgroups that share a cell; `each`: rows and
    columns that one invocation computes at once; `flip`: the last row of cells comes first."""

    over: Over
    shape: Plane
    cell: tuple[int, int]
    per: int = 1
    share: int = 1
    each: tuple[int, int] | None = None
    loop: Loop | None = None
    reads: tuple[Read, ...] = ()
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of a window, or of an affine map
    flip: bool = False

    @property
    def cells(self) -> int:
        """The number of cells."""
        batch, rows, columns = self.shape
        return batch * -(-rows // self.cell[0]) * -(-columns // self.cell[1])

    @property
    def groups(self) -> int:
        """The number of workgroups that have work."""
        return -(-self.cells // self.per) * self.share


def plane(shape: Shape) -> Plane:
    """Return a shape as a stack of rows and columns."""
    return math.prod(shape[:-2]), *(1, 1, *shape)[-2:]  # type: ignore[return-value]


def coverage(d: Dispatch) -> Coverage:
    """Return what each workgroup of a dispatch covers."""
    return _FAMILIES[d.kernel](d)


# operands -------------------------------------------------------------------------------------------------------------
def _flat(k: int, operand: Operand, elements: int) -> Read:
    """Return the read of an operand by a chain over this number of elements."""
    batch, rows, columns = plane(operand.shape)
    rows, columns = batch * rows, columns
    match operand.access:
        case "scalar":
            return Read(k, "scalar", 1, 1)
        case "column":
            return Read(k, "column", max(1, elements // operand.extent), 1)
        case "row":
            return Read(k, "row", *((rows, columns) if rows * columns == operand.extent else (1, operand.extent)))
        case "full":
            return Read(k, "same", rows, columns)


def _chain_reads(d: Dispatch, chain_of: Literal["prologue", "epilogue"], elements: int) -> tuple[Read, ...]:
    used = chain_operands(d.prologue if chain_of == "prologue" else d.epilogue)
    return tuple(_flat(k, d.operands[k], elements) for k in used)


# families -------------------------------------------------------------------------------------------------------------
def _pointwise(d: Dispatch) -> Coverage:
    width = 4 if d.variant == "vec4" else 1
    reads = _chain_reads(d, "epilogue", d.type.num_elements)
    return Coverage("result", plane(d.type.shape), (1, 1), width * d.workgroup_size[0], each=(1, width), reads=reads)


def _movement(d: Dispatch) -> Coverage:
    g = d.gather
    assert g is not None  # the table asks by kernel
    batch, rows, columns = plane(d.operands[0].shape)
    reads = Read(0, "moved", batch * rows, columns), *_chain_reads(d, "epilogue", d.type.num_elements)
    axes = (
        (n, a.lo, a.step, a.stride, -1 if a.extent is None else a.extent) for n, a in zip(g.shape, g.axes, strict=True)
    )
    numbers = {"map": (g.offset, *itertools.chain.from_iterable(axes))}
    return Coverage(
        "result", plane(g.shape), (1, 1), d.workgroup_size[0], each=(1, 1), reads=reads, numbers=numbers
    )  # fmt: skip


def _matmul(d: Dispatch) -> Coverage:
    p = d.matmul
    assert p is not None  # the table asks by kernel
    weight = (Read(2, "row", 1, p.k),) if p.norm is not None else ()
    factor = (Read(p.dual_operand, "b", p.k, p.n),) if p.dual is not None else ()
    apart = (Read(p.rows_operand, "a", p.m, p.k),) if p.dual_rows else ()
    own = Read(0, "a", p.m, p.k), Read(1, "b", p.k, p.n), *weight, *factor, *apart
    reads = (*own, *_chain_reads(d, "epilogue", p.m * p.n))
    kind = d.variant.split()[0]
    if kind == "tile":
        t = Tiling(*d.params)
        loop = Loop("k", p.k, t.depth, t.outer, t.inner)
        tile, each = (t.rows, t.own_columns(p)), (t.down, t.right if p.dual is None else t.right // 2)
        return Coverage("result", (t.outer, p.m, p.n), tile, 1, 1, each, loop, reads)
    if kind == "registers":
        rows, columns = d.params
        return Coverage("result", (1, p.m, p.n), (rows, columns), 8, 1, (rows, columns), Loop("k", p.k, 4), reads)
    if kind == "vector":
        rows, wide, parts, steps = d.params
        loop = Loop("k", p.k, steps, side=parts)
        return Coverage("result", (1, p.m, p.n), (rows, 4 * wide), 1, 1, (rows, 4), loop, reads)
    rows, columns, parts = d.params
    return Coverage("result", (1, p.m, p.n), (rows, columns), 1, 1, (4, 4), Loop("k", p.k, 4, side=parts), reads)


def _reduce(d: Dispatch) -> Coverage:
    r = d.reduce
    assert r is not None  # the table asks by kernel
    across, lanes = d.params[:2]
    elements = r.outer * r.length * r.inner
    before = _chain_reads(d, "prologue", elements) if d.prologue else (_plain(d.operands[0], r),)
    after = _chain_reads(d, "epilogue", r.outer * r.inner)
    reads = (*before, *(each for each in after if each.operand not in {b.operand for b in before}))
    fours = d.variant.endswith(("along", "across"))
    loop = Loop("cell", r.length, lanes * (4 if d.variant.endswith("along") else 1), side=lanes)
    if r.inner == 1:
        return Coverage("input", (1, r.outer, r.length), (1, r.length), across, loop=loop, reads=reads)
    return Coverage(
        "input", (r.outer, r.length, r.inner), (r.length, 4 if fours else 1), across, loop=loop, reads=reads
    )  # fmt: skip


def _plain(operand: Operand, r: Reduce) -> Read:
    return Read(0, "same", r.outer * (1 if r.inner == 1 else r.length), r.length if r.inner == 1 else r.inner)


def _update(d: Dispatch) -> Coverage:
    core = d.update
    assert core is not None  # the table asks by kernel
    sizes = tuple(p.type.num_elements for p in core.parameters)
    first = plane(core.parameters[0].type.shape)
    shape = first if len(sizes) == 1 else (1, 1, sum(sizes))
    return Coverage("parameters", shape, (1, 1), 4 * d.workgroup_size[0], each=(1, 4), numbers={"sizes": sizes})


# kernels of their own -------------------------------------------------------------------------------------------------
def _custom(d: Dispatch) -> Coverage:
    c = d.custom
    assert c is not None  # the table asks by kernel
    found = next((made for rule in _RULES if (made := rule(d, c, dict(c.integers))) is not None), None)
    found = found or Coverage("pieces", (1, 1, c.units), (1, 1), d.params[0], reads=_any(d, c))
    known = {each.operand for each in found.reads}
    before = _chain_reads(d, "prologue", math.prod(d.operands[0].shape)) if d.prologue else ()
    return replace(found, reads=(*found.reads, *(each for each in before if each.operand not in known)))


Sizes = dict[str, int]


def _any(d: Dispatch, c: Custom) -> tuple[Read, ...]:
    planes = [plane(o.shape) for o in d.operands]
    return tuple(Read(k, "any", b * r, n) for k, (b, r, n) in enumerate(planes[: len(c.names)]))


def _row_reads(d: Dispatch, c: Custom, rows: int, width: int) -> tuple[Read, ...]:
    """Return the reads of a kernel that works row by row: the same rows, one row for all, or a number for each row."""
    if "ROWS" not in dict(c.integers) and c.names != ("x",):
        return _any(d, c)
    places: dict[int, Place] = {rows: "column", width: "row", rows * width: "same"}
    found = []
    for k, operand in enumerate(d.operands[: len(c.names)]):
        place = places.get(math.prod(operand.shape), "any")
        extents = {"same": (rows, width), "row": (1, width), "column": (rows, 1)}
        b, r, n = plane(operand.shape)
        found.append(Read(k, place, *extents.get(place, (b * r, n))))
    return tuple(found)


def _attention(d: Dispatch, c: Custom, n: Sizes) -> Coverage | None:
    """Cover rows of a head: 4 by one invocation alone, 8 or 64 by 128 invocations (64 in parts by several times as
    many), or 1 by invocations that share its keys; chunks of keys are not drawn."""
    if "OWN_HEADS" not in n or n.get("CHUNKS", 1) > 1 and "attention_keys" in c.file:
        return None
    alone, width = "PIECES" in n, n["D"]
    by_keys = "attention_keys" in c.file
    rows = 4 if alone else 1 if by_keys else 8 if "attention_short" in c.file else 64
    elements = math.prod(d.type.shape)
    columns = n["OWN_HEADS"] * width if elements == n["OWN_ROWS"] * n["OWN_HEADS"] * width else n["OWN_HEADS"]
    loop = Loop("keys", n["COLUMNS"], 4 if alone else d.workgroup_size[0] if by_keys else 64, side=n.get("PARTS", 1))
    own = n["OWN_ROWS"] * n["OWN_HEADS"] * width
    reads = []
    for k, operand in enumerate(d.operands[: len(c.names)]):
        batch, high, wide = plane(operand.shape)
        walked = math.prod(operand.shape) == n["COLUMNS"] * (own // n["OWN_ROWS"]) and c.names[k] in ("k", "v")
        place: Place = "keys" if walked or c.names[k] in ("k", "v") else "same" if c.names[k] == "q" else "any"
        reads.append(Read(k, place, batch * high, wide))
    return Coverage(
        "result", (1, n["OWN_ROWS"], columns), (rows, columns // n["OWN_HEADS"]), c.group if alone else 1,
        n.get("CHUNKS", 1), (4, columns // n["OWN_HEADS"]) if alone else None, loop, tuple(reads),
        flip=n.get("FLIP") == 1,
    )  # fmt: skip


def _convolution(d: Dispatch, c: Custom, n: Sizes) -> Coverage | None:
    """Cover a product in each group of channels: rows, columns and steps as the shader files say."""
    if "STEPS" not in n:
        return None
    groups = n["CI"] // n["IN"]
    cell = (n["TALL"], n["BROAD"]) if "TALL" in n else (64, 128)
    lanes = d.params[1] if "TALL" in n else 1
    planes = [plane(o.shape) for o in d.operands[: len(c.names)]]
    named = dict(zip(c.names, range(len(planes)), strict=False))
    forward = c.file.startswith("conv2d.wgsl")
    reads = [
        Read(k, "window" if name == "x" and forward else "a" if name == "k" and forward else "any",
             planes[k][0] * planes[k][1], planes[k][2])
        for name, k in named.items()
    ]  # fmt: skip
    if forward:
        reads = [Read(r.operand, "a", n["ROWS"], n["STEPS"]) if r.place == "a" else r for r in reads]
    return Coverage(
        "product", (groups, n["ROWS"], n["COLUMNS"]), cell, d.params[0] if "TALL" in n else 1, 1,
        cell if "TALL" in n else (8, 8), Loop("k", n["STEPS"], 4 if "TALL" in n else 16, side=lanes), tuple(reads),
        {"window": _window(n)} if forward else {},
    )  # fmt: skip


def _products(d: Dispatch, c: Custom, n: Sizes) -> Coverage | None:
    """Cover products of GROUPS pairs of matrices."""
    if "A_G" not in n:
        return None
    cell = (64 << n["TALL"], 64) if c.group else (4, 8)
    each = (cell[0] // 16, 4) if c.group else cell
    reads = Read(0, "a", n["M"], n["K"]), Read(1, "b", n["K"], n["N"])
    plain = (n["C_G"], n["C_M"]) == (n["M"] * n["N"], n["N"])
    shape, loop = (n["GROUPS"], n["M"], n["N"]), Loop("k", n["K"], 16 if c.group else 1)
    return Coverage("result" if plain else "product", shape, cell, d.params[0], 1, each, loop, reads)


def _chosen_products(d: Dispatch, c: Custom, n: Sizes) -> Coverage | None:
    """Cover products with matrices that indices choose, or that lie in codes: those operands are read anywhere."""
    kernel = c.file.split(" + ")[0].removesuffix(".wgsl")
    m, k, columns, outer = math.prod(d.type.shape[:-1]), n.get("K", 0), d.type.shape[-1], 1
    if kernel == "grouped_matmul":
        cell, each, loop = (1, 4), (1, 4), Loop("k", k, 4 if n["W_ALIGNED"] and n["W_K"] == 1 else 1)
    elif kernel == "grouped_matmul_rows":
        cell, each, loop = (1, 64), (1, 4), Loop("k", k, 64 if n["W_K"] == 1 else 16, side=16)
    elif kernel == "matmul_affine":
        cell, each, loop = (4, 1), (4, 1), Loop("k", k, d.params[1], side=d.params[1])
    elif kernel in ("grouped_matmul_at", "grouped_matmul_at_tiles"):
        outer, m, _ = d.type.shape
        cell, each, loop = ((64, 64) if c.group else (4, 4)), (4, 4), Loop("k", n["ROWS"], 16 if c.group else 1)
    else:
        return None
    places: dict[str, Place] = {"x": "a", "g": "b"}
    sizes = {"a": (m, loop.length), "b": (loop.length, columns)}
    reads = [
        Read(r.operand, place, *sizes[place]) if (place := places.get(c.names[r.operand])) is not None else r
        for r in _any(d, c)
    ]
    return Coverage("result", (outer, m, columns), cell, d.params[0], 1, each, loop, tuple(reads))


def _pooling(d: Dispatch, c: Custom, n: Sizes) -> Coverage | None:
    """Cover one pixel of the result, read from a window of an image."""
    if "KH" not in n or c.names != ("x",) or c.units != d.type.num_elements:
        return None
    batch, rows, columns = plane(d.operands[0].shape)
    loop, read = Loop("window", n["KH"] * n["KW"], 1), Read(0, "window", batch * rows, columns)
    return Coverage(
        "result", plane(d.type.shape), (1, 1), d.params[0], 1, (1, 1), loop, (read,), {"window": _window(n)}
    )  # fmt: skip


def _window(n: Sizes) -> tuple[int, ...]:
    return tuple(n.get(name, 1) for name in "H W KH KW SH SW PH PW DH DW OH OW".split())


def _rows(d: Dispatch, c: Custom, n: Sizes) -> Coverage | None:
    """Cover rows as wide as a unit of work is long, or rows that give COUNT numbers each."""
    if not c.length or c.group:
        return None
    across, lanes = d.params
    elements, width = d.type.num_elements, n.get("WIDTH", 0)
    step = lanes * (4 if "QUADS" in n else 1)
    if width and c.units * width == elements:
        rows = plane(d.type.shape) if d.type.shape[-1] == width else (1, c.units, width)
        loop = Loop("cell", width, step, side=lanes)
        return Coverage("result", rows, (1, width), across, 1, None, loop, _row_reads(d, c, c.units, width))
    if width and c.units == elements and math.prod(d.operands[0].shape) == c.units * width:
        loop = Loop("cell", width, step, side=lanes)
        return Coverage(
            "input", (1, c.units, width), (1, width), across, 1, None, loop, _row_reads(d, c, c.units, width)
        )
    if "INNER" in n and math.prod(d.operands[0].shape) == c.units * n.get("LENGTH", 0):
        length, inner = n["LENGTH"], n["INNER"]
        loop = Loop("cell", length, lanes, side=lanes)
        shape, cell = ((1, c.units, length), (1, length)) if inner == 1 else (
            (c.units // inner, length, inner), (length, 1))  # fmt: skip
        return Coverage("input", shape, cell, across, 1, None, loop, (Read(0, "same", *shape[1:]),))
    return None


def _places(d: Dispatch, c: Custom, n: Sizes) -> Coverage | None:
    """Cover the indices of the largest elements of each row."""
    if set(n) != {"COUNT", "LENGTH"}:
        return None
    across, lanes = d.params
    loop = Loop("cell", n["LENGTH"], lanes, side=lanes)
    read = Read(0, "a", c.units, n["LENGTH"])
    return Coverage("result", (1, c.units, n["COUNT"]), (1, n["COUNT"]), across, 1, None, loop, (read,))


def _halves(d: Dispatch, c: Custom, n: Sizes) -> Coverage | None:
    """Cover pairs of an element of the first and one of the second half of a row or head, drawn one below the other."""
    half = n.get("HALF", n.get("WIDTH", 0) if "concat_grad" in c.file else 0)
    if not half or 2 * c.units != d.type.num_elements:
        return None
    heads = c.units // half
    sizes = [math.prod(o.shape) for o in d.operands[: len(c.names)]]
    same = [Read(k, "same", 2 * heads, half) if size == 2 * c.units else r
            for k, (size, r) in enumerate(zip(sizes, _any(d, c), strict=True))]  # fmt: skip
    return Coverage("result", (heads, 2, half), (2, 1), d.params[0], 1, (2, 1), reads=tuple(same))


def _elements(d: Dispatch, c: Custom, n: Sizes) -> Coverage | None:
    """Cover one element of the result per unit of work, or neighbouring ones."""
    elements = d.type.num_elements
    if c.group or _APART.intersection(c.file.split(" + ")):
        return None
    across, lanes = d.params
    for each in (1, 2, 4):
        if c.units == -(-elements // each):
            reads = _any(d, c)
            loop = Loop("cell", c.length, lanes, side=lanes) if c.length else None
            return Coverage("result", plane(d.type.shape), (1, 1), each * across, 1, (1, each), loop, reads)
    return None


# A part of a cache: where it lies is known when it runs.
_APART = frozenset(("cache_in_place.wgsl",))

_RULES: tuple[Callable[[Dispatch, Custom, Sizes], Coverage | None], ...] = (
    _attention, _convolution, _products, _chosen_products, _pooling, _places, _halves, _rows, _elements
)  # fmt: skip

_FAMILIES: dict[str, Callable[[Dispatch], Coverage]] = {
    "pointwise": _pointwise,
    "reduce": _reduce,
    "custom": _custom,
    "matmul": _matmul,
    "movement": _movement,
    "update": _update,
}
