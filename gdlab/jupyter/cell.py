"""Run the body of a `%%graph` cell as a graph program: Python in, a Graph with outputs, names and source lines out."""

from __future__ import annotations

import ast
import builtins
import linecache
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import gdlab
from gdlab.base.errors import GraphError
from gdlab.base.words import near_hint
from gdlab.graph import Graph, Location, Value
from gdlab.op import public_ops

_ALSO = (
    "input_u32", "constant_u32", "scalar", "zeros", "parameter_f16", "parameter_q4", "parameter_q8", "Graph", "DType",
)  # fmt: skip
_LAST, _NAME = "__gdlab_last__", "__gdlab_name__"
_MOST_LINES = 38  # of an error's text
_MAX_SHOWN = 120  # columns of a cell line in an error; of a longer one the part around the caret


@dataclass(frozen=True, slots=True)
class CellResult:
    """The result of a cell: its graph, the file name that its source locations carry, its text, and notes for the user.
    """

    graph: Graph
    file: str
    text: str
    notes: tuple[str, ...]


def op_names() -> dict[str, Any]:
    """Return all names that a cell knows without import: ops, leaves, and `Graph`."""
    names = {op.name: op for op in public_ops()}
    return names | {n: getattr(gdlab, n) for n in _ALSO}


def run_cell(
    name: str, header: str, body: str, variables: Mapping[str, Any], number: int, graph: Graph | None = None
) -> CellResult:
    """Run `body` (the text below the `%%graph` line `header`) with the notebook's `variables` in reach, on a new graph
    or on this empty one.

    Raises what the body raises, and `GraphError` when it names no output. Nothing outside the new graph is changed.
    """
    file, text = f"<graph {name}, cell {number}>", f"{header}\n{body}"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    code, used = _compile(body, file)
    with Graph() if graph is None else graph as graph:
        ops = op_names()
        ours = {n for n in ops.keys() & variables.keys() if variables[n] is getattr(gdlab, n, ops[n])}  # `import *`
        scope: dict[str, Any] = {n: v for n, v in variables.items() if n not in ours}
        scope = {n: _falls_through(n, op) for n, op in ops.items()} | scope
        extra: list[tuple[Value, str | None]] = []
        scope |= {"graph": graph, "output": _collector(extra), _NAME: _namer(graph), "__name__": "__main__"}
        hidden = sorted((used & ops.keys() & variables.keys()) - ours)
        notes = [f"note: {n} is your notebook's {_kind(variables[n])}, not gdlab.{n}" for n in hidden]
        if name in ops:
            notes.append(f"note: NAME {name} hides gdlab.{name}: in later cells {name} is this study")
        try:
            exec(code, scope)
            _set_outputs(name, graph, scope.get(_LAST), extra)
        except Exception as error:
            for note in notes:
                error.add_note(note)
            raise
    return CellResult(graph, file, text, tuple(notes))


def _compile(body: str, file: str) -> tuple[CodeType, set[str]]:
    """Return the code (line 1 of it is the magic line) and the names that the body reads without assigning them."""
    tree = ast.parse("\n" + body, file)
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    assigned = {n.id for n in names if isinstance(n.ctx, ast.Store)}
    used = {n.id for n in names if isinstance(n.ctx, ast.Load)} - assigned
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        tree.body[-1] = ast.copy_location(ast.Assign([ast.Name(_LAST, ast.Store())], last.value), last)
    tree = _NameAssignments().visit(tree)
    return compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True), used


class _NameAssignments(ast.NodeTransformer):
    """A rewriter of syntax trees: behind `h = …` it calls the namer with "h" and h; it leaves functions and classes
    alone."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = visit_FunctionDef  # type: ignore[assignment]

    def visit_Assign(self, node: ast.Assign) -> Any:
        if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name) or node.targets[0].id == _LAST:
            return node
        name = node.targets[0].id
        call = ast.Call(ast.Name(_NAME, ast.Load()), [ast.Constant(name), ast.Name(name, ast.Load())], [])
        return [node, ast.copy_location(ast.Expr(call), node)]


def _namer(graph: Graph) -> Callable[[str, Any], None]:
    def name_it(name: str, value: Any) -> None:
        if isinstance(value, Value) and value.graph is graph and not value.name:
            value.named(name)

    return name_it


def _collector(extra: list[tuple[Value, str | None]]) -> Callable[..., Value]:
    def output(value: Value, name: str | None = None) -> Value:
        """Declare an output of this cell's graph; return the value."""
        if not isinstance(value, Value):
            raise GraphError("output", "value", type(value).__name__, "a node")
        if name is not None and not isinstance(name, str):
            raise GraphError("output", "name", repr(name), "a str")
        if name and any(name == other for _, other in extra):
            raise GraphError("output", "name", repr(name), "a name that no other output has")
        extra.append((value, name))
        return value

    return output


def _falls_through(name: str, op: Any) -> Any:
    """Return an op that hides a builtin (`max`, `sum` …) so that calls without any Value reach the builtin."""
    builtin = getattr(builtins, name, None)
    if builtin is None or name == "input":
        return op

    def either(*args: Any, **kwargs: Any) -> Any:
        ours = any(isinstance(a, Value) for a in (*args, *kwargs.values()))
        return (op if ours else builtin)(*args, **kwargs)

    either.__name__, either.__doc__ = name, op.__doc__
    return either


