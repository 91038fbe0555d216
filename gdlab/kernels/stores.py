"""Write the last lines of every kernel: constants, per-step scalars, and the stores that run the epilogue."""

from __future__ import annotations

from collections.abc import Sequence

from gdlab.kernels.pieces import (
    STORE,
    Bindings,
    WgslText,
    call,
    chain_function,
    chain_operands,
    number,
    read_part,
    shader,
)
from gdlab.plan.dispatch import Dispatch, PointOp, Result, scalar_places


def constants(text: WgslText, **values: int | float) -> None:
    """Write `const NAME = value;` lines: ints as u32, floats as f32."""
    text.add("")
    for name, value in values.items():
        text.add(f"const {name} = {f'{value}u' if isinstance(value, int) else f'f32({number(value)})'};")
    text.add("")


def scalar_functions(text: WgslText, d: Dispatch) -> None:
    """Write one function for each per-step number that the kernel reads."""
    for name, place in scalar_places(d.scalars).items():
        text.add(f"fn {name}() -> f32 {{ return scalars[{place}]; }}")
    text.add("")


def whole_file(text: WgslText, name: str, *nodes: int) -> None:
    """Add a file of `shaders/`."""
    text.add(shader(name).rstrip("\n"), *nodes)


def store(text: WgslText, d: Dispatch, bindings: Bindings, node: int) -> None:
    """Write the epilogue as `after`, and `store(i, value)`, which writes its result; `store(i, value, dual)` where a
    dispatch computes two products."""
    used, sums = chain_operands(d.epilogue), sums_of(d)
    with text.working(STORE):
        lines = chain_values(d)
        if d.epilogue:
            chain_function(text, "after", d.epilogue, sums, "f32", lines)
        value = call("after", ["value", *sums[1:]], [bindings.at(d.operands[k]) for k in used])
        value = value if d.epilogue else "value"
        values = "".join(f", {name}: {bindings.type}" for name in ("value", *sums[1:]))
        text.add(f"fn store(i: u32{values}) {{")
        with text.working(STORE, *map(read_part, used)):
            if lines:
                text.add(f"    let made = {value};", node)
                value = f"made.v{lines[0]}"
            text.add(f"    let stored = {value};" if d.in_columns else f"    out[i] = {value};", node)
        if d.in_columns:
            _into_columns(text, d, bindings, "[{}]", node)
        for r in d.stored[1:] if not d.in_columns else ():
            text.add(f"    {bindings.variable[r.buffer]}[i] = {_value_of(r, 'made')};", r.node)
    text.add("}\n")


def store4(text: WgslText, d: Dispatch, bindings: Bindings, node: int) -> None:
    """Write `store4(i, value)`, which stores four neighbours at once; `store4(i, value, dual)` as in `store`."""
    if not by_fours(d):
        store(text, d, bindings, node)
        each = " ".join(f"store(i + {k}u, value.{q});" for k, q in enumerate("xyzw"))
        with text.working(STORE):
            text.add(f"fn store4(i: u32, value: vec4<f32>) {{\n    {each}\n}}\n")
        return
    used, sums, lines = chain_operands(d.epilogue), sums_of(d), chain_values(d)
    values = "value", *sums[1:]
    with text.working(STORE):
        if d.epilogue:
            chain_function(text, "after", d.epilogue, sums, "f32", lines)
        text.add(f"fn store4(i: u32{''.join(f', {name}: vec4<f32>' for name in values)}) {{")
        for k in used:
            with text.working(read_part(k)):
                text.add(f"    let x{k} = {bindings.four(d.operands[k])};", node)
        if d.in_columns:
            by_four(text, "let stored", [f"x{k}" for k in used], d.epilogue, "after", values, node)
            _into_columns(text, d, bindings, "[({}) / 4u]", node)
        else:
            results_by_four(text, d, bindings, "after", values, node)
    text.add("}\n")


