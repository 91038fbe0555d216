"""The page `docs/eager_session.md`: its code runs as it stands, and says what it says."""

from __future__ import annotations

import re
from typing import Any

import pytest
from places import REPO

from gdlab.plan.rules import RULES

TEXT = (REPO / "docs" / "eager_session.md").read_text(encoding="utf-8")


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    known = set(RULES)
    for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(code, "docs/eager_session.md", "exec"), names)
    said = capsys.readouterr().out
    assert "∂x  f32[2] [6, 12]" in said and "lion" in said.splitlines()[-1] and not names["s"].open
    for added in set(RULES) - known:
        del RULES[added]
