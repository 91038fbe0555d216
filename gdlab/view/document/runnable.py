"""The `run` section of a document: everything that a page needs to make the steps of a study itself, through WebGPU.

`runnable_doc(study, batches=1)` compiles the study's plan for the portable target and adds kernels, dispatches, memory,
constants, initial parameters, batches and the numbers of the update. docs/graphdoc.md tells the fields.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gdlab.base import philox
from gdlab.base.errors import ArgumentError, CompileError
from gdlab.base.formats.packed_bytes import Packed
from gdlab.base.types import Array
from gdlab.base.words import listed, nbytes
from gdlab.devices.fit import Bounds, check_plan, check_update, plan_places, state_places
from gdlab.plan.dispatch import OWN_SCALARS, SCALARS, scalar_places
from gdlab.plan.records import ExecutionPlan, Update
from gdlab.plan.rules import RULES
from gdlab.plan.target import Limits, Target
from gdlab.plan.update import Recipe, update_of
from gdlab.session import Optimizer
from gdlab.session.arrays import as_array
from gdlab.session.initial import DOMAIN, draw_of, initial_values, stream_of
from gdlab.session.run.feeds import random_batch
from gdlab.session.update_settings import scalars
from gdlab.study.study import Study
from gdlab.view.document.columns import Json
from gdlab.view.document.dispatches import kernel_texts
from gdlab.view.document.document import Document
from gdlab.view.document.make import study_doc

MOST_BYTES = 20 << 20  # of data in a page, unless more is asked for
MOST_BATCHES = 10_000
# Schedules of software adapters: small kernels, which every browser compiles soon (SwiftShader takes 20 s for the large
# tiles of one small network), and portable limits.
PAGE = Target("wgpu", "software", Limits())
_PORTABLE = Bounds(Limits(), 256 << 20)  # maxBufferSize of WebGPU's default limits
_SEEDS, _FEW = 256, 64  # seeds that are tried; elements that are stored as they are
# The sums of one invocation, which no other reads: see `_with_private_sums`.
_SHARED = "var<workgroup> sums: array<vec4<f32>, QUADS * 4u * (1u + STORES_VALUES) * LANES>;"
_PRIVATE = "var<private> sums: array<vec4<f32>, QUADS * 4u * (1u + STORES_VALUES)>;"
_CORRECTIONS = ("correction1", "correction2")


def runnable_doc(study: Study, batches: int = 1, weights: bool = False, large: bool = False) -> Document:
    """Return the study's document with a `run` section: up to `batches` batches of its feed, its parameters as they
    were before the first step (`weights`: as they are now). Above 20 MB only with `large`."""
    if not isinstance(study, Study):
        raise ArgumentError("save", "runnable", f"a {type(study).__name__} without its study", "a Study")
    if not isinstance(batches, int) or isinstance(batches, bool) or not 1 <= batches <= MOST_BATCHES:
        raise ArgumentError("save", "batches", repr(batches)[:60], f"an int in 1 … {MOST_BATCHES}")
    document = study_doc(study)
    section = run_section(study, batches, weights, large)
    return Document({**document.data, "run": section}, where=document.where)


def run_section(study: Study, batches: int, weights: bool, large: bool) -> Json:
    """Return the `run` section of a study's document."""
    rule, recipe = _rule(study), study.execution.recipe
    plan, update = _portable(study, recipe)
    if recipe.accumulate > 1:
        given = f"gradients of {recipe.accumulate} steps added up"
        raise ArgumentError("save", "runnable", given, "set_grad_accumulate(1): a page updates in every step")
    feed, note = _batches(study, plan, batches)
    data: Json = {
        "constants": {str(b): _text(np.frombuffer(each, np.uint8)) for b, each in plan.constant_buffers},
        "initial": _initial(study, plan, weights),
        "batches": [{name: _text(array) for name, array in batch.items()} for batch in feed],
    }
    size = sum(map(len, _texts(data)))
    if size > MOST_BYTES and not large:
        given = f"{nbytes(size)} of parameters and batches"
        raise ArgumentError("save", "runnable", given, f"at most {nbytes(MOST_BYTES)}, or large=True (--large)")
    dispatches = [*plan.dispatches, *update.dispatches]
    return {
        "plan": _plan(plan, update), **data, "update": _update(rule), "note": note,
        "same": _numbered(plan, update) == _numbered(study.plan, update_of(study.plan, recipe)),
        "scalars": [{"dispatch": k, "names": list(d.scalars)} for k, d in enumerate(dispatches) if d.scalars],
        "random": [{"dispatch": k, "seed": str(seed)} for k, seed in _seeds(plan)],
        "inputs": dict(plan.input_buffers),
        "loss": plan.loss_buffer, "outputs": list(plan.output_buffers), "bytes": size,
    }  # fmt: skip


def _numbered(plan: ExecutionPlan, update: Update) -> tuple[Any, ...]:
    """Return what identifies each dispatch (label, operands) and each buffer (name, kind, shape), in order."""
    dispatches = [(d.label, d.reads, d.writes) for d in (*plan.dispatches, *update.dispatches)]
    return dispatches, [(b.name, b.kind, b.shape) for b in (*plan.buffers, *update.buffers)]


