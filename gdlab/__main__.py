"""`python -m gdlab`: doctor, explain, run, check, why, cell, bench, tuning, ops: what the views show, as text.

python -m gdlab doctor                                   what this machine has and lacks
python -m gdlab explain mlp.gdlab.json --view plan       a view of a saved document
python -m gdlab explain mlp.gdlab.json --view links --at dispatch:14
python -m gdlab explain mlp.gdlab.json --at node:0.1 --to node:0.9    the shortest paths between them
python -m gdlab explain model.onnx --dims batch=1,seq=128
python -m gdlab explain mlp.gdlab.json --step 3          the graph after three rewrites
python -m gdlab explain old.gdlab.json new.gdlab.json    what is different
python -m gdlab explain mlp.gdlab.json --assert "dispatches <= 14 and peak_bytes < 2e6"
python -m gdlab check mlp.py --train                     did the optimizer or a device break it?
python -m gdlab why mlp.py h z                           why two nodes did not become one
python -m gdlab cell mlp.py --optimized                  the graph as a %%graph cell that builds it
python -m gdlab run mlp.py --steps 100 --feed random:0 --adam 1e-3 --init 0
python -m gdlab bench --calibrate                        measure this device for cost=roofline(device)
python -m gdlab bench --tune 60                          search the fastest schedules of products on this device
python -m gdlab tuning                                   the schedules that were tried on it, with their times
python -m gdlab ops matmul
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from gdlab.base.errors import ArgumentError, GdlabError, GraphError, LoadError, unknown_name
from gdlab.base.words import grid, natural, plural, sig, whole
from gdlab.devices.calibrate import calibrate
from gdlab.devices.choose import DEVICES, checked_kind, device
from gdlab.devices.tune import check_seconds, tune, usual_products
from gdlab.devices.tuning_file import kept_kernels
from gdlab.graph import Graph
from gdlab.op import REGISTRY, Op, public_ops
from gdlab.op.machines import Machine, calibration_file, kept_machines
from gdlab.op.text import to_cell
from gdlab.rewrite import RULES
from gdlab.session.run.runner import NanWatch
from gdlab.session.run.stop_conditions import parse_condition
from gdlab.study.model_files import is_model, open_model, parse_dims
from gdlab.study.study import Study
from gdlab.view.ask.chain import bookmarks
from gdlab.view.ask.diff import diff_doc, diff_text
from gdlab.view.ask.paths import paths_json, paths_text
from gdlab.view.ask.slices import view_slice
from gdlab.view.ask.step_replay import replay_json, replay_text
from gdlab.view.document.document import reading
from gdlab.view.document.make import Document, load_doc, study_doc
from gdlab.view.document.passes import rewrites_to_plan
from gdlab.view.saved_views import suffix_of
from gdlab.view.text import twin as text
from gdlab.view.text.doctor import doctor_rows, doctor_text
from gdlab.view.text.tuning_text import landscape_text

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
_ASSERTED: Mapping[str, Callable[[Document], float]] = {
    "nodes": lambda doc: len(doc.nodes(_compiled(doc))),
    "dispatches": lambda doc: len(doc.plan("dispatches")),
    "groups": lambda doc: len(doc.plan("groups")),
    "peak_bytes": lambda doc: ((doc.data["plan"] or {}).get("memory") or {}).get("peak_bytes", 0),
    "rewrites": lambda doc: rewrites_to_plan(doc.data),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status: 0, 1 for a failed check, 2 for bad usage."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except GdlabError as error:
        print(error, file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `| head` closed the pipe: nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("gdlab", description="The graph IDE from the command line.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("doctor", help="versions, adapters, the device chosen and why, front end, threads")
    one.set_defaults(command=doctor)

    one = commands.add_parser("explain", help="a view of a saved document or of a model, as text")
    kinds = "a .gdlab.json[.gz] file, an .onnx, .gguf or .pt2 model, or the folder of a pretrained one"
    one.add_argument("file", metavar="FILE", help=kinds)
    one.add_argument("--dims", metavar="NAME=N,…", help="numbers for extents that a model leaves open")
    one.add_argument("other", metavar="FILE2", nargs="?", help="another one: what is different in it")
    one.add_argument("--step", metavar="K", type=int, help="the graph after K rewrites")
    one.add_argument("--pass", metavar="P", dest="number", type=int, default=0, help="of this optimize pass (0)")
    one.add_argument(
        "--assert", metavar="TEST", dest="test", help=f"exit with 1 unless it holds; over {', '.join(_ASSERTED)}"
    )
    one.add_argument("--view", metavar="V", default="opt", choices=list(text.VIEWS), help=", ".join(text.VIEWS))
    one.add_argument("--at", metavar="ENTITY", help="only what belongs to this entity, such as node:0.3 or dispatch:14")
    one.add_argument("--to", metavar="ENTITY", help="with --at: the shortest paths between the two nodes, by length")
    one.add_argument("--json", action="store_true", help="the part of the document that the view reads")
    one.set_defaults(command=explain)

    one = _of_program(commands.add_parser("run", help="run a Python file that makes a Study or a Graph, and train it"))
    one.add_argument("--steps", metavar="N", type=int, default=1, help="steps to make (1)")
    rules = one.add_mutually_exclusive_group()
    rules.add_argument("--sgd", metavar="LR", type=float)
    rules.add_argument("--adam", metavar="LR", type=float)
    one.add_argument("--init", metavar="SEED", type=int, help="initialize the parameters that have no value")
    one.add_argument("--until", metavar="TEST", help='pause when it holds, such as "loss < 0.1"')
    hint = 'a breakpoint, "EVENT [if TEST]", such as "nonfinite" or "loss rises 3"; repeatable'
    one.add_argument("--break", metavar="EXPR", dest="breaks", action="append", default=[], help=hint)
    one.add_argument("--watch", choices=get_args(NanWatch), help="what is looked at for NaN and infinity (loss)")
    one.add_argument(
        "--save", metavar="OUT", help="write the document: .gdlab.json[.gz], .html, .svg, .dot, .md or .txt"
    )
    one.add_argument("--runnable", action="store_true", help="--save a page that trains on its reader's own GPU")
    one.add_argument("--batches", metavar="N", type=int, default=1, help="with --runnable: batches of the feed (1)")
    one.add_argument("--view", metavar="V", choices=list(text.VIEWS), help="print this view afterwards")
    one.set_defaults(command=run)

    one = _of_program(
        commands.add_parser("check", help="reference, optimized, cpu and wgpu side by side; 1: they differ")
    )
    one.set_defaults(command=check)

    one = _of_program(commands.add_parser("why", help="why a node is what it is, or why two did not become one"))
    one.add_argument("a", metavar="A", help="a node of the optimized graph (name or %%id), or a rule (id or label)")
    one.add_argument("b", metavar="B", nargs="?", help="a node beside it")
    one.set_defaults(command=why)

    one = _of_program(commands.add_parser("cell", help="the graph of a file as a %%%%graph cell that builds it"))
    one.add_argument("--optimized", action="store_true", help="as the optimizer made it")
    one.set_defaults(command=cell)

    one = commands.add_parser("bench", help="the figures of rooflines: nominal, and measured on this machine")
    work = one.add_mutually_exclusive_group()
    work.add_argument("--calibrate", action="store_true", help="measure a device and keep the figures")
    hint = "search the schedules of usual products for at most so many seconds (60) and keep the fastest"
    work.add_argument("--tune", metavar="SECONDS", type=float, nargs="?", const=60.0, help=hint)
    one.add_argument("--device", type=_device_name, metavar="D", default="auto", help=DEVICE_HELP)
    one.set_defaults(command=bench)

    one = commands.add_parser("tuning", help="the schedules of products that were tried on a device, with their times")
    one.add_argument("--device", type=_device_name, metavar="D", default="auto", help=DEVICE_HELP)
    one.set_defaults(command=tuning)

    one = commands.add_parser("ops", help="all ops, or what is known of one")
    one.add_argument("name", nargs="?")
    one.set_defaults(command=ops)
    return parser


DEVICE_HELP = "auto (the default), wgpu, wgpu:NUMBER or wgpu:NAME of an adapter in the list of doctor, or cpu"


def _device_name(text: str) -> str:
    """Read the value of `--device`."""
    try:
        return checked_kind(text)
    except ArgumentError as error:
        wanted = f"{', '.join(DEVICES)}, wgpu:NUMBER or wgpu:NAME"
        raise argparse.ArgumentTypeError(f"given {text}, wanted {wanted}") from error


def _of_program(one: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options of all commands that run a Python file first."""
    one.add_argument("file", metavar="FILE.py")
    one.add_argument("--name", help="the variable to take; else the last Study, or the last Graph with outputs")
    one.add_argument(
        "--train", action="store_true", help="output 0 of a Graph is the loss (a Study knows it by itself)"
    )
    one.add_argument("--device", type=_device_name, metavar="D", default="auto", help=DEVICE_HELP)
    one.add_argument(
        "--feed", metavar="F", help="random[:SEED], or a variable of the file: a dict of arrays or a callable"
    )
    return one


