"""The magics in a real IPython shell: what is bound, shown, refused; and completion."""

import _thread
import base64
import gzip
import json
import re
import threading
import time

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from gdlab.jupyter.complete import candidates
from gdlab.jupyter.display import MIME
from gdlab.jupyter.magics import option_names
from gdlab.study import Study
from gdlab.view.doc import load_doc

BODY = """x = input("x", (8, 6))
y = input("y", (8, 3))
h = relu(x @ parameter("w1", (6, 5)) + parameter("b1", (5,)))
z = h @ parameter("w2", (5, 3)) + parameter("b2", (3,))
cross_entropy_loss(z, y)
"""


@pytest.fixture
def shell():
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "gdlab")
    yield shell
    shell.run_line_magic("unload_ext", "gdlab")
    for value in list(shell.user_ns.values()):
        if isinstance(value, Study):
            value.close()
    InteractiveShell.clear_instance()


def run(shell, text):
    """Run a cell as a person would; its outputs, prints, and the error or None."""
    with capture_output() as out:
        result = shell.run_cell(text, store_history=True)
    return out, result.error_in_exec or result.error_before_exec


def test_a_cell_binds_a_study_and_shows_one_bundle(shell):
    out, error = run(shell, f"%%graph mlp --train --device cpu\n{BODY}")
    assert error is None and isinstance(shell.user_ns["mlp"], Study)
    (shown,) = out.outputs
    assert {MIME, "image/svg+xml", "text/plain", "application/vnd.jupyter.widget-view+json"} <= set(shown.data)
    assert shown.data["text/plain"].startswith("graph mlp: ")
    assert shown.data[MIME]["study"] == shell.user_ns["mlp"].key
    assert "h" not in shell.user_ns and "x" not in shell.user_ns


def test_names_come_from_assignments_and_lines_from_the_cell(shell):
    run(shell, f"%%graph mlp --train --device cpu --quiet\n{BODY}")
    graph = shell.user_ns["mlp"].graph
    assert [n.name for n in graph if n.op in ("relu", "add") and n.name] == ["h", "z"]
    relu = next(n for n in graph if n.op == "relu")
    (place,) = graph.source(relu.id)
    assert place.line == 4 and place.file.startswith("<graph mlp, cell ")


def test_a_second_name_does_not_replace_the_first(shell):
    run(shell, "%%graph g --quiet --device cpu\nx = input('x', (2,))\nh = relu(x)\nagain = h\nagain.sum_all()")
    assert [n.name for n in shell.user_ns["g"].graph] == ["x", "h", ""]


def test_static_has_no_widget_and_quiet_nothing(shell):
    out, _ = run(shell, f"%%graph mlp --static --device cpu\n{BODY}")
    assert "application/vnd.jupyter.widget-view+json" not in out.outputs[0].data
    out, _ = run(shell, f"%%graph mlp --quiet --device cpu\n{BODY}")
    assert out.outputs == [] and out.stdout == ""


def test_views_and_a_run(shell):
    run(shell, f"%%graph mlp --train --quiet --device cpu\n{BODY}")
    for line in ("%graph_grad mlp", "%graph_plan mlp", "%graph mlp --show kernels"):
        out, error = run(shell, line)
        assert error is None and len(out.outputs) == 1, line
    out, error = run(shell, "%graph_run mlp 20 --feed random:0 --adam 1e-2 --init 0")
    study = shell.user_ns["mlp"]
    assert error is None and study.session.step_count == 20
    assert "step 20 of 20" in out.stdout and "Adam, lr 0.01" in out.stdout
    losses = [loss for _, loss in study.runner.losses]
    assert len(losses) == 20 and losses[-1] < losses[0]
    run(shell, "%graph_step mlp 2")
    assert study.session.step_count == 22


