"""Write documents, losses and plans of a corpus with everything blanked that a move of the code may change.

    python tests/helpers/blanked.py OUT.txt        # in two checkouts, then compare the files

Blanked: texts, files and lines of rules and generated sources, WGSL with its line maps and hashes, ids. A commit that
moves or renames code leaves the rest equal, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import networks

import gdlab as gd

BLANK = {"id", "study", "rev", "sources", "lines", "wgsl", "wgsl_base", "hash", "fingerprint", "producer", "source",
         "line", "file", "guard", "seconds", "egglog_time", "extract_time"}  # fmt: skip


def blanked(value: Any, key: str = "") -> Any:
    """Return the JSON value without what a move of the code may change."""
    if key in BLANK:
        return None
    if isinstance(value, dict):
        return {k: blanked(v, k) for k, v in sorted(value.items())}
    if isinstance(value, list):
        return [blanked(v) for v in value]
    return value


def studies() -> list[tuple[str, Any]]:
    """Return the corpus: small networks of the tests and the example models."""
    found = [(make.__name__, make) for make in (networks.mlp, networks.transformer, networks.decomposed)]
    return [*found, ("models.mlp", lambda: gd.models.mlp(gd.models.MlpConfig()))]


def lines() -> list[str]:
    """Return one line per fact: documents, losses, reports, plans."""
    out = []
    for name, make in studies():
        for train in (True, False):
            graph = make()
            if train and graph.outputs[0].shape != (1,):
                continue
            study = gd.Study(graph, train=train, device="cpu", name=name)
            if train:
                study.run(5, feed="random:0", init=0, adam=1e-2)
                out.append(f"{name} losses {study.runner.losses}")
            data = blanked(study.doc.data)
            for section, value in sorted(data.items()):
                text = json.dumps(value, sort_keys=True, ensure_ascii=False)
                out.append(f"{name} {train} {section} {len(text)} {hashlib.sha256(text.encode()).hexdigest()[:16]}")
            out.append(f"{name} {train} {study.summary()}")
            plan = json.dumps(blanked(json.loads(study.plan.to_json())), sort_keys=True)
            out.append(f"{name} {train} plan {len(plan)} {hashlib.sha256(plan.encode()).hexdigest()[:16]}")
            study.close()
    return out


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join(lines()) + "\n", encoding="utf-8")
