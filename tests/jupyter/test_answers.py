"""The debugging magics draw: an output with HTML, its text as before, and in a terminal the text alone."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import nbformat
import pytest
from nbconvert import HTMLExporter
from shells import run

from gdlab.jupyter.common import here, outcome
from gdlab.study.study import Study
from gdlab.view.text.doctor import doctor_text


def terminal(shell: Any, line: str) -> str:
    """Return the text that a terminal shows of a line."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        shell.run_cell(line)
    return out.getvalue()


@pytest.fixture
def ready(shell: Any, mlp: Study) -> Any:
    terminal(shell, "%graph_run mlp 2 --feed random:0 --sgd 0.1 --init 0 --quiet")
    return shell


def test_a_terminal_shows_the_texts_alone(ready: Any, mlp: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte what was printed before answers were drawn."""
    monkeypatch.setattr("gdlab.view.text.doctor.mean_by_least", lambda: 1.2)  # whatever else runs
    assert terminal(ready, "%graph_check mlp --device cpu") == f"{mlp.check(devices=('cpu',))}\n"
    assert terminal(ready, "%graph_check mlp --gradient h") == f"{mlp.check_gradient('h')}\n"
    for line in ("%graph_watch mlp h", "%graph_break mlp step 9", "%graph_watch mlp --list"):
        assert terminal(ready, line) == f"{mlp.watching()}\n"
    text = terminal(ready, "%graph_trace mlp")
    assert text == f"{mlp.session.last_profile}\n"
    assert terminal(ready, "%graph_step mlp 2 --dispatch") == f"{outcome(mlp)}\n{here(mlp)}\n"
    text = terminal(ready, "%graph_step mlp --back 1")
    back, rest = text.split("\n", 1)
    assert back.startswith("back: after dispatch 0 (") and rest == f"{outcome(mlp)}\n{here(mlp)}\n"
    assert terminal(ready, "%graph_doctor") == f"{doctor_text()}\n"


@pytest.mark.parametrize(
    "line", ["%graph_check mlp --device cpu", "%graph_check mlp --gradient h", "%graph_watch mlp h",
             "%graph_break mlp step 9", "%graph_trace mlp", "%graph_step mlp --dispatch", "%graph_step mlp --to z",
             "%graph_doctor"],
)  # fmt: skip
def test_an_answer_is_one_output_with_html_and_text(ready: Any, line: str) -> None:
    out, error = run(ready, line)
    assert error is None and out.stdout == ""
    shown = out.outputs[-1].data
    assert set(shown) == {"text/html", "text/plain"} and 'class="gd-answer"' in shown["text/html"]
    assert shown["text/html"].count("<style>") == 1 and "<script" not in shown["text/html"]


def messages(shell: Any, line: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Each message of an output: its data, its id, and whether it takes the place of an earlier one."""
    sent: list[dict[str, Any]] = []

    def publish(data: Any, metadata: Any = None, *, transient: Any = None, update: bool = False, **_: Any) -> None:
        sent.append({"data": data, "id": (transient or {}).get("display_id"), "update": update})

    monkeypatch.setattr(shell.display_pub, "publish", publish)
    with contextlib.redirect_stdout(io.StringIO()):
        shell.run_cell(line)
    return sent


def test_a_check_tells_how_it_is_getting_on(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = messages(ready, "%graph_check mlp --device cpu", monkeypatch)
    assert len(sent) == 5 and len({message["id"] for message in sent}) == 1
    assert [message["update"] for message in sent] == [False, True, True, True, True]
    *progress, result = sent
    assert all("text/plain" not in message["data"] for message in progress), "nothing of it stays in a terminal"
    wanted = ("computing the reference", "comparing optimized", "comparing cpu", "comparing gradients with differences")
    for message, words in zip(progress, wanted, strict=True):
        assert words in message["data"]["text/html"]
    assert "nothing broke" in result["data"]["text/html"] and "nothing broke" in result["data"]["text/plain"]


def test_a_check_that_is_interrupted_says_where(ready: Any, mlp: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gdlab.study.parity.choose_device", interrupted)
    sent = messages(ready, "%graph_check mlp --device cpu", monkeypatch)
    assert "mlp: stopped while comparing cpu" in sent[-1]["data"]["text/html"] and sent[-1]["update"]
    assert "text/plain" not in sent[-1]["data"]


def test_a_saved_notebook_shows_answers_without_a_script(ready: Any) -> None:
    out, _ = run(ready, "%graph_check mlp --device cpu")
    cell = nbformat.v4.new_code_cell("%graph_check mlp")
    cell.outputs = [nbformat.v4.new_output("display_data", data=out.outputs[-1].data)]
    page, _ = HTMLExporter(embed_images=False).from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    assert 'class="gd-answer"' in page and "nothing broke" in page and page.count('class="gd-answer-ok"') >= 2
