"""Configure and make parameter updates: a configuration holds until it is changed, and the last call wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gdlab.base.errors import SessionError, unknown_name
from gdlab.base.types import Array
from gdlab.plan.records import Place, PlanBuffer
from gdlab.plan.rules import RULES
from gdlab.plan.update import Clip, Recipe, update_of
from gdlab.session.arrays import as_array, positive
from gdlab.session.loaded import LoadedPlan
from gdlab.session.progress import Progress
from gdlab.session.update_settings import Optimizer, adaptive_clip, norm_clip, optimizer, scalars
from gdlab.session.values import Values


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """The settings for every update rule: factors of the rate by prefix of a parameter's name, clipping, and the number
    of steps whose gradients are added up for one update."""

    multipliers: Mapping[str, float] = field(default_factory=dict)
    clip: Clip | None = None
    accumulate: int = 1


class Updates:
    """The configured update, its state buffers, and its counters: Adam updates made, and `window`, the steps whose
    gradients are added up so far. Methods without a docstring are those of `Session`."""

    def __init__(self, loaded: LoadedPlan, values: Values, progress: Progress) -> None:
        self.loaded, self.values, self.progress = loaded, values, progress
        self.optimizer, self.settings = Optimizer(), UpdateSettings()
        self.update = update_of(loaded.plan, Recipe())
        self.state_buffers: tuple[PlanBuffer, ...] = ()
        self.adam_steps = self.window = 0

    # configuration ----------------------------------------------------------------------------------------------------
    def configure(self, where: str, optimizer: Optimizer) -> None:
        """Use this rule from the next step on."""
        self.loaded.check_training(where)
        self.progress.check_between_steps(where)

        def change() -> None:
            if optimizer.rule != self.optimizer.rule:
                self._load(optimizer, self.settings)
            self.optimizer = optimizer
            scalars(optimizer, 1)  # at its first call NumPy takes 80 µs, which are not the first step's

        self.loaded.exclusively(change)  # there no step of a run falls between the update and its scalars

    def adopt(self, where: str, optimizer: Optimizer, settings: UpdateSettings) -> None:
        """Use the rule and the settings of another session of this plan, whose moments stay there."""
        self.configure(where, optimizer)
        self._change(lambda _: settings)

    def set_lr_multiplier(self, prefix: str, k: float) -> None:
        self.loaded.check_training("set_lr_multiplier")
        names = self.values.places.parameters
        if not isinstance(prefix, str) or not any(name.startswith(prefix) for name in names):
            raise unknown_name("set_lr_multiplier", "prefix", str(prefix), names)
        (factor,) = positive("set_lr_multiplier", k=k)
        self._change(lambda old: replace(old, multipliers={**old.multipliers, prefix: factor}))

    def clear_lr_multipliers(self) -> None:
        self.loaded.check_training("clear_lr_multipliers")
        self._change(lambda old: replace(old, multipliers={}))

    def set_grad_clip_norm(self, max: float | None) -> None:
        self.loaded.check_training("set_grad_clip_norm")
        clip = norm_clip("set_grad_clip_norm", max)
        self._change(lambda old: replace(old, clip=clip))

    def set_adaptive_grad_clip(self, clip: float | None, pmin: float) -> None:
        self.loaded.check_training("set_adaptive_grad_clip")
        adaptive = adaptive_clip("set_adaptive_grad_clip", clip, pmin)
        self._change(lambda old: replace(old, clip=adaptive))

    def set_grad_accumulate(self, n: int) -> None:
        self.loaded.check_training("set_grad_accumulate")
        if not isinstance(n, (int, np.integer)) or isinstance(n, bool) or n < 1:
            raise SessionError("set_grad_accumulate", "n", repr(n), "an int ≥ 1")
        self._change(lambda old: replace(old, accumulate=int(n)), self.clear_sums)

    def zero_grad(self) -> None:
        self.loaded.check_training("zero_grad")
        self.loaded.exclusively(self.clear_sums)

    def _change(self, to: Callable[[UpdateSettings], UpdateSettings], then: Callable[[], None] | None = None) -> None:
        """Configure the update anew with other settings; if that fails, nothing changes."""

        def change() -> None:
            self.progress.check_between_steps("update")
            settings = to(self.settings)
            self._load(self.optimizer, settings)
            self.settings = settings
            if then is not None:
                then()

        self.loaded.exclusively(change)

    def _load(self, optimizer: Optimizer, settings: UpdateSettings) -> None:
        """Make the program use this update; state buffers that are new start at zero."""
        update = update_of(self.loaded.plan, self._recipe(optimizer, settings), self.state_buffers)
        self.loaded.program.configure(update)
        self.update, self.state_buffers = update, update.buffers

    def _load_once(self, optimizer: Optimizer) -> None:
        """Make the program use this rule for one update that does not accumulate; `_load` must follow."""
        recipe = Recipe(optimizer.rule, self._factors(self.settings), self.settings.clip, 1)
        update = update_of(self.loaded.plan, recipe, self.state_buffers)
        self.loaded.program.configure(update)
        self.state_buffers = update.buffers

    @property
    def recipe(self) -> Recipe:
        """Return the recipe of the configured update."""
        return self._recipe(self.optimizer, self.settings)

    def _recipe(self, optimizer: Optimizer, settings: UpdateSettings) -> Recipe:
        return Recipe(optimizer.rule, self._factors(settings), settings.clip, settings.accumulate)

    def _factors(self, settings: UpdateSettings) -> dict[str, float]:
        """Return the factor of the rate by parameter name, where it is not 1."""
        prefixes = sorted(settings.multipliers, key=len)
        names = self.values.places.parameters
        return {n: settings.multipliers[p] for p in prefixes for n in names if n.startswith(p)}

    # steps ------------------------------------------------------------------------------------------------------------
    def next_step(self) -> tuple[bool, int]:
        """Return whether the next step updates (else it only adds up gradients), and the Adam counter after it."""
        whole = self.window + 1 >= self.settings.accumulate
        return whole, self.adam_steps + (whole and self.optimizer.counts)

    def count_step(self, adam_steps: int) -> None:
        """Count a step that was made; `adam_steps` is the counter after it."""
        self.adam_steps = adam_steps
        if self.optimizer.rule != "none":
            self.window = (self.window + 1) % self.settings.accumulate

    def gradient_buffers(self) -> list[tuple[str, int]]:
        """Return (stored parameter, buffer) of the gradients that the update reads: of a step, or their sums."""
        if self.settings.accumulate > 1:
            return list(self._stored_moments("grad_sum.").items())
        names = {buffer: name for name, buffer in self.loaded.plan.stored_params}
        found = {g: names[p] for p, g in self.loaded.plan.param_grad_pairs}  # one gradient of two parameters: once
        return [(name, buffer) for buffer, name in found.items()]

    # one update now ---------------------------------------------------------------------------------------------------
    def update_once(self, where: str, optimizer: Optimizer) -> None:
        """Update now with the gradients of the last step; the configuration stays."""
        self.loaded.check_training(where)
        self.progress.check_stepped(where, "gradients")
        self.progress.check_between_steps(where)

        def once() -> None:
            adam_steps = self.adam_steps + optimizer.counts
            self._load_once(optimizer)
            try:
                self.loaded.program.update_only(scalars(optimizer, adam_steps))
            finally:
                self._load(self.optimizer, self.settings)
            self.adam_steps = adam_steps

        self.loaded.exclusively(once)

    def sgd_step_cpu(self, lr: float) -> None:
        rate, factors = np.float32(optimizer("sgd_step_cpu", "sgd", lr=lr).lr), self._factors(self.settings)
        self.loaded.check_training("sgd_step_cpu")
        self.progress.check_stepped("sgd_step_cpu", "gradients")
        values, places = self.values, self.values.places

        def once() -> None:
            trained = [(n, p, places.gradients[p]) for n, p in places.parameters.items() if p in places.gradients]
            read = [(name, p, values.download(p), values.download(g)) for name, p, g in trained]
            clip = _host_clip(self.settings.clip, [(w, g) for _, _, w, g in read])
            for (name, p, weight, gradient), factor in zip(read, clip, strict=True):
                k = rate * np.float32(factors.get(name, 1.0))
                values.upload(p, weight - gradient.reshape(weight.shape) * factor * k)

        with np.errstate(all="ignore"):
            self.loaded.exclusively(once)

    # moments and sums -------------------------------------------------------------------------------------------------
    def read_moment(self, where: str, prefix: str, name: str) -> Array:
        """Return a moment of a parameter; zeros before it is allocated."""
        shape = self.values.places.types[self.values.parameter(where, name)].shape
        self.loaded.check_training(where)
        place = self._moment(prefix, name)
        return np.zeros(shape, np.float32) if place is None else self.values.read(place).reshape(shape)

    def write_moment(self, where: str, prefix: str, name: str, data: Any) -> None:
        """Set a moment of a parameter."""
        parameter, places = self.values.parameter(where, name), self.values.places
        self.loaded.check_training(where)
        if parameter not in places.gradients:
            raise SessionError(where, repr(name), "a parameter that is not trained", "one with a gradient")
        array = as_array(where, name, data, places.types[parameter])

        def write() -> None:
            self.allocate_moments()
            place = self._moment(prefix, name)
            assert place is not None  # just allocated
            self.values.upload(place, array)

        self.loaded.exclusively(write)

    def set_adam_step_count(self, t: int) -> None:
        self.loaded.check_training("set_adam_step_count")
        if not isinstance(t, (int, np.integer)) or isinstance(t, bool) or not 0 <= t < 2**63:
            raise SessionError("set_adam_step_count", "t", repr(t), "an int in 0 … 2^63 − 1")
        self.loaded.exclusively(lambda: self.set_adam_steps(int(t)))

    def set_adam_steps(self, t: int) -> None:
        """Set the counter here and in the program; call it on the owner thread."""
        self.adam_steps = self.loaded.program.updates = t

    def allocate_moments(self) -> None:
        """Allocate the moments where they are not; the configured update stays. Call it on the owner thread."""
        if not self.moments("adam_m."):
            self._load_once(Optimizer("adam"))
            self._load(self.optimizer, self.settings)

    def own_states(self) -> tuple[str, ...]:
        """Return the names of the allocated states of rules other than Adam and its kin."""
        adam = RULES["adam"].state
        names = dict.fromkeys(state for rule in RULES.values() for state in rule.state if state not in adam)
        return tuple(state for state in names if self._stored_moments(f"{state}."))

    def allocate_state(self, state: str) -> None:
        """Allocate a state of a rule where it is not; the configured update stays. Call it on the owner thread."""
        if state not in self.own_states():
            self._load_once(Optimizer(next(name for name, rule in RULES.items() if state in rule.state)))
            self._load(self.optimizer, self.settings)

    def clear_sums(self) -> None:
        """Drop the sums of gradients: the window begins anew. Call it on the owner thread."""
        for b in self.state_buffers:
            if b.name.startswith("grad_sum."):
                self.loaded.program.upload(b.id, np.zeros(b.shape, b.dtype.numpy))
        self.window = 0

    def moments(self, prefix: str) -> dict[str, Place]:
        """Return where the moments of the parameters lie, in node order; empty before they are allocated."""
        places: dict[str, Place] = dict(self._stored_moments(prefix))
        for d in self.loaded.plan.derived_params:
            whole = places.get(d.name)
            if isinstance(whole, int):
                places |= {name: d.part(name, whole) for name, _ in d.sources}
        return {name: places[name] for name in self.values.places.parameters if name in places}

    def _moment(self, prefix: str, name: str) -> Place | None:
        """Return where a moment lies, of a derived parameter too; None before it is allocated."""
        return self.moments(prefix).get(name, self._stored_moments(prefix).get(name))

    def _stored_moments(self, prefix: str) -> dict[str, int]:
        """Return state buffers by the parameter, a derived one in place of its sources, that they belong to."""
        return {b.name.removeprefix(prefix): b.id for b in self.state_buffers if b.name.startswith(prefix)}


def _host_clip(clip: Clip | None, pairs: list[tuple[Array, Array]]) -> list[np.float32]:
    """Return the factor of each gradient, as the kernels compute it."""
    squares = [np.float32(np.sum(np.square(g), dtype=np.float64)) for _, g in pairs]
    one = np.float32(1)
    if clip is None:
        return [one] * len(pairs)
    limit = np.float32(clip.limit)
    if clip.kind == "norm":
        return [np.minimum(one, limit / np.sqrt(np.sum(squares, dtype=np.float32)))] * len(pairs)
    floor = np.float32(clip.floor)
    weights = [np.float32(np.sum(np.square(w), dtype=np.float64)) for w, _ in pairs]
    norms = ((np.maximum(floor, np.sqrt(w)), np.sqrt(g)) for w, g in zip(weights, squares, strict=True))
    return [np.minimum(one, limit * w / g) for w, g in norms]
