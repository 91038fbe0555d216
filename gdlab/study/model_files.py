"""Open a model as a study, from a file, a folder, a live module of PyTorch or a function of JAX: its graph, the values
of its parameters, and the assumptions made."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gdlab.base.errors import ArgumentError, LoadError
from gdlab.base.words import natural
from gdlab.study.study import Study

MODELS = (".onnx", ".safetensors", ".gguf", ".pt2")  # files that open as a study
LENGTH, BATCH = "length", "batch"  # positions of a language model and rows of an encoder, as names for --dims


def is_model(thing: object) -> bool:
    """Return whether this is the name of a file, or of a folder with a config.json, that opens as a study."""
    return isinstance(thing, (str, Path)) and (str(thing).endswith(MODELS) or _is_folder(Path(thing)))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir() and (path / "config.json").is_file()
    except (OSError, ValueError):  # no name of a file
        return False


def open_model(path: str | Path, dims: Mapping[str, int] | None = None) -> Study:
    """Open the ONNX model in a file with the file's weights; a `.safetensors` of the same name beside it overrides the
    weights that it names. Either of the two files may be given. `dims`: numbers for extents that have names. A language
    model in a GGUF file opens as its prompt of `length` positions, with the file's blocks as weights; a `.pt2` of
    PyTorch names those that are dynamic. A folder is a pretrained model."""
    if _is_folder(Path(path)):
        return _open_pretrained(Path(path), dims or {})
    if str(path).endswith(".gguf"):
        return _open_gguf(Path(path), dims or {})
    if str(path).endswith(".pt2"):
        return _open_pt2(Path(path), dims or {})
    from gdlab.load.onnx.onnx_model import load_onnx
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
    assumed = (
        f"extent {name} is assumed to be {n}: it is the first axis of an input; --dims {name}={n} sets it"
        for name, n in loaded.assumed.items()
    )
    return Study(loaded.graph, name=_study_name(model), weights=weights, notes=(*assumed, *loaded.notes))


def is_module(thing: object) -> bool:
    """Return whether this is a live module of PyTorch, or an exported program; PyTorch is not loaded to find out."""
    torch = sys.modules.get("torch")
    export = sys.modules.get("torch.export")
    kinds = (getattr(getattr(torch, "nn", None), "Module", None), getattr(export, "ExportedProgram", None))
    return any(isinstance(kind, type) and isinstance(thing, kind) for kind in kinds)


def is_function(thing: object) -> bool:
    """Return whether this may be a function that JAX traces; JAX is not loaded to find out."""
    return "jax" in sys.modules and callable(thing) and not isinstance(thing, type) and not is_module(thing)


def open_module(name: str, module: Any, examples: Sequence[Any], **options: Any) -> Study:
    """Open a live module of PyTorch, exported with these example inputs, or a function of JAX, traced with these
    examples of its arguments, as a study with its weights; `options`: those of `Study`."""
    from gdlab.load.jaxpr.jax_model import load_jax
    from gdlab.load.pt2.pt2_model import load_torch

    if not is_module(module):
        traced = load_jax(module, *examples)
        return Study(traced.graph, name=name, weights=traced.weights, **options)
    model = load_torch(module, *examples, train=bool(options.get("train")))
    return Study(model.graph, name=name, weights=model.weights, notes=model.notes, **options)


def _open_pt2(path: Path, dims: Mapping[str, int]) -> Study:
    from gdlab.load.pt2.pt2_model import load_pt2

    model = load_pt2(path, dims=dims)
    return Study(model.graph, name=_study_name(path), weights=model.weights, notes=model.notes)


def _open_gguf(path: Path, dims: Mapping[str, int]) -> Study:
    from gdlab.load.gguf.gguf_model import load_gguf

    unknown = [name for name in dims if name != LENGTH]
    if unknown:
        raise ArgumentError(
            "dims", "--dims", f"{unknown[0]}={dims[unknown[0]]}", f"{LENGTH}=N, the positions of a GGUF model"
        )
    model = load_gguf(path, "prefill", dims.get(LENGTH, 64))
    length = model.graph.inputs[0].type.shape[0]
    notes = () if LENGTH in dims else (f"a prompt of {length} positions is assumed; --dims {LENGTH}={length} sets it",)
    return Study(model.graph, name=_study_name(path), weights=model.weights, notes=notes)


def _open_pretrained(path: Path, dims: Mapping[str, int]) -> Study:
    from gdlab.load.pretrained import from_pretrained
    from gdlab.models.families import FAMILIES

    unknown = [name for name in dims if name not in (LENGTH, BATCH)]
    if unknown:
        wanted = f"{LENGTH}=N, the positions of a language model, or {BATCH}=N, the rows of an encoder"
        raise ArgumentError("dims", "--dims", f"{unknown[0]}={dims[unknown[0]]}", wanted)
    model = from_pretrained(path, length=dims.get(LENGTH), batch=dims.get(BATCH, 1))
    assumed = FAMILIES[model.family].assumed.format(model.length)
    notes = (f"{assumed} assumed; --dims {LENGTH}={model.length} sets it",) if assumed and LENGTH not in dims else ()
    name = re.sub(r"\W|^(?=\d)", "_", path.resolve().name)
    return Study(model.graph, name=name, weights=model.weights, notes=notes)


def _study_name(path: Path) -> str:
    return re.sub(r"\W|^(?=\d)", "_", path.stem)


def parse_dims(text: str) -> dict[str, int]:
    """Parse extents by name: `batch=1,seq=128`."""
    dims: dict[str, int] = {}
    for part in text.split(","):
        name, equals, number = (word.strip() for word in part.rpartition("="))
        extent = natural(number)
        if not (equals and name and extent and extent < 2**31) or name in dims:
            raise ArgumentError("dims", "--dims", text[:80], "NAME=N,… with each name once and whole numbers above 0")
        dims[name] = extent
    return dims
