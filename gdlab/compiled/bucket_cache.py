"""Compile a graph for a few extents, and run it on any number of rows: `BucketedCompileCache`."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gdlab.base.closing import Closing
from gdlab.base.copies import refuse_copies
from gdlab.base.errors import ActiveExtentUnsupported, ArgumentError, SessionError, ShapeError, unknown_name
from gdlab.base.kinds import FUNCTION, INTEGER, NAMED, SEVERAL, TEXT, Kind, check_kind, either, instance, kinds
from gdlab.base.types import Array
from gdlab.base.words import plural
from gdlab.compiled.boundary_values import named_values
from gdlab.compiled.buckets import bucket_of, checked_buckets, pad_rows, power_of_two_buckets, slice_rows
from gdlab.compiled.build_compiled import DEFAULT, DEFAULT_LIMITS, CompiledOptions, build_graph
from gdlab.compiled.compiled_graph import CompiledGraph
from gdlab.compiled.launch import LaunchRequest
from gdlab.graph import Graph
from gdlab.session import DeviceLike

EXACT = 8  # graphs kept that are compiled at the rows that there are
WHERE = "BucketedCompileCache"
PARAMS = either("a mapping from names, or a function that returns one", NAMED, FUNCTION)
Params = Mapping[str, Any]
Build = Callable[[int], Graph | tuple[Graph, Params]]


def _own(data: Any) -> Any:
    """Return a copy of an array or list, which its owner may change before it is used; other data as it is."""
    return np.array(data) if isinstance(data, np.ndarray) else copy.deepcopy(data) if isinstance(data, list) else data


@dataclass(frozen=True, slots=True, eq=False)
class CacheRunInput:
    """An input of `run_padded_mixed`: rows of `row_inner` elements, which are padded; None: data without padding."""

    name: str
    data: Any
    row_inner: int | None = None


class BucketedCompileCache(Closing):
    """A graph compiled at the upper end of each bucket of extents, at its first use. All buckets share one copy of the
    parameters on the device; those whose type depends on the extent are a bucket's own.

    `buckets`: ranges of step 1, in order. `params`: values of parameters, or a function that returns them.
    `bucket_axes`: True, axis 0 of every input that is as long as the bucket, or axes by input. `max_resident`: the most
    buckets kept compiled; the one that was used longest ago goes. `on_unsupported`: `"exact"` compiles a graph that
    cannot run on a part of its extents at the rows that there are. `options`: others of `build_compiled_graph`.
    """

    def __init__(
        self,
        device: DeviceLike,
        buckets: Iterable[range],
        *,
        params: Params | Callable[[], Params] | None = None,
        bucket_axes: Any = True,
        max_resident: int | None = None,
        on_unsupported: Literal["error", "exact"] = "error",
        optimize: Mapping[str, Any] | None = DEFAULT,
        boundary: Mapping[str, Any] | None = None,
        bucket_random: bool = False,
    ) -> None:
        self.device, self.buckets = device, checked_buckets(buckets)
        if max_resident is not None and not (INTEGER.holds(max_resident) and max_resident >= 1):
            raise ArgumentError(WHERE, "max_resident", repr(max_resident), "an int of 1 or more, or None")
        if on_unsupported not in ("error", "exact"):
            raise ArgumentError(WHERE, "on_unsupported", repr(on_unsupported), "'error' or 'exact'")
        if params is not None:
            check_kind(WHERE, "params", params, PARAMS)
        self.bucket_axes, self.max_resident, self.on_unsupported = bucket_axes, max_resident, on_unsupported
        self.exact_runs, self.closed = 0, False
        self._options = optimize, boundary or {}, bucket_random
        self._params = params if params is None or callable(params) else {n: _own(data) for n, data in params.items()}
        self._compiled: dict[int, CompiledGraph] = {}  # by bucket, the one used longest ago first
        self._exact: dict[int, CompiledGraph] = {}  # by rows
        self._set: dict[str, Any] = {}  # before the first bucket was compiled
        self._own: dict[str, set[int]] = {}  # parameters that are a bucket's own -> the buckets
        self._lock = threading.RLock()  # of the five above

    __reduce__ = refuse_copies("bucketed compile cache", "another cache of the same build function")

    @classmethod
    def power_of_two_ladder(cls, device: DeviceLike, min: int, max: int, **options: Any) -> BucketedCompileCache:
        """Return a cache whose buckets end at powers of two, from `min` on until one reaches `max`."""
        return cls(device, power_of_two_buckets(min, max), **options)

    # queries ----------------------------------------------------------------------------------------------------------
    @property
    def total_buckets(self) -> int:
        """The number of buckets."""
        return len(self.buckets)

    @property
    def compiled_count(self) -> int:
        """The number of buckets that are compiled at present."""
        return len(self._compiled)

    @kinds(key=INTEGER)
    def bucket_for(self, key: int) -> int | None:
        """Return the index of the bucket that holds an extent, or None."""
        return bucket_of(self.buckets, key)

    def __repr__(self) -> str:
        compiled = f"{self.compiled_count} of {plural(self.total_buckets, 'bucket')} compiled"
        return f"<BucketedCompileCache: {'closed' if self.closed else compiled}>"

    def _check_open(self) -> None:
        if self.closed:
            raise SessionError(WHERE, "cache", "closed", "an open one")

    # compiling --------------------------------------------------------------------------------------------------------
    @kinds(key=INTEGER, build=FUNCTION)
    def get_or_compile(self, key: int, build: Build) -> tuple[int, CompiledGraph] | None:
        """Return (upper, the graph compiled for the bucket of an extent), or None where no bucket holds it.
        `build(upper)` returns a graph, or (graph, values of parameters), and is called once for each bucket."""
        index = self.bucket_for(key)
        if index is None:
            return None
        upper = self.buckets[index].stop - 1
        return upper, self._graph_of(index, upper, build)

    def _graph_of(self, index: int, upper: int, build: Build) -> CompiledGraph:
        with self._lock:
            self._check_open()
            graph = self._compiled.pop(index, None)
            if graph is None:
                graph = self._build(index, upper, build, self.bucket_axes)
            self._compiled[index] = graph
            while self.max_resident is not None and len(self._compiled) > self.max_resident:
                self._compiled.pop(next(iter(self._compiled))).close()
            return graph

    def _build(self, index: int, upper: int, build: Build, axes: Any) -> CompiledGraph:
        made = build(upper)
        graph, given = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
        if not isinstance(graph, Graph) or not NAMED.holds(given):
            wanted = "a Graph, or (Graph, values by parameter)"
            raise ArgumentError(WHERE, f"build({upper})", type(made).__name__, wanted)
        source = next(iter((*self._compiled.values(), *self._exact.values())), None)
        if axes is True:
            axes = {node.name: 0 for node in graph.inputs if node.type.rank and node.type.shape[0] == upper}
        optimize, boundary, bucket_random = self._options
        options = CompiledOptions(self.device, optimize, boundary, axes, False, bucket_random, None)
        types = {node.name: node.type for node in graph.parameters}
        there = {} if source is None else source.plan.param_types
        shared = [name for name, type in types.items() if there.get(name) == type]
        compiled = build_graph(graph, options, source if shared else None, shared, *DEFAULT_LIMITS)
        try:
            if axes is not None and compiled.signature.upper != upper:
                raise ArgumentError(WHERE, f"bucket {index}", f"a graph of {compiled.signature.upper}", f"of {upper}")
            self._fill(compiled, given, frozenset(shared) if source is not None else frozenset())
        except BaseException:
            compiled.close()
            raise
        if source is not None:
            for name in types.keys() - set(shared):
                self._own.setdefault(name, set()).add(index)
                if name in there:
                    self._own[name].update(k for k, other in self._compiled.items() if other is source)
        return compiled

    def _fill(self, compiled: CompiledGraph, given: Params, shared: frozenset[str]) -> None:
        """Set the parameters that have no value on the device yet."""
        ours = self._params() if callable(self._params) else self._params or {}
        check_kind(WHERE, "params()", ours, NAMED)
        values = {**ours, **given, **self._set} if not shared else {**ours, **given}
        unset = set(compiled.session.unset_parameters)
        for name in values:
            if name not in compiled.plan.param_types:
                self._set.pop(name, None)  # or every later bucket would be refused
                raise unknown_name(WHERE, "parameter", str(name), compiled.plan.param_types)
        compiled.load_params({name: data for name, data in values.items() if name in unset})

    @kinds(name=TEXT)
    def set_param(self, name: str, data: Any) -> None:
        """Set a parameter of all buckets, also of those that are compiled later."""
        with self._lock:
            self._check_open()
            if name in self._own:
                given = f"one of its own in the buckets {', '.join(map(str, sorted(self._own[name])))}"
                raise SessionError("set_param", f"parameter {name}", given, "set_param of each bucket's graph")
            graph = next(iter((*self._compiled.values(), *self._exact.values())), None)
            if graph is None:
                self._set[name] = _own(data)
            else:
                graph.set_param(name, data)

    def close(self) -> None:
        """Close all compiled graphs; idempotent."""
        with self._lock:
            self.closed = True
            for graph in (*self._compiled.values(), *self._exact.values()):
                graph.close()
            self._compiled.clear()
            self._exact.clear()

    # runs -------------------------------------------------------------------------------------------------------------
    @kinds(key=INTEGER, actual_rows=INTEGER, build=FUNCTION, inputs=SEVERAL, output_inners=SEVERAL)
    def run_padded(
        self, key: int, actual_rows: int, build: Build, inputs: Iterable[tuple[str, Any, int]],
        output_inners: Sequence[int] = (),
    ) -> tuple[int, list[Array]] | None:  # fmt: skip
        """Run the bucket of an extent on `actual_rows` rows. `inputs` are (name, data, elements of a row), padded with
        zeros; output i is cut to `actual_rows` rows of `output_inners[i]` elements, flat (0: returned whole). Returns
        (upper, outputs), or None where no bucket holds the extent."""
        mixed = list[CacheRunInput]()
        for entry in inputs:
            check_kind("run_padded", "an entry of inputs", entry, TRIPLE)
            mixed.append(CacheRunInput(*entry))
        return self.run_padded_mixed(key, actual_rows, build, mixed, output_inners)

    @kinds(key=INTEGER, actual_rows=INTEGER, build=FUNCTION, inputs=SEVERAL, output_inners=SEVERAL)
    def run_padded_mixed(
        self, key: int, actual_rows: int, build: Build, inputs: Iterable[CacheRunInput],
        output_inners: Sequence[int] = (),
    ) -> tuple[int, list[Array]] | None:  # fmt: skip
        """Run a bucket as `run_padded` does, with some inputs that are not padded."""
        given = list(inputs)
        for entry in given:
            check_kind("run_padded_mixed", "an entry of inputs", entry, MIXED)
            check_kind("run_padded_mixed", "name of an input", entry.name, TEXT)
            if entry.row_inner is not None:
                check_kind("run_padded_mixed", f"row_inner of {entry.name!r}", entry.row_inner, INTEGER)
        by_name = named_values("run_padded", [(entry.name, entry) for entry in given])
        index = self.bucket_for(key)
        if index is None:
            return None
        upper = self.buckets[index].stop - 1
        try:
            graph = self._graph_of(index, upper, build)
        except ActiveExtentUnsupported:
            if self.on_unsupported == "error":
                raise
            _check_rows(actual_rows, 1, upper)
            return self._run_exact(actual_rows, build, by_name, output_inners)
        values = {name: _padded(graph, i, actual_rows, upper) for name, i in by_name.items()}
        _check_rows(actual_rows, 0, upper)
        inners = _checked_inners(graph, output_inners, upper)
        request = graph.launcher.resolve("run_padded", values)
        at = LaunchRequest("run_padded", request.values, None if actual_rows == upper else actual_rows)
        arrays = graph.run_request(at)
        cut = zip(arrays, inners, strict=True)
        return upper, [slice_rows(array, inner, actual_rows) if inner else array for array, inner in cut]

    def _run_exact(
        self, rows: int, build: Build, inputs: Mapping[str, CacheRunInput], output_inners: Sequence[int]
    ) -> tuple[int, list[Array]]:
        with self._lock:
            if rows not in self._exact:
                self._exact[rows] = self._build(-1, rows, build, None)
                if len(self._exact) > EXACT:
                    self._exact.pop(next(iter(self._exact))).close()
            graph = self._exact[rows]
            self.exact_runs += 1
        inners = _checked_inners(graph, output_inners, rows)
        arrays = graph.run({name: _padded(graph, i, rows, rows) for name, i in inputs.items()})
        return rows, [array.ravel() if inner else array for array, inner in zip(arrays, inners, strict=True)]


TRIPLE = Kind("(name, data, elements of a row)", lambda given: isinstance(given, (tuple, list)) and len(given) == 3)
MIXED = instance(CacheRunInput, "CacheRunInput(name, data, row_inner)")


def _check_rows(rows: int, least: int, upper: int) -> None:
    if not least <= rows <= upper:
        raise ShapeError("run_padded", "actual_rows", rows, f"{least} … {upper}")


def _padded(graph: CompiledGraph, input: CacheRunInput, rows: int, upper: int) -> Any:
    """Return the data of an input, padded if it has rows; a graph without bucket axes is compiled at the rows."""
    what, inner, of = f"input {input.name!r}", input.row_inner, graph.signature
    if inner is None:
        return input.data
    if input.name not in of.inputs:
        raise unknown_name("run_padded", "input", str(input.name), of.inputs)
    if of.upper is not None and 0 not in of.axes.get(input.name, ()):
        raise ArgumentError("run_padded", what, "one to be padded, whose axis 0 is no bucket axis", "row_inner=None")
    size = of.inputs[input.name].size
    if inner > 0 and size != upper * inner:
        raise ShapeError("run_padded", what, f"rows of {plural(inner, 'element')}", f"{upper} rows: {size} elements")
    padded = pad_rows(input.data, inner, upper)
    if (given := np.size(input.data)) != rows * inner:
        raise ShapeError("run_padded", what, plural(given // inner, "row"), f"{rows}: actual_rows")
    return padded


def _checked_inners(graph: CompiledGraph, inners: Sequence[int], upper: int) -> list[int]:
    """Return the elements of a row of each output, 0 for outputs that are returned whole."""
    given, count = list(inners), len(graph.signature.outputs)
    if len(given) > count:
        raise ArgumentError("run_padded", "output_inners", plural(len(given), "number"), f"at most {count}")
    for inner in given:
        check_kind("run_padded", "an entry of output_inners", inner, INTEGER)
    found = [*given, *[0] * (count - len(given))]
    for port, inner in zip(graph.signature.outputs, found, strict=True):
        if inner and port.size != upper * inner:
            wanted = f"{upper} rows of {inner}: {upper * inner}"
            raise ShapeError("run_padded", f"output {port.spec.name!r}", plural(port.size, "element"), wanted)
    return found
