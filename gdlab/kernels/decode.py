"""Decode buffers of a storage dtype: every `in1[i]` of a finished kernel becomes a call that decodes element i."""

from __future__ import annotations

import re
from collections.abc import Callable

from gdlab.base.types import FORMATS, DType
from gdlab.kernels.pieces import WgslText
from gdlab.plan.dispatch import Dispatch, Matmul, Operand


def decode(text: WgslText, d: Dispatch) -> None:
    """Rewrite the lines of a kernel, and append one function per buffer that needs it."""
    numbers = {buffer: i for i, (buffer, _) in enumerate(d.bindings)}
    stored = {o.buffer: o for o in d.operands if o.dtype.is_storage}
    for buffer, operand in stored.items():
        if whole_blocks(d, operand):
            continue
        name = f"in{numbers[buffer]}"
        four = decodes_four(d, operand)
        function = "four" if four else "decoded"
        text.lines = [_calls(line, f"{name}[", f"{name}_{function}(u32(") for line in text.lines]
        if four and operand.dtype in STEPS_OF_COLUMNS:
            text.add(f"\n{STEPS_OF_COLUMNS[operand.dtype].format(name=name, columns=operand.shape[1])}")
        elif four and operand.dtype in _PAIRS:
            text.add(f"\n{_PAIRS[operand.dtype].format(name=name)}")
        elif operand.dtype in _FUNCTIONS:
            text.add("\n" + _FUNCTIONS[operand.dtype](name, operand))
        else:
            text.add("\n" + _block(name, operand, _stride(d), four))


def _calls(line: str, old: str, new: str) -> str:
    """Replace each `old…]` of a line by `new…))`, brackets inside it included."""
    at = line.find(old)
    while at >= 0:
        depth, end = 1, at + len(old)
        while depth:
            depth += {"[": 1, "]": -1}.get(line[end], 0)
            end += 1
        line = line[:at] + new + line[at + len(old) : end - 1] + "))" + line[end:]
        at = line.find(old, at + len(new))
    return line


def _half(name: str, operand: Operand) -> str:
    return f"""// f16, two in a word.
fn {name}_decoded(i: u32) -> f32 {{
    let pair = unpack2x16float({name}[i / 2u]);
    return select(pair.x, pair.y, i % 2u == 1u);
}}
"""


def _head(name: str, operand: Operand, what: str) -> str:
    columns, block, words = operand.shape[1], FORMATS[operand.dtype].block, FORMATS[operand.dtype].nbytes // 4
    return f"""// {what}
fn {name}_decoded(i: u32) -> f32 {{
    let at = i / {columns}u % {block}u;
    let block = (i / {block * columns}u * {columns}u + i % {columns}u) * {words}u;"""


def _q4(name: str, operand: Operand) -> str:
    return f"""{_head(name, operand, "q4: a word with step and minimum in f16, then four words of eight codes each.")}
    let code = ({name}[block + 1u + at / 8u] >> (at % 8u * 4u)) & 15u;
    let step = unpack2x16float({name}[block]);
    return step.y + step.x * f32(code);
}}
"""


def _q8(name: str, operand: Operand) -> str:
    return f"""{_head(name, operand, "q8: the step in f32, then eight words of four signed codes each.")}
    let code = bitcast<i32>({name}[block + 1u + at / 4u] << (24u - at % 4u * 8u)) >> 24u;
    return bitcast<f32>({name}[block]) * f32(code);
}}
"""


# bf16 and the formats of ggml -----------------------------------------------------------------------------------------
def _brain(name: str, operand: Operand) -> str:
    return f"""// bf16, two in a word.
fn {name}_decoded(i: u32) -> f32 {{
    return bitcast<f32>(({name}[i / 2u] >> (i % 2u * 16u)) << 16u);
}}
"""


