"""An independent judge of plans: replays one in its physical slots. It shares no code with the planner or `verify`.

`watch()` has every plan that is compiled from then on judged; conftest calls it, so no test makes an unjudged plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gdlab.plan.dispatch import Dispatch
from gdlab.plan.records import ExecutionPlan

HOST = -1  # the group in which the host fills what is held from before
HELD = {"input", "parameter", "derived", "constant", "state"}
JUDGED = [0]  # plans so far


class SlotHazard(AssertionError):
    """Two dispatches of one group meet in a slot, or one reads what is not there."""


@dataclass
class SlotCell:
    """A value in a slot during a replay: whose it is, its bytes, which group wrote it, and which read it since."""

    tenant: int
    start: int
    stop: int
    written: int = HOST
    writer: int = -1
    readers: dict[int, int] = field(default_factory=dict)  # dispatch → group


Cells = list[SlotCell]  # of one slot; no two share a byte


def judge(plan: ExecutionPlan) -> ExecutionPlan:
    """The plan, when its groups may run in any order inside and give the values of its dispatches one by one."""
    replay(plan)
    once(plan)
    JUDGED[0] += 1
    return plan


def replay(plan: ExecutionPlan) -> None:
    """Slots as they change, group by group."""
    slot_of = plan.memory.slot_of
    slots: list[Cells] = [[] for _ in plan.memory.slots]
    for buffer in plan.buffers:
        if buffer.kind in HELD:
            for cell in slots[slot_of[buffer.id]]:
                raise SlotHazard(f"buffers {cell.tenant} and {buffer.id} are both kept in slot {slot_of[buffer.id]}")
            slots[slot_of[buffer.id]].append(empty(plan, buffer.id))
    group_of = groups(plan)
    for number, d in enumerate(plan.dispatches):
        touched = touches(d)
        one_access(plan, number, touched)
        for buffer, reads, _ in touched:
            if reads:
                look(slots[slot_of[buffer]], buffer, number, group_of[number])
        for buffer, _, writes in touched:
            if writes:
                change(slots[slot_of[buffer]], empty(plan, buffer), number, group_of[number])
    for buffer in {*plan.output_buffers, *(g for _, g in plan.param_grad_pairs)}:
        holds = [cell.tenant for cell in slots[slot_of[buffer]]]
        if buffer not in holds:
            raise SlotHazard(f"output buffer {buffer}: slot {slot_of[buffer]} holds {holds}")


def empty(plan: ExecutionPlan, buffer: int) -> SlotCell:
    """The bytes of a buffer in its slot, which must lie inside of it, at a multiple of 256."""
    memory, nbytes = plan.memory, plan.buffers[buffer].nbytes
    start, size = memory.offset_of[buffer], memory.slots[memory.slot_of[buffer]].nbytes
    if start % 256 or not 0 <= start <= start + nbytes <= size:
        raise SlotHazard(f"buffer {buffer} lies at {start} … {start + nbytes} in a slot of {size} bytes")
    return SlotCell(buffer, start, start + nbytes)


def one_access(plan: ExecutionPlan, number: int, touched: list[tuple[int, bool, bool]]) -> None:
    """Check that a slot in which a dispatch writes is bound once: a GPU buffer has one access per dispatch."""
    slots = [plan.memory.slot_of[buffer] for buffer, _, _ in touched]
    for buffer, _, writes in touched:
        if writes and slots.count(plan.memory.slot_of[buffer]) > 1:
            raise SlotHazard(f"dispatch {number} writes buffer {buffer} in a slot that it binds twice")


def groups(plan: ExecutionPlan) -> list[int]:
    """The group of every dispatch, from the borders alone."""
    found = [n for n, g in enumerate(plan.groups) for _ in range(g.start, g.stop)]
    if found != [d.group for d in plan.dispatches]:
        raise SlotHazard("the borders of the groups and the dispatches' own numbers differ")
    return found


def touches(d: Dispatch) -> list[tuple[int, bool, bool]]:
    """(buffer, read, written) of a dispatch, from its operands."""
    read = {o.buffer for o in d.operands} | set(d.in_place)
    written = {*d.outputs} | set(d.in_place)
    return [(b, b in read, b in written) for b in sorted(read | written)]


def look(cells: Cells, buffer: int, number: int, group: int) -> None:
    """A read: the value is there, and an earlier group put it there."""
    cell = next((cell for cell in cells if cell.tenant == buffer), None)
    if cell is None:
        raise SlotHazard(f"dispatch {number} reads buffer {buffer}: its slot holds {[c.tenant for c in cells]}")
    if cell.written >= group:
        raise SlotHazard(f"dispatch {number} reads buffer {buffer}: dispatch {cell.writer} of its own group wrote it")
    cell.readers[number] = group


def change(cells: Cells, new: SlotCell, number: int, group: int) -> None:
    """A write: nobody else of the group has read or written its bytes. What had some of them is gone."""
    buffer, lost = new.tenant, [cell for cell in cells if cell.start < new.stop and new.start < cell.stop]
    for cell in lost:
        if cell.written >= group:
            raise SlotHazard(
                f"dispatch {number} writes buffer {buffer} where dispatch {cell.writer} of its own group wrote"
            )
        for reader, at in cell.readers.items():
            if reader != number and at >= group:
                raise SlotHazard(
                    f"dispatch {number} writes buffer {buffer} where dispatch {reader} of its own group reads"
                )
        if number in cell.readers and cell.tenant != buffer:
            raise SlotHazard(f"dispatch {number} writes buffer {buffer} over buffer {cell.tenant}, which it reads")
        cells.remove(cell)
    new.written, new.writer = group, number
    cells.append(new)


def once(plan: ExecutionPlan) -> None:
    """Check that a buffer which no update keeps is written by one dispatch alone."""
    writer: dict[int, int] = {}
    for number, d in enumerate(plan.dispatches):
        for buffer in {*d.outputs} - set(d.in_place):
            if buffer in writer:
                raise SlotHazard(f"dispatches {writer[buffer]} and {number} both write buffer {buffer}")
            writer[buffer] = number


def watch() -> None:
    """Judge every plan that `compile` gives, behind its own check."""
    from gdlab.plan import compiler

    verify: Any = compiler.verify
    if not hasattr(verify, "judged"):

        def judged(plan: ExecutionPlan) -> ExecutionPlan:
            return judge(verify(plan))

        judged.judged = True  # type: ignore[attr-defined]
        compiler.verify = judged


def in_order(plan: ExecutionPlan, order: Sequence[int]) -> list[Dispatch]:
    """The dispatches in another order, numbered anew."""
    from dataclasses import replace

    return [replace(plan.dispatches[i], index=k) for k, i in enumerate(order)]
