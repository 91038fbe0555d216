"""NumPy calls that become loops: the same bits as call by call, whatever shares memory, and no loop without a gain."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import networks
import numpy as np
import pytest
from machine import needs

from gdlab.devices import native
from gdlab.devices.cpu import fused_calls
from gdlab.devices.cpu.call_lanes import Beside, CallList, run
from gdlab.devices.cpu.cpu_device import CpuProgram
from gdlab.devices.cpu.fused_calls import fused
from gdlab.devices.fit import zeros
from gdlab.graph import Graph
from gdlab.op.numpy_form import NumpyCall
from gdlab.ops import input
from gdlab.session import build_inference_session, build_session
from gdlab.session.update_settings import Optimizer

CASES = int(os.environ.get("GDLAB_FUZZ", "40"))
ODD = (0.0, -0.0, 1.0, -1.0, 2.5, 1e30, -1e-30, np.inf, np.nan, 3.0)
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small."""
    monkeypatch.setattr(fused_calls, "WORTH", 1)
    monkeypatch.setattr(fused_calls, "WORTH_ALL", 1)


@pytest.fixture
def compiler() -> None:
    needs("compiler")


def room(*shape: int, value: float = 0.0) -> Array:
    made = zeros(shape, np.float32)
    made[...] = value
    return made


def loops(calls: Sequence[NumpyCall]) -> int:
    """The number of loops among calls, in lanes too."""
    inner = [loops([call for list in f.lists for call in list.calls]) for f, _ in calls if isinstance(f, Beside)]
    return sum(hasattr(f, "argtypes") for f, _ in calls) + sum(inner)




# rows -----------------------------------------------------------------------------------------------------------------
def test_a_row_of_calls_becomes_one_loop_that_stores_no_temporary(compiler: None) -> None:
    x, y, t = room(4, 6, value=3), room(4, 6), room(4, 6, value=7)
    row, column, number = room(6, value=2), room(4, 1, value=5), room(1, value=0.5).reshape(())
    calls = [
        (np.multiply, (x, row, t)), (np.add, (t, column, t)), (np.sqrt, (t, t)), (np.divide, (t, number, y)),
        (np.negative, (y, y)), (np.reciprocal, (y, y)), (np.subtract, (y, 1.0, y)),
    ]  # fmt: skip
    made = fused([calls], [t])[0]
    assert len(made) == 1 and loops(made) == 1
    run(made)
    np.testing.assert_array_equal(y, 1 / -(np.sqrt(np.float32(11)) / np.float32(0.5)) - np.float32(1))
    assert (t == 7).all(), "a temporary that nothing reads is not written"
    number[...] = 2  # read when the loop runs
    run(made)
    np.testing.assert_array_equal(y, 1 / -(np.sqrt(np.float32(11)) / np.float32(2)) - np.float32(1))


@pytest.mark.parametrize("later", ["array", "array's method", "closure", "partial", "view", "other dispatch"])
def test_a_temporary_is_stored_where_it_is_read_later(later: str, compiler: None) -> None:
    x, t, out, wide = room(8, value=3), room(8, value=7), room(8), np.ones((8, 8), np.float32)
    calls: list[NumpyCall] = [(np.add, (x, x, t)), (np.multiply, (t, t, t))]
    calls += {
        "array": [(np.exp, (t, out))],
        "array's method": [(t.dot, (wide, out))],
        "closure": [(lambda: np.copyto(out, t), ())],
        "partial": [(partial(np.copyto, out, t), ())],
        "view": [(np.exp, (t[2:5], out[2:5]))],
        "other dispatch": [],
    }[later]
    run(calls)
    wanted = out.copy()
    out[...] = 0
    t[...] = 7
    made = fused([calls, [(np.exp, (t, out))]], [t])[0]
    assert loops(made) == 1
    run(made)
    np.testing.assert_array_equal(out, wanted)
    assert (t == (7 if later == "other dispatch" else 36)).all(), "each dispatch writes a temporary before it reads it"


