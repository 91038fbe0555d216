"""The registry holds whole records, and everything that is derived from them follows when one is added."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import get_args

import numpy as np
import op_checks
import pytest
from places import REPO

from gdlab import ops
from gdlab.base.errors import ArgumentError, DTypeError, GdlabError, GraphError, ShapeError
from gdlab.base.types import TensorType, u32
from gdlab.graph import Graph, PatternGraph, Value, scratch
from gdlab.jupyter.complete import candidates
from gdlab.op import REGISTRY, Elementwise, Fill, Leaf, Op, Reduction, public_ops, unregister
from gdlab.op import op as define
from gdlab.ops import table
from gdlab.plan.expr import FUNCTIONS, names
from gdlab.rewrite import optimize


@pytest.mark.parametrize("op", REGISTRY.values(), ids=list(REGISTRY))
def test_a_record_is_whole(op: Op) -> None:
    doc = op.__doc__ or ""
    assert "f32[" in doc or "any[" in doc, "the docstring gives shapes"
    if isinstance(op.kernel, Leaf):
        return
    assert op.numpy is not None or op.body is not None, "no reference"
    assert op.gradient is not None or op.body is not None or op.no_grad is not None, "no word on its gradient"
    assert op.no_grad is None or op.gradient is None, "either a gradient or a reason why there is none"
    assert op.kernel is not None or op.body is not None, "no way to lower it"
    assert len(op.samples) >= 3
    assert op.bad or op.kind == "private" or op.name in TAKES_ANYTHING, "no call that is refused"


TAKES_ANYTHING = ("stop_gradient", "materialize", "to_f32")
# ops whose table in the specification names a kink, a tie, a pole or an index out of range
KINKED = """abs argmax attains bce_loss clamp cos div dropout elu embedding equal gather gelu_erf greater greater_equal
    l1_loss less less_equal log max max_inner max_pool_2d maximum min minimum normalize_inner_sum not_equal pow
    pow_scalar prefix_last recip relu rsqrt scatter_add sign sin softplus sqrt stop_gradient to_u32 top_k_indices
    where"""


@pytest.mark.parametrize("name", KINKED.split())
def test_an_op_with_a_kink_has_a_sample_there(name: str) -> None:
    assert any(s.kink for s in REGISTRY[name].samples)


@pytest.mark.parametrize("op", [o for o in op_checks.working_ops() if o.samples[0].shapes], ids=lambda o: o.name)
def test_an_operand_of_another_dtype_is_refused(op: Op) -> None:
    """Numbers where indices are wanted, and indices where numbers are; nothing is relabelled."""
    sample = op.samples[0]
    for wrong in range(len(sample.shapes)):
        with Graph() as g:
            kinds = [(i in sample.integers) != (i == wrong) for i in range(len(sample.shapes))]
            operands = [(ops.input_u32 if k else ops.input)(f"x{i}", sample.shapes[i]) for i, k in enumerate(kinds)]
            before = g.fingerprint()
            if op.any_dtype and op.family == "movement" and len(operands) == 1:
                assert op(*op.spread(operands), **sample.attrs).type.dtype is u32
                continue
            if op.name == "to_f32":
                continue
            with pytest.raises(GdlabError, match=rf"^{op.name}: operands: given .*[uf]32") as refused:
                op(*op.spread(operands), **sample.attrs)
            assert isinstance(refused.value, DTypeError) or op.kind == "private"
            assert g.fingerprint() == before



@pytest.mark.parametrize("op", REGISTRY.values(), ids=list(REGISTRY))
def test_a_kernel_names_only_operands_attributes_and_known_functions(op: Op) -> None:
    own = {p.name for p in op.parameters}
    match op.kernel:
        case Elementwise(expr, choices):
            assert all(names(text) <= own | FUNCTIONS.keys() for text in (expr, *choices.values()))
            assert not choices or set(choices) in [set(get_args(p.annotation)) for p in op.attributes]
        case Fill(expr):
            assert names(expr) <= own | FUNCTIONS.keys()
        case Reduction(finish=expr):
            assert names(expr) <= {"acc", "n"} | FUNCTIONS.keys()


def test_every_public_op_is_a_function_of_ops_and_a_method() -> None:
    public = {op.name for op in public_ops()}
    assert public - set(ops.__all__) == set()
    with scratch() as g:
        value = g.append("var", (), (("name", "x"),), TensorType((1,)))
    of_ops = {name for name in dir(value) if name not in dir(Value)} | {"pow"} & {*dir(value)}
    assert {name for name in public if REGISTRY[name].operands} == of_ops
    assert [name for name in ops.__all__ if not callable(getattr(ops, name))] == []
    assert ops.__all__ == sorted(ops.__all__)


def test_the_listing_has_every_op_once() -> None:
    calls = [line.split("(")[0].strip() for line in table.listing().splitlines() if line.startswith("  ")]
    assert sorted(calls) == sorted({*REGISTRY, *ops.__all__})


def test_a_fused_op_with_a_rule_is_traced_as_a_pattern() -> None:
    found = {}
    for op in REGISTRY.values():
        for fixed, label in op.variants():
            pattern = op.pattern(**fixed)
            found[label] = [node.op for node in pattern.nodes if node.op != "var"]
    assert found == {
        "Mul+Sigmoid→Silu": ["sigmoid", "mul"],
        "Silu+Mul→SwiGLU": ["silu", "mul"],
        "Gelu+Mul→GeGLU": ["gelu", "mul"],
        "GroupNorm+Silu→GroupNormSilu": ["group_norm", "silu"],
        "MatMul+Add→FusedMatMulAdd": ["matmul", "add"],
        "MatMul+BiasAdd→FusedMatMulAdd": ["matmul", "bias_add"],
        "MatMulAT+Add→FusedMatMulATAdd": ["matmul_at", "add"],
        "MatMulAT+BiasAdd→FusedMatMulATAdd": ["matmul_at", "bias_add"],
        "MatMulBT+Add→FusedMatMulBTAdd": ["matmul_bt", "add"],
        "MatMulBT+BiasAdd→FusedMatMulBTAdd": ["matmul_bt", "bias_add"],
    }


# adding an op = editing one file --------------------------------------------------------------------------------------
ADDED = '''
"""An op of one's own."""

