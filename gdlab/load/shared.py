"""The common parts of the importers of models: refusals, bounds, NumPy's broadcasting, matrix products of any rank."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from gdlab import ops
from gdlab.base.errors import GdlabError, LoadError, UnknownNameError
from gdlab.base.types import Shape
from gdlab.base.words import clipped, whole
from gdlab.graph import Graph, Value

MOST_NODES = 1 << 16  # of a file, functions written out
LISTED = 40  # entries of a list in an error


class Unsupported(Exception):
    """A request of a node that gdlab cannot meet; importers collect these."""


class Malformed(Exception):
    """A content that no valid file has: (what, given, wanted)."""


@contextmanager
def load_errors(where: str, about: str, wanted: str, passing: type[Exception] = UnknownNameError) -> Iterator[None]:
    """Raise every error of the body as a `LoadError` about a file, or about a node (then `passing` is `Unsupported`);
    `wanted` names the supported content. A `LoadError` and `passing` are raised as they are."""
    try:
        yield
    except (LoadError, passing):
        raise
    except Unsupported as error:
        raise LoadError(where, about, str(error), wanted) from None
    except Malformed as error:
        what, given, valid = error.args
        raise LoadError(where, f"{about}: {what}", given, valid) from None
    except GdlabError as error:
        raise LoadError(where, f"{about}: {error.where}: {error.what}", error.given, error.wanted) from None
    except Exception as error:  # what no valid file has may break anything
        raise LoadError(where, about, f"{type(error).__name__}: {error}"[:200], wanted) from error


def check_growth(graph: Graph, nodes: int, at: object) -> None:
    """Raise for a graph of many more nodes than its file has."""
    most = 4 * nodes + (1 << 14)
    if len(graph) > most:
        raise Malformed("nodes", f"more than {most:,} of the graph at {at}", f"fewer, from {nodes:,} in the file")


def refused(where: str, what: str, nodes: Sequence[tuple[str, str]], wanted: str) -> LoadError:
    """Return the error for all unsupported nodes, each (op, text); it first counts the nodes of each op."""
    counts, details = Counter(op for op, _ in nodes), [text for _, text in nodes]
    given = enumerated(details, 1900)
    if max(counts.values()) > 1:
        often = [f"{clipped(op, 60)} × {whole(n)}" if n > 1 else clipped(op, 60) for op, n in counts.most_common()]
        given = f"{enumerated(often, 600, ', ')}: {given}"
    return LoadError(where, what, given, wanted, details=details)


def enumerated(texts: Sequence[str], characters: int, separator: str = "; ") -> str:
    """Join as many of the texts as fit into so many characters, and count the rest."""
    shown: list[str] = []
    for text in texts[:LISTED]:
        shown.append(clipped(text, 100))
        characters -= len(shown[-1]) + 2
        if characters < 0:
            break
    more = [f"and {whole(len(texts) - len(shown))} more"] if len(shown) < len(texts) else []
    return separator.join([*shown, *more])


def open_extents(where: str, listed: Sequence[str], names: Mapping[str, int]) -> LoadError:
    """Return the error for extents that have names and no numbers, each described in `listed`; `names`: an example
    number for each, for the option to add."""
    shown = list(names.items())[:4]
    example = ", ".join(f"{name!r:.60}: {n}" for name, n in shown)
    option, rest = ",".join(f"{name:.60}={n}" for name, n in shown), ", …" if len(names) > 4 else ""
    wanted = f"a number for each: {where}(…, dims={{{example}{rest}}}), in a notebook or on the command line --dims "
    return LoadError(where, "named extents", enumerated(listed, 2400), wanted + option + rest, details=listed)


def common(*shapes: Shape) -> Shape:
    """Return the shape that these shapes broadcast to."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        given = " and ".join(str(list(shape)) for shape in shapes)
        raise Malformed("operands", given, "shapes that broadcast to one") from None


def product(a: Value, b: Value) -> Value:
    """Return NumPy's `matmul` of operands of rank ≥ 2: leading axes are broadcast."""
    lead = common(a.shape[:-2], b.shape[:-2])
    (m, k), (rows, n) = a.shape[-2:], b.shape[-2:]
    if k != rows:
        raise Malformed("operands", f"{a.type} and {b.type}", f"equal inner extents: {k} and {rows} differ")
    if a.type.rank == b.type.rank == 2:
        return ops.matmul(a, b)
    if b.type.rank == 2 or math.prod(b.shape[:-2]) == 1:
        return ops.matmul(a.reshape((-1, k)), b.reshape((k, n))).reshape((*lead, m, n))
    if math.prod(lead) == 1:
        return ops.matmul(a.reshape((m, k)), b.reshape((k, n))).reshape((*lead, m, n))
    stacks = [ops.broadcast_to(v, (*lead, *v.shape[-2:])) if v.shape[:-2] != lead else v for v in (a, b)]
    stacks = [v if v.type.rank == 3 else v.reshape((-1, *v.shape[-2:])) for v in stacks]
    return ops.batch_matmul(*stacks).reshape((*lead, m, n))