# commands ------------------------------------------------------------------------------------------------------------
def doctor(options: argparse.Namespace) -> int:
    """Print the table; 1 when a row is bad."""
    print(doctor_text())
    return FAILED if any(row.level == "bad" for row in doctor_rows()) else OK


def explain(options: argparse.Namespace) -> int:
    """Print a view of a document; 1 when the document breaks its own rules."""
    document = _document(options.file, options.dims)
    if options.to is not None and options.at is None:
        raise ArgumentError("explain", "to", f"--to {options.to} alone", "--at ENTITY, the other end")
    if options.test is not None:
        return _assert(document, options.test)
    if options.json:
        print(json.dumps(_json(document, options), sort_keys=True, indent=1, ensure_ascii=False))
    elif options.other is not None:
        print("\n".join(diff_text(document, _document(options.other, options.dims))))
    elif options.step is not None:
        print("\n".join(replay_text(document, options.step, options.number)))
    elif options.to is not None:
        print("\n".join(paths_text(document, options.at, options.to)))
    else:
        if options.at is None:
            print("\n".join([str(document), *bookmarks(document)]))
        print(text.twin(document, options.view, options.at), end="")
    failed = document.check()
    for problem in failed:
        print(f"document {Path(options.file).name}: {problem}", file=sys.stderr)
    return FAILED if failed else OK


