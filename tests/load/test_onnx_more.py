"""ONNX ops that take by number, resize, repeat over steps or have a body in ONNX, against its reference."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx_models import agree, given, model

import gdlab as gd

RNG = np.random.default_rng(1)


def f(*shape: int) -> np.ndarray:
    return RNG.uniform(-2, 2, shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


Arrays = dict[str, np.ndarray]


def one(op: str, fed: Arrays, held: Arrays | None = None, opset: int = 21, outputs: int = 1, **attrs: object) -> bytes:
    """A model of one node; operands in the order of their names x0, x1, …, "" where one is left out."""
    held = held or {}
    last = max(int(name[1:]) for name in (*fed, *held))
    names = [n if n in fed or n in held else "" for n in (f"x{i}" for i in range(last + 1))]
    results = [f"y{i}" for i in range(outputs)]
    return model([helper.make_node(op, names, results, name="node", **attrs)], fed, held, results, opset)


# resizing -------------------------------------------------------------------------------------------------------------
WAYS = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric")
SIZES = ([1, 2, 6, 8], [1, 2, 2, 3], [1, 2, 5, 4])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_is_linear_and_cubic(mode: str, way: str) -> None:
    for sizes in SIZES:
        data = one("Resize", {"x0": f(1, 2, 3, 4)}, {"x3": ints(*sizes)}, 19, mode=mode,
                   coordinate_transformation_mode=way)  # fmt: skip
        loaded = agree(data, {"x0": f(1, 2, 3, 4)})
        assert not any(node.op == "matmul" for node in loaded.graph)


def test_resize_with_antialias_crop_and_kept_ratio() -> None:
    x = {"x0": f(1, 1, 8, 9)}
    agree(one("Resize", x, {"x3": ints(1, 1, 3, 4)}, 19, mode="linear", antialias=1), x)
    agree(one("Resize", x, {"x3": ints(1, 1, 3, 4)}, 19, mode="cubic", antialias=1), x)
    agree(one("Resize", x, {"x3": ints(1, 1, 5, 4)}, 19, mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5), x)
    roi = np.array([0, 0, 0.4, 0.6, 1, 1, 1.2, 0.8], np.float32)
    agree(one("Resize", x, {"x1": roi, "x3": ints(1, 1, 3, 3)}, 19, mode="linear", extrapolation_value=7.0,
              coordinate_transformation_mode="tf_crop_and_resize"), x)  # fmt: skip
    agree(one("Resize", x, {"x3": ints(5, 5)}, 19, mode="nearest", axes=[2, 3],
              keep_aspect_ratio_policy="not_larger"), x)  # fmt: skip


# recurrence -----------------------------------------------------------------------------------------------------------
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(op: str, direction: str, **attrs: object) -> tuple[Arrays, Arrays, dict[str, object]]:
    """Inputs, weights and attributes for 5 steps of 2 sequences of 3 numbers, 4 hidden."""
    d, n = (2 if direction == "bidirectional" else 1), 4 * GATES[op]
    held = {"x1": f(d, n, 3), "x2": f(d, n, 4), "x3": f(d, 2 * n), "x5": f(d, 2, 4)}
    held |= {"x6": f(d, 2, 4)} if op == "LSTM" else {}
    return {"x0": f(5, 2, 3)}, held, {"hidden_size": 4, "direction": direction, **attrs}


@pytest.mark.parametrize("op", GATES)
def test_a_recurrent_layer_is_what_onnx_computes(op: str) -> None:
    fed, held, attrs = recurrent(op, "forward")
    for more in ({}, {"linear_before_reset": 1}) if op == "GRU" else ({},):
        agree(one(op, fed, held, outputs=3 if op == "LSTM" else 2, **attrs, **more), fed)


@pytest.mark.parametrize("op", GATES)
def test_both_directions_are_one_after_the_other_of_reversed_steps(op: str) -> None:
    """The reference of ONNX computes forward only."""
    fed, held, attrs = recurrent(op, "bidirectional")
    y, h = given(gd.load_onnx(one(op, fed, held, outputs=2, **attrs)), fed)[:2]
    for d in (0, 1):
        own = {name: array[d : d + 1] for name, array in held.items()}
        x = {"x0": fed["x0"][::-1] if d else fed["x0"]}
        forward = one(op, x, own, outputs=2, hidden_size=4)
        want, last = given(agree(forward, x), x)[:2]
        np.testing.assert_allclose(y[:, d], (want[::-1] if d else want)[:, 0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(h[d], last[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", GATES)
def test_a_sequence_that_is_over_keeps_its_state(op: str) -> None:
    fed, held, attrs = recurrent(op, "bidirectional")
    y, h = given(gd.load_onnx(one(op, fed, held | {"x4": np.array([5, 3], np.int32)}, outputs=2, **attrs)), fed)[:2]
    short = {"x0": fed["x0"][:3, 1:]}
    cut = held | {name: held[name][:, 1:] for name in ("x5", "x6") if name in held}
    want, last = given(gd.load_onnx(one(op, short, cut, outputs=2, **attrs)), short)[:2]
    np.testing.assert_allclose(y[:3, :, 1:], want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(h[:, 1:], last, rtol=1e-5, atol=1e-6)
    assert not y[3:, :, 1].any() and y[3:, :, 0].all()


def test_what_a_recurrent_layer_does_not_take_is_refused() -> None:
    fed, held, attrs = recurrent("LSTM", "forward")
    long = {"x0": f(600, 2, 3)}
    for inputs, more, text in (
        (fed, {"clip": 1.0}, "clip"), (long, {}, "600 steps, where at most 512"),
        (fed, {"activations": ["Sigmoid", "Elu", "Tanh"]}, "the activation elu"),
    ):  # fmt: skip
        with pytest.raises(gd.LoadError, match=text):
            gd.load_onnx(one("LSTM", inputs, held, **attrs, **more))


# by number ------------------------------------------------------------------------------------------------------------
AT = np.array([[0, 2, 1], [3, 0, 0]])


def test_elements_are_taken_by_indices_that_are_fed_or_held() -> None:
    x = f(4, 3)
    for axis, at, y in ((0, AT, x), (1, AT % 3, x[:2])):
        agree(one("GatherElements", {"x0": y, "x1": at}, axis=axis), {"x0": y, "x1": at})
        agree(one("GatherElements", {"x0": y}, {"x1": at - 2}, axis=axis), {"x0": y})
    narrow = {"x0": x, "x1": AT[:, :2]}
    np.testing.assert_array_equal(given(gd.load_onnx(one("GatherElements", narrow)), narrow)[0], x[AT[:, :2], [0, 1]])
    tuples = np.array([[[0, 2], [3, 1]], [[2, 2], [0, 0]]])
    for fed in ({"x0": x, "x1": tuples}, {"x0": x, "x1": tuples[..., :1]}):
        agree(one("GatherND", fed), fed)
        agree(one("GatherND", {"x0": x}, {"x1": fed["x1"] - 2}), {"x0": x})
    fed = {"x0": f(2, 3, 4), "x1": np.array([[[1], [0]], [[2], [2]]])}
    agree(one("GatherND", fed, batch_dims=1), fed)


@pytest.mark.parametrize("how", ["none", "add", "mul", "max", "min"])
def test_updates_are_put_by_indices_that_are_held(how: str) -> None:
    x = {"x0": f(4, 3), "x2": f(2, 3)}
    at = AT if how != "none" else np.array([[0, 2, 1], [-1, 0, 0]])
    agree(one("ScatterElements", x, {"x1": np.where(at == 0, 0, at)}, 18, reduction=how), x)
    rows = {"x0": f(4, 3), "x2": f(3, 3)}
    places = np.array([[0], [2], [-1]]) if how == "none" else np.array([[0], [2], [0]])
    agree(one("ScatterND", rows, {"x1": places}, 18, reduction=how), rows)


def test_updates_are_put_by_indices_that_are_fed() -> None:
    for how in ("none", "add"):
        fed = {"x0": f(4, 3), "x1": AT, "x2": f(2, 3)}
        agree(one("ScatterElements", fed, opset=18, reduction=how), fed)
        fed = {"x0": f(4, 3), "x1": np.array([[0], [2]]), "x2": f(2, 3)}
        agree(one("ScatterND", fed, opset=18, reduction=how), fed)
    with pytest.raises(gd.LoadError, match="reduction=max with indices that are computed"):
        gd.load_onnx(one("ScatterND", fed, opset=18, reduction="max"))


def test_two_updates_of_one_element_by_fed_indices_are_no_number() -> None:
    """ONNX does not say which of them counts."""
    fed = {"x0": f(3, 1), "x1": np.array([[1], [1]]), "x2": f(2, 1)}
    got = given(gd.load_onnx(one("ScatterND", fed, opset=18)), fed)[0]
    assert np.isnan(got[1]) and (got[[0, 2]] == fed["x0"][[0, 2]]).all()


def test_top_k_and_one_hot() -> None:
    for largest in (0, 1):
        for axis in (0, 1, -1):
            fed = {"x0": f(4, 3)}
            agree(one("TopK", fed, {"x1": ints(2)}, outputs=2, axis=axis, largest=largest), fed)
    for fed in ({"x0": ints(0, 2, 1)}, {"x0": np.array([[1, 0], [2, 2]])}):
        held = {"x1": np.array(3), "x2": np.array([-1.5, 2.5], np.float32)}
        for axis in (-1, 0):
            agree(one("OneHot", fed, held, axis=axis), fed)
            agree(one("OneHot", {"x2": held["x2"]}, fed | {"x1": np.array(3)}, axis=axis), {"x2": held["x2"]})


# bodies ---------------------------------------------------------------------------------------------------------------
def test_an_operator_is_written_out_by_the_body_that_onnx_gives() -> None:
    q = {"x0": f(2, 3, 4, 8), "x1": f(2, 3, 6, 8), "x2": f(2, 3, 6, 8)}
    agree(one("Attention", q, opset=23, is_causal=1), q, rtol=1e-4)
    scores, labels = {"x0": f(3, 5)}, {"x1": ints(0, 4, 2)}
    for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
        for how in ("mean", "sum", "none"):
            agree(one(op, scores, labels | {"x2": np.abs(f(5))}, 13, reduction=how), scores)
    rope = {"x0": f(1, 2, 3, 8), "x1": f(1, 3, 4), "x2": f(1, 3, 4)}
    agree(one("RotaryEmbedding", rope, opset=23), rope)
    agree(one("MeanVarianceNormalization", {"x0": f(2, 3, 4, 4)}, opset=13), {"x0": f(2, 3, 4, 4)})


def test_a_body_that_draws_numbers_is_refused() -> None:
    with pytest.raises(gd.LoadError, match=r"Bernoulli \(node\)"):
        gd.load_onnx(one("Bernoulli", {"x0": f(2, 3)}, opset=15))
