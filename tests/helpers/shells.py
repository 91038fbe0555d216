"""Run cells in a real IPython shell with gdlab loaded, and complete text as it does."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from gdlab.jupyter.complete import candidates
from gdlab.jupyter.magics import option_values
from gdlab.study.study import Study

BODY = """x = input("x", (8, 6))
y = input("y", (8, 3))
h = relu(x @ parameter("w1", (6, 5)) + parameter("b1", (5,)))
z = h @ parameter("w2", (5, 3)) + parameter("b2", (3,))
cross_entropy_loss(z, y)
"""
GATED = BODY.replace("z = h @", "h = h * sigmoid(h)\nz = h @")


@contextmanager
def fresh_shell(**traits: Any) -> Iterator[InteractiveShell]:
    """Open a shell in which nothing was run; at the end unload gdlab and close the studies that its variables hold."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(**traits)
    try:
        yield shell
    finally:
        shell.run_line_magic("unload_ext", "gdlab")
        for value in list(shell.user_ns.values()):
            if isinstance(value, Study):
                value.close()
        InteractiveShell.clear_instance()


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    """A fresh shell with gdlab loaded; a test module's own fixture of this name may take it and put variables in it."""
    with fresh_shell() as shell:
        shell.run_line_magic("load_ext", "gdlab")
        yield shell


def run(shell, text):
    """Run a cell as a person would; its outputs, prints, and the error or None."""
    with capture_output() as out:
        result = shell.run_cell(text, store_history=True)
    return out, result.error_in_exec or result.error_before_exec


def run_for_text(shell: InteractiveShell, text: str) -> tuple[str, list[Any]]:
    """Run a cell; the text that it prints with its error behind it, and its outputs."""
    out, error = run(shell, text)
    return out.stdout + out.stderr + ("" if error is None else str(error)), out.outputs


def told(out):
    """The text that a terminal would show: what was printed, then the texts of the answers."""
    answers = [o.data["text/plain"] for o in out.outputs if "text/html" in o.data and "text/plain" in o.data]
    return out.stdout + "".join(f"{text}\n" for text in answers)


def complete(text, variables=None):
    lines = text.split("\n")
    return candidates(text, len(lines) - 1, lines[-1], variables or {}, option_values())
