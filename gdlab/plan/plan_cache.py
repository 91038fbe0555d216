"""Keep a compiled plan in a file and find it again, when nothing that it depends on has changed.

A file is never trusted: it holds the digest of its own content, and what is damaged, truncated or of another version
counts as not there. It is JSON, whatever its suffix.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gdlab.base.errors import GdlabError
from gdlab.base.files import open_regular
from gdlab.graph import Graph
from gdlab.op.cost import Roofline
from gdlab.plan.codec import plan_of, to_json
from gdlab.plan.compiler import VERSION
from gdlab.plan.records import ExecutionPlan
from gdlab.plan.target import CompileOptions, Target
from gdlab.rewrite import Budget
from gdlab.rewrite.rules import RULES

FORMAT = 3
BODY = ', "body": '  # the text before the body; the head holds the body's digest


@dataclass(frozen=True, slots=True)
class Cached:
    """A cached plan, with the place of each node of the written graph (or `why` it has none), and for each node of the
    compiled graph the written one that gave its source (`source_of`)."""

    plan: ExecutionPlan
    place: Mapping[int, int | None]
    why: Mapping[int, str]


def key_of(
    graph: Graph, mode: str, optimize: Mapping[str, Any] | None, skipped: bool, options: CompileOptions, target: Target
) -> str | None:
    """Return a digest of all that a plan depends on, the figures of a measured machine too; None where that is unknown
    (a cost model that is a function)."""
    given = dict(optimize or {})
    plain = (str, int, float, bool, tuple, list, type(None), Budget, Roofline)
    if not all(isinstance(value, plain) for value in given.values()):
        return None
    facts = (FORMAT, VERSION, _version(), _rules(), graph.fingerprint(), mode, optimize is None, sorted(given.items()),
             skipped, options, target)  # fmt: skip
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def load(path: str | os.PathLike[str], key: str, graph: Graph) -> Cached | None:
    """Return the plan of this key from the file, with the sources of `graph`; None (and a warning, where the file is
    damaged) if it holds nothing."""
    try:
        with open_regular(path) as file:
            text = file.read().decode()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _warn(path, f"cannot be read ({error})")
        return None
    try:
        head, _, rest = text.partition(BODY)
        found, written = json.loads(head + "}"), rest[:-1]
        if found["format"] != FORMAT or found["key"] != key:
            return None
        if hashlib.sha256(written.encode()).hexdigest() != found["digest"] or rest[-1:] != "}":
            raise ValueError("another digest")
        body = json.loads(written)
        cached = Cached(plan_of(body["plan"]), dict(body["place"]), dict(body["why"]))
        sources = body["sources"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, GdlabError) as error:
        _warn(path, f"is damaged ({type(error).__name__}: {str(error)[:80]})")
        return None
    for node, written in sources:
        cached.plan.graph.attach_source(node, graph.source(written))
    return cached


def save(path: str | os.PathLike[str], key: str, cached: Cached, graph: Graph) -> None:
    """Write the file, through a temporary one; warn where that fails."""
    written = {graph.source(n.id): n.id for n in reversed(graph.nodes) if graph.source(n.id)}
    sources = [
        (n.id, written[source]) for n in cached.plan.graph if (source := cached.plan.graph.source(n.id)) in written
    ]
    facts = {"place": list(cached.place.items()), "why": list(cached.why.items()), "sources": sources}
    body = f'{json.dumps(facts)[:-1]}, "plan": {to_json(cached.plan)}}}'
    head = json.dumps({"format": FORMAT, "key": key, "digest": hashlib.sha256(body.encode()).hexdigest()})
    text = f"{head[:-1]}{BODY}{body}}}"
    target = Path(path)
    temporary = target.parent / f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError, ValueError):
            temporary.unlink()
        _warn(path, f"cannot be written ({error})")


def versions() -> str:
    """Return the version of plans and that of gdlab: plans of other versions are not run."""
    return f"{VERSION} of gdlab {_version()}".rstrip()


def _warn(path: object, what: str) -> None:
    warnings.warn(f"plan cache: {str(path)!r} {what}: compiling instead", RuntimeWarning, stacklevel=5)


def _version() -> str:
    import importlib.metadata  # 17 ms of an import, for those who have a cache file

    try:
        return importlib.metadata.version("gdlab")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return ""


@cache
def _rules() -> str:
    """Return the digest of the rules' contents, wherever they are written."""
    h = hashlib.sha256()
    for rule in RULES:
        h.update(repr((rule.name, rule.label, rule.safety, rule.phases, rule.on, str(rule.where))).encode())
        h.update(f"{rule.pattern.fingerprint()} {rule.left} {rule.right}".encode())
    return h.hexdigest()