def test_a_variable_as_feed(shell):
    run(shell, f"%%graph mlp --train --quiet --device cpu\n{BODY}")
    rng = np.random.default_rng(0)
    shell.user_ns["batches"] = lambda step: {"x": rng.normal(size=(8, 6)), "y": np.eye(3)[rng.integers(0, 3, 8)]}
    _, error = run(shell, "%graph_run mlp 3 --feed batches --sgd 0.1 --init 1")
    assert error is None and shell.user_ns["mlp"].session.step_count == 3


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x = input('x', (2, 2))", "graph g: output: given none, wanted a last expression or output(...)"),
        ("[1, 2]", "graph g: output: given list of int, wanted a node or nodes"),
        ("x = input('x', (2, 3))\nx @ x", "matmul: operands: given f32[2, 3] and f32[2, 3]"),
        ("input('x', (2,)) + nothing", "NameError: name 'nothing' is not defined"),
        ("x = = 2", "SyntaxError: invalid syntax"),
        ("x = input('x', (2,))\noutput(relu(x), 'r')\noutput(exp(x), 'r')", "line 4: output(exp(x), 'r')"),
        ("output(input('x', (2,)), 3)", "output: name: given 3, wanted a str"),
        ("raise KeyboardInterrupt", "line 2: raise KeyboardInterrupt"),
    ],
)
def test_a_wrong_cell_says_one_line_and_changes_nothing(shell, body, message):
    run(shell, f"%%graph g --quiet --device cpu\n{BODY}")
    before = shell.user_ns["g"]
    out, error = run(shell, f"%%graph g --device cpu\n{body}")
    assert error is not None and shell.user_ns["g"] is before and not out.outputs
    text = out.stdout + out.stderr
    assert message in text and "Traceback" not in text and "gdlab/" not in text


def test_the_caret_stands_under_the_call(shell):
    out, _ = run(shell, "%%graph g\nx = input('x', (2, 3))\nh = relu(x @ x)\nh")
    lines = (out.stdout + out.stderr).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("line 3: "))
    assert lines[at].strip() == "line 3: h = relu(x @ x)"
    assert lines[at][lines[at + 1].index("^") : len(lines[at + 1].rstrip())] == "x @ x"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%%graph 2mlp\n1", "%%graph: name: given 2mlp, wanted a Python name"),
        ("%graph_run mpl 3", "graph mpl: given no such variable, wanted one of mlp"),
        ("%graph_plan number", "graph number: given int, wanted a graph, report, plan, session, document or file"),
        ("%graph_run mlp 5", "graph mlp: run: given no value for x, y, wanted --feed or set_input"),
        ("%graph_run mlp many", "argument steps: given many, wanted an int in 0 … 10⁹"),
        ("%graph_run mlp 2 --sgd -1", "argument --sgd: given -1, wanted a rate > 0"),
        ("%graph_run mlp 2 --sgd 1 --adam 1", "--adam: given --sgd as well, wanted one update rule"),
        ("%graph_run mlp 2 --save my.xyz", "save: given my.xyz, wanted .gdlab.json, "),
        ("%graph mlp --train", "%graph mlp: given --train, wanted a %%graph cell or a Graph"),
        ("%%graph class\n1", "%%graph: name: given class, wanted a Python name"),
        ("%%graph g --save 'my\n1", "given g --save 'my, wanted closed quotes"),
        (f"%%graph g --run 2\n{BODY}", "graph g: run: given no value for x, y, wanted --feed or set_input"),
        (f"%%graph g --sgd 1\n{BODY}", "set_learning_rate: session: given an inference session"),
        (f"%%graph g --no Mul+Sigmod→Silu\n{BODY}", "Mul+Sigmoid→Silu"),
        (f"%%graph g --train\n{BODY.rsplit(chr(10), 2)[0]}\nz", "graph g: loss: given f32[8, 3], wanted shape [1]"),
        (f"%%graph g --device tpu\n{BODY}", "invalid choice: 'tpu'"),
    ],
)
def test_wrong_lines_are_one_red_line(shell, line, message):
    run(shell, f"%%graph mlp --train --quiet --device cpu\n{BODY}")
    shell.user_ns["number"] = 3
    out, error = run(shell, line)
    text = out.stdout + out.stderr
    assert error is not None and message in text and "Traceback" not in text, text
    assert shell.user_ns["mlp"].has_session is ("graph_run mlp 5" in line)
    assert "g" not in shell.user_ns


