"""Attention, rotary positions, caches and products of several matrices: what no sample can say."""

from __future__ import annotations

from typing import Literal

import numpy as np
import op_checks
import pytest
from machine import needs
from matrix import MATRIX, also, only

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import AutodiffError, CompileError, GdlabError
from gdlab.graph import Graph, Value
from gdlab.op import REGISTRY, Sample
from gdlab.op.reference import evaluate
from gdlab.ops.attention import attention_grad
from gdlab.plan import CompileOptions, compile
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.target import AdapterClass, Limits, Target
from gdlab.session import build_inference_session

RNG = np.random.default_rng(7)


def of(graph: Graph, feeds: dict[str, np.ndarray], device: str) -> list[np.ndarray]:
    """All outputs after one step."""
    with build_inference_session(graph, device=device) as session:
        for name in session.input_names():
            session.set_input(name, feeds[name])
        session.step()
        return [session.read_output_by_index(i) for i in range(session.num_outputs())]


def by_hand(q: np.ndarray, k: np.ndarray, v: np.ndarray, h: int, kv: int, d: int, window: int) -> np.ndarray:
    """Query by query and head by head, reading nothing that it must not see."""
    out = np.zeros(q.shape)
    for i in range(len(q)):
        for head in range(h):
            mine, theirs = slice(head * d, head * d + d), slice(head // (h // kv) * d, head // (h // kv) * d + d)
            first = max(0, i + 1 - window)
            logits = k[first : i + 1, theirs] @ q[i, mine] / np.sqrt(d)
            weights = np.exp(logits - logits.max())
            out[i, mine] = weights / weights.sum() @ v[first : i + 1, theirs]
    return out


def test_several_shapes_of_attention_live_in_one_graph(device: str) -> None:
    feeds, wanted = {}, []
    with Graph() as g:
        for tag, (s, h, kv, d, window) in enumerate(also([(9, 4, 2, 6, 9), (70, 3, 1, 4, 33)], (5, 2, 2, 12, 2))):
            shapes = {"q": (s, h * d), "k": (s, kv * d), "v": (s, kv * d)}
            arrays = [RNG.standard_normal(shape).astype(np.float32) for shape in shapes.values()]
            q, k, v = (ops.input(f"{name}{tag}", shape) for name, shape in shapes.items())
            g.output(ops.sliding_window_attention(q, k, v, h, kv, d, window))
            feeds |= {f"{name}{tag}": a for name, a in zip(shapes, arrays, strict=True)}
            wanted.append(by_hand(*arrays, h, kv, d, window))
    for got, want in zip(of(g, feeds, device), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def test_a_window_as_long_as_the_rows_is_causal_and_one_of_one_gives_v() -> None:
    feeds = {name: RNG.standard_normal((9, 8)) for name in "qkv"}
    with Graph() as g:
        q, k, v = (ops.input(name, (9, 8)) for name in "qkv")
        causal = ops.causal_attention(q, k, v, 2, 2, 4)
        windows = [ops.sliding_window_attention(q, k, v, 2, 2, 4, w) for w in (9, 50, 1)]
    values = evaluate(g, feeds)
    for same in windows[:2]:
        np.testing.assert_array_equal(values[same.id], values[causal.id])
    np.testing.assert_allclose(values[windows[2].id], values[v.id], rtol=1e-12)


def test_the_mask_of_the_decomposition_is_the_mask() -> None:
    """The second derivative makes the mask of rings; the first has its own."""
    from gdlab.ops.attention.attention_grad import _mask, seen

    for rows, window in ((1, 0), (5, 0), (5, 1), (5, 3), (5, 5), (4, 9)):
        g = Graph()
        mask = _mask(g, rows, window)
        np.testing.assert_array_equal(evaluate(g, {})[mask.id], seen(rows, rows, True, window))


def training(s: int, h: int, kv: int, d: int) -> Graph:
    with Graph() as g:
        q, k, v = (ops.parameter(n, (s, w * d)) for n, w in (("q", h), ("k", kv), ("v", kv)))
        out = ops.causal_attention(q, k, v, h, kv, d)
        g.set_outputs([(out * ops.input("c", (s, h * d))).sum_all()])
    return differentiate(g)[0]


# what a query does not see --------------------------------------------------------------------------------------------
def slow_gradients(feeds: dict[str, np.ndarray], h: int, kv: int, d: int, window: int) -> dict[str, np.ndarray]:
    """Of Σ c · attention, query by query, reading nothing that it must not see."""
    q, k, v, c = (feeds[name].astype(np.float64) for name in "qkvc")
    found = {name: np.zeros(feeds[name].shape) for name in "qkv"}
    for i in range(len(q)):
        for head in range(h):
            mine, theirs = slice(head * d, head * d + d), slice(head // (h // kv) * d, head // (h // kv) * d + d)
            see = slice(max(0, i + 1 - window), i + 1)
            logits = k[see, theirs] @ q[i, mine] / np.sqrt(d)
            p = np.exp(logits - logits.max())
            p /= p.sum()
            of_p = v[see, theirs] @ c[i, mine]
            of_scores = p * (of_p - p @ of_p) / np.sqrt(d)
            found["v"][see, theirs] += np.outer(p, c[i, mine])
            found["k"][see, theirs] += np.outer(of_scores, q[i, mine])
            found["q"][i, mine] += of_scores @ k[see, theirs]
    return found


SEEN: list[tuple[AdapterClass, int, int]] = also(  # rows, window; a loop over keys has one kernel for every window
    [("cpu", 70, 4), ("cpu", 70, 70), ("software", 70, 20), ("hardware", 70, 4), ("hardware", 70, 70)],
    ("software", 70, 4), ("software", 70, 70), ("cpu", 11, 4), ("software", 11, 4), ("hardware", 11, 4),
)  # fmt: skip


@pytest.mark.parametrize("spoilt", "qkvc")
@pytest.mark.parametrize(("form", "rows", "window"), SEEN)
def test_a_nan_reaches_only_who_sees_it(
    form: AdapterClass, rows: int, window: int, spoilt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight of 0 times a NaN would be a NaN: what is not seen is left out of the sum. On hardware rows with a short
    window are shared by groups of 8, whose keys lie in two blocks, and rows with the other are tiles here, of whole
    fours (their tails: `test_a_nan_reaches_only_who_sees_it_from_any_part`)."""
    tiles = form == "hardware" and window == 70
    if tiles:
        monkeypatch.setattr(attention_grad, "FEW_TILES", 0)
    kind: Literal["cpu", "wgpu"] = "cpu" if form == "cpu" else "wgpu"
    check_spoilt(rows, window, spoilt, Target(kind, form, Limits()), d=8 if tiles else 6)


def check_spoilt(rows: int, window: int, spoilt: str, target: Target, h: int = 2, kv: int = 1, d: int = 6) -> None:
    """Compare the result and the gradients with those by hand, where an operand has a NaN in its middle row."""
    shapes = {"q": (rows, h * d), "k": (rows, kv * d), "v": (rows, kv * d), "c": (rows, h * d)}
    feeds = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    feeds[spoilt][rows // 2, 1] = np.nan
    with Graph() as g:
        q, k, v, c = (ops.input(name, shape) for name, shape in shapes.items())
        out = ops.sliding_window_attention(q, k, v, h, kv, d, window)
        g.set_outputs([(out * c).sum_all(), out])
    full, _ = differentiate(g, wrt=[q, k, v])
    full.set_outputs(full.outputs)
    with np.errstate(all="ignore"):
        slow = slow_gradients(feeds, h, kv, d, window)
        out_wanted = by_hand(*(feeds[name].astype(np.float64) for name in "qkv"), h, kv, d, window)
    values = evaluate(full, feeds)
    got = run_on(full, feeds, target)[1:]
    wanted = {"out": out_wanted} | slow
    for (name, want), one, id in zip(wanted.items(), got, full.output_ids[1:], strict=True):
        np.testing.assert_allclose(values[id], want, rtol=1e-9, atol=1e-9, err_msg=f"{name} by the reference")
        np.testing.assert_allclose(one, want, rtol=1e-3, atol=1e-4, err_msg=name)
    assert not np.isnan(out_wanted).all()


@pytest.mark.parametrize("spoilt", "qkv")
@pytest.mark.parametrize("window", [0, 4])
def test_with_a_soft_cap_a_nan_reaches_only_who_sees_it(window: int, spoilt: str, device: str) -> None:
    rows, h, kv, d = 11, 2, 1, 6
    shapes = {"q": (rows, h * d), "k": (rows, kv * d), "v": (rows, kv * d)}
    feeds = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    feeds[spoilt][rows // 2, 1] = np.nan
    with Graph() as g:
        q, k, v = (ops.input(name, shape) for name, shape in shapes.items())
        g.set_outputs([ops.softcap_attention(q, k, v, h, kv, d, 5.0, window)])
    distance = np.arange(rows) - rows // 2
    sees = distance == 0 if spoilt == "q" else (distance >= 0) & (distance < (window or rows))
    with np.errstate(all="ignore"):
        (wanted,) = (evaluate(g, feeds)[i] for i in g.output_ids)
    assert np.isnan(wanted).any(axis=1).tolist() == sees.tolist()
    with build_inference_session(g, device) as session:
        for name, data in feeds.items():
            session.set_input(name, data)
        session.step()
        np.testing.assert_allclose(session.read_output(), wanted, rtol=1e-3, atol=1e-4)


def run_on(graph: Graph, feeds: dict[str, np.ndarray], target: Target) -> list[np.ndarray]:
    """All outputs of a plan for this target."""
    from plans import load, outputs

    from gdlab.devices.choose import device as open_device

    if target.kind == "wgpu":
        needs("wgpu")
    program = load(open_device(target.kind), compile(graph, mode="inference", target=target), feeds)
    try:
        program.step(None)
        return outputs(program)
    finally:
        program.close()


def test_labels_say_queries_keys_and_heads() -> None:
    plan = compile(training(33, 4, 2, 8), mode="training")
    labels = {d.label.split(" +")[0] for d in plan.dispatches if d.kernel == "custom"}
    names = ("CausalAttention", "AttentionGradQ", "AttentionGradK")
    # the logarithms are a result of the first, the gradient of the values is one of the last
    assert labels == {f"{name}[q=33,kv=33,h=4/2]" for name in names}


def test_scores_are_never_stored() -> None:
    for target in (Target.portable(), Target("cpu", "cpu", Limits())):
        plan = compile(training(512, 2, 2, 8), mode="training", target=target)
        assert max(b.nbytes for b in plan.buffers) == 512 * 16 * 4


def test_a_loop_that_a_software_adapter_would_cut_short_is_refused() -> None:
    """It stops silently after 65535 turns of one invocation."""
    software = Target("wgpu", "software", Limits())
    compile(training(2048, 1, 1, 64), mode="training", target=software)
    with pytest.raises(CompileError, match="loop trips, wanted at most 60000"):
        compile(training(16384, 1, 1, 64), mode="training", target=software)


def test_heads_too_wide_for_shared_memory_work_one_by_one(device: str) -> None:
    """4 rows of sums per invocation: 8 invocations a group up to 128 elements, fewer beyond."""
    feeds = {name: RNG.standard_normal((5, 300)).astype(np.float32) for name in "qkv"}
    with Graph() as g:
        g.set_outputs([ops.causal_attention(*(ops.input(name, (5, 300)) for name in "qkv"), 1, 1, 300)])
    np.testing.assert_allclose(of(g, feeds, device)[0], by_hand(*feeds.values(), 1, 1, 300, 5), rtol=2e-4, atol=2e-5)


# forms for hardware ---------------------------------------------------------------------------------------------------
def heads(rows: int, h: int, kv: int, d: int, **more: int) -> Sample:
    attrs = {"num_heads": h, "num_kv_heads": kv, "head_dim": d} | more
    return Sample((rows, h * d), (rows, kv * d), (rows, kv * d), attrs=attrs, low=-1, high=1)


SMALL = {
    "sliding_window_attention": heads(70, 2, 1, 8, window=70),  # as in test_a_nan_reaches_only_who_sees_it
    "causal_attention": heads(70, 2, 1, 6),
    "full_attention": heads(3, 1, 1, 68),  # more than 64 elements: two halves
    "batch_matmul": Sample((2, 65, 17), (2, 17, 3)),
    "batch_matmul_at": Sample((2, 17, 65), (2, 17, 3)),
    "block_matmul_at": Sample((17, 6), (17, 130), attrs={"groups": 2}),
}


FORMS = "sliding_window_attention", "batch_matmul", "batch_matmul_at", "block_matmul_at"


@pytest.mark.parametrize("name", only(FORMS, SMALL))
def test_tiles_for_hardware_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("wgpu")
    monkeypatch.setattr(attention_grad, "FEW_TILES", 0)
    monkeypatch.setattr(REGISTRY[name], "samples", (SMALL[name],))
    op_checks.check_hardware_form(REGISTRY[name])


IN_PARTS = Target("wgpu", "hardware", Limits(workgroup_bytes=32768, invocations=256))
PARTED = {  # rows, keys, heads, kv heads, head_dim, window (0: all keys)
    "heads of keys have 3 and 6 blocks, a window": (150, 150, 6, 2, 6, 60),
    "two halves of a head, keys of others, more parts than blocks": (33, 130, 2, 2, 68, 0),
    "heads of keys have 3 and 6 blocks": (70, 70, 6, 2, 6, 70),
    "more parts than blocks": (40, 40, 3, 1, 6, 40),
    "a window": (200, 200, 2, 1, 8, 70),
    "keys of others": (33, 330, 4, 2, 20, 0),
    "two halves of a head": (130, 130, 1, 1, 100, 130),
    "halves of 64": (70, 70, 1, 1, 128, 70),
}
EVERY_PART = (
    "heads of keys have 3 and 6 blocks, a window", "two halves of a head, keys of others, more parts than blocks",
)  # fmt: skip


@pytest.mark.parametrize("case", only(EVERY_PART, PARTED))
def test_parts_of_a_group_compute_the_same(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result and the gradients, within the tolerance of an op against float64, and as closely as by hand: the scale
    of a gradient through a mask is that of its -1e30."""
    rows, keys, h, kv, d, window = PARTED[case]
    monkeypatch.setattr(attention_grad, "FEW_TILES", 0)
    shapes = {"q": (rows, h * d), "k": (keys, kv * d), "v": (keys, kv * d), "c": (rows, h * d)}
    feeds = {name: RNG.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    with Graph() as g:
        q, k, v, c = (ops.input(name, shape) for name, shape in shapes.items())
        if window:
            out = ops.sliding_window_attention(q, k, v, h, kv, d, window)
        else:
            out = ops.cross_attention(q, k, v, h, kv, d)
        g.set_outputs([(out * c).sum_all(), out])
    full, _ = differentiate(g, wrt=[q, k, v])
    full.set_outputs(full.outputs)
    customs = [d.custom for d in compile(full, mode="inference", target=IN_PARTS).dispatches if d.custom]
    assert [(c["PARTS"], c.group) for c in customs] == [(2, 256)] * (3 if d <= 64 else 4)
    values = evaluate(full, feeds)
    scales = op_checks.magnitudes(full, values)
    for i, (got, id) in enumerate(zip(run_on(full, feeds, IN_PARTS), full.output_ids, strict=True)):
        assert op_checks.compare(got, values[id], scales[id], op_checks.RTOL["wgpu"]) is None, i
        if i > 0:  # a loss is a sum of thousands
            np.testing.assert_allclose(got, values[id], rtol=1e-3, atol=1e-4, err_msg=str(i))


@pytest.mark.parametrize("spoilt", "qkvc")
def test_a_nan_reaches_only_who_sees_it_from_any_part(spoilt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three blocks of keys the second part has the one with the NaN, which other parts and rows do not see."""
    monkeypatch.setattr(attention_grad, "FEW_TILES", 0)
    check_spoilt(150, 60, spoilt, IN_PARTS, h=6, kv=2)  # kernels as in the test before


@pytest.mark.parametrize(("spoilt", "sign"), [("q", 1), ("k", 1), ("k", -1), ("v", 1)])
def test_an_infinity_in_one_part_is_what_it_is_in_one_sum(
    spoilt: str, sign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A score of +∞ makes its row NaN, one of -∞ has no weight."""
    monkeypatch.setattr(attention_grad, "FEW_TILES", 0)
    shapes = {"q": (150, 36), "k": (150, 12), "v": (150, 12)}
    feeds = {name: RNG.uniform(0.1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    feeds[spoilt][75, 1] = sign * np.inf
    with Graph() as g:
        operands = (ops.input(name, shape) for name, shape in shapes.items())
        g.output(ops.sliding_window_attention(*operands, 6, 2, 6, 60))
    with np.errstate(all="ignore"):
        wanted = by_hand(*(feeds[name].astype(np.float64) for name in "qkv"), 6, 2, 6, 60)
    np.testing.assert_allclose(run_on(g, feeds, IN_PARTS)[0], wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sign", [1, -1])
def test_scores_far_apart_in_two_parts_do_not_overflow(sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of ±900: e to their difference is infinite in float32. Gradients read the logarithm of the sum of both."""
    monkeypatch.setattr(attention_grad, "FEW_TILES", 0)
    shapes = {"q": (150, 36), "k": (150, 12), "v": (150, 12), "c": (150, 36)}
    feeds = {name: RNG.uniform(-1, 1, shape) if name in "vc" else np.zeros(shape) for name, shape in shapes.items()}
    feeds["q"][:, ::6] = 30.0 * np.sqrt(6)  # the other elements of a head are 0
    feeds["k"][:, ::6] = (np.where(np.arange(150) < 64, -30, 30) * sign)[:, None]
    feeds = {name: values.astype(np.float32) for name, values in feeds.items()}
    with Graph() as g:
        q, k, v, c = (ops.input(name, shape) for name, shape in shapes.items())
        g.set_outputs([(ops.sliding_window_attention(q, k, v, 6, 2, 6, 60) * c).sum_all()])
    full, _ = differentiate(g, wrt=[q, k, v])
    full.set_outputs(full.outputs)
    wanted = slow_gradients(feeds, 6, 2, 6, 60)
    for name, got in zip("qkv", run_on(full, feeds, IN_PARTS)[1:], strict=True):
        np.testing.assert_allclose(got, wanted[name], rtol=1e-3, atol=1e-3, err_msg=name)


SHORT = {  # a head in two parts, keys in three
    "full_attention": heads(130, 1, 1, 132),
    "causal_attention": heads(9, 1, 1, 132),
}


@pytest.mark.parametrize("name", only(["full_attention"], SHORT))
def test_few_rows_are_shared_by_more_groups_and_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 rows a group instead of 64. Gradients: `test_a_nan_reaches_only_who_sees_it`."""
    needs("wgpu")
    monkeypatch.setattr(REGISTRY[name], "samples", (SHORT[name],))
    op_checks.check_hardware_form(REGISTRY[name])


def cached(queries: int, keys: int, d: int, pos: int | list[int], *valid: int, **more: float) -> Sample:
    h, kv = 4, 2
    attrs = {"num_heads": h, "num_kv_heads": kv, "head_dim": d} | more
    counts = (pos if isinstance(pos, list) else [pos], *([count] for count in valid))
    ones, values = [(len(count),) for count in counts], (None, None, None, *counts)
    whole = {3 + i: 1000 for i in range(len(counts))}
    shapes = (queries, h * d), (keys, kv * d), (keys, kv * d)
    return Sample(*shapes, *ones, attrs=attrs, integers=whole, values=values, low=-1, high=1)


MANY_KEYS = {  # in one, two and three rounds, of heads of one four, with a tail, and of many fours; in chunks of keys
    "cached_attention": (
        *also(
            [
                cached(2, 300, 3, 255), cached(1, 600, 132, 999), cached(1, 8500, 4, 8400),
                cached(3, 3 * 300, 8, [260, 0, 299]), cached(4, 2 * 1300, 6, [1100, 40]),
            ],
            cached(1, 700, 64, 600), cached(1, 257, 132, 999), cached(1, 1300, 6, 1100),
        ),
    ),
    "cached_block_attention": (
        *also(
            [cached(3, 600, 20, 400, 3, window=300), cached(6, 2 * 1300, 6, [1100, 3], 2, window=300)],
            cached(3, 600, 6, 510, 2, window=0), cached(3, 1300, 6, 1100, 2, window=300),
        ),
    ),
    "cached_softcap_attention": (cached(2, 300, 8, 280, 2, softcap=0.5),),
}


@pytest.mark.parametrize("name", MANY_KEYS)
def test_keys_of_a_query_are_shared_by_a_group(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("wgpu")
    for sample in MANY_KEYS[name]:
        monkeypatch.setattr(REGISTRY[name], "samples", (sample,))
        op_checks.check_hardware_form(REGISTRY[name])


@pytest.mark.parametrize("caches", also([2], 1))
@pytest.mark.parametrize("keys", [300, 1300])  # in one group, in chunks
def test_what_lies_behind_the_last_key_is_not_read(keys: int, caches: int) -> None:
    """NaN and infinities in the rest of a cache; infinities in what is seen stay what they are."""
    from plans import load, outputs

    from gdlab.devices.choose import device as open_device

    needs("wgpu")
    shapes = {"q": (caches, 16), "k": (caches * keys, 8), "v": (caches * keys, 8)}
    feeds = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for begin in range(0, caches * keys, keys):
        feeds["k"][begin + 270 : begin + keys], feeds["v"][begin + 270 : begin + keys] = np.nan, np.inf
    feeds["v"][269, 3] = np.inf
    with Graph() as g:
        operands = [ops.input(name, shape) for name, shape in shapes.items()]
        g.output(ops.cached_attention(*operands, ops.constant_u32([269] * caches), 2, 1, 8))
    wanted = evaluate(g, feeds)[g.output_ids[0]]
    plan = compile(g, mode="inference", target=Target("wgpu", "hardware", Limits()))
    program = load(open_device("wgpu"), plan, feeds)
    try:
        program.step(None)
        np.testing.assert_allclose(outputs(program)[0], wanted, rtol=1e-4, atol=1e-5)
    finally:
        program.close()
    assert np.isinf(wanted).sum() == 2 and not np.isnan(wanted).any()


def test_rows_choose_their_form_for_hardware() -> None:
    def files(rows: int, h: int) -> list[str]:
        target = Target("wgpu", "hardware", Limits())
        dispatches = compile(training(rows, h, h, 64), mode="training", target=target).dispatches
        return [d.custom.file for d in dispatches if d.custom and "Attention" in d.label]

    def parts(limits: Limits, rows: int = 512) -> set[tuple[int, tuple[int, int, int]]]:
        target = Target("wgpu", "hardware", limits)
        dispatches = compile(training(rows, 16, 16, 64), mode="training", target=target).dispatches
        return {(d.custom["PARTS"], d.workgroup_size) for d in dispatches if d.custom and "Attention" in d.label}

    few, many = files(64, 4), files(512, 16)
    assert len(few) == len(many) == 3
    assert all("attention_short" in file for file in few) and all("attention_tiles" in file for file in many)
    alone, two = {(1, (128, 1, 1))}, {(2, (256, 1, 1))}
    assert parts(Limits()) == alone, "two tiles do not fit into the memory of every adapter"
    assert parts(Limits(workgroup_bytes=32768)) == two
    assert parts(Limits(workgroup_bytes=32768, invocations=255)) == alone
    assert parts(Limits(workgroup_bytes=32768), rows=64 * attention_grad.FEW_GROUPS // 16) == alone


# gradients of keys and values together --------------------------------------------------------------------------------
def gradients(plan: ExecutionPlan) -> list[tuple[str, tuple[str, ...]]]:
    """The ops that make gradients of attention, with what they store besides."""
    found = [d for d in plan.dispatches if d.custom and d.label.startswith("AttentionGrad")]
    return sorted((d.label.split("[")[0], d.custom.results) for d in found if d.custom)


@pytest.mark.parametrize("form", ["cpu", "software", "hardware"])
def test_one_dispatch_makes_the_gradients_of_keys_and_values(form: AdapterClass) -> None:
    """Scores and weights are computed once for both, where the sums of both find room: of heads of up to 64."""
    target = Target("cpu" if form == "cpu" else "wgpu", form, Limits())
    for d, wide in ((64, False), (65, True)):
        plan = compile(training(9, 4, 2, d), mode="training", target=target)
        grads, values = ("AttentionGradQ", ()), ("AttentionGradV", ())
        assert gradients(plan) == [("AttentionGradK", () if wide else ("values",)), grads, *([values] * wide)]
    both = compile(training(9, 4, 2, 64), mode="training", target=target)
    apart = CompileOptions(fuse_dispatches=False)
    alone = compile(training(9, 4, 2, 64), options=apart, mode="training", target=target)
    flops = [d.flops for plan in (alone, both) for d in plan.dispatches if d.label.startswith("AttentionGradK")]
    assert gradients(alone) == [("AttentionGradK", ()), ("AttentionGradQ", ()), ("AttentionGradV", ())]
    assert flops[1] * 3 == flops[0] * 4, "three products, and one more"


def test_a_gradient_of_values_alone_has_a_dispatch_of_its_own() -> None:
    for wrt in ("k", "v", "qk", "qv"):
        with Graph() as g:
            named = {name: ops.input(name, (9, 16)) for name in "qkvc"}
            out = ops.causal_attention(named["q"], named["k"], named["v"], 2, 2, 8)
            g.set_outputs([(out * named["c"]).sum_all()])
        full, _ = differentiate(g, wrt=[named[name] for name in wrt])
        full.set_outputs(full.outputs)
        plan = compile(full, mode="inference")
        assert gradients(plan) == [(f"AttentionGrad{name.upper()}", ()) for name in sorted(wrt)]


@pytest.mark.parametrize("form", ["cpu", "software", "hardware"])
def test_values_of_another_attention_to_the_same_keys_are_not_taken_for_ours(form: AdapterClass) -> None:
    """Two attentions with the same queries and keys, whose gradients come from different rows; one has a window."""
    shapes = dict.fromkeys("qkvwce", (33, 8))
    feeds = {name: RNG.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    with Graph() as g:
        q, k, v, w, c, e = (ops.input(name, shape) for name, shape in shapes.items())
        out = ops.causal_attention(q, k, v, 2, 2, 4) * c + ops.causal_attention(q, k, w, 2, 2, 4) * e
        g.set_outputs([(out + ops.sliding_window_attention(q, k, v, 2, 2, 4, 4) * e).sum_all()])
    full, _ = differentiate(g, wrt=[q, k, v, w])
    full.set_outputs(full.outputs)
    target = Target("cpu" if form == "cpu" else "wgpu", form, Limits())
    made = gradients(compile(full, mode="inference", target=target))
    assert [results for _, results in made].count(("values",)) == 2, "the third one's values are added to the first's"
    if form == "hardware" and not MATRIX:  # the plan decides; those kernels: test_a_nan_reaches_only_who_sees_it
        return
    values = evaluate(full, feeds)
    for got, id in zip(run_on(full, feeds, target), full.output_ids, strict=True):
        np.testing.assert_allclose(got, values[id], rtol=1e-3, atol=1e-4)


# rotary positions -----------------------------------------------------------------------------------------------------
def test_far_positions_keep_their_digits(device: str) -> None:
    """A position of a million times a rate in float32 would be wrong in the first digit."""
    x = RNG.standard_normal((2, 64)).astype(np.float32)
    with Graph() as g:
        g.set_outputs([ops.rope_with_offset(ops.input("x", (2, 64)), 10000.0, 1_000_003, 64)])
    (got,) = of(g, {"x": x}, device)
    angles = np.outer([1_000_003, 1_000_004], 10000.0 ** (-2 * np.arange(32) / 64))
    low, high = x[:, :32].astype(np.float64), x[:, 32:].astype(np.float64)
    cosine, sine = np.cos(angles), np.sin(angles)
    want = np.concatenate([low * cosine - high * sine, low * sine + high * cosine], axis=1)
    np.testing.assert_allclose(got, want, atol=2e-5)


def test_positions_may_stand_where_the_formula_has_them() -> None:
    with Graph():
        x, at, off = ops.input("x", (3, 8)), ops.input_u32("at", (3,)), ops.input_u32("off", (1,))
        calls = [
            (ops.rope_positions(x, 100.0, at, 8), ops.rope_positions(x, at, 100.0, 8)),
            (ops.rope_dynamic_offset(x, 100.0, off, 8), ops.rope_dynamic_offset(x, off, theta=100.0, head_dim=8)),
            (x.rope_positions(100.0, at, 8), ops.rope_positions(x, theta=100.0, positions=at, head_dim=8)),
        ]
        for one, other in calls:
            assert one.node.key == other.node.key
        with pytest.raises(GdlabError, match="rope_positions: operand"):
            ops.rope_positions(x, 100.0, 3, 8)


def divided(x: np.ndarray, positions: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Pair by pair."""
    out = x.astype(np.float64)
    for row, at in enumerate(positions):
        for j, factor in enumerate(factors):
            angle = float(at) * 500.0 ** (-2 * j / 8) / factor
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            out[row, [j, j + 4]] = turn @ x[row, [j, j + 4]]
    return out


def test_factors_divide_the_rates(device: str) -> None:
    x, factors = RNG.standard_normal((3, 8)).astype(np.float32), np.array([1.0, 2.0, 4.5, 0.5], np.float32)
    positions = np.array([9, 0, 31], np.uint32)
    with Graph() as g:
        v, f, off = ops.input("x", (3, 8)), ops.parameter("rope_freqs.weight", (4,)), ops.input_u32("off", (1,))
        at = ops.constant_u32(positions)
        calls = {
            "rope": ops.rope(v, 500.0, 8, freq_factors=f),
            "rope_with_offset": ops.rope_with_offset(v, 500.0, 7, 8, f),
            "rope_dynamic_offset": ops.rope_dynamic_offset(v, 500.0, off, 8, freq_factors=f),
            "rope_positions": v.rope_positions(500.0, at, 8, freq_factors=f),
        }
        assert ops.rope(v, 500.0, 8, freq_factors=None).node.op == "rope"
        with pytest.raises(GdlabError, match=r"wanted freq_factors\[4\], half of head_dim"):
            ops.rope(v, 500.0, 8, freq_factors=v)
        with pytest.raises(GdlabError, match="rope_scaled: operand: given int 3"):
            ops.rope(v, 500.0, 8, freq_factors=3)  # type: ignore[arg-type]
        g.set_outputs(calls)
    wanted = [np.arange(3), np.arange(3) + 7, np.arange(3) + 11, positions]
    with build_inference_session(g, device=device) as session:
        session.set_input("x", x)
        session.set_input_u32("off", [11])
        session.set_parameter("rope_freqs.weight", factors)
        session.step()
        for i, at_rows in enumerate(wanted):
            np.testing.assert_allclose(session.read_output_by_index(i), divided(x, at_rows, factors), atol=2e-5)


# caches ---------------------------------------------------------------------------------------------------------------
def test_token_by_token_equals_all_at_once(device: str) -> None:
    s, h, kv, d = 6, 4, 2, 4
    q, k, v = (RNG.standard_normal((s, w * d)).astype(np.float32) for w in (h, kv, kv))
    with Graph() as g:
        pos, row = ops.input_u32("pos", (1,)), ops.input("q", (1, h * d))
        keys = ops.cache_write(ops.input("k", (1, kv * d)), ops.input("keys", (s, kv * d)), pos)
        values = ops.cache_write(ops.input("v", (1, kv * d)), ops.input("values", (s, kv * d)), pos)
        g.set_outputs([ops.cached_attention(row, keys, values, pos, h, kv, d), keys, values])
    held = np.full((s, kv * d), 7.0, np.float32), np.full((s, kv * d), 7.0, np.float32)
    want = by_hand(q, k, v, h, kv, d, s)
    with build_inference_session(g, device=device) as session:
        for i in range(s):
            session.set_input_u32("pos", np.array([i], np.uint32))
            rows = {"q": q[i : i + 1], "k": k[i : i + 1], "v": v[i : i + 1], "keys": held[0], "values": held[1]}
            for name, data in rows.items():
                session.set_input(name, data)
            session.step()
            out, *held = (session.read_output_by_index(j) for j in range(3))  # type: ignore[assignment]
            np.testing.assert_allclose(out[0], want[i], rtol=2e-4, atol=2e-5)
    np.testing.assert_array_equal(held[0], k)


def test_a_gradient_never_passes_a_cache_silently() -> None:
    with Graph() as g:
        new, cache = ops.parameter("new", (1, 4)), ops.input("cache", (3, 4))
        written = ops.cache_write(new, cache, ops.input_u32("pos", (1,)))
        g.set_outputs([written.sum_all()])
    with pytest.raises(AutodiffError, match="cache_write: given no gradient"):
        differentiate(g)


# second derivatives on devices ----------------------------------------------------------------------------------------
def test_hessian_vector_products_of_attention_run_on_devices(device: str) -> None:
    """The decomposition of the gradient ops, lowered: masks from rings, key heads repeated."""
    s, h, kv, d = 5, 2, 1, 4
    with Graph() as g:
        q, k, v = (ops.input(n, (s, w * d)) for n, w in (("q", h), ("k", kv), ("v", kv)))
        out = ops.sliding_window_attention(q, k, v, h, kv, d, 3)
        g.set_outputs([(out * out).sum_all()])
    full, _ = differentiate(g, wrt=[q, k, v])
    with full:
        along: list[Value] = [(x * ops.input(f"d{i}", x.shape)).sum_all() for i, x in enumerate(full.outputs[1:])]
        full.set_outputs([along[0] + along[1] + along[2]])
    twice, _ = differentiate(full, wrt=[full.value(x.id) for x in (q, k, v)])
    ids = twice.output_ids[1:]
    twice.set_outputs([twice.value(i) for i in ids])
    shapes = {n.name: n.type.shape for n in twice if n.op == "input"}
    feeds = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    values = evaluate(twice, feeds)
    for got, id in zip(of(twice, feeds, device), ids, strict=True):
        np.testing.assert_allclose(got, values[id], rtol=2e-3, atol=2e-4)
