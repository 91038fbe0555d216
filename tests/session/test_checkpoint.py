"""Checkpoints: whole at every moment, refused when one bit is wrong, independent of the device; a resume is exact."""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine import needs
from session_state import W, X, Y, fitted, line, state_of

from gdlab import ops
from gdlab.base.errors import CheckpointError
from gdlab.graph import Graph
from gdlab.session import Session, build_inference_session, build_session, checkpoint

KILLS = int(os.environ.get("GDLAB_KILLS", "6"))  # `make faults`: 50


def steps(session: Session, count: int) -> list[float]:
    losses = []
    for k in range(count):
        session.set_input("x", X * (1 + 0.1 * k))
        session.step()
        losses.append(session.read_loss())
    return losses


def held(session: Session) -> dict[str, np.ndarray]:
    """Parameters and moments by name."""
    found = {name: session.read_param(name) for name in session.param_names()}
    found |= {f"m.{name}": session.read_adam_m(name) for name in session.param_names()}
    return found | {f"v.{name}": session.read_adam_v(name) for name in session.param_names()}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(a[name], b[name], equal_nan=True) for name in a)


# what comes back ------------------------------------------------------------------------------------------------------
def test_a_resumed_run_is_the_run(device: str, tmp_path: Path) -> None:
    with build_session(line(), device) as session:
        fitted(session).set_adam(0.1)
        steps(session, 5)
        session.save_checkpoint(tmp_path / "a.safetensors")
        first, after = steps(session, 20), held(session)
        session.load_checkpoint(str(tmp_path / "a.safetensors"))
        assert session.adam_step_count() == 5
        assert steps(session, 20) == first and same(held(session), after)
        assert session.adam_step_count() == 25