# Element e of the block of ggml that begins at byte `base`, as in ggml-quants.c; `byte`, `half`, `signed`, `word` read
# there. What differs between neighbours goes through `part(at, shift, mask)`, the bits of byte `at` of element e,
# `signs(at)`, that byte as a signed number, `bits(word, e)` and `number`: so one text decodes one element, and four
# neighbours that begin at a multiple of four, which have one step.
_SIXES = """    let j = e / 32u;
    let s = base + 4u;
    var step = byte(s + j) & 63u;
    var least = byte(s + j + 4u) & 63u;
    if (j >= 4u) {
        step = (byte(s + j + 4u) & 15u) | ((byte(s + j - 4u) >> 6u) << 4u);
        least = (byte(s + j + 4u) >> 4u) | ((byte(s + j) >> 6u) << 4u);
    }
"""
_OF_SIXES = "    return half(base) * f32(step) * number(code) - half(base + 2u) * f32(least);"
_PLACES = """    let h = e / 128u;
    let g = e % 128u / 32u;
    let l = e % 32u;
"""
_NIBBLE = "part(base + {at}u + e % 16u, e / 16u * 4u, 15u)"
_BODIES: dict[DType, str] = {
    DType.q4_0: f"    return half(base) * (number({_NIBBLE.format(at=2)}) - 8.0);",
    DType.q4_1: f"    return half(base) * number({_NIBBLE.format(at=4)}) + half(base + 2u);",
    DType.q5_0: f"    let code = {_NIBBLE.format(at=6)} | (bits(word(base + 2u), e) * 16u);\n"
    "    return half(base) * (number(code) - 16.0);",
    DType.q5_1: f"    let code = {_NIBBLE.format(at=8)} | (bits(word(base + 4u), e) * 16u);\n"
    "    return half(base) * number(code) + half(base + 2u);",
    DType.q8_0: "    return half(base) * signs(base + 2u + e);",
    DType.q4_k: f"""{_SIXES}    let code = part(base + 16u + e / 64u * 32u + e % 32u, j % 2u * 4u, 15u);
{_OF_SIXES}""",
    DType.q5_k: f"""{_SIXES}    let low = part(base + 48u + e / 64u * 32u + e % 32u, j % 2u * 4u, 15u);
    let code = low | (part(base + 16u + e % 32u, j, 1u) * 16u);
{_OF_SIXES}""",
    DType.q6_k: f"""{_PLACES}    let low = part(base + 64u * h + 32u * (g & 1u) + l, g / 2u * 4u, 15u);
    let high = part(base + 128u + 32u * h + l, 2u * g, 3u);
    return half(base + 208u) * signed(base + 192u + e / 16u) * (number(low | (high * 16u)) - 32.0);""",
    DType.q2_k: """    let scale = byte(base + e / 16u);
    let code = part(base + 16u + e / 128u * 32u + e % 32u, e % 128u / 32u * 2u, 3u);
    return half(base + 80u) * f32(scale & 15u) * number(code) - half(base + 82u) * f32(scale >> 4u);""",
    DType.q3_k: f"""{_PLACES}    let b = e / 16u;
    let low = (byte(base + 96u + b % 8u) >> (b / 8u * 4u)) & 15u;
    let scale = low | (((byte(base + 104u + b % 4u) >> (b / 4u * 2u)) & 3u) << 4u);
    let code = part(base + 32u + 32u * h + l, 2u * g, 3u);
    let minus = 4.0 - 4.0 * number(part(base + l, 4u * h + g, 1u));
    return half(base + 108u) * (f32(scale) - 32.0) * (number(code) - minus);""",
}
_READERS = """fn byte(at: u32) -> u32 {
    return (words[at / 4u] >> (at % 4u * 8u)) & 255u;
}

fn signed(at: u32) -> f32 {
    return f32(bitcast<i32>(byte(at) << 24u) >> 24u);
}

fn half(at: u32) -> f32 {
    return unpack2x16float(words[at / 4u] >> (at % 4u * 8u)).x;
}

fn word(at: u32) -> u32 {
    let shift = at % 4u * 8u;
    return (words[at / 4u] >> shift) | ((words[(at + 3u) / 4u] << 1u) << (31u - shift));
}
"""
_ONE = """fn part(at: u32, shift: u32, mask: u32) -> u32 {
    return (byte(at) >> shift) & mask;
}

fn signs(at: u32) -> f32 {
    return signed(at);
}

fn bits(word: u32, e: u32) -> u32 {
    return (word >> e) & 1u;
}

fn number(code: u32) -> f32 {
    return f32(code);
}

fn decoded(i: u32) -> f32 {
"""
_FOUR = """fn part(at: u32, shift: u32, mask: u32) -> vec4<u32> {
    return (vec4<u32>(word(at)) >> (vec4<u32>(0u, 8u, 16u, 24u) + shift)) & vec4<u32>(mask);
}

fn signs(at: u32) -> vec4<f32> {
    return vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(word(at)) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}

fn bits(word: u32, e: u32) -> vec4<u32> {
    return (vec4<u32>(word) >> (vec4<u32>(0u, 1u, 2u, 3u) + e)) & vec4<u32>(1u);
}

fn number(code: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(code);
}

fn four(q: u32) -> vec4<f32> {
    let i = q * 4u;
"""
_OWN = re.compile(r"\b(byte|signed|half|word|part|signs|bits|number|decoded|four)\(")


