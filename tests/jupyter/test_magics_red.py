"""Mistakes that a person types in a notebook: each is answered by one line, with the place and what to do."""

from __future__ import annotations

import _thread
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.utils.capture import capture_output

import gdlab as gd
from gdlab.jupyter.cell import is_users
from gdlab.study.study import Study

SMALL = "x = input('x', (2, 3))\nw = parameter('w', (3, 4))\nrelu(x @ w).mean_all()"


def said(shell: Any, text: str) -> list[str]:
    """The lines that a cell prints and shows as its error."""
    with capture_output() as out:
        shell.run_cell(text, store_history=True)
    return (out.stdout + out.stderr).splitlines()


MAGICS = [
    "%graph NAME", "%graph_opt NAME", "%graph_grad NAME", "%graph_plan NAME", "%graph_run NAME", "%graph_step NAME",
    "%graph_pause NAME", "%graph_resume NAME", "%graph_reset NAME", "%graph_trace NAME", "%graph_check NAME",
    "%graph_save NAME a.svg", "%graph_watch NAME h", "%graph_break NAME nonfinite", "%graph_look NAME h",
    "%graph_tune NAME",
]  # fmt: skip


def test_these_are_all_magics(shell: Any) -> None:
    asked = {form.partition(" ")[0][1:] for form in FORMS}
    line = shell.magics_manager.magics["line"]
    no_name = {"graph_doctor", "graph_cluster"}
    assert {name for name in line if name.startswith("graph")} == asked | no_name, "these take no NAME"


@pytest.mark.parametrize("magic", MAGICS)
def test_every_magic_in_a_fresh_kernel_says_that_there_are_no_graphs(shell: Any, magic: str) -> None:
    lines = said(shell, magic.replace("NAME", "mlp"))
    wanted = "UsageError: graph mlp: given no such variable, wanted a %%graph cell first: there are no graphs yet"
    assert lines == [wanted]


THINGS = {"number": 3, "none": None, "text": "mlp", "list": [1], "function": print, "type": int}


@pytest.mark.parametrize("kind", THINGS)
@pytest.mark.parametrize("magic", MAGICS[1:])
def test_every_magic_with_another_kind_of_object_is_one_line(shell: Any, magic: str, kind: str) -> None:
    shell.user_ns["it"] = THINGS[kind]
    (line,) = said(shell, magic.replace("NAME", "it"))
    assert line.startswith(f"UsageError: graph it: given {type(THINGS[kind]).__name__}, wanted a study")


OWN: dict[str, Callable[[Study], Any]] = {
    "graph": lambda s: s.graph, "empty graph": lambda s: gd.Graph(), "plan": lambda s: s.plan,
    "report": lambda s: s.report, "autodiff report": lambda s: s.autodiff, "session": lambda s: s.session,
    "document": lambda s: s.doc, "value": lambda s: s.graph.value(0), "runner": lambda s: s.runner,
    "compiled graph": lambda s: gd.build_compiled_graph(s.graph, device="cpu"),
    "eager session": lambda s: gd.EagerSession(device="cpu"),
    "tensor": lambda s: gd.EagerSession(device="cpu").input(np.ones(3, np.float32)),
    "list": lambda s: gd.GraphExecutor("cpu").begin_recorded(), "executor": lambda s: gd.GraphExecutor("cpu"),
    "study": lambda s: s, "closed study": lambda s: closed_copy(s), "class": lambda s: Study,
}  # fmt: skip
TAKEN = {"study", "closed study", "runner", "session"}  # a magic may leave them changed: each form has its own
FORMS = [
    *MAGICS, "%graph_compiled NAME", "%graph_record NAME", "%graph_sweep NAME 2 --adam 1e-3",
    "%graph NAME --static", "%graph NAME --diff NAME", "%graph NAME --values", "%graph NAME --train --run 1",
    "%graph_run NAME --feed NAME --init 0", "%graph_check NAME --feed NAME", "%graph_grad NAME --wrt w",
    "%graph_opt NAME --as NAME", "%graph_step NAME --dispatch", "%graph_watch NAME --list",
]  # fmt: skip


def closed_copy(study: Study) -> Study:
    other = Study(study.graph, train=True, device="cpu", name="other")
    other.session.close()
    other.close("a newer one")
    return other


@pytest.mark.parametrize("kind", OWN)
def test_no_magic_ends_in_a_traceback(shell: Any, kind: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every magic with every kind of object of gdlab: an answer, or an error without frames of gdlab's."""
    monkeypatch.chdir(tmp_path)
    said(shell, "%reload_ext gdlab")
    for number, form in enumerate(FORMS):
        if number == 0 or kind in TAKEN:
            said(shell, f"%%graph ok --train --quiet --device cpu\n{SMALL}")
        shell.user_ns["it"] = OWN[kind](shell.user_ns["ok"])
        lines = said(shell, form.replace("NAME", "it"))
        text = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(lines))
        assert "Traceback" not in text and "gdlab/" not in text, (form, text)
        if any(line.partition(":")[0].endswith("Error") for line in lines):
            assert len(lines) <= 40, form


