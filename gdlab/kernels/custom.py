"""Join the kernel of a `Shader`: the functions that its file in `shaders/` calls, the file, and a `main`.

A file may call, for each operand by the builder's name for it (`x`): `x_at(i)`, element i in row-major order (f32, or
u32 of a u32 operand), and `x_four(i)`, four neighbours from i on (a multiple of 4; one vector load where the operand
has a multiple of 4 elements). It writes with `store(i, value)`, or with `store4(i, vec4)`, never with both, and the
epilogue runs inside; with `store_NAME(i, value)` it writes the result NAME, in dispatches that have it: where
`STORES_NAME` is 1 rather than 0. Its constants, tables and per-step numbers are `NAME` and `name()`. It defines one of
  fn unit(u: u32)                         a unit of work that one invocation does alone (Work.length = 0);
  fn unit(u: u32, part: u32, live: bool)  one that LANES invocations share (Work.length > 0): `part` is 0 .. LANES - 1,
                                          the sum and the maximum over all of them are `sum_of_unit(value)` and
                                          `max_of_unit(value)`, four sums at once are `sums_of_unit(vec4)`, the
                                          sum over those with a smaller part is `sum_of_earlier(value)`; every
                                          invocation must reach these calls, and may store only where it is `live`;
  fn main(...)                            everything, for `UNITS` groups of LANES invocations (Work.group).
"""

from __future__ import annotations

import math
import re

from gdlab.base.types import DType
from gdlab.kernels.pieces import (
    STORE,
    Bindings,
    WgslText,
    call,
    chain_function,
    chain_operands,
    helpers,
    may_be_wide,
    read_part,
    shader,
    widened,
    written_out,
)
from gdlab.kernels.stores import constants, four_calls, scalar_functions, store, store4
from gdlab.plan.dispatch import Custom, Dispatch, Operand


