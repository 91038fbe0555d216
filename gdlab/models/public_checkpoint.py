"""Fit the tensors of a public checkpoint to a graph's parameters, or say why they do not fit.

    weights = gd.models.checkpoint_weights(graph, gd.load_safetensors(folder), config=json.load(open("config.json")))
    for name, values in weights.items():
        session.set_parameter(name, values)
    weights.unused      # tensors of the file that change nothing, or belong to another half of the model

A checkpoint of another architecture often has the names and shapes that a graph wants, and gives wrong numbers. So each
tensor that is not used must be known to be harmless, and each field of `config.json` must be understood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from gdlab.base.errors import CheckpointError, DTypeError, ShapeError, unknown_name
from gdlab.base.formats import narrowed
from gdlab.base.types import Array, f32
from gdlab.graph import Graph
from gdlab.op.storage import written_in_place
from gdlab.ops.packed import PACKED

WHERE = "checkpoint_weights"
BATCH_NORM_EPS = 1e-5  # torchvision's
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


class Weights(dict[str, Array]):
    """The value of every parameter by name; `unused`: the names of the file's other tensors."""

    def __init__(self, values: Mapping[str, Array], unused: Sequence[str]) -> None:
        super().__init__(values)
        self.unused = list(unused)


def checkpoint_weights(
    graph: Graph,
    tensors: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
    allow_unused: str | Iterable[str] = (),
) -> Weights:
    """Return a value for every parameter of the graph but its caches.

    Matrices that the graph multiplies by from the right are [out, in] in checkpoints and are transposed. Where
    `name.running_mean` and `name.running_var` exist, they are folded into `name.weight` and `name.bias`.

    `config` is what `config.json` says: `CheckpointError` names a field that is not understood or that the graph does
    otherwise. A tensor of a layer of the graph that no parameter wants raises `CheckpointError` too, unless a shell
    pattern of `allow_unused` matches its name (`config.NAME` for a field). A missing tensor raises `UnknownNameError`,
    one of another shape `ShapeError`, integers `DTypeError`.
    """
    allowed = (allow_unused,) if isinstance(allow_unused, str) else tuple(allow_unused)
    caches = {graph.node(id).name for id in written_in_place(graph).values()}
    wanted = {n.name: n.type.shape for n in graph.parameters if n.name not in caches}
    if config is not None:
        _check_config(_facts(graph, wanted), config, allowed)
    turned = _right_factors(graph)
    values: dict[str, Array] = {}
    used: set[str] = set()
    for name, shape in wanted.items():
        data = _folded(name, tensors, used)
        data = data.T if name in turned and data.ndim == 2 else data
        if data.shape != shape:
            given = f"{list(np.shape(tensors[name]))}{' to transpose' if name in turned else ''}"
            raise ShapeError(WHERE, f"tensor {name!r}", given, f"a shape that gives {list(shape)}")
        values[name] = np.ascontiguousarray(narrowed(WHERE, f"tensor {name!r}", data, f32))
    unused = [name for name in tensors if name not in used]
    _check_unused(graph, wanted, tensors, [n for n in unused if n not in caches and not _matches(n, allowed)])
    return Weights(values, unused)


def _right_factors(graph: Graph) -> set[str]:
    """Return the names of the parameters that are right factors of products."""
    plain = graph.decompose()  # fused products are products again
    names, ids = set[str](), {n.inputs[1] for n in plain if n.op == "matmul"}
    while ids:
        node = plain.node(ids.pop())
        if node.op == "parameter":
            names.add(node.name)
        elif node.op in (PACKED, "concat", "stop_gradient"):  # several side by side
            ids.update(node.inputs)
    return names


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _tensor(name: str, tensors: Mapping[str, Any], used: set[str]) -> Array:
    if name not in tensors:
        raise unknown_name(WHERE, "tensor", name, tensors)
    used.add(name)
    data = np.asarray(tensors[name])
    if data.dtype.kind in "biuc":
        raise DTypeError(WHERE, f"tensor {name!r}", data.dtype, "floats: a quantized checkpoint has scales besides")
    return data


