"""Decode with LLaMA-like models of random weights, f32, f16, q8 and q4: milliseconds per token, the share of the bound
that reading the weights once sets, bytes, the error of the logits; beside them PyTorch where it has a GPU.

`python -m benchmarks generate`; `--1b`: TinyLlama's extents (1.1 B parameters). The matrices of one shape are alike.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.kernels import copied
from gdlab.base.formats import encode
from gdlab.base.types import TensorType
from gdlab.base.words import nbytes
from gdlab.devices.choose import device as choose_device
from gdlab.devices.wgpu.wgpu_device import adapters
from gdlab.generate import sequence as generate_sequence
from gdlab.generate.sampling import Sampling
from gdlab.generate.sequence import CachedSequences
from gdlab.generate.weight_plans import Plans
from gdlab.graph import Graph
from gdlab.load.pretrained import DTYPES, _graph
from gdlab.models import TransformerLmConfig
from gdlab.models.families import FAMILIES
from gdlab.models.family import GraphRequest
from gdlab.op.storage import written_in_place

Array = np.ndarray[Any, Any]
TINY = TransformerLmConfig(512, 128, 4, 4, 2, 352)
LARGE = TransformerLmConfig(32000, 2048, 22, 32, 4, 5632)
PROMPT, WARM, ROUNDS = tuple(range(1, 33)), 24, 5
ROWS = 8  # of the batch
TOKENS = {False: 32, True: 64}  # of a round, by large


class RandomMatrices:
    """Matrices of random numbers, one for each shape, as files have them: [out, in]."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(25)
        self._made: dict[tuple[int, ...], Array] = {}
        self._packed: dict[TensorType, bytes] = {}

    def matrix(self, shape: tuple[int, ...]) -> Array:
        """Return f32[out, in], or ones of a vector."""
        if shape not in self._made:
            made = np.ones(shape) if len(shape) == 1 else self._random.standard_normal(shape, np.float32)
            self._made[shape] = (made / (1 if len(shape) == 1 else shape[-1] ** 0.5)).astype(np.float32)
        return self._made[shape]

    def packed(self, type: TensorType) -> bytes:
        """Return the bytes of a matrix in a storage format."""
        if type not in self._packed:
            self._packed[type] = encode(self.matrix(type.shape), type.dtype).tobytes()[: type.data_bytes]
        return self._packed[type]


@dataclass(frozen=True, eq=False)
class RandomModel:
    """A model as `generate` takes it, whose weights are made here."""

    config: TransformerLmConfig
    dtype: Any
    values: RandomMatrices
    mode: str = "decode"
    length: int = 64
    folder: None = None
    positions: int | None = 2048
    end_tokens: tuple[int, ...] = field(default=())

    @cached_property
    def _made(self) -> tuple[Graph, frozenset[str]]:
        return _graph(FAMILIES["llama"], self.config, GraphRequest(self.mode, self.length), self.dtype)

    @property
    def graph(self) -> Graph:
        return self._made[0]

    def at(self, mode: Any = None, length: Any = None) -> RandomModel:
        return RandomModel(self.config, self.dtype, self.values, mode or self.mode, length or self.length)

    @property
    def types(self) -> dict[str, TensorType]:
        caches = set(written_in_place(self.graph).values())
        return {node.name: node.type for node in self.graph.parameters if node.id not in caches}

    def set_parameters(self, session: Any) -> None:
        factors = {n.inputs[1] for n in self.graph if n.op == "matmul"}
        turned = {self.graph.node(id).name for id in factors}
        for name, type in self.types.items():
            if type.dtype.is_storage:
                session.set_parameter_packed(name, self.values.packed(type))
            elif name in turned:
                session.set_parameter(name, np.ascontiguousarray(self.values.matrix(type.shape[::-1]).T))
            else:
                session.set_parameter(name, self.values.matrix(type.shape))

    def weights(self) -> dict[str, Array]:
        """Return f32 matrices as files have them, by name."""
        plain = RandomModel(self.config, "f32", self.values)
        factors = {n.inputs[1] for n in plain.graph if n.op == "matmul"}
        turned = {plain.graph.node(id).name for id in factors}
        return {n: self.values.matrix(t.shape[::-1] if n in turned else t.shape) for n, t in plain.types.items()}


# measuring ------------------------------------------------------------------------------------------------------------
def taken(sequence: CachedSequences, count: int) -> float:
    """Seconds per token of the next `count` tokens or a few more."""
    made, start = sequence.made, time.perf_counter()
    while sequence.made < made + count:
        sequence.more([True] * len(sequence.prompts))
    return (time.perf_counter() - start) / (sequence.made - made)


@dataclass(frozen=True, slots=True)
class DecodeFigures:
    """One row: seconds per token by round, bytes of the weights, logits of the prompt's end, the first tokens."""

    seconds: list[float]
    weight_bytes: int
    logits: Array
    tokens: list[int | float]
    notes: list[str]