def custom(text: WgslText, d: Dispatch) -> None:
    """Write the kernel of a dispatch with a `custom` core."""
    c = d.custom
    assert c is not None  # the table asks by kernel
    across, lanes = d.params
    files = c.file.split(" + ")
    called = {name for file in files for name in re.findall(r"\b(\w+)\(", shader(file))}
    by_four = "store4" in called
    named = list(zip(c.names, d.operands, strict=False))
    uses = [(o.buffer, _is_wide(o) and f"{name}_four" in called) for name, o in named]
    uses += [(d.operands[k].buffer, by_four and may_be_wide(d.operands[k])) for k in chain_operands(d.epilogue)]
    reads_four = f"{c.names[0]}_four" in called if c.names else False
    uses += [(d.operands[k].buffer, reads_four and may_be_wide(d.operands[k])) for k in chain_operands(d.prologue)]
    read = [] if d.read_result is None else [(d.read_result.buffer, reads_four)]
    bindings = Bindings(d, widened([*uses, *read, *((r.buffer, by_four) for r in d.stored)]))
    bindings.declare(text)
    integers = dict(c.integers)
    if "EACH" in integers:  # the schedule may share a row between more invocations than the op had in mind
        integers["EACH"] = -(-c.length // (4 * lanes))
    constants(text, UNITS=c.units, LANES=lanes, ACROSS=across, **integers, **dict(c.numbers))
    for name, table in c.tables:
        kind, values = f"array<u32, {len(table)}>", ", ".join(f"{v}u" for v in table)
        text.add(f"var<private> {name}: {kind} = {kind}({values});")
    scalar_functions(text, d)
    for k, (name, operand) in enumerate(named):
        if k == 0 and (d.prologue or d.read_result is not None):
            _chain_accessors(text, d, name, bindings, called, c.node)
        else:
            _accessors(text, name, operand, bindings, called, c)
    _absent(text, called, c, bindings.type)
    _statistics(text, files, called - _defined(files), c, bindings, d)
    (store4 if by_four else store)(text, d, bindings, c.node)
    each = integers.get("EACH", 1)
    for file in files:
        written_out(text, file, each, c.node)
    if not c.group:
        text.add("")
        text.add("\n\n".join(helpers(_main(c, lanes), ("main", *sorted(called)))), c.node)


def _absent(text: WgslText, called: set[str], c: Custom, type: str) -> None:
    """Write functions that return 0 for operands that the file reads and this call (of a variadic op) does not have."""
    base = c.names[0].removesuffix("0") if c.names else ""
    for name in sorted(called - {f"{n}_at" for n in c.names}):
        if base != "".join(c.names[:1]) and re.fullmatch(rf"{base}\d_at", name):
            text.add(f"fn {name}(i: u32) -> {type} {{\n    return {type}(0);\n}}\n")


def _defined(files: list[str]) -> set[str]:
    return {name for file in files for name in re.findall(r"^fn (\w+)\(", shader(file), re.MULTILINE)}


def _statistics(
    text: WgslText, files: list[str], called: set[str], c: Custom, bindings: Bindings, d: Dispatch
) -> None:
    """Write `store_NAME(i, value)` for each further result that the files know, empty if the dispatch lacks it, and
    `STORES_NAME`, whether it has it, where they ask."""
    results = dict(zip(c.results, d.results[1:], strict=False))
    for name in sorted(called):
        if name.startswith("store_"):
            r = results.get(name.removeprefix("store_"))
            body = "" if r is None else f"    {bindings.variable[r.buffer]}[i] = value;\n"
            text.add(f"fn {name}(i: u32, value: f32) {{\n{body}}}\n", *(() if r is None else (r.node,)))
    words = {name for file in files for name in re.findall(r"\bSTORES_(\w+)", shader(file))}
    if words:
        constants(text, **{f"STORES_{name}": int(name.lower() in results) for name in sorted(words)})


def _is_wide(operand: Operand) -> bool:
    return math.prod(operand.shape) % 4 == 0 and operand.dtype is DType.f32


def _main(c: Custom, lanes: int) -> str:
    return "unit_alone.wgsl" if not c.length else "unit_lanes.wgsl" if lanes > 1 else "unit_lane.wgsl"


def _chain_accessors(text: WgslText, d: Dispatch, name: str, bindings: Bindings, called: set[str], node: int) -> None:
    """Write `x_at` or `x_four` of the first operand, which is the value of a chain, and may be stored as it is read."""
    used, stored = chain_operands(d.prologue) or [0], d.read_result
    if d.prologue:
        chain_function(text, "before", d.prologue, (), "f32")
    by_four = f"{name}_four" in called
    text.add(f"fn {name}_four(i: u32) -> vec4<f32> {{" if by_four else f"fn {name}_at(i: u32) -> f32 {{")
    for k in used:
        read = bindings.four(d.operands[k]) if by_four else bindings.at(d.operands[k])
        with text.working(read_part(k)):
            text.add(f"    let x{k} = {read};", node)
    loads = [f"x{k}" for k in used]
    value = call("before", (), loads) if d.prologue else loads[0]
    if by_four and d.prologue:
        value = f"vec4<f32>({', '.join(four_calls('before', (), loads))})"
    text.add(f"    let value = {value};", node)
    if stored is not None:
        place = f"{bindings.variable[stored.buffer]}[{'i / 4u' if by_four else 'i'}]"
        with text.working(STORE):
            text.add(f"    {place} = value;", stored.node)
    text.add("    return value;\n}\n", node)


def _accessors(text: WgslText, name: str, operand: Operand, bindings: Bindings, called: set[str], c: Custom) -> None:
    """Write `x_at` and `x_four` of an operand, as far as the file calls them."""
    if f"{name}_at" in called:
        type = "u32" if operand.dtype is DType.u32 else "f32"
        text.add(f"fn {name}_at(i: u32) -> {type} {{\n    return {bindings.at(operand)};\n}}\n", c.node)
    if f"{name}_four" in called:
        four = bindings.four(operand)
        type = "u32" if operand.dtype is DType.u32 else "f32"
        text.add(f"fn {name}_four(i: u32) -> vec4<{type}> {{\n    return {four};\n}}\n", c.node)
