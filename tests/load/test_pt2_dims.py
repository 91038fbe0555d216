"""Extents that a program of PyTorch leaves open: numbers, ranges, what is computed from them, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pt2_files import Name, Raw, entries_of, given, meta, node, program, zipped

import gdlab as gd
from gdlab.study.model_files import open_model

W = np.arange(6, dtype=np.float32).reshape(3, 2)
HELD = {"weight": W}
N, M = "Symbol('s77', positive=True, integer=True)", "Symbol('s3', positive=True, integer=True)"
FORMS = {"srepr": (N, f"Mul(Integer(2), {N})", f"Equality(Mod({N}, Integer(2)), Integer(0))"),
         "str": ("s77", "2*s77", "Eq(Mod(s77, 2), 0)")}  # fmt: skip


def size(text: str, hint: int | None = None) -> dict[str, Any]:
    return {"as_expr": {"expr_str": text} | ({} if hint is None else {"hint": {"as_int": hint}})}


def typed(*sizes: int | str) -> dict[str, Any]:
    """The type of a float tensor, each extent a number or an expression."""
    made = meta(np.ones([n if isinstance(n, int) else 1 for n in sizes], np.float32))
    shape = [{"as_int": n} if isinstance(n, int) else size(n, 4) for n in sizes]
    return made | {"sizes": shape}


def numbered(target: str, inputs: Any, output: str, form: str = "as_sym_int") -> dict[str, Any]:
    """A call whose result is a number."""
    return node(target, inputs, []) | {"outputs": [{form: {"as_name": output}}]}


def sym(name: str, form: str = "as_sym_int") -> Raw:
    return Raw({form: {"as_name": name}})


def archive(
    form: str = "srepr", low: int = 2, high: int | None = 64, mul: str = "", edit: Any = None, **types: Any
) -> bytes:  # fmt: skip
    """relu(x @ weight), its rows laid in one another: [n, 3] -> [n, 2] -> [2 n]; it stops where n is odd."""
    one, twice, even = FORMS[form]
    calls = [
        numbered("aten.sym_size.int", {"self": Name("x"), "dim": 0}, "sym_size_int"),
        numbered("_operator.mod", {"a": sym("sym_size_int"), "b": 2}, "mod"),
        numbered("_operator.eq", {"a": sym("mod"), "b": 0}, "eq", "as_sym_bool"),
        node("aten._assert_scalar.default", {"self": sym("eq", "as_sym_bool"), "assert_msg": "n is even"}, []),
        node("aten.mm.default", {"self": Name("x"), "mat2": Name("p_weight")}, ["m"], 3),
        numbered("_operator.mul", {"a": sym("sym_size_int"), "b": 2}, "mul"),
        node("aten.view.default", {"self": Name("m"), "size": Raw({"as_sym_ints": [{"as_name": "mul"}]})}, ["v"], 4),
        node("aten.relu.default", {"self": Name("v")}, ["y"], 5),
    ]
    made = program(calls, {"x": np.ones((4, 3), np.float32)}, HELD, ["y"], {})
    graph = made["graph_module"]["graph"]
    graph["tensor_values"] |= {"x": typed(one, 3), "m": typed(one, 2), "v": typed(twice), "y": typed(twice)} | types
    graph["sym_int_values"] = {"sym_size_int": size(one), "mul": size(mul or twice), "mod": size(f"Mod({one}, 2)")}
    graph["sym_bool_values"] = {"eq": size(even)}
    made["range_constraints"] = {"s77": {"min_val": low, "max_val": high}}
    if edit is not None:
        edit(made)
    return zipped(entries_of(made, HELD))


@pytest.mark.parametrize("form", FORMS)
def test_a_number_for_each_name_makes_all_extents_numbers(form: str) -> None:
    x = np.random.default_rng(3).normal(size=(6, 3)).astype(np.float32)
    model = gd.load_pt2(archive(form), dims={"s77": 6})
    assert [n.type.shape for n in model.graph.inputs] == [(6, 3)]
    (got,) = given(model, {"x": x})
    np.testing.assert_allclose(got, np.maximum(x @ W, 0).reshape(12), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("options", "dims", "text"), [
    ({}, None, "load_pt2: named extents: given s77 (axis 0 of input 'x'; 2 … 64), wanted a number for each: "
               "load_pt2(…, dims={'s77': 4}), in a notebook or on the command line --dims s77=4"),
    ({"high": None}, {}, "(axis 0 of input 'x'; at least 2)"),
    ({}, {"s77": 66}, "extent s77: given 66, wanted 2 … 64, as the file says"),
    ({}, {"s77": 1}, "extent s77: given 1, wanted 2 … 64"),
    ({"low": -5}, {"s77": 0}, "extent s77: given 0, wanted 1 … 64"),
    ({}, {"s77": 4.0}, "extent s77: given 4.0"),
    ({"high": None}, {"s77": 2**40}, "extent s77: given 1099511627776, wanted at least 2"),
    ({}, {"s77": 4, "batch": 2}, "dims: given batch, wanted"),
    ({}, {"s77": 5}, "extents: given s77=5, wanted n is even"),
    ({"x": typed(N, M)}, {"s77": 4}, "s3 (axis 1 of input 'x'; at least 1)"),
    ({"v": typed(f"Add({N}, Integer(1))")}, {"s77": 4}, "result: given [5] in the file, wanted [8]"),
    ({"mul": "2*u0"}, {"s77": 4}, "aten.view.default (body.0; net.py:4): the argument size, a dynamic extent"),
])  # fmt: skip
def test_refusals_say_names_places_and_ranges(options: Any, dims: Any, text: str) -> None:
    with pytest.raises(gd.GdlabError) as caught:
        gd.load_pt2(archive(**options), dims=dims)
    assert text in str(caught.value), str(caught.value)


def test_a_file_opens_as_a_study_with_dims(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    path.write_bytes(archive())
    assert open_model(path, {"s77": 2}).graph.inputs[0].type.shape == (2, 3)
    with pytest.raises(gd.LoadError, match="--dims s77=4"):
        open_model(path)


def test_a_program_of_numbers_takes_no_names() -> None:
    made = program([node("aten.relu.default", {"self": Name("x")}, ["y"])], {"x": W}, {}, ["y"], {"y": W})
    with pytest.raises(gd.LoadError, match="given s0=2, wanted none: all extents of the file are numbers"):
        gd.load_pt2(zipped(entries_of(made, {})), dims={"s0": 2})


def test_numbers_of_a_block_are_its_own() -> None:
    """`mul` is 2 n outside and 3 n in a block of `no_grad`, before `view` reads it."""

    def with_block(made: Any) -> None:
        graph = made["graph_module"]["graph"]
        inner = {
            "inputs": [{"as_tensor": {"name": "a"}}], "outputs": [{"as_tensor": {"name": "b"}}],
            "nodes": [node("aten.alias.default", {"self": Name("a")}, ["b"])],
            "tensor_values": {"a": typed(N, 2), "b": typed(N, 2)},
            "sym_int_values": {"mul": size(f"Mul(Integer(3), {N})")},
        }  # fmt: skip
        block = {"": False, " ": Raw({"as_graph": {"name": "g", "graph": inner}}), "  ": Name("m")}
        graph["nodes"].insert(-2, node("higher_order.wrap_with_set_grad_enabled", block, ["k"]))
        graph["nodes"][-2]["inputs"][0]["arg"] = {"as_tensor": {"name": "k"}}
        graph["tensor_values"]["k"] = typed(N, 2)

    x = np.ones((4, 3), np.float32)
    (got,) = given(gd.load_pt2(archive(edit=with_block), dims={"s77": 4}), {"x": x})
    np.testing.assert_allclose(got, (x @ W).reshape(8))
