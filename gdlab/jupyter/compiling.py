"""The magic that shows a graph as a function: `%graph_compiled NAME`."""

from __future__ import annotations

from collections.abc import Mapping

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from gdlab.compiled import CompiledGraph
from gdlab.jupyter.common import MagicFamily
from gdlab.jupyter.options import as_option, identifier, look_options, output_options, parse_argstring
from gdlab.study.study import Study
from gdlab.view.document.compiled import compiled_document
from gdlab.view.text.twin import twin


@magics_class
class CompiledMagics(MagicFamily):
    """The magic of compiled graphs."""

    @magic_arguments()
    @argument("name", help="a variable that holds a CompiledGraph, or a study, which is compiled for this")
    @argument("--boundary", metavar="B", action="append", help="of a study: NAME=DTYPE at its edge, repeatable")
    @as_option
    @look_options
    @output_options
    @no_var_expand
    @line_magic
    def graph_compiled(self, line: str) -> None:
        """Show slots, handles, feeds, extent, arena and counters of a compiled graph, and its plan. One that is made of
        a study is closed afterwards, unless --as binds it."""
        args = parse_argstring(self.graph_compiled, line, self.names)
        thing = self.names.get(identifier(args.name))
        boundary = _boundary(args.boundary)
        if not isinstance(thing, (CompiledGraph, Study)):
            wanted = "a variable that holds a CompiledGraph, or a study: the NAME of a %%graph cell"
            raise UsageError(f"graph_compiled: given {args.name}, wanted {wanted}")
        if isinstance(thing, CompiledGraph) and boundary:
            raise UsageError(f"--boundary: given {args.name}, which is compiled already, wanted a study")
        graph = thing if isinstance(thing, CompiledGraph) else self.call(lambda: thing.compiled(boundary=boundary))
        try:
            document = self.call(lambda: compiled_document(graph, args.name))
            print(twin(document, "session"), end="")
            self.display_document(document, ["plan"], args)
            if args.bound:
                self.bind(args.bound, graph)
        finally:
            if graph is not thing and not args.bound:
                graph.close()


def _boundary(given: list[str] | None) -> Mapping[str, str]:
    """Return the dtypes of `--boundary` by name."""
    found = {}
    for text in given or ():
        name, _, dtype = text.partition("=")
        if not name or not dtype:
            raise UsageError(f"--boundary: given {text}, wanted NAME=DTYPE, as x=bf16")
        found[name] = dtype
    return found
