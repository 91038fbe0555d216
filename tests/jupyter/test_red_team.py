"""Attempts of a suspicious reader: option values, refusals that change nothing, `gdlab.show`, JSON of text twins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networks
import numpy as np
import pytest
from shells import BODY, run, told

import gdlab as gd
from gdlab.__main__ import main
from gdlab.base.errors import ArgumentError
from gdlab.jupyter.commands import COMMANDS
from gdlab.study.study import Study
from gdlab.view.ask.diff import diff_doc
from gdlab.view.ask.slices import view_slice


@pytest.fixture
def shell(shell: Any) -> Any:
    run(shell, f"%%graph mlp --train --quiet --device cpu\n{BODY}")
    return shell


def said(shell: Any, line: str) -> str:
    out, error = run(shell, line)
    assert error is not None
    return (out.stdout + out.stderr).strip()


# option values --------------------------------------------------------------------------------------------------------
def test_variables_and_quotes_in_values_of_every_kind(shell: Any, tmp_path: Path) -> None:
    shell.user_ns.update(n=4, lr=0.25, kind="cpu", rule="Silu+Mul→SwiGLU", folder=str(tmp_path / "my files"))
    (tmp_path / "my files").mkdir()
    _, error = run(shell, f'%%graph g --train --quiet --device {{kind}} --height {{n}}00 --no "{{rule}}"\n{BODY}')
    assert error is None and shell.user_ns["g"].options["disable"] == ("Silu+Mul→SwiGLU",)
    line = '%graph_run g {n} --feed random:{n} --sgd=\'{lr}\' --init "0" --quiet --until="loss < -{lr}"'
    line += " --save {folder}/g{n}.svg"
    out, error = run(shell, line)
    assert error is None and "step 4 of 4" in out.stdout and "SGD, lr 0.25" in out.stdout
    assert (tmp_path / "my files" / "g4.svg").exists()
    assert "argument --sgd: given {none}, wanted a rate > 0" in said(shell, "%graph_run g 1 --sgd {none}")


def test_a_backslash_is_a_letter(shell: Any) -> None:
    text = said(shell, r"%graph C:\models\old.json")
    assert text.startswith(r"UsageError: graph C:\models\old.json: given no such file, ")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x = input('x', (2,))\n[relu(x), 3]", "graph g: output: given list of int, wanted a node or nodes"),
        (
            "x = input('x', (2,))\n{'a': relu(x), 'b': 'c'}",
            "graph g: output: given dict of str, wanted a node or nodes",
        ),
        ("[[input('x', (2,))]]", "graph g: output: given list of list, wanted a node or nodes"),
    ],
)
def test_what_is_no_node_is_named(shell: Any, body: str, message: str) -> None:
    assert message in said(shell, f"%%graph g --device cpu\n{body}") and "g" not in shell.user_ns


def test_a_json_file_of_another_format_and_a_variable_that_is_none(shell: Any, tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text('{"format": "gdlab.graph.v2"}')
    assert said(shell, f"%graph '{path}'") == (
        'UsageError: document g.json: format: given "gdlab.graph.v2", wanted "gdlab.graph.v1"'
    )
    shell.user_ns["nothing"] = None
    assert "graph nothing: given NoneType, wanted a graph, report," in said(shell, "%graph nothing")
    assert "graph nothing: given NoneType, wanted a study: the NAME" in said(shell, "%graph_run nothing 3")


# a refusal changes nothing --------------------------------------------------------------------------------------------
def test_a_refused_run_leaves_the_session_as_it_was(shell: Any) -> None:
    study = shell.user_ns["mlp"]
    for line in (
        "3 --adam 1e-3",
        "3 --adam 1e-3 --feed random:0",
        "3 --adam 1e-3 --feed random --init 0 --until 'q <'",
    ):
        said(shell, f"%graph_run mlp {line}")
        assert str(study.session.optimizer) == "no update rule" and study.runner.feed is None
        assert study.session.unset_parameters and study.session.step_count == 0


def test_no_steps_need_no_inputs(shell: Any) -> None:
    out, error = run(shell, f"%%graph g --train --static --device cpu --run 0\n{BODY}")
    assert error is None and shell.user_ns["g"].has_session and "step 0 of 0" in out.stdout
    assert run(shell, "%graph_run g 0 --quiet")[1] is None
    shell.user_ns["g"].run(0)
    assert shell.user_ns["g"].session.step_count == 0


def test_a_derivative_of_other_nodes_is_a_study_like_others(shell: Any) -> None:
    for wrt in ("x,h", "x,w1,y,b1"):  # two, and as many as there are parameters
        assert run(shell, f"%graph_grad mlp --wrt {wrt} --as d --quiet")[1] is None
        study = shell.user_ns["d"]
        assert study.doc.check() == () and study.doc.data["notes"] == [] and str(study).startswith("graph d: ")
        out, error = run(shell, "%graph_run d 1 --feed random:0 --init 0 --quiet")
        assert error is None and study.session.num_outputs() == 1 + len(wrt.split(","))
        assert study.check(devices=("cpu",)).ok
    run(shell, "%graph_grad mlp --as whole --quiet")
    assert "nothing broke: 1 output" in told(run(shell, "%graph_check whole --device cpu")[0])


# gdlab.show -----------------------------------------------------------------------------------------------------------
def test_show_does_what_the_magic_does(shell: Any, tmp_path: Path) -> None:
    out, error = run(
        shell,
        "import gdlab\ngdlab.show(mlp.graph, train=True, device='cpu', run=3, feed='random:1', init=0, sgd=0.1, "
        f"height=300, values=True, no='Silu+Mul→SwiGLU', save={str(tmp_path / 's.svg')!r})",
    )
    assert error is None and (tmp_path / "s.svg").exists()
    assert [each.update for each in out.outputs] == [False, True], "one output, shown anew when the run is over"
    study = shell.user_ns["mlp"]
    run(shell, "gdlab.show(mlp, run=2, feed='random:1', init=0, adam=0.1, quiet=True)")
    assert study.session.step_count == 2 and str(study.session.optimizer).startswith("Adam")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bogus": 1}, "show: option: given bogus, wanted one of show, static, height, quiet, save, diff"),
        ({"height": 119}, "show: height: given 119, wanted an int in 120 … 4000"),
        ({"depth": -1}, "show: depth: given -1, wanted an int in 0 … 100"),
        ({"show": "nope"}, "show: show: given 'nope', wanted one of graph, opt, diff"),
        ({"engine": "nope"}, "show: engine: given 'nope', wanted one of auto, lanes, layered, dot"),
        ({"train": True}, "show: train: given True, wanted a Graph with it: what is shown has its own"),
        ({"sgd": 1.0, "adam": 1.0}, "show: adam: given 1.0, wanted one update rule: sgd is given as well"),
        ({"run": 3}, "graph graph: run: given no value for x, y, wanted --feed or set_input"),
    ],
)
def test_show_refuses_as_the_magic_does(shell: Any, options: dict[str, Any], message: str) -> None:
    study = Study(networks.mlp(), train=True, device="cpu")
    with pytest.raises(gd.GdlabError) as caught:
        gd.show(study, **options)
    assert str(caught.value).startswith(message)


def test_what_has_no_study_runs_nothing() -> None:
    document = Study(networks.mlp(), device="cpu").doc
    with pytest.raises(ArgumentError, match="show: run: given 3, wanted a Study or a Graph with it"):
        gd.show(document, run=3)


# --json of every text twin --------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("saved")
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    return study.save(folder / "a.gdlab.json"), study.variant(only=["CSE"]).save(folder / "b.gdlab.json")


def test_json_of_a_step_and_of_a_difference(saved: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    a, b = map(str, saved)
    document = gd.load_doc(a)
    for k in range(len(document.steps(0)) + 1):
        assert main(["explain", a, "--step", str(k), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["step"] == k == len(found["steps"]) and found["outputs"]
    keys = [node["key"] for node in document.nodes("optimized")]
    assert [node["key"] for node in found["nodes"]] == keys
    assert main(["explain", a, b, "--json"]) == 0
    told = view_slice(diff_doc(document, gd.load_doc(b)), "diff")
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(told))
    assert main(["explain", a, "--step", "1", "--pass", "1", "--json"]) == 2


def test_a_loader_of_named_streams_feeds_a_run(shell: Any) -> None:
    rng = np.random.default_rng(0)
    rows, hot = rng.normal(size=(40, 6)).astype(np.float32), np.eye(3, dtype=np.float32)[rng.integers(0, 3, 40)]
    streams = [gd.InputStream("x", rows, 6), gd.InputStream("y", hot, 3)]
    shell.user_ns["loader"] = gd.DataLoader.with_streams(streams, 8)
    out, error = run(shell, "%graph_run mlp 12 --feed loader --sgd 0.1 --init 0 --quiet")  # more than one epoch
    assert error is None and "step 12 of 12" in out.stdout


def test_a_page_may_ask_whether_something_broke() -> None:
    found = COMMANDS["check"](Study(networks.mlp(), train=True, device="cpu", name="mlp"), {})
    assert found is not None and found["ok"] and found["about"] == "" and "nothing broke" in found["text"]
