"""The first ten minutes of the README, cell by cell in a real IPython shell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from places import REPO
from shells import run

CELLS = re.findall(r"```ipython\n(.*?)```", (REPO / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_first_ten_minutes(shell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for cell in CELLS:
        out, error = run(shell, cell)
        assert error is None and "given" not in out.stderr, (cell, out.stderr)
    assert len(CELLS) == 6 and shell.user_ns["mlp"].session.step_count == 200
    assert (tmp_path / "mlp.html").stat().st_size > 10_000
    assert (tmp_path / "mlp-notebook.safetensors").stat().st_size > 4 * 64 * 128
