"""Drawn answers: the axis, each kind of cell, bounds, hostile labels, and the makers with their text twins."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from typing import Any

import networks
import numpy as np
import pytest

from gdlab import ops
from gdlab.devices.cpu import calls
from gdlab.graph import Graph
from gdlab.study.parity import CheckProgress
from gdlab.study.study import Study
from gdlab.view.answer.answer_html import MOST_ROWS, answer_html
from gdlab.view.answer.answer_record import (
    Answer,
    Bar,
    BarAxis,
    Cell,
    Column,
    Counts,
    Course,
    Link,
    Position,
    Section,
    Text,
)
from gdlab.view.answer.answer_record import VerdictMark as Mark
from gdlab.view.answer.axis import log_scale, power
from gdlab.view.answer.making import (
    check_answer,
    doctor_answer,
    gradient_answer,
    profile_answer,
    progress_answer,
    step_answer,
    watch_answer,
)
from gdlab.view.answer.style import STYLE
from gdlab.view.text.doctor import DoctorRow, doctor_text

HOSTILE = (
    "</td></table><script>alert(1)</script>",
    "\" onclick='x' a=\"",
    "<img src=x onerror=y>&amp;",
    "\u202edlrow\x1b[2J",
)
TAGS = {"style", "div", "p", "h4", "small", "span", "bdi", "table", "thead", "tbody", "tr", "th", "td", "svg",
        "path", "rect", "circle"}  # fmt: skip
ATTRIBUTES = {"class", "title", "scope", "type", "role", "aria-label", "aria-hidden", "width", "height", "viewbox", "d",
              "x", "y", "rx", "cx", "cy", "r", "style", "tabindex", "data-label", "data-gdlab-study",
              "data-gdlab-entity", "data-lm-suppress-shortcuts"}  # fmt: skip


class Seen(HTMLParser):
    """The tags, attributes and texts of a piece of HTML; `open` are the tags without an end."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def table(*rows: tuple[Cell, ...], axis: BarAxis | None = None) -> Answer:
    columns = tuple(Column(f"c{i}") for i in range(len(rows[0])))
    return Answer("title", "ok", "all is well", "twin", (Section("rows", columns, rows, axis=axis),), "study")


def drawn(*rows: tuple[Cell, ...], axis: BarAxis | None = None) -> str:
    return answer_html(table(*rows, axis=axis)).removeprefix(f"<style>{STYLE}</style>")


# the axis and the cells -----------------------------------------------------------------------------------------------
def test_the_axis_has_whole_decades() -> None:
    scale = log_scale([3e-5, 0.0, 0.2, math.inf])
    assert (scale.low, scale.high) == (-5, 0)
    assert [scale.at(v) for v in (1e-5, 1.0, 0.0, math.inf, 1e9)] == [0, 1, 0, 1, 1]
    assert scale.at(1e-2) == pytest.approx(0.6)
    assert set(scale.ticks()) == {0, -1, -2, -3, -4, -5} and scale.ticks()[:2] == [0, -5]
    assert (log_scale([]).low, log_scale([1.0]).low, log_scale([1e-300, 1.0]).low) == (-1, -1, -24)
    assert [power(e) for e in (-6, -2, 0, 3, 4)] == ["10⁻⁶", "0.01", "1", "1000", "10⁴"]


def test_a_bar_ends_where_its_number_lies_on_the_axis() -> None:
    html = drawn(
        (Bar(1e-2, "a"),), (Bar(1.0, "b", tone="error"),), (Bar(0.0, "c"),), axis=BarAxis("x", 1.0, "tolerance")
    )
    # two decades below the limit, and one above it
    assert re.findall(r'<rect class="gd-answer-(\w+)" y="3" width="([\d.]+)"', html) == [
        ("bar", "1.5"),
        ("error", "80.0"),
    ]
    limits = re.findall(r'class="gd-answer-limit" d="M([\d.]+) (\d+)', html)
    assert len(limits) == 4 and {x for x, _ in limits} == {"79.8"}, "of the axis and of every row, at one place"
    assert re.findall('data-label="([^"]*)"', html) == ["10", "0.01", "0.1", "1"]


