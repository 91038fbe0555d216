"""Measured times of a document: what each dispatch took against what it should take, for the page and for text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gdlab.session import Session
from gdlab.view.document.columns import Json, column, words
from gdlab.view.document.document import Document

_FIELDS = ("median", "p25", "p75", "predicted")


def times_json(session: Session) -> Json:
    """`dispatch_seconds` of a run, where `capture_profile` has timed the dispatches of a step: seconds per dispatch
    (median and quartiles over the samples), what the roofline of `machine` predicts, and the verdict in words."""
    profile = session.last_profile
    if profile is None:
        return {}
    found: Json = {name: [getattr(d, name) for d in profile.dispatches] for name in _FIELDS}
    found["verdict"] = words([d.verdict for d in profile.dispatches])
    return {"dispatch_seconds": {"samples": profile.samples, "machine": profile.machine, **found}}


def times_of(document: Document) -> Mapping[str, Any] | None:
    """The newest measured times: `samples`, `machine`, and a list per dispatch of `median`, `p25`, `p75`, `predicted`
    (seconds) and `verdict`; None where nothing was measured, or a file without times was asked for."""
    for run in reversed(document.data["runs"]):
        times = run.get("dispatch_seconds")
        if isinstance(times, dict) and len(times["median"]) == len(document.plan("dispatches")):
            count = len(times["median"])
            return {**times, "verdict": column(times["verdict"], count, "")}
    return None
