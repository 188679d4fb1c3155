"""What an emulation computed, and by what: `Report`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from bitmma import BITS_VERSION

if TYPE_CHECKING:
    import pandas

__all__ = ["Ledger", "Report", "Row"]


class What(NamedTuple):
    """What is counted together: see `Row`."""

    module: str
    op: str
    formats: str
    by: str
    schedule: str
    native: bool


@dataclass(frozen=True)
class Row:
    """The products of one module, operator and kind of operand.

    Attributes:
        module: the innermost module that was being called, as ``named_modules()`` of the outermost
            one names it; "" for that one itself and for none.
        op: ATen's name, without overload.
        formats: of A and B: "f16", "e4m3·e5m2"; "" where PyTorch computed.
        by: the instruction, or why PyTorch computed.
        schedule: "chain", or the fields of the `bitmma.Schedule` that differ from it.
        native: whether PyTorch computed.
        calls: of the operator.
        products: matrix products: each of a batch is one.
        macs: multiplications; None where PyTorch computed and nobody knows.
    """

    module: str
    op: str
    formats: str
    by: str
    schedule: str
    native: bool
    calls: int
    products: int
    macs: int | None


@dataclass(frozen=True)
class Report:
    """Everything that ran inside an `emulate`; shown as a table by ``print``.

    Attributes:
        gpu: which GPU was emulated.
        rows: in the order of their first call.
    """

    gpu: str
    rows: tuple[Row, ...]

    @property
    def products(self) -> int:
        """Emulated matrix products."""
        return sum(row.products for row in self.rows if not row.native)

    @property
    def macs(self) -> int:
        """Emulated multiplications."""
        return sum(row.macs or 0 for row in self.rows if not row.native)

    @property
    def fallbacks(self) -> tuple[Row, ...]:
        """What PyTorch computed: unmodelled cases, integers, modules that were told to."""
        return tuple(row for row in self.rows if row.native)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able data."""
        rows = [asdict(row) for row in self.rows]
        return {"bits_version": BITS_VERSION, "gpu": self.gpu, "rows": rows}

    def to_pandas(self) -> pandas.DataFrame:
        """One line a row."""
        import pandas

        return pandas.DataFrame([asdict(row) for row in self.rows], columns=[*Row.__annotations__])

    def __str__(self) -> str:
        head = ("module", "op", "operands", "computed by", "calls", "products", "MACs")
        table = [head, *(self._cells(row) for row in self.rows)]
        lines = aligned(table, right=(4, 5, 6))
        native = sum(row.calls for row in self.fallbacks)
        left = f"; {native:,} calls left to PyTorch" if native else ""
        products = "product" if self.products == 1 else "products"
        foot = f"{self.gpu}: {self.products:,} {products} emulated, {self.macs:,} MACs{left}."
        return "\n".join([*lines, "", foot])

    def _cells(self, row: Row) -> tuple[str, ...]:
        by = f"PyTorch: {row.by}" if row.native else row.by
        if row.schedule not in ("", "chain"):
            by = f"{by} ({row.schedule})"
        macs = "?" if row.macs is None else f"{row.macs:,}"
        counts = (f"{row.calls:,}", f"{row.products:,}", macs)
        return (row.module or "—", row.op, row.formats or "—", by, *counts)


def aligned(table: list[tuple[str, ...]], right: tuple[int, ...] = ()) -> Iterator[str]:
    """Rows of cells as lines, a rule below the first."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for number, row in enumerate(table):
        cells = [
            f"{cell:>{w}}" if i in right else f"{cell:<{w}}"
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
        if number == 0:
            yield "─" * (sum(widths) + 2 * (len(widths) - 1))


class Ledger:
    """Counts, as they come."""

    def __init__(self) -> None:
        self._counts: dict[What, list[int | None]] = {}

    def add(self, what: What, calls: int, products: int, macs: int | None) -> None:
        counts = self._counts.setdefault(what, [0, 0, 0])
        for i, more in enumerate((calls, products, macs)):
            have = counts[i]
            counts[i] = None if have is None or more is None else have + more

    def report(self, gpu: str) -> Report:
        rows = (Row(*what, *counts) for what, counts in self._counts.items())  # type: ignore[arg-type]
        return Report(gpu, tuple(rows))
