"""Write the WGSL of matrix products in registers: tiles (software adapters), parts of K (small results)."""

from __future__ import annotations

from collections.abc import Sequence

from gdlab.kernels.pieces import LANES, LOOP, MEET, STORE, WHERE, WORK, WgslText, number, read_part
from gdlab.kernels.product import FLAT, MAIN, Product, side_read
from gdlab.kernels.weight_blocks import add_block, add_codes, has_least, has_scale, read_blocks
from gdlab.kernels.workgroup_tiles import shared_tiles
from gdlab.plan.dispatch import Matmul, RowNorm

NORMALIZED = "// Rows of a are normalized as they are read: times w here, over the root of mean squares below."

# one tile in registers ------------------------------------------------------------------------------------------------
class Tile:
    """The generator of the body that adds four steps of K to a tile of `rows` x 4·`quads` sums `c{row}_{quad}`.

    The tile begins at variables `row` and `column`; elements beyond the edge repeat the last one, and are not stored.
    With `guard` steps beyond K add nothing. Where the product normalizes, a is read times the weights of the norm, and
    the squares of each row are added up in `s{row}`. A dual product has sums `d{row}_{quad}` too, and `o{row}` where
    its rows are not those of a.
    """

    def __init__(self, product: Product, rows: int, quads: int, guard: bool) -> None:
        self.product, self.p, self.rows, self.quads, self.guard = product, product.p, rows, quads, guard
        self.factors = [("b", "c", product.b, product.node)]  # what begins a factor's variables, its sums; its binding
        self.rows_of = {"c": "a"}  # what begins the variables of rows, by sums
        if product.p.dual is not None:
            self.factors.append(("e", "d", product.dual, product.p.dual))
            self.rows_of["d"] = "o" if product.dual_rows else "a"

    def sums(self, text: WgslText) -> None:
        """Declare the sums."""
        with text.working(WORK):
            for _, sums, _, node in self.factors:
                for r in range(self.rows):
                    zeros = (f"var {sums}{r}_{j} = vec4<f32>();" for j in range(self.quads))
                    text.add("    " + " ".join(zeros), node)
            if self.p.norm is not None:
                text.add("    " + " ".join(f"var s{r} = 0.0;" for r in range(self.rows)), self.p.norm.node)

    def origins(self, text: WgslText, blocks: bool = False) -> None:
        """Write the first index of each row of a and of each column of b, which is not read in whole blocks."""
        with text.working(side_read("a")):
            self._origins_of_a(text)
        if not blocks:
            with text.working(side_read("b")):
                self._origins_of_b(text)

    def _origins_of_a(self, text: WgslText) -> None:
        p, node = self.p, self.product.node
        if p.a == "mk":
            for r in range(self.rows):
                text.add(f"    let a{r}_at = {self._row(r, p.m - 1)} * {p.k}u;", node)
        elif self._quad_rows():
            for q in range(self.rows // 4):
                text.add(f"    let a{q}_at = {self._row(4 * q, p.m - 4)};", node)
        else:
            for r in range(self.rows):
                text.add(f"    let a{r}_at = {self._row(r, p.m - 1)};", node)

    def _origins_of_b(self, text: WgslText) -> None:
        p, node = self.p, self.product.node
        for j in range(self.quads):
            if p.b == "kn" and self.product.wide_b:
                text.add(f"    let b{j}_at = {self._column(4 * j, p.n - 4)};", node)
                continue
            for c in range(4 * j, 4 * j + 4):
                scaled = f" * {p.k}u" if p.b == "nk" else ""
                text.add(f"    let b{c}_at = {self._column(c, p.n - 1)}{scaled};", node)

    def _row(self, r: int, last: int) -> str:
        return f"min(row + {r}u, {last}u)" if self.p.m % self.rows or self.guard else f"(row + {r}u)"

    def _column(self, c: int, last: int) -> str:
        return f"min(column + {c}u, {last}u)" if self.p.n % (4 * self.quads) or self.guard else f"(column + {c}u)"

    def _quad_rows(self) -> bool:
        """Return whether a, stored by columns, is read four rows at a time."""
        return self.product.wide_a and self.rows % 4 == 0

    def steps(self, text: WgslText, indent: str, count: int = 4) -> None:
        """Load the elements of `count` steps from `k` on, and multiply."""
        with text.working(side_read("a")):
            for line in self._load_a("a", self.product.a, count):
                text.add(indent + line, self.product.node)
        if self.p.dual is not None and self.product.dual_rows:
            with text.working(read_part(self.p.rows_operand)):
                for line in self._load_a("o", self.product.dual_rows, count):
                    text.add(indent + line, self.p.dual)
        for b, _, variable, node in self.factors:
            with text.working(side_read("b") if b == "b" else read_part(self.p.dual_operand)):
                for line in self._load_b(b, variable, count):
                    text.add(indent + line, node)
        if self.p.norm is not None:
            for part, line in zip((read_part(2), *[WORK] * self.rows), self._normalized(), strict=True):
                with text.working(part):
                    text.add(indent + line, self.p.norm.node)
        with text.working(WORK):
            for b, sums, _, node in self.factors:
                for kk in range(count):
                    for r in range(self.rows):
                        terms = (f"{sums}{r}_{j} += {self._a(sums, r, kk)} * {b}{kk}_{j};" for j in range(self.quads))
                        text.add(indent + " ".join(terms), node)

    def blocks(self, text: WgslText, indent: str, steps: int) -> None:
        """Load so many steps of each of four columns, and the elements of a for them, and multiply."""
        p, rows, dtype = self.p, self.rows, self.product.dtype
        for b, _, variable, node in self.factors:
            with text.working(side_read("b") if b == "b" else read_part(p.dual_operand)):
                text.add("\n".join(indent + line for line in read_blocks(b, variable, p, dtype)), node)
        with text.working(WORK):
            for _, sums, _, node in self.factors if has_scale(dtype) else ():
                for r in range(rows):
                    text.add(f"{indent}var {sums}{r}_codes = vec4<f32>();", node)
            if has_least(dtype):
                text.add(indent + " ".join(f"var x{r}_sum = 0.0;" for r in range(rows)), self.product.node)
        for i in range(steps // 4):
            self._four_of_rows(text, indent, i)
            with text.working(WORK):
                if has_least(dtype):
                    ones = " ".join(f"x{r}_sum += dot(x{r}_{i}, vec4<f32>(1.0));" for r in range(rows))
                    text.add(indent + ones, self.product.node)
                for b, sums, _, node in self.factors:
                    text.add("\n".join(indent + line for line in add_codes(b, sums, rows, dtype, i)), node)
        with text.working(WORK):
            for b, sums, _, node in self.factors if has_scale(dtype) else ():
                text.add("\n".join(indent + line for line in add_block(b, sums, rows, dtype)), node)

    def _four_of_rows(self, text: WgslText, indent: str, i: int) -> None:
        """Load `x{row}_{i}`, elements 4·i … 4·i + 3 of a block of each row, times the weights of the norm."""
        product, norm = self.product, self.p.norm
        with text.working(side_read("a")):
            for r in range(self.rows):
                name = f"x{r}_{i}" if norm is None else f"a{r}_{i}"
                text.add(f"{indent}let {name} = {_four(product.a, product.wide_a, f'a{r}_at + k', i)};", product.node)
        if norm is None:
            return
        with text.working(read_part(2)):
            text.add(f"{indent}let w{i} = {_four(product.weight, product.wide_weight, 'k', i)};", norm.node)
        with text.working(WORK):
            for r in range(self.rows):
                text.add(f"{indent}let x{r}_{i} = a{r}_{i} * w{i}; s{r} += dot(a{r}_{i}, a{r}_{i});", norm.node)

    def _a(self, sums: str, r: int, kk: int) -> str:
        name = self.rows_of[sums]
        if self.p.norm is not None:
            return f"x{r}.{LANES[kk]}"
        if self.p.a == "mk" and self.product.wide_a:
            return f"{name}{r}.{LANES[kk]}"
        if self.p.a == "km" and self._quad_rows():
            return f"{name}{kk}_{r // 4}.{LANES[r % 4]}"
        return f"{name}{r}_{kk}"

    def _normalized(self) -> list[str]:
        """Return the lines that make `x{row}`, four elements of a row times their weights, and add their squares."""
        weight = self.product.weight
        four = ", ".join(f"{weight}[k + {q}u]" for q in range(4))
        lines = [f"let w = {f'{weight}[k / 4u]' if self.product.wide_weight else f'vec4<f32>({four})'};"]
        for r in range(self.rows):
            a = f"a{r}" if self.product.wide_a else f"vec4<f32>({', '.join(f'a{r}_{kk}' for kk in range(4))})"
            lines.append(f"let x{r} = {a} * w; s{r} += dot({a}, {a});")
        return lines

    def _load_a(self, name: str, a: str, count: int) -> list[str]:
        """Return the lines that read `{name}{row}…` from a binding, which is laid out as a."""
        p = self.p
        if p.a == "mk":
            if self.product.wide_a:
                return [f"let {name}{r} = {a}[(a{r}_at + k) / 4u];" for r in range(self.rows)]
            return [
                f"let {name}{r}_{kk} = {self._safe(f'{a}[a{r}_at + {self._k(kk)}]', kk)};"
                for r in range(self.rows)
                for kk in range(count)
            ]
        if self._quad_rows():
            four = f"{a}[({{k}} * {p.m}u + a{{q}}_at) / 4u]"
            return [
                f"let {name}{kk}_{q} = {self._safe(four.format(k=self._k(kk), q=q), kk, 'vec4<f32>()')};"
                for kk in range(count)
                for q in range(self.rows // 4)
            ]
        return [
            f"let {name}{r}_{kk} = {self._safe(self._element(a, f'{self._k(kk)} * {p.m}u + a{r}_at'), kk)};"
            for r in range(self.rows)
            for kk in range(count)
        ]

    def _element(self, variable: str, index: str) -> str:
        """Return one element of a, whether or not it is bound as vec4."""
        return f"{variable}[({index}) / 4u][({index}) % 4u]" if self.product.wide_a else f"{variable}[{index}]"

    def _load_b(self, name: str, b: str, count: int) -> list[str]:
        """Return the lines that read `{name}{step}_{quad}` from a binding."""
        p = self.p
        if p.b == "kn" and self.product.wide_b:
            return [
                f"let {name}{kk}_{j} = {b}[({self._k(kk)} * {p.n}u + b{j}_at) / 4u];"
                for kk in range(count)
                for j in range(self.quads)
            ]
        if self.product.blocks_b:
            return self._by_columns(name, f"{b}_four(k, b{{c}}_at)")
        if p.b == "kn":
            at = "{b}[{k} * {n}u + b{c}_at]"
        elif not self.product.wide_b:
            at = "{b}[b{c}_at + {k}]"
        else:
            return self._by_columns(name, f"{b}[(b{{c}}_at + k) / 4u]")
        return [
            f"let {name}{kk}_{j} = vec4<f32>("
            + ", ".join(at.format(b=b, k=self._k(kk), n=p.n, c=4 * j + q) for q in range(4))
            + ");"
            for kk in range(count)
            for j in range(self.quads)
        ]

    def _by_columns(self, name: str, four: str) -> list[str]:
        """Read four steps of each column at once, and transpose them to four columns per step."""
        column = "q" if name == "b" else "p"
        lines = [f"let {column}{c} = {four.format(c=c)};" for c in range(4 * self.quads)]
        return lines + [
            f"let {name}{kk}_{j} = vec4<f32>({', '.join(f'{column}{4 * j + q}.{LANES[kk]}' for q in range(4))});"
            for kk in range(4)
            for j in range(self.quads)
        ]

    def _k(self, kk: int) -> str:
        """Return step kk, clamped to the last one where it may lie beyond."""
        plain = f"(k + {kk}u)" if kk else "k"
        return f"min({plain}, {self.p.k - 1}u)" if self.guard and self.p.k % 4 else plain

    def _safe(self, value: str, kk: int, zero: str = "0.0") -> str:
        """Return the value, or zero beyond K: one such factor is enough, but the other, clamped, must be finite."""
        if not self.guard or self.p.k % 4 == 0:
            return value
        return f"select({zero}, {value}, k + {kk}u < {self.p.k}u)"

    def store(self, text: WgslText) -> None:
        """Store the sums that lie inside the result."""
        with text.working(STORE):
            for r in range(self.rows):
                self._store_row(text, r)

    def _store_row(self, text: WgslText, r: int) -> None:
        p, node = self.p, self.product.node
        rows_end = p.m % self.rows != 0
        indent = "        " if rows_end else "    "
        if rows_end:
            text.add(f"    if (row + {r}u < {p.m}u) {{", node)
        text.add("\n".join(indent + line for line in self._stores(r)), node)
        if rows_end:
            text.add("    }", node)

    def _stores(self, r: int) -> list[str]:
        p, columns_end = self.p, self.p.n % (4 * self.quads) != 0
        lines = []
        for j in range(self.quads):
            at = f"(row + {r}u) * {p.n}u + column + {4 * j}u"
            if self.product.wide_out:
                one = f"store4({at}, c{r}_{j});"
                lines.append(f"if (column + {4 * j}u < {p.n}u) {{ {one} }}" if columns_end else one)
                continue
            for q in range(4):
                one = f"store({at} + {q}u, c{r}_{j}.{LANES[q]});"
                lines.append(f"if (column + {4 * j + q}u < {p.n}u) {{ {one} }}" if columns_end else one)
        return lines


def _four(variable: str, wide: bool, at: str, i: int) -> str:
    """Return elements at + 4·i … at + 4·i + 3 of a binding, which holds vec4 where `wide`."""
    if wide:
        return f"{variable}[({at}) / 4u + {i}u]"
    return f"vec4<f32>({', '.join(f'{variable}[{at} + {4 * i + q}u]' for q in range(4))})"


def register_tiles(text: WgslText, product: Product, params: tuple[int, ...]) -> None:
    """Write a tile per invocation, read straight from memory: the form for software adapters."""
    rows, columns = params
    p, node = product.p, product.node
    across = -(-p.n // columns)
    tile = Tile(product, rows, columns // 4, guard=False)
    text.add(
        f"// One invocation computes a {rows} x {columns} tile of the {p.m} x {p.n} result in registers: of four\n"
        f"// steps at a time (of {p.k}) it reads {rows} x 4 elements of a and 4 x {columns} of b, straight from memory."
    )
    with text.working(WHERE):
        text.add(f"@compute @workgroup_size(8)\n{MAIN}")
        text.add(f"    let tile = ({FLAT}) * 8u + lane;", node)
        text.add(f"    if (tile >= {-(-p.m // rows) * across}u) {{\n        return;\n    }}", node)
        text.add(f"    let row = tile / {across}u * {rows}u;\n    let column = tile % {across}u * {columns}u;", node)
    tile.origins(text)
    tile.sums(text)
    if p.k >= 4:
        with text.working(LOOP):
            text.add(f"    for (var k = 0u; k < {p.k // 4 * 4}u; k += 4u) {{", node)
        tile.steps(text, "        ")
        text.add("    }", node)
    if p.k % 4:
        with text.working(LOOP):
            text.add(f"    {{\n        let k = {p.k // 4 * 4}u;", node)
        tile.steps(text, "        ", p.k % 4)
        text.add("    }", node)
    tile.store(text)
    text.add("}")


def _begin_parts(
    text: WgslText, product: Product, of: str, memory: Sequence[str], parts: int, beside: int, rows: int, steps: int = 4
) -> None:
    """Open a kernel whose group computes its part of the result in `parts` parts of K, `beside` invocations each."""
    who = "one invocation has" if beside == 1 else f"{beside} invocations have"
    each = "" if beside == 1 else " each"
    text.add(
        f"// A group computes {of}, and takes K in {parts} parts: of every {steps * parts} steps each part\n"
        f"// has {steps}. In a part {who} {rows} x 4 sums{each}, straight from memory; workgroup memory adds the parts."
    )
    with text.working(MEET):
        text.add("".join(f"var<workgroup> {each};\n" for each in memory))
    with text.working(WHERE):
        text.add(f"@compute @workgroup_size({parts * beside})\n{MAIN}")


def k_groups(text: WgslText, product: Product, params: tuple[int, ...]) -> None:
    """Write tiles of few rows and 16 columns, a group each, whose parts of K are added in workgroup memory: small
    results on hardware."""
    p, node = product.p, product.node
    rows, _, parts = params
    across = -(-p.n // 16)
    tile = Tile(product, 4, 1, guard=True)
    of = f"a {rows} x 16 tile of the {p.m} x {p.n} result{'' if p.dual is None else 's of two products'}"
    if p.norm is not None:
        text.add(NORMALIZED)
    _begin_parts(text, product, of, [f"parts: array<vec4<f32>, {4 * rows * parts}>"], parts, rows, 4)
    with text.working(WHERE):
        text.add(f"    let tile = {FLAT};", node)
        text.add(f"    if (tile >= {-(-p.m // rows) * across}u) {{\n        return;\n    }}", node)
        text.add(f"    let part = lane / {rows}u;\n    let cell = lane % {rows}u;", node)
        text.add(f"    let row = tile / {across}u * {rows}u + cell / 4u * 4u;", node)
        text.add(f"    let column = tile % {across}u * 16u + cell % 4u * 4u;", node)
    tile.origins(text)
    tile.sums(text)
    with text.working(LOOP):
        text.add(f"    for (var k = part * 4u; k < {p.k}u; k += {4 * parts}u) {{", node)
    tile.steps(text, "        ")
    text.add("    }", node)
    with text.working(MEET):
        _add_parts(text, tile, rows)
    with text.working(STORE):
        text.add(
            f"    let m = tile / {across}u * {rows}u + lane % {rows}u / 4u * 4u + lane / {rows}u;\n"
            f"    let n = tile % {across}u * 16u + lane % 4u * 4u;",
            node,
        )
        text.add(f"    if (m < {p.m}u) {{", node)
        own = [f"{name}_sum" for _, name, _, _ in tile.factors]
        _store_row(text, product, own if p.norm is None else _scaled(text, p, p.norm, "s_sum", own))
    text.add("    }\n}", node)


def _add_parts(text: WgslText, tile: Tile, rows: int) -> None:
    """Add the sums of all parts, of one product after another: each of 256 invocations adds four sums, invocation
    `cell` + `rows`·r < 4·`rows` the rest of row r of a cell, `{name}_sum`; squares of rows are added before them."""
    norm, node = tile.p.norm, tile.product.node
    text.add("    let own = lane / 64u * 256u + lane % 64u;", node)
    if norm is not None:
        text.add("    parts[lane] = vec4<f32>(s0, s1, s2, s3);\n    workgroupBarrier();", norm.node)
        text.add("    var s_sum = 0.0;\n    for (var i = lane % 64u; i < 256u; i += 64u) {", norm.node)
        text.add("        s_sum += parts[i][lane / 64u];\n    }\n    workgroupBarrier();", norm.node)
    for i, (_, name, _, each) in enumerate(tile.factors):
        if i > 0:
            text.add("    workgroupBarrier();", each)
        text.add("\n".join(f"    parts[lane + {256 * r}u] = {name}{r}_0;" for r in range(4)), each)
        text.add("    workgroupBarrier();", each)
        four = " + ".join(f"parts[own + {64 * j}u]" if j else "parts[own]" for j in range(4))
        text.add(f"    var {name}_sum = {four};", each)
    sums = [(f"{name}_sum", "", each) for _, name, _, each in tile.factors]
    sums += [] if norm is None else [("s_sum", ".x", norm.node)]
    for i, (name, lane, each) in enumerate(sums):  # no other invocation reads these places before the barrier
        text.add(f"    parts[own + {64 * i}u]{lane} = {name};", each)
    text.add(f"    workgroupBarrier();\n    if (lane >= {4 * rows}u) {{\n        return;\n    }}", node)
    text.add(f"    let first = lane / {rows}u * 256u + lane % {rows}u;", node)
    text.add("\n".join(f"    {name} = 0.0;" if lane else f"    {name} = vec4<f32>();" for name, lane, _ in sums), node)
    text.add(f"    for (var i = first; i < first + 64u; i += {rows}u) {{", node)
    for i, (name, lane, each) in enumerate(sums):
        text.add(f"        {name} += parts[i + {64 * i}u]{lane};" if i else f"        {name} += parts[i]{lane};", each)
    text.add("    }", node)


def vectors(text: WgslText, product: Product, params: tuple[int, ...]) -> None:
    """Write few rows times four columns per part of K, added in workgroup memory: every weight is read once."""
    p, node = product.p, product.node
    rows, wide, parts, steps = params
    group, tiles = wide * parts, -(-p.n // (4 * wide))
    tile = Tile(product, rows, 1, guard=p.k % 4 != 0 or p.n % (4 * wide) != 0)
    of = f"{4 * wide} columns of the {p.m} x {p.n} result{'' if p.dual is None else 's of two products'}"
    sums = [(f"{name}{r}_0", f"{name}_sums", r, node) for _, name, _, node in tile.factors for r in range(rows)]
    memory = [f"{name}_sums: array<vec4<f32>, {rows * group}>" for _, name, _, _ in tile.factors]
    if p.norm is not None:
        text.add(NORMALIZED)
        memory.append(f"squares: array<f32, {rows * group}>")
        sums += [(f"s{r}", "squares", r, p.norm.node) for r in range(rows)]
    _begin_parts(text, product, of, memory, parts, wide, rows, steps)
    with text.working(WHERE):
        text.add(f"    let tile = {FLAT};\n    if (tile >= {tiles}u) {{\n        return;\n    }}", node)
        text.add(f"    let part = lane / {wide}u;\n    let row = 0u;", node)
        text.add(f"    let column = (tile * {wide}u + lane % {wide}u) * 4u;", node)
    tile.origins(text, blocks=steps > 4)
    tile.sums(text)
    with text.working(LOOP):
        text.add(f"    for (var k = part * {steps}u; k < {p.k}u; k += {steps * parts}u) {{", node)
    if steps > 4:
        tile.blocks(text, "        ", steps)
    else:
        tile.steps(text, "        ")
    text.add("    }", node)
    with text.working(MEET):
        for one, place, r, each in sums:
            text.add(f"    {place}[{r * group}u + lane] = {one};", each)
        text.add(f"    for (var half = {parts // 2}u; half > 0u; half /= 2u) {{\n        workgroupBarrier();", node)
        text.add("        if (part < half) {", node)
        for one, place, r, each in sums:
            text.add(f"            {one} += {place}[{r * group}u + lane + half * {wide}u];", each)
            text.add(f"            {place}[{r * group}u + lane] = {one};", each)
        text.add("        }\n    }", node)
    with text.working(STORE):
        text.add("    if (part > 0u) {\n        return;\n    }", node)
        for r in range(rows):
            text.add(f"    {{\n        let m = {r}u;\n        let n = column;", node)
            own = [f"{name}{r}_0" for _, name, _, _ in tile.factors]
            _store_row(text, product, own if p.norm is None else _scaled(text, p, p.norm, f"s{r}", own))
            text.add("    }", node)
    text.add("}")


def _scaled(text: WgslText, p: Matmul, norm: RowNorm, squares: str, sums: Sequence[str]) -> list[str]:
    """Write what scales the sums of a row, and return them scaled."""
    text.add(f"        let size = inverseSqrt({squares} / {number(p.k)} + {number(norm.eps)});", norm.node)
    return [f"size * {one}" for one in sums]


def _store_row(text: WgslText, product: Product, values: Sequence[str]) -> None:
    """Store four neighbouring sums (of each product) at row m from column n on, as far as they lie inside."""
    n, node = product.p.n, product.node
    if product.wide_out:
        text.add(f"        if (n < {n}u) {{ store4(m * {n}u + n, {', '.join(values)}); }}", node)
        return
    for q in range(4):
        each = ", ".join(f"({value}).{LANES[q]}" for value in values)
        text.add(f"        if (n + {q}u < {n}u) {{ store(m * {n}u + n + {q}u, {each}); }}", node)


WRITERS = {"registers": register_tiles, "k-parallel": k_groups, "tile": shared_tiles, "vector": vectors}
