"""The magics that run: `%graph_run`, `%graph_step`, pause, resume, reset, `%graph_watch`, `%graph_trace`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any, get_args

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from gdlab.distributed.meeting import Wire
from gdlab.jupyter.answering import AnswerOutput, show_answer
from gdlab.jupyter.clustering import run_on
from gdlab.jupyter.common import MagicFamily, here, outcome
from gdlab.jupyter.options import (
    count,
    for_option,
    name_option,
    output_options,
    parse_argstring,
    rate,
    run_options,
    run_steps_option,
    search_seconds,
    steps_option,
    user_path,
)
from gdlab.jupyter.widget import refresh, wake
from gdlab.session.run.runner import NanWatch
from gdlab.study.study import Study
from gdlab.view.answer.making import profile_answer, step_answer
from gdlab.view.answer.tuning_answer import tuning_answer, tuning_progress_answer


@magics_class
class RunMagics(MagicFamily):
    """The magics that correspond to the buttons of the session panel."""

    @magic_arguments()
    @name_option
    @run_steps_option
    @for_option
    @argument("--speed", metavar="HZ", type=rate, help="at most so many steps per second")
    @argument("--watch", choices=get_args(NanWatch), help="what is looked at for NaN and infinity (loss)")
    @run_options
    @argument("--on", metavar="CLUSTER", help="run on these engines, a variable: %%graph_cluster start binds cluster")
    @argument("--accumulate", metavar="K", type=count, default=1, help="with --on: one reduction per K steps (1)")
    @argument("--resume", metavar="N", type=count, default=0, help="with --on: begin again after lost engines (0)")
    @argument("--wire", choices=get_args(Wire), default="f32", help="with --on: gradients between engines (f32)")
    @argument("--bucket-bytes", metavar="N", type=count, help="with --on: gradients reduced together (4 or 64 MiB)")
    @argument("--store", metavar="FOLDER", type=user_path, help="with --on: the folder of checkpoints")
    @output_options
    @no_var_expand
    @line_magic
    def graph_run(self, line: str) -> None:
        """Run steps in the session panel; return when done, paused or interrupted."""
        args = parse_argstring(self.graph_run, line, self.names)
        study = self.named(args.name)
        if args.on is not None:
            if args.seconds is not None:
                raise UsageError(f"--for: given {args.seconds:g} with --on, wanted steps: engines count them, together")
            run_on(self, study, args)
            self.display(study, ["session"], args)
            return
        steps = self._span(study, args)
        self.prepare(study, args, steps)
        if args.watch:
            study.runner.set_watch(args.watch)
        study.runner.set_speed(args.speed)
        if args.until is None:
            study.runner.set_until(None)
        self.display(study, ["session"], args, steps, seconds=args.seconds)

    def _span(self, study: Study, args: Namespace) -> int:
        """Return the number of steps that a line asks for; with `--for` 1, which only says that it makes steps. One red
        line for both."""
        if args.seconds is not None and args.steps is not None:
            runs = f"%graph_run {args.name} {args.steps}, or %graph_run {args.name} --for {args.seconds:g}"
            raise UsageError(f"--for: given {args.steps} steps as well, wanted one of them: {runs}")
        if args.seconds is not None:
            self.call(lambda: study.runner.check_span(None, args.seconds))
        return 1 if args.steps is None else int(args.steps)

    @magic_arguments()
    @name_option
    @steps_option
    @argument("--dispatch", action="store_true", help="count dispatches: the same step, one dispatch at a time")
    @argument("--to", metavar="WHAT", help="until a dispatch has run: its number, a node's name, or an entity (line:3)")
    @argument("--back", metavar="N", type=count, help="go back N dispatches in the step that is made by dispatches")
    @no_var_expand
    @line_magic
    def graph_step(self, line: str) -> None:
        """Make a few steps, or dispatches: the Step button, for front ends without widgets."""
        args = parse_argstring(self.graph_step, line, self.names)
        study = self.named(args.name)
        if given := [o for o in ("dispatch", "to", "back") if getattr(args, o) not in (None, False)][1:]:
            raise UsageError(f"--{given[0]}: given with another of --dispatch, --to, --back, wanted one of them")
        if args.to is not None:
            self._inside(study, lambda: study.run_to(args.to))
        elif args.back is not None:
            self._inside(study, lambda: study.back(args.back))
        elif args.dispatch:
            self._inside(study, lambda: study.step_dispatch(args.steps))
        else:
            self._act(study, lambda: study.step(args.steps))

    @magic_arguments()
    @name_option
    @no_var_expand
    @line_magic
    def graph_pause(self, line: str) -> None:
        """Stop a run before its next step: the Pause button."""
        study = self.named(parse_argstring(self.graph_pause, line).name)
        study.pause()
        wake()

    @magic_arguments()
    @name_option
    @no_var_expand
    @line_magic
    def graph_resume(self, line: str) -> None:
        """Finish a paused run: the Resume button."""
        study = self.named(parse_argstring(self.graph_resume, line).name)
        self._act(study, study.resume)

    @magic_arguments()
    @name_option
    @argument("--replay", action="store_true", help="and make the same number of steps again")
    @no_var_expand
    @line_magic
    def graph_reset(self, line: str) -> None:
        """Restore parameters, moments and counters as they were before the first step: the Reset button."""
        args = parse_argstring(self.graph_reset, line)
        study = self.named(args.name)
        self._act(study, study.replay if args.replay else study.reset)

    @magic_arguments()
    @name_option
    @argument("file", nargs="?", help="also write a Chrome trace: Perfetto opens it")
    @argument("--samples", metavar="N", type=int, default=3, help="steps to time (3)")
    @argument("--train", action="store_true", help="real steps, which count; else the session is put back as it was")
    @no_var_expand
    @line_magic
    def graph_trace(self, line: str) -> None:
        """Time every dispatch over a few steps, against what the roofline predicts: a table, and with FILE a Chrome
        trace. The session is put back as it was. The plan and its kernels show the times from then on."""
        args = parse_argstring(self.graph_trace, line, self.names)
        study = self.named(args.name)
        if args.file and not args.file.endswith(".json"):
            raise UsageError(f"graph_trace: given {args.file}, wanted FILE.json, or --samples N for N steps")
        profile = self.call(lambda: study.trace(args.samples, args.train))
        refresh(study)
        show_answer(profile_answer(profile, study, str(profile)))
        if args.file:
            print(f"wrote {self.call(lambda: profile.save(user_path(args.file), chrome=True))}")

    @magic_arguments()
    @name_option
    @argument("--seconds", metavar="S", type=search_seconds, default=10.0, help="at most so many (10); 0: no search")
    @no_var_expand
    @line_magic
    def graph_tune(self, line: str) -> None:
        """Search the fastest schedules of the plan's products on its device, and show all that were tried, with their
        times. They are kept for this adapter; the plan takes them unless a session was opened."""
        args = parse_argstring(self.graph_tune, line, self.names)
        study, output = self.named(args.name), AnswerOutput()
        try:
            tell = lambda at: output.show(tuning_progress_answer(at, study))  # noqa: E731
            found = self.call(lambda: study.tune(args.seconds, tell))
        except KeyboardInterrupt:  # what was found is kept
            output.show(tuning_answer(study.tune(0), study))
            raise
        output.show(tuning_answer(found, study))
        refresh(study)

    def _inside(self, study: Study, work: Callable[[], str | None]) -> None:
        """Move inside a step, and show the outcome, the result of the current dispatch and the watched tensors."""
        try:
            told = self.call(work)
        except BaseException:
            if study.has_session:
                print(outcome(study))
            raise
        finally:
            wake()
        lines = [*([told] if told else []), outcome(study)]
        verdict = "; ".join("\n".join(lines).splitlines())
        show_answer(step_answer(study, verdict, "\n".join([*lines, here(study)])))

    def _act(self, study: Study, work: Callable[[], Any]) -> None:
        try:
            self.call(work)
        finally:
            wake()
            if study.has_session:
                print(outcome(study))
