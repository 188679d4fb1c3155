"""``bitmma probe``: an instruction or a function in a file, probed with a progress bar."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitmma.clfp import BlackBox, Progress, Report, probe
from bitmma.cli import files
from bitmma.unit import Instruction

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["WRITERS", "black_box", "run"]

#: What a report can be written as, by the ending of the file.
WRITERS = {".json": Report.save, ".html": Report.save_html, ".svg": Report.save_svg}


def black_box(target: str, **shape: Any) -> BlackBox:
    """The function that ``path/to/module.py:fn`` or ``package.module:fn`` names, as a black box.

    The file is run, as ``import`` would; its own folder comes first on the path meanwhile.

    Raises:
        ValueError: no such file, module or function; or one that cannot be imported, with its own
            error as the cause.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        raise ValueError(f"{target!r} is no GPU with an INSTR and no path/to/module.py:function")
    fn = getattr(_module(place), name, None)
    if not callable(fn):
        what = "has no" if fn is None else "is no function:"
        raise ValueError(f"{place} {what} {name}")
    return BlackBox(fn, name=target, **shape)


def _module(place: str) -> Any:
    path = Path(place)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise ValueError(f"{place!r} is no file")
    sys.path.insert(0, str(path.parent.resolve()) if is_file else "")
    try:
        if not is_file:
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # for what the file pickles or looks up by name
        spec.loader.exec_module(module)
        return module
    except Exception as error:
        raise ValueError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)


def run(
    box: BlackBox | Instruction, outputs: list[Path], console: Console | None, **settings: Any
) -> Report:
    """Probe a box, a bar on ``console`` meanwhile, and write the report.

    Raises:
        ValueError: as `bitmma.probe`; an output that is not .json, .html or .svg, before anything
            is done.
    """
    writers = [WRITERS[files.output_suffix(path, tuple(WRITERS))] for path in outputs]
    with _bar(console) as show:
        report = probe(box, progress=show, **settings)
    for path, write in zip(outputs, writers, strict=True):
        write(report, path)
    return report


@contextmanager
def _bar(console: Console | None) -> Iterator[Any]:
    if console is None:
        yield None
        return
    from rich import progress as rich_progress
    from rich.markup import escape

    columns = (
        rich_progress.SpinnerColumn(), rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(), rich_progress.TimeElapsedColumn(),
        rich_progress.TextColumn("[dim]{task.fields[what]}"),
    )  # fmt: skip
    with rich_progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, what="")

        def show(now: Progress) -> None:
            bar.update(
                task, description=now.step, completed=now.done, total=now.total or None,
                what=escape(now.text),
            )  # fmt: skip

        yield show
