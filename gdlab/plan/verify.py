"""Refuse invalid plans: an independent check of order, memory, bindings and limits, run on every plan."""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from gdlab.base.errors import CompileError
from gdlab.base.types import DType
from gdlab.plan.candidates import K_ROWS
from gdlab.plan.dispatch import Arg, Dispatch, Matmul, Operand, PointOp, UpdateCore
from gdlab.plan.records import ExecutionPlan, MemoryPlan, PlanBuffer, Update
from gdlab.plan.spread import doubles, flat, halves, normalizes, update_groups
from gdlab.plan.target import ALIGN, Limits

# kinds of buffers that hold something before the first dispatch
_HELD = ("input", "parameter", "derived", "constant", "state")

WRITTEN_OUT = 1024  # more than any number of a schedule that decides how long the text of a kernel is

_VALID: dict[int, weakref.ref[ExecutionPlan]] = {}  # by id: a plan is checked once, however often it is opened


def verify(plan: ExecutionPlan) -> ExecutionPlan:
    """Return the plan itself if it is valid; else raise `CompileError` naming dispatch and binding."""
    known = _VALID.get(id(plan))
    if known is not None and known() is plan:
        return plan
    _check_references(plan)
    limits = plan.target.limits
    for d in plan.dispatches:
        _check_dispatch(d, plan.buffers, plan.memory.slot_of, limits)
    _check_groups(plan)
    _check_written_before_read(plan)
    _check_memory(plan.buffers, plan.dispatches, plan.memory, limits)
    key = id(plan)
    _VALID[key] = weakref.ref(plan, lambda _: _VALID.pop(key, None))
    return plan


def verify_update(plan: ExecutionPlan, update: Update) -> Update:
    """Return the update itself if its dispatches, which follow the plan's, are valid; else raise `CompileError`."""
    buffers = (*plan.buffers, *update.buffers)
    slots = len(plan.memory.slots)
    slot_of = (*plan.memory.slot_of, *range(slots, slots + len(update.buffers)))
    for _, together in itertools.groupby(update.dispatches, lambda d: d.group):
        written: dict[int, int] = {}
        for d in together:
            _check_dispatch(d, buffers, slot_of, plan.target.limits)
            for b in d.writes:
                if b in written:
                    raise _conflict(d.index, written[b], b, "both write")
                written[b] = d.index
    return update


def verify_dispatches(dispatches: Sequence[Dispatch], buffers: Sequence[PlanBuffer], limits: Limits) -> None:
    """Check dispatches that belong to no plan: each buffer is a memory of its own."""
    for d in dispatches:
        _check_dispatch(d, buffers, range(len(buffers)), limits)


# one dispatch ---------------------------------------------------------------------------------------------------------
def _check_dispatch(d: Dispatch, buffers: Sequence[PlanBuffer], slot_of: Sequence[int], limits: Limits) -> None:
    where = f"dispatch {d.index}"
    for b in (*d.reads, *d.writes):
        if not 0 <= b < len(buffers):
            raise CompileError(where, "buffer", b, f"0 … {len(buffers) - 1}")
    _check_bindings(where, d, buffers, slot_of, limits)
    _check_grid(where, d, limits)
    _check_fields(where, d, buffers)


def _check_bindings(
    where: str, d: Dispatch, buffers: Sequence[PlanBuffer], slot_of: Sequence[int], limits: Limits
) -> None:
    bindings = d.bindings
    count = len(bindings) + bool(d.scalars)
    if count > limits.storage_buffers:
        raise CompileError(where, "bindings", count, f"at most {limits.storage_buffers} storage buffers")
    written = {slot_of[b] for b, access in bindings if access == "w"}
    times_bound = Counter(slot_of[b] for b, _ in bindings)
    for number, (b, access) in enumerate(bindings):
        times = times_bound[slot_of[b]]
        if times > 1 and slot_of[b] in written:
            raise CompileError(where, f"binding {number}", f"a written buffer bound {times} times", "once")
        nbytes = buffers[b].nbytes
        if not 0 < nbytes <= limits.binding_bytes or nbytes % 4:
            name = buffers[b].name or f"buffer {b}"
            raise CompileError(
                where, f"binding {number}", f"size {nbytes} ({name}, {access})", f"4, 8, … {limits.binding_bytes}"
            )


