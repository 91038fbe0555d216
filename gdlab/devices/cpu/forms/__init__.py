"""The NumPy form of every kernel that is a file in `shaders/`: `FORMS[name](bench, core)` appends the calls.

A form reads `bench.operand(k, shape)`, writes all of `bench.out(shape)`, has temporaries of `bench.temporary(shape)`,
and appends (function, arguments) to `bench.steps`; the epilogue follows by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gdlab.devices.cpu.builder import Bench
from gdlab.devices.cpu.forms import (
    attention,
    cache,
    cast,
    conv,
    gates,
    index,
    inner,
    join,
    pool,
    products,
    random,
    rope,
    rows,
)
from gdlab.plan.dispatch import Custom

Form = Callable[[Bench, Custom], None]
_FAMILIES = (attention, cache, cast, conv, gates, index, inner, join, pool, products, random, rope, rows)
FORMS: Mapping[str, Form] = {name: form for family in _FAMILIES for name, form in family.FORMS.items()}
