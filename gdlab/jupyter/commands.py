"""What a page may ask of a study: each command of `messages.CommandName` as a function, called on the owner thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gdlab.errors import ArgumentError, SessionError
from gdlab.study import Study

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
    _ = study.session


def _step(study: Study, args: dict[str, Any]) -> None:
    study.check_ready()
    if "dispatches" in args:
        study.runner.step_dispatch(_steps(args, "dispatches"))
    else:
        study.runner.step(_steps(args))


def _run(study: Study, args: dict[str, Any]) -> None:
    study.check_ready()
    if "to" in args:
        study.runner.run_to(study.dispatch_at(_text("run", args, "to")))
    else:
        study.runner.start(_steps(args))


def _resume(study: Study, args: dict[str, Any]) -> None:
    study.runner.resume()


def _watch(study: Study, args: dict[str, Any]) -> None:
    """Either what is looked at for NaN, or one more tensor to watch."""
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
    """A tensor under the microscope; with the difference to the reference where what the step began with is known."""
    name = _text("value", args, "name")
    try:
        return study.look(name, against="reference").to_json()
    except SessionError:
        return study.look(name).to_json()


def _why(study: Study, args: dict[str, Any]) -> dict[str, Any]:
    """What kept two neighbours of an optimized graph from becoming one, or a rule from being used: words, and the
    Python of each condition that refused, as [file, line, text]."""
    a, b = args.get("a"), args.get("b")
    if not isinstance(a, (int, str)) or not isinstance(b, (int, type(None))):
        raise ArgumentError("why", "nodes", f"{a!r} and {b!r}", "two node ids, or a rule")
    report = study.final_report if args.get("phase") == "full" else study.report
    answer = report.why_not(a, b)
    return {"text": answer.text, "guards": [list(missed.guard) for missed in answer.missed if missed.guard]}


def _optimize(study: Study, args: dict[str, Any]) -> dict[str, Any]:
    """A variant of the study without some rules, beside it in its document; the answer compares all variants."""
    rules = args.get("disable")
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise ArgumentError("optimize", "disable", repr(rules), "a list of rules")
    return {"name": study.variant(disable=rules).name, "text": study.compare()}


def _check(study: Study, args: dict[str, Any]) -> dict[str, Any]:
    """Whether the optimizer or a device broke the model: the table, in words, and the entity to look at."""
    found = study.check()
    return {"ok": found.ok, "text": str(found), "about": found.about}


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
}
