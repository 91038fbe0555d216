"""Open a function of JAX as a graph of gdlab, read from the jaxpr that tracing it gives.

    model = gd.load_jax(loss, parameters, x, y)               # loss(parameters, x, y), parameters a pytree
    session = gd.build_session(model.graph)
    model.set_parameters(session)
    parameters, *_ = model.arguments(session)                 # the same pytree, with what was trained

Leaves of pytrees are parameters under their dotted paths, arrays are inputs under the names of the function's
arguments. Floats of any width are f32; integer inputs are u32. Calls of other functions are written out.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gdlab import ops
from gdlab.base.errors import ArgumentError, GdlabError, LoadError
from gdlab.base.types import Array
from gdlab.base.words import plural
from gdlab.graph import Graph
from gdlab.graph.source import Location
from gdlab.load.jaxpr.equation import Equation
from gdlab.load.jaxpr.primitives import PRIMITIVES
from gdlab.load.onnx.numbers import bounds_of_input, rounded
from gdlab.load.onnx.onnx_layout import joined
from gdlab.load.onnx.tensor import GraphParameters, Tensor, kind_of, known
from gdlab.load.pt2.call import CODES, Aten
from gdlab.load.pt2.program import AtenNode, Meta
from gdlab.load.shared import Malformed, Unsupported, check_growth, load_errors, refused

if TYPE_CHECKING:
    from gdlab.session import Session

WHERE = "load_jax"
WANTED = "primitives and parameters that load_jax takes"
INLINED = {  # primitives that call a jaxpr -> the parameter that holds it
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "checkpoint": "jaxpr",
    "remat": "jaxpr", "remat2": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}  # fmt: skip
BORDERS = ("pjit.py", "custom_derivatives.py", "ad_checkpoint.py", "loops.py")  # of JAX, where a function is traced
ADVICE = {  # of primitives that are not taken, by the first word of their names
    "while": "a fori_loop whose bounds are constants, or a scan, is written out",
    "random": "draw the numbers outside, and give them as an input",
    "threefry2x32": "draw the numbers outside, and give them as an input",
}  # fmt: skip
MOST_STEPS = 512  # of a scan, whose body is written out
MOST_EQUATIONS = 1 << 16


@dataclass(frozen=True, slots=True)
class JaxModel:
    """The graph, the values of its parameters (float32) by their dotted paths, and the arguments that it was traced
    with."""

    graph: Graph
    weights: Mapping[str, Array]
    examples: tuple[Any, ...]
    paths: tuple[tuple[str, ...], ...]  # of each argument, the names of its leaves

    def __repr__(self) -> str:
        return f"<JaxModel: {plural(len(self.graph), 'node')}, {plural(len(self.weights), 'parameter')}>"

    def set_parameters(self, session: Session) -> None:
        """Set all parameters of a session of the graph."""
        for name, values in self.weights.items():
            if session.has_parameter(name):
                session.set_parameter(name, values)

    def arguments(self, trained: Session | Mapping[str, Array]) -> tuple[Any, ...]:
        """Return the arguments of the function with the parameters of a session, or of a dict by name, in the places,
        shapes and types of those that it was traced with."""
        jax = _jax()
        if isinstance(trained, Mapping):
            values: Mapping[str, Array] = trained
        else:
            values = trained.read_params(name for name in self.weights if trained.has_parameter(name))
        unknown = [name for name in values if name not in self.weights]
        if unknown:
            raise ArgumentError("arguments", "parameter", repr(unknown[0])[:80], "one of the model's")
        made = []
        for example, names in zip(self.examples, self.paths, strict=True):
            leaves, tree = jax.tree_util.tree_flatten(example)
            both = zip(leaves, names, strict=True)
            made.append(tree.unflatten([_like(leaf, values[name]) if name in values else leaf for leaf, name in both]))
        return tuple(made)


def _like(leaf: Any, values: Array) -> Array:
    return np.asarray(values).reshape(np.shape(leaf)).astype(leaf.dtype)


def load_jax(function: Callable[..., Any], *examples: Any, parameters: Sequence[int] | None = None) -> JaxModel:
    """Return the graph of a function of JAX, traced with these examples of its arguments. Floats of arguments that are
    pytrees become parameters, or of those whose numbers are in `parameters`; all other leaves are inputs. What the
    function closes over is constant. The first output is the loss where one trains.

    All primitives that are not understood are listed in one `LoadError`, each with the user's line; so are functions
    with a derivative that is not JAX's own (`jax.custom_vjp`, `jax.custom_jvp`), since gdlab differentiates bodies.
    """
    jax = _jax()
    slots = _slots(jax, function, examples, parameters)
    try:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*examples)
    except Exception as error:  # of whatever the function does
        given = f"{type(error).__name__}: {error}"
        raise LoadError(WHERE, getattr(function, "__name__", "function"), f"{given:.400}", "what JAX traces") from error
    outputs = [_output_name(path) for path in _paths(jax, shapes)]
    with load_errors(WHERE, "function", WANTED):
        graph, weights = _built(jax, closed, [slot for own in slots for slot in own], outputs)
    return JaxModel(graph, weights, examples, tuple(tuple(slot.name for slot in own) for own in slots))


def _jax() -> Any:
    try:
        import jax
    except ImportError:
        raise LoadError(WHERE, "package jax", "none", "pip install jax") from None
    return jax


def _output_name(path: Sequence[str]) -> str:
    name = ".".join(path)
    return f"output_{name}" if name[:1].isdecimal() else name or "output"


# arguments ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Slot:
    """A leaf of an argument: its name in the graph, and whether it is a parameter."""

    name: str
    leaf: Any
    parameter: bool


def _paths(jax: Any, tree: Any) -> list[tuple[str, ...]]:
    """Return the words that lead to each leaf."""
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [tuple(_word(key) for key in path) for path, _ in found]


def _word(key: Any) -> str:
    given = next((getattr(key, name) for name in ("key", "idx", "name") if hasattr(key, name)), key)
    return str(given).strip(".[]'\"")


def _slots(
    jax: Any, function: Callable[..., Any], examples: Sequence[Any], parameters: Sequence[int] | None
) -> list[list[_Slot]]:
    """Return the leaves of each argument. A name begins with the argument's, but in the only one with parameters."""
    trees = [not jax.tree_util.all_leaves([example]) for example in examples]
    chosen = [i for i, is_tree in enumerate(trees) if is_tree] if parameters is None else list(parameters)
    if any(isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < len(examples) for i in chosen):
        wanted = f"numbers of arguments: 0 … {len(examples) - 1}"
        raise ArgumentError(WHERE, "parameters", f"{parameters!r:.80}", wanted)
    words, taken, found = _argument_names(function, len(examples)), set[str](), []
    for i, example in enumerate(examples):
        leaves, own = jax.tree_util.tree_flatten(example)[0], []
        for path, leaf in zip(_paths(jax, example), leaves, strict=True):
            alone = chosen == [i] and path
            name = ".".join(path if alone else (words[i], *path))
            if not hasattr(leaf, "dtype") and not isinstance(leaf, (bool, int, float)):
                raise ArgumentError(WHERE, name[:80], type(leaf).__name__, "an array or a number in every place")
            if name in taken:
                raise ArgumentError(WHERE, name[:80], "two leaves of this path", "names that differ")
            taken.add(name)
            own.append(_Slot(name, leaf, i in chosen))
        found.append(own)
    return found


