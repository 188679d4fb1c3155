"""A report as a page of HTML that needs nothing from anywhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from bitmma.clfp.box import printable
from bitmma.clfp.draw import tree_svg

if TYPE_CHECKING:
    from bitmma.clfp.report import Report

__all__ = ["report_fragment", "report_page"]

_STYLE = """\
.bitmma-probe{font:14px/1.5 system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;
max-width:72rem;margin:0 auto;padding:1rem;color:#1f2328}
.bitmma-probe h1{font-size:1.4rem;margin:0 0 .3rem}
.bitmma-probe h2{font-size:1.05rem;margin:1.6rem 0 .4rem}
.bitmma-probe code{font:12.5px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;
overflow-wrap:anywhere}
.bitmma-probe table{border-collapse:collapse;width:100%}
.bitmma-probe th,.bitmma-probe td{text-align:left;vertical-align:top;padding:.25rem .8rem .25rem 0;
border-bottom:1px solid #d5dbe2}
.bitmma-probe table.narrow{width:auto}
.bitmma-probe th{font-weight:600;color:#5f6873}
.bitmma-probe .scroll{overflow-x:auto}
.bitmma-probe .status{display:inline-block;padding:.05rem .6rem;border-radius:.8rem;color:#fff;
font-size:.95rem;vertical-align:middle}
.bitmma-probe .verified{background:#12733b}
.bitmma-probe .ambiguous{background:#8a5a00}
.bitmma-probe .unexplained,.bitmma-probe .invalid{background:#a8201a}
@media (prefers-color-scheme:dark){
.bitmma-probe{color:#e6edf3}
.bitmma-probe th,.bitmma-probe td{border-color:#343c47}
.bitmma-probe th{color:#9aa5b1}}"""
_PAGE_STYLE = (
    "body{margin:0;background:#ffffff}@media (prefers-color-scheme:dark){body{background:#12171e}}"
)


def report_page(report: Report) -> str:
    """The whole page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        '<meta name="color-scheme" content="light dark"/>'
        f"<title>{escape(printable(str(report.box['name'])))}: {report.status}</title>"
        f"<style>{_PAGE_STYLE}</style></head><body>{report_fragment(report)}</body></html>\n"
    )


def report_fragment(report: Report) -> str:
    """The part that a notebook shows."""
    box = report.box
    scale = f" · {box['scale']} for every {box['block']}" if box.get("scale") else ""
    shape = (
        f"m={box['m']} n={box['n']} k={box['k']} · {box['a']}·{box['b']}{scale} + {box['c']} → "
        f"{box['d']}"
    )
    parts = [
        f"<style>{_STYLE}</style>",
        f"<h1>{escape(printable(str(box['name'])))} "
        f'<span class="status {report.status}">{report.status}</span></h1>',
        f"<div>{escape(shape)}</div><p>{escape(report.reason)}</p>",
    ]
    if report.confidence:
        parts.append(f"<p>{escape(report.confidence)}</p>")
    if report.model is not None:
        others = [m for m in report.candidates if m != report.model]
        listed = "".join(f"<li><code>{escape(repr(m))}</code></li>" for m in others)
        parts += [
            "<h2>Model</h2>",
            f"<p><code>{escape(repr(report.model))}</code></p>",
            f"<p>or, just as well:</p><ul>{listed}</ul>" if listed else "",
            "".join(f"<p>{escape(line)}</p>" for line in report.equivalent),
        ]
    if report.counterexamples:
        shown = "".join(
            f"<p><code>{escape(report.shown(x).strip())}</code></p>" for x in report.counterexamples
        )
        parts += ["<h2>Counterexamples</h2>", shown]
    if report.tree is not None or report.tree_note:
        drawn = "" if report.tree is None else tree_svg(report.tree, int(box["k"]))
        note = f"<p>{escape(report.tree_note)}</p>" if report.tree_note else ""
        parts += ["<h2>Summation tree</h2>", f'<div class="scroll">{drawn}</div>', note]
    if report.features:
        rows: list[Sequence[str]] = [
            (f.name, f.reading, f.meaning, f.fed, _evidence(f.evidence)) for f in report.features
        ]
        head = ("feature", "reading", "meaning", "fed", "evidence")
        parts += ["<h2>Features</h2>", _table(head, rows)]
    if report.tested:
        reached = [(name.replace("_", " "), f"{n:,}") for name, n in report.coverage.items()]
        parts += [
            "<h2>Differential test</h2>",
            f"<p>{report.tested:,} outputs compared, bit against bit. What a sample of them "
            f"reached:</p>",
            _table(("category", "dot products"), reached, ' class="narrow"'),
            f"<p>{escape(report.unreached_text)}</p>",
        ]
    if report.history:
        turns = [(turn.step, turn.text) for turn in report.history]
        parts += ["<h2>What was done</h2>", _table(("step", "what came of it"), turns)]
    if report.cost:
        cost = ", ".join(f"{k.replace('_', ' ')} {v:,.6g}" for k, v in report.cost.items())
        parts.append(f"<p>{escape(cost)}; seed {report.seed}; bits {report.bits_version}</p>")
    return f'<div class="bitmma-probe">{"".join(parts)}</div>'


class _Html(str):
    """Text that is HTML already."""


def _evidence(pairs: Iterable[tuple[str, str]]) -> _Html:
    lines = [f"<code>{escape(fed)} → {escape(got)}</code>" for fed, got in pairs]
    if len(lines) <= 2:
        return _Html("<br/>".join(lines))
    summary = f"<summary>{len(lines)} answers</summary>"
    return _Html(f"<details>{summary}{'<br/>'.join(lines)}</details>")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}>{x if isinstance(x, _Html) else escape(x)}</{tag}>" for x in row)

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f'<div class="scroll"><table{kind}><tr>{cells(head, "th")}</tr>{body}</table></div>'
