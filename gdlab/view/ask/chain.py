"""Tell in words and in order what lights up with an entity: from the source line to the WGSL line."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gdlab.base.words import flat, nbytes, plural, whole
from gdlab.view.document.document import Document, reading
from gdlab.view.document.links import parse_entity

Lines = Iterator[str]


def links(document: Document) -> Lines:
    """Yield the number of pairs of each link."""
    for each in document.data["links"]:
        yield f"{each['a']} – {each['b']}: {plural(len(each['out']['ids']), 'pair')}"


@reading
def bookmarks(document: Document) -> Lines:
    """Yield each bookmark with its entities in words."""
    for name, entities in document.bookmarks.items():
        told = (f"{entity} {_TOLD[kind](document, *at)}" for entity in entities for kind, at in [parse_entity(entity)])
        yield flat(f"bookmark {name!r}: {', '.join(told) or 'nothing that is in this document'}")


@reading
def chain(document: Document, at: str) -> Lines:
    """Yield what lights up with an entity, level by level from the source to the WGSL."""
    lit = document.select(at)
    yield f"{at} lights {whole(len(lit))} of this document:"
    used = _uses(document, at)
    by_level: dict[str, list[str]] = {}
    for entity in sorted(lit, key=lambda e: parse_entity(e)[1]):
        by_level.setdefault(_level(entity), []).append(entity)
    stages, passes = len(document.data["stages"]), len(document.data["passes"])
    order = ["line", *(f"node:{s}" for s in range(stages)), "edge", *(f"step:{p}" for p in range(passes)), "rule",
             "dispatch", "interval", "kernel", "wgsl"]  # fmt: skip
    for level in order:
        for entity in by_level.get(level, ()):
            kind, numbers = parse_entity(entity)
            yield f"  {entity}  {flat(_TOLD[kind](document, *numbers))}{used.get(entity, '')}".rstrip()


def _uses(document: Document, at: str) -> dict[str, str]:
    """Say of each dispatch that uses a buffer what it does with it; empty for other entities."""
    kind, numbers = parse_entity(at)
    if kind != "interval":
        return {}
    reads, writes = (set(ks(numbers[0])) for ks in (document.provenance.readers, document.provenance.writers))
    words = {k: " and ".join(w for w, ks in (("reads", reads), ("writes", writes)) if k in ks) for k in reads | writes}
    return {f"dispatch:{k}": f", {word} it" for k, word in words.items()}


def _level(entity: str) -> str:
    kind, at = parse_entity(entity)
    return f"{kind}:{at[0]}" if kind in ("node", "step") else kind


def _line(document: Document, row: int) -> str:
    line = document.lines[row]
    source = document.data["sources"][line["source"]]
    text, at = source["text"].split("\n"), line["line"] - source["first_line"]
    return f"{source['name']}, line {line['line']}: {text[at].strip() if 0 <= at < len(text) else ''}"


def _node(document: Document, stage: int, index: int) -> str:
    node = document.nodes(stage)[index]
    type = document.types.column("text")[node["type"]]
    return f"{node['op']} {node['name']} : {type}" if node["name"] else f"{node['op']} : {type}"


def _edge(document: Document, stage: int, reader: int, port: int) -> str:
    return f"operand {port} of {_node(document, stage, reader)}"


def _step(document: Document, number: int, index: int) -> str:
    step = document.steps(number)[index]
    return str(step.get("label") or f"gradient of {step['rule']}")


def _rule(document: Document, number: int, index: int) -> str:
    return str(document.data["passes"][number]["report"]["rules"][index]["label"])


def _dispatch(document: Document, index: int) -> str:
    return str(document.plan("dispatches")[index]["label"])


def _interval(document: Document, index: int) -> str:
    row = document.plan("intervals")[index]
    return f"{row['name'] or 'buffer'}, {row['kind']}, {nbytes(row['nbytes'])}"


def _kernel(document: Document, index: int) -> str:
    return str(document.plan("kernels")[index]["entry"])


def _wgsl(document: Document, kernel: int, line: int) -> str:
    return str(document.plan("kernels")[kernel]["wgsl"].split("\n")[line - 1])


_TOLD: dict[str, Callable[..., str]] = {
    "line": _line,
    "node": _node,
    "edge": _edge,
    "step": _step,
    "rule": _rule,
    "dispatch": _dispatch,
    "interval": _interval,
    "kernel": _kernel,
    "wgsl": _wgsl,
}
