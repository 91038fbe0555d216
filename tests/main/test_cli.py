"""`python -m gdlab`: what it prints, and with which exit status it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import networks
import pytest

import gdlab.study.parity as parity
import gdlab.view.text.doctor as doctor_module
from gdlab import ops
from gdlab.__main__ import main
from gdlab.base.blas import mean_by_least
from gdlab.base.errors import DeviceUnavailableError
from gdlab.devices import native
from gdlab.graph import Graph
from gdlab.op import public_ops
from gdlab.study.study import Study
from gdlab.view.ask.slices import VIEWS
from gdlab.view.ask.step_replay import after
from gdlab.view.document.make import load_doc
from gdlab.view.text.twin import twin

PROGRAM = """
import gdlab as gd
with gd.Graph() as net:
    x, y = gd.input("x", (8, 6)), gd.input("y", (8, 3))
    h = gd.relu(x @ gd.parameter("w1", (6, 5)))
    net.output(gd.cross_entropy_loss(h @ gd.parameter("w2", (5, 3)), y))
batch = {"x": [[1.0] * 6] * 8, "y": [[1.0, 0.0, 0.0]] * 8}
"""


def test_a_bad_suffix_is_refused_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(PROGRAM)
    assert main(["run", str(tmp_path / "net.py"), "--feed", "batch", "--init", "0", "--save", "net.xyz"]) == 2
    out = capsys.readouterr()
    assert out.out == "" and out.err.startswith("save: given net.xyz, wanted .gdlab.json, ")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    study.run(2, feed="random:0", adam=1e-3, init=0)
    path = study.save(tmp_path_factory.mktemp("cli") / "mlp.gdlab.json.gz")
    study.close()
    return path


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(PROGRAM)
    return path


# explain -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("view", VIEWS)
def test_explain_prints_the_twin(saved: Path, capsys: pytest.CaptureFixture[str], view: str) -> None:
    assert main(["explain", str(saved), "--view", view]) == 0
    document = load_doc(saved)
    assert capsys.readouterr().out == f"{document}\n{twin(document, view)}"


@pytest.mark.parametrize("view", VIEWS)
def test_explain_json_is_a_slice_of_the_document(saved: Path, capsys: pytest.CaptureFixture[str], view: str) -> None:
    assert main(["explain", str(saved), "--view", view, "--json"]) == 0
    part, data = json.loads(capsys.readouterr().out), load_doc(saved).data
    stages, passes, plan = part.pop("stages", []), part.pop("passes", []), part.pop("plan", {})
    assert all(stage in data["stages"] for stage in stages) and all(one in data["passes"] for one in passes)
    assert plan == {name: data["plan"][name] for name in plan}
    assert part == {name: data[name] for name in part} and {"format", "title", "summary"} <= set(part)
    assert stages or plan or view in ("session", "links", "sweep")


def test_explain_a_chain_and_its_json(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(saved), "--view", "links", "--at", "dispatch:12"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("dispatch:12 lights ") and "gdlab/plan/update.py" in text and "  wgsl:12.1  " in text
    assert main(["explain", str(saved), "--view", "plan", "--at", "dispatch:12", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["selected"] == sorted(load_doc(saved).select("dispatch:12"))


def test_a_document_that_breaks_its_rules_ends_with_1(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = load_doc(saved).data
    data["plan"]["kernels"]["boilerplate"] = {}
    path = tmp_path / "bad.gdlab.json"
    path.write_text(json.dumps(data))
    assert main(["explain", str(path)]) == 1
    assert capsys.readouterr().err.startswith("document bad.gdlab.json: wgsl:0.1: has no node and is no boilerplate\n")


def test_bad_usage_ends_with_2(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.json").write_text('{"format": "gdlab.graph.v2"}')
    assert main(["explain", str(tmp_path / "g.json")]) == 2
    assert capsys.readouterr().err == 'document g.json: format: given "gdlab.graph.v2", wanted "gdlab.graph.v1"\n'
    assert main(["explain", str(saved), "--at", "dispatch:99"]) == 2
    assert (
        "select: entity: given 'dispatch:99', wanted an entity of this document; the last number"
        in capsys.readouterr().err
    )
    for words in (["explain", str(saved), "--view", "plam"], ["explain"], [], ["nope"]):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 2
    assert "invalid choice: 'plam' (choose from" in capsys.readouterr().err


# run -----------------------------------------------------------------------------------------------------------------
def test_run_trains_a_graph_of_a_file(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.gdlab.json"
    words = "--train --steps 20 --feed batch --sgd 0.5 --init 0 --device cpu --view session".split()
    assert main(["run", str(program), *words, "--save", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("graph net: 8 nodes") and "20 steps, " in text and "SGD, lr 0.5" in text
    (run,) = load_doc(out).data["runs"]
    losses = [loss for _, loss in run["loss"]]
    assert len(losses) == 20 and losses[-1] < 0.5 * losses[0] and f"saved: {out}" in text
    assert {s["name"] for s in load_doc(out).data["sources"]} == {"net.py", "gdlab/plan/update.py"}


def test_run_takes_a_study_and_closes_it(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.write_text(PROGRAM + 'mine = gd.Study(net, train=True, device="cpu", name="mine")\n')
    assert main(["run", str(program), "--feed", "random:1", "--init", "0"]) == 0
    text = capsys.readouterr().out
    assert "graph mine: " in text and "1 step, " in text and "update: no update rule" in text


def test_run_refuses_what_it_cannot_use(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        assert main(["run", *words]) == 2
        return capsys.readouterr().err

    assert said(str(tmp_path / "none.py")).startswith("run: file: given ")
    assert "wanted random[:SEED], or a variable of the file" in said(
        str(program), "--device", "cpu", "--feed", "batches"
    )
    assert "run: name: given nett, wanted one of net; nearest: net" in said(str(program), "--name", "nett")
    assert "no value for x, y" in said(str(program), "--device", "cpu", "--init", "0")
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert said(str(tmp_path / "empty.py")).startswith(
        "run: empty.py: given no Study, and no Graph with outputs, wanted "
    )


def test_a_run_ends_when_its_condition_holds(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--train", "--device", "cpu", "--feed", "batch", "--sgd", "0.1", "--init", "0"]
    assert main(["run", str(program), *options, "--steps", "500", "--until", "loss < 0.5"]) == 0
    text = capsys.readouterr().out
    assert "paused: end of --until: loss < 0.5" in text and "500 steps" not in text
    assert main(["run", str(program), *options, "--until", "loss <"]) == 2
    assert capsys.readouterr().err.startswith("until: test: given the end, wanted ")


def test_a_run_that_meets_nan_fails(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.write_text(PROGRAM + 'batch["x"][0][0] = float("nan")\n')
    options = ["--train", "--device", "cpu", "--feed", "batch", "--init", "0", "--watch", "everything"]
    assert main(["run", str(program), *options]) == 1
    text = capsys.readouterr().out
    assert "paused: step 1 would not be finite" in text and "first NaN: dispatch 0, " in text
    assert f"line 5 of {program}" in text


def test_ctrl_c_keeps_what_was_made(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.write_text(PROGRAM + """
import _thread, time
def feed(step):
    if step == 3:
        _thread.interrupt_main()
        time.sleep(0.3)
    return batch
