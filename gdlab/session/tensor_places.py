"""Find where parameters, inputs and gradients of a plan lie: `places_of(plan).parameters["w"]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gdlab.base.types import Shape, TensorType
from gdlab.op.storage import SourceRange
from gdlab.plan.records import ExecutionPlan, Place


@dataclass(frozen=True)
class Places:
    """The places of a plan's tensors by name. `derived`: parameters that are the storage of others; `shapes`: of these
    and of their gradients, by buffer; `types`: of parameters and inputs, by place; `gradients`: the place of a
    parameter's gradient; `index_bounds`: the limit of what an input of indices may hold."""

    parameters: Mapping[str, Place]
    inputs: Mapping[str, int]
    derived: Mapping[str, int]
    types: Mapping[Place, TensorType]
    shapes: Mapping[int, Shape]
    gradients: Mapping[Place, Place]
    index_bounds: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Output:
    """A result of each step: its name (empty where none was given; of a gradient `∂` and the parameter's), its shape,
    and the place that it lies at, which may be a range of a packed one."""

    name: str
    shape: Shape
    place: Place


def outputs_of(plan: ExecutionPlan, places: Places) -> tuple[Output, ...]:
    """Return the user outputs in order, then the gradient of each trained parameter in node order."""
    values, names = plan.graph.outputs, plan.graph.output_names
    users = [Output(names[k], values[k].shape, buffer) for k, buffer in enumerate(plan.output_buffers)]
    trained = [(name, place) for name, place in places.parameters.items() if place in places.gradients]
    return (*users, *(Output(f"∂{n}", places.types[p].shape, places.gradients[p]) for n, p in trained))


def places_of(plan: ExecutionPlan) -> Places:
    """Return the places of a plan's parameters, inputs and gradients, derived ones included."""
    leaves = [plan.buffers[b] for _, b in (*plan.stored_params, *plan.input_buffers)]
    types: dict[Place, TensorType] = {b.id: TensorType(b.shape, b.dtype) for b in leaves}
    types |= {place: plan.param_types[name] for name, place in plan.param_buffers}
    stored = dict(plan.stored_params)
    gradients: dict[Place, Place] = dict(plan.param_grad_pairs)
    derived = {d.name: stored[d.name] for d in plan.derived_params}
    shapes = {stored[d.name]: d.shape for d in plan.derived_params}
    for d in plan.derived_params:
        whole = stored[d.name]
        gradient = gradients.get(whole)
        if isinstance(gradient, int):
            shapes[gradient] = d.shape
            gradients |= {d.part(n, whole): d.part(n, gradient) for n, _ in d.sources}
    bounds = dict(getattr(plan, "index_bounds", ()))
    return Places(dict(plan.param_buffers), dict(plan.input_buffers), derived, types, shapes, gradients, bounds)


def slices_of(part: SourceRange) -> tuple[slice, ...]:
    """Return the index of a part in the array of its buffer."""
    return (slice(None),) * part.axis + (slice(part.start, part.stop),)
