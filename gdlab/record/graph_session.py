"""Encode ops one by one: `GraphSession`, direct or recording, of `GraphExecutor.begin` and `begin_recorded`.

with ex.begin_recorded(auto_barrier=True) as s:
    s.rms_norm(x, w, y, rows, dim)
    s.elementwise_mul(y, scale, out, rows * dim, gd.f32)
    print(s.finish_with_fusion_and_reorder())
print(s.report, out.read())
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TextIO

from gdlab.base.binding import bound
from gdlab.base.copies import refuse_copies
from gdlab.base.errors import SessionError
from gdlab.base.kinds import WRITABLE, kinds
from gdlab.base.types import f32
from gdlab.devices.base import Device
from gdlab.graph import Graph
from gdlab.record import finish as finishing
from gdlab.record import methods, products, scaled_attention
from gdlab.record.buffers import Buffer
from gdlab.record.compute_graph import ComputeGraph
from gdlab.record.encoder import CommandEncoder
from gdlab.record.list_as_graph import to_graph
from gdlab.record.list_report import Report
from gdlab.record.node_times import Interval, ListProfile, list_profile, span
from gdlab.record.operation import checked_buffer, kinds_of
from gdlab.record.ranges import GroupStats, LoggedBarrier, group_stats, predicted_device_barriers

if TYPE_CHECKING:
    from gdlab.record.executor import GraphExecutor


@bound
class GraphSession:
    """A list of ops on buffers of the caller's, which runs when the session is finished or committed; before that no
    buffer changes.

    `report` tells what a finisher did, `last_route` how the last product is computed and why, `barrier_log` why
    barriers of conflicts stand. A call that raises adds no node. As a context manager it finishes on normal exit,
    unless it is consumed, and drops its list after an exception. It belongs to one thread at a time.
    """

    def __init__(self, executor: GraphExecutor, recording: bool, auto_barrier: bool, strict: bool) -> None:
        self.executor = executor
        self.encoder = CommandEncoder(executor, recording, auto_barrier, strict)
        self._report: Callable[[], Report] | None = None

    def __enter__(self) -> GraphSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            if not self.encoder.consumed:
                self.drop()
        elif not self.encoder.consumed:
            self.finish()

    __reduce__ = refuse_copies("graph session", "another session of the executor, and its buffers' contents")

    def __repr__(self) -> str:
        mode = "recording" if self.is_recording() else "direct"
        state = f", consumed by {self.encoder.consumed}" if self.encoder.consumed else ""
        return f"<GraphSession, {mode}, {len(self.graph)} nodes{state}>"

    # properties -------------------------------------------------------------------------------------------------------
    @property
    def device(self) -> Device:
        """Return the device."""
        return self.executor.device

    @property
    def graph(self) -> ComputeGraph:
        """Return the present list."""
        return self.encoder.graph

    @property
    def last_route(self) -> str:
        """Return variant and reason of the last product; an empty string before the first."""
        return self.encoder.last_route

    @property
    def barrier_log(self) -> list[LoggedBarrier]:
        """Return the barriers of conflicts, each with its node, kind, range, earlier node and earlier range."""
        return list(self.encoder.tracking.log)

    @property
    def report(self) -> Report:
        """Return the report of the finisher."""
        if self._report is None:
            raise SessionError("report", "session", "one that is not finished", "finish it first")
        return self._report()

    def is_recording(self) -> bool:
        """Return whether the list may be fused, reordered and split before it runs."""
        return self.encoder.recording

    def encoder_mut(self) -> CommandEncoder:
        """Return the encoder, for ops without a method: `s.encoder_mut().dispatch("relu", [x], y)`."""
        self.encoder.check_usable("encoder_mut")
        return self.encoder

    # ops --------------------------------------------------------------------------------------------------------------
    def rms_norm(
        self, input: Buffer, weight: Buffer, output: Buffer, rows: int, dim: int, *, eps: float = 1e-6
    ) -> None:
        """Append x / √(mean x² + eps) · w along rows of x[rows, dim]."""
        self.encoder.encode("rms_norm", methods.rms_norm, (input, weight, output), (rows, dim, eps))

    def rms_norm_no_scale_f32(self, input: Buffer, output: Buffer, rows: int, dim: int, *, eps: float = 1e-6) -> None:
        """Append x / √(mean x² + eps) along rows of x[rows, dim]."""
        where = "rms_norm_no_scale_f32"
        self.encoder.encode(where, methods.rms_norm_no_scale_f32, (input, output), (rows, dim, eps))

    def elementwise_add(self, a: Buffer, b: Buffer, output: Buffer, n_elements: int, dtype: Any = f32) -> None:
        """Append a + b over the first n elements."""
        kind = "f32" if dtype is f32 else dtype  # a str hashes in a tenth of the time of an Enum's member
        self.encoder.encode("elementwise_add", methods.elementwise_add, (a, b, output), (n_elements, kind))

    def elementwise_mul(self, a: Buffer, b: Buffer, output: Buffer, n_elements: int, dtype: Any = f32) -> None:
        """Append a · b over the first n elements."""
        kind = "f32" if dtype is f32 else dtype
        self.encoder.encode("elementwise_mul", methods.elementwise_mul, (a, b, output), (n_elements, kind))

    def gelu(self, input: Buffer, output: Buffer) -> None:
        """Append GELU in its tanh form."""
        self.encoder.encode("gelu", methods.gelu, (input, output), ())

    def softmax(self, input: Buffer, output: Buffer, rows: int, cols: int) -> None:
        """Append the softmax of rows; one of −inf alone, or with NaN or +inf, is NaN."""
        self.encoder.encode("softmax", methods.softmax, (input, output), (rows, cols))

    def softcap(self, input: Buffer, output: Buffer, cap: float) -> None:
        """Append tanh(x / cap) · cap."""
        self.encoder.encode("softcap", methods.softcap, (input, output), (cap,))

    def rope(
        self, input: Buffer, output: Buffer, positions: Buffer, seq_len: int, head_dim: int, *, theta: float = 10000.0
    ) -> None:
        """Append a turn of the pairs (2i, 2i + 1) of x[seq_len, head_dim] by position · θ^(−2i/head_dim)."""
        self.encoder.encode("rope", methods.rope, (input, output, positions), (seq_len, head_dim, theta))

    def rope_neox_f32(
        self,
        input: Buffer,
        output: Buffer,
        positions: Buffer,
        freq_factors: Buffer | None,
        seq_len: int,
        n_heads: int,
        head_dim: int,
        rope_dim: int,
        *,
        theta: float = 10000.0,
        pairing: Literal["head", "rope"] = "head",
    ) -> None:
        """Append a turn of the pairs (i, i + head_dim/2), i < rope_dim/2, of x[seq_len · n_heads, head_dim] by
        position · θ^(−2i/head_dim) / factor i; other elements are copied. `pairing="rope"`: rope_dim in place of
        head_dim in pairs and angles, as in ggml."""
        buffers = (input, output, positions) if freq_factors is None else (input, output, positions, freq_factors)
        sizes = seq_len, n_heads, head_dim, rope_dim, theta, pairing
        self.encoder.encode("rope_neox_f32", methods.rope_neox_f32, buffers, sizes)

    # products ---------------------------------------------------------------------------------------------------------
    def quantized_matmul(
        self, input: Buffer, weight: Buffer, scales: Buffer, biases: Buffer, params: products.QuantizedMatmulParams
    ) -> Buffer:
        """Append x · (scale · code + bias)ᵀ, and return its f32[m, n] in a new buffer. The weight lies in a u32
        buffer, scales and biases in one of bf16, or of u32 with their bits."""
        return self._affine("quantized_matmul", (input, weight, scales, biases), params)

    def quantized_matmul_simd(
        self, input: Buffer, weight: Buffer, scales: Buffer, biases: Buffer, params: products.QuantizedMatmulParams
    ) -> Buffer:
        """Append `quantized_matmul` as the sum in another order where bits are 4 or 8, n % 8 = 0 and k % 256 = 0, else
        as it is; `last_route` tells which."""
        where = "quantized_matmul_simd"
        products.affine_sizes(where, params)
        refused = products.simd_route(params)
        out = self._affine(where, (input, weight, scales, biases), params)
        route = self.encoder.last_route
        self.encoder.last_route = f"quantized_matmul, {refused}: {route}" if refused else f"simd, {route}"
        return out

    def _affine(self, where: str, buffers: tuple[Buffer, ...], params: products.QuantizedMatmulParams) -> Buffer:
        self.encoder.check_usable(where)
        m, _, n, _, _ = products.affine_sizes(where, params)
        for i, name in enumerate(("input", "weight", "scales", "biases")):
            checked_buffer(self.executor, where, name, buffers[i])
        out = self.executor.alloc_buffer(4 * m * n, f32, (m, n))
        self.encoder.encode(where, products.quantized_matmul, (*buffers, out), (params,), kinds_of(params))
        return out

    def quantized_matmul_ggml(
        self, input: Buffer, weight: Buffer, output: Buffer, params: products.GgmlQuantizedMatmulParams
    ) -> None:
        """Append x · Wᵀ with rows of W in blocks of a format of ggml, decoded inside the product."""
        where = "quantized_matmul_ggml"
        made = products.quantized_matmul_ggml
        self.encoder.encode(where, made, (input, weight, output), (params,), kinds_of(params))

    def quantized_matmul_id_ggml(
        self, input: Buffer, weight: Buffer, ids: Buffer, output: Buffer, params: products.GgmlQuantizedMatmulIdParams
    ) -> None:
        """Append out[r] = W[ids[r]] · x[r // top_k]. Numbers that the host wrote are checked now, computed ones when
        the work has ended (`ExpertIndexError`; their rows are zero)."""
        where = "quantized_matmul_id_ggml"
        self.encoder.check_usable(where)
        written = isinstance(ids, Buffer) and any(
            r.overlaps(ids.range) for n in self.graph.nodes for r in n.operation.footprint.writes
        )
        made = products.quantized_matmul_id_ggml
        buffers = input, weight, ids, output
        if not written:
            made(self.executor, where, buffers, params)
            products.check_host_ids(where, ids, params.n_tokens * params.top_k, params.n_experts)
        self.encoder.encode(where, made, buffers, (params,), kinds_of(params))

    # attention --------------------------------------------------------------------------------------------------------
    def sdpa(
        self, q: Buffer, k: Buffer, v: Buffer, output: Buffer, params: scaled_attention.SdpaParams, batch_size: int
    ) -> None:
        """Append attention of q[B, H, S, D] to caches k, v[B, Hkv, capacity, D], of which kv_seq_len rows are read."""
        self.encoder.encode("sdpa", scaled_attention.sdpa, (q, k, v, output), (params, batch_size), kinds_of(params))

    def flash_attn_vec(
        self, q: Buffer, k: Buffer, v: Buffer, output: Buffer, tmp: Buffer, params: scaled_attention.FlashAttnVecParams
    ) -> None:
        """Append attention of one query; the contents of `tmp` (`tmp_buffer_bytes`) are undefined afterwards."""
        buffers = q, k, v, output, tmp
        self.encoder.encode("flash_attn_vec", scaled_attention.flash_attn_vec, buffers, (params,), kinds_of(params))

    # barriers ---------------------------------------------------------------------------------------------------------
    def barrier(self) -> None:
        """End the group, and let no pass move a node across this place."""
        self.encoder.barrier()

    def barrier_between(self, reads: Any, writes: Any) -> None:
        """Declare ranges of the next node (buffers, views, (buffer, start, end)); insert a barrier if they conflict
        with the current group."""
        self.encoder.barrier_between(reads, writes)

    def track_dispatch(self, reads: Any, writes: Any) -> None:
        """Add ranges to the group, and in recording mode to the last node, without a check."""
        self.encoder.track_dispatch(reads, writes)

    def barrier_count(self) -> int:
        """Return the number of barriers inserted so far, of both kinds."""
        return self.encoder.tracking.barriers

    def tracker_overhead_ns(self) -> int:
        """Return the time spent in checks, bookkeeping and passes."""
        return self.encoder.tracking.nanoseconds

    def group_stats(self) -> GroupStats:
        """Return the sizes of the groups, the open one included."""
        return group_stats(self.encoder.tracking.sizes, self.encoder.tracking.barriers)

    @kinds(file=WRITABLE)
    def dump_group_stats(self, file: TextIO | None = None) -> None:
        """Print `group_stats` to stderr, or to a file."""
        print(self.group_stats(), file=sys.stderr if file is None else file)

    def predicted_device_barriers(self) -> int:
        """Return the number of barriers that wgpu would place by itself."""
        return predicted_device_barriers(n.operation.footprint for n in self.graph.nodes)

    def to_graph(self) -> Graph:
        """Return the list as a graph; see `gdlab.record.list_as_graph`."""
        return to_graph(self)

    # finishing --------------------------------------------------------------------------------------------------------
    def finish(self) -> None:
        """Run the list and wait."""
        self._run("finish")

    def commit(self) -> finishing.PendingWork:
        """Submit the list; do not wait."""
        work, outcome, report = finishing.launch("commit", self.encoder)
        self._report = _later(report, (outcome.timing.encoding_ns, 0))
        return work

    def drop(self) -> None:
        """Discard the list: nothing runs."""
        self.encoder.consume("drop")
        self.encoder.graph.nodes.clear()  # the property, for the counters of what was encoded

    def finish_with_timing(self, session_begin: int | None = None) -> finishing.Timing:
        """Run the list and wait; return the times."""
        return self._run("finish_with_timing", begin=session_begin).timing

    def finish_with_fusion(self) -> int:
        """Fuse, run and wait; return the number of fused pairs."""
        return self._run("finish_with_fusion", fuse=True).fusions

    def finish_with_fusion_and_timing(self, session_begin: int | None = None) -> finishing.FusionTiming:
        """Fuse, run and wait."""
        found = self._run("finish_with_fusion_and_timing", begin=session_begin, fuse=True)
        return finishing.FusionTiming(*found.timing, found.fusions)

    def finish_with_fusion_and_reorder(self) -> finishing.Reordered:
        """Fuse, reorder, run and wait."""
        found = self._run("finish_with_fusion_and_reorder", fuse=True, reorder=True)
        return finishing.Reordered(found.fusions, found.reordered)

    def finish_with_fusion_reorder_and_timing(self, session_begin: int | None = None) -> finishing.ReorderedTiming:
        """Fuse, reorder, run and wait."""
        where = "finish_with_fusion_reorder_and_timing"
        found = self._run(where, begin=session_begin, fuse=True, reorder=True)
        return finishing.ReorderedTiming(*found.timing, found.fusions, found.reordered)

    def finish_optimized(self) -> finishing.Optimized:
        """Fuse, reorder, run in two submissions and wait."""
        found = self._run("finish_optimized", fuse=True, reorder=True, dual=True)
        return finishing.Optimized(found.fusions, found.reordered, *found.barriers)

    def finish_optimized_with_timing(self, session_begin: int | None = None) -> finishing.OptimizedTiming:
        """Fuse, reorder, run in two submissions and wait."""
        where = "finish_optimized_with_timing"
        found = self._run(where, begin=session_begin, fuse=True, reorder=True, dual=True)
        return finishing.OptimizedTiming(*found.timing, found.fusions, found.reordered, *found.barriers)

    def finish_with_gpu_time(self) -> int:
        """Run the list and wait; return the nanoseconds on the device from the begin of the first dispatch to the end
        of the last, by timestamps (on cpu by the clock). `CapabilityError` where the adapter has none."""
        return round(span(self._timed("finish_with_gpu_time")) * 1e9)

    def _profile(self) -> ListProfile:
        """Run the list and wait; return the times of its nodes beside their predictions: `GraphExecutor.profile`."""
        return list_profile(self.executor, self.graph.nodes, self._timed("profile"))

    def _timed(self, where: str) -> Sequence[Interval]:
        self.encoder.check_usable(where)
        self.executor.check_timed(where, self.graph.dispatch_count())
        work, outcome, report = finishing.launch(where, self.encoder, timed=True)
        self._report = report
        done = finishing.waited(work, outcome)
        self._report = _later(report, done.timing)
        return work.times

    def _run(
        self, where: str, *, begin: Any = None, fuse: bool = False, reorder: bool = False, dual: bool = False
    ) -> finishing.FinishFacts:
        self.encoder.check_usable(where)
        begun = finishing.begin_time(where, self.encoder, begin)
        passes = {"fuse": fuse, "reorder": reorder, "dual": dual}
        work, outcome, report = finishing.launch(where, self.encoder, begun=begun, **passes)
        self._report = report
        done = finishing.waited(work, outcome)
        self._report = _later(report, done.timing)
        return done


def _later(report: Callable[[], Report], timing: tuple[int, int]) -> Callable[[], Report]:
    """Return a function that makes a report with its times, once."""
    return cache(lambda: report().timed(*timing))
