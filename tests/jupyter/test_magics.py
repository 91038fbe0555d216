"""The magics in a real IPython shell: what is bound, shown, refused; and completion."""

import _thread
import base64
import gzip
import json
import linecache
import re
import threading
import time

import numpy as np
import pytest
from IPython.utils.capture import capture_output
from shells import BODY, complete, run, told

from gdlab.devices.choose import device
from gdlab.jupyter.display import MIME
from gdlab.jupyter.magics import option_values
from gdlab.op.machines import Machine, keep_machine
from gdlab.study.study import Study
from gdlab.view.document.make import load_doc


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


@pytest.mark.parametrize("magic", ["%%graph numbered --quiet", "%%eager numbered"])
def test_a_cell_is_named_by_the_number_of_its_prompt(shell, magic):
    run(shell, "1 + 1")
    with capture_output():
        ran = shell.run_cell(f"{magic} --device cpu\nx = input('x', (2,))\nsum_all(relu(x))", store_history=True)
    found = {file for file in linecache.cache if file.startswith("<graph numbered, ")}
    assert ran.execution_count == 2 and found == {"<graph numbered, cell 2>"}
    linecache.cache.pop(*found)


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
        ("rleu(input('x', (2,)))", "NameError: name 'rleu' is not defined; nearest: relu"),
        ("hidden = input('x', (2,))\nrelu(hiden)", "NameError: name 'hiden' is not defined; nearest: hidden"),
        ("input('x', (2,)).rleu()", "`python -m gdlab ops`; nearest: relu"),
        ("input('x', 2, 3)", "input: arguments: given (str 'x', int 2, int 3), wanted (name: str, shape: tuple[int, "),
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
    assert error is not None and shell.user_ns["g"] is before
    assert [list(o.data) for o in out.outputs] == [["image/svg+xml", "text/plain"]] * message.startswith("matmul")
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
        ("%graph mpl", "graph mpl: given no such variable, wanted one of mlp"),
        ("%%graph 2mlp\n1", "%%graph: name: given 2mlp, wanted a Python name"),
        ("%graph_run mpl 3", "graph mpl: given no such variable, wanted one of mlp"),
        ("%graph_plan number", "graph number: given int, wanted a study: the NAME of a %%graph cell"),
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
        (f"%%graph g --no Mul+Sigmod→Silu\n{BODY}",
         "--no: given Mul+Sigmod→Silu, wanted a rule id or label; nearest: fuse_silu Mul+Sigmoid→Silu"),
        (f"%%graph g --train\n{BODY.rsplit(chr(10), 2)[0]}\nz", "graph g: loss: given f32[8, 3], wanted shape [1]"),
        (f"%%graph g --device tpu\n{BODY}", "--device: given tpu, wanted auto, wgpu, cpu, wgpu:NUMBER or wgpu:NAME"),
        (f"%%graph g --engine nope\n{BODY}",
         "argument --engine: invalid choice: 'nope' (choose from 'auto', 'lanes', 'layered', 'dot')"),
        (f"%%graph g --cost time\n{BODY}",
         "argument --cost: invalid choice: 'time' (choose from 'roofline', 'ast_size', 'device')"),
        ("%graph mlp --cost device", "%graph mlp: given --cost, wanted a %%graph cell or a Graph"),
        (f"%%graph g --no cse --only cse\n{BODY}", "--only: given --no as well, wanted one of them"),
        (f"%%graph g --around hh\n{BODY}", "show: around: given hh, wanted a node name or %id of g; nearest: h"),
        (f"%%graph g --around %99\n{BODY}", "show: around: given %99, wanted a node name or %id of g"),
        (f"%%graph g --diff mlp\n{BODY}", "--diff: given a cell, wanted %graph NAME --diff OTHER"),
        (f"%%graph g --run 1 --feed random --train --until 'loss <'\n{BODY}", "until: test: given the end, wanted "),
        ("%graph_opt mlp --no Mul+Sigmod→Silu",
         "--no: given Mul+Sigmod→Silu, wanted a rule id or label; nearest: fuse_silu Mul+Sigmoid→Silu"),
        ("%graph_opt mlp --as 2x", "%graph_opt: name: given 2x, wanted a Python name"),
        ("%graph_grad mlp --wrt q", "graph mlp: wrt: given 'q', wanted one of x, "),
        ("%graph_grad mlp --wrt h --optimized", "--optimized: given --wrt as well, wanted one of them"),
        ("%graph number --diff mlp", "graph number: given int, wanted a graph, report, plan, session, compiled graph"),
        ("%graph none.gdlab.json", "graph none.gdlab.json: given no such file, wanted the file of a document"),
        ("%graph_check mlp --device auto", "--device: given auto, wanted wgpu, cpu, wgpu:NUMBER or wgpu:NAME"),
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
    session, runner = old.session, old.runner
    run(shell, f"%%graph mlp --train --quiet --device cpu\n{BODY}")
    assert shell.user_ns["mlp"] is not old and session.closed and not old.has_session
    assert runner.state == "closed"


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


