"""Sum up the bytes that a session has allocated now."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdlab.base.words import nbytes, plural
from gdlab.plan.memory import padded
from gdlab.plan.records import ExecutionPlan, Update
from gdlab.session.totals import totals


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """The memory allocated now: plan slots, constants, moments, sums of gradients, clip scratch and states of rules
    other than Adam's (both `aux_bytes`); not staging or driver memory. All but `logical_buffer_bytes` counts the
    padding to 256 bytes; 1 MB = 10⁶ bytes. `parts`: what it holds, as (name, bytes) that add up to the total: inputs,
    parameters, gradients, optimizer state, outputs, caches, reusable slots, scratch."""

    total_buffer_bytes: int
    adam_state_bytes: int
    num_buffers: int
    largest_buffer_bytes: int
    logical_buffer_bytes: int = 0
    grad_accumulator_bytes: int = 0
    aux_bytes: int = 0
    parts: tuple[tuple[str, int], ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return (
            f"{self.num_buffers} buffers, {self.total_buffer_bytes / 1e6:.1f} MB total "
            f"({self.adam_state_bytes / 1e6:.1f} MB adam state), largest {self.largest_buffer_bytes / 1e6:.1f} MB"
        )

    @property
    def text(self) -> str:
        """`4 buffers, 12.3 MB in all (8.2 MB of Adam state), the largest 4.1 MB`: the text of views, which do not show
        `str`."""
        state = f" ({nbytes(self.adam_state_bytes)} of Adam state)" if self.adam_state_bytes else ""
        total, largest = nbytes(self.total_buffer_bytes), nbytes(self.largest_buffer_bytes)
        return f"{plural(self.num_buffers, 'buffer')}, {total} in all{state}, the largest {largest}"


def summary(plan: ExecutionPlan, update: Update) -> MemorySummary:
    """Sum up a plan and the state buffers of its updates."""
    by_kind = {"adam_": 0, "grad_sum.": 0, "": 0}  # of others clip factors, states of other rules
    sizes = [padded(b.nbytes, plan.target.limits.alignment) for b in update.buffers]
    for b, size in zip(update.buffers, sizes, strict=True):
        by_kind[next(prefix for prefix in by_kind if b.name.startswith(prefix))] += size
    step, slots = totals(plan, update), [s.nbytes for s in plan.memory.slots] + sizes
    return MemorySummary(
        step.physical_bytes, by_kind["adam_"], len(slots), max(slots, default=0), step.logical_bytes,
        by_kind["grad_sum."], by_kind[""], step.parts,
    )  # fmt: skip
