"""Write a stage as DOT, the language of Graphviz; no binary and no package is needed for that."""

from __future__ import annotations

from gdlab.view.document.document import Document
from gdlab.view.picture.palette import family_ink


def dot(document: Document, stage: int | str = 0) -> str:
    """The graph of one stage: node ids are the keys, edges of leaves are dotted."""
    nodes = document.nodes(stage)
    types = document.types.column("text")
    records = list(nodes)
    lines = [f"digraph {_quoted(str(document.data['title']))} {{", '  node [shape=box, style="rounded,filled"];']
    for record in records:
        ink = family_ink(record["family"], "light")
        label = "\n".join((f"{record['op']}  {record['name']}".rstrip(), types[record["type"]]))
        lines.append(
            f'  {_quoted(record["key"])} [label={_quoted(label)}, fillcolor="{ink.fill}", color="{ink.border}"];'
        )
    for record in records:
        for i in record["inputs"]:
            style = " [style=dotted]" if "leaf" in records[i]["flags"] else ""
            lines.append(f"  {_quoted(records[i]['key'])} -> {_quoted(record['key'])}{style};")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    """A DOT string: a backslash stands for itself, a line break for itself."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
