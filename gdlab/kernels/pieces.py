"""Write the pieces that a kernel is joined from: bindings, operand accesses, chains with one `let` per op, helpers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from gdlab.base.errors import CompileError
from gdlab.base.types import DType
from gdlab.kernels.unfolded import unfolded
from gdlab.plan.dispatch import Arg, Dispatch, Operand, PointOp
from gdlab.plan.records import LineMap

_NAME = re.compile(r"[A-Za-z_]\w*")
_DECLARED = re.compile(r"^(?:fn|const|var(?:<\w+>)?) (\w+)", re.MULTILINE)
# builtins that a driver may compute as if there were no NaN; ours test the bits
_RENAMED = {"abs": "abs_nan", "sign": "sign_nan"}
LANES = "xyzw"
AT_RUN_TIME = "at_run_time({})"  # functions.wgsl


# shader files ---------------------------------------------------------------------------------------------------------
_PACKAGE = Path(__file__).resolve().parent.parent


def shader_folder(package: Path = _PACKAGE) -> Path:
    """Return the folder of the `.wgsl` files: inside the package (wheel), else beside it (checkout)."""
    for folder in (package / "shaders", package.parent / "shaders"):
        if (folder / "functions.wgsl").is_file():
            return folder
    raise CompileError("kernels", "shader files", f"none beside {package.name}", "a complete installation of gdlab")


@lru_cache(maxsize=64)
def shader(file: str) -> str:
    """Return the text of one file in `shaders/`."""
    path = shader_folder() / file
    if not path.is_file():
        raise CompileError("kernels", "shader file", file, "a file of shaders/")
    return path.read_text(encoding="utf-8")


@lru_cache(maxsize=8)
def _declarations(file: str) -> dict[str, str]:
    """Return the paragraphs of a file, each with its comment, by the names that they declare."""
    paragraphs = shader(file).strip().split("\n\n")
    return {name: text.strip() for text in paragraphs for name in _DECLARED.findall(text)}


def helpers(file: str, wanted: Iterable[str]) -> list[str]:
    """Return the texts of the declarations of a file among `wanted`, and of those that they name, in its order."""
    known, needed = _declarations(file), set[str]()
    stack = [name for name in wanted if name in known]
    while stack:
        name = stack.pop()
        if name not in needed:
            needed.add(name)
            stack.extend(n for n in _NAME.findall(known[name]) if n in known)
    return [text for name, text in known.items() if name in needed]


# parts of the work ----------------------------------------------------------------------------------------------------
# Each says which part of a kernel's picture a line works on: where a workgroup's share of the result lies, the loop
# over steps, the arithmetic, the exchange between invocations, what is written.
WHERE, LOOP, WORK, MEET, STORE = "where", "loop", "work", "meet", "store"


def read_part(operand: int) -> str:
    """Return the name of the part that reads operand k of the dispatch."""
    return f"read {operand}"


# text with provenance -------------------------------------------------------------------------------------------------
class WgslText:
    """Lines of WGSL, the nodes that lines stand for, and the parts of the work that some are marked with
    (`gdlab/kernels/line_parts.py`)."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.map: list[tuple[int, tuple[int, ...]]] = []
        self.parts: dict[int, tuple[str, ...]] = {}
        self._part: tuple[str, ...] = ()

    @contextmanager
    def working(self, *parts: str) -> Iterator[None]:
        """Mark the lines that are added inside the block as doing these parts of the work."""
        before, self._part = self._part, parts
        yield
        self._part = before

    def add(self, text: str, *nodes: int) -> None:
        """Append lines that stand for `nodes`."""
        for line in text.split("\n"):
            self.lines.append(line)
            if self._part and line.strip(" {}"):
                self.parts[len(self.lines)] = self._part
            if nodes and line.strip():
                self.map.append((len(self.lines), nodes))

    def done(self) -> tuple[str, LineMap]:
        """Return the text, ending in a newline, and its line map."""
        return "\n".join(self.lines) + "\n", tuple(self.map)


_EACH = "for (var e = 0u; e < EACH; e++) {"


