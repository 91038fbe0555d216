"""The magic that runs a study many times: `%graph_sweep NAME STEPS --adam 1e-3,3e-3 --init 0:4 --on cluster`."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import Any

import numpy as np
from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from gdlab.base.words import natural, sig
from gdlab.distributed.points import COMPILE_KEYS, RULE_KEYS
from gdlab.distributed.scaling import Scaling
from gdlab.distributed.sweep import Sweep, made_sweep, sweep_of
from gdlab.jupyter.common import MagicFamily
from gdlab.jupyter.display import show_study
from gdlab.jupyter.options import as_option, count, identifier, name_option, output_options, parse_argstring, user_path
from gdlab.jupyter.widget import refresh, wake
from gdlab.view.picture.scaling_picture import scaling_picture
from gdlab.view.text.twin import twin

_MOST = 10_000
_OF_RULES = (*RULE_KEYS, *COMPILE_KEYS)
_SWITCHES = {"on": True, "off": False}


def rates(text: str) -> list[float]:
    """Parse learning rates: `1e-3,3e-3`, or `1e-4:1e-1:20` (so many from the first to the last, equal factors apart).
    """
    try:
        if ":" in text:
            low, high, many = text.split(":")
            number = natural(many) or 0
            found = [float(f"{each:.3g}") for each in np.geomspace(float(low), float(high), number)]
        else:
            found = [float(each) for each in text.split(",")]
    except ValueError:
        found = []
    if not 0 < len(found) <= _MOST or not all(0 < each < float("inf") for each in found):
        raise ArgumentTypeError(f"given {text}, wanted rates > 0: 1e-3,3e-3, or 1e-4:1e-1:20 for 20 of them")
    return found


def seeds(text: str) -> list[int]:
    """Parse seeds: `0,1,2`, or `0:4` (0, 1, 2 and 3)."""
    low, colon, high = text.partition(":")
    ends = [natural(low), natural(high)] if colon else [natural(each) for each in text.split(",")]
    found = [each for each in ends if each is not None]
    if len(found) < len(ends) or (colon and not 0 < found[1] - found[0] <= _MOST):
        raise ArgumentTypeError(f"given {text}, wanted seeds: 0,1,2, or 0:4 for 0, 1, 2 and 3")
    return list(range(*found)) if colon else found


def setting(text: str) -> tuple[str, list[Any]]:
    """Parse a setting and its values: `allow=exact,rounding` or `alias=on,off`."""
    key, equals, values = text.partition("=")
    if not equals or not values:
        raise ArgumentTypeError(f"given {text}, wanted KEY=VALUE,VALUE with KEY one of {', '.join(_OF_RULES)}")
    return key, [_SWITCHES.get(each, each) for each in values.split(",")]


@magics_class
class SweepMagics(MagicFamily):
    """The magic of sweeps."""

    @magic_arguments()
    @name_option
    @argument("steps", nargs="?", type=count, help="steps of every point; without: show the newest sweep again")
    @argument("--feed", metavar="F", help="inputs of each step, as in %%graph_run")
    @argument("--adam", metavar="LRS", type=rates, help="learning rates of Adam: 1e-3,3e-3, or 1e-4:1e-1:20")
    @argument("--sgd", metavar="LRS", type=rates, help="learning rates of SGD")
    @argument("--init", metavar="SEEDS", type=seeds, help="seeds of the parameters: 0,1,2, or 0:4")
    @argument("--until", metavar="EXPR", help='end a point early when it holds, such as "loss < 0.1"')
    @argument("--set", metavar="KEY=VS", type=setting, action="append", help="allow=exact,rounding alias=on,off …")
    @argument("--on", metavar="WHERE", help="a variable that holds a cluster, or local: engines of its own")
    @argument(
        "--store", metavar="FOLDER", help="keep every finished point: the same line then computes what is missing"
    )
    @argument("--retries", metavar="N", type=count, default=2, help="of a point whose engine died (2)")
    @as_option
    @output_options
    @no_var_expand
    @line_magic
    def graph_sweep(self, line: str) -> None:
        """Run a study once for each point of the product of the lists, with a live view: all curves, a row per point,
        Pause, Stop, and Stop of one point. Ctrl-C stops the points that run; those that are done stay."""
        args = parse_argstring(self.graph_sweep, line, self.names)
        study = self.named(args.name)
        if args.bound:
            self.check_name("%graph_sweep", args.bound)
        sweep = self._sweep(args)
        if args.bound:
            self.bind(args.bound, sweep)  # at once: it is there after an interrupt
        again: Callable[[], None] | None = None
        if not args.quiet:
            again = self.call(lambda: show_study(study, ["sweep"], static=args.static, height=args.height))
        if args.steps:
            wake()
            try:
                self.call(sweep.run)
            finally:
                refresh(study)
                wake()
                if again is not None:
                    self.call(again)
                print(_outcome(sweep))
        elif args.quiet:
            print(twin(study.doc, "sweep"), end="")
        if args.save:
            self.call(lambda: study.save(user_path(args.save)))

    def _sweep(self, args: Namespace) -> Sweep:
        """Return the sweep that a line asks for, before its first point; without steps the newest sweep of the study.
        """
        study = self.named(args.name)
        if not args.steps:
            found = sweep_of(study)
            if found is None:
                raise UsageError(f"graph_sweep: given no steps, wanted %graph_sweep {args.name} 1000 --adam 1e-3,3e-3")
            return found
        grid: dict[str, Any] = {key: getattr(args, key) for key in ("adam", "sgd", "init") if getattr(args, key)}
        grid |= {"until": [args.until]} if args.until else {}
        grid |= dict(args.set or ())
        feed, on = self.feed(args.feed), self._cluster(args.on)
        options = {"steps": args.steps, "feed": feed, "on": on, "retries": args.retries, "store": args.store}
        made: Sweep = self.call(lambda: made_sweep(study, grid, **options))
        return made

    def _cluster(self, name: str | None) -> Any:
        if name is None or name in ("local", "mpi"):
            return name
        if identifier(name) not in self.names:
            raise UsageError(f"--on: given {name}, wanted a variable that holds a cluster, or local")
        return self.names[identifier(name)]


def scaling_bundle(scaling: Scaling) -> dict[str, str]:
    """Return the output of a prediction: the picture, and all of it as text."""
    return {"image/svg+xml": scaling_picture(scaling), "text/plain": str(scaling)}


def _outcome(sweep: Sweep) -> str:
    """Say in one line how a sweep ended."""
    line = f"{sweep.study.name}: {sweep.fact()}"
    losses = [point.loss for point in sweep if point.state == "done" and point.loss is not None]
    finite = [loss for loss in losses if math.isfinite(loss)]
    return f"{line}; best: {sweep.best().label}, loss {sig(min(finite))}" if finite else line
