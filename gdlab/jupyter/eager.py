"""The magic `%%eager`: run a `%%graph` cell's text on a tape, and show each line's value beside it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import numpy as np
from IPython.core.error import UsageError
from IPython.core.magic import cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from gdlab.base.statistics import array_words
from gdlab.base.types import Array, TensorType, f32
from gdlab.base.words import natural
from gdlab.eager import EagerSession, TensorRef
from gdlab.jupyter.cell import CellResult, run_cell
from gdlab.jupyter.common import MagicFamily
from gdlab.jupyter.options import count, device_name, identifier, look_options, output_options, parse_argstring
from gdlab.view.document.tape_document import tape_doc

_WIDEST = 60  # columns of a cell line behind which values are written


@magics_class
class EagerMagics(MagicFamily):
    """The magic that runs a cell line by line."""

    @magic_arguments()
    @argument("name", nargs="?", default="_eager", help="the notebook variable that the session is bound to (_eager)")
    @argument("--device", metavar="D", type=device_name, help="device of the session (auto): cpu, wgpu, wgpu:1")
    @argument("--grad", action="store_true", help="also the gradients of the last expression, which is the loss")
    @argument("--seed", metavar="N", type=count, default=0, help="of parameters and random numbers (0)")
    @argument("--feed", metavar="F", help="inputs by name: a dict of the notebook, random[:SEED] (random)")
    @look_options
    @output_options
    @no_var_expand
    @cell_magic
    def eager(self, line: str, cell: str) -> None:
        """Run the cell's text on a tape: every op computes at once; each line is shown with its value, then the tape as
        a picture. Binds NAME to the session."""
        args = parse_argstring(self.eager, line, self.names)
        name = identifier(args.name)
        self.check_name("%%eager", name)
        feed = self.feed(args.feed)
        device: Any = args.device or "auto"
        session: EagerSession = self.call(lambda: EagerSession(device=device, seed=args.seed))
        try:
            self._run(session, name, line, cell, args, feed)
        except BaseException:
            session.close()
            raise
        old = self.names.get(name)
        self.bind(name, session)
        if isinstance(old, EagerSession):
            old.close()

    def _run(self, session: EagerSession, name: str, line: str, cell: str, args: Namespace, feed: Any) -> None:
        number = self.cell_number
        self._file = f"<graph {name}, cell {number}>"
        text = f"%%eager {line}".rstrip()
        session.made_up = _feeding(feed)
        trained = _Trained(session, args.grad)
        try:
            program: Any = self.guard(lambda: trained.run(name, text, cell, self.names, number))  # type: ignore[arg-type,return-value]
        except BaseException:
            shown = lines_text(session, self._file, f"{text}\n{cell}")
            if shown:
                print(shown)
            raise
        for note in program.notes:
            print(note)
        print(lines_text(session, program.file, program.text))
        if args.grad:
            print(grads_text(session))
        if args.quiet and not args.save:
            return
        document = self.call(lambda: tape_doc(session, name, {program.file: program.text}))
        overlay = {} if args.overlay else {"overlay": "value"}
        self.display_document(document, ["grad" if args.grad else "opt"], args, overlay)


class _Trained:
    """The program of a cell on a tape, with its backward pass if it is asked for."""

    def __init__(self, session: EagerSession, grad: bool) -> None:
        self.session, self.grad = session, grad

    def run(self, name: str, header: str, cell: str, variables: Mapping[str, Any], number: int) -> CellResult:
        """Run the cell; then differentiate its first output."""
        program = run_cell(name, header, cell, variables, number, graph=self.session.tape)
        if self.grad:
            loss = self.session.tape.outputs[0]
            assert isinstance(loss, TensorRef)  # a value of a tape
            self.session.backward(loss)
        return program


class _feeding:
    """A source of arrays for the inputs of a cell: from a dict, or normal(0, 1) in the order of the inputs (indices:
    zeros)."""

    def __init__(self, feed: Any) -> None:
        self.arrays: Mapping[str, Any] = {}
        text = "random" if feed is None else feed
        if isinstance(text, str):
            seed = natural(text.partition(":")[2] or "0")
            if seed is None:
                raise UsageError(f"--feed: given {text}, wanted random or random:SEED, SEED an int ≥ 0")
            self.numbers = np.random.default_rng(seed)
        elif isinstance(feed, Mapping):
            self.arrays, self.numbers = feed, np.random.default_rng(0)
        else:
            raise UsageError(f"--feed: given {type(feed).__name__}, wanted a dict of arrays or random[:SEED]")

    def __call__(self, name: str, type: TensorType) -> Array | None:
        if name in self.arrays or self.arrays:
            return self.arrays.get(name)
        if type.dtype is f32:
            return self.numbers.standard_normal(type.shape).astype(np.float32)
        return np.zeros(type.shape, np.uint32)


def lines_text(session: EagerSession, file: str, text: str) -> str:
    """Return the cell's text with, beside each line, the value of the last node that the line made."""
    last: dict[int, int] = {}
    for node in session.tape.nodes:
        place = next((p for p in session.tape.source(node.id) if p.file == file), None)
        if place is not None:
            last[place.line] = node.id
    rows = text.rstrip("\n").split("\n")
    if not last:
        return ""
    width = min(_WIDEST, max(len(row) for row in rows))
    shown = [rows[0]]
    for number, row in enumerate(rows[1:], start=2):
        id = last.get(number)
        shown.append(row if id is None else f"{row:<{width}}  # {_value(session, id)}")
    return "\n".join(shown)


def _value(session: EagerSession, id: int) -> str:
    buffer = session.tape.buffers[id]
    return f"{buffer.type} {'released' if buffer.released else array_words(session.read_buffer(buffer))}"


def grads_text(session: EagerSession) -> str:
    """Return a line for each leaf that has a gradient."""
    tape = session.tape
    found = [(tape.node(id), TensorRef(tape, id).grad) for id in sorted(tape.grads)]
    return "\n".join(f"∂{n.name or f'%{n.id}'}  # {n.type} {array_words(np.asarray(g))}" for n, g in found)
