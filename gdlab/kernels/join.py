"""The WGSL of a dispatch, and which nodes each of its lines stands for."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from gdlab.errors import CompileError
from gdlab.kernels.pieces import (
    Bindings,
    Text,
    call,
    chain_function,
    chain_operands,
    helpers,
    may_be_wide,
    number,
    shader,
    widened,
)
from gdlab.kernels.product import Product, aligned
from gdlab.kernels.tiles import WRITERS
from gdlab.plan.plan import SCALARS, Dispatch, LineMap, PointOp, Target
from gdlab.types import DType

_COMBINE = {"sum": "a + b", "max": "max_nan(a, b)", "min": "min_nan(a, b)"}
_CALL = re.compile(r"\b([a-z_]\w*)\(")


def wgsl(d: Dispatch, target: Target) -> tuple[str, LineMap]:
    """The text of one kernel and its line map."""
    if d.kernel not in _WRITERS:
        raise CompileError(f"dispatch {d.index}", "kernel", d.kernel, f"one of {', '.join(_WRITERS)}")
    text = Text()
    text.add(f"// {d.label}")
    _WRITERS[d.kernel](text, d)
    missing = _helper_text(text)
    if missing:
        text.add("\n" + missing)
    return text.done()


def _helper_text(text: Text) -> str:
    used = {name for line in text.lines if not line.startswith("//") for name in _CALL.findall(line)}
    return "\n\n".join(helpers(sorted(used)))


def constants(text: Text, **values: int) -> None:
    """`const NAME = value;` lines."""
    text.add("")
    for name, value in values.items():
        text.add(f"const {name} = {value}u;")
    text.add("")


def _file(text: Text, name: str, *nodes: int) -> None:
    text.add(shader(name).rstrip("\n"), *nodes)


# stores and loads -----------------------------------------------------------------------------------------------------
def _store(text: Text, d: Dispatch, bindings: Bindings, node: int) -> None:
    """`after`, the epilogue, and `store(i, value)`, which writes it."""
    if d.epilogue:
        chain_function(text, "after", d.epilogue, "acc: f32", "f32")
    loads = [bindings.at(d.operands[k]) for k in chain_operands(d.epilogue)]
    value = call("after", d.epilogue, "value", loads) if d.epilogue else "value"
    text.add(f"fn store(i: u32, value: {bindings.type}) {{")
    text.add(f"    out[i] = {value};", node)
    text.add("}\n")


def _store4(text: Text, d: Dispatch, bindings: Bindings, node: int) -> None:
    """`store4(i, value)`: four neighbours at once."""
    used = chain_operands(d.epilogue)
    if d.epilogue:
        chain_function(text, "after", d.epilogue, "acc: f32", "f32")
    text.add("fn store4(i: u32, value: vec4<f32>) {")
    for k in used:
        text.add(f"    let x{k} = {bindings.four(d.operands[k])};", node)
    _by_four(text, "out[i / 4u]", [f"x{k}" for k in used], d.epilogue, "after", "value", node)
    text.add("}\n")


def _by_four(
    text: Text, place: str, loads: list[str], chain: tuple[PointOp, ...], name: str, first: str, node: int
) -> None:
    if not chain:
        text.add(f"    {place} = {first};", node)
        return
    text.add(f"    {place} = vec4<f32>(", node)
    for q in "xyzw":
        text.add(f"        {call(name, chain, f'{first}.{q}' if first else '', [f'{x}.{q}' for x in loads])},", node)
    text.add("    );", node)


def _element(text: Text, d: Dispatch, bindings: Bindings, node: int) -> None:
    """`element(i)`: what the core reads: the prologue's last value, or operand 0."""
    if d.prologue:
        chain_function(text, "before", d.prologue, "", "f32")
        loads = [bindings.at(d.operands[k]) for k in chain_operands(d.prologue)]
        value = call("before", d.prologue, "", loads)
    else:
        value = bindings.at(d.operands[0])
    text.add("fn element(i: u32) -> f32 {")
    text.add(f"    return {value};", node)
    text.add("}\n")


# kernels --------------------------------------------------------------------------------------------------------------
def _pointwise(text: Text, d: Dispatch) -> None:
    size, node = d.output_type.num_elements, d.epilogue[-1].node
    four = d.variant == "vec4" and d.output_type.dtype is DType.f32
    used = chain_operands(d.epilogue)
    wide = widened([*((d.operands[k].buffer, four and may_be_wide(d.operands[k])) for k in used), (d.output, four)])
    bindings = Bindings(d, wide)
    bindings.declare(text)
    width, each = 4 if d.variant == "vec4" else 1, (*d.params, 1)[0]
    constants(text, SIZE=size, WIDTH=width, EACH=each, GROUP=d.workgroup_size[0])
    chain_function(text, "chain", d.epilogue, "", bindings.type)
    text.add("fn point(i: u32) {")
    if four:
        for k in used:
            text.add(f"    let x{k} = {bindings.four(d.operands[k])};", node)
        _by_four(text, "out[i / 4u]", [f"x{k}" for k in used], d.epilogue, "chain", "", node)
    else:
        for q in range(4 if d.variant == "vec4" else 1):
            at = f"i + {q}u" if q else "i"
            loads = [bindings.at(d.operands[k], at) for k in used]
            text.add(f"    out[{at}] = {call('chain', d.epilogue, '', loads)};", node)
    text.add("}\n")
    _file(text, "pointwise.wgsl")


