"""Memory, rewrites, dispatches, groups and steps are one number each: in summary, document, text and Python."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable

import networks
import pytest
import small_models

from gdlab.base.words import nbytes, plural, whole
from gdlab.graph import Graph
from gdlab.jupyter.widget import Panel
from gdlab.study.study import Study
from gdlab.view.document.document import Document
from gdlab.view.document.passes import rewrites_to_plan
from gdlab.view.picture.picture import picture
from gdlab.view.text.twin import markdown, twin

NETWORKS: dict[str, tuple[Callable[[], Graph], bool]] = {
    "mlp": (lambda: networks.mlp(8), True),
    "reader": (lambda: networks.reader(8), False),
    "transformer": (lambda: networks.transformer(2, 8, 16, 16), True),
    "decomposed": (lambda: networks.decomposed(1, 8, 16, 16), False),
    "gated": (networks.gated_block, False),
    "small": (networks.small_mlp, True),
}
NETWORKS |= {f"{name}_trained": (make, True) for name, make in small_models.TRAINED.items()}
NETWORKS |= {
    name.replace(", ", "_").replace(" ", "_"): (make, False)
    for name, make in small_models.SMALL.items()
    if name not in small_models.TRAINED
}
UPDATES: dict[str, Callable[[Study], object]] = {
    "none": lambda study: None,
    "sgd": lambda study: study.session.set_learning_rate(0.01),
    "adam": lambda study: study.session.set_adam(1e-3),
    "accumulate": lambda study: (study.session.set_adam(1e-3), study.session.set_grad_accumulate(2)),
    "clip": lambda study: (study.session.set_adam(1e-3), study.session.set_grad_clip_norm(1.0)),
    "adam, then sgd": lambda study: (study.session.set_adam(1e-3), study.session.set_learning_rate(0.1)),
}
CASES = [(name, update) for name, (_, train) in NETWORKS.items() for update in UPDATES if train or update == "none"]
if not os.environ.get("GDLAB_NUMBERS"):  # `make numbers`: each model with each update
    small = [name for name in NETWORKS if not name.endswith("_trained") and name != "transformer"]
    large = ("unet_small_trained", "residual_network_trained")
    CASES = [(name, update) for name, update in CASES if name in small or (update == "clip" and name not in large)]


def _numbers_of(document: Document) -> dict[str, int]:
    """The counts of a document's tables, and the bytes of its slots and intervals."""
    plan, data = document.data["plan"], document.data
    intervals, slots = list(document.plan("intervals")), list(document.plan("slots"))
    alive = [
        row["padded"] for row in intervals
        if row["pinned"] is not None or row["first_group"] <= plan["memory"]["peak_group"] <= row["last_group"]
    ]  # fmt: skip
    steps = [
        step["label"] for p, one in enumerate(data["passes"])
        if one["role"] == "optimize" and not one["key"].startswith("optimize:variant:")
        for step in document.steps(p)
    ]  # fmt: skip
    return {
        "rewrites": sum(label != "sweep" for label in steps),
        "dispatches": plan["dispatches"]["count"],
        "groups": plan["groups"]["count"],
        "physical": sum(slot["nbytes"] for slot in slots),
        "logical": sum(row["nbytes"] for row in intervals),
        "peak": sum(alive),
        "state": sum(row["padded"] for row in intervals if row["kind"] == "state"),
        "parameters": sum(row["padded"] for row in intervals if row["kind"] in ("parameter", "derived")),
    }


_NAMES = {
    "input": "inputs", "constant": "inputs", "parameter": "parameters", "derived": "parameters",
    "gradient": "gradients", "output": "outputs", "loss": "outputs", "state": "optimizer state",
}  # fmt: skip


def _parts_of(document: Document) -> dict[str, int]:
    """Sum the bytes that the slots hold by kind, from the document's tables."""
    found: dict[str, int] = {}
    intervals = list(document.plan("intervals"))
    for slot in document.plan("slots"):
        first = intervals[slot["tenants"][0]]
        kind = _NAMES.get(first["kind"], "reusable slots") if first["pinned"] is not None else "reusable slots"
        if first["kind"] == "state" and first["name"].startswith(("grad_sum.", "clip_")):
            kind = "gradients" if first["name"].startswith("grad_sum.") else "scratch"
        found[kind] = found.get(kind, 0) + slot["nbytes"]
    return found