def ours(model: RandomModel, device: str, count: int, profiled: bool) -> DecodeFigures:
    """Measure greedy decoding, and note how long drawing a token, the first prompt and a second one take."""
    plans, most = Plans(choose_device(device)), 2048 - len(PROMPT)
    try:
        start = time.perf_counter()
        with CachedSequences(model, plans, [PROMPT], [most], Sampling()) as first:
            first.more([True])
        notes = [f"first prompt with plans and upload {time.perf_counter() - start:.1f} s"]
        with CachedSequences(model, plans, [PROMPT], [most], Sampling()) as sequence:
            tokens = sequence.more([True])[0]
            notes.append(f"a second prompt of {len(PROMPT)} tokens {sequence.prefill_seconds * 1e3:.1f} ms")
            while sequence.made < WARM:
                tokens += sequence.more([True])[0]
            for _ in range(2):
                taken(sequence, count)
            seconds = [taken(sequence, count) for _ in range(ROUNDS)]
            logits = sequence.prompt_logits[0]
            assert sequence.decode is not None
            plan = sequence.decode.plan
            notes.append(f"{len(plan.dispatches)} dispatches in {len(plan.groups)} groups a token")
            if profiled:
                notes += list(profile_lines(sequence))
        if profiled:
            with CachedSequences(model, plans, [PROMPT] * ROWS, [most] * ROWS, Sampling()) as several:
                taken(several, WARM)
                step = taken(several, count)
                notes.append(f"a batch of {ROWS}: {step * 1e3:.3g} ms a step, {ROWS / step:,.0f} tokens/s")
        with CachedSequences(model, plans, [PROMPT], [most], Sampling(0.8, 40, 0.95, 0)) as drawn:
            taken(drawn, 4)
            notes.append(f"drawn by temperature, top-k and top-p {taken(drawn, count) * 1e3:.3g} ms a token")
        sizes = sum(type.data_bytes for type in model.types.values())
        return DecodeFigures(seconds, sizes, logits, tokens[:WARM], notes)
    finally:
        plans.close()


def profile_lines(sequence: CachedSequences) -> Iterator[str]:
    """Say where the time of a token goes on the device, by the timestamps of its dispatches: kernels of one label
    together."""
    assert sequence.decode is not None
    profile = sequence.decode.profile(5)
    if profile.reason:
        yield f"no timestamps: {profile.reason}"
        return
    sums: dict[str, tuple[int, float]] = {}
    for dispatch in profile.dispatches:
        count, seconds = sums.get(dispatch.label, (0, 0.0))
        sums[dispatch.label] = count + 1, seconds + dispatch.median
    yield f"kernels alone {sum(seconds for _, seconds in sums.values()) * 1e3:.3g} ms a token; of these"
    for label, (count, seconds) in sorted(sums.items(), key=lambda row: -row[1][1])[:12]:
        yield f"    {count:3} × {label}: {seconds * 1e6:,.0f} µs"


def table(large: bool, device: str = "wgpu", only: str = "") -> Iterator[str]:
    """Yield the lines of the table."""
    listed, count = adapters(), TOKENS[large]
    hardware = bool(listed) and listed[0].adapter_class != "software"
    bandwidth = copied(device, 1 << 26 if hardware else 1 << 20)
    config, values, expected = LARGE if large else TINY, RandomMatrices(), None
    name = listed[0].name if listed and device == "wgpu" else "the processor"
    yield f"{name}: a copy moves {bandwidth / 1e12:.3g} TB/s (read plus written)."
    yield ""
    yield "| decode | ms per token (least – most) | tokens/s | weights | of the bound | error of logits |"
    yield "|---|---|---|---|---|---|"
    notes = list[str]()
    generate_sequence.AHEAD = 1024 - len(PROMPT)  # caches do not grow while it is measured
    for dtype in [only] if only in DTYPES else DTYPES:
        model = RandomModel(config, dtype, values)
        found = ours(model, device, count, dtype == "f16")
        expected = found.logits if expected is None else expected
        error = float(np.max(np.abs(found.logits - expected)) / np.max(np.abs(expected)))
        yield row(f"gdlab {dtype}", found.seconds, found.weight_bytes, bandwidth, f"{error:.1e}")
        notes += [f"{dtype}: {note}" for note in found.notes] + [f"{dtype}: tokens {found.tokens[:12]}"]
        print(f"gdlab {dtype} done", file=sys.stderr, flush=True)
    if importlib.util.find_spec("torch"):
        for line, more in peers(RandomModel(config, "f32", values), bandwidth, count):
            yield line
            notes.append(more)
    yield ""
    yield from notes


def row(what: str, seconds: list[float], size: int, bandwidth: float, error: str) -> str:
    """One line."""
    middle, least, most = (f(seconds) * 1e3 for f in (statistics.median, min, max))
    share = size / bandwidth / statistics.median(seconds)
    figures = f"**{middle:.3g}** ({least:.3g} – {most:.3g}) | {1e3 / middle:,.0f} | {nbytes(size)}"
    return f"| {what} | {figures} | {share:.2f} | {error} |"


def peers(model: RandomModel, bandwidth: float, count: int) -> Iterator[tuple[str, str]]:
    """Yield a line for each way of PyTorch, and its first tokens."""
    from benchmarks.peer_decode import WAYS, Decoder, available

    for what, dtype, make in ((w, d, m) for d in ("f32", "f16") for w, m in WAYS.items()):
        if not available(what, dtype):
            continue
        decoder: Any = None
        try:
            decoder = Decoder(model.config, model.weights(), dtype, make)
            tokens = decoder.start(PROMPT, WARM)
            seconds = [decoder.taken(count) for _ in range(ROUNDS + 1)][1:]
            yield (
                row(f"{what} {dtype}", seconds, decoder.nbytes, bandwidth, ""),
                f"{what} {dtype}: tokens {tokens[:12]}",
            )
        except Exception as error:  # a compiler that is not there
            yield f"| {what} {dtype} | – | | | | |", f"{what} {dtype}: {type(error).__name__}: {error!s:.200}"
        finally:
            if decoder is not None:
                decoder.close()
        print(f"{what} {dtype} done", file=sys.stderr, flush=True)


def names() -> list[str]:
    """The dtypes that `--only` chooses among."""
    return list(DTYPES)


def print_table(large: bool = False, only: str = "") -> None:
    """Print it, line by line as it comes."""
    device = "wgpu" if adapters() else "cpu"
    for line in table(large, device, only):
        print(line, flush=True)
