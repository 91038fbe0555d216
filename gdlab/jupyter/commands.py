"""Answer the commands of a page: each command of `messages.CommandName` as a function, called on the owner thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, get_args

from gdlab.base.errors import ArgumentError, SessionError, unknown_name
from gdlab.distributed.sweep import sweep_of
from gdlab.jupyter.messages import Looked
from gdlab.op import Safety
from gdlab.op.text import to_cell
from gdlab.plan import CompileOptions
from gdlab.study.study import Study
from gdlab.view.answer.answer_html import answer_html
from gdlab.view.answer.making import check_answer, gradient_answer, profile_answer

_MAX_STEPS = 10**9


def _steps(args: dict[str, Any], what: str = "steps") -> int:
    steps = args.get(what, 1)
    if not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= _MAX_STEPS:
        raise ArgumentError("run", what, repr(steps), f"an int in 1 … {_MAX_STEPS}")
    return steps


def _text(where: str, args: dict[str, Any], name: str) -> str:
    text = args.get(name)
    if not isinstance(text, str):
        raise ArgumentError(where, name, repr(text), "a text")
    return text


def _open(study: Study, args: dict[str, Any]) -> None:
    study.reopen()


def _step(study: Study, args: dict[str, Any]) -> None:
    study.check_ready()
    if "dispatches" in args:
        study.runner.step_dispatch(_steps(args, "dispatches"))
    else:
        study.runner.step(_steps(args))


def _run(study: Study, args: dict[str, Any]) -> None:
    study.check_ready()
    if "to" in args:
        study.runner.run_to(study.debug.targets.dispatch(_text("run", args, "to")))
    else:
        study.runner.start(_steps(args))


def _resume(study: Study, args: dict[str, Any]) -> None:
    study.runner.resume()


def _watch(study: Study, args: dict[str, Any]) -> None:
    """Set the values that are watched for NaN, or watch one more tensor."""
    if "name" in args:
        study.watch(_text("watch", args, "name"))
    else:
        study.runner.set_watch(args.get("mode"))  # type: ignore[arg-type]  # it is checked


def _break(study: Study, args: dict[str, Any]) -> None:
    study.break_at(_text("break", args, "text"))


def _clear(study: Study, args: dict[str, Any]) -> None:
    id = args.get("id")
    if not isinstance(id, int):
        raise ArgumentError("clear", "id", repr(id), "an int")
    study.clear(id)


def _back(study: Study, args: dict[str, Any]) -> dict[str, Any]:
    return {"text": study.back(_steps(args, "dispatches"))}


def _value(study: Study, args: dict[str, Any]) -> dict[str, Any]:
    """Return a tensor under the microscope: the tensor `name` (or an entity of the document), its `slice`, the window
    from `row` and `col` on, compared `against` the reference, cpu or nothing; where that is impossible, `why` has the
    reason."""
    name, against = _text("value", args, "name"), args.get("against", "reference")
    row, col = (_index(args.get(what, 0), what) for what in ("row", "col"))
    picked = args.get("slice", [])
    if not isinstance(picked, list):
        raise ArgumentError("value", "slice", repr(picked), "a list of ints ≥ 0")
    plane = [_index(i, "slice") for i in picked]
    try:
        found = study.look(name, row=row, col=col, slice=plane, against=against or None)
    except SessionError as error:  # it may have a value, and nothing to compare it with
        found = replace(study.look(name, row=row, col=col, slice=plane), why=str(error).removeprefix("look: "))
    return asdict(Looked(**found.to_json()))


def _index(given: Any, what: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise ArgumentError("value", what, repr(given), "an int ≥ 0")
    return given


def _why(study: Study, args: dict[str, Any]) -> dict[str, Any]:
    """Say why two neighbours of an optimized graph were not fused, or a rule was not used: words, and the Python of
    each condition that refused, as [file, line, text]."""
    a, b = args.get("a"), args.get("b")
    if not isinstance(a, (int, str)) or not isinstance(b, (int, type(None))):
        raise ArgumentError("why", "nodes", f"{a!r} and {b!r}", "two node ids, or a rule")
    report = study.final_report if args.get("phase") == "full" else study.report
    answer = report.why_not(a, b)
    return {"text": answer.text, "guards": [list(missed.guard) for missed in answer.missed if missed.guard]}


def _optimize(study: Study, args: dict[str, Any]) -> dict[str, Any]:
    """Make a variant of the study with other rules or compile options, shown beside it in its document; return a
    comparison of all variants."""
    rules: dict[str, Any] = {name: args.get(name, []) for name in ("disable", "enable")}
    for name, given in rules.items():
        if not isinstance(given, list) or not all(isinstance(rule, str) for rule in given):
            raise ArgumentError("optimize", name, repr(given), "a list of rules")
    allow = args.get("allow", "rounding")
    if allow not in get_args(Safety):
        raise ArgumentError("optimize", "allow", repr(allow), f"one of {', '.join(get_args(Safety))}")
    switches = {name: args[key] for key, name in _SWITCHES.items() if key in args}
    if not all(isinstance(on, bool) for on in switches.values()):
        raise ArgumentError("optimize", "options", repr(switches), "fuse, alias and serial as true or false")
    made = study.variant(**rules, allow=allow, compile=CompileOptions(**switches))
    return {"name": made.name, "text": study.compare()}


_SWITCHES = {"fuse": "fuse_dispatches", "alias": "alias", "serial": "serial"}


def _measure(study: Study, args: dict[str, Any]) -> dict[str, Any]:
    """Time a step of the study and of its variants, in sessions of their own."""
    study.measure(_steps(args))
    return {"text": study.compare()}


def _trace(study: Study, args: dict[str, Any]) -> dict[str, Any]:
    """Time every dispatch over a few steps that do not count; the document has the figures from then on."""
    profile = study.trace(_steps(args))
    return {"text": str(profile), "html": answer_html(profile_answer(profile, study, str(profile)))}


def _check(study: Study, args: dict[str, Any]) -> dict[str, Any]:
    """Check whether the gradient rule of one node is its slope; without a node, whether the optimizer or a device broke
    the model: the table, in words, and the entity to look at."""
    if "node" in args:
        slope = study.check_gradient(args["node"], optimized=args.get("stage") == "optimized")
        return slope.to_json() | {"html": answer_html(gradient_answer(slope, study))}
    found = study.check()
    html = answer_html(check_answer(found, study))
    return {"ok": found.ok, "text": str(found), "about": found.about, "html": html}


def _cell(study: Study, args: dict[str, Any]) -> dict[str, Any]:
    """Return a stage of the study as a `%%graph` cell that builds it; refuse a stage with gradients, which no cell
    could build."""
    variants = {stage.key: stage for stage in study.variants.stages()}
    key = _text("cell", args, "stage")
    if key not in variants and key not in study.pipeline.keys:
        raise unknown_name("cell", "stage", key, [*study.pipeline.keys, *variants])
    stage = variants[key] if key in variants else study.stage(key)
    return {"text": to_cell(stage.graph, study.name, study.train)}


def _sweep(study: Study, args: dict[str, Any]) -> dict[str, Any] | None:
    """Carry out a command about the study's sweep: pause, resume, stop, `stop_point` or `open` of one point, whose
    variant the Diff tab then shows."""
    sweep, wish = sweep_of(study), args.get("do")
    if sweep is None:
        raise SessionError("sweep", "sweep", "none", f"%graph_sweep {study.name} STEPS --adam 1e-3,3e-3 first")
    whole = {"pause": sweep.pause, "resume": sweep.resume, "stop": sweep.stop}
    if isinstance(wish, str) and wish in whole:
        whole[wish]()
    elif wish == "stop_point":
        sweep.stop_point(args.get("point"))  # type: ignore[arg-type]  # it is checked
    elif wish == "open":
        return {"name": sweep.at(args.get("point")).variant().name}
    else:
        raise unknown_name("sweep", "do", str(wish), [*whole, "stop_point", "open"])
    return None


COMMANDS: dict[str, Callable[[Study, dict[str, Any]], dict[str, Any] | None]] = {
    "open": _open,
    "step": _step,
    "run": _run,
    "pause": lambda study, args: study.runner.pause(),
    "resume": _resume,
    "stop": lambda study, args: study.runner.stop(),
    "reset": lambda study, args: study.reset(),
    "speed": lambda study, args: study.runner.set_speed(args.get("steps_per_second")),
    "watch": _watch,
    "break": _break,
    "clear": _clear,
    "back": _back,
    "value": _value,
    "why": _why,
    "optimize": _optimize,
    "check": _check,
    "measure": _measure,
    "trace": _trace,
    "cell": _cell,
    "sweep": _sweep,
}
