"""The families of public checkpoints that `from_pretrained` opens, by the `model_type` of their config.json.

`python -m gdlab.models.families` writes the table of `docs/loading.md`.
"""

from __future__ import annotations

from typing import Any

from gdlab.models.family import Family
from gdlab.models.names.bert_names import BERT_FAMILY, DISTILBERT_FAMILY, ROBERTA_FAMILY
from gdlab.models.names.gemma_names import GEMMA_1, GEMMA_2
from gdlab.models.names.gpt2_names import GPT2_FAMILY
from gdlab.models.names.llama_names import LLAMA_FAMILY
from gdlab.models.names.mistral_names import MISTRAL_FAMILY
from gdlab.models.names.phi3_names import PHI3_FAMILY
from gdlab.models.names.qwen_names import QWEN_2, QWEN_3
from gdlab.models.names.resnet_names import RESNET_FAMILY
from gdlab.models.names.vit_names import VIT_FAMILY
from gdlab.models.names.whisper_names import WHISPER_FAMILY

LANGUAGE: tuple[Family[Any], ...] = (
    LLAMA_FAMILY, MISTRAL_FAMILY, QWEN_2, QWEN_3, GEMMA_1, GEMMA_2, PHI3_FAMILY, GPT2_FAMILY,
)  # fmt: skip
ENCODERS: tuple[Family[Any], ...] = (
    BERT_FAMILY, ROBERTA_FAMILY, DISTILBERT_FAMILY, VIT_FAMILY, RESNET_FAMILY, WHISPER_FAMILY,
)  # fmt: skip
FAMILIES: dict[str, Family[Any]] = {name: family for family in (*LANGUAGE, *ENCODERS) for name in family.model_types}


def markdown() -> str:
    """Return the table of the families of language models."""
    rows = [(" ".join(f"`{name}`" for name in family.model_types), family) for family in LANGUAGE]
    lines = [f"| {names} | {family.models} | {family.parts} | {', '.join(family.modes)} |" for names, family in rows]
    return "\n".join(["| `model_type` | models | parts | modes |", "|---|---|---|---|", *lines])


if __name__ == "__main__":
    print(markdown())
