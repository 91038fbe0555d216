"""Open a public model from its folder: config.json and safetensors, whole or in shards. Never a network.

    model = gd.models.from_pretrained("Llama-3.2-1B", mode="decode", length=2048, dtype="f16")
    session = gd.build_inference_session(model.graph, device="wgpu")
    model.set_parameters(session)
    model.at("prefill", 512)               # another graph of the same weights

Tensors are read one by one when they are asked for. `gdlab/models/names/` has a table per family.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gdlab.base.binding import bound
from gdlab.base.errors import ArgumentError, GraphError, LoadError, ShapeError, unknown_name
from gdlab.base.files import read_regular
from gdlab.base.formats.packed_bytes import Packed
from gdlab.base.kinds import PATH, kinds
from gdlab.base.types import Array, DType, TensorType, f32
from gdlab.base.words import nbytes, near_hint
from gdlab.graph import Graph
from gdlab.load.safetensors_file import INDEX, WHOLE, SafeTensorsModel, load_safetensors
from gdlab.load.stored import Settable, decoded_matrices, factors, with_formats
from gdlab.models.families import FAMILIES
from gdlab.models.family import WHERE, Family, GraphRequest, Source
from gdlab.models.public_checkpoint import EMBEDDING, HARMLESS, HINTS, repeats
from gdlab.op.storage import written_in_place

CONFIG, GENERATION = "config.json", "generation_config.json"
POSITIONS = ("max_position_embeddings", "n_positions")  # fields of config.json
MOST_CONFIG = 1 << 20  # bytes of config.json
Dtype = Literal["f32", "f16", "q8", "q4"]
DTYPES: dict[str, DType] = {"f32": f32, "f16": DType.f16, "q8": DType.q8_0, "q4": DType.q4_0}  # of matrices


@bound
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PretrainedModel(Mapping[str, Array]):
    """A graph, the configuration that it was built from, and the values of its parameters by name, read one by one when
    they are asked for: as a mapping f32 in the graph's shapes, by `weights` in the graph's formats."""

    graph: Graph
    config: Any
    family: str
    request: GraphRequest
    dtype: Dtype
    folder: Path
    tensors: SafeTensorsModel
    sources: Mapping[str, Source]  # names as in the file
    turned: frozenset[str]  # matrices in formats that the graph has as [out, in], `sources` as [in, out]

    @property
    def mode(self) -> str:
        """Return the mode of the graph."""
        return self.request.mode

    @property
    def length(self) -> int:
        """Return the number of positions of the graph."""
        return self.request.length

    @property
    def batch(self) -> int:
        """Return the number of rows of the graph's batch."""
        return self.request.batch

    @property
    def positions(self) -> int | None:
        """Return the largest number of positions: as far as the rates of rotary positions hold, else as config.json
        states, else None."""
        scaling = getattr(self.config, "rope_scaling", None)
        if scaling is not None and scaling.most is not None:
            return int(scaling.most)
        fields = _object(self.folder, CONFIG)
        for name in POSITIONS:
            if isinstance(given := fields.get(name), int):
                return int(given)
        return None

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Return the tokens that end a text, from generation_config.json, or else from config.json."""
        generation = _object(self.folder, GENERATION) if (self.folder / GENERATION).is_file() else {}
        end = generation.get("eos_token_id", _object(self.folder, CONFIG).get("eos_token_id"))
        return tuple(id for id in (end if isinstance(end, list) else [end]) if isinstance(id, int) and id >= 0)

    def __getitem__(self, name: str) -> Array:
        if name not in self.sources:
            raise KeyError(name)
        return self.sources[name].read(self.tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    def __repr__(self) -> str:
        size = nbytes(self.nbytes)
        return f"<PretrainedModel {self.folder.name!r}: {self.family}, {self.mode}, {self.dtype}, {size}>"

    @property
    def nbytes(self) -> int:
        """Return the bytes of all parameters in the formats of the graph."""
        return sum(self.graph_type(name).data_bytes for name in self.sources)

    @property
    def weights(self) -> Mapping[str, Array | Packed]:
        """Return the values that a session of the graph takes by `set_parameter`, each read when it is asked for."""
        return _PretrainedWeights(self)

    def graph_type(self, name: str) -> TensorType:
        """Return the type of a parameter of the graph."""
        node = self.graph.leaf(name)
        if node is None or name not in self.sources:
            raise unknown_name(WHERE, "parameter", str(name), self.sources)
        return node.type

    def packed(self, name: str) -> Packed:
        """Return a parameter in the bytes of its storage format, its matrix as [out, in] if products read it so."""
        type = self.graph_type(name)
        return Packed.of(self.sources[name].read(self.tensors, name in self.turned), type)

    def set_parameters(self, session: Settable) -> None:
        """Give a session of the graph the values of all parameters but the caches."""
        for name in self.sources:
            if self.graph_type(name).dtype.is_storage:
                session.set_parameter_packed(name, self.packed(name).data)
            else:
                session.set_parameter(name, self[name])

    def at(self, mode: str | None = None, length: int | None = None, batch: int | None = None) -> PretrainedModel:
        """Return the model with another graph over the same weights; options that are not given stay as they are."""
        request = GraphRequest(mode or self.mode, length or self.length, batch or self.batch)
        family = FAMILIES[self.family]
        graph, turned = _graph(family, self.config, request, self.dtype)
        return replace(self, graph=graph, request=request, turned=turned)


@dataclass(frozen=True, slots=True, eq=False)
class _PretrainedWeights(Mapping[str, "Array | Packed"]):
    model: PretrainedModel

    def __getitem__(self, name: str) -> Array | Packed:
        if name not in self.model.sources:
            raise KeyError(name)
        return self.model.packed(name) if self.model.graph_type(name).dtype.is_storage else self.model[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.model.sources)

    def __len__(self) -> int:
        return len(self.model.sources)


@kinds(folder=PATH)
def from_pretrained(
    folder: str | os.PathLike[str],
    mode: str | None = None,
    length: int | None = None,
    dtype: Dtype = "f32",
    batch: int = 1,
    allow_unused: str | Iterable[str] = (),
    family: str | None = None,
) -> PretrainedModel:
    """Open the model in a local folder: its config.json, and model.safetensors or the shards of its index.

    `mode`: of a language model "prefill" (the default), "decode" or "training", for `length` positions; of an encoder
    "inference" (the default) or "training", for `batch` rows; "masked" of one for text takes a mask of its tokens.
    `length` is then the tokens of a sequence, or the side of an image. `dtype`: the format of its matrices; "q8" and
    "q4" are blocks of 32 in 8 and 4 bits (q8_0 and q4_0 of ggml), "f16" where rows do not divide into them.

    `LoadError` names whatever is damaged or not understood: a field of config.json that changes the arithmetic, a
    tensor that no parameter has or that has another shape. `allow_unused`: shell patterns of tensors to pass over.
    `family`: what a config.json without `model_type` is, or no config.json: a family, or the name of a network of timm
    or torchvision ("resnet50", "vit_b_16").
    """
    if dtype not in DTYPES:
        raise ArgumentError(WHERE, "dtype", repr(dtype), f"one of {', '.join(DTYPES)}")
    for name, extent in (("length", 1 if length is None else length), ("batch", batch)):
        if isinstance(extent, bool) or not isinstance(extent, (int, np.integer)) or extent < 1:
            raise ArgumentError(WHERE, name, repr(extent), "an int ≥ 1")
    home = _home(folder)
    fields = _fields(home, family)
    kind = _family(fields)
    config = kind.config(fields)
    extent = kind.length(config) if length is None else int(length)
    config = kind.at_length(config, extent)
    request = GraphRequest(kind.modes[0] if mode is None else mode, extent, int(batch))
    tensors = _tensors(home)
    _check_layers(config, tensors)
    graph, turned = _graph(kind, config, request, dtype)
    sources = {name: _in_file(source, kind, tensors) for name, source in kind.sources(config).items()}
    plain = graph if dtype == "f32" else _graph(kind, config, request, "f32")[0]
    _check_shapes(plain, sources, tensors)
    patterns = (allow_unused,) if isinstance(allow_unused, str) else tuple(allow_unused)
    _check_copies(kind, sources, tensors, patterns)
    known = (*HARMLESS, *kind.harmless, *kind.copies, *patterns)
    _check_unused(plain, sources, tensors, known)
    return PretrainedModel(graph, config, kind.model_types[0], request, dtype, home, tensors, sources, turned)


# the folder -----------------------------------------------------------------------------------------------------------
def _home(folder: str | os.PathLike[str]) -> Path:
    """Return the folder; raise if a link leads out of it (in the cache of huggingface_hub, out of that model's files).
    """
    home = Path(folder)
    if not os.path.isdir(home):  # Path.is_dir raises for a name that is too long
        raise LoadError(WHERE, repr(str(folder)), "no folder", "a local folder with config.json and safetensors")
    inside = [home.resolve()]
    if inside[0].parent.name == "snapshots":
        inside.append(inside[0].parent.parent / "blobs")
    with os.scandir(home) as entries:
        links = [e.name for e in entries if e.is_symlink() and e.name.endswith((".json", ".safetensors"))]
    for name in links:
        target = (home / name).resolve()
        if not any(target.is_relative_to(root) for root in inside):
            wanted = "a file of the folder: nothing outside it is read (cp -rL makes a copy with all files)"
            raise LoadError(WHERE, f"{name:.80}", "a link that leads out of the folder", wanted)
    return home


def _fields(home: Path, family: str | None) -> dict[str, Any]:
    """Return config.json, with the family if that is given apart."""
    said = {} if family is None else {"model_type" if family in FAMILIES else "architecture": family}
    if said and not (home / CONFIG).exists():
        return said
    fields = _object(home, CONFIG)
    return {**{name: value for name, value in fields.items() if not said or name != "model_type"}, **said}


def _object(home: Path, file: str) -> dict[str, Any]:
    """Return the object in a JSON file of the folder."""
    try:
        fields = json.loads(read_regular(home / file, MOST_CONFIG))
    except (OSError, ValueError, RecursionError) as error:
        given = f"{type(error).__name__}: {error!s:.200}"
        raise LoadError(WHERE, file, given, f"a JSON object of at most {MOST_CONFIG:,} bytes in {home}") from None
    if not isinstance(fields, dict):
        raise LoadError(WHERE, file, type(fields).__name__, "a JSON object")
    return fields


def _family(fields: Mapping[str, Any]) -> Family[Any]:
    """Return the family by `model_type` or, in files of timm, by the name of the network."""
    given, network = fields.get("model_type"), fields.get("architecture")
    if isinstance(given, str) and given in FAMILIES:
        return FAMILIES[given]
    for family in FAMILIES.values():
        if given is None and isinstance(network, str) and family.named(network):
            return family
    field, value = ("architecture", network) if given is None and network is not None else ("model_type", given)
    networks = "or, of timm and torchvision, an architecture as resnet50, vit_base_patch16_224, vit_b_16"
    wanted = f'one of {", ".join(sorted(FAMILIES))}, {networks}: in the file or by family="…"'
    raise LoadError(WHERE, f"{CONFIG}: {field}", f"{value!r:.80}", wanted)


def _tensors(home: Path) -> SafeTensorsModel:
    if not (home / WHOLE).exists() and not (home / INDEX).exists():
        others = sorted(path.name for path in home.glob("*.bin"))[:1]
        given = f"{others[0]}, which may run code when it is opened" if others else "none"
        wanted = f"{WHOLE} or {INDEX}: save_pretrained(folder, safe_serialization=True) writes it"
        raise LoadError(WHERE, f"weights in {home.name}", given, wanted)
    return load_safetensors(home)


def _check_layers(config: Any, tensors: SafeTensorsModel) -> None:
    """Raise for more layers than tensors, before a graph is made of them."""
    layers = getattr(config, "num_hidden_layers", 0)
    if layers > len(tensors):
        given, wanted = f"{layers:,}", f"at most {len(tensors):,}, as there are tensors"
        raise LoadError(WHERE, f"{CONFIG}: layers", given, wanted)


# the graph ------------------------------------------------------------------------------------------------------------
def _graph(family: Family[Any], config: Any, request: GraphRequest, dtype: Dtype) -> tuple[Graph, frozenset[str]]:
    """Return the graph with matrices in this format, and the names of those that lie as [out, in]."""
    if request.mode not in family.modes:
        raise ArgumentError(WHERE, "mode", repr(request.mode), f"one of {', '.join(family.modes)}")
    if request.mode == "training" and dtype != "f32":
        wanted = "'f32' to train: gradients do not pass through products of stored weights"
        raise ArgumentError(WHERE, "dtype", repr(dtype), wanted)
    try:
        plain = family.build(config, request)
    except (GraphError, ShapeError) as error:
        raise LoadError(WHERE, CONFIG, f"{error!s:.300}", "a model whose extents go together") from None
    if dtype == "f32":
        return plain, frozenset()
    turned = factors(plain)
    kept = {n.name: _stored_type(n.type, n.id in turned, DTYPES[dtype]) for n in decoded_matrices(plain)}
    names = frozenset(plain.node(id).name for id in turned)
    return with_formats(plain, kept, turned), names & kept.keys()


def _stored_type(type: TensorType, turned: bool, dtype: DType) -> TensorType:
    """Return the type of a matrix in a format, [out, in] if it is a right factor."""
    shape = type.shape[::-1] if turned else type.shape
    block = 1 if dtype.format is None else dtype.format.block
    return TensorType(shape, DType.f16 if shape[-1] % block else dtype)


# tensors --------------------------------------------------------------------------------------------------------------
def _in_file(source: Source, family: Family[Any], tensors: Mapping[str, Any]) -> Source:
    """Return the source under the file's name for it, which may lack the family's prefix or be an older one."""
    names = [source.name, source.name.removeprefix(family.prefix)]
    older = [name.removesuffix(new) + old for name in names for new, old in family.renamed if name.endswith(new)]
    missing = names[any(family.prefix and name.startswith(family.prefix) for name in tensors) ^ 1]
    return replace(source, name=next((name for name in (*names, *older) if name in tensors), missing))


def _check_shapes(graph: Graph, sources: Mapping[str, Source], tensors: SafeTensorsModel) -> None:
    """Raise for tensors that are missing or of another shape, before any is read."""
    caches = set(written_in_place(graph).values())
    for node in graph.parameters:
        if node.id in caches:
            continue
        source = sources[node.name]
        for name in source.names:
            if name not in tensors:
                wanted = f"every tensor of the model that config.json describes{near_hint(name, tensors)}"
                raise LoadError(WHERE, f"tensor {name!r}", "none in the file", wanted)
        given = tensors.tensor_info(source.name).shape
        if source.shape_of(given) != node.type.shape:
            wanted = f"a shape that gives {list(node.type.shape)} of {node.name}, as config.json says"
            raise LoadError(WHERE, f"tensor {source.name!r}", list(given), wanted)


def _check_copies(
    family: Family[Any], sources: Mapping[str, Source], tensors: SafeTensorsModel, allowed: tuple[str, ...]
) -> None:
    """Raise if a tensor differs from the one that it should repeat, which the graph reads in its place."""
    used = {name for source in sources.values() for name in source.names}
    for name, original in family.copies.items():
        names = (original, original.removeprefix(family.prefix))
        other = next((each for each in names if each in tensors), None)
        if name not in tensors or name in used or other is None or any(fnmatchcase(name, each) for each in allowed):
            continue
        shapes = [tensors.tensor_info(each).shape for each in (name, other)]
        if shapes[0] != shapes[1] or not np.array_equal(tensors[name], tensors[other]):
            wanted = f"equal to {other}, which the model reads in its place; or allow_unused=({name!r},)"
            raise LoadError(WHERE, f"tensor {name!r}", "other values", wanted)


def _check_unused(
    graph: Graph, sources: Mapping[str, Source], tensors: SafeTensorsModel, harmless: tuple[str, ...]
) -> None:
    """Raise for tensors that no parameter reads, unless they are known to be harmless."""
    table = sources[EMBEDDING].name if EMBEDDING in sources else EMBEDDING
    used = {name for source in sources.values() for name in source.names}
    lost = [
        name for name in tensors
        if name not in used and not any(fnmatchcase(name, pattern) for pattern in harmless)
        and not repeats(name, graph, tensors, table)
    ]  # fmt: skip
    if not lost:
        return
    more = f" (and {len(lost) - 1:,} more)" if len(lost) > 1 else ""
    hint = next((hint for pattern, hint in HINTS.items() if fnmatchcase(lost[0], pattern)), "")
    wanted = f"by no parameter{f': {hint}' if hint else ''}; or allow_unused=({lost[0]!r:.80},)"
    raise LoadError(WHERE, f"tensor {lost[0]!r:.120}", f"in the file{more}", wanted)
