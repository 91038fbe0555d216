"""Caches in parameters: written in place, kept from step to step, read through the result of the write alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from gdlab import ops
from gdlab.autodiff import differentiate
from gdlab.base.errors import AutodiffError, GraphError, SessionError
from gdlab.graph import Graph, Value
from gdlab.models import lm
from gdlab.op.reference import evaluate
from gdlab.plan import compile
from gdlab.plan.codec import from_json, to_json
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.target import CompileOptions
from gdlab.session import Session, SessionConfig, build, build_inference_session, build_session

RNG = np.random.default_rng(11)


# decoding -------------------------------------------------------------------------------------------------------------
CONFIG = lm.TransformerLmConfig(
    vocab_size=13, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=24,
)  # fmt: skip
LENGTH = 7
HEADS = CONFIG.num_attention_heads, CONFIG.num_key_value_heads, CONFIG.head_dim


@dataclass(frozen=True)
class Between:
    """An attention between the projections that turns queries and keys by itself."""

    mixed: Callable[[Value, Value, Value], Value]

    def turned(self, x: Value) -> Value:
        return x


def decoding() -> Graph:
    """One token at `kv_pos`; caches in parameters."""
    with Graph() as g:
        model, position = lm._LanguageModel(CONFIG), ops.input_u32("kv_pos", (1,))
        caches = iter([ops.parameter(n, (LENGTH, CONFIG.kv_dim), init="zeros") for n in lm.cache_names(CONFIG)])

        def attend(q: Value, k: Value, v: Value) -> Value:
            q, k = (ops.rope_dynamic_offset(t, position, CONFIG.rope_theta, CONFIG.head_dim) for t in (q, k))
            keys, values = (ops.cache_write(new, next(caches), position) for new in (k, v))
            return ops.cached_attention(q, keys, values, position, *HEADS)

        x = model.embed(ops.input_u32("token_ids", (1,)))
        for block in model.blocks:
            x = block.forward(x, Between(attend))
        g.output(model.logits(x), "logits")
    return g


def reading(rows: int) -> Graph:
    """The first `count` of `rows` tokens at once, into the same caches."""
    with Graph() as g:
        model, start, count = lm._LanguageModel(CONFIG), ops.constant_u32([0]), ops.input_u32("count", (1,))
        caches = iter([ops.parameter(n, (LENGTH, CONFIG.kv_dim), init="zeros") for n in lm.cache_names(CONFIG)])

        def attend(q: Value, k: Value, v: Value) -> Value:
            q, k = (ops.rope(t, CONFIG.rope_theta, CONFIG.head_dim) for t in (q, k))
            keys, values = (ops.cache_write_prefix(new, next(caches), start, count) for new in (k, v))
            return ops.cached_block_attention(q, keys, values, start, count, *HEADS)

        x = model.embed(ops.input_u32("token_ids", (rows,)))
        for block in model.blocks:
            x = block.forward(x, Between(attend))
        g.output(model.logits(x), "logits")
    return g


def at_once(tokens: np.ndarray, weights: Session) -> np.ndarray:
    """The logits of all tokens by causal attention, in float64."""
    g = lm.transformer_lm(CONFIG, LENGTH, "prefill")
    feeds = {n.name: weights.read_param(n.name) for n in g.parameters} | {"token_ids": tokens}
    return np.asarray(evaluate(g, feeds)[g.output_ids[0]])


def test_token_by_token_equals_all_at_once(device: str) -> None:
    tokens = RNG.integers(0, 13, LENGTH).astype(np.uint32)
    with build_inference_session(decoding(), device=device) as session:
        session.initialize(3)
        for name in lm.cache_names(CONFIG):  # what is not yet written is seen by nobody
            session.upload_param(name, np.full((LENGTH, CONFIG.kv_dim), np.nan))
        want = at_once(tokens, session)
        for i, token in enumerate(tokens):
            session.set_input_u32("token_ids", [token])
            session.set_input_u32("kv_pos", [i])
            session.step()
            np.testing.assert_allclose(session.read_output()[0], want[i], rtol=2e-4, atol=2e-5)


def test_two_sessions_share_a_cache(device: str) -> None:
    """A prompt of 4 (of 5 rows) is read by one, the rest is decoded by the other."""
    tokens = RNG.integers(0, 13, LENGTH).astype(np.uint32)
    with build_inference_session(reading(5), device=device) as prompt:
        prompt.initialize(5)
        for name in lm.cache_names(CONFIG):
            prompt.upload_param(name, np.full((LENGTH, CONFIG.kv_dim), np.nan))
        want = at_once(tokens, prompt)
        prompt.set_input_u32("token_ids", tokens[:5])
        prompt.set_input_u32("count", [4])
        prompt.step()
        np.testing.assert_allclose(prompt.read_output()[:4], want[:4], rtol=2e-4, atol=2e-5)
        assert np.isfinite(prompt.read_param("k.1")).all(axis=1).tolist() == [True] * 4 + [False] * 3
        config = SessionConfig(mode="inference", device=device, share_parameters_from=prompt)
        with build(decoding(), config)[0] as session:
            for i, token in enumerate(tokens[4:], 4):
                session.set_input_u32("token_ids", [token])
                session.set_input_u32("kv_pos", [i])
                session.step()
                np.testing.assert_allclose(session.read_output()[0], want[i], rtol=2e-4, atol=2e-5)
            assert np.isfinite(prompt.read_param("k.1")).all()


# the state of a session -----------------------------------------------------------------------------------------------
def small(rows: int = 2, prefix: bool = False) -> Graph:
    """f32[5, 4], some rows written, and twice the sum of what is there."""
    with Graph() as g:
        new, cache, pos = ops.input("new", (rows, 4)), ops.parameter("cache", (5, 4)), ops.input_u32("pos", (1,))
        counts = (ops.input_u32("count", (1,)),) if prefix else ()
        written = (ops.cache_write_prefix if prefix else ops.cache_write)(new, cache, pos, *counts)
        g.set_outputs({"written": written, "twice": written.scale(2.0).sum_all()})
    return g


def feed(session: Session, value: float, pos: int) -> None:
    session.set_input("new", np.full(session.loaded.plan.input_types["new"].shape, value))
    session.set_input_u32("pos", [pos])


def rows_of(session: Session) -> list[float]:
    return [float(v) for v in session.read_param("cache")[:, 1]]


def test_rows_stay_from_step_to_step(device: str, tmp_path: Path) -> None:
    with build_inference_session(small(), device=device) as session:
        session.set_parameter("cache", np.full((5, 4), 7.0))
        for value, pos in ((1.0, 0), (2.0, 3), (3.0, 1)):
            feed(session, value, pos)
            session.step()
        assert rows_of(session) == [1, 3, 3, 2, 2]
        np.testing.assert_array_equal(session.read_output(), session.read_param("cache"))
        assert float(session.read_output_by_index(1)[0]) == 88
        session.save_checkpoint(tmp_path / "cache.safetensors")
        session.upload_param("cache", np.zeros((5, 4)))
        session.step()
        assert rows_of(session) == [0, 3, 3, 0, 0]
        session.load_checkpoint(tmp_path / "cache.safetensors")
        assert rows_of(session) == [1, 3, 3, 2, 2]


def test_only_so_many_rows_are_written(device: str) -> None:
    with build_inference_session(small(3, prefix=True), device=device) as session:
        session.set_parameter("cache", np.zeros((5, 4)))
        for count, pos, want in ((2, 1, [0, 1, 1, 0, 0]), (9, 2, [0, 1, 1, 1, 1]), (0, 5, [0, 1, 1, 1, 1])):
            feed(session, 1.0, pos)
            session.set_input_u32("count", [count])
            session.step()
            assert rows_of(session) == want


@pytest.mark.parametrize("kind", ["parameter", "input"])
def test_rows_that_do_not_fit_are_dropped_and_told(kind: str, device: str) -> None:
    g = small()
    if kind == "input":
        with Graph() as g:
            new, cache, pos = ops.input("new", (2, 4)), ops.input("cache", (5, 4)), ops.input_u32("pos", (1,))
            g.set_outputs([ops.cache_write(new, cache, pos)])
    with build_inference_session(g, device=device) as session:
        (session.set_parameter if kind == "parameter" else session.set_input)("cache", np.zeros((5, 4)))
        for pos, flagged in ((3, False), (4, True), (2**32 - 1, True)):
            feed(session, 1.0, pos)
            report = session.step_debug()
            assert (report.first_bad() is not None) == flagged
            fits = kind == "parameter" or not flagged  # an input is the same in every step
            np.testing.assert_array_equal(session.read_output()[:, 0], [0, 0, 0, 1, 1] if fits else np.zeros(5))
        assert "rows 4294967295 … 4294967296 do not fit in a cache of 5: nothing is written" in str(report)
        assert "1 cache write dropped" in str(report) and "finite" not in str(report)


def test_of_several_caches_those_are_told_in_which_rows_do_not_fit(device: str) -> None:
    with Graph() as g:
        new, cache = ops.input("new", (6, 2)), ops.parameter("cache", (12, 2), init="zeros")
        g.set_outputs([ops.cache_write(new, cache, ops.input_u32("pos", (3,)))])
    with build_inference_session(g, device=device) as session:
        session.set_parameter("cache", np.zeros((12, 2)))
        session.set_input("new", np.arange(1.0, 13).reshape(6, 2))
        session.set_input_u32("pos", [2, 3, 2**32 - 1])
        report = str(session.step_debug())
        np.testing.assert_array_equal(session.read_output()[:, 0], [0, 0, 1, 3, *[0] * 8])
        assert "rows 3 … 4 do not fit in cache 1 of 3, of 4, nor in 1 other: nothing is written" in report
        session.set_input_u32("pos", [0, 2, 1])
        assert session.step_debug().first_bad() is None
        np.testing.assert_array_equal(session.read_output()[:, 0], [1, 3, 1, 3, 0, 0, 5, 7, 0, 9, 11, 0])


def test_looking_writes_nothing(device: str) -> None:
    with build_inference_session(small(), device=device) as session:
        session.set_parameter("cache", np.zeros((5, 4)))
        feed(session, 1.0, 0)
        session.trace_dispatches()
        assert len(session.dispatch_outputs()) == len(session.plan().dispatches)
        assert rows_of(session) == [0] * 5


def test_making_a_kernel_ready_writes_nothing(device: str) -> None:
    """A new program runs its kernels once; the cache may be another session's."""
    with build_inference_session(small(), device=device) as one:
        one.set_parameter("cache", np.full((5, 4), 7.0))
        config = SessionConfig(mode="inference", device=device, share_parameters_from=one)
        with build(small(4), config)[0]:
            assert rows_of(one) == [7] * 5


