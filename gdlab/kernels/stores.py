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
from gdlab.plan.dispatch import Dispatch, PointOp, scalar_places


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
        if d.epilogue:
            chain_function(text, "after", d.epilogue, sums, "f32")
        value = call("after", ["value", *sums[1:]], [bindings.at(d.operands[k]) for k in used])
        value = value if d.epilogue else "value"
        values = "".join(f", {name}: {bindings.type}" for name in ("value", *sums[1:]))
        text.add(f"fn store(i: u32{values}) {{")
        with text.working(STORE, *map(read_part, used)):
            text.add(f"    let stored = {value};" if d.in_columns else f"    out[i] = {value};", node)
        if d.in_columns:
            _into_columns(text, d, bindings, "[{}]", node)
    text.add("}\n")


def store4(text: WgslText, d: Dispatch, bindings: Bindings, node: int) -> None:
    """Write `store4(i, value)`, which stores four neighbours at once; `store4(i, value, dual)` as in `store`."""
    if not by_fours(d):
        store(text, d, bindings, node)
        each = " ".join(f"store(i + {k}u, value.{q});" for k, q in enumerate("xyzw"))
        with text.working(STORE):
            text.add(f"fn store4(i: u32, value: vec4<f32>) {{\n    {each}\n}}\n")
        return
    used, sums = chain_operands(d.epilogue), sums_of(d)
    values = "value", *sums[1:]
    with text.working(STORE):
        if d.epilogue:
            chain_function(text, "after", d.epilogue, sums, "f32")
        text.add(f"fn store4(i: u32{''.join(f', {name}: vec4<f32>' for name in values)}) {{")
        for k in used:
            with text.working(read_part(k)):
                text.add(f"    let x{k} = {bindings.four(d.operands[k])};", node)
        place = "let stored" if d.in_columns else "out[i / 4u]"
        by_four(text, place, [f"x{k}" for k in used], d.epilogue, "after", values, node)
        if d.in_columns:
            _into_columns(text, d, bindings, "[({}) / 4u]", node)
    text.add("}\n")


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