def _document(file: str, dims: str | None) -> Document:
    """The document in a file, or of the model in it."""
    if is_model(file):
        return study_doc(open_model(file, None if dims is None else parse_dims(dims)))
    if dims is not None:
        wanted = f"an .onnx or .gguf model, or a pretrained one's folder, instead of {file}"
        raise ArgumentError("explain", "--dims", dims, wanted)
    return load_doc(file)


def _json(document: Document, options: argparse.Namespace) -> Any:
    """Return the origin of the text: the difference of two files, the graph after K rewrites, paths, or a view's
    slice."""
    if options.other is not None:
        return view_slice(diff_doc(document, _document(options.other, options.dims)), "diff", options.at)
    if options.step is not None:
        return replay_json(document, options.step, options.number)
    if options.to is not None:
        return paths_json(document, options.at, options.to)
    return view_slice(document, options.view, options.at)


def run(options: argparse.Namespace) -> int:
    """Run a file, train what it made, and say how it went."""
    if options.save:
        suffix_of(options.save)
    made = _namespace(options.file)
    study, feed = _study(made, options), _feed(made, options.feed)
    study.prepare(feed=feed, sgd=options.sgd, adam=options.adam, init=options.init, until=options.until)
    if options.watch:
        study.runner.set_watch(options.watch)
    for expression in options.breaks:
        study.break_at(expression)
    print(study.summary())
    print(f"device: {study.session.device_information()}")
    interrupted = False
    try:
        study.run(options.steps)
    except KeyboardInterrupt:  # what was made so far is told and saved
        interrupted = True
    _tell(study)
    if options.view:
        print(text.twin(study.doc, options.view), end="")
    if options.save:
        print(f"saved: {study.save(options.save, runnable=options.runnable, batches=options.batches)}")
    spoiled = study.runner.culprit is not None
    study.close()
    return INTERRUPTED if interrupted else FAILED if spoiled else OK


