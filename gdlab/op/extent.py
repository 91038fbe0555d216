"""The extent rule of an op: which axes of its result follow a bucket axis of its operands, and what has to be masked.

A bucket axis is compiled at `upper` entries, of which the first `actual` are active. A rule answers with a `Verdict`,
or refuses by raising `Cut`. Most ops need none: their kernel or their body tells (`gdlab.op.follow`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdlab.base.types import HALVES, TensorType, f32
from gdlab.graph import Value

__all__ = [
    "Call",
    "Cut",
    "Follows",
    "TailMask",
    "Tag",
    "Tags",
    "Verdict",
    "along",
    "axes_of",
    "elementwise",
    "keeps_rows",
]


@dataclass(frozen=True, slots=True, order=True)
class Tag:
    """A bucket axis of a value: its entries are `outer · upper · inner`, active where the middle digit is below the
    active extent."""

    axis: int
    outer: int = 1
    inner: int = 1

    def on(self, axis: int) -> Tag:
        """Return the tag with the same digits on another axis."""
        return Tag(axis, self.outer, self.inner)


Tags = tuple[Tag, ...]  # by axis
FLOATS = (f32, *HALVES)


class Cut(Exception):
    """Raised by a rule for a bucket axis that an op does not keep: `given` says what it does with the axis."""

    def __init__(self, given: str) -> None:
        self.given = given
        super().__init__(given)


@dataclass(frozen=True, slots=True)
class TailMask:
    """Entries of an operand along a bucket axis that become `value` behind the active ones."""

    operand: int
    tag: Tag
    value: float


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an op as its extent rule sees it; `tags` has an entry per operand. `gradients`: the result will be
    differentiated."""

    types: tuple[TensorType, ...]
    tags: tuple[Tags, ...]
    result: TensorType
    attrs: Mapping[str, Any]
    upper: int
    gradients: bool = False


# (the active extent f32[1], the masked operands) -> the value that stands for the call
Build = Callable[[Value, Sequence[Value]], Value]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of an extent rule: the tags of the operands, those that they had and those that others impose on them
    (of such an operand the first active entries count), the tags of the result, the masks of operands, and what takes
    the place of the call: what `build` makes, or the ops of `body`, each followed in turn."""

    operands: tuple[Tags, ...]
    result: Tags
    masks: tuple[TailMask, ...] = ()
    build: Build | None = None
    body: Callable[..., Value] | None = None

    @property
    def keeps(self) -> bool:
        """Whether the call stays as it is."""
        return not self.masks and self.build is None and self.body is None


Follows = Callable[[Call], Verdict | None]  # None: as the kernel or the body tells
Label = Hashable  # an axis of several tensors; None: an axis that must not be a bucket axis


def along(
    call: Call,
    operands: Sequence[Sequence[Label]],
    result: Sequence[Label],
    *,
    mixes: Mapping[Any, float] | None = None,
    masked: Collection[int] | None = None,
    ordered: Collection[Label] = (),
    build: Build | None = None,
    dropped: Collection[Label] = (),
) -> Verdict:
    """Return the verdict for an op whose axes bear these labels; a bucket axis follows its label.

    `mixes`: labels along which entries meet, with the neutral element that inactive ones become, in the operands
    `masked` (None: in all with the label). `ordered`: labels along which the place of an entry counts, so that the
    active ones have to be the first (outer = 1). `dropped`: labels that `build` takes care of. Raises `Cut` for a
    bucket axis without a label, for two that differ on one label, and for one that neither stays nor mixes.
    """
    mixes = mixes or {}
    found = _tagged(call, operands)
    for label, tag in found.items():
        if label in ordered and tag.outer > 1:
            raise Cut(f"a bucket axis inside another axis (outer = {tag.outer}), along which places count")
        if label not in result and label not in mixes and label not in dropped:
            raise Cut("a bucket axis that its result does not have")
    sides = tuple(_on(call, found, labels, t) for labels, t in zip(operands, call.types, strict=True))
    masks = tuple(
        TailMask(i, found[label].on(axis), mixes[label])
        for i, labels in enumerate(operands)
        for axis, label in enumerate(labels)
        if label in mixes and label in found and call.types[i].dtype in FLOATS and (masked is None or i in masked)
    )
    return Verdict(sides, _on(call, found, result, call.result), masks, build)


def _tagged(call: Call, operands: Sequence[Sequence[Label]]) -> dict[Label, Tag]:
    """The bucket axis of every label that has one."""
    found: dict[Label, Tag] = {}
    for type, tags, labels in zip(call.types, call.tags, operands, strict=True):
        for tag in tags:
            label = labels[tag.axis]
            if label is None:
                raise Cut(f"axis {tag.axis} of {type} as a bucket axis, which it cuts, moves or indexes")
            if found.setdefault(label, tag.on(0)) != tag.on(0):
                raise Cut("two different bucket axes on one axis")
    return found


def _on(call: Call, found: Mapping[Label, Tag], labels: Sequence[Label], type: TensorType) -> Tags:
    tags = tuple(found[label].on(axis) for axis, label in enumerate(labels) if label in found)
    if any(type.shape[t.axis] != t.outer * call.upper * t.inner for t in tags):
        raise Cut(f"a bucket axis that meets {type}, of another extent")
    return tags


# rules that several ops share -----------------------------------------------------------------------------------------
def axes_of(type: TensorType, *without: int) -> tuple[Label, ...]:
    """Label each axis by its number, but those in `without`."""
    return tuple(None if axis in without else axis for axis in range(type.rank))


def elementwise(call: Call) -> Verdict:
    """Judge an op whose operands lie on the result, counted from the right: its extent rule."""
    shape = call.result.shape
    labels = [[a - t.rank if n == shape[a - t.rank] else None for a, n in enumerate(t.shape)] for t in call.types]
    return along(call, labels, range(-len(shape), 0))


def keeps_rows(*alike: int, ordered: bool = True) -> Follows:
    """Return the extent rule of ops that keep the rows (axis 0) of these operands; the other axes and operands have no
    bucket axis. `ordered`: what becomes of a row depends on its place."""

    def follows(call: Call) -> Verdict:
        labels = [("row" if i in alike else None, *(None,) * (t.rank - 1)) for i, t in enumerate(call.types)]
        result = ("row", *(None,) * (call.result.rank - 1))
        return along(call, labels, result, ordered=("row",) if ordered else ())

    return follows
