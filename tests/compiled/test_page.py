"""The page on compiled graphs does what it says."""

from __future__ import annotations

import re
from typing import Any

from places import REPO

TEXT = (REPO / "docs" / "compiled_graph.md").read_text(encoding="utf-8")


def test_the_scripts_of_the_page() -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {}
    for code in blocks:
        exec(compile(code, "docs/compiled_graph.md", "exec"), names)
    assert len(blocks) == 8 and names["cache"].compiled_count == 2
