"""One text form of a graph: `str(graph)` for people, `graph.text()` in full, and `parse(text)` that reads it back;
`to_python(graph)` is Python that builds it, `to_cell` a whole `%%graph` cell.

    %0 = input("x") : f32[4, 784]
    %1 "fc1" = relu(%0) : f32[4, 784]
    outputs: %1
"""

from __future__ import annotations

import ast
import builtins
import json
import keyword
import re
from collections.abc import Callable

import numpy as np

from gdlab.base.errors import GdlabError, GraphError, LoadError
from gdlab.base.types import DType, TensorType
from gdlab.base.words import near_hint
from gdlab.graph import Attr, ConstantData, Graph, Node
from gdlab.op import REGISTRY, Leaf

__all__ = ["attrs_text", "parse", "to_cell", "to_python"]

_STRING = r'"(?:[^"\\]|\\.)*"'
_LINE = re.compile(rf"%(\d+)(?: ({_STRING}))? = (\w+)\((.*)\) : (\w+\[[\d, ]+\])")
_OUTPUT = re.compile(rf"%(\d+)(?: ({_STRING}))?(?:, |$)")
_TOKEN = re.compile(rf"({_STRING})|%(\d+)")


def attr_text(value: Attr) -> str:
    """Return the text of one attribute as people read it; floats with the fewest digits that give the same f32 (of a
    graph that is exact, the same float64), infinities as 1e999."""
    if isinstance(value, float):
        if np.isinf(value):
            return "1e999" if value > 0 else "-1e999"
        with np.errstate(over="ignore"):
            near = np.float32(value)
        return str(near) if near == value or value != value else repr(value)
    return json.dumps(value) if isinstance(value, str) else repr(value)


