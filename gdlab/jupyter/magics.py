"""The magics: `%%graph` and `%graph*`, thin words over `Study`. `%load_ext gdlab` registers them."""

from __future__ import annotations

import keyword
import shlex
from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import MagicArgumentParser, argument, magic_arguments
from IPython.core.magic_arguments import parse_argstring as parse_line

from gdlab.errors import GdlabError, OptimizeError
from gdlab.graph import Graph
from gdlab.jupyter.cell import Program, render_error, run_cell
from gdlab.jupyter.complete import make_matcher
from gdlab.jupyter.display import rich, show_document, show_study
from gdlab.jupyter.widget import close_panel, wake
from gdlab.study import Study
from gdlab.view.doc import Document, load_doc
from gdlab.view.doctor import doctor_text
from gdlab.view.files import suffix_of

SHOW = ("opt", "rewrites", "grad", "plan", "arena", "kernels", "session", "text")
_QUOTES = ("'", '"')


def parse_argstring(magic: Any, line: str) -> Any:
    """The arguments of a magic's line; any fault of the line is one red line."""
    try:
        return parse_line(magic, line)
    except ValueError as error:  # of the splitting into words
        raise UsageError(f"given {line}, wanted closed quotes") from error


def _number(kind: Callable[[str], Any], low: float, high: float, what: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        with suppress(ValueError):
            value = kind(text)
            if low <= value <= high:
                return value
        raise ArgumentTypeError(f"given {text}, wanted {what}")

    return read


_rate = _number(float, 1e-30, 1e30, "a rate > 0")
_steps = _number(int, 0, 10**9, "an int in 0 … 10⁹")
_pixels = _number(int, 120, 4000, "pixels in 120 … 4000")


def _run_options(function: Any) -> Any:
    """--feed, --sgd, --adam and --init: what a run needs."""
    for add in (
        argument("--feed", metavar="F", help="the inputs of each step: a dict, a callable step -> dict, random[:SEED]"),
        argument("--sgd", metavar="LR", type=_rate, help="update rule SGD with this learning rate"),
        argument("--adam", metavar="LR", type=_rate, help="update rule Adam with this learning rate"),
        argument("--init", metavar="SEED", type=_steps, help="initialize parameters that have no value"),
    ):
        function = add(function)
    return function


def _view_options(function: Any) -> Any:
    """Options of everything that displays."""
    for add in (
        argument("--height", metavar="PX", type=_pixels, help="height of the output in pixels"),
        argument("--save", metavar="FILE", help="also write the document (suffix decides the format)"),
        argument("--static", action="store_true", help="no live widget"),
        argument("--quiet", action="store_true", help="bind, show nothing"),
    ):
        function = add(function)
    return function


@magics_class
class GraphMagics(Magics):
    """The magics of one shell, and the studies that they bound."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell=shell)
        self.names: dict[str, Any] = shell.user_ns
        self.cells = 0
        self._file = ""

    # -- %%graph -------------------------------------------------------------------------------------------------------
    @magic_arguments()
    @argument("name", nargs="?", default="_graph", help="the notebook variable that the study is bound to")
    @argument("--show", metavar="V", action="append", choices=SHOW, help=f"views open at first: {' '.join(SHOW)}")
    @argument("-b", dest="show", action="append_const", const="opt", help="same as --show opt")
    @argument("--train", action="store_true", help="output 0 is the loss: show and compile the training pipeline")
    @argument("--run", metavar="N", type=_steps, help="open a session and run N steps")
    @argument("--no", metavar="RULE", action="append", help="leave a rule out (id or label), repeatable")
    @argument("--only", metavar="RULE", action="append", help="use only these rules, repeatable")
    @argument("--device", choices=("auto", "wgpu", "cpu"), default="auto", help="device of plan and session")
    @_run_options
    @_view_options
    @no_var_expand
    @line_cell_magic
    def graph(self, line: str, cell: str | None = None) -> None:
        """Run the cell as a graph program, bind NAME to its study and show it; `%graph NAME` shows an existing
        thing."""
        args = parse_argstring(self.graph, line)
        if cell is None:
            self._show_existing(args)
            return
        name = args.name
        if not name.isidentifier() or keyword.iskeyword(name):
            raise UsageError(f"%%graph: name: given {name}, wanted a Python name")
        feed = self._feed(args.feed)
        study = self._guard(lambda: self._study(name, line, cell, args), name)
        try:
            self._prepare(study, feed, args, args.run)
        except BaseException:
            study.close()
            raise
        self._bind(name, study)
        self._display(study, args.show or _first_views(args), args, args.run)

    def _study(self, name: str, line: str, cell: str, args: Any) -> Study:
        self.cells += 1
        number = int(getattr(self.shell, "execution_count", self.cells))
        self._file = f"<graph {name}, cell {number}>"
        program: Program = run_cell(name, f"%%graph {line}".rstrip(), cell, self.names, number)
        for note in program.notes:
            print(note)
        study = Study(program.graph, name=name, source={program.file: program.text}, **_study_options(args))
        _ = study.plan  # everything that can be wrong is found before NAME is bound
        return study

    def _bind(self, name: str, study: Study) -> None:
        old = self.names.get(name)
        self.names[name] = study
        if isinstance(old, Study):
            old.close()
            close_panel(old)

    def _show_existing(self, args: Any) -> None:
        name = args.name
        thing = self.names.get(name)
        if thing is None and name.endswith((".gdlab.json", ".gdlab.json.gz", *_QUOTES)):
            thing = self._call(lambda: load_doc(_unquoted(name)))
        if isinstance(thing, Document):
            self._display_document(thing, args)
            return
        if isinstance(thing, Graph):
            study = self._guard(lambda: Study(thing, name=name, **_study_options(args)), name)
        else:
            study = self._named(name)
            if given := [f"--{o}" for o in ("train", "no", "only") if getattr(args, o)]:
                raise UsageError(
                    f"%graph {name}: given {given[0]}, wanted a %%graph cell or a Graph: a study has its own"
                )
        self._prepare(study, self._feed(args.feed), args, args.run)
        self._display(study, args.show or _first_views(args), args, args.run)

    def _display_document(self, document: Document, args: Any) -> None:
        if not args.quiet:
            show_document(document, args.show or ["opt"], height=args.height)
        if args.save:
            self._call(lambda: document.save(_unquoted(args.save)))

    # -- views of a study ----------------------------------------------------------------------------------------------
    @magic_arguments()
    @argument("name", help="a study")
    @_view_options
    @no_var_expand
    @line_magic
    def graph_grad(self, line: str) -> None:
        """Differentiate the graph as written: lanes, each adjoint on the row of its op, and the autodiff stepper."""
        args = parse_argstring(self.graph_grad, line)
        study = self._named(args.name)
        self._call(lambda: study.written_derivative)
        self._display(study, ["grad"], args)

    @magic_arguments()
    @argument("name", help="a study")
    @_view_options
    @no_var_expand
    @line_magic
    def graph_plan(self, line: str) -> None:
        """Compile: dispatch table in barrier groups, arena over time, WGSL of the selected dispatch."""
        args = parse_argstring(self.graph_plan, line)
        study = self._named(args.name)
        self._call(lambda: study.plan)
        self._display(study, ["plan"], args)

    # -- running -------------------------------------------------------------------------------------------------------
    @magic_arguments()
    @argument("name", help="a study")
    @argument("steps", nargs="?", type=_steps, default=1, help="how many steps")
    @_run_options
    @_view_options
    @no_var_expand
    @line_magic
    def graph_run(self, line: str) -> None:
        """Run steps on the session panel; returns when done, paused or interrupted."""
        args = parse_argstring(self.graph_run, line)
        study, feed = self._named(args.name), self._feed(args.feed)
        self._prepare(study, feed, args, args.steps)
        self._display(study, ["session"], args, args.steps)

    @magic_arguments()
    @argument("name", help="a study")
    @argument("steps", nargs="?", type=_steps, default=1, help="how many steps")
    @no_var_expand
    @line_magic
    def graph_step(self, line: str) -> None:
        """Make a few steps: the Step button, for front ends without widgets."""
        args = parse_argstring(self.graph_step, line)
        study = self._named(args.name)
        self._call(lambda: study.step(args.steps))
        wake()
        print(_outcome(study))

    @magic_arguments()
    @argument("name", help="a study")
    @no_var_expand
    @line_magic
    def graph_pause(self, line: str) -> None:
        """Stop a run before its next step: the Pause button."""
        study = self._named(parse_argstring(self.graph_pause, line).name)
        study.pause()
        wake()

    @magic_arguments()
    @argument("name", help="a study")
    @no_var_expand
    @line_magic
    def graph_resume(self, line: str) -> None:
        """Finish a paused run: the Resume button."""
        study = self._named(parse_argstring(self.graph_resume, line).name)
        self._call(study.resume)
        wake()
        print(_outcome(study))

    @magic_arguments()
    @argument("name", help="a study")
    @argument("file", help="where to; the suffix decides the format")
    @no_var_expand
    @line_magic
    def graph_save(self, line: str) -> None:
        """Save the document: .gdlab.json, .gdlab.json.gz, .html, .svg, .md or .txt."""
        args = parse_argstring(self.graph_save, line)
        study = self._named(args.name)
        print(f"wrote {self._call(lambda: study.save(_unquoted(args.file)))}")

    @line_magic
    def graph_doctor(self, line: str) -> None:
        """One table: versions, adapters, device chosen and why, extension, threads; each bad row says what to do."""
        print(doctor_text())

    # -- inside --------------------------------------------------------------------------------------------------------
    def _named(self, name: str) -> Study:
        thing = self.names.get(name)
        if isinstance(thing, Study):
            return thing
        if thing is None:
            studies = [n for n, v in self.names.items() if isinstance(v, Study) and not n.startswith("_")]
            wanted = f"one of {', '.join(studies)}" if studies else "a %%graph cell first: there are no graphs yet"
            raise UsageError(f"graph {name}: given no such variable, wanted {wanted}")
        kinds = "a graph, report, plan, session, document or file"
        raise UsageError(f"graph {name}: given {type(thing).__name__}, wanted {kinds}")

    def _feed(self, text: str | None) -> Any:
        """The feed that the option names: a variable of the notebook, or `random[:SEED]`."""
        text = None if text is None else _unquoted(text)
        if text is None or text.partition(":")[0] == "random":
            return text
        if text not in self.names:
            raise UsageError(f"--feed: given {text}, wanted a variable of the notebook or random[:SEED]")
        return self.names[text]

    def _prepare(self, study: Study, feed: Any, args: Any, steps: int | None) -> None:
        if args.save:
            self._call(lambda: suffix_of(_unquoted(args.save)))
        if args.sgd is not None and args.adam is not None:
            raise UsageError("--adam: given --sgd as well, wanted one update rule")
        self._call(lambda: study.prepare(feed=feed, sgd=args.sgd, adam=args.adam, init=args.init))
        if steps is not None:
            self._call(lambda: study.runner.check_start(steps))
            self._call(study.check_ready)

    def _display(self, study: Study, show: list[str], args: Any, steps: int | None = None) -> None:
        """Show the study, make `steps` steps if given, and save what came of it."""
        if not args.quiet:
            self._call(lambda: show_study(study, show, static=args.static, height=args.height))
        if steps is not None:
            wake()
            try:
                self._call(lambda: study.runner.run(steps))
            except KeyboardInterrupt:
                print(_outcome(study))
                raise
            finally:
                wake()
            print(_outcome(study))
        if args.save:
            self._call(lambda: study.save(_unquoted(args.save)))

    def _call(self, work: Callable[[], Any]) -> Any:
        """Run `work`; an error of gdlab becomes one red line, one of a feed shows the person's own frames."""
        try:
            return work()
        except GdlabError as error:
            raise UsageError(str(error)) from error
        except (Exception, KeyboardInterrupt) as error:
            lines = self._own_frames(error)
            error._render_traceback_ = lambda: lines  # type: ignore[union-attr]
            raise

    def _own_frames(self, error: BaseException) -> list[str]:
        """The traceback from where gdlab called the person's code; of an interrupt, or without such code, one line."""
        own = trace = error.__traceback__
        while trace is not None:
            inside = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "gdlab"
            own, trace = (trace.tb_next if inside else own), trace.tb_next
        if own is None or isinstance(error, KeyboardInterrupt):
            return [f"{type(error).__name__}: {error}".rstrip(": ")]
        shell: Any = self.shell
        shown: list[str] = shell.InteractiveTB.structured_traceback(type(error), error, own)
        return shown

    def _guard(self, work: Callable[[], Study], name: str) -> Study:
        """Run a cell's program; any error shows one line and the caret, and leaves NAME as it was."""
        try:
            return work()
        except OptimizeError as error:
            raise UsageError(str(error)) from error
        except SyntaxError as error:  # IPython shows these in its own way, with frames
            raise UsageError("\n".join(render_error(error, self._file))) from error
        except (Exception, KeyboardInterrupt) as error:
            lines = render_error(error, self._file)
            error._render_traceback_ = lambda: lines  # type: ignore[union-attr]  # IPython shows these lines instead of frames
            raise


def _outcome(study: Study) -> str:
    runner, session = study.runner, study.session
    loss = "" if runner.last_loss is None else f", loss {runner.last_loss:.4g}"
    more = f" ({runner.reason})" if runner.reason else ""
    where = f"{study.name}: step {session.step_count} of {runner.wanted}"
    return f"{where}{loss}; {runner.state}{more}; {session.optimizer}"


def _first_views(args: Any) -> list[str]:
    return ["opt"] if args.run is None else ["session"]


def _study_options(args: Any) -> dict[str, Any]:
    named = {"disable": tuple(args.no or ()), "only": tuple(args.only or ())}
    return {"train": args.train, "device": args.device, **named}


def _unquoted(text: str) -> str:
    return shlex.split(text)[0] if text[:1] in _QUOTES else text


def option_names() -> dict[str, list[str]]:
    """The options of every magic, for completion."""
    found = {}
    for name in dir(GraphMagics):
        parser = getattr(getattr(GraphMagics, name), "parser", None)
        if isinstance(parser, MagicArgumentParser):
            found[name] = [o for a in parser._actions for o in a.option_strings if o.startswith("--")]
    return found


def load(shell: Any) -> None:
    """Register magics, completion and rich display; doing it again changes nothing."""
    unload(shell)
    for kind in (Study, Graph, Document):
        shell.display_formatter.mimebundle_formatter.for_type(kind, lambda thing, **_: rich(thing))
    magics = GraphMagics(shell)
    shell.register_magics(magics)
    graph = shell.magics_manager.magics["cell"]["graph"]
    graph.__func__.__doc__ = (graph.__doc__ or "").replace("%graph [", "%%graph [", 1)
    if shell.Completer is not None:
        shell.Completer.custom_matchers.append(make_matcher(shell, option_names()))


def unload(shell: Any) -> None:
    """Remove what `load` registered."""
    if shell.Completer is not None:
        matchers = shell.Completer.custom_matchers
        matchers[:] = [m for m in matchers if getattr(m, "matcher_identifier", "") != "gdlab"]
    for rich_kind in (Study, Graph, Document):
        shell.display_formatter.mimebundle_formatter.type_printers.pop(rich_kind, None)
    for kind in ("line", "cell"):
        table = shell.magics_manager.magics[kind]
        for name in [n for n, f in table.items() if isinstance(getattr(f, "__self__", None), GraphMagics)]:
            del table[name]
