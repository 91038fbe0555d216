"""The options of the magics: their values, how these are parsed, and their help."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from gdlab.base.errors import ArgumentError
from gdlab.base.words import nearest
from gdlab.devices.choose import DEVICES, checked_kind
from gdlab.op import Safety
from gdlab.op.cost import COST_NAMES
from gdlab.rewrite import RULES
from gdlab.study.model_files import parse_dims
from gdlab.view.document.layouts import ENGINES
from gdlab.view.document.overlays import OVERLAYS

SHOW = ("graph", "opt", "diff", "rewrites", "egraph", "grad", "plan", "arena", "kernels", "session", "sweep", "text")
_BRACES = re.compile(r"\{(\w+)\}")


def parse_argstring(magic: Any, line: str, names: Mapping[str, Any] | None = None) -> Namespace:
    """Return the arguments of a magic's line; raise `UsageError` (one red line) for any fault. Option values lose their
    quotes, and `{n}` in them is replaced by the notebook's variable `n`."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", ""  # a backslash is a letter of a path
    try:
        words = list(lexer)
    except ValueError as error:
        raise UsageError(f"given {line}, wanted closed quotes") from error
    args: Namespace = magic.parser.parse_args([_filled(word, names or {}) for word in words])
    return args


def _filled(text: str, names: Mapping[str, Any]) -> str:
    return _BRACES.sub(lambda found: str(names[found[1]]) if found[1] in names else found[0], text)


def identifier(name: str) -> str:
    """Return a name in the form in which Python keeps identifiers (NFKC)."""
    return unicodedata.normalize("NFKC", name)


def user_path(text: str) -> Path:
    """Return the path that a person typed; `~` is their home, `~` with an unknown name stays as it is."""
    return Path(os.path.expanduser(text))


def checked_rules(option: str, given: list[str] | None) -> tuple[str, ...]:
    """Return rule ids and labels; raise `UsageError`, with the nearest known name, for an unknown one."""
    for name in given or ():
        if name not in RULES:
            near = nearest(name, [text for r in RULES for text in (r.label, r.name)])
            hint = f"; nearest: {RULES[near].name} {RULES[near].label}" if near else ""
            raise UsageError(f"{option}: given {name}, wanted a rule id or label{hint}")
    return tuple(given or ())


# reading values -------------------------------------------------------------------------------------------------------
def _number(kind: Callable[[str], Any], low: float, high: float, what: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        with suppress(ValueError):
            value = kind(text)
            if low <= value <= high:
                return value
        raise ArgumentTypeError(f"given {text}, wanted {what}")

    return read


rate = _number(float, 1e-30, 1e30, "a rate > 0")
duration = _number(float, 1e-3, 1e9, "seconds > 0")
search_seconds = _number(float, 0, 1e9, "seconds in 0 … 10⁹")
count = _number(int, 0, 10**9, "an int in 0 … 10⁹")


def extents(text: str) -> dict[str, int]:
    """Parse the value of `--dims`."""
    try:
        return parse_dims(text)
    except ArgumentError as error:
        raise ArgumentTypeError(f"given {error.given}, wanted {error.wanted}") from None


def device_name(text: str) -> str:
    """Parse the value of `--device`."""
    try:
        return checked_kind(text)
    except ArgumentError as error:
        raise ArgumentTypeError(f"given {text}, wanted {', '.join(DEVICES)}, wgpu:NUMBER or wgpu:NAME") from error


def compared_device(text: str) -> str:
    """Parse the value of `--device` where devices are compared: it must name one, so not `auto`."""
    if text == DEVICES[0]:
        raise ArgumentTypeError(f"given {text}, wanted {', '.join(DEVICES[1:])}, wgpu:NUMBER or wgpu:NAME")
    return device_name(text)


_pixels = _number(int, 120, 4000, "pixels in 120 … 4000")
_depth = _number(int, 0, 100, "an int in 0 … 100")

Decorator = Callable[[Any], Any]


def _all(*adds: Decorator) -> Decorator:
    def add(function: Any) -> Any:
        for one in reversed(adds):  # the last applied is the first of the help
            function = one(function)
        return function

    return add


# families of options --------------------------------------------------------------------------------------------------
name_option = argument("name", help="a study: the NAME of a %%%%graph cell")
steps_option = argument("steps", nargs="?", type=count, default=1, help="how many steps (1)")
run_steps_option = argument("steps", nargs="?", type=count, help="how many steps (1)")
for_option = argument(
    "--for", dest="seconds", metavar="SECONDS", type=duration,
    help="in place of N: to the first step's end after so many seconds; GDLAB_STEPS=n in the environment: n steps",
)  # fmt: skip
as_option = argument(
    "--as", dest="bound", metavar="NEW", type=identifier, help="also bind the result to this notebook variable"
)

run_options = _all(
    argument(
        "--feed", metavar="F", help="inputs of each step: a DataLoader, a dict, a callable step -> dict, random[:SEED]"
    ),
    argument("--sgd", metavar="LR", type=rate, help="update rule SGD with this learning rate"),
    argument("--adam", metavar="LR", type=rate, help="update rule Adam with this learning rate"),
    argument("--init", metavar="SEED", type=count, help="initialize parameters that have no value"),
    argument("--until", metavar="EXPR", help='pause when it holds, such as "loss < 0.1 or absmax(h) > 1e3"'),
    argument("--runnable", action="store_true", help="the saved output can train without a kernel, in the page"),
)
rule_options = _all(
    argument("--no", metavar="RULE", action="append", help="leave a rule out (id or label), repeatable"),
    argument("--only", metavar="RULE", action="append", help="use only these rules, repeatable"),
    argument("--enable", metavar="RULE", action="append", help="use a rule that is off by default, repeatable"),
    argument("--allow", choices=get_args(Safety), help="the boldest rules that may be used (rounding)"),
    argument("--cost", choices=COST_NAMES, help="what is made least (roofline); device: as measured on it"),
)
look_options = _all(
    argument("--engine", metavar="E", choices=ENGINES, help=f"layout: {' '.join(ENGINES)}"),
    argument("--overlay", metavar="O", choices=OVERLAYS, help=f"colour nodes by {' '.join(OVERLAYS)}"),
    argument("--depth", metavar="N", type=_depth, help="groups open to this depth"),
    argument("--around", metavar="NODE[:R]", help="only nodes within R edges (2) of a node: its name or %%id"),
)
output_options = _all(
    argument("--height", metavar="PX", type=_pixels, help="height of the output in pixels (560)"),
    argument("--save", metavar="FILE", help="also write the document (suffix decides the format)"),
    argument("--static", action="store_true", help="no live widget"),
    argument("--quiet", action="store_true", help="bind, show nothing"),
)
