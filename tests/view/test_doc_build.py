"""Building documents: each place, text and row once, whatever was built before; and how long it takes."""

from __future__ import annotations

import json
import linecache
from typing import Any

import networks
import pytest
from clock import seconds_there
from documents import keeps_its_size

from gdlab import ops
from gdlab.graph import Graph
from gdlab.graph.source import Location
from gdlab.study.study import Study
from gdlab.view.document import dispatches, pack
from gdlab.view.document.columns import column, ragged
from gdlab.view.document.document import canonical, document_id
from gdlab.view.document.links import link, link_of_rows


# places --------------------------------------------------------------------------------------------------------------
def cell(file: str, text: str, graph: Graph) -> None:
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    with graph:
        exec(compile(text, file, "exec"), {"ops": ops, "__name__": "__main__"})


def test_the_sources_of_all_nodes_are_those_of_each() -> None:
    text = "def block(h):\n    return ops.tanh(h) * 2.0\nh = ops.input('x', (2, 3))\nfor _ in range(3): h = block(h)\n"
    one, other = Graph(), Graph()
    for graph in (one, other):
        cell("<graph block, cell 1>", text, graph)
    other.attach_source(0, (Location("file.py", 7, 0, 7, 4, "<module>"),))
    assert one.sources() == [one.source(i) for i in range(len(one))]
    assert other.sources()[0][0].line == 7 and other.sources()[1:] == one.sources()[1:]
    tanh = [one.sources()[i] for i, node in enumerate(one) if node.op == "tanh"]
    assert len(tanh) == 3 and tanh[0][0] is tanh[2][0]  # one place, found once
    assert [at.function for at in tanh[0]] == ["block", "<module>"]


def test_two_files_with_one_text_are_two_places() -> None:
    """Python holds the codes of both for equal: their bytes are."""
    graph = Graph()
    for file in ("<graph a, cell 1>", "<graph b, cell 2>"):
        cell(file, "ops.constant(1.0)", graph)
    assert [at[0].file for at in graph.sources()] == ["<graph a, cell 1>", "<graph b, cell 2>"]


# kernels -------------------------------------------------------------------------------------------------------------
def scaled(before: int, factor: float) -> Graph:
    """A chain, behind some inputs that only an output of their own reads."""
    with Graph() as g:
        for i in range(before):
            g.output(ops.input(f"unused{i}", (5,)) + 1.0)
        g.output(ops.relu(ops.input("x", (5,)) * factor).sum_all())
    return g


def test_a_document_does_not_depend_on_those_before_it() -> None:
    """Texts of kernels are kept; the nodes on their lines are those of each plan."""

    first, *others = (2, 3.0), (0, 3.0), (1, 3.0), (2, 0.0), (2, -0.0), (2, 3.0)
    found = []
    for before, factor in (first, *others, *others[2:4]):
        if len(found) in (0, 6):  # the last two are built without those before them
            dispatches._texts.clear()
        if len(found) == 5:
            texts = len(dispatches._texts)
        study = Study(scaled(before, factor), device="cpu")
        found.append(study.doc.portable(timeless=True).json())
        if len(found) == 6:
            assert 0 < len(dispatches._texts) == texts, "none was written anew"
    assert found[5] == found[0] and found[6:] == found[3:5]
    assert len(set(found)) == 5


def test_every_line_of_a_shared_kernel_knows_all_its_nodes() -> None:
    """The links to WGSL lines against every dispatch's own line map."""
    study = Study(networks.transformer(2), train=True, device="cpu")
    plan, data = study.plan, study.doc.data
    kernel_of, base = data["plan"]["dispatches"]["kernel"], data["wgsl_base"]
    wanted = {
        (node, base[kernel_of[d.index]] + line - 1) for d in plan.dispatches for line, nodes in plan.wgsl(d.index)[1]
        for node in nodes
    }  # fmt: skip
    (found,) = (each["out"] for each in data["links"] if each["a"] == "node:3" and each["b"] == "wgsl")
    rows = column(found, len(plan.graph), [])
    assert {(i, line) for i, row in enumerate(rows) for line in row} == wanted


# text ----------------------------------------------------------------------------------------------------------------
def test_a_link_of_rows_is_the_link_of_its_pairs() -> None:
    row = (1, 4)
    out, back = [row, (), row, (0,)], [(3,), (0, 2), (), (), (0, 2)]
    made, text = link_of_rows("node:0", "wgsl", out, back)
    assert made == link("node:0", "wgsl", [(i, j) for i, row in enumerate(out) for j in row], 4, 5)
    assert text.encode() == canonical(made)


def test_the_id_is_that_of_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    document = Study(networks.mlp(), train=True, device="cpu").doc
    assert document.id == document_id(document.data)
    link = document.data["links"][-1]
    assert document.id == document_id(document.data, {id(link): canonical(link).decode()})
    assert document.id != document_id({**document.data, "links": document.data["links"][:-1]})


@pytest.mark.parametrize(
    "values",
    [
        [0.0, -0.0] * 9, [1, 1.0, True] * 9, ["a", 'b"', "é\n"] * 9, [None, {"a": 1}, {"a": True}] * 9, [5, -1, 7] * 9,
        [[1], [1.0], []] * 9,
    ],
)  # fmt: skip
def test_a_packed_column_is_written_as_it_is(values: list[Any]) -> None:
    """Equal values may be written differently: 1, 1.0 and true; 0.0 and -0.0."""
    keys, texts = pack._texts(values)
    assert [texts[key] for key in keys] == [json.dumps(value, sort_keys=True) for value in values]
    again = column(pack._column(values, len(values), None), len(values), None)
    assert json.dumps(again) == json.dumps(values)


def test_ragged_columns_join_their_lists() -> None:
    assert ragged([(1, 2), (), [3]]) == {"start": [0, 2, 2, 3], "ids": [1, 2, 3]}


# bars ----------------------------------------------------------------------------------------------------------------
@pytest.mark.clock
def test_a_document_of_6236_nodes_is_built_in_time() -> None:
    """The bar is 0.4 s; twice that is allowed here."""
    small, large = (Study(networks.experts(layers), train=True, device="cpu") for layers in (3, 12))
    for study in (small, large):
        _ = study.plan, study.written_derivative
    assert len(large.derivative) == 6236
    taken = seconds_there(lambda: large.doc, 3)
    assert taken <= 2 * 0.4
    assert taken <= 6 * seconds_there(lambda: small.doc, 3)
    found: list[bytes] = []
    document = large.doc
    assert seconds_there(lambda: found.append(document.json()), 3, enough=2 * 0.4) <= 2 * 0.4
    keeps_its_size(document)
