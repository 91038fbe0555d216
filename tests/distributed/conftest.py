"""Two engines that the tests of this folder share: they take seconds to start.

Each test leaves them usable, but for the last one of test_data_parallel.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from engines import gone
from machine import needs

from gdlab.distributed import Cluster, cluster


@pytest.fixture(scope="package")
def two() -> Iterator[Cluster]:
    needs("mpi")
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    with cluster(2, timeout=120) as made:
        yield made
        pids = [p.pid for p in psutil.Process().children(recursive=True) if p.pid not in before]
    assert len(pids) >= 4 and gone(pids, 5) is not None
