"""Read an exported program as plain records: inputs, tensors, nodes with checked arguments, outputs."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from gdlab.base.types import Shape
from gdlab.graph.source import Location
from gdlab.load.pt2.archive import (
    STORED,
    Archive,
    ArchivedTensor,
    Tensors,
    check_strides,
    field_of,
    numbers_of,
    whole_number,
)
from gdlab.load.pt2.extents import Number, computed, expression, numbers_for
from gdlab.load.pt2.pickled import saved_tensors
from gdlab.load.shared import MOST_NODES, Malformed, enumerated

OLD = "serialized_exported_program.json"
MODELS = "models"
DEEPEST = 8  # graphs in graphs
SCHEMAS = (5, 8)  # major versions of the serialization that are read
SCALARS = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64", 12: "bool",
    13: "bfloat16",
}  # fmt: skip
STRIDED = 7  # of layouts
SYMBOLIC = {"as_sym_int", "as_sym_bool"}  # results that are numbers, not tensors
ASSERTED = ("aten._assert_scalar.default", "aten.sym_constrain_range.default",
            "aten.sym_constrain_range_for_size.default")  # fmt: skip
INLINED = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
_FRAME = re.compile(r'^\s*File "([^"\n]{1,400})", line (\d{1,7}), in ([^\n]{1,200})(?:\n {4,}([^\n]{1,400}))?', re.M)
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]torch[/\\]")


@dataclass(frozen=True, slots=True)
class Meta:
    """The type of a tensor as the file states it."""

    dtype: str
    shape: Shape
    trained: bool = False
    strides: Shape = ()


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor as an argument, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Dtype:
    """A type of numbers as an argument."""

    name: str


@dataclass(frozen=True, slots=True)
class Opaque:
    """An argument that is not understood; `kind`: its kind in the file."""

    kind: str


@dataclass(frozen=True, slots=True)
class AtenNode:
    """One call of an operator: `aten.linear.default` with arguments by name, the names of its results, the module that
    made it and the user's line."""

    target: str
    arguments: tuple[tuple[str, Any], ...]
    outputs: tuple[str, ...]
    module: str = ""
    place: Location | None = None

    @property
    def label(self) -> str:
        """The name of the operator, without that of the library."""
        return self.target.removeprefix("torch.ops.")

    def __str__(self) -> str:
        name = self.outputs[0] if self.outputs else "no result"
        at = f"; {self.place.file.rpartition('/')[2]}:{self.place.line}" if self.place else ""
        return f"{self.label} ({self.module or name}{at})"


@dataclass(frozen=True, slots=True)
class ModuleTensor:
    """A tensor of the module: its dotted name, and where its elements lie."""

    name: str
    stored: ArchivedTensor
    parameter: bool


@dataclass(slots=True)
class ExportedProgram:
    """A program: inputs and held tensors by the graph's names, nodes in order, outputs, types; `nbytes`: of its file;
    `lines`: the source lines that it quotes, by file."""

    archive: Archive
    inputs: dict[str, Meta] = field(default_factory=dict)
    held: dict[str, ModuleTensor] = field(default_factory=dict)
    nodes: list[AtenNode] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    metas: dict[str, Meta] = field(default_factory=dict)
    lines: dict[str, dict[int, str]] = field(default_factory=dict)


def read(file: BinaryIO | bytes, nbytes: int, dims: Mapping[str, int] | None = None) -> ExportedProgram:
    """Return the records of a program in an archive; `dims`: numbers for extents that the program leaves open, by name.
    """
    archive = Archive(io.BytesIO(file) if isinstance(file, bytes) else file, nbytes)
    return _Reader(archive, dims).program(*_parts(archive))


# layouts --------------------------------------------------------------------------------------------------------------
def _parts(archive: Archive) -> tuple[Any, Tensors]:
    """Return the JSON of a program, and the tensors of the archive by name."""
    if OLD in archive.entries:
        nested = ("serialized_state_dict.pt", "serialized_constants.pt")
        found = [_nested(archive, name) for name in nested if name in archive.entries]
        return archive.document(OLD), {name: t for tensors in found for name, t in tensors.items()}
    models = [n for n in archive.entries if n.endswith(".json") and n.rpartition("/")[0].endswith(MODELS)]
    if len(models) != 1:
        given = enumerated(models, 300) if models else enumerated(list(archive.entries), 300) or "no entry"
        raise Malformed("archive", given, f"one model: {OLD}, or {MODELS}/NAME.json")
    folder, _, file = models[0].rpartition(MODELS + "/")
    name = file.removesuffix(".json")
    tensors = {
        **_listed(archive, f"{folder}data/weights/", f"{name}_weights_config.json", f"{name}.pt"),
        **_listed(archive, f"{folder}data/constants/", f"{name}_constants_config.json", f"{name}.pt"),
    }
    return archive.document(models[0]), tensors


