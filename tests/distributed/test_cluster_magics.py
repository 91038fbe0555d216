"""`%graph_cluster` and `%graph_run NAME N --on cluster`, in a shell of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from engines import batches, regression
from IPython.utils.capture import capture_output
from machine import needs
from shells import fresh_shell

from gdlab.distributed import Cluster


@pytest.fixture
def shell() -> Iterator[Any]:
    with fresh_shell(colors="nocolor") as shell:
        shell.run_line_magic("load_ext", "gdlab")
        yield shell


def said(shell: Any, text: str) -> str:
    """Run a cell; all that it prints and displays, as text."""
    with capture_output() as out:
        shell.run_cell(text, store_history=True)
    return out.stdout + out.stderr + "".join(str(o.data.get("text/plain", "")) for o in out.outputs)


def test_a_cluster_begins_runs_and_ends_by_magics(shell: Any) -> None:
    """One engine, which is enough for words; without MPI, which starts sooner."""
    needs("mpi")
    assert said(shell, "%graph_cluster") == (
        "UsageError: %graph_cluster: cluster: given no such variable, wanted a cluster: %graph_cluster start\n"
    )
    try:
        shown = said(shell, "%graph_cluster start -n 1 --engines local --as few")
        assert "<Cluster: 1 engine on 1 host, cpu>" in shown and "no hardware adapter answers" in shown
        assert "wanted %graph_cluster stop first" in said(shell, "%graph_cluster start --as few")
        assert "1 engine on 1 host" in said(shell, "%graph_cluster --as few")
        shell.user_ns |= {"net": regression(), "data": batches(40)}
        text = said(shell, "%graph_run net 20 --feed data --init 0 --sgd 0.05 --on few")
        assert shell.user_ns["net"].session.step_count == 20
        assert "net: done, 20 of 20 steps" in text and "in reduction" in text
        assert "wanted a cluster: %graph_cluster start" in said(shell, "%graph_run net 5 --on data")
    finally:
        assert "closed>" in said(shell, "%graph_cluster stop --as few")
    assert "run: cluster: given a closed one" in said(shell, "%graph_run net 5 --feed data --on few")


def test_the_line_of_a_run_says_the_bytes_of_a_bucket(shell: Any, two: Cluster) -> None:
    shell.user_ns |= {"net": regression(), "data": batches(8), "both": two}
    said(shell, "%graph_run net 2 --feed data --init 0 --sgd 0.05 --on both --bucket-bytes 1024")
    allreduce = shell.user_ns["net"].doc.data["allreduce"]
    assert [bucket["nbytes"] for bucket in allreduce["buckets"]] == [1024, 1024, 640]
    line = "%graph_run net 2 --feed data --on both --bucket-bytes 3"
    assert "UsageError: run: bucket_bytes: given 3, wanted bytes from 4 to 256 MiB" in said(shell, line)