def test_labels_of_an_axis_do_not_touch() -> None:
    for exponent in range(1, 25):
        html = drawn((Bar(10.0**-exponent, ""),), axis=BarAxis("x", 1.0))
        placed = [(float(x), float(w)) for x, w in re.findall(r'style="left:([\d.]+)px;width:([\d.]+)px"', html)]
        placed.sort()
        assert len(placed) >= 2 and placed[0][0] >= 0 and sum(placed[-1]) <= 120
        assert all(a + wide < b for (a, wide), (b, _) in zip(placed, placed[1:], strict=False)), placed


def test_every_kind_of_cell_is_drawn() -> None:
    html = drawn((
        Text("words", "error", code=True), Link("dispatch 3", "dispatch:3"), Mark("bad", "it differs"),
        Bar(2.0, "2 µs", 5.0), Course((1.0, math.nan, 2.0, 3.0), "mean"), Counts((1, 0, 4), "−1", "1"),
        Position(2, 4, 1, ("a", "b", "c", "d")),
    ), axis=BarAxis("µs"))  # fmt: skip
    assert '<bdi class="gd-answer-code gd-answer-error">words</bdi>' in html
    assert 'data-gdlab-study="study" data-gdlab-entity="dispatch:3"' in html
    assert 'title="it differs">✗<' in html and html.count("gd-answer-predicted") == 1
    (course,) = re.findall(r'gd-answer-course" d="([^"]*)"', html)
    assert course.count("M") == 2 and course.count("L") == 1, "a gap where the value is not finite"
    strip = re.findall(r'<span class="gd-answer-(done|now|part)" title="(.)"></span>', html)
    assert strip == [("done", "a"), ("now", "b"), ("part", "c"), ("part", "d")] and 'aria-label="2 of 4"' in html
    left = [text for text in Seen(html.partition("<tbody>")[2].partition("</tbody>")[0]).texts if text.strip()]
    assert left == ["words", "dispatch 3", "✗", "2 µs", "−1", "1"], "what a host shows that takes drawings away"


def test_a_column_without_content_and_a_link_without_a_study_are_plain() -> None:
    assert "c1" not in drawn((Text("a"), Text("")), (Text("b"), Text("")))
    answer = Answer("", "note", "", "", (Section("", (Column("a"),), ((Link("here", "node:0.1"),),)),))
    assert "data-gdlab-entity" not in answer_html(answer) and ">here<" in answer_html(answer)


# bounds and hostile labels --------------------------------------------------------------------------------------------
def test_rows_are_bounded_and_counted() -> None:
    html = drawn(*[(Text(f"row {i}"),) for i in range(MOST_ROWS + 60)])
    assert (
        html.count("<tr>") == 1 + MOST_ROWS and ">… and 60 more<" in html and "row 39" in html and "row 40" not in html
    )
    course = drawn((Course(tuple(range(240))),), (Position(3, 5000, 3),))
    assert len(course) < 8000 and course.count("gd-answer-done") == 1


@pytest.mark.parametrize("label", [*HOSTILE, "w" * 10_000])
def test_labels_are_text_whatever_they_hold(label: str) -> None:
    cells: tuple[Cell, ...] = (
        Text(label), Link(label, label), Mark("bad", label), Bar(1.0, label[:60], told=label),
        Course((1.0, 2.0), label), Counts((1, 2), label, label), Position(1, 2, 0, (label, label)),
    )  # fmt: skip
    columns = tuple(Column(label, wide=i == 0) for i in range(len(cells)))
    section = Section(label, columns, (cells,), label, BarAxis(label, 1.0, label), (label,))
    html = answer_html(Answer(label, "bad", label, label, (section,), label))
    seen = Seen(html)
    assert set(seen.tags) <= TAGS and {name for name, _ in seen.attributes} <= ATTRIBUTES and seen.open == []
    assert seen.tags.count("style") == 1 and "\x1b" not in html
    words = "".join(seen.texts[1:])
    if len(label) > 100:
        assert label[:47] + "…" in words and len(html) < 100_000
        assert max(map(len, seen.texts[1:])) <= 400
        assert max(len(value or "") for name, value in seen.attributes if not name.startswith("data-")) <= 300
    else:
        assert label.replace("\x1b", "␛") in words, "shown literally"


