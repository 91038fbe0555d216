"""Write the fixtures of `tests/load/test_encoders.py`: what transformers and torchvision compute of seeded weights.

    PYTHONPATH=tests/helpers python tests/helpers/write_encoders.py

Wants torch 2.9, transformers 4.57 and torchvision 0.24, which are no dependencies of the tests. A fixture is a JSON
file of a model: its config.json, the shapes of its tensors, the inputs, and the outputs. Weights follow from their
names (`tests/helpers/seeded.py`).
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
import transformers as tr
from safetensors import safe_open
from seeded import seeded_input, seeded_weights

HERE = Path(__file__).parents[1] / "load" / "encoders"
TEXT = {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
        "max_position_embeddings": 12}  # fmt: skip
DISTIL = {"vocab_size": 24, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "max_position_embeddings": 12}
VIT = {"image_size": 12, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
       "intermediate_size": 24}  # fmt: skip
RESNET = {"embedding_size": 4, "hidden_sizes": [8, 16], "depths": [1, 2]}
WHISPER = {"vocab_size": 60, "num_mel_bins": 5, "encoder_layers": 2, "encoder_attention_heads": 2, "decoder_layers": 1,
           "decoder_attention_heads": 2, "decoder_ffn_dim": 20, "encoder_ffn_dim": 20, "d_model": 8,
           "max_source_positions": 6, "max_target_positions": 4, "pad_token_id": 1, "bos_token_id": 1,
           "eos_token_id": 1, "decoder_start_token_id": 1}  # fmt: skip
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {  # fixture -> class, its configuration
    "bert": ("BertModel", {**TEXT, "hidden_act": "gelu"}),
    "bert_masked_lm": ("BertForMaskedLM", TEXT),
    "bert_untied": ("BertForMaskedLM", {**TEXT, "tie_word_embeddings": False, "hidden_act": "gelu_new"}),
    "bert_sequence": ("BertForSequenceClassification", {**TEXT, "num_labels": 3, "hidden_act": "relu"}),
    "bert_tokens": ("BertForTokenClassification", {**TEXT, "num_labels": 3, "type_vocab_size": 1}),
    "bert_answers": ("BertForQuestionAnswering", {**TEXT, "layer_norm_eps": 1e-3}),
    "bert_pretraining": ("BertForPreTraining", TEXT),
    "roberta": ("RobertaModel", {**TEXT, "type_vocab_size": 1}),
    "roberta_masked_lm": ("RobertaForMaskedLM", {**TEXT, "type_vocab_size": 1, "hidden_act": "silu"}),
    "roberta_sequence": ("RobertaForSequenceClassification", {**TEXT, "type_vocab_size": 1, "num_labels": 3}),
    "distilbert": ("DistilBertModel", DISTIL),
    "distilbert_masked_lm": ("DistilBertForMaskedLM", {**DISTIL, "activation": "relu"}),
    "distilbert_sequence": ("DistilBertForSequenceClassification", {**DISTIL, "num_labels": 3}),
    "vit": ("ViTModel", {**VIT, "qkv_bias": False}),
    "vit_pooler": ("ViTModel", {**VIT, "pooler_output_size": 6, "pooler_act": "relu", "hidden_act": "quick_gelu"}),
    "vit_classifier": ("ViTForImageClassification", {**VIT, "num_labels": 3, "layer_norm_eps": 1e-6}),
    "resnet": ("ResNetModel", {**RESNET, "layer_type": "basic", "downsample_in_first_stage": True}),
    "resnet_bottleneck": ("ResNetForImageClassification", {**RESNET, "num_labels": 3}),
    "resnet_first": ("ResNetForImageClassification", {**RESNET, "num_labels": 3, "downsample_in_bottleneck": True,
                                                      "hidden_act": "gelu"}),
    "whisper": ("WhisperModel", WHISPER),
    "whisper_text": ("WhisperForConditionalGeneration", {**WHISPER, "activation_function": "relu"}),
}  # fmt: skip


def vit_of_torchvision(**more: Any) -> torch.nn.Module:
    return torchvision.models.VisionTransformer(**more)


def resnet_of_torchvision(block: str, layers: list[int], width: int, num_classes: int, **more: Any) -> torch.nn.Module:
    """A `ResNet` of torchvision, whose widths are fixed, with narrow layers."""
    kind = {"basic": torchvision.models.resnet.BasicBlock, "bottleneck": torchvision.models.resnet.Bottleneck}[block]
    net = torchvision.models.ResNet(kind, [1, 1, 1, 1], **more)
    net.inplanes = width
    net.conv1, net.bn1 = torch.nn.Conv2d(3, width, 7, 2, 3, bias=False), torch.nn.BatchNorm2d(width)
    for i in range(4):
        part = torch.nn.Identity()
        if i < len(layers):
            part = net._make_layer(kind, width << i, layers[i], stride=2 if i else 1)
        setattr(net, f"layer{i + 1}", part)
    net.fc = torch.nn.Linear(net.inplanes, num_classes)
    return net


SMALL_VIT = {"image_size": 12, "patch_size": 4, "num_layers": 2, "num_heads": 4, "hidden_dim": 16, "mlp_dim": 24,
             "num_classes": 3}  # fmt: skip
TORCHVISION: dict[str, tuple[Any, str, dict[str, Any]]] = {  # fixture -> maker, name of torchvision, its arguments
    "torchvision_vit": (vit_of_torchvision, "vit_b_16", SMALL_VIT),
    "torchvision_basic": (resnet_of_torchvision, "resnet34", {"block": "basic", "layers": [1, 2], "width": 4,
                                                              "num_classes": 3}),
    "torchvision_bottleneck": (resnet_of_torchvision, "resnet50", {"block": "bottleneck", "layers": [2, 1], "width": 4,
                                                                   "num_classes": 3}),
    "torchvision_groups": (resnet_of_torchvision, "resnext50_32x4d",
                           {"block": "bottleneck", "layers": [1, 1], "width": 4, "num_classes": 3, "groups": 2,
                            "width_per_group": 48}),
}  # fmt: skip


def inputs_of(family: str, config: dict[str, Any]) -> dict[str, Any]:
    """Two sequences of five tokens, the second with two of padding; or two images; or two spectrograms."""
    if "whisper" in family:
        return {"mel": seeded_input("mel", (2, 5, 12))}
    if not family.startswith(("bert", "roberta", "distilbert")):
        size = config.get("image_size", 12) if "vit" in family else 20
        return {"x": seeded_input("x", (2, 3, size, size))}
    ids, mask = seeded_input("ids", (2, 5), 22) + 2, np.ones((2, 5), np.float32)
    ids[1, 3:], mask[1, 3:] = (1 if family.startswith("roberta") else 0), 0
    given = {"token_ids": ids, "attention_mask": mask}
    if config.get("type_vocab_size", 0 if family.startswith("distil") else 2) > 1:
        given["token_type_ids"] = seeded_input("types", (2, 5), 2)
    return given


ARGUMENTS = {"token_ids": "input_ids", "token_type_ids": "token_type_ids", "attention_mask": "attention_mask",
             "x": "pixel_values", "mel": "input_features"}  # fmt: skip


def outputs_of(model: torch.nn.Module, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The outputs by our names, with the mask where there is one."""
    given = {
        ARGUMENTS[name]: torch.from_numpy(a.astype(np.int64 if a.dtype == np.uint32 else a.dtype))
        for name, a in inputs.items()
    }
    if isinstance(model, tr.WhisperPreTrainedModel):
        return {"features": model.get_encoder()(**given).last_hidden_state}
    if not isinstance(model, tr.PreTrainedModel):
        return {"logits": model(given["pixel_values"])}
    out = model(**given, output_hidden_states=True)
    if hasattr(out, "start_logits"):
        return {"logits": torch.stack([out.start_logits, out.end_logits], -1)}
    names = {"logits": "logits", "prediction_logits": "logits", "pooler_output": "pooler_output"}
    names["last_hidden_state"] = "features" if "pixel_values" in given else "last_hidden_state"
    found = {ours: out[name] for name, ours in names.items() if out.get(name) is not None}
    return {name: value.flatten(1) if value.shape[2:] == (1, 1) else value for name, value in found.items()}