@pytest.mark.parametrize(("network", "update"), CASES)
def test_one_number_each_everywhere(network: str, update: str) -> None:
    make, train = NETWORKS[network]
    study = Study(make(), train=train, device="cpu", name=network)
    study.variant("apart", disable=[label for label, _ in study.report.rules_fired if label != "CSE"][:1])
    study.prepare(feed="random:0", init=0)
    UPDATES[update](study)
    study.run(3)
    document, session = study.doc, study.session
    wanted, memory, step = _numbers_of(document), session.memory_summary(), session.totals()
    # Python
    assert wanted["rewrites"] == study.pipeline.rewrites == rewrites_to_plan(document.data) == study.figures().rewrites
    assert wanted["dispatches"] == step.dispatches == len(session.step_dispatches()) == study.figures().dispatches
    assert wanted["dispatches"] == len(study.plan.dispatches) + len(session.update_dispatches())
    assert wanted["groups"] == step.groups == session.num_groups() == study.figures().groups
    assert wanted["physical"] == step.physical_bytes == memory.total_buffer_bytes == study.figures().physical_bytes
    assert wanted["logical"] == step.logical_bytes == memory.logical_buffer_bytes
    assert wanted["peak"] == step.peak_bytes == study.figures().peak_bytes
    state = memory.adam_state_bytes + memory.grad_accumulator_bytes + memory.aux_bytes
    assert wanted["state"] == step.state_bytes == state
    assert (state > 0) == (update not in ("none", "sgd"))
    # facts of the document: the header and the badges, the session panel
    facts = document.data["plan"]["memory"]
    assert [facts[f"{name}_bytes"] for name in ("physical", "logical", "peak", "state")] == [
        wanted[name] for name in ("physical", "logical", "peak", "state")
    ]
    assert facts["parameter_bytes"] == wanted["parameters"] <= facts["physical_bytes"] - facts["state_bytes"]
    parts = _parts_of(document)
    assert dict(memory.parts) == facts["parts"] == parts and sum(parts.values()) == wanted["physical"]
    assert list(memory.parts) == list(step.parts) and all(parts.values())
    held = ", ".join(f"{name} {nbytes(size)}" for name, size in memory.parts)
    assert f"  it holds {held}" in twin(document, "arena") and f"  of it: {held}" in twin(document, "session")
    run = document.data["runs"][-1]
    assert run["counters"]["steps"] == session.step_count == 3
    assert run["memory"]["total_buffer_bytes"] == wanted["physical"]
    counters = Panel(study)._metrics().counters
    assert (counters.steps, counters.dispatches_per_step, counters.groups) == (3, step.dispatches, step.groups)
    # words
    assert f", {step.dispatch_words}, 3 steps, " in repr(session) and "3 of 3 steps>" in repr(study.runner)
    drawn = html.unescape(picture(document, "plan"))
    assert f"{plural(step.groups, 'group')}, physical {nbytes(wanted['physical'])} of logical" in drawn
    assert all(study.summary() in text for text in (drawn, html.unescape(picture(document, "opt"))))
    assert f"{step.dispatch_words}, {plural(step.groups, 'group')}, {nbytes(wanted['physical'])}" in markdown(document)
    said = f"{plural(wanted['rewrites'], 'rewrite')}; plan: {step.dispatch_words}, {plural(step.groups, 'group')}, "
    assert study.summary().endswith(said + nbytes(wanted["physical"])) and document.data["summary"] == study.summary()
    assert f"{step.dispatch_words}" in twin(document, "plan").splitlines()[0]
    assert f", {plural(step.groups, 'group')}, physical {nbytes(wanted['physical'])} of" in twin(document, "plan")
    arena = twin(document, "arena").splitlines()
    assert f"physical {nbytes(wanted['physical'])}" in arena[0] and f"state {nbytes(wanted['state'])}" in arena[0]
    assert f"peak {nbytes(wanted['peak'])}" in arena[0]
    listed = re.findall(r"^pass \d+: ([\d,]+) rewrites?, optimize:(?!variant)", twin(document, "rewrites"), re.M)
    assert sum(int(count.replace(",", "")) for count in listed) == wanted["rewrites"]
    assert f"steps {whole(3)}" in twin(document, "session")
    assert f"memory: {memory.text}" in twin(document, "session") and nbytes(wanted["physical"]) in memory.text
    rows = study.compare().splitlines()
    assert rows[1].split()[2:5] == [whole(wanted[name]) for name in ("rewrites", "dispatches", "groups")]
    assert rows[1] in twin(document, "opt")
    study.close()


def test_a_variant_is_compared_with_the_same_update_behind_it() -> None:
    study = Study(networks.mlp(8), train=True, device="cpu", name="mlp")
    variant = study.variant("as it is")
    study.run(1, feed="random:0", init=0, adam=1e-3)
    mine, other = study.variants.figures(study)
    assert (mine.dispatches, mine.groups, mine.physical_bytes) == (other.dispatches, other.groups, other.physical_bytes)
    assert variant.figures().dispatches == len(variant.plan.dispatches)
    study.close()


@pytest.mark.parametrize("rule", ["sgd", "adam"])
@pytest.mark.parametrize("network", ["mlp", "transformer", "small"])
def test_a_group_waits_for_the_group_before_it_alone(network: str, rule: str) -> None:
    study = Study(NETWORKS[network][0](), train=True, device="cpu", name=network)
    study.prepare(**{"feed": "random:0", "init": 0, rule: 0.01})  # type: ignore[arg-type]
    study.session.set_grad_clip_norm(1.0)
    groups = list(study.doc.plan("groups"))
    for before, group in zip(groups, groups[1:], strict=False):
        assert all(before["start"] <= hazard["from"] < before["stop"] for hazard in group["because"])
        assert all(group["start"] <= hazard["to"] < group["stop"] for hazard in group["because"])
    study.close()


def test_the_names_of_passes_differ() -> None:
    study = Study(networks.reader(8), device="cpu", name="reader")
    study.variant("inference", disable=[study.report.rules_fired[0][0]])
    study.variant("other", enable=[])
    keys = [one["key"] for one in study.doc.data["passes"]]
    assert keys == ["optimize:inference", "compile", "optimize:variant:inference", "optimize:variant:other"]


@pytest.mark.parametrize("mode", ["loss", "parameters", "everything"])
def test_events_of_one_nan_have_one_step(mode: str, device: str) -> None:
    study = Study(networks.mlp(8), train=True, device=device, name="mlp")
    study.runner.set_watch(mode)  # type: ignore[arg-type]
    study.run(60, feed="random:0", init=0, sgd=1e30)
    events = [e for e in study.runner.events if e.kind in ("nonfinite", "pause")]
    assert len({e.step for e in events}) == 1 and events
    study.close()
