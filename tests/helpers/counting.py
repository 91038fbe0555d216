"""A study whose parameter counts the steps that the device made: `study = counter(); study.run(3); made(study)`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from gdlab import ops
from gdlab.graph import Graph
from gdlab.session import Session
from gdlab.session.stages import Pipeline
from gdlab.study.study import Study

ONE = {"x": np.ones(1, np.float32)}


def counting() -> Graph:
    """SGD with rate 1 takes x from w in every step: while x is 1, −w counts the steps that the device really made."""
    with Graph() as g:
        g.output(ops.sum_all(ops.input("x", (1,)) * ops.parameter("w", (1,))))
    return g


@cache
def _compiled(device: str) -> Pipeline:
    """The pipeline of a counter, compiled: nine tenths of what a counter costs."""
    study = Study(counting(), train=True, device=device)
    assert study.plan
    return study.pipeline


def counter(device: str = "cpu", name: str = "counter") -> Study:
    """Return a study that is ready to run, whose pipeline is its own, compiled as any session compiles it."""
    made, pipeline = _compiled(device), replace(_compiled(device))
    pipeline._made.update(made._made)
    pipeline._plans.update(made._plans)
    study = Study(made.graph, train=True, device=device, name=name, pipeline=pipeline)
    study.session.initialize(zeros=True)
    study.session.set_input("x", ONE["x"])
    study.prepare(feed=ONE, sgd=1.0)
    return study


def made(study: Study | Session) -> int:
    """Return the steps that the device made."""
    session = study.session if isinstance(study, Study) else study
    return -int(session.read_param("w")[0])