def chain_values(d: Dispatch) -> list[int]:
    """Return the lines of the epilogue whose values results hold, that of the first result first; empty where it has
    only that one."""
    lines = [r.value.index for r in d.results if r.value is not None and r.value.kind == "op"]
    return [len(d.epilogue) - 1, *lines] if lines else []


def results_by_four(
    text: WgslText, d: Dispatch, bindings: Bindings, name: str, first: Sequence[str], node: int
) -> None:
    """Write the stores of every result that the epilogue makes, four neighbours `x{operand}` at a time."""
    loads, lines = [f"x{k}" for k in chain_operands(d.epilogue)], chain_values(d)
    if lines:
        for q, line in zip("xyzw", four_calls(name, first, loads), strict=True):
            text.add(f"    let made_{q} = {line};", node)
        text.add(f"    out[i / 4u] = {_four_made(lines[0])};", node)
    else:
        by_four(text, "out[i / 4u]", loads, d.epilogue, name, first, node)
    for r in d.stored[1:]:
        assert r.value is not None  # none has columns here
        value = _four_made(r.value.index) if r.value.kind == "op" else _value_of(r, "")
        text.add(f"    {bindings.variable[r.buffer]}[i / 4u] = {value};", r.node)


def _four_made(line: int) -> str:
    return f"vec4<f32>({', '.join(f'made_{q}.v{line}' for q in 'xyzw')})"


def _value_of(r: Result, made: str) -> str:
    """Return the text of a result's own value: a line of the epilogue in `made`, or what the core computes."""
    assert r.value is not None  # the caller looked
    return f"{made}.v{r.value.index}" if r.value.kind == "op" else {"acc": "value", "dual": "dual"}[r.value.kind]


def sums_of(d: Dispatch) -> tuple[str, ...]:
    """Return the parameters of the epilogue for what the core computes: a second one of a dual product."""
    return ("acc", "dual") if d.matmul is not None and d.matmul.dual is not None else ("acc",)


def by_fours(d: Dispatch) -> bool:
    """Return whether four neighbours of the result, aligned, always lie in one range of its columns."""
    columns = [r.columns for r in d.results if r.columns is not None]
    return all(c.width % 4 == c.start % 4 == c.stop % 4 == 0 for c in columns)


def _into_columns(text: WgslText, d: Dispatch, bindings: Bindings, at: str, node: int) -> None:
    """Write the stores of `stored`, element i of the core's result, to the buffer of its column."""
    for k, r in enumerate(d.results):
        c = r.columns
        assert c is not None  # the caller looked
        if k == 0:
            text.add(f"    let row = i / {c.width}u;\n    let column = i % {c.width}u;", node)
        inside = [f"column >= {c.start}u"] if c.start else []
        inside += [f"column < {c.stop}u"] if c.stop < c.width else []
        place = f"row * {c.stop - c.start}u + column" + (f" - {c.start}u" if c.start else "")
        one = f"{bindings.variable[r.buffer]}{at.format(place)} = stored;"
        text.add(f"    if ({' && '.join(inside)}) {{ {one} }}" if inside else f"    {one}", r.node)


def by_four(
    text: WgslText, place: str, loads: list[str], chain: tuple[PointOp, ...], name: str, first: Sequence[str], node: int
) -> None:
    """Write `place = …`, the chain called for each of four neighbours; `first`: its first arguments, if any."""
    if not chain:
        text.add(f"    {place} = {first[0]};", node)
        return
    text.add(f"    {place} = vec4<f32>(", node)
    for line in four_calls(name, first, loads):
        text.add(f"        {line},", node)
    text.add("    );", node)


def four_calls(name: str, first: Sequence[str], loads: list[str]) -> list[str]:
    """Return the calls of a chain for each of four neighbours."""
    return [call(name, [f"{x}.{q}" for x in first], [f"{x}.{q}" for x in loads]) for q in "xyzw"]
