"""Open a language model of the llama family in a GGUF file, its weights in the file's formats.

    model = gd.load_gguf("model.gguf", mode="prefill", length=64)
    session = gd.build_inference_session(model.graph, device="wgpu")
    model.set_parameters(session)

The graph is that of `gd.models.transformer_lm`. What lies in f16, bf16 or blocks of ggml stays so: such a matrix is
[out, in], and products decode it. It needs `pip install gdlab[gguf]`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from gdlab.base.binding import bound
from gdlab.base.errors import ArgumentError, LoadError, unknown_name
from gdlab.base.formats import decode
from gdlab.base.formats.packed_bytes import Packed
from gdlab.base.kinds import PATH, kinds
from gdlab.base.types import Array, TensorType, f32
from gdlab.base.words import plural
from gdlab.graph import Graph
from gdlab.load.gguf.container import WHERE, Container, Field, read_container
from gdlab.load.gguf.fields import read_config
from gdlab.load.gguf.tensor_names import our_name, rotated_by
from gdlab.load.stored import Settable, factors, with_formats
from gdlab.models import TransformerLmConfig, transformer_lm
from gdlab.models.lm import Mode, cache_names

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
FREQUENCIES = "rope_freqs.weight"  # factors of the rotation's angles


@bound
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class GgufModel(Mapping[str, Array]):
    """The graph, its extents, and the values of its parameters by our names: decoded, f32 in the graph's shapes, as a
    mapping; as they lie in the file by `packed`. Bytes are read when they are asked for."""

    graph: Graph
    config: TransformerLmConfig
    container: Container
    names: Mapping[str, str]  # ours -> the file's
    turned: frozenset[str]  # parameters that the graph has as [in, out], the file as [out, in]

    def __getitem__(self, name: str) -> Array:
        data, type = self._rows(name)
        if type.dtype is f32:
            values = data.reshape(type.shape)
        else:
            words = np.frombuffer(data.tobytes() + bytes(-data.nbytes % 4), np.uint32)
            values = decode(words, type.dtype, type.shape)
        return np.ascontiguousarray(values.T if name in self.turned else values)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<GgufModel: {plural(self.config.num_hidden_layers, 'layer')}, {plural(len(self), 'parameter')}>"

    def graph_type(self, name: str) -> TensorType:
        """Return the type of a parameter of the graph."""
        node = self.graph.leaf(name)
        if node is None or name not in self.names:
            raise unknown_name("load_gguf", "parameter", str(name), self.names)
        return node.type

    def packed(self, name: str) -> bytes:
        """Return the bytes of a parameter in its format, rows in the order of the graph, as `set_parameter_packed` and
        u32 buffers of a `GraphExecutor` take them."""
        return self._rows(name)[0].tobytes()

    def at(self, mode: Mode = "prefill", length: int = 64) -> GgufModel:
        """Return a model of the same file with another graph."""
        _check_mode(self.container, mode)
        graph = _stored(transformer_lm(self.config, length, mode), self.config, self.container, self.names)
        return replace(self, graph=graph, turned=frozenset(graph.node(id).name for id in factors(graph)))

    @property
    def folder(self) -> None:
        """None: a GGUF file has no folder from which a tokenizer could be read."""
        return None

    @property
    def positions(self) -> int | None:
        """The largest number of positions of the model, if the file states it."""
        return _whole(self.container.fields.get("llama.context_length"))

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The tokens that end a text, if the file names any."""
        end = _whole(self.container.fields.get("tokenizer.ggml.eos_token_id"))
        return () if end is None else (end,)

    @property
    def weights(self) -> Mapping[str, Array | Packed]:
        """Return the values that a session takes by `set_parameter`: f32 as arrays, others in the file's bytes; each is
        read when it is asked for."""
        return _GgufWeights(self)

    def set_parameters(self, session: Settable) -> None:
        """Give a session of the graph all values: stored ones bit by bit, f32 ones as they are."""
        for name in self.names:
            if self.graph_type(name).dtype.is_storage:
                session.set_parameter_packed(name, self.packed(name))
            else:
                session.set_parameter(name, self[name])

    def _rows(self, name: str) -> tuple[Array, TensorType]:
        """Return the bytes of a tensor, u8[rows, …] (f32 as such), in the graph's order of rows, and its type."""
        self.graph_type(name)
        theirs = self.names[name]
        type = self.container.tensors[theirs].type
        data = np.frombuffer(self.container.read(theirs), "<f4" if type.dtype is f32 else np.uint8)
        data = data.reshape(type.shape[0], -1)
        extent = rotated_by(theirs)
        return (data if extent is None else _halves(data, getattr(self.config, extent))), type


def _whole(field: Field | None) -> int | None:
    return field if isinstance(field, int) and not isinstance(field, bool) and field >= 0 else None


