"""Print the benchmark table as Markdown; with `--docs`, put it between the two comments in docs/figures.md as well."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

# One thread of a software driver: a small dispatch costs a tenth. Before anything asks for an adapter. Kernels get all.
if not {"generate", "groups", "kernels", "peers"} & set(sys.argv):
    os.environ.setdefault("LP_NUM_THREADS", "0")

import gdlab  # noqa: F401 — before NumPy, whose threads then leave the cores between two products

PAGE = Path(__file__).parents[1] / "docs" / "figures.md"
BEGIN, END = "<!-- benchmarks: made by `python -m benchmarks --docs` -->", "<!-- end of benchmarks -->"

# Modules; `--only` chooses among the latter.
TABLES, CHOSEN = ("compiled", "distributed", "eager", "record"), ("generate", "groups", "kernels", "peers")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("all", *TABLES, *CHOSEN), default="all", help="only that table")
    parser.add_argument("--only", default="", help="kernels whose names contain this, a case of peers, a dtype")
    parser.add_argument("--1b", dest="large", action="store_true", help="generate: a model of 1.1 B parameters")
    parser.add_argument("--docs", action="store_true", help="rewrite the table in docs/figures.md")
    options = parser.parse_args()
    if reason := refused(options):
        parser.error(reason)
    if options.what != "all":
        print_table = importlib.import_module(f"benchmarks.{options.what}").print_table
        arguments = dict.fromkeys(CHOSEN, (options.only,)) | {"generate": (options.large, options.only)}
        print_table(*arguments.get(options.what, ()))
        return 0
    start = time.perf_counter()
    text = table()
    print(text)
    print(f"\nin {time.perf_counter() - start:.0f} s", file=sys.stderr)
    if options.docs:
        PAGE.write_text(with_table(PAGE.read_text("utf-8"), text), "utf-8")
    return 0


def refused(options: argparse.Namespace) -> str:
    """Say in words which option has no meaning for the table, or chooses nothing in it; empty where all have one."""
    if options.docs and options.what != "all":
        return f"argument --docs: given with {options.what}, wanted without a table: it has all"
    if options.large and options.what != "generate":
        return f"argument --1b: given with {options.what}, wanted with generate"
    if not options.only:
        return ""
    if options.what not in CHOSEN:
        return f"argument --only: given with {options.what}, wanted with one of {', '.join(CHOSEN)}"
    names = importlib.import_module(f"benchmarks.{options.what}").names()
    chosen = [name for name in names if options.only == name or (options.what == "kernels" and options.only in name)]
    return "" if chosen else f"argument --only: given {options.only}, wanted one of {', '.join(names)}"


def table() -> str:
    """Every row, measured now."""
    from benchmarks import memory, pages, passes, recognize, steps
    from benchmarks.measure import Row, machine

    parts: tuple[Callable[[], Iterable[Row]], ...] = (
        lambda: [passes.import_row()],
        passes.pass_rows,
        recognize.recognize_rows,
        steps.build_rows,
        steps.step_rows,
        steps.encode_rows,
        memory.memory_rows,
        passes.layout_rows,
        passes.document_rows,
        pages.page_rows,
        passes.picture_rows,
    )
    lines = ["| what | median (least – most) | |", "|---|---|---|"]
    for part in parts:
        for row in part():
            print(f"{row.what}: {row.figure}", file=sys.stderr)
            lines.append(f"| {row.what} | {row.figure} | {row.beside} |")
    return "\n".join([machine(), "", *lines])


def with_table(page: str, text: str) -> str:
    """The page with the text between its two comments; they are added at the end if missing."""
    block = f"{BEGIN}\n{text}\n{END}"
    if BEGIN not in page or END not in page:
        return f"{page.rstrip()}\n\n## Figures\n\n{block}\n"
    return re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: block, page, count=1, flags=re.S)


if __name__ == "__main__":
    sys.exit(main())