# the plan -------------------------------------------------------------------------------------------------------------
def writes(plan: ExecutionPlan) -> list[int]:
    return [d.index for d in plan.dispatches if d.custom is not None and d.custom.form == "cache_in_place"]


def test_the_result_lies_in_the_buffer_of_the_parameter() -> None:
    plan = compile(small(), mode="inference")
    (at,), held = writes(plan), dict(plan.param_buffers)["cache"]
    d, where = plan.dispatches[at], dict(plan.node_buffers)
    assert d.output == held == plan.output_buffers[0] == where[3] == where[1] and d.in_place == (held,)
    assert d.label == "CacheWrite[5x4]" and d.origin == (3,) and d.bytes_written == 2 * 4 * 4
    assert plan.buffers[held].nodes == (1, 3) and plan.buffers[held].kind == "parameter"
    assert dict(plan.memory.pinned)[held] == "kept from step to step"
    later = [h for group in plan.groups for h in group.because if h.buffer == held]
    assert [(h.before, h.kind) for h in later] == [(at, "raw")]
    assert from_json(to_json(plan)) == plan
    assert "in place" not in plan.wgsl(at)[0] and "var<storage, read_write> out: array<f32>" in plan.wgsl(at)[0]


@pytest.mark.parametrize("options", [{"fuse_dispatches": False}, {"alias": False}, {"serial": True}, {"reorder": True}])
def test_no_option_changes_what_is_kept(options: dict[str, bool], device: str) -> None:
    config = SessionConfig(mode="inference", device=device, compile=replace(CompileOptions(), **options))
    with build(small(), config)[0] as session:
        session.set_parameter("cache", np.zeros((5, 4)))
        for value, pos in ((1.0, 0), (2.0, 3)):
            feed(session, value, pos)
            session.step()
        assert rows_of(session) == [1, 1, 0, 2, 2] and float(session.read_output_by_index(1)[0]) == 48