def decodes_four(d: Dispatch, operand: Operand) -> bool:
    """Return whether a kernel decodes four neighbours of an operand at a time: a product in registers or of few rows
    whose steps lie side by side in a block, which is then read a quarter as often (lavapipe, 1, 4 and 8 rows times 1024
    x 1024: q4_0 0.39, 0.44, 0.36 of the time, q4_k 0.20, 0.25, 0.29, q6_k 0.26, 0.28, 0.30, q4 and q8 0.3, 0.4, 0.45;
    2026-11-23)."""
    kind = d.variant.split()[0] if d.matmul is not None else ""
    if d.matmul is None or kind not in ("registers", "vector") or not _is_factor(d, d.matmul, operand):
        return False
    if operand.dtype in STEPS_OF_COLUMNS:
        return d.matmul.b == "kn" and d.matmul.k % 4 == 0
    halves = kind == "vector" and operand.dtype in _PAIRS and operand.shape[-1] % 4 == 0
    return d.matmul.b == "nk" and (halves or operand.dtype in _BODIES)


def whole_blocks(d: Dispatch, operand: Operand) -> bool:
    """Return whether a product of few rows reads many steps of an operand at once, and decodes them itself."""
    vector = d.matmul is not None and d.variant.startswith("vector ") and d.params[3] > 4
    return vector and d.matmul is not None and _is_factor(d, d.matmul, operand)


def _is_factor(d: Dispatch, p: Matmul, operand: Operand) -> bool:
    """Return whether an operand is a second factor alone: not read one by one as the rows too."""
    if [o.buffer for o in d.operands].count(operand.buffer) > 1:
        return False
    return any(operand is d.operands[k] for k in ([1] if p.dual is None else [1, p.dual_operand]))


def _block(name: str, operand: Operand, stride: int, four: bool) -> str:
    """Return the function that decodes a block format of ggml. Blocks are packed bytes, at any even address; matrices
    lie `stride` bytes apart, or close together (0)."""
    format = FORMATS[operand.dtype]
    base = f"i / {format.block}u * {format.nbytes}u"
    if stride:
        matrix = operand.shape[-2] * operand.shape[-1]
        base = f"i / {matrix}u * {stride}u + i % {matrix}u / {format.block}u * {format.nbytes}u"
    text = f"""{_READERS}
{_FOUR if four else _ONE}    let e = i % {format.block}u;
    let base = {base};
{_BODIES[operand.dtype]}
}}
"""
    own = _OWN.sub(rf"{name}_\1(", text).replace("words[", f"{name}[")
    return f"// {format.name} of ggml: {format.block} elements in {format.nbytes} bytes.\n{own}"


def _stride(d: Dispatch) -> int:
    """Return the bytes between two matrices in blocks; 0 where they lie close together."""
    return dict(d.custom.integers).get("STRIDE", 0) if d.custom is not None else 0


STEPS_OF_COLUMNS: dict[DType, str] = {  # four steps of a column, from a multiple of four on
    DType.q4: """// q4: four steps of a column.
fn {name}_four(k: u32, column: u32) -> vec4<f32> {{
    let block = (k / 32u * {columns}u + column) * 5u;
    let word = {name}[block + 1u + k % 32u / 8u] >> (k % 8u * 4u);
    let codes = (vec4<u32>(word) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
    let step = unpack2x16float({name}[block]);
    return step.y + step.x * vec4<f32>(codes);
}}
""",
    DType.q8: """// q8: four steps of a column.
fn {name}_four(k: u32, column: u32) -> vec4<f32> {{
    let block = (k / 32u * {columns}u + column) * 9u;
    let word = vec4<u32>({name}[block + 1u + k % 32u / 4u]);
    let codes = bitcast<vec4<i32>>(word << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
    return bitcast<f32>({name}[block]) * vec4<f32>(codes);
}}
""",
}
_PAIRS: dict[DType, str] = {
    DType.f16: """// f16, two in a word: four neighbours.
fn {name}_four(q: u32) -> vec4<f32> {{
    return vec4<f32>(unpack2x16float({name}[2u * q]), unpack2x16float({name}[2u * q + 1u]));
}}
""",
    DType.bf16: """// bf16, two in a word: four neighbours.
fn {name}_four(q: u32) -> vec4<f32> {{
    let words = vec2<u32>({name}[2u * q], {name}[2u * q + 1u]);
    return bitcast<vec4<f32>>(vec4<u32>(words.x << 16u, words.x & 0xffff0000u, words.y << 16u, words.y & 0xffff0000u));
}}
""",
}
_FUNCTIONS: dict[DType, Callable[[str, Operand], str]] = {
    DType.f16: _half, DType.bf16: _brain, DType.q4: _q4, DType.q8: _q8,
}  # fmt: skip
