"""Example networks: names of parameters, learning, and token by token the logits of the whole prompt."""

from __future__ import annotations

import numpy as np
import pytest
from machine import needs

import gdlab as gd
from gdlab.models.lm import cache_names
from gdlab.session import build_inference_session, build_session

TINY = gd.models.TransformerLmConfig(
    vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=24,
)  # fmt: skip
BLOCK = [
    "input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
    "self_attn.o_proj.weight", "post_attention_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
    "mlp.down_proj.weight",
]  # fmt: skip


def names_of(graph: gd.Graph) -> list[str]:
    return [node.name for node in graph.parameters]


def test_the_mlp_is_what_its_config_says() -> None:
    graph = gd.models.mlp(gd.models.MlpConfig(6, (5, 4), 3, "gelu"), batch=2)
    assert names_of(graph) == [f"fc{i}.{part}" for i in (1, 2, 3) for part in ("weight", "bias")]
    assert [n.type.shape for n in graph.parameters] == [(6, 5), (5,), (5, 4), (4,), (4, 3), (3,)]
    assert [n.op for n in graph].count("gelu") == 2, "none behind the last layer"
    reader = gd.models.mlp(gd.models.MlpConfig(6, (5, 4), 3), 2, "inference")
    assert reader.outputs[0].shape == (2, 3) and names_of(reader) == names_of(graph)
    wide = gd.models.mlp()
    assert sum(n.type.num_elements for n in wide.parameters) == 785 * 256 + 257 * 128 + 129 * 10


def test_the_language_model_has_the_names_of_checkpoints() -> None:
    layers = [f"model.layers.{i}.{name}" for i in range(2) for name in BLOCK]
    want = ["model.embed_tokens.weight", *layers, "model.norm.weight", "lm_head.weight"]
    for mode in ("training", "prefill"):
        assert sorted(names_of(gd.models.transformer_lm(TINY, 5, mode))) == sorted(want)
    assert sorted(names_of(gd.models.transformer_lm(TINY, 5, "decode"))) == sorted([*want, *cache_names(TINY)])
    tied = gd.models.TransformerLmConfig(32, 16, 2, 4, 2, 24, tied=True)
    assert "lm_head.weight" not in names_of(gd.models.transformer_lm(tied, 5))


@pytest.mark.parametrize(("device", "tied"), [("cpu", False), ("cpu", True), ("wgpu", False)])
def test_token_by_token_gives_the_logits_of_the_whole_prompt(device: str, tied: bool) -> None:
    if device == "wgpu":
        needs("wgpu")
    config = gd.models.TransformerLmConfig(32, 16, 2, 4, 2, 24, tied=tied)
    ids = np.random.default_rng(1).integers(0, 32, 7).astype(np.uint32)
    with (
        build_inference_session(gd.models.transformer_lm(config, 7, "prefill"), device) as reader,
        build_inference_session(gd.models.transformer_lm(config, 7, "decode"), device) as writer,
    ):
        reader.initialize(3)
        writer.initialize(3)  # by name: the same values
        reader.set_input("token_ids", ids)
        reader.step()
        whole = reader.read_output()
        assert np.abs(whole).max() > 0.01
        for name in cache_names(config):  # rows that are not yet written are read by nobody
            writer.upload_param(name, np.full((7, config.kv_dim), np.nan))
        for at in range(7):
            write_token(writer, ids, at)
            np.testing.assert_allclose(writer.read_output()[0], whole[at], rtol=2e-4, atol=2e-5)
        for k, name in enumerate(cache_names(config)):
            want = reader.read_output_by_index(1 + k)
            np.testing.assert_allclose(writer.read_param(name), want, rtol=2e-4, atol=2e-5)
            writer.upload_param(name, want)  # as if the prompt had been read, and its last two tokens changed
        for at in (5, 6):
            write_token(writer, ids, at)
            np.testing.assert_allclose(writer.read_output()[0], whole[at], rtol=2e-4, atol=2e-5)


def write_token(session: gd.Session, ids: np.ndarray, at: int) -> None:
    session.set_input("token_ids", ids[at : at + 1])
    session.set_input("kv_pos", [at])
    session.step()


def test_the_language_model_learns_a_line_by_heart(device: str) -> None:
    ids = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.uint32)
    with build_session(gd.models.transformer_lm(TINY, 8), device) as session:
        session.initialize(0)
        session.set_input("token_ids", ids)
        session.set_input("labels", np.eye(32)[np.roll(ids, -1)])
        session.set_adam(1e-2)
        session.step()
        first = session.read_loss()
        assert abs(first - np.log(32)) < 0.5
        for _ in range(30):
            session.step()
        assert session.read_loss() < first / 4


def test_wrong_words_are_refused() -> None:
    with pytest.raises(gd.GraphError, match="mode: given 'train', wanted one of training, prefill, decode"):
        gd.models.transformer_lm(TINY, 8, "train")  # type: ignore[arg-type]
    with pytest.raises(gd.GraphError, match="num_attention_heads: given 3 heads, wanted a divisor of 16"):
        gd.models.transformer_lm(gd.models.TransformerLmConfig(32, 16, 1, 3, 3))
    with pytest.raises(gd.GraphError, match="mlp: mode: given 'eval'"):
        gd.models.mlp(mode="eval")  # type: ignore[arg-type]
    with pytest.raises(gd.GraphError, match="activation: given 'tanh'"):
        gd.models.mlp(gd.models.MlpConfig(activation="tanh"))  # type: ignore[arg-type]
