"""Make the inputs of each step of a run: a dict, a callable, an iterable, or `random[:SEED]` made to fit the graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError
from gdlab.base.kinds import takes
from gdlab.base.types import f32
from gdlab.base.words import natural
from gdlab.graph import Graph
from gdlab.op import REGISTRY, ops_that
from gdlab.plan.indices import index_bounds

Feed = Callable[[int], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class FixedFeed:
    """The same batch for every step: several steps may be made with it at once."""

    batch: Mapping[str, Any]

    def __call__(self, step: int) -> Mapping[str, Any]:
        """Return the batch."""
        return self.batch


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """A feed whose batches do not depend on the steps before: several may be read, and their steps made at once."""

    batch: Feed

    def __call__(self, step: int) -> Mapping[str, Any]:
        """Return the batch of a step."""
        return self.batch(step)


@dataclass(frozen=True, slots=True)
class InTurn:
    """A feed whose batches come once, one after the other: no step can be made again."""

    batch: Feed

    def __call__(self, step: int) -> Mapping[str, Any]:
        """Return the next batch."""
        return self.batch(step)


class ListFeed:
    """A feed that gives the batches of a list, each once, until it is restarted."""

    def __init__(self, given: Sequence[Any]) -> None:
        self._given, self._batches = given, iter(given)

    def __call__(self, step: int) -> Mapping[str, Any]:
        """Return the next batch."""
        return _checked(_next(self._batches, step))

    def restart(self) -> None:
        """Begin with the first batch again."""
        self._batches = iter(self._given)


def restart(feed: Feed | None) -> None:
    """Begin a feed again, if it remembers where it is."""
    if isinstance(feed, ReadAhead) and isinstance(feed.batch, ListFeed):
        feed.batch.restart()


def make_feed(given: Any, graph: Graph) -> Feed:
    """Return a feed made from a DataLoader (shuffled anew for each epoch), a dict of arrays, a callable
    `step -> dict`, an iterable of dicts (its end ends the run with an error), or `"random[:SEED]"`. The batches of a
    loader, a list or a tuple may be read ahead; a callable or a generator is asked when the step before is made."""
    if isinstance(given, str) and given.partition(":")[0] == "random":
        text = given.partition(":")[2] or "0"
        if (seed := natural(text)) is None:
            raise ArgumentError("feed", "seed", repr(text)[:60], "random or random:SEED, SEED an int ≥ 0")
        return FixedFeed(random_batch(graph, seed))
    if isinstance(given, dict):
        return FixedFeed(given)
    if isinstance(given, Mapping):  # which may give other arrays each time
        return lambda step: given
    if all(hasattr(given, name) for name in ("shuffle", "next_batch", "num_batches")):
        return ReadAhead(_loader_feed(given))
    if callable(given):
        _check_arguments(given)
        return lambda step: _checked(_called(given, step))
    if hasattr(given, "__iter__") and not isinstance(given, (str, bytes, np.ndarray)):
        if isinstance(given, (list, tuple)):
            return ReadAhead(ListFeed(given))
        batches: Iterator[Any] = iter(given)
        return InTurn(lambda step: _checked(_next(batches, step)))
    wanted = "a dict of arrays, a callable step -> dict, an iterable of dicts, or random[:SEED]"
    raise ArgumentError("feed", "kind", type(given).__name__, wanted)


def _loader_feed(loader: Any) -> Feed:
    """Give batches epoch after epoch, epoch e in the order of seed e; a step's batch depends on its number alone."""
    last = -1

    def feed(step: int) -> Mapping[str, Any]:
        nonlocal last
        epoch, at = divmod(step, loader.num_batches())
        if at == 0 or step != last + 1:
            loader.shuffle(epoch)
            for _ in range(at):
                loader.next_batch()
        last = step
        return _checked(loader.next_batch().tensors)

    return feed


def _checked(batch: Any) -> Mapping[str, Any]:
    if not isinstance(batch, Mapping):
        raise ArgumentError("feed", "batch", type(batch).__name__, "a dict {input name: array}")
    return batch


def _next(batches: Iterator[Any], step: int) -> Any:
    return _called(lambda _: next(batches), step)


def _check_arguments(feed: Callable[..., Any]) -> None:
    """Raise `ArgumentError` for a function that cannot be called with the number of a step alone."""
    if not takes(feed, 0):
        given = f"one with the arguments {inspect.signature(feed)}"
        raise ArgumentError("feed", "callable", given, "a callable with one argument, step -> dict")


def _called(feed: Callable[[int], Any], step: int) -> Any:
    """Return the batch of a feed; its end must not appear as the `StopIteration` that ends the run's own generator."""
    try:
        return feed(step)
    except StopIteration:
        raise ArgumentError("feed", "batches", f"an end after {step} steps", "as many batches as steps") from None


def random_batch(graph: Graph, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return one batch: normal(0, 1), one-hot rows for the labels of a cross entropy, u32 inputs below their bound
    (zeros for inputs that index nothing)."""
    rng = np.random.default_rng(seed)
    bounds = dict(index_bounds(graph))
    of_op = {name: REGISTRY[name].one_hot for name in ops_that(lambda op: op.one_hot is not None, graph)}
    labels = {n.inputs[operand] for n in graph if (operand := of_op.get(n.op)) is not None}
    batch: dict[str, np.ndarray[Any, Any]] = {}
    for node in graph.inputs:
        shape = node.type.shape
        if node.id in labels:
            batch[node.name] = np.eye(shape[-1], dtype=np.float32)[rng.integers(0, shape[-1], shape[:-1])]
        elif node.type.dtype is f32:
            batch[node.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            batch[node.name] = rng.integers(0, bounds.get(node.name, 1), shape, dtype=np.uint32)
    return batch
