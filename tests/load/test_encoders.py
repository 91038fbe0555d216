"""Encoders from folders: what transformers and torchvision compute, fields and tensors that are refused, training."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from seeded import seeded_input, seeded_weights

import gdlab as gd
from gdlab import models
from gdlab.load.safetensors_file import SafeTensorsModel
from gdlab.models.families import ENCODERS
from gdlab.models.names import bert_names, resnet_names, vit_names, whisper_names
from gdlab.op.reference import evaluate
from gdlab.session import build_inference_session, build_session
from gdlab.study.model_files import open_model

FIXTURES = Path(__file__).parent / "encoders"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.json"))
TEXT = ("bert", "roberta", "distilbert")
Tensors = dict[str, np.ndarray]
Fixture = dict[str, Any]


def fixture(name: str) -> Fixture:
    return json.loads((FIXTURES / f"{name}.json").read_text())  # type: ignore[no-any-return]


def tensors_of(given: Fixture) -> Tensors:
    return {name: seeded_weights(name, tuple(shape)) for name, shape in given["tensors"].items() if shape}


def folder(path: Path, config: Mapping[str, Any] | None, tensors: Tensors) -> Path:
    path.mkdir(exist_ok=True)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    save_file({name: np.ascontiguousarray(data) for name, data in tensors.items()}, path / "model.safetensors")
    return path


def opened(path: Path, name: str, given: Fixture, **more: Any) -> models.PretrainedModel:
    return models.from_pretrained(folder(path, given["config"], tensors_of(given)), **extents(name), **more)


def extents(name: str) -> dict[str, Any]:
    text, fixed = name.startswith(TEXT), "vit" in name or "whisper" in name
    return {"batch": 2} if fixed else {"batch": 2, "length": 5 if text else 20}


def feeds_of(graph: gd.Graph, given: Fixture) -> Tensors:
    """The inputs of the fixture; of labels, classes in turn."""
    feeds = {}
    for n in graph.inputs:
        if n.name == "labels":
            feeds[n.name] = np.eye(n.type.shape[1], dtype=np.float32)[np.arange(n.type.shape[0]) % n.type.shape[1]]
        else:
            data = np.array(given["inputs"].get(n.name, seeded_input(n.name, n.type.shape)))
            feeds[n.name] = data.reshape(n.type.shape).astype(n.type.dtype.numpy)
    return feeds


def outputs_of(model: models.PretrainedModel, given: Fixture) -> Tensors:
    with build_inference_session(model.graph, "cpu") as session:
        model.set_parameters(session)
        for name, data in feeds_of(model.graph, given).items():
            session.set_input(name, data)
        session.step()
        return {name: session.read_output_by_index(i) for i, name in enumerate(model.graph.output_names)}


def referenced(model: models.PretrainedModel, given: Fixture) -> Tensors:
    values = evaluate(model.graph, {**feeds_of(model.graph, given), **{name: model[name] for name in model}})
    return {n: values[i] for n, i in zip(model.graph.output_names, model.graph.output_ids, strict=True)}


def agree(got: Mapping[str, np.ndarray], want: Mapping[str, Any], most: float = 1e-5) -> None:
    """Outputs of the fixture are there, in its shapes, within a part of the largest."""
    for name, values in want.items():
        right = np.array(values)
        assert got[name].shape == right.shape, name
        error = np.abs(got[name] - right).max() / np.abs(right).max()
        assert error < most, (name, error)


EPS = {"bert": 1e-12, "distilbert": 1e-12, "bert_answers": 1e-3, "vit": 1e-12, "torchvision_vit": 1e-6}


# values ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_an_encoder_gives_what_transformers_and_torchvision_give(name: str, tmp_path: Path) -> None:
    given = fixture(name)
    masked = "unmasked" in given
    model = opened(tmp_path, name, given, mode="masked" if masked else None)
    assert name not in EPS or model.config.eps == EPS[name]
    assert sorted(model) == sorted(n.name for n in model.graph.parameters)
    agree(outputs_of(model, given), given["outputs"])
    if masked:
        plain = model.at("inference")
        assert "attention_mask" not in [n.name for n in plain.graph.inputs]
        agree(referenced(plain, given), given["unmasked"])


def test_every_family_has_a_fixture_of_each_kind() -> None:
    kinds = {json.dumps(fixture(name)["config"].get("architectures")) for name in NAMES}
    tasks = [f'["Bert{task}"]' for task in bert_names.TASKS]
    assert {*tasks, '["RobertaModel"]', '["RobertaForSequenceClassification"]', '["DistilBertForMaskedLM"]'} <= kinds
    assert {'["ViTModel"]', '["ViTForImageClassification"]', '["ResNetModel"]', '["WhisperModel"]', "null"} <= kinds
    page = (Path(__file__).parents[2] / "docs" / "loading.md").read_text("utf-8")
    assert [name for family in ENCODERS for name in family.model_types if f"`{name}`" not in page] == []
    assert sum(path.stat().st_size for path in FIXTURES.glob("*.json")) < 150_000


TIMM_PARTS = {
    "attn.proj": "attention.output.dense", "norm1": "layernorm_before", "norm2": "layernorm_after",
    "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense",
}  # fmt: skip


def test_names_of_timm_are_those_of_transformers_with_packed_projections(tmp_path: Path) -> None:
    given = fixture("vit_classifier")
    theirs, ours = tensors_of(given), {}
    for i in range(2):
        block = f"vit.encoder.layer.{i}"
        for part in ("weight", "bias"):
            qkv = [theirs[f"{block}.attention.attention.{p}.{part}"] for p in ("query", "key", "value")]
            ours[f"blocks.{i}.attn.qkv.{part}"] = np.concatenate(qkv)
            for a, b in TIMM_PARTS.items():
                ours[f"blocks.{i}.{a}.{part}"] = theirs[f"{block}.{b}.{part}"]
    for part in ("weight", "bias"):
        ours[f"norm.{part}"], ours[f"head.{part}"] = theirs[f"vit.layernorm.{part}"], theirs[f"classifier.{part}"]
        ours[f"patch_embed.proj.{part}"] = theirs[f"vit.embeddings.patch_embeddings.projection.{part}"]
    ours["cls_token"], ours["pos_embed"] = (theirs[f"vit.embeddings.{n}"] for n in ("cls_token", "position_embeddings"))
    arguments = {"img_size": 12, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 4, "mlp_ratio": 1.5}
    config = {"architecture": "vit_tiny_patch16_224.augreg_in21k", "num_classes": 3, "num_features": 16,
              "global_pool": "token", "pretrained_cfg": {"tag": "x"}, "model_args": arguments}  # fmt: skip
    model = models.from_pretrained(folder(tmp_path / "timm", config, ours), batch=2)
    agree(outputs_of(model, given), given["outputs"])
    scales = {f"blocks.{i}.ls{k}.gamma": 1 + seeded_input(f"{i}{k}", (16,)) for i in range(2) for k in (1, 2)}
    scaled = {**config, "model_args": {**arguments, "init_values": 1e-5}}
    with_scales = models.from_pretrained(folder(tmp_path / "scaled", scaled, {**ours, **scales}), batch=2)
    for name, factor in scales.items():  # scale the rows of the product before it instead
        before = f"{name[:9]}{'attn.proj' if '.ls1' in name else 'mlp.fc2'}"
        ours[f"{before}.weight"] = ours[f"{before}.weight"] * factor[:, None]
        ours[f"{before}.bias"] = ours[f"{before}.bias"] * factor
    folded = models.from_pretrained(folder(tmp_path / "folded", config, ours), batch=2)
    agree(referenced(with_scales, given), {"logits": referenced(folded, given)["logits"]})


def test_names_of_openai_are_those_of_transformers(tmp_path: Path) -> None:
    given = fixture("whisper")
    pairs = (("encoder.layers", "encoder.blocks"), ("self_attn_layer_norm", "attn_ln"), ("final_layer_norm", "mlp_ln"),
             ("self_attn.q_proj", "attn.query"), ("self_attn.k_proj", "attn.key"), ("self_attn.v_proj", "attn.value"),
             ("self_attn.out_proj", "attn.out"), ("fc1", "mlp.0"), ("fc2", "mlp.2"), ("encoder.layer_norm",
             "encoder.ln_post"), ("embed_positions.weight", "positional_embedding"))  # fmt: skip
    tensors = {}
    for name, data in tensors_of(given).items():
        for theirs, ours in pairs:
            name = name.replace(theirs, ours)
        if "decoder" not in name and "mlp" not in name:
            tensors[name] = data
    for i in range(2):  # OpenAI's are four times as wide as the model
        tensors |= {f"encoder.blocks.{i}.mlp.0.weight": np.ones((32, 8), np.float32),
                    f"encoder.blocks.{i}.mlp.0.bias": np.ones(32, np.float32),
                    f"encoder.blocks.{i}.mlp.2.weight": np.zeros((8, 32), np.float32),
                    f"encoder.blocks.{i}.mlp.2.bias": np.zeros(8, np.float32)}  # fmt: skip
        norms = (f"encoder.blocks.{i}.mlp_ln.{part}" for part in ("weight", "bias"))
        tensors |= {name: np.ones(8, np.float32) for name in norms}
    dims = {"n_mels": 5, "n_audio_ctx": 6, "n_audio_state": 8, "n_audio_head": 2, "n_audio_layer": 2, "n_vocab": 60,
            "n_text_ctx": 4, "n_text_state": 8, "n_text_head": 2, "n_text_layer": 1}  # fmt: skip
    path = folder(tmp_path / "openai", {"model_type": "whisper", **dims},
                  {**tensors, "decoder.positional_embedding": np.ones((4, 8), np.float32)})  # fmt: skip
    got = referenced(models.from_pretrained(path, batch=2), given)
    theirs = tensors_of(given)
    for name in theirs:
        if "fc2" in name:
            theirs[name] = np.zeros_like(theirs[name])
    other = models.from_pretrained(folder(tmp_path / "theirs", given["config"], theirs), batch=2)
    agree(got, referenced(other, given))
    assert list(got) == ["features"] and got["features"].shape == (2, 6, 8)


def test_older_and_shorter_names_are_the_same_tensors(tmp_path: Path) -> None:
    given = fixture("bert")
    tensors = {
        f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): data
        for name, data in tensors_of(given).items()
    }
    assert any(name.endswith("gamma") for name in tensors)
    tensors["bert.embeddings.position_ids"] = np.ones((1, 12), np.float32)
    model = models.from_pretrained(folder(tmp_path, given["config"], tensors), "masked", 5, batch=2)
    agree(referenced(model, given), given["outputs"])
    given = fixture("roberta")
    config = {**given["config"], "model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"]}
    path = folder(tmp_path / "xlm", config, tensors_of(given))
    agree(referenced(models.from_pretrained(path, "masked", 5, batch=2), given), given["outputs"])


def test_to_open_a_folder_reads_no_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(model: SafeTensorsModel, name: str) -> np.ndarray:
        raise AssertionError(name)

    monkeypatch.setattr(SafeTensorsModel, "tensor_f32", read)
    model = opened(tmp_path, "whisper", fixture("whisper"))
    assert "encoder.conv1.weight" in model.tensors and "conv1.weight" not in model.tensors
    with pytest.raises(AssertionError, match=r"encoder\.conv1\.weight"):
        model["encoder.conv1.weight"]


def test_another_length_and_batch_and_formats(tmp_path: Path) -> None:
    given = fixture("bert")
    model = opened(tmp_path, "bert", given, mode="masked")
    one = model.at(length=3, batch=1)
    shorter = {"inputs": {name: np.array(data)[1:, :3].tolist() for name, data in given["inputs"].items()}}
    want = np.array(given["outputs"]["last_hidden_state"])[1:, :3]
    agree(referenced(one, shorter), {"last_hidden_state": want, "pooler_output": given["outputs"]["pooler_output"][1:]})
    for dtype, most in (("f16", 2e-3), ("q8", 2e-2)):
        small = opened(tmp_path, "bert", given, mode="masked", dtype=dtype)
        assert small.nbytes < 0.7 * model.nbytes
        agree(outputs_of(small, given), given["outputs"], most)
    for length, wanted in ((13, "at most 12: the model has 12 positions"), (0, "an int ≥ 1")):
        with pytest.raises(gd.ArgumentError, match=f"from_pretrained: length: given {length}, wanted {wanted}"):
            models.from_pretrained(tmp_path, length=length)
    fixed = folder(tmp_path / "vit", fixture("vit")["config"], tensors_of(fixture("vit")))
    with pytest.raises(gd.ArgumentError, match="length: given 16, wanted 12, the side of its images"):
        models.from_pretrained(fixed, length=16)


# fields ---------------------------------------------------------------------------------------------------------------
NO_EFFECT = {  # fields that change no output of what is built here
    "chunk_size_feed_forward", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
    "pooler_size_per_head", "pooler_type", "sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "output_past",
    "encoder_stride", "out_features", "out_indices", "stage_names", "scale_embedding", *whisper_names.OF_DECODER,
    *whisper_names.OF_TRAINING,
}  # fmt: skip
TABLES: dict[str, tuple[Mapping[str, Any], Callable[[Mapping[str, Any]], Any]]] = {
    "bert_masked_lm": (bert_names.FIELDS, bert_names.bert), "roberta": (bert_names.FIELDS, bert_names.roberta),
    "distilbert_masked_lm": (bert_names.DISTIL_FIELDS, bert_names.distilbert),
    "vit": (vit_names.FIELDS, vit_names.config),
    "resnet": (resnet_names.FIELDS, resnet_names.config), "whisper": (whisper_names.FIELDS, whisper_names.config),
}  # fmt: skip
OTHERS: tuple[Any, ...] = (True, False, 3, 8, 0.5, "relu", "basic", "bottleneck", [2, 2], "regression")


@pytest.mark.parametrize("name", TABLES)
def test_a_changed_field_changes_the_configuration_or_is_refused(name: str) -> None:
    table, read = TABLES[name]
    fields = {key: value for key, value in fixture(name)["config"].items() if key != "tie_word_embeddings"}
    usual = read(fields)
    for field in table:
        if field in NO_EFFECT:
            continue
        with pytest.raises(gd.LoadError, match=f"config.json: {field}: given 'nonsense'"):
            read({**fields, field: "nonsense"})
        changed = set()
        for value in OTHERS:
            try:
                changed.add(read({**fields, field: value}) != usual)
            except gd.LoadError as error:
                assert f"config.json: {field}: given" in str(error)
                changed.add(True)
        assert True in changed, field
    with pytest.raises(gd.LoadError, match="config.json: attention_scale: given 2, wanted a field that is understood"):
        read({**fields, "attention_scale": 2})
    with pytest.raises(gd.LoadError, match="config.json: architectures: given"):
        read({**fields, "architectures": ["BertForMultipleChoice"]})


REFUSED = [
    ("bert", "hidden_act", "gelu_python", "one of gelu, gelu_new"),
    ("bert", "position_embedding_type", "relative_key", "'absolute'"),
    ("bert", "is_decoder", True, "false"), ("roberta", "pad_token_id", -1, "an int in 0"),
    ("distilbert", "activation", ["gelu"], "one of gelu"), ("vit", "image_size", [12, 16], "images are squares here"),
    ("vit", "pooler_act", "softmax", "one of gelu"), ("resnet", "layer_type", "dense", "one of basic, bottleneck"),
    ("bert", "num_hidden_layers", 10**7, "an int in 1 … 256"), ("resnet", "depths", [300], "at most 256 blocks"),
    ("resnet", "depths", [2, 0], "ints in 1"), ("whisper", "activation_function", "selu", "one of gelu"),
    ("torchvision_vit", "model_args", {"conv_stem_configs": [1]}, "arguments that are understood"),
    ("torchvision_vit", "architecture", "vit_base_patch16_clip_224", "one of bert"),
    ("torchvision_basic", "architecture", "resnet50d", "one of bert"),
    ("torchvision_basic", "global_pool", "max", "'avg'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "field", "value", "wanted"), REFUSED, ids=[f"{r[0]} {r[1]}" for r in REFUSED])
def test_a_folder_with_a_field_of_another_model_is_refused(
    name: str, field: str, value: Any, wanted: str, tmp_path: Path
) -> None:
    given = fixture(name)
    given["config"][field] = value
    with pytest.raises(gd.LoadError) as caught:
        opened(tmp_path, name, given)
    assert f"config.json: {field}: given" in str(caught.value) and wanted in str(caught.value)


# tensors --------------------------------------------------------------------------------------------------------------
MORE = {
    "bert_masked_lm": "bert.encoder.layer.1.attention.self.distance_embedding.weight",
    "bert_pretraining": "cls.predictions.transform.gate.weight",
    "roberta": "encoder.layer.2.output.dense.weight", "distilbert": "transformer.layer.0.ffn.lin3.weight",
    "vit": "encoder.layer.0.attention.attention.query.bias", "vit_classifier": "vit.embeddings.mask_token",
    "torchvision_vit": "encoder.layers.encoder_layer_0.self_attention.bias_k",
    "resnet": "encoder.stages.0.layers.0.layer.0.convolution.bias", "torchvision_basic": "layer1.0.conv1.bias",
    "whisper": "encoder.layers.0.self_attn.k_proj.bias",
}  # fmt: skip
HARMLESS = {
    "bert_masked_lm": "bert.pooler.dense.weight", "bert": "cls.seq_relationship.weight",
    "roberta": "lm_head.dense.weight", "distilbert": "vocab_transform.weight",
    "vit_classifier": "vit.pooler.dense.bias",
    "resnet": "encoder.stages.0.layers.0.layer.0.normalization.num_batches_tracked",
    "whisper": "decoder.layers.0.fc1.weight",
}  # fmt: skip


@pytest.mark.parametrize("name", MORE)
def test_a_tensor_more_or_less_is_refused(name: str, tmp_path: Path) -> None:
    given = fixture(name)
    tensors, extra = tensors_of(given), MORE[name]
    path = folder(tmp_path, given["config"], {**tensors, extra: np.ones(2, np.float32)})
    with pytest.raises(gd.LoadError, match=f"tensor '{extra}': given in the file, wanted by no parameter"):
        models.from_pretrained(path, **extents(name))
    models.from_pretrained(path, **extents(name), allow_unused=extra)
    lost = next(key for key in tensors if key.endswith("weight") and "decoder" not in key)
    folder(tmp_path, given["config"], {key: data for key, data in tensors.items() if key != lost})
    with pytest.raises(gd.LoadError, match=f"tensor '{lost}': given none in the file, wanted every tensor"):
        models.from_pretrained(path, **extents(name))
    folder(tmp_path, given["config"], {**tensors, lost: np.ones((3, 5, 7), np.float32)})
    with pytest.raises(gd.LoadError, match=rf"tensor '{lost}': given \[3, 5, 7\], wanted a shape that gives"):
        models.from_pretrained(path, **extents(name))


@pytest.mark.parametrize("name", HARMLESS)
def test_counters_and_other_heads_are_harmless(name: str, tmp_path: Path) -> None:
    given = fixture(name)
    path = folder(tmp_path, given["config"], {**tensors_of(given), HARMLESS[name]: np.ones(2, np.float32)})
    assert HARMLESS[name] not in {s.name for s in models.from_pretrained(path, **extents(name)).sources.values()}


def test_a_copy_of_the_table_must_be_one(tmp_path: Path) -> None:
    given = fixture("bert_masked_lm")
    tensors, name = tensors_of(given), "cls.predictions.decoder.weight"
    table = tensors["bert.embeddings.word_embeddings.weight"]
    models.from_pretrained(folder(tmp_path, given["config"], {**tensors, name: table}), length=5)
    for other in (table + 1, table[:3]):
        path = folder(tmp_path, given["config"], {**tensors, name: other})
        with pytest.raises(gd.LoadError, match=f"tensor '{name}': given other values, wanted equal to bert.embeddings"):
            models.from_pretrained(path, length=5)
        models.from_pretrained(path, length=5, allow_unused="cls.*decoder*")


# families by name -----------------------------------------------------------------------------------------------------
def test_a_file_without_model_type_is_known_by_its_architecture_or_by_what_is_said(tmp_path: Path) -> None:
    given = fixture("torchvision_basic")
    tensors = tensors_of(given)
    path = folder(tmp_path / "bare", None, tensors)
    with pytest.raises(gd.LoadError, match=r"config\.json"):
        models.from_pretrained(path)
    with pytest.raises(gd.LoadError, match=r"conv1.weight.*as config.json says"):  # of another size, but a ResNet
        models.from_pretrained(path, family="resnet18")
    with pytest.raises(gd.LoadError, match="architecture: given 'resnet51', wanted one of bert.*by family=\"…\""):
        models.from_pretrained(path, family="resnet51")
    config = {name: value for name, value in given["config"].items() if name != "architecture"}
    path = folder(tmp_path / "sized", config, tensors)
    with pytest.raises(gd.LoadError, match="model_type: given None, wanted one of bert"):
        models.from_pretrained(path)
    model = models.from_pretrained(path, family="resnet18", length=20, batch=2)
    assert model.family == "resnet" and model.config.blocks == (1, 2)
    agree(referenced(model, given), given["outputs"])
    timm = {"architecture": "resnet34.tv_in1k", "num_features": 8, "pretrained_cfg": {"crop_pct": 0.9},
            "num_classes": 3, "model_args": {"layers": [1, 2], "width": 4}}  # fmt: skip
    model = models.from_pretrained(folder(tmp_path / "timm", timm, tensors), length=20, batch=2)
    agree(referenced(model, given), given["outputs"])
    no_type = {k: v for k, v in fixture("bert")["config"].items() if k != "model_type"}
    bare = folder(tmp_path / "bert", no_type, tensors_of(fixture("bert")))
    assert models.from_pretrained(bare, family="bert").family == "bert"


ASSUMED = {
    "bert_masked_lm": ("sequences of 12 tokens are assumed; --dims length=12 sets it",), "vit": (), "whisper": (),
    "torchvision_basic": ("images of 224 × 224 are assumed; --dims length=224 sets it",),
}  # fmt: skip


@pytest.mark.parametrize("name", ASSUMED)
def test_a_folder_opens_as_a_study_with_what_is_assumed(name: str, tmp_path: Path) -> None:
    given = fixture(name)
    path = folder(tmp_path / name, given["config"], tensors_of(given))
    study = open_model(str(path))
    assert tuple(study.notes) == ASSUMED[name] and study.name == name
    assert next(n for n in study.graph if n.op == "input").type.shape[0] == (12 if name.startswith("bert") else 1)
    if ASSUMED[name]:
        more = open_model(str(path), {"length": 9, "batch": 2})
        assert not more.notes and next(n for n in more.graph if n.op == "input").type.shape[0] in (18, 2)


# training -------------------------------------------------------------------------------------------------------------
def entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """The mean cross entropy of the rows that have a class."""
    rows = logits.reshape(labels.shape).astype(float)
    logs = rows - np.log(np.exp(rows).sum(1, keepdims=True))
    return float(-(labels * logs).sum() / labels.sum())


@pytest.mark.parametrize("name", ["bert_sequence", "bert_masked_lm", "roberta_masked_lm", "vit_classifier",
                                  "resnet_bottleneck"])  # fmt: skip
def test_a_head_with_labels_trains(name: str, tmp_path: Path) -> None:
    given = fixture(name)
    model = opened(tmp_path, name, given, mode="training")
    feeds = feeds_of(model.graph, given)
    if name == "bert_masked_lm":
        feeds["labels"][[0, 3, 7]] = 0  # rows that are not to be predicted
    with build_session(model.graph, "cpu") as session:
        model.set_parameters(session)
        for key, data in feeds.items():
            session.set_input(key, data)
        session.set_adam(3e-3)
        session.step()
        first = session.read_loss()
        assert abs(first - entropy(np.array(given["outputs"]["logits"]), feeds["labels"])) < 1e-5 * abs(first)
        for _ in range(10):
            session.step()
        assert session.read_loss() < 0.8 * first


@pytest.mark.parametrize(("name", "field", "value"), [
    ("bert", "use_cache", True), ("bert_answers", "use_cache", True), ("vit", "qkv_bias", False),
    ("bert_sequence", "problem_type", "regression"), ("resnet_bottleneck", "problem_type", "regression"),
])  # fmt: skip
def test_training_wants_a_head_with_a_cross_entropy(name: str, field: str, value: Any, tmp_path: Path) -> None:
    given = fixture(name)
    given["config"][field] = value
    opened(tmp_path, name, given)
    with pytest.raises(gd.ArgumentError, match="mode: given 'training', wanted 'inference': the model has no head"):
        opened(tmp_path, name, given, mode="training")
