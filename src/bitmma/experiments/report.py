"""What an experiment gives: numbers, a table, published figures beside ours, a figure, a page."""

from __future__ import annotations

import csv
import json
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bitmma import BITS_VERSION, __version__
from bitmma.analysis.tables import Tabular, number

__all__ = ["Each", "Finding", "Progress", "Report", "figures"]

#: Called as ``progress(done, total)``, in steps of an experiment's own.
Progress = Callable[[int, int], object]
#: ``map``, or what does the same on all cores: functions of a module and what can be pickled only.
Each = Callable[..., Iterable[Any]]

#: Seeds of every experiment begin with it; another gives other samples of the same.
SEED = 2511


@dataclass(frozen=True)
class Finding:
    """A published figure beside ours.

    Attributes:
        what: the quantity. published: as its source has it. ours: with its interval where it is
            the mean of a sample. agrees: "yes", "no" or "in part". why: what explains it.
    """

    what: str
    published: str
    ours: str
    agrees: str
    why: str


@dataclass(frozen=True, eq=False)
class Report(Tabular):
    """One experiment, done.

    Attributes:
        name, title: what it is called.
        text: paragraphs of Markdown: what was done, and what is seen.
        table: rows of plain values, the same keys in each.
        findings: published figures beside ours.
        draw: makes the figure (a Matplotlib Figure). caption: what it shows.
        numbers: everything behind it, for JSON.
        quick: whether it was the quick mode.
    """

    name: str
    title: str
    text: Sequence[str]
    table: list[dict[str, Any]]
    findings: Sequence[Finding]
    draw: Callable[[], Any]
    caption: str
    numbers: dict[str, Any] = field(default_factory=dict)
    quick: bool = False

    def _title(self) -> str:
        return self.title

    def _table(self) -> list[dict[str, Any]]:
        return self.table

    def to_dict(self) -> dict[str, Any]:
        """Everything but the figure, as JSON-able data."""
        return {
            "experiment": self.name,
            "bits_version": BITS_VERSION,
            "bitmma": __version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "seed": SEED,
            "quick": self.quick,
            "table": self.table,
            "findings": [asdict(x) for x in self.findings],
            "numbers": self.numbers,
        }

    def markdown(self) -> str:
        """The page: text, figure, published figures beside ours, table."""
        mode = " --quick" if self.quick else ""
        lines = [f"# {self.title}", "", f"`bitmma experiment {self.name}{mode}`", ""]
        for paragraph in self.text:
            lines += [paragraph, ""]
        lines += [f"![{self.caption}]({self.name}.svg)", "", self.caption, ""]
        lines += ["## Published, and here", ""]
        if self.findings:
            lines += [*_markdown_table([asdict(x) for x in self.findings]), ""]
        else:
            lines += ["No published figure for this was at hand: there is nothing to compare.", ""]
        lines += ["## Numbers", ""]
        lines += [*_markdown_table(self.table), ""]
        lines += [
            f"Seed {SEED}, bits {BITS_VERSION}; more in "
            f"[{self.name}.json]({self.name}.json), the table as "
            f"[{self.name}.csv]({self.name}.csv).",
            "",
        ]
        return "\n".join(lines)

    def write(self, folder: Path | str) -> list[Path]:
        """NAME.json, .csv, .md, .svg and .png in a folder, which is made; their paths.

        Raises:
            ImportError: Matplotlib is not installed; the other files are written all the same.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        stem = folder / self.name
        paths = [stem.with_suffix(x) for x in (".json", ".csv", ".md", ".svg", ".png")]
        data = json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        paths[0].write_text(data, encoding="utf-8")
        with paths[1].open("w", newline="", encoding="utf-8") as file:
            rows = csv.DictWriter(file, list(self.table[0]), lineterminator="\n")
            rows.writeheader()
            rows.writerows(self.table)
        paths[2].write_text(self.markdown(), encoding="utf-8")
        pyplot = figures()
        figure = self.draw()
        figure.savefig(paths[3], metadata={"Date": None})
        figure.savefig(paths[4], metadata={"Software": None})
        pyplot.close(figure)
        return paths


def _markdown_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    def line(cells: Any) -> str:
        return "| " + " | ".join(cells) + " |"

    left = (":--" if isinstance(x, str) else "--:" for x in rows[0].values())
    cells = ([number(x).replace("|", "\\|") for x in row.values()] for row in rows)
    return [line(rows[0]), line(left), *map(line, cells)]


#: Okabe and Ito's colours, told apart by all common kinds of colour vision.
COLOURS = {
    "black": "#000000", "orange": "#E69F00", "sky": "#56B4E9", "green": "#009E73",
    "yellow": "#F0E442", "blue": "#0072B2", "red": "#D55E00", "purple": "#CC79A7",
    "grey": "#8C8C8C",
}  # fmt: skip


def figures() -> Any:
    """matplotlib.pyplot in bitmma's style, without a window.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise ImportError('figures need Matplotlib: pip install "bitmma[plot]"') from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcdefaults()
    pyplot.rcParams.update(
        {
            "figure.dpi": 100, "savefig.dpi": 110, "figure.constrained_layout.use": True,
            "figure.constrained_layout.h_pad": 0.1, "figure.constrained_layout.w_pad": 0.1,
            "font.size": 10, "axes.titlesize": 11, "axes.titlelocation": "left",
            "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
            "axes.grid": True, "grid.color": "#E4E4E4", "grid.linewidth": 0.8,
            "lines.linewidth": 1.6, "legend.frameon": False, "svg.hashsalt": "bitmma",
            "figure.facecolor": "white",
        }
    )  # fmt: skip
    return pyplot
