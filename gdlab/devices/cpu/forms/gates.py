"""NumPy forms of gates whose two halves lie side by side."""

from __future__ import annotations

from collections.abc import Callable

from gdlab.devices.cpu.builder import Bench
from gdlab.devices.cpu.chain import array, build, emit
from gdlab.plan.dispatch import Custom

_SWISH, _INNER = "sigmoid_stable(x)", "1.5957691216057308 * (x + 0.044715 * x * x * x)"
_GELU = f"sigmoid_stable({_INNER})"
_SILU_SLOPE = f"{_SWISH} * (1.0 + x * (1.0 - {_SWISH}))"
_GELU_SLOPE = f"{_GELU} + x * ({_GELU} * (1.0 - {_GELU})) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)"


def _gate(share: str) -> Callable[[Bench, Custom], None]:
    def form(bench: Bench, c: Custom) -> None:
        shape, n = (c.units // c["WIDTH"], c["WIDTH"]), c["WIDTH"]
        x = bench.operand(0, (shape[0], 2 * n))
        value = build(f"x * {share} * up", {"x": array(x[:, :n]), "up": array(x[:, n:])})
        bench.steps += emit(value, bench.out(shape), bench.scratch, bench.taken)

    return form


def _gate_grad(share: str, slope: str) -> Callable[[Bench, Custom], None]:
    def form(bench: Bench, c: Custom) -> None:
        rows, n = c.units // c["WIDTH"], c["WIDTH"]
        x, out = bench.operand(0, (rows, 2 * n)), bench.out((rows, 2 * n))
        names = {"x": array(x[:, :n]), "up": array(x[:, n:]), "g": array(bench.operand(1, (rows, n)))}
        for text, part in ((f"g * up * ({slope})", out[:, :n]), (f"g * x * {share}", out[:, n:])):
            bench.steps += emit(build(text, names), part, bench.scratch, bench.taken)

    return form


FORMS = {
    "swiglu_concat": _gate(_SWISH),
    "geglu_concat": _gate(_GELU),
    "swiglu_concat_grad": _gate_grad(_SWISH, _SILU_SLOPE),
    "geglu_concat_grad": _gate_grad(_GELU, _GELU_SLOPE),
}