import numpy as np

from gdlab.graph import Value
from gdlab.op import Bad, Elementwise, Grads, Sample, fused, op, want
from gdlab.base.types import TensorType


@op(
    numpy=lambda x, slope: np.where(x > 0, x, slope * x),
    kernel=Elementwise("select(slope * x, x, x > 0.0)"),
    samples=tuple(Sample(shape, attrs={"slope": s}) for shape, s in (((3, 5), 0.1), ((70,), 0.5), ((1,), 0.0))),
    bad=(Bad(("f32[3]",), "bent: slope: given 2.0, wanted at most 1", {"slope": 2.0}),),
)
def bent(x: Value, slope: float) -> TensorType:
    """x, or slope · x below 0: f32[...] -> f32[...]."""
    want(slope <= 1, "at most 1", slope, "slope")
    return x.type


@bent.vjp
def _(g: Value, out: Value, x: Value, slope: float) -> Grads:
    return ((x > 0).where(g, g * slope),)


@fused(
    label="Bent+Mul→BentGate",
    kernel=Elementwise("select(0.25 * x, x, x > 0.0) * y"),
    samples=(Sample((3,), (3,)), Sample((2, 2), (2, 2)), Sample((1,), (1,))),
)
def bent_gate(x: Value, y: Value) -> Value:
    """bent(x, 0.25) · y: f32[...], f32[...] -> f32[...]."""
    return bent(x, 0.25) * y
