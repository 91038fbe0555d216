"""Write the WGSL of a dispatch, with a map from its lines to the nodes that they compute."""

from __future__ import annotations

import re
from collections.abc import Callable

from gdlab.base.errors import CompileError
from gdlab.base.types import DType
from gdlab.kernels.custom import custom
from gdlab.kernels.decode import STEPS_OF_COLUMNS, decode, decodes_four, whole_blocks
from gdlab.kernels.folds import reduce
from gdlab.kernels.line_parts import LineParts, line_parts
from gdlab.kernels.pieces import (
    STORE,
    WORK,
    Bindings,
    WgslText,
    call,
    chain_function,
    chain_operands,
    helpers,
    may_be_wide,
    number,
    read_part,
    widened,
)
from gdlab.kernels.product import Product, aligned
from gdlab.kernels.stores import by_fours, chain_values, constants, results_by_four, store, store4, whole_file
from gdlab.kernels.tiles import WRITERS
from gdlab.kernels.update_kernel import update
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.records import ExecutionPlan, LineMap
from gdlab.plan.spread import BLOCKS
from gdlab.plan.target import Target

_CALL = re.compile(r"\b([a-z_]\w*)\(")


def plan_wgsl(plan: ExecutionPlan, index: int) -> tuple[str, LineMap]:
    """Return the WGSL of dispatch `index`, and (1-based line, node ids) of the lines that compute a node."""
    return wgsl(plan.dispatches[index], plan.target)


def wgsl(d: Dispatch, target: Target) -> tuple[str, LineMap]:
    """Return the text of one kernel and its line map."""
    return _joined(d).done()


def wgsl_with_parts(d: Dispatch) -> tuple[str, LineMap, LineParts]:
    """Return the text of one kernel, its line map, and the part of the work that each line does."""
    text = _joined(d)
    return (*text.done(), line_parts(text, d))


def _joined(d: Dispatch) -> WgslText:
    if d.kernel not in _WRITERS:
        raise CompileError(f"dispatch {d.index}", "kernel", d.kernel, f"one of {', '.join(_WRITERS)}")
    text = WgslText()
    text.add(f"// {d.label}")
    _WRITERS[d.kernel](text, d)
    decode(text, d)
    missing = _helper_text(text)
    if missing:
        text.add("\n" + missing)
    return text


def _helper_text(text: WgslText) -> str:
    used = {name for line in text.lines if not line.startswith("//") for name in _CALL.findall(line)}
    return "\n\n".join(helpers("functions.wgsl", sorted(used)))


# kernels --------------------------------------------------------------------------------------------------------------
def _pointwise(text: WgslText, d: Dispatch) -> None:
    size, node = d.type.num_elements, d.epilogue[-1].node
    four = d.variant == "vec4" and d.type.dtype is DType.f32
    used = chain_operands(d.epilogue)
    reads = [(d.operands[k].buffer, four and may_be_wide(d.operands[k])) for k in used]
    bindings = Bindings(d, widened([*reads, *((out, four) for out in d.outputs)]))
    bindings.declare(text)
    constants(text, SIZE=size, WIDTH=4 if d.variant == "vec4" else 1, GROUP=d.workgroup_size[0])
    with text.working(WORK):
        chain_function(text, "chain", d.epilogue, (), bindings.type, chain_values(d))
    text.add("fn point(i: u32) {")
    if four:
        for k in used:
            with text.working(read_part(k)):
                text.add(f"    let x{k} = {bindings.four(d.operands[k])};", node)
        with text.working(WORK, STORE):
            results_by_four(text, d, bindings, "chain", (), node)
    else:
        for q in range(4 if d.variant == "vec4" else 1):
            at = f"i + {q}u" if q else "i"
            loads = [bindings.at(d.operands[k], at) for k in used]
            with text.working(*map(read_part, used), STORE):
                _store_one(text, d, bindings, at, call("chain", (), loads))
    text.add("}\n")
    whole_file(text, "pointwise.wgsl")