def written_out(text: WgslText, file: str, each: int, *nodes: int) -> None:
    """Add a file of `shaders/` with its loops over `e` written out, so that their variables lie in registers. `x_e` is
    `x_0`, `x_1`, … there."""
    lines = shader(file).rstrip("\n").split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.strip() != _EACH:
            text.add(line, *nodes)
            at += 1
            continue
        indent = line[: len(line) - len(line.lstrip())]
        end = lines.index(indent + "}", at)
        for e in range(each):
            for inner in lines[at + 1 : end]:
                text.add(_written(inner[4:], e), *nodes)
        at = end + 1


def _written(line: str, e: int) -> str:
    return re.sub(r"\be\b", f"{e}u", re.sub(r"_e\b", f"_{e}", line))


def number(value: float, dtype: DType = DType.f32) -> str:
    """Return a literal; negative ones in parentheses."""
    if dtype is DType.u32:
        return f"{int(value)}u"
    if math.isinf(value):
        return "infinity()" if value > 0 else "(-infinity())"
    text = repr(float(np.float32(value)))
    text = text if "." in text or "e" in text else f"{text}.0"
    return f"({text})" if text.startswith("-") else text


# operands -------------------------------------------------------------------------------------------------------------
class Bindings:
    """The buffers of a dispatch as WGSL variables `in0`, `in1`, … and `out`; `wide` ones hold vec4<f32>, and those that
    are read in whole `blocks` vec4<u32>."""

    def __init__(self, d: Dispatch, wide: Iterable[int], blocks: Iterable[int] = ()) -> None:
        stored = {o.buffer for o in d.operands if o.dtype.is_storage}
        self.d, self.wide, self.blocks = d, set(wide) - stored, set(blocks)
        self.variable = {}
        for i, (buffer, access) in enumerate(d.bindings):
            self.variable[buffer] = f"in{i}" if access == "r" else "out"
        self.variable |= {buffer: f"out{k}" for k, buffer in enumerate(d.extra_outputs, 1)}
        self.type = "u32" if d.type.dtype.is_storage else d.type.dtype.value
        self.types = {o.buffer: o.dtype.value for o in d.operands} | {r.buffer: r.type.dtype.value for r in d.results}

    def declare(self, text: WgslText) -> None:
        """Declare one line per binding, then the per-step scalars."""
        for i, (buffer, access) in enumerate(self.d.bindings):
            plain = self.types.get(buffer, self.type)
            element = "vec4<f32>" if buffer in self.wide else plain if plain in ("f32", "u32") else "u32"
            element = "vec4<u32>" if buffer in self.blocks else element
            mode = "read" if access == "r" else "read_write"
            text.add(f"@group(0) @binding({i}) var<storage, {mode}> {self.variable[buffer]}: array<{element}>;")
        if self.d.scalars:
            text.add(f"@group(0) @binding({len(self.d.bindings)}) var<storage, read> scalars: array<f32>;")

    def at(self, operand: Operand, index: str = "i") -> str:
        """Return the access to element `index` of an operand: the sum of its parts."""
        if operand.parts > 1:
            return self._sum(operand, lambda whole, i: self.at(whole, i), index)
        match operand.access:
            case "full":
                place = index
            case "row":
                place = f"({index}) % {operand.extent}u"
            case "column":
                place = f"({index}) / {operand.extent}u"
            case "scalar":
                place = "0u"
        name = self.variable[operand.buffer]
        return f"{name}[({place}) / 4u][({place}) % 4u]" if operand.buffer in self.wide else f"{name}[{place}]"

    def four(self, operand: Operand, index: str = "i") -> str:
        """Return the access to elements `index` … `index` + 3, where `index` is a multiple of 4."""
        if operand.parts > 1:
            return self._sum(operand, lambda whole, i: self.four(whole, i), index)
        name, extent = self.variable[operand.buffer], operand.extent
        if operand.buffer in self.wide:
            return f"{name}[{index} / 4u]" if operand.access == "full" else f"{name}[({index} % {extent}u) / 4u]"
        if operand.access == "scalar" or (operand.access == "column" and extent % 4 == 0):
            return f"vec4<f32>({self.at(operand, index)})"
        return "vec4<f32>(" + ", ".join(self.at(operand, f"{index} + {q}u") for q in range(4)) + ")"

    def _sum(self, operand: Operand, part: Callable[[Operand, str], str], index: str) -> str:
        whole, size = replace(operand, parts=1), math.prod(operand.shape)
        return " + ".join(part(whole, f"({index} + {p * size}u)" if p else index) for p in range(operand.parts))


