"""The style of drawn answers: the colours of the host's theme, else those of `view/picture/palette.py`."""

from __future__ import annotations

from collections.abc import Mapping

from gdlab.view.picture.draw import CODE_FONT, UI_FONT
from gdlab.view.picture.palette import INK, family_ink

# Thrice: JupyterLab's rules for tables in outputs are of two classes and more.
_ROOT = ".gd-answer.gd-answer.gd-answer"
_DARK = (
    'body[data-jp-theme-light="false"] .gd-answer,body.vscode-dark .gd-answer,'
    "body.vscode-high-contrast:not(.vscode-high-contrast-light) .gd-answer"
)
_NO_HOST = 'body:not([data-jp-theme-light],[class*="vscode-"]) .gd-answer'


def _both(name: str) -> str:
    return f"light-dark({getattr(INK['light'], name)},{getattr(INK['dark'], name)})"


def _hosted(host: str, name: str) -> str:
    return f"var({host},{_both(name)})"


_FULL = f"light-dark({family_ink('elementwise', 'light').full},{family_ink('elementwise', 'dark').full})"
_VARIABLES = {
    "bg": _hosted("--jp-layout-color0,var(--vscode-editor-background", "bg") + ")",
    "text": _hosted("--jp-content-font-color1,var(--vscode-editor-foreground", "text") + ")",
    "accent": _hosted("--jp-brand-color1,var(--vscode-focusBorder", "accent") + ")",
    "muted": _both("muted"),
    "ok": _both("ok"),
    "warn": _both("warn"),
    "error": _both("error"),
    "bar": _FULL,
    "bg2": "color-mix(in oklab,var(--gd-a-text) 3%,var(--gd-a-bg))",
    "bg3": "color-mix(in oklab,var(--gd-a-text) 9%,var(--gd-a-bg))",
    "line": "color-mix(in oklab,var(--gd-a-text) 14%,var(--gd-a-bg))",
    "ui": f"var(--jp-ui-font-family,var(--vscode-font-family,{UI_FONT}))",
    "mono": f"var(--jp-code-font-family,var(--vscode-editor-font-family,{CODE_FONT}))",
}
_V = {name: f"var(--gd-a-{name})" for name in _VARIABLES}

