"""Types, graphs, names, sources and errors: what every room stands on."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from clock import seconds_there
from structure import same_structure

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import (
    ArgumentError,
    AutodiffError,
    CompileError,
    DTypeError,
    GdlabError,
    GraphError,
    LoadError,
    OptimizeError,
    OutputIndexError,
    SessionError,
    ShapeError,
    UnknownNameError,
    unknown_name,
)
from gdlab.base.types import TensorType, broadcast_shapes, u32
from gdlab.graph import Graph, reachable, users
from gdlab.op import REGISTRY
from gdlab.op.reference import evaluate


def test_type_text_is_read_back():
    for text in ("f32[4, 784]", "u32[1]", "f32[1, 2, 3, 4, 5, 6]"):
        assert str(TensorType.parse(text)) == text
    assert TensorType((3, 4)).num_elements == 12 and TensorType((3, 4)).size_bytes == 48


@pytest.mark.parametrize("shape", [(), (3, 0), (-1,), (1,) * 7, "x", (2.5,)])
def test_shapes_that_cannot_be(shape):
    with pytest.raises(ShapeError, match="given"):
        TensorType(shape)


def test_broadcasting_is_numpys():
    rng = np.random.default_rng(0)
    for _ in range(200):
        shapes = [tuple(rng.choice([1, 2, 3], rng.integers(1, 4))) for _ in range(2)]
        try:
            wanted = np.broadcast_shapes(*shapes)
        except ValueError:
            wanted = None
        assert broadcast_shapes(shapes) == wanted


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [(ShapeError, ValueError), (GraphError, ValueError), (AutodiffError, ValueError), (OptimizeError, ValueError),
     (CompileError, ValueError), (LoadError, ValueError), (ArgumentError, ValueError), (DTypeError, TypeError),
     (UnknownNameError, KeyError), (OutputIndexError, IndexError), (SessionError, RuntimeError)],
)  # fmt: skip
def test_every_error_is_a_builtin_with_one_text(kind, builtin):
    error = kind("matmul", "operands", "a", "b")
    assert isinstance(error, GdlabError) and isinstance(error, builtin)
    assert str(error) == "matmul: operands: given a, wanted b"
    assert (error.where, error.given, error.wanted, error.node) == ("matmul", "a", "b", None)


def test_unknown_name_lists_and_suggests():
    text = str(unknown_name("set_input", "name", "imput", ["input", "labels"]))
    assert text == "set_input: name: given imput, wanted one of input, labels; nearest: input"


def test_broadcasts_are_visible_nodes_and_failures_leave_nothing():
    with Graph() as g:
        a, b = ops.input("a", (4, 3)), ops.input("b", (3,))
        ops.add(a, b)
        assert [n.op for n in g] == ["input", "input", "broadcast_to", "add"]
        with pytest.raises(ShapeError, match=r"add: operands: given f32\[4, 3\] and f32\[4\]"):
            ops.add(a, ops.input("c", (4,)))
        before = g.fingerprint()
        for wrong in (lambda: a @ b, lambda: a + ops.input("a", (2,)), lambda: a + "x", lambda: ops.tanh(a, a)):
            with pytest.raises(GdlabError):
                wrong()
        assert g.fingerprint() == before


def test_leaf_names_are_unique_and_parameters_shared():
    with Graph() as g:
        w = ops.parameter("w", (2, 3))
        assert ops.parameter("w", (2, 3)) == w and len(g) == 1
        for wrong in (lambda: ops.parameter("w", (3, 2)), lambda: ops.input("w", (2, 3)), lambda: ops.input("", (1,))):
            with pytest.raises(GraphError):
                wrong()
    with pytest.raises(GraphError, match="no current graph"):
        ops.input("x", (1,))


def test_values_of_another_graph_are_refused():
    with Graph():
        a = ops.input("a", (2,))
    with Graph():
        b = ops.input("b", (2,))
        with pytest.raises(GraphError, match="another graph"):
            ops.add(b, a)


def test_a_value_in_a_condition_says_what_to_do():
    with Graph():
        a = ops.input("a", (2,))
        with pytest.raises(GraphError, match="where"):
            bool(a > a)
        with pytest.raises(GraphError, match="slices"):
            list(a)


def test_equality_key_is_of_bits():
    with Graph():
        keys = [ops.full((2,), v).node.key for v in (0.0, -0.0, 1.0)]
        assert len(set(keys)) == 3
        assert ops.full((2,), 1).node.key == keys[2]


def test_sources_name_line_columns_and_callers():
    def helper(v):
        return v.relu()  # line A

    with Graph() as g:
        x = ops.input("ü", (2,))
        y = helper(x)
    inner, outer = g.source(y.id)[:2]
    assert inner.function == "helper" and outer.function.startswith("test_sources")
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[inner.line - 1]
    assert line[inner.col : inner.end_col] == "v.relu()"
    assert outer.line > inner.line and "errors" not in inner.file


def test_outputs_and_copies():
    with Graph() as g:
        a = ops.input("a", (2,))
        b = a.relu().named("b")
        g.set_outputs({"first": b, "again": b})
    assert g.output_names == ("first", "again") and g.is_output(b) and not g.is_output(a)
    for index in (2, -1, "a", None, True, 1.0):
        with pytest.raises(OutputIndexError):
            g.output_at(index)
    with pytest.raises(GraphError):
        g.set_outputs([])
    copy = g.copy()
    assert same_structure(copy, g) and copy.fingerprint() == g.fingerprint()
    copy.output(copy.value(0))
    assert len(g.outputs) == 2 and copy.fingerprint() != g.fingerprint()
    assert list(reachable(g, [0])) == [1, 0] and users(g)[0] == [(1, 0)]


def test_u32_is_never_relabelled():
    with Graph():
        i = ops.input_u32("i", (4, 2))
        assert ops.reshape(i, (8,)).type.dtype is u32
        with pytest.raises(DTypeError):
            ops.relu(i)


@pytest.mark.clock
@pytest.mark.clock
def test_building_is_linear():
    def chain(n):
        with Graph():
            v = ops.input("x", (2, 2))
            for _ in range(n):
                v = ops.relu(v)

    chain(200)
    assert seconds_there(lambda: chain(5000)) < 20 * seconds_there(lambda: chain(500))


@pytest.mark.parametrize(
    ("build", "data"),
    [(ops.constant, [1j]), (ops.constant, [None]), (ops.constant_u32, [-1]), (ops.constant_u32, [2**32]),
     (ops.constant_u32, [1.5]), (ops.constant_u32, [0, float("nan")])],
)  # fmt: skip
def test_constants_refuse_what_their_dtype_cannot_hold(build, data):
    with Graph() as g, pytest.raises(GraphError, match="data: given"):
        build(data)
    assert len(g) == 0


def test_numpy_integers_are_ints_wherever_one_goes():
    with Graph() as g:
        x = ops.input("x", (4, 6))
        assert x[np.int64(1), np.uint8(2)].shape == (1,) and g.node(np.int64(0)) is g.node(0)
        for number, wanted in ((np.uint8(1), -1.0), (np.int8(-128), 128.0)):
            assert (x - number).node.attr("value") == wanted  # −uint8(1) is 255, −int8(−128) is −128
        assert (x / np.float16(3)).node.attr("factor") == np.float32(1 / 3)


def test_one_step_of_a_slice_is_for_all_axes():
    with Graph():
        assert ops.slice(ops.input("x", (4, 6)), (0, 1), (4, 6), 2).node.attr("steps") == (2, 2)


@pytest.mark.parametrize("index", [slice(None, None, 0), slice(1, "a"), (slice(None, 9, 0), 1), (..., ...), 1.5, None])
def test_an_index_that_cannot_be_appends_nothing(index):
    with Graph() as g:
        x = ops.input("x", (4, 6))
        with pytest.raises(ShapeError, match=r"^getitem: axis \d: given"):
            x[index]
    assert len(g) == 1


def test_outputs_and_homes_that_cannot_be():
    with Graph() as g:
        x = ops.input("x", (2,))
    for call, text in (
        (lambda: g.set_outputs(None), "set_outputs: outputs: given NoneType, wanted a value, several"),
        (lambda: g.set_outputs({3: x}), "set_outputs: name: given 3, wanted a str"),
        (lambda: g.output(x, 3), "output: name: given 3, wanted a str"),
        (lambda: ops.input("y", (2,), graph=3), "input: graph: given int, wanted a Graph"),
    ):
        with pytest.raises(GraphError) as caught:
            call()
        assert str(caught.value).startswith(text)
    assert g.outputs == () and len(g) == 1


def test_errors_survive_pickling():
    with pytest.raises(AutodiffError) as caught:
        differentiate(Graph())
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is AutodiffError and str(again) == str(caught.value)
    assert str(again) == "differentiate: outputs: given none, wanted a graph whose output 0 is the loss"


@pytest.mark.parametrize("text", ["f32[1,,2]", "f32[1 2]", "f32[]", "f64[1]", None])
def test_what_is_no_type_is_refused(text):
    with pytest.raises(ArgumentError, match="type: text: given"):
        TensorType.parse(text)


def test_a_dtype_is_one_of_ours():
    with pytest.raises(DTypeError, match="given 'f32', wanted gdlab.f32 or gdlab.u32"):
        TensorType((2,), "f32")


def test_decompose_leaves_primitives_with_equal_values_names_and_sources() -> None:
    with Graph() as g:
        x, w = ops.input("x", (3, 4)), ops.parameter("w", (4,))
        h = ops.layer_norm(ops.gelu(x), w, w, 1e-5).named("h")
        g.set_outputs({"loss": ops.mse_loss(h, x), "again": h})
    plain = g.decompose()
    assert all(REGISTRY[n.op].body is None for n in plain) and any(REGISTRY[n.op].body for n in g)
    assert plain.output_names == g.output_names and plain.outputs[1].name == "h"
    assert plain.source(plain.output_ids[1]) == g.source(h.id)
    feeds = {"x": np.linspace(-2, 2, 12), "w": np.linspace(1, 2, 4)}
    for a, b in zip(plain.output_ids, g.output_ids, strict=True):
        np.testing.assert_array_equal(evaluate(plain, feeds)[a], evaluate(g, feeds)[b])
    assert same_structure(plain.decompose(), plain)
