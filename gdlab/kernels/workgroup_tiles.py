"""Write the WGSL of matrix products on hardware: tiles of a and b meet in workgroup memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gdlab.kernels.pieces import LANES, LOOP, MEET, STORE, WHERE, WORK, WgslText, read_part
from gdlab.kernels.product import FLAT, MAIN, Product, k_comes_last, side_read
from gdlab.plan.dispatch import Matmul


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tiling of a product: a group computes `rows` x `columns` sums, `down` x `right` per invocation, `depth` steps
    of K at a time, with one or two `buffers` in workgroup memory. K is cut into `inner` parts that one group adds up,
    each of `outer` parts that groups of their own write one after another. Of two products the second has the right
    half of the tile, at the same columns of its own."""

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
        """Number of invocations one below the other."""
        return self.rows // self.down

    @property
    def wide(self) -> int:
        """Number of invocations side by side."""
        return self.columns // self.right

    @property
    def workers(self) -> int:
        """Number of invocations of one inner part."""
        return self.high * self.wide

    def own_columns(self, p: Matmul) -> int:
        """Return the columns of a result that a group computes."""
        return self.columns if p.dual is None else self.columns // 2

    def tiles(self, p: Matmul) -> int:
        """Return the number of tiles of a result."""
        return -(-p.n // self.own_columns(p)) * -(-p.m // self.rows)

    def steps(self, k: int) -> int:
        """Return the steps of K in one part, a multiple of `depth`."""
        tiles = -(-k // self.depth)
        return -(-tiles // (self.inner * self.outer)) * self.depth

    def ends_early(self, k: int) -> bool:
        """Return whether the last part has fewer steps of K than it walks."""
        return k != self.steps(k) * self.inner * self.outer

    def quads(self, side: str) -> int:
        """Return the number of vec4s in one step of a tile of workgroup memory, `a` or `b`."""
        return (self.rows if side == "a" else self.columns) // 4

    def at(self, p: Matmul, side: str, step: int) -> int:
        """Return the beginning of a step of a tile, in vec4s. Where K is the last axis, neighbours store four steps
        each: a gap after every four steps makes them meet different banks of workgroup memory."""
        gap = 32 // self.depth if k_comes_last(p, side) else 0
        return step * self.quads(side) + step // 4 * gap

    def size(self, p: Matmul, side: str) -> int:
        """Return the number of vec4s of one buffer."""
        return self.at(p, side, self.depth)


def shared_tiles(text: WgslText, product: Product, params: tuple[int, ...]) -> None:
    """Write a tile per group; the next steps are loaded to registers while the present ones are multiplied."""
    t = Tiling(*params)
    p, node = product.p, product.node
    _head(text, product, t)
    across, tiles = -(-p.n // t.own_columns(p)), t.tiles(p)
    with text.working(WHERE):
        text.add(f"@compute @workgroup_size({t.workers * t.inner})\n{MAIN}")
        text.add(f"    let flat = {FLAT};\n    let tile = flat % {tiles}u;", node)
        text.add(f"    let row = tile / {across}u * {t.rows}u;", node)
        text.add(f"    let column = tile % {across}u * {t.own_columns(p)}u;", node)
        worker = f"lane % {t.workers}u" if t.inner > 1 else "lane"
        text.add(f"    let worker = {worker};", node)
        text.add(f"    let down = worker / {t.wide}u;\n    let right = worker % {t.wide}u;", node)
        _part(text, product, t, tiles)
    with text.working(WORK):
        for r in range(t.down):
            text.add("    " + " ".join(f"var c{r}_{j} = vec4<f32>();" for j in range(t.right // 4)), node)
    _loop(text, product, t, _copies(text, product, t))
    if t.inner > 1:
        with text.working(MEET):
            _add_parts(text, product, t)
    with text.working(STORE):
        _store(text, product, t)
    text.add("}")


def _head(text: WgslText, product: Product, t: Tiling) -> None:
    p = product.p
    split = f" in {t.inner * t.outer} parts of {t.steps(p.k)}" if t.inner * t.outer > 1 else ""
    result = "result" if p.dual is None else "results of two products"
    text.add(
        f"// A group of {t.workers * t.inner} computes {t.rows} x {t.own_columns(p)} of the {p.m} x {p.n} {result}, "
        f"{t.down} x {t.right} each: it copies\n// {t.depth} of the {p.k} steps{split} to workgroup memory, and loads "
        "the next meanwhile."
    )
    for name in "ab":
        size = t.inner * t.buffers * t.size(p, name)
        with text.working(side_read(name)):
            text.add(f"var<workgroup> tile_{name}: array<vec4<f32>, {size}>;")
    if t.inner > 1:
        with text.working(MEET):
            text.add(f"var<workgroup> sums: array<vec4<f32>, {(t.inner - 1) * t.rows * t.columns // 4}>;")
    text.add("")


def _part(text: WgslText, product: Product, t: Tiling, tiles: int) -> None:
    """Write `first`, the first step of this part, and the start of its share of workgroup memory."""
    node, steps = product.node, t.steps(product.p.k)
    part = [f"flat / {tiles}u % {t.outer}u * {t.inner}u"] if t.outer > 1 else []  # % : a grid may be folded
    part += [f"lane / {t.workers}u"] if t.inner > 1 else []
    text.add(f"    let first = ({' + '.join(part)}) * {steps}u;" if part else "    let first = 0u;", node)
    for name in "ab":
        size = t.buffers * t.size(product.p, name)
        text.add(f"    var at_{name} = {f'lane / {t.workers}u * {size}u' if t.inner > 1 else '0u'};", node)


def _loop(text: WgslText, product: Product, t: Tiling, copies: list[TileCopy]) -> None:
    """Walk the steps of a part. `ahead`: the next steps are stored once these are multiplied, else in the next turn."""
    node, steps, ahead = product.node, t.steps(product.p.k), _ahead(product.p, t)
    more = f"        if (done + {t.depth}u < {steps}u) {{"
    _load(text, product, t, copies, "", "    ")
    if ahead:
        _keep(text, product, t, copies, "first", "    ")
        _barrier(text, node, "    ")
    with text.working(LOOP):
        text.add(f"    for (var done = 0u; done < {steps}u; done += {t.depth}u) {{", node)
    if t.buffers == 1:
        _barrier(text, node, "        ")
    if not ahead:
        _keep(text, product, t, copies, "first + done", "        ")
        _barrier(text, node, "        ")
    with text.working(LOOP):
        text.add(more, node)
    _load(text, product, t, copies, f"done + {t.depth}u", "            ")
    text.add("        }", node)
    with text.working(WORK):
        for name, cell in (("a", "down"), ("b", "right")):
            text.add(f"        let t{name} = at_{name} + {cell};", node)
    if not ahead:
        _swap(text, product, t)
    with text.working(WORK):
        _multiply(text, product, t)
    if ahead:
        _swap(text, product, t)
        with text.working(LOOP):
            text.add(more, node)
        _keep(text, product, t, copies, f"first + done + {t.depth}u", "            ")
        text.add("        }", node)
        _barrier(text, node, "        ")
    text.add("    }", node)


def _barrier(text: WgslText, node: int, indent: str) -> None:
    with text.working(MEET):
        text.add(f"{indent}workgroupBarrier();", node)


def _ahead(p: Matmul, t: Tiling) -> bool:
    """Return whether the next steps are stored after these: pays with large tiles; where K is the last axis of b the
    registers of an NVIDIA H200 no longer suffice for two groups at once (2048: 31.7 instead of 42.3 TFLOP/s,
    2026-11-21)."""
    return t.buffers == 2 and t.rows * t.columns >= 128 * 128 and not k_comes_last(p, "b")


def _swap(text: WgslText, product: Product, t: Tiling) -> None:
    """Switch to the other buffer, if there is one."""
    for name in "ab" if t.buffers == 2 else "":
        size = t.size(product.p, name)
        home = f"(lane / {t.workers}u * {2 * size}u) * 2u + {size}u" if t.inner > 1 else f"{size}u"
        with text.working(LOOP):
            text.add(f"        at_{name} = {home} - at_{name};", product.node)


def _multiply(text: WgslText, product: Product, t: Tiling) -> None:
    """Multiply the steps of a tile, written out: a loop costs its counter and a bounds check at every turn."""
    node = product.node
    for kk in range(t.depth):
        text.add("        {", node)
        for name, count, stride in (("a", t.down // 4, t.high), ("b", t.right // 4, t.wide)):
            begin = t.at(product.p, name, kk)
            loads = (f"let {name}{q} = tile_{name}[t{name} + {begin + q * stride}u];" for q in range(count))
            text.add("            " + " ".join(loads), node)
        for r in range(t.down):
            terms = (f"c{r}_{j} += a{r // 4}.{LANES[r % 4]} * b{j};" for j in range(t.right // 4))
            text.add("            " + " ".join(terms), node)
        text.add("        }", node)


def _add_parts(text: WgslText, product: Product, t: Tiling) -> None:
    """Add the sums of all parts in the first part."""
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
@dataclass(frozen=True, slots=True)
class Side:
    """Operand a or b, or e, the second product's b: its variable, its extent beside K in all and in a tile, whether K
    is its last axis; `home`: the tile that it is copied to, behind the first `before` elements of a step; `part`: the
    part of the work that reads it; `node`: what it is read for."""

    name: str
    variable: str
    wide: bool
    extent: int
    size: int
    first: str
    k_last: bool
    home: str
    part: str
    node: int
    before: int = 0

    @property
    def quads(self) -> int:
        """The number of vec4s that a step of the tile has of it."""
        return self.size // 4

    @property
    def ends(self) -> bool:
        """Whether the last tile goes beyond the edge."""
        return self.extent % self.size != 0


@dataclass(frozen=True, slots=True)
class TileCopy:
    """A vec4 that an invocation copies: variable `name`, elements from (`i`, `k`) on of operand `side`, to `place` in a
    buffer. `origin`: where it lies in memory at the first step, if one address serves all steps."""

    side: Side
    name: str
    i: str
    k: str
    place: str
    origin: str


def _sides(product: Product, t: Tiling) -> tuple[Side, ...]:
    p, node, own = product.p, product.node, t.own_columns(product.p)
    a = Side("a", product.a, product.wide_a, p.m, t.rows, "row", k_comes_last(p, "a"), "a", side_read("a"), node)
    b = Side("b", product.b, product.wide_b, p.n, own, "column", k_comes_last(p, "b"), "b", side_read("b"), node)
    if p.dual is None:
        return a, b
    return a, b, replace(b, name="e", variable=product.dual, part=read_part(p.dual_operand), node=p.dual, before=own)


def _copies(text: WgslText, product: Product, t: Tiling) -> list[TileCopy]:
    """Return the elements that invocation `worker` copies; neighbours read neighbours in memory. Its fours lie the same
    way apart for all: one address and one place serve them, which is what registers are short of."""
    found = list[TileCopy]()
    for s in _sides(product, t):
        with text.working(s.part):
            found += _copies_of(text, product, t, s)
    return found


def _copies_of(text: WgslText, product: Product, t: Tiling, s: Side) -> list[TileCopy]:
    found = list[TileCopy]()
    n, steps, quads, stride = s.name, t.depth // 4, s.quads, t.quads(s.home)
    own = f"worker / {steps}u", f"worker % {steps}u * 4u"
    own_i, own_k = own if s.k_last else (f"worker % {quads}u * 4u", f"worker / {quads}u")
    text.add(f"    let {n}_i = {own_i};\n    let {n}_k = {own_k};", s.node)
    stays = s.wide and not s.ends and not t.ends_early(product.p.k)
    if stays:
        at = _place(product.p, s, f"({s.first} + {n}_i)", f"first + {n}_k")
        text.add(f"    let {n}_from = ({at}) / 4u;", s.node)
    above = f"{n}_k / 4u * {t.at(product.p, s.home, 4)}u" if s.k_last else f"{n}_k * {stride}u"
    behind = f"{s.before // 4}u + " if s.before else ""
    text.add(f"    let {n}_place = {behind}{above} + {n}_i / 4u;", s.node)
    for u in range(max(1, quads * t.depth // t.workers)):
        text.add(f"    var {n}_next{u} = vec4<f32>();", s.node)
        i, k = (u * t.workers // steps, 0) if s.k_last else (0, u * t.workers // quads)
        origin = f"{n}_from + {(i * product.p.k if s.k_last else k * s.extent) // 4}u" if stays else ""
        place = f"{n}_place + {i // 4 + k * stride}u"
        found.append(TileCopy(s, f"{n}_next{u}", f"{n}_i + {i}u", f"{n}_k + {k}u", place, origin))
    return found


def _place(p: Matmul, s: Side, i: str, k: str) -> str:
    """Return the index of element (i, k) in memory."""
    return f"{i} * {p.k}u + {k}" if s.k_last else f"({k}) * {s.extent}u + {i}"


def _some(t: Tiling, c: TileCopy) -> str:
    """Return the condition of a copy, where a tile has fewer vec4s than a group has invocations."""
    total = c.side.quads * t.depth
    return f"if (worker < {total}u) " if total < t.workers else ""


def _load(text: WgslText, product: Product, t: Tiling, copies: list[TileCopy], done: str, indent: str) -> None:
    """Load the vec4s of the steps from `first` + `done` on, in the layout of memory. What lies beyond the edge or
    beyond K repeats other elements; no index leaves the operand."""
    for c in copies:  # in no block of their own: an NVIDIA H200 lost 9 % by that (2048, 2026-11-21)
        line, some = f"{c.name} = {_value(product.p, t, c, done)};", _some(t, c)
        with text.working(c.side.part):
            text.add(f"{indent}{some}{{ {line} }}" if some else indent + line, c.side.node)


def _value(p: Matmul, t: Tiling, c: TileCopy, done: str) -> str:
    s = c.side
    if c.origin:
        walked = f"({done}) / 4u" if s.k_last else f"({done}) * {s.extent // 4}u"
        return f"{s.variable}[{c.origin}{f' + {walked}' if done else ''}]"

    def place(more: int, step: int) -> str:
        across, along = (0, more) if s.k_last else (more, 0)
        i = _within(f"{s.first} + {c.i} + {across}u", s.extent - (1 if s.k_last else step), s.ends)
        start = f"first + {done}" if done else "first"
        k = _within(f"{start} + {c.k} + {along}u", p.k - (step if s.k_last else 1), t.ends_early(p.k))
        return _place(p, s, i, k)

    if s.wide:
        return f"{s.variable}[({place(0, 4)}) / 4u]"
    cells = (f"{s.variable}[{place(e, 1)}]" for e in range(4))
    return "vec4<f32>(\n                " + ",\n                ".join(cells) + "\n            )"


def _within(index: str, last: int, ends: bool) -> str:
    """Return the index, clamped where it may lie beyond the last one."""
    return f"min({index}, {last}u)" if ends else f"({index})"


def _keep(text: WgslText, product: Product, t: Tiling, copies: list[TileCopy], start: str, indent: str) -> None:
    """Store the loaded steps in workgroup memory, one below the other; zero beyond K."""
    for c in copies:
        with text.working(c.side.part):
            _keep_four(text, product, t, c, start, indent)


def _keep_four(text: WgslText, product: Product, t: Tiling, c: TileCopy, start: str, indent: str) -> None:
    node, k, n, value, into = c.side.node, product.p.k, c.side.name, c.name, c.side.home
    home = f"at_{into} + {c.place}"
    if t.ends_early(k):
        lanes = "vec4<u32>(0u, 1u, 2u, 3u)" if c.side.k_last else "vec4<u32>()"
        value = f"select(vec4<f32>(), {value}, {start} + {c.k} + {lanes} < vec4<u32>({k}u))"
    text.add(f"{indent}{_some(t, c)}{{", node)
    if c.side.k_last:  # invocations side by side meet different banks of workgroup memory
        text.add(f"{indent}    let value = {value};", node)
        for q in range(4):
            at = f"tile_{into}[{home} + {q * t.quads(into)}u][{n}_i % 4u]"
            text.add(f"{indent}    {at} = value.{LANES[q]};", node)
    else:
        text.add(f"{indent}    tile_{into}[{home}] = {value};", node)
    text.add(f"{indent}}}", node)


# to the result --------------------------------------------------------------------------------------------------------
def _store(text: WgslText, product: Product, t: Tiling) -> None:
    p, node = product.p, product.node
    rows_end, columns_end = p.m % t.rows != 0, p.n % t.own_columns(p) != 0
    begin = f"flat / {t.tiles(p)}u % {t.outer}u * {p.m * p.n}u" if t.outer > 1 else "0u"
    text.add(f"    let begin = {begin};", node)
    for r in range(t.down):
        text.add("    {", node)
        text.add(f"        let m = row + ({r // 4 * t.high}u + down) * 4u + {r % 4}u;", node)
        for j in range(t.right // 4 if p.dual is None else t.right // 8):
            text.add(f"        let n{j} = column + ({j * t.wide}u + right) * 4u;", node)
            sums = [f"c{r}_{j}"] if p.dual is None else [f"c{r}_{j}", f"c{r}_{j + t.right // 8}"]
            for line in _stores(product, sums, j, rows_end, columns_end):
                text.add(f"        {line}", node)
        text.add("    }", node)


def _stores(product: Product, sums: Sequence[str], j: int, rows_end: bool, columns_end: bool) -> list[str]:
    """Return the lines that store four neighbouring sums, of each product, at row m from column n{j} on."""
    p = product.p
    inside = [f"m < {p.m}u"] if rows_end else []
    if product.wide_out:
        conditions = inside + ([f"n{j} < {p.n}u"] if columns_end else [])
        one = f"store4(begin + m * {p.n}u + n{j}, {', '.join(sums)});"
        return [f"if ({' && '.join(conditions)}) {{ {one} }}" if conditions else one]
    lines = []
    for q in range(4):
        conditions = inside + ([f"n{j} + {q}u < {p.n}u"] if columns_end else [])
        each = ", ".join(f"{one}.{LANES[q]}" for one in sums)
        one = f"store(begin + m * {p.n}u + n{j} + {q}u, {each});"
        lines.append(f"if ({' && '.join(conditions)}) {{ {one} }}" if conditions else one)
    return lines