def quoted(name: str) -> str:
    """Return a name in quotes; a lone surrogate, which no file can hold, by its number."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(name, ensure_ascii=False))


_SURROGATE = re.compile("[\ud800-\udfff]")


def attrs_text(node: Node, value: Callable[[Attr], str] = attr_text) -> str:
    """Return the attributes as keywords, `eps=1e-05, axis=1`; of a leaf its name alone."""
    if node.op in ("input", "parameter"):
        declared = [f"init={attr_text(v)}" for key, v in node.attrs if key == "init"]
        return ", ".join([quoted(node.attr("name")), *declared])
    return ", ".join(f"{k}={value(v)}" for k, v in node.attrs)


def _exact(value: Attr) -> str:
    return f'"{value.raw.hex()}"' if isinstance(value, ConstantData) else attr_text(value)


def _write(graph: Graph, value: Callable[[Attr], str]) -> str:
    lines = []
    for n in graph:
        label = f" {quoted(n.name)}" if n.name and n.inputs or _named_fill(n) else ""
        args = ", ".join(filter(None, [", ".join(f"%{i}" for i in n.inputs), attrs_text(n, value)]))
        lines.append(f"%{n.id}{label} = {n.op}({args}) : {n.type}")
    pairs = zip(graph.output_ids, graph.output_names, strict=True)
    outputs = ", ".join(f"%{id}" + (f" {quoted(n)}" if n else "") for id, n in pairs)
    lines.append(f"outputs: {outputs or 'none'}")
    if graph.num_param_grad_outputs:
        lines.append(f"gradients: {graph.num_param_grad_outputs}")
    if graph.zero_gradients:
        lines.append(f"zero gradients: {', '.join(f'%{i}' for i in graph.zero_gradients)}")
    return "\n".join(lines) + "\n"


def _named_fill(n: Node) -> bool:
    return bool(n.name) and n.op not in ("input", "parameter")


def parse(text: str) -> Graph:
    """Return the graph that `graph.text()` spelled; `LoadError` names the first line that is none."""
    if not isinstance(text, str):
        raise LoadError("text", "text", type(text).__name__, "the str that graph.text() gives")
    graph = Graph()
    graph.records_sources = False
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):  # splitlines would cut names at U+2028
        try:
            _read_line(graph, line.removesuffix("\r"))
        except (GdlabError, ValueError, TypeError, SyntaxError, LookupError, OverflowError) as error:
            raise LoadError("text", f"line {number}", repr(line[:120]), f"a line of graph.text(): {error}") from None
    graph.records_sources = True
    return graph


def _read_line(graph: Graph, line: str) -> None:
    if line.startswith("outputs: "):
        listed = line.removeprefix("outputs: ")
        pairs = [] if listed == "none" else [(int(id), json.loads(n) if n else "") for id, n in _OUTPUT.findall(listed)]
        graph.set_output_ids((graph.value(id).id, name) for id, name in pairs)
    elif line.startswith("gradients: "):
        graph.num_param_grad_outputs = int(line.removeprefix("gradients: "))
    elif line.startswith("zero gradients: "):
        graph.zero_gradients = tuple(int(i) for i in re.findall(r"%(\d+)", line))
    else:
        _read_node(graph, line)


def _read_node(graph: Graph, line: str) -> None:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError("no node")
    id, label, op, args, type = int(match[1]), match[2], match[3], match[4], TensorType.parse(match[5])
    if id != len(graph):
        raise ValueError(f"node %{id}, wanted %{len(graph)}")
    call = ast.parse(f"f({_TOKEN.sub(lambda m: m[1] or f'_{m[2]}', args)})", mode="eval").body
    if not isinstance(call, ast.Call):
        raise ValueError("no call")
    inputs = tuple(int(a.id[1:]) for a in call.args if isinstance(a, ast.Name))
    attrs = {k.arg or "": _attr(ast.literal_eval(k.value), op, type) for k in call.keywords}
    if op not in REGISTRY:
        raise ValueError(f"{op} is no op{near_hint(op, list(REGISTRY))}")
    record = REGISTRY[op]
    if isinstance(record.kernel, Leaf):
        if op != "constant":
            named = re.match(_STRING, args)
            if named is None or len(call.args) != 1 or not attrs.keys() <= ({"init"} if op == "parameter" else set()):
                raise ValueError("no leaf")
            attrs["name"] = json.loads(named[0])
        value = graph.append(op, (), tuple(sorted(attrs.items())), type, str(attrs.get("name", "")))
        if op != "constant":
            graph.register_leaf(value)
    else:
        value = record(*record.spread([graph.value(i) for i in inputs]), **attrs, graph=graph)
        if value.id != id or value.type != type:
            raise ValueError(f"type {value.type}")
    if label:
        value.named(json.loads(label))


def _attr(value: Attr, op: str, type: TensorType) -> Attr:
    if op != "constant":
        return value
    raw = bytes.fromhex(value)
    if len(raw) != type.size_bytes:
        raise ValueError(f"{len(raw)} bytes, wanted {type.size_bytes}")
    return ConstantData(DType(type.dtype), type.shape, raw)


# Python ---------------------------------------------------------------------------------------------------------------
_SPELLED = {
    ("input", DType.u32): "input_u32", ("constant", DType.u32): "constant_u32", ("parameter", DType.f16):
    "parameter_f16", ("parameter", DType.q4): "parameter_q4", ("parameter", DType.q8): "parameter_q8",
}  # fmt: skip
_MOST_SPELLED = 64  # elements of a constant that are written as numbers


def to_python(graph: Graph) -> str:
    """Return the body of a `%%graph` cell that builds the same graph, with the same ids, names and outputs.
    `GraphError` for a derivative: a cell declares no gradients."""
    if graph.num_param_grad_outputs:
        raise GraphError("to_python", "graph", "one with gradients", "a graph as it is written")
    return _Python(graph).text()


def to_cell(graph: Graph, name: str = "", train: bool = False) -> str:
    """Return a whole `%%graph` cell that builds the same graph under a name; `GraphError` as for `to_python`."""
    named = name if name.isidentifier() and not keyword.iskeyword(name) else ""
    return " ".join(filter(None, ["%%graph", named, "--train" if train else ""])) + "\n" + to_python(graph)


class _Python:
    """A cell under way. What is read once stands where it is read, as long as that keeps the order of the nodes; a
    plain assignment would give a node without a name one, so that others are kept in `n`."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.lines, self.waiting = graph, list[str](), list[tuple[int, str]]()
        self.called: dict[int, str] = {}
        self.taken = {*REGISTRY, *keyword.kwlist, *dir(builtins), *_SPELLED.values(), "graph", "output", "n"}
        self.readers = [0] * len(graph)
        for id in (*(i for n in graph for i in n.inputs), *graph.output_ids, *graph.output_ids):
            self.readers[id] += 1  # an output twice: it is never written in place

    def text(self) -> str:
        """Return the whole cell."""
        for node in self.graph:
            text = self._call(node)
            leaf = node.op in ("input", "parameter")
            if self.readers[node.id] == 1 and node.op != "input" and (leaf or not node.name):
                self.waiting.append((node.id, text))
            else:
                self._flush()
                self._assign(node, text)
        self._flush()
        for id, name in zip(self.graph.output_ids, self.graph.output_names, strict=True):
            self.lines.append(f"output({self.called[id]}{f', {name!r}' if name else ''})")
        held = ["n = {}"] if any(line.startswith("n[") for line in self.lines) else []
        return "\n".join([*held, *self.lines]) + "\n"

    def _call(self, node: Node) -> str:
        mine = [i for i in node.inputs if i not in self.called]
        tail = self.waiting[len(self.waiting) - len(mine) :]
        if [id for id, _ in tail] != mine:
            self._flush()
            tail = []
        texts = dict(tail)
        del self.waiting[len(self.waiting) - len(tail) :]
        if tail:
            self._flush()
        operands = [texts.get(i) or self.called[i] for i in node.inputs]
        record = REGISTRY[node.op]
        if record.variadic:
            operands = [f"[{', '.join(operands)}]"]
        attributes = [f"{k}={_literal(v)}" for k, v in node.attrs]
        if isinstance(record.kernel, Leaf):
            operands, attributes = _leaf_arguments(node), []
        name = _SPELLED.get((node.op, node.type.dtype), node.op)
        return f"{name}({', '.join([*operands, *attributes])})"

    def _flush(self) -> None:
        for id, text in self.waiting:
            self._assign(self.graph.nodes[id], text)
        self.waiting.clear()

    def _assign(self, node: Node, text: str) -> None:
        if node.name.isidentifier() and node.name.isascii() and node.name not in self.taken:
            self.taken.add(node.name)
            self.called[node.id] = node.name
        else:
            self.called[node.id] = f"n[{node.id}]"
            text += f".named({node.name!r})" if node.name and node.op not in ("input", "parameter") else ""
        self.lines.append(f"{self.called[node.id]} = {text}")


def _literal(value: Attr) -> str:
    return attr_text(value) if isinstance(value, float) else repr(value)


def _leaf_arguments(node: Node) -> list[str]:
    shape, held = repr(node.type.shape), dict(node.attrs).get("data")
    if not isinstance(held, ConstantData):
        declared = [f"init={v!r}" for k, v in node.attrs if k == "init"]
        dtype = node.type.dtype
        stored = [f"dtype={str(dtype)!r}"] if dtype.is_storage and (node.op, dtype) not in _SPELLED else []
        return [repr(node.attr("name")), shape, *declared, *stored]
    data = held.array.reshape(-1)
    if data.size <= _MOST_SPELLED and (data.dtype.kind == "u" or np.isfinite(data).all()):
        return [f"[{', '.join(map(str, data))}]", shape]
    return [f'__import__("numpy").frombuffer(bytes.fromhex("{held.raw.hex()}"), "{data.dtype}")', shape]


def printed(graph: Graph) -> str:
    """Return `str(graph)`: the text for people, with numbers of a few digits."""
    return _write(graph, attr_text)


def text_of(graph: Graph) -> str:
    """Return the full text, which `parse` reads back to an equal graph."""
    return _write(graph, _exact)
