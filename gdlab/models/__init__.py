"""Example networks: builders with a configuration, under the parameter names of public checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gdlab.base.binding import bound_module
from gdlab.models.bert import TextConfig, text_encoder
from gdlab.models.lm import TransformerLmConfig, transformer_lm
from gdlab.models.perceptron import MlpConfig, mlp
from gdlab.models.public_checkpoint import Weights, checkpoint_weights
from gdlab.models.resnet import ResNetConfig, residual_network, resnet18
from gdlab.models.unet import UnetConfig, unet_small
from gdlab.models.vit import VitConfig, vit_encoder
from gdlab.models.whisper import WhisperConfig, whisper_encoder

__all__ = [
    "MlpConfig", "PretrainedModel", "ResNetConfig", "TextConfig", "TransformerLmConfig", "UnetConfig", "VitConfig",
    "Weights", "WhisperConfig", "checkpoint_weights", "from_pretrained", "mlp", "residual_network", "resnet18",
    "text_encoder", "transformer_lm", "unet_small", "vit_encoder", "whisper_encoder",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


PretrainedModel: Any  # both of load/pretrained.py
from_pretrained: Any
if not TYPE_CHECKING:  # a checker knows the names from above, and should refuse all others
    __getattr__ = bound_module("models")
