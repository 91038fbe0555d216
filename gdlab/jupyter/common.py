"""The common parts of all magics: the notebook's names, errors in one red line, and the display of a study."""

from __future__ import annotations

import keyword
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import wraps
from types import MethodType
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, magics_class

from gdlab.base.errors import GdlabError, OptimizeError
from gdlab.base.statistics import array_words
from gdlab.base.words import by_likeness, listed, sig
from gdlab.graph import Graph
from gdlab.jupyter.cell import render_error
from gdlab.jupyter.display import show_document, show_refused, show_study
from gdlab.jupyter.opening import opening
from gdlab.jupyter.options import checked_rules, identifier, user_path
from gdlab.jupyter.widget import close_panel, wake
from gdlab.session.run.stop_conditions import parse_test
from gdlab.study.study import Study
from gdlab.view.document.document import Document
from gdlab.view.saved_views import suffix_of

_MOST_NAMES = 20  # of studies that an error lists


@magics_class
class MagicFamily(Magics):
    """The base class of the magics' families; it has no magic itself."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell=shell)
        self.names: dict[str, Any] = shell.user_ns
        self._file = ""
        for kind, magics in self.magics.items():
            self.magics[kind] = {name: MethodType(without_frames(f), self) for name, f in magics.items()}

    @property
    def cell_number(self) -> int:
        """The number of the cell that runs, as its prompt has it: from the kept texts of cells, which end with its own.
        `execution_count` is no help: IPython 9.18 raises it before a cell runs, 8 raised it behind."""
        shell: Any = self.shell
        return max(1, len(shell.history_manager.input_hist_parsed) - 1)

    # names
    def named(self, name: str) -> Study:
        """Return the study of this name; raise `UsageError` (one red line) for anything else."""
        name = identifier(name)
        if name not in self.names:
            raise UsageError(self.no_such(name))
        thing = self.names[name]
        if isinstance(thing, Study):
            return thing
        shown = f"; `%graph {name}` shows this one" if isinstance(thing, Graph) else ""
        wanted = f"a study: the NAME of a %%graph cell{shown}"
        raise UsageError(f"graph {name}: given {type(thing).__name__}, wanted {wanted}")

    def no_such(self, name: str) -> str:
        """Return the error text for an unknown variable, with the known studies."""
        studies = [n for n, v in self.names.items() if isinstance(v, Study) and not n.startswith("_")]
        near = by_likeness(name, studies, 0)
        wanted = f"one of {', '.join(near[:_MOST_NAMES])}" if near else "a %%graph cell first: there are no graphs yet"
        if len(near) > _MOST_NAMES:
            wanted += f" and {len(near) - _MOST_NAMES} more"
        return f"graph {name}: given no such variable, wanted {wanted}"

    def check_name(self, magic: str, name: str) -> None:
        """Raise `UsageError` (one red line) unless the name is a Python name."""
        if not name.isidentifier() or keyword.iskeyword(name):
            raise UsageError(f"{magic}: name: given {name}, wanted a Python name")

    def bind(self, name: str, thing: Any) -> None:
        """Bind a variable of the notebook; close a study that it held before."""
        name = identifier(name)
        old = self.names.get(name)
        self.names[name] = thing
        if isinstance(old, Study) and old is not thing:
            old.close(f"the newer {name}")
            close_panel(old, thing.key if isinstance(thing, Study) else "")

    def feed(self, text: str | None) -> Any:
        """Return the feed that the option names: a variable of the notebook, or `random[:SEED]`."""
        if text is None or text.partition(":")[0] == "random":
            return text
        if identifier(text) not in self.names:
            raise UsageError(f"--feed: given {text}, wanted a variable of the notebook or random[:SEED]")
        return self.names[identifier(text)]

    def rules(self, args: Namespace) -> dict[str, Any]:
        """Return the options of `optimize` that a line gives."""
        if args.no and args.only:
            raise UsageError("--only: given --no as well, wanted one of them")
        found: dict[str, Any] = {
            "disable": checked_rules("--no", args.no),
            "only": checked_rules("--only", args.only),
            "enable": checked_rules("--enable", args.enable),
        }
        given = {"allow": args.allow, "cost": args.cost}
        return found | {name: value for name, value in given.items() if value is not None}

    # showing
    def prepare(self, study: Study, args: Namespace, steps: int | None) -> None:
        """Make the settings that the line asks for before the session's first step; if one is refused, change nothing.
        """
        if args.save:
            self.call(lambda: suffix_of(args.save))
        if args.sgd is not None and args.adam is not None:
            raise UsageError("--adam: given --sgd as well, wanted one update rule")
        feed = self.feed(args.feed)
        settings = {"sgd": args.sgd, "adam": args.adam, "init": args.init, "until": args.until}
        if steps is not None:
            self.call(lambda: study.runner.check_start(steps))
        if args.until is not None:
            self.call(lambda: parse_test(args.until, study.session))
        if steps:
            self.call(lambda: study.check_ready(feed=feed is not None, init=True))
        if steps and args.init is None and (unset := study.session.unset_parameters):
            given = f"no value for {listed(unset)}"
            raise UsageError(f"graph {study.name}: run: given {given}, wanted --init SEED, or set_parameter before")
        self.call(lambda: study.prepare(feed=feed, **settings))

    def display(
        self,
        study: Study,
        show: list[str],
        args: Namespace,
        steps: int | None = None,
        view: Mapping[str, Any] | None = None,
        seconds: float | None = None,
    ) -> None:
        """Show the study, make `steps` steps if given (or as many as fit into `seconds`), and save the result."""
        again: Callable[[], None] | None = None
        runnable = getattr(args, "runnable", False)
        if not args.quiet:
            state = {**self.look(study, args), **(view or {})}
            options = {"static": args.static, "height": args.height, "view": state, "runnable": runnable}
            again = self.call(lambda: show_study(study, show, **options))
        if steps is not None:
            wake()
            try:
                self.call(lambda: study.runner.run(steps if seconds is None else None, seconds=seconds))
            except KeyboardInterrupt:
                print(outcome(study))
                raise
            finally:
                wake()
                if again is not None and steps:
                    self.call(again)
            print(outcome(study))
        if args.save:
            self.call(lambda: study.save(user_path(args.save), runnable=runnable))

    def display_document(
        self, document: Document, show: list[str], args: Namespace, view: Mapping[str, Any] | None = None
    ) -> None:
        """Show a document that has no live study, and save it if the line says so."""
        if not args.quiet:
            state = {**self.look(document, args), **(view or {})}
            self.call(lambda: show_document(document, show, height=args.height, view=state))
        if args.save:
            self.call(lambda: document.save(user_path(args.save)))

    def look(self, thing: Study | Document, args: Namespace) -> dict[str, Any]:
        """Return the view state that --overlay, --engine, --depth and --around ask for. A study makes its document for
        it."""
        given = {name: getattr(args, name, None) for name in ("overlay", "engine", "depth", "around")}
        if not any(value is not None for value in given.values()):
            return {}
        state: dict[str, Any] = self.call(lambda: opening(thing.doc if isinstance(thing, Study) else thing, **given))
        return state

    # errors
    def call(self, work: Callable[[], Any]) -> Any:
        """Run `work`; turn an error of gdlab into one red line, and show the user's own frames for an error of a feed.
        """
        try:
            return work()
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, UsageError) or hasattr(error, "_render_traceback_"):
                raise
            if isinstance(error, GdlabError):
                raise UsageError(str(error)) from error
            lines = self._own_frames(error)
            error._render_traceback_ = lambda: lines  # type: ignore[union-attr]
            raise

    def _own_frames(self, error: BaseException) -> list[str]:
        """Return the traceback from the place where gdlab called the user's code; for an interrupt, or without such
        code, one line."""
        own = trace = error.__traceback__
        while trace is not None:
            inside = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "gdlab"
            own, trace = (trace.tb_next if inside else own), trace.tb_next
        if own is None or isinstance(error, KeyboardInterrupt):
            return [f"{type(error).__name__}: {error}".rstrip(": ")]
        shell: Any = self.shell
        shown: list[str] = shell.InteractiveTB.structured_traceback(type(error), error, own)
        return shown

    def guard(self, work: Callable[[], Study]) -> Study:
        """Run a cell's program; any error shows one line and the caret, and leaves NAME as it was."""
        try:
            return work()
        except OptimizeError as error:
            raise UsageError(str(error)) from error
        except SyntaxError as error:  # IPython shows these in its own way, with frames
            raise self._shown_as(CellSyntaxError(error.msg), render_error(error, self._file)) from None
        except (Exception, KeyboardInterrupt) as error:
            show_refused(error)
            raise self._shown_as(error, render_error(error, self._file)) from None

    def _shown_as(self, error: BaseException, lines: list[str]) -> BaseException:
        """Let IPython show these lines instead of a traceback; `%tb` shows the frames from the cell's on."""
        shown: list[bool] = []

        def render() -> list[str]:
            if not shown:
                shown.append(True)
                return lines
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename != self._file:
                trace = trace.tb_next
            shell: Any = self.shell
            full: list[str] = shell.InteractiveTB.structured_traceback(type(error), error, trace)
            return full

        error._render_traceback_ = render  # type: ignore[attr-defined]
        return error


