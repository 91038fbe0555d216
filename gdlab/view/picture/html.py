"""Write one HTML file with the front end and a document inside; it works from disk and from an e-mail, without a
network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import re
from importlib.resources import files

from gdlab.base.errors import LoadError
from gdlab.view.document.document import Document, reading

_EXPORTS = re.compile(r"\bexport\s*\{([^}]*)\}\s*;?\s*$")
_ROOT = "gdlab-root"
_DATA = "gdlab-document"
_CODE = "gdlab-module"
# The module is three quarters of a small file: it comes compressed, and what unpacks it may run nothing but it.
_BOOT = f"""const packed = atob(document.getElementById("{_CODE}").textContent);
const stream = new Blob([Uint8Array.from(packed, each => each.charCodeAt(0))]).stream();
const made = Object.assign(document.createElement("script"), {{ type: "module" }});
made.textContent = await new Response(stream.pipeThrough(new DecompressionStream("gzip"))).text();
document.body.append(made);
"""
_SAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_UNSAFE = re.compile("[<>&\u2028\u2029]")


@reading
def page(document: Document, module: str | None = None) -> str:
    """Return the whole HTML file of a document. `module`: the text of a front-end module, else both parts of the one
    that is built."""
    parts = [module] if module is not None else [_built("gdlab.js"), _built("later.js")]
    script = _script(*parts, *([_built("engine.js")] if document.data.get("run") else []))
    packed = base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()
    policy = (
        f"default-src 'none'; script-src {_hash(_BOOT)} {_hash(script)}; style-src 'unsafe-inline'; "
        "img-src data:; font-src data:; worker-src blob:; base-uri 'none'; form-action 'none'"
    )
    title, summary = html.escape(str(document.data["title"])), html.escape(str(document.data["summary"]))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>:root{{color-scheme:light dark}}"
        f"body{{margin:12px;background:Canvas;color:CanvasText;font-family:system-ui,sans-serif}}</style>\n"
        f'</head>\n<body>\n<div id="{_ROOT}"></div>\n<noscript><p>{summary}</p></noscript>\n'
        f'<script type="application/json" id="{_DATA}">{json_text(document)}</script>\n'
        f'<script type="application/gzip" id="{_CODE}">{packed}</script>\n'
        f'<script type="module">{_BOOT}</script>\n</body>\n</html>\n'
    )


def _hash(script: str) -> str:
    """Return the hash by which a policy names the one script that may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _built(name: str) -> str:
    """Return a built part of the front end; `LoadError` says how to build it."""
    built = files("gdlab") / "static" / name
    if not built.is_file():
        wanted = "a built one: python labextension/frontend.py builds it"
        raise LoadError("save", "front end", f"no gdlab/static/{name}", wanted)
    return built.read_text(encoding="utf-8")


def json_text(document: Document) -> str:
    """Return the document as JSON that is safe inside HTML: no label can end the script element."""
    return _UNSAFE.sub(lambda found: _SAFE[found[0]], document.json().decode("utf-8"))


def _script(module: str, *others: str) -> str:
    """Return the module, its other parts, then a call of the module's `mount`: inline, as a page on disk may not
    import."""
    found = _EXPORTS.search(module)
    names = dict(_pair(part) for part in found[1].split(",") if part.strip()) if found else {}
    if found is None or "mount" not in names:
        raise LoadError("save", "front end", "a module without mount", "a built gdlab/static/gdlab.js")
    root, data = f'document.getElementById("{_ROOT}")', f'document.getElementById("{_DATA}").textContent'
    call = f"{names['mount']}({root}, JSON.parse({data}), null);"
    return "\n".join((module[: found.start()], *others, call, ""))


def _pair(part: str) -> tuple[str, str]:
    """Return (exported name, local name) of one part of an export list."""
    local, _, exported = part.strip().partition(" as ")
    return (exported or local).strip(), local.strip()