def _folded(name: str, tensors: Mapping[str, Any], used: set[str]) -> Array:
    """Return a tensor; the running statistics of a batch norm are folded into its factor and offset."""
    layer, _, part = name.rpartition(".")
    data = _tensor(name, tensors, used)
    if f"{layer}.running_var" not in tensors or part not in ("weight", "bias"):
        return data
    weight, mean, spread = (
        np.asarray(_tensor(f"{layer}.{kind}", tensors, used), np.float64)
        for kind in ("weight", "running_mean", "running_var")
    )
    factor = weight / np.sqrt(spread + BATCH_NORM_EPS)
    return np.asarray(factor if part == "weight" else data - mean * factor)


# tensors that nothing wants -------------------------------------------------------------------------------------------
HARMLESS = (
    "*num_batches_tracked", "*position_ids",  # counters
    "encoder.positional_embedding",  # sinusoids, which the encoder of Whisper has as a constant
)  # fmt: skip
HEADS = ("head", "head_dist", "fc", "classifier", "score", "pooler")  # behind the features that a graph may end with
HINTS: dict[str, str] = {  # pattern of a name -> what a model with it does
    "*.bias": "this model has biases (attention_bias=True, mlp_bias=True), which the graph was built without",
    "*_norm.weight": "this model has norms that the graph does not have",
    "*layernorm.weight": "this model has norms that the graph does not have",
    "*lora_*": "this is an adapter: merge it into the weights",
    "*scale*": "this checkpoint is quantized: its weights are to be multiplied by scales",
    HEAD: "the head is not the table of embeddings: build the graph with tied=False",
    "*inv_freq": "the positions rotate at other rates than those of the graph's rope_theta",
}


def _check_unused(graph: Graph, wanted: Iterable[str], tensors: Mapping[str, Any], unused: Sequence[str]) -> None:
    """Raise for unused tensors that belong to layers of the graph."""
    paths = {""} | {name[:i] for name in wanted for i, c in enumerate(name) if c == "."}
    modules = {name.rpartition(".")[0] for name in wanted}
    outer = {name[:i] for name in tensors for i, c in enumerate(name.rpartition(".")[0]) if c == "."}
    lost = [
        name for name in unused
        if not _matches(name, HARMLESS) and _belongs(name, paths, modules - {""}, outer)
        and not repeats(name, graph, tensors)
    ]  # fmt: skip
    if not lost:
        return
    name, more = lost[0], f" (and {len(lost) - 1:,} more)" if len(lost) > 1 else ""
    numbered = [part for part in name.split(".") if part.isdigit()]
    hint = next((hint for pattern, hint in HINTS.items() if fnmatchcase(name, pattern)), "")
    if not hint and numbered:
        hint = "this model has layers, or parts of a layer, that the graph does not have"
    wanted_text = f"by no parameter{f': {hint}' if hint else ''}"
    raise CheckpointError(WHERE, name, f"in the file{more}", f"{wanted_text}; or allow_unused=({name!r},)")


def _belongs(name: str, paths: set[str], modules: set[str], outer: set[str]) -> bool:
    """Return whether a tensor belongs to a layer of the graph. `paths`: modules of the graph and what they lie in;
    `modules`: those with parameters of their own; `outer`: modules of the file that have modules inside."""
    parts = name.split(".")[:-1]
    depth = next(n for n in range(len(parts), -1, -1) if ".".join(parts[:n]) in paths)
    at = ".".join(parts[:depth])
    if depth == len(parts) or at in modules or any(part.isdigit() for part in parts[:depth]):
        return True
    child = parts[depth]
    if child.isdigit():  # one layer more than the graph has
        return any(path.rpartition(".")[2].isdigit() and path.rpartition(".")[0] == at for path in paths)
    another_half = ".".join(parts[: depth + 1]) in outer
    return not another_half and child not in HEADS


