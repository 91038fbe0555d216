"""Public methods of the four doors, given another kind of object: an error of gdlab's tree, or understood."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled_graphs import ready, recurrence
from counting import ONE, counter

import gdlab as gd
from gdlab.base.binding import LateAttribute
from gdlab.base.errors import GdlabError
from gdlab.compiled import CacheRunInput
from gdlab.study.study import Study

WRONG: dict[str, Any] = {
    "none": None, "minus one": -1, "half": 1.5, "nan": float("nan"), "empty text": "", "bytes": b"x", "list": [],
    "dict": {}, "object": object(), "of none": [None], "array": np.ones((2, 3)), "no elements": np.zeros(0),
    "function": lambda: 1, "yes": True, "complex": 1j, "long text": "a" * 10_000, "surrogate": "\ud800",
    "nested": {1: [2]},
}  # fmt: skip
LEFT_OUT = {"controls", "close", "wait", "save_checkpoint", "load_checkpoint",
            "to_end", "adopt_steps"}  # for the study, and for engines that made the steps  # fmt: skip
RIGHT = {"name": "w", "prefix": "w", "data": ONE["x"], "feed": None, "names": ["w"], "weights": {}}


def methods(subject: Any) -> list[tuple[str, list[inspect.Parameter]]]:
    found = []
    for name in dir(type(subject)):
        method = inspect.getattr_static(type(subject), name)
        if isinstance(method, LateAttribute):  # of a later room
            method = getattr(type(subject), name)
        if name.startswith("_") or name in LEFT_OUT or not inspect.isfunction(method):
            continue
        given = [p for p in inspect.signature(method).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
        if given:
            found.append((name, given))
    return found


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("part", ["session", "runner"])
def test_no_kind_of_argument_ends_in_an_error_of_python(part: str, kind: str) -> None:
    study = counter()
    study.run(1)
    of: Callable[[Study], Any] = lambda s: getattr(s, part)  # noqa: E731
    for name, parameters in methods(of(study)):
        for at, asked in enumerate(parameters):
            if asked.name == "out" or (asked.name, kind) == ("feed", "function"):
                continue  # an array, a feed of the caller's
            before = [RIGHT.get(p.name, 1) for p in parameters[:at]]
            after = [RIGHT.get(p.name, 1) for p in parameters[at + 1 :] if p.default is p.empty]
            try:
                getattr(of(study), name)(*before, WRONG[kind], *after)
            except GdlabError as error:
                assert len(str(error)) <= 4100 and str(error).count("\n") <= 40, name
            except Exception as error:
                pytest.fail(f"{part}.{name}, {asked.name} = {kind}: {type(error).__name__}: {error}")
            if study.runner.state == "running":
                study.runner.stop()
            while study.runner.state == "running":
                time.sleep(0.001)
    study.close()


# the other doors ------------------------------------------------------------------------------------------------------
# Calls between the parts of a door, which have no underscore because another module makes them.
WITHIN = {
    "EagerSession": {"buffer_of", "check_any_buffer_size", "check_tape", "converted", "locked", "named_leaf", "own",
                     "owned_any_buffer", "set_drawn_step", "taken", "uploaded"},
    "CompiledGraph": {"load_stored", "run_request", "share"},
    "CommandEncoder": {"add", "append", "encode"},
    "GraphExecutor": {"allocation", "encode", "keep", "read", "release", "submit", "submit_known", "wait", "write"},
    "Param": {"on"},
}  # fmt: skip
ROWS = np.ones((5, 4), np.float32)
FEEDS = {"h": ROWS, "x": ROWS}


class Given:
    """The subjects of one door, and an argument of the right kind for every parameter by its name."""

    def __init__(self, door: str) -> None:
        made = {"compiled": self.compiled, "record": self.record, "eager": self.eager}[door]
        self.subjects, self.right = made()

    def compiled(self) -> tuple[list[Any], dict[str, Any]]:
        graph = ready(recurrence(), "cpu")
        cache = gd.BucketedCompileCache("cpu", [range(1, 9)])
        return [graph, cache], {
            "name": "h", "inputs": FEEDS, "data": ROWS, "output_index": 0, "sets": [FEEDS], "index": 0, "indices": [0],
            "other": graph, "source": {}, "path": "/dev/null/none", "build": lambda n: recurrence(rows=n), "row": 0,
            "snapshot": None, "memory": None, "extent": None, "dtype": "f32", "run_padded.inputs": [("x", ROWS, 4)],
            "run_padded_mixed.inputs": [CacheRunInput("x", ROWS, 4)],
            "mask": [], "masks": [], "actual_rows": 5, "key": 5,
        }  # fmt: skip

    def record(self) -> tuple[list[Any], dict[str, Any]]:
        ex = gd.GraphExecutor("cpu")
        b, line = (ex.alloc_buffer(4 * n, "f32", (n,)) for n in (4, 2))
        u, session = ex.alloc_buffer(16, "u32", (4,)), ex.begin_recorded()
        session.gelu(b, b)
        of_b = "a input output q k v tmp src dst buffer scales biases weight".split()
        return [ex, b, session, session.encoder_mut(), session.graph], {
            **dict.fromkeys(of_b, b), "b": b, "rms_norm.weight": line, "freq_factors": line, "positions": u, "ids": u,
            "rows": 2, "dim": 2, "cols": 2, "n_elements": 4, "slice_view.n_elements": 1, "byte_offset": 0, "cap": 1.0,
            "seq_len": 2, "head_dim": 2, "n_heads": 1, "rope_dim": 2, "reads": [b], "writes": [b], "kind": "sdpa",
            "op": "relu", "inputs": [b], "dtype": "f32", "shape": (4,), "nbytes": 16, "array": np.ones(4),
            "session": None, "encoder": ex.begin_recorded().encoder_mut(), "order": [0],
        }  # fmt: skip

    def eager(self) -> tuple[list[Any], dict[str, Any]]:
        s = gd.EagerSession(device="cpu")
        w = s.param(np.ones((2, 2)), "w")
        x = s.use(w)
        loss = x.square().sum_all()
        return [s, w, x], {
            **dict.fromkeys(("x", "out", "loss", "ref", "outputs"), loss), "hessian.x": x, "jacrev.x": x, "wrt": [x],
            "value": np.ones((2, 2)), "init": np.ones((2, 2)), "shape": (2, 2), "keep_prob": 0.5, "p": 0.5, "state": {},
            "dropout.state": None, "split_rng.state": None, "param": w, "seeds": {loss: None}, "seed": None,
            "tangents": {x: np.ones((2, 2))}, "values": [1, 2], "function": lambda *of: loss, "lr": 0.1, "grads": {},
            "build_loss": lambda: s.use(w).sum_all(), "name": "n", "array": np.ones(3), "scalar": loss, "arrays": {},
            "rule": gd.eager.Sgd(0.1), "buffer": s.to_any_buffer(np.ones((2, 2))), "get_nat.ref": s.input_nat(3),
            "set_nat.ref": s.input_nat(3), "set_nat.value": 3, "set_nat_vec.ref": s.input_nat_vec([3, 4]),
            "get_nat_vec.ref": s.input_nat_vec([3]), "nat_leaf.ref": s.input_nat_vec([3]), "input_nat.value": 3,
        }  # fmt: skip

    def arguments(self, name: str, parameters: list[inspect.Parameter]) -> dict[str, Any]:
        """Return the required ones."""
        wanted = [p.name for p in parameters if p.default is p.empty]
        return {p: self.right.get(f"{name}.{p}", self.right.get(p, 1)) for p in wanted}


def all_methods(subject: Any) -> list[tuple[str, list[inspect.Parameter]]]:
    found = []
    for name in dir(type(subject)):
        method = inspect.getattr_static(type(subject), name)
        if isinstance(method, LateAttribute):  # of a later room
            method = getattr(type(subject), name)
        if name.startswith("_") or name in WITHIN.get(type(subject).__name__, ()) or not inspect.isfunction(method):
            continue
        every = [*inspect.signature(method).parameters.values()][1:]
        by_name = [p for p in every if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if by_name:
            found.append((name, by_name))
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", ["compiled", "record", "eager"])
def test_no_kind_of_argument_of_a_door_ends_in_an_error_of_python(
    door: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that succeeds and may have consumed its session is followed by the next on new subjects."""
    monkeypatch.chdir(tmp_path)
    given, failures, calls = Given(door), [], 0
    for number in range(len(given.subjects)):
        for name, parameters in all_methods(given.subjects[number]):
            for asked in parameters:
                for kind, wrong in WRONG.items():
                    if (asked.name, kind) in ((of, "function") for of in ("build", "build_loss", "function", "rule")):
                        continue  # a function of the caller's
                    subject, calls = given.subjects[number], calls + 1
                    arguments = {**given.arguments(name, parameters), asked.name: wrong}
                    try:
                        getattr(subject, name)(**arguments)
                        given = given if door == "compiled" else Given(door)
                    except GdlabError as error:
                        long = len(str(error)) > 4100 or str(error).count("\n") > 40
                        failures += [f"{type(subject).__name__}.{name}: an error of {len(str(error))}"] * long
                    except Exception as error:
                        found = f"{type(error).__name__}: {error!s:.80}"
                        failures.append(f"{type(subject).__name__}.{name}, {asked.name} = {kind}: {found}")
                        given = Given(door)
    assert not failures, "\n".join(failures)
    assert calls > 800
