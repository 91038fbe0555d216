"""Checkpoints that do not fit their graph are refused by name; what is harmless is listed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gdlab as gd
from gdlab import models
from gdlab.rewrite import optimize

RNG = np.random.default_rng(5)
TINY = models.TransformerLmConfig(32, 16, 2, 4, 4, 24)
TIED = models.TransformerLmConfig(32, 16, 2, 4, 4, 24, tied=True)
LAYER = "model.layers.0"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "num_attention_heads": 4,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "rope_scaling": None,
    "tie_word_embeddings": False, "attention_bias": False, "torch_dtype": "bfloat16", "use_cache": True,
}  # fmt: skip


def lm(config: models.TransformerLmConfig = TINY, mode: Any = "prefill", length: int = 5) -> gd.Graph:
    return models.transformer_lm(config, length, mode)


def file_of(graph: gd.Graph) -> dict[str, np.ndarray]:
    """The tensors of a file, matrices of layers as [out, in]."""
    tensors = {n.name: RNG.normal(size=n.type.shape).astype(np.float32) for n in graph.parameters}
    return {name: t.T if "_proj" in name or name == "lm_head.weight" else t for name, t in tensors.items()}


# W1: tensors that nothing wants ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "hint"), [
    (f"{LAYER}.self_attn.q_proj.bias", "this model has biases"),  # Qwen2
    (f"{LAYER}.mlp.down_proj.bias", "this model has biases"),  # LLaMA with mlp_bias
    ("lm_head.bias", "this model has biases"),  # Phi
    (f"{LAYER}.self_attn.q_norm.weight", "this model has norms"),  # Qwen3
    (f"{LAYER}.pre_feedforward_layernorm.weight", "this model has norms"),  # Gemma 2
    ("model.layers.2.input_layernorm.weight", "that the graph does not have"),  # a layer more
    ("model.layers.1.block_sparse_moe.experts.0.w1.weight", "parts of a layer"),
    (f"{LAYER}.self_attn.q_proj.lora_A.default.weight", "this is an adapter"),
    (f"{LAYER}.mlp.up_proj.weight_scale", "this checkpoint is quantized"),
    ("model.embed_positions.weight", "wanted by no parameter"),
    ("norm_pre.weight", "wanted by no parameter"),
])  # fmt: skip
def test_a_tensor_of_a_layer_that_is_not_used_is_an_error(name: str, hint: str) -> None:
    graph = lm()
    tensors = {**file_of(graph), name: np.ones(16, np.float32)}
    with pytest.raises(gd.CheckpointError) as caught:
        models.checkpoint_weights(graph, tensors)
    text = str(caught.value)
    assert text.startswith(f"checkpoint_weights: {name}: given in the file, wanted by no parameter") and hint in text
    for pattern in (name, "*"):
        assert models.checkpoint_weights(graph, tensors, allow_unused=(pattern,)).unused == [name]
    with pytest.raises(gd.CheckpointError, match=r"given in the file \(and 1 more\)"):
        models.checkpoint_weights(graph, {**tensors, f"{LAYER}.extra.weight": np.ones(3)}, allow_unused="nothing*")


def test_what_is_harmless_is_listed() -> None:
    graph = lm()
    other_half = ["model.decoder.layers.0.fc1.weight", "model.decoder.embed.weight", "vision_tower.patch.conv.weight"]
    rates = 10000.0 ** (-np.arange(0, 4, 2) / 4)
    buffers = {"model.position_ids": np.arange(5), f"{LAYER}.self_attn.rotary_emb.inv_freq": rates}
    tensors = {**file_of(graph), **dict.fromkeys(other_half, np.ones(2)), **buffers}
    weights = models.checkpoint_weights(graph, tensors)
    assert weights.unused == [*other_half, *buffers] and list(weights) == [n.name for n in graph.parameters]
    assert models.checkpoint_weights(graph, file_of(graph)).unused == []
    with pytest.raises(gd.CheckpointError, match="rotate at other rates"):
        models.checkpoint_weights(graph, {**tensors, f"{LAYER}.self_attn.rotary_emb.inv_freq": rates / 2})


def test_a_head_of_its_own_is_no_tied_head() -> None:
    graph = lm(TIED)
    tensors = file_of(graph)
    same = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].copy()}
    assert models.checkpoint_weights(graph, same).unused == ["lm_head.weight"]
    with pytest.raises(gd.CheckpointError, match=r"lm_head\.weight: given in the file, .*tied=False"):
        models.checkpoint_weights(graph, {**same, "lm_head.weight": same["lm_head.weight"] + 1})


def test_the_halves_and_counters_of_vision_checkpoints_are_harmless() -> None:
    whisper = models.whisper_encoder(models.WhisperConfig(8, 20, 16, 2, 1))
    extra = ["decoder.token_embedding.weight", "decoder.positional_embedding", "decoder.blocks.0.attn.query.bias"]
    extra += ["encoder.positional_embedding"]
    weights = models.checkpoint_weights(whisper, {**transposed(whisper), **dict.fromkeys(extra, np.ones(2))})
    assert weights.unused == extra
    vit = models.vit_encoder(models.VitConfig(8, 4, 3, 16, 1, 2, 24))
    assert models.checkpoint_weights(vit, {**transposed(vit), "head.weight": np.ones(2)}).unused == ["head.weight"]
    for name in ("reg_token", "norm_pre.weight", "blocks.0.ls1.gamma", "blocks.1.norm1.weight", "blocks.0.attn.q.bias"):
        with pytest.raises(gd.CheckpointError, match=name):
            models.checkpoint_weights(vit, {**transposed(vit), name: np.ones(2)})
    resnet = models.resnet18(models.ResNetConfig(width=4, classes=4), 1, "inference")
    tensors = transposed(resnet)
    with pytest.raises(gd.CheckpointError, match=r"conv1\.bias: given in the file, wanted by no parameter"):
        models.checkpoint_weights(resnet, {**tensors, "conv1.bias": np.ones(4)})
    counted = {**tensors, "bn1.num_batches_tracked": np.int64(3), "bn1.running_mean": np.ones(4),
               "bn1.running_var": np.ones(4)}  # fmt: skip
    assert models.checkpoint_weights(resnet, counted).unused == ["bn1.num_batches_tracked"]
    del counted["bn1.running_mean"]
    with pytest.raises(gd.UnknownNameError, match=r"bn1\.running_mean"):
        models.checkpoint_weights(resnet, counted)


def transposed(graph: gd.Graph) -> dict[str, np.ndarray]:
    """Tensors of a file for a graph: what its products have at the right is transposed."""
    right = {graph.node(n.inputs[1]).name for n in graph if n.op == "matmul"}
    return {n.name: np.ones(n.type.shape[::-1] if n.name in right else n.type.shape) for n in graph.parameters}


def test_integers_are_no_weights() -> None:
    graph = lm()
    name = f"{LAYER}.self_attn.q_proj.weight"
    with pytest.raises(gd.DTypeError, match=f"tensor '{name}': given int8, wanted floats"):
        models.checkpoint_weights(graph, {**file_of(graph), name: np.ones((16, 16), np.int8)})


def test_square_matrices_of_an_optimized_graph_are_turned_too() -> None:
    graph = lm(TIED)
    fused, _ = optimize(graph, phase="inference")
    assert "fused_matmul_add" in {n.op for n in fused} and "matmul" in {n.op for n in fused}
    tensors = file_of(graph)
    plain, other = (models.checkpoint_weights(g, tensors) for g in (graph, fused))
    assert plain.keys() == other.keys()
    for name in plain:
        np.testing.assert_array_equal(plain[name], other[name])


# W2: fields of a configuration ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("field", "value"), [
    ("rope_scaling", {"rope_type": "llama3", "factor": 8.0}), ("rope_scaling", {"type": "linear", "factor": 2.0}),
    ("rope_parameters", {"rope_type": "yarn", "rope_theta": 10000.0}), ("rope_parameters", {"rope_theta": 5e5}),
    ("rope_theta", 500000.0), ("rms_norm_eps", 1e-6), ("num_attention_heads", 2), ("num_key_value_heads", 2),
    ("head_dim", 8), ("hidden_act", "gelu_pytorch_tanh"), ("hidden_act", "relu2"), ("hidden_activation", "gelu"),
    ("tie_word_embeddings", True), ("attention_bias", True), ("mlp_bias", True), ("sliding_window", 4),
    ("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0), ("logit_scale", 0.1),
    ("partial_rotary_factor", 0.5), ("layer_types", ["full_attention", "linear_attention"]),
    ("layer_types", ["sliding_attention", "full_attention"]), ("model_type", "gemma"), ("num_local_experts", 8),
    ("rms_norm_eps", [1]), ("hidden_act", ["silu"]), ("quantization_config", {"bits": 4}), ("rope_theta", "x"),
])  # fmt: skip
def test_a_field_that_the_graph_does_otherwise_is_an_error(field: str, value: Any) -> None:
    graph = lm()
    with pytest.raises(gd.CheckpointError, match=f"checkpoint_weights: config.{field}: given "):
        models.checkpoint_weights(graph, file_of(graph), {**CONFIG, field: value})
    models.checkpoint_weights(graph, file_of(graph), {**CONFIG, field: value}, f"config.{field}")


@pytest.mark.parametrize("more", [
    {}, {"sliding_window": 5}, {"sliding_window": 4, "use_sliding_window": False}, {"attn_logit_softcapping": None},
    {"rope_scaling": {"rope_type": "default"}}, {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
    {"head_dim": None}, {"head_dim": 4}, {"num_key_value_heads": None}, {"layer_types": ["full_attention"] * 2},
    {"layer_types": ["sliding_attention"] * 2, "sliding_window": 64}, {"model_type": "mistral"}, {"experts": 0},
])  # fmt: skip
def test_a_field_that_fits_is_taken(more: dict[str, Any]) -> None:
    graph = lm()
    assert len(models.checkpoint_weights(graph, file_of(graph), {**CONFIG, **more})) == len(graph.parameters)
    fused, _ = optimize(graph, phase="inference")
    assert models.checkpoint_weights(fused, file_of(graph), {**CONFIG, **more})


def test_a_field_that_is_left_out_has_the_value_of_transformers() -> None:
    graph = lm()
    for name, message in (("rms_norm_eps", "given 1e-06, wanted 1e-05"), ("rope_theta", "")):
        config = {key: value for key, value in CONFIG.items() if key != name}
        if message:
            with pytest.raises(gd.CheckpointError, match=f"config.{name}: {message}"):
                models.checkpoint_weights(graph, file_of(graph), config)
        else:
            models.checkpoint_weights(graph, file_of(graph), config)
    far = lm(models.TransformerLmConfig(32, 16, 2, 4, 4, 24, rope_theta=5e5))
    config = {key: value for key, value in CONFIG.items() if key != "rope_theta"}
    models.checkpoint_weights(far, file_of(far), {**config, "rope_parameters": {"rope_theta": 5e5}})
    with pytest.raises(gd.CheckpointError, match="config.rope_theta: given 10000.0, wanted 500000, as in the graph"):
        models.checkpoint_weights(far, file_of(far), config)


# W3: caches -----------------------------------------------------------------------------------------------------------
def test_caches_are_not_looked_for() -> None:
    prompt, decode = lm(), lm(mode="decode")
    tensors = file_of(prompt)
    weights = models.checkpoint_weights(decode, tensors, CONFIG)
    assert set(weights) == set(tensors) and "k.0" not in weights
    assert models.checkpoint_weights(decode, {**tensors, "k.0": np.ones(2)}).unused == ["k.0"]
    with pytest.raises(gd.CheckpointError, match="config.sliding_window: given 4, .* 9 positions"):
        models.checkpoint_weights(lm(mode="decode", length=9), tensors, {**CONFIG, "sliding_window": 4})