def test_the_style_asks_for_nothing_and_stays_small() -> None:
    assert not re.search(r"url\(|@import|http|expression|<", STYLE) and len(STYLE) < 6000
    for name in ("--jp-layout-color0", "--jp-content-font-color1", "--jp-brand-color1", "--vscode-editor-background"):
        assert name in STYLE
    assert 'body[data-jp-theme-light="false"] .gd-answer' in STYLE and "prefers-color-scheme" in STYLE
    assert STYLE.count("(") == STYLE.count(")") and STYLE.count("{") == STYLE.count("}")


# the makers -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def study() -> Any:
    with Graph() as g:
        x, w = ops.input("x", (4, 3)), ops.parameter("<script>w", (3, 3))
        v = ops.parameter("v", (3, 2))
        h = ops.relu(x @ w).named("h")
        g.output((h @ v).mean_all())
    made = Study(g, train=True, device="cpu", name="small")
    yield made
    made.close()


@pytest.fixture
def wrong_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """A · Bᵀ is 1 % too large on the cpu device."""
    right = calls._KERNELS["matmul"]

    def wrong(builder: Any) -> None:
        right(builder)
        p = builder.d.matmul
        if p.b == "nk":
            out = builder.out((p.m, p.n))
            builder.calls.append((np.multiply, (out, 1.01, out)))

    monkeypatch.setitem(calls._KERNELS, "matmul", wrong)


def links(answer: Answer) -> list[Link]:
    return [cell for section in answer.sections for row in section.rows for cell in row if isinstance(cell, Link)]


def bars(answer: Answer) -> list[Bar]:
    return [cell for section in answer.sections for row in section.rows for cell in row if isinstance(cell, Bar)]


def test_a_check_that_fails_links_to_its_dispatch(study: Study, wrong_product: None) -> None:
    check = study.check(devices=("cpu",))
    answer = check_answer(check, study)
    assert not check.ok and answer.level == "bad" and answer.text == str(check)
    at = next(d for d in study.plan.dispatches if d.matmul is not None and d.matmul.b == "nk")
    assert links(answer) == [Link(f"dispatch {at.index}", f"dispatch:{at.index}")] and answer.study == study.key
    assert check.places == {"cpu": f"dispatch:{at.index}"} and check.about == check.places["cpu"]
    assert answer.verdict == "small: cpu differs from the reference."
    errors = answer.sections[1]
    assert errors.axis is not None and errors.axis.limit == 1.0
    marks = [row[0] for row in errors.rows]
    assert [m.level for m in marks if isinstance(m, Mark)] == ["bad", "ok", "ok"], "what differs comes first"
    wrong = [bar for bar in bars(answer) if bar.tone == "error"]
    assert len(wrong) == 1 and 100 < wrong[0].value < 10_000, "1 % is about 1,000 times a tolerance of 1e-5"
    html = answer_html(answer)
    assert "✗" in html and "✓" in html and "<script>" not in html and "∂&lt;script&gt;w" in html


def test_a_check_that_holds_stays_left_of_the_tolerance(study: Study) -> None:
    told: list[CheckProgress] = []
    check = study.checks.parity(devices=("cpu",), tell=told.append)
    answer = check_answer(check, study)
    assert answer.level == "ok" and links(answer) == [] and answer.verdict == check.verdict
    assert bars(answer) and all(0 <= bar.value <= 1 and bar.tone == "ok" for bar in bars(answer))
    assert any(bar.value > 0 for bar in bars(answer))
    assert [(p.executor, p.done, p.of) for p in told] == [
        ("reference", 0, 4), ("optimized", 1, 4), ("cpu", 2, 4), ("differences", 3, 4),
    ]  # fmt: skip
    drawn = [progress_answer(p, study) for p in told]
    assert [d.verdict for d in drawn] == [
        "small: computing the reference", "small: comparing optimized", "small: comparing cpu",
        "small: comparing gradients with differences",
    ]  # fmt: skip
    assert [len(bars(d)) for d in drawn] == [0, 0, 3, 6] and all(d.text is None for d in drawn)
    assert all(answer_html(d).count("gd-answer-now") == STYLE.count("gd-answer-now") + 1 for d in drawn)


def test_a_gradient_check_is_drawn(study: Study) -> None:
    check = study.check_gradient("h")
    answer = gradient_answer(check, study)
    assert answer.text == str(check) and answer.verdict == check.verdict and len(bars(answer)) == 1
    assert bars(answer)[0].value == check.operands[0].error / check.operands[0].allowed < 1


