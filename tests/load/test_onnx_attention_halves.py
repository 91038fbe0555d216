"""Attentions of bfloat16 beside ONNX's node tests: each op is rounded once, where the reference rounds inside a sum."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.backend.test.case.node import function_testcase_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx_models import given

import gdlab as gd

HALF = ml_dtypes.bfloat16
HEADS = {"q_num_heads": 3, "kv_num_heads": 3}
MASK, PADDED = ["attn_mask"], ["attn_mask", "", "", "nonpad_kv_seqlen"]
# attributes, operands after Q, K, V, opset; the shape of Q and of K and V, of the mask
CASES: dict[str, tuple[dict[str, int], list[str], int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "3d_causal": ({"is_causal": 1, **HEADS}, [], 23, (2, 4, 24), (2, 6, 24), ()),
    "4d_causal": ({"is_causal": 1}, [], 23, (2, 3, 4, 8), (2, 3, 6, 8), ()),
    "4d_padded_kv": ({}, PADDED, 24, (2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 4, 4)),
    "4d_causal_padded_kv": ({"is_causal": 1}, PADDED, 24, (2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 4, 4)),
    "4d_mask_causal": ({"is_causal": 1}, MASK, 23, (2, 3, 4, 8), (2, 3, 6, 8), (2, 1, 4, 6)),
}


class Softmax(OpRun):  # type: ignore[misc]
    """The steps of ONNX's function, each rounded once: numpy adds bfloat16 up in bfloat16, rounded at each element."""

    def _run(self, x: Any, axis: int = -1) -> Any:
        shifted = x - x.max(axis=axis, keepdims=True)
        powers = np.exp(shifted.astype(np.float64)).astype(np.float32).astype(x.dtype)
        total = powers.astype(np.float64).sum(axis=axis, keepdims=True).astype(np.float32).astype(x.dtype)
        return (powers / total,)


def operands(name: str) -> dict[str, np.ndarray]:
    _, more, _, query, key, mask = CASES[name]
    rng = np.random.default_rng(len(name))
    shapes = {"Q": query, "K": key, "V": key} | ({"attn_mask": mask} if mask else {})
    data = {each: rng.random(shape).astype(HALF) for each, shape in shapes.items()}
    return data | ({"nonpad_kv_seqlen": np.array([3, 4], np.int64)} if "nonpad_kv_seqlen" in more else {})


def model(name: str, expanded: bool, data: dict[str, np.ndarray], held: tuple[str, ...] = ()) -> onnx.ModelProto:
    """An Attention, or the ops that it stands for, on operands of these types; `held` are initializers."""
    attributes, more, opset, *_ = CASES[name]
    node = helper.make_node("Attention", ["Q", "K", "V", *more], ["Y"], **attributes)
    types = {n: helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for n, a in data.items()}  # fmt: skip
    nodes, imports = [node], [helper.make_opsetid("", opset)]
    if expanded:
        empty = onnx.TypeProto()
        listed = [types[n].type if n else empty for n in node.input]
        ((nodes, found),), _ = function_testcase_helper(node, listed, "x", imports)
        imports = list(found)
    outputs = [helper.make_tensor_value_info("Y", types["Q"].type.tensor_type.elem_type, None)]
    tensors = [numpy_helper.from_array(data[n], n) for n in held]
    graph = helper.make_graph(nodes, "g", [v for n, v in types.items() if n not in held], outputs, tensors)
    return helper.make_model(graph, opset_imports=imports)


def reference(made: onnx.ModelProto, data: dict[str, np.ndarray], **more: Any) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(ReferenceEvaluator(made, **more).run(None, data)[0])


@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_each_op_of_an_attention_is_rounded_once(name: str, expanded: bool) -> None:
    data = operands(name)
    held = tuple(n for n, a in data.items() if a.dtype != HALF)
    fed = {n: a.astype(np.float32) for n, a in data.items() if n not in held}
    got = given(gd.load_onnx(model(name, expanded, data, held).SerializeToString()), fed)[0]
    once = reference(model(name, True, data), data, new_ops=[Softmax])
    np.testing.assert_array_equal(got, once.astype(np.float32))
    wide = {n: a.astype(np.float64) if a.dtype == HALF else a for n, a in data.items()}
    exact = reference(model(name, False, wide), wide)  # rounded nowhere
    mine, theirs = np.abs(got - exact), np.abs(reference(model(name, False, data), data).astype(np.float64) - exact)
    assert mine.mean() <= 1.01 * theirs.mean() and mine.max() <= 1.1 * theirs.max()
