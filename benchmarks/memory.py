"""Compare the bytes that plans allocate with the least that any placement could: twenty networks, trained and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.measure import Row
from gdlab import models, nn, ops
from gdlab.graph import Graph, Value
from gdlab.plan.records import ExecutionPlan, PlanMode
from gdlab.plan.target import Target
from gdlab.session.builders import SessionConfig, compiled
from tests.helpers import networks

BAR = 1.15


@dataclass(frozen=True, slots=True)
class PlanFootprint:
    """Bytes of a plan: what its slots take, and the most that is alive at any one dispatch, unrounded. `beside`: how
    many buffers begin behind the first byte of a slot."""

    name: str
    physical: int
    live: int
    logical: int
    beside: int

    @property
    def ratio(self) -> float:
        """Physical by live."""
        return self.physical / self.live


def live_bytes(plan: ExecutionPlan) -> int:
    """The largest sum, over the dispatches, of the bytes of all buffers that some dispatch at or before it wrote and
    some dispatch at or behind it uses; what the plan keeps (parameters, inputs, gradients, outputs) counts always."""
    kept = {*plan.memory.pinned}
    first, last = dict[int, int](), dict[int, int]()
    for d in plan.dispatches:
        for b in {d.output, *d.in_place, *(o.buffer for o in d.operands)} - kept:
            first.setdefault(b, d.index)
            last[b] = d.index
    change = [0] * (len(plan.dispatches) + 1)
    for b, begin in first.items():
        change[begin] += plan.buffers[b].nbytes
        change[last[b] + 1] -= plan.buffers[b].nbytes
    alive = most = 0
    for step in change:
        alive += step
        most = max(most, alive)
    return most + sum(plan.buffers[b].nbytes for b in kept)


# the networks ---------------------------------------------------------------------------------------------------------
def lm(layers: int, width: int, heads: int, length: int, inner: int, vocabulary: int, kv: int = 0) -> Graph:
    """A language model for training."""
    config = models.TransformerLmConfig(vocabulary, width, layers, heads, kv or heads, inner)
    return models.transformer_lm(config, length)


def lm_mode(mode: models.lm.Mode, length: int) -> Graph:
    """The small language model, to read or to write."""
    return models.transformer_lm(models.TransformerLmConfig(), length, mode)


def convolutional(batch: int, size: int, widths: tuple[int, ...]) -> Graph:
    """3x3 convolutions with relu and pooling, then a classifier."""
    with Graph() as g:
        h, channels = ops.input("x", (batch, 3, size, size)), 3
        for i, width in enumerate(widths):
            h = ops.relu(nn.Conv2d(f"conv{i}", channels, width, 3, padding=1)(h))
            h, channels = ops.max_pool_2d(h, (2, 2), (2, 2)), width
        logits = nn.Linear("head", channels, 10)(ops.global_avg_pool(h))
        g.output(ops.cross_entropy_loss(logits, ops.input("labels", (batch, 10))))
    return g


def residual(depth: int, batch: int, width: int) -> Graph:
    """Blocks x + fc2(gelu(fc1(norm x)))."""
    with Graph() as g:
        x = ops.input("x", (batch, width))
        for i in range(depth):
            x = x + nn.Mlp(f"{i}.mlp", width, 2 * width, width, "gelu")(nn.LayerNorm(f"{i}.norm", width)(x))
        g.output(ops.mse_loss(x, ops.input("y", (batch, width))))
    return g


def autoencoder(batch: int, sizes: tuple[int, ...]) -> Graph:
    """Down and up again, with skips between equal widths."""
    with Graph() as g:
        x = h = ops.input("x", (batch, sizes[0]))
        kept: list[Value] = []
        for i, (wide, narrow) in enumerate(zip(sizes, sizes[1:], strict=False)):
            kept.append(h)
            h = ops.tanh(nn.Linear(f"down{i}", wide, narrow)(h))
        for i, (narrow, wide) in enumerate(zip(sizes[::-1], sizes[-2::-1], strict=False)):
            h = nn.Linear(f"up{i}", narrow, wide)(h) + kept.pop()
        g.output(ops.mse_loss(h, x))
    return g


def mlp(batch: int, *hidden: int) -> Graph:
    """A classifier of MNIST."""
    return models.mlp(models.MlpConfig(784, hidden, 10), batch)


NETWORKS: dict[str, tuple[Callable[[], Graph], PlanMode]] = {
    "tour": (networks.mlp, "training"),
    "tour, to read": (lambda: networks.reader(64), "inference"),
    "mlp": (lambda: mlp(32, 256, 128), "training"),
    "mlp, batch 1024": (lambda: mlp(1024, 256, 128), "training"),
    "deep mlp": (lambda: mlp(512, *(256,) * 12), "training"),
    "deep mlp, to read": (lambda: models.mlp(models.MlpConfig(784, (512,) * 12, 10), 512, "inference"), "inference"),
    "transformer in primitives": (lambda: networks.transformer(4, 64, 128, 256), "training"),
    "transformer in primitives, to read": (lambda: networks.transformer(8, 64, 128, 256), "inference"),
    "transformer, decomposed": (lambda: networks.decomposed(3, 64, 128, 256), "training"),
    "xf": (lambda: lm(4, 256, 4, 64, 1024, 256), "training"),
    "xf, long": (lambda: lm(4, 128, 4, 512, 512, 256), "training"),
    "xf, to read": (lambda: lm_mode("prefill", 64), "inference"),
    "xf, to write": (lambda: lm_mode("decode", 256), "inference"),
    "xfL": (lambda: lm(24, 256, 4, 64, 1024, 256), "training"),
    "xfM": (lambda: lm(8, 1024, 16, 512, 4096, 1024), "training"),
    "xf, shared keys": (lambda: lm(6, 192, 6, 128, 512, 512, 2), "training"),
    "convolutions": (lambda: convolutional(16, 32, (16, 32, 64)), "training"),
    "convolutions, to read": (lambda: convolutional(16, 64, (16, 32, 64)), "inference"),
    "residual": (lambda: residual(10, 256, 128), "training"),
    "autoencoder": (lambda: autoencoder(512, (512, 256, 128, 64)), "training"),
}


def footprint(name: str, target: Target) -> PlanFootprint:
    """Of one network, compiled as a session would."""
    build, mode = NETWORKS[name]
    plan = compiled(build(), SessionConfig(mode=mode), target).plan
    beside = sum(offset > 0 for offset in plan.memory.offset_of)
    return PlanFootprint(name, plan.memory.physical_bytes, live_bytes(plan), sum(plan.buffer_sizes), beside)


def memory_rows() -> Iterator[Row]:
    """Physical by live bytes, of all networks."""
    for found in (footprint(name, Target.portable()) for name in NETWORKS):
        told = f"live {found.live / 1e6:.2f} MB, bar {BAR}; without sharing {found.logical / 1e6:.2f} MB"
        told += f"; {found.beside} buffers side by side" if found.beside else ""
        yield Row(f"memory, {found.name}", f"**{found.ratio:.3f}** × live ({found.physical / 1e6:.2f} MB)", told)
