"""The magics that make and show: `%%graph`, `%graph`, `%graph_opt`, `_grad`, `_plan`, `_check`, `_save`, `_doctor`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import line_cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from gdlab.base.errors import ArgumentError
from gdlab.base.words import nbytes
from gdlab.distributed import Cluster
from gdlab.distributed.allreduce import keep_prediction
from gdlab.distributed.calibration import calibration_of
from gdlab.distributed.scaling import Scaling, scaling, sizes_up_to
from gdlab.graph import Graph
from gdlab.jupyter.answering import show_answer, show_check
from gdlab.jupyter.cell import CellResult, run_cell
from gdlab.jupyter.common import MagicFamily
from gdlab.jupyter.options import (
    SHOW,
    as_option,
    compared_device,
    count,
    device_name,
    extents,
    identifier,
    look_options,
    name_option,
    output_options,
    parse_argstring,
    rule_options,
    run_options,
    user_path,
)
from gdlab.plan import CompileOptions
from gdlab.rewrite import OptimizeReport
from gdlab.rewrite.engine.history import RECORDED
from gdlab.study.model_files import MODELS, is_function, is_model, is_module, open_model, open_module
from gdlab.study.study import Study
from gdlab.view.answer.making import doctor_answer, gradient_answer
from gdlab.view.ask.diff import diff_doc
from gdlab.view.document.document import Document, load_doc
from gdlab.view.text.doctor import doctor_rows, doctor_text
from gdlab.view.things import document_of, first_view, gradient_doc

_FILES = (".json", ".json.gz")


@magics_class
class ShowMagics(MagicFamily):
    """The magics that make a graph and show it."""

    # -- %%graph -------------------------------------------------------------------------------------------------------
    @magic_arguments()
    @argument("name", nargs="?", default="_graph", help="the notebook variable that the study is bound to (_graph)")
    @argument("--show", metavar="V", action="append", choices=SHOW, help=f"panes open at first: {' '.join(SHOW)} (opt)")
    @argument("-b", dest="show", action="append_const", const="opt", help="same as --show opt")
    @argument("--train", action="store_true", help="output 0 is the loss: the training pipeline")
    @argument("--egraph", action="store_true", help=f"record how the e-graph grew (always up to {RECORDED} nodes)")
    @argument("--values", action="store_true", help="the numbers on every node, value and gradient (up to 60 nodes)")
    @argument("--plan", action="store_true", help="also compile")
    @argument("--run", metavar="N", type=count, help="open a session and run N steps")
    @argument("--device", metavar="D", type=device_name, help="device of plan and session (auto): cpu, wgpu, wgpu:1")
    @argument("--diff", metavar="OTHER", help="%%graph NAME: what is different in OTHER")
    @argument("--dims", metavar="NAME=N,…", type=extents, help="numbers for extents that a file of a model leaves open")
    @argument("--like", metavar="X,…", help="%%graph NET: variables, the inputs of a PyTorch module or JAX function")
    @rule_options
    @run_options
    @look_options
    @output_options
    @no_var_expand
    @line_cell_magic
    def graph(self, line: str, cell: str | None = None) -> None:
        """Run the cell as a graph program, bind NAME to its study and show it; `%graph NAME` shows an existing
        thing: a study, graph, report, plan, session, document or file."""
        args = parse_argstring(self.graph, line, self.names)
        if cell is None:
            self._show_existing(args)
            return
        name = identifier(args.name)
        self.check_name("%%graph", name)
        if args.diff is not None:
            raise UsageError("--diff: given a cell, wanted %graph NAME --diff OTHER")
        if args.dims is not None:
            raise UsageError("--dims: given a cell, wanted %graph FILE.onnx --dims NAME=N")
        if args.like is not None:
            raise UsageError("--like: given a cell, wanted %graph NET --like X")
        self.feed(args.feed)
        options = self.rules(args) | _recording(args)
        study = self.guard(lambda: self._study(name, line, cell, args, options))
        try:
            self.prepare(study, args, args.run)
            self._numbers(study, args)
            view = self.look(study, args)
        except BaseException:
            study.close()
            raise
        self.bind(name, study)
        self.display(study, args.show or _first_views(args), args, args.run, view | _value_view(args))

    def _study(self, name: str, line: str, cell: str, args: Namespace, options: dict[str, Any]) -> Study:
        number = self.cell_number
        self._file = f"<graph {name}, cell {number}>"
        program: CellResult = run_cell(name, f"%%graph {line}".rstrip(), cell, self.names, number)
        for note in program.notes:
            print(note)
        source = {program.file: program.text}
        device: Any = args.device or "auto"
        study = Study(program.graph, name=name, source=source, train=args.train, device=device, **options)
        _ = study.plan  # everything that can be wrong is found before NAME is bound
        return study

    def _numbers(self, study: Study, args: Namespace) -> None:
        if args.values or args.overlay in ("value", "gradient", "adjoint"):
            self.call(lambda: study.values(self.feed(args.feed)))

    # -- %graph --------------------------------------------------------------------------------------------------------
    def _show_existing(self, args: Namespace) -> None:
        module = self.names.get(identifier(args.name))
        live = is_module(module) or (args.like is not None and is_function(module))
        if args.like is not None and not live:
            raise UsageError(f"--like: given {args.name}, wanted a PyTorch module of this notebook, or a JAX function")
        thing = self._module(args, module) if live else self._thing(args.name, args.dims)
        if args.diff is not None:
            other = self._thing(args.diff)
            document = self.call(lambda: diff_doc(self._document(thing, args.name), self._document(other, args.diff)))
            self.display_document(document, ["diff"], args)
            return
        if isinstance(thing, Graph):
            options = self.rules(args) | _recording(args) | {"train": args.train, "device": args.device or "auto"}
            study = self.guard(lambda: Study(thing, name=args.name, **options))
        elif isinstance(thing, Study):
            study = thing
            fixed = ("train", "egraph", "no", "only", "enable", "allow", "cost", "device")
            if given := [f"--{o}" for o in fixed if getattr(args, o) and not live]:
                wanted = "a %%graph cell or a Graph: a study has its own"
                raise UsageError(f"%graph {args.name}: given {given[0]}, wanted {wanted}")
        else:
            if isinstance(thing, OptimizeReport):
                print(thing.to_text())
            self.display_document(self._document(thing, args.name), args.show or [first_view(thing)], args)
            return
        self.prepare(study, args, args.run)
        self._numbers(study, args)
        self.display(study, args.show or _first_views(args), args, args.run, _value_view(args))

    def _thing(self, name: str, dims: Mapping[str, int] | None = None) -> Any:
        """Return a variable of the notebook, or the name of a file: of a document, or of a model, whose study is bound.
        """
        known = identifier(name) in self.names
        path = user_path(name)
        if dims is not None and (known or not is_model(path)):
            raise UsageError(f"--dims: given {name}, wanted the name of a file of a model")
        if known:
            return self.names[identifier(name)]
        if is_model(path) or name.endswith(_FILES) or "/" in name or path.suffix or name.strip(".") == "":
            self._check_file(name, path)
            return self._model(str(path), dims) if is_model(path) else self.call(lambda: load_doc(str(path)))
        raise UsageError(self.no_such(name))

    def _check_file(self, name: str, path: Path) -> None:
        """Raise `UsageError` (one red line) unless `path` is a file of a kind that can be shown."""
        kinds = f"a document or model ({', '.join((*_FILES, *MODELS))})"
        if path.is_dir() and is_model(path):
            return
        if path.is_dir():
            raise UsageError(f"graph {name}: given a folder, wanted the file of {kinds}, or a folder with config.json")
        if not path.exists():
            raise UsageError(f"graph {name}: given no such file, wanted the file of {kinds}, or a variable")
        if not path.is_file() or not name.endswith((*MODELS, *_FILES)):
            raise UsageError(f"graph {name}: given a file of another kind, wanted {kinds}")

    def _model(self, path: str, dims: Mapping[str, int] | None) -> Study:
        """Return the study of a model's file, bound to the name of the file if that name is free or names a study."""
        study: Study = self.call(lambda: open_model(path, dims))
        if isinstance(self.names.get(study.name), (Study, type(None))):
            self.bind(study.name, study)
            print(f"{study.name} = the study of {path}")
        return study

    def _module(self, args: Namespace, module: Any) -> Study:
        """Return the study of a live module of PyTorch or a function of JAX, bound to `NAME_graph` if that name is free
        or names a study."""
        words = [identifier(word.strip()) for word in (args.like or "").split(",") if word.strip()]
        if not words or args.dims is not None:
            wanted = f"its example inputs: %graph {args.name} --like x"
            raise UsageError(f"graph {args.name}: given {'--dims' if words else 'a module alone'}, wanted {wanted}")
        for word in words:
            if word not in self.names:
                raise UsageError(f"--like: given {word}, wanted a variable of this notebook")
        options = self.rules(args) | _recording(args) | {"train": args.train, "device": args.device or "auto"}
        name = f"{identifier(args.name)}_graph"
        inputs = [self.names[word] for word in words]
        study: Study = self.call(lambda: open_module(name, module, inputs, **options))
        if isinstance(self.names.get(name), (Study, type(None))):
            self.bind(name, study)
            print(f"{name} = the study of {args.name}")
        return study

    def _document(self, thing: Any, name: str) -> Document:
        try:
            document: Document = self.call(lambda: document_of(thing, name))
        except UsageError as error:
            if isinstance(error.__cause__, ArgumentError) and error.__cause__.where == "show":
                cause = error.__cause__
                raise UsageError(f"graph {name}: given {cause.given}, wanted {cause.wanted}") from cause
            raise
        return document

    # -- views of a study ----------------------------------------------------------------------------------------------
    @magic_arguments()
    @name_option
    @as_option
    @rule_options
    @argument("--no-fusion", action="store_true", help="compile every op as a dispatch of its own")
    @argument("--no-alias", action="store_true", help="compile with memory of its own for every buffer")
    @argument("--serial", action="store_true", help="compile with a barrier behind every dispatch")
    @argument("--measure", metavar="N", type=int, help="time N steps of every variant, in sessions of their own")
    @look_options
    @output_options
    @no_var_expand
    @line_magic
    def graph_opt(self, line: str) -> None:
        """Optimize again with other rules and show the variant beside the first; the table compares all variants."""
        args = parse_argstring(self.graph_opt, line, self.names)
        study, options = self.named(args.name), self.rules(args)
        if args.bound:
            self.check_name("%graph_opt", args.bound)
        compile = CompileOptions(fuse_dispatches=not args.no_fusion, alias=not args.no_alias, serial=args.serial)
        variant = self.call(lambda: study.variant(args.bound or "", compile=compile, **options))
        if args.measure is not None:
            self.call(lambda: study.measure(args.measure))
        if args.bound:
            self.bind(args.bound, variant)
        keys = [stage["key"] for stage in study.doc.data["stages"]]
        view = {"diff": [keys.index("optimized"), keys.index(f"variant:{variant.name}")]}
        self.display(study, ["diff"], args, view=view)

    @magic_arguments()
    @name_option
    @argument("--wrt", metavar="A,B", help="with respect to these nodes, by name (all parameters)")
    @argument("--optimized", action="store_true", help="the one that training runs, differentiated after fusion")
    @as_option
    @look_options
    @output_options
    @no_var_expand
    @line_magic
    def graph_grad(self, line: str) -> None:
        """Differentiate the graph as written: lanes, each adjoint on the row of its op, and the autodiff stepper."""
        args = parse_argstring(self.graph_grad, line, self.names)
        study = self.named(args.name)
        wrt = tuple(name.strip() for name in args.wrt.split(",") if name.strip()) if args.wrt else ()
        if wrt and args.optimized:
            raise UsageError("--optimized: given --wrt as well, wanted one of them")
        if args.bound:
            self.check_name("%graph_grad", args.bound)
        if args.optimized:
            graph = self.call(lambda: study.derivative)
        else:
            graph, _ = self.call(lambda: study.differentiate_wrt(wrt) if wrt else study.written_derivative)
        if args.bound:
            self.bind(args.bound, self.call(lambda: Study(graph, name=args.bound, source=study.source)))
        if wrt or args.optimized:
            self.display_document(self.call(lambda: gradient_doc(study, wrt, args.optimized)), ["grad"], args)
        else:
            self.display(study, ["grad"], args)

    @magic_arguments()
    @name_option
    @argument("--device", type=device_name, metavar="D", help="compile for this device instead of the study's own")
    @argument("--engines", metavar="N", type=count, help="and predict how a run scales on 1, 2, 4 … N engines")
    @argument("--link", metavar="L", default="25Gb/s", help="between engines: 25Gb/s, 3GB/s, or a cluster to measure")
    @argument("--latency", metavar="T", default="20us", help="of a message between engines (20us)")
    @argument("--accumulate", metavar="K", type=count, default=1, help="batches for each reduction (1)")
    @as_option
    @output_options
    @no_var_expand
    @line_magic
    def graph_plan(self, line: str) -> None:
        """Compile: dispatch table in barrier groups, arena over time, WGSL of the selected dispatch. With --engines
        also the predicted speed-up of a run on many engines."""
        args = parse_argstring(self.graph_plan, line, self.names)
        study = self.named(args.name)
        if args.bound:
            self.check_name("%graph_plan", args.bound)
        if args.device or args.bound:
            study = self.call(lambda: study.variant(args.bound or "", device=args.device, **study.options))
        if args.bound:
            self.bind(args.bound, study)
        self.call(lambda: study.plan)
        found = None if args.engines is None else self.call(lambda: _scaling(study, args, self.names))
        self.display(study, ["plan"], args)
        if found is not None:
            display(found)

    @magic_arguments()
    @name_option
    @argument("--feed", metavar="F", help="inputs to check with (those of the session, else random)")
    @argument("--device", type=compared_device, metavar="D", action="append", help="compare it alone, repeatable")
    @argument("--gradient", metavar="NODE", help="is the gradient rule of this node its slope? a name or id")
    @no_var_expand
    @line_magic
    def graph_check(self, line: str) -> None:
        """Check whether the optimizer or the GPU broke the model: reference, optimized, cpu and wgpu side by side."""
        args = parse_argstring(self.graph_check, line, self.names)
        study, feed = self.named(args.name), self.feed(args.feed)
        if args.gradient is not None:
            show_answer(gradient_answer(self.call(lambda: study.check_gradient(args.gradient)), study))
            return
        devices = tuple(args.device or ("cpu", "wgpu"))
        self.call(lambda: show_check(study, lambda tell: study.checks.parity(feed, devices, tell)))

    # -- files and facts -----------------------------------------------------------------------------------------------
    @magic_arguments()
    @name_option
    @argument("file", help="where to; the suffix decides the format")
    @argument("--timeless", action="store_true", help="measured times are 0: same inputs and seed, same bytes")
    @argument("--runnable", action="store_true", help="a page that trains on its reader's own GPU, without Python")
    @argument("--batches", type=int, default=1, metavar="N", help="with --runnable: as many batches of the feed (1)")
    @argument("--weights", action="store_true", help="with --runnable: parameters as they are now, not as they began")
    @argument("--large", action="store_true", help="with --runnable: more than 20 MB of parameters and batches")
    @no_var_expand
    @line_magic
    def graph_save(self, line: str) -> None:
        """Save the document: .gdlab.json, .gdlab.json.gz, .html, .svg, .dot, .md or .txt."""
        args = parse_argstring(self.graph_save, line, self.names)
        study = self.named(args.name)
        data = {name: getattr(args, name) for name in ("runnable", "batches", "weights", "large")}
        path = self.call(lambda: study.save(user_path(args.file), args.timeless, **data))
        print(f"wrote {path}" + (f", {nbytes(path.stat().st_size)}" if args.runnable else ""))

    @magic_arguments()
    @no_var_expand
    @line_magic
    def graph_doctor(self, line: str) -> None:
        """Show what this machine has and lacks in a table: versions, adapters, device chosen and why, extension,
        threads; each bad row says what to do."""
        parse_argstring(self.graph_doctor, line)
        rows = doctor_rows()
        show_answer(doctor_answer(rows, doctor_text(rows)))


def _scaling(study: Study, args: Namespace, names: Mapping[str, Any]) -> Scaling:
    """Predict how a run scales, and show the reduction in the plan; `--link` may name a cluster, which is measured."""
    named = names.get(args.link)
    link = calibration_of(named) if isinstance(named, Cluster) else args.link
    found = scaling(study, sizes_up_to(args.engines), link, args.latency, args.accumulate)
    keep_prediction(study, found, args.engines)
    return found


def _first_views(args: Namespace) -> list[str]:
    return ["opt"] if args.run is None else ["session"]


def _recording(args: Namespace) -> dict[str, Any]:
    """Return the value of `--egraph`; without it the size of the graph decides."""
    return {"egraph": True} if args.egraph else {}


def _value_view(args: Namespace) -> dict[str, Any]:
    """Return the view of `--values`, which writes numbers on the nodes, unless another overlay is asked for."""
    return {"overlay": "value"} if args.values and args.overlay is None else {}