def _matmul(text: Text, d: Dispatch) -> None:
    p = d.matmul
    assert p is not None  # the table asks by kernel
    kind = d.variant.split()[0]
    wide_a, wide_b, wide_out = aligned(p)
    a, b = d.operands[0].buffer, d.operands[1].buffer
    used = [d.operands[k] for k in chain_operands(d.epilogue)]
    uses = [(a, wide_a), (b, wide_b), (d.output, wide_out)]
    wide = widened([*uses, *((o.buffer, wide_out and may_be_wide(o)) for o in used)])
    bindings = Bindings(d, wide)
    bindings.declare(text)
    text.add("")
    (_store4 if d.output in wide else _store)(text, d, bindings, p.node)
    product = Product(p, bindings.variable[a], bindings.variable[b], a in wide, b in wide, d.output in wide)
    WRITERS[kind](text, product, d.params)


def _reduce(text: Text, d: Dispatch) -> None:
    r = d.reduce
    assert r is not None  # the table asks by kernel
    across, lanes = d.params
    bindings = Bindings(d, ())
    bindings.declare(text)
    constants(text, RESULTS=r.outer * r.inner, LENGTH=r.length, INNER=r.inner, ACROSS=across, LANES=lanes)
    if lanes > 1:  # neighbouring invocations read neighbours: along the fold where that lies in a row, else across it
        along = r.inner == 1
        constants(text, PART_STRIDE=1 if along else across, RESULT_STRIDE=lanes if along else 1)
    _element(text, d, bindings, r.node)
    text.add("fn start(first: u32) -> f32 {")
    text.add(f"    return {'0.0' if r.combine == 'sum' else 'element(first)'};", r.node)
    text.add("}\n\nfn combine(a: f32, b: f32) -> f32 {")
    text.add(f"    return {_COMBINE[r.combine]};", r.node)
    text.add("}\n\nfn finish(acc: f32) -> f32 {")
    line = PointOp("finish", r.finish, (), (), (("n", float(r.count)),), r.node)
    text.add(f"    return {_expression(line)};", r.node)
    text.add("}\n")
    _store(text, d, bindings, r.node)
    _file(text, "reduce.wgsl" if lanes == 1 else "reduce_shared.wgsl", r.node)


def _expression(line: PointOp) -> str:
    return re.sub(r"\bn\b", number(float(dict(line.attrs)["n"])), line.expr)


def _rows(text: Text, d: Dispatch) -> None:
    r = d.rows
    assert r is not None  # the table asks by kernel
    across, lanes = d.params
    bindings = Bindings(d, ())
    bindings.declare(text)
    constants(text, ROWS=r.rows, WIDTH=r.width, ACROSS=across, LANES=lanes)
    _element(text, d, bindings, r.node)
    _store(text, d, bindings, r.node)
    _file(text, r.file, r.node)
    text.add("")
    _file(text, "rows_alone.wgsl" if lanes == 1 else "rows.wgsl", r.node)


def _movement(text: Text, d: Dispatch) -> None:
    g = d.gather
    assert g is not None  # the table asks by kernel
    bindings = Bindings(d, ())
    bindings.declare(text)
    size = d.output_type.num_elements
    constants(text, SIZE=size, GROUP=d.workgroup_size[0])
    text.add(f"fn moved(i: u32) -> {bindings.type} {{", g.node)
    inner, places = size, []
    for axis, (n, a) in enumerate(zip(g.shape, g.axes, strict=True)):
        inner //= n
        if n == 1 and a.lo == 0 and a.step == 1 and a.extent is None:
            continue
        text.add(f"    let i{axis} = i32(i / {inner}u % {n}u) - ({a.lo});", g.node)
        inside = [f"i{axis} >= 0"] if a.lo > 0 else []
        inside += [f"i{axis} % {a.step} == 0"] if a.step > 1 else []
        inside += [f"i{axis} / {a.step} < {a.extent}"] if a.extent is not None else []
        if inside:
            fill = number(g.fill, d.output_type.dtype)
            text.add(f"    if (!({' && '.join(inside)})) {{\n        return {fill};\n    }}", g.node)
        if a.stride:
            places.append(f"i{axis} / {a.step} * {a.stride}" if a.step > 1 else f"i{axis} * {a.stride}")
    where = " + ".join([*places, str(g.offset)]) if g.offset or not places else " + ".join(places)
    text.add(f"    return {bindings.variable[d.operands[0].buffer]}[{where}];", g.node)
    text.add("}\n")
    _store(text, d, bindings, g.node)
    _file(text, "gather.wgsl", g.node)


def _update(text: Text, d: Dispatch) -> None:
    names = ("gradient", "weight", "first_moment", "second_moment")
    roles = dict(zip((d.operands[0].buffer, *d.in_place), names, strict=False))
    bindings = Bindings(d, roles)
    bindings.variable = roles
    bindings.declare(text)
    size = d.output_type.num_elements
    constants(text, SIZE=-(-size // 4), GROUP=d.workgroup_size[0])
    factor = np.array(d.params[:1], np.uint32).view(np.float32)[0]
    text.add(f"const MULTIPLIER = {number(float(factor))};")
    for name in d.scalars:
        text.add(f"fn {name}() -> f32 {{ return scalars[{SCALARS.index(name)}]; }}")
    text.add("")
    _file(text, f"{d.kernel}.wgsl", *d.origin)


_WRITERS: dict[str, Callable[[Text, Dispatch], None]] = {
    "pointwise": _pointwise,
    "matmul": _matmul,
    "reduce": _reduce,
    "rows": _rows,
    "movement": _movement,
    "sgd": _update,
    "adam": _update,
}
