"""A cell that generates shows one line with tokens per second, which is replaced; nothing outside of a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from language_models import llama_folder
from shells import run

import gdlab as gd
from gdlab.generate import tokens


def test_a_cell_has_one_line_that_is_replaced(shell: InteractiveShell, tmp_path: Path, monkeypatch: Any) -> None:
    sent: list[tuple[str, str]] = []

    def publish(data: Any, *args: Any, update: bool = False, **more: Any) -> None:
        sent.append(("update" if update else "new", data["text/plain"]))

    shell.user_ns["model"] = gd.models.from_pretrained(llama_folder(tmp_path))
    cell = "made = model.generate([1, 2, 3], max_new_tokens=40, device='cpu')\nfor token in made: pass"
    monkeypatch.setattr(shell.display_pub, "publish", publish)
    assert run(shell, cell)[1] is None and sent == []  # a terminal
    monkeypatch.setattr(shell, "kernel", object(), raising=False)
    assert shell.run_cell(cell).success
    kinds = [kind for kind, _ in sent]
    assert kinds == ["new"] + ["update"] * (len(kinds) - 1) and sent[-1][1] == repr(shell.user_ns["made"])
    assert sent[-1][1].endswith("ended by length>") and "tokens/s" in sent[-1][1]
    assert len(sent) <= 3 + 2 / tokens.PROGRESS_SECONDS