def _check_grid(where: str, d: Dispatch, limits: Limits) -> None:
    if min(d.workgroups) < 1 or max(d.workgroups) > limits.workgroups_per_axis:
        raise CompileError(where, "workgroups", list(d.workgroups), f"1 … {limits.workgroups_per_axis} per axis")
    if not 1 <= math.prod(d.workgroup_size) <= limits.invocations:
        raise CompileError(where, "workgroup size", list(d.workgroup_size), f"1 … {limits.invocations} invocations")
    written_out = math.prod(d.params[3:5]) if d.variant.startswith("tile ") else 1  # of a tile, per invocation
    if d.params and not (1 <= min(d.params) and max(*d.params[:6], written_out) <= WRITTEN_OUT):
        raise CompileError(where, "schedule", list(d.params), f"numbers in 1 … {WRITTEN_OUT}")


def _check_fields(where: str, d: Dispatch, buffers: Sequence[PlanBuffer]) -> None:
    _check_results(where, d, buffers)
    if d.kernel in _DOMAINS:
        core, inner, outer = _DOMAINS[d.kernel](d)
        whole = next((k for k, o in enumerate(d.operands) if o.parts != 1 and (d.custom is None or k)), None)
        if whole is not None:
            given = f"operand {whole} in {d.operands[whole].parts} parts"
            raise CompileError(where, "parts", given, "at most operand 0 of a kernel of its own")
        for number, (operand, need) in enumerate(zip(d.operands, core, strict=False)):
            _check_operand(where, number, operand, need, buffers)
        _check_chain(where, d, d.prologue, inner, buffers, ())
        sums = ("acc",) if core or d.prologue or d.custom is not None else ()  # a random draw reads no operand
        dual = ("dual",) if d.matmul is not None and d.matmul.dual is not None else ()
        _check_chain(where, d, d.epilogue, outer, buffers, (*sums, *dual))
        if outer != d.num_elements:
            raise CompileError(where, "elements", outer, f"{d.num_elements} ({d.type})")
        _check_values(where, d, (*sums, *dual))