# what is asked of a study ---------------------------------------------------------------------------------------------
def view_of(out):
    packed = out.outputs[0].data[MIME]["gz"]
    return json.loads(gzip.decompress(base64.b64decode(packed)))["view"]


def test_the_numbers_of_a_small_graph(shell):
    body = "x = input('x', (3,))\nw = parameter('w', (3,))\n(x * w).sum_all()"
    shell.user_ns["batch"] = {"x": np.array([1.0, 2.0, -3.0])}
    out, error = run(shell, f"%%graph tiny --train --values --device cpu --feed batch --init 0\n{body}")
    tiny = shell.user_ns["tiny"]
    assert error is None and view_of(out)["overlay"] == "value"
    w = tiny.session.read_param("w").astype(float)  # what --init gave is what is shown
    np.testing.assert_allclose(tiny.numbers.value[3], [w @ [1, 2, -3]])
    np.testing.assert_allclose(tiny.numbers.gradient[1], [1, 2, -3])
    rows = [line.split() for line in out.outputs[0].data["text/plain"].splitlines() if " parameter(" in line]
    assert "[1, 2, −3]" in " ".join(rows[0]) and "gradient" in out.outputs[0].data["text/plain"]
    assert "[1, 2, −3]" in out.outputs[0].data["image/svg+xml"]
    many = "x = input('x', (3,))\nfor i in range(80):\n    x = tanh(x)\nx.sum_all()"
    out, error = run(shell, f"%%graph large --values --device cpu\n{many}")
    assert "graph large: values: given 82 nodes, wanted at most 60" in out.stdout + out.stderr
    assert error is not None and "large" not in shell.user_ns


def test_a_variant_beside_the_first(shell, mlp):
    out, error = run(shell, "%graph_opt mlp --no fuse_silu --as plain")
    plain = shell.user_ns["plain"]
    assert error is None and "silu" in [n.op for n in mlp.optimized] and "silu" not in [n.op for n in plain.optimized]
    keys = [stage["key"] for stage in mlp.doc.data["stages"]]
    assert keys[-1] == "variant:plain" and view_of(out)["diff"] == [keys.index("optimized"), len(keys) - 1]
    text = out.outputs[0].data["text/plain"]
    assert re.findall(r"^ +(mlp|plain) +(\d+)", text, re.MULTILINE) == [
        ("mlp", str(len(mlp.final))), ("plain", str(len(plain.final)))
    ]  # fmt: skip
    assert "µs/step" not in out.stdout, "the table stands once"
    assert re.search(r"> node:1.\d+ silu", text) and re.search(r"< node:5.\d+ sigmoid", text)
    assert mlp.doc.check() == ()


def test_a_derivative_of_another_kind(shell, mlp):
    out, error = run(shell, "%graph_grad mlp --wrt x,h --as d")
    assert error is None and "with respect to x, h" in out.outputs[0].data["text/plain"]
    assert shell.user_ns["d"].graph.num_param_grad_outputs == 2
    out, error = run(shell, "%graph_grad mlp --optimized")
    assert error is None and "Derivative, after fusion" in out.outputs[0].data["text/plain"]
    out, error = run(shell, "%graph_plan mlp --device cpu --as other")
    assert error is None and shell.user_ns["other"].plan == mlp.plan and shell.user_ns["other"] is not mlp


def test_whatever_has_a_picture_is_shown(shell, mlp, tmp_path):
    mlp.save(tmp_path / "saved.gdlab.json")
    things = {"r": mlp.report, "p": mlp.plan, "s": mlp.session, "g": mlp.graph, "doc": mlp.doc}
    shell.user_ns |= things
    for name in (*things, f'"{tmp_path / "saved.gdlab.json"}"'):
        out, error = run(shell, f"%graph {name} --static")
        assert error is None and {MIME, "image/svg+xml"} <= set(out.outputs[0].data), name
    out, _ = run(shell, "%graph r")
    assert out.stdout.startswith("=== Optimization Report ===") and "The result" in out.outputs[0].data["text/plain"]
    out, _ = run(shell, "%graph p")
    assert view_of(out)["show"] == ["plan"] and "plan p: " in out.outputs[0].data["text/plain"]
    out, _ = run(shell, "%graph mlp --diff g")
    assert f"diff mlp → g: {len(mlp.graph)} same" in out.outputs[0].data["text/plain"]