def _nested(archive: Archive, name: str) -> Tensors:
    data = archive.read(name)
    return saved_tensors(Archive(io.BytesIO(data), len(data))) if data else {}


def _listed(archive: Archive, folder: str, config: str, pickled: str) -> Tensors:
    """Return the tensors that a list in the archive names, or that it holds as `torch.save` writes them."""
    if folder + config not in archive.entries:
        return _nested(archive, folder + pickled) if folder + pickled in archive.entries else {}
    found = {}
    for name, record in field_of(archive.document(folder + config), "config", dict, config).items():
        what = f"tensor {name!r:.80}"
        if not isinstance(record, dict) or record.get("use_pickle"):
            raise Malformed(what, "a tensor of a class of its own, pickled", "a plain tensor")
        meta = field_of(record, "tensor_meta", dict, what)
        shape, strides = (numbers_of(meta.get(key), f"{what}: {key}") for key in ("sizes", "strides"))
        check_strides(what, shape, strides)
        dtype = _scalar_type(meta.get("dtype"), what)
        (offset,) = numbers_of([meta.get("storage_offset")], f"{what}: storage_offset")
        path = field_of(record, "path_name", str, what)
        found[name] = ArchivedTensor(archive, folder + path, dtype, shape, strides, offset)
    return found


def _scalar_type(code: Any, what: str) -> str:
    if not isinstance(code, int) or code not in SCALARS or SCALARS[code] not in STORED:
        wanted = f"one of {', '.join(SCALARS.values())}"
        raise Malformed(f"{what}: dtype", f"type {code!r:.40} of PyTorch", wanted)
    return SCALARS[code]


