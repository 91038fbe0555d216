"""Attention that people write out is found again: of one head, of many, with repeated keys, under every mask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import networks
import numpy as np
import pytest
import random_graphs
from attention_forms import MASKED, D, H, S, apart, attend, constant, heads, joined, keys_first, masks, qkv
from matrix import count
from optimizing import check_laws
from recognizing import found_in, graph_of, ops_of, p, same_values

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.types import f32
from gdlab.graph import ConstantData, Value
from gdlab.op import ALL_PHASES
from gdlab.rewrite import optimize
from gdlab.rewrite.rules.constant_conditions import mask_kinds

# masks ----------------------------------------------------------------------------------------------------------------
REFUSED: dict[str, tuple[Callable[[Value], Value], str]] = {
    "its own key hidden": (lambda s: s + constant("strict"), "mask, a {}, is no causal mask"),
    "a soft mask": (lambda s: s + constant("soft"), "mask, a {}, is no causal mask"),
    "the earlier keys hidden": (lambda s: s + constant("earlier"), "mask, a {}, is no causal mask"),
    "a mask from outside": (lambda s: s + p("mask", *s.shape), "mask, a parameter, is no causal mask"),
    "where hidden is seen": (lambda s: ops.where(constant("hidden"), s, -1e9),
                             "seen, a {}, is not 0 for later keys alone"),
    "where nearly hidden": (lambda s: ops.where(constant("seen"), s, -1e3), "low is -1000.0, not -1e+08 or less"),
    "where by something else": (lambda s: ops.where(constant("diagonal"), -1e9, s),
                                "later, a {}, is not 0 for all but later keys"),
}  # fmt: skip


def test_what_a_mask_hides() -> None:
    def kinds(name: str, *lead: int) -> set[str]:
        mask = np.ascontiguousarray(np.broadcast_to(masks()[name], (*lead, S, S)), np.float32)
        return set(mask_kinds(ConstantData(f32, mask.shape, mask.tobytes()), mask.shape))

    assert kinds("causal") == kinds("infinite", 2) == {"f_causal", "f_hides"}
    assert kinds("seen") == kinds("seen", 1) == {"f_seen"} and kinds("hidden") == {"f_hides"}
    assert kinds("strict") == kinds("earlier") == kinds("diagonal") == set() and kinds("soft") == {"f_hides"}
    row = ConstantData(f32, (1, S), np.zeros(S, np.float32).tobytes())
    assert mask_kinds(row, (S, S)) == mask_kinds(0.0, (S, S)) == mask_kinds(row, (1, S)) == set()


# attention of one head ------------------------------------------------------------------------------------------------
def one_head(mask: Callable[[Value], Value], scaled: str = "scores", factor: float = D**-0.5) -> Value:
    q, k, v = (p(name, S, D) for name in "qkv")
    q, k = (t * factor if scaled == name else t for t, name in ((q, "q"), (k, "k")))
    scores = q @ k.T
    return ops.softmax(mask(scores * factor if scaled == "scores" else scores)) @ v


@pytest.mark.parametrize("scaled", ["scores", "q", "k"])
@pytest.mark.parametrize("mask", MASKED)
def test_attention_of_one_head_is_recognized(mask: str, scaled: str) -> None:
    _, found = found_in(graph_of(lambda: one_head(MASKED[mask], scaled)))
    assert found == ["full_attention" if mask == "nothing" else "causal_attention"]


@pytest.mark.parametrize("mask", REFUSED)
def test_another_mask_of_one_head_is_left_alone(mask: str) -> None:
    make, detail = REFUSED[mask]
    graph = graph_of(lambda: one_head(make))
    assert not any("attention" in op for op in found_in(graph)[1])
    missed = [m for m in optimize(graph, phase="forward")[1].missed if "Attention" in m.label]
    assert [(m.reason, m.detail) for m in missed] == [("attributes", detail.format("constant"))]


def test_another_factor_or_other_shapes_are_no_attention_of_one_head() -> None:
    def cut(keys: int, width: int) -> Value:
        return ops.softmax(p("q", S, D) @ p("k", keys, D).T * D**-0.5) @ p("v", keys, width)

    for make, reason in (
        (lambda: one_head(MASKED["nothing"], factor=0.25), "attributes"),
        (lambda: cut(3, D), "shape"),
        (lambda: cut(S, D + 1), "shape"),
    ):
        graph = graph_of(make)
        assert not any("attention" in op for op in found_in(graph)[1])
        missed = [m for m in optimize(graph, phase="forward")[1].missed if "Attention" in m.label]
        assert [m.reason for m in missed] == [reason]


# attention of heads ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mask", MASKED)
def test_attention_of_heads_is_recognized(mask: str) -> None:
    result, found = found_in(graph_of(lambda: heads(MASKED[mask])))
    assert found == ["full_attention" if mask == "nothing" else "causal_attention"]
    attrs = dict(result.outputs[0].node.attrs)
    assert (attrs["num_heads"], attrs["num_kv_heads"], attrs["head_dim"]) == (H, H, D)


@pytest.mark.parametrize("form", ["transpose", "permute", "permute twice", "rows scaled", "keys scaled"])
def test_keys_may_lie_and_factors_may_stand_anywhere(form: str) -> None:
    assert found_in(graph_of(lambda: keys_first(form)))[1] == ["causal_attention"]


def test_softmax_of_the_scores_may_be_written_too() -> None:
    def spelled() -> Value:
        q, k, v = map(apart, qkv())
        scores = ops.batch_matmul_bt(q, k) * D**-0.5 + constant("causal")
        powers = ops.exp(scores - scores.max(-1, keepdims=True))
        return joined(ops.batch_matmul(powers / powers.sum(-1, keepdims=True), v))

    assert found_in(graph_of(spelled))[1] == ["causal_attention"]


def test_heads_that_lie_first_are_reordered_where_that_gains() -> None:
    graph = graph_of(lambda: attend(*(p(name, H, S, D) for name in "qkv"), MASKED["an addend"]))
    found = Counter(found_in(graph)[1])
    assert found == {"causal_attention": 1, "permute": 4, "reshape": 4}


def test_keys_of_another_sequence_make_cross_attention() -> None:
    result, found = found_in(graph_of(lambda: joined(attend(*map(apart, qkv(keys=7)), MASKED["nothing"]))))
    assert found == ["multi_head_attn"] and result.outputs[0].node.attr("is_cross") is True


@pytest.mark.parametrize("mask", REFUSED)
def test_another_mask_of_heads_is_left_alone(mask: str) -> None:
    make, detail = REFUSED[mask]
    graph = graph_of(lambda: heads(make))
    result, found = found_in(graph)
    assert not any("attention" in op for op in found)
    missed = [m for m in optimize(graph, phase="forward")[1].missed if "Attention" in m.label]
    kind = "constant" if "constant" in missed[0].detail else "broadcast_to"
    assert [(m.reason, m.detail) for m in missed] == [("attributes", detail.format(kind))]


def test_another_factor_of_heads_is_left_alone() -> None:
    graph = graph_of(lambda: heads(MASKED["an addend"], 0.25))
    assert "causal_attention" not in found_in(graph)[1]
    missed = [m for m in optimize(graph, phase="forward")[1].missed if "Attention" in m.label]
    assert [(m.reason, m.detail) for m in missed] == [("attributes", "c is 0.25, 1 / √(the width of q) is 0.5")]
    assert (missed[0].guard or ("", 0, ""))[0] == "gdlab/rewrite/rules/recognize_attention.py"


def test_values_wider_than_the_queries_are_no_attention() -> None:
    graph = graph_of(lambda: attend(p("q", H, S, D), p("k", H, S, D), p("v", H, S, D + 1), MASKED["nothing"]))
    assert "full_attention" not in found_in(graph)[1]
    missed = {(m.label, m.reason) for m in optimize(graph, phase="forward")[1].missed}
    assert missed == {("Recognize FullAttention", "shape"), ("Recognize CrossAttention", "attributes")}


@pytest.mark.parametrize("kind", ["output", "reader"])
def test_weights_that_are_read_elsewhere_are_not_computed_twice(kind: str) -> None:
    def read() -> list[Value]:
        q, k, v = map(apart, qkv())
        weights = ops.softmax(ops.batch_matmul_bt(q, k) * D**-0.5)
        return [joined(ops.batch_matmul(weights, v)), weights if kind == "output" else weights.mean_all()]

    graph = graph_of(read)
    result, report = optimize(graph, phase="forward")
    assert "full_attention" not in ops_of(result)
    same_values(graph, result)
    missed = next(m for m in report.missed if m.label == "Recognize FullAttention")
    assert missed.reason == ("is_output" if kind == "output" else "multi_use")
    softmax = next(n.id for n in result if n.op == "softmax")
    assert missed.detail.startswith(f"%{softmax} is ") and missed.about == softmax


def test_attention_can_be_switched_off() -> None:
    graph = graph_of(lambda: heads(MASKED["an addend"]))
    result, report = optimize(graph, phase="forward", disable=("Recognize CausalAttention",))
    assert "causal_attention" not in ops_of(result)
    assert [(m.label, m.reason) for m in report.missed] == [("Recognize CausalAttention", "disabled")]


# repeated keys --------------------------------------------------------------------------------------------------------
def grouped(key_heads: int, group: int, form: str = "each") -> Value:
    q, (k, v) = p("q", S, key_heads * group * D), (apart(p(name, S, key_heads * D), key_heads) for name in "kv")

    def repeat(x: Value) -> Value:
        if form == "whole":
            return ops.concat([x] * group, 0)
        return ops.broadcast_to(x.reshape((key_heads, 1, S, D)), (key_heads, group, S, D)).reshape((-1, S, D))

    mask = MASKED["nothing" if form == "full" else "an addend"]
    return joined(attend(apart(q, key_heads * group), repeat(k), repeat(v), mask))


@pytest.mark.parametrize(("key_heads", "group"), [(2, 3), (1, 4), (3, 2)])
@pytest.mark.parametrize("form", ["each", "full"])
def test_repeated_key_heads_are_read_where_they_lie(key_heads: int, group: int, form: str) -> None:
    result, found = found_in(graph_of(lambda: grouped(key_heads, group, form)))
    assert found == ["full_attention" if form == "full" else "causal_attention"]
    attrs = dict(result.outputs[0].node.attrs)
    assert (attrs["num_heads"], attrs["num_kv_heads"]) == (key_heads * group, key_heads)


def test_key_heads_repeated_as_a_whole_stay_repeated() -> None:
    result, found = found_in(graph_of(lambda: grouped(2, 3, "whole")))  # head j reads key head j mod 2, not j / 3
    assert "concat" in found
    assert next(n for n in result if n.op == "causal_attention").attr("num_kv_heads") == 6


# the decomposed transformer -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("train", [False, True])
def test_the_decomposed_transformer_is_recognized(train: bool) -> None:
    graph = networks.decomposed(2, length=4, width=8, inner=8, heads=2)
    result, report = optimize(graph, phase="forward")
    found = Counter(ops_of(result))
    assert found == {"matmul": 8, "rms_norm": 4, "rope": 4, "causal_attention": 2, "fused_matmul_add": 4, "packed": 2,
                     "swiglu_concat": 2, "layer_norm": 1, "cross_entropy_loss": 1}  # fmt: skip
    assert {m.reason for m in report.missed} == {"disabled"}
    if not train:
        same_values(graph, result, 1e-5)
        assert optimize(graph, phase="forward", engine="fallback")[0].fingerprint() == result.fingerprint()
        return
    full, _ = differentiate(result, wrt=map(result.value, (n.id for n in result.parameters)))
    final, report = optimize(full, phase="full")
    assert report.cost_after < report.cost_before
    same_values(differentiate(graph)[0], final, 1e-5)


# the laws, where attention stands between other nodes -----------------------------------------------------------------
def attentions(rng: np.random.Generator, pool: list[Value]) -> list[Value]:
    """Attention of heads under any mask, turned or not; its parts may be read elsewhere."""
    q, k, v = (apart(random_graphs.pick(rng, pool, (S, H * D))) for _ in range(3))
    start = len(q.graph)
    cos, sin = (ops.constant(turns(f)) for f in (np.cos, np.sin))
    if rng.random() < 0.5:
        q, k = (x * cos + ops.concat([-x[..., 2:], x[..., :2]], -1) * sin for x in (q, k))
    kinds = [*MASKED.values(), *(make for name, (make, _) in REFUSED.items() if "outside" not in name)]
    made = joined(attend(q, k, v, kinds[int(rng.integers(len(kinds)))], float(rng.choice([0.5, 0.5, 0.25]))))
    inner = Value(q.graph, int(rng.integers(start, len(q.graph))))
    return [made, inner] if rng.random() < 0.4 else [made]


def turns(f: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    angles = np.outer(np.arange(S), 10000.0 ** (-np.arange(D // 2) * 2 / D))
    return np.tile(f(angles), 2).astype(np.float32)


@pytest.mark.parametrize("seed", range(800, 800 + count(4, 8)))
def test_random_graphs_with_attention_keep_every_law(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_graphs, "MOTIFS", (*random_graphs.MOTIFS[:2], attentions, attentions, attentions))
    monkeypatch.setattr(random_graphs, "SHAPES", ((S, H * D), (H * D,)))
    graph = random_graphs.random_graph(seed, 60)
    phase = ALL_PHASES[seed % 3]
    result, report = optimize(graph, phase=phase)
    check_laws(graph, result, report, random_graphs.random_feeds(graph, seed), at_most=6)
    _, again = optimize(result, phase=phase)
    assert again.cost_after == again.cost_before == report.cost_after
    assert optimize(graph, phase=phase, engine="fallback")[1].cost_after <= 1.05 * report.cost_after
