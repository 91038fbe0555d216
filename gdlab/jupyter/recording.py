"""The magic that shows a list of dispatches: `%graph_record S`."""

from __future__ import annotations

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from gdlab.jupyter.common import Words
from gdlab.jupyter.options import parse_argstring
from gdlab.record.session import GraphSession


@magics_class
class RecordMagics(Words):
    """Recorded lists, as words."""

    @magic_arguments()
    @argument("name", help="a variable that holds a GraphSession")
    @no_var_expand
    @line_magic
    def graph_record(self, line: str) -> None:
        """Tell what a finisher did with the list of a session: groups, moves, fusions, hazards, copies, times."""
        args = parse_argstring(self.graph_record, line, self.names)
        session = self.names.get(args.name)
        if not isinstance(session, GraphSession):
            raise UsageError(f"graph_record: given {args.name}, wanted a variable that holds a GraphSession")
        print(self.call(lambda: session.report))
