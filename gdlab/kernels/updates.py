"""Write the WGSL of update kernels: each is a file of `shaders/` over buffers that bear the names of their roles."""

from __future__ import annotations

import re

import numpy as np

from gdlab.kernels.pieces import Bindings, Text, number, shader
from gdlab.kernels.stores import constants, scalar_functions, whole_file
from gdlab.plan.dispatch import Dispatch

_MOMENTS = ("weight", "first_moment", "second_moment")
_IN_PLACE = {
    "sgd": ("weight",), "adam": _MOMENTS, "adamw": _MOMENTS, "laprop": _MOMENTS,
    "accumulate": ("total",), "clear": ("total",),
}  # fmt: skip
_CLIPPED = {False: "return gradient;", True: "return gradient * factor[0];"}


def update(text: Text, d: Dispatch) -> None:
    """Four neighbours at a time; `clipped(g)` is the gradient as the rule reads it."""
    roles = dict(zip((o.buffer for o in d.operands), ("gradient", "factor"), strict=False))
    roles |= dict(zip(d.in_place, _IN_PLACE[d.kernel], strict=True))
    bindings = Bindings(d, {b for b, role in roles.items() if role != "factor"})
    bindings.variable = roles
    bindings.declare(text)
    constants(text, SIZE=-(-d.type.num_elements // 4), GROUP=d.workgroup_size[0])
    if d.kernel != "clear":
        given = np.array(d.params[:1], np.uint32).view(np.float32)[0]
        text.add(f"const MULTIPLIER = {number(float(given))};")
    scalar_functions(text, d)
    if d.kernel not in ("accumulate", "clear"):
        how = _CLIPPED["factor" in roles.values()]
        text.add(f"fn clipped(gradient: vec4<f32>) -> vec4<f32> {{\n    {how}\n}}\n")
    if len(d.params) == 1:
        whole_file(text, f"{d.kernel}.wgsl", *d.origin)
        return
    constants(text, **dict(zip(("PERIOD", "START", "STOP"), d.params[1:], strict=True)))
    text.add(_INSIDE)
    text.add(_STORE.sub(_kept, shader(f"{d.kernel}.wgsl")).rstrip("\n"), *d.origin)


# of a range of a derived parameter: whatever lies beside it stays as it is
_INSIDE = """fn inside(i: u32) -> vec4<bool> {
    let at = (4u * i + vec4<u32>(0u, 1u, 2u, 3u)) % PERIOD;
    return (at >= vec4<u32>(START)) & (at < vec4<u32>(STOP));
}
"""
_STORE = re.compile(r"(\w+\[i\]) (-?)= (.*);")


def _kept(store: re.Match[str]) -> str:
    place, sign, value = store.groups()
    new = f"{place} - ({value})" if sign else value
    return f"{place} = select({place}, {new}, inside(i));"


UPDATES = dict.fromkeys(_IN_PLACE, update)