def saved(model: torch.nn.Module) -> list[str]:
    """The names of the tensors that a file of this model has."""
    if not isinstance(model, tr.PreTrainedModel):
        return list(model.state_dict())
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with safe_open(f"{folder}/model.safetensors", "np") as file:
            return list(file.keys())


def write(name: str, model: torch.nn.Module, config: dict[str, Any]) -> None:
    """Seed the weights, run the model, with a mask and without one, and keep the outputs."""
    model.eval()
    state, kept = model.state_dict(), saved(model)
    for key in (*(k for k in state if k not in kept), *kept):  # a shared tensor has the values of the file's name
        if state[key].is_floating_point():
            state[key].copy_(torch.from_numpy(seeded_weights(key, tuple(state[key].shape))))
    inputs = inputs_of(name, config)
    whole = {k: v for k, v in inputs.items() if k != "attention_mask"}
    with torch.no_grad():
        runs = {"outputs": outputs_of(model, inputs)}
        if len(whole) < len(inputs):
            runs["unmasked"] = outputs_of(model, whole)
    small = {k: v.tolist() for k, v in inputs.items() if v.size < 99}
    fixture = {"config": config, "tensors": {k: list(state[k].shape) for k in kept}, "inputs": small}
    for run, outputs in runs.items():
        fixture[run] = {k: np.round(v.numpy().astype(float), 7).tolist() for k, v in outputs.items()}
    parts = {key: json.dumps(value, separators=(",", ":")) for key, value in fixture.items()}
    lines = ",\n".join(f'"{key}":{part}' for key, part in parts.items())
    (HERE / f"{name}.json").write_text(f"{{\n{lines}\n}}\n")


def main() -> None:
    torch.set_num_threads(1)
    for name, (kind, fields) in TRANSFORMERS.items():
        cls = getattr(tr, kind)
        config = cls.config_class(**fields)
        config._attn_implementation = "eager"
        model = cls(config)
        said = json.loads(config.to_json_string(use_diff=True))
        write(name, model, {**said, "architectures": [kind]})
    for name, (make, architecture, fields) in TORCHVISION.items():
        write(name, make(**fields), {"architecture": architecture, "model_args": fields})


if __name__ == "__main__":
    main()
