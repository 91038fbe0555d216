"""Show under a cell how many tokens a model has generated, in one line that is replaced."""

from __future__ import annotations

import sys
from collections.abc import Callable

from gdlab.generate import Tokens


def progress_line(tokens: Tokens) -> Callable[[Tokens], None]:
    """Return a function that shows tokens and tokens per second in a line of the cell that runs now; outside a notebook
    it does nothing."""
    if "IPython" not in sys.modules:
        return _nothing
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return _nothing
    shown = display({"text/plain": repr(tokens)}, raw=True, display_id=True)

    def update(now: Tokens) -> None:
        shown.update({"text/plain": repr(now)}, raw=True)

    return update


def _nothing(tokens: Tokens) -> None:
    """Ignore the tokens: there is no cell to show them under."""
