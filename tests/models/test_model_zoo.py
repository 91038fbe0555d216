"""Models of public checkpoints: names and counts of parameters, the same values everywhere, gradients, learning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from small_models import RESNET, SMALL, TRAINED, UNET

import gdlab as gd
from gdlab import models
from gdlab.models.whisper import sinusoids
from gdlab.op.reference import compare, evaluate, magnitudes
from gdlab.rewrite import optimize

RNG = np.random.default_rng(8)


def names_of(graph: gd.Graph) -> list[str]:
    return [n.name for n in graph.parameters]


def count(graph: gd.Graph) -> int:
    return sum(n.type.num_elements for n in graph.parameters)


def feeds_of(graph: gd.Graph, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    leaves = (*graph.inputs, *graph.parameters)
    feeds = {n.name: rng.normal(0, 0.3, n.type.shape).astype(np.float32) for n in leaves}
    if "labels" in feeds:
        feeds["labels"] = np.eye(feeds["labels"].shape[1], dtype=np.float32)[: len(feeds["labels"])]
    return feeds


def parts(*names: str) -> list[str]:
    return [f"{name}.{part}" for name in names for part in ("weight", "bias")]


# names, shapes, counts ------------------------------------------------------------------------------------------------
def test_resnet18_has_the_names_and_the_count_of_torchvision() -> None:
    graph = models.resnet18()
    want = ["conv1.weight", *parts("bn1")]
    for layer in range(1, 5):
        for block in range(2):
            name = f"layer{layer}.{block}"
            want += [f"{name}.conv1.weight", *parts(f"{name}.bn1"), f"{name}.conv2.weight", *parts(f"{name}.bn2")]
            if layer > 1 and block == 0:
                want += [f"{name}.downsample.0.weight", *parts(f"{name}.downsample.1")]
    assert sorted(names_of(graph)) == sorted([*want, *parts("fc")])
    assert count(graph) == 11_689_512
    assert graph.leaf("conv1.weight").type.shape == (64, 3, 7, 7)  # type: ignore[union-attr]
    assert graph.leaf("layer4.0.downsample.0.weight").type.shape == (512, 256, 1, 1)  # type: ignore[union-attr]
    logits = models.resnet18(models.ResNetConfig(classes=7), 3, "inference").outputs[0]
    assert logits.shape == (3, 7)
    sizes = [n.type.shape[2] for n in graph if n.op == "conv2d"]
    assert (sizes[0], sizes[-1]) == (112, 7)


def test_vit_has_the_names_and_the_count_of_timm() -> None:
    graph = models.vit_encoder()
    blocks = [part for i in range(12) for part in
              parts(*(f"blocks.{i}.{name}" for name in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1",
                                                         "mlp.fc2")))]  # fmt: skip
    want = ["cls_token", "pos_embed", *parts("patch_embed.proj"), *blocks, *parts("norm")]
    assert sorted(names_of(graph)) == sorted(want)
    assert count(graph) == 85_798_656 and graph.outputs[0].shape == (1, 197, 768)
    headed = models.vit_encoder(models.VitConfig(classes=1000))
    assert count(headed) == 86_567_656 and set(names_of(headed)) - set(want) == {"head.weight", "head.bias"}
    assert headed.outputs[0].shape == (1, 1000)


def test_whisper_has_the_names_of_openai() -> None:
    graph = models.whisper_encoder()
    attn = ["attn.query.weight", "attn.query.bias", "attn.key.weight", *parts("attn.value", "attn.out")]
    block = [*attn, *parts("attn_ln", "mlp.0", "mlp.2", "mlp_ln")]
    want = parts("encoder.conv1", "encoder.conv2", "encoder.ln_post")
    want += [f"encoder.blocks.{i}.{name}" for i in range(4) for name in block]
    assert sorted(names_of(graph)) == sorted(want)
    assert count(graph) + 1500 * 384 == 8_208_384, "with the table of positions, which is no parameter"
    assert graph.leaf("encoder.conv2.weight").type.shape == (384, 384, 3)  # type: ignore[union-attr]
    assert graph.outputs[0].shape == (1, 1500, 384)
    table = sinusoids(4, 6)
    np.testing.assert_allclose(table[3], [*np.sin([3, 0.03, 0.0003]), *np.cos([3, 0.03, 0.0003])], rtol=1e-6)


def test_the_unet_has_the_names_of_diffusers() -> None:
    names = set(names_of(models.unet_small()))
    resnet = parts("norm1", "conv1", "time_emb_proj", "norm2", "conv2")
    want = set(parts("conv_in", "time_embedding.linear_1", "time_embedding.linear_2", "conv_norm_out", "conv_out"))
    attn = ("group_norm", "to_q", "to_k", "to_v", "to_out.0")
    want |= set(parts(*(f"mid_block.attentions.0.{part}" for part in attn)))
    blocks = [*(f"down_blocks.{i}.resnets.0" for i in range(3)), *(f"mid_block.resnets.{j}" for j in range(2)),
              *(f"up_blocks.{i}.resnets.{j}" for i in range(3) for j in range(2))]  # fmt: skip
    want |= {f"{block}.{part}" for block in blocks for part in resnet}
    want |= set(parts(*(f"{block}.conv_shortcut" for block in blocks if block[:2] in ("do", "up") and
                        block != "down_blocks.0.resnets.0")))  # fmt: skip
    want |= set(parts(*(f"down_blocks.{i}.downsamplers.0.conv" for i in range(2))))
    want |= set(parts(*(f"up_blocks.{i}.upsamplers.0.conv" for i in range(2))))
    assert names == want
    graph = models.unet_small(UNET, 2, "inference")
    assert graph.outputs[0].shape == (2, 2, 8, 8)
    assert graph.leaf("up_blocks.1.resnets.1.conv1.weight").type.shape == (4, 8, 3, 3)  # type: ignore[union-attr]


# values ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", SMALL)
def test_a_model_gives_what_the_reference_gives(name: str, device: str) -> None:
    graph = SMALL[name]()
    feeds = feeds_of(graph)
    values = evaluate(graph, feeds)
    at = graph.output_ids[0]
    m = magnitudes(graph, values)[at]
    assert np.isfinite(values[at]).all() and np.ptp(values[at]) > 1e-3
    optimized = optimize(graph, phase="inference")[0]
    again = evaluate(optimized, feeds)[optimized.output_ids[0]]
    assert compare(again, values[at], m, 1e-7) is None
    with gd.build_inference_session(graph, device) as session:
        for n in graph.inputs:
            session.set_input(n.name, feeds[n.name])
        for n in graph.parameters:
            session.set_parameter(n.name, feeds[n.name])
        session.step()
        assert compare(session.read_output(), values[at], m, 1e-5 if device == "cpu" else 2e-4) is None


@pytest.mark.parametrize("name", TRAINED)
def test_the_gradient_of_a_model_is_its_slope(name: str) -> None:
    graph = TRAINED[name]()
    feeds = feeds_of(graph, 3)
    slopes, _ = gd.differentiate(graph)
    values = evaluate(slopes, feeds)
    grads = {n.name: values[i] for n, i in zip(graph.parameters, slopes.output_ids[1:], strict=True)}
    rng = np.random.default_rng(5)
    step = {n.name: rng.choice([-1.0, 1.0], n.type.shape) for n in graph.parameters}
    h = 2.0**-9  # exact in f32, which feeds are rounded to

    def loss(by: float) -> float:
        moved = {n: feeds[n] + np.float32(by) * step[n] if n in step else feeds[n] for n in feeds}
        return float(evaluate(graph, moved)[graph.output_ids[0]][0])

    rounded = {n: (np.float32(feeds[n] + h * step[n]).astype(float) - np.float32(feeds[n] - h * step[n])) for n in step}
    want = sum(float((grads[n] * rounded[n]).sum()) for n in step)
    assert want != 0
    assert abs(loss(h) - loss(-h) - want) < 0.05 * abs(want) + 1e-3


@pytest.mark.parametrize("name", TRAINED)
def test_a_model_learns(name: str) -> None:
    graph = TRAINED[name]()
    feeds = feeds_of(graph)
    with gd.build_session(graph, "cpu") as session:
        session.initialize(0)
        for n in graph.inputs:
            session.set_input(n.name, feeds[n.name])
        session.set_adam(3e-3)
        session.step()
        first = session.read_loss()
        for _ in range(15):
            session.step()
        assert session.read_loss() < 0.7 * first


def test_an_image_of_a_batch_does_not_see_another() -> None:
    for name in ("vit_encoder", "whisper_encoder", "unet_small"):
        graph = SMALL[name]()
        feeds = feeds_of(graph)
        first = evaluate(graph, feeds)[graph.output_ids[0]]
        image = graph.inputs[0].name
        feeds[image] = np.concatenate([feeds[image][:1], 2 * feeds[image][1:]])
        second = evaluate(graph, feeds)[graph.output_ids[0]]
        np.testing.assert_array_equal(first[0], second[0])
        assert np.abs(first[1] - second[1]).max() > 1e-3


# checkpoints ----------------------------------------------------------------------------------------------------------
def test_a_checkpoint_gives_the_weights_that_the_graph_wants() -> None:
    graph = models.resnet18(RESNET, 1, "inference")
    tensors = {n.name: RNG.normal(size=n.type.shape).astype(np.float32) for n in graph.parameters}
    tensors["fc.weight"] = tensors["fc.weight"].T.copy()
    norms = [name.removesuffix(".weight") for name in tensors if ".bn" in f".{name}" or "downsample.1" in name]
    for norm in {n for n in norms if not n.endswith(".bias")}:
        channels = tensors[f"{norm}.weight"].shape
        tensors[f"{norm}.running_mean"] = RNG.normal(size=channels)
        tensors[f"{norm}.running_var"] = np.full(channels, 4.0)
    weights = models.checkpoint_weights(graph, tensors)
    assert list(weights) == names_of(graph)
    np.testing.assert_array_equal(weights["fc.weight"], tensors["fc.weight"].T)
    np.testing.assert_array_equal(weights["conv1.weight"], tensors["conv1.weight"])
    factor = tensors["bn1.weight"] / np.sqrt(4 + 1e-5)
    np.testing.assert_allclose(weights["bn1.weight"], factor, rtol=1e-6)
    want = tensors["bn1.bias"] - tensors["bn1.running_mean"] * factor
    np.testing.assert_allclose(weights["bn1.bias"], want, rtol=1e-5, atol=1e-6)
    with pytest.raises(gd.ShapeError, match=r"'conv1.weight': given \[4\], wanted a shape that gives \[4, 3, 7, 7\]"):
        models.checkpoint_weights(graph, {**tensors, "conv1.weight": np.zeros(4)})
    with pytest.raises(gd.ShapeError, match=r"tensor 'fc.weight': given \[8, 4\] to transpose"):
        models.checkpoint_weights(graph, {**tensors, "fc.weight": np.zeros((8, 4))})
    del tensors["bn1.bias"]
    with pytest.raises(gd.UnknownNameError, match="tensor: given bn1.bias"):
        models.checkpoint_weights(graph, tensors)


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: models.resnet18(mode="eval"), "resnet18: mode: given 'eval'"),  # type: ignore[arg-type]
    (lambda: models.resnet18(models.ResNetConfig(width=0)), "resnet18: width: given 0, wanted an int ≥ 1"),
    (lambda: models.vit_encoder(models.VitConfig(image_size=225)), "image_size: given 225, wanted a multiple of 16"),
    (lambda: models.vit_encoder(mode="training"), "vit_encoder: classes: given 0, wanted an int ≥ 1"),
    (lambda: models.whisper_encoder(models.WhisperConfig(n_audio_head=5)), "given 384, wanted a multiple of 5"),
    (lambda: models.vit_encoder(models.VitConfig(activation="selu")), "activation: given 'selu', wanted one of gelu"),
    (
        lambda: models.residual_network(models.ResNetConfig(block="dense")),  # type: ignore[arg-type]
        "residual_network: block: given 'dense', wanted one of basic, bottleneck",
    ),
    (lambda: models.residual_network(models.ResNetConfig(widths=(8, 16))), "widths: given 2 for 4 layers"),
    (
        lambda: models.residual_network(models.ResNetConfig(widths=(6,), blocks=(1,), block="bottleneck")),
        "widths[0]: given 6, wanted a multiple of 4",
    ),
    (lambda: models.text_encoder(length=513), "text_encoder: length: given 513, wanted at most 512"),
    (lambda: models.text_encoder(models.TextConfig(pad=1), 511), "length: given 511, wanted at most 510"),
    (lambda: models.text_encoder(mode="eval"), "mode: given 'eval', wanted 'inference'"),  # type: ignore[arg-type]
    (lambda: models.text_encoder(mode="training"), "mode: given 'training' of features, wanted a head"),
    (lambda: models.text_encoder(models.TextConfig(task="sequence")), "classes: given 0, wanted an int ≥ 1"),
    (lambda: models.text_encoder(models.TextConfig(task="sequence", classes=2, pooled=False)), "pooled: given False"),
    (lambda: models.text_encoder(models.TextConfig(num_heads=7)), "width: given 768, wanted a multiple of 7"),
    (lambda: models.unet_small(models.UnetConfig(sample_size=30)), "sample_size: given 30, wanted a multiple of 4"),
    (lambda: models.unet_small(models.UnetConfig(block_out_channels=())), "levels: given 0"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[row[1] for row in BAD])
def test_extents_that_do_not_fit_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(gd.GraphError) as caught:
        make()
    assert message in str(caught.value)
