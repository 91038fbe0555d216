"""Make steps that do not count: `with rehearsal(values, updates, steps): steps.make()` puts everything back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from gdlab.base.types import Array
from gdlab.session.steps import Steps
from gdlab.session.updates import Updates
from gdlab.session.values import Values


@contextmanager
def rehearsal(values: Values, updates: Updates, steps: Steps) -> Iterator[None]:
    """At the end of the block, restore every buffer that steps write and later ones read (parameters, gradients,
    outputs, moments, sums), the counters and the totals. Losses of the steps are dropped; take those of earlier ones
    first. Call it on the owner thread."""
    loaded, progress = values.loaded, steps.progress
    program, traffic = loaded.program, loaded.program.counters
    buffers = (*loaded.plan.buffers, *updates.state_buffers)
    written = {b for d in (*loaded.plan.dispatches, *updates.update.dispatches) for b in d.writes}
    kept = [buffers[b] for b in sorted(written) if b >= len(loaded.plan.buffers) or b in loaded.plan.memory.pinned]
    totals = {field.name: getattr(traffic, field.name) for field in fields(traffic)}
    counters = progress.steps, progress.partial, updates.adam_steps, updates.window
    blocks: dict[int, Array] = {b.id: program.words(b.id) for b in kept if b.dtype.in_blocks}
    arrays: dict[int, Array] = {b.id: program.download(b.id) for b in kept if b.id not in blocks}
    try:
        yield
    finally:
        for buffer, words in blocks.items():
            program.upload_words(buffer, words)
        for buffer, data in arrays.items():
            program.upload(buffer, data)
        steps.take_losses(True)
        progress.steps, progress.partial, adam_steps, updates.window = counters
        updates.set_adam_steps(adam_steps)
        for name, total in totals.items():
            setattr(traffic, name, total)