def _rule(study: Study) -> Optimizer:
    return study.session.optimizer if study.has_session else study.execution.opening.optimizer


def _portable(study: Study, recipe: Recipe) -> tuple[ExecutionPlan, Update]:
    """Compile plan and update for every adapter; raise, naming the dispatch or tensor, where some adapter could not run
    them."""
    try:
        plan = study.pipeline.plan(PAGE)
        update = update_of(plan, recipe)
        check_plan(plan, _PORTABLE)
        check_update(plan, update, _PORTABLE)
        return plan, update
    except CompileError as error:
        wanted = f"{error.wanted}: what every browser with WebGPU has"
        raise ArgumentError("save", f"runnable: {error.what}", str(error.given), wanted) from None


# the plan -------------------------------------------------------------------------------------------------------------
def _plan(plan: ExecutionPlan, update: Update) -> Json:
    """Return the plan in slots with one tenant at a time: buffers that begin at one byte of a slot never live at once,
    so each such byte begins a slot of its own, and the engine of the page needs to know no offsets."""
    places = {**plan_places(plan), **state_places(update.buffers)}
    sizes = dict[tuple[tuple[str, int], int], int]()  # by home and offset
    for p in places.values():
        at = p.home, p.offset
        sizes[at] = max(sizes.get(at, 0), p.bound)
    homes = {at: i for i, at in enumerate(sizes)}
    dispatches, rows = [*plan.dispatches, *update.dispatches], [places[b] for b in sorted(places)]
    texts, kernel_of = kernel_texts(plan, dispatches)
    return {
        "wgsl": [_with_private_sums(text) for text in texts],
        "dispatches": [
            {"label": d.label, "kernel": k, "workgroups": list(d.workgroups), "scalars": bool(d.scalars),
             "bind": [[b, access] for b, access in d.bindings], "writes": list(d.writes)}
            for d, k in zip(dispatches, kernel_of, strict=True)
        ],
        "buffers": [
            {"name": p.buffer.name or ("loss" if p.buffer.kind == "loss" else ""), "kind": p.buffer.kind,
             "shape": list(p.buffer.shape), "dtype": str(p.buffer.dtype), "nbytes": p.buffer.nbytes,
             "bound": p.bound, "slot": homes[p.home, p.offset]}
            for p in rows
        ],
        "slots": [*sizes.values()],
        "groups": len(plan.groups) + len({d.group for d in update.dispatches}),
        "updates": len(update.dispatches),
    }  # fmt: skip


def _with_private_sums(text: str) -> str:
    """Move the sums of attention from workgroup memory to private memory. A browser clears workgroup memory behind a
    barrier, and SwiftShader compiles a kernel with a barrier four times as long (1.4 s, without 0.4 s; 2026-11-23)."""
    return text.replace(_SHARED, _PRIVATE).replace(" * LANES + own]", "]") if _SHARED in text else text


def _seeds(plan: ExecutionPlan) -> list[tuple[int, int]]:
    """Return the dispatches that draw random numbers, and the seed of each, which is in its text."""
    found = []
    for k, d in enumerate(plan.dispatches):
        drawn = [plan.graph.nodes[i] for i in d.origin if "seed" in dict(plan.graph.nodes[i].attrs)]
        found += [(k, int(dict(node.attrs)["seed"])) for node in drawn[:1]]
    return found


def _update(optimizer: Optimizer) -> Json:
    """Return the rule, its numbers, and the scalars of its first step in the order of the scalar buffer; the
    corrections of step t follow from the betas."""
    row = np.zeros(len(SCALARS) + OWN_SCALARS, np.float32)
    first = scalars(optimizer, 1)
    row[: len(first)] = first
    counts = optimizer.counts
    if counts and not _follows(optimizer):
        wanted = "a rule whose numbers change by 1 / (1 − βᵗ) alone from step to step"
        raise ArgumentError("save", "runnable", f"the update rule {optimizer.rule}", wanted)
    numbers = {name: float(value) for name, value in optimizer.numbers.items()}
    return {
        "rule": optimizer.rule, "text": "" if optimizer.rule == "none" else str(optimizer), "counts": counts,
        "numbers": numbers, "first": row.tolist(),
    }  # fmt: skip


def _follows(optimizer: Optimizer) -> bool:
    """Return whether a page can compute the scalars of any step from those of the first and its own corrections."""
    places = scalar_places((*SCALARS, *RULES[optimizer.rule].scalars))
    first, later = scalars(optimizer, 1), scalars(optimizer, 7)
    kept = [i for name, i in places.items() if name not in _CORRECTIONS and i < len(first)]
    return bool((first[kept] == later[kept]).all())