def test_a_temporary_that_is_written_anew_before_it_is_read_is_not_stored(compiler: None) -> None:
    x, t, out = room(8, value=3), room(8, value=7), room(8)
    calls = [(np.add, (x, x, t)), (np.multiply, (t, t, out)), (np.exp, (x, t)), (np.exp, (t, out))]
    made = fused([calls], [t])[0]
    assert loops(made) == 1 and len(made) == 3
    run(made[:1])
    assert (t == 7).all() and (out == 36).all()
    half = [(np.add, (x, x, t)), (np.multiply, (t, t, out)), (np.exp, (x[:4], t[:4])), (np.exp, (t, out))]
    run(fused([half], [t])[0][:1])
    assert (t == 6).all(), "half of it is read as it was"


def test_lanes_keep_what_the_calls_after_them_read(compiler: None) -> None:
    x, t, out = room(8, value=3), room(8, value=7), room(8)
    lists = [CallList([(np.add, (x[:4], x[:4], t[:4])), (np.multiply, (t[:4], t[:4], t[:4]))], 5),
             CallList([(np.add, (x[4:], x[4:], t[4:])), (np.multiply, (t[4:], t[4:], t[4:]))], 6)]  # fmt: skip
    made = fused([[(Beside(lists), ()), (np.exp, (t, out))]], [t])[0]
    beside = made[0][0]
    assert isinstance(beside, Beside) and [len(list.calls) for list in beside.lists] == [1, 1] and loops(made) == 2
    assert [list.work for list in beside.lists] == [5, 6]
    run(made)
    assert (t == 36).all()
    after = [(Beside(lists), ()), (np.add, (x, x, t)), (np.add, (t, 1.0, t)), (np.exp, (t, out))]
    run(fused([after], [t])[0])
    np.testing.assert_array_equal(out, np.exp(np.full(8, 7, np.float32)))


@pytest.mark.parametrize("kind", ["shifted", "turned", "itself", "columns"])
def test_calls_that_meet_in_other_elements_are_not_one_loop(kind: str, compiler: None) -> None:
    x = room(37)
    x[...] = np.arange(37)
    square, y = x[:36].reshape(6, 6), room(6, 6, value=1)
    calls = {
        "shifted": [(np.add, (x[:36], 1.0, x[:36])), (np.multiply, (x[1:], 2.0, y.reshape(-1)))],
        "turned": [(np.add, (square, 1.0, square)), (np.multiply, (square.T, 2.0, y))],
        "itself": [(np.add, (x[:36], 1.0, x[1:])), (np.multiply, (x[1:], 2.0, x[1:]))],
        "columns": [(np.add, (y, square[:, :1], square)), (np.multiply, (square, 2.0, y))],
    }[kind]
    assert loops(fused([calls], [])[0]) == 0


@pytest.mark.parametrize("number", [np.float64(0.1), np.full((), 0.1), np.full(8, 0.1)])
def test_calls_that_compute_in_float64_stay_calls(number: Any, compiler: None) -> None:
    x = room(8, value=3)
    calls = [(np.multiply, (x, number, x)), (np.add, (x, number, x))]
    assert loops(fused([calls], [])[0]) == 0


def test_halves_of_an_array_are_one_loop(compiler: None) -> None:
    """As rotary positions read and write them."""
    x, y, cos, sin = (room(4, 6) for _ in range(4))
    for seed, a in enumerate((x, cos, sin)):
        a[...] = np.random.default_rng(seed).random((4, 6))
    even, odd, c, s = x[:, :3], x[:, 3:], cos[:, :3], sin[:, :3]
    t = room(4, 3)
    calls = [(np.multiply, (even, c, y[:, :3])), (np.multiply, (odd, s, t)), (np.subtract, (y[:, :3], t, y[:, :3]))]
    made = fused([calls], [t])[0]
    assert loops(made) == len(made) == 1
    run(made)
    np.testing.assert_array_equal(y[:, :3], even * c - odd * s)


