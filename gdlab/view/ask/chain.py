"""Describe the entities linked to one, in words and in order: from the source line to the WGSL line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

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
    """Yield the entities linked to this one, level by level from the source to the WGSL."""
    lit = document.select(at)
    yield f"{at} lights {whole(len(lit))} of this document: {flat(sentence(document, at))}"
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


@reading
def sentence(document: Document, at: str) -> str:
    """Return the links from the source line to the buffer as a sentence: one or two entities of a kind by name, more as
    a number. `chain` in labextension/src/doc/select.ts says the same in the status line."""
    later = _later_readers(document, at)
    rows: dict[str, list[int]] = {}
    for entity in document.select(at):
        if entity not in later:
            rows.setdefault(_level(entity), []).append(parse_entity(entity)[1][-1])
    stages = document.data["stages"]
    final = any(stage["role"] == "final" for stage in stages)
    shown = [s for s, stage in enumerate(stages) if stage["role"] != "derivative" or not final]
    nodes = [_worded([_called(document, s, i) for i in sorted(found)], "node", "") for s in shown
             if (found := rows.get(f"node:{s}"))]  # fmt: skip
    lines = dict.fromkeys(str(document.lines[row]["line"]) for row in sorted(rows.get("line", ())))
    device: dict[str, Callable[[int], str]] = {"dispatch": str, "kernel": str, "interval": partial(_buffer, document)}
    if "dispatch" in rows:
        del device["kernel"]  # it goes without saying
    parts = [_worded(list(lines), "line")] if lines else []
    parts += [text for text, _ in groupby(nodes)]
    for level, name in device.items():
        if level in rows:
            parts.append(_worded([name(row) for row in sorted(rows[level])], _WORD.get(level, level)))
    if later:
        parts.append(f"read by {_worded([str(k) for k in sorted(parse_entity(e)[1][0] for e in later)], 'dispatch')}")
    return " → ".join(parts)


_WORD = {"interval": "buffer"}


def _worded(names: Sequence[str], word: str, named: str | None = None) -> str:
    if len(names) > 2:
        return plural(len(names), word)
    named = word if named is None else named
    kind = plural(len(names), named).partition(" ")[2] if named else ""
    return f"{kind} {' + '.join(names)}".lstrip()


def _called(document: Document, stage: int, index: int) -> str:
    node = document.nodes(stage)[index]
    return " ".join(filter(None, (node["op"], node["name"])))


def _buffer(document: Document, row: int) -> str:
    return str(document.plan("intervals")[row]["name"] or row)


def _later_readers(document: Document, at: str) -> set[str]:
    """Return the dispatches that only read a buffer, which come after the ones that write it."""
    kind, numbers = parse_entity(at)
    if kind != "interval":
        return set()
    written = document.provenance.writers(numbers[0])
    return {f"dispatch:{k}" for k in document.provenance.readers(numbers[0]) if k not in written}


def _uses(document: Document, at: str) -> dict[str, str]:
    """Return how each dispatch uses a buffer, in words; empty for other entities."""
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
