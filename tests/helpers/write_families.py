"""Write `families.json`: what transformers compute with random weights of small language models.

    python tests/helpers/write_families.py      # torch 2.9.1, transformers 4.57.1; no test needs them

Weights are made by NumPy from a seed and the tensor's name, here and by tests/helpers/pretrained_folders.py alike; the
file holds names and shapes (of the first layer), logits of two positions, and the tokens that are written greedily.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import torch
from pretrained_folders import CASES, FIXTURE, ROWS, TOKENS, ids_of, random_tensor
from transformers import AutoConfig, AutoModelForCausalLM


def judged(config: dict[str, Any]) -> dict[str, Any]:
    """Return names and shapes of the tensors, logits and the tokens of a model with this configuration."""
    given = dict(config)
    settings = AutoConfig.for_model(given.pop("model_type"), **given)
    settings._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(settings).eval()
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    if settings.tie_word_embeddings:
        del shapes["lm_head.weight"]
    values = {name: torch.from_numpy(random_tensor(name, tuple(shape))) for name, shape in shapes.items()}
    missing = model.load_state_dict(values, strict=False)
    assert not missing.unexpected_keys, missing
    model.tie_weights()
    ids = torch.from_numpy(ids_of(config).astype(np.int64))[None]
    with torch.no_grad():
        logits = model(ids).logits[0].numpy()
        whole, found = ids, []
        margin = np.inf
        for _ in range(TOKENS):  # without a cache: the judge
            last = model(whole).logits[0, -1]
            best = torch.topk(last, 2).values
            margin = min(margin, float((best[0] - best[1]) / last.abs().max()))
            found.append(int(last.argmax()))
            whole = torch.cat([whole, last.argmax()[None, None]], 1)
    print(config["model_type"], "largest logit", np.abs(logits).max(), "least margin", margin, len(set(found)))
    largest = float(np.abs(logits).max())
    rows = base64.b64encode(logits[list(ROWS)].astype("<f4").tobytes()).decode()
    first = {name: shape for name, shape in shapes.items() if ".1." not in name}
    assert {n.replace(".0.", ".1."): s for n, s in first.items() if ".0." in n} | first == shapes
    return {"shapes": first, "logits": rows, "largest": largest, "tokens": found}


if __name__ == "__main__":
    results = {name: judged(config) for name, config in CASES.items()}
    FIXTURE.write_text(json.dumps(results, separators=(",", ":")).replace('},"', '},\n"') + "\n")