def repeats(name: str, graph: Graph, tensors: Mapping[str, Any], embedding: str = EMBEDDING) -> bool:
    """Return whether a tensor repeats something that the graph computes anyway. `embedding`: the table of embeddings in
    the file."""
    if name == HEAD and embedding in tensors:
        head, table = np.asarray(tensors[HEAD]), np.asarray(tensors[embedding])
        return head.shape == table.shape and bool((head == table).all())
    if name.endswith("rotary_emb.inv_freq"):
        given = np.asarray(tensors[name], np.float64)
        return any(
            given.shape == (head_dim // 2,)
            and np.allclose(given, theta ** (-np.arange(0, head_dim, 2) / head_dim), rtol=1e-2)  # bf16 in some files
            for theta, head_dim in _rotations(graph)
        )
    return False


# fields of config.json ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Facts:
    """The properties of a graph that a configuration may state in its fields. `length`: of the longest attention."""

    ops: frozenset[str]
    names: frozenset[str]
    attrs: Mapping[str, frozenset[Any]]  # of its attention, rotations and norms
    length: int


def _rotations(graph: Graph) -> set[tuple[float, int]]:
    """Return (theta, head_dim) of every rotation by position."""
    attrs = [dict(n.attrs) for n in graph if n.op.startswith("rope")]
    return {(float(a["theta"]), int(a["head_dim"])) for a in attrs if {"theta", "head_dim"} <= a.keys()}


def _facts(graph: Graph, names: Iterable[str]) -> Facts:
    attrs: dict[str, set[Any]] = {}
    length = 1
    for node in graph:
        if "attention" in node.op:
            length = max(length, graph.node(node.inputs[1]).type.shape[0])
        if "attention" in node.op or node.op.startswith("rope") or node.op.endswith("norm"):
            for key, value in node.attrs:
                attrs.setdefault(key, set()).add(value)
    seen = {key: frozenset(values) for key, values in attrs.items()}
    return Facts(frozenset(n.op for n in graph), frozenset(names), seen, length)


Check = Callable[[Facts, Any, Mapping[str, Any]], str]  # the value that is wanted; "" where the field fits


def _attr(name: str) -> Check:
    """Return the check of an attribute of the graph's ops."""

    def check(facts: Facts, given: Any, config: Mapping[str, Any]) -> str:
        values = {float(np.float32(value)) for value in facts.attrs.get(name, ())}
        if given is None and name == "num_kv_heads":
            given = config.get("num_attention_heads")
        if given is None and name == "head_dim":
            given = config.get("hidden_size", 0) // config.get("num_attention_heads", 1)
        if values == {float(np.float32(given))}:
            return ""
        return f"{' and '.join(f'{v:.6g}' for v in sorted(values)) or 'none'}, as in the graph"

    return check


ACTIVATIONS: dict[str, str] = {  # as files call them -> part of the names of ops that compute it
    "silu": "silu", "swish": "silu", "gelu": "gelu_erf", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu",
    "gelu_tanh": "gelu", "relu": "relu",
}  # fmt: skip


def _activation(facts: Facts, given: Any, config: Mapping[str, Any]) -> str:
    names = [op.replace("swiglu", "silu") for op in facts.ops]
    here = {next((kind for kind in ("gelu_erf", "gelu", "silu", "relu") if kind in name), "") for name in names} - {""}
    return "" if here == {ACTIVATIONS.get(given)} else f"the graph's: {', '.join(sorted(here)) or 'none'}"


def _tied(facts: Facts, given: Any, config: Mapping[str, Any]) -> str:
    tied = EMBEDDING in facts.names and HEAD not in facts.names
    return "" if bool(given) == tied else f"{tied}: build the graph with tied={bool(given)}"


def _biased(part: str) -> Check:
    def check(facts: Facts, given: Any, config: Mapping[str, Any]) -> str:
        biased = any(part in name and name.endswith(".bias") for name in facts.names)
        return "" if bool(given) == biased else f"{biased}: the graph has {'' if biased else 'no '}biases there"

    return check


def _window(facts: Facts, given: Any, config: Mapping[str, Any]) -> str:
    if given is None or config.get("use_sliding_window") is False or (isinstance(given, int) and given >= facts.length):
        return ""
    return f"none, or at least the graph's {facts.length} positions: it attends to all of them"


def _use_window(facts: Facts, given: Any, config: Mapping[str, Any]) -> str:
    return _window(facts, config.get("sliding_window"), {}) if given else ""


def _layer_types(facts: Facts, given: Any, config: Mapping[str, Any]) -> str:
    if all(kind == "full_attention" for kind in given or ()):
        return ""
    inside = set(given) <= {"full_attention", "sliding_attention"} and config.get("sliding_window")
    return _window(facts, config["sliding_window"], {}) if inside else "full_attention in every layer"


def _rope(facts: Facts, given: Any, config: Mapping[str, Any]) -> str:
    """Check `rope_scaling`, or `rope_parameters`, which holds the theta too."""
    if not given:
        return ""
    rest = dict(given) if isinstance(given, Mapping) else {"rope_type": given}
    kinds = {rest.pop("rope_type", "default"), rest.pop("type", "default")}
    theta, factor = rest.pop("rope_theta", None), rest.pop("partial_rotary_factor", 1.0)
    if kinds != {"default"} or rest or factor != 1:
        return "none: the graph's positions rotate without scaling"
    return "" if theta is None else _attr("theta")(facts, theta, config)


def _model_type(facts: Facts, given: Any, config: Mapping[str, Any]) -> str:
    """Check `model_type`: some models differ in ways that no other field states. Gemma multiplies embeddings by √width
    and norms by 1 + weight."""
    rotates = any(op.startswith("rope") for op in facts.ops)
    known = ("llama", "mistral", "qwen2") if rotates else ("resnet", "vit", "whisper", "unet")
    return "" if given in known else f"one of {', '.join(known)}"


def _one(facts: Facts, given: Any, config: Mapping[str, Any]) -> str:
    return "" if given in (1, None) else "1"


FIELDS: dict[str, Check] = {
    "model_type": _model_type, "rope_theta": _attr("theta"), "rope_scaling": _rope, "rope_parameters": _rope,
    "partial_rotary_factor": _one, "rms_norm_eps": _attr("eps"), "layer_norm_eps": _attr("eps"),
    "layer_norm_epsilon": _attr("eps"), "num_attention_heads": _attr("num_heads"),
    "num_key_value_heads": _attr("num_kv_heads"), "head_dim": _attr("head_dim"), "hidden_act": _activation,
    "hidden_activation": _activation, "activation_function": _activation, "tie_word_embeddings": _tied,
    "attention_bias": _biased("attn"), "qkv_bias": _biased("attn"), "mlp_bias": _biased("mlp"),
    "sliding_window": _window, "use_sliding_window": _use_window, "layer_types": _layer_types,
}  # fmt: skip
NO_ARITHMETIC = frozenset(
    """
architectures torch_dtype dtype transformers_version _name_or_path auto_map use_cache bos_token_id eos_token_id
pad_token_id unk_token_id decoder_start_token_id initializer_range initializer_factor max_position_embeddings vocab_size
hidden_size num_hidden_layers intermediate_size pretraining_tp attention_dropout hidden_dropout dropout
hidden_dropout_prob attention_probs_dropout_prob attn_dropout resid_pdrop embd_pdrop attn_pdrop classifier_dropout
output_attentions output_hidden_states return_dict gradient_checkpointing id2label label2id num_labels problem_type
finetuning_task task_specific_params max_window_layers image_size patch_size num_channels num_classes architecture
num_features global_pool pretrained_cfg license tokenizer_class model_max_length generation_config
""".split()
)  # what files, tokens and training are like, and extents, which the shapes of the tensors check


DEFAULTS: dict[str, Any] = {  # of transformers, for fields that a config.json of a language model leaves out
    "rms_norm_eps": 1e-6, "num_key_value_heads": None, "hidden_act": "silu", "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
}  # fmt: skip


def _misfit(check: Check, facts: Facts, given: Any, config: Mapping[str, Any]) -> str:
    try:
        return check(facts, given, config)
    except (TypeError, ValueError):
        return "a value that such a field has"


def _check_config(facts: Facts, config: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Raise for a field that contradicts the graph, and for an unknown one with a value."""
    left_out: dict[str, Any] = {}
    if "model_type" in config and any(op.startswith("rope") for op in facts.ops):
        left_out = {name: value for name, value in DEFAULTS.items() if name not in config}
        if "rope_theta" in (config.get("rope_parameters") or {}):
            left_out.pop("rope_theta", None)
    for name, given in {**config, **left_out}.items():
        if name in NO_ARITHMETIC or _matches(f"config.{name}", allowed):
            continue
        if name in FIELDS:
            wanted = _misfit(FIELDS[name], facts, given, config)
        else:  # nothing, no or none: a feature that is not used
            wanted = "a field that is understood" if given else ""
        if wanted:
            more = "" if name in FIELDS else f"; if it changes no number: allow_unused=('config.{name}',)"
            raise CheckpointError(WHERE, f"config.{name}", f"{given!r:.200}", f"{wanted}{more}")
