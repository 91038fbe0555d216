"""WGSL of matrix products on hardware: tiles of a and b meet in workgroup memory."""

from __future__ import annotations

from dataclasses import dataclass

from gdlab.kernels.pieces import LANES, Text
from gdlab.kernels.product import FLAT, MAIN, Product, k_comes_last
from gdlab.plan.plan import Matmul


@dataclass(frozen=True, slots=True)
class Tiling:
    """A group computes `rows` x `columns` sums, `down` x `right` per invocation, `depth` steps of K at a time, with one
    or two `buffers` in workgroup memory. K is cut into `inner` parts that one group adds up, each of `outer` parts
    that groups of their own write one after another."""

    rows: int
    columns: int
    depth: int
    down: int
    right: int
    buffers: int
    inner: int
    outer: int

    @property
    def high(self) -> int:
        """Invocations below one another."""
        return self.rows // self.down

    @property
    def wide(self) -> int:
        """Invocations side by side."""
        return self.columns // self.right

    @property
    def workers(self) -> int:
        """Invocations of one inner part."""
        return self.high * self.wide

    def steps(self, k: int) -> int:
        """Steps of K in one part, a multiple of `depth`."""
        tiles = -(-k // self.depth)
        return -(-tiles // (self.inner * self.outer)) * self.depth

    def ends_early(self, k: int) -> bool:
        """Whether the last part has fewer steps of K than it walks."""
        return k != self.steps(k) * self.inner * self.outer

    def quads(self, side: str) -> int:
        """Fours in one step of a tile."""
        return (self.rows if side == "a" else self.columns) // 4

    def at(self, p: Matmul, side: str, step: int) -> int:
        """Where a step of a tile begins, in fours. Where K is the last axis, neighbours store four steps each: a gap
        after every four steps makes them meet different banks of workgroup memory."""
        gap = 32 // self.depth if k_comes_last(p, side) else 0
        return step * self.quads(side) + step // 4 * gap

    def size(self, p: Matmul, side: str) -> int:
        """Fours of one buffer."""
        return self.at(p, side, self.depth)


def shared_tiles(text: Text, product: Product, params: tuple[int, ...]) -> None:
    """A tile per group; the next steps are loaded to registers while these are multiplied."""
    t = Tiling(*params)
    p, node = product.p, product.node
    _head(text, product, t)
    text.add(f"@compute @workgroup_size({t.workers * t.inner})\n{MAIN}")
    across, tiles = -(-p.n // t.columns), -(-p.n // t.columns) * -(-p.m // t.rows)
    text.add(f"    let flat = {FLAT};\n    let tile = flat % {tiles}u;", node)
    text.add(f"    let row = tile / {across}u * {t.rows}u;\n    let column = tile % {across}u * {t.columns}u;", node)
    worker = f"lane % {t.workers}u" if t.inner > 1 else "lane"
    text.add(f"    let worker = {worker};", node)
    text.add(f"    let down = worker / {t.wide}u;\n    let right = worker % {t.wide}u;", node)
    _part(text, product, t, tiles)
    for r in range(t.down):
        text.add("    " + " ".join(f"var c{r}_{j} = vec4<f32>();" for j in range(t.right // 4)), node)
    for u in range(_turns(t)):
        _copy_places(text, product, t, u)
        _load(text, product, t, u, "first", "    ")
    _loop(text, product, t)
    if t.inner > 1:
        _add_parts(text, product, t)
    _store(text, product, t)
    text.add("}")


def _sides(product: Product) -> tuple[tuple[str, int, bool], ...]:
    """(a or b, its extent beside K, whether K is its last axis)."""
    p = product.p
    return ("a", p.m, k_comes_last(p, "a")), ("b", p.n, k_comes_last(p, "b"))


def _head(text: Text, product: Product, t: Tiling) -> None:
    p = product.p
    split = f" in {t.inner * t.outer} parts of {t.steps(p.k)}" if t.inner * t.outer > 1 else ""
    text.add(
        f"// A group of {t.workers * t.inner} computes {t.rows} x {t.columns} of the {p.m} x {p.n} result, {t.down} x "
        f"{t.right} each: it copies\n// {t.depth} of the {p.k} steps{split} to workgroup memory, and loads the next "
        "meanwhile."
    )
    for name in "ab":
        size = t.inner * t.buffers * t.size(p, name)
        text.add(f"var<workgroup> tile_{name}: array<vec4<f32>, {size}>;")
    if t.inner > 1:
        text.add(f"var<workgroup> sums: array<vec4<f32>, {(t.inner - 1) * t.rows * t.columns // 4}>;")
    text.add("")


def _part(text: Text, product: Product, t: Tiling, tiles: int) -> None:
    """`first`: the first step of this part; where the parts of workgroup memory and of the result begin."""
    node, steps = product.node, t.steps(product.p.k)
    part = [f"flat / {tiles}u % {t.outer}u * {t.inner}u"] if t.outer > 1 else []  # % : a grid may be folded
    part += [f"lane / {t.workers}u"] if t.inner > 1 else []
    text.add(f"    let first = ({' + '.join(part)}) * {steps}u;" if part else "    let first = 0u;", node)
    for name in "ab":
        size = t.buffers * t.size(product.p, name)
        text.add(f"    var at_{name} = {f'lane / {t.workers}u * {size}u' if t.inner > 1 else '0u'};", node)


def _loop(text: Text, product: Product, t: Tiling) -> None:
    node, steps = product.node, t.steps(product.p.k)
    text.add(f"    for (var done = 0u; done < {steps}u; done += {t.depth}u) {{", node)
    if t.buffers == 1:
        text.add("        workgroupBarrier();", node)
    for u in range(_turns(t)):
        _keep(text, product, t, u)
    text.add("        workgroupBarrier();", node)
    text.add(f"        if (done + {t.depth}u < {steps}u) {{", node)
    for u in range(_turns(t)):
        _load(text, product, t, u, f"first + done + {t.depth}u", "            ")
    text.add("        }", node)
    for name, cell in (("a", "down"), ("b", "right")):
        text.add(f"        let t{name} = at_{name} + {cell};", node)
    for kk in range(t.depth):  # written out: a loop costs its counter and a bounds check at every turn
        text.add("        {", node)
        for name, count, stride in (("a", t.down // 4, t.high), ("b", t.right // 4, t.wide)):
            at = f"tile_{name}[t{name} + {{}}u]"
            begin = t.at(product.p, name, kk)
            loads = (f"let {name}{q} = {at.format(begin + q * stride)};" for q in range(count))
            text.add("            " + " ".join(loads), node)
        for r in range(t.down):
            terms = (f"c{r}_{j} += a{r // 4}.{LANES[r % 4]} * b{j};" for j in range(t.right // 4))
            text.add("            " + " ".join(terms), node)
        text.add("        }", node)
    if t.buffers == 2:
        for name in "ab":
            size = t.size(product.p, name)
            home = f"(lane / {t.workers}u * {2 * size}u) * 2u + {size}u" if t.inner > 1 else f"{size}u"
            text.add(f"        at_{name} = {home} - at_{name};", node)
    text.add("    }", node)


def _add_parts(text: Text, product: Product, t: Tiling) -> None:
    """The first part adds the sums of the others."""
    node, size = product.node, t.rows * t.columns // 4
    cells = [f"c{r}_{j}" for r in range(t.down) for j in range(t.right // 4)]
    text.add(f"    let part = lane / {t.workers}u;\n    if (part > 0u) {{", node)
    for n, cell in enumerate(cells):
        text.add(f"        sums[(part - 1u) * {size}u + {n * t.workers}u + worker] = {cell};", node)
    text.add("    }\n    workgroupBarrier();\n    if (part > 0u) {\n        return;\n    }", node)
    text.add(f"    for (var other = 0u; other < {t.inner - 1}u; other++) {{", node)
    for n, cell in enumerate(cells):
        text.add(f"        {cell} += sums[other * {size}u + {n * t.workers}u + worker];", node)
    text.add("    }", node)


# from memory to workgroup memory --------------------------------------------------------------------------------------
def _cases(product: Product, t: Tiling, u: int) -> list[tuple[str, bool, int, str]]:
    """What invocation `worker` copies in turn u: four of i from `i{u}` on, four of K from `k{u}` on; registers."""
    low, high, begin, found = u * t.workers, (u + 1) * t.workers, 0, []
    for side, _, k_last in _sides(product):
        end = begin + t.quads(side) * (t.depth // 4)
        if low < end and high > begin:
            condition = [f"turn{u} >= {begin}u"] if low < begin else []
            condition += [f"turn{u} < {end}u"] if high > end else []
            found.append((side, k_last, begin, " && ".join(condition)))
        begin = end
    return found


def _copy_places(text: Text, product: Product, t: Tiling, u: int) -> None:
    """What invocation `worker` copies in turn u: four of i from `i{u}` on, four of K from `k{u}` on; registers."""
    node = product.node
    text.add(f"    let turn{u} = worker + {u * t.workers}u;", node)
    i, k = "0u", "0u"
    for side, k_last, begin, condition in reversed(_cases(product, t, u)):
        at = f"(turn{u} - {begin}u)" if begin else f"turn{u}"
        quads, steps = t.quads(side), t.depth // 4
        # neighbouring invocations read neighbours in memory: along k where that is the last axis
        own_i, own_k = (f"{at} / {steps}u", f"{at} % {steps}u") if k_last else (f"{at} % {quads}u", f"{at} / {quads}u")
        own_i, own_k = f"{own_i} * 4u", f"{own_k} * 4u"
        i = f"select({i}, {own_i}, {condition})" if condition else own_i
        k = f"select({k}, {own_k}, {condition})" if condition else own_k
    text.add(f"    let i{u} = {i};\n    let k{u} = {k};", node)
    text.add("    " + " ".join(f"var next{u}_{q} = vec4<f32>();" for q in range(4)), node)


def _load(text: Text, product: Product, t: Tiling, u: int, start: str, indent: str) -> None:
    """Elements i … i + 3 of steps k … k + 3 as they lie in memory: a vec4 per step, or per i where K is the last axis.
    What lies beyond the edge or beyond K repeats other elements; no index leaves the operand."""
    for side, k_last, _, condition in _cases(product, t, u):
        text.add(f"{indent}if ({condition}) {{" if condition else f"{indent}{{", product.node)
        text.add(f"{indent}    let i = {'row' if side == 'a' else 'column'} + i{u};", product.node)
        text.add(f"{indent}    let k = {start} + k{u};", product.node)
        for q, value in enumerate(_values(product, t, side, k_last)):
            text.add(f"{indent}    next{u}_{q} = {value};", product.node)
        text.add(f"{indent}}}", product.node)


def _values(product: Product, t: Tiling, side: str, k_last: bool) -> list[str]:
    """The four vec4 from element (i, k) on."""
    p = product.p
    variable, wide = (product.a, product.wide_a) if side == "a" else (product.b, product.wide_b)
    extent, size = (p.m, t.rows) if side == "a" else (p.n, t.columns)
    ends, early = extent % size != 0, t.ends_early(p.k)

    def place(down: int, right: int, step: int) -> str:
        across, along = (down, right) if k_last else (right, down)
        i = _within(f"i + {across}u", extent - (1 if k_last else step), ends)
        k = _within(f"k + {along}u", p.k - (step if k_last else 1), early)
        return f"{i} * {p.k}u + {k}" if k_last else f"{k} * {extent}u + {i}"

    if wide and not ends and not early:  # so that one address serves all four
        row = (p.k if k_last else extent) // 4
        return [f"{variable}[({place(0, 0, 4)}) / 4u + {q * row}u]" for q in range(4)]
    if wide:
        return [f"{variable}[({place(q, 0, 4)}) / 4u]" for q in range(4)]
    cells = ([f"{variable}[{place(q, e, 1)}]" for e in range(4)] for q in range(4))
    return ["vec4<f32>(\n            " + ",\n            ".join(row) + ",\n        )" for row in cells]


def _within(index: str, last: int, ends: bool) -> str:
    """The index, clamped where it may lie beyond the last one."""
    return f"min({index}, {last}u)" if ends else f"({index})"


def _turns(t: Tiling) -> int:
    """How many 4 x 4 blocks an invocation copies."""
    return -(-(t.quads("a") + t.quads("b")) * (t.depth // 4) // t.workers)


def _keep(text: Text, product: Product, t: Tiling, u: int) -> None:
    """Steps one below another; zero beyond K."""
    for side, k_last, _, condition in _cases(product, t, u):
        quads, k = t.quads(side), product.p.k
        text.add(f"        if ({condition}) {{" if condition else "        {", product.node)
        steps = f"k{u} / 4u * {t.at(product.p, side, 4)}u"
        text.add(f"            let place = at_{side} + {steps} + i{u} / 4u;", product.node)
        for q in range(4):
            next = [f"next{u}_{e}" for e in range(4)]
            value = f"vec4<f32>({', '.join(f'{n}.{LANES[q]}' for n in next)})" if k_last else next[q]
            if t.ends_early(k):
                value = f"select(vec4<f32>(), {value}, first + done + k{u} + {q}u < {k}u)"
            text.add(f"            tile_{side}[place + {q * quads}u] = {value};", product.node)
        text.add("        }", product.node)


# to the result --------------------------------------------------------------------------------------------------------
def _store(text: Text, product: Product, t: Tiling) -> None:
    p, node = product.p, product.node
    rows_end, columns_end = p.m % t.rows != 0, p.n % t.columns != 0
    tiles = -(-p.n // t.columns) * -(-p.m // t.rows)
    text.add(f"    let begin = {f'flat / {tiles}u % {t.outer}u * {p.m * p.n}u' if t.outer > 1 else '0u'};", node)
    for r in range(t.down):
        text.add("    {", node)
        text.add(f"        let m = row + ({r // 4 * t.high}u + down) * 4u + {r % 4}u;", node)
        for j in range(t.right // 4):
            text.add(f"        let n{j} = column + ({j * t.wide}u + right) * 4u;", node)
            for line in _stores(product, r, j, rows_end, columns_end):
                text.add(f"        {line}", node)
        text.add("    }", node)


def _stores(product: Product, r: int, j: int, rows_end: bool, columns_end: bool) -> list[str]:
    p = product.p
    inside = [f"m < {p.m}u"] if rows_end else []
    if product.wide_out:
        conditions = inside + ([f"n{j} < {p.n}u"] if columns_end else [])
        one = f"store4(begin + m * {p.n}u + n{j}, c{r}_{j});"
        return [f"if ({' && '.join(conditions)}) {{ {one} }}" if conditions else one]
    lines = []
    for q in range(4):
        conditions = inside + ([f"n{j} + {q}u < {p.n}u"] if columns_end else [])
        one = f"store(begin + m * {p.n}u + n{j} + {q}u, c{r}_{j}.{LANES[q]});"
        lines.append(f"if ({' && '.join(conditions)}) {{ {one} }}" if conditions else one)
    return lines