def test_what_follows_a_write_is_not_written_too(device: str) -> None:
    """The chain behind a product would go into its store; a cache keeps what the write says."""
    with Graph() as g:
        written = ops.cache_write(ops.input("new", (2, 4)), ops.parameter("cache", (5, 4)), ops.input_u32("pos", (1,)))
        g.set_outputs([written.scale(3.0).relu()])
    with build_inference_session(g, device=device) as session:
        session.set_parameter("cache", np.zeros((5, 4)))
        feed(session, 1.0, 1)
        session.step()
        assert rows_of(session) == [0, 1, 1, 0, 0]
        np.testing.assert_array_equal(session.read_output()[:, 1], [0, 3, 3, 0, 0])


def test_a_write_after_a_write_goes_into_the_same_cache(device: str) -> None:
    with Graph() as g:
        cache, new = ops.parameter("cache", (5, 4)), ops.input("new", (1, 4))
        once = ops.cache_write(new, cache, ops.input_u32("pos", (1,)))
        g.set_outputs([ops.cache_write(new.scale(2.0), once.reshape((5, 4)), ops.constant_u32([0])).sum_all()])
    assert len(writes(compile(g, mode="inference"))) == 2
    with build_inference_session(g, device=device) as session:
        session.set_parameter("cache", np.zeros((5, 4)))
        feed(session, 1.0, 3)
        session.step()
        assert rows_of(session) == [2, 0, 0, 1, 0]


