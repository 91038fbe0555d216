"""Write the WGSL of an update: the rule's function over four elements, and loads and stores of every parameter."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from gdlab.kernels.pieces import LANES, WgslText, argument, expression, number
from gdlab.kernels.stores import constants, scalar_functions, whole_file
from gdlab.plan.dispatch import Dispatch, ParameterUpdate, Stretch, UpdateCore
from gdlab.plan.rules import UpdateRule, rule_of
from gdlab.plan.rules.traced import traced
from gdlab.plan.spread import update_groups


def update(text: WgslText, d: Dispatch) -> None:
    """Write the kernel of an update, four neighbours at a time. Of several parameters the arithmetic is written once,
    between a switch that loads and one that stores."""
    core = d.update
    assert core is not None  # the table asks by kernel
    rule = rule_of(f"dispatch {d.index}", core.rule)
    variables = _Variables(rule, core)
    variables.declare(text, d)
    constants(text, GROUP=d.workgroup_size[0])
    scalar_functions(text, d)
    fields = ", ".join(f"{name}: vec4<f32>" for name in variables.fields)
    text.add(f"struct Moved {{ {fields} }}\n")
    _rule_text(text, rule, d.origin)
    text.add("")
    for k, p in enumerate(core.parameters):
        variables.stretch_functions(text, k, p)
    writer = _one if len(core.parameters) == 1 else _several
    writer(text, d, core, variables)
    whole_file(text, "update.wgsl")


class _Variables:
    """The buffers of a dispatch as WGSL variables: `weight0 adam_m0 gradient0` of the first parameter, and so on; a
    buffer that several parameters read has the number of the first."""

    def __init__(self, rule: UpdateRule, core: UpdateCore) -> None:
        self.rule, self.fields = rule, (_value_name(rule), *rule.state)
        self.name: dict[int, str] = {}
        self.single: set[int] = set()  # buffers of one number
        for k, p in enumerate(core.parameters):
            for field, buffer in zip(self.fields, p.touched, strict=True):
                self.name.setdefault(buffer, f"{field}{k}")
            if p.gradient is not None:
                self.name.setdefault(p.gradient, f"gradient{k}")
            for clip in (s.clip for s in p.stretches if s.clip is not None):
                self.single.add(clip)
                self.name.setdefault(clip, f"clip{len(self.single) - 1}")

    def declare(self, text: WgslText, d: Dispatch) -> None:
        """Declare one line per binding, then the per-step scalars."""
        for i, (buffer, access) in enumerate(d.bindings):
            element = "f32" if buffer in self.single else "vec4<f32>"
            mode = "read" if access == "r" else "read_write"
            text.add(f"@group(0) @binding({i}) var<storage, {mode}> {self.name[buffer]}: array<{element}>;")
        if d.scalars:
            text.add(f"@group(0) @binding({len(d.bindings)}) var<storage, read> scalars: array<f32>;")

    def stretch_functions(self, text: WgslText, k: int, p: ParameterUpdate) -> None:
        """Write `factors` and `clips` of a parameter whose stretches differ."""
        if len(p.stretches) == 1:
            return
        factors = [number(s.factor) for s in p.stretches]
        _chosen(text, f"factors{k}", p, factors, p.node)
        if p.stretches[0].clip is not None:
            _chosen(text, f"clips{k}", p, [self._clip(s) for s in p.stretches], p.node)

    def rate(self, k: int, p: ParameterUpdate) -> str:
        """Return the learning rate of elements 4i … 4i + 3: the step's times their factors."""
        factor = f"factors{k}(i)" if len(p.stretches) > 1 else number(p.stretches[0].factor)
        product = f"lr() * {factor}" if self.rule.scalars else factor
        return product if len(p.stretches) > 1 else f"vec4<f32>({product})"

    def gradient(self, k: int, p: ParameterUpdate) -> str:
        """Return the gradient of elements 4i … 4i + 3 as the rule reads it."""
        assert p.gradient is not None  # the callers ask rules that read one
        plain = f"{self.name[p.gradient]}[i]"
        if p.stretches[0].clip is None:
            return plain
        return f"{plain} * {f'clips{k}(i)' if len(p.stretches) > 1 else self._clip(p.stretches[0])}"

    def _clip(self, stretch: Stretch) -> str:
        assert stretch.clip is not None  # all stretches of a parameter are clipped, or none
        return f"{self.name[stretch.clip]}[0]"


def _value_name(rule: UpdateRule) -> str:
    """Return the name of the value that the rule updates."""
    return "weight" if rule.configurable else "total"


def _chosen(text: WgslText, name: str, p: ParameterUpdate, values: Sequence[str], node: int) -> None:
    """Write a function that returns the values of four neighbours by the stretches in which they lie."""
    value = f"vec4<f32>({values[-1]})"
    for stretch, own in zip(p.stretches[-2::-1], values[-2::-1], strict=True):
        value = f"select({value}, vec4<f32>({own}), at < vec4<u32>({stretch.stop}u))"
    text.add(f"fn {name}(i: u32) -> vec4<f32> {{")
    text.add(f"    let at = (4u * i + vec4<u32>(0u, 1u, 2u, 3u)) % {p.period}u;", node)
    text.add(f"    return {value};\n}}\n", node)