def test_a_fresh_session_goes_on_with_the_same_bits(device: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    with build_session(line(), device) as session:
        fitted(session).set_adam(0.1)
        steps(session, 3)
        session.save_checkpoint(path)
        first, after = steps(session, 3), held(session)
    with build_session(line(), device) as session:
        session.load_checkpoint(path)
        assert session.unset_parameters == [] and session.adam_step_count() == 3
        session.set_input("y", Y)
        session.set_adam(0.1)
        assert steps(session, 3) == first and same(held(session), after)


def test_denormal_moments_are_flushed_at_the_same_steps_after_a_resume(tmp_path: Path) -> None:
    """The cpu device flushes tiny moments every so many updates, counted as Adam counts, not from the load on."""
    path = tmp_path / "a"
    runs = []
    with build_session(line(), "cpu") as session:
        fitted(session).set_adam(0.0)
        steps(session, 5)
        for name in ("w", "b"):
            session.write_adam_m(name, np.full(session.param_size(name), 1e-39))
        session.save_checkpoint(path)
        session.set_input("x", np.zeros((4, 3)))
        session.set_input("y", np.zeros((4, 2)))  # the prediction, so that all gradients are zero
        session.set_adam(0.0, beta1=0.999999)
        for _ in range(2):
            session.load_checkpoint(path)
            session.set_parameter("b", [0, 0])
            seen = []
            for _ in range(12):
                session.step()
                seen.append(bool(session.read_adam_m("w").any()))
            runs.append(seen)
    assert runs[0] == runs[1] == [True] * 10 + [False] * 2, "flushed with update 16"


def test_another_device_takes_the_file(tmp_path: Path) -> None:
    needs("wgpu")
    path = tmp_path / "a"
    with build_session(line(), "cpu") as session:
        fitted(session).set_adam(0.1)
        steps(session, 3)
        session.save_checkpoint(path)
        want, losses = held(session), steps(session, 3)
    with build_session(line(), "wgpu") as session:
        session.load_checkpoint(path)
        assert same(held(session), want)
        fitted_inputs(session).set_adam(0.1)
        np.testing.assert_allclose(steps(session, 3), losses, rtol=2e-4)


def fitted_inputs(session: Session) -> Session:
    session.set_input("y", Y)
    return session


def test_an_inference_session_takes_a_training_file(device: str, tmp_path: Path) -> None:
    with build_session(line(), device) as session:
        fitted(session).set_adam(0.1)
        steps(session, 2)
        session.save_checkpoint(tmp_path / "a")
        want = session.read_param("w")
    with build_inference_session(line(), device) as session:
        session.load_checkpoint(tmp_path / "a")
        assert np.array_equal(session.read_param("w"), want) and session.adam_step_count() == 0
        session.save_checkpoint(tmp_path / "b")
    _, header, _ = parts(tmp_path / "b")
    assert sorted(header) == ["__metadata__", "b", "w"]


def test_a_file_without_moments_clears_them(device: str, tmp_path: Path) -> None:
    with build_session(line(), device) as session:
        fitted(session).set_learning_rate(0.1)
        steps(session, 2)
        session.save_checkpoint(tmp_path / "sgd")
        kept = session.read_param("w")
        session.set_adam(0.1)
        steps(session, 2)
        allocated = session.memory_summary()
        session.load_checkpoint(tmp_path / "sgd")
        assert not session.read_adam_m("w").any() and not session.read_adam_v("b").any()
        assert np.array_equal(session.read_param("w"), kept) and session.adam_step_count() == 0
        assert session.memory_summary() == allocated and str(session.optimizer) == "Adam, lr 0.1"
    with build_session(line(), device) as session:
        session.load_checkpoint(tmp_path / "sgd")
        assert session.memory_summary().adam_state_bytes == 0, "a load must not allocate moments that the file has not"


def test_the_file_is_what_other_readers_expect(tmp_path: Path) -> None:
    from safetensors import safe_open

    with build_session(line(), "cpu") as session:
        fitted(session).set_adam(0.1)
        steps(session, 2)
        session.save_checkpoint(tmp_path / "a.safetensors")
        want = held(session)
    with safe_open(tmp_path / "a.safetensors", "np") as file:
        assert sorted(file.keys()) == ["adam_m.b", "adam_m.w", "adam_v.b", "adam_v.w", "b", "w"]
        assert file.metadata()["adam_step"] == "2" and file.metadata()["gdlab_checkpoint_format"] == "2"
        layout = json.loads(file.metadata()["gdlab_logical_layout"])
        assert layout == {"parameters": [["w", [3, 2], "F32"], ["b", [2], "F32"]], "adam": ["w", "b"]}
        np.testing.assert_array_equal(file.get_tensor("adam_v.w"), want["v.w"])


def test_element_types_may_mix(tmp_path: Path) -> None:
    """The digest follows the order of the header, which sorts by element size first."""
    tensors = {"a": np.arange(3, dtype=np.float16), "b": np.arange(4, dtype=np.float32), "é\t": np.ones(1, np.float32)}
    layout = {"parameters": [["é\t", [1], "F32"], ["a", [3], "F16"], ["b", [4], "F32"]], "adam": []}
    checkpoint.write(tmp_path / "a", checkpoint.CheckpointContent(tensors, 7, ()), layout)
    back = checkpoint.read(tmp_path / "a", layout)
    assert back.adam_step == 7 and same(back.tensors, tensors) and back.tensors["a"].dtype == np.float16


def test_a_save_needs_values_and_a_place(tmp_path: Path) -> None:
    with build_session(line(), "cpu") as session:
        session.set_parameter("w", W)
        with pytest.raises(CheckpointError, match="save_checkpoint: parameters: given no value for b, wanted a value"):
            session.save_checkpoint(tmp_path / "a")
        session.set_parameter("b", [0, 0])
        for place in (tmp_path, tmp_path / "no" / "such" / "folder"):
            with pytest.raises(CheckpointError, match="wanted a file that can be written"):
                session.save_checkpoint(place)
        for call in (session.save_checkpoint, session.load_checkpoint):
            with pytest.raises(CheckpointError, match="_checkpoint: path: given '', wanted a str or a path"):
                call("")
        (tmp_path / "short").write_bytes(b"short")
        with pytest.raises(CheckpointError, match="header: given a file of 5 bytes, wanted a whole safetensors file"):
            session.load_checkpoint(tmp_path / "short")
        (tmp_path / "short").unlink()
        with pytest.raises(CheckpointError, match="save_checkpoint: path: given 3, wanted a str or a path"):
            session.save_checkpoint(3)  # type: ignore[arg-type]
        assert list(tmp_path.iterdir()) == [], "nothing is left lying about"


def test_a_parameter_named_like_a_moment_is_refused(tmp_path: Path) -> None:
    with Graph() as g:
        g.output(ops.sum_all(ops.parameter("adam_m.w", (2,)) * 2.0))
    with build_session(g, "cpu") as session:
        session.initialize(0)
        for call in (session.save_checkpoint, session.load_checkpoint):
            with pytest.raises(CheckpointError, match="parameter adam_m.w: given a name of the file's own"):
                call(tmp_path / "a")


# damage ---------------------------------------------------------------------------------------------------------------
def parts(path: Path) -> tuple[int, dict[str, Any], bytes]:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    return length, json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header: Any, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + body


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "a"
    with build_session(line(), "cpu") as session:
        fitted(session).set_adam(0.1)
        steps(session, 3)
        session.save_checkpoint(path)
    return path


@pytest.fixture(scope="module", params=["cpu", "wgpu"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    if request.param == "wgpu":
        needs("wgpu")
    with build_session(line(), request.param) as session:
        fitted(session).set_learning_rate(0.1)
        steps(session, 2)
        yield session


def refused(session: Session, path: Path, data: bytes) -> str:
    """The error of loading `data`; the session is as it was."""
    before, memory = state_of(session), session.memory_summary()
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        session.load_checkpoint(path)
    assert state_of(session) == before and session.memory_summary() == memory
    return str(caught.value)


@pytest.mark.parametrize("states", [[], "x", None])
def test_states_of_another_kind_are_refused(session: Session, saved: Path, tmp_path: Path, states: Any) -> None:
    _, header, body = parts(saved)
    metadata = header["__metadata__"]
    layout = {**json.loads(metadata["gdlab_logical_layout"]), "states": states}
    changed = {**header, "__metadata__": {**metadata, "gdlab_logical_layout": json.dumps(layout)}}
    assert "gdlab_logical_layout" in refused(session, tmp_path / "a", joined(changed, body))


def test_a_snapshot_of_another_session_is_refused(session: Session) -> None:
    with Graph() as narrow:
        ops.input("x", (4, 3))
        narrow.output(ops.parameter("w", (3, 1)).sum_all() + ops.parameter("b", (2,)).sum_all())
    with Graph() as named:
        named.output(ops.parameter("v", (3, 2)).sum_all())
    before = state_of(session)
    for graph, text in ((narrow, "restore: w: given F32"), (named, "restore: w: given nothing")):
        with build_session(graph, "cpu") as other:
            other.initialize(zeros=True)
            with pytest.raises(CheckpointError, match=text):
                session.restore(other.snapshot())
        assert state_of(session) == before
    moments = replace(session.snapshot(), adam=("v",))
    with pytest.raises(CheckpointError, match="restore: moments of v"):
        session.restore(moments)


def test_every_byte_counts(session: Session, saved: Path, tmp_path: Path) -> None:
    data, rng = saved.read_bytes(), random.Random(7)
    places = [*range(10), *(rng.randrange(len(data)) for _ in range(80)), *range(len(data) - 10, len(data))]
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= rng.choice((1, 2, 4, 8, 16, 32, 64, 128, 255))
        refused(session, tmp_path / "a", bytes(damaged))


def test_every_byte_of_the_header_counts(saved: Path, tmp_path: Path) -> None:
    """Among them those that JSON does not care about."""
    data, path = saved.read_bytes(), tmp_path / "a"
    length, _, _ = parts(saved)
    with build_session(line(), "cpu") as session:
        for place in range(8 + length):
            for other in {data[place] ^ 1, 0x20 if place % 2 else 0x09} - {data[place]}:
                path.write_bytes(data[:place] + bytes([other]) + data[place + 1 :])
                with pytest.raises(CheckpointError):
                    session.load_checkpoint(path)


Edit = Callable[[dict[str, Any], bytes], bytes]


def entry(name: str, **change: Any) -> Edit:
    return lambda header, body: joined(header | {name: header[name] | change}, body)


def meta(**change: Any) -> Edit:
    return lambda header, body: joined(header | {"__metadata__": header["__metadata__"] | change}, body)


def without(*names: str) -> Edit:
    return lambda header, body: joined({k: v for k, v in header.items() if k not in names}, body)


def layout(change: Callable[[Any], Any]) -> Edit:
    def edit(header: dict[str, Any], body: bytes) -> bytes:
        text = json.dumps(change(json.loads(header["__metadata__"]["gdlab_logical_layout"])))
        return meta(gdlab_logical_layout=text)(header, body)

    return edit


def twice(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header, separators=(",", ":"))
    return joined((text[:-1] + ',"w":' + json.dumps(header["w"]) + "}").encode(), body)


STRUCTURE: dict[str, tuple[Edit, str]] = {
    "empty": (lambda h, b: b"", "header: given a file of 0 bytes"),
    "text": (lambda h, b: b"hello, this is no checkpoint", "header: given"),
    "length beyond the file": (lambda h, b: struct.pack("<Q", 2**62) + b"{}", "header: given"),
    "no JSON": (lambda h, b: joined(b"[1, 2", b), "header: given JSONDecodeError"),
    "no object": (lambda h, b: joined([1], b), "header: given"),
    "nested without end": (lambda h, b: joined(b"[" * 100_000, b), "header: given RecursionError"),
    "not UTF-8": (lambda h, b: joined(b'{"\xff\xfe":1}', b), "header: given UnicodeDecodeError"),
    "no metadata": (without("__metadata__"), "header: given KeyError: '__metadata__'"),
    "metadata no strings": (meta(adam_step=3), "adam_step: given int, wanted a str"),
    "more metadata": (meta(extra="1"), "header: given other text"),
    "a tab for padding": (lambda h, b: joined(json.dumps(h, separators=(",", ":")).encode() + b"\t", b),
        "header: given other text, wanted what save_checkpoint writes, to the letter"),
    "spaces between": (lambda h, b: joined(json.dumps(h).encode(), b), "header: given other text"),
    "format": (meta(gdlab_checkpoint_format="3"), "gdlab_checkpoint_format: given '3', wanted '2'"),
    "step below zero": (meta(adam_step="-1"), "adam_step: given '-1', wanted an integer ≥ 0"),
    "step no integer": (meta(adam_step="1.5"), "adam_step: given '1.5', wanted an integer ≥ 0"),
    "step with a zero": (meta(adam_step="03"), "adam_step: given '03', wanted an integer ≥ 0"),
    "step too long": (meta(adam_step="9" * 5000), "adam_step: given '999"),
    "another step": (meta(adam_step="4"), "gdlab_digest: given the digest of other bytes"),
    "missing tensor": (without("b"), "b: given nothing, wanted F32[2]"),
    "tensor twice": (twice, "w: given the same name twice, wanted each tensor once"),
    "other shape": (entry("w", shape=[2, 3]), "w: given F32[2, 3], wanted F32[3, 2]"),
    "other dtype": (entry("w", dtype="U32"), "w: given U32[3, 2], wanted F32[3, 2]"),
    "unknown dtype": (entry("w", dtype="BF16"), "w: given 'BF16', wanted one of F32, F16, U32"),
    "shape no list": (entry("w", shape=6), "header: given TypeError"),
    "negative extent": (entry("w", shape=[-3, -2]), "w: given an entry of another form"),
    "offsets beyond": (entry("w", data_offsets=[10**9, 10**9 + 24]), "w: given bytes 1000000000"),
    "offsets overlap": (entry("w", data_offsets=[0, 24]), "given bytes 0 … 24"),
    "offsets three": (entry("w", data_offsets=[0, 24, 48]), "w: given an entry of another form"),
    "shorter": (lambda h, b: joined(h, b[:-4]), "data: given 92 bytes, wanted 96 bytes"),
    "longer": (lambda h, b: joined(h, b + b"1234"), "data: given 100 bytes, wanted 96 bytes"),
    "layout no JSON": (meta(gdlab_logical_layout="{"), "gdlab_logical_layout: given JSONDecodeError"),
    "layout of another form": (meta(gdlab_logical_layout="[]"), "gdlab_logical_layout: given TypeError"),
    "layout lacks one": (layout(lambda d: d | {"parameters": d["parameters"][:1]}), "b: given nothing, wanted F32 [2]"),
    "layout has one more": (layout(lambda d: d | {"parameters": [*d["parameters"], ["c", [1], "F32"]]}),
        "c: given F32 [1], wanted no such parameter in this session"),
    "layout of another shape": (layout(lambda d: d | {"parameters": [["w", [6], "F32"], d["parameters"][1]]}),
        "w: given F32 [6], wanted F32 [3, 2]"),
    "moments of fewer": (layout(lambda d: d | {"adam": ["w"]}), "adam_m.b: given F32[2], wanted no such tensor"),
    "moments of others": (layout(lambda d: d | {"adam": ["w", "c"]}), "gdlab_logical_layout: given"),
    "moments twice": (layout(lambda d: d | {"adam": ["w", "b", "b"]}), "gdlab_logical_layout: given"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "text"), STRUCTURE.values(), ids=STRUCTURE)
def test_a_file_of_another_structure_is_refused(
    session: Session, saved: Path, tmp_path: Path, edit: Edit, text: str
) -> None:
    _, header, body = parts(saved)
    assert text in refused(session, tmp_path / "a", edit(header, body))


def test_a_file_that_is_not_there_is_refused(session: Session, tmp_path: Path) -> None:
    before = state_of(session)
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(CheckpointError, match="wanted a checkpoint file"):
            session.load_checkpoint(path)
    assert state_of(session) == before


def test_a_file_of_another_size_is_refused_before_it_is_read(session: Session, saved: Path, tmp_path: Path) -> None:
    """Such as the weights of another model, which may not fit into the memory."""
    needs("posix")  # whose files may have holes
    (tmp_path / "a").write_bytes(saved.read_bytes())
    os.truncate(tmp_path / "a", 1 << 40)
    with pytest.raises(CheckpointError, match="data: given 1099511627[0-9]+ bytes, wanted 96 bytes"):
        session.load_checkpoint(tmp_path / "a")
    (tmp_path / "a").write_bytes(struct.pack("<Q", 1 << 39))
    os.truncate(tmp_path / "a", 1 << 40)
    with pytest.raises(CheckpointError, match="header: given 549755813888 bytes in a file of 1099511627776"):
        session.load_checkpoint(tmp_path / "a")


def test_a_pipe_and_a_device_are_no_checkpoints(session: Session, tmp_path: Path) -> None:
    needs("posix")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(CheckpointError, match="a pipe, a device or a socket"):
            session.load_checkpoint(path)


# a kill at any moment -------------------------------------------------------------------------------------------------
WRITER = """
import sys
import numpy as np
from gdlab import ops
from gdlab.graph import Graph
from gdlab.session import SessionConfig, build
with Graph() as g:
    g.output(ops.sum_all(ops.parameter("w", (300, 1000)) * 2.0))
session, _ = build(g, SessionConfig(device="cpu", optimize=None))  # without egglog: it starts sooner
session.set_parameter("w", np.zeros(300_000))
session.save_checkpoint(sys.argv[1])
print("ready", flush=True)
k = 1
while True:
    session.set_parameter("w", np.full(300_000, k))
    session.set_adam_step_count(k)
    session.save_checkpoint(sys.argv[1])
    k += 1
"""


def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """kill −9 at random moments while a child saves without pause."""
    path, rng, seen = tmp_path / "a", random.Random(), set()
    with Graph() as g:
        g.output(ops.sum_all(ops.parameter("w", (300, 1000)) * 2.0))
    with build_session(g, "cpu") as session:
        for _ in range(KILLS):
            child = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.0, 0.05))
            child.kill()
            child.wait()
            child.stdout.close()
            session.load_checkpoint(path)
            values = session.read_param("w")
            assert (values == session.adam_step_count()).all()
            seen.add(session.adam_step_count())
    assert len(seen) > 1 or KILLS == 1, "every kill came before the first save in the loop"


def test_kill_is_kill() -> None:
    """On POSIX `Popen.kill` is SIGKILL: no handler of the child runs."""
    if os.name == "posix":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        child.kill()
        assert child.wait() == -signal.SIGKILL


# exchanged tensors, older files, what a killed save leaves ------------------------------------------------------------
@pytest.mark.parametrize("pair", [("adam_m.w", "adam_v.w"), ("w", "adam_m.w")])
def test_exchanged_tensors_of_one_shape_are_refused(saved: Path, tmp_path: Path, pair: tuple[str, str]) -> None:
    _, header, body = parts(saved)
    a, b = pair
    offsets = {a: header[b]["data_offsets"], b: header[a]["data_offsets"]}
    for name, value in offsets.items():
        header[name]["data_offsets"] = value
    with build_session(line(), "cpu") as session:
        fitted(session)
        assert "gdlab_digest" in refused(session, tmp_path / "a", joined(header, body))


def test_a_file_of_format_1_is_read_with_a_warning(saved: Path, tmp_path: Path) -> None:
    _, header, body = parts(saved)
    meta = header["__metadata__"] | {"gdlab_checkpoint_format": "1"}
    rows = [("", checkpoint.HeaderEntry("F32", (), 0, 0), memoryview(body))]
    header["__metadata__"] = meta | {"gdlab_digest": checkpoint.digest(meta, rows)}
    (tmp_path / "a").write_bytes(joined(header, body))
    with build_session(line(), "cpu") as session:
        with pytest.warns(RuntimeWarning, match="format 1, whose digest does not cover names: save it again"):
            session.load_checkpoint(tmp_path / "a")
        assert session.adam_step_count() == 3


def test_a_save_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, mine = tmp_path / f".a.{ended.pid}-0123abcd.tmp", tmp_path / f".a.{os.getpid()}-0123abcd.tmp"
    for path in (left, mine):
        path.write_bytes(b"half")
    with build_session(line(), "cpu") as session:
        fitted(session).save_checkpoint(tmp_path / "a")
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["a", mine.name]), "a save under way is left alone"


def test_a_counter_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    with build_session(line(), "cpu") as session:
        fitted(session).set_adam(0.1)
        session.set_adam_step_count(2**63 - 1)
        session.step()
        with pytest.raises(CheckpointError, match=r"adam_step: given 9223372036854775808, wanted one below 2\^63"):
            session.save_checkpoint(tmp_path / "a")
        assert list(tmp_path.iterdir()) == []