def without_frames(magic: MethodType) -> Callable[..., Any]:
    """Wrap a magic so that its errors show no frames of gdlab."""

    @wraps(magic.__func__)
    def run(words: MagicFamily, *given: Any) -> Any:
        return words.call(lambda: magic(*given))

    return run


class CellSyntaxError(Exception):
    """A syntax error in a `%%graph` cell, shown as its line and a caret."""


def outcome(study: Study) -> str:
    """Say in one line how far a run got."""
    runner, session = study.runner, study.session
    loss = "" if runner.last_loss is None else f", loss {sig(runner.last_loss)}"
    more = f" ({runner.reason})" if runner.reason else ""
    where = f"{study.name}: step {session.step_count} of {runner.wanted}"
    line = f"{where}{loss}; {runner.state}{more}; {session.optimizer}"
    return line if runner.culprit is None else f"{line}\n{runner.culprit}"


def here(study: Study) -> str:
    """Show the result of the current dispatch, and the watched tensors."""
    runner, lines = study.runner, list[str]()
    if runner.dispatch >= 0:
        dispatch, data = runner.output()
        lines.append(f"dispatch {runner.dispatch}, {dispatch.label}, wrote {dispatch.type}: {array_words(data)}")
    return "\n".join([*lines, *([study.watching()] if runner.lookout.watches else [])])
