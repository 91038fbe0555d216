"""Kernels against NumPy (cpu device), PyTorch in float32 where it has CUDA, and the bandwidth of a copy on the adapter.

`python -m benchmarks kernels`; every result is compared with float64 on a sample of its elements first.
"""

from __future__ import annotations

import gc
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.devices.base import Program, owner
from gdlab.devices.choose import device
from gdlab.devices.wgpu.wgpu_device import WgpuProgram, adapters
from gdlab.graph import Graph, Value
from gdlab.plan import compile
from gdlab.plan.dispatch import SCALARS
from gdlab.plan.update import Recipe, update_of

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]
Shapes = Mapping[str, tuple[int, ...]]
ROUNDS, LEAST_SECONDS = 5, 0.02
NORM, SLICE = 1e-5, slice(0, 16)
RATES = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "correction1": 10.0, "correction2": 1000.0}


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One kernel. `formula(xp, feeds)` computes it in NumPy or with the functions of PyTorch; `part` cuts the feeds,
    and `cut` the result, to the sample that float64 checks; `work` is flops where `unit` is TFLOP/s, else the bytes
    that must be read and written."""

    name: str
    build: Callable[[], Value]
    numpy: Callable[[Feeds], Array]
    torch: Callable[[Any, Any], Any]
    work: int
    unit: str = "TB/s"
    part: Callable[[Feeds], Feeds] = lambda feeds: feeds
    cut: Callable[[Array], Array] = lambda out: out
    adam: bool = False


# the cases ------------------------------------------------------------------------------------------------------------
PRODUCTS = (
    (512, 1024, 1024), (512, 4096, 1024), (512, 8192, 1024), (512, 1024, 4096), (1024, 1024, 512), (1024, 4096, 512),
    (4096, 1024, 512), (64, 1024, 256), (64, 256, 1024), (256, 1024, 64),
)  # fmt: skip


def cases(large: bool) -> Iterator[KernelCase]:
    """All of them, at the sizes of hardware or of a processor."""
    for n in (512, 1024, 2048, 4096, 8192) if large else (64, 256, 512):
        yield product(n, n, n)
    for m, n, k in PRODUCTS if large else ((32, 128, 784), (64, 256, 256), (128, 32, 512)):
        yield product(m, n, k)
        if (m, n, k) in ((1024, 1024, 512), (128, 32, 512)):
            yield product(m, n, k, "at")
            yield product(m, n, k, "bt")
    yield batches(*(64, 512, 512, 64) if large else (4, 64, 64, 32))
    total = 1 << 26 if large else 1 << 20
    yield chain(total)
    yield adam(total)
    for width in (256, 1024, 4096, 16384) if large else (64, 1024):
        for name in ROW_OPS:
            yield rows(name, total // width, width)
        yield row_sum(total // width, width)
    yield column_sum(total // 1024, 1024)
    yield column_sum(total // 4096, 4096)
    yield attention(*(2048, 16, 64) if large else (128, 2, 32))
    yield convolution(*(32, 64, 56) if large else (2, 8, 14))


def product(m: int, n: int, k: int, kind: str = "") -> KernelCase:
    """`matmul`, `matmul_at` or `matmul_bt`."""
    name = f"matmul_{kind}" if kind else "matmul"
    a, b = (k, m) if kind == "at" else (m, k), (n, k) if kind == "bt" else (k, n)

    def formula(f: Any) -> Any:
        return (f["a"].T if kind == "at" else f["a"]) @ (f["b"].T if kind == "bt" else f["b"])

    def part(f: Feeds) -> Feeds:
        return {"a": f["a"][:, SLICE] if kind == "at" else f["a"][SLICE], "b": f["b"]}

    build = lambda: getattr(ops, name)(ops.input("a", a), ops.input("b", b))  # noqa: E731
    flops = 2 * m * n * k
    return KernelCase(f"{name} {m}x{n}x{k}", build, formula, lambda _, f: formula(f), flops, "TFLOP/s", part, _first)


def _first(out: Array) -> Array:
    return out[SLICE]


def batches(g: int, m: int, n: int, k: int) -> KernelCase:
    """`batch_matmul`."""
    build = lambda: ops.batch_matmul(ops.input("a", (g, m, k)), ops.input("b", (g, k, n)))  # noqa: E731
    part = lambda f: {name: x[:2] for name, x in f.items()}  # noqa: E731
    flops = 2 * g * m * n * k
    name = f"batch_matmul {g}x{m}x{n}x{k}"
    return KernelCase(
        name, build, lambda f: f["a"] @ f["b"], lambda _, f: f["a"] @ f["b"], flops, "TFLOP/s", part, _two
    )


def _two(out: Array) -> Array:
    return out[:2]


def chain(size: int) -> KernelCase:
    """max(x + y, 0) · 0.5."""
    def numpy(f: Feeds) -> Array:
        out = f["x"] + f["y"]
        np.maximum(out, 0, out=out)
        out *= out.dtype.type(0.5)
        return out

    build = lambda: ops.scale(ops.relu(ops.input("x", (size,)) + ops.input("y", (size,))), 0.5)  # noqa: E731
    fused = lambda torch, f: torch.relu(f["x"] + f["y"]) * 0.5  # noqa: E731
    part = lambda f: {name: x[:4096] for name, x in f.items()}  # noqa: E731
    return KernelCase(
        f"relu(x + y) · 0.5, {size}", build, numpy, fused, 12 * size, part=part, cut=lambda out: out[:4096]
    )


def adam(size: int) -> KernelCase:
    """One Adam update of a parameter: 28 bytes each."""
    def build() -> Value:
        return ops.sum_all(ops.parameter("w", (size,)) * ops.input("x", (size,)))

    def numpy(f: Feeds) -> Array:
        kind = f["x"].dtype.type
        g, m, v = f["x"], f["m"], f["v"]
        m *= kind(RATES["beta1"])
        m += g * kind(1 - RATES["beta1"])
        v *= kind(RATES["beta2"])
        v += g * g * kind(1 - RATES["beta2"])
        step = np.sqrt(v * kind(RATES["correction2"]))
        step += kind(RATES["epsilon"])
        np.divide(m, step, out=step)
        step *= kind(RATES["lr"] * RATES["correction1"])
        f["w"][...] -= step
        return f["w"]

    def torch(library: Any, f: Any) -> Any:
        ones = library.ones((), device="cuda")
        library._fused_adam_([f["w"]], [f["x"]], [f["m"]], [f["v"]], [], [ones], lr=1e-3, beta1=0.9, beta2=0.999,
                             weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False)  # fmt: skip
        return f["w"]

    return KernelCase(f"Adam, {size}", build, numpy, torch, 28 * size, adam=True)


def _softmax(f: Feeds) -> Array:
    out = np.subtract(f["x"], f["x"].max(axis=-1, keepdims=True))
    np.exp(out, out=out)
    out /= out.sum(axis=-1, keepdims=True)
    return out


def _log_softmax(f: Feeds) -> Array:
    out = np.subtract(f["x"], f["x"].max(axis=-1, keepdims=True))
    out -= np.log(np.exp(out).sum(axis=-1, keepdims=True))
    return out


def _rms_norm(f: Feeds) -> Array:
    x = f["x"]
    out = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(NORM))
    out *= f["w"]
    return out


def _layer_norm(f: Feeds) -> Array:
    x = f["x"]
    out = x - x.mean(axis=-1, keepdims=True)
    out /= np.sqrt(np.mean(out * out, axis=-1, keepdims=True) + x.dtype.type(NORM))
    out *= f["w"]
    out += f["b"]
    return out


def _inputs(rows: int, width: int, *names: str) -> list[Value]:
    return [ops.input("x", (rows, width)), *(ops.input(name, (width,)) for name in names)]


ROW_OPS: dict[str, tuple[Callable[[int, int], Value], Callable[[Feeds], Array], Callable[[Any, Any], Any]]] = {
    "softmax": (lambda r, n: ops.softmax(*_inputs(r, n)), _softmax, lambda t, f: t.softmax(f["x"], -1)),
    "log_softmax": (lambda r, n: ops.log_softmax(*_inputs(r, n)), _log_softmax, lambda t, f: t.log_softmax(f["x"], -1)),
    "rms_norm": (
        lambda r, n: ops.rms_norm(*_inputs(r, n, "w"), NORM), _rms_norm,
        lambda t, f: t.nn.functional.rms_norm(f["x"], f["x"].shape[-1:], f["w"], NORM),
    ),
    "layer_norm": (
        lambda r, n: ops.layer_norm(*_inputs(r, n, "w", "b"), NORM), _layer_norm,
        lambda t, f: t.nn.functional.layer_norm(f["x"], f["x"].shape[-1:], f["w"], f["b"], NORM),
    ),
}  # fmt: skip


def rows(name: str, count: int, width: int) -> KernelCase:
    """An op over rows: read once, written once."""
    build, numpy, torch = ROW_OPS[name]
    part = lambda f: {**f, "x": f["x"][SLICE]}  # noqa: E731
    case = f"{name}, rows of {width}"
    return KernelCase(case, partial(build, count, width), numpy, torch, 8 * count * width, part=part, cut=_first)


def row_sum(count: int, width: int) -> KernelCase:
    """Sums of rows: read once."""
    sums = lambda f: f["x"].sum(axis=-1, keepdims=True)  # noqa: E731
    build = lambda: ops.sum_inner(*_inputs(count, width))  # noqa: E731
    part = lambda f: {"x": f["x"][SLICE]}  # noqa: E731
    return KernelCase(f"sums of rows of {width}", build, sums, lambda _, f: f["x"].sum(-1, True), 4 * count * width,
                part=part, cut=_first)  # fmt: skip


def column_sum(count: int, width: int) -> KernelCase:
    """Sums of columns: read once."""
    build = lambda: ops.sum_rows(*_inputs(count, width))  # noqa: E731
    part = lambda f: {"x": f["x"][:, SLICE]}  # noqa: E731
    return KernelCase(f"sums of columns, {count} rows of {width}", build, lambda f: f["x"].sum(axis=0),
                lambda _, f: f["x"].sum(0), 4 * count * width, part=part, cut=_first)  # fmt: skip


def attention(length: int, heads: int, width: int) -> KernelCase:
    """Causal attention; the flops of the half that is allowed."""
    shape, names = (length, heads * width), ("q", "k", "v")

    def numpy(f: Feeds) -> Array:
        q, k, v = (f[name].reshape(length, heads, width).swapaxes(0, 1) for name in names)
        scores = q @ k.swapaxes(1, 2) * q.dtype.type(width**-0.5)
        scores[:, ~np.tri(length, dtype=bool)] = -np.inf
        scores = _softmax({"x": scores})
        return (scores @ v).swapaxes(0, 1).reshape(shape)

    def torch(library: Any, f: Any) -> Any:
        q, k, v = (f[name].view(1, length, heads, width).transpose(1, 2) for name in names)
        return library.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    build = lambda: ops.causal_attention(*(ops.input(name, shape) for name in names), heads, heads, width)  # noqa: E731
    flops = 2 * length * length * heads * width
    return KernelCase(
        f"causal attention, S = {length}, {heads} heads of {width}", build, numpy, torch, flops, "TFLOP/s"
    )


def convolution(batch: int, channels: int, size: int) -> KernelCase:
    """A 3 x 3 convolution, padded, as many channels out as in."""
    x, k = (batch, channels, size, size), (channels, channels, 3, 3)

    def numpy(f: Feeds) -> Array:
        padded = np.pad(f["x"], ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, channels * 9)
        out = columns @ f["k"].reshape(channels, -1).T
        return out.reshape(len(padded), size, size, channels).transpose(0, 3, 1, 2)

    build = lambda: ops.conv2d(ops.input("x", x), ops.input("k", k), padding=1)  # noqa: E731
    flops = 2 * batch * channels * channels * 9 * size * size
    part = lambda f: {**f, "x": f["x"][:1]}  # noqa: E731
    return KernelCase(f"conv2d 3x3, {batch}x{channels}x{size}x{size}", build, numpy,
                lambda t, f: t.nn.functional.conv2d(f["x"], f["k"], padding=1), flops, "TFLOP/s", part,
                lambda out: out[:1])  # fmt: skip


# measuring ------------------------------------------------------------------------------------------------------------
def feeds_of(shapes: Shapes) -> dict[str, Array]:
    """Normal numbers, the same for every case of a shape."""
    return {name: _normal(shape, number).copy() for number, (name, shape) in enumerate(shapes.items())}


@lru_cache(maxsize=4)
def _normal(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def loaded(case: KernelCase, kind: Any) -> tuple[Program, dict[str, Array]]:
    """A program with its data."""
    with Graph() as g:
        g.set_outputs([case.build()])
        if case.adam:  # d loss / d w is x
            ids = (g.output_ids[0], g.inputs[0].id)
            g.set_output_ids(zip(ids, ("", ""), strict=True), gradients=1)
    found = device(kind)
    plan = compile(g, mode="training" if case.adam else "inference", target=found.target)
    program = found.load(plan)
    feeds = feeds_of({n.name: n.type.shape for n in (*g.inputs, *g.parameters)})
    for name, buffer in (*plan.input_buffers, *plan.param_buffers):
        program.upload(buffer, feeds[name])
    program.step(None)
    program.wait()
    if case.adam:
        program.configure(update_of(plan, Recipe("adam")))
        feeds |= {"m": np.zeros_like(feeds["w"]), "v": np.zeros_like(feeds["w"])}
    return program, feeds


def error_of(case: KernelCase, program: Program, feeds: Feeds) -> float:
    """Largest error of the sample, of its largest value."""
    plan = program.plan
    if case.adam:
        program.update_only(np.array([RATES.get(name, 0.0) for name in SCALARS], np.float32))
        program.wait()
        got = program.download(plan.param_buffers[0][1])
    else:
        got = program.download(plan.output_buffers[0])
    wide = {name: x.astype(np.float64) for name, x in case.part(feeds).items()}
    want = case.numpy(wide)
    got = case.cut(got.reshape(plan.graph.outputs[0].type.shape if not case.adam else want.shape))
    return float(np.max(np.abs(got.reshape(want.shape) - want)) / np.max(np.abs(want)))


def seconds_on_adapter(program: WgpuProgram, updates: bool = False) -> list[float]:
    """Seconds of one walk over the dispatches, several of them in one submission."""
    one = program.update_launches if updates else program.launches

    def run(count: int) -> float:
        start = time.perf_counter()
        program.queue.finish("benchmark", one * count)
        return (time.perf_counter() - start) / count

    count = 1
    while (taken := owner().call(partial(run, count)) * count) < LEAST_SECONDS and count < 4096:
        count = min(4096, max(2 * count, round(1.2 * count * LEAST_SECONDS / taken)))
    return [owner().call(partial(run, count)) for _ in range(ROUNDS)]


def seconds_of_calls(work: Callable[[], object]) -> list[float]:
    """Seconds of one call, several in a row."""
    count, found = 1, list[float]()
    while len(found) < ROUNDS:
        start = time.perf_counter()
        for _ in range(count):
            work()
        taken = time.perf_counter() - start
        if taken < LEAST_SECONDS:
            count = max(2 * count, round(1.2 * count * LEAST_SECONDS / taken))
            continue
        found.append(taken / count)
    return found


def seconds_in_torch(case: KernelCase, feeds: Feeds) -> list[float]:
    """The same in PyTorch, recorded once and replayed, so that launching costs it nothing."""
    import torch  # type: ignore[import-not-found]

    given = {name: torch.from_numpy(np.ascontiguousarray(x)).cuda() for name, x in feeds.items()}
    for _ in range(3):
        case.torch(torch, given)
    torch.cuda.synchronize()
    start = time.perf_counter()
    case.torch(torch, given)
    torch.cuda.synchronize()
    count = max(2, min(500, round(LEAST_SECONDS / (time.perf_counter() - start))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            case.torch(torch, given)
    found = []
    for _ in range(ROUNDS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / count / 1e3)
    return found[1:]


def copied(kind: Any, size: int) -> float:
    """Bytes per second of y = x · 0.5, read plus written; of PyTorch's copy where that is faster."""
    build = lambda: ops.scale(ops.input("x", (size,)), 0.5)  # noqa: E731
    case = KernelCase("copy", build, lambda f: f["x"] * 0.5, lambda t, f: t.empty_like(f["x"]).copy_(f["x"]), 8 * size)
    program, feeds = loaded(case, kind)
    assert isinstance(program, WgpuProgram)
    times = [statistics.median(seconds_on_adapter(program))]
    program.close()
    if has_torch():
        times.append(statistics.median(seconds_in_torch(case, feeds)))
    return 8 * size / min(times)


