"""One dot product on every unit: which of them give which answer.

``compare(a, b, c)`` is what ``bitmma compare`` shows. The default input is the one in
arXiv 2511.10909 that tells the generations apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bitmma import BITS_VERSION, engine, formats, isa
from bitmma.engine.operands import as_list, from_list
from bitmma.isa import Entry
from bitmma.render import code_text, model_dict, nan_claim

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Answer", "Comparison", "compare"]

#: a, b, c of the input that splits the ten generations into six answers; exactly -0.875.
SIX_ANSWERS = (
    (-(2.0**13), -0.5, -0.25, -0.125),
    (2.0**10, 1.0, 1.0, 1.0),
    2.0**23,
)


@dataclass(frozen=True, eq=False)
class _ByContent:
    """Equal and hashed by content, NaN being equal to itself."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return tuple(_hashable(getattr(self, f.name)) for f in fields(self))


def _hashable(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(map(_hashable, x))
    return x.hex() if isinstance(x, float) else x


@dataclass(frozen=True, eq=False)
class Answer(_ByContent):
    """One value and the instructions that give it.

    Attributes:
        value: the output as a number; FP16, FP32 and FP64 outputs of equal value are one answer,
            +0 and -0 are two, all NaNs one.
        instructions: one a family (instructions that differ in N only are represented by the
            smallest), in the catalogue's order.
    """

    value: float
    instructions: tuple[Entry, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(e.gpu for e in self.instructions))

    @property
    def codes(self) -> dict[str, str]:
        """The value's code in each output format of these instructions; none for NaN."""
        if math.isnan(self.value):
            return {}
        names = dict.fromkeys(e.d for e in self.instructions)
        return {d: code_text(d, from_list(self.value, d, 1, "value")[0]) for d in names}

    @property
    def families(self) -> tuple[tuple[str, str], ...]:
        """(GPU, instruction) pairs, N left open where a family differs in N only."""
        return tuple((e.gpu, e.family) for e in self.instructions)


@dataclass(frozen=True, eq=False)
class Comparison(_ByContent):
    """One dot product on every instruction that can hold it, grouped by answer.

    Shown as a table by ``print``, by Rich and by notebooks; `to_dict` gives it as data.

    Attributes:
        a, b, c: the values.
        answers: the instructions that agree, in increasing order of the value, NaN last.
        left_out: one instruction a family whose formats cannot hold the values, or that cannot be
            chained to their length.
        rounded: decimals among the values that are no binary number ("0.1"); the nearest float64
            was taken, as Python does.
    """

    a: tuple[float, ...]
    b: tuple[float, ...]
    c: float
    answers: tuple[Answer, ...]
    left_out: tuple[Entry, ...]
    rounded: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able data; numbers that JSON lacks are "nan", "inf" and "-inf"."""
        return {
            "bits_version": BITS_VERSION,
            "a": [_plain(x) for x in self.a],
            "b": [_plain(x) for x in self.b],
            "c": _plain(self.c),
            "rounded": list(self.rounded),
            "answers": [
                {
                    "value": _plain(answer.value),
                    "hex": answer.value.hex(),
                    "codes": answer.codes,
                    "instructions": [
                        {"gpu": e.gpu, "op": e.op, "instruction": e.family,
                         "model": model_dict(e.model), "nan": nan_claim(e.model),
                         "provenance": asdict(e.provenance)}
                        for e in answer.instructions
                    ],
                }
                for answer in self.answers
            ],
            "left_out": [
                {"gpu": e.gpu, "op": e.op, "instruction": e.family} for e in self.left_out
            ],
        }  # fmt: skip

    def rows(self) -> list[dict[str, str]]:
        """The table that is shown, in plain words: one dict for an answer and a GPU."""
        rows, d = [], ""
        for answer, gpu, instructions in self._rows():
            d = answer or d
            rows.append({"d": d, "GPU": gpu, "instructions": instructions})
        return rows

    def _groups(self) -> Iterator[list[tuple[str, str, str]]]:
        """For each answer its rows: (what of the answer is said there, GPU, instructions)."""
        labels = _labels(self.answers)
        for answer, by_gpu in zip(self.answers, labels, strict=True):
            said = [_shown(answer.value)]
            if "≈" in said[0]:  # too long to write out: the codes say it exactly
                said += [f"{d} {code}" for d, code in answer.codes.items()]
            units = list(by_gpu.items())
            height = max(len(said), len(units))
            said += [""] * (height - len(said))
            units += [("", "")] * (height - len(units))
            yield [(d, *unit) for d, unit in zip(said, units, strict=True)]

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        for group in self._groups():
            yield from group

    def _head(self) -> tuple[str, ...]:
        return (f"a = {_listed(self.a)}", f"b = {_listed(self.b)}", f"c = {_echo(self.c)}")

    def _foot(self) -> str:
        count = sum(len(answer.instructions) for answer in self.answers)
        several = len(self.answers) > 1
        kinds = "kind" if count == 1 else "kinds"
        text = f"{count} {kinds} of instruction, {len(self.answers)} answer{'s' * several}"
        if any(e.scale for answer in self.answers for e in answer.instructions):
            text += "; +ue8m0, +ue4m3: block-scaled, with unit scales"
        if self.left_out:
            text += f"; {len(self.left_out)} cannot hold the values"
        if self.rounded:
            is_no = "is no binary number" if len(self.rounded) == 1 else "are no binary numbers"
            text += f"; {', '.join(self.rounded)} {is_no}, the nearest f64 was taken"
        return text + "."

    def __repr__(self) -> str:
        values = ", ".join(_shown(answer.value) for answer in self.answers)
        return f"<Comparison: {len(self.answers)} answers: {values}>"

    def __str__(self) -> str:
        rows = [("d", "GPU", "instructions"), *self._rows()]
        first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
        lines = [f"{d:>{first}}  {gpu:<{second}}  {text}" for d, gpu, text in rows]
        return "\n".join([*self._head(), "", *(x.rstrip() for x in lines), "", self._foot()])

    def __rich__(self) -> RenderableType:
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
        table.add_column("d", justify="right", style="bold", no_wrap=True)
        table.add_column("GPU", no_wrap=True)
        table.add_column("instructions", overflow="fold")
        for group in self._groups():
            for row in group:
                table.add_row(*(Text(cell) for cell in row))
            table.add_section()
        return Group(*(Text(line) for line in self._head()), table, Text(self._foot(), "dim"))

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f'<tr style="{"" if i else "border-top:1px solid"}"><td style="text-align:right">'
            f'<b>{escape(d)}</b></td><td style="text-align:left">{escape(gpu)}</td>'
            f'<td style="text-align:left">{escape(text)}</td></tr>'
            for group in self._groups()
            for i, (d, gpu, text) in enumerate(group)
        )
        head = "<br/>".join(map(escape, self._head()))
        return (
            f'<div style="color:inherit">{head}<table style="border-collapse:collapse;'
            'background:transparent;color:inherit"><thead><tr><th>d</th><th>GPU</th>'
            f"<th>instructions</th></tr></thead><tbody>{rows}</tbody></table>"
            f"{escape(self._foot())}</div>"
        )


@formats.in_default_environment
def compare(
    a: Any = None,
    b: Any = None,
    c: Any = None,
    *,
    gpu: str | Iterable[str] | None = None,
) -> Comparison:
    """One dot product ``d = a . b + c`` on every instruction that holds the values exactly.

    Instructions whose k is less than the length are chained, c first; missing products are +0, as
    in `bitmma.matmul`. Block-scaled instructions run with unit scales. Without arguments the input
    of the six answers is used.

    Args:
        a, b: numbers, equally many: Python numbers, decimals ("-0.5") or C hex floats ("0x1p-3").
        c: one number; 0 where ``a`` and ``b`` are given.
        gpu: only the instructions of this GPU or these, named as for `bitmma.instruction`.

    Raises:
        TypeError: something that is no number.
        ValueError: lengths that differ or are 0; only one of ``a`` and ``b`` given; a raw code
            (codes mean nothing without a format); a number that no instruction's formats hold; an
            unknown GPU.
    """
    if a is None and b is None:
        a, b, default_c = SIX_ANSWERS
        c = default_c if c is None else c
    elif a is None or b is None:
        given, missing = ("a", "b") if b is None else ("b", "a")
        raise ValueError(f"{given} was given without {missing}; give both or neither")
    addend = [0 if c is None else c]
    values = {name: _values(x, name) for name, x in (("a", a), ("b", b), ("c", addend))}
    length = len(values["a"])
    if length != len(values["b"]):
        raise ValueError(f"a has {length} values and b has {len(values['b'])}")
    if length == 0:
        raise ValueError("a and b are empty; at least one value each is needed")
    families = list(_families(gpu))
    held = {
        (name, fmt): _encoded(x, fmt, name)
        for name, x in values.items()
        for fmt in {getattr(e, name) for e in families}
    }

    answers: dict[str, tuple[float, list[Entry]]] = {}
    left_out: list[Entry] = []
    results: dict[tuple[Any, ...], float] = {}
    for e in families:
        codes = [held[name, getattr(e, name)] for name in ("a", "b", "c")]
        if any(x is None for x in codes) or (e.c != e.d and length > e.k):
            left_out.append(e)
            continue
        key = (e.model, e.a, e.b, e.c, e.k, e.scale, e.block)
        if key not in results:
            results[key] = _run(e, *codes)
        value = results[key]
        answers.setdefault(value.hex(), (value, []))[1].append(e)
    if not answers:
        raise ValueError("no instruction has formats that hold these values exactly")
    return Comparison(
        tuple(_floats(values["a"])),
        tuple(_floats(values["b"])),
        _floats(values["c"])[0],
        tuple(
            Answer(value, tuple(entries))
            for value, entries in sorted(answers.values(), key=lambda x: _order(x[0]))
        ),
        tuple(left_out),
        tuple(dict.fromkeys(_rounded([x for items in values.values() for x in items]))),
    )


_CODE = re.compile(r"\s*0[xX][0-9a-fA-F]+\s*")


def _values(given: Any, name: str) -> list[Any]:
    """The values as a list, each known to be a number that some format holds."""
    items = as_list(given, name)
    for item in items:
        if isinstance(item, str) and _CODE.fullmatch(item):
            raise ValueError(
                f"{name}: {item} is a raw code, which needs a format; compare takes numbers "
                f"(a hexadecimal number has an exponent: {item.strip()}p0)"
            )
    from_list(items, "f64", len(items), name)  # every operand format is contained in f64
    return items


def _rounded(items: Iterable[Any]) -> Iterator[str]:
    """The decimals that are read as the nearest float64, such as "0.1"."""
    for item in items:
        if isinstance(item, str) and "x" not in item.lower() and math.isfinite(float(item)):
            mantissa, _, power = item.strip().lower().partition("e")
            number = Fraction(mantissa)
            if number and number * Fraction(10) ** int(power or 0) != Fraction(float(item)):
                yield item.strip()


def _floats(values: Sequence[Any]) -> list[float]:
    codes = from_list(values, "f64", len(values), "value")
    return [float(x) for x in np.array(codes, np.uint64).view(np.float64)]


def _encoded(values: Sequence[Any], fmt: str, name: str) -> npt.NDArray[Any] | None:
    """The values' codes; None where the format does not hold them all exactly."""
    try:
        codes = from_list(values, fmt, len(values), name)
    except ValueError:
        return None
    return np.array(codes, formats.get(fmt).code_dtype)


def _families(gpu: str | Iterable[str] | None) -> Iterator[Entry]:
    """The first instruction of every family, in the catalogue's order."""
    names = [gpu] if isinstance(gpu, str) else gpu
    chosen = isa.GPUS if names is None else {isa.gpu(name) for name in names}
    seen = set()
    for e in isa.catalogue():
        if e.gpu in chosen and (key := (e.gpu, e.op, e.family)) not in seen:
            seen.add(key)
            yield e


def _run(e: Entry, a: Any, b: Any, c: Any) -> float:
    """The answer of one chain of instructions, as a number."""
    padding = -len(a) % e.k
    a, b = (np.pad(x, (0, padding)) for x in (a, b))
    scales: dict[str, Any] = {}
    if e.scale and e.block:
        blocks = len(a) // e.block
        one = from_list(["1"], e.scale, 1, "scale")
        unit = np.full(blocks, one[0], formats.get(e.scale).code_dtype)
        scales = {
            "scale_a": unit[None, :], "scale_b": unit[:, None],
            "scale_format": e.scale, "block": e.block,
        }  # fmt: skip
    d = engine.mma(
        e.model, a[None, :], b[:, None], c[None, :], k=e.k,
        a_format=e.a, b_format=e.b, c_format=e.c, **scales,
    )  # fmt: skip
    return float(formats.decode(d, e.d)[0, 0])


# --- how it is shown ------------------------------------------------------------------------------


def _order(value: float) -> tuple[bool, float, float]:
    return math.isnan(value), value, math.copysign(1.0, value)


def _shown(value: float) -> str:
    """A short decimal where that is exact, else nine digits of one: ``≈ 0.1``."""
    text = repr(value).removesuffix(".0")
    exact = not math.isfinite(value) or Fraction(text) == Fraction(value)
    return text if exact and len(text) <= 12 else f"≈ {value:.9g}"


#: Values and runs of equal ones that the echo of the input shows.
_ECHOED = 12


def _listed(values: Sequence[float]) -> str:
    """The input in one line: long runs of one value as "0 ×28", and only the first dozen."""
    words: list[str] = []
    for _, run in groupby(values, float.hex):
        same = [_echo(x) for x in run]
        words += same if len(same) < 4 else [f"{same[0]} ×{len(same)}"]
    more = f", … ({len(values)} in all)" if len(words) > _ECHOED else ""
    return ", ".join(words[:_ECHOED]) + more


def _echo(value: float) -> str:
    """A value of the input: a short decimal that reads back as it, or a hex float."""
    text = repr(value).removesuffix(".0")
    return text if len(text) <= 12 else re.sub(r"\.?0*p", "p", value.hex())


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


class _Label(NamedTuple):
    """What stands for instructions: operand formats and what else tells them apart, or a name."""

    a: str
    b: str
    tail: str = ""


def _pair(e: Entry) -> _Label:
    if e.op == "mfma":  # AMD's names end in the types: "bf16_1k", "fp8_bf8"
        return _Label(re.sub(r"^f\d+_\d+x\d+x\d+(_\d+b)?_?", "", e.name), "")
    return _Label(e.a, e.b, f"+{e.scale}" if e.scale else "")


#: From few words to many; the first that tells an instruction's answer from all others is taken.
_LEVELS: tuple[Callable[[Entry], _Label], ...] = (
    _pair,
    lambda e: _pair(e)._replace(tail=f"{_pair(e).tail}→{e.d}"),
    lambda e: _Label(e.family, ""),
)


def _labels(answers: Sequence[Answer]) -> list[dict[str, str]]:
    """For each answer, GPU -> its instructions in few words.

    "wgmma f16 bf16" stands for all of a GPU's wgmma instructions with such operands, but only if
    they all give that answer; else the output's format is added, else the instructions are named.
    """
    owners: dict[tuple[str, str, _Label], set[int]] = {}
    for i, answer in enumerate(answers):
        for e in answer.instructions:
            for level in _LEVELS:
                owners.setdefault((e.gpu, e.op, level(e)), set()).add(i)
    result = []
    for answer in answers:
        table: dict[str, dict[str, dict[_Label, None]]] = {}
        for e in answer.instructions:
            labels = (level(e) for level in _LEVELS)
            label = next(x for x in labels if len(owners[e.gpu, e.op, x]) == 1)
            table.setdefault(e.gpu, {}).setdefault(e.op, {})[label] = None
        result.append(
            {
                gpu: "; ".join(f"{op} {' '.join(_joined(labels))}" for op, labels in ops.items())
                for gpu, ops in table.items()
            }
        )
    return result


def _joined(labels: Iterable[_Label]) -> Iterator[str]:
    """Labels in words, pairs that differ in one format drawn together: e5m2×{e4m3,e5m2}."""
    partners: dict[tuple[str, str], list[str]] = {}  # (a, tail): every b
    for a, b, tail in labels:
        partners.setdefault((a, tail), []).append(b)
    alike: dict[tuple[tuple[str, ...], str], list[str]] = {}  # (every b, tail): every a
    for (a, tail), bs in partners.items():
        alone = bs in ([a], [""])
        alike.setdefault(((*bs,) if not alone else (), tail), []).append(a)
    for (others, tail), firsts in alike.items():
        if others:
            yield f"{_set(firsts)}×{_set(others)}{tail}"
        else:
            yield from (f"{a}{tail}" for a in firsts)


def _set(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{{{','.join(names)}}}"
