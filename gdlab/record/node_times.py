"""Time the nodes of a list, each beside the roofline's prediction: `executor.profile(session)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdlab.base.words import duration, plural
from gdlab.record.compute_graph import Node
from gdlab.session.roof import machine_of, machine_words, predicted

if TYPE_CHECKING:
    from gdlab.record.executor import GraphExecutor

Interval = tuple[float, float]  # seconds on the device's clock: begin and end of a dispatch


@dataclass(frozen=True, slots=True)
class NodeTime:
    """The seconds of a node's dispatches, measured and predicted by the roofline."""

    node: int
    name: str
    seconds: float
    predicted: float

    @property
    def ratio(self) -> float:
        """Ratio of measured to predicted time."""
        return self.seconds / self.predicted


@dataclass(frozen=True, slots=True)
class ListProfile:
    """The times of the nodes of a list in the order in which they ran; `span`: from the begin of the first dispatch to
    the end of the last; `machine`: the assumptions of the predictions. Copies through scratch are in the span alone."""

    nodes: tuple[NodeTime, ...]
    span: float
    machine: str

    def __repr__(self) -> str:
        return f"<ListProfile: {plural(len(self.nodes), 'node')}, {duration(self.span)}>"

    def __str__(self) -> str:
        rows = [
            f"{n.node:4} {n.name:32} {duration(n.seconds):>9}  predicted {duration(n.predicted):>9}" for n in self.nodes
        ]
        head = f"{plural(len(self.nodes), 'node')}, {duration(self.span)} from the first dispatch to the last"
        return "\n".join((head, *rows, f"predictions for {self.machine}"))


def list_profile(executor: GraphExecutor, nodes: Sequence[Node], times: Sequence[Interval]) -> ListProfile:
    """Return the profile of nodes whose dispatches took these times, in order."""
    machine = machine_of(executor.device)
    found, at = list[NodeTime](), 0
    for index, node in enumerate(nodes):
        piece = node.operation.piece
        dispatches = () if piece is None else piece.dispatches
        mine = times[at : at + len(dispatches)]
        seconds = sum(end - begin for begin, end in mine)
        found.append(NodeTime(index, node.name, seconds, sum(predicted(machine, d) for d in dispatches)))
        at += len(dispatches)
    return ListProfile(tuple(found), span(times), machine_words(machine))


def span(times: Sequence[Interval]) -> float:
    """Return the seconds from the first begin to the last end."""
    return max(end for _, end in times) - min(begin for begin, _ in times) if times else 0.0
