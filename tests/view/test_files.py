"""Documents on disk: every suffix, back again, all or nothing, and pages that no label can break out of."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import networks
import pytest
from documents import checked
from playwright.sync_api import Browser

from gdlab import ops
from gdlab.base import files
from gdlab.base.errors import ArgumentError, CheckpointError, LoadError
from gdlab.graph import Graph
from gdlab.op.text import parse
from gdlab.study.study import Study
from gdlab.view.document.make import Document, graph_doc, load_doc, read_doc
from gdlab.view.picture.html import page
from gdlab.view.saved_views import dot

EVIL = "</script><img src=x onerror=alert(1)><!--"
MODULE = "function draw(el, doc, host) { el.textContent = doc.title; }\nexport {\n  connect,\n  draw as mount\n};\n"
SUFFIXES = [".gdlab.json", ".gdlab.json.gz", ".svg", ".dot", ".md", ".txt"]


@pytest.fixture(scope="module")
def study() -> Iterator[Study]:
    study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
    yield study
    study.close()


def evil() -> Document:
    with Graph() as g:
        g.set_outputs(ops.relu(ops.input("x", (2, 3))).named(EVIL))
    return graph_doc(g, EVIL)


# replay files --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", [".gdlab.json", ".gdlab.json.gz"])
def test_a_replay_file_comes_back_as_it_was(study: Study, tmp_path: Path, suffix: str) -> None:
    path = study.save(tmp_path / f"mlp{suffix}")
    loaded = checked(load_doc(path))
    assert loaded.json() == study.doc.portable().json() and loaded.id == study.doc.id
    assert "study" not in loaded.data and "rev" not in loaded.data
    assert loaded.select("dispatch:0") == study.doc.select("dispatch:0")


def test_a_loaded_document_saves_itself_and_keeps_what_it_does_not_know(study: Study, tmp_path: Path) -> None:
    path = study.save(tmp_path / "a.gdlab.json")
    data = json.loads(path.read_bytes())
    path.write_text(json.dumps({**data, "later": {"field": 1}}))
    again = load_doc(path).save(tmp_path / "b.gdlab.json")
    assert json.loads(again.read_bytes()) == {**data, "later": {"field": 1}}


def test_timeless_files_of_two_studies_are_equal_bytes(tmp_path: Path) -> None:
    written = []
    for name in ("a", "b"):
        study = Study(networks.mlp(), train=True, device="cpu", name="mlp")
        study.run(2, feed="random:0", sgd=0.1, init=0)
        written.append(study.save(tmp_path / f"{name}.gdlab.json.gz", timeless=True).read_bytes())
        study.close()
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"format":"gdlab.graph.v2"}', 'document g.json: format: given "gdlab.graph.v2", wanted "gdlab.graph.v1"'),
        (b"[1]", 'document g.json: format: given null, wanted "gdlab.graph.v1"'),
        (
            b"nope",
            "document g.json: content: given Expecting value: line 1 column 1 (char 0), wanted JSON, or JSON in gzip",
        ),
        (gzip.compress(b"{}" * 99)[:20], "document g.json: content: given gzip that does not end where the file does"),
        (gzip.compress(b"{}") * 2, "document g.json: content: given gzip that does not end where the file does"),
        (b"[" * 100_000, "document g.json: content: given maximum recursion depth"),
        (b'{"format":"gdlab.graph.v1","gz":3}', "document g.json: gz: given "),
        (
            b'{"format":"gdlab.graph.v1","title":"t"}',
            "document g.json: fields: given no summary, wanted a whole document",
        ),
        (b'{"format":"gdlab.graph.v1","gz":"!"}', "document g.json: gz: given "),
    ],
)
def test_what_is_no_document_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "g.json"
    path.write_bytes(content)
    with pytest.raises(LoadError, match="^" + re.escape(message)):
        load_doc(path)


def test_a_small_file_of_many_bytes_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    (tmp_path / "g.json.gz").write_bytes(gzip.compress(bytes(96 << 20)))
    with pytest.raises(LoadError, match="^document g.json.gz: content: given gzip of more than [0-9,]+ bytes, wanted "):
        load_doc(tmp_path / "g.json.gz")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="document none.json: file: given No such file or directory, wanted "):
        load_doc(tmp_path / "none.json")


def test_the_envelope_of_an_output_is_read(study: Study) -> None:
    packed = base64.b64encode(gzip.compress(study.doc.json())).decode()
    read = read_doc({"format": "gdlab.graph.v1", "study": "k", "gz": packed})
    assert read.id == study.doc.id


# writing -------------------------------------------------------------------------------------------------------------
def test_an_unknown_suffix_lists_the_known_ones(study: Study, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError) as caught:
        study.save(tmp_path / "g.xyz")
    wanted = ".gdlab.json, .gdlab.json.gz, .html, .svg, .dot, .md or .txt"
    assert str(caught.value) == f"save: given g.xyz, wanted {wanted}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_suffix_writes_utf8_and_leaves_nothing_else(study: Study, tmp_path: Path, suffix: str) -> None:
    path = study.save(tmp_path / f"a{suffix}")
    content = path.read_bytes()
    (gzip.decompress(content) if suffix.endswith(".gz") else content).decode("utf-8")
    assert list(tmp_path.iterdir()) == [path] and len(content) > 500


def test_a_failed_write_leaves_the_old_file(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = study.save(tmp_path / "a.txt")
    before = path.read_bytes()

    def refuse(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", refuse)
    with pytest.raises(ArgumentError, match="save: file: given a.txt: No space left on device, wanted a folder"):
        study.save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_refused(study: Study, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="save: file: given a.svg in .*none, wanted a folder that exists"):
        study.save(tmp_path / "none" / "a.svg")


# pictures and DOT ----------------------------------------------------------------------------------------------------
def test_an_svg_file_is_plain_xml(study: Study, tmp_path: Path) -> None:
    for document in (study.doc, evil()):
        text = document.save(tmp_path / "a.svg").read_text(encoding="utf-8")
        parts = list(ET.fromstring(text).iter())
        tags = {part.tag.partition("}")[2] for part in parts}
        assert tags <= {"svg", "title", "desc", "rect", "path", "g", "text", "tspan"} and not text.startswith("<?")
        attributes = {(name, value) for part in parts for name, value in part.attrib.items()}
        assert not [
            a for a in attributes if a[0].startswith("on") or a[0] in ("href", "style", "class") or "url(" in a[1]
        ]


def test_dot_names_nodes_by_key_and_quotes_labels(study: Study) -> None:
    text = dot(study.doc, "optimized")
    keys = study.doc.nodes("optimized").column("key")
    assert re.findall(r'(?m)^  "([^"]+)" \[label', text) == keys
    edges = re.findall(r'(?m)^  "([^"]+)" -> "([^"]+)"', text)
    nodes = list(study.doc.nodes("optimized"))
    assert edges == [(keys[i], n["key"]) for n in nodes for i in n["inputs"]]
    with Graph() as g:
        g.set_outputs(ops.relu(ops.input('a"b\\', (2,))))
    assert 'label="input  a\\"b\\\\\\nf32[2]"' in dot(graph_doc(g))


# pages ---------------------------------------------------------------------------------------------------------------
class Parts(HTMLParser):
    """The tags of a page, and what its scripts hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        if tag == "script":
            self.scripts.append((found, ""))
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script" and self.scripts:
            attrs, text = self.scripts[-1]
            self.scripts[-1] = attrs, text + data


