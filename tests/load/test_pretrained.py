"""Pretrained language models from folders: what transformers compute with the same random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from machine import needs
from pretrained_folders import CASES, PROMPT, ROWS, TOKENS, folder_of, ids_of, judged

import gdlab as gd
from gdlab import nn, ops
from gdlab.models import PretrainedModel, from_pretrained
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
