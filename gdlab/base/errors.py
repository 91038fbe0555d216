"""Every error that gdlab raises: one tree, one text form, each also a matching built-in.

GdlabError
├── ShapeError, GraphError, AutodiffError, OptimizeError, CompileError, CheckpointError, LoadError  (ValueError)
├── ActiveExtentUnsupported  a graph that cannot run on a part of its extents        (ValueError)
├── ArgumentError       any other bad argument                                       (ValueError)
├── DTypeError          a dtype that the op does not take, a number that it lacks    (TypeError)
├── UnknownNameError    a name that nothing has; tells the nearest ones              (KeyError)
├── OutputIndexError    an output that the graph does not have                       (IndexError)
└── SessionError        a session cannot do that now                                 (RuntimeError)
    ├── DeviceUnavailableError
    ├── DistributedUnavailableError     a package or a program that runs over several engines need
    ├── EngineLostError     an engine that ended in a run; tells what is saved
    ├── CapabilityError     a feature that the adapter lacks
    ├── ExternalBindError   memory that cannot be bound: its kinds UnknownSlot and TooSmall
    ├── ReadNodeError       a node whose value cannot be read: UnknownNode, UnknownName, FusedAway, Aliased
    ├── MissingInputError, ParamNotSetError     a value that was never given
    ├── InputConflictError  a value for an input that reads memory on the device
    ├── NoRunError          results before the first run
    ├── StaleViewError      memory of an earlier run
    ├── ExpertIndexError    a computed index of an expert that does not exist
    ├── EagerError          an eager session cannot do that now
    ├── SessionConsumedError    a list of ops that was submitted or dropped
    ├── GraphEncodeError    a node that the device refuses
    └── ReorderViolation    an order that changes what a node reads: a defect of gdlab
UnknownRuleError        an OptimizeError and an UnknownNameError

Warnings: StaleViewWarning, UnderDeclaredWarning (UserWarning).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from gdlab.base.words import clipped, one_of

__all__ = [
    "ActiveExtentUnsupported",
    "Aliased",
    "ArgumentError",
    "AutodiffError",
    "CapabilityError",
    "CheckpointError",
    "CompileError",
    "DTypeError",
    "DeviceUnavailableError",
    "DistributedUnavailableError",
    "EagerError",
    "EngineLostError",
    "ExpertIndexError",
    "ExternalBindError",
    "FusedAway",
    "GdlabError",
    "GraphEncodeError",
    "GraphError",
    "InputConflictError",
    "LoadError",
    "MissingInputError",
    "NoRunError",
    "OptimizeError",
    "OutputIndexError",
    "ParamNotSetError",
    "ReadNodeError",
    "ReorderViolation",
    "SessionConsumedError",
    "SessionError",
    "ShapeError",
    "StaleViewError",
    "StaleViewWarning",
    "UnderDeclaredWarning",
    "UnknownName",
    "UnknownNameError",
    "UnknownNode",
    "UnknownRuleError",
]


class GdlabError(Exception):
    """`{where}: {what}: given {given}, wanted {wanted}`, then the user's source line of the node, when there is one.

    `node` is the id of the node the error is about (or None), `source` its innermost location (or None); `operands` the
    values that an op refused.
    """

    operands: tuple[Any, ...] = ()

    def __init__(
        self, where: str, what: str, given: object, wanted: str, *, node: int | None = None, source: Any = None
    ) -> None:
        self.where, self.what, self.given, self.wanted = where, what, given, wanted
        self.node, self.source = node, source
        super().__init__(self.text())

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.where, self.what, str(self.given), self.wanted, self.node, self.source)

    def text(self) -> str:
        """Return the message, of at most 40 lines and some 4,000 characters; the attributes hold all of it."""
        given, wanted = clipped(str(self.given), 2_600, 20), clipped(str(self.wanted), 1_000, 12)
        head = f"{clipped(str(self.where), 200, 2)}: {clipped(str(self.what), 600, 4)}: given {given}, wanted {wanted}"
        return head if self.source is None else f"{head}\n  at {self.source}"

    def __str__(self) -> str:
        return self.text()


def _again(
    kind: type[GdlabError], where: str, what: str, given: str, wanted: str, node: int | None, source: Any
) -> GdlabError:
    """An error that was pickled, as a worker process does to hand it over."""
    return kind(where, what, given, wanted, node=node, source=source)


class ShapeError(GdlabError, ValueError):
    """Extents or ranks that do not fit together."""


class GraphError(GdlabError, ValueError):
    """A graph, a name or an attribute that cannot be."""


class AutodiffError(GdlabError, ValueError):
    """A derivative that does not exist on the way from the loss to what was asked for."""


class OptimizeError(GdlabError, ValueError):
    """A rule or an option that the optimizer cannot use."""


class CompileError(GdlabError, ValueError):
    """A graph that has no valid plan on this device, or a plan that breaks a rule of plans."""


class ActiveExtentUnsupported(GdlabError, ValueError):
    """A graph that cannot run on a part of its extents: an op that mixes tagged rows, or no tagged axis at all."""


class CheckpointError(GdlabError, ValueError):
    """A checkpoint that is damaged, or of another model; nothing of it was applied."""


class LoadError(GdlabError, ValueError):
    """A file that cannot be read as what it should be. The text has at most 40 lines and 4,000 characters, whatever the
    file says; `details`: the full list, where several things are wrong."""

    def __init__(
        self, where: str, what: str, given: object, wanted: str, *, node: int | None = None, source: Any = None,
        details: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.details = tuple(details)
        texts = clipped(str(what), 600, 8), clipped(str(given), 2600, 20), clipped(str(wanted), 600, 8)
        super().__init__(clipped(where, 150, 2), *texts, node=node, source=source)

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"details": self.details})


class ArgumentError(GdlabError, ValueError):
    """Any other bad argument."""


class DTypeError(GdlabError, TypeError):
    """A dtype that is not taken here, or a number that the dtype cannot hold."""


class UnknownNameError(GdlabError, KeyError):
    """A name that nothing has. Build it with `unknown_name`, which lists the known ones."""


class UnknownRuleError(OptimizeError, UnknownNameError):
    """The id or label of a rule that no table holds; tells the nearest one."""


class OutputIndexError(GdlabError, IndexError):
    """An output index outside 0 … n − 1."""


class SessionError(GdlabError, RuntimeError):
    """A session that cannot do what was asked now."""


class DeviceUnavailableError(SessionError):
    """No device of the wanted kind answers on this machine."""


class DistributedUnavailableError(SessionError):
    """A package or program that engines need is missing; the text names the command that installs it."""


class CapabilityError(SessionError):
    """The adapter lacks a feature that the call needs."""


class MissingInputError(SessionError):
    """Inputs without a value; the text names all of them."""


class ParamNotSetError(SessionError):
    """Parameters that were never set; the text names all of them."""


class InputConflictError(SessionError):
    """A value was given for an input that reads memory on the device."""


class NoRunError(SessionError):
    """Results were asked for before a run that makes them."""


class StaleViewError(SessionError):
    """A view of results that a later run has replaced."""


class EagerError(SessionError):
    """An eager session that cannot do what was asked now."""


class SessionConsumedError(SessionError):
    """A session whose list of ops was submitted or dropped: begin another."""


class ReorderViolation(SessionError):
    """A new order of a list that changes what a node reads. Nothing ran; it is a defect of gdlab: please report it."""


class StaleViewWarning(UserWarning):
    """A run was launched while views of the results before it were in use; these keep their memory."""


class UnderDeclaredWarning(UserWarning):
    """An op conflicts with its group in a range that was not declared to `barrier_between`."""


class _WithFields(SessionError):
    """An error with more fields, which its class names."""

    def __init__(
        self, where: str, what: str, given: object, wanted: str, *, node: int | None = None, source: Any = None,
        **fields: Any,
    ) -> None:  # fmt: skip
        super().__init__(where, what, given, wanted, node=node, source=source)
        self.__dict__.update(fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {k: v for k, v in self.__dict__.items() if k != "source"})


class ReadNodeError(_WithFields):
    """A node whose value cannot be read after a step; every kind of it has the fields that its class names."""


class UnknownNode(ReadNodeError):
    """An id that the graph does not have: `id`, `count`."""

    id: object
    count: int


class UnknownName(ReadNodeError, UnknownNameError):
    """A name that no node has: `name`, `known`."""

    name: object
    known: tuple[str, ...]


class FusedAway(ReadNodeError):
    """A node without a value of its own: `node`, and `by`, the rule or dispatch that swallowed it."""

    by: str


class Aliased(ReadNodeError):
    """A node whose memory others use after it: `node`, `slot`, `later`, the buffers that came to lie there."""

    slot: int
    later: tuple[str, ...]


class ExternalBindError(_WithFields):
    """Memory of somebody else that cannot be bound: `ExternalBindError.UnknownSlot`, `ExternalBindError.TooSmall`, or
    memory that the same plan uses already and writes."""

    UnknownSlot: ClassVar[type[UnknownSlot]]
    TooSmall: ClassVar[type[TooSmall]]


class UnknownSlot(ExternalBindError, UnknownNameError):
    """Neither the name of an input nor the number of an output: `slot`, `known`."""

    slot: object
    known: tuple[str, ...]


class TooSmall(ExternalBindError):
    """Memory of `got` bytes where `required` are needed."""

    required: int
    got: int


ExternalBindError.UnknownSlot, ExternalBindError.TooSmall = UnknownSlot, TooSmall


class ExpertIndexError(_WithFields):
    """An index of an expert that does not exist: its `row`, the `index`, and how many `experts` there are. The row of
    the result is zero, other rows are right."""

    row: int
    index: int
    experts: int


class EngineLostError(_WithFields):
    """An engine that ended in a run: its number `engine`, its `host`, the `step` it was last heard of, and `saved`,
    the checkpoint (None: none was written yet)."""

    engine: int
    host: str
    step: int
    saved: str | None


class GraphEncodeError(_WithFields):
    """A node that the device refuses: its `index` in the list, and its `op`. Nothing was submitted."""

    index: int
    op: str


def unknown_name(where: str, what: str, given: object, known: Iterable[object]) -> UnknownNameError:
    """Return the error for a name that is not among `known`; it says which one is nearest."""
    return UnknownNameError(where, what, clipped(str(given), 200), one_of(str(given), [str(name) for name in known]))
