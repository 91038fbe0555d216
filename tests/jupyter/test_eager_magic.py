"""`%%eager` in a real IPython shell: values beside lines, gradients, the picture, errors, completion."""

from __future__ import annotations

import numpy as np
from shells import complete, run

from gdlab.eager import EagerSession

CELL = """x = input("x", (2, 3))
w = parameter("w", (3, 2))
h = relu(x @ w)
h.sum_all()
"""


def test_a_cell_runs_line_by_line(shell) -> None:
    out, error = run(shell, f"%%eager net --grad --device cpu --seed 3\n{CELL}")
    assert error is None
    session = shell.user_ns["net"]
    assert isinstance(session, EagerSession) and session.opts.seed == 3
    rows = out.stdout.splitlines()
    assert rows[0] == "%%eager net --grad --device cpu --seed 3"
    assert rows[1].startswith('x = input("x", (2, 3))') and "# f32[2, 3] [[0.126, −0.132, 0.64]" in rows[1]
    assert "# f32[1] " in rows[4] and rows[5].startswith("∂w  # f32[3, 2] [[")
    svg = out.outputs[0].data["image/svg+xml"]
    assert svg.startswith("<svg") and len(session.tape) == 5
    assert "adjoint" in svg and "∂w" in svg, "the backward pass is part of the picture"
    assert "sum_all  ∂ f32[1] 1" in session.grads_text()
    shell.user_ns["net"].close()


def test_numbers_are_those_of_the_graph_magic(shell) -> None:
    _, error = run(shell, f"%%graph g --train --device cpu --feed random --init 3 --run 1 --quiet\n{CELL}")
    assert error is None
    _, error = run(shell, f"%%eager e --seed 3 --device cpu --quiet\n{CELL}")
    assert error is None
    session = shell.user_ns["e"]
    loss = session.tape.outputs[0]
    assert np.float32(shell.user_ns["g"].session.read_loss()) == np.float32(float(loss))
    study = session.to_study(loss)
    assert study.train and study.graph.leaf("w") is not None
    study.close()
    run(shell, f"%%eager e --device cpu --quiet\n{CELL}")
    assert not session.open and shell.user_ns["e"].open
    out, error = run(shell, "display(e)")
    assert error is None and out.outputs[0].data["image/svg+xml"].startswith("<svg")
    shell.user_ns["e"].close()


def test_an_error_shows_the_lines_before_it_and_the_caret(shell) -> None:
    out, error = run(shell, "%%eager bad --device cpu\n" + CELL.replace("x @ w", "w @ w"))
    assert error is not None and "bad" not in shell.user_ns
    assert 'x = input("x", (2, 3))' in out.stdout and "# f32[3, 2]" in out.stdout
    shown = out.stdout + out.stderr
    assert "matmul: operands: given f32[3, 2] and f32[3, 2]" in shown and "line 4: h = relu(w @ w)" in shown
    _, error = run(shell, f"%%eager bad --feed nothing\n{CELL}")
    assert "--feed: given nothing" in str(error)
    _, error = run(shell, "%%eager loop --device cpu --quiet\nx = full((1,), 8.0)\nwhile x > 1:\n    x = x / 2\nx\n")
    assert error is None and float(shell.user_ns["loop"].tape.outputs[0]) == 1
    shell.user_ns["loop"].close()


def test_completion_knows_the_magic() -> None:
    assert {"--grad", "--device", "--seed", "--feed"} <= set(complete("%%eager net --"))
    assert "cpu" in complete("%%eager net --device ")
    assert "relu" in complete("%%eager net\nh = rel")
    assert complete("%%eager ", {"s": EagerSession(device="cpu")}) == ["s"]