# reading what is overwritten ------------------------------------------------------------------------------------------
def two(read: Callable[[Value], Value], before: bool) -> Graph:
    with Graph() as g:
        cache, new, pos = ops.parameter("cache", (5, 4)), ops.input("new", (1, 4)), ops.input_u32("pos", (1,))
        if before:
            other, written = read(cache), ops.cache_write(new, cache, pos)
        else:
            written, other = ops.cache_write(new, cache, pos), read(cache)
        g.set_outputs([written, other])
    return g


READERS: dict[str, Callable[[Value], Value]] = {
    "a value": lambda c: c.relu(),
    "a view": lambda c: c.reshape((20,)).sum_all(),
    "an output": lambda c: c,
    "a second write": lambda c: ops.cache_write(ops.input("more", (1, 4)), c, ops.constant_u32([1])),
    "rows of its own": lambda c: ops.cache_write(c, c, ops.constant_u32([0])),
}


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("reader", READERS)
def test_nobody_else_reads_the_parameter(reader: str, before: bool) -> None:
    """In the original the order of the list decided what such a reader saw."""
    g = two(READERS[reader], before)
    for made in (lambda: build_inference_session(g, device="cpu"), lambda: compile(g, mode="inference")):
        with pytest.raises(GraphError, match="pass the result of cache_write") as refused:
            made()
        assert "cache, which %" in str(refused.value) and "test_cache.py" in str(refused.value)


def test_a_result_that_is_thrown_away_does_not_hide_the_reader() -> None:
    g = two(lambda c: c.relu(), before=False)
    g.set_outputs([g.outputs[1]])
    with pytest.raises(GraphError, match="pass the result of cache_write"):
        build_inference_session(g, device="cpu")


# training -------------------------------------------------------------------------------------------------------------
def remembering() -> Graph:
    """A trained weight on rows that a cache holds."""
    with Graph() as g:
        w, cache = ops.parameter("w", (4, 3)), ops.parameter("cache", (5, 4))
        rows = ops.cache_write(ops.input("new", (2, 4)), cache, ops.input_u32("pos", (1,)))
        g.set_outputs([(rows @ w - 1.0).square().sum_all()])
    return g


def test_a_cache_has_no_gradient_and_no_update(device: str) -> None:
    g = remembering()
    full, report = differentiate(g)
    assert [g.nodes[i].name for i in report.wrt] == ["w"] and full.num_param_grad_outputs == 1
    rows, w = np.zeros((5, 4)), RNG.standard_normal((4, 3)).astype(np.float32)
    with build_session(g, device=device) as session:
        session.set_parameter("w", w)
        session.set_parameter("cache", rows)
        session.set_adam(0.01)
        assert [len(session.plan().param_grad_pairs), session.memory_summary().adam_state_bytes] == [1, 2 * 256]
        for pos in (0, 2):
            feed(session, pos + 1.0, pos)
            rows[pos : pos + 2] = pos + 1.0
            before = session.read_param("w")
            session.step()
            want = 2 * rows.T @ (rows @ before - 1.0)
            np.testing.assert_allclose(session.read_param_grad("w"), want, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(session.read_param("cache"), rows)
        assert np.abs(session.read_param("w") - w).max() > 1e-3 and not session.has_param_grad("cache")
        with pytest.raises(SessionError, match="not trained"):
            session.read_param_grad("cache")


def test_a_gradient_that_is_needed_stops_at_a_cache() -> None:
    with Graph() as g:
        w, cache = ops.parameter("w", (1, 4)), ops.parameter("cache", (3, 4))
        g.set_outputs([ops.cache_write(w, cache, ops.constant_u32([0])).sum_all()])
    for wrt in (None, [w], [cache]):
        with pytest.raises(AutodiffError, match="cache_write: given no gradient"):
            differentiate(g, wrt=wrt)