def test_a_picture_opens_as_it_is_told(shell, mlp):
    out, _ = run(shell, "%graph mlp --around h:1 --overlay flops --engine lanes --depth 1 --height 300")
    view = view_of(out)
    *_, h = (n.id for n in mlp.graph if n.name == "h")
    assert view == {"show": ["opt"], "height": 300, "around": "1", "select": f"node:0.{h}", "overlay": "flops",
                    "engine": "lanes", "depth": 1}  # fmt: skip
    svg = out.outputs[0].data["image/svg+xml"]
    near = {h, *mlp.graph.node(h).inputs, *(n.id for n in mlp.graph if h in n.inputs)}
    leaves = {i for k in near for i in mlp.graph.node(k).inputs if not mlp.graph.node(i).inputs}
    assert f">{len(near | leaves)} of {len(mlp.graph)} nodes<" in svg


def test_a_check_says_that_nothing_broke(shell, mlp):
    out, error = run(shell, "%graph_check mlp --device cpu --feed random:3")
    assert error is None and told(out).splitlines()[0].split() == ["type", "optimized", "cpu", "differences"]
    assert told(out).endswith("mlp: nothing broke: 1 output and 4 gradients agree with the reference.\n")


def test_a_run_until_and_a_reset(shell, mlp):
    shell.user_ns["goal"] = 0.9
    out, error = run(shell, '%graph_run mlp 300 --feed random:0 --adam 1e-2 --init 0 --until "loss < {goal}" --quiet')
    assert error is None and "paused (end of --until: loss < 0.9)" in out.stdout
    steps = mlp.session.step_count
    out, _ = run(shell, "%graph_run mlp 2 --quiet")
    assert mlp.session.step_count == steps + 2, "a condition belongs to its own run"
    out, _ = run(shell, "%graph_reset mlp")
    assert out.stdout.startswith("mlp: step 0 of 0; ready") and mlp.session.step_count == 0
    run(shell, "%graph_step mlp 3")
    losses = list(mlp.runner.losses)
    run(shell, "%graph_reset mlp --replay")
    assert mlp.runner.losses == losses and len(losses) == 3


def test_a_run_by_the_clock(shell, mlp, monkeypatch):
    monkeypatch.setenv("GDLAB_STEPS", "6")
    out, error = run(shell, "%graph_run mlp --for 5 --feed random:0 --adam 1e-2 --init 0")
    assert error is None and "mlp: step 6 of 6, loss" in out.stdout and mlp.session.step_count == 6
    monkeypatch.setenv("GDLAB_STEPS", "few")
    refused = {
        "%graph_run mlp 100 --for 5": "--for: given 100 steps as well, wanted one of them: %graph_run mlp 100, or "
        "%graph_run mlp --for 5",
        "%graph_run mlp --for 0": "argument --for: given 0, wanted seconds > 0",
        "%graph_run mlp --for soon": "argument --for: given soon, wanted seconds > 0",
        "%graph_run mlp --for nan": "argument --for: given nan, wanted seconds > 0",
        "%graph_run mlp --for 5": "run: GDLAB_STEPS: given 'few', wanted an int ≥ 1, or no such variable",
    }
    for line, words in refused.items():
        out, error = run(shell, line)
        assert str(error) == words and out.outputs == [], line
    assert mlp.session.step_count == 6
    monkeypatch.delenv("GDLAB_STEPS")
    out, error = run(shell, "%graph_run mlp --for 0.05 --quiet")
    made = mlp.session.step_count
    assert error is None and made > 7
    assert f"mlp: step {made} of {made}, loss" in out.stdout and "; ready; " in out.stdout
    assert "--for" in complete("%graph_run mlp --fo") and complete("%graph_run mlp --for ") == []
    assert "--for SECONDS" in shell.magics_manager.magics["line"]["graph_run"].__doc__


def test_a_nan_is_told_with_its_line(shell, mlp):
    shell.user_ns["bad"] = {"x": np.full((8, 6), np.nan), "y": np.eye(3)[[0] * 8]}
    out, _ = run(shell, "%graph_run mlp 3 --feed bad --init 0 --watch everything --quiet")
    assert "paused (step 1 would not be finite)" in out.stdout
    told = r"first NaN: dispatch 0, .*, line 4 of <graph mlp, cell \d+>, from element 0 on; it read x nothing finite"
    assert re.search(told, out.stdout)


def test_times_per_dispatch(shell, mlp, tmp_path):
    run(shell, "%graph_run mlp 1 --feed random --init 0 --quiet")
    out, error = run(shell, f"%graph_trace mlp {tmp_path / 't.json'} --samples 2")
    assert error is None and told(out).split("\n")[1].startswith("2 samples on cpu") and mlp.session.step_count == 1
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert run(shell, "%graph_trace mlp --samples 2 --train")[1] is None and mlp.session.step_count == 3