def _check_results(where: str, d: Dispatch, buffers: Sequence[PlanBuffer]) -> None:
    """Check that every result fills a buffer of its own, written by the epilogue, in columns, or by name."""
    if not d.results:
        raise CompileError(where, "results", "none", "at least one")
    for r in d.results:
        if -(-r.type.size_bytes // 4) * 4 != buffers[r.buffer].nbytes:  # an odd number of 16-bit elements is padded
            raise CompileError(where, "output", str(r.type), f"{buffers[r.buffer].nbytes} bytes")
    if d.update is not None:
        return _check_update(where, d, d.update, buffers)
    several = len(d.results) > 1
    if several and (len(set(d.outputs)) != len(d.results) or set(d.outputs) & set(d.in_place)):
        raise CompileError(where, "outputs", list(d.outputs), f"{len(d.results)} buffers, one for each result")
    if any(r.columns is not None for r in d.results):
        return _check_columns(where, d)
    named = 1 + len(d.custom.results) if d.custom is not None else 1
    plain = sum(r.value is None for r in d.results)
    if plain != named or any(r.value is not None for r in d.results[:named]):
        raise CompileError(where, "outputs", plain, f"{named}: the results that its kernel names, before other values")


def _check_update(where: str, d: Dispatch, core: UpdateCore, buffers: Sequence[PlanBuffer]) -> None:
    """Check that every parameter is a result, has gradient and states of its size, and workgroups for all elements."""
    touched = [b for p in core.parameters for b in p.touched]
    if d.outputs != tuple(p.touched[0] for p in core.parameters) or sorted(touched) != sorted(d.in_place):
        given = f"results {list(d.outputs)}, in place {list(d.in_place)}"
        raise CompileError(where, "outputs", given, f"each of the update's parameters and states once: {touched}")
    bound = {o.buffer for o in d.operands}
    for p in core.parameters:
        for b in (*p.touched, *(() if p.gradient is None else (p.gradient,))):
            if buffers[b].nbytes != p.type.size_bytes:
                wanted = f"{p.type.size_bytes}, as buffer {p.touched[0]}"
                raise CompileError(where, f"buffer {b} of the update", f"{buffers[b].nbytes} bytes", wanted)
        if not bound >= {*p.buffers} - {*p.touched}:
            raise CompileError(where, "operands", sorted(bound), f"gradient and clip factors of buffer {p.touched[0]}")
        stops = [0, *(s.stop for s in p.stretches)]
        if len(stops) < 2 or any(a >= b for a, b in itertools.pairwise(stops)) or p.type.num_elements % stops[-1]:
            raise CompileError(where, "stretches", stops[1:], f"ascending, the last a divisor of {p.type.num_elements}")
    groups = sum(update_groups(p, d.workgroup_size[0]) for p in core.parameters)
    if flat(d.workgroups) < groups:
        raise CompileError(where, "workgroups", list(d.workgroups), f"{groups} for all elements of the update")


def _check_columns(where: str, d: Dispatch) -> None:
    """Check that every range of columns lies inside the rows of the core's result."""
    if len(d.type.shape) != 2 or d.kernel not in ("matmul", "reduce"):
        raise CompileError(where, "columns", f"{d.kernel} {d.type}", "those of a product")
    rows, width = d.type.shape[0], d.num_elements // d.type.shape[0]
    for r in d.results:
        c = r.columns
        if c is None or c.width != width:
            raise CompileError(where, "columns", "none" if c is None else f"of {c.width}", f"of {width} in each result")
        if not 0 <= c.start < c.stop <= width or r.type.shape != (rows, c.stop - c.start):
            wanted = f"{r.type.num_elements // rows} of {width}, which fill buffer {r.buffer}"
            raise CompileError(where, "columns", f"{c.start} … {c.stop - 1}", wanted)


def _check_values(where: str, d: Dispatch, sums: Sequence[str]) -> None:
    """Check that results with a value of their own are of the size of the first, and of what the dispatch computes."""
    for r in d.results:
        if r.value is None:
            continue
        if r.type.num_elements != d.num_elements or {r.type.dtype, d.type.dtype} != {DType.f32} or d.in_columns:
            raise CompileError(where, f"result in buffer {r.buffer}", str(r.type), f"f32 elements of {d.type}")
        kind, index = r.value.kind, r.value.index
        if kind == "read" and d.custom is not None and math.prod(d.operands[0].shape) == d.num_elements:
            continue
        if kind not in ("op", *sums) or (kind == "op" and not 0 <= index < len(d.epilogue)):
            raise CompileError(where, f"result in buffer {r.buffer}", f"{kind} {index}", "a value of its epilogue")


def _check_operand(where: str, number: int, operand: Operand, domain: int, buffers: Sequence[PlanBuffer]) -> None:
    """Check that every element that the access reaches, of every part, lies inside the buffer."""
    extent = operand.extent
    if operand.parts != 1 and (operand.parts < 1 or (operand.access, operand.dtype) != ("full", DType.f32)):
        given = f"{operand.parts} parts, {operand.access}, {operand.dtype.name}"
        raise CompileError(where, f"operand {number}", given, "one part, or several in f32 that are read in full")
    if operand.access in ("row", "column") and (extent < 1 or domain % extent):
        raise CompileError(where, f"operand {number}", f"extent {extent}", f"a divisor of {domain}")
    need = {"full": domain, "row": extent, "column": domain // extent, "scalar": 1}[operand.access]
    home = buffers[operand.buffer]
    held = math.prod(home.shape) if home.dtype.is_storage else home.nbytes // 4
    need *= operand.parts
    if need > held:
        raise CompileError(where, f"operand {number}", f"{held} elements", f"{need} ({operand.access})")


def _check_chain(
    where: str, d: Dispatch, chain: Sequence[PointOp], domain: int, buffers: Sequence[PlanBuffer], sums: Sequence[str]
) -> None:
    for line, op in enumerate(chain):
        if len(op.names) != len(op.args):
            raise CompileError(where, f"{op.op}", f"{len(op.args)} arguments", f"{len(op.names)}")
        for arg in op.args:
            if not _fits(arg, line, len(d.operands), sums):
                raise CompileError(where, f"{op.op}", f"{arg.kind} {arg.index}", "an earlier line or an operand")
            if arg.kind == "operand":
                _check_operand(where, arg.index, d.operands[arg.index], domain, buffers)


def _fits(arg: Arg, line: int, operands: int, sums: Sequence[str]) -> bool:
    match arg.kind:
        case "operand":
            return 0 <= arg.index < operands
        case "op":
            return 0 <= arg.index < line
        case "acc" | "dual":
            return arg.kind in sums
        case "literal":
            return not math.isnan(arg.value)
        case "read":
            return False  # of a result alone


# (elements that the core reads of its operands, elements of the prologue, elements of the epilogue) by kernel
Domains = tuple[tuple[int, ...], int, int]


def _matmul_domains(d: Dispatch) -> Domains:
    p = d.matmul
    assert p is not None  # the table asks by kernel
    kernel = d.variant.split()[0] if _fits_kernel(d) else ""
    if p.norm is not None and not (normalizes(p, kernel) and 0 < p.norm.eps < math.inf):
        given = f"{d.variant} of {p.m}x{p.n}x{p.k}, eps {p.norm.eps:g}"
        raise CompileError(f"dispatch {d.index}", "norm", given, "few rows of fours or K in parts, eps above 0")
    if p.dual is not None and not (doubles(p, kernel) and _alike_factors(d, p)):
        given = f"{d.variant} of {p.m}x{p.n}x{p.k}, {len(d.operands)} operands"
        raise CompileError(f"dispatch {d.index}", "dual product", given, "few rows or K in parts, factors of one dtype")
    weight, factor = () if p.norm is None else (p.k,), () if p.dual is None else (p.k * p.n,)
    rows = (p.m * p.k,) if p.dual is not None and p.dual_rows else ()
    return (p.m * p.k, p.k * p.n, *weight, *factor, *rows), 0, p.parts * p.m * p.n


def _fits_kernel(d: Dispatch) -> bool:
    """Return whether the numbers of a product's schedule are those of its kernel, where parts of K are in a group, or
    half of a tile is that of a second product."""
    if d.variant.startswith("tile ") and d.matmul is not None and d.matmul.dual is not None:
        return len(d.params) == 8 and halves(d.params) and d.matmul.parts == 1
    if not d.variant.startswith("k-parallel "):
        return True
    return d.workgroup_size == (256, 1, 1) and d.params in {(rows, 16, 256 // rows) for rows in K_ROWS}


def _alike_factors(d: Dispatch, p: Matmul) -> bool:
    if len(d.operands) <= max(p.dual_operand, p.rows_operand):
        return False
    pairs = (1, p.dual_operand), (0, p.rows_operand)
    return all(d.operands[one].dtype == d.operands[other].dtype for one, other in pairs)


def _reduce_domains(d: Dispatch) -> Domains:
    assert d.reduce is not None  # the table asks by kernel
    results = d.reduce.outer * d.reduce.inner
    return () if d.prologue else (results * d.reduce.length,), results * d.reduce.length, results


def _custom_domains(d: Dispatch) -> Domains:
    assert d.custom is not None  # the table asks by kernel
    core = tuple(math.prod(o.shape) for o in d.operands[: len(d.custom.names)])
    return core, core[0] if core else 0, d.type.num_elements


def _gather_domains(d: Dispatch) -> Domains:
    assert d.gather is not None  # the table asks by kernel
    return (1,), 0, math.prod(d.gather.shape)


_DOMAINS: dict[str, Callable[[Dispatch], Domains]] = {
    "pointwise": lambda d: ((), 0, d.type.num_elements),
    "matmul": _matmul_domains,
    "reduce": _reduce_domains,
    "custom": _custom_domains,
    "movement": _gather_domains,
}


# the whole ------------------------------------------------------------------------------------------------------------
def _check_references(plan: ExecutionPlan) -> None:
    count = len(plan.buffers)
    for i, b in enumerate(plan.buffers):
        if b.id != i:
            raise CompileError("plan", "buffer id", b.id, str(i))
    for i, d in enumerate(plan.dispatches):
        if d.index != i:
            raise CompileError("plan", "dispatch index", d.index, str(i))
    for what, places in (("slots", plan.memory.slot_of), ("offsets", plan.memory.offset_of)):
        if len(places) != count:
            raise CompileError("memory", what, f"{len(places)} places", str(count))
    for what, ids in _references(plan):
        for ref in ids:
            if not 0 <= ref < count:
                raise CompileError("plan", what, ref, f"0 … {count - 1}")
    for ref, data in plan.constant_buffers:
        if len(data) != plan.buffers[ref].nbytes:
            raise CompileError("plan", f"constant {ref}", f"{len(data)} bytes", f"{plan.buffers[ref].nbytes}")
    for p, g in plan.param_grad_pairs:
        have, need = plan.buffers[g].nbytes, plan.buffers[p].nbytes
        if have != need:
            raise CompileError("plan", f"gradient of {plan.buffers[p].name}", f"{have} bytes", str(need))


def _references(plan: ExecutionPlan) -> Iterable[tuple[str, Iterable[int]]]:
    yield "parameter buffer", (b if isinstance(b, int) else b.buffer for _, b in plan.param_buffers)
    yield "input buffer", (b for _, b in plan.input_buffers)
    yield "constant buffer", (b for b, _ in plan.constant_buffers)
    yield "output buffer", plan.output_buffers
    yield "gradient buffer", (b for pair in plan.param_grad_pairs for b in pair)
    yield "node buffer", (b for _, b in plan.places)
    yield "loss buffer", () if plan.loss_buffer is None else (plan.loss_buffer,)


def _check_groups(plan: ExecutionPlan) -> None:
    """Check that groups partition the dispatches, and that no two dispatches of one group conflict."""
    at = 0
    for number, group in enumerate(plan.groups):
        if group.start != at or group.stop <= group.start:
            raise CompileError(f"group {number}", "dispatches", f"{group.start} … {group.stop}", f"{at} … more")
        at = group.stop
        writer: dict[int, int] = {}
        for d in plan.dispatches[group.start : group.stop]:
            if d.group != number:
                raise CompileError(f"dispatch {d.index}", "group", d.group, str(number))
            for b in d.writes:
                if b in writer:
                    raise _conflict(d.index, writer[b], b, "both write")
                writer[b] = d.index
        for d in plan.dispatches[group.start : group.stop]:
            for b in d.reads:
                if writer.get(b, d.index) != d.index:
                    raise _conflict(d.index, writer[b], b, "one reads and one writes")
    if at != len(plan.dispatches):
        raise CompileError("plan", "groups", f"{at} dispatches", str(len(plan.dispatches)))


def _conflict(one: int, other: int, buffer: int, how: str) -> CompileError:
    first, second = sorted((one, other))
    given = f"dispatches {first} and {second} in one group: {how} buffer {buffer}"
    return CompileError(f"dispatch {second}", "group", given, "no conflict inside a group")


def _check_written_before_read(plan: ExecutionPlan) -> None:
    written = [b.kind in _HELD for b in plan.buffers]
    for d in plan.dispatches:
        reads = {*d.reads}
        for number, (b, _) in enumerate(d.bindings):
            if b in reads and not written[b]:
                name = plan.buffers[b].name or f"buffer {b}"
                raise CompileError(f"dispatch {d.index}", f"binding {number}", f"{name}, unwritten", "a written buffer")
        for b in d.writes:
            if plan.buffers[b].kind in ("input", "constant"):
                kind = plan.buffers[b].kind
                raise CompileError(f"dispatch {d.index}", "output", f"{kind} buffer {b}", "a buffer to write")
            written[b] = True
    for b in (*plan.output_buffers, *(g for _, g in plan.param_grad_pairs)):
        if not written[b]:
            raise CompileError("plan", "output", f"buffer {b}, unwritten", "a written buffer")


def _check_memory(
    buffers: Sequence[PlanBuffer], dispatches: Sequence[Dispatch], memory: MemoryPlan, limits: Limits
) -> None:
    """Check that slots hold their tenants, pinned ones hold one, and two tenants with common bytes never live in one
    group. (That no dispatch binds a slot twice and writes it is checked by dispatch.)"""
    first, last = _lives(buffers, dispatches)
    tenants: list[list[int]] = [[] for _ in memory.slots]
    for b, place in enumerate(memory.slot_of):
        if not 0 <= place < len(memory.slots):
            raise CompileError("memory", f"slot of buffer {b}", place, f"0 … {len(memory.slots) - 1}")
        tenants[place].append(b)
    pinned = {*memory.pinned} | {b.id for b in buffers if b.kind not in ("intermediate",)}
    for number, slot in enumerate(memory.slots):
        held = sorted(tenants[number], key=lambda b: first[b])
        if sorted(slot.tenants) != sorted(held):
            raise CompileError(f"slot {number}", "tenants", list(slot.tenants), str(sorted(held)))
        need = max((memory.offset_of[b] + buffers[b].nbytes for b in held), default=0)
        if slot.nbytes % limits.alignment or slot.nbytes < need:
            raise CompileError(f"slot {number}", "size", slot.nbytes, f"≥ {need}, a multiple of {limits.alignment}")
        if len(held) > 1 and any(b in pinned for b in held):
            raise CompileError(f"slot {number}", "tenants", held, "a pinned buffer alone")
        _check_offsets(number, held, buffers, memory, max(ALIGN, limits.alignment))
        starts = [memory.offset_of[b] for b in held]
        placed = [Tenant(b, first[b], last[b], s, s + buffers[b].nbytes) for b, s in zip(held, starts, strict=True)]
        for before, b in clashes(placed):
            given = f"buffer {before} until group {last[before]}, buffer {b} from group {first[b]}"
            raise CompileError(f"slot {number}", "lives", given, "strictly one after the other")


def _check_offsets(
    number: int, held: Sequence[int], buffers: Sequence[PlanBuffer], memory: MemoryPlan, alignment: int
) -> None:
    """Check that offsets are aligned; a pinned buffer, which other memory may replace, and values of fewer bits, which
    cpu holds decoded in more bytes, begin their slots."""
    whole = any(b in memory.pinned or buffers[b].kind != "intermediate" or buffers[b].dtype.is_storage for b in held)
    for b in held:
        offset = memory.offset_of[b]
        if offset < 0 or offset % alignment or (whole and offset):
            wanted = "0" if whole else f"0, {alignment}, …"
            raise CompileError(f"slot {number}", f"offset of buffer {b}", offset, wanted)


class Tenant(NamedTuple):
    """A buffer in a slot: the groups and the bytes (start … stop − 1) that it takes."""

    buffer: int
    first: int
    last: int
    start: int
    stop: int


def clashes(tenants: Iterable[Tenant]) -> Iterator[tuple[int, int]]:
    """Yield pairs of buffers, the one that is there first before, that share a byte of their slot in some group; none
    if no two do."""
    alive: list[tuple[int, Tenant]] = []  # by start; until a pair is found no two share a byte
    ends: list[tuple[int, int, Tenant]] = []  # a heap, by last group
    for tenant in sorted(tenants, key=lambda t: (t.first, t.buffer)):
        while ends and ends[0][0] < tenant.first:
            _, *entry = heapq.heappop(ends)
            del alive[bisect.bisect_left(alive, tuple(entry))]
        at = bisect.bisect_left(alive, (tenant.start, tenant))
        for _, other in alive[max(0, at - 1) : at + 1]:
            if other.start < tenant.stop and tenant.start < other.stop:
                yield other.buffer, tenant.buffer
        alive.insert(at, (tenant.start, tenant))
        heapq.heappush(ends, (tenant.last, tenant.start, tenant))


def _lives(buffers: Sequence[PlanBuffer], dispatches: Sequence[Dispatch]) -> tuple[list[int], list[int]]:
    """Return first and last group in which each buffer is touched."""
    first, last = [-1] * len(buffers), [-1] * len(buffers)
    for d in dispatches:
        for b in {**dict.fromkeys(d.reads), **dict.fromkeys(d.writes)}:
            first[b] = d.group if first[b] < 0 else first[b]
            last[b] = max(last[b], d.group)
    return first, last
