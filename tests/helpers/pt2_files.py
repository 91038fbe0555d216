"""Archives as `torch.export.save` writes them, made without PyTorch, and what gdlab makes of them."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gdlab as gd
from gdlab.op.reference import evaluate

FIXTURES = Path(__file__).resolve().parents[1] / "load" / "pt2"
CODES = {"uint8": 1, "int8": 2, "int32": 4, "int64": 5, "float16": 6, "float32": 7, "float64": 8, "bool": 12}
Arrays = Mapping[str, np.ndarray]


class Name(str):
    """A tensor as an argument."""


class Raw(dict[str, Any]):
    """An argument as the JSON has it."""


def argument(value: Any) -> dict[str, Any]:
    """A value in the form of the serialization."""
    if isinstance(value, Raw):
        return dict(value)
    if value is None:
        return {"as_none": True}
    if isinstance(value, Name):
        return {"as_tensor": {"name": value}}
    for kind, form in ((bool, "as_bool"), (int, "as_int"), (float, "as_float"), (str, "as_string")):
        if isinstance(value, kind):
            return {form: str(value).replace("inf", "Infinity") if value in (np.inf, -np.inf) else value}
    if value and isinstance(value[0], Name):
        return {"as_tensors": [{"name": name} for name in value]}
    return {"as_floats" if value and isinstance(value[0], float) else "as_ints": list(value)}


def meta(array: np.ndarray, requires_grad: bool = False) -> dict[str, Any]:
    """The type of a tensor."""
    strides = [s // array.itemsize for s in np.ascontiguousarray(array).strides]
    return {
        "dtype": CODES[str(array.dtype)], "sizes": [{"as_int": n} for n in array.shape], "requires_grad": requires_grad,
        "device": {"type": "cpu", "index": None}, "strides": [{"as_int": s} for s in strides],
        "storage_offset": {"as_int": 0}, "layout": 7,
    }  # fmt: skip


def node(target: str, inputs: Mapping[str, Any], outputs: Sequence[str], line: int = 0) -> dict[str, Any]:
    """One call: `target` such as "aten.relu.default", arguments by name, the names of results."""
    trace = f'File "models/net.py", line {line}, in forward\n    y = line_{line}(x)\n'
    stack = "L__self__,,net.Net;L__self___body,body.0,net.Part"
    named = [{"name": name, "arg": argument(value), "kind": 1} for name, value in inputs.items()]
    made = [{"as_tensor": {"name": name}} for name in outputs]
    metadata = {"stack_trace": trace, "nn_module_stack": stack} if line else {}
    return {"target": f"torch.ops.{target}", "inputs": named, "outputs": made, "metadata": metadata}


def program(
    nodes: Sequence[Any], fed: Arrays, held: Arrays, outputs: Sequence[str], types: Arrays
) -> dict[str, Any]:  # fmt: skip
    """The JSON of a program whose held tensors are parameters."""
    specs: list[Any] = [{"parameter": {"arg": {"name": f"p_{n}"}, "parameter_name": n}} for n in held]
    specs += [{"user_input": {"arg": argument(Name(n))}} for n in fed]
    values = {f"p_{n}": meta(a, True) for n, a in held.items()} | {n: meta(a) for n, a in {**fed, **types}.items()}
    signature = {"input_specs": specs, "output_specs": [{"user_output": {"arg": argument(Name(n))}} for n in outputs]}
    graph = {"nodes": list(nodes), "tensor_values": values, "inputs": [], "outputs": []}
    return {"graph_module": {"graph": graph, "signature": signature}, "schema_version": {"major": 8, "minor": 14}}


def zipped(entries: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of these entries."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()


def entries_of(made: Mapping[str, Any], held: Arrays) -> dict[str, bytes]:
    """The entries of an archive with this program."""
    config = {
        name: {"path_name": f"weight_{i}", "is_param": True, "use_pickle": False, "tensor_meta": meta(array, True)}
        for i, (name, array) in enumerate(held.items())
    }
    weights = {f"m/data/weights/weight_{i}": array.tobytes() for i, array in enumerate(held.values())}
    return {
        "m/models/model.json": json.dumps(made).encode(), **weights,
        "m/data/weights/model_weights_config.json": json.dumps({"config": config}).encode(),
        "m/data/constants/model_constants_config.json": b'{"config": {}}', "m/archive_version": b"0",
    }  # fmt: skip


def archive(
    nodes: Sequence[Any], fed: Arrays, outputs: Sequence[str], types: Arrays, held: Arrays | None = None
) -> bytes:  # fmt: skip
    """A PT2 archive of these nodes."""
    held = held or {}
    return zipped(entries_of(program(nodes, fed, held, outputs, types), held))


def given(loaded: gd.TorchModel, fed: Arrays) -> list[np.ndarray]:
    """The outputs by gdlab's reference."""
    feeds = {n.name: fed[n.name].reshape(n.type.shape) for n in loaded.graph.inputs} | dict(loaded.weights)
    values = evaluate(loaded.graph, feeds)
    return [np.asarray(values[i]) for i in loaded.graph.output_ids]


def agree(target: str, inputs: Mapping[str, Any], fed: Arrays, wanted: Sequence[np.ndarray]) -> gd.TorchModel:
    """The model of one call of an operator; its results are those wanted."""
    types = {f"y{i}": array for i, array in enumerate(wanted)}
    loaded = gd.load_pt2(archive([node(f"aten.{target}", inputs, list(types), 3)], fed, list(types), types))
    for got, want in zip(given(loaded, fed), wanted, strict=True):
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-4, atol=1e-5)
    return loaded
