"""Pretrained language models from folders: what transformers compute with the same random weights."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine import needs
from pretrained_folders import (
    CASES,
    LONGROPE,
    PROMPT,
    ROWS,
    TOKENS,
    YARN,
    folder_of,
    ids_of,
    judged,
    random_tensor,
    tensors_of,
    written,
)

import gdlab as gd
from gdlab import nn, ops
from gdlab.models import PretrainedModel, from_pretrained
from gdlab.models.families import FAMILIES, markdown
from gdlab.models.lm import cache_names

LENGTH = PROMPT + TOKENS


def prefilled(model: PretrainedModel, ids: np.ndarray, device: str = "cpu") -> tuple[np.ndarray, list[np.ndarray]]:
    """Return logits and caches of a prompt."""
    with gd.build_inference_session(model.graph, device=device) as session:
        model.set_parameters(session)
        session.set_input("token_ids", ids)
        session.step()
        return session.read_output_by_index(0), [
            session.read_output_by_index(1 + i) for i in range(len(cache_names(model.config)))
        ]


def greedy(model: PretrainedModel, first: int, caches: list[np.ndarray], count: int, device: str = "cpu") -> list[int]:
    """Return `count` tokens, of which `first` is the first, written through caches that a prompt filled."""
    tokens = [first]
    with gd.build_inference_session(model.graph, device=device) as session:
        model.set_parameters(session)
        for name, rows in zip(cache_names(model.config), caches, strict=True):
            session.upload_param(name, np.pad(rows, ((0, model.length - len(rows)), (0, 0))))
        for place in range(PROMPT, PROMPT + count - 1):
            session.set_input("token_ids", np.uint32([tokens[-1]]))
            session.set_input("kv_pos", np.uint32([place]))
            session.step()
            tokens.append(int(session.read_output_by_index(0)[0].argmax()))
    return tokens


def trained(model: PretrainedModel, ids: np.ndarray, labels: np.ndarray, steps: int) -> list[float]:
    """Return the losses of some steps of gradient descent."""
    losses = []
    with gd.build_session(model.graph, device="cpu") as session:
        session.set_learning_rate(0.001)
        model.set_parameters(session)
        session.set_input("token_ids", ids)
        session.set_input("labels", labels)
        for _ in range(steps):
            session.step()
            losses.append(session.read_loss())
    return losses


@pytest.mark.parametrize("name", CASES)
def test_a_family_computes_what_transformers_compute(name: str, tmp_path: Path) -> None:
    """Logits of a prompt, 64 tokens through the caches that the prompt fills, and the loss in training."""
    wanted, ids = judged(name), ids_of(CASES[name])
    model = from_pretrained(folder_of(name, tmp_path / "model", shards=2), length=PROMPT)
    logits, caches = prefilled(model, ids)
    assert np.abs(logits[list(ROWS)] - wanted.logits).max() <= 1e-5 * wanted.largest
    assert wanted.largest > 0.5 and np.abs(logits).max() == pytest.approx(wanted.largest, rel=1e-4)
    assert greedy(model.at("decode", LENGTH), int(logits[-1].argmax()), caches, TOKENS) == wanted.tokens
    labels = np.eye(model.config.vocab_size, dtype=np.float32)[np.roll(ids, -1)]
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    loss = -(labels * (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))).sum(axis=1).mean()
    losses = trained(model.at("training", PROMPT), ids, labels, 2)
    assert losses[0] == pytest.approx(loss, rel=1e-5) and losses[1] < losses[0]


def test_soft_caps_and_windows_are_the_same_on_the_gpu(tmp_path: Path) -> None:
    needs("wgpu")
    name, wanted = "gemma2", judged("gemma2")
    model = from_pretrained(folder_of(name, tmp_path / "model"), length=PROMPT)
    logits, caches = prefilled(model, ids_of(CASES[name]), "wgpu")
    assert np.abs(logits[list(ROWS)] - wanted.logits).max() <= 2e-5 * wanted.largest
    assert greedy(model.at("decode", 24), int(logits[-1].argmax()), caches, 8, "wgpu") == wanted.tokens[:8]


def test_the_graph_of_llama_is_made_of_the_layers_of_nn() -> None:
    config = gd.models.TransformerLmConfig(32, 16, 2, 4, 2, 24)
    block = nn.TransformerBlockConfig(16, 24, 8, 4, 2, 4)
    with gd.Graph() as graph:
        embed = nn.Embedding("model.embed_tokens.weight", 32, 16)
        blocks = [nn.TransformerBlock(f"model.layers.{i}", block) for i in range(2)]
        norm, head = nn.RmsNorm("model.norm.weight", 16), nn.Linear.no_bias("lm_head", 16, 32)
        x = embed(ops.input_u32("token_ids", (5,)))
        for layer in blocks:
            x = layer(x)
        labels = ops.input("labels", (5, 32))
        graph.output(ops.cross_entropy_loss(head(norm(x)).named("logits"), labels), "loss")
    assert gd.models.transformer_lm(config, 5).text() == graph.text()


def test_rates_for_short_texts_and_for_long_ones_do_not_mix(tmp_path: Path) -> None:
    """All graphs of a model, and its caches, have the rates that its length asks for."""
    folder = folder_of("phi3, longrope", tmp_path / "phi3")
    short, long = (from_pretrained(folder, length=n) for n in (96, 97))
    first = [next(n for n in m.at("decode", 8).graph if n.op == "constant").attrs for m in (short, long)]
    assert first[0] != first[1] and short.positions == 96 and long.positions == 128
    wanted = "length: given 97, wanted at most 96 positions, .*from_pretrained\\(folder, length=97\\)"
    with pytest.raises(gd.LoadError, match=wanted):
        short.at("decode", 97)
    prompt = ids_of(CASES["phi3, longrope"])
    assert len(short.generate(prompt, max_new_tokens=84, device="cpu").finish().tokens) == 84  # a cache of 96, not 128
    with pytest.raises(gd.GdlabError, match="96"):
        short.generate(prompt, max_new_tokens=85, device="cpu")
    dynamic = folder_of("llama, dynamic rope", tmp_path / "llama")
    assert from_pretrained(dynamic).positions == 128
    with pytest.raises(gd.LoadError, match="length: given 129, wanted at most 128 positions"):
        from_pretrained(dynamic, length=129)


# formats of matrices --------------------------------------------------------------------------------------------------
BITS = {"f32": 32.0, "f16": 16.0, "q8": 8.5, "q4": 4.5}
ERROR = {"f16": 1e-2, "q8": 0.2, "q4": 1.5}  # of the largest logit; width 32 and random weights are the worst case


@pytest.mark.parametrize("dtype", ["f16", "q8", "q4"])
@pytest.mark.parametrize("name", ["llama 3.2", "phi3", "gpt2"])
def test_matrices_lie_in_the_format_that_is_asked_for(name: str, dtype: Any, tmp_path: Path) -> None:
    folder, ids = folder_of(name, tmp_path / "model"), ids_of(CASES[name])
    plain, model = (from_pretrained(folder, length=PROMPT, dtype=kind) for kind in ("f32", dtype))
    matrices = [n for n in plain if plain.graph_type(n).rank == 2]
    assert all(model.graph_type(n).dtype.is_storage for n in matrices)
    assert model.nbytes == sum(
        plain.graph_type(n).num_elements * (BITS[dtype] if n in matrices else 32) / 8 for n in plain
    )
    wanted, _ = prefilled(plain, ids)
    logits, caches = prefilled(model, ids)
    assert 0 < np.abs(logits - wanted).max() / np.abs(wanted).max() < ERROR[dtype]
    with gd.build_inference_session(plain.graph, device="cpu") as session:  # the same values, decoded
        for n in plain:
            values = np.asarray(model.weights[n])
            session.set_parameter(n, values.T if n in model.turned else values)
        session.set_input("token_ids", ids)
        session.step()
        decoded = session.read_output_by_index(0)
    assert np.abs(logits - decoded).max() <= 2e-5 * np.abs(decoded).max()
    steps = greedy(model.at("decode", 16), int(logits[-1].argmax()), caches, 3)
    assert len(steps) == 3 and model.at("decode", 16).nbytes == model.nbytes


def test_rows_that_do_not_divide_into_blocks_lie_in_f16(tmp_path: Path) -> None:
    config = CASES["llama 2"] | {"hidden_size": 24, "head_dim": 8}
    shapes = {n: tuple(24 if e == 32 and n != "x" else e for e in s) for n, s in judged("llama 2").shapes.items()}
    for layer in range(2):
        for part, shape in (("q", (32, 24)), ("k", (32, 24)), ("v", (32, 24)), ("o", (24, 32))):
            shapes[f"model.layers.{layer}.self_attn.{part}_proj.weight"] = shape
    folder = written(tmp_path / "model", config, {n: random_tensor(n, s) for n, s in shapes.items()})
    model = from_pretrained(folder, length=PROMPT, dtype="q8")
    kinds = {n.rpartition("layers.0.")[2]: str(model.graph_type(n).dtype) for n in model}
    assert kinds["self_attn.q_proj.weight"] == "f16" and kinds["self_attn.o_proj.weight"] == "q8_0"
    assert kinds["mlp.down_proj.weight"] == "q8_0" and kinds["input_layernorm.weight"] == "f32"
    assert np.isfinite(prefilled(model, ids_of(config))[0]).all()


def test_formats_are_not_trained_and_words_are_checked(tmp_path: Path) -> None:
    folder = folder_of("llama 2", tmp_path / "model")
    calls: dict[str, dict[str, Any]] = {
        "dtype: given 'f16', wanted 'f32' to train": {"mode": "training", "dtype": "f16"},
        "dtype: given 'int8', wanted one of f32, f16, q8, q4": {"dtype": "int8"},
        "mode: given 'inference', wanted one of prefill, decode, training": {"mode": "inference"},
        "length: given 0, wanted an int ≥ 1": {"length": 0},
        "length: given True, wanted an int": {"length": True},
        "batch: given 2, wanted 1": {"batch": 2},
    }
    for message, options in calls.items():
        with pytest.raises(gd.ArgumentError, match=message):
            from_pretrained(folder, **options)
    with pytest.raises(gd.LoadError, match="length: given 81, wanted at most the 80 positions"):
        from_pretrained(folder_of("gpt2", tmp_path / "gpt2"), length=81)


def test_tensors_are_read_one_by_one(tmp_path: Path) -> None:
    """All values of a model are never in memory at once: reading peaks at a few times its largest tensor."""
    name = "llama 2"
    config = CASES[name] | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6}
    shapes = dict[str, tuple[int, ...]]()
    for tensor, shape in judged(name).shapes.items():
        shape = tuple({32: 256, 64: 512}.get(extent, extent) for extent in shape)
        layers = range(6) if ".0." in tensor else range(1)
        shapes |= {tensor.replace(".0.", f".{i}."): shape for i in layers if ".1." not in tensor}
    folder = written(tmp_path / "model", config, {n: np.ones(s, np.float32) for n, s in shapes.items()}, shards=3)
    model = from_pretrained(folder, dtype="f16")
    largest = 4 * max(int(np.prod(shape)) for shape in shapes.values())
    tracemalloc.start()
    try:
        sizes = [np.asarray(model[n]).nbytes for n in model] + [len(model.packed(n).data) for n in sorted(model.turned)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(sizes[: len(model)]) > 30 * largest / 4 and peak < 6 * largest < sum(sizes)
    assert repr(model) == "<PretrainedModel 'model': llama, prefill, f16, 7.93 MB>"


# the folder -----------------------------------------------------------------------------------------------------------
def test_names_without_the_prefix_and_harmless_tensors_are_read(tmp_path: Path) -> None:
    tensors = {name.removeprefix("transformer."): values for name, values in tensors_of("gpt2").items()}
    tensors["h.0.attn.bias"] = np.ones((1, 1, 4, 4), np.float32)  # a mask
    tensors["lm_head.weight"] = tensors["wte.weight"].copy()
    model = from_pretrained(written(tmp_path / "model", CASES["gpt2"], tensors), length=PROMPT)
    logits, _ = prefilled(model, ids_of(CASES["gpt2"]))
    assert np.abs(logits[list(ROWS)] - judged("gpt2").logits).max() <= 1e-5 * judged("gpt2").largest
    tensors["lm_head.weight"][0, 0] += 1
    with pytest.raises(gd.LoadError, match="tensor 'lm_head.weight': given in the file, wanted by no parameter"):
        from_pretrained(written(tmp_path / "other", CASES["gpt2"], tensors))
    assert len(from_pretrained(tmp_path / "other", allow_unused="lm_*")) == len(model)


def test_the_cache_of_huggingface_hub_is_read(tmp_path: Path) -> None:
    """Its snapshots are links to blobs of the same model; any other link that leads out of the folder is refused."""
    home = tmp_path / "models--a--b"
    folder_of("llama 2", home / "blobs")
    folder = home / "snapshots" / "0123"
    folder.mkdir(parents=True)
    for file in ("config.json", "model.safetensors"):
        (folder / file).symlink_to(home / "blobs" / file)
    assert len(from_pretrained(folder)) == 21
    other = tmp_path / "other"
    other.mkdir()
    for file in ("config.json", "model.safetensors"):
        (other / file).symlink_to(home / "blobs" / file)
    with pytest.raises(gd.LoadError, match="a link that leads out of the folder, wanted a file of the folder"):
        from_pretrained(other)


Change = dict[str, Any]
BAD_FIELDS: dict[str, tuple[str, Change]] = {  # a message -> a case and other fields
    "config.json: model_type: given 'mamba', wanted one of": ("llama 2", {"model_type": "mamba"}),
    "config.json: model_type: given \\['llama'\\]": ("llama 2", {"model_type": ["llama"]}),
    "config.json: hidden_size: given nan, wanted an int": ("llama 2", {"hidden_size": float("nan")}),
    "config.json: hidden_size: given '32', wanted an int": ("llama 2", {"hidden_size": "32"}),
    "config.json: hidden_size: given True": ("llama 2", {"hidden_size": True}),
    "config.json: hidden_size: given 1099511627776": ("llama 2", {"hidden_size": 2**40}),
    "config.json: num_hidden_layers: given 100000, wanted at most 512": ("llama 2", {"num_hidden_layers": 100_000}),
    "config.json: num_attention_heads: given None": ("llama 2", {"num_attention_heads": None}),
    "config.json: rms_norm_eps: given inf": ("llama 2", {"rms_norm_eps": float("inf")}),
    "config.json: rope_theta: given -1": ("llama 2", {"rope_theta": -1}),
    "config.json: hidden_act: given 'tanhexp', wanted one of silu": ("llama 2", {"hidden_act": "tanhexp"}),
    "num_key_value_heads: given 3, wanted a divisor of 4": ("llama 2", {"num_key_value_heads": 3}),
    "config.json: attention_multiplier: given 0.5, wanted a field that": ("llama 2", {"attention_multiplier": 0.5}),
    "config.json: quantization_config": ("llama 2", {"quantization_config": {"bits": 4}}),
    "rope_scaling: given .*, wanted rope_type one of default, linear, dynamic, llama3, yarn, longrope": (
        "llama 2", {"rope_scaling": {"rope_type": "ntk", "factor": 2.0}}),
    "rope_scaling: given .*, wanted of rope_type yarn the fields factor, and of original_max_position_embeddings,": (
        "llama 2", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attn_factor": 1.0}}),
    "rope_scaling: given .*, wanted beta_slow below beta_fast": (
        "llama 2", {"rope_scaling": YARN | {"beta_slow": 40.0}}),
    "rope_theta: given 1.0, wanted a number above 1": ("llama 2", {"rope_scaling": YARN, "rope_theta": 1.0}),
    "config.json: max_position_embeddings: given none, wanted a number: rope_type dynamic depends on it": (
        "llama, dynamic rope", {"max_position_embeddings": None}),
    "config.json: original_max_position_embeddings: given none, wanted a number: rope_type longrope": (
        "phi3, longrope", {"original_max_position_embeddings": None}),
    "config.json: original_max_position_embeddings: given 96, and 64 in rope_scaling, wanted the same": (
        "phi3, longrope", {"rope_scaling": LONGROPE | {"original_max_position_embeddings": 64}}),
    "rope_scaling: given 3 short and 4 long factors, wanted 4 of each": (
        "phi3, longrope", {"rope_scaling": LONGROPE | {"short_factor": [1.0, 1.0, 1.0]}}),
    "config.json: original_max_position_embeddings: given 1, wanted 2 positions or more": (
        "phi3, longrope", {"original_max_position_embeddings": 1}),
    "rope_scaling: given .*, wanted factors in 10": (
        "phi3, longrope", {"rope_scaling": LONGROPE | {"short_factor": [1.0, 1e-46, 1.0, 1.0]}}),
    "rope_scaling: given .*, wanted of rope_type linear the fields factor": (
        "llama 2", {"rope_scaling": {"type": "linear", "factor": 2.0, "mscale": 2.0}}),
    "rope_scaling: given \\[1\\], wanted an object": ("llama 2", {"rope_scaling": [1]}),
    "config.json: layer_types: given 1 kinds, wanted 2": ("qwen3", {"layer_types": ["full_attention"]}),
    "config.json: layer_types: given \\['chunked'\\]": ("gemma2", {"layer_types": ["chunked"]}),
    "config.json: sliding_window: given none, wanted a number": ("gemma2", {"sliding_window": None}),
    "config.json: scale_attn_by_inverse_layer_idx: given True, wanted false": (
        "gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "hidden_activation: given 'gelu' beside hidden_act 'silu'": (
        "gemma", {"hidden_act": "silu", "hidden_activation": "gelu"}),
    "config.json: partial_rotary_factor: given 2, wanted a number above 0, at most 1": (
        "phi3", {"partial_rotary_factor": 2}),
    "tensor 'model.embed_tokens.weight': given \\[48, 32\\], wanted a shape that gives \\[49, 32\\]": (
        "llama 2", {"vocab_size": 49}),
    "tensor 'model.layers.1.input_layernorm.weight': given in the file \\(and 8 more\\)": (
        "llama 2", {"num_hidden_layers": 1}),
    "tensor 'model.layers.2.input_layernorm.weight': given none in the file, wanted every": (
        "llama 2", {"num_hidden_layers": 3}),
    "tensor 'lm_head.weight': given in the file.*the head is not the table": ("llama 2", {"tie_word_embeddings": True}),
    "tensor 'model.layers.0.self_attn..*_proj.bias': given in the file.*this model has biases": (
        "qwen2", {"model_type": "llama"}),
    "tensor 'model.layers.0.self_attn.k_norm.weight': given in the file.*norms that the graph": (
        "qwen3", {"model_type": "llama"}),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD_FIELDS)
def test_what_is_not_understood_is_refused_by_name(message: str, tmp_path: Path) -> None:
    name, change = BAD_FIELDS[message]
    with pytest.raises(gd.GdlabError, match=message) as refused:
        from_pretrained(folder_of(name, tmp_path / "model", **change))
    assert len(str(refused.value)) < 500


def _replaced(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def _large_config(folder: Path) -> None:
    with open(folder / "config.json", "r+b") as file:
        file.truncate(100_000_000)  # of zeros, which take no room


def _index(**places: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "rest.safetensors")
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"w": "rest.safetensors"} | places})
        )

    return write


def _without_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


HOSTILE: dict[str, Callable[[Path], object]] = {
    "config.json: given OSError: 100,000,000 bytes in config.json, where at most 1,048,576": _large_config,
    "config.json: given RecursionError": _replaced("config.json", b"[" * 100_000),
    "config.json: given list, wanted a JSON object": _replaced("config.json", b"[]"),
    "config.json: given JSONDecodeError": _replaced("config.json", b"{"),
    "config.json: given UnicodeDecodeError": _replaced("config.json", b"\xff\xfe\x00\xd8\x00"),
    "config.json: given FileNotFoundError": lambda folder: (folder / "config.json").unlink(),
    "weights in model: given pytorch_model.bin, which may run code": _without_weights,
    "shard of 'x': given '../../x.safetensors', wanted a file beside the index": _index(x="../../x.safetensors"),
    "FileNotFoundError": _index(x="model-00002-of-00002.safetensors"),
    "tensor 'w': given nothing in rest.safetensors": _index(),
    "given a header of 18,446,744,073,709,551,615 bytes": _replaced("model.safetensors", b"\xff" * 64),
}


@pytest.mark.parametrize("message", HOSTILE)
def test_a_hostile_folder_is_refused_by_name(message: str, tmp_path: Path) -> None:
    folder = folder_of("llama 2", tmp_path / "model")
    HOSTILE[message](folder)
    with pytest.raises(gd.LoadError) as refused:
        from_pretrained(folder)
    assert message in str(refused.value) and len(str(refused.value)) < 600


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    needs("posix")
    folder = folder_of("llama 2", tmp_path / "model")
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(gd.LoadError, match="a pipe, a device or a socket"):
        from_pretrained(folder)
    with pytest.raises(gd.LoadError, match="no folder, wanted a local folder with config.json"):
        from_pretrained("meta-llama/Llama-3.2-1B")


def test_the_page_lists_the_families() -> None:
    page = (Path(__file__).parents[2] / "docs" / "loading.md").read_text("utf-8")
    assert f"\n{markdown()}\n" in page, "python -m gdlab.models.families"
    assert {name for case in CASES.values() for name in [case["model_type"]]} <= FAMILIES.keys()