def test_no_label_can_close_the_script_of_a_page() -> None:
    document = evil()
    parts = Parts(page(document, MODULE))
    assert "img" not in parts.tags and parts.tags.count("script") == 3
    (attrs, data), packed, _ = parts.scripts
    assert attrs["type"] == "application/json" and json.loads(data) == document.data
    script = unpacked(packed)
    assert script.rstrip().endswith("null);") and "draw(document.getElementById" in script


def unpacked(script: tuple[dict[str, str | None], str]) -> str:
    """The front end of a page as its first script makes it."""
    attrs, text = script
    assert attrs["type"] == "application/gzip"
    return gzip.decompress(base64.b64decode(text)).decode()


def test_a_page_allows_its_own_script_alone() -> None:
    text = page(evil(), MODULE)
    parts = Parts(text)
    script = text.partition('<script type="module">')[2].partition("</script>")[0]
    digests = (hashlib.sha256(each.encode()).digest() for each in (script, unpacked(parts.scripts[1])))
    first, second = (base64.b64encode(digest).decode() for digest in digests)
    assert parts.policy.startswith(f"default-src 'none'; script-src 'sha256-{first}' 'sha256-{second}'; ")
    assert "connect-src" not in parts.policy and "http" not in parts.policy


def test_a_module_that_holds_an_end_tag_ends_nothing() -> None:
    tricky = "const s = '</SCRIPT>', t = '<!--';\nfunction mount() {}\nexport { mount };\n"
    parts = Parts(page(evil(), tricky))
    assert parts.tags.count("script") == 3 and unpacked(parts.scripts[1]).startswith(tricky.partition("export")[0])


