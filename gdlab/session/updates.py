"""Configure and make parameter updates: what is configured holds until it is changed, and the last call wins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gdlab.base.errors import SessionError, unknown_name
from gdlab.base.types import Array
from gdlab.devices.base import owner
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.records import Place, Update
from gdlab.plan.update import Clip, update_of
from gdlab.session.arrays import as_array, positive
from gdlab.session.optimizer import Optimizer, adam, adaptive_clip, norm_clip, scalars, sgd
from gdlab.session.state import State


class Updates(State):
    """`set_learning_rate`, `set_adam` and their kin, updates by hand, clipping, accumulation, moments."""

    # rules ------------------------------------------------------------------------------------------------------------
    def set_learning_rate(self, lr: float) -> None:
        """SGD from the next step on, until changed: p ← p − lr·k(p)·g, k as `set_lr_multiplier` says."""
        self._configure("set_learning_rate", sgd("set_learning_rate", lr))

    def set_adam(self, lr: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        """Adam from the next step on, until changed (Kingma and Ba, 2015): m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g²,
        p ← p − lr·k(p)·(m/(1−β₁ᵗ)) / (√(v/(1−β₂ᵗ)) + ε). Moments start at zero and are kept when the rule changes."""
        self._configure("set_adam", adam("set_adam", lr, beta1, beta2, epsilon))

    def set_adamw(
        self, lr: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.01
    ) -> None:
        """Adam that also takes −lr·k(p)·weight_decay·p (Loshchilov and Hutter, 2019)."""
        self._configure("set_adamw", adam("set_adamw", lr, beta1, beta2, epsilon, "adamw", weight_decay))

    def set_laprop(self, lr: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        """LaProp (Ziyin, Wang and Ueda, 2020): v as Adam, m ← β₁m + (1−β₁)·g/(√v̂ + ε), p ← p − lr·k(p)·m̂."""
        self._configure("set_laprop", adam("set_laprop", lr, beta1, beta2, epsilon, "laprop"))

    def clear_optimizer(self) -> None:
        """No update from now on; moments and counter are kept."""
        self._configure("clear_optimizer", Optimizer())

    @property
    def optimizer(self) -> Optimizer:
        """The configured update rule."""
        return self._optimizer

    # one update now ---------------------------------------------------------------------------------------------------
    def sgd_step(self, lr: float) -> None:
        """One SGD update now, with the gradients of the last step; the configured rule stays as it is."""
        self._update_once("sgd_step", sgd("sgd_step", lr))

    def adam_step(self, lr: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        """One Adam update now, with the gradients of the last step; the configured rule stays as it is."""
        self._update_once("adam_step", adam("adam_step", lr, beta1, beta2, epsilon))

    def sgd_step_cpu(self, lr: float) -> None:
        """`sgd_step` through the host: read parameters and gradients, update in float32, write back."""
        rate, factors = np.float32(sgd("sgd_step_cpu", lr).lr), self._factors()
        self._trainable("sgd_step_cpu")
        self._stepped("sgd_step_cpu", "gradients")

        def once() -> None:
            trained = [(name, p, self._gradients[p]) for name, p in self._parameters.items() if p in self._gradients]
            read = [(name, p, self._read_now(p), self._read_now(g)) for name, p, g in trained]
            clip = _host_clip(self._clip, [(w, g) for _, _, w, g in read])
            for (name, p, weight, gradient), factor in zip(read, clip, strict=True):
                k = rate * np.float32(factors.get(name, 1.0))
                self._put_now(p, weight - gradient.reshape(weight.shape) * factor * k)

        with np.errstate(all="ignore"):
            owner().call(once)

    # rates ------------------------------------------------------------------------------------------------------------
    def set_lr_multiplier(self, prefix: str, k: float) -> None:
        """From the next update on the rate of parameters whose name starts with `prefix` is times `k`: ≥ 0, and 0
        freezes them while moments still move. The longest prefix of a name counts; `""` is a prefix of all."""
        self._trainable("set_lr_multiplier")
        if not isinstance(prefix, str) or not any(name.startswith(prefix) for name in self._parameters):
            raise unknown_name("set_lr_multiplier", "prefix", str(prefix), self._parameters)
        (factor,) = positive("set_lr_multiplier", k=k)
        self._change("_multipliers", lambda old: {**old, prefix: factor})

    def clear_lr_multipliers(self) -> None:
        """All factors are 1 again."""
        self._trainable("clear_lr_multipliers")
        self._change("_multipliers", lambda old: {})

    # clipping and accumulation ----------------------------------------------------------------------------------------
    def set_grad_clip_norm(self, max: float | None) -> None:
        """Updates see g·min(1, max/‖all g‖); gradients that are read stay as they are. None: no clipping any more."""
        self._trainable("set_grad_clip_norm")
        clip = norm_clip("set_grad_clip_norm", max)
        self._change("_clip", lambda old: clip)

    def set_adaptive_grad_clip(self, clip: float | None, pmin: float = 1e-3) -> None:
        """Updates see g·min(1, clip·max(pmin, ‖p‖)/‖g‖) of each parameter (Brock and others, 2021, here by parameter);
        replaces clipping by norm. None: no clipping any more."""
        self._trainable("set_adaptive_grad_clip")
        found = adaptive_clip("set_adaptive_grad_clip", clip, pmin)
        self._change("_clip", lambda old: found)

    def set_grad_accumulate(self, n: int) -> None:
        """From now on the update runs on every n-th step, with the mean of the gradients of n steps; a window that was
        begun is dropped. Steps without an update rule add nothing up."""
        self._trainable("set_grad_accumulate")
        if not isinstance(n, (int, np.integer)) or isinstance(n, bool) or n < 1:
            raise SessionError("set_grad_accumulate", "n", repr(n), "an int ≥ 1")
        self._change("_accumulate", lambda old: int(n), then=self._clear_sums_now)

    def zero_grad(self) -> None:
        """Drop the gradients that were added up so far: the window begins anew."""
        self._trainable("zero_grad")
        owner().call(self._clear_sums_now)

    # moments ----------------------------------------------------------------------------------------------------------
    def read_adam_m(self, name: str) -> Array:
        """The first moment of parameter `name`, float32 of its shape; zeros before Adam was ever configured."""
        return self._read_moment("read_adam_m", "adam_m.", name)

    def read_adam_v(self, name: str) -> Array:
        """The second moment of parameter `name`."""
        return self._read_moment("read_adam_v", "adam_v.", name)

    def write_adam_m(self, name: str, data: Any) -> None:
        """Set the first moment of parameter `name`."""
        self._write_moment("write_adam_m", "adam_m.", name, data)

    def write_adam_v(self, name: str, data: Any) -> None:
        """Set the second moment of parameter `name`."""
        self._write_moment("write_adam_v", "adam_v.", name, data)

    def adam_step_count(self) -> int:
        """Number of Adam updates made so far."""
        self._alive("adam_step_count")
        return self._adam_steps

    def set_adam_step_count(self, t: int) -> None:
        """The next Adam update is number t + 1."""
        self._trainable("set_adam_step_count")
        if not isinstance(t, (int, np.integer)) or isinstance(t, bool) or not 0 <= t < 2**63:
            raise SessionError("set_adam_step_count", "t", repr(t), "an int ≥ 0")
        owner().call(lambda: self._set_adam_steps_now(int(t)))

    # the update that is configured ------------------------------------------------------------------------------------
    def update_dispatches(self) -> tuple[Dispatch, ...]:
        """The dispatches of the configured update, which follow the plan's in every step that updates."""
        self._alive("update_dispatches")
        return self._update.dispatches

    @property
    def update(self) -> Update:
        """The configured update: dispatches and state buffers."""
        return self._update

    # inside -----------------------------------------------------------------------------------------------------------
    def _configure(self, where: str, optimizer: Optimizer) -> None:
        self._trainable(where)
        self._between_steps(where)
        owner().call(lambda: self._use(optimizer))  # there no step of a run falls between the update and its scalars

    def _use(self, optimizer: Optimizer) -> None:
        if optimizer.rule != self._optimizer.rule:
            self._load_update(optimizer)
        self._optimizer = optimizer
        scalars(optimizer, 1)  # at its first call NumPy takes 80 µs, which are not the first step's

    def _change(self, field: str, to: Callable[[Any], Any], then: Callable[[], None] = lambda: None) -> None:
        """Set a field and write the update anew; as before if that fails."""

        def change() -> None:
            self._between_steps("update")
            old = getattr(self, field)
            setattr(self, field, to(old))
            try:
                self._load_update(self._optimizer)
            except BaseException:
                setattr(self, field, old)
                raise
            then()

        owner().call(change)

    def _clear_sums_now(self) -> None:
        for buffer in self._state_stored("grad_sum.").values():
            b = next(b for b in self._state_buffers if b.id == buffer)
            self._program.upload(buffer, np.zeros(b.shape, b.dtype.numpy))
        self._window = 0

    def _update_once(self, where: str, optimizer: Optimizer) -> None:
        self._trainable(where)
        self._stepped(where, "gradients")
        self._between_steps(where)

        def once() -> None:
            update = update_of(self._plan, self._recipe(optimizer, 1), self._state_buffers)
            adam_steps = self._adam_steps + optimizer.counts
            self._program.configure(update)
            self._state_buffers = update.buffers
            try:
                self._program.update_only(scalars(optimizer, adam_steps))
            finally:
                self._load_update(self._optimizer)
            self._adam_steps = adam_steps

        owner().call(once)

    def _read_moment(self, where: str, prefix: str, name: str) -> Array:
        buffer = self._lookup(where, name, self._parameters)
        self._trainable(where)
        held = self._moment(prefix, name)
        if held is None:
            return np.zeros(self._types[buffer].shape, np.float32)
        return self._download(held).reshape(self._types[buffer].shape)

    def _write_moment(self, where: str, prefix: str, name: str, data: Any) -> None:
        buffer = self._lookup(where, name, self._parameters)
        self._trainable(where)
        if buffer not in self._gradients:
            raise SessionError(where, repr(name), "a parameter that is not trained", "one with a gradient")
        array = as_array(where, name, data, self._types[buffer])

        def write() -> None:
            self._make_moments_now()
            held = self._moment(prefix, name)
            assert held is not None  # just made
            self._put_now(held, array)

        owner().call(write)

    def _moment(self, prefix: str, name: str) -> Place | None:
        """Where a moment lies, of a derived parameter too; None before it is allocated."""
        return self._state_named(prefix).get(name, self._state_stored(prefix).get(name))

    def _make_moments_now(self) -> None:
        """Allocate the moments where they are not; the configured update stays."""
        if not self._state_named("adam_m."):
            update = update_of(self._plan, self._recipe(Optimizer("adam"), 1), self._state_buffers)
            self._program.configure(update)
            self._state_buffers = update.buffers
            self._load_update(self._optimizer)

    def _set_adam_steps_now(self, t: int) -> None:
        self._adam_steps = self._program.updates = t


def _host_clip(clip: Clip | None, pairs: list[tuple[Array, Array]]) -> list[np.float32]:
    """The factor of each gradient, as the kernels compute it."""
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
