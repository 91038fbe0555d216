"""WGSL of large matrix products on hardware: tiles of a and b meet in workgroup memory."""

from __future__ import annotations

from gdlab.kernels.pieces import LANES, Text
from gdlab.kernels.product import FLAT, MAIN, Product


def shared_tiles(text: Text, product: Product, params: tuple[int, ...]) -> None:
    """A tile per group, `block` x `block` sums per invocation; the next tile is loaded while this one is multiplied."""
    size, depth, block, buffers = params
    p, node, side = product.p, product.node, size // block
    across = -(-p.n // size)
    text.add(
        f"// A group of {side * side} computes a {size} x {size} tile of the {p.m} x {p.n} result, {block} x {block}\n"
        f"// each. It copies {depth} of the {p.k} steps of a and b to workgroup memory, and loads the next meanwhile."
    )
    for name in "ab":
        text.add(f"var<workgroup> tile_{name}: array<vec4<f32>, {buffers * depth * size // 4}>;")
    text.add("")
    _block_function(text, product, "a", p.m, p.a == "mk", size)
    _block_function(text, product, "b", p.n, p.b == "nk", size)
    _copy_function(text, product, size, depth)
    text.add(f"@compute @workgroup_size({side * side})\n{MAIN}")
    text.add(f"    let tile = {FLAT};", node)
    text.add(f"    let row = tile / {across}u * {size}u;\n    let column = tile % {across}u * {size}u;", node)
    text.add(f"    let down = lane / {side}u;\n    let right = lane % {side}u;", node)
    quads = block // 4
    for r in range(block):
        text.add("    " + " ".join(f"var c{r}_{j} = vec4<f32>();" for j in range(quads)), node)
    text.add("    var next = block(lane, row, column, 0u);", node)
    if buffers == 2:
        text.add("    var half = 0u;", node)
    text.add(f"    for (var k = 0u; k < {p.k}u; k += {depth}u) {{", node)
    if buffers == 1:
        text.add("        workgroupBarrier();", node)
    offset = "half + " if buffers == 2 else ""
    text.add(f"        keep(lane, {'half' if buffers == 2 else '0u'}, next);\n        workgroupBarrier();", node)
    text.add(f"        if (k + {depth}u < {p.k}u) {{ next = block(lane, row, column, k + {depth}u); }}", node)
    text.add(f"        let ta = {offset}down;\n        let tb = {offset}right;", node)
    for kk in range(depth):  # written out: a loop costs its counter and a bounds check at every turn
        text.add("        {", node)
        for name in "ab":
            loads = (f"let {name}{q} = tile_{name}[t{name} + {kk * size // 4 + q * side}u];" for q in range(quads))
            text.add("            " + " ".join(loads), node)
        for r in range(block):
            terms = (f"c{r}_{j} += a{r // 4}.{LANES[r % 4]} * b{j};" for j in range(quads))
            text.add("            " + " ".join(terms), node)
        text.add("        }", node)
    if buffers == 2:
        text.add(f"        half = {depth * size // 4}u - half;", node)
    text.add("    }", node)
    _store(text, product, size, block, side)
    text.add("}")


def _block_function(text: Text, product: Product, side: str, extent: int, k_last: bool, size: int) -> None:
    """`block_a(i, k)`: elements i … i + 3 of steps k … k + 3, one vec4 per step; zero outside."""
    p = product.p
    variable, wide = (product.a, product.wide_a) if side == "a" else (product.b, product.wide_b)
    ends, steps_end = extent % size != 0, p.k % 16 != 0
    text.add(f"fn block_{side}(i: u32, k: u32) -> mat4x4<f32> {{", p.node)
    rows = []
    for q in range(4):
        if wide:
            index = f"((i + {q}u) * {p.k}u + k) / 4u" if k_last else f"((k + {q}u) * {extent}u + i) / 4u"
            inside = _inside(f"i + {q}u" if k_last else "i", extent, ends)
            inside += _inside("k" if k_last else f"k + {q}u", p.k, steps_end)
            value = f"{variable}[{index}]"
            rows.append(f"select(vec4<f32>(), {value}, {' && '.join(inside)})" if inside else value)
            continue
        cells = []
        for e in range(4):
            i, k = (f"i + {q}u", f"k + {e}u") if k_last else (f"i + {e}u", f"k + {q}u")
            index = f"({i}) * {p.k}u + {k}" if k_last else f"({k}) * {extent}u + {i}"
            inside = _inside(i, extent, ends) + _inside(k, p.k, steps_end)
            value = f"{variable}[{index}]"
            cells.append(f"select(0.0, {value}, {' && '.join(inside)})" if inside else value)
        rows.append("vec4<f32>(\n            " + ",\n            ".join(cells) + ",\n        )")
    text.add("    let found = mat4x4<f32>(", p.node)
    for row in rows:
        text.add(f"        {row},", p.node)
    text.add("    );", p.node)
    text.add(f"    return {'transpose(found)' if k_last else 'found'};\n}}\n", p.node)


def _inside(index: str, extent: int, ends: bool) -> list[str]:
    return [f"{index} < {extent}u"] if ends else []


def _copy_function(text: Text, product: Product, size: int, depth: int) -> None:
    """`block(lane, row, column, k)` loads what `keep(lane, half, block)` puts into workgroup memory: the first lanes a,
    the next ones b, 4 x 4 elements each."""
    quads, node = size // 4, product.node
    loaders = quads * (depth // 4)
    text.add("fn block(lane: u32, row: u32, column: u32, k: u32) -> mat4x4<f32> {", node)
    text.add(f"    let at = lane % {loaders}u;", node)
    # neighbouring lanes read neighbours in memory: along k where that is the last axis
    for name, start, k_last in (("a", "row", product.p.a == "mk"), ("b", "column", product.p.b == "nk")):
        i, kk = _place(quads, depth // 4, k_last)
        condition = f"lane < {loaders}u" if name == "a" else f"lane < {2 * loaders}u"
        text.add(f"    if ({condition}) {{ return block_{name}({start} + {i} * 4u, k + {kk} * 4u); }}", node)
    text.add("    return mat4x4<f32>();\n}\n", node)
    text.add("fn keep(lane: u32, half: u32, block: mat4x4<f32>) {", node)
    text.add(f"    let at = lane % {loaders}u;", node)
    for name, k_last in (("a", product.p.a == "mk"), ("b", product.p.b == "nk")):
        i, kk = _place(quads, depth // 4, k_last)
        condition = f"lane < {loaders}u" if name == "a" else f"lane >= {loaders}u && lane < {2 * loaders}u"
        text.add(f"    if ({condition}) {{", node)
        text.add(f"        let place = half + {kk} * {4 * quads}u + {i};", node)
        for q in range(4):
            text.add(f"        tile_{name}[place + {q * quads}u] = block[{q}];", node)
        text.add("    }", node)
    text.add("}\n", node)


def _place(quads: int, steps: int, k_last: bool) -> tuple[str, str]:
    """Which four of i and of k lane `at` copies."""
    return (f"at / {steps}u", f"at % {steps}u") if k_last else (f"at % {quads}u", f"at / {quads}u")


def _store(text: Text, product: Product, size: int, block: int, side: int) -> None:
    p, node = product.p, product.node
    rows_end, columns_end = p.m % size != 0, p.n % size != 0
    for r in range(block):
        text.add("    {", node)
        text.add(f"        let m = row + ({r // 4 * side}u + down) * 4u + {r % 4}u;", node)
        for j in range(block // 4):
            text.add(f"        let n{j} = column + ({j * side}u + right) * 4u;", node)
            for line in _stores(product, r, j, rows_end, columns_end):
                text.add(f"        {line}", node)
        text.add("    }", node)


def _stores(product: Product, r: int, j: int, rows_end: bool, columns_end: bool) -> list[str]:
    p = product.p
    inside = [f"m < {p.m}u"] if rows_end else []
    if product.wide_out:
        conditions = inside + ([f"n{j} < {p.n}u"] if columns_end else [])
        one = f"store4(m * {p.n}u + n{j}, c{r}_{j});"
        return [f"if ({' && '.join(conditions)}) {{ {one} }}" if conditions else one]
    lines = []
    for q in range(4):
        conditions = inside + ([f"n{j} + {q}u < {p.n}u"] if columns_end else [])
        one = f"store(m * {p.n}u + n{j} + {q}u, c{r}_{j}.{LANES[q]});"
        lines.append(f"if ({' && '.join(conditions)}) {{ {one} }}" if conditions else one)
    return lines