def _store_one(text: WgslText, d: Dispatch, bindings: Bindings, at: str, value: str) -> None:
    """Write the stores of one element of every result of a pointwise dispatch."""
    lines, node = chain_values(d), d.epilogue[-1].node
    if not lines:
        text.add(f"    out[{at}] = {value};", node)
        return
    text.add(f"    {{\n        let made = {value};", node)
    for line, r in zip(lines, d.results, strict=True):
        text.add(f"        {bindings.variable[r.buffer]}[{at}] = made.v{line};", r.node)
    text.add("    }", node)


def _matmul(text: WgslText, d: Dispatch) -> None:
    p = d.matmul
    assert p is not None  # the table asks by kernel
    kind = d.variant.split()[0]
    wide_a, wide_b, wide_out = aligned(p)
    wide_out = wide_out and by_fours(d)
    wide_a, wide_b = (w and not o.dtype.is_storage for w, o in zip((wide_a, wide_b), d.operands, strict=False))
    a, b = d.operands[0].buffer, d.operands[1].buffer
    used = [d.operands[k] for k in chain_operands(d.epilogue)]
    weight = d.operands[2].buffer if p.norm is not None else a
    dual = d.operands[p.dual_operand].buffer if p.dual is not None else b
    rows = d.operands[p.rows_operand].buffer if p.dual is not None else a
    uses = [(a, wide_a), (rows, wide_a), (weight, wide_a), (b, wide_b), (dual, wide_b)]
    uses += [*((out, wide_out) for out in d.outputs), *((o.buffer, wide_out and may_be_wide(o)) for o in used)]
    wide = widened(uses)
    bindings = Bindings(d, wide, [o.buffer for o in d.operands if whole_blocks(d, o) and o.dtype not in BLOCKS])
    bindings.declare(text)
    text.add("")
    (store4 if d.output in wide else store)(text, d, bindings, p.node)
    four = decodes_four(d, d.operands[1])
    blocks = four and d.operands[1].dtype in STEPS_OF_COLUMNS
    wide_b = b in wide or (four and not blocks)
    product = Product(p, bindings.variable[a], bindings.variable[b], a in wide, wide_b, d.output in wide, blocks,
                      bindings.variable[weight], weight in wide, bindings.variable[dual],
                      bindings.variable[rows] if rows != a else "", d.operands[1].dtype)  # fmt: skip
    WRITERS[kind](text, product, d.params)


def _movement(text: WgslText, d: Dispatch) -> None:
    g = d.gather
    assert g is not None  # the table asks by kernel
    bindings = Bindings(d, ())
    bindings.declare(text)
    constants(text, SIZE=d.type.num_elements, GROUP=d.workgroup_size[0])
    text.add(f"fn moved(i: u32) -> {bindings.type} {{", g.node)
    with text.working(read_part(0)):
        _source_index(text, d, bindings)
    text.add("}\n")
    store(text, d, bindings, g.node)
    whole_file(text, "gather.wgsl", g.node)


def _source_index(text: WgslText, d: Dispatch, bindings: Bindings) -> None:
    """Write the index in operand 0 of element i, or the fill value where there is none."""
    g, size = d.gather, d.type.num_elements
    assert g is not None  # the caller has it
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
            fill = number(g.fill, d.type.dtype)
            text.add(f"    if (!({' && '.join(inside)})) {{\n        return {fill};\n    }}", g.node)
        if a.stride:
            places.append(f"i{axis} / {a.step} * {a.stride}" if a.step > 1 else f"i{axis} * {a.stride}")
    where = " + ".join([*places, str(g.offset)]) if g.offset or not places else " + ".join(places)
    text.add(f"    return {bindings.variable[d.operands[0].buffer]}[{where}];", g.node)


_WRITERS: dict[str, Callable[[WgslText, Dispatch], None]] = {
    "pointwise": _pointwise,
    "matmul": _matmul,
    "reduce": reduce,
    "custom": custom,
    "movement": _movement,
    "update": update,
}
