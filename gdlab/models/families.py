"""The families of public checkpoints that `from_pretrained` opens, by the `model_type` of their config.json."""

from __future__ import annotations

from typing import Any

from gdlab.models.family import Family
from gdlab.models.names import bert, llama, resnet, vit, whisper

ALL: tuple[Family[Any], ...] = (
    llama.FAMILY, bert.BERT_FAMILY, bert.ROBERTA_FAMILY, bert.DISTILBERT_FAMILY, vit.FAMILY, resnet.FAMILY,
    whisper.FAMILY,
)  # fmt: skip
FAMILIES: dict[str, Family[Any]] = {name: family for family in ALL for name in family.model_types}
