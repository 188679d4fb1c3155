"""How results become tables: pandas where it is installed, text everywhere."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Tabular", "number"]


class Tabular:
    """What results share: rows of plain values, shown by ``print``, Rich and pandas."""

    def _title(self) -> str:
        raise NotImplementedError

    def _table(self) -> list[dict[str, Any]]:
        """What is shown, one dict a row, the same keys in each."""
        raise NotImplementedError

    def rows(self) -> list[dict[str, Any]]:
        """Everything as plain values, one dict a row, the same keys in each."""
        return self._table()

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError(
                'to_pandas() needs pandas: pip install "bitmma[pandas]"; rows() gives plain dicts'
            ) from None
        return pandas.DataFrame(self.rows())

    def __rich__(self) -> RenderableType:
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
        shown = self._table()
        for name in shown[0]:
            left = isinstance(shown[0][name], str)
            table.add_column(name, justify="left" if left else "right", overflow="fold")
        for row in shown:
            table.add_row(*(Text(number(x)) for x in row.values()))
        return Group(Text(self._title()), table)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=140, color_system=None, highlight=False)
        console.print(self)
        assert isinstance(console.file, io.StringIO)
        lines: Sequence[str] = console.file.getvalue().splitlines()
        return "\n".join(line.rstrip() for line in lines).rstrip("\n")


def number(x: Any) -> str:
    """A value in a table: four digits of a float, a dash for what is not there."""
    if x is None:
        return "—"
    if isinstance(x, float):
        return f"{x:.4g}"
    return f"{x:,}" if isinstance(x, int) and not isinstance(x, bool) else str(x)