def test_without_the_front_end_a_page_says_how_to_build_it(study: Study, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("gdlab.view.picture.html.files", lambda package: tmp_path)
    with pytest.raises(
        LoadError, match="front end: given no gdlab/static/gdlab.js, wanted .* labextension/frontend.py"
    ):
        study.save(tmp_path / "a.html")
    assert not (tmp_path / "a.html").exists()
    with pytest.raises(LoadError, match="given a module without mount"):
        page(study.doc, "export { draw };")


def test_a_page_draws_from_disk_without_any_request(study: Study, tmp_path: Path, browser: Browser) -> None:
    path = study.save(tmp_path / "mlp.html")
    assert len(path.read_bytes()) <= 200_000 + 1.1 * len(study.doc.json()), "spec/view.md 11: 200 KB and the document"
    context = browser.new_context(offline=True)
    view = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    view.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    view.on("pageerror", lambda error: said.append(str(error)))
    view.on("request", lambda request: asked.append(request.url))
    view.goto(path.as_uri())
    view.locator('[data-entity="node:1.4"]').first.wait_for()
    count = view.evaluate("new Set([...document.querySelectorAll('[data-entity]')].map(e => e.dataset.entity)).size")
    context.close()
    assert (said, asked) == ([], [path.as_uri()]) and count > 30


def test_the_front_end_fits_in_a_mail() -> None:
    """The characters of a page besides its document (view2 §6)."""
    document = evil()
    assert 20_000 < len(page(document)) - len(document.json()) <= 450_000


def test_a_lone_surrogate_in_a_name_ends_no_session(tmp_path: Path) -> None:
    """Parameters of such names get values, train, and stand in the text so that it can be read again."""
    with Graph() as graph:
        h = ops.relu(ops.input("x\udcff", (2, 3)) @ ops.parameter("p\ud800", (3, 4))).named("h\ud800")
        graph.output(h.mean_all(), "o\udfff")
    with closing(Study(graph, train=True, device="cpu", name="n\ud800")) as study:
        study.run(2, feed="random:0", init=0, sgd=0.1)
        study.trace(1).save(tmp_path / "a.json", chrome=True)
        with pytest.raises(CheckpointError, match="surrogates not allowed"):
            study.session.save_checkpoint(tmp_path / "a.safetensors")
    again = parse(graph.text().encode().decode())
    assert again.text() == graph.text() and again.fingerprint() == graph.fingerprint()
    assert [node.name for node in again] == [node.name for node in graph]


def test_a_lone_surrogate_in_a_name_ends_no_file(tmp_path: Path) -> None:
    """It has no UTF-8, and comes from file names and texts of other programs."""
    with Graph() as graph:
        graph.output(ops.relu(ops.input("\udcff", (2,))).named("a\ud800b"))
    study = Study(graph, device="cpu", name="odd")
    for suffix in (".gdlab.json", ".html", ".svg", ".dot", ".md", ".txt"):
        assert study.save(tmp_path / f"odd{suffix}").stat().st_size > 0, suffix
