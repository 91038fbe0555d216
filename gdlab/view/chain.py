"""What lights up with an entity, in words and in order: from the source line to the WGSL line."""

from __future__ import annotations

from collections.abc import Iterator

from gdlab.view.document import Document
from gdlab.view.figures import nbytes, plural
from gdlab.view.links import parse_entity

Lines = Iterator[str]


def links(document: Document, at: str | None) -> Lines:
    if at is None:
        for each in document.data["links"]:
            count = len(each["out"]["ids"])
            yield f"{each['a']} – {each['b']}: {plural(count, 'pair')}"
        return
    yield from chain(document, at)


def chain(document: Document, at: str) -> Lines:
    """What lights up with an entity, from the source to the WGSL, level by level."""
    lit = document.select(at)
    order = ["line", *(f"node:{s}" for s in range(len(document.data["stages"]))),
             *(f"step:{p}" for p in range(len(document.data["passes"]))), "dispatch", "interval", "kernel", "wgsl"]  # fmt: skip
    yield f"{at}: {plural(len(lit), 'entity').replace('entitys', 'entities')}"
    for level in order:
        listed = sorted((e for e in lit if _level(e) == level), key=lambda e: parse_entity(e)[1])
        yield from (f"  {entity}  {_told(document, entity)}".rstrip() for entity in listed)


def _level(entity: str) -> str:
    kind, at = parse_entity(entity)
    return f"{kind}:{at[0]}" if kind in ("node", "step") else kind


def _told(document: Document, entity: str) -> str:
    """One entity in words."""
    kind, at = parse_entity(entity)
    match kind:
        case "line":
            line = document.lines[at[0]]
            source = document.data["sources"][line["source"]]
            text = source["text"].split("\n")
            row = line["line"] - source["first_line"]
            return f"{source['name']}, line {line['line']}: {text[row].strip() if 0 <= row < len(text) else ''}"
        case "node":
            node = document.nodes(at[0])[at[1]]
            return f"{node['op']} {node['name']} : {document.types[node['type']]['text']}".replace("  ", " ")
        case "step":
            step = document.steps(at[0])[at[1]]
            return str(step.get("label") or f"gradient of {step['rule']}")
        case "dispatch":
            return str(document.plan("dispatches")[at[0]]["label"])
        case "interval":
            row = document.plan("intervals")[at[0]]
            return f"{row['name'] or 'buffer'}, {row['kind']}, {nbytes(row['nbytes'])}"
        case "kernel":
            return str(document.plan("kernels")[at[0]]["entry"])
        case "wgsl":
            return str(document.plan("kernels")[at[0]]["wgsl"].split("\n")[at[1] - 1])
        case _:
            return ""