def test_times_watches_and_a_step_are_drawn(study: Study) -> None:
    study.prepare(feed="random:0", init=0, sgd=0.1)
    study.watch("h", "<script>w.grad")
    study.break_at("step 9 if loss > 1")
    study.run(3)
    watched = watch_answer(study)
    assert watched.text == study.watching() and [link.text for link in links(watched)] == ["h", "<script>w.grad"]
    assert links(watched)[0].entity == f"node:0.{next(n.id for n in study.graph if n.name == 'h')}"
    assert all(study.doc.select(link.entity) for link in links(watched))
    courses = [cell for cell in watched.sections[0].rows[0] if isinstance(cell, Course)]
    assert courses and courses[0].values == tuple(v for _, v in study.runner.lookout.watches[1].history)
    assert watched.sections[1].title == "Breakpoints" and "<script>" not in answer_html(watched)

    profile = study.trace(2)
    times = profile_answer(profile, study, str(profile))
    assert times.text == str(profile)
    longest_first = sorted(profile.dispatches, key=lambda d: -d.median)
    assert [link.entity for link in links(times)] == [f"dispatch:{d.index}" for d in longest_first]
    assert [(b.value, b.mark) for b in bars(times)] == [(d.median * 1e6, d.predicted * 1e6) for d in longest_first]

    study.step_dispatch(2)
    step = step_answer(study, "two", "text")
    (position,) = (cell for cell in step.sections[0].rows[0] if isinstance(cell, Position))
    made = study.session.step_dispatches()
    assert (position.done, position.now, position.of) == (2, 1, len(made))
    assert position.names[1] == f"dispatch 1: {made[1].label}"
    counts = [cell for cell in step.sections[1].rows[0] if isinstance(cell, Counts)]
    assert sum(counts[0].counts) == study.runner.output()[1].size and links(step)[0].entity == "dispatch:1"
    assert [s.title for s in step.sections] == ["Step", "Result", "Watches", "Breakpoints"]


def test_a_row_without_finite_numbers_has_no_mark_of_agreement(study: Study) -> None:
    study.prepare(init=0)
    study.session.set_parameter("<script>w", np.full((3, 3), np.nan))
    answer = check_answer(study.check(devices=("cpu",)), study)
    marks = {row[1].text: row[0] for row in answer.sections[0].rows if isinstance(row[1], Text)}
    levels = [mark.level for mark in marks.values() if isinstance(mark, Mark)]
    assert levels == ["note", "ok", "note"] and answer.level == "note", "relu stops the gradient of w"
    assert marks["∂v"] == Mark("note", "nothing to compare: the reference has no finite number here")


def test_a_value_that_is_not_finite_is_seen(study: Study) -> None:
    study.prepare(init=0)
    study.session.set_input("x", np.full((4, 3), np.nan))
    study.watch("x")
    study.step_dispatch(1)
    assert watch_answer(study).level == "bad" and "not finite: x" in watch_answer(study).verdict
    html = answer_html(step_answer(study, "", ""))
    assert html.count('<bdi class="gd-answer-error">12</bdi>') == 2, "of the result and of the watch"


def test_the_doctor_says_what_to_do() -> None:
    rows = [DoctorRow("numpy", "2.0"), DoctorRow("egglog", "not installed", "note", "pip install egglog"),
            DoctorRow("front end", "not built", "bad", "build <it>")]  # fmt: skip
    answer = doctor_answer(rows, doctor_text(rows))
    assert answer.text == doctor_text(rows) and answer.level == "bad"
    assert answer.verdict == "1 to mend, 1 with advice, 1 in order"
    html = answer_html(answer)
    assert re.findall("[✓–✗]", html) == ["✗", "✓", "–", "✗"] and "build &lt;it&gt;" in html


def test_a_large_check_is_bounded_and_keeps_what_differs() -> None:
    study = Study(networks.transformer(layers=5, length=4, width=8, inner=8), train=True, device="cpu", name="block")
    check = study.check(devices=())
    answer = check_answer(check, study)
    assert len(check.rows) > MOST_ROWS and len(answer_html(answer)) < 100_000
    assert f"… and {len(check.rows) - MOST_ROWS} more" in answer_html(answer)
    study.close()
