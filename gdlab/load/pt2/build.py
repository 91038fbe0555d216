"""Build the graph of an exported program, node by node: unsupported nodes are collected, then refused together."""

from __future__ import annotations

import hashlib
import linecache
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gdlab import ops
from gdlab.base.types import Array
from gdlab.graph import Graph
from gdlab.graph.source import Location
from gdlab.load.onnx.numbers import bounds_of_input, rounded
from gdlab.load.onnx.onnx_layout import joined, reshaped, taken
from gdlab.load.onnx.tensor import GraphParameters, Tensor, kind_of, known
from gdlab.load.pt2.archive import WHERE
from gdlab.load.pt2.aten_layers import LAYERS
from gdlab.load.pt2.aten_layout import LAYOUT, VIEWS, dropout_in_place
from gdlab.load.pt2.aten_math import MATH
from gdlab.load.pt2.call import CODES, Aten, Table, Translate, bound, unknown_arguments
from gdlab.load.pt2.program import AtenNode, ExportedProgram, Meta, Ref
from gdlab.load.shared import Malformed, Unsupported, check_growth, load_errors, refused

TABLE: Table = {**MATH, **LAYOUT, **LAYERS}
IN_PLACE: Table = {"dropout": dropout_in_place}  # whose first argument has another name there
NOTHING = frozenset(("_assert_tensor_metadata",))  # a check of types, which are checked here anyway
SOMETIMES = frozenset("reshape flatten contiguous to type_as broadcast_tensors meshgrid".split())  # views, or copies
WANTED = "operators and arguments that load_pt2 takes"


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor that shares its elements with the result of another node: result `index` of `node`, of `parent`."""

    parent: str
    node: AtenNode
    index: int


def built(
    program: ExportedProgram, train: bool, place_of: Callable[[Location], Location]
) -> tuple[Graph, dict[str, Array]]:
    """Return the graph of a program, and the values of its parameters. `place_of`: a line as the graph tells it."""
    unknown = [(node.label, f"{node}: {reason}".removesuffix(": ")) for node in program.nodes
               for reason in [_unknown(node)] if reason is not None]  # fmt: skip
    if unknown:
        raise refused(WHERE, "operators", unknown, WANTED)
    home = GraphParameters(frozenset(held.name for held in program.held.values()), program.archive.nbytes)
    with Graph() as graph, graph.silent():
        builder = _ProgramBuilder(graph, home, program, train, place_of)
        builder.enter()
        for i, node in enumerate(program.nodes):
            builder.append(i, node)
            check_growth(graph, len(program.nodes), node)
        if builder.unsupported:
            raise refused(WHERE, "operators", builder.unsupported, WANTED)
        builder.leave()
    return graph, home.weights


def _key(node: AtenNode) -> tuple[str, bool]:
    """Return (name in the table, whether the operator changes its first operand)."""
    library, _, rest = node.label.partition(".")
    if library != "aten":
        return "", False
    name, _, overload = rest.partition(".")
    changes = name.endswith("_") and not name.endswith("__")
    name = name[:-1] if changes else name
    return (name if overload in ("default", "") else f"{name}.{overload}"), changes


def _unknown(node: AtenNode) -> str | None:
    """Return the part of a node that is not supported: "" for the operator, else an argument; None if there is none."""
    name, _ = _key(node)
    if name in NOTHING:
        return None
    translate = _translation(node)
    return "" if translate is None else unknown_arguments(translate, node) or None


def _translation(node: AtenNode) -> Translate | None:
    name, changes = _key(node)
    return IN_PLACE.get(name, TABLE.get(name)) if changes else TABLE.get(name)


class _ProgramBuilder:
    """The builder of a graph, which holds a program's tensors by name; None stands for an unsupported result."""

    def __init__(
        self,
        graph: Graph,
        home: GraphParameters,
        program: ExportedProgram,
        train: bool,
        place_of: Callable[[Location], Location],
    ) -> None:
        self.graph, self.home, self.program, self.train, self.place_of = graph, home, program, train, place_of
        self.tensors: dict[str, Tensor | None] = {}
        self.missing: set[str] = set()  # results that no translation gives
        self.views: dict[str, TensorView] = {}
        self.families: dict[str, list[str]] = {}  # of a root, all tensors that share its elements
        self.unsupported: list[tuple[str, str]] = []
        self.last_use: dict[str, int] = {}
        for i, node in enumerate(program.nodes):
            for ref in _refs(node):
                self.last_use[ref.name] = i
        self.last_use |= dict.fromkeys(program.outputs, len(program.nodes))
        self.live = 0  # bytes of constants

    # leaves
    def enter(self) -> None:
        """Add inputs, parameters and buffers."""
        for name, meta in self.program.inputs.items():
            self.tensors[name] = self._slot(name, meta)
        first: dict[object, str] = {}  # the first name of tensors that share their elements
        made: dict[object, Tensor] = {}
        for name, held in self.program.held.items():
            identity = held.stored.identity, held.parameter
            own = first.setdefault(identity, held.name)
            if name in self.last_use:
                if identity not in made:
                    array = held.stored.archive.elements(held.name, held.stored)
                    made[identity] = self._held(own, array, self.program.metas[name], held.parameter)
                self.tensors[name] = made[identity]

    def _slot(self, name: str, meta: Meta) -> Tensor:
        if meta.dtype not in CODES or min(meta.shape, default=1) < 1:
            given = f"{meta.dtype}{list(meta.shape)}"
            raise Malformed(f"input {name!r:.80}", given, "floats, integers or bools, extents ≥ 1")
        kind = kind_of(meta.dtype)
        make = ops.input_u32 if kind == "int" else ops.input
        bounds = bounds_of_input(meta.dtype) if kind == "int" else None
        value = make(name, meta.shape or (1,))
        return rounded(self.home, Tensor(meta.shape, kind, value, dtype=meta.dtype, bounds=bounds))

    def _held(self, name: str, array: Array, meta: Meta, parameter: bool) -> Tensor:
        """Return a held tensor as a parameter, or as a constant: buffers, and where gradients are wanted all that is
        not trained."""
        tensor = replace(known(array, kind_of(meta.dtype)), dtype=meta.dtype)
        if not parameter or (self.train and not meta.trained) or tensor.kind != "float" or not array.size:
            return tensor
        if not array.shape:
            value = self.home.parameter(name, array.reshape(1))
            return Tensor((), "float", value, dtype=meta.dtype)
        return replace(tensor, parameter=name)

    # nodes
    def append(self, i: int, node: AtenNode) -> None:
        """Add the values that a node gives, or note the reason why it gives none."""
        key, changes = _key(node)
        if key in NOTHING:
            return
        for name in filter(None, node.outputs):
            if name in self.tensors or name in self.missing:
                raise Malformed(f"{node}: result {name!r:.80}", "a name that is taken", "a new one")
        if any(self._lost(node, ref) for ref in _refs(node)):
            self._set(node, ())
            return
        first = len(self.graph)
        try:
            made = self._made(key, node, changes)
            if changes:
                self._change(i, node, made[0])
        except Unsupported as error:
            self.unsupported.append((node.label, f"{node}: {error}"))
            made = ()
        self._set(node, made)
        if made and not changes:
            self._note_view(key, node)
        self._count(made)
        self._tell(node, made, first)
        self._release(i, node)

    def _lost(self, node: AtenNode, ref: Ref) -> bool:
        if ref.name in self.missing:
            raise Unsupported(f"{node} reads {ref.name}, a result that is not made")
        if ref.name not in self.tensors:
            wanted = "an input, a tensor, or what a node before it gives"
            raise Malformed(f"{node}: operand {ref.name!r:.80}", "nothing", wanted)
        return self.tensors[ref.name] is None

    def _made(self, key: str, node: AtenNode, changes: bool) -> tuple[Tensor, ...]:
        """Return the results of a node, of the shapes and types that the file says; an error names the node."""
        metas = [self.program.metas.get(name) for name in node.outputs]
        with load_errors(WHERE, str(node), "what the operator takes", Unsupported):
            translate: Translate = IN_PLACE.get(key, TABLE[key]) if changes else TABLE[key]
            call = Aten(node, self.home, [m for m in metas if m is not None], self.train, self.program.metas)
            given = bound(translate, {name: self._filled(value) for name, value in node.arguments})
            result = translate(call, **given)
            made = (result,) if isinstance(result, Tensor) else tuple(result)
            return tuple(self._checked(t, meta) for t, meta in zip(made, metas, strict=False))

    def _filled(self, value: Any) -> Any:
        """Return an argument with tensors in place of their names."""
        if isinstance(value, Ref):
            return self.tensors[value.name]
        return tuple(map(self._filled, value)) if isinstance(value, tuple) else value

    def _checked(self, t: Tensor, meta: Meta | None) -> Tensor:
        if meta is None:
            return t
        if t.shape != meta.shape:
            raise Malformed("result", f"{list(meta.shape)} in the file", f"{list(t.shape)}, as its operands say")
        if meta.dtype not in CODES:
            raise Unsupported(f"a result of {meta.dtype}")
        if t.kind != kind_of(meta.dtype):
            raise Malformed("result", f"{meta.dtype} in the file", f"{t.dtype or t.kind}, as its operands say")
        if t.dtype == meta.dtype or t.known:
            return replace(t, dtype=meta.dtype)
        return rounded(self.home, replace(t, dtype=meta.dtype))

    def _set(self, node: AtenNode, made: Sequence[Tensor]) -> None:
        """Name results; those that a translation does not make may not be read."""
        for k, name in enumerate(node.outputs):
            if not name:
                continue
            if k < len(made):
                self.tensors[name] = made[k]
            elif made:
                self.missing.add(name)
            else:
                self.tensors[name] = None

    def _tell(self, node: AtenNode, made: Sequence[Tensor], first: int) -> None:
        """Give new nodes the user's line, and those of results their names."""
        if node.place is not None:
            chain = (self.place_of(node.place),)
            for id in range(first, len(self.graph)):
                self.graph.attach_source(id, chain)
        for name, t in zip(node.outputs, made, strict=False):
            if name and t.value is not None and t.value.id >= first and not t.value.name:
                self.graph.named(t.value, name)

    def _count(self, made: Iterable[Tensor]) -> None:
        """Raise if constants take more memory than the file's size allows."""
        self.live += sum(t.array.nbytes for t in made if t.known and t.array is not None)
        if self.live > (most := max(3 << 23, 3 * self.home.nbytes)):
            raise Malformed("constants", f"{self.live:,} bytes at once", f"at most {most:,} while loading")

    def _release(self, i: int, node: AtenNode) -> None:
        """Forget constants that no later node reads and that share no elements."""
        for name in {*(ref.name for ref in _refs(node)), *node.outputs}:
            t = self.tensors.get(name)
            alone = name not in self.families and name not in self.views and name not in self.program.held
            if t is not None and t.known and alone and self.last_use.get(name, i) <= i:
                self.live -= np.asarray(t.array).nbytes
                self.tensors[name] = None

    # changes in place
    def _note_view(self, key: str, node: AtenNode) -> None:
        name = key.partition(".")[0]
        refs = _refs(node)
        if name not in VIEWS or not refs:
            return
        for k, output in enumerate(node.outputs):
            if output:
                parent = refs[k if name in ("broadcast_tensors", "meshgrid") else 0].name
                self.views[output] = TensorView(parent, node, k)
                self.families.setdefault(self._root(parent), []).append(output)

    def _root(self, name: str) -> str:
        while name in self.views:
            name = self.views[name].parent
        return name

    def _change(self, i: int, node: AtenNode, new: Tensor) -> None:
        """Replace the first operand by `new`; all tensors that share its elements change too."""
        name = next(v.name for _, v in node.arguments if isinstance(v, Ref))
        root, old = self._root(name), self.tensors[name]
        if root in self.program.held or root in self.program.inputs:
            raise Unsupported("a change of a parameter, a buffer or an input")
        if old is None or new.shape != old.shape:
            raise Unsupported("a change of the shape of an operand")
        alike = [n for n in (root, *self.families.get(root, ())) if n != name and self.last_use.get(n, -1) > i]
        alike = [n for n in alike if n not in node.outputs]
        if alike:
            self._change_family(root, name, alike, new)
        self.tensors[name] = new
        if node.outputs and node.outputs[0]:
            self.views[node.outputs[0]] = TensorView(name, node, -1)
            self.families.setdefault(root, []).append(node.outputs[0])

    def _change_family(self, root: str, name: str, alike: Sequence[str], new: Tensor) -> None:
        base = self.tensors[root]
        if base is None:
            raise Unsupported("a change of a part of a tensor that is not made")
        places = self._places(name, base)
        count = base.size
        source = np.arange(count)
        source[places.reshape(-1)] = count + np.arange(new.size)
        both = joined(self.home, (reshaped(self.home, base, (count,)), reshaped(self.home, new, (new.size,))), 0)
        flat = taken(self.home, both, 0, source.tolist())
        for other in (root, *alike):
            old = self.tensors[other]
            if old is not None:
                at = self._places(other, base)
                part = reshaped(self.home, taken(self.home, flat, 0, at.reshape(-1).tolist()), old.shape)
                self.tensors[other] = replace(part, dtype=old.dtype, bounds=None)

    def _places(self, name: str, base: Tensor) -> Array:
        """Return the places of a tensor's elements in its root."""
        chain = []
        while name in self.views:
            chain.append(self.views[name])
            name = self.views[name].parent
        self.home.check_size((base.size,))
        places = replace(known(np.arange(base.size).reshape(base.shape), "int"), dtype="int64")
        for view in reversed(chain):
            if view.index < 0:
                continue
            key, _ = _key(view.node)
            if key.partition(".")[0] in SOMETIMES:
                raise Unsupported(f"a change of a tensor that {view.node.label} may have copied")
            metas = [replace(self.program.metas[n], dtype="int64") for n in view.node.outputs if n]
            own = {k: self._filled(v) for k, v in view.node.arguments}
            own |= {k: places for k, v in view.node.arguments if isinstance(v, Ref) and v.name == view.parent}
            result = TABLE[key](Aten(view.node, self.home, metas, False, self.program.metas), **bound(TABLE[key], own))
            places = result if isinstance(result, Tensor) else result[view.index]
        return np.asarray(places.array)

    # results
    def leave(self) -> None:
        """Set the outputs of the graph."""
        taken_names: set[str] = set()
        for name in self.program.outputs:
            t = self.tensors.get(name)
            if t is None:
                raise Malformed(f"output {name!r:.80}", "nothing", "a tensor that a node gives")
            own, i = name, 1
            while own in taken_names:
                i += 1
                own = f"{name}_{i}"
            taken_names.add(own)
            self.graph.output(self.home.value(t), own)
        if not self.program.outputs:
            raise Malformed("outputs", "none", "at least one")


