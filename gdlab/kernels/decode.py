"""Read buffers of a storage dtype: every `in1[i]` of a finished kernel becomes a call that decodes element i."""

from __future__ import annotations

from collections.abc import Callable

from gdlab.base.types import FORMATS, DType
from gdlab.kernels.pieces import Text
from gdlab.plan.dispatch import Dispatch, Operand


def decode(text: Text, d: Dispatch) -> None:
    """Rewrite the lines of a kernel, and append one function per buffer that needs it."""
    numbers = {buffer: i for i, (buffer, _) in enumerate(d.bindings)}
    stored = {o.buffer: o for o in d.operands if o.dtype.is_storage}
    for buffer, operand in stored.items():
        name = f"in{numbers[buffer]}"
        text.lines = [_calls(line, f"{name}[", f"{name}_decoded(u32(") for line in text.lines]
        if operand.dtype in _FUNCTIONS:
            text.add("\n" + _FUNCTIONS[operand.dtype](name, operand))
        else:
            text.add("\n" + _block(name, operand, _stride(d)))


def _calls(line: str, old: str, new: str) -> str:
    """`line` with each `old…]` as `new…))`, brackets inside it included."""
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


# Element e of the block of ggml that begins at byte `base`, as in ggml-quants.c; `byte`, `half`, `signed` read there.
_NIBBLE = "(byte(base + {at}u + e % 16u) >> (e / 16u * 4u)) & 15u"
_FIFTH = "((word(base + {at}u) >> e) & 1u) << 4u"
_SIXES = """    let j = e / 32u;
    let s = base + 4u;
    var step = byte(s + j) & 63u;
    var least = byte(s + j + 4u) & 63u;
    if (j >= 4u) {
        step = (byte(s + j + 4u) & 15u) | ((byte(s + j - 4u) >> 6u) << 4u);
        least = (byte(s + j + 4u) >> 4u) | ((byte(s + j) >> 6u) << 4u);
    }
"""
_OF_SIXES = "    return half(base) * f32(step) * f32(code) - half(base + 2u) * f32(least);"
_PLACES = """    let h = e / 128u;
    let g = e % 128u / 32u;
    let l = e % 32u;
"""
_BODIES: dict[DType, str] = {
    DType.q4_0: f"    return half(base) * (f32({_NIBBLE.format(at=2)}) - 8.0);",
    DType.q4_1: f"    return half(base) * f32({_NIBBLE.format(at=4)}) + half(base + 2u);",
    DType.q5_0: f"    let code = ({_NIBBLE.format(at=6)}) | ({_FIFTH.format(at=2)});\n"
    "    return half(base) * (f32(code) - 16.0);",
    DType.q5_1: f"    let code = ({_NIBBLE.format(at=8)}) | ({_FIFTH.format(at=4)});\n"
    "    return half(base) * f32(code) + half(base + 2u);",
    DType.q8_0: "    return half(base) * signed(base + 2u + e);",
    DType.q4_k: f"""{_SIXES}    let code = (byte(base + 16u + e / 64u * 32u + e % 32u) >> (j % 2u * 4u)) & 15u;
{_OF_SIXES}""",
    DType.q5_k: f"""{_SIXES}    let low = (byte(base + 48u + e / 64u * 32u + e % 32u) >> (j % 2u * 4u)) & 15u;
    let code = low | (((byte(base + 16u + e % 32u) >> j) & 1u) << 4u);
{_OF_SIXES}""",
    DType.q6_k: f"""{_PLACES}    let low = (byte(base + 64u * h + 32u * (g & 1u) + l) >> (g / 2u * 4u)) & 15u;
    let high = (byte(base + 128u + 32u * h + l) >> (2u * g)) & 3u;
    return half(base + 208u) * signed(base + 192u + e / 16u) * (f32(low | (high << 4u)) - 32.0);""",
    DType.q2_k: """    let scale = byte(base + e / 16u);
    let code = (byte(base + 16u + e / 128u * 32u + e % 32u) >> (e % 128u / 32u * 2u)) & 3u;
    return half(base + 80u) * f32(scale & 15u) * f32(code) - half(base + 82u) * f32(scale >> 4u);""",
    DType.q3_k: f"""{_PLACES}    let b = e / 16u;
    let low = (byte(base + 96u + b % 8u) >> (b / 8u * 4u)) & 15u;
    let scale = low | (((byte(base + 104u + b % 4u) >> (b / 4u * 2u)) & 3u) << 4u);
    let code = (byte(base + 32u + 32u * h + l) >> (2u * g)) & 3u;
    let minus = select(4.0, 0.0, ((byte(base + l) >> (4u * h + g)) & 1u) == 1u);
    return half(base + 108u) * (f32(scale) - 32.0) * (f32(code) - minus);""",
}


def _block(name: str, operand: Operand, stride: int) -> str:
    """The decoder of a format of ggml. Blocks are packed bytes, at any even address; matrices lie `stride` bytes apart,
    or close together (0)."""
    format = FORMATS[operand.dtype]
    body = _BODIES[operand.dtype]
    for call in ("byte", "half", "word", "signed"):
        body = body.replace(f"{call}(", f"{name}_{call}(")
    base = f"i / {format.block}u * {format.nbytes}u"
    if stride:
        matrix = operand.shape[-2] * operand.shape[-1]
        base = f"i / {matrix}u * {stride}u + i % {matrix}u / {format.block}u * {format.nbytes}u"
    return f"""// {format.name} of ggml: {format.block} elements in {format.nbytes} bytes.
fn {name}_byte(at: u32) -> u32 {{
    return ({name}[at / 4u] >> (at % 4u * 8u)) & 255u;
}}

fn {name}_signed(at: u32) -> f32 {{
    return f32(bitcast<i32>({name}_byte(at) << 24u) >> 24u);
}}

fn {name}_half(at: u32) -> f32 {{
    return unpack2x16float({name}_byte(at) | ({name}_byte(at + 1u) << 8u)).x;
}}

fn {name}_word(at: u32) -> u32 {{
    let low = {name}_byte(at) | ({name}_byte(at + 1u) << 8u);
    return low | ({name}_byte(at + 2u) << 16u) | ({name}_byte(at + 3u) << 24u);
}}

fn {name}_decoded(i: u32) -> f32 {{
    let e = i % {format.block}u;
    let base = {base};
{body}
}}
"""


def _stride(d: Dispatch) -> int:
    """Bytes between two matrices in blocks; 0: they are packed."""
    return dict(d.custom.integers).get("STRIDE", 0) if d.custom is not None else 0


_FUNCTIONS: dict[DType, Callable[[str, Operand], str]] = {
    DType.f16: _half, DType.bf16: _brain, DType.q4: _q4, DType.q8: _q8,
}  # fmt: skip
