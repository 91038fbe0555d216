"""Turn an eager recording into a study, to optimize, plan and train it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdlab.eager import EagerSession, TapeExport, TensorRef
from gdlab.eager.tape_as_graph import to_graph
from gdlab.plan.rules import RULES
from gdlab.session.checkpoint import MOMENTS, STATE, CheckpointContent
from gdlab.study.study import Study


def to_study(session: EagerSession, loss: TensorRef, name: str = "graph", **options: Any) -> Study:
    """Return a study of the recording on the session's device, with its parameters and inputs as they are now.

    It trains where the loss has one element and a parameter before it is trainable; its session has the rule of the
    last step, and its moments. `options` are those of `Study`.
    """
    export = session.locked(to_graph, session, session.own("to_study", loss))
    trains = loss.shape == (1,) and any(p.requires_grad for p in export.params.values())
    options = {"train": trains, "device": session._device, "weights": export.weights, **options}
    made = Study(export.graph, name=name, **options)
    if export.feeds or not export.graph.inputs:
        made.execution.prepare(feed=export.feeds)
        made.session.progress.draw_offset = export.step
    if made.train and session.rules.rule.rule != "none":
        _carry_moments(session, export, made)
    return made


def _carry_moments(session: EagerSession, export: TapeExport, study: Study) -> None:
    """Give the study's session the rule, its counter and its moments."""
    state, made = session.rules, study.session
    names = RULES[state.rule.rule].state
    moments = {
        n: {name: session.read_buffer(state.moments[p.uid, n]) for name, p in export.params.items()
            if (p.uid, n) in state.moments and made.values.has_param_grad(name)}
        for n in names
    }  # fmt: skip
    made.set_optimizer(state.rule)
    own = {n: tuple(found) for n, found in moments.items() if found and f"{n}." not in MOMENTS}
    adam = tuple(moments.get("adam_m", ()))
    tensors = dict(made.snapshot().tensors)
    for n, found in moments.items():
        prefix = f"{STATE}{n}." if n in own else f"{n}."
        tensors |= {prefix + name: data.astype(np.float32, copy=False) for name, data in found.items()}
    made.restore(CheckpointContent(tensors, state.t, adam, own))