def test_show_does_what_the_magic_does(shell, mlp):
    import gdlab

    with capture_output() as out:
        gdlab.show(mlp, show=["plan"], static=True, height=200)
        gdlab.show(mlp.plan)
        gdlab.show(mlp, diff=mlp.graph)
    assert view_of(out)["height"] == 200 and len(out.outputs) == 3
    for options, text in (({"overlay": "colour"}, "show: overlay: given 'colour', wanted one of nbytes"),
                          ({"zoom": 2}, "show: option: given zoom, wanted one of show, static")):  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(text)):
            gdlab.show(mlp, **options)


def test_completion_knows_values_of_options(mlp):
    variables = {"mlp": mlp, "plan": mlp.plan, "batch": {"x": 1}, "number": 3}
    assert complete("%graph mlp --engine l", variables) == ["lanes", "layered"]
    assert complete("%graph mlp --overlay va", variables) == ["value"]
    assert complete("%graph mlp --around h", variables) == ["h"]
    assert complete("%graph_run mlp --feed ", variables) == ["random", "random:0", "batch"]
    assert complete("%graph_opt mlp --no Mul+Sig", variables) == ["Mul+Sigmoid→Silu"]
    assert complete("%graph ", variables) == ["mlp", "plan"] and complete("%graph_run ", variables) == ["mlp"]
    for name, option in ((name, o) for name, all in option_values().items() for o, each in all.items() if each == ()):
        assert not {"mlp", "plan"} & set(complete(f"%{name} mlp {option} ", variables)), f"{name} {option}: a study"
    assert complete("%graph_run mlp --watch ev", variables) == ["everything"]
    assert complete("%graph_run mlp --on c --wire ", variables) == ["f32", "f16"]
    assert complete("%graph_run mlp --on c --bu", variables) == ["--bucket-bytes"]


def test_every_magic_has_help_for_every_option(shell):
    for name, magic in {**shell.magics_manager.magics["line"], **shell.magics_manager.magics["cell"]}.items():
        if name.startswith("graph"):
            actions = magic.parser._actions if hasattr(magic, "parser") else []
            assert all(action.help for action in actions) and (actions or name == "graph_doctor"), name
            assert f"%{name} " in magic.__doc__ or f"%{name}\n" in magic.__doc__, name


def test_an_alias_of_a_replaced_study_does_not_begin_anew(shell, mlp):
    run(shell, "old = mlp")
    assert run(shell, "%graph_run old 3 --feed random:0 --sgd 0.1 --init 0 --quiet")[1] is None
    run(shell, f"%%graph mlp --train --static\n{BODY}")
    _, error = run(shell, "old.run(2, feed='random:0', init=0)")
    assert "graph mlp: session: given closed: it was replaced by the newer mlp, wanted the newer mlp, or " in str(error)
    _, error = run(shell, "old.reopen(); old.run(2, feed='random:0', init=0); assert old.session.step_count == 2")
    assert error is None


def test_a_cell_takes_an_adapter_by_its_number(shell):
    body = "x = input('x', (2,))\nrelu(x).sum_all()"
    run(shell, f"%%graph a --quiet --device wgpu:0\n{body}")
    out, error = run(shell, "%graph_run a --feed random")
    assert error is None and shell.user_ns["a"].session.device_information().startswith("wgpu, ")
    out, error = run(shell, f"%%graph b --quiet --device tpu\n{body}")
    assert "given tpu, wanted auto, wgpu, cpu, wgpu:NUMBER or wgpu:NAME" in str(error) + str(out)
    assert "b" not in shell.user_ns


def test_costs_by_the_device(shell, tmp_path, monkeypatch):
    """`--cost device`: for the kept figures of the study's device, in a cell and in a variant; completed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine = Machine(1e-3, 1e12, 1e12, f"cpu, {device('cpu').info.name}")
    keep_machine(machine)
    wanted = f"roofline({machine.rounded})"
    _, error = run(shell, f"%%graph g --device cpu --cost device --quiet\n{BODY}")
    assert error is None and shell.user_ns["g"].report.cost_model == wanted
    _, error = run(shell, f"%%graph p --device cpu --quiet\n{BODY}")
    assert error is None and shell.user_ns["p"].report.cost_model == "roofline"
    _, error = run(shell, "%graph_opt p --cost device --as timed --quiet")
    assert error is None and shell.user_ns["timed"].report.cost_model == wanted
    assert complete("%graph_opt p --cost ") == ["roofline", "ast_size", "device"]
    assert complete("%%graph p --cost d") == ["device"]
