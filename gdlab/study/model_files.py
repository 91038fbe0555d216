"""Open a file with a model as a study: its graph, the values of its parameters, and what was assumed of its shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from gdlab.base.errors import ArgumentError, LoadError
from gdlab.base.words import natural
from gdlab.study.study import Study

MODELS = (".onnx", ".safetensors")  # files that open as a study


def is_model(thing: object) -> bool:
    """Whether this is the name of a file that opens as a study."""
    return isinstance(thing, (str, Path)) and str(thing).endswith(MODELS)


def open_model(path: str | Path, dims: Mapping[str, int] | None = None) -> Study:
    """Open the ONNX model in a file with the file's weights; a `.safetensors` of the same name beside it has the last
    word on those that it names. Either of the two files may be given. `dims`: numbers for extents that have names."""
    from gdlab.load.onnx.model import load_onnx
    from gdlab.load.safetensors_file import load_safetensors

    model, beside = Path(path).with_suffix(".onnx"), Path(path).with_suffix(".safetensors")
    loaded = load_onnx(model, dims=dims)
    weights = dict(loaded.weights)
    if beside.exists():
        tensors = load_safetensors(beside)
        for name in [name for name in weights if name in tensors]:
            given, wanted = tensors.tensor_info(name).shape, weights[name].shape
            if given != wanted:
                where = f"{beside.name}: tensor {name!r}"
                raise LoadError("show", where, list(given), f"{list(wanted)}, as in {model.name}")
            weights[name] = tensors.tensor_f32(name)
    notes = (
        f"extent {name} is assumed to be {n}: it is the first axis of an input; --dims {name}={n} sets it"
        for name, n in loaded.assumed.items()
    )
    return Study(loaded.graph, name=re.sub(r"\W|^(?=\d)", "_", model.stem), weights=weights, notes=notes)


def parse_dims(text: str) -> dict[str, int]:
    """Read `batch=1,seq=128`."""
    dims: dict[str, int] = {}
    for part in text.split(","):
        name, equals, number = (word.strip() for word in part.rpartition("="))
        extent = natural(number)
        if not (equals and name and extent and extent < 2**31) or name in dims:
            raise ArgumentError("dims", "--dims", text[:80], "NAME=N,… with each name once and whole numbers above 0")
        dims[name] = extent
    return dims