@lru_cache(maxsize=1)
def has_torch() -> bool:
    """Whether PyTorch with CUDA is here; float32 products then stay float32."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return bool(torch.cuda.is_available())


# the table ------------------------------------------------------------------------------------------------------------
def table(only: str = "") -> Iterator[str]:
    """Lines of Markdown: the adapter's kernels, then those of the cpu device."""
    found = adapters()
    if found:
        yield from _adapter_table(found[0].name, found[0].adapter_class == "hardware", only)
        yield ""
    yield from _cpu_table(only)


def _adapter_table(name: str, large: bool, only: str) -> Iterator[str]:
    bandwidth = copied("wgpu", 1 << 26 if large else 1 << 20)
    yield f"{name}: a copy moves {bandwidth / 1e12:.3g} TB/s (read plus written)."
    yield ""
    yield "| kernel | µs (least – most) | rate | of the copy | of PyTorch | error | schedule |"
    yield "|---|---|---|---|---|---|---|"
    for case in cases(large):
        if only not in case.name:
            continue
        program, feeds = loaded(case, "wgpu")
        assert isinstance(program, WgpuProgram)
        error, taken = error_of(case, program, feeds), seconds_on_adapter(program, case.adam)
        schedules = _schedules(program)
        program.close()
        seconds = statistics.median(taken)
        rate = f"{case.work / seconds / 1e12:.3g} {case.unit}"
        share = f"{case.work / seconds / bandwidth:.2f}" if case.unit == "TB/s" else ""
        torch = f"{statistics.median(seconds_in_torch(case, feeds)) / seconds:.2f}" if has_torch() else ""
        spread = f"{seconds * 1e6:.4g} ({min(taken) * 1e6:.4g} – {max(taken) * 1e6:.4g})"
        yield f"| {case.name} | {spread} | {rate} | {share} | {torch} | {error:.1e} | {schedules} |"
        del program, feeds
        gc.collect()