def test_a_new_run_of_the_cell_closes_the_old_session(shell):
    run(shell, f"%%graph mlp --train --quiet --device cpu\n{BODY}")
    run(shell, "%graph_run mlp 2 --feed random --sgd 0.1 --init 0 --quiet")
    old = shell.user_ns["mlp"]
    run(shell, f"%%graph mlp --train --quiet --device cpu\n{BODY}")
    assert shell.user_ns["mlp"] is not old and old.session is not None
    assert old.runner.state != "running"


def test_a_hidden_op_is_said_and_builtins_fall_through(shell):
    shell.user_ns["relu"] = lambda v: v
    out, error = run(shell, "%%graph g --static --device cpu\nx = input('x', (max(1, 2), 3))\nrelu(x).sum_all()")
    assert error is None and "note: relu is your notebook's function, not gdlab.relu" in out.stdout
    assert [n.op for n in shell.user_ns["g"].graph] == ["input", "sum_all"]


def test_loading_again_leaves_one_matcher(shell):
    for _ in range(3):
        shell.run_line_magic("reload_ext", "gdlab")
    assert [getattr(m, "matcher_identifier", "") for m in shell.Completer.custom_matchers].count("gdlab") == 1
    shell.run_line_magic("unload_ext", "gdlab")
    assert "graph" not in shell.magics_manager.magics["cell"]
    shell.run_line_magic("load_ext", "gdlab")


def test_help_has_the_right_usage_line(shell):
    text = shell.magics_manager.magics["cell"]["graph"].__doc__
    assert "%%graph" in text.splitlines()[1] + text and "--train" in text


def complete(text, variables=None):
    lines = text.split("\n")
    return candidates(text, len(lines) - 1, lines[-1], variables or {}, option_names())


def test_completion():
    assert "relu" in complete("%%graph g\nx = re") and "recip" in complete("%%graph g\nx = re")
    assert complete("%%graph g\nhidden = 1\nhid") == ["hidden"]
    assert "keepdims=" in complete("%%graph g\nmean(x, kee")
    assert "softmax" in complete("%%graph g\nx.soft")
    assert complete("%%graph g --tra") == ["--train"]
    assert complete("%%graph g --device wg") == ["wgpu"]
    assert complete("%%graph g --no fuse_s") == ["fuse_silu", "fuse_swiglu"]
    assert complete("import os\nos.pa") == []


def test_no_thread_is_left_behind_by_loading(shell):
    before = {t.name for t in threading.enumerate()}
    for _ in range(3):
        shell.run_line_magic("reload_ext", "gdlab")
    assert {t.name for t in threading.enumerate()} <= before | {"gdlab-reporter"}


def test_a_last_expression_is_shown_richly(shell):
    run(shell, f"%%graph mlp --train --quiet --device cpu\n{BODY}")
    for text in ("mlp", "mlp.graph", "mlp.doc"):
        data, _ = shell.display_formatter.format(eval(text, shell.user_ns))
        assert {MIME, "image/svg+xml", "text/plain"} <= set(data), text
        assert data["text/plain"].startswith("graph ")
    shell.run_line_magic("unload_ext", "gdlab")
    assert MIME not in shell.display_formatter.format(shell.user_ns["mlp"])[0]
    shell.run_line_magic("load_ext", "gdlab")