def may_be_wide(operand: Operand) -> bool:
    """Return whether four neighbours of the result read four neighbours of the operand, aligned."""
    if operand.dtype.is_storage:
        return False
    return operand.access == "full" or (operand.access == "row" and operand.extent % 4 == 0)


def widened(uses: Iterable[tuple[int, bool]]) -> set[int]:
    """Return the buffers whose every use is by four."""
    wide: dict[int, bool] = {}
    for buffer, by_four in uses:
        wide[buffer] = wide.get(buffer, True) and by_four
    return {buffer for buffer, by_four in wide.items() if by_four}


def chain_operands(chain: Sequence[PointOp]) -> list[int]:
    """Return the operands that a chain reads, in order of first use."""
    return list(dict.fromkeys(a.index for line in chain for a in line.args if a.kind == "operand"))


# chains ---------------------------------------------------------------------------------------------------------------
def chain_function(
    text: WgslText, name: str, chain: Sequence[PointOp], sums: Sequence[str], type: str, lines: Sequence[int] = ()
) -> None:
    """Write `fn name(…) -> f32` with one `let` per op; `sums` are its first parameters, for what the core computes.
    With `lines` it returns the values of these lines, as fields `v{line}`."""
    parameters = (f"{each}: {type}" for each in (*sums, *(f"x{k}" for k in chain_operands(chain))))
    if lines:
        text.add(f"struct Values {{ {', '.join(f'v{i}: {type}' for i in lines)} }}\n")
    text.add(f"fn {name}({', '.join(parameters)}) -> {'Values' if lines else type} {{")
    for i, (line, hidden) in enumerate(zip(chain, unfolded(chain), strict=True)):
        text.add(f"    let v{i}: {type} = {expression(line, hidden=hidden)};  // {line.op}", line.node)
    value = f"Values({', '.join(f'v{i}' for i in lines)})" if lines else f"v{len(chain) - 1}"
    text.add(f"    return {value};\n}}\n")


def expression(
    line: PointOp, operands: Mapping[int, str] | None = None, hidden: Collection[int | str] = frozenset()
) -> str:
    """Return the expression of a chain's line with its names replaced; `operands`: the names of operands, where they
    are not `x0`, `x1`, …; `hidden`: the places of arguments and the names of attributes that the compiler must not
    know."""
    values = {name: number(float(v)) for name, v in line.attrs if isinstance(v, (int, float))}
    values |= {name: AT_RUN_TIME.format(values[name]) for name in values if name in hidden}
    constant = _only_literals(line)
    for k, (name, arg) in enumerate(zip(line.names, line.args, strict=True)):
        opaque = k in hidden or (arg.kind == "literal" and (constant or f"/ {name}" in line.expr))
        values[name] = argument(arg, opaque, operands)
    return _NAME.sub(lambda m: values.get(m[0], _RENAMED.get(m[0], m[0])), line.expr)


def _only_literals(line: PointOp) -> bool:
    return all(a.kind == "literal" for a in line.args)


def argument(arg: Arg, opaque: bool, operands: Mapping[int, str] | None = None) -> str:
    """Return the text of an argument of a chain's line. `opaque`: the compiler must not know its value."""
    match arg.kind:
        case "operand":
            text = operands[arg.index] if operands is not None else f"x{arg.index}"
        case "op":
            text = f"v{arg.index}"
        case "acc" | "dual" | "read":
            text = arg.kind
        case "literal":
            text = number(arg.value)
    return AT_RUN_TIME.format(text) if opaque else text


def call(name: str, sums: Sequence[str], operands: Sequence[str]) -> str:
    """Return a call of a chain function."""
    return f"{name}({', '.join([*sums, *operands])})"
