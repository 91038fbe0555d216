"""What the README tells people to type works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

TEXT = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_script(capsys) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["study"].session.step_count == 100
    assert capsys.readouterr().out.startswith("graph linear: 7 nodes")
    names["study"].close()


def test_the_pictures_are_there() -> None:
    named = re.findall(r'(?:src|srcset)="([^"]+)"', TEXT)
    assert len(named) >= 4 and all((Path(__file__).parent.parent / path).is_file() for path in named)