# data -----------------------------------------------------------------------------------------------------------------
def _initial(study: Study, plan: ExecutionPlan, weights: bool) -> Json:
    """Return the values of all stored parameters: one number, a recipe of uniform numbers, or bytes."""
    given = _weights(study, weights)
    declared = {n.name: dict(n.attrs).get("init") or "default" for n in study.graph.parameters}
    derived, found = {d.name: d for d in plan.derived_params}, dict[str, Any]()
    for name, b in plan.stored_params:
        if name in derived:
            found[name] = _data(_joined(derived[name], given, plan.buffers[b].shape))
            continue
        values, type = given[name], plan.param_types[name]
        if type.dtype.is_storage:
            found[name] = {"data": _text(Packed.of(values, type).words)}
        else:
            found[name] = _recipe(name, np.asarray(values), declared.get(name, "default"))
    return found


def _weights(study: Study, weights: bool) -> dict[str, Array | Packed]:
    """Return every parameter by name: as it is now, or as it was before the first step; without a session, the values
    that one would begin with (seed 0 where none are given)."""
    types = {n.name: n.type for n in study.graph.parameters}
    if study.has_session and not study.session.unset_parameters:
        snapshot, now = None if weights else study.runner.stepper.reset_point.snapshot, study.session.values.held
        return {name: now(name) if snapshot is None else snapshot.held(name, types[name]) for name in types}
    known = study.execution.parameters()
    missing = [n for n in study.graph.parameters if n.name not in known]
    if weights and missing:
        given = f"no value for {listed([n.name for n in missing])}"
        raise ArgumentError("save", "weights", given, "trained parameters: run the study first")
    made = {n.name: initial_values(n.name, n.type.shape, 0, dict(n.attrs).get("init") or "default") for n in missing}
    return {name: known[name] if name in known else made[name] for name in types}


def _joined(derived: Any, given: Mapping[str, Array | Packed], shape: Sequence[int]) -> Array:
    """Return the value of a parameter that is the storage of several others."""
    whole = np.empty(derived.shape, np.float32)
    for source, _ in derived.sources:
        part = derived.part(source, 0)
        whole[(slice(None),) * part.axis + (slice(part.start, part.stop),)] = given[source]
    return whole.reshape(shape)


def _recipe(name: str, values: Array, init: str) -> Json:
    """Return a parameter's values in their shortest form: one number, the uniform numbers of a small seed (exact
    everywhere: Philox), or the values themselves."""
    flat = np.asarray(values, np.float32).reshape(-1)
    if flat.size and (flat.view(np.uint32) == flat.view(np.uint32)[0]).all() and np.isfinite(flat[0]):
        return {"fill": float(flat[0])}
    found = _uniform(name, np.asarray(values, np.float32), init) if flat.size > _FEW else None
    return _data(flat) if found is None else {"uniform": found}


def _uniform(name: str, values: Array, init: str) -> Json | None:
    """Return the seed, stream and bound of numbers that the declared initializer drew, if it did with a small seed."""
    kind, bound = draw_of(name, values.shape, init)
    if kind != "uniform":
        return None
    stream, flat = stream_of(name), values.reshape(-1)
    for seed in range(_SEEDS):
        first = (2 * philox.uniform(4, seed, domain=DOMAIN, call=stream).astype(np.float64) - 1) * bound
        if np.array_equal(first.astype(np.float32), flat[:4]):
            same = np.array_equal(initial_values(name, values.shape, seed, init), values)
            return {"seed": seed, "stream": stream, "bound": bound} if same else None
    return None


def _data(values: Array) -> Json:
    return {"data": _text(np.asarray(values, np.float32))}


def _batches(study: Study, plan: ExecutionPlan, count: int) -> tuple[list[dict[str, Array]], str]:
    """Return the batches of the first steps, each input as its bytes lie in memory, and notes about them."""
    if not plan.input_buffers:
        return [{}], ""
    runner = study.runner if study.has_session else None
    feed, given = None if runner is None else runner.feed, study.execution.opening.feed
    if feed is None:
        unset = set(plan.input_types) if runner is None else set(study.session.unset_inputs)
        if unset:
            chosen = random_batch(study.graph, 0)
            return [_batch(plan, chosen)], "no feed was given: the inputs are random numbers (random:0)"
        return [_batch(plan, {n: study.session.read_input(n) for n in plan.input_types})], ""
    if not callable(given) and not isinstance(given, (str, Mapping)) and not hasattr(given, "next_batch"):
        held = {n: study.session.read_input(n) for n in plan.input_types}
        return [_batch(plan, held)], "the feed cannot be asked twice: this is its last batch"
    fixed = isinstance(given, (str, dict))
    return [_batch(plan, feed(k)) for k in range(1 if fixed else count)], ""


def _batch(plan: ExecutionPlan, batch: Mapping[str, Any]) -> dict[str, Array]:
    bounds, types = plan.index_bounds, plan.input_types
    return {name: as_array("save", name, batch[name], type, bounds.get(name)) for name, type in types.items()}


def _text(array: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _texts(data: Any) -> list[str]:
    """Return all texts in a JSON value."""
    if isinstance(data, Mapping):
        return list(itertools.chain.from_iterable(map(_texts, data.values())))
    if isinstance(data, list):
        return list(itertools.chain.from_iterable(map(_texts, data)))
    return [data] if isinstance(data, str) else []