_RULES = {
    "": f"box-sizing:border-box;max-width:100%;padding:10px 14px 12px;border:1px solid {_V['line']};border-radius:10px;"
    f"background:{_V['bg']};color:{_V['text']};font:13px/1.45 {_V['ui']};font-variant-numeric:tabular-nums;"
    "text-align:left;color-scheme:light;overflow-wrap:break-word",
    " :is(p,h4)": f"margin:0;padding:0;font:13px/1.5 {_V['ui']};color:inherit",
    " .gd-answer-title": "margin-right:10px;font-weight:600",
    " h4": f"margin:14px 0 0;font:600 12.5px/1.4 {_V['ui']}",
    " small": f"margin-left:6px;font:400 11.5px {_V['ui']};color:{_V['muted']}",
    " div": "overflow-x:auto;margin-top:6px",
    " table": f"margin:0;border:none;border-collapse:collapse;table-layout:auto;width:auto;font:13px/1.4 {_V['ui']};"
    "color:inherit;background:none",
    " :is(thead,tbody,tr)": "background:none;border:none",
    " tbody tr:hover": f"background:{_V['bg2']}",
    " :is(th,td)": f"max-width:none;padding:4px 14px 4px 0;border:none;border-bottom:1px solid {_V['bg3']};"
    "text-align:left;vertical-align:middle;white-space:nowrap;font-weight:400",
    " thead th": f"padding-top:0;vertical-align:bottom;border-bottom-color:{_V['line']};font-size:11.5px;"
    f"color:{_V['muted']}",
    " :is(th,td):last-child": "padding-right:0",
    " .gd-answer-right": "text-align:right",
    " .gd-answer-wide": "white-space:normal;min-width:12em",
    " .gd-answer-more": f"margin-top:6px;font-size:11.5px;color:{_V['muted']}",
    " .gd-answer-code": f"font:12px {_V['mono']}",
    " .gd-answer-mark": "display:inline-block;min-width:1.1em;margin-right:6px;font-weight:600",
    " :is(span,bdi).gd-answer-ok": f"color:{_V['ok']}",
    " :is(span,bdi):is(.gd-answer-note,.gd-answer-muted)": f"color:{_V['muted']}",
    " :is(span,bdi).gd-answer-warn": f"color:{_V['warn']}",
    " :is(span,bdi):is(.gd-answer-bad,.gd-answer-error)": f"color:{_V['error']}",
    " .gd-answer-pair": "display:inline-flex;align-items:center;gap:8px",
    " .gd-answer-stacked .gd-answer-pair": "flex-direction:column;align-items:end;gap:3px",
    " .gd-answer-stacked .gd-answer-right": "padding-left:12px",
    " .gd-answer-number": "min-width:4em;text-align:right",
    " svg": "display:inline-block;flex:none;vertical-align:middle;max-width:100%;overflow:visible",
    " .gd-answer-axis": "display:block;position:relative;width:120px;height:22px;margin:2px 0 0 auto",
    " .gd-answer-axis span": "position:absolute;top:0;text-align:center;white-space:nowrap",
    " .gd-answer-axis span::before": f"content:attr(data-label);font:10px/14px {_V['ui']};color:{_V['muted']}",
    " .gd-answer-axis svg": "display:block",
    " path": f"fill:none;stroke:{_V['line']}",
    " path.gd-answer-limit": f"stroke:{_V['error']};stroke-dasharray:2 2",
    " path.gd-answer-predicted": f"stroke:{_V['text']};stroke-width:2",
    " path.gd-answer-course": f"stroke:{_V['accent']};stroke-width:1.4;stroke-linejoin:round",
    " .gd-answer-strip": "display:flex;gap:2px;width:640px;max-width:100%;height:10px",
    " .gd-answer-strip span": f"flex:1;min-width:1px;border-radius:2px;background:{_V['bg3']}",
    " .gd-answer-strip .gd-answer-done": f"background:color-mix(in oklab,{_V['bar']} 45%,{_V['bg']})",
    " .gd-answer-strip .gd-answer-now": f"background:{_V['accent']}",
    " circle": f"fill:{_V['accent']}",
    " rect": f"fill:{_V['bar']}",
    " rect.gd-answer-ok": f"fill:{_V['ok']}",
    " rect.gd-answer-warn": f"fill:{_V['warn']}",
    " rect.gd-answer-error": f"fill:{_V['error']}",
    " .gd-answer-link": "display:inline-block;min-width:24px;line-height:24px;margin:-2px 0;cursor:default",
}
# A link looks like one where something hears it.
_LINKED = {
    " .gd-answer-link": f"color:{_V['accent']};text-decoration:underline;cursor:pointer",
    " .gd-answer-link:focus-visible": f"outline:2px solid {_V['accent']};outline-offset:2px",
    " .gd-answer-link[data-gdlab-none]::after": f"content:' 'attr(data-gdlab-none);color:{_V['muted']}",
}


def _nested(root: str, rules: Mapping[str, str]) -> str:
    return f"{root}{{{rules.get('', '')};{''.join(f'&{name}{{{rule}}}' for name, rule in rules.items() if name)}}}"


def _style() -> str:
    variables = ";".join(f"--gd-a-{name}:{value}" for name, value in _VARIABLES.items())
    dark = "color-scheme:dark!important"
    return "".join((
        f".gd-answer{{{variables}}}",
        _nested(_ROOT, _RULES),
        _nested(f":root[data-gdlab-links] {_ROOT}", _LINKED),
        f"{_DARK}{{{dark}}}",
        f"@media (prefers-color-scheme:dark){{{_NO_HOST}{{{dark}}}}}",
    ))  # fmt: skip


STYLE = _style()