def _argument_names(function: Callable[..., Any], count: int) -> list[str]:
    try:
        known_names = [
            p.name for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]  # fmt: skip
    except (TypeError, ValueError):
        known_names = []
    return [known_names[i] if i < len(known_names) else f"input_{i}" for i in range(count)]


# the graph ------------------------------------------------------------------------------------------------------------
def _built(jax: Any, closed: Any, slots: Sequence[_Slot], outputs: Sequence[str]) -> tuple[Graph, dict[str, Array]]:
    constants = sum(np.asarray(c).nbytes for c in _arrays(closed.consts))
    home = GraphParameters(frozenset(slot.name for slot in slots), constants)
    with Graph() as graph, graph.silent():
        builder = _Builder(graph, home, (str(Path(jax.__file__).parent), str(Path(__file__).parents[2])))
        operands = [builder.slot(slot, var.aval) for slot, var in zip(slots, closed.jaxpr.invars, strict=True)]
        builder.refuse_unknown(closed.jaxpr)
        results = builder.run(closed.jaxpr, _arrays(closed.consts), operands)
        if builder.unsupported:
            raise refused(WHERE, "primitives", builder.unsupported, WANTED)
        for i, t in enumerate(results):
            assert t is not None  # nothing is unsupported
            graph.output(home.value(t), outputs[i])
        if not results:
            raise Malformed("outputs", "none", "at least one")
    return graph, home.weights


