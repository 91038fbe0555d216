"""The families of public checkpoints that `from_pretrained` opens, by the `model_type` of their config.json.

`python -m gdlab.models.families` writes the table of `docs/loading.md`.
"""

from __future__ import annotations

from typing import Any

from gdlab.models.family import Family
from gdlab.models.names import bert, gemma, gpt2, llama, mistral, phi3, qwen, resnet, vit, whisper

LANGUAGE: tuple[Family[Any], ...] = (
    llama.FAMILY, mistral.FAMILY, qwen.QWEN_2, qwen.QWEN_3, gemma.GEMMA_1, gemma.GEMMA_2, phi3.FAMILY, gpt2.FAMILY,
)  # fmt: skip
ENCODERS: tuple[Family[Any], ...] = (
    bert.BERT_FAMILY, bert.ROBERTA_FAMILY, bert.DISTILBERT_FAMILY, vit.FAMILY, resnet.FAMILY, whisper.FAMILY,
)  # fmt: skip
FAMILIES: dict[str, Family[Any]] = {name: family for family in (*LANGUAGE, *ENCODERS) for name in family.model_types}


def markdown() -> str:
    """Return the table of the families of language models."""
    rows = [(" ".join(f"`{name}`" for name in family.model_types), family) for family in LANGUAGE]
    lines = [f"| {names} | {family.models} | {family.parts} | {', '.join(family.modes)} |" for names, family in rows]
    return "\n".join(["| `model_type` | models | parts | modes |", "|---|---|---|---|", *lines])


if __name__ == "__main__":
    print(markdown())
