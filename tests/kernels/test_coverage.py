"""The picture of a kernel (`spec/view2.md` T9): the part of the result that a workgroup has, what each line does, and
the reason of the schedule, for every family of kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from machine import needs
from matrix import MATRIX
from op_checks import wire, working_ops
from single_workgroups import drawn_for, written_by

from gdlab import kernels, ops
from gdlab.autodiff import differentiate
from gdlab.base.types import DType
from gdlab.graph import Graph, Value
from gdlab.kernels.coverage import coverage
from gdlab.kernels.dispatch_wgsl import wgsl_with_parts
from gdlab.kernels.reasons import reason, workgroup_bytes
from gdlab.op import REGISTRY, Shader
from gdlab.plan import compile, spread
from gdlab.plan.dispatch import Dispatch
from gdlab.plan.target import Limits, Target
from gdlab.plan.update import Recipe, update_of

SOFTWARE, HARDWARE = Target("wgpu", "software", Limits()), Target.portable()
ROOMY = Target("wgpu", "hardware", Limits(workgroup_bytes=32768))


def dispatch_of(build: Callable[[], Value], target: Target = HARDWARE, at: int = 0) -> Dispatch:
    with Graph() as g:
        g.output(build())
    return compile(g, mode="inference", target=target).dispatches[at]


def given(*shape: int) -> Value:
    return ops.input(f"x{len(shape)}_{shape[0]}_{shape[-1]}", shape)


def product_of(m: int, k: int, n: int) -> Callable[[], Value]:
    return lambda: ops.matmul(ops.input("a", (m, k)), ops.input("b", (k, n)))


def gated(dtype: DType) -> Callable[[], Value]:
    """Two products of two normalized rows, whose results one op takes."""

    def build() -> Value:
        rows = ops.rms_norm(given(2, 64), ops.input("w", (64,)), eps=1e-5)
        return ops.swiglu(*(ops.matmul_bt(rows, ops.parameter(name, (40, 64), dtype=dtype)) for name in ("g", "u")))

    return build


def gated_tiles(m: int = 520, n: int = 1012) -> Value:
    """Two products in tiles whose results one op takes; the last tile of each has fewer rows and columns."""
    rows = given(m, 8)
    return ops.swiglu(*(ops.matmul(rows, ops.parameter(name, (8, n))) for name in ("g", "u")))


def attention() -> Value:
    q, k, v = (ops.input(name, (130, 32)) for name in "qkv")
    return ops.causal_attention(q, k, v, num_heads=4, num_kv_heads=4, head_dim=8)


def many_heads() -> list[Value]:
    """Enough groups for tiles."""
    return [ops.input(name, (70, 256)) for name in "qkv"]


def attention_of_many_heads() -> Value:
    return ops.causal_attention(*many_heads(), num_heads=64, num_kv_heads=64, head_dim=4)


def gradient(name: str) -> Callable[[], Value]:
    """A gradient of causal attention."""

    def build() -> Value:
        q, k, v = many_heads()
        lse, delta, g = ops.input("lse", (70, 64)), ops.input("delta", (70, 64)), ops.input("g", (70, 256))
        return REGISTRY[name](q, k, v, lse, delta, g, 64, 64, 4, True, 0)

    return build


def decoding() -> Value:
    q, k, v = (ops.input(name, (rows, 32)) for name, rows in zip("qkv", (3, 300, 300), strict=True))
    return ops.cached_attention(q, k, v, ops.constant_u32([280]), num_heads=4, num_kv_heads=4, head_dim=8)


def decoding_one() -> Value:
    q, k, v = (ops.input(name, (rows, 64)) for name, rows in zip("qkv", (1, 900, 900), strict=True))
    return ops.cached_attention(q, k, v, ops.constant_u32([870]), num_heads=2, num_kv_heads=2, head_dim=32)


def turned(heads: int, half: int) -> Callable[[], Value]:
    """Rotated heads: a workgroup ends inside a head, at one, or has several."""
    return lambda: ops.rope(given(5, 2 * half * heads), theta=10_000.0, head_dim=2 * half)


def chosen(op: Callable[..., Value], *inner: int) -> Callable[[], Value]:
    """Six rows, each times the matrix that its index names."""
    return lambda: op(given(6, 9), ops.input("w", (3, *inner)), ops.input_u32("i", (6,)))


def convolution() -> Value:
    return ops.conv2d_hw(ops.input("x", (2, 3, 9, 7)), ops.input("k", (5, 3, 3, 3)), stride=(1, 1), padding=(1, 1))


def norm() -> Value:
    return ops.layer_norm(given(37, 96), ops.input("w", (96,)), ops.input("b", (96,)), eps=1e-5)


CASES: dict[str, tuple[Callable[[], Value], Target]] = {
    "tiles in registers": (product_of(12, 9, 70), SOFTWARE),
    "tiles in workgroup memory": (product_of(70, 12, 90), HARDWARE),
    "split K": (product_of(33, 4096, 40), HARDWARE),
    "elements": (lambda: ops.exp(given(9, 130)), HARDWARE),
    "a fold of rows": (lambda: ops.sum_inner(given(70, 40)), SOFTWARE),
    "a fold of columns": (lambda: ops.sum_rows(given(20, 90)), HARDWARE),
    "softmax": (lambda: ops.softmax(given(37, 24)), HARDWARE),
    "layer norm": (norm, SOFTWARE),
    "few rows": (product_of(3, 64, 90), HARDWARE),
    "attention": (attention, SOFTWARE),
    "attention in tiles": (attention_of_many_heads, HARDWARE),
    "attention in tiles, by two parts": (attention_of_many_heads, ROOMY),
    "gradient of queries, the last first": (gradient("attention_grad_q"), HARDWARE),
    "gradient of keys, the first first": (gradient("attention_grad_k"), ROOMY),
    "keys of a query": (decoding, HARDWARE),
    "transpose": (lambda: ops.transpose(given(30, 20)), HARDWARE),
    "products side by side": (lambda: ops.batch_matmul(given(3, 9, 5), given(3, 5, 11)), SOFTWARE),
    "largest of a row": (lambda: ops.top_k_indices(given(37, 20), k=3), HARDWARE),
    "largest of a row, alone": (lambda: ops.top_k_indices(given(37, 20), k=3), SOFTWARE),
    "pairs of heads": (turned(3, 3), SOFTWARE),
    "pairs of long heads": (turned(2, 80), HARDWARE),
    "pairs of heads side by side": (turned(4, 8), HARDWARE),
    "halves of a gate": (lambda: REGISTRY["swiglu_concat_grad"](given(5, 22), given(5, 11)), SOFTWARE),
    "chosen matrices": (chosen(ops.grouped_matmul, 9, 11), SOFTWARE),
    "chosen matrices, by rows": (chosen(ops.grouped_matmul, 9, 70), HARDWARE),
    "chosen matrices, transposed": (chosen(ops.grouped_matmul_bt, 70, 9), HARDWARE),
    "sums by number": (lambda: ops.grouped_matmul_at(given(6, 9), given(6, 70), ops.input_u32("i", (6,)), experts=3),
                       SOFTWARE),
    "sums by number, in tiles": (
        lambda: ops.grouped_matmul_at(given(6, 9), given(6, 70), ops.input_u32("i", (6,)), experts=3), HARDWARE),
    "one row": (product_of(1, 256, 40), HARDWARE),
    "two products of normalized rows": (gated(DType.f32), HARDWARE),
    "two products in tiles": (gated_tiles, HARDWARE),
    "two products that decode blocks": (gated(DType.q4_0), HARDWARE),
    "one query of many keys": (decoding_one, HARDWARE),
    "a window": (lambda: ops.max_pool_2d(given(2, 3, 8, 8), k=(2, 2), stride=(2, 2), padding=(0, 0)), SOFTWARE),
}  # fmt: skip


ALIKE = ("attention in tiles", "gradient of queries, the last first")  # drawn as by two parts


@pytest.mark.parametrize("case", [case for case in CASES if MATRIX or case not in ALIKE])
def test_a_workgroup_writes_what_the_picture_gives_it(case: str) -> None:
    """T9, on the adapter: first, second and last workgroup, each run alone."""
    needs("wgpu")
    build, target = CASES[case]
    d = dispatch_of(build, target)
    covered = coverage(d)
    assert covered.over in ("result", "input") and covered.groups <= spread.flat(d.workgroups)
    some = sorted({0, min(1, covered.groups - 1), covered.groups - 1})
    for workgroup, written in zip(some, written_by(d, target, some), strict=True):
        assert written == drawn_for(covered, workgroup), (case, workgroup, covered)


def test_long_rows_of_causal_attention_come_first() -> None:
    """The last queries see the most keys; the first keys are seen by the most queries."""
    builds = [attention_of_many_heads, gradient("attention_grad_q"), gradient("attention_grad_k")]
    assert [coverage(dispatch_of(build)).flip for build in builds] == [True, True, False]


def test_every_kernel_has_a_picture_a_reason_and_parts() -> None:
    """T9: of every op with a kernel of its own, on both kinds of adapters; no sentence without its numbers."""
    for op in working_ops():
        if not isinstance(op.kernel, Shader):
            continue
        for target in (SOFTWARE, HARDWARE):
            for d in compile(wire(op, op.samples[0]).graph, mode="inference", target=target).dispatches:
                covered = coverage(d)
                assert 0 < covered.groups <= spread.flat(d.workgroups), (d.label, covered)
                # where a cache is written is known when it runs
                assert covered.over != "pieces" or "cache_in_place.wgsl" in (d.custom.file if d.custom else ""), d.label
                text, _, parts = wgsl_with_parts(d)
                assert text == kernels.wgsl(d, target)[0] and {"store", "where"} <= dict(parts).keys(), (d.label, parts)
                reads = {f"read {k}" for k in range(len(d.operands))}
                assert reads >= {part for part, _ in parts if part.startswith("read")}, (d.label, parts)
                said = reason(d, text)
                assert said.endswith(".") and "per result" in said and not re.search(r"\b1 \w+s\b", said), said


# the sentences --------------------------------------------------------------------------------------------------------
def said_of(d: Dispatch) -> str:
    return reason(d, kernels.wgsl(d, HARDWARE)[0])


def test_the_sentence_of_a_product_counts_reuse_invocations_and_bytes() -> None:
    wide = said_of(dispatch_of(product_of(1024, 256, 1024)))
    assert wide.startswith(
        "64 × 64 tiles: each value loaded into workgroup memory is used 64 times; "
        "8 × 8 invocations compute 8 × 8 results each, 16 steps of K at a time."
    )
    assert "Per result 32 bytes are loaded; without tiles it would be 2,048 bytes." in wide  # 256 · 4 · 2 / 64
    edge = said_of(dispatch_of(product_of(70, 12, 90)))
    assert "is used 32 times, less often at the edge" in edge
    narrow = said_of(dispatch_of(product_of(64, 128, 10), SOFTWARE))
    assert narrow.startswith("8 × 4 tiles in registers: each value that an invocation loads of A is used 4 times")
    assert "It needs no workgroup memory." in narrow


def test_the_sentence_of_few_rows_says_that_memory_counts() -> None:
    said = said_of(dispatch_of(product_of(1, 64, 96)))
    assert "So few rows use each value of B once" in said and "K in 16 parts side by side" in said, said


def test_the_sentences_of_two_products_count_both_factors_and_the_weights_of_the_norm() -> None:
    said = said_of(dispatch_of(gated(DType.f16)))
    assert "(a dual GEMM)" in said and "One load gives 8 steps of a column." in said
    assert "The rows of A are normalized as they are read" in said
    # of 40 columns four a load: 2 rows in f32, 2 factors in f16, weights in f32, of 64 steps
    assert f"Per result {64 * (2 * 10 * 4 + 2 * 40 * 2 + 10 * 4) // 80} bytes are loaded" in said, said
    assert f"without tiles it would be {2 * 64 * 6} bytes" in said
    lines = lines_of(dispatch_of(gated(DType.q4_0)))
    assert "whole blocks of 32 steps" in said_of(dispatch_of(gated(DType.q4_0)))
    assert "let w7 = in2[" in lines["read 2"] and "e_begin" in lines["read 3"] and "d1_codes += " in lines["work"]


def test_the_sentences_of_two_products_in_tiles_count_what_both_share() -> None:
    d = dispatch_of(gated_tiles)
    said, lines = said_of(d), lines_of(d)
    assert said.startswith(
        "64 × 32 tiles of both products: each value loaded into workgroup memory is used 64 times, less often at the "
        "edge; 8 × 8 invocations compute 8 × 8 results each, 16 steps of K at a time. Two products of the same rows"
    ), said
    steps, tiles = 16, 9 * 32
    assert f"Per result {tiles * steps * (64 + 2 * 32) * 4 / (520 * 1012):.3g} bytes are loaded" in said, said
    assert "in2[" in lines["read 2"] and "e_next0" in lines["read 2"] and "in1[" not in lines["read 2"]
    assert "in1[" in lines["read 1"] and "tile_b[" in lines["read 1"] and "store4(" in lines["store"]
    few = said_of(dispatch_of(lambda: gated_tiles(8192, 40)))
    assert "both products: each value loaded into workgroup memory is used 64 times" in few, few


def test_the_sentence_of_a_split_product_says_its_parts() -> None:
    """Parts beside one another need a second dispatch; parts inside a workgroup do not."""
    d = dispatch_of(product_of(128, 8192, 128))
    split = coverage(d).loop
    assert split is not None and split.split > 1 and coverage(d).shape[0] == split.split
    assert f"K = 8,192 is split into {split.split} parts" in said_of(d) and "a second dispatch adds" in said_of(d)
    inside = dispatch_of(product_of(512, 128, 512))
    loop = coverage(inside).loop
    assert loop is not None and (loop.split, loop.side) == (1, 2) and "a second dispatch" not in said_of(inside)


FAMILIES: dict[str, tuple[Callable[[], Value], str]] = {
    "elements": (lambda: ops.exp(given(9, 130)), "a workgroup of 64 a run of 256: 5 workgroups for 1,170 elements."),
    "broadcast": (
        lambda: ops.input("x", (6, 8)) * ops.input("r", (8,)),
        "Each value of operand 1 is used 6 times: it is broadcast."
    ),
    "fold": (lambda: ops.sum_inner(given(70, 40)), "each of 40 elements of a row: 3 workgroups for 70 results."),
    "softmax": (
        lambda: ops.softmax(given(37, 512)),
        "32 invocations share a row and keep it in registers, so that the row is read once"
    ),
    "norm": (norm, "it reads at least 4.22 bytes and writes 4 bytes per result"),
    "attention": (attention, "The 270 KB of scores of all heads are never stored"),
    "transpose": (lambda: ops.transpose(given(30, 20)), "Nothing is computed: it reads at least 4 bytes"),
    "convolution": (convolution, "Written as a product: 5 rows, 126 columns and 27 steps in each group."),
    "pool": (
        lambda: ops.max_pool_2d(given(2, 3, 8, 8), k=(3, 3), stride=(2, 2), padding=(1, 1)),
        "Windows 2 × 2 apart overlap: inside the image a pixel is read about 2.25 times.",
    ),
    "largest": (
        lambda: ops.top_k_indices(given(37, 20), k=3),
        "A row is walked twice for each of 3 places: for the next value, then for its place."
    ),
    "the largest": (
        lambda: ops.top_k_indices(given(37, 20), k=1),
        "A row is walked twice: for the largest value, then for its place."
    ),
    "rotation": (turned(4, 8), "of the first half of a row or head of 16 and its partner in the second"),
    "chosen matrices": (
        chosen(ops.grouped_matmul, 9, 70),
        "64 columns of one row, whose matrix an index chooses: a value of the row is used 64 times, a weight once. "
        "16 invocations share the steps of a tile"
    ),
    "embedding": (
        lambda: ops.embedding(ops.input_u32("i", (5,)), ops.parameter("t", (7, 3))),
        "Each invocation makes one element of the result"
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_the_sentence_of_every_family_is_computed(family: str) -> None:
    build, wanted = FAMILIES[family]
    assert wanted in said_of(dispatch_of(build))


def test_the_sentence_of_attention_counts_the_parts_of_a_group() -> None:
    d = dispatch_of(attention_of_many_heads, ROOMY)
    said = said_of(d)
    assert "A workgroup of 256 has 64 queries of one head and walks the keys, at most 70, 64 at a time" in said
    assert "It has 2 parts, which take blocks of 64 keys in turn and then join their sums." in said, said
    assert "A workgroup uses 32.8 KB of workgroup memory." in said, said
    assert "parts" not in said_of(dispatch_of(attention_of_many_heads))


@pytest.mark.parametrize("target", [Target("wgpu", "software", Limits()), HARDWARE], ids=["software", "hardware"])
def test_a_sentence_names_what_a_kernel_stores_besides(target: Target) -> None:
    """And the memory of its groups, which doubles on software adapters where sums of both are kept."""
    with Graph() as g:
        q, k, v = (ops.parameter(name, (70, 32)) for name in "qkv")
        g.set_outputs([ops.sum_all(ops.square(ops.causal_attention(q, k, v, 4, 4, 8)))])
    plan = compile(differentiate(g)[0], mode="training", target=target)
    said = {d.label.split("[")[0]: said_of(d) for d in plan.dispatches}
    besides = "Beside its result it stores `{}`, which it has on the way: otherwise another dispatch would compute it"
    assert besides.format("logarithm") in said["CausalAttention"]
    assert besides.format("values") in said["AttentionGradK"] and "Beside" not in said["AttentionGradQ"]
    if target is not HARDWARE:
        assert "uses 1.02 KB of" in said["AttentionGradQ"] and "uses 2.05 KB of" in said["AttentionGradK"]


def test_the_sentence_of_an_update_counts_its_parameters() -> None:
    with Graph() as g:
        loss = ops.mean_all(ops.square(ops.matmul(ops.input("x", (4, 6)), ops.parameter("w", (6, 8)))))
        g.output(loss)
    plan = compile(differentiate(g)[0], mode="training", target=HARDWARE)
    said = said_of(update_of(plan, Recipe("adam")).dispatches[0])
    assert "four neighbouring elements of the parameter" in said and "48 elements in all" in said
    assert "It reads 16 bytes and writes 12 bytes per element" in said


def test_workgroup_memory_is_what_the_text_declares() -> None:
    text, _, parts = wgsl_with_parts(dispatch_of(product_of(1024, 256, 1024)))
    sizes = [int(n) for n in re.findall(r"array<vec4<f32>, (\d+)>;", text) if "var<workgroup>" in text]
    assert workgroup_bytes(text) == 16 * sum(sizes) and "meet" in dict(parts)
    assert workgroup_bytes("const A = 3u;\nvar<workgroup> x: array<f32, A * 4u>;\nvar<workgroup> y: u32;\n") in (
        None,
        52,
    )
    assert workgroup_bytes("\nconst A = 3u;\nvar<workgroup> x: array<f32, 2u * (1u + A) * A>;\n") == 96
    for size in ("unknown(4)", "(1u + B)", "(1u * 2u)", "1u + 2u"):
        assert workgroup_bytes(f"\nvar<workgroup> x: array<f32, {size}>;\n") is None


# the lines ------------------------------------------------------------------------------------------------------------
def lines_of(d: Dispatch) -> dict[str, str]:
    """Part → its lines, joined."""
    text, _, parts = wgsl_with_parts(d)
    lines = text.split("\n")
    return {
        part: "\n".join(line for a, b in zip(runs[::2], runs[1::2], strict=True) for line in lines[a - 1 : b])
        for part, runs in parts
    }


def test_the_lines_of_a_product_say_what_they_load_multiply_and_store() -> None:
    lines = lines_of(dispatch_of(product_of(1024, 256, 1024)))
    assert "tile_a[" in lines["read 0"] and "tile_b[" not in lines["read 0"]
    assert "tile_b[" in lines["read 1"] and "in0" not in lines["read 1"]
    assert "c0_0 += " in lines["work"] and "workgroupBarrier" in lines["meet"]
    assert "for (var done" in lines["loop"] and "store" in lines["store"] and "let row = tile" in lines["where"]


def test_the_lines_of_a_file_are_read_by_its_contract() -> None:
    """The accessors, stores and exchanges that the joiner supplies; a helper does what its own lines do."""
    lines = lines_of(dispatch_of(lambda: ops.softmax(given(37, 24))))
    assert "x_four(" in lines["read 0"] and "max_of_unit(" in lines["meet"] and "store4(" in lines["store"]
    assert "exp(x_0 - top)" in lines["work"] and "row * QUADS" in lines["read 0"] + lines["where"]
    scores = lines_of(replace(dispatch_of(attention, SOFTWARE)))
    assert "scores4(" in scores["read 0"] and "scores4(" in scores["read 1"] and "scores4(" not in scores["read 2"]
    assert "add_values(" in scores["read 2"]
    lone = lines_of(dispatch_of(norm, SOFTWARE))["store"]
    assert "store4(" in lone and "store_mean(" not in lone, "the dispatch has no such result"
