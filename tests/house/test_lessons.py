"""The lessons: they run from top to bottom, ask before they show, and say what is so."""

from __future__ import annotations

import re
from typing import Any

import nbformat
import numpy as np
import pytest
from lessons import LESSONS, SHOWN, read, run_lesson

import gdlab as gd
from gdlab.rewrite import RULES

WORDS_A_MINUTE = 150
Ran = dict[str, tuple[str, dict[str, Any]]]  # first line of a cell -> what it printed, and the names at that time


@pytest.mark.parametrize("name", [*LESSONS, *SHOWN])
def test_a_notebook_is_saved_without_outputs(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    assert all(not c.outputs and c.execution_count is None for c in notebook.cells if c.cell_type == "code")
    assert len({c.id for c in notebook.cells}) == len(notebook.cells)


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_asks_before_it_shows(name: str) -> None:
    cells = read(name).cells
    asked = [i for i, c in enumerate(cells) if c.cell_type == "markdown" and "**Question.**" in c.source]
    assert len(asked) >= 5 and "Answer first" in cells[0].source
    for i in asked:
        code = next(k for k in range(i + 1, len(cells)) if cells[k].cell_type == "code")
        assert code == i + 1, "what answers a question stands below it"
        answer = next(c.source for c in cells[code:] if c.cell_type == "markdown")
        assert not answer.startswith("**Question"), "an answer before the next question"
    words = sum(len(re.findall(r"\w+", c.source)) for c in cells)
    assert 4 <= words / WORDS_A_MINUTE <= 12, "ten minutes, with the time to think"


def test_the_chain_rule(lesson_shell: Any) -> None:
    printed, names = run_lesson(lesson_shell, "chain_rule")
    text = "\n".join(printed)
    row = next(line for line in text.splitlines() if line.startswith("%1    parameter  w     f32[3]"))
    assert row.split("  ")[-1].strip() == "[1, 2, −3]"
    assert "exponentials forward: 1\nexponentials in all:  1" in text
    assert "arrive at h:    3 gradients\njoined by:      ['add', 'add']" in text
    assert "bias_add             reads again: nothing" in text and "relu                 reads again: %6 relu h" in text
    w = names["stopped"].session.read_param("w")
    np.testing.assert_array_equal(names["values"].gradient[0], w)
    assert "[8.0, 12.0, 12.0]" in text and "net: nothing broke: 1 output and 3 gradients agree" in text


def test_fusion(lesson_shell: Any) -> None:
    printed, names = run_lesson(lesson_shell, "fusion")
    text = "\n".join(printed)
    block, without = names["block"], names["without"]
    assert "11 ops as written" in text and "4 ops as optimized" in text
    assert "swiglu" in [n.op for n in block.optimized]
    assert names["report"].num_enodes > len(block.graph)
    assert [n.op for n in without.optimized].count("mul") == 2 and "swiglu" not in [n.op for n in without.optimized]
    assert len(without.plan.dispatches) == len(block.plan.dispatches), "the lesson says: as many dispatches as before"
    assert "is read by %4 too" in text
    assert [n.op for n in names["odd"].optimized if n.inputs] == ["tanh"]
    assert re.search(r"rule root_of_a_square: sides: given [\d.]+ and -[\d.]+ at .*, where x = −", text)
    assert "False True" in text and "rule root_is_abs: gradients: given nan and 0.0" in text
    assert not {"tanh_is_odd", "root_is_abs", "root_of_a_square"} & {r.name for r in RULES}
    assert "block: nothing broke: 1 output agrees" in text


def test_bytes(lesson_shell: Any) -> None:
    printed, names = run_lesson(lesson_shell, "bytes")
    text = "\n".join(printed)
    net, fragile = names["net"], names["fragile"]
    forward, backward = re.search(r"forward .* sizes (.*)\nbackward .* sizes (.*)\n", text).groups()  # type: ignore[union-attr]
    assert set(eval(forward)) == {1} and max(eval(backward)) == 3
    assert "'from': 0, 'to': 1," in text and "'hazard': 'raw'" in text
    saved = 1 - net.plan.memory.physical_bytes / net.plan.memory.logical_bytes
    assert f"saved: {saved:.0%}" in text and 0.05 < saved < 0.33
    assert "read_node: node " in text and "took over" in text and "pinning h0 costs 16,384 bytes" in text
    assert "paused after 21 steps: non-finite loss nan at step 21" in text
    log = next(n.id for n in fragile.graph if n.op == "log")
    line = fragile.graph.source(log)[0].line
    assert f", line {line} of <graph fragile" in text and "it read safe \N{MINUS SIGN}0.4" in text
    assert "step 22: " in text and "first: dispatch" in text
    assert "step 21 would not be finite\nweights finite: True" in text
    assert "ready after 100 steps; loss -" in text


def test_the_tape(lesson_shell: Any) -> None:
    printed, _ = run_lesson(lesson_shell, "tape")
    text = "\n".join(printed)
    assert "y = x * 2" in text and "# f32[3] [2, 4, −6]" in text and "∂w  # f32[3] [2, 4, −6]" in text
    assert "1.0 ['input', 'scale', 'scale', 'scale']" in text or "1.0 ['input', 'div', 'div', 'div']" in text
    same = re.search(r"^(\d+) (\d+) \(8, 12\)$", text, re.MULTILINE)
    assert "mul  ∂ f32[3] [1, 1, 1]\n    mul  f32[3] [2, 4, −6]\n∂w  f32[3] [2, 4, −6]" in text
    assert same and same[1] == same[2]
    assert "True\neager.get_value: stale handle" in text
    tape, study = re.search(r"^tape  (\S+)\nstudy (\S+)$", text, re.MULTILINE).groups()  # type: ignore[union-attr]
    assert tape == study and re.search(r"^\d+ \d+ True$", text, re.MULTILINE) and "[ 3. 12.]" in text


def test_models_that_people_have(lesson_shell: Any) -> None:
    printed, names = run_lesson(lesson_shell, "models")
    text = "\n".join(printed)
    labels = {n: names[n].doc.data["stages"][0]["groups"]["label"]["words"] for n in OPENED}
    assert {"stem", "blocks.0", "blocks.1"} <= set(labels["classifier"])
    assert {"layers.0", "self_attn", "mlp"} <= set(labels["letters"]) == set(labels["letters_q8"])
    assert labels["net"] == ["layers", "layers.0", "layers.1"]
    sentence = "a cell becomes a graph, a graph becomes a plan, a plan"
    assert text.count(f"{sentence}\n") == 2 and f"{sentence[:30]}\n" in text
    assert "image: f32[8, 3, 16, 16]" in text and "q8_0[64, 32] 8.5 bits an element" in text
    weights = dict(gd.load_onnx("classifier.onnx").weights)
    for n, node in names["classifier"].weights.items():
        np.testing.assert_array_equal(node, weights[n])
    try:
        import torch
    except ImportError:
        assert "PyTorch is not installed here" in text
    else:
        assert torch.__version__ and "mlp_graph" in names


OPENED = ("classifier", "letters", "letters_q8", "net")
