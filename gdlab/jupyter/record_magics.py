"""The magic that shows a list of dispatches: `%graph_record S`."""

from __future__ import annotations

from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from gdlab.jupyter.common import MagicFamily
from gdlab.jupyter.options import parse_argstring
from gdlab.record.graph_session import GraphSession
from gdlab.record.list_report import Report
from gdlab.view.picture.list_picture import list_html, list_picture


@magics_class
class RecordMagics(MagicFamily):
    """The magic of recorded lists, as pictures and words."""

    @magic_arguments()
    @argument("name", help="a variable that holds a GraphSession")
    @no_var_expand
    @line_magic
    def graph_record(self, line: str) -> None:
        """Draw the list of a finished session before and after each pass: groups, ranges of memory, conflicts, moves;
        beside the picture its text: fusions, copies, times, and the reasons why no node stands further in front."""
        args = parse_argstring(self.graph_record, line, self.names)
        session = self.names.get(args.name)
        if not isinstance(session, GraphSession):
            raise UsageError(f"graph_record: given {args.name}, wanted a variable that holds a GraphSession")
        display(report_bundle(self.call(lambda: session.report)), raw=True)


def report_bundle(report: Report) -> dict[str, Any]:
    """Return the output that shows a report: a picture in the colours of the page, a static one, and text."""
    return {
        "text/html": list_html(report),
        "image/svg+xml": list_picture(report),
        "text/plain": str(report),
    }