def _schedules(program: WgpuProgram) -> str:
    return ", ".join(d.variant for d in (program.update.dispatches or program.plan.dispatches))


def _cpu_table(only: str) -> Iterator[str]:
    yield "| cpu device | µs (least – most) | rate | of NumPy | error |\n|---|---|---|---|---|"
    for case in cases(large=False):
        if only not in case.name:
            continue
        program, feeds = loaded(case, "cpu")
        error = error_of(case, program, feeds)
        work = partial(program.update_only, np.array([RATES.get(name, 0.0) for name in SCALARS], np.float32))
        taken = seconds_of_calls(work if case.adam else partial(program.step, None))
        plain = seconds_of_calls(partial(case.numpy, feeds))
        program.close()
        seconds = statistics.median(taken)
        ratio = statistics.median(b / a for a, b in zip(taken, plain, strict=True))
        spread = f"{seconds * 1e6:.4g} ({min(taken) * 1e6:.4g} – {max(taken) * 1e6:.4g})"
        yield f"| {case.name} | {spread} | {case.work / seconds / 1e12:.3g} {case.unit} | {ratio:.2f} | {error:.1e} |"


def names() -> list[str]:
    """The kernels that `--only` chooses among."""
    return list(dict.fromkeys(case.name for large in (False, True) for case in cases(large)))


def print_table(only: str = "") -> None:
    """Every line as it is measured."""
    for line in table(only):
        print(line, flush=True)
