"""Commands of the compiler's panes to the kernel: each does what Python does, and says what is wrong with it."""

from __future__ import annotations

import pytest
from panels import ask, of, until
from shells import run, told

from gdlab.jupyter import widget
from gdlab.view.answer.answer_html import answer_html
from gdlab.view.answer.making import gradient_answer, profile_answer
from gdlab.view.document.runs import times_of


def test_a_gradient_is_checked(panel) -> None:  # type: ignore[no-untyped-def]
    study = panel.study
    node = next(n for n in study.graph if n.op == "relu")
    reply = ask(panel, 1, "check", node=node.id, stage="written")["result"]
    slope = study.check_gradient(node.id)
    assert reply == slope.to_json() | {"html": answer_html(gradient_answer(slope, study))}, "the picture of the magic"
    fused = next(n for n in study.optimized if n.op == "fused_matmul_add")
    found = ask(panel, 2, "check", node=fused.id, stage="optimized")["result"]
    assert found.items() > study.check_gradient(fused.id, optimized=True).to_json().items()
    assert found["told"].count("\n") == 3 and found["html"].count("<tr>") == 1 + 3, "a header and a row per operand"
    assert "wanted a name, or an id" in ask(panel, 3, "check", node=[])["error"]["message"]


def test_dispatches_are_timed_and_the_page_gets_the_times(panel) -> None:  # type: ignore[no-untyped-def]
    study = panel.study
    refused = ask(panel, 1, "trace", steps=2)
    assert not refused["ok"] and "no value for x, y" in refused["error"]["message"]
    study.prepare(feed="random:0", sgd=0.1, init=0)
    study.run(1)
    reply = ask(panel, 2, "trace", steps=2)
    profile = study.session.last_profile
    text = str(profile)
    assert reply["result"] == {"text": text, "html": answer_html(profile_answer(profile, study, text))}
    assert study.session.step_count == 1
    until(lambda: any(run.get("dispatch_seconds") for doc in of(panel, "doc") for run in doc["doc"]["runs"]))
    assert times_of(study.doc)["samples"] == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"allow": "all"}, "allow: given 'all', wanted one of exact, rounding, reassoc, approx"),
        ({"fuse": 1}, "fuse, alias and serial as true or false"),
        ({"enable": "x"}, "enable: given 'x', wanted a list of rules"),
    ],
)
def test_a_variant_by_options(panel, wrong, message) -> None:  # type: ignore[no-untyped-def]
    study = panel.study
    reply = ask(panel, 1, "optimize", disable=[], enable=[], allow="exact", fuse=False, alias=True, serial=False)
    assert reply["result"]["name"] == "allow exact; no fusion"
    made = study.variants["allow exact; no fusion"]
    assert not made.compile.fuse_dispatches and made.compile.alias and made.options["allow"] == "exact"
    measured = ask(panel, 2, "measure", steps=2)
    assert measured["ok"] and measured["result"]["text"] == study.compare() and made.step_time.samples == 2
    assert not study.has_session, "sessions of their own"
    assert message in ask(panel, 3, "optimize", disable=[], **wrong)["error"]["message"]
    assert list(study.variants) == [made.name], "what was refused is not kept"


# the same in a cell ---------------------------------------------------------------------------------------------------
def test_options_of_compile_in_a_line(shell, mlp) -> None:  # type: ignore[no-untyped-def]
    out, error = run(shell, "%graph_opt mlp --no-fusion --no-alias --serial --measure 2 --as apart")
    apart = shell.user_ns["apart"]
    assert error is None and (apart.compile.fuse_dispatches, apart.compile.alias, apart.compile.serial) == (
        False, False, True
    )  # fmt: skip
    text = out.stdout + "".join(each.data["text/plain"] for each in out.outputs)
    assert text.count("µs/step") == 1 and str(apart.step_time) in text, "the table stands once"
    assert all(line.strip() in text for line in mlp.compare().splitlines())
    assert apart.step_time.samples == 2 and "wanted an int ≥ 1" in str(run(shell, "%graph_opt mlp --measure 0")[1])


def test_one_gradient_in_a_line(shell, mlp) -> None:  # type: ignore[no-untyped-def]
    node = next(n for n in mlp.graph if n.inputs and n.name)
    out, error = run(shell, f"%graph_check mlp --gradient {node.name}")
    assert error is None and told(out).rstrip() == str(mlp.check_gradient(node.name))
    assert "wanted a name, or an id 0 … " in str(run(shell, "%graph_check mlp --gradient nope")[1])
    assert "a leaf" in str(run(shell, "%graph_check mlp --gradient 0")[1])


def test_a_trace_in_a_cell_reaches_the_page(panel) -> None:  # type: ignore[no-untyped-def]
    study = panel.study
    study.prepare(feed="random:0", sgd=0.1, init=0)
    study.run(1)
    assert panel.document.data.get("rev") != study.rev
    widget._panels[study] = panel
    study.trace(2)
    widget.refresh(study)
    assert times_of(panel.document)["samples"] == 2 and of(panel, "doc")
