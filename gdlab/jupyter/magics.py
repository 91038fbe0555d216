"""The magics: `%%graph`, `%graph*` and `%%eager`, thin wrappers of `Study`. `%load_ext gdlab` registers them."""

from __future__ import annotations

from argparse import Action
from typing import Any

from IPython.core.magic_arguments import MagicArgumentParser

from gdlab.compiled import CompiledGraph
from gdlab.distributed.scaling import Scaling
from gdlab.distributed.sweep import Sweep
from gdlab.eager import EagerSession
from gdlab.graph import Graph
from gdlab.jupyter import warming
from gdlab.jupyter.clustering import ClusterMagics
from gdlab.jupyter.common import MagicFamily
from gdlab.jupyter.compiling import CompiledMagics
from gdlab.jupyter.complete import Options, make_matcher
from gdlab.jupyter.debugging import DebugMagics
from gdlab.jupyter.display import rich
from gdlab.jupyter.eager import EagerMagics
from gdlab.jupyter.record_magics import RecordMagics, report_bundle
from gdlab.jupyter.running import RunMagics
from gdlab.jupyter.showing import ShowMagics
from gdlab.jupyter.sweeping import SweepMagics, scaling_bundle
from gdlab.plan.records import ExecutionPlan
from gdlab.record.list_report import Report
from gdlab.session import Session
from gdlab.study.study import Study
from gdlab.view.document.document import Document

FAMILIES = (
    ShowMagics, RunMagics, DebugMagics, EagerMagics, RecordMagics, CompiledMagics, ClusterMagics, SweepMagics,
)  # fmt: skip
_RICH = (Study, Graph, ExecutionPlan, Session, CompiledGraph, EagerSession, Document, Sweep)


def option_values() -> Options:
    """Return the options of every magic with their values, for completion."""
    found = {}
    for family in FAMILIES:
        for name in dir(family):
            parser = getattr(getattr(family, name), "parser", None)
            if isinstance(parser, MagicArgumentParser):
                found[name] = {o: _values(a) for a in parser._actions for o in a.option_strings}
    return found


def _values(option: Action) -> tuple[str, ...] | None:
    return None if option.nargs == 0 else tuple(map(str, option.choices or ()))


def load(shell: Any) -> None:
    """Register magics, completion and rich display; a second call changes nothing."""
    unload(shell)
    for kind in _RICH:
        shell.display_formatter.mimebundle_formatter.for_type(kind, lambda thing, **_: rich(thing))
    shell.display_formatter.mimebundle_formatter.for_type(Scaling, lambda made, **_: scaling_bundle(made))
    shell.display_formatter.mimebundle_formatter.for_type(Report, lambda report, **_: report_bundle(report))
    for family in FAMILIES:
        shell.register_magics(family(shell))
    graph = shell.magics_manager.magics["cell"]["graph"]
    graph.__func__.__doc__ = (graph.__doc__ or "").replace("  %graph [", "  %%graph [", 1)
    if shell.Completer is not None:
        shell.Completer.custom_matchers.append(make_matcher(shell, option_values()))
    warming.begin()


def unload(shell: Any) -> None:
    """Remove the magics, completion and display that `load` registered."""
    warming.end()
    if shell.Completer is not None:
        matchers = shell.Completer.custom_matchers
        matchers[:] = [m for m in matchers if getattr(m, "matcher_identifier", "") != "gdlab"]
    for kind in (*_RICH, Report, Scaling):
        shell.display_formatter.mimebundle_formatter.type_printers.pop(kind, None)
    for line_or_cell in ("line", "cell"):
        table = shell.magics_manager.magics[line_or_cell]
        for name in [n for n, f in table.items() if isinstance(getattr(f, "__self__", None), MagicFamily)]:
            del table[name]
