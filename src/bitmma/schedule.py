"""When a kernel's accumulators leave the matrix unit: promotion and split-K as one small value."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import get_args, get_type_hints

from bitmma.isa import Entry
from bitmma.models import check_int

__all__ = ["Schedule"]

_CHOICES = {"split_order": ("contiguous", "interleaved"), "reduce": ("serial", "pairwise")}


@dataclass(frozen=True)
class Schedule:
    """How a kernel walks along K. ``Schedule()`` is one chain of instructions over all of K.

    Every sum outside the matrix unit is IEEE FP32 (FP64 for an f64 unit), to nearest even.

    Attributes:
        promote_every: a new chain from +0 every so many elements of K; each chain's result is added
            to an FP32 accumulator that starts from +0, or C, in K order. A multiple of the
            instruction's k. None: the accumulator stays in the matrix unit.
        split_k: how many parts of K are summed apart, each by its own chains (and promotions,
            counted along the part's own K). C joins last.
        split_order: which tiles of K are part s's, of T in all. "contiguous": q = ceil(T / split_k)
            neighbours, from s q on. "interleaved": those whose number is s modulo split_k.
        split_tile: elements of K in a tile; a multiple of the instruction's k.
        reduce: in which order the S parts are added. "serial": ((p0 + p1) + p2) + ... "pairwise":
            h = ceil(S/2), slot_i = p_i + p_(i+h) for i < h where i + h < S - 1, else p_i; then
            ((p_(S-1) + slot_0) + slot_1) + ...
        promote_fused: where chains are promoted with scales, whether scale and sum are one fma
            (acc = fma(RN32(sa sb), r, acc), as nvcc compiles ``acc += (sa * sb) * r``) or a
            product, rounded, and a sum.

    Which split_k and order a library picks depends on GPU, version and workspace, not on the shape
    alone: nothing here guesses them.

    Sources: promotion every 128, DeepSeek-V3 (arXiv 2412.19437, 3.3.2) and recordings of cuBLAS FP8
    without fast accumulation on H100 PCIe; both orders of split-K, recordings of cuBLASLt 12.8.3 on
    H100 PCIe (contiguous tiles of 128) and RTX 4060 (interleaved tiles of 64), as replayed by their
    author's package mmaemu 0.1.0.
    """

    promote_every: int | None = None
    split_k: int = 1
    split_order: str = "contiguous"
    split_tile: int = 128
    reduce: str = "serial"
    promote_fused: bool = True

    def __post_init__(self) -> None:
        if self.promote_every is not None:
            check_int(self, "promote_every", 1)
        check_int(self, "split_k", 1)
        check_int(self, "split_tile", 1)
        for field, accepted in _CHOICES.items():
            if getattr(self, field) not in accepted:
                raise ValueError(
                    f"Schedule: {field} is {' or '.join(map(repr, accepted))}, "
                    f"not {getattr(self, field)!r}"
                )
        if not isinstance(self.promote_fused, bool):
            raise TypeError(
                f"Schedule: promote_fused must be True or False, not {self.promote_fused!r}"
            )

    @property
    def is_chain(self) -> bool:
        """Whether it is one chain, whose result is the instruction's own."""
        return self.promote_every is None and self.split_k == 1

    def __str__(self) -> str:
        """What is not the default: ``"promote_every=128,split_k=4"``; else ``"chain"``."""
        changed = (
            f"{f.name}={getattr(self, f.name)}"
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        )
        return ",".join(changed) or "chain"

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """The schedule that ``str`` wrote, for command lines: ``"promote_every=128,split_k=4"``.

        Raises:
            TypeError: not a string.
            ValueError: an unknown field, one given twice, or a value that it does not take.
        """
        if not isinstance(text, str):
            raise TypeError(f"a schedule is parsed from a string, not {type(text).__name__}")
        if text.strip() in ("", "chain"):
            return cls()
        types = get_type_hints(cls)
        values: dict[str, object] = {}
        for item in text.split(","):
            name, equals, value = (word.strip() for word in item.partition("="))
            if not equals or name not in types or name in values:
                fault = "is given twice" if name in values else "is no field with its value"
                raise ValueError(
                    f"schedule {text!r}: {item.strip()!r} {fault}; "
                    f"write chain, or some of {'=…, '.join(types)}=…, with commas between"
                )
            values[name] = _value(name, value, types[name])
        return cls(**values)  # type: ignore[arg-type]

    def parts(self, K: int) -> tuple[range, ...]:
        """The numbers of the tiles of each part. An empty part is a product of nothing: +0."""
        tiles = -(-K // self.split_tile)
        if self.split_k == 1:
            return (range(tiles),)
        if self.split_order == "interleaved":
            return tuple(range(s, tiles, self.split_k) for s in range(self.split_k))
        share = -(-tiles // self.split_k)
        return tuple(
            range(min(s * share, tiles), min((s + 1) * share, tiles)) for s in range(self.split_k)
        )

    def check(self, instruction: Entry, K: int) -> None:
        """ValueError unless this schedule fits a product of that instruction and length."""
        k, every = instruction.k, self.promote_every
        if every is not None and every % k:
            raise ValueError(
                f"promote_every must be a multiple of {k}, the k of {instruction.name}, not {every}"
            )
        length = min(K, every or K)
        if self.split_k > 1:
            if self.split_tile % k:
                raise ValueError(
                    f"split_tile must be a multiple of {k}, the k of {instruction.name}, "
                    f"not {self.split_tile}"
                )
            tiles = -(-K // self.split_tile)
            if self.split_k > tiles:
                raise ValueError(
                    f"split_k must be at most {tiles} for K = {K} in tiles of {self.split_tile}, "
                    f"not {self.split_k}"
                )
            longest = max(map(len, self.parts(K))) * self.split_tile
            length = min(length, longest)
        if instruction.c != instruction.d and length > k:
            raise ValueError(
                f"{instruction.name} takes a C of {instruction.c} and gives a D of "
                f"{instruction.d}, so it cannot be chained: K must be at most {k}, got {K}"
            )


def _value(name: str, text: str, accepted: object) -> object:
    """One field's value out of its text; whether the number will do is for the class to say."""
    if str in (accepted, *get_args(accepted)):
        return text
    if accepted is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ValueError(f"schedule: {name} is True or False, not {text!r}")
    if text == "None" and type(None) in get_args(accepted):
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise ValueError(f"schedule: {name} must be a positive integer, not {text[:20]!r}")
    return int(text)
