"""Pieces: kernels and schedules of an op's unfused plan, one piece per graph, options and target, and nothing of where
it was written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import networks
import numpy as np
import plans
import pytest
from op_checks import op_cases

import gdlab as gd
from gdlab.autodiff import differentiate
from gdlab.base.errors import CompileError, GraphError, ShapeError
from gdlab.base.memo import LruCache
from gdlab.base.types import DType, TensorType, f16, f32, q4, u32
from gdlab.graph import Graph, Value
from gdlab.kernels import wgsl
from gdlab.op import REGISTRY, Op
from gdlab.plan import CompileOptions, Limits, Target, compile
from gdlab.plan import piece as pieces
from gdlab.plan.codec import from_json, to_json
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.piece import PIECES, Piece, piece
from gdlab.plan.plan_cache import key_of
from gdlab.plan.target import TunedSchedule, Tuning

HARDWARE = Target.portable()
SOFTWARE, CPU = Target("wgpu", "software", Limits()), Target("cpu", "cpu", Limits())
TARGETS = {"hardware": HARDWARE, "software": SOFTWARE, "cpu": CPU}
UNFUSED = CompileOptions(fuse_dispatches=False)
TUNED = replace(
    HARDWARE, tuning=Tuning((TunedSchedule("matmul 64x64x64 mk·kn f32", (32, 32, 16, 4, 4, 1, 1, 1), 1000, 2000),))
)


@dataclass
class Made:
    """A counter, as a queue has it."""

    pieces_created: int = 0


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """No piece of another test."""
    monkeypatch.setattr(pieces, "_by_call", LruCache(PIECES))
    monkeypatch.setattr(pieces, "_by_graph", WeakValueDictionary())


def t(*shape: int, dtype: DType = f32) -> TensorType:
    return TensorType(shape, dtype)


# equal work, equal kernels --------------------------------------------------------------------------------------------
def alone(op: Op) -> Iterator[tuple[Graph, Value]]:
    """Each sample on inputs of the types that its node reads, so that nothing stands beside the node."""
    for sample in op.samples:
        with Graph() as first:
            given = [leaf(f"a{i}", TensorType(a.shape, u32 if a.dtype == np.uint32 else f32))
                     for i, a in enumerate(sample.arrays())]  # fmt: skip
            node = op(*op.spread(given), **sample.attrs).node
        with Graph() as g:
            read = [leaf(f"a{i}", first.node(id).type) for i, id in enumerate(node.inputs)]
            out = g.append(op.name, tuple(v.id for v in read), node.attrs, node.type)
            g.set_outputs([out])
        yield g, out


def leaf(name: str, type: TensorType) -> Value:
    return (gd.input_u32 if type.dtype is u32 else gd.input)(name, type.shape)


def facts(d: Dispatch) -> tuple[object, ...]:
    """All that a kernel and its launch depend on, but for the buffers."""
    return (d.kernel, d.label, d.source_hash, d.variant, d.variant_reason, d.params, d.workgroups, d.workgroup_size,
            d.scalars, d.group, d.flops, d.bytes_read, d.bytes_written)  # fmt: skip


@pytest.mark.parametrize("op", op_cases())
def test_the_piece_of_an_op_has_the_kernels_and_schedules_of_its_unfused_plan(op: Op) -> None:
    for i, (graph, out) in enumerate(alone(op)):
        types = tuple(n.type for n in graph.inputs)
        for name, target in TARGETS.items():
            plan = compile(graph, mode="inference", options=UNFUSED, target=target)
            made = piece(op, types, target, out.node.attrs)
            assert [*map(facts, made.dispatches)] == [*map(facts, plan.dispatches)], f"sample {i}, {name}"
            assert made.operands == tuple(b for _, b in plan.input_buffers) and made.results == plan.output_buffers
            assert [d.bindings for d in made.dispatches] == [d.bindings for d in plan.dispatches]
            assert made.constants == plan.constant_buffers
            if i == 0 and name != "cpu":
                for mine, theirs in zip(made.dispatches, plan.dispatches, strict=True):
                    assert wgsl(mine, target)[0] == wgsl(theirs, target)[0]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_dispatches_of_an_unfused_training_plan_are_those_of_the_pieces_of_its_nodes(target: Target) -> None:
    plan = compile(differentiate(networks.transformer())[0], mode="training", options=UNFUSED, target=target)
    compared = set[str]()
    for d in plan.dispatches:
        node = plan.graph.node(d.results[0].node) if d.results[0].node >= 0 else None
        if node is None or node.op not in REGISTRY:
            continue
        read = [plan.node_buffers.get(i, -1) for i in node.inputs]
        if (
            read != [o.buffer for o in d.operands]
            or len({*read}) < len(read)
            or {o.access for o in d.operands} > {"full"}
        ):
            continue  # it reads a literal, a broadcast or one operand twice
        made = piece(REGISTRY[node.op], tuple(plan.graph.node(i).type for i in node.inputs), target, node.attrs)
        if len(made.dispatches) == 1:
            (one,) = made.dispatches
            assert facts(replace(one, group=d.group)) == facts(d)
            compared.add(node.op)
    assert len(compared) > 12, compared


@pytest.mark.parametrize("weight", [t(64, 32, dtype=f16), t(64, 32, dtype=q4)], ids=str)
def test_a_piece_reads_weights_in_reduced_storage(weight: TensorType) -> None:
    with Graph() as g:
        w = gd.parameter_f16("w", weight.shape) if weight.dtype is f16 else gd.parameter_q4("w", weight.shape)
        g.output(gd.matmul(gd.input("x", (8, 64)), w))
    plan = compile(g, mode="inference", options=UNFUSED)
    made = piece(REGISTRY["matmul"], (t(8, 64), weight), HARDWARE)
    assert [d.source_hash for d in made.dispatches] == [d.source_hash for d in plan.dispatches]
    assert made.buffers[made.operands[1]].nbytes == plan.buffers[plan.stored_params[0][1]].nbytes


def test_a_function_is_fused_where_it_is_asked_for() -> None:
    def scaled(x: Value, w: Value, s: Value) -> Value:
        return x.rms_norm(w, 1e-6) * s

    types = t(8, 64), t(64), t(8, 64)
    assert len(piece(scaled, types, HARDWARE).dispatches) == 2
    (one,) = piece(scaled, types, HARDWARE, fuse=True).dispatches
    assert one.kernel == "custom" and [p.op for p in one.epilogue] == ["mul"]


# one piece of each ----------------------------------------------------------------------------------------------------
def test_equal_calls_and_equal_functions_share_a_piece() -> None:
    made = Made()
    add = REGISTRY["add"]
    first = piece(add, (t(4, 4), t(4, 4)), HARDWARE, counter=made)
    assert all(piece(add, (t(4, 4), t(4, 4)), HARDWARE, counter=made) is first for _ in range(3))
    written: list[Callable[..., Value]] = [lambda x, y: x + y, lambda a, b: a + b, lambda p, q: p.add(q)]
    assert all(piece(f, (t(4, 4), t(4, 4)), HARDWARE, counter=made) is first for f in written)
    assert made.pieces_created == 1
    assert piece(add, (t(4, 4), t(4, 4)), Target("wgpu", "hardware", Limits()), counter=made) is first
    assert made.pieces_created == 1 and repr(first) == "<Piece: Pointwise(add)[16]>"


@pytest.mark.parametrize(
    "other",
    [
        lambda: piece(REGISTRY["scale"], (t(5),), HARDWARE, (("factor", 2.0),)),
        lambda: piece(REGISTRY["scale"], (t(4),), HARDWARE, (("factor", 3.0),)),
        lambda: piece(REGISTRY["scale"], (t(4),), TUNED, (("factor", 2.0),)),
        lambda: piece(REGISTRY["scale"], (t(4),), CPU, (("factor", 2.0),)),
        lambda: piece(REGISTRY["scale"], (t(4),), HARDWARE, (("factor", 2.0),), fuse=True),
        lambda: piece(REGISTRY["relu"], (t(4),), HARDWARE),
    ],
    ids=["type", "attribute", "tuning", "device", "fuse", "op"],
)
def test_a_piece_is_another_where_anything_differs(other: Callable[[], Piece]) -> None:
    scale = piece(REGISTRY["scale"], (t(4),), HARDWARE, (("factor", 2.0),))
    assert other() is not scale
    assert piece(REGISTRY["scale"], (t(4),), HARDWARE, (("factor", 2.0),)) is scale


def test_zeros_of_both_signs_are_two_attributes() -> None:
    def filled(x: Value, value: float) -> Value:
        return x + gd.full((4,), value)

    plus, minus = (piece(filled, (t(4),), HARDWARE, (("value", v),)) for v in (0.0, -0.0))
    assert plus is not minus and plus.dispatches[0].source_hash != minus.dispatches[0].source_hash


def test_the_least_recently_used_piece_leaves_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PIECES == 4096
    monkeypatch.setattr(pieces, "_by_call", LruCache(3))
    made, relu = Made(), REGISTRY["relu"]

    def ask(size: int) -> int:
        piece(relu, (t(size),), HARDWARE, counter=made)
        return made.pieces_created

    assert [ask(n) for n in (1, 2, 3, 1, 4)] == [1, 2, 3, 3, 4]
    assert [ask(n) for n in (1, 3, 4, 2)] == [4, 4, 4, 5]
    assert len(pieces._by_call) == len(pieces._by_graph) == 3


def test_threads_that_make_a_piece_at_a_time_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    together, make = threading.Barrier(2), pieces._piece_of

    def slow(*args: Any) -> Piece:
        together.wait(10)
        return make(*args)

    monkeypatch.setattr(pieces, "_piece_of", slow)
    found, made = list[Piece](), Made()
    threads = [
        threading.Thread(target=lambda: found.append(piece(REGISTRY["relu"], (t(4),), HARDWARE, counter=made)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 2 and found[0] is found[1] and made.pieces_created == 1


# what a piece holds ---------------------------------------------------------------------------------------------------
def roles(p: Piece) -> list[int]:
    return sorted([*{*p.operands, *p.results}, *p.scratch, *(b for b, _ in p.constants)])


def test_a_split_product_has_scratch_of_its_own() -> None:
    made = piece(REGISTRY["matmul"], (t(128, 65536), t(65536, 128)), HARDWARE)
    first, second = made.dispatches
    assert made.scratch == first.writes and second.reads == first.writes and second.writes == made.results
    assert (first.index, first.group, second.index, second.group) == (0, 0, 1, 1)
    assert roles(made) == [b.id for b in made.buffers]


def test_constants_come_with_their_bytes_and_operands_need_no_reader() -> None:
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = piece(lambda x, unread: x * gd.constant(table) + 1.0, (t(2, 3), t(7)), HARDWARE, fuse=True)
    ((buffer, data),) = made.constants
    assert data == table.tobytes() and buffer in made.dispatches[0].reads
    assert made.operands[1] not in made.dispatches[0].reads and roles(made) == [b.id for b in made.buffers]


def test_a_result_is_never_an_operand() -> None:
    for build in (lambda x: x, lambda x: x.reshape((8, 2)), lambda x: x.stop_gradient()):
        made = piece(build, (t(4, 4),), HARDWARE)
        assert [d.label for d in made.dispatches] == ["Copy[16]"] and made.results != made.operands
    several = piece(lambda x: (x + 1.0, x * x, x + 1.0), (t(4),), HARDWARE)
    assert several.results[0] == several.results[2] != several.results[1]
    assert [d.group for d in several.dispatches] == [0, 0]


def test_a_piece_knows_nothing_of_where_it_was_written() -> None:
    with Graph() as g:
        x = gd.input("weight of the first layer", (4,))
        made = piece(lambda v: (v + v).relu(), (x.type,), HARDWARE)
    assert len(g) == 1 and [b.name for b in made.buffers] == ["x0", "", ""]
    assert not any(isinstance(value, Graph) for value in vars(made).values())


# refusals -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("build", "types", "target", "error", "words"),
    [
        (lambda x: x + gd.parameter("w", (4,)), (t(4),), HARDWARE, GraphError,
         "piece: parameter: given 'w', wanted a function of its operands alone"),
        (lambda x: x + gd.input("x9", (4,)), (t(4),), HARDWARE, GraphError, "piece: input: given 'x9'"),
        (lambda x: gd.add(x, x.reshape((2, 2))).relu(), (t(4),), HARDWARE, ShapeError, "add"),
        (REGISTRY["matmul"], (t(2, 3), t(2, 3)), HARDWARE, ShapeError, "matmul: operands: given f32[2, 3]"),
        (REGISTRY["relu"], (t(1 << 26),), HARDWARE, CompileError, "at most 134217728, the largest binding"),
        (REGISTRY["add"], (t(4), t(4)), Target("wgpu", "hardware", Limits(storage_buffers=2)), CompileError,
         "dispatch 0: bindings: given 3, wanted at most 2 storage buffers"),
    ],
    ids=["parameter", "input", "shape", "op", "size", "bindings"],
)  # fmt: skip
def test_a_refused_piece_is_not_kept(
    build: Any, types: tuple[TensorType, ...], target: Target, error: type[Exception], words: str
) -> None:
    made = Made()
    for _ in range(2):
        with pytest.raises(error) as refused:
            piece(build, types, target, counter=made)
        assert words in str(refused.value)
    assert made.pieces_created == len(pieces._by_call) == len(pieces._by_graph) == 0


# tuning ---------------------------------------------------------------------------------------------------------------
def test_the_tuning_of_a_target_is_in_fingerprint_key_and_file() -> None:
    assert Tuning().digest == "" and len(TUNED.tuning.digest) == 16
    assert TUNED != HARDWARE and replace(TUNED) == TUNED and hash(replace(TUNED)) == hash(TUNED)
    graph = plans.regression()
    plain, tuned = (compile(graph, mode="training", target=target) for target in (HARDWARE, TUNED))
    assert plain.fingerprint != tuned.fingerprint
    assert from_json(to_json(tuned)) == tuned and from_json(to_json(tuned)).target.tuning == TUNED.tuning
    keys = [key_of(graph, "training", {}, False, CompileOptions(), target) for target in (HARDWARE, TUNED)]
    assert keys[0] != keys[1]
