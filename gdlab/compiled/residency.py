"""Keep experts on the host, copy them to the device when a row chooses them, and report the choices.

The weight of a layer with host experts is a pool: the resident matrices, then a few transient pages. A forward stops
before each product that reads it, reads which experts the rows chose, and runs the dispatch once for the resident ones
and once for each round of host experts, with another table. Every row is written by the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gdlab.base.errors import CapabilityError
from gdlab.base.types import Array
from gdlab.compiled.boundary_values import Port
from gdlab.compiled.expert_routing import (
    CHOICE,
    CHOSEN_LIVE,
    INDEX,
    LIVE,
    TABLE,
    ExpertLayer,
    Mask,
    MoeResidencyStats,
    active,
    check_numbers,
    counted,
    resident,
    with_pages,
)
from gdlab.plan.compiler import compile
from gdlab.plan.records import ExecutionPlan
from gdlab.session import Session, open_session
from gdlab.session.progress import PartialStep

ABSENT = 0xFFFFFFFF  # of a table: the matrix is not here


@dataclass(slots=True, eq=False)
class ExpertPool:
    """The matrices of a weight: `pages` by expert (a resident one's page, else ABSENT), `transient`: the first page
    that changes, and the matrices of the others, on the host."""

    buffer: int
    table: int
    pages: Array
    transient: int
    count: int
    host: dict[int, Array] = field(default_factory=dict)
    there: bytes = b""  # the table that lies on the device

    @property
    def resident(self) -> list[int]:
        """The experts on the device, in the order of their pages."""
        return np.flatnonzero(self.pages != ABSENT).tolist()


@dataclass(frozen=True, slots=True, eq=False)
class ResidencyStop:
    """A dispatch that reads a pool with host experts: its number, the layer, and the buffer of the expert numbers."""

    dispatch: int
    weight: str
    numbers: int


class Residency:
    """The experts of one compiled graph: masks, pools, captures and statistics. `hidden`: the hidden outputs by name.
    All methods are called in the turn of the device."""

    def __init__(
        self, session: Session, layers: Sequence[ExpertLayer], hidden: Mapping[str, Port], masks: Sequence[Mask] = ()
    ) -> None:
        self.session, self.layers, self.hidden = session, tuple(layers), hidden
        self.masks: tuple[Mask, ...] = tuple(masks) or ((),) * len(layers)
        self.pools = dict(self._pools())
        self.stops = self._stops()
        self.sync_points = 0
        self.captured: int | None = None  # the number of experts whose routing is kept
        self.last: tuple[Mask, ...] | None = None  # the masks of the last forward, while nobody took its statistics
        self.last_capture: int | None = None  # of the last forward, while nobody took it

    def follow(self, before: Residency) -> None:
        """Continue the counts and requests of the same graph under other masks."""
        self.sync_points, self.captured = before.sync_points, before.captured

    # masks ------------------------------------------------------------------------------------------------------------
    @property
    def split(self) -> Mapping[str, ExpertPool]:
        """The weights with some experts on the host."""
        return {name: pool for name, pool in self.pools.items() if (pool.pages == ABSENT).any()}

    def splits(self, masks: Sequence[Mask]) -> bool:
        """Return whether some experts lie on the host now, or would under other masks."""
        return self.paging or any(not all(mask) for mask in masks)

    def check_masks(self, where: str, masks: Sequence[Mask]) -> None:
        """Raise `CapabilityError` for experts on the host in a layer whose weights are no parameters of their own, or
        whose graph has gradients."""
        homes = [name for layer in self.layers for name in layer.weights]
        for layer, mask in zip(self.layers, masks, strict=True):
            own = layer.weights and all(name in self.pools and homes.count(name) == 1 for name in layer.weights)
            if not all(mask) and not own:
                given = f"weights of layer {layer.number} that are computed, read otherwise, or differentiated"
                wanted = "f32 parameters that only products of this layer read, and no gradients"
                raise CapabilityError(where, "experts on the host", given, wanted)

    def session_of(self, plan: ExecutionPlan, masks: Sequence[Mask], transient: int) -> Session:
        """Return a new session with room for the resident experts and for `transient` more in each layer with others;
        other parameters are those of this one."""
        pages = dict[str, int]()
        for layer, mask in zip(self.layers, masks, strict=True):
            for name in layer.weights:
                if name in self.pools and not all(mask):
                    experts = plan.param_types[name].shape[0]
                    pages[name] = min(int(resident(mask, experts).sum()) + transient, experts)
        if pages:
            graph = with_pages(plan.graph, pages)
            plan = compile(graph, mode=plan.mode, options=plan.options, target=plan.target)
        shared = tuple(name for name in plan.param_types if name not in self.pools)
        loaded = self.session.loaded
        made = open_session(plan, loaded.device, self.session.nodes, self.session, shared)
        made.loaded.program.turn = loaded.turn  # one order for calls before and after
        return made

    # pools ------------------------------------------------------------------------------------------------------------
    def _pools(self) -> Iterator[tuple[str, ExpertPool]]:
        """Yield the pool of each weight that is read through a table."""
        inputs, types = self.session.values.places.inputs, self.session.plan().param_types
        stored = dict(self.session.plan().stored_params)
        for layer, mask in zip(self.layers, self.masks, strict=True):
            for name in layer.weights:
                table = inputs.get(f"{TABLE}{name}")
                if table is None:
                    continue
                experts = self.session.values.places.types[table].num_elements
                there, count = resident(mask, experts), types[name].shape[0]
                pages = np.full(experts, ABSENT, np.uint32)
                pages[there] = np.arange(there.sum(), dtype=np.uint32)
                yield name, ExpertPool(stored[name], table, pages, int(there.sum()), count)

    def _stops(self) -> list[ResidencyStop]:
        pools = {pool.buffer: name for name, pool in self.pools.items() if (pool.pages == ABSENT).any()}
        return [
            ResidencyStop(d.index, pools[d.operands[1].buffer], d.operands[2].buffer)
            for d in self.session.plan().dispatches
            if len(d.operands) > 3 and d.operands[1].buffer in pools
        ]

    @property
    def paging(self) -> bool:
        """Whether some experts lie on the host."""
        return bool(self.stops)

    def tables(self) -> list[tuple[int, Array]]:
        """Return the tables that must be written before a forward: those of resident experts."""
        return [row for pool in self.pools.values() for row in self._table(pool, pool.pages)]

    def _table(self, pool: ExpertPool, pages: Array) -> list[tuple[int, Array]]:
        held = pages.tobytes()
        if held == pool.there:
            return []
        pool.there = held
        return [(pool.table, pages)]

    def forget(self) -> None:
        """Forget the contents of the tables: they are written anew."""
        for pool in self.pools.values():
            pool.there = b""

    def write(self, name: str, full: Array) -> None:
        """Write all matrices of a weight: the resident ones to the device, copies of the others to the host."""
        pool, program = self.pools[name], self.session.loaded.program
        held = np.zeros((pool.count, *full.shape[1:]), np.float32)
        there = pool.resident
        held[: len(there)] = full[there]
        program.upload(pool.buffer, held)
        pool.host = {int(e): full[e].copy() for e in np.flatnonzero(pool.pages == ABSENT)}

    def read(self, name: str) -> Array:
        """Return all matrices of a weight."""
        pool = self.pools[name]
        held = self.session.values.download(pool.buffer)
        full = np.zeros((len(pool.pages), *held.shape[1:]), np.float32)
        full[pool.resident] = held[: pool.transient]
        for expert, matrix in pool.host.items():
            full[expert] = matrix
        return full

    def bytes(self) -> tuple[int, int]:
        """Return the bytes of experts on the device, with transient pages, and on the host."""
        buffers = self.session.plan().buffers
        device = sum(buffers[pool.buffer].nbytes for pool in self.pools.values())
        return device, sum(matrix.nbytes for pool in self.pools.values() for matrix in pool.host.values())

    # a forward --------------------------------------------------------------------------------------------------------
    def forward(self) -> None:
        """Run one step that stops before each product with host experts."""
        steps, program = self.session.steps, self.session.loaded.program
        self.session.progress.partial = None
        layers: dict[int, Array] = {}
        for stop in self.stops:
            steps.advance(stop.dispatch, reversible=False)
            if stop.numbers not in layers:
                layers[stop.numbers] = program.download(stop.numbers).reshape(-1)
                self.sync_points += 1
            self._rounds(stop, layers[stop.numbers])
        if not self._partial().over:
            steps.advance(len(self.session.plan().dispatches), reversible=False)
        self.session.progress.partial = None

    def _partial(self) -> PartialStep:
        partial = self.session.progress.partial
        assert partial is not None  # the first stop began it
        return partial

    def _rounds(self, stop: ResidencyStop, numbers: Array) -> None:
        """Run a product for the resident experts, then for the host experts that rows chose, some at a time. The last
        round is the step's own."""
        steps, program, pool = self.session.steps, self.session.loaded.program, self.pools[stop.weight]
        wanted = [int(e) for e in np.unique(numbers[numbers < len(pool.pages)]) if pool.pages[e] == ABSENT]
        room = pool.count - pool.transient
        rounds: list[list[int]] = [[], *(wanted[i : i + room] for i in range(0, len(wanted), room))]
        scalars = steps.scalars(self._partial().adam_steps)
        for k, experts in enumerate(rounds):
            pages = np.full_like(pool.pages, ABSENT) if experts else pool.pages
            for page, expert in enumerate(experts, pool.transient):
                matrix = pool.host[expert]
                memory, _ = program.memory_at(pool.buffer)
                program.queue.write("experts", memory, matrix, page * matrix.nbytes)
                pages[expert] = page
            for buffer, table in self._table(pool, pages):
                program.upload(buffer, table)
            if k + 1 < len(rounds):
                program.run(stop.dispatch, stop.dispatch + 1, scalars)
        steps.advance(stop.dispatch + 1, reversible=False)

    def launched(self) -> None:
        """Record that a forward was launched."""
        self.last, self.last_capture = self.masks, self.captured

    # chosen experts ---------------------------------------------------------------------------------------------------
    def unchecked(self) -> list[tuple[ExpertLayer, Port]]:
        """Return the layers whose expert numbers may be computed out of range."""
        return [(layer, self.hidden[f"{INDEX}{layer.number}"]) for layer in self.layers if not layer.bounded]

    def check(self, where: str, numbers: Sequence[Array]) -> None:
        """Raise `ExpertIndexError` for numbers, by unchecked layer, that are out of range."""
        for (layer, _), found in zip(self.unchecked(), numbers, strict=True):
            check_numbers(where, layer, found)

    def take_stats(self) -> MoeResidencyStats | None:
        """Return the statistics of the last forward, once."""
        masks, self.last = self.last, None
        if masks is None:
            return None
        rows = [self._active(f"{INDEX}{layer.number}", f"{LIVE}{layer.number}") for layer in self.layers]
        return counted(self.layers, rows, masks)

    def capture(self, experts: int) -> bool:
        """Record the router's choices in the layers with `experts` experts, from the next forward on."""
        found = any(layer.routed and experts in layer.experts for layer in self.layers)
        if found:
            self.captured = experts
        return found

    def take_capture(self) -> list[Array] | None:
        """Return the choices of the last forward by layer, flat, once."""
        experts, self.last_capture = self.last_capture, None
        if experts is None:
            return None
        layers = [layer.number for layer in self.layers if layer.routed and experts in layer.experts]
        return [self._active(f"{CHOICE}{number}", f"{CHOSEN_LIVE}{number}") for number in layers]

    def _active(self, name: str, live: str) -> Array:
        """Read the active entries of a hidden output of the last forward."""
        values, rows = self.session.values, self.hidden.get(live)
        numbers = values.download(self.hidden[name].buffer)
        return active(numbers, None if rows is None else values.download(rows.buffer)).copy()