""")
    out = tmp_path / "kept.gdlab.json"
    options = ["--train", "--device", "cpu", "--feed", "feed", "--init", "0", "--steps", "1000000", "--save", str(out)]
    assert main(["run", str(program), *options]) == 130
    text = capsys.readouterr().out
    assert "paused: by interrupt" in text and "Traceback" not in text
    assert load_doc(out).data["runs"][0]["counters"]["steps"] >= 4


# steps, differences, checks, questions -------------------------------------------------------------------------------
def test_explain_plays_the_rewrites(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = load_doc(saved)
    steps = len(document.steps(0))
    rewrites = steps - 1  # the last step is the sweep
    for k in range(steps + 1):
        assert main(["explain", str(saved), "--step", str(k)]) == 0
        lines = capsys.readouterr().out.splitlines()
        swept = ", swept" if k > rewrites else ""
        assert lines[0] == f"pass 0, optimize:forward: after {min(k, rewrites)} of {rewrites} rewrites{swept}"
        gone = [line for line in lines if line.startswith("  −")]
        rows = len(lines) - 3 - (k > 0) - len(gone)
        assert rows == len(after(document, 0, k).nodes)
    wanted = document.nodes("optimized").column("key")
    assert list(after(document, 0, steps).nodes) == wanted and "fused_matmul_add" in str(lines)
    assert main(["explain", str(saved), "--step", "99"]) == 2
    assert capsys.readouterr().err.startswith(f"explain: step: given 99, wanted 0 … {steps}: pass 0 has {steps} steps")
    assert main(["explain", str(saved), "--step", "0", "--pass", "1"]) == 2
    assert capsys.readouterr().err.startswith("explain: pass: given 1, wanted an optimize pass: one of 0, 2")


def test_a_replay_follows_the_outputs() -> None:
    with Graph() as g:
        x = ops.input("x", (4,))
        g.set_outputs([ops.neg(ops.neg(x)), x * ops.sigmoid(x)])
    document = Study(g, device="cpu", name="g").doc
    steps = len(document.steps(0))
    first, last = after(document, 0, 0), after(document, 0, steps)
    assert first.outputs == ("n2", "n4")
    keys = document.nodes("optimized").column("key")
    assert last.outputs == tuple(keys[i] for i in document.outputs("optimized").column("node"))
    assert last.outputs[0] == "n0"
    for k in range(steps + 1):
        moment = after(document, 0, k)
        seen: set[str] = set()
        for key, node in moment.nodes.items():
            assert set(node["inputs"]) <= seen, "inputs first, at every moment"
            seen.add(key)
        assert set(moment.outputs) <= seen


def test_explain_compares_two_files(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Study(networks.reader(64), device="cpu", name="reader").save(tmp_path / "reader.gdlab.json")
    assert main(["explain", str(saved), str(other)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "12 same, 0 rewired, 0 changed, 0 moved into 0, 2 removed, 1 added"
    assert main(["explain", str(saved), str(saved)]) == 0
    assert capsys.readouterr().out.endswith("14 same, 0 rewired, 0 changed, 0 moved into 0, 0 removed, 0 added\n")


def test_explain_asserts(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = load_doc(saved)
    dispatches = len(document.plan("dispatches"))
    assert main(["explain", str(saved), "--assert", f"dispatches == {dispatches} and peak_bytes < 2e6"]) == 0
    peak = document.data["plan"]["memory"]["peak_bytes"]
    wanted = f"holds: dispatches == {dispatches} and peak_bytes < 2e6 (dispatches {dispatches}, peak_bytes {peak:,})\n"
    assert capsys.readouterr().out == wanted
    assert main(["explain", str(saved), "--assert", "rewrites < 1 or nodes < 3"]) == 1
    assert capsys.readouterr().out.startswith("FAILS: rewrites < 1 or nodes < 3 (nodes ")
    assert main(["explain", str(saved), "--assert", "loss < 1"]) == 2
    wanted = "assert: test: given loss, wanted one of nodes, dispatches, groups, peak_bytes, rewrites, or a number"
    assert capsys.readouterr().err.startswith(wanted)


def test_check_is_an_exit_status(
    program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["check", str(program), "--train", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.endswith("net: nothing broke: 1 output and 2 gradients agree with the reference.\n")
    monkeypatch.setitem(parity.RTOL, "cpu", 1e-30)
    assert main(["check", str(program), "--train", "--device", "cpu"]) == 1
    assert "net: cpu differs from the reference, first in dispatch " in capsys.readouterr().out


def test_why_asks_the_report(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(program), "fuse_silu", "--device", "cpu"]) == 0
    assert "Mul+Sigmoid→Silu" in capsys.readouterr().out
    assert main(["why", str(program), "%5", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith("%") and main(["why", str(program), "%99"]) == 2
    assert capsys.readouterr().err.startswith("report: node: given 99, wanted an id 0 … ")


# ops and doctor ------------------------------------------------------------------------------------------------------
def test_ops_lists_every_op(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[1:]] == [op.name for op in public_ops()]
    assert max(map(len, rows)) <= 120 and "f32[...] -> f32[...]" in rows[1]
    assert main(["ops", "swiglu"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("swiglu(gate, up)\n") and "Silu+Mul→SwiGLU" in text and "its own" in text
    assert main(["ops", "swigglu"]) == 2 and "nearest: swiglu" in capsys.readouterr().err


def test_doctor_tells_versions_and_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor"])
    text = capsys.readouterr().out
    names = [row.name for row in doctor_module.doctor_rows()]
    assert all(name in text for name in names) and {"Python", "egglog", "device", "dot", "front end", "threads"} <= set(
        names
    )
    assert status == (1 if "BAD" in text else 0)


@pytest.mark.parametrize("keeps", [True, False])
def test_doctor_tells_that_threads_of_numpy_keep_the_cores(keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "keeps_cores", lambda: keeps)
    (row,) = (row for row in doctor_module.doctor_rows() if row.name == "numpy")
    assert row.level == ("note" if keeps else "ok")
    assert row.advice.startswith("import gdlab before numpy") == keeps


@pytest.mark.parametrize(("slower", "level"), [(1.2, "ok"), (2.6, "note")])
def test_doctor_tells_that_others_use_the_cores(slower: float, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "mean_by_least", lambda: slower)
    monkeypatch.setattr(doctor_module, "has_openblas", lambda: True)
    monkeypatch.setattr(doctor_module, "compiled", lambda: None)
    monkeypatch.setattr(doctor_module, "threads", lambda: 2)
    (row,) = (row for row in doctor_module.doctor_rows() if row.name == "products")
    assert row.level == level and row.found.startswith("by 2 threads")
    assert row.advice.startswith("OPENBLAS_NUM_THREADS=1") == (level == "note")
    monkeypatch.setattr(doctor_module, "threads", lambda: 1)
    (row,) = (row for row in doctor_module.doctor_rows() if row.name == "products")
    assert (row.level, row.found) == ("ok", "by 1 thread")
    monkeypatch.setattr(doctor_module, "compiled", lambda: len)
    monkeypatch.setattr(doctor_module, "threads", lambda: 2)  # who leave their work to others
    (row,) = (row for row in doctor_module.doctor_rows() if row.name == "products")
    assert (row.level, row.found, row.advice) == ("ok", "in C, by 2 threads", "")


def test_a_product_takes_longer_on_average_than_the_fastest() -> None:
    assert mean_by_least(0.02) >= 1


@pytest.mark.parametrize(
    ("system", "found", "level"), [("linux", "/bin/cc", "ok"), ("linux", None, "note"), ("win32", None, "")]
)
def test_doctor_tells_of_a_compiler(
    system: str, found: str | None, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native.shutil, "which", lambda name: found if name == "cc" else None)
    monkeypatch.setattr(native.sys, "platform", system)
    rows = [row for row in doctor_module.doctor_rows() if row.name == "C compiler"]
    assert [row.level for row in rows] == ([level] if level else [])
    assert all(bool(row.advice) == (level == "note") for row in rows)


def test_doctor_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(name: str) -> None:
        raise DeviceUnavailableError("device", name, "no adapter", "a driver")

    monkeypatch.setattr(doctor_module, "mean_by_least", lambda: 1.2)
    monkeypatch.setattr(doctor_module, "device", none)
    monkeypatch.setattr(doctor_module, "adapters", list)
    monkeypatch.setattr(doctor_module, "files", lambda package: tmp_path)
    monkeypatch.setattr(doctor_module, "_PACKAGES", (("no-such-package", False, ""), ("ipykernel", True, "")))
    monkeypatch.setattr(
        doctor_module, "version", lambda name: {"ipykernel": "6.29.5"}[name] if name == "ipykernel" else missing()
    )
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    bad = [line.split()[1] for line in lines if line.startswith("BAD")]
    assert bad == ["no-such-package", "device", "front"]
    advice = [line.strip() for line in lines if line.strip().startswith("→")]
    assert advice[0] == "→ pip install no-such-package" and "pip install 'ipykernel>=7'" in advice[1]
    assert "mesa-vulkan-drivers" in advice[2] and "labextension/frontend.py" in advice[4]


def missing() -> str:
    raise doctor_module.PackageNotFoundError("no-such-package")


def test_as_a_module_in_its_own_process() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "gdlab", "ops", "relu"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("relu(x)\n")