def test_a_graph_in_the_place_of_a_study_says_how_to_see_it(shell: Any) -> None:
    with gd.Graph() as shell.user_ns["g"]:
        shell.user_ns["g"].output(gd.input("x", (2,)))
    (line,) = said(shell, "%graph_run g")
    assert line.endswith("given Graph, wanted a study: the NAME of a %%graph cell; `%graph g` shows this one")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing.onnx", "given no such file"), ("missing.gdlab.json", "given no such file"),
        ("FOLDER", "given a folder"), ("FOLDER/notes.txt", "given a file of another kind"),
        ("FOLDER/none.txt", "given no such file"), ("..", "given a folder"), (".", "given a folder"),
        ("~nobody_of_this_name/a.onnx", "given no such file"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_shown(shell: Any, tmp_path: Any, name: str, says: str) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    (line,) = said(shell, f"%graph {name.replace('FOLDER', str(tmp_path))}")
    assert line.startswith("UsageError: graph ") and says in line and "PosixPath" not in line and ".onnx" in line


def test_a_folder_that_does_not_exist_is_named(shell: Any, tmp_path: Any) -> None:
    said(shell, f"%%graph ok --quiet --device cpu\n{SMALL}")
    (line,) = said(shell, f"%graph_save ok {tmp_path}/no/x.svg")
    assert f"{tmp_path}/no does not" in line
    (*_, line) = said(shell, f"%graph_run ok --init 0 --feed random:0 --quiet\n%graph_trace ok {tmp_path}/no/x.json")
    assert line.startswith("UsageError: save: file: given x.json in ") and f"{tmp_path}/no does not" in line


def test_a_number_of_samples_is_no_file(shell: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said(shell, f"%%graph ok --quiet --device cpu\n{SMALL}")
    (*_, line) = said(shell, "%graph_run ok --init 0 --feed random:0 --quiet\n%graph_trace ok 100")
    assert line == "UsageError: graph_trace: given 100, wanted FILE.json, or --samples N for N steps"
    assert not list(tmp_path.iterdir())


def test_a_home_folder_is_expanded(shell: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    said(shell, f"%%graph ok --quiet --device cpu\n{SMALL}")
    said(shell, "%graph_save ok ~/x.txt")
    assert (tmp_path / "x.txt").read_text(encoding="utf-8").startswith("graph ok")
    said(shell, "%graph_run ok --init 0 --feed random:0 --save ~/y.svg --quiet\n%graph_trace ok ~/t.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.json", "x.txt", "y.svg"]


def test_a_missing_initialization_names_the_option(shell: Any) -> None:
    said(shell, f"%%graph ok --quiet --device cpu --train\n{SMALL}")
    (line,) = said(shell, "%graph_run ok 3 --feed random:0")
    assert "no value for w, wanted --init SEED" in line


def test_a_name_in_another_unicode_form_is_found(shell: Any) -> None:
    said(shell, f"%%graph ﬁt --quiet --device cpu\n{SMALL}")  # the ligature, as some editors write it
    assert "fit" in shell.user_ns
    assert said(shell, "%graph_pause ﬁt") == [] == said(shell, "%graph_pause fit")
    said(shell, "%graph_opt ﬁt --as ﬁt2 --quiet")
    assert shell.user_ns["fit2"].name == "fit2" and "ﬁt2" not in shell.user_ns
    shell.user_ns["feed"] = {"x": [[1.0, 2.0, 3.0]] * 2}
    assert "step 1 of 1" in said(shell, "%graph_run fit --feed ｆeed --init 0 --quiet")[-1]


def test_an_interrupted_resume_says_how_far_it_came(shell: Any) -> None:
    said(shell, f"%%graph ok --quiet --device cpu\n{SMALL}")

    def feed(step: int) -> Any:
        if step == 6:
            _thread.interrupt_main()
            time.sleep(0.3)
        return {"x": np.ones((2, 3))}

    shell.user_ns["feed"] = feed
    said(shell, "%graph_run ok 100 --feed feed --init 0 --until 'step > 1 and step < 3' --quiet")
    assert shell.user_ns["ok"].session.step_count == 2
    lines = said(shell, "%graph_resume ok")
    done = shell.user_ns["ok"].session.step_count
    assert 6 <= done < 100 and lines[0].startswith(f"ok: step {done} of 100, loss ")
    assert "; paused (by interrupt); " in lines[0] and lines[1:] == ["KeyboardInterrupt"]


# errors of cells ------------------------------------------------------------------------------------------------------
def test_an_error_in_a_helper_shows_its_line_beside_the_cells(shell: Any) -> None:
    said(shell, "def boom(v):\n    d = {}\n    return d['k']")
    lines = said(shell, "%%graph mlp\na = input('x', (2, 2))\nboom(a)")
    assert lines[0] == "KeyError: 'k'" and lines[1].startswith("line 3: boom(a)") and set(lines[2].strip()) == {"^"}
    assert lines[3].startswith("in boom, ") and lines[4].startswith("line 3: ") and "return d['k']" in lines[4]
    assert "gdlab" not in "\n".join(lines) and len(lines) < 8
    trace = "\n".join(said(shell, "%tb"))
    assert "boom" in trace and "Traceback" in trace


def test_a_helper_of_a_helper_is_the_innermost_one(shell: Any) -> None:
    said(shell, "def inner(v):\n    return v @ v\ndef outer(v):\n    return inner(v)")
    lines = said(shell, "%%graph mlp\na = input('x', (2, 3))\nouter(a)")
    assert lines[0].startswith("matmul: ") and any(line.startswith("in inner, ") for line in lines)
    assert not is_users(gd.__file__) and is_users("/nets/net.py")


def test_an_empty_message_leaves_no_colon(shell: Any) -> None:
    lines = said(shell, "%%graph mlp\na = input('x', (2, 3))\nassert False")
    assert lines[:2] == ["AssertionError", "line 3: assert False"]


def test_a_syntax_error_is_no_usage_error(shell: Any) -> None:
    lines = said(shell, "%%graph mlp\nx = = 2")
    assert lines[0] == "SyntaxError: invalid syntax" and "UsageError" not in "\n".join(lines)


@pytest.mark.parametrize("hidden", ["sum", "max"])
def test_notes_on_hidden_ops_stand_beside_the_error(shell: Any, hidden: str) -> None:
    said(shell, f"{hidden} = lambda v: 0")
    lines = said(shell, f"%%graph mlp\na = input('x', (2, 3))\n{hidden}(a)")
    assert f"note: {hidden} is your notebook's function, not gdlab.{hidden}" in "\n".join(lines)


def test_a_name_that_hides_an_op_is_warned_of(shell: Any) -> None:
    lines = said(shell, f"%%graph relu --quiet --device cpu\n{SMALL}")
    assert lines == ["note: NAME relu hides gdlab.relu: in later cells relu is this study"]
    lines = said(shell, f"%%graph other --quiet --device cpu\n{SMALL}")
    assert lines[0] == "TypeError: 'Study' object is not callable"
    assert lines[-1] == "note: relu is your notebook's Study, not gdlab.relu"


# completion -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("%graph_opt mlp --no Mul+Sig", "Mul+Sigmoid→Silu"), ("%graph_opt mlp --no Silu+M", "Silu+Mul→SwiGLU"),
        ("%graph_opt mlp --only Transpose+Bat", "Transpose+BatchMatMul→BatchMatMulAT"),
    ],
)  # fmt: skip
def test_completion_replaces_the_whole_word(shell: Any, line: str, wanted: str) -> None:
    with provisionalcompleter():
        made = {line[: c.start] + c.text + line[c.end :] for c in shell.Completer.completions(line, len(line))}
    assert line.rsplit(" ", 1)[0] + " " + wanted in made


# text -----------------------------------------------------------------------------------------------------------------
def test_the_text_of_a_study_is_its_summary_and_its_graph(shell: Any) -> None:
    with capture_output() as out:
        shell.run_cell(f"%%graph ok --static --device cpu\n{SMALL}")
    assert out.outputs[0].data["text/plain"] == str(shell.user_ns["ok"]).rstrip()


@pytest.mark.parametrize("last", ["h * 2", "relu(h)", "softmax(h)"])
def test_a_loss_of_the_wrong_shape_has_a_caret(shell: Any, last: str) -> None:
    lines = said(shell, f"%%graph m --train\nh = input('é', (5, 3)) * 1.5\n{last}")
    assert lines[0] == "graph m: loss: given f32[5, 3], wanted shape [1]"
    assert lines[1] == f"line 3: {last}" and lines[2].strip() == "^" * len(last)


def test_a_cell_that_takes_a_value_of_another_study_changes_nothing(shell: Any) -> None:
    said(shell, f"%%graph ok --quiet --device cpu\n{SMALL}")
    before = shell.user_ns["ok"].graph.text()
    lines = said(shell, "%%graph other\ny = tanh(ok.graph.value(0))\ny")
    assert lines[0].startswith("tanh: operand: given a value of graph ok, which is complete") and "^^^^" in lines[2]
    assert shell.user_ns["ok"].graph.text() == before and "other" not in shell.user_ns