# the rule -------------------------------------------------------------------------------------------------------------
def _rule_text(text: WgslText, rule: UpdateRule, nodes: Sequence[int]) -> None:
    """Write `moved`: the rule's file, or its form written out."""
    if rule.form is None:
        whole_file(text, rule.shader, *nodes)
        return
    form, fields = traced(rule), ("weight", "gradient", *rule.state)
    operands = {k: f"x{k}" for k in range(len(fields))}
    scalars = {len(fields) + k: f"{name}()" for k, name in enumerate(rule.scalars)} | {len(fields): "rate"}
    parameters = ", ".join(f"{x}: f32" for x in operands.values())
    text.add(f"struct Element {{ {', '.join(f'{n}: f32' for n in ('weight', *rule.state))} }}\n")
    text.add(f"fn moved_element({parameters}, rate: f32) -> Element {{", *nodes)
    names = operands | scalars
    for i, line in enumerate(form.lines):
        text.add(f"    let v{i} = {expression(line, names)};  // {line.op}", *nodes)
    text.add(f"    return Element({', '.join(argument(a, False, names) for a in form.results)});\n}}\n", *nodes)
    text.add(f"fn moved({', '.join(f'{n}: vec4<f32>' for n in _order(rule))}) -> Moved {{", *nodes)
    for q in LANES:
        text.add(f"    let {q} = moved_element({', '.join(f'{n}.{q}' for n in (*fields, 'rate'))});", *nodes)
    fours = (f"vec4<f32>({', '.join(f'{q}.{n}' for q in LANES)})" for n in ("weight", *rule.state))
    text.add(f"    return Moved({', '.join(fours)});\n}}", *nodes)


def _order(rule: UpdateRule) -> tuple[str, ...]:
    """Return the names of the parameters of `moved`."""
    return (_value_name(rule), *rule.state, *(("gradient",) if rule.reads_gradient else ()), "rate")


# loads and stores -----------------------------------------------------------------------------------------------------
def _quads(p: ParameterUpdate) -> int:
    return -(-p.type.num_elements // 4)


def _one(text: WgslText, d: Dispatch, core: UpdateCore, variables: _Variables) -> None:
    (p,) = core.parameters
    rule, names = variables.rule, [variables.name[b] for b in p.touched]
    loads = [f"{name}[i]" for name in names]
    loads += [variables.gradient(0, p)] if rule.reads_gradient else []
    text.add("fn move_fours(group: u32, lane: u32) {\n    let i = group * GROUP + lane;")
    text.add(f"    if (i < {_quads(p)}u) {{")
    text.add(f"        let next = moved({', '.join([*loads, variables.rate(0, p)])});", p.node)
    for field, name in zip(variables.fields, names, strict=True):
        text.add(f"        {name}[i] = next.{field};", p.node)
    text.add("    }\n}\n")


def _several(text: WgslText, d: Dispatch, core: UpdateCore, variables: _Variables) -> None:
    rule, groups = variables.rule, [update_groups(p, d.workgroup_size[0]) for p in core.parameters]
    starts = [*accumulate(groups, initial=0)][:-1]
    text.add("// Which parameter a workgroup moves.\nfn parameter_of(group: u32) -> u32 {")
    text.add(f"    return {' + '.join(f'u32(group >= {start}u)' for start in starts[1:])};\n}}\n")
    text.add("fn move_fours(group: u32, lane: u32) {\n    let parameter = parameter_of(group);")
    text.add("    var i = group * GROUP + lane;\n    var inside = false;")
    for name in _order(rule):
        text.add(f"    var {name} = vec4<f32>(0.0);")
    text.add("    switch (parameter) {")
    for k, (p, start) in enumerate(zip(core.parameters, starts, strict=True)):
        text.add(f"        case {k}u: {{")
        if start:
            text.add(f"            i -= {start}u * GROUP;", p.node)
        text.add(f"            inside = i < {_quads(p)}u;\n            if (inside) {{", p.node)
        for field, buffer in zip(variables.fields, p.touched, strict=True):
            text.add(f"                {field} = {variables.name[buffer]}[i];", p.node)
        if rule.reads_gradient:
            text.add(f"                gradient = {variables.gradient(k, p)};", p.node)
        text.add(f"                rate = {variables.rate(k, p)};", p.node)
        text.add("            }\n        }", p.node)
    text.add("        default: {}\n    }\n    if (!inside) {\n        return;\n    }")
    text.add(f"    let next = moved({', '.join(_order(rule))});", *d.origin)
    text.add("    switch (parameter) {")
    for k, p in enumerate(core.parameters):
        text.add(f"        case {k}u: {{")
        for field, buffer in zip(variables.fields, p.touched, strict=True):
            text.add(f"            {variables.name[buffer]}[i] = next.{field};", p.node)
        text.add("        }", p.node)
    text.add("        default: {}\n    }\n}\n")
