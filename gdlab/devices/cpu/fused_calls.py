"""Fuse NumPy calls that compute element by element, where there is a C compiler: a row of them becomes one loop.

NumPy's calls read and write whole arrays, one after the other; a loop reads each element once, computes all calls of
the row, and stores what is read later. It adds, subtracts, multiplies, divides and takes roots as NumPy does, in the
same order, so that all bits are the same: it makes no difference to a result where it is used. The text of a loop holds
no sizes, so networks of one kind share it; libraries are kept beside other caches.
"""

from __future__ import annotations

import ctypes
import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from gdlab.base.types import Array, Shape
from gdlab.devices.cpu.call_lanes import Beside, CallList
from gdlab.devices.cpu.product_calls import BoundProduct
from gdlab.devices.native import functions
from gdlab.op.numpy_form import NumpyCall

# No option changes a result: nothing is contracted, and neither errno nor the processor's flags are read.
OPTIONS = ("-ftree-vectorize", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
WORTH = 1 << 15  # elements times calls from which on a loop is made: NumPy takes some 10 µs
WORTH_ALL = 1 << 20  # of all loops together, from which on they are compiled: NumPy takes some 300 µs a step
MOST_ARRAYS, MOST_CALLS = 24, 64  # of a loop
WORK = 1000  # candidates that NumPy tries to tell whether two views share memory; else they do
_FORMS: Mapping[Callable[..., Any], str] = {
    np.add: "{} + {}", np.subtract: "{} - {}", np.multiply: "{} * {}", np.divide: "{} / {}",
    np.sqrt: "sqrtf({})", np.negative: "-{}", np.reciprocal: "1.0f / {}", np.copyto: "{}",
}  # fmt: skip
_F32 = np.dtype(np.float32)
Loop = Callable[[Any], None]


def fused(runs: Sequence[Sequence[NumpyCall]], temporaries: Iterable[Array]) -> list[list[NumpyCall]]:
    """Return the calls of some dispatches with rows of them as loops; without a compiler as they are. `temporaries`:
    arrays that each dispatch writes before it reads them, and that nothing else reads."""
    rooms, seen = {_root(a) for a in temporaries}, dict[int, _Seen]()
    made = [_Fusion(run, rooms, seen) for run in runs]
    rows = [row for fusion in made for row in fusion.rows]
    loops: Mapping[str, Loop] = {}
    if sum(row.work for row in rows) >= WORTH_ALL:
        loops = _loops({row.text for row in rows})
    return [[*_calls(fusion.parts, loops)] for fusion in made]


def _loops(texts: Iterable[str]) -> Mapping[str, Loop]:
    """Return the function of each text; none without a compiler."""
    names = {text: f"loop_{hashlib.sha256(text.encode()).hexdigest()[:16]}" for text in sorted(texts)}
    sources = {name: f"void {name}(const int64_t *a) {{\n{text}}}\n" for text, name in names.items()}
    found = functions("#include <math.h>\n#include <stdint.h>\n", sources, *OPTIONS)
    for function in found.values():
        function.restype, function.argtypes = None, [ctypes.c_void_p]
    return {text: found[name] for text, name in names.items() if name in found}


# what calls read and write --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Seen:
    """An array of a call: where its elements lie. Arrays of one `place` have the same elements in the same order."""

    array: Array
    root: int
    low: int
    high: int
    place: tuple[int, Shape, Shape]

    def meets(self, other: _Seen) -> bool:
        """Return whether it shares memory with another."""
        if self.root != other.root or self.low >= other.high or other.low >= self.high:
            return False
        return np.may_share_memory(self.array, other.array, max_work=WORK)  # type: ignore[arg-type]


@dataclass(eq=False, slots=True)
class _FusibleCall:
    """A call that can be fused: its place in the run, the form of its value, its output, its inputs."""

    at: int
    call: NumpyCall
    form: str
    out: _Seen
    inputs: tuple[_Seen | np.float32, ...]
    sources: list[_FusibleCall | None] = field(default_factory=list)  # per input: the call of this row that computed it


@dataclass(frozen=True, slots=True)
class _Access:
    """Memory that a call reads, or writes whole."""

    at: int
    low: int
    high: int
    reads: bool


@dataclass(frozen=True, slots=True)
class _FusedRow:
    """A row of calls as a loop: its text, the table that it is called with, and the calls."""

    text: str
    table: Any
    calls: list[NumpyCall]
    work: int


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Lists beside each other: of each its calls and rows, and its work."""

    lists: list[tuple[list[_Part], int]]


_Part = NumpyCall | _FusedRow | _Lanes


def _calls(parts: Iterable[_Part], loops: Mapping[str, Loop]) -> Iterator[NumpyCall]:
    """Return the calls of some parts, with a loop for each row whose text has a function."""
    for part in parts:
        if isinstance(part, _Lanes):
            yield Beside([CallList([*_calls(inner, loops)], work) for inner, work in part.lists]), ()
        elif isinstance(part, _FusedRow):
            yield from [(loops[part.text], (part.table,))] if part.text in loops else part.calls
        else:
            yield part


class _Fusion:
    """The calls of a dispatch in `parts`, with the rows among them that can be loops."""

    def __init__(self, run: Sequence[NumpyCall], rooms: set[int], seen: dict[int, _Seen]) -> None:
        self._rooms, self._seen = rooms, seen
        self._at = 0  # the place of the next call among all, with those of lanes one lane after the other
        self._accesses: dict[int, list[_Access]] = {}  # of temporaries
        self._last_unknown = -1  # the last call that may read anything
        self.rows: list[_FusedRow] = []
        for at, call in enumerate(_all(run)):
            self._note(at, call)
        self.parts = self._fused(run)

    def _fused(self, run: Iterable[NumpyCall]) -> list[_Part]:
        made: list[_Part] = []
        row = _OpenRow()
        for call in run:
            known = self._known(call)
            if known is None or not row.takes(known):
                made += self._joined(row.calls)
                row = _OpenRow()
            if known is not None:
                row.add(known)
            elif isinstance(call[0], Beside):
                made.append(_Lanes([(self._fused(list.calls), list.work) for list in call[0].lists]))
                continue
            else:
                made.append(call)
            self._at += 1
        return [*made, *self._joined(row.calls)]

    def _known(self, call: NumpyCall) -> _FusibleCall | None:
        """Return a call as one that can be fused; None if it cannot be."""
        function, args = call
        form = _FORMS.get(function) if isinstance(function, np.ufunc) or function is np.copyto else None
        if form is None or len(args) != form.count("{}") + 1:
            return None
        inputs, out = (args[1:], args[0]) if function is np.copyto else (args[:-1], args[-1])
        if not isinstance(out, np.ndarray) or out.dtype != _F32 or out.ndim == 0 or out.size == 0:
            return None
        given: list[_Seen | np.float32] = []
        for x in inputs:
            if isinstance(x, np.ndarray) and x.dtype == _F32:
                given.append(self._see(x))
            elif type(x) is float or isinstance(x, np.float32):  # with a float64 of NumPy a call computes in float64
                given.append(np.float32(x))
            else:
                return None
        seen = self._see(out)
        if any(isinstance(x, _Seen) and x.place != seen.place and x.meets(seen) for x in given):
            return None  # NumPy reads all before it writes
        return _FusibleCall(self._at, call, form, seen, tuple(given))

    def _see(self, array: Array) -> _Seen:
        seen = self._seen.get(id(array))
        if seen is None:
            address, root = array.__array_interface__["data"][0], _root(array)
            spans = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
            low = address + sum(s for s in spans if s < 0)
            high = address + sum(s for s in spans if s > 0) + array.itemsize
            if array.flags.c_contiguous:
                place: Any = address, (array.size,), ()
            else:
                axes = [(n, s) for n, s in zip(array.shape, array.strides, strict=True) if n > 1]
                place = address, tuple(n for n, _ in axes), tuple(s for _, s in axes)
            seen = self._seen[id(array)] = _Seen(array, root, low, high, place)
        return seen

    def _note(self, at: int, call: NumpyCall) -> None:
        """Note which temporaries a call reads and which it writes."""
        read, written = _arguments(call)
        if read is None:
            self._last_unknown = at
        for arrays, reads in ((read or (), True), (written, False)):
            for array in arrays:
                if (root := _root(array)) in self._rooms and (reads or array.flags.c_contiguous):
                    seen = self._see(array)
                    self._accesses.setdefault(root, []).append(_Access(at, seen.low, seen.high, reads))

    def _is_read_after(self, at: int, seen: _Seen) -> bool:
        """Return whether an array is read after this call: always, unless it is a temporary; of one, where it is not
        written again before."""
        if seen.root not in self._rooms or self._last_unknown > at:
            return True
        low, high, accesses = seen.low, seen.high, self._accesses.get(seen.root, [])
        for access in accesses[bisect_right(accesses, at, key=lambda a: a.at) :]:
            if access.high <= low or high <= access.low:
                continue
            if access.reads:
                return True
            low = access.high if access.low <= low else low
            high = access.low if access.high >= high else high
            if low >= high:
                return False
        return False

    def _joined(self, row: Sequence[_FusibleCall]) -> Iterator[_Part]:
        """Return the calls of a row with those joined that have to do with one another."""
        if len(row) < 2 or row[0].out.array.size * len(row) < WORTH:
            yield from (c.call for c in row)
            return
        last = {c.out.place: c for c in row}
        lasting = {place for place, c in last.items() if self._is_read_after(row[-1].at, c.out)}
        for some in _components(row, lasting):
            work = some[0].out.array.size * len(some)
            written = None
            if 1 < len(some) <= MOST_CALLS and work >= WORTH:
                written = _written(some, {id(last[place]) for place in lasting})
            if written is None:
                yield from (c.call for c in some)
            else:
                self.rows.append(_FusedRow(*written, [c.call for c in some], work))
                yield self.rows[-1]


def _all(run: Iterable[NumpyCall]) -> Iterator[NumpyCall]:
    """Return all calls, with those of lanes one lane after the other: they touch nothing of one another."""
    for call in run:
        if isinstance(call[0], Beside):
            yield from _all(call[0].in_turn())
        else:
            yield call


def _arguments(call: NumpyCall) -> tuple[list[Array] | None, list[Array]]:
    """Return the arrays that a call reads, None where its arguments do not tell, and those that it writes whole."""
    function, args = call
    if isinstance(function, BoundProduct):
        return [function.a, function.b], [function.out]
    if isinstance(function, np.ufunc):
        inputs, outputs = args[: function.nin], args[function.nin : function.nargs]
    elif function is np.copyto and len(args) == 2:
        inputs, outputs = args[1:], args[:1]
    else:
        inputs, outputs = args, ()
        known = isinstance(function, FunctionType) and function.__closure__ is None
        if isinstance(function, BuiltinFunctionType):  # of an array: a.dot; of a ufunc: add.reduce
            known, inputs = True, (*inputs, function.__self__)
        if not known:
            return None, []
    return [*_arrays(inputs)], [*_arrays(outputs)]


def _arrays(args: Iterable[Any]) -> Iterator[Array]:
    for a in args:
        if isinstance(a, np.ndarray):
            yield a
        elif isinstance(a, (tuple, list)):
            yield from _arrays(a)


def _root(array: Array) -> int:
    """Return what is equal for arrays in the same memory."""
    found: Any = array
    while isinstance(found, np.ndarray) and found.base is not None:
        found = found.base
    return id(found)


# rows -----------------------------------------------------------------------------------------------------------------
class _OpenRow:
    """Calls that may be in one loop: as many elements each, and what one of them writes all others have at the same
    place of the loop, or not at all."""

    def __init__(self) -> None:
        self.calls: list[_FusibleCall] = []
        self._touched: dict[int, dict[Any, tuple[_Seen, bool]]] = {}  # by root and place; whether it is written

    def takes(self, call: _FusibleCall) -> bool:
        """Return whether a call may follow."""
        if self.calls and call.out.array.size != self.calls[0].out.array.size:
            return False
        inputs = [x for x in call.inputs if isinstance(x, _Seen)]
        return not (any(self._clash(x, False) for x in inputs) or self._clash(call.out, True))

    def _clash(self, seen: _Seen, written: bool) -> bool:
        others = self._touched.get(seen.root, {}).items()
        return any(place != seen.place and (written or wrote) and seen.meets(x) for place, (x, wrote) in others)

    def add(self, call: _FusibleCall) -> None:
        """Add a call."""
        self.calls.append(call)
        for x in (*call.inputs, call.out):
            if isinstance(x, _Seen):
                of_root = self._touched.setdefault(x.root, {})
                of_root[x.place] = x, x is call.out or of_root.get(x.place, (x, False))[1]


def _components(row: Sequence[_FusibleCall], lasting: set[Any]) -> Iterable[list[_FusibleCall]]:
    """Return the calls of a row in groups that have nothing to do with one another, each in order, the first call's
    first. `lasting`: the places that are read later."""
    group = [*range(len(row))]

    def of(i: int) -> int:
        while group[i] != i:
            group[i] = i = group[group[i]]
        return i

    writer: dict[Any, int] = {}  # by place: the last call that wrote it
    first: dict[Any, int] = {}  # by place: a call that read it as it was before the row, or whose result lasts
    for i, call in enumerate(row):
        for x in call.inputs:
            at = writer.get(x.place) if isinstance(x, _Seen) else None
            call.sources.append(None if at is None else row[at])
            if at is not None:
                group[of(i)] = of(at)
        writer[call.out.place] = i
    written = {*writer}
    for i, call in enumerate(row):
        kept = [x.place for x, s in zip(call.inputs, call.sources, strict=True) if isinstance(x, _Seen) and s is None]
        kept += [call.out.place] if call.out.place in lasting else []
        for place in kept:
            if place in written:
                group[of(i)] = of(first.setdefault(place, i))
    for i, call in enumerate(row):
        if call.out.place in first:
            group[of(i)] = of(first[call.out.place])
    found: dict[int, list[_FusibleCall]] = {}
    for i, call in enumerate(row):
        found.setdefault(of(i), []).append(call)
    return found.values()


# loops ----------------------------------------------------------------------------------------------------------------
class _Nest:
    """The arrays of a loop, each as it lies over the extents of the loop."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.arrays: list[Array] = []
        self._numbers: dict[Any, int] = {}
        self.fits = True

    def number(self, x: _Seen | np.float32, over: Shape) -> int:
        """Return the number of an array or number that broadcasts over `over`."""
        key = float(x).hex() if isinstance(x, np.float32) else (x.place, x.array.shape, over)
        if key not in self._numbers:
            array = _over(x.array if isinstance(x, _Seen) else np.asarray(x), over, self.shape)
            if array is None or any(s % 4 for s in array.strides):
                self.fits = False
                return 0
            self._numbers[key] = len(self.arrays)
            self.arrays.append(array)
        return self._numbers[key]

    def collapsed(self) -> tuple[list[int], list[list[int]]]:
        """Return the extents, and of each array its steps in elements, with axes joined where all arrays go on as they
        are."""
        axes = [k for k, n in enumerate(self.shape) if n > 1] or [len(self.shape) - 1]
        steps = [[a.strides[k] // 4 if self.shape[k] > 1 else 0 for k in axes] for a in self.arrays]
        sizes = [self.shape[k] for k in axes]
        for k in range(len(axes) - 2, -1, -1):
            if all(s[k] == s[k + 1] * sizes[k + 1] for s in steps):
                sizes[k : k + 2] = [sizes[k] * sizes[k + 1]]
                for s in steps:
                    del s[k]
        return sizes, steps


def _written(some: Sequence[_FusibleCall], stored: set[int]) -> tuple[str, Any] | None:
    """Return the text of a loop of some calls, of which those in `stored` (ids) store their results, and its table;
    None where their arrays do not allow one loop."""
    nest = _Nest(max((c.out.array.shape for c in some), key=len))
    values: dict[int, str] = {}
    loads, lines, stores = dict[int, None](), [], []
    for i, c in enumerate(some):
        over, given = c.out.array.shape, []
        for x, source in zip(c.inputs, c.sources, strict=True):
            if source is None:
                loads[number := nest.number(x, over)] = None
            given.append(f"x{number}" if source is None else values[id(source)])
        values[id(c)] = f"v{i}"
        lines.append(f"const float v{i} = {c.form.format(*given)};")
        if id(c) in stored:
            stores.append((nest.number(c.out, over), f"v{i}"))
    if not nest.fits or len(nest.arrays) > MOST_ARRAYS:
        return None
    sizes, steps = nest.collapsed()
    if any(s[-1] not in (0, 1) for s in steps):
        return None
    numbers = [*sizes]
    for array, own in zip(nest.arrays, steps, strict=True):
        numbers += [array.__array_interface__["data"][0], *own[:-1]]
    table = (ctypes.c_int64 * len(numbers))(*numbers)
    table.arrays = nest.arrays  # type: ignore[attr-defined]  # they are not freed before it is
    return _text(steps, [*loads], lines, stores), table


def _text(
    steps: Sequence[Sequence[int]], loads: Sequence[int], lines: Iterable[str], stores: Iterable[tuple[int, str]]
) -> str:
    """Write the body of a function of a table: the extents, and of each array its address and its steps but the last,
    which is 0 or 1. What does not change is read before the loop in which it does not."""
    axes = len(steps[0])
    fixed = [k for k in loads if not any(steps[k])]
    repeated = [k for k in loads if k not in fixed and steps[k][-1] == 0]
    text = [f"float *const p{k} = (float *)a[{axes + k * axes}];" for k in range(len(steps))]
    text += [f"const float x{k} = *p{k};" for k in fixed]
    text += [f"for (int64_t i{axis} = 0; i{axis} < a[{axis}]; i{axis}++) {{" for axis in range(axes - 1)]
    for k, own in enumerate(steps):
        moved = (f" + i{axis} * a[{axes + k * axes + 1 + axis}]" for axis in range(axes - 1) if own[axis])
        text.append(f"float *const q{k} = p{k}{''.join(moved)};")
    text += [f"const float x{k} = *q{k};" for k in repeated]
    text += ["#pragma GCC ivdep", f"for (int64_t i = 0, n = a[{axes - 1}]; i < n; i++) {{"]
    text += [f"const float x{k} = q{k}[i];" for k in loads if k not in fixed and k not in repeated]
    text += lines
    text += [f"q{k}[i] = {value};" for k, value in stores]
    text += ["}"] * axes
    return "".join(f"{line}\n" for line in text)


def _over(array: Array, seen: Shape, shape: Shape) -> Array | None:
    """Return an array that broadcasts over `seen`, as it lies over `shape`; None where that takes a copy."""
    whole = np.broadcast_to(array, seen)
    if seen == shape:
        return whole
    view = whole.reshape(shape)
    return view if np.may_share_memory(view, array) else None
