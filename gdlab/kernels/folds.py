"""Write the WGSL of folds: the reads of elements, the function that combines two, the shader file that walks them."""

from __future__ import annotations

import re

from gdlab.kernels.pieces import (
    WORK,
    Bindings,
    WgslText,
    call,
    chain_function,
    chain_operands,
    may_be_wide,
    number,
    read_part,
    widened,
    written_out,
)
from gdlab.kernels.stores import by_fours, constants, four_calls, store, store4, whole_file
from gdlab.plan.dispatch import Dispatch, PointOp, Reduce

_COMBINE = {"sum": "a + b", "max": "max_nan(a, b)", "min": "min_nan(a, b)"}


def reduce(text: WgslText, d: Dispatch) -> None:
    """Write the kernel of a dispatch with a fold: one element at a time, or four along the fold or across it."""
    form = d.variant.partition(" ")[2]
    {"": _by_one, "along": _along, "across": _across}[form](text, d, d.reduce)  # type: ignore[arg-type]


def _by_one(text: WgslText, d: Dispatch, r: Reduce) -> None:
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
    text.add("}\n")
    _combine(text, r)
    _finish(text, r)
    store(text, d, bindings, r.node)
    whole_file(text, "reduce.wgsl" if lanes == 1 else "reduce_shared.wgsl", r.node)


def _along(text: WgslText, d: Dispatch, r: Reduce) -> None:
    """Write a fold of four neighbouring elements at a time: those of one fold lie side by side."""
    across, lanes, each = d.params
    used = _read(d)
    bindings = Bindings(d, widened([*used, *((d.operands[k].buffer, False) for k in chain_operands(d.epilogue))]))
    bindings.declare(text)
    turns = r.length // (4 * lanes * each)
    constants(text, RESULTS=r.outer, LENGTH=r.length, ACROSS=across, LANES=lanes, EACH=each, TURNS=turns)
    _element4(text, d, bindings, r)
    _combine(text, r)
    _finish(text, r)
    store(text, d, bindings, r.node)
    written_out(text, "reduce_along.wgsl", each, r.node)


def _across(text: WgslText, d: Dispatch, r: Reduce) -> None:
    """Write a fold of four neighbouring results at a time: the elements of one fold lie apart."""
    across, lanes, each = d.params
    after = [(d.operands[k].buffer, may_be_wide(d.operands[k])) for k in chain_operands(d.epilogue)]
    bindings = Bindings(d, widened([*_read(d), *after, *((out, by_fours(d)) for out in d.outputs)]))
    bindings.declare(text)
    turns = r.length // (lanes * each)
    size = r.outer * r.inner // 4
    constants(text, RESULTS=size, LENGTH=r.length, INNER=r.inner, ACROSS=across, LANES=lanes, EACH=each, TURNS=turns)
    _element4(text, d, bindings, r)
    if r.combine != "sum":  # four sums are one addition
        _combine(text, r)
    _finish(text, r)
    text.add("fn finish4(acc: vec4<f32>) -> vec4<f32> {")
    text.add("    return vec4<f32>(finish(acc.x), finish(acc.y), finish(acc.z), finish(acc.w));", r.node)
    text.add("}\n")
    store4(text, d, bindings, r.node)
    written_out(text, "reduce_across.wgsl", each, r.node)


# operands of a fold ---------------------------------------------------------------------------------------------------
def _read(d: Dispatch) -> list[tuple[int, bool]]:
    """Return the buffers that elements come from, each with whether four at a time are read."""
    operands = [d.operands[k] for k in chain_operands(d.prologue)] if d.prologue else [d.operands[0]]
    return [(o.buffer, may_be_wide(o)) for o in operands]


def _reads(d: Dispatch) -> list[str]:
    """Return the parts of the work that read the elements of a fold."""
    return [read_part(k) for k in (chain_operands(d.prologue) if d.prologue else [0])]


def _element(text: WgslText, d: Dispatch, bindings: Bindings, node: int) -> None:
    """Write `element(i)`, which the core reads: the prologue's last value, or operand 0."""
    if d.prologue:
        with text.working(WORK):
            chain_function(text, "before", d.prologue, (), "f32")
        loads = [bindings.at(d.operands[k]) for k in chain_operands(d.prologue)]
        value = call("before", (), loads)
    else:
        value = bindings.at(d.operands[0])
    text.add("fn element(i: u32) -> f32 {")
    with text.working(*_reads(d)):
        text.add(f"    return {value};", node)
    text.add("}\n")


def _element4(text: WgslText, d: Dispatch, bindings: Bindings, r: Reduce) -> None:
    """Write `element4(i)` (elements i … i + 3), `start4(first)` and `combine4(a, b)`."""
    if d.prologue:
        with text.working(WORK):
            chain_function(text, "before", d.prologue, (), "f32")
        text.add("fn element4(i: u32) -> vec4<f32> {")
        used = chain_operands(d.prologue)
        for k in used:
            with text.working(read_part(k)):
                text.add(f"    let x{k} = {bindings.four(d.operands[k])};", r.node)
        text.add("    return vec4<f32>(", r.node)
        for line in four_calls("before", (), [f"x{k}" for k in used]):
            text.add(f"        {line},", r.node)
        text.add("    );\n}\n", r.node)
    else:
        text.add("fn element4(i: u32) -> vec4<f32> {")
        with text.working(read_part(0)):
            text.add(f"    return {bindings.four(d.operands[0])};", r.node)
        text.add("}\n")
    text.add("fn start4(first: u32) -> vec4<f32> {")
    text.add(f"    return {'vec4<f32>()' if r.combine == 'sum' else 'element4(first)'};", r.node)
    text.add("}\n")
    text.add("fn combine4(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {")
    each = ", ".join(f"combine(a.{q}, b.{q})" for q in "xyzw")
    text.add(f"    return {'a + b' if r.combine == 'sum' else f'vec4<f32>({each})'};", r.node)
    text.add("}\n")


def _combine(text: WgslText, r: Reduce) -> None:
    text.add("fn combine(a: f32, b: f32) -> f32 {")
    text.add(f"    return {_COMBINE[r.combine]};", r.node)
    text.add("}\n")


def _finish(text: WgslText, r: Reduce) -> None:
    line = PointOp("finish", r.finish, (), (), (("n", float(r.count)),), r.node)
    text.add("fn finish(acc: f32) -> f32 {")
    text.add(f"    return {_expression(line)};", r.node)
    text.add("}\n")


def _expression(line: PointOp) -> str:
    return re.sub(r"\bn\b", number(float(dict(line.attrs)["n"])), line.expr)