def test_what_has_nothing_to_do_with_one_another_becomes_loops_of_its_own(compiler: None) -> None:
    """Parts of a large array, made one after the other with the same temporary."""
    x, t = room(30, value=2), room(10)
    parts = [x[:10], x[10:20], x[20:]]
    calls = [call for p in parts for call in ((np.multiply, (p, p, t)), (np.add, (p, t, p)))]
    made = fused([calls], [t])[0]
    assert len(made) == loops(made) == 3 and len({id(f) for f, _ in made}) == 1, "three times one function"
    run(made)
    assert (x == 6).all()


def test_rows_side_by_side_read_before_and_write_after_one_another_as_calls_do(compiler: None) -> None:
    x, y, p, q = (room(8, value=k) for k in (2, 3, 5, 7))
    run(fused([[(np.add, (x, 1.0, p)), (np.multiply, (y, 3.0, q)), (np.multiply, (p, 2.0, y))]], [])[0])
    assert (p == 3).all() and (q == 9).all() and (y == 6).all(), "q of the old y"
    run(fused([[(np.add, (x, 1.0, p)), (np.multiply, (q, 3.0, y)), (np.multiply, (p, 2.0, y))]], [])[0])
    assert (y == 6).all(), "what is written last"


# any calls ------------------------------------------------------------------------------------------------------------
class Calls:
    """Random calls on arrays of one size, their views and temporaries."""

    def __init__(self, seed: int) -> None:
        self.random, self.values = random.Random(seed), np.random.default_rng(seed)
        self.rows, self.columns = self.random.choice([(4, 6), (1, 8), (8, 1), (3, 4), (2, 12), (5, 5)])
        self.size = self.rows * self.columns
        self.given = [self.fresh(self.size) for _ in range(self.random.randint(1, 4))] + [self.fresh(2 * self.size)]
        self.temporaries = [self.fresh(self.size) for _ in range(self.random.randint(0, 3))]
        whole = self.fresh(self.rows), self.fresh(self.columns), self.fresh(1), self.fresh(self.columns)
        shapes: tuple[tuple[int, ...], ...] = ((self.rows, 1), (self.columns,), (), (1, self.columns))
        self.small = [a.reshape(shape) for a, shape in zip(whole, shapes, strict=True)]
        self.written = set[int]()  # temporaries of which all is written

    def fresh(self, size: int) -> Array:
        made = zeros((size,), np.float32)
        made[...] = self.values.choice(ODD, size) + np.float32(self.random.random())
        return made

    def view(self) -> Array:
        a, shape = self.random.choice(self.given), (self.rows, self.columns)
        if a.size == self.size:
            square = [a.reshape(shape).T] if self.rows == self.columns else []
            return self.random.choice([a, a.reshape(shape), a.reshape(shape), *square])
        wide, pairs = a.reshape(self.rows, 2 * self.columns), a.reshape(*shape, 2)
        starts = (0, 1, self.columns)
        parts = [wide[:, k : k + self.columns] for k in starts]
        return self.random.choice([*parts, pairs[..., 1], *(a[k : k + self.size].reshape(shape) for k in (0, 1))])

    def output(self) -> tuple[int | None, Array]:
        if self.temporaries and self.random.random() < 0.5:
            k = self.random.randrange(len(self.temporaries))
            return k, self.random.choice([self.temporaries[k], self.temporaries[k].reshape(self.rows, self.columns)])
        return None, self.view()

    def input(self, shape: tuple[int, ...]) -> Any:
        kind = self.random.random()
        if kind < 0.15:
            return self.random.choice([np.float32(0.5), 2.0, np.float32(-1)])
        if kind < 0.3:
            return self.random.choice(self.small if len(shape) == 2 else self.small[2:3])
        if kind < 0.6 and self.written:
            return self.temporaries[self.random.choice(sorted(self.written))].reshape(shape)
        view = self.view()
        return view if view.shape == shape else self.given[0].reshape(shape)

    def call(self) -> NumpyCall:
        k, out = self.output()
        one, two = self.input(out.shape), self.input(out.shape)
        calls: list[NumpyCall] = [(f, (one, two, out)) for f in (np.add, np.subtract, np.multiply, np.divide)]
        calls += [(f, (one, out)) for f in (np.sqrt, np.negative, np.reciprocal)] + [(np.copyto, (out, one))]
        if self.random.random() < 0.12:  # none of a loop
            calls = [(np.exp, (one, out)), (np.hypot, (one, two, out)), (written, (out, one)), (lambda: None, ())]
        call = self.random.choice(calls)
        if k is not None and call[1]:
            self.written.add(k)
        return call

    def run(self) -> list[NumpyCall]:
        self.written.clear()
        return [self.call() for _ in range(self.random.randint(1, 14))]


