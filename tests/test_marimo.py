"""marimo shows a study as one AnyWidget: `marimo export html` of a notebook that uses gdlab runs through."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path

APP = '''import marimo

app = marimo.App()


@app.cell
def _():
    import gdlab

    with gdlab.Graph() as graph:
        h = gdlab.relu(gdlab.input("x", (4, 8)) @ gdlab.parameter("w", (8, 3))).named("h")
        graph.output(h)
    study = gdlab.Study(graph, device="cpu", name="net")
    study.run(2, feed="random:0", init=0)
    print("made", study.session.step_count, "key", study.key)
    return gdlab, graph, study


@app.cell
def _(gdlab, study):
    gdlab.show(study)
    return


@app.cell
def _(gdlab, graph):
    gdlab.widget(graph)
    return
'''


def test_an_export_runs_and_holds_the_widgets(tmp_path: Path) -> None:
    notebook, page = tmp_path / "net.py", tmp_path / "net.html"
    notebook.write_text(APP)
    command = [sys.executable, "-m", "marimo", "export", "html", str(notebook), "-o", str(page)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    outputs = re.findall(r'"outputs": (\[.*?\]), "metadata"', text) or [text]
    widgets = re.findall(r"<marimo-anywidget[^>]*data-model-id='([^']*)'", html.unescape(json_text(text)))
    assert len(widgets) == 2 and len(set(widgets)) == 2, outputs
    assert '"type": "error"' not in text and "Traceback" not in text
    key = re.search(r"made 2 key (\w{16})", text)
    assert key is not None and text.count(key[1]) >= 2, "the model of the study that was shown knows its key"


def json_text(text: str) -> str:
    """The page with the escapes of its embedded JSON undone."""
    return re.sub(r"\\u[0-9a-fA-F]{4}", lambda m: str(json.loads(f'"{m[0]}"')), text)
