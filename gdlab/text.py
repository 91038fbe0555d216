"""One text form of a graph: `str(graph)` for people, `graph.text()` in full, and `parse(text)` that reads it back.

    %0 = input("x") : f32[4, 784]
    %1 "fc1" = relu(%0) : f32[4, 784]
    outputs: %1
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable

import numpy as np

from gdlab.errors import GdlabError, LoadError
from gdlab.graph import UPWARD, Attr, ConstantData, Graph, Node
from gdlab.op import REGISTRY, Leaf
from gdlab.types import DType, TensorType

__all__ = ["attrs_text", "parse"]

_STRING = r'"(?:[^"\\]|\\.)*"'
_LINE = re.compile(rf"%(\d+)(?: ({_STRING}))? = (\w+)\((.*)\) : (\w+\[[\d, ]+\])")
_OUTPUT = re.compile(rf"%(\d+)(?: ({_STRING}))?(?:, |$)")
_TOKEN = re.compile(rf"({_STRING})|%(\d+)")


def attr_text(value: Attr) -> str:
    """One attribute as people read it; floats with the fewest digits that give the same f32, infinities as 1e999."""
    if isinstance(value, float):
        return str(np.float32(value)) if np.isfinite(value) else "1e999" if value > 0 else "-1e999"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def attrs_text(node: Node, value: Callable[[Attr], str] = attr_text) -> str:
    """The attributes as keywords, `eps=1e-05, axis=1`; of a leaf its name alone."""
    if node.op in ("input", "parameter"):
        declared = [f"init={attr_text(v)}" for key, v in node.attrs if key == "init"]
        return ", ".join([json.dumps(node.attr("name"), ensure_ascii=False), *declared])
    return ", ".join(f"{k}={value(v)}" for k, v in node.attrs)


def _exact(value: Attr) -> str:
    return f'"{value.raw.hex()}"' if isinstance(value, ConstantData) else attr_text(value)


def _write(graph: Graph, value: Callable[[Attr], str]) -> str:
    lines = []
    for n in graph:
        label = f" {json.dumps(n.name, ensure_ascii=False)}" if n.name and n.inputs or _named_fill(n) else ""
        args = ", ".join(filter(None, [", ".join(f"%{i}" for i in n.inputs), attrs_text(n, value)]))
        lines.append(f"%{n.id}{label} = {n.op}({args}) : {n.type}")
    pairs = zip(graph.output_ids, graph.output_names, strict=True)
    outputs = ", ".join(f"%{id}" + (f" {json.dumps(n, ensure_ascii=False)}" if n else "") for id, n in pairs)
    lines.append(f"outputs: {outputs or 'none'}")
    if graph.num_param_grad_outputs:
        lines.append(f"gradients: {graph.num_param_grad_outputs}")
    if graph.zero_gradients:
        lines.append(f"zero gradients: {', '.join(f'%{i}' for i in graph.zero_gradients)}")
    return "\n".join(lines) + "\n"


def _named_fill(n: Node) -> bool:
    return bool(n.name) and n.op not in ("input", "parameter")


def parse(text: str) -> Graph:
    """The graph that `graph.text()` spelled; `LoadError` names the first line that is none."""
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


UPWARD["str"] = lambda graph: _write(graph, attr_text)
UPWARD["text"] = lambda graph: _write(graph, _exact)