def _arrays(consts: Sequence[Any]) -> list[Array]:
    try:
        return [np.asarray(c) for c in consts]
    except TypeError as error:  # keys of random numbers
        raise Unsupported(f"a constant that is no array: {error!s:.120}") from None


@dataclass(slots=True)
class _Builder:
    """The translator of jaxprs, which holds their tensors by variable; None stands for an unsupported result. `own`:
    folders whose frames are no user's."""

    graph: Graph
    home: GraphParameters
    own: tuple[str, ...]
    unsupported: list[tuple[str, str]] = field(default_factory=list)
    count: int = 0
    outer: Location | None = None  # the line that called the jaxpr which is written out

    def slot(self, slot: _Slot, aval: Any) -> Tensor:
        """Add an input, or a parameter; integers of parameters are constants."""
        dtype, shape = str(aval.dtype), tuple(aval.shape)
        if dtype not in CODES or min(shape, default=1) < 1:
            wanted = "floats, integers or bools, extents ≥ 1"
            raise Malformed(f"argument {slot.name!r:.80}", f"{dtype}{list(shape)}", wanted)
        kind = kind_of(dtype)
        if slot.parameter:
            array = np.asarray(slot.leaf)
            tensor = replace(known(array, kind), dtype=dtype)
            if kind != "float":
                return tensor
            if not shape:
                return Tensor((), kind, self.home.parameter(slot.name, array.reshape(1)), dtype=dtype)
            return replace(tensor, parameter=slot.name)
        make = ops.input_u32 if kind == "int" else ops.input
        bounds = bounds_of_input(dtype) if kind == "int" else None
        value = make(slot.name, shape or (1,))
        return rounded(self.home, Tensor(shape, kind, value, dtype=dtype, bounds=bounds))

    def refuse_unknown(self, jaxpr: Any) -> None:
        """Raise for all primitives without a translation, before anything is made."""
        names = {*PRIMITIVES, *INLINED, "scan", "cond"}
        unknown, waiting = list[tuple[str, str]](), [(jaxpr, self.outer)]
        for inner, self.outer in waiting:
            for e in inner.eqns:
                if e.primitive.name not in names:
                    advice = ADVICE.get(e.primitive.name.partition("_")[0])
                    told = self._told(e)
                    unknown.append((e.primitive.name, f"{told}: {advice}" if advice else told))
                elif rule := self._own_derivative(e):
                    unknown.append((rule, self._told(e).replace(e.primitive.name, rule, 1)))
                waiting += [(each, self._place(e)) for each in _inner(e)]
        self.outer = None
        if unknown:
            raise refused(WHERE, "primitives", unknown, WANTED)

    def _own_derivative(self, e: Any) -> str:
        """Return the kind and name of a function with a derivative of its own, unless JAX defines it; "" for others.
        The gradient of the body may differ from it."""
        kind = e.primitive.name
        if not kind.startswith("custom_"):
            return ""
        called = e.params[INLINED[kind]]
        source = getattr(getattr(called, "jaxpr", called).debug_info, "func_src_info", "")
        name, _, place = str(source).partition(" at ")
        return "" if place.startswith(self.own) else f"{kind.removesuffix('_call')} of {name:.60}"

    def run(self, jaxpr: Any, consts: Sequence[Array], operands: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Append the equations of a jaxpr; return its results."""
        tensors: dict[Any, Tensor | None] = dict(zip(jaxpr.invars, operands, strict=True))
        for var, array in zip(jaxpr.constvars, consts, strict=True):
            tensors[var] = replace(known(array, kind_of(str(array.dtype))), dtype=str(array.dtype))
        for equation in jaxpr.eqns:
            given = [self._read(tensors, atom) for atom in equation.invars]
            made = [None] * len(equation.outvars) if None in given else self._equation(equation, given)
            tensors.update(zip(equation.outvars, made, strict=True))
        return [self._read(tensors, atom) for atom in jaxpr.outvars]

    def _read(self, tensors: Mapping[Any, Tensor | None], atom: Any) -> Tensor | None:
        if hasattr(atom, "val"):
            dtype = str(atom.aval.dtype)
            return replace(known(np.asarray(atom.val), kind_of(dtype)), dtype=dtype)
        return tensors[atom]

    def _equation(self, e: Any, given: Sequence[Any]) -> Sequence[Tensor | None]:
        name, first = e.primitive.name, len(self.graph)
        self.count += 1
        if self.count > MOST_EQUATIONS:
            raise Malformed("equations", f"more than {MOST_EQUATIONS:,}, calls and loops written out", "fewer")
        try:
            if name in CALLS:
                outer, self.outer = self.outer, self._place(e)
                try:
                    return CALLS[name](self, e, given)
                finally:
                    self.outer = outer
            made = self._made(e, given)
        except Unsupported as error:
            self.unsupported.append((name, f"{self._told(e)}: {error}"))
            return [None] * len(e.outvars)
        except Malformed as error:
            what, value, wanted = error.args
            raise Malformed(f"{self._told(e)}: {what}", value, wanted) from None
        except GdlabError as error:
            raise Malformed(f"{self._told(e)}: {error.what}", error.given, error.wanted) from None
        check_growth(self.graph, self.count, name)
        if (place := self._place(e)) is not None:
            for id in range(first, len(self.graph)):
                self.graph.attach_source(id, (place,))
        return made

    def _made(self, e: Any, given: Sequence[Tensor]) -> list[Tensor]:
        translation = PRIMITIVES.get(e.primitive.name)
        if translation is None:  # in a branch
            raise Unsupported("which is not understood")
        metas = [Meta(str(v.aval.dtype), tuple(v.aval.shape)) for v in e.outvars]
        if all(0 in meta.shape and meta.dtype in CODES for meta in metas):  # no elements, whatever is computed
            empty = [known(np.zeros(meta.shape), kind_of(meta.dtype)) for meta in metas]
            return [replace(t, dtype=meta.dtype) for t, meta in zip(empty, metas, strict=True)]
        call = Aten(AtenNode(e.primitive.name, (), (f"{e.primitive.name}.{self.count}",)), self.home, metas, True, {})
        result = translation(Equation(call, e.params), *given)
        made = (result,) if isinstance(result, Tensor) else tuple(result)
        return [self._checked(t, meta) for t, meta in zip(made, metas, strict=False)]

    def _checked(self, t: Tensor, meta: Meta) -> Tensor:
        if meta.dtype not in CODES:
            raise Unsupported(f"a result of {meta.dtype}")
        if t.shape != meta.shape or t.kind != kind_of(meta.dtype):
            raise Malformed("result", f"{t.kind}{list(t.shape)}", f"{meta.dtype}{list(meta.shape)}, as JAX says")
        typed = replace(t, dtype=meta.dtype)
        return typed if t.dtype == meta.dtype or t.known or t.parameter else rounded(self.home, typed)

    # calls and loops
    def _inlined(self, e: Any, given: Sequence[Tensor]) -> Sequence[Tensor | None]:
        return self._called(e.params[INLINED[e.primitive.name]], given)

    def _called(self, jaxpr: Any, given: Sequence[Tensor | None]) -> list[Tensor | None]:
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        return self.run(inner, _arrays(getattr(jaxpr, "consts", ())), given)

    def _chosen(self, e: Any, given: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return the results of the branch that a constant chooses; else append all branches, and choose among their
        results."""
        which, *operands = given
        branches = e.params["branches"]
        if which.known:
            at = min(max(int(np.asarray(which.array)), 0), len(branches) - 1)
            return self._called(branches[at], operands)
        made = [self._called(branch, operands) for branch in branches]
        metas = [Meta(str(v.aval.dtype), tuple(v.aval.shape)) for v in e.outvars]
        return [self._selected(which, cases, meta) for meta, cases in zip(metas, zip(*made, strict=True), strict=True)]

    def _selected(self, which: Tensor, cases: Sequence[Tensor | None], meta: Meta) -> Tensor | None:
        found = [t for t in cases if t is not None]
        if len(found) < len(cases):
            return None
        call = Aten(AtenNode("cond", (), (f"cond.{self.count}",)), self.home, [meta], True, {})
        chosen = PRIMITIVES["select_n"](Equation(call, {}), which, *found)
        assert isinstance(chosen, Tensor)  # the one result of `select_n`
        return self._checked(chosen, meta)

    def _scanned(self, e: Any, given: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Write a loop out, step by step."""
        p = e.params
        if p["length"] > MOST_STEPS or p["length"] < 1:
            raise Unsupported(f"a loop of {p['length']:,} steps: at most {MOST_STEPS} are written out")
        fixed, carry = list(given[: p["num_consts"]]), list[Tensor | None](given[p["num_consts"] :][: p["num_carry"]])
        rows = given[p["num_consts"] + p["num_carry"] :]
        collected: list[list[Tensor | None]] = []
        steps = range(p["length"])
        for step in reversed(steps) if p["reverse"] else steps:
            made = self._called(p["jaxpr"], [*fixed, *carry, *(self._row(x, step) for x in rows)])
            carry, stacked = made[: p["num_carry"]], made[p["num_carry"] :]
            collected.append(stacked)
        if p["reverse"]:
            collected.reverse()
        return [*carry, *(self._stacked(column) for column in zip(*collected, strict=True))]

    def _row(self, x: Tensor, step: int) -> Tensor:
        call = Aten(AtenNode("scan", (), (f"scan.{self.count}.{step}",)), self.home, (), True, {})
        first, last = call.ints([step]), call.ints([step + 1])
        return call.reshaped(x, x.shape[1:]) if x.shape[0] == 1 else call.reshaped(
            call.like(x, call.onnx("Slice", x, first, last, call.ints([0]))), x.shape[1:]
        )  # fmt: skip

    def _stacked(self, column: Sequence[Tensor | None]) -> Tensor | None:
        parts = [t for t in column if t is not None]
        if len(parts) < len(column):
            return None
        call = Aten(AtenNode("scan", (), (f"scan.{self.count}",)), self.home, (), True, {})
        rows = [call.reshaped(t, (1, *t.shape)) for t in parts]
        return replace(joined(self.home, rows, 0), dtype=parts[0].dtype)

    # places
    def _place(self, e: Any) -> Location | None:
        """Return the innermost line that is neither JAX's nor ours. What JAX's own functions call has the line that
        called these: JAX keeps the jaxpr of their first call, and that one's lines with it."""
        traceback = e.source_info.traceback
        for frame in traceback.frames if traceback is not None else ():
            if not frame.file_name.startswith(self.own):
                return Location(frame.file_name, frame.line_num, -1, frame.line_num, -1, frame.function_name)
            if self.outer is not None and frame.file_name.endswith(BORDERS):
                break
        return self.outer

    def _told(self, e: Any) -> str:
        place = self._place(e)
        at = f" ({place.file.replace(chr(92), '/').rpartition('/')[2]}:{place.line})" if place is not None else ""
        return f"{e.primitive.name}{at}"


CALLS = {**dict.fromkeys(INLINED, _Builder._inlined), "cond": _Builder._chosen, "scan": _Builder._scanned}


def _inner(e: Any) -> list[Any]:
    """Return the jaxprs that an equation calls for any operands."""
    name = {**INLINED, "scan": "jaxpr"}.get(e.primitive.name)
    return [] if name is None else [getattr(e.params[name], "jaxpr", e.params[name])]


def markdown() -> str:
    """Return the names of all primitives that are supported, as `docs/loading.md` lists them: `python -c "from
    gdlab.load.jaxpr.jax_model import markdown; print(markdown())"`."""
    return textwrap.fill(" ".join(sorted({*PRIMITIVES, *INLINED, "cond", "scan"})) + ".", 118, break_on_hyphens=False)