'''


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "own_ops.py").write_text(ADDED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("own_ops")
    for name in ("bent", "bent_gate"):
        unregister(name)
    del sys.modules["own_ops"]


def test_an_added_op_is_found_everywhere(added: ModuleType) -> None:
    assert "| `bent(x, slope)` | x, or slope · x below 0: f32[...] -> f32[...]. |" in table.markdown()
    assert "bent_gate(x, y)" in table.listing()
    with Graph():
        x = ops.input("x", (2, 3))
        assert {"bent", "bent_gate"} <= set(dir(x))
        assert repr(x.bent(slope=0.5)) == "%1 = bent : f32[2, 3]"
    assert candidates("%%graph net\ny = ben", 1, "y = ben", {}, {}) == ["bent", "bent_gate"]
    assert candidates("%%graph net\nx.ben", 1, "x.ben", {}, {}) == ["bent", "bent_gate"]


def test_an_added_fused_op_makes_its_rule(added: ModuleType) -> None:
    with Graph() as g:
        x, y = ops.input("x", (2, 3)), ops.input("y", (2, 3))
        g.set_outputs([added.bent(x, 0.25) * y, added.bent(x, 0.5) * y])
    better, report = optimize(g, phase="inference")
    assert [better.node(id).op for id in better.output_ids] == ["bent_gate", "mul"]
    assert report.rules_fired == (("Bent+Mul→BentGate", 1),)


def test_an_added_op_is_checked_like_every_other(added: ModuleType) -> None:
    cases = [case.values for case in op_checks.sample_cases() if case.values[0].name in ("bent", "bent_gate")]
    assert len(cases) == 6
    for op, sample in cases:
        op_checks.check_shape_rule(op, sample)
        op_checks.check_gradient(op, sample)
        op_checks.check_text(op, sample)
    bad = [case.values for case in op_checks.bad_cases() if case.values[0] is added.bent]
    assert len(bad) == 1
    for op, call in bad:
        op_checks.check_bad(op, call)
    added.bent.gradient = lambda g, out, x, slope: (g,)
    with pytest.raises(AssertionError, match="the loss rises by"):
        op_checks.check_gradient(added.bent, cases[0][1])


def test_an_added_op_runs_on_devices(added: ModuleType, device: str) -> None:
    op_checks.check_device(added.bent, device)
    op_checks.check_device(added.bent_gate, device)


def test_a_wrong_kernel_is_noticed(added: ModuleType) -> None:
    object.__setattr__(added.bent.kernel, "expr", "select(slope * x, x, x > 0.5)")
    with pytest.raises(AssertionError, match="bent-0 on cpu: "):
        op_checks.check_device(added.bent, "cpu")


def test_an_op_of_gdlab_cannot_be_replaced() -> None:
    with pytest.raises(GraphError, match="op: name: given 'tanh', wanted a name that no op of gdlab has"):
        exec(ADDED.replace("bent", "tanh"), {"__name__": "elsewhere"})
    assert REGISTRY["tanh"] is ops.tanh


# calls ----------------------------------------------------------------------------------------------------------------
def test_unequal_shapes_make_one_visible_broadcast_per_operand() -> None:
    with Graph() as g:
        x, b = ops.input("x", (4, 3)), ops.input("b", (3,))
        ops.add(x, b)
        ops.where(x, b, 1.0)
    assert [n.op for n in g] == ["input", "input", "broadcast_to", "add", "full", "broadcast_to", "where"]
    assert g.source(2) == g.source(3) != ()


def test_a_failed_broadcast_leaves_no_node() -> None:
    with Graph() as g:
        x, b = ops.input("x", (4, 3)), ops.input("b", (4,))
        i = ops.input_u32("i", (3,))
        calls: list[tuple[Callable[[], object], type[GdlabError]]]
        calls = [(lambda: x + b, ShapeError), (lambda: ops.add(x, i), DTypeError)]
        for call, error in calls:
            with pytest.raises(error):
                call()
        assert len(g) == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.relu(3), "relu: operand: given int 3, wanted a value of a graph"),
        (lambda x: ops.relu(), "relu: argument: given no x, wanted"),
        (lambda x: ops.relu(x, x), "relu: arguments: given 2, wanted 1"),
        (lambda x: ops.relu(x, y=1), "relu: argument: given y, wanted"),
        (lambda x: ops.input("x"), "input: arguments: given (str 'x'), wanted (name: str, shape: tuple[int, ...]"),
        (lambda x: ops.parameter("w", (2,), initt="zeros"), "given (str 'w', tuple (2,), initt=str 'zeros'), wanted"),
        (lambda x: ops.constant(), "constant: arguments: given (), wanted (data: Any, shape: tuple"),
        (lambda x: x.scale("2"), "scale: factor: given '2', wanted a finite number"),
        (lambda x: x.scale(1e39), "scale: factor: given 1e+39, wanted a finite number"),
        (lambda x: x.sum(0, keepdims=1), "sum: keepdims: given 1, wanted True or False"),
        (lambda x: x.sum("0"), "sum: axes: given '0', wanted ints"),
        (lambda x: x / 0, "div: divisor: given 0, wanted a number other than 0"),
        (lambda x: x**True, "pow: operand: given bool True, wanted a value of a graph"),
        (lambda x: x + np.ones(3), "add: operand: given ndarray of shape [3], wanted a value of a graph\n  at "),
        (lambda x: np.ones((4, 6)) @ x, "matmul: operand: given ndarray of shape [4, 6], wanted a value of a graph"),
        (lambda x: np.asarray(x), "value: array: given %0"),
        (lambda x: 1e39 / x, "scale: factor: given 1e+39, wanted a finite number"),
        (lambda x: 1e39 - x, "add_scalar: value: given 1e+39, wanted a finite number"),
        (lambda x: x.sum(True), "sum: axes: given True, wanted ints"),
        (lambda x: x.tile_inner(True), "tile_inner: repeats: given True, wanted an int"),
        (lambda x: x.reshape(6, 5), "reshape: shape: given 24 elements, wanted 30 (f32[6, 5])"),
        (lambda x: x.reshape(6, 4.0), "reshape: arguments: given 3, wanted 2: (x: Value, shape: tuple[int, ...])"),
        (lambda x: ops.relu(x, graph=Graph()), "relu: graph: given another graph, wanted that of the operands"),
        (lambda x: ops.split(x, [2, 2], True), "split: axis: given True, wanted an axis in -2 … 1"),
        (lambda x: ops.t5_relative_bias(x, 3, 3, "9"), "t5_relative_bias: max_distance: given '9', wanted a number"),
        (lambda x: x[4], "getitem: axis 0: given 4, wanted an index in -4 … 3"),
        (lambda x: x[:, 2:2], "getitem: axis 1: given 2:2, wanted a step ≥ 1 and at least one of 6 elements"),
        (lambda x: x[::-1], "getitem: axis 0: given ::-1, wanted a step ≥ 1"),
        (lambda x: x["a"], "getitem: axis 0: given 'a', wanted an int, a slice or ..."),
        (lambda x: x[0, 0, 0], "getitem: index: given 3 entries, wanted at most 2 for f32[4, 6]"),
        (lambda x: x[..., ...], "getitem: axis 1: given Ellipsis, wanted an int, a slice or ..."),
    ],
)
def test_a_wrong_call_says_why(call: Callable[[Value], object], message: str) -> None:
    with Graph() as g:
        x = ops.input("x", (4, 6))
        with pytest.raises(GdlabError) as refused:
            call(x)
        assert message in str(refused.value)
        assert len(g) == 1


def test_a_refused_call_tells_the_line_of_the_user() -> None:
    with Graph():
        x = ops.input("x", (4, 6))
        for call in (lambda: x @ x, lambda: x[9], lambda: ops.concat([x, x], 5), lambda: ops.input("x", (3,))):
            with pytest.raises(GdlabError) as refused:
                call()
            line = call.__code__.co_firstlineno
            assert refused.value.source.line == line and str(refused.value).endswith(f"{__file__}:{line} in <lambda>")


def test_help_shows_the_call_without_quotes() -> None:
    assert repr(ops.clamp) == "<op clamp(x: Value, lo: float, hi: float) -> Value>"
    assert repr(ops.concat) == "<op concat(values: Sequence[Value], axis: int) -> Value>"


def test_equal_calls_make_equal_nodes() -> None:
    with Graph() as g:
        x = ops.input("x", (4, 6))
        pairs = [
            (x.sum(-1), x.sum((1,))),
            (x.mean(), x.mean((1, 0))),
            (x.reshape((-1, 3)), x.reshape((8, 3))),
            (x.permute((-1, 0)), x.permute((1, 0))),
            (x.slice((-2, 0), (4, -1)), x.slice((2, 0), (4, 5), (1, 1))),
            (x.scale(0.1), x.scale(np.float32(0.1))),
        ]
    for a, b in pairs:
        assert a.node.key == b.node.key
    assert g.node(1).attrs == (("axes", (1,)), ("keepdims", False))


# operators ------------------------------------------------------------------------------------------------------------
EXPRESSIONS = {
    "x + 1": ["add_scalar"],
    "1 + x": ["add_scalar"],
    "x - 1": ["add_scalar"],
    "1 - x": ["neg", "add_scalar"],
    "x * 2": ["scale"],
    "2 * x": ["scale"],
    "x / 2": ["scale"],
    "1 / x": ["recip"],
    "2 / x": ["recip", "scale"],
    "np.float64(3) * x": ["scale"],
    "-x": ["neg"],
    "x ** 2": ["square"],
    "x ** 0.5": ["sqrt"],
    "x ** -0.5": ["rsqrt"],
    "x ** -1": ["recip"],
    "x ** 3": ["pow_scalar"],
    "x ** y": ["pow"],
    "2 ** x": ["full", "pow"],
    "abs(x)": ["abs"],
    "+x": [],
    "x + y": ["add"],
    "x - y": ["sub"],
    "x * y": ["mul"],
    "x / y": ["div"],
    "x.T": ["transpose"],
    "x @ y.T": ["transpose", "matmul"],
    "x > y": ["greater"],
    "x > 1": ["full", "greater"],
    "x[1]": ["slice", "reshape"],
    "x[-1, 2]": ["slice", "reshape"],
    "x[:, 1:3]": ["slice"],
    "x[..., 0]": ["slice", "reshape"],
    "x[1::2, ::3]": ["slice"],
    "x[:]": [],
    "x.reshape(-1)": ["reshape"],
    "x.reshape(2, -1, 3)": ["reshape"],
    "x.mean(-1, keepdims=True)": ["mean"],
    "x.sum()": ["sum"],
}
NUMPY = {"x[-1, 2]": "x[-1, 2:3]", "x.sum()": "x.sum(keepdims=True)[0]"}  # a scalar is [1]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_operators_mean_what_numpy_means(text: str) -> None:
    arrays = {name: op_checks.exact(np.random.default_rng(i).uniform(0.5, 2, (4, 6))) for i, name in enumerate("xy")}
    with Graph() as g:
        value = eval(text, {"np": np, "x": ops.input("x", (4, 6)), "y": ops.input("y", (4, 6))})
    assert [n.op for n in g.nodes[2:]] == EXPRESSIONS[text]
    want = np.asarray(eval(NUMPY.get(text, text), {"np": np, **arrays}), np.float64)
    got = op_checks.run(g, arrays)[value.id]
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-7)


@pytest.mark.parametrize("text", [t for t in EXPRESSIONS if "[" not in t])
def test_operators_work_in_patterns_where_nothing_has_a_shape(text: str) -> None:
    with PatternGraph() as g:
        x, y = (g.append("var", (), (("name", n),), g.untyped) for n in "xy")
        value = eval(text, {"np": np, "x": x, "y": y})
    assert [n.op for n in g.nodes[2:]] == EXPRESSIONS[text]
    assert isinstance(value, Value)


def test_values_of_two_graphs_do_not_mix() -> None:
    with Graph():
        x = ops.input("x", (3,))
    with Graph() as g, pytest.raises(GraphError, match="of another graph"):
        ops.input("y", (3,)) + x
    assert len(g) == 1


def test_an_op_without_operands_needs_a_graph() -> None:
    with pytest.raises(GraphError, match="full: graph: given no current graph"):
        ops.full((2,), 1.0)
    g = Graph()
    assert ops.zeros((2,), graph=g).graph is g
    with pytest.raises(ArgumentError):
        ops.add(1, 2, graph=g)


def test_a_parameter_without_annotation_is_refused() -> None:
    def bare(x):  # type: ignore[no-untyped-def]
        return x.type

    def many(*xs: Value) -> TensorType:
        return xs[0].type

    for rule in (bare, many):
        with pytest.raises(GraphError, match=rf"^op {rule.__name__}: parameter: given .*, wanted one annotated"):
            define(numpy=np.tanh, kernel=Elementwise("tanh(x)"), samples=())(rule)
        assert rule.__name__ not in REGISTRY


# one fact, one place --------------------------------------------------------------------------------------------------
PACKAGE = REPO / "gdlab"
# ops, rules, importers of formats, example networks
MAY_NAME = ("op/", "ops/", "rewrite/rules/", "load/", "models/")
LEAVES = {"parameter", "input", "constant", "var", "full"}  # a pass knows them as it knows a node
# what a pass may compare with the op of a node by name: these ask for the shape of a rule, not for a property of an op
ALLOWED: dict[str, str] = {
    "view/layout/boxes.py": "it reads documents, which have no records of ops; its twin in TypeScript names the same",
}


def named_ops(tree: ast.AST) -> set[str]:
    """Names of the registry that are spelled out below a syntax tree."""
    texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return (texts & set(REGISTRY)) - LEAVES


def is_op(tree: ast.AST) -> bool:
    """Whether an expression is the op of a node, or its name: `node.op`, `op.name`, `op`, `d.custom.form`."""
    if isinstance(tree, ast.Attribute):
        return tree.attr in ("op", "form") or tree.attr == "name" and is_op(tree.value)
    return isinstance(tree, ast.Name) and tree.id == "op"


def test_no_pass_lists_ops() -> None:
    texts = {str(p.relative_to(PACKAGE)): p.read_text("utf-8") for p in PACKAGE.rglob("*.py")}
    spelled = re.compile(rf"""["']({"|".join(set(REGISTRY) - LEAVES)})["']""")
    modules = {path: ast.parse(text) for path, text in texts.items() if spelled.search(text)}
    constants: dict[str, set[str]] = {}  # of any module: an import brings it into another
    for tree in modules.values():
        for node in tree.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and named_ops(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        constants.setdefault(target.id, set()).update(named_ops(node.value))
    known = re.compile(rf"\b({'|'.join(constants)})\b")
    modules |= {path: ast.parse(text) for path, text in texts.items() if path not in modules and known.search(text)}
    assert len(modules) > 100
    found = []
    for path, tree in modules.items():
        if path.startswith(MAY_NAME) or path in ALLOWED:
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            others = [side for side in sides if not is_op(side)]
            if len(others) == len(sides):
                continue
            named = set[str]().union(*(named_ops(s) for s in others))
            named |= set[str]().union(*(constants.get(s.id, set()) for s in others if isinstance(s, ast.Name)))
            if named:
                found.append(f"{path}:{node.lineno}: {sorted(named)}")
    assert not found, "give the record a field (`Op` in gdlab/op/record.py) and ask that"