def _set_outputs(name: str, graph: Graph, last: Any, extra: list[tuple[Value, str | None]]) -> None:
    where = f"graph {name}"
    named: list[tuple[Value, str | None]]
    if isinstance(last, Mapping):
        named = [(v, str(k)) for k, v in last.items()]
    elif isinstance(last, (list, tuple)):
        named = [(v, None) for v in last]
    else:
        named = [] if last is None else [(last, None)]
    if any(not isinstance(v, Value) for v, _ in named):
        if extra and not isinstance(last, (Mapping, list, tuple)):
            named = []  # a cell that says output(...) may end in any expression
        else:
            raise GraphError(where, "output", _described(last), "a node or nodes")
    if isinstance(last, Value) and any(v == last for v, _ in extra):
        named = []  # the last line is an output(...) call itself
    if not named and not extra:
        raise GraphError(where, "output", "none", "a last expression or output(...)")
    for value, label in [*named, *extra]:
        graph.output(value, label)


def _described(value: Any) -> str:
    if isinstance(value, (list, tuple, Mapping)) and value:
        items = list(value.values() if isinstance(value, Mapping) else value)
        wrong = next((item for item in items if not isinstance(item, Value)), items[0])
        return f"{type(value).__name__} of {type(wrong).__name__}"
    return type(value).__name__


def _kind(value: Any) -> str:
    return "function" if callable(value) else type(value).__name__


# errors in a cell -----------------------------------------------------------------------------------------------------
def render_error(error: BaseException, file: str) -> list[str]:
    """Return an error as people see it: its text, then the cell's line with a caret under the call. No frame of gdlab.
    """
    if isinstance(error, SyntaxError) and error.filename == file:
        start, end = (error.offset or 1) - 1, (error.end_offset or 0) - 1
        return [f"SyntaxError: {error.msg}", *_caret(file, error.lineno or 1, start, end)]
    kind = "" if isinstance(error, gdlab.GdlabError) else f"{type(error).__name__}: "
    head = f"{kind}{error}".split("\n  at ")[0].rstrip(": ")
    cell, helper = _innermost(error.__traceback__, file)
    if isinstance(error, NameError) and error.name and cell is not None and helper is None:
        known = {**cell.tb_frame.f_globals, **cell.tb_frame.f_locals}
        head += near_hint(error.name, [name for name in known if not name.startswith("_")])
    lines = head.splitlines()[:_MOST_LINES]
    source = getattr(error, "source", None)
    if cell is not None:
        lines += _caret(file, *_columns(cell))
    elif isinstance(source, Location) and source.file == file:
        lines += _caret(file, source.line, *_byte_columns(source))
    if helper is not None:
        code = helper.tb_frame.f_code
        lines += [f"in {code.co_name}, {_shown_file(code.co_filename)}:", *_caret(code.co_filename, *_columns(helper))]
    return [*lines, *getattr(error, "__notes__", ())]


def _innermost(trace: TracebackType | None, file: str) -> tuple[TracebackType | None, TracebackType | None]:
    """Return the innermost frame of the cell, and, inside its call, the innermost frame of another file of the user's.
    """
    cell = helper = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            cell, helper = trace, None
        elif cell is not None and is_users(trace.tb_frame.f_code.co_filename):
            helper = trace
        trace = trace.tb_next
    return cell, helper


def _columns(trace: TracebackType) -> tuple[int, int, int]:
    """Return line, first and last column of the code that a frame was running; columns 0 and 0 where it spans lines."""
    line, end_line, col, end = list(trace.tb_frame.f_code.co_positions())[trace.tb_lasti // 2]
    same = line == end_line and col is not None and end is not None
    return trace.tb_lineno, (col or 0) if same else 0, (end or 0) if same else 0


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PACKAGE = str(Path(gdlab.__file__).parent)


def is_users(file: str) -> bool:
    """Return whether a file is the user's: neither gdlab's, nor Python's, nor an installed package's."""
    return not file.startswith((*_LIBRARIES, _PACKAGE, "<frozen", "<string>"))


def _shown_file(file: str) -> str:
    """Return the name by which the user knows a file; that of a notebook's cell is long and temporary."""
    return "another cell" if "ipykernel_" in file or file.startswith("<ipython-input") else Path(file).name


def _byte_columns(place: Location) -> tuple[int, int]:
    """Return first and last column of a place on one line, in bytes of UTF-8 as Python counts them."""
    text = linecache.getline(place.file, place.line)
    same = place.line == place.end_line and place.col >= 0
    return (len(text[: place.col].encode()), len(text[: place.end_col].encode())) if same else (0, 0)


def _caret(file: str, line: int, start: int, end: int) -> list[str]:
    text = linecache.getline(file, line).rstrip("\n")
    raw = text.encode()
    first, last = len(raw[:start].decode(errors="ignore")), len(raw[:end].decode(errors="ignore"))
    label = f"line {line}: "
    cut = max(0, first - _MAX_SHOWN // 2)
    shown, width = text[cut : cut + _MAX_SHOWN], max(1, min(last, cut + _MAX_SHOWN) - first)
    before, after = "…" * (cut > 0), "…" * (cut + _MAX_SHOWN < len(text))
    indent = "".join("\t" if c == "\t" else " " for c in text[cut:first])  # the caret stays in place after tabs
    return [f"{label}{before}{shown}{after}", " " * len(label + before) + indent + "^" * width]
