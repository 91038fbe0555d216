"""Write the tour and the lessons as pages for any static host: `python notebooks/pages.py [FOLDER]` (`make pages`).

Each notebook becomes a page; beside it stands a page for every network of it, which trains on its reader's own GPU
through WebGPU, without Python and without a network. `index.html` leads to all of them. Where there is Chromium, every
page is opened, those that run make a step, and kernels that take over 2 s to compile are listed.
"""

from __future__ import annotations

import html
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
from measured_pages import SLOW, absent, measure
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_markdown_cell
from run_demo import HERE, PAGE, execute

NOTEBOOKS = ("tour", "chain_rule", "fusion", "bytes", "tape")
OUT = HERE.parent / "build" / "pages"
# Run as the last cell, by the kernel that has the networks; a line for each page.
SAVE = """
import gdlab as _gd
for _name, _study in sorted((n, s) for n, s in globals().items() if isinstance(s, _gd.Study) and not n.startswith("_")):
    try:
        _study.save(f"{folder}/{notebook}-{{_name}}.html", runnable=True, batches=16)
        print("page", _name)
    except _gd.GdlabError as _error:
        print("none", _name, _error)
"""
STYLE = (
    "body{max-width:44rem;margin:3rem auto;padding:0 1rem;font-family:system-ui,sans-serif;line-height:1.5;"
    "background:Canvas;color:CanvasText}h2{margin:2rem 0 .2rem}a{color:LinkText}:root{color-scheme:light dark}"
)


@dataclass(frozen=True)
class Written:
    """A notebook as pages: its title, its first words, and the names of the networks that run."""

    name: str
    title: str
    words: str
    networks: tuple[str, ...]


def write(name: str, folder: Path) -> Written:
    """Execute a notebook and write its page and those of its networks; raises `RuntimeError` where a cell fails."""
    notebook = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
    title, _, words = notebook.cells[0].source.partition("\n")
    notebook.cells.append(new_code_cell(SAVE.format(folder=folder.as_posix(), notebook=name)))
    if error := execute(notebook):
        raise RuntimeError(f"{name}: {error}")
    said = "".join(output.get("text", "") for output in notebook.cells.pop().outputs).splitlines()
    for line in said:
        if line.startswith("none"):
            print(f"{name}: no page of {line.removeprefix('none ')}")
    networks = tuple(line.removeprefix("page ") for line in said if line.startswith("page "))
    links = " · ".join(f"[{network}]({name}-{network}.html)" for network in networks)
    notebook.cells.append(new_markdown_cell(f"**Run these networks here, on your own GPU:** {links}"))
    page, _ = HTMLExporter(raw_template=PAGE).from_notebook_node(notebook, {"metadata": {"name": title.lstrip("# ")}})
    (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return Written(name, title.lstrip("# "), words.strip().split("\n\n")[0].replace("`", ""), networks)


def index(pages: list[Written]) -> str:
    """The page that leads to all others."""
    parts = []
    for page in pages:
        runs = ", ".join(f'<a href="{page.name}-{n}.html">{html.escape(n)}</a>' for n in page.networks)
        parts.append(
            f'<h2><a href="{page.name}.html">{html.escape(page.title)}</a></h2>\n<p>{html.escape(page.words)}</p>\n'
            + (f"<p>Runs in this browser, on your own GPU: {runs}</p>\n" if runs else "")
        )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>gdlab</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>gdlab</h1>\n"
        "<p>Networks, what an optimizer makes of them, their derivatives, plans and kernels. Nothing here asks for "
        f"Python or for a network.</p>\n{''.join(parts)}</body>\n</html>\n"
    )


def main(folder: Path, names: tuple[str, ...] = NOTEBOOKS) -> int:
    """Write all pages into a folder, and check them; the exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = []
    for name in names:
        try:
            pages.append(write(name, folder))
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
    (folder / "index.html").write_text(index(pages), encoding="utf-8")
    return 1 if check(sorted(folder.glob("*.html"))) else 0


def check(paths: list[Path]) -> int:
    """Open and step every page, and print a line for each; the number of those that fail or compile too slowly."""
    failed, missing = 0, absent()
    if missing:
        print(f"the pages are not opened, and no kernel is timed: {missing}")
        for path in paths:
            print(f"{_size(path)}  {path.name}")
        return 0
    for page in measure(paths):
        slowest = max((seconds for _, seconds in page.kernels), default=0.0)
        told = f"{len(page.kernels)} kernels, the slowest {slowest:.1f} s, first step {page.stepped}"
        print(f"{_size(page.path)}  {page.path.name:28} {told if page.kernels else ''}".rstrip())
        for fault in (*page.faults, *(f"over {SLOW:.0f} s to compile: {each}" for each in page.slow)):
            print(f"{'':14}{fault}", file=sys.stderr)
        failed += bool(page.faults or page.slow)
    return failed


def _size(path: Path) -> str:
    return f"{path.stat().st_size / 1000:8,.0f} KB"


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT))
