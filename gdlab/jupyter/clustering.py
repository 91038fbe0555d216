"""The magic of engines, `%graph_cluster start -n 4`, and a run of a study on them: `%graph_run NAME N --on cluster`."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from gdlab.distributed import Cluster, cluster
from gdlab.distributed.clusters import KINDS
from gdlab.jupyter.common import MagicFamily
from gdlab.jupyter.options import count, identifier, parse_argstring
from gdlab.study.study import Study

ACTIONS = ("start", "stop")


@magics_class
class ClusterMagics(MagicFamily):
    """The magics that start, show and stop engines."""

    @magic_arguments()
    @argument("action", nargs="?", choices=ACTIONS, help="start engines or stop them; without: the table of engines")
    @argument("-n", metavar="N", type=count, help="engines to start (one per hardware adapter, else per two cores)")
    @argument("--engines", choices=KINDS, default="mpi", help="ranks of MPI, or processes without it (mpi)")
    @argument("--profile", metavar="P", help="use the engines of this ipyparallel profile, which run already")
    @argument("--as", dest="bound", metavar="NAME", type=identifier, default="cluster", help="the variable (cluster)")
    @no_var_expand
    @line_magic
    def graph_cluster(self, line: str) -> None:
        """Start engines, show their table, or end them; `%graph_run NAME N --on cluster` runs on them."""
        args = parse_argstring(self.graph_cluster, line, self.names)
        self.check_name("%graph_cluster", args.bound)
        if args.action == "start":
            self._start(args)
            return
        engines = cluster_named(self.names, "%graph_cluster", args.bound)
        if args.action == "stop":
            self.call(engines.close)
            print(repr(engines))
            return
        display(engines)

    def _start(self, args: Namespace) -> None:
        old = self.names.get(args.bound)
        if isinstance(old, Cluster) and not old.closed:
            wanted = f"%graph_cluster stop first, or --as NAME: {old!r}"
            raise UsageError(f"%graph_cluster: {args.bound}: given a cluster that is open, wanted {wanted}")
        made = self.call(lambda: cluster(args.n, args.engines, profile=args.profile))
        self.bind(args.bound, made)
        display(made)


def cluster_named(names: dict[str, Any], where: str, name: str) -> Cluster:
    """Return the cluster that a variable holds; raise `UsageError` (one red line) for anything else."""
    found = names.get(identifier(name))
    if not isinstance(found, Cluster):
        given = "no such variable" if found is None else type(found).__name__
        raise UsageError(f"{where}: {name}: given {given}, wanted a cluster: %graph_cluster start")
    return found


def run_on(words: MagicFamily, study: Study, args: Namespace) -> None:
    """Run a study on the cluster that `--on` names, with the table of engines as it is now."""
    engines = cluster_named(words.names, "--on", args.on)
    if args.sgd is not None and args.adam is not None:
        raise UsageError("--adam: given --sgd as well, wanted one update rule")
    shown = None if args.quiet else display({"text/plain": ""}, raw=True, display_id=True)
    settings = {"sgd": args.sgd, "adam": args.adam, "init": args.init, "until": args.until, "resume": args.resume,
                "accumulate": args.accumulate, "store": args.store, "wire": args.wire,
                "bucket_bytes": args.bucket_bytes}  # fmt: skip
    watch = None if shown is None else shown.update
    run = words.call(lambda: study.run(args.steps, on=engines, feed=words.feed(args.feed), watch=watch, **settings))
    if shown is not None:
        shown.update(run)
