"""Give each engine its own batches: `feed(step, engine, engines)`, the parts of a loader, `random:SEED`."""

from __future__ import annotations

import inspect
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gdlab.base.errors import ArgumentError
from gdlab.base.words import nbytes, plural
from gdlab.distributed.engine import host_name
from gdlab.distributed.engine_points import payload_of, value_of
from gdlab.graph import Graph
from gdlab.session.run.feeds import make_feed, random_batch
from gdlab.train.data import DataLoader, InputStream

MOST_BYTES = 1 << 30  # of a loader's arrays
Batches = Callable[[int], Mapping[str, Any]]  # of this engine, by its own step


@dataclass(frozen=True, slots=True)
class SentFeed:
    """A feed in the form in which it is sent to the engines. `loader`: (streams, batch size) in the place of a
    DataLoader; in the place of its arrays may be the folders that hosts have them in. `feed`: bytes are a pickled
    callable. `epoch`: the first one of a loader. `first`: the number of the run's step 0 for a callable or a loader,
    which go on where the session stands; a list and a dict begin anew."""

    feed: Any
    loader: tuple[Any, int] | None = None
    epoch: int = 0
    first: int = 0


def to_send(feed: Any) -> SentFeed:
    """Return a feed as it is sent; raise for one that engines cannot share."""
    if isinstance(feed, DataLoader):
        streams = feed.streams()
        size = sum(rows.nbytes for rows in streams.values())
        if size > MOST_BYTES:
            wanted = f"at most {nbytes(MOST_BYTES)}: give a feed that loads on the engine, feed(step, engine, engines)"
            raise ArgumentError("run", "feed", f"a DataLoader of {nbytes(size)}", wanted)
        return SentFeed(None, (streams, feed.batch_size))
    if isinstance(feed, (str, dict, list, tuple)):
        return SentFeed(feed)
    if callable(feed):
        arguments(feed)
        return SentFeed(payload_of(feed, "run", "feed", f"a {type(feed).__name__}"))
    wanted = "a callable feed(step, engine, engines), a DataLoader, a list of dicts, or random:SEED"
    raise ArgumentError("run", "feed", type(feed).__name__, wanted)


def arguments(feed: Any) -> int:
    """Return how many arguments a callable feed takes, 1 or 3; `ArgumentError` for another."""
    try:
        signature = inspect.signature(feed)
    except (TypeError, ValueError):
        return 3
    for values in ((0, 0, 0), (0,)):
        try:
            signature.bind(*values)
            return len(values)
        except TypeError:
            continue
    raise ArgumentError("run", "feed", f"a callable with the arguments {signature}", "feed(step, engine, engines)")


# on the engine --------------------------------------------------------------------------------------------------------
def keep_loader(streams: Mapping[str, Any]) -> str:
    """Write a loader's arrays once for this host; return the folder."""
    folder = Path(tempfile.mkdtemp(prefix="gdlab-feed-"))
    try:
        for number, rows in enumerate(streams.values()):
            np.save(folder / f"{number}.npy", rows)
        (folder / "names").write_text("\n".join(streams), "utf-8")
    except BaseException:
        drop_loader(str(folder))
        raise
    return str(folder)


def drop_loader(folder: str) -> None:
    """Remove the files that `keep_loader` wrote."""
    shutil.rmtree(folder, ignore_errors=True)


def in_folders(given: SentFeed, folders: Mapping[str, str]) -> SentFeed:
    """Return the feed with the folder of each host in place of the loader's arrays."""
    assert given.loader is not None  # the caller looked
    return replace(given, loader=(folders, given.loader[1]))


def batches_of(given: SentFeed, graph: Graph, engine: int, engines: int) -> Batches:
    """Return the batches of this engine: step s of engine r of n is batch n·s + r of the feed."""
    if given.loader is not None:
        folders, batch_size = given.loader
        of_loader = _of_loader(folders[host_name()], batch_size, engine, engines, given.epoch)
        return lambda step: of_loader(given.first + step)
    feed = value_of(given.feed) if isinstance(given.feed, bytes) else given.feed
    if isinstance(feed, str):
        make_feed(feed, graph)  # checks it
        batch = random_batch(graph, int(feed.partition(":")[2] or "0") + engine)
        return lambda step: batch
    if callable(feed):
        if arguments(feed) == 3:
            return lambda step: _checked(feed(given.first + step, engine, engines))
        return lambda step: _checked(feed(engines * (given.first + step) + engine))
    if isinstance(feed, (list, tuple)):
        return lambda step: _checked(_nth(feed, engines * step + engine))
    one = make_feed(feed, graph)
    return lambda step: one(step)


def epoch_steps(batches: int, engines: int) -> int:
    """Return the steps of each engine in an epoch of so many batches."""
    if batches < engines:
        given, wanted = f"{plural(batches, 'batch')} in an epoch", f"at least one for each of {engines} engines"
        raise ArgumentError("run", "feed", given, wanted)
    return batches // engines


def _nth(batches: Any, number: int) -> Any:
    if number >= len(batches):
        wanted = "a batch for every step of every engine"
        raise ArgumentError("feed", "batches", f"an end after {len(batches)} batches", wanted)
    return batches[number]


def _checked(batch: Any) -> Mapping[str, Any]:
    if not isinstance(batch, Mapping):
        raise ArgumentError("feed", "batch", type(batch).__name__, "a dict {input name: array}")
    return batch


def _of_loader(folder: str, batch_size: int, engine: int, engines: int, first: int) -> Batches:
    """Return a feed of every n-th batch of each epoch from `first` on; it leaves out the last batches if there are too
    few for all engines."""
    names = (Path(folder) / "names").read_text("utf-8").split("\n")
    rows = [np.load(Path(folder) / f"{k}.npy", mmap_mode="r") for k in range(len(names))]
    streams = [InputStream(name, data, data.shape[1]) for name, data in zip(names, rows, strict=True)]
    loader = DataLoader.with_streams(streams, batch_size)
    each = epoch_steps(loader.num_batches(), engines)
    epochs: list[int] = [-1, 0]  # the epoch that the loader is shuffled for, and the batches taken of it

    def batch(step: int) -> Mapping[str, Any]:
        epoch, at = divmod(step, each)
        epoch += first
        wanted = at * engines + engine
        if epochs[0] != epoch or epochs[1] > wanted:
            loader.shuffle(epoch)
            epochs[:] = [epoch, 0]
        while epochs[1] < wanted:
            loader.next_batch()
            epochs[1] += 1
        epochs[1] += 1
        found = loader.next_batch()
        assert found is not None  # fewer than an epoch has
        return found.tensors

    return batch
