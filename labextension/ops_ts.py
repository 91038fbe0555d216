"""Print the ops that a `%%graph` cell knows, by family.

`python labextension/ops_ts.py > labextension/src/host/ops.ts`
"""

from __future__ import annotations

import json
import sys
import textwrap

from gdlab.jupyter.cell import op_names
from gdlab.view.document.stage_table import family

_LEAVES = ("input", "parameter", "constant")  # what makes them is no op of the registry


def _literal(names: list[str]) -> str:
    """Return the names as one string, written over lines of at most 120 columns."""
    lines = textwrap.wrap(" ".join(names), 108)
    return " +\n    ".join(json.dumps(line + " " * (line is not lines[-1])) for line in lines)


def typescript() -> str:
    """Return the whole file."""
    families: dict[str, list[str]] = {}
    for name in sorted(op_names()):
        if not name[0].isupper():
            kind = "leaf" if name.startswith(_LEAVES) else family(name)
            families.setdefault(kind, []).append(name)
    rows = [f"  {key}:\n    {_literal(names)}," for key, names in sorted(families.items())]
    return "\n".join([
        "// The ops that a `%%graph` cell knows, by family: generated from the registry by ops_ts.py.",
        "",
        "export const FAMILIES: Record<string, string> = {",
        *rows,
        "};",
        "",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(typescript())
