"""Cases that `make matrix` adds to a family of which `make test` takes one of each kind."""

from __future__ import annotations

import os
from typing import TypeVar

Case = TypeVar("Case")
MATRIX = bool(os.environ.get("GDLAB_MATRIX"))


def matrix_only(*cases: Case) -> tuple[Case, ...]:
    """Return the cases in `make matrix`, and none elsewhere: `parametrize("width", [700, *matrix_only(1070)])`."""
    return cases if MATRIX else ()
