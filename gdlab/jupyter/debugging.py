"""The magics that look inside a run: `%graph_watch`, `%graph_break`, `%graph_look`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import get_args

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from gdlab.base.words import natural
from gdlab.jupyter.answering import show_answer
from gdlab.jupyter.common import MagicFamily
from gdlab.jupyter.options import count, name_option, parse_argstring
from gdlab.jupyter.widget import wake
from gdlab.study.microscope import Against
from gdlab.study.study import Study
from gdlab.view.answer.making import watch_answer


@magics_class
class DebugMagics(MagicFamily):
    """The magics of watches, breakpoints and the microscope."""

    @magic_arguments()
    @name_option
    @argument("tensor", nargs="*", help="a named node, a parameter, the gradient of one (w1.grad), or %%id")
    @argument("--list", action="store_true", help="tell what is watched, and the breakpoints")
    @argument("--clear", metavar="ID", type=count, help="stop watching it")
    @no_var_expand
    @line_magic
    def graph_watch(self, line: str) -> None:
        """Watch tensors while the session runs: value, range, the count of non-finite elements, and the course over
        steps."""
        args = parse_argstring(self.graph_watch, line, self.names)
        study = self.named(args.name)
        if not self._listed(study, args, args.tensor):
            self.call(lambda: study.watch(*args.tensor))
        self._tell(study)

    @magic_arguments()
    @name_option
    @argument("expr", nargs="*", help="EVENT [if TEST], such as: node h if absmax(h) > 1e3; nonfinite; loss rises 3")
    @argument("--list", action="store_true", help="tell what is watched, and the breakpoints")
    @argument("--clear", metavar="ID", type=count, help="remove it")
    @no_var_expand
    @line_magic
    def graph_break(self, line: str) -> None:
        """Pause runs at an event: node NAME, kernel LABEL, dispatch K, write NAME, step N, nonfinite [NAME],
        loss rises N."""
        args = parse_argstring(self.graph_break, line, self.names)
        study = self.named(args.name)
        if not self._listed(study, args, args.expr):
            self.call(lambda: study.break_at(_joined(args.expr)))
        self._tell(study)

    @magic_arguments()
    @name_option
    @argument("tensor", help="a named node, a parameter, its gradient (w1.grad), %%id, or an entity (interval:4)")
    @argument("--at", metavar="ROW,COL", default="0,0", help="where the window of exact values begins (0,0)")
    @argument("--slice", metavar="I,J", default="", help="which slice of a tensor with more than two axes (zeros)")
    @argument("--against", choices=get_args(Against), help="the difference to the reference or the cpu device")
    @no_var_expand
    @line_magic
    def graph_look(self, line: str) -> None:
        """Look at a tensor: figures, histogram, exact values of a window, difference to the reference or cpu."""
        args = parse_argstring(self.graph_look, line, self.names)
        study = self.named(args.name)
        (row, col), picked = _numbers("--at", args.at, 2), _numbers("--slice", args.slice)
        print(self.call(lambda: study.look(args.tensor, row=row, col=col, slice=picked, against=args.against)))

    def _listed(self, study: Study, args: Namespace, words: Sequence[str]) -> bool:
        """Return whether the line only asks for the list, or clears."""
        if args.clear is not None:
            self.call(lambda: study.clear(args.clear))
        elif not args.list and words:
            return False
        if words:
            raise UsageError(f"{'--list' if args.list else '--clear'}: given {words[0]} as well, wanted it alone")
        return True

    def _tell(self, study: Study) -> None:
        wake()
        show_answer(self.call(lambda: watch_answer(study)))


def _joined(words: Sequence[str]) -> str:
    """Return the words of a line as one text; words that were in quotes get them back, unless the whole line was in
    quotes."""
    return words[0] if len(words) == 1 else " ".join(f'"{w}"' if " " in w else w for w in words)


def _numbers(option: str, text: str, wanted: int | None = None) -> tuple[int, ...]:
    numbers = [natural(part.strip()) for part in text.split(",") if part.strip()]
    found = tuple(number for number in numbers if number is not None)
    if len(found) < len(numbers) or (wanted is not None and len(found) != wanted):
        raise UsageError(f"{option}: given {text}, wanted {wanted or 'some'} ints with commas between")
    return found
