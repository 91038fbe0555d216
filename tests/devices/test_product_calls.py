"""Products in C: as exact as NumPy's, the same bits by any number of threads, nothing read or written beside them."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import networks
import numpy as np
import pytest
from machine import needs

from gdlab.devices import native
from gdlab.devices.cpu import fused_calls, product_calls
from gdlab.devices.cpu.cpu_device import CpuProgram
from gdlab.devices.cpu.fused_calls import fused
from gdlab.devices.cpu.product_calls import BoundProduct, product
from gdlab.devices.fit import zeros
from gdlab.session import build_session

CASES = int(os.environ.get("GDLAB_FUZZ", "60"))
Array = np.ndarray[Any, Any]
KINDS = ("as it lies", "transposed", "rows apart", "columns apart", "backwards", "one row", "one column", "odd place")
# Around the rows of a panel, the panels of a piece, the columns of a block and of a piece, the steps of a pass.
SIZES = (8, 9, 13, 14, 15, 24, 31, 32, 33, 64, 127, 128, 129, 225, 260)
DEPTHS = (1, 2, 15, 16, 17, 100, 255, 256, 257, 520)


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small, with no function from another test."""
    monkeypatch.setattr(product_calls, "WORTH", 0)
    monkeypatch.setattr(product_calls, "EACH", 1)
    product_calls.compiled.cache_clear()


@pytest.fixture
def compiler() -> None:
    needs("compiler")


def factor(rng: np.random.Generator, kind: str, rows: int, columns: int) -> Array:
    """Numbers of this shape, whose memory is laid out as `kind` says."""
    whole = rng.standard_normal((2 * rows + 2, 2 * columns + 2)).astype(np.float32)
    match kind:
        case "transposed":
            return np.ascontiguousarray(whole[:rows, :columns].T).T
        case "rows apart":
            return whole[1 : 2 * rows + 1 : 2, :columns]
        case "columns apart":
            return whole[:rows, 1 : 2 * columns + 1 : 2]
        case "backwards":
            return whole[rows - 1 :: -1, columns - 1 :: -1][:rows, :columns]
        case "one row":
            return np.broadcast_to(whole[:1, :columns], (rows, columns))
        case "one column":
            return np.broadcast_to(whole[:rows, :1], (rows, columns))
        case "odd place":
            return whole.reshape(-1)[3 : 3 + rows * columns].reshape(rows, columns)
    return np.ascontiguousarray(whole[:rows, :columns])


def by(threads: int, a: Array, b: Array, monkeypatch: pytest.MonkeyPatch) -> Array:
    """The product, by so many threads; what lies around it must stay."""
    (m, _), n = a.shape, b.shape[1]
    room = np.full(m * n + 64, 7, np.float32)
    monkeypatch.setattr(product_calls, "threads", lambda: threads)
    monkeypatch.setattr(product_calls, "cores", lambda: threads)
    call, args = product(a, b, room[32:-32].reshape(m, n))
    assert isinstance(call, BoundProduct) and args == ()
    call()
    assert (room[:32] == 7).all() and (room[-32:] == 7).all()
    return room[32:-32].reshape(m, n)


def check(found: Array, a: Array, b: Array) -> None:
    """Within what rounding every sum and product once can do, in blocks of 256."""
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    bound = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    assert (np.abs(found - wanted) <= 2.0**-24 * (256 + a.shape[1] / 256) * bound).all()
    assert np.abs(found - wanted).max() <= 4 * np.abs(a.astype(np.float32).dot(b) - wanted).max() + 1e-5