def _refs(node: AtenNode) -> list[Ref]:
    found: list[Ref] = []
    for _, value in node.arguments:
        found += [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, Ref)]
    return found


# source lines ---------------------------------------------------------------------------------------------------------
def quoted(program: ExportedProgram, name: str) -> Callable[[Location], Location]:
    """Return the source places in the lines that the archive quotes; no file that it names is read."""
    digest = hashlib.sha256(repr(sorted(program.lines.items())).encode()).hexdigest()[:8]
    files: dict[str, str] = {}
    for i, (file, lines) in enumerate(sorted(program.lines.items())):
        base = file.replace("\\", "/").rpartition("/")[2].strip("<>") or "module"
        files[file] = f"<{name} {digest}.{i}>/{base}"
        if max(lines) < 20_000:
            listing = [f"{lines.get(n, '')}\n" for n in range(1, max(lines) + 1)]
            linecache.cache[files[file]] = (sum(map(len, listing)), None, listing, files[file])

    def place(at: Location) -> Location:
        return replace(at, file=files.get(at.file, f"<{name} {digest}>/module"))

    return place


def as_written(at: Location) -> Location:
    """Return a source place in a file of this machine."""
    return at


def markdown() -> str:
    """Return the names of all operators that are supported, as `docs/loading.md` lists them: `python -c "from
    gdlab.load.pt2.build import markdown; print(markdown())"`."""
    names = sorted({key.partition(".")[0] for key in TABLE})
    return textwrap.fill(" ".join(names) + ".", 118, break_on_hyphens=False)
