"""marimo shows a study as one AnyWidget: live in a browser, and as a still picture where it was exported."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import free_port
from playwright.sync_api import Page, expect

APP = """import marimo

app = marimo.App()


@app.cell
def _():
    import gdlab

    with gdlab.Graph() as graph:
        h = gdlab.relu(gdlab.input("x", (4, 8)) @ gdlab.parameter("w", (8, 3))).named("h")
        graph.output(gdlab.mse_loss(h, gdlab.input("y", (4, 3))))
    study = gdlab.Study(graph, train=True, device="cpu", name="net")
    print("made key", study.key)
    return gdlab, graph, study


@app.cell
def _(gdlab, study):
    gdlab.show(study, run=2, feed="random:0", sgd=0.1, init=0)
    return


@app.cell
def _(gdlab, graph):
    gdlab.widget(graph)
    return


@app.cell
def _(gdlab, study):
    gdlab.show(study.doc, show="plan")
    return
"""
PLAIN = r"\\u[0-9a-fA-F]{4}"


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(APP)
    return path


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_STATE_HOME": str(home)}


def literal(text: str) -> str:
    """The page with the escapes of its embedded JSON, and those of HTML in them, undone."""
    text = re.sub(PLAIN, lambda m: chr(int(m[0][2:], 16)), text).replace('\\"', '"')
    return html.unescape(text)


def test_an_export_runs_and_holds_widgets_and_still_pictures(notebook: Path) -> None:
    """A page without a kernel draws no widget: beside it lies the picture that it stands for."""
    page = notebook.with_suffix(".html")
    command = [sys.executable, "-m", "marimo", "export", "html", str(notebook), "-o", str(page)]
    folder = notebook.parent
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    text = literal(page.read_text(encoding="utf-8"))
    widgets = re.findall(r"<marimo-anywidget[^>]*data-model-id='([^']*)'", text)
    assert len(widgets) == 2 and len(set(widgets)) == 2
    assert '"type": "error"' not in text and "Traceback" not in text
    key = re.search(r"made key (\w{16})", text)
    assert key is not None and text.count(f'<div data-gdlab-static="{key[1]}"><svg ') == 1
    assert text.count("http://www.w3.org/2000/svg") == 2, "the study and the plan"


@contextmanager
def running(notebook: Path) -> Iterator[str]:
    """`marimo run` of a notebook; its address."""
    url, folder = f"http://127.0.0.1:{free_port()}", notebook.parent
    command = [sys.executable, "-m", "marimo", "run", "--headless", "--no-token", "-p", url.rpartition(":")[2]]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, str(notebook)], cwd=folder, env=environment(folder), stdout=log, stderr=log
        )
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}/health", timeout=2).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "server.log").read_text()
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def test_in_a_running_page_views_are_live_and_buttons_work(notebook: Path, fresh_page: Page) -> None:
    with running(notebook) as url:
        fresh_page.goto(url, wait_until="domcontentloaded")
        views = fresh_page.locator("marimo-anywidget .gdlab")
        views.nth(1).locator(".gd-box").first.wait_for()
        assert views.count() == 2
        assert fresh_page.locator("marimo-anywidget").count() == 2, "one widget each, and no container around it"
        view = views.first
        assert view.get_attribute("data-tab") == "session", "what was asked for is open"
        step = view.locator('[data-value="step"]')
        expect(step).to_have_text(re.compile("^2"))
        view.locator('[data-command="step"]').first.click()
        expect(step).to_have_text(re.compile("^3"))
        still = fresh_page.locator("[data-gdlab-static]")
        assert still.count() == 1 and still.is_hidden(), "the live view stands in its place"
        view.locator('[role="tab"][data-tab="opt"]').click()
        view.locator('[data-pane="before"] [data-entity="node:0.2"]').first.click()
        assert view.locator("[data-lit]").count() > 1
        fresh_page.goto("about:blank")