# the program ----------------------------------------------------------------------------------------------------------
class _Reader:
    """A reader that collects the records of a program; names are those of the outermost graph, inner graphs get new
    ones."""

    def __init__(self, archive: Archive, dims: Mapping[str, int] | None) -> None:
        self.made, self.dims = ExportedProgram(archive), dims
        self.numbers: dict[str, int] = {}  # of extents by name
        self.symbols: dict[str, Number] = {}  # numbers and truths that nodes of this graph compute with extents
        self.open: list[str] = []  # tensors with extents that are not numbers

    def program(self, document: Any, tensors: Tensors) -> ExportedProgram:
        """Return the records of the JSON, with tensors by their dotted names."""
        version = field_of(document, "schema_version", dict, "program")
        major = version.get("major")
        if not isinstance(major, int) or not SCHEMAS[0] <= major <= SCHEMAS[1]:
            given = f"version {major!r:.20}"
            raise Malformed("schema_version", given, f"{SCHEMAS[0]} … {SCHEMAS[1]}, of PyTorch 2.3 and later")
        module = field_of(document, "graph_module", dict, "program")
        graph = field_of(module, "graph", dict, "graph_module")
        signature = field_of(module, "signature", dict, "graph_module")
        specs = field_of(signature, "input_specs", list, "signature")
        self.numbers = numbers_for(_sizes_of_inputs(graph, specs), document.get("range_constraints"), self.dims)
        self._types(graph)
        for spec in specs:
            self._input(spec, tensors)
        self.made.nodes.extend(self._nodes(graph, {}, 0))
        for spec in field_of(signature, "output_specs", list, "signature"):
            self._output(spec)
        return self.made

    def _types(self, graph: Any, names: Mapping[str, str] | None = None) -> None:
        for name, record in field_of(graph, "tensor_values", dict, "graph").items():
            what = f"value {name!r:.80}"
            sizes = self._known(field_of(record, "sizes", list, what))
            strides = record.get("strides")
            strides = self._known(strides) if isinstance(strides, list) else strides
            if sizes is None or (isinstance(record.get("strides"), list) and strides is None):
                self.open.append(name)
                continue
            meta = Meta(_any_type(record.get("dtype")), numbers_of(sizes, f"{what}: sizes"),
                        record.get("requires_grad") is True, numbers_of(strides, what))  # fmt: skip
            self.made.metas.setdefault(names.get(name, name) if names else name, meta)
        for kind in ("sym_int_values", "sym_bool_values"):
            values = graph.get(kind)
            for name, record in values.items() if isinstance(values, dict) else ():
                text = expression(record)
                value = None if text is None else computed(text, self.numbers)
                if value is not None:
                    self.symbols[name] = value

    def _known(self, sizes: list[Any]) -> list[Any] | None:
        """Return extents with numbers for their expressions; None if one of them stays open."""
        found: list[Any] = []
        for size in sizes:
            text = expression(size)
            value = None if text is None else computed(text, self.numbers)
            if text is not None and value is None:
                return None
            found.append(size if text is None else {"as_int": value})
        return found

    def _input(self, spec: Any, tensors: Tensors) -> None:
        kind, record = _single(spec, "input_specs")
        if kind == "user_input":
            arg = field_of(record, "arg", dict, "user_input")
            form, value = _single(arg, "user_input")
            if form == "as_tensor":
                name = field_of(value, "name", str, "user_input")
                self.made.inputs[name] = self._meta(name)
            elif form not in ("as_none", "as_int", "as_float", "as_bool", "as_string"):
                raise Malformed("input", form, "tensors")
        elif kind in ("parameter", "buffer", "tensor_constant"):
            name = field_of(field_of(record, "arg", dict, kind), "name", str, kind)
            dotted = field_of(record, f"{kind}_name", str, kind)
            if dotted not in tensors:
                raise Malformed(f"{kind} {dotted!r:.80}", "no tensor", "its elements in the archive")
            stored, meta = tensors[dotted], self._meta(name)
            if (stored.shape, stored.dtype) != (meta.shape, meta.dtype):
                given = f"{stored.dtype}{list(stored.shape)} in the archive"
                raise Malformed(f"{kind} {dotted!r:.80}", given, f"{meta.dtype}{list(meta.shape)}, as the graph says")
            self.made.held[name] = ModuleTensor(dotted, stored, kind == "parameter")
        elif kind != "constant_input":
            raise Malformed("input", f"{kind:.60}", "tensors, parameters and buffers")

    def _meta(self, name: str) -> Meta:
        if name in self.open:
            wanted = "extents that are numbers, or computed from those of inputs"
            raise Malformed("extents", f"dynamic ones of {enumerated(self.open, 300, ', ')}", wanted)
        if name not in self.made.metas:
            raise Malformed(f"value {name!r:.80}", "no type", "one in tensor_values")
        return self.made.metas[name]

    def _output(self, spec: Any) -> None:
        kind, record = _single(spec, "output_specs")
        arg = record.get("arg") if isinstance(record, dict) else None
        if kind not in ("user_output", "loss_output"):
            name = next((v for k, v in record.items() if k.endswith("_name")), "") if isinstance(record, dict) else ""
            wanted = "a module that changes no buffer: export it after eval(), without caches"
            raise Malformed("output", f"{kind:.60} of {name!r:.80}", wanted)
        form, value = _single({"as_tensor": arg} if kind == "loss_output" else arg, "output")
        if form == "as_tensor":
            self.made.outputs.append(field_of(value, "name", str, "output"))
        elif form != "as_none":
            raise Malformed("output", f"{form:.40}", "tensors")

    # nodes
    def _nodes(self, graph: Any, names: Mapping[str, str], depth: int) -> Iterator[AtenNode]:
        """Return the nodes of a graph, inner graphs written out."""
        if depth > DEEPEST:
            raise Malformed("graph", f"more than {DEEPEST} graphs in graphs", "fewer")
        for record in field_of(graph, "nodes", list, "graph"):
            target = field_of(record, "target", str, "node").removeprefix("torch.ops.")
            outputs = tuple(_output_names(field_of(record, "outputs", list, target), target))
            outputs = tuple(names.get(name, name) for name in outputs)
            arguments = field_of(record, "inputs", list, target)
            if _forms(record["outputs"]) <= SYMBOLIC:
                if target in ASSERTED:
                    self._assert(arguments, target)
                if record["outputs"] or target in ASSERTED:
                    continue  # a number, which `symbols` has
            if target.rpartition(".")[2] in INLINED:
                yield from self._inlined(target.rpartition(".")[2], arguments, outputs, names, depth)
                continue
            module, place = self._origin(record.get("metadata"))
            read = (_argument(argument, names, target) for argument in arguments)
            found = tuple((name, self._resolved(value)) for name, value in read)
            if len(self.made.nodes) >= MOST_NODES:
                raise Malformed("nodes", f"more than {MOST_NODES:,}", "fewer")
            yield AtenNode(target, found, outputs, module, place)

    def _resolved(self, value: Any) -> Any:
        """Return an argument with numbers in place of extents."""
        if isinstance(value, tuple):
            return tuple(self._resolved(one) for one in value)
        if isinstance(value, _Extent):
            return self.symbols.get(value.name, Opaque("a dynamic extent"))
        return value

    def _assert(self, arguments: Any, target: str) -> None:
        """Raise for numbers with which an assertion of the program itself would fail."""
        for argument in arguments:
            form, value = _single(field_of(argument, "arg", dict, target), target)
            name = value.get("as_name") if form == "as_sym_bool" and isinstance(value, dict) else None
            if name is None:
                continue
            if name not in self.symbols:
                raise Malformed("check of extents", f"{name!r:.60}", "one of named extents alone")
            if not self.symbols[name]:
                given = ", ".join(f"{key}={n}" for key, n in self.numbers.items())
                texts = [v for a in arguments if (v := a["arg"].get("as_string")) is not None]
                raise Malformed("extents", f"{given:.200}", f"{(texts or ['what the program checks'])[0]!s:.200}")

    def _inlined(
        self, target: str, arguments: Any, outputs: tuple[str, ...], names: Mapping[str, str], depth: int
    ) -> Iterator[AtenNode]:
        """Return the nodes of a block `with torch.no_grad()` or `with torch.autocast(…, enabled=False)`."""
        values = [_argument(argument, names, target)[1] for argument in arguments]
        at = next((i for i, v in enumerate(values) if isinstance(v, _Inner)), None)
        if at is None:
            raise Malformed(target, "no graph", "one among its arguments")
        inner, given = values[at].graph, values[at + 1 :]
        off = next((v for v in values[:at] if isinstance(v, bool)), None)
        if target == "wrap_with_autocast" and off is not False:
            raise Malformed(target, "a block that computes in another type", "autocast with enabled=False")
        entered = [_name_of(arg, target) for arg in field_of(inner, "inputs", list, target)]
        if len(entered) != len(given) or not all(isinstance(v, Ref) for v in given):
            raise Malformed(target, f"{len(given)} operands", f"{len(entered)} tensors")
        own = {name: self._fresh(name) for name in field_of(inner, "tensor_values", dict, target)}
        own |= {name: ref.name for name, ref in zip(entered, given, strict=True)}
        outside = dict(self.symbols)
        self._types(inner, own)
        yield from self._nodes(inner, own, depth + 1)
        self.symbols = outside
        left = [name for arg in field_of(inner, "outputs", list, target) for name in _output_names([arg], target)]
        if len(left) != len(outputs):
            raise Malformed(target, f"{len(outputs)} results", f"{len(left)}")
        how = "aten.detach.default" if target == "wrap_with_set_grad_enabled" and off is False else "aten.alias.default"
        for name, made in zip(left, outputs, strict=True):
            yield AtenNode(how, (("self", Ref(own.get(name, name))),), (made,))

    def _fresh(self, name: str) -> str:
        """Return a name that no tensor has yet."""
        found, i = name, 1
        while found in self.made.metas:
            i += 1
            found = f"{name}_{i}"
        return found

    def _origin(self, metadata: Any) -> tuple[str, Location | None]:
        """Return (dotted path of the module, the user's line) of a node."""
        given = metadata if isinstance(metadata, dict) else {}
        stack, trace = given.get("nn_module_stack"), given.get("stack_trace")
        module = ""
        if isinstance(stack, str) and stack:
            parts = stack[-2000:].rpartition(";")[2].split(",")
            module = parts[1] if len(parts) == 3 and re.fullmatch(r"[\w.]{0,200}", parts[1]) else ""
        if not isinstance(trace, str):
            return module, None
        frames = _FRAME.findall(trace[-20_000:])
        users = [f for f in frames if not _LIBRARY.search(f[0])] or frames
        if not users:
            return module, None
        file, line, function, text = users[-1]
        at = int(line)
        if text and at < 1_000_000:
            self.made.lines.setdefault(file, {})[at] = text
        return module, Location(file, at, -1, at, -1, function)


