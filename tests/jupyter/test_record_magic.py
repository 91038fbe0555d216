"""`%graph_record`: picture and text of a list's report, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import recording as rec
from shells import run


def test_the_report_of_a_session_is_told(shell: Any) -> None:
    ex = rec.executor("cpu")
    x, out = rec.buffer(ex, rec.data(8)), rec.zeros(ex, 8)
    s = ex.begin_recorded(auto_barrier=True)
    s.gelu(x, out)
    shell.user_ns["s"] = s
    told, error = run(shell, "%graph_record s")
    assert "report: session: given one that is not finished" in told.stderr + told.stdout + str(error)
    s.finish()
    told, error = run(shell, "%graph_record s")
    assert error is None
    (shown,) = told.outputs
    assert shown.data["text/plain"].startswith("finish: 1 node in 1 submission")
    assert shown.data["image/svg+xml"].startswith('<svg class="gd-list"')
    assert "body[data-jp-theme-light=false]" in shown.data["text/html"]
    bundle = shell.display_formatter.format(s.report)[0]
    assert set(bundle) >= {"text/html", "image/svg+xml", "text/plain"}
    assert np.any(out.read())
    told, error = run(shell, "%graph_record other")
    assert "given other, wanted a variable that holds a GraphSession" in told.stderr + told.stdout + str(error)
