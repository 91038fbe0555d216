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
        text.add("\n" + _FUNCTIONS[operand.dtype](name, operand))


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


_FUNCTIONS: dict[DType, Callable[[str, Operand], str]] = {DType.f16: _half, DType.q4: _q4, DType.q8: _q8}