def _sizes_of_inputs(graph: Any, specs: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the extents of inputs as they stand in the file, by the names of the inputs."""
    values, found = field_of(graph, "tensor_values", dict, "graph"), dict[str, list[Any]]()
    for spec in specs:
        record = spec.get("user_input") if isinstance(spec, dict) else None
        arg = record.get("arg") if isinstance(record, dict) else None
        tensor = arg.get("as_tensor") if isinstance(arg, dict) else None
        name = tensor.get("name") if isinstance(tensor, dict) else None
        sizes = values[name].get("sizes") if isinstance(name, str) and isinstance(values.get(name), dict) else None
        if isinstance(name, str) and isinstance(sizes, list):
            found[name] = sizes
    return found


def _forms(outputs: list[Any]) -> set[str]:
    return {form for output in outputs if isinstance(output, dict) for form in output}


@dataclass(frozen=True, slots=True)
class _Inner:
    """A graph as an argument."""

    graph: Any


@dataclass(frozen=True, slots=True)
class _Extent:
    """A number that is computed from extents, by name, as an argument."""

    name: str


def _single(record: Any, what: str) -> tuple[str, Any]:
    """Return the one key of a union, and its value."""
    if not isinstance(record, dict) or len(record) != 1:
        raise Malformed(what, f"{record!r:.80}", "one kind with its value")
    ((kind, value),) = record.items()
    return str(kind), value


def _any_type(code: Any) -> str:
    """Return the type of numbers with this code; for an unknown one its code, which no operator takes."""
    return SCALARS.get(code, f"type {code}") if isinstance(code, int) else "no type"


def _name_of(arg: Any, what: str) -> str:
    form, value = _single(arg, what)
    if form != "as_tensor":
        raise Malformed(what, f"{form:.40}", "tensors")
    return str(field_of(value, "name", str, what))


def _output_names(outputs: list[Any], what: str) -> Iterator[str]:
    """Return the names of results; "" for one that is no tensor."""
    for output in outputs:
        form, value = _single(output, what)
        if form == "as_tensor":
            yield field_of(value, "name", str, what)
        elif form in ("as_tensors", "as_optional_tensors") and isinstance(value, list):
            for one in value:
                one = one.get("as_tensor", one) if isinstance(one, dict) else one
                yield one["name"] if isinstance(one, dict) and isinstance(one.get("name"), str) else ""
        else:
            yield ""


# arguments ------------------------------------------------------------------------------------------------------------
def _argument(record: Any, names: Mapping[str, str], target: str) -> tuple[str, Any]:
    """Return (name, value) of one argument."""
    name = record.get("name") if isinstance(record, dict) else None
    if not isinstance(name, str):
        raise Malformed(f"{target:.80}", f"{record!r:.60}", "arguments with names")
    form, value = _single(field_of(record, "arg", dict, target), target)
    return name, _value(form, value, names, f"{target:.80}: {name:.40}")


def _value(form: str, value: Any, names: Mapping[str, str], what: str) -> Any:
    if form == "as_none":
        return None
    if form in ("as_tensor", "as_optional_tensor"):
        return _tensor(value, names, what)
    if form in ("as_tensors", "as_optional_tensors") and isinstance(value, list):
        return tuple(_tensor(one, names, what) for one in value)
    if form == "as_graph":
        return _Inner(field_of(value, "graph", dict, what))
    if form == "as_scalar_type":
        return Dtype(_any_type(value))
    if form == "as_layout":
        return None if value == STRIDED else Opaque(f"layout {value!r:.20}")
    if form in ("as_device", "as_memory_format"):
        return None  # where, and in which order, elements lie
    plain = _PLAIN.get(form)
    return Opaque(f"{form:.40}") if plain is None else plain(value, what)


def _tensor(value: Any, names: Mapping[str, str], what: str) -> Ref | None:
    if isinstance(value, dict) and len(value) == 1 and ("as_none" in value or "as_tensor" in value):
        value = value.get("as_tensor")
        if value is None:
            return None
    name = str(field_of(value, "name", str, what))
    return Ref(names.get(name, name))


def _flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise Malformed(what, f"{value!r:.60}", "true or false")
    return value


def _int(value: Any, what: str) -> int:
    return whole_number(value, what, -(2**63))


def _real(value: Any, what: str) -> float:
    if isinstance(value, str) and value in ("Infinity", "-Infinity", "NaN"):
        value = float(value)
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not plain or (isinstance(value, int) and abs(value) > 2**63):
        raise Malformed(what, f"{value!r:.60}", "a number")
    if math.isnan(value):
        raise Malformed(what, "NaN", "a number")
    return float(value)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > 200:
        raise Malformed(what, f"{value!r:.60}", "a short text")
    return value


def _size(value: Any, what: str) -> Any:
    """Return an extent: a number, or one that is left open."""
    if isinstance(value, dict) and "as_name" in value:
        return _Extent(str(value["as_name"]))
    return _int(value.get("as_int") if isinstance(value, dict) else value, what)


def _list_of(one: Any) -> Any:
    def read(value: Any, what: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > 4096:
            raise Malformed(what, f"{value!r:.60}", "a short list")
        return tuple(one(v, what) for v in value)

    return read


_PLAIN: dict[str, Any] = {
    "as_int": _int, "as_float": _real, "as_bool": _flag, "as_string": _text, "as_sym_int": _size,
    "as_ints": _list_of(_int), "as_floats": _list_of(_real), "as_bools": _list_of(_flag),
    "as_strings": _list_of(_text), "as_sym_ints": _list_of(_size),
}  # fmt: skip