def written(out: Array, value: Array) -> None:
    out[...] = value


@pytest.mark.parametrize("seed", range(CASES))
def test_any_calls_leave_the_same_bits(seed: int, compiler: None) -> None:
    calls = Calls(seed)
    runs = [calls.run() for _ in range(calls.random.randint(1, 3))]
    every = [*calls.given, *calls.temporaries, *calls.small]
    before = [a.copy() for a in every]
    with np.errstate(all="ignore"):
        made = fused(runs, calls.temporaries)
        for some in runs:
            run(some)
        wanted = [a.copy() for a in every]
        for a, old in zip(every, before, strict=True):
            a[...] = old
        for t in calls.temporaries:
            t[...] = 7
        for some in made:
            run(some)
    kept = {id(t) for t in calls.temporaries}
    for a, b in zip(every, wanted, strict=True):
        if id(a) not in kept:
            assert ((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all()


# sessions -------------------------------------------------------------------------------------------------------------
NETWORKS = {
    "transformer": lambda: networks.transformer(2), "decomposed": networks.decomposed, "mlp": networks.small_mlp,
    "dropping": networks.dropping, "deep": lambda: networks.deep(3),
}  # fmt: skip


def trained(graph: Graph, rule: str) -> tuple[list[Array], int]:
    """Return parameters, gradients and losses of three steps with clipped gradients, and the number of loops."""
    values = np.random.default_rng(0)
    with build_session(graph, "cpu") as session:
        session.initialize(0)
        session.set_optimizer(Optimizer.of(rule, lr=1e-2))
        session.set_grad_clip_norm(0.1)
        found = []
        for _ in range(3):
            for node in (node for node in graph.nodes if node.op == "input"):
                session.set_input(dict(node.attrs)["name"], values.random(node.type.shape, np.float32))
            session.step()
            found.append(np.float32(session.read_loss()))
        names = session.param_names()
        found += [read(name) for name in names for read in (session.read_param, session.read_param_grad)]
        program = session.loaded.program
        assert isinstance(program, CpuProgram)
        return found, loops(program.launches.calls) + loops(program.update_launches.calls)


@pytest.mark.parametrize("rule", ["adamw", "adadelta"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_session_computes_the_same_bits_without_a_compiler(
    name: str, rule: str, compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, count = trained(NETWORKS[name](), rule)
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    wanted, none = trained(NETWORKS[name](), rule)
    assert count >= 2 and none == 0
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_bound_to_other_memory_has_loops_again(compiler: None) -> None:
    with Graph() as g:
        x = input("x", (4, 8))
        y = (x * 2.0 + 1.0) * x
        g.set_outputs([y, (y - 3.0) * (y + 3.0)])
    with build_inference_session(g, "cpu") as session, build_inference_session(g, "cpu") as other:
        session.bind_external_buffer("x", other.input_buffer("x"))
        other.set_input("x", np.full((4, 8), 2.0))
        session.step()
        assert (session.read_output_by_index(0) == 10).all() and (session.read_output_by_index(1) == 91).all()
        program = session.loaded.program
        assert isinstance(program, CpuProgram) and loops(program.launches.calls) == 2


# compilation ----------------------------------------------------------------------------------------------------------
ROW = [(np.add, (room(8, value=1), 2.0, TO := room(8))), (np.multiply, (TO, TO, TO))]


def test_what_is_not_worth_it_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_calls, "functions", lambda *given: pytest.fail("compiled"))
    monkeypatch.setattr(fused_calls, "WORTH_ALL", 17)
    assert fused([ROW], []) == [ROW]
    monkeypatch.setattr(fused_calls, "WORTH_ALL", 1)
    monkeypatch.setattr(fused_calls, "WORTH", 17)
    assert fused([ROW], []) == [ROW]
    assert fused([ROW[:1]], []) == [ROW[:1]], "a call alone is no row"


def test_a_loop_is_compiled_once(tmp_path: Path, compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    begun: list[Any] = []
    run_process = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *given, **more: begun.append(given) or run_process(*given, **more))
    assert loops(fused([ROW], [])[0]) == loops(fused([ROW], [])[0]) == 1 and len(begun) == 1
    other = [(np.divide, (TO, 2.0, TO)), (np.add, (TO, TO, TO))]
    third = [(np.divide, (TO, 2.0, TO)), (np.subtract, (TO, TO, TO))]
    assert sum(map(loops, fused([ROW, other, third], []))) == 3 and len(begun) == 2, "both others in one go"
    assert len({*tmp_path.rglob("*.so")}) == 3 and not [*tmp_path.rglob(".*")]


def test_a_folder_without_links_has_copies(tmp_path: Path, compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*paths: Path) -> None:
        raise OSError("no links here")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "link", no_link)
    assert loops(fused([ROW], [])[0]) == 1 and len([*tmp_path.rglob("*.so")]) == len([*tmp_path.rglob("*.*")]) == 1


@pytest.mark.parametrize("broken", ["fails", "is not there", "cannot write"])
def test_without_a_compiler_calls_stay_as_they_are(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cc"
    if broken == "fails":
        compiler.write_text("#!/bin/sh\nexit 1\n")
        compiler.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path if broken != "cannot write" else compiler / "no folder"))
    monkeypatch.setattr(native.shutil, "which", lambda name: str(compiler) if broken != "cannot write" else None)
    assert fused([ROW], []) == [ROW] and not [p for p in tmp_path.rglob("*") if p.is_file() and p != compiler]


ONE_LOOP = """
import numpy as np
from gdlab.devices.cpu import fused_calls
fused_calls.WORTH = fused_calls.WORTH_ALL = 1
x = np.ones((20, 40), np.float32)
(((function, args),),) = fused_calls.fused([[(np.add, (x, 1.0, x)), (np.multiply, (x, x, x))]], [])
function(*args)
print(hasattr(function, "argtypes"), x.mean())
"""


def cut_off(data: bytes) -> bytes:
    return data[:9000]


def empty(data: bytes) -> bytes:
    return b""


def zeros_in_the_middle(data: bytes) -> bytes:
    return data[:4096] + bytes(4096) + data[8192:]


def of_another_program(data: bytes) -> bytes:
    return b"garbage"


@pytest.mark.parametrize("spoil", [cut_off, empty, zeros_in_the_middle, of_another_program])
def test_a_library_that_was_changed_on_its_disk_is_compiled_anew(
    spoil: Callable[[bytes], bytes], tmp_path: Path, compiler: None
) -> None:
    """To load the first or the third would end the process."""

    def output() -> str:
        environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
        command = [sys.executable, "-c", ONE_LOOP]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120).stdout

    assert output() == "True 4.0\n"
    (library,) = tmp_path.rglob("*.so")
    before = library.read_bytes()
    library.write_bytes(spoil(before))
    assert output() == "True 4.0\n" and len(library.read_bytes()) == len(before)


def test_what_is_no_library_is_not_kept(tmp_path: Path, compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "cc"
    bad.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho garbage > "$2"\n')
    bad.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with monkeypatch.context() as broken:
        broken.setattr(native.shutil, "which", lambda name: str(bad))
        assert fused([ROW], []) == [ROW] and not [p for p in tmp_path.rglob("*") if p.is_file() and p != bad]
    assert loops(fused([ROW], [])[0]) == 1, "by the compiler that was mended"


def test_a_compiler_that_hangs_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("posix")
    begun: list[Any] = []

    def run(command: list[str], timeout: float, **more: Any) -> None:
        begun.append(command)
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native, "compiler", lambda: "cc")
    monkeypatch.setattr(native, "_hanging", set())
    monkeypatch.setattr(subprocess, "run", run)
    assert fused([ROW], []) == fused([ROW], []) == [ROW] and len(begun) == 1
