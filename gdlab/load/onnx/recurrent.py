"""LSTM, GRU and RNN, written out step by step: forward, reverse and both; with lengths that are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gdlab import ops
from gdlab.base.types import Array
from gdlab.graph import Value
from gdlab.load.onnx.tensor import OnnxCall, Table, Tensor, fitted
from gdlab.load.shared import Malformed, Unsupported

MOST_STEPS = 512  # steps times directions that are written out
Function = Callable[[Value], Value]
FUNCTIONS: dict[str, Function] = {
    "sigmoid": ops.sigmoid, "tanh": ops.tanh, "relu": ops.relu, "softplus": ops.softplus,
    "softsign": lambda x: x / (ops.abs(x) + 1.0),
}  # fmt: skip
DIRECTIONS: dict[str, tuple[bool, ...]] = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@dataclass(frozen=True, slots=True)
class RecurrentCell:
    """One direction: its activations, the products of x with W and both biases for all steps at once, [steps, batch,
    gates · hidden], the matrix R transposed, the bias of R, and the peepholes."""

    functions: tuple[Function, ...]
    inputs: Value
    w: Value
    recurrent_bias: Value | None
    peepholes: tuple[Value, ...]
    hidden: int

    def gates(self, row: Value, count: int) -> list[Value]:
        """Return the parts of a row of gates, in the order of the file."""
        batch, n = row.shape[0], self.hidden
        return [ops.slice(row, (0, i * n), (batch, (i + 1) * n)) for i in range(count)]


State = tuple[Value, ...]  # h, and c of an LSTM


def _simple(call: OnnxCall, cell: RecurrentCell, x: Value, state: State) -> State:
    return (cell.functions[0](x + ops.matmul(state[0], cell.w)),)


def _long_short(call: OnnxCall, cell: RecurrentCell, x: Value, state: State) -> State:
    """Make a step of an LSTM with gates i, o, f, c; a peephole lets a gate see the cell."""
    h, c = state
    i, o, f, new = cell.gates(x + ops.matmul(h, cell.w), 4)
    f_act, g_act, h_act = cell.functions
    if cell.peepholes:
        i, f = i + c * cell.peepholes[0], f + c * cell.peepholes[2]
    i = f_act(i)
    f = 1.0 - i if call.integer("input_forget") else f_act(f)
    c = f * c + i * g_act(new)
    if cell.peepholes:
        o = o + c * cell.peepholes[1]
    return f_act(o) * h_act(c), c


def _gated(call: OnnxCall, cell: RecurrentCell, x: Value, state: State) -> State:
    """Make a step of a GRU with gates z, r, h."""
    (h,), n = state, cell.hidden
    f_act, g_act = cell.functions
    both = ops.slice(cell.w, (0, 0), (n, 2 * n))
    last = ops.slice(cell.w, (0, 2 * n), (n, 3 * n))
    xz, xr, xh = cell.gates(x, 3)
    hz, hr = cell.gates(ops.matmul(h, both), 2)
    z, r = f_act(xz + hz), f_act(xr + hr)
    if call.integer("linear_before_reset"):
        inner = ops.matmul(h, last)
        inner = inner if cell.recurrent_bias is None else inner + cell.recurrent_bias
        new = g_act(xh + r * inner)
    else:
        new = g_act(xh + ops.matmul(r * h, last))
    return ((1.0 - z) * new + z * h,)


@dataclass(frozen=True, slots=True)
class CellKind:
    """A kind of cell: gates, activations, states, and one step."""

    gates: int
    functions: tuple[str, ...]
    states: int
    step: Callable[[OnnxCall, RecurrentCell, Value, State], State]


KINDS = {
    "RNN": CellKind(1, ("tanh",), 1, _simple), "GRU": CellKind(3, ("sigmoid", "tanh"), 1, _gated),
    "LSTM": CellKind(4, ("sigmoid", "tanh", "tanh"), 2, _long_short),
}  # fmt: skip


def _translate(call: OnnxCall) -> Sequence[Tensor]:
    """Return Y, Y_h and, for an LSTM, Y_c."""
    kind, x = KINDS[call.node.op], call.number(0)
    by_batch = bool(call.integer("layout"))
    if len(call.tensor(0).shape) != 3:
        raise Malformed("X", list(call.tensor(0).shape), "[steps, batch, size]")
    x = ops.permute(x, (1, 0, 2)) if by_batch else x
    steps, batch, _ = x.shape
    turns = DIRECTIONS.get(call.text("direction", "forward"))
    if turns is None:
        raise Malformed("direction", repr(call.text("direction")), ", ".join(DIRECTIONS))
    if steps * len(turns) > MOST_STEPS:
        raise Unsupported(f"{steps * len(turns)} steps, where at most {MOST_STEPS} are written out")
    if "clip" in call.node.attrs:
        raise Unsupported("clip")
    lengths = _lengths(call, steps, batch)
    ends, rows = [], []
    for d, backward in enumerate(turns):
        cell = _cell(call, kind, x, d, len(turns))
        states = _run(call, kind, cell, _initial(call, kind, d, batch, cell.hidden, by_batch), backward, lengths)
        ends.append(states[0 if backward else -1])
        rows.append([state[0] for state in states])
    n = rows[0][0].shape[1]
    stacked = [_stack(list(step), (1, len(turns), batch, n)) for step in zip(*_masked(rows, lengths), strict=True)]
    y = stacked[0] if steps == 1 else ops.concat(stacked, 0)
    finals = [_stack([end[i] for end in ends], (len(turns), batch, n)) for i in range(kind.states)]
    if by_batch:
        y, finals = ops.permute(y, (2, 0, 1, 3)), [ops.permute(f, (1, 0, 2)) for f in finals]
    return [fitted(v, v.shape) for v in (y, *finals)]


def _stack(values: list[Value], shape: tuple[int, ...]) -> Value:
    each = tuple(1 if i == len(shape) - 3 else n for i, n in enumerate(shape))
    parts = [v.reshape(each) for v in values]
    return parts[0] if len(parts) == 1 else ops.concat(parts, len(shape) - 3)


def _lengths(call: OnnxCall, steps: int, batch: int) -> Array | None:
    """Return the number of steps of every sequence, None if all sequences have all steps."""
    lengths = call.static_ints(4)
    if lengths is None or set(lengths) == {steps}:
        return None
    if len(lengths) != batch or not all(0 <= n <= steps for n in lengths):
        raise Malformed("sequence_lens", list(lengths), f"{batch} ints of at most {steps}")
    return np.array(lengths)


def _cell(call: OnnxCall, kind: CellKind, x: Value, d: int, directions: int) -> RecurrentCell:
    w, r = call.tensor(1), call.tensor(2)
    hidden = r.shape[-1] if len(r.shape) == 3 else 0
    gates, size = kind.gates * hidden, x.shape[2]
    if w.shape != (directions, gates, size) or r.shape != (directions, gates, hidden) or not hidden:
        raise Malformed("W and R", f"{list(w.shape)} and {list(r.shape)}", f"{kind.gates} gates for {list(x.shape)}")
    if call.integer("hidden_size", hidden) != hidden:
        raise Malformed("hidden_size", call.integer("hidden_size"), f"{hidden}, as R has it")
    forward = ops.matmul_bt(x.reshape((-1, size)), _part(call, 1, d, (gates, size)))
    late = None
    if call.optional(3) is not None:
        both = _part(call, 3, d, (2 * gates,))
        first, second = ops.slice(both, (0,), (gates,)), ops.slice(both, (gates,), (2 * gates,))
        if kind.gates == 3 and call.integer("linear_before_reset"):
            late = ops.slice(second, (2 * hidden,), (gates,))
            second = ops.pad(ops.slice(second, (0,), (2 * hidden,)), (0,), (hidden,))
        forward = ops.bias_add(forward, first + second)
    holes: tuple[Value, ...] = ()
    if kind.states == 2 and call.optional(7) is not None:
        whole = _part(call, 7, d, (3 * hidden,))
        holes = tuple(ops.slice(whole, (i * hidden,), ((i + 1) * hidden,)) for i in range(3))
    matrix = ops.transpose(_part(call, 2, d, (gates, hidden)))
    rows = forward.reshape((*x.shape[:2], gates))
    return RecurrentCell(_functions(call, kind, d, directions), rows, matrix, late, holes, hidden)


def _part(call: OnnxCall, i: int, d: int, shape: tuple[int, ...]) -> Value:
    """Return the part of operand i for direction d."""
    t = call.tensor(i)
    if t.shape[1:] != shape:
        raise Malformed(f"input {i}", list(t.shape), f"[directions, {', '.join(map(str, shape))}]")
    value = call.number(i)
    if t.shape[0] > 1:
        value = ops.slice(value, (d, *(0,) * len(shape)), (d + 1, *shape))
    return value.reshape(shape)


def _functions(call: OnnxCall, kind: CellKind, d: int, directions: int) -> tuple[Function, ...]:
    given = call.attr("activations", tuple, ())
    names = [str(name).lower() for name in given] or [*kind.functions] * directions
    if len(names) != len(kind.functions) * directions:
        raise Malformed("activations", list(given), f"{len(kind.functions) * directions} names")
    own = names[d * len(kind.functions) :][: len(kind.functions)]
    if unknown := [name for name in own if name not in FUNCTIONS]:
        raise Unsupported(f"the activation {unknown[0]}")
    if "activation_alpha" in call.node.attrs or "activation_beta" in call.node.attrs:
        raise Unsupported("activation_alpha and activation_beta")
    return tuple(FUNCTIONS[name] for name in own)


def _initial(call: OnnxCall, kind: CellKind, d: int, batch: int, hidden: int, by_batch: bool) -> State:
    states = []
    for i in (5, 6)[: kind.states]:
        t = call.optional(i)
        if t is None:
            states.append(ops.zeros((batch, hidden)))
            continue
        if len(t.shape) != 3:
            raise Malformed(f"input {i}", list(t.shape), "[directions, batch, hidden]")
        value = ops.permute(call.number(i), (1, 0, 2)) if by_batch else call.number(i)
        states.append(ops.slice(value, (d, 0, 0), (d + 1, batch, hidden)).reshape((batch, hidden)))
    return tuple(states)


def _run(
    call: OnnxCall, kind: CellKind, cell: RecurrentCell, state: State, backward: bool, lengths: Array | None
) -> list[State]:
    """Return the state after each step; a sequence that has ended keeps its last state."""
    steps, batch, gates = cell.inputs.shape
    states: list[State] = [state] * steps
    for t in reversed(range(steps)) if backward else range(steps):
        x = ops.slice(cell.inputs, (t, 0, 0), (t + 1, batch, gates)).reshape((batch, gates))
        new = kind.step(call, cell, x, state)
        if lengths is not None and (live := lengths > t).sum() < batch:
            mask = ops.constant(live.astype(np.float32)[:, None])
            new = tuple(ops.where(mask, a, b) for a, b in zip(new, state, strict=True))
        states[t] = state = new
    return states


def _masked(rows: list[list[Value]], lengths: Array | None) -> list[list[Value]]:
    """Set Y to 0 behind the end of each sequence."""
    if lengths is None:
        return rows
    masks = [ops.constant((lengths > t).astype(np.float32)[:, None]) for t in range(len(rows[0]))]
    return [[ops.where(mask, h, 0.0) for mask, h in zip(masks, line, strict=True)] for line in rows]


RECURRENT: Table = dict.fromkeys(KINDS, _translate)
