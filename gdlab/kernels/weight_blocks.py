"""Write the WGSL of products of few rows that decode many steps of four columns at once: of f16 and bf16 what one load
gives, of formats in blocks a whole block, so that scales count once a block and not once an element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gdlab.base.types import FORMATS, DType
from gdlab.kernels.pieces import LANES
from gdlab.plan.dispatch import Matmul
from gdlab.plan.spread import BLOCK


@dataclass(frozen=True, slots=True)
class _Codes:
    """The codes of a format: element e of a block lies in word and bits `place(e)` of the `words` of codes; `number`
    makes it a number. The element is that times the block's scale, plus `least` ("": nothing)."""

    words: int
    place: Callable[[int], tuple[int, int]]
    number: Callable[[str, int], str]
    least: str = ""

    def four(self, b: str, e: int) -> str:
        """Return the numbers of element e of four blocks, whose words are `{b}_codes{i}`."""
        word, bits = self.place(e)
        return f"vec4<f32>({self.number(f'{b}_codes{word}', bits)})"


def _nibble(words: str, bits: int) -> str:
    return f"({words} >> vec4<u32>({bits}u)) & vec4<u32>(15u)"


def _signed(words: str, bits: int) -> str:
    return f"bitcast<vec4<i32>>({words} << vec4<u32>({24 - bits}u)) >> vec4<u32>(24u)"


_CODES: dict[DType, _Codes] = {
    DType.q4_0: _Codes(4, lambda e: (e % 16 // 4, e % 4 * 8 + e // 16 * 4), _nibble, "-8.0 * {b}_scale"),
    DType.q8_0: _Codes(8, lambda e: (e // 4, e % 4 * 8), _signed),
}


_HALVES: dict[DType, tuple[str, str]] = {  # the first and the second number of a word
    DType.f16: ("unpack2x16float({}).x", "unpack2x16float({}).y"),
    DType.bf16: ("bitcast<f32>({} << 16u)", "bitcast<f32>({} & 0xffff0000u)"),
}


def read_blocks(b: str, variable: str, p: Matmul, dtype: DType) -> list[str]:
    """Return the lines that read the blocks at step `k` of the columns from `column` on: their words of codes as
    `{b}_codes{i}`, the scales as `{b}_scale`, what is added to the codes as `{b}_least`. Of f16 and bf16 these are
    eight neighbours of each column, `{b}_{column}`, bound as vec4<u32>."""
    columns = [f"min(column + {c}u, {p.n - 1}u)" for c in range(4)]
    if dtype in _HALVES:
        return [f"let {b}_{c} = {variable}[({column} * {p.k}u + k) / 8u];" for c, column in enumerate(columns)]
    return _packed(b, variable, columns, p.k, dtype)


def _packed(b: str, variable: str, columns: Sequence[str], k: int, dtype: DType) -> list[str]:
    """Read the blocks of four rows of b. A block is a scale in f16, then the codes; every other one begins within a
    word."""
    codes, nbytes, lines = _CODES[dtype], FORMATS[dtype].nbytes, list[str]()
    for c, column in enumerate(columns):
        lines.append(f"let {b}_at{c} = ({column} * {k // BLOCK}u + k / {BLOCK}u) * {nbytes}u;")
    lines.append(f"let {b}_begin = vec4<u32>({', '.join(f'{b}_at{c}' for c in range(4))}) & vec4<u32>(2u);")
    for i in range(codes.words + 1):
        four = ", ".join(f"{variable}[{b}_at{c} / 4u + {i}u]" for c in range(4))
        lines.append(f"let {b}_{i} = vec4<u32>({four});")
    halves = ", ".join(f"unpack2x16float({b}_0.{q} >> (8u * {b}_begin.{q})).x" for q in LANES)
    lines.append(f"let {b}_scale = vec4<f32>({halves});")
    if codes.least:
        lines.append(f"let {b}_least = {codes.least.format(b=b)};")
    return lines + [
        f"let {b}_codes{i} = select(({b}_{i} >> vec4<u32>(16u)) | ({b}_{i + 1} << vec4<u32>(16u)), {b}_{i + 1}, "
        f"{b}_begin > vec4<u32>());"
        for i in range(codes.words)
    ]


def add_codes(b: str, sums: str, rows: int, dtype: DType, i: int) -> list[str]:
    """Return the lines that add four elements `x{row}_{i}` of a block times their codes to `{sums}{row}_codes`; without
    scales times their weights to `{sums}{row}_0`."""
    lines, to = [], "codes" if has_scale(dtype) else "0"
    for lane in range(4):
        e = 4 * i + lane
        lines.append(f"let {b}{e} = {_CODES[dtype].four(b, e) if has_scale(dtype) else _half(b, e, dtype)};")
        lines += [f"{sums}{r}_{to} += x{r}_{i}.{LANES[lane]} * {b}{e};" for r in range(rows)]
    return lines


def _half(b: str, e: int, dtype: DType) -> str:
    """Return element e of eight neighbours of four columns."""
    each = _HALVES[dtype][e % 2]
    return f"vec4<f32>({', '.join(each.format(f'{b}_{c}.{LANES[e // 2]}') for c in range(4))})"


def add_block(b: str, sums: str, rows: int, dtype: DType) -> list[str]:
    """Return the lines that add the sums of a block, times its scale, to `{sums}{row}_0`; `x{row}_sum` is the sum of
    the row's elements."""
    least = f" + {b}_least * x{{r}}_sum" if has_least(dtype) else ""
    return [f"{sums}{r}_0 += {b}_scale * {sums}{r}_codes{least.format(r=r)};" for r in range(rows)]


def has_scale(dtype: DType) -> bool:
    """Return whether blocks of a format have scales."""
    return dtype in _CODES


def has_least(dtype: DType) -> bool:
    """Return whether something is added to the codes of a format, which counts for the sum of a row's elements."""
    return has_scale(dtype) and bool(_CODES[dtype].least)
