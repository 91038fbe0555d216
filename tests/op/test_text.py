"""The text form: goldens, and printing and parsing as inverses."""

import pytest
from structure import same_structure

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import LoadError
from gdlab.graph import Graph
from gdlab.op.text import parse


def small() -> Graph:
    with Graph() as g:
        x = ops.input("x", (2, 3))
        w = ops.parameter('w "q" %1', (3, 2))
        h = ops.relu(x @ w).named("h")
        c = ops.constant([1.0, -0.0, float("nan"), 1e-5], (2, 2))
        g.output(ops.mean_all(ops.scale(h * c, 1e-5)), "loss")
    return g


def test_golden():
    assert str(small()) == (
        '%0 = input("x") : f32[2, 3]\n'
        '%1 = parameter("w \\"q\\" %1") : f32[3, 2]\n'
        "%2 = matmul(%0, %1) : f32[2, 2]\n"
        '%3 "h" = relu(%2) : f32[2, 2]\n'
        "%4 = constant(data=[1.0, -0.0, nan, 1e-05]) : f32[2, 2]\n"
        "%5 = mul(%3, %4) : f32[2, 2]\n"
        "%6 = scale(%5, factor=1e-05) : f32[2, 2]\n"
        "%7 = mean_all(%6) : f32[1]\n"
        'outputs: %7 "loss"\n'
    )


def test_round_trip_of_a_differentiated_graph():
    full, _ = differentiate(small())
    again = parse(full.text())
    assert same_structure(again, full) and again.text() == full.text() and again.fingerprint() == full.fingerprint()
    assert again.num_param_grad_outputs == 1


def test_long_constants_are_cut_for_people_only():
    with Graph() as g:
        g.output(ops.constant(range(100)))
    assert "… (100 values)" in str(g) and "…" not in g.text()
    assert same_structure(parse(g.text()), g)


@pytest.mark.parametrize(
    "line",
    ["%1 = relu(%0) : f32[2]", "%0 = nothing() : f32[2]", "hello", "%0 = input(x) : f32[2]", "outputs: %3",
     '%0 = input("x") : f32[0]', "%0 = __import__('os') : f32[2]"],
)  # fmt: skip
def test_what_is_no_text_names_its_line(line):
    with pytest.raises(LoadError, match="line 1"):
        parse(line)


def test_wrong_types_are_noticed():
    text = small().text().replace("matmul(%0, %1) : f32[2, 2]", "matmul(%0, %1) : f32[2, 3]")
    with pytest.raises(LoadError, match="line 3"):
        parse(text)


def test_names_with_separators_of_lines_are_read_back():
    with Graph() as g:
        g.output(ops.relu(ops.input("a\u2028b\x85\n\"", (2,))).named("\u2029\r"), "o\u2028")
    assert same_structure(parse(g.text()), g) and same_structure(parse(g.text().replace("\n", "\r\n")), g)


@pytest.mark.parametrize("text", ['%0 = constant(data="00") : f32[2]', "%0 = constant(data=3) : f32[1]"])
def test_constants_of_another_size_are_refused(text):
    with pytest.raises(LoadError, match="line 1"):
        parse(text)


def test_only_text_is_parsed():
    with pytest.raises(LoadError, match="text: given NoneType, wanted the str"):
        parse(None)
