"""The live end of a study: one reply per request, frames within limits, hostile messages, generated types."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from panels import ask, of, until

from gdlab import ops
from gdlab.graph import Graph
from gdlab.jupyter import widget
from gdlab.jupyter.messages import PROTOCOL
from gdlab.jupyter.widget import Panel, merge_points
from gdlab.study.study import Study


def test_hello_sends_the_document_unless_the_page_has_it(panel):
    panel.receive({"type": "hello", "version": PROTOCOL, "host": "test", "views": 1, "have": panel.document.data["id"]})
    assert of(panel, "doc") == []
    panel.receive({"type": "hello", "version": PROTOCOL, "host": "test", "views": 1, "have": None})
    assert [m["doc"]["id"] for m in of(panel, "doc")] == [panel.document.data["id"]]


def test_a_page_without_a_front_end_gets_the_picture_and_behind_it_the_two_parts(panel, monkeypatch):
    sent = []
    monkeypatch.setattr(widget.GraphWidget, "send", lambda self, content, buffers=None: sent.append((content, buffers)))
    panel.show(panel.document, "<svg/>")
    panel.receive({"type": "core", "req": 10})
    parts = [(content["result"]["part"], *buffers) for content, buffers in sent if content.get("req") == 10]
    assert [name for name, _ in parts] == ["picture", "gdlab", "later"]
    assert parts[0][1] == b"<svg/>" and b"mount" in parts[1][1] and b"graph_sweep" in parts[2][1]


def test_every_command_has_exactly_one_reply(panel):
    reply = ask(panel, 1, "step")
    assert not reply["ok"] and "no value for x, y" in reply["error"]["message"]
    panel.study.prepare(feed="random:0", sgd=0.1, init=0)
    assert ask(panel, 2, "step")["ok"]
    runner, session = panel.study.runner, panel.study.session
    until(lambda: session.step_count == 1 and runner.state == "ready")  # as the page waits with its buttons
    assert ask(panel, 3, "run", steps=50)["ok"]
    until(lambda: session.step_count == 51 and runner.state == "ready")
    assert not ask(panel, 4, "resume")["ok"]
    assert not ask(panel, 5, "run", steps=-1)["ok"] and not ask(panel, 6, "explode")["ok"]
    assert not ask(panel, 7, "run", steps="__import__('os')")["ok"]
    assert len(of(panel, "reply")) == 7


WRONG = [None, 3, "x", [], {}, {"type": 4}, {"type": "nothing"}, {"type": "ack", "frame": "a"}]


@pytest.mark.parametrize("message", WRONG)
def test_what_is_no_message_is_ignored(panel, message):
    before = len(panel.sent)
    panel.receive(message)
    assert len(panel.sent) == before


def test_the_last_point_is_the_last_step_and_frames_are_few(panel):
    panel.study.prepare(feed="random:0", sgd=0.1, init=0)
    start = time.monotonic()
    ask(panel, 1, "run", steps=3000)
    stop = threading.Event()

    def acknowledge():
        while not stop.is_set():
            panel.receive({"type": "ack", "rev": 0, "frame": panel.frame})
            time.sleep(0.005)

    page = threading.Thread(target=acknowledge)
    page.start()
    until(lambda: of(panel, "metrics") and of(panel, "metrics")[-1]["step"] == 3000, 60)
    seconds = time.monotonic() - start
    stop.set()
    page.join()
    until(lambda: of(panel, "metrics")[-1]["state"] == "ready")
    frames = of(panel, "metrics")
    assert len(frames) <= 20 * seconds + 3
    assert frames[-1]["loss"][-1][0] == 3000 or frames[-2]["loss"][-1][0] == 3000
    steps = [p[0] for f in frames for p in f["loss"] if not f["full"]]
    assert steps == sorted(steps)


def test_without_acknowledgement_few_frames_go_out(panel):
    panel.study.prepare(feed="random:0", sgd=0.1, init=0)
    start = time.monotonic()
    ask(panel, 1, "run", steps=20_000)
    time.sleep(1.0)
    frames = len(of(panel, "metrics"))
    assert frames <= 6 * max(1.0, time.monotonic() - start)
    ask(panel, 2, "stop")
    until(lambda: panel.study.runner.state == "ready")


def test_a_run_is_seen_while_it_goes_on(panel, monkeypatch):
    """The dispatch under way, the clock and norms of gradients go to those who look, and to no others."""
    monkeypatch.delenv("GDLAB_STEPS", raising=False)
    panel.study.prepare(feed="random:0", adam=1e-3, init=0)
    panel.shown = False
    panel.study.run(50)
    assert panel.study.runner.norms.courses == (), "nobody looks"
    panel.shown = True
    run = panel.study.runner.start(seconds=60)
    count = len(panel.study.session.step_dispatches())
    seen, norms = set(), None
    deadline = time.monotonic() + 20
    while (len(seen) < count or norms is None) and time.monotonic() < deadline:
        panel.receive({"type": "ack", "rev": 0, "frame": panel.frame})
        for frame in of(panel, "metrics"):
            if frame["state"] == "running":
                seen.add(frame["under_way"])
                norms = frame["norms"] or norms
                assert frame["timed"] and frame["reason"].endswith(" s left")
        time.sleep(0.02)
    assert seen == set(range(count)), "each dispatch in its turn"
    ask(panel, 1, "stop")
    run.result(10)
    until(lambda: of(panel, "metrics")[-1]["state"] == "ready")
    last, silent = of(panel, "metrics")[-1], [f for f in of(panel, "metrics") if f["norms"] is None]
    assert (last["under_way"], last["timed"], last["reason"]) == (-1, False, "") and len(silent) > 3
    assert [row["name"] for row in last["norms"]] == panel.study.session.param_names()
    for row in last["norms"]:
        grad = panel.study.session.read_param_grad(row["name"])
        assert row["value"] == pytest.approx(float(np.linalg.norm(grad))) and row["step"] == last["step"]
        assert 1 < len(row["course"]) <= 60 and row["about"].startswith("node:0.")


def test_a_closed_session_keeps_its_figures_and_a_new_one_starts_afresh(panel):
    panel.study.prepare(feed="random:0", sgd=0.1, init=0)
    ask(panel, 1, "run", steps=7)
    until(lambda: of(panel, "metrics") and of(panel, "metrics")[-1]["step"] == 7)
    before = of(panel, "metrics")[-1]
    panel.study.close()
    panel.refresh()
    until(lambda: of(panel, "metrics")[-1]["state"] == "closed")
    after = of(panel, "metrics")[-1]
    assert after["step"] == 7 and after["memory"] == before["memory"] and after["optimizer"] == "SGD, lr 0.1"
    assert after["counters"]["groups"] == before["counters"]["groups"] > 0
    panel.receive({"type": "ack", "rev": 0, "frame": panel.frame})
    assert "closed, wanted reopen() first" in ask(panel, 2, "step")["error"]["message"]
    assert ask(panel, 3, "open")["ok"]
    panel.study.run(3, feed="random:0", sgd=0.1, init=0)
    panel.refresh()
    until(lambda: of(panel, "metrics")[-1]["step"] == 3 and of(panel, "metrics")[-1]["state"] == "ready")
    frames = of(panel, "metrics")
    last_full = max(i for i, f in enumerate(frames) if f["full"])
    assert [p[0] for f in frames[last_full:] for p in f["loss"]] == [1.0, 2.0, 3.0]


def test_closing_leaves_no_model(panel):
    from ipywidgets.widgets.widget import _instances

    mine = {panel.widget.model_id, panel.widget.layout.model_id}
    assert mine <= set(_instances)
    panel.close()
    assert not mine & set(_instances)


def test_no_frames_while_nothing_is_shown(panel):
    panel.receive({"type": "visible", "views": 1, "shown": False})
    panel.study.prepare(feed="random:0", sgd=0.1, init=0)
    before = len(of(panel, "metrics"))
    ask(panel, 1, "run", steps=200)
    until(lambda: panel.study.session.step_count == 200)
    time.sleep(0.2)
    assert len(of(panel, "metrics")) == before
    panel.receive({"type": "visible", "views": 1, "shown": True})
    until(lambda: len(of(panel, "metrics")) > before)
    assert of(panel, "metrics")[-1]["full"] and of(panel, "metrics")[-1]["step"] == 200


def test_a_page_that_comes_back_is_shown_frames_again(panel):
    """It said goodbye when it was reloaded; its hello means that it looks."""
    panel.receive({"type": "visible", "views": 0, "shown": False})
    panel.study.prepare(feed="random:0", sgd=0.1, init=0)
    ask(panel, 1, "step")
    panel.receive({"type": "hello", "version": PROTOCOL, "host": "test", "views": 1, "have": None})
    until(lambda: of(panel, "metrics") and of(panel, "metrics")[-1]["step"] == 1)


def test_merged_points_keep_the_extremes_and_the_last():
    points = [(i, float((i * 7919) % 1000)) for i in range(1, 5001)]
    points[1234] = (1235, 1e9)
    merged = merge_points(points)
    assert len(merged) <= 400 and merged == sorted(merged)
    assert (1235, 1e9) in merged and merged[-1] == points[-1] and min(p[1] for p in merged) == 0.0


def test_merged_points_keep_the_first_that_is_no_number():
    points = [(i, 1.0 / i) for i in range(1, 2001)]
    points[700] = (701, float("nan"))
    merged = merge_points(points)
    (broken,) = [p for p in merged if p[1] != p[1]]
    assert broken[0] == 701 and merged[0] == (1, 1.0) and [p[0] for p in merged] == sorted(p[0] for p in merged)


def test_a_loss_that_is_no_number_is_told_as_a_word(panel):
    study = panel.study
    study.prepare(sgd=0.1, init=0)
    batch = {"x": [[float("nan")] * 64] * 64, "y": [[0.1] * 10] * 64}
    study.runner.feed = lambda step: batch
    ask(panel, 1, "run", steps=3)
    until(lambda: any(p[1] == "nan" for m in of(panel, "metrics") for p in m["loss"]))
    assert of(panel, "metrics")[-1]["watch"] == "loss"


def test_without_a_rule_there_is_a_variant_beside(panel):
    rule = next(r for r in panel.study.report.rules if r.used)
    reply = ask(panel, 1, "optimize", disable=[rule.id])
    assert reply["ok"] and reply["result"]["text"] == panel.study.compare()
    name = reply["result"]["name"]
    until(lambda: of(panel, "doc"))
    sent = of(panel, "doc")[-1]["doc"]
    assert f"variant:{name}" in [stage["key"] for stage in sent["stages"]]
    assert [p["options"]["disable"] for p in sent["passes"] if p["key"] == f"optimize:variant:{name}"] == [[rule.id]]
    assert not ask(panel, 2, "optimize", disable=["no such rule"])["ok"]
    assert "wanted a list of rules" in ask(panel, 3, "optimize", disable="x")["error"]["message"]


def test_a_non_finite_loss_is_an_event_with_a_place(panel):
    study = panel.study
    study.prepare(sgd=0.1, init=0)
    batch = {"x": [[float("nan")] * 64] * 64, "y": [[0.1] * 10] * 64}
    study.runner.feed = lambda step: batch
    ask(panel, 1, "run", steps=10)
    until(lambda: of(panel, "event"))
    event = of(panel, "event")[0]
    assert event["kind"] == "nonfinite" and event["about"] == f"node:0.{study.graph.output_ids[0]}"
    until(lambda: of(panel, "metrics")[-1]["state"] == "paused")
    assert "loss is NaN" in of(panel, "metrics")[-1]["reason"]


def test_the_first_bad_dispatch_is_named(monkeypatch):
    """After the loss, the dispatch at which the NaN arises: the one that takes the logarithm of a negative number."""
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(widget.GraphWidget, "send", lambda self, content, buffers=None: sent.append(content))
    with Graph() as g:
        h = ops.square(ops.input("x", (8, 16)) @ ops.parameter("w", (16, 16))).named("h")
        g.set_outputs(ops.log(ops.softmax(h @ ops.parameter("v", (16, 4))) - 2.0).sum_all())
    study = Study(g, train=True, device="cpu", name="bad")
    panel = Panel(study)
    panel.sent = sent
    panel.show(study.doc)
    study.prepare(feed="random:0", sgd=0.1, init=0)
    ask(panel, 1, "run", steps=5)
    until(lambda: any((e["about"] or "").startswith("dispatch:") for e in of(panel, "event")))
    cause = next(e for e in of(panel, "event") if (e["about"] or "").startswith("dispatch:"))
    lit = study.doc.select(cause["about"])
    assert any(f"node:0.{n.id}" in lit for n in g if n.op == "log") and cause["kind"] == "nonfinite"
    assert "first NaN: dispatch" in cause["text"]
    assert study.session.step_count == 1, "looking makes no step"
    panel.close()
    study.close()


def test_why_not_is_answered_in_words_with_the_line_of_python(panel):
    graph = panel.study.optimized
    relu = next(n for n in graph if n.op == "relu")
    reply = ask(panel, 1, "why", a=relu.inputs[0], b=relu.id, phase="forward")
    assert reply["ok"] and reply["result"]["text"] == panel.study.report.why_not(relu.inputs[0], relu.id).text
    assert all(len(guard) == 3 for guard in reply["result"]["guards"])
    rule = panel.study.report.rules[0].id
    assert ask(panel, 2, "why", a=rule)["result"]["text"] == panel.study.report.why_not(rule).text
    assert "wanted two node ids" in ask(panel, 3, "why", a=None)["error"]["message"]
    assert not ask(panel, 4, "why", a=10**6, b=0)["ok"]


def test_reset_speed_and_watch_reach_the_runner(panel):
    panel.study.prepare(feed="random:0", sgd=0.1, init=0)
    ask(panel, 1, "run", steps=5)
    until(lambda: panel.study.session.step_count == 5 and panel.study.runner.state == "ready")
    assert ask(panel, 2, "speed", steps_per_second=10)["ok"] and panel.study.runner.speed == 10
    assert ask(panel, 3, "watch", mode="parameters")["ok"] and panel.study.runner.nan_watch == "parameters"
    assert ask(panel, 4, "reset")["ok"] and panel.study.session.step_count == 0
    assert not ask(panel, 5, "watch", mode="nothing")["ok"] and not ask(panel, 6, "speed", steps_per_second=-1)["ok"]


def test_a_host_without_magics_gets_one_widget():
    import gdlab

    with Graph() as g:
        g.set_outputs(ops.relu(ops.input("x", (4,))))
    study = Study(g, device="cpu", name="plain")
    view = gdlab.widget(study)
    assert isinstance(view, widget.GraphWidget) and view.study == study.key
    assert widget.panel_of(study).document.id == study.doc.id and gdlab.widget(study) is view
    assert isinstance(gdlab.widget(g), widget.GraphWidget)
    with pytest.raises(ValueError, match="widget: thing: given int, wanted a Study or a Graph"):
        gdlab.widget(3)
    widget.close_panel(study)