@dataclass(frozen=True, slots=True, eq=False)
class _GgufWeights(Mapping[str, "Array | Packed"]):
    model: GgufModel

    def __getitem__(self, name: str) -> Array | Packed:
        if name not in self.model.names:
            raise KeyError(name)
        type = self.model.graph_type(name)
        return Packed(type.dtype, type.shape, self.model.packed(name)) if type.dtype.is_storage else self.model[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.model.names)

    def __len__(self) -> int:
        return len(self.model.names)


@kinds(path=PATH)
def load_gguf(path: str | os.PathLike[str], mode: Mode = "prefill", length: int = 64) -> GgufModel:
    """Open a GGUF file of architecture llama as `transformer_lm` in this mode, for `length` positions.

    Tensors of f32 are parameters as that model has them; of f16, bf16 and blocks of ggml they keep their format and lie
    as [out, in]. `LoadError` for a file that is damaged, and by name for everything that is not understood: another
    architecture, a tensor, a format, a field that changes what the model computes (experts, rope scaling, windows).
    """
    try:
        container = read_container(path)
        names = {our_name(name) or "": name for name in container.tensors if our_name(name)}
        table = container.tensors.get(EMBEDDING)
        rows = 0 if table is None else table.type.shape[0]
        config = read_config(container.fields, rows, HEAD not in container.tensors)
        _check_tensors(container, config)
        _check_mode(container, mode)
        graph = _stored(transformer_lm(config, length, mode), config, container, names)
        turned = frozenset(graph.node(id).name for id in factors(graph))
        return GgufModel(graph, config, container, names, turned)
    except LoadError:
        raise
    except OSError as error:
        raise LoadError(WHERE, repr(str(path)), f"{type(error).__name__}: {error}", "a GGUF file") from None


def _check_mode(container: Container, mode: str) -> None:
    """Raise for training with weights in another format than f32: gradients do not pass through such products."""
    formats = sorted({str(t.type.dtype) for t in container.tensors.values() if t.type.dtype.is_storage})
    if mode == "training" and formats:
        wanted = f"'prefill' or 'decode': this file has weights in {', '.join(formats)}, which are not trained"
        raise ArgumentError(WHERE, "mode", repr(mode), wanted)


def _halves(rows: Array, heads: int) -> Array:
    """Reorder the rows of each head from pairs (0, 1), (2, 3), … to pairs (i, i + width / 2): files are written for a
    rotation of neighbours, ours turns halves against one another."""
    paired = rows.reshape(heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(paired.transpose(0, 2, 1, 3)).reshape(rows.shape)


# tensors --------------------------------------------------------------------------------------------------------------
def _check_tensors(container: Container, config: TransformerLmConfig) -> None:
    """Raise for tensors that the model does not have, and for a wrong number of layers."""
    names = container.tensors
    for name, tensor in names.items():
        if name == FREQUENCIES and tensor.type.dtype is f32 and tensor.type.rank == 1:
            if (np.frombuffer(container.read(name), "<f4") != 1).any():
                wanted = "none, or factors of 1: the model rotates by rope.freq_base alone"
                raise LoadError(WHERE, f"tensor {name!r}", f"{tensor.type} of other factors", wanted)
        elif our_name(name) is None:
            wanted = f"a tensor of {config.num_hidden_layers:,} layers without biases, experts and further norms"
            raise LoadError(WHERE, f"tensor {name!r:.120}", str(tensor.type), wanted)
    layers = {name.split(".")[1] for name in names if name.startswith("blk.")}
    if len(layers) != config.num_hidden_layers:
        given = f"{config.num_hidden_layers:,}"
        raise LoadError(WHERE, "field 'llama.block_count'", given, f"{len(layers):,}, as there are tensors of layers")


def _stored(plain: Graph, config: TransformerLmConfig, container: Container, names: Mapping[str, str]) -> Graph:
    """Return the graph with its parameters in the formats of the file; those that do not lie in f32 are [out, in]."""
    caches, kept = set(cache_names(config)), dict[str, TensorType]()
    turned = factors(plain)
    for node in plain.parameters:
        if node.name in caches:
            continue
        if node.name not in names:
            raise LoadError(WHERE, "tensors", f"no {node.name!r}", "every parameter of the model")
        given = container.tensors[names[node.name]].type
        wanted = tuple(reversed(node.type.shape)) if node.id in turned else node.type.shape
        if given.shape != wanted:
            what = f"tensor {names[node.name]!r}"
            raise LoadError(WHERE, what, list(given.shape), f"{list(wanted)}, as the fields say")
        if given.dtype.is_storage and given.rank == 2:
            kept[node.name] = given
    unused = sorted(set(names) - {node.name for node in plain.parameters})
    if unused:
        raise LoadError(WHERE, f"tensor {names[unused[0]]!r:.120}", "in the file", "a tensor that the model reads")
    return with_formats(plain, kept, turned)
