"""What the documentation's build makes itself: MkDocs calls these functions (see mkdocs.yml).

- Pages of the catalogue, from `bitmma.isa`, and of the API, one a module.
- Pictures: ``<!-- picture -->`` after a Python block becomes the picture of its last expression.
- Lists in the navigation: an entry that ends with "/" is every page of that folder; one whose page
  is not there is left out.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from bitmma import _HOME as HOMES
from bitmma import isa
from bitmma.render import model_text, provenance_text

ROOT = Path(__file__).parents[1]
#: Rooms whose insides are nobody's business.
PRIVATE = ("cli", "_face", "notation", "panels", "pictures", "engine.operands", "engine.cpu")


# --- generated pages ------------------------------------------------------------------------------


def pages() -> Iterator[tuple[str, str]]:
    """(path, Markdown) of every generated page, in the order of the navigation."""
    yield "catalogue/index.md", _catalogue()
    for gpu in isa.GPUS:
        yield _gpu_path(gpu), _gpu_page(gpu)
    yield "api/index.md", _api()
    for module in _modules():
        name = f"bitmma.{module}"
        options = "    options: { show_root_heading: false }"
        yield f"api/{module}.md", f"# {name}\n\n::: {name}\n{options}\n"


def _gpu_path(gpu: str) -> str:
    return f"catalogue/{gpu.lower().replace(' ', '-')}.md"


def _table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [titles, ("---",) * len(titles), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _catalogue() -> str:
    rows = []
    for gpu in isa.GPUS:
        entries = isa.select(gpu_name=gpu)
        levels = [e.provenance.level for e in entries]
        counts = ", ".join(
            f"{levels.count(x):,} {x}" for x in ("recorded", "published", "derived") if x in levels
        )
        ops = ", ".join(dict.fromkeys(e.op for e in entries))
        link = f"[{gpu}]({Path(_gpu_path(gpu)).name})"
        rows.append((link, ops, f"{len({e.family for e in entries})}", f"{len(entries):,}", counts))
    total = len(isa.catalogue())
    table = _table(("GPU", "operations", "families", "instructions", "provenance"), rows)
    return f"""# Catalogue

Every instruction that bitmma knows, {total:,} in all, as `bitmma list` prints them: made from
`bitmma.isa` when these pages are built. A family is one row; its members differ in N alone. What
*recorded*, *published* and *derived* mean: [Accuracy and provenance](../accuracy.md); what the
models are: [Models](../models.md).

{table}
Not covered: sparse and integer instructions, CDNA4 (gfx950), Blackwell Ultra (sm_103), Jetson Thor,
GB10 (sm_121), RDNA. Asking for them is an error that says so.
"""


def _gpu_page(gpu: str) -> str:
    text = f"---\nhide: [toc]\n---\n\n# {gpu}\n\n"
    families: dict[str, dict[str, list[isa.Entry]]] = {}
    for e in isa.select(gpu_name=gpu):
        families.setdefault(e.op, {}).setdefault(e.family, []).append(e)
    sources: dict[str, str] = {}
    for op, by_name in families.items():
        rows = []
        for name, members in by_name.items():
            e = members[0]
            inputs = f"{e.a}·{e.b}" + (f"·{e.scale}/{e.block}" if e.scale else "")
            said = provenance_text(e.provenance)
            mark = sources.setdefault(str(e.provenance), str(len(sources) + 1))
            rows.append((f"`{name}`", f"{inputs}+{e.c}→{e.d}", f"`{model_text(e.model)}`",
                         f"{said} [{mark}](#source-{mark})"))  # fmt: skip
        text += f"## {op}\n\n" + _table(("instruction", "formats", "model", "provenance"), rows)
        ns = sorted({x.n for members in by_name.values() for x in members})
        if any("nNk" in name for name in by_name):
            text += f"\nN is {ns[0]}, {ns[1]}, … {ns[-1]}; some families begin at 16.\n"
        text += "\n"
    text += "## Sources\n\n"
    for source, mark in sources.items():
        text += f'<p id="source-{mark}">{mark}. {source}</p>\n'
    return text


def _modules() -> dict[str, str]:
    """Public modules and what they hold, in the order of the rooms."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("| room | holds |")[2].partition("\n\n")[0]
    rooms = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", table, re.MULTILINE)
    return {room: holds for room, holds in rooms if room not in PRIVATE}


def _api() -> str:
    table = _table(
        ("module", "holds"), [(f"[`{m}`]({m}.md)", holds) for m, holds in _modules().items()]
    )
    names = ", ".join(f"[`{name}`][bitmma.{home}.{name}]" for name, home in sorted(HOMES.items()))
    return f"""# API

What most programs need is at the top, in `bitmma` itself: {names}. A module imports only from those
above it in this table.

{table}"""


# --- what MkDocs calls ----------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Fill in the lists of the navigation; leave out pages that are not there."""
    docs = Path(config.docs_dir)
    generated = [path for path, _ in pages()]

    def listed(entry: Any) -> Any:
        if isinstance(entry, list):
            return [x for x in map(listed, entry) if x]
        if isinstance(entry, dict):
            return {k: filled for k, v in entry.items() if (filled := listed(v))}
        if entry.endswith("/"):
            written = sorted(p.relative_to(docs).as_posix() for p in docs.glob(f"{entry}*.md"))
            found = [p for p in generated if p.startswith(entry)] or written
            return sorted(found, key=lambda p: not p.endswith("/index.md"))
        return entry if (docs / entry).exists() else None

    config.nav = listed(config.nav)
    return config


def on_files(files: Files, config: Any) -> Files:
    for path, text in pages():
        files.append(File.generated(config, path, content=text))
    return files


BLOCK = re.compile(r"^```python\n(.*?)^```\n(\n<!-- picture -->$)?", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put pictures where the page wants them; a page's blocks are one program."""
    if "<!-- picture -->" not in markdown:
        return markdown
    names: dict[str, Any] = {}

    def drawn(match: re.Match[str]) -> str:
        with contextlib.redirect_stdout(io.StringIO()):
            shown = run(match[1], names)
        if not match[2]:
            return match[0]
        if not hasattr(shown, "to_svg"):
            raise PluginError(f"{page.file.src_uri}: no picture comes of\n{match[1]}")
        block = match[0].removesuffix("<!-- picture -->")
        pictures = "\n".join(x.to_svg() for x in getattr(shown, "explanations", [shown]))
        return f'{block}<div class="bitmma-picture">\n{pictures}\n</div>'

    made = BLOCK.sub(drawn, markdown)
    if "<!-- picture -->" in made:
        raise PluginError(f"{page.file.src_uri}: a picture without a Python block before it")
    return made


def run(block: str, names: dict[str, Any]) -> Any:
    """Run a block in a namespace; the value of its last line if that is an expression."""
    tree = ast.parse(block)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<page>", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "<page>", "eval"), names)
    return None


ELSEWHERE = re.compile(
    r'<(?:script|img|iframe|link)\b[^>]*?(?:src|href)="(?:https?:)?//[^"]*"[^>]*>'
)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """The site loads nothing from elsewhere."""
    for tag in ELSEWHERE.findall(output):
        if 'rel="canonical"' not in tag:
            raise PluginError(f"{page.file.src_uri} loads from elsewhere: {tag}")
    return output