def test_b_is_short_for_show_opt(shell):
    out, _ = run(shell, f"%%graph mlp --train --show plan -b --static --device cpu\n{BODY}")
    packed = out.outputs[0].data[MIME]["gz"]
    view = json.loads(gzip.decompress(base64.b64decode(packed)))["view"]
    assert view["show"] == ["plan", "opt"]


@pytest.mark.parametrize(
    ("line", "shown", "under"),
    [
        ("if True:\n\ty =\trelu(x @ x)", "line 4: \ty =", "x @ x"),
        ("y = " + "x + " * 100 + "(x @ x) " + "+ x" * 100, "…", "x @ x"),
    ],
)
def test_the_caret_after_tabs_and_in_a_long_line(shell, line, shown, under):
    out, _ = run(shell, f"%%graph g\nx = input('x', (2, 3))\n{line}\ny")
    head, caret = [each for each in (out.stdout + out.stderr).splitlines() if each][-2:]
    assert head.startswith(("line 3: …", "line 4: ")) and shown in head and len(head) < 140
    assert head[caret.index("^") : len(caret)] == under
    assert [c == "\t" for c in caret[: caret.index("^")]] == [c == "\t" for c in head[: caret.index("^")]]


def test_builtins_fall_through_after_a_star_import(shell):
    run(shell, "from gdlab import *")
    body = "x = input('x', (max(1, 2), 3))\nsum([relu(x), exp(x)]).sum_all()"
    out, error = run(shell, f"%%graph g --static --device cpu\n{body}")
    assert error is None and "note:" not in out.stdout
    assert [n.op for n in shell.user_ns["g"].graph][-1] == "sum_all"


def test_an_error_of_a_feed_shows_the_persons_frames_alone(shell):
    run(shell, f"%%graph mlp --train --quiet --device cpu\n{BODY}")
    run(shell, "def helper(step):\n    return {}[step]\ndef feed(step):\n    return helper(step)")
    out, error = run(shell, "%graph_run mlp 3 --feed feed --init 0 --quiet")
    text = re.sub(r"\x1b\[[\d;]*m", "", out.stdout + out.stderr)
    assert isinstance(error, KeyError) and "in helper" in text and "in feed" in text and "gdlab/" not in text
    _, error = run(shell, "%graph_run mlp 3 --feed random --quiet")
    assert error is None and shell.user_ns["mlp"].session.step_count == 3


def test_an_interrupted_run_says_one_line_and_goes_on(shell):
    run(shell, f"%%graph mlp --train --quiet --device cpu\n{BODY}")

    def feed(step):
        if step == 4:
            _thread.interrupt_main()
            time.sleep(0.3)
        return {"x": np.ones((8, 6)), "y": np.eye(3)[[0] * 8]}

    shell.user_ns["feed"] = feed
    out, error = run(shell, "%graph_run mlp 100 --feed feed --init 0 --quiet")
    done = shell.user_ns["mlp"].session.step_count
    assert isinstance(error, KeyboardInterrupt) and 4 <= done < 100
    assert f"step {done} of 100" in out.stdout and "paused (by interrupt)" in out.stdout
    assert "gdlab/" not in out.stdout + out.stderr
    shell.user_ns["mlp"].runner.feed = lambda step: {"x": np.ones((8, 6)), "y": np.eye(3)[[0] * 8]}
    out, error = run(shell, "%graph_resume mlp")
    assert error is None and shell.user_ns["mlp"].session.step_count == 100


def test_a_run_and_a_save_in_one_cell(shell, tmp_path):
    path = tmp_path / "my run.gdlab.json"
    options = f'--train --quiet --device cpu --run 3 --feed random --sgd .1 --init 0 --save "{path}"'
    run(shell, f"%%graph mlp {options}\n{BODY}")
    assert len(load_doc(path).data["runs"]) == 1  # saved after the run, not before it
    out, error = run(shell, "%graph mlp --run 2 --quiet")
    assert error is None and shell.user_ns["mlp"].session.step_count == 5