def check(options: argparse.Namespace) -> int:
    """Compare everything with the reference; 1 when something differs."""
    made = _namespace(options.file)
    study, feed = _study(made, options), _feed(made, options.feed)
    found = study.check(feed, ("cpu", "wgpu") if options.device == "auto" else (options.device,))
    study.close()
    print(found)
    return OK if found else FAILED


def why(options: argparse.Namespace) -> int:
    """Ask the optimizer's report."""
    study = _study(_namespace(options.file), options)
    a, b = (_entity(text) for text in (options.a, options.b))
    report = study.report
    print(report.why_not(a, b) if b is not None or a in RULES else report.why(a))
    return OK


def cell(options: argparse.Namespace) -> int:
    """Print a graph as a cell."""
    study = _study(_namespace(options.file), options)
    print(to_cell(study.optimized if options.optimized else study.graph, study.name, study.train), end="")
    return OK


def _entity(text: str | None) -> Any:
    """`%5` as the id 5; names as they are."""
    number = natural(text[1:]) if text and text[:1] == "%" else None
    return text if number is None else number


@reading
def _assert(document: Document, text: str) -> int:
    """0 when the test holds, else 1, with the figures that it speaks of."""
    test = parse_condition(text, "assert", _ASSERTED)
    holds = test.holds(document)
    figures = ", ".join(f"{name} {whole(figure(document))}" for name, figure in _ASSERTED.items() if name in text)
    print(f"{'holds' if holds else 'FAILS'}: {test} ({figures})")
    return OK if holds else FAILED


def _compiled(document: Document) -> str:
    """The stage that was compiled: the final one, else the optimized one, else as written."""
    keys = [stage["key"] for stage in document.data["stages"]]
    return next(key for key in ("final", "optimized", keys[0]) if key in keys)


def _feed(made: Mapping[str, Any], name: str | None) -> Any:
    """The feed that an option names: `random[:SEED]`, or a variable of the file."""
    if name is None or name.partition(":")[0] == "random":
        return name
    if name not in made:
        raise GraphError("run", "feed", repr(name), "random[:SEED], or a variable of the file")
    return made[name]


def bench(options: argparse.Namespace) -> int:
    """Print the rooflines that are known here; or measure a device, or search schedules on it, if asked to."""
    if options.calibrate:
        print(f"measured: {calibrate(device(options.device))}")
        print(f"kept in {calibration_file()}")
        return OK
    if options.tune is not None:
        check_seconds("bench", options.tune)
        chosen = device(options.device)
        found = tune(chosen, usual_products(chosen), options.tune, lambda at: print(f"{at.kernel} …", file=sys.stderr))
        print(landscape_text(chosen.info, found.values()))
        return OK
    print("\n".join(map(str, (Machine(), *kept_machines()))))
    return OK


def tuning(options: argparse.Namespace) -> int:
    """Print the schedules that were tried on a device."""
    chosen = device(options.device)
    print(landscape_text(chosen.info, kept_kernels(chosen.info).values()))
    return OK


def _tell(study: Study) -> None:
    session, losses = study.session, study.runner.losses
    traffic = session.traffic
    print(
        f"{plural(session.step_count, 'step')}, {plural(traffic.dispatches, 'dispatch')}, "
        f"{plural(traffic.submissions, 'submission')}"
    )
    print(f"memory: {session.memory_summary().text}")
    if session.mode == "training":
        print(f"update: {session.optimizer}")
    if losses:
        print(f"loss: {sig(losses[0][1])} → {sig(losses[-1][1])}")
    if study.runner.state == "paused":
        print(f"paused: {study.runner.reason}")
    if study.runner.culprit is not None:
        print(study.runner.culprit)


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
        rows = [(op.name, op.family, _first_line(op)) for op in public_ops()]
        print("\n".join(_clipped(line) for line in grid(("op", "family", "what it does"), rows, indent="")))
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


def _clipped(line: str, width: int = 120) -> str:
    """Cut a text to one line of a terminal; `ops NAME` prints all of it."""
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


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
    return {"ends": "none: it is constant almost everywhere, or a leaf", "stops": "none: it stops the gradient"}.get(
        op.no_grad or "", "none"
    )


if __name__ == "__main__":
    raise SystemExit(main())
