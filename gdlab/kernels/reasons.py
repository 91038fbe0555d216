"""Explain in sentences why a kernel is spread as it is: reuse, invocations, bytes per result, workgroup memory.

Every number is computed from the schedule; what is not known of a kernel is not said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from gdlab.base.words import listed, nbytes, plural, sig, whole
from gdlab.kernels.coverage import Coverage, Loop, coverage
from gdlab.kernels.workgroup_tiles import Tiling
from gdlab.plan.dispatch import Custom, Dispatch, Matmul, Operand
from gdlab.plan.spread import BLOCK


def reason(d: Dispatch, text: str) -> str:
    """Return the sentences for a dispatch whose WGSL is `text`."""
    covered = coverage(d)
    said = [*_FAMILIES[d.kernel](d, covered), *_also_stored(d), *_memory(text), *_chosen(d)]
    return " ".join(said)


# reasons of all kernels -----------------------------------------------------------------------------------------------
_DECLARED = re.compile(r"^var<workgroup> \w+: (?:array<(\w+(?:<\w+>)?), ([^>]+)>|(\w+));", re.MULTILINE)
_CONSTANT = re.compile(r"^const (\w+) = (\d+)u;", re.MULTILINE)
_BYTES = {"f32": 4, "u32": 4, "vec2<f32>": 8, "vec4<f32>": 16, "vec4<u32>": 16}


def workgroup_bytes(text: str) -> int | None:
    """Return the bytes of workgroup memory that a text declares; None where a size is no product of numbers, or of sums
    of numbers in brackets."""
    sizes = {name: int(value) for name, value in _CONSTANT.findall(text)}
    total = 0
    for element, count, single in _DECLARED.findall(text):
        factors = [_number(f, sizes) for f in (count or "1").split("*")]
        each = _BYTES.get(element or single)
        if each is None or None in factors:
            return None
        total += each * math.prod(n for n in factors if n is not None)
    return total if len(_DECLARED.findall(text)) == text.count("\nvar<workgroup>") else None


def _number(factor: str, sizes: dict[str, int]) -> int | None:
    """Return a factor: a number, the name of one, or a sum of such in brackets; None for anything else."""
    bracketed = re.fullmatch(r"\s*\((.*)\)\s*", factor)
    terms = [t.strip().removesuffix("u") for t in (bracketed[1].split("+") if bracketed else [factor])]
    numbers = [int(t) if t.isdigit() else sizes.get(t) for t in terms]
    return None if None in numbers else sum(n for n in numbers if n is not None)


def _memory(text: str) -> Iterator[str]:
    used = workgroup_bytes(text)
    if used:
        yield f"A workgroup uses {nbytes(used)} of workgroup memory."
    elif used == 0:
        yield "It needs no workgroup memory."


def _also_stored(d: Dispatch) -> Iterator[str]:
    count = sum(r.value is not None for r in d.results)
    if count:
        what, which = ("a value", "it") if count == 1 else (f"{count} values", "them")
        yield (
            f"Beside its result it stores {what} that it has on the way, since later dispatches read {which}: "
            "otherwise another dispatch would read what this one writes (multi-output fusion)."
        )
    names = () if d.custom is None else d.custom.results
    if names:
        yield (
            f"Beside its result it stores {' and '.join(f'`{name}`' for name in names)}, which it has on the way: "
            f"otherwise another dispatch would compute {'it' if len(names) == 1 else 'them'} from the same operands."
        )


def _chosen(d: Dispatch) -> Iterator[str]:
    if d.variant_reason:
        yield f"Reason in the plan: {d.variant_reason}."


def _traffic(d: Dispatch) -> str:
    """State the bytes that go through memory for each result, as the plan counts them: every buffer once."""
    results = sum(r.type.num_elements for r in d.results)
    read, written = d.bytes_read / results, d.bytes_written / results
    return f"it reads at least {_bytes(read)} and writes {_bytes(written)} per result"


def _bytes(value: float) -> str:
    return "1 byte" if value == 1 else f"{sig(value)} bytes"


def _times(count: float) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{sig(count)} times"


def _invocations(count: int) -> str:
    return plural(count, "invocation")


# products -------------------------------------------------------------------------------------------------------------
def _matmul(d: Dispatch, covered: Coverage) -> Iterator[str]:
    p = d.matmul
    assert p is not None  # the table asks by kernel
    kind = d.variant.split()[0]
    yield from PRODUCTS[kind](d, p)
    yield _loaded_bytes(d, p)


def _uses(p: Matmul, rows: int, columns: int) -> str:
    """State the number of uses of a value that a tile loads; tiles at the edge hold fewer results."""
    a, b = min(columns, p.n), min(rows, p.m)
    edge = (p.m > rows and p.m % rows) or (p.n > columns and p.n % columns)
    fewer = ", less often at the edge" if edge else ""
    if a == b:
        return f"is used {_times(a)}{fewer}"
    return f"of A is used {_times(a)} and each of B {_times(b)}{fewer}"


def _tiles(d: Dispatch, p: Matmul) -> Iterator[str]:
    t = Tiling(*d.params)
    own, used = f"{t.rows} × {t.own_columns(p)} tiles", p
    if p.dual is not None:  # both use what is loaded of A
        own, used = f"{own} of both products", replace(p, n=2 * p.n)
    yield (
        f"{own}: each value loaded into workgroup memory {_uses(used, t.rows, t.columns)}; "
        f"{t.high} × {t.wide} invocations compute {t.down} × {t.right} results each, {t.depth} steps of K at a time."
    )
    if p.dual is not None:
        yield (
            "Two products of the same rows in one kernel (a dual GEMM): what a workgroup copies of A serves both, and "
            "the chain behind takes both results."
        )
    if t.buffers == 2:
        yield "Two buffers: the next steps are loaded while these are multiplied."
    if t.inner > 1:
        yield f"{t.inner} such sets of invocations take a part of K each and add their sums in workgroup memory."
    if t.outer > 1:
        yield (
            f"K = {whole(p.k)} is split into {t.outer} parts of {whole(t.steps(p.k) * t.inner)} steps, each with "
            "workgroups of its own; a second dispatch adds the parts."
        )


def _registers(d: Dispatch, p: Matmul) -> Iterator[str]:
    rows, columns = d.params
    yield (
        f"{rows} × {columns} tiles in registers: each value that an invocation loads {_uses(p, rows, columns)}; "
        f"8 invocations of a workgroup compute {rows} × {columns} results each, four steps of K at a time."
    )


def _k_parallel(d: Dispatch, p: Matmul) -> Iterator[str]:
    rows, columns, parts = d.params
    yield (
        f"{rows} × {columns} tiles, K in {parts} parts side by side: of every {4 * parts} steps each part takes four. "
        f"In a part {rows} invocations compute 4 × 4 results each, so each value that one loads {_uses(p, 4, 4)}; "
        "the parts meet in workgroup memory."
    )
    yield from _inside(p)


def _vectors(d: Dispatch, p: Matmul) -> Iterator[str]:
    rows, wide, parts, steps = d.params
    beside = f"{_invocations(wide)} side by side have" if wide > 1 else "one invocation has"
    each = f"of every {whole(steps * parts)} steps each takes {steps}"
    yield (
        f"So few rows use each value of B {_times(rows)}: what counts is to read B once, as fast as memory gives it. "
        f"K in {parts} parts side by side: {each}; in a part {beside} "
        "four columns each; the parts meet in workgroup memory."
    )
    if steps == BLOCK:
        yield (
            f"An invocation decodes whole blocks of {steps} steps of its four columns: their scales count once a "
            "block, not once a value."
        )
    elif steps > 4:
        yield f"One load gives {steps} steps of a column."
    yield from _inside(p)


def _inside(p: Matmul) -> Iterator[str]:
    """Yield what a product computes besides: the norm of its rows, a second product."""
    if p.norm is not None:
        yield (
            "The rows of A are normalized as they are read: each workgroup adds up their squares beside the products, "
            "and divides the sums by the root of the mean square. No dispatch has to write the normalized rows first."
        )
    if p.dual is not None:
        rows, reads = ("", "operands") if p.dual_rows else (" of the same rows", "factors")
        yield (
            f"Two products{rows} in one kernel (a dual GEMM): each invocation reads the same place of both {reads}, "
            "and the chain behind takes both results."
        )


PRODUCTS = {"tile": _tiles, "registers": _registers, "k-parallel": _k_parallel, "vector": _vectors}


def _loaded_values(d: Dispatch, p: Matmul) -> tuple[int, int]:
    """Return the number of values of A and of B that all invocations load, those beyond the edge included."""
    kind = d.variant.split()[0]
    if kind == "tile":
        t = Tiling(*d.params)
        steps = t.steps(p.k) * t.inner * t.outer
        return t.tiles(p) * t.rows * steps, t.tiles(p) * t.own_columns(p) * steps
    if kind == "registers":
        rows, columns = d.params
        tiles = -(-p.m // rows) * -(-p.n // columns)
        return tiles * rows * p.k, tiles * columns * p.k
    if kind == "vector":
        columns = -(-p.n // (4 * d.params[1])) * 4 * d.params[1]
        return columns // 4 * p.m * p.k, columns * p.k
    cells = -(-p.m // 16) * -(-p.n // 16) * 16
    steps = -(-p.k // 4) * 4
    return cells * 4 * steps, cells * 4 * steps


def _loaded_bytes(d: Dispatch, p: Matmul) -> str:
    (a, b), products = _loaded_values(d, p), 1 if p.dual is None else 2
    left, right = (_element_bytes(o) for o in d.operands[:2])
    rows = p.m if d.variant.startswith("vector ") else 4
    weights = 0 if p.norm is None else a // rows * 4  # bytes: one for each element of a row that is loaded
    rows_read = products if p.dual_rows else 1
    loaded = (rows_read * a * left + products * b * right + weights) / (p.m * p.n)
    alone = products * p.k * (left + right)
    return f"Per result {_bytes(loaded)} are loaded; without tiles it would be {_bytes(alone)}."


def _element_bytes(operand: Operand) -> float:
    """Return the bytes of an element, of a storage dtype with its share of the block."""
    form = operand.dtype.format
    return 4.0 if form is None else form.nbytes / form.block


# elements -------------------------------------------------------------------------------------------------------------
def _pointwise(d: Dispatch, covered: Coverage) -> Iterator[str]:
    width = 4 if d.variant == "vec4" else 1
    each = "four neighbours" if width == 4 else "one element"
    total = d.type.num_elements
    yield (
        f"Each invocation computes {each}, a workgroup of {d.workgroup_size[0]} a run of {covered.per}: "
        f"{plural(covered.groups, 'workgroup')} for {plural(total, 'element')}."
    )
    ops = len(d.epilogue)
    fused = f"{ops} ops in one pass" if ops > 1 else "one op"
    rate = d.flops / max(1, d.bytes_read + d.bytes_written)
    yield f"{fused[0].upper()}{fused[1:]}: {_traffic(d)}, {sig(rate, 2)} operations for each byte."
    for read in covered.reads:
        operand = d.operands[read.operand]
        if operand.access != "full" and total > read.rows * read.columns:
            again = total / (read.rows * read.columns)
            yield f"Each value of operand {read.operand} is used {_times(again)}: it is broadcast."


def _movement(d: Dispatch, covered: Coverage) -> Iterator[str]:
    g = d.gather
    assert g is not None  # the table asks by kernel
    yield (
        f"Each invocation writes one element, a workgroup of {d.workgroup_size[0]} a run of them; "
        "it computes from the place of the result where in operand 0 the element lies."
    )
    again = math.prod(n for n, a in zip(g.shape, g.axes, strict=True) if a.stride == 0)
    if again > 1:
        yield f"Each value that it reads goes to {whole(again)} places."
    if any(a.extent is not None for a in g.axes):
        yield "Where a place lies outside of the operand, the fill value is written."
    yield f"Nothing is computed: {_traffic(d)}."


def _update(d: Dispatch, covered: Coverage) -> Iterator[str]:
    core = d.update
    assert core is not None  # the table asks by kernel
    count = len(core.parameters)
    which = "of the parameter" if count == 1 else f"of {count} parameters, whose workgroups follow one another"
    elements = sum(p.type.num_elements for p in core.parameters)
    yield (
        f"Each invocation moves four neighbouring elements {which}; a workgroup of {d.workgroup_size[0]} moves "
        f"{covered.per}. In place, {whole(elements)} elements in all."
    )
    yield (
        f"It reads {_bytes(d.bytes_read / elements)} and writes {_bytes(d.bytes_written / elements)} per element: "
        "the parameter, its state and its gradient, each once."
    )


# rows and folds -------------------------------------------------------------------------------------------------------
def _reduce(d: Dispatch, covered: Coverage) -> Iterator[str]:
    r = d.reduce
    assert r is not None  # the table asks by kernel
    across, lanes = d.params[:2]
    results = min(r.outer * r.inner, across * (4 if d.variant.endswith("across") else 1))
    unit = "row" if r.inner == 1 else "column"
    yield (
        f"A workgroup makes {plural(results, 'result')}, {'each ' if results > 1 else ''}of "
        f"{plural(r.length, 'element')} of a {unit}: "
        f"{plural(covered.groups, 'workgroup')} for {plural(r.outer * r.inner, 'result')}."
    )
    if lanes == 1:
        yield "One invocation walks the whole of it, so nothing is exchanged."
    else:
        yield (
            f"{lanes} invocations share {'it' if results == 1 else 'each'}, at most "
            f"{plural(-(-r.length // lanes), 'element')} each; their partial results meet in workgroup memory."
        )
    yield f"Every buffer counted once, {_traffic(d)}."


def _custom(d: Dispatch, covered: Coverage) -> Iterator[str]:
    c = d.custom
    assert c is not None  # the table asks by kernel
    n, parts = dict(c.integers), d.operands[0].parts if d.operands else 1
    if parts > 1:
        yield (
            f"Operand 0 is a product in {parts} parts of K: each of its values is the sum of {parts}, made as it is "
            "read, so that no dispatch has to add the parts first."
        )
    if d.prologue:
        yield f"What the kernel works on is made of it on the way, by {listed([line.op for line in d.prologue])}."
    if "OWN_HEADS" in n:
        yield from _attention(d, covered, n, covered.loop)
    elif (
        covered.over in ("result", "input")
        and covered.loop is not None
        and covered.loop.over == "cell"
        and (covered.cell != (1, 1) or "COUNT" in n)
    ):
        yield from _rows(d, covered, covered.loop)
    elif covered.loop is not None and covered.loop.over == "k":
        yield from _products(d, covered, covered.loop)
    elif covered.loop is not None and covered.loop.over == "window":
        yield from _windows(d, covered, n)
    else:
        yield from _pieces(d, covered)


def _rows(d: Dispatch, covered: Coverage, loop: Loop) -> Iterator[str]:
    c = d.custom
    assert c is not None  # the caller has it
    what = "row" if covered.cell[0] == 1 else "column"
    count = dict(c.integers).get("COUNT", 0)
    makes = "" if covered.over == "result" else f" and makes one number of {'it' if covered.per == 1 else 'each'}"
    yield (
        f"A workgroup of {d.workgroup_size[0]} has {plural(covered.per, what)} of {loop.length}{makes}: "
        f"{plural(covered.groups, 'workgroup')} in all."
    )
    if loop.side > 1:
        yield (
            f"{loop.side} invocations share a {what}{_kept(c, what)}; their partial results meet in workgroup memory."
        )
    else:
        yield f"One invocation has a whole {what}{_kept(c, what)}: nothing is exchanged."
    if count:
        each, sought = ("", "largest") if count == 1 else (f" for each of {count} places", "next")
        yield f"A {what} is walked twice{each}: for the {sought} value, then for its place."
    yield f"Every buffer counted once, {_traffic(d)}."


def _kept(c: Custom, what: str) -> str:
    return f" and keep it in registers, so that the {what} is read once" if "EACH" in dict(c.integers) else ""


def _products(d: Dispatch, covered: Coverage, loop: Loop) -> Iterator[str]:
    c = d.custom
    assert c is not None  # the caller has it
    batch, m, n = covered.shape
    rows, columns = covered.cell
    down, right = covered.each or (1, 1)
    a, b = min(columns, n), min(rows, m)
    if covered.over == "product" and "STEPS" in dict(c.integers):
        yield f"Written as a product: {whole(m)} rows, {whole(n)} columns and {whole(loop.length)} steps in each group."
    edge = ", less often at the edge" if (m > rows and m % rows) or (n > columns and n % columns) else ""
    use = f"is used {_times(a)}{edge}" if a == b else f"of A is used {_times(a)} and each of B {_times(b)}{edge}"
    if c.group and rows == 1:
        yield (
            f"A workgroup of {c.group} has {columns} columns of one row, whose matrix an index chooses: a value of the "
            f"row is used {_times(a)}, a weight once."
        )
    elif c.group:
        yield (
            f"{rows} × {columns} tiles: each value loaded into workgroup memory {use}; {c.group} invocations compute "
            f"{down} × {right} results each, {loop.step} steps of K at a time."
        )
    else:
        yield (
            f"Tiles of {rows} × {columns} in registers: each value that an invocation loads {use}; "
            f"a workgroup of {d.workgroup_size[0]} has {plural(covered.per, 'tile')}."
        )
    if loop.side > 1:
        yield f"{loop.side} invocations share the steps of a tile and add their sums in workgroup memory."
    yield f"{plural(covered.groups, 'workgroup')} for {plural(batch * m * n, 'result')}; {_traffic(d)}."


def _attention(d: Dispatch, covered: Coverage, n: dict[str, int], loop: Loop | None) -> Iterator[str]:
    assert loop is not None  # attention has one
    assert d.custom is not None  # the caller looked
    rows = covered.cell[0]
    of_keys = d.custom.file.startswith(("attention_grad_k", "attention_grad_v"))
    own, walked = ("key", "queries") if of_keys else ("query", "keys")
    owns = plural(rows, "key") if of_keys else "1 query" if rows == 1 else f"{rows} queries"
    serves = f"what it loads of one serves all {rows}, and " if rows > 1 else ""
    who = "Each invocation" if covered.each is not None else f"A workgroup of {d.workgroup_size[0]}"
    heads = n["HEADS"] // n["OWN_HEADS"]
    per_head = f" of each of {heads} heads" if heads > 1 else ""
    yield (
        f"{who} has {owns} of one head and walks the {walked}{per_head}, at most {whole(loop.length)}, {loop.step} at "
        f"a time: {serves}no {own} waits for another."
    )
    if loop.side > 1:
        yield f"It has {loop.side} parts, which take blocks of {loop.step} {walked} in turn and then join their sums."
    if covered.each is not None:
        yield f"{covered.per} such pieces lie side by side in a workgroup: {plural(covered.groups, 'workgroup')}."
    if covered.share > 1:
        yield f"{covered.share} workgroups share a head, each with some of its {n['D']} elements."
    scores = 4 * n["OWN_ROWS"] * n["COLUMNS"] * n["HEADS"]
    yield f"The {nbytes(scores)} of scores of all heads are never stored: {_traffic(d)}."


def _windows(d: Dispatch, covered: Coverage, n: dict[str, int]) -> Iterator[str]:
    taps = n["KH"] * n["KW"]
    used = taps / (n["SH"] * n["SW"])
    yield (
        f"Each invocation makes one pixel of the result from a window of {n['KH']} × {n['KW']}; a workgroup of "
        f"{d.workgroup_size[0]} has a run of {covered.per} pixels."
    )
    if used > 1:
        yield f"Windows {n['SH']} × {n['SW']} apart overlap: inside the image a pixel is read about {_times(used)}."
    yield f"Every buffer counted once, {_traffic(d)}."


def _pieces(d: Dispatch, covered: Coverage) -> Iterator[str]:
    c = d.custom
    assert c is not None  # the caller has it
    lanes = d.params[1]
    if covered.over == "result" and covered.each == (2, 1):
        heads, _, half = covered.shape
        yield (
            f"Each invocation makes a pair: an element of the first half of a row or head of {2 * half} and its "
            f"partner in the second, so both are read once. A workgroup of {d.workgroup_size[0]} has a run of "
            f"{covered.per} pairs: {plural(covered.groups, 'workgroup')} for {plural(heads * half, 'pair')}."
        )
    elif covered.over == "result" and covered.each is not None:
        each = covered.each[1]
        what = "one element" if each == 1 else f"{each} neighbouring elements"
        many = "Each invocation" if lanes == 1 else f"{lanes} invocations together"
        yield (
            f"{many} {'makes' if lanes == 1 else 'make'} {what} of the result, a workgroup of {d.workgroup_size[0]} a "
            f"run of {covered.per}: {plural(covered.groups, 'workgroup')}."
        )
    elif c.group:
        yield f"{plural(c.units, 'workgroup')} of {_invocations(c.group)} share what they read."
    else:
        who = "one invocation" if lanes == 1 else f"{lanes} invocations"
        yield (
            f"{plural(c.units, 'piece')} of work, {who} for each, {covered.per} in a workgroup of "
            f"{d.workgroup_size[0]}."
        )
    yield f"Every buffer counted once, {_traffic(d)}."


_FAMILIES: dict[str, Callable[[Dispatch, Coverage], Iterator[str]]] = {
    "pointwise": _pointwise,
    "reduce": _reduce,
    "custom": _custom,
    "matmul": _matmul,
    "movement": _movement,
    "update": _update,
}
