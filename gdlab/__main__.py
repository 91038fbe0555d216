"""`python -m gdlab`: doctor, explain, run, ops: what the views show, as text.

python -m gdlab doctor                                   what this machine has and lacks
python -m gdlab explain mlp.gdlab.json --view plan       a view of a saved document
python -m gdlab explain mlp.gdlab.json --view links --at dispatch:14
python -m gdlab run mlp.py --steps 100 --feed random:0 --adam 1e-3 --init 0
python -m gdlab ops matmul
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gdlab.errors import GdlabError, GraphError, LoadError, unknown_name
from gdlab.graph import Graph
from gdlab.op import REGISTRY, Op, public_ops
from gdlab.study import Study
from gdlab.view import text
from gdlab.view.doc import load_doc
from gdlab.view.doctor import doctor_rows, doctor_text
from gdlab.view.figures import grid, plural, sig
from gdlab.view.files import suffix_of
from gdlab.view.slices import view_slice

OK, FAILED, USAGE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status: 0, 1 for a failed check, 2 for bad usage."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except GdlabError as error:
        print(error, file=sys.stderr)
        return USAGE
    except BrokenPipeError:  # `| head` closed the pipe: nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("gdlab", description="The graph IDE from the command line.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("doctor", help="versions, adapters, the device chosen and why, front end, threads")
    one.set_defaults(command=doctor)

    one = commands.add_parser("explain", help="a view of a saved document, as text")
    one.add_argument("file", metavar="FILE", help="a .gdlab.json or .gdlab.json.gz file")
    one.add_argument("--view", metavar="V", default="opt", choices=list(text.VIEWS), help=", ".join(text.VIEWS))
    one.add_argument("--at", metavar="ENTITY", help="only what belongs to this entity, such as node:0.3 or dispatch:14")
    one.add_argument("--json", action="store_true", help="the part of the document that the view reads")
    one.set_defaults(command=explain)

    one = commands.add_parser("run", help="run a Python file that makes a Study or a Graph, and train it")
    one.add_argument("file", metavar="FILE.py")
    one.add_argument("--name", help="the variable to take; else the last Study, or the last Graph with outputs")
    one.add_argument(
        "--train", action="store_true", help="output 0 of a Graph is the loss (a Study knows it by itself)"
    )
    one.add_argument("--steps", metavar="N", type=int, default=1, help="steps to make (1)")
    one.add_argument(
        "--feed", metavar="F", help="random[:SEED], or a variable of the file: a dict of arrays or a callable"
    )
    rules = one.add_mutually_exclusive_group()
    rules.add_argument("--sgd", metavar="LR", type=float)
    rules.add_argument("--adam", metavar="LR", type=float)
    one.add_argument("--init", metavar="SEED", type=int, help="initialize the parameters that have no value")
    one.add_argument("--device", choices=("auto", "wgpu", "cpu"), default="auto")
    one.add_argument(
        "--save", metavar="OUT", help="write the document: .gdlab.json[.gz], .html, .svg, .dot, .md or .txt"
    )
    one.add_argument("--view", metavar="V", choices=list(text.VIEWS), help="print this view afterwards")
    one.set_defaults(command=run)

    one = commands.add_parser("ops", help="all ops, or what is known of one")
    one.add_argument("name", nargs="?")
    one.set_defaults(command=ops)
    return parser


# commands ------------------------------------------------------------------------------------------------------------
def doctor(options: argparse.Namespace) -> int:
    """Print the table; 1 when a row is bad."""
    print(doctor_text())
    return FAILED if any(row.level == "bad" for row in doctor_rows()) else OK


def explain(options: argparse.Namespace) -> int:
    """Print a view of a document; 1 when the document breaks its own rules."""
    document = load_doc(options.file)
    if options.json:
        print(json.dumps(view_slice(document, options.view, options.at), sort_keys=True, indent=1, ensure_ascii=False))
    else:
        if options.at is None:
            print(document)
        print(text.twin(document, options.view, options.at), end="")
    failed = document.check()
    for problem in failed:
        print(f"document {Path(options.file).name}: {problem}", file=sys.stderr)
    return FAILED if failed else OK


def run(options: argparse.Namespace) -> int:
    """Run a file, train what it made, and say how it went."""
    if options.save:
        suffix_of(options.save)
    made = _namespace(options.file)
    study = _study(made, options)
    feed = options.feed
    if feed is not None and feed.partition(":")[0] != "random":
        if feed not in made:
            raise GraphError("run", "feed", repr(feed), "random[:SEED], or a variable of the file")
        feed = made[feed]
    study.prepare(feed=feed, sgd=options.sgd, adam=options.adam, init=options.init)
    print(study.summary())
    print(f"device: {study.session.device_information()}")
    study.run(options.steps)
    _tell(study)
    if options.view:
        print(text.twin(study.doc, options.view), end="")
    if options.save:
        print(f"saved: {study.save(options.save)}")
    study.close()
    return OK


def _tell(study: Study) -> None:
    session, losses = study.session, study.runner.losses
    traffic = session.traffic
    print(
        f"{plural(session.step_count, 'step')}, {plural(traffic.dispatches, 'dispatch')}, "
        f"{plural(traffic.submissions, 'submission')}"
    )
    print(f"memory: {session.memory_summary()}")
    if session.mode == "training":
        print(f"update: {session.optimizer}")
    if losses:
        print(f"loss: {sig(losses[0][1])} → {sig(losses[-1][1])}")
    if study.runner.state == "paused":
        print(f"paused: {study.runner.reason}")


def _namespace(file: str) -> dict[str, Any]:
    """The variables that a file leaves behind."""
    path = Path(file)
    if not path.is_file():
        raise LoadError("run", "file", str(path), "a Python file")
    sys.path.insert(0, str(path.parent))
    try:
        return runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.path.remove(str(path.parent))


def _study(made: dict[str, Any], options: argparse.Namespace) -> Study:
    """The study that the file made, or one of its graph."""
    if options.name is not None and options.name not in made:
        raise unknown_name("run", "name", options.name, [n for n, v in made.items() if isinstance(v, (Study, Graph))])
    names = list(made) if options.name is None else [options.name]
    studies = [made[n] for n in names if isinstance(made[n], Study)]
    if studies:
        return studies[-1]  # type: ignore[no-any-return]
    graphs = [n for n in names if isinstance(made[n], Graph) and made[n].outputs]
    if not graphs:
        raise GraphError(
            "run", Path(options.file).name, "no Study, and no Graph with outputs", "one of them as a variable"
        )
    return Study(made[graphs[-1]], train=options.train, device=options.device, name=graphs[-1])


def ops(options: argparse.Namespace) -> int:
    """Print the table of ops, or one of them in full."""
    if options.name is None:
        rows = [(op.name, op.family, _signature(op), _first_line(op)) for op in public_ops()]
        print("\n".join(grid(("op", "family", "call", "what it does"), rows, indent="")))
        return OK
    if options.name not in REGISTRY:
        raise unknown_name("ops", "name", options.name, [op.name for op in public_ops()])
    op = REGISTRY[options.name]
    print(f"{_signature(op)}\n  {inspect.getdoc(op.rule) or ''}")
    facts: list[tuple[str, str]] = [
        ("family", op.family), ("kind", op.kind), ("kernel", str(op.kernel or "its body's")),
        ("gradient", _gradient(op)), ("fusion", op.label or "–"),
    ]  # fmt: skip
    print("\n".join(grid(("", ""), facts)))
    return OK


def _signature(op: Op) -> str:
    words = []
    for p in op.parameters:
        default = "" if p.default is inspect.Parameter.empty else f"={p.default!r}"
        words.append(f"{p.name}{default}")
    return f"{op.name}({', '.join(words)})"


def _first_line(op: Op) -> str:
    return (inspect.getdoc(op.rule) or "").partition("\n")[0]


def _gradient(op: Op) -> str:
    if op.gradient is not None:
        return "its own"
    if op.body is not None:
        return "of its body"
    return {"ends": "none: it is constant almost everywhere, or a leaf", "refuses": "none"}.get(
        op.no_grad or "refuses", "none"
    )


if __name__ == "__main__":
    raise SystemExit(main())