@pytest.mark.parametrize("seed", range(CASES))
def test_any_product_is_exact_and_the_same_by_any_number_of_threads(
    seed: int, compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, rng = random.Random(seed), np.random.default_rng(seed)
    m, n, k = chosen.choice(SIZES), chosen.choice(SIZES[5:]), chosen.choice(DEPTHS)
    a, b = factor(rng, chosen.choice(KINDS), m, k), factor(rng, chosen.choice(KINDS), k, n)
    one = by(1, a, b, monkeypatch)
    check(one, a, b)
    for threads in (2, 3, 40):
        np.testing.assert_array_equal(by(threads, a, b, monkeypatch), one)


@pytest.mark.parametrize(("m", "k", "n"), [(20, 16_385, 40), (8, 40_000, 24), (1000, 70, 300), (30, 300, 2000)])
def test_long_sums_and_many_pieces(m: int, k: int, n: int, compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(m)
    a, b = factor(rng, "transposed", m, k), factor(rng, "as it lies", k, n)
    one = by(1, a, b, monkeypatch)
    check(one, a, b)
    np.testing.assert_array_equal(by(2, a, b, monkeypatch), one)


@pytest.mark.parametrize("seed", range(CASES // 2))
def test_matrices_side_by_side_are_each_as_alone(
    seed: int, compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, rng = random.Random(seed), np.random.default_rng(seed)
    m, k, n = chosen.choice(SIZES), chosen.choice(DEPTHS[:7]), chosen.choice(SIZES[5:9])
    axes = chosen.choice([(1,), (5,), (3, 2), (2, 1, 3), (1, 1, 1), (4, 1)])
    a, b = (rng.standard_normal((*axes, *shape), np.float32) for shape in ((m, k), (k, n)))
    a, b = chosen.choice([a, a[:1], a[..., ::-1, :], a.swapaxes(0, -1).copy().swapaxes(0, -1)]), b[..., :1, :, :]
    apart = chosen.choice([n, n + 5])
    room = np.full((*axes, m, apart), 7, np.float32)
    monkeypatch.setattr(product_calls, "threads", lambda: chosen.randint(1, 4))
    call, args = product(a, b, room[..., :n])
    assert isinstance(call, BoundProduct) and args == ()
    call()
    assert (room[..., n:] == 7).all()
    whole_a, whole_b = np.broadcast_to(a, (*axes, m, k)), np.broadcast_to(b, (*axes, k, n))
    for at in np.ndindex(axes):
        np.testing.assert_array_equal(room[at][:, :n], by(1, whole_a[at], whole_b[at], monkeypatch))


def test_more_axes_are_left_to_numpy() -> None:
    a, b = np.ones((2, 2, 2, 8, 3), np.float32), np.ones((3, 24), np.float32)
    out = np.zeros((2, 2, 2, 8, 24), np.float32)
    function, args = product(a, b, out)
    function(*args)
    assert function is np.matmul and (out == 3).all()


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row_and_column(
    odd: float, compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    a, b = factor(rng, "as it lies", 29, 65), factor(rng, "transposed", 65, 47)
    a[28, 3] = odd
    assert np.isfinite(by(2, a, b, monkeypatch)).all(axis=1).tolist() == [True] * 28 + [False]
    a[28, 3], b[64, 46] = 1, odd
    assert np.isfinite(by(2, a, b, monkeypatch)).all(axis=0).tolist() == [True] * 46 + [False]


def test_threads_that_multiply_at_the_same_time_do_not_meet(compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    pairs = [(factor(rng, "as it lies", 60 + i, 300), factor(rng, "transposed", 300, 70 + i)) for i in range(4)]
    alone = [by(1, a, b, monkeypatch) for a, b in pairs]
    outs = [np.empty_like(x) for x in alone]
    monkeypatch.setattr(product_calls, "threads", lambda: 3)
    monkeypatch.setattr(product_calls, "cores", lambda: 3)
    calls = [product(a, b, out)[0] for (a, b), out in zip(pairs, outs, strict=True)]

    def often(i: int) -> bool:
        for _ in range(200):
            outs[i][...] = 0
            calls[i]()
            if not np.array_equal(outs[i], alone[i]):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(often, range(4)))


def test_small_and_other_products_are_those_of_numpy(compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)

    def is_own(m: int, k: int, n: int, dtype: Any = np.float32) -> bool:
        a, b, out = rng.random((m, k)).astype(dtype), rng.random((k, n)).astype(dtype), np.zeros((m, n), dtype)
        function, args = product(a, b, out)
        function(*args)
        np.testing.assert_allclose(out, a @ b, rtol=1e-5)
        return isinstance(function, BoundProduct)

    assert is_own(8, 8, 24) and not is_own(7, 8, 24) and not is_own(8, 8, 23) and not is_own(8, 8, 24, np.float64)
    monkeypatch.setattr(product_calls, "WORTH", 8 * 8 * 24)
    assert not is_own(8, 8, 24) and is_own(8, 9, 24)
    a, out = rng.random((2, 9, 9), np.float32), np.zeros((2, 9, 60), np.float32)
    b = rng.random((9, 30), np.float32)
    assert product(a, b, out[:, :, :30])[0] is not np.matmul and product(a, b, out[:, :, ::2])[0] is np.matmul


def test_threads_are_called_for_what_is_worth_them(compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(product_calls, "compiled", lambda: lambda place: seen.append(place) or 1)
    monkeypatch.setattr(product_calls, "EACH", 100 * 24)
    monkeypatch.setattr(product_calls, "threads", lambda: 5)
    monkeypatch.setattr(product_calls, "cores", lambda: 4)
    for rows in (8, 199, 200, 1000):
        call, _ = product(*(np.ones(shape, np.float32) for shape in ((rows, 1), (1, 24), (rows, 24))))
        call()
        seen[-1] = ctypes.c_int64.from_address(seen[-1] + 20 * 8).value
    assert seen == [1, 1, 2, 4]


def test_without_memory_a_product_is_that_of_numpy() -> None:
    a, b, out = np.ones((8, 3), np.float32), np.ones((3, 24), np.float32), np.zeros((8, 24), np.float32)
    BoundProduct(lambda table: 0, a, b, out)()
    assert (out == 3).all()


@pytest.mark.parametrize("broken", ["fails", "is not there"])
def test_without_a_compiler_products_are_those_of_numpy(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cc = tmp_path / "cc"
    cc.write_text("#!/bin/sh\nexit 1\n")
    cc.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native.shutil, "which", lambda name: str(cc) if broken == "fails" else None)
    a, b, out = np.ones((8, 3), np.float32), np.ones((3, 24), np.float32), np.zeros((8, 24), np.float32)
    function, args = product(a, b, out)
    function(*args)
    assert not isinstance(function, BoundProduct) and (out == 3).all()
    product_calls.compiled.cache_clear()


def test_it_is_compiled_once_and_only_for_a_product_that_is_worth_it(
    tmp_path: Path, compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    begun: list[Any] = []
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *given, **more: begun.append(given) or real(*given, **more))
    a, b, out = np.ones((8, 3), np.float32), np.ones((3, 24), np.float32), np.zeros((8, 24), np.float32)
    monkeypatch.setattr(product_calls, "WORTH", 8 * 3 * 24)
    product(a, b, out)
    assert not begun
    monkeypatch.setattr(product_calls, "WORTH", 0)
    monkeypatch.setattr(product_calls, "EACH", 1)
    for _ in range(2):
        product_calls.compiled.cache_clear()  # as another process
        assert isinstance(product(a, b, out)[0], BoundProduct)
    assert len(begun) == 1


# whole programs -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("first", [True, False])
def test_a_loop_stores_what_a_product_reads_and_no_more(
    first: bool, compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_calls, "WORTH", 1)
    monkeypatch.setattr(fused_calls, "WORTH_ALL", 1)
    x, t, u, w, y = (zeros(shape, np.float32) for shape in [(24, 24)] * 5)
    x[...], w[...], t[...], u[...] = 2, 1, 7, 7
    factors = (t, w) if first else (w, t)
    calls = [(np.add, (x, 1.0, u)), (np.multiply, (u, u, t)), product(*factors, y), (np.negative, (y, y))]
    (made,) = fused([calls], [t, u])
    assert len(made) == 3, "a loop, the product, a call"
    for function, args in made:
        function(*args)
    assert (y == -9 * 24).all() and (t == 9).all() and (u == 7).all(), "only what the product reads is written"


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_a_session_trains_alike_with_and_without_a_compiler(
    rule: str, compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def losses() -> tuple[list[float], int]:
        product_calls.compiled.cache_clear()
        graph, values = networks.mlp(), np.random.default_rng(5)
        with build_session(graph, "cpu") as session:
            session.initialize(3)
            for node in (node for node in graph.nodes if node.op == "input"):
                session.set_input(dict(node.attrs)["name"], values.random(node.type.shape, np.float32))
            session.set_adam(0.01) if rule == "adam" else session.set_learning_rate(0.1)
            found = []
            for _ in range(20):
                session.step()
                found.append(session.read_loss())
            program = session.loaded.program
            assert isinstance(program, CpuProgram)
            return found, sum(isinstance(function, BoundProduct) for function, _ in program.launches.calls)

    found, count = losses()
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    wanted, none = losses()
    assert count >= 3 and none == 0
    np.testing.assert_allclose(wanted, found, rtol=1e-4)
    product_calls.compiled.cache_clear()


# processes ------------------------------------------------------------------------------------------------------------
BEGIN = """
import ctypes, mmap, os, sys
import numpy as np
from gdlab.devices.cpu import fused_calls, product_calls
product_calls.threads = product_calls.cores = lambda: 3
rng = np.random.default_rng(0)
def multiply(a, b):
    out = np.zeros((len(a), b.shape[1]), np.float32)
    product_calls.WORTH, product_calls.EACH = 0, 1
    call, _ = product_calls.product(a, b, out)
    assert isinstance(call, product_calls.BoundProduct)
    call()
    return out
a, b = rng.random((60, 300), np.float32), rng.random((300, 200), np.float32)
"""
FORK = """
wanted = multiply(a, b)
for turn in range(3):  # each with threads of its own: both, or one where they were held up
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        good = all(np.array_equal(multiply(a, b), wanted) for _ in range(20))
        good = good and len(os.listdir("/proc/self/task")) in (2, 3)
        if grandchild:
            good = good and os.waitpid(grandchild, 0)[1] == 0
        os._exit(0 if good else 1)
    assert np.array_equal(multiply(a, b), wanted) and os.waitpid(child, 0)[1] == 0
"""
SIGNALS = """
multiply(a, b)
masks = [line.split()[1] for task in os.listdir("/proc/self/task") for line in open(f"/proc/self/task/{task}/status")
         if line.startswith("SigBlk")]
assert sum(int(mask, 16) >> 1 & 1 for mask in masks) == 2, masks  # SIGINT, in the two threads of ours
"""
END_OF_MEMORY = """
libc = ctypes.CDLL(None, use_errno=True)
def at_end(data):
    size = -(-data.nbytes // 4096) * 4096
    room = mmap.mmap(-1, size + 4096)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    assert libc.mprotect(ctypes.c_void_p(start + size), 4096, 0) == 0
    made = np.frombuffer(room, np.float32, data.size, size - data.nbytes).reshape(data.shape)
    made[...] = data
    return made
for m, k, n in ((14, 16, 32), (13, 17, 33), (8, 1, 24), (29, 300, 47), (60, 256, 130)):
    for turned in range(4):
        a, b = rng.random((m, k), np.float32), rng.random((k, n), np.float32)
        wanted = a @ b
        a = at_end(np.ascontiguousarray(a.T)).T if turned & 1 else at_end(a)
        b = at_end(np.ascontiguousarray(b.T)).T if turned & 2 else at_end(b)
        np.testing.assert_allclose(multiply(a, b), wanted, rtol=1e-5)
"""


@pytest.mark.parametrize("text", [FORK, SIGNALS, END_OF_MEMORY], ids=["fork", "signals", "end of memory"])
def test_processes(text: str, compiler: None) -> None:
    done = subprocess.run([sys.executable, "-c", BEGIN + text], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_table_has_the_fields_of_the_struct(compiler: None) -> None:
    a, b, out = np.ones((8, 3), np.float32), np.ones((3, 24), np.float32), np.zeros((8, 24), np.float32)
    seen: list[list[int]] = []

    def note(place: int) -> int:
        seen.append([*(ctypes.c_int64 * 21).from_address(place)])
        return 1

    BoundProduct(note, a, b.T.copy().T, out)()
    (table,) = seen
    assert (table[3:5], table[8:10], table[13:15], table[15:20]) == ([3, 1], [1, 3], [24, 1], [1, 1, 8, 3, 24])
