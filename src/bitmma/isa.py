"""The catalogue: which instructions each GPU has, and the model each follows.

Two kinds of table make it. ``_UNITS`` says how a GPU's matrix unit computes, one row a kind of
operand; ``_NVIDIA`` and ``_AMD`` say which instructions exist, one row a set of types. A third,
``_RECORDINGS``, says what was seen on real GPUs. To add a GPU, add a row to ``_GPUS``, its units
to ``_UNITS`` and its name to the rows of the instructions it has.

A GPU is built when it is first asked for, and of it only families: instructions that differ in N
alone share everything else.

Sources: the PTX ISA (mma, wgmma, tcgen05.mma); AMD's CDNA 1, 2 and 3 ISA documents; parameters
from Xie et al., arXiv 2511.10909v2, and Khattak and Mikaitis, arXiv 2512.07004.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from bitmma import formats
from bitmma.models import (
    EFDPA,
    FMA,
    GSTFDPA,
    GTRFDPA,
    RNE_FP16,
    RNE_FP32,
    RNE_FP64,
    RZ_E8M13,
    RZ_FP32,
    STFDPA,
    TFDPA,
    TRFDPA,
    Conversion,
    FTZMulAdd,
    Lowered,
    Model,
)

__all__ = ["GPUS", "OPS", "Entry", "Provenance", "catalogue", "find", "gpu", "provenance", "select"]

Level = Literal["recorded", "published", "derived", "hypothetical"]

OPS = ("mma", "wgmma", "tcgen05", "mfma")

_MNEMONIC = {
    "mma": "mma.sync.aligned.",
    "wgmma": "wgmma.mma_async.sync.aligned.",
    "tcgen05": "tcgen05.mma.",
    "mfma": "v_mfma_",
}


@dataclass(frozen=True)
class Provenance:
    """What stands behind an instruction's model.

    Attributes:
        level: for this very instruction. "recorded": agrees with recorded outputs of real GPUs;
            "published": the model of published papers; "derived": read from compiled code;
            "hypothetical": none of the catalogue's, but made of one of them by replacing fields.
        source: which GPUs, papers or compiler; after which instruction.
        family_level, family_source: the best evidence for any instruction of the same GPU, kind
            of operands and model, its group length and output format aside.
    """

    level: Level
    source: str
    family_level: Level
    family_source: str

    def __str__(self) -> str:
        if (self.family_level, self.family_source) == (self.level, self.source):
            return f"{self.level} ({self.source})"
        return f"{self.level} ({self.source}); family: {self.family_level} ({self.family_source})"


@dataclass(frozen=True)
class Entry:
    """One instruction of one GPU: what `bitmma.instruction` makes callable.

    Attributes:
        gpu: the generation, e.g. ``"Hopper"``.
        op: mma, wgmma, tcgen05 or mfma.
        name: as the vendor writes it, without the mnemonic.
        m, n, k: A is m x k, B is k x n, C and D are m x n.
        a, b, c, d: format names.
        scale, block: the scales' format and how many k share one, or None.
        model: the arithmetic.
        provenance: what stands behind it.
    """

    gpu: str
    op: str
    name: str
    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    d: str
    scale: str | None
    block: int | None
    model: Model
    provenance: Provenance

    @property
    def full_name(self) -> str:
        """The name with its mnemonic."""
        return _MNEMONIC[self.op] + self.name

    @property
    def title(self) -> str:
        """GPU, op and name; of a changed one, "hypothetical, after Hopper mma m16n8k16..."."""
        named = f"{self.gpu} {self.op} {self.name}"
        hypothetical = self.provenance.level == "hypothetical"
        return f"hypothetical, after {named}" if hypothetical else named

    @property
    def family(self) -> str:
        """The name with N left open where a family of instructions differs in N only."""
        return _family_name(self.name) if self.op in ("wgmma", "tcgen05") else self.name


def _family_name(name: str) -> str:
    return re.sub(r"^(m\d+)n\d+k", r"\1nNk", name)


# --- GPUs -----------------------------------------------------------------------------------------

# Generation: the names that mean it. Chips are listed where recordings or papers cover them or
# where vendors document the same compute capability.
_GPUS: Mapping[str, str] = {
    "Volta": "sm_70 V100 TITAN-V",
    "Turing": "sm_75 T4 RTX-2060 RTX-2070 RTX-2080 RTX-2080-Ti TITAN-RTX",
    "Ampere": "sm_80 sm_86 sm_87 A100 A30 A800 A2 A10 A16 A40 A6000 RTX-A6000 RTX-3060 RTX-3070 "
    "RTX-3080 RTX-3090 RTX-3080-Ti RTX-3090-Ti",
    "Ada Lovelace": "sm_89 Ada RTX-Ada L40S L40 L4 L20 RTX-4060 RTX-4070 RTX-4080 RTX-4090 "
    "RTX-6000-Ada RTX-1000-Ada",
    "Hopper": "sm_90 H100 H200 H800 H20 GH200",
    "Blackwell": "sm_100 B200 B100 GB200",
    "RTX Blackwell": "sm_120 RTX-5060 RTX-5070 RTX-5080 RTX-5090 RTX-PRO-6000",
    "CDNA1": "gfx908 MI100 CDNA",
    "CDNA2": "gfx90a MI210 MI250 MI250X",
    "CDNA3": "gfx942 gfx940 gfx941 MI300 MI300X MI300A MI325X",
}
GPUS: tuple[str, ...] = tuple(_GPUS)

_NOT_MODELLED: Mapping[str, str] = {
    "sm_103 B300 GB300 Blackwell-Ultra": "Blackwell Ultra (sm_103)",
    "sm_101 sm_110 Thor": "Jetson Thor",
    "sm_121 GB10": "GB10 (sm_121)",
    "gfx950 MI350X MI355X CDNA4": "CDNA4 (gfx950)",
    "RDNA RDNA1 RDNA2 RDNA3 RDNA4": "RDNA",
    "sm_60 sm_61 P100 P40 P4 Pascal": "Pascal (it has no matrix unit)",
    "gfx900 gfx906 MI25 MI50 MI60": "GCN (it has no matrix unit)",
}

# Product lines of too many names to list, as they stand in a key.
_LINES_NOT_MODELLED: Mapping[str, str] = {
    r"gfx1[0-2]\d\d": "RDNA",
    r"(radeon|rx\d|prow\d).*": "a Radeon (RDNA or older)",
    r"gtx.*": "a GTX (it has no matrix unit)",
}


def _gpu_key(name: str) -> str:
    key = re.sub(r"[\s_\-.]", "", name.lower())
    key = re.sub(r"^(nvidia|amd|geforce|radeon(?=instinct)|instinct|tesla)+", "", key)
    return re.sub(r"^(sm\d+)[af]$", r"\1", key)  # sm_90a, sm_100f: the same chips


_GPU_ALIASES = {
    _gpu_key(alias): generation
    for generation, names in _GPUS.items()
    for alias in [generation, *names.split()]
}
_UNMODELLED_ALIASES = {
    _gpu_key(alias): what for names, what in _NOT_MODELLED.items() for alias in names.split()
}


def gpu(name: str) -> str:
    """The generation that a GPU's name means: ``"H100"``, ``"sm_90"``, ``"hopper"`` give "Hopper".

    Raises:
        TypeError: not a string.
        ValueError: a chip that is not modelled, or an unknown name.
    """
    if not isinstance(name, str):
        raise TypeError(f"gpu must be a name such as 'H100', not {name!r}")
    key = _gpu_key(name)
    if key in _GPU_ALIASES:
        return _GPU_ALIASES[key]
    lines = (what for line, what in _LINES_NOT_MODELLED.items() if re.fullmatch(line, key))
    what = _UNMODELLED_ALIASES.get(key) or next(lines, "")
    if what:
        own_name = key in _gpu_key(what)  # 'GB10' is GB10: not worth saying
        which = "" if own_name else f"{name!r} is {what}, which "
        raise ValueError(
            f"{which}bitmma does not model{f' {what}' if own_name else ''}; "
            f"modelled are {', '.join(GPUS)}"
        )
    near = _nearest(key, _GPU_ALIASES, 1)
    hint = f"; did you mean {_GPU_ALIASES[near[0]]}?" if near else ""
    raise ValueError(f"unknown GPU {name!r}; modelled are {', '.join(GPUS)}{hint}")


def _nearest(key: str, known: Iterable[str], n: int) -> list[str]:
    import difflib  # for messages only

    return difflib.get_close_matches(key, known, n, cutoff=0.5)


# --- units: how T-FDPA is done --------------------------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    """T-FDPA of one GPU for some operand formats; L = min(k, row_bytes / operand bytes)."""

    row_bytes: int
    F: int
    rho: Conversion
    e_zero: int
    e_zero_f16: int  # where the output is f16, always by RNE

    def model(self, k: int, a: str, d: str) -> TFDPA:
        operand_bytes = max(8, formats.get(a).width) // 8  # fp6 and fp4 count one each
        L = min(k, self.row_bytes // operand_bytes)
        if d == "f16":
            return TFDPA(L, self.F, RNE_FP16, self.e_zero_f16)
        return TFDPA(L, self.F, self.rho, self.e_zero)


_HALF = ("f16", "bf16", "tf32")
_FP8 = ("e4m3", "e5m2")
_NARROW = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")

_VOLTA = _Unit(8, 23, RZ_FP32, -131, -19)
_TURING = _Unit(16, 24, RZ_FP32, -132, -20)
_ADA_FP8 = _Unit(16, 13, RZ_E8M13, -132, -20)
_HOPPER = _Unit(32, 25, RZ_FP32, -133, -21)
_HOPPER_FP8 = _Unit(32, 13, RZ_E8M13, -133, -21)

# GPU: its units by operand formats. arXiv 2511.10909v2; arXiv 2512.07004 agrees where it goes.
_UNITS: Mapping[str, Mapping[tuple[str, ...], _Unit]] = {
    "Volta": {_HALF: _VOLTA},
    "Turing": {_HALF: _TURING},
    "Ampere": {_HALF: _TURING},
    "Ada Lovelace": {_HALF: _TURING, _FP8: _ADA_FP8},
    "Hopper": {_HALF: _HOPPER, _FP8: _HOPPER_FP8},
    "Blackwell": {_HALF: _HOPPER, _NARROW: _HOPPER},
    "RTX Blackwell": {_HALF: _HOPPER, _NARROW: _HOPPER},
}


def _unit(gpu_name: str, a: str) -> _Unit:
    return next(unit for kinds, unit in _UNITS[gpu_name].items() if a in kinds)


# --- evidence -------------------------------------------------------------------------------------

_Evidence = tuple[Level, str]

_KHATTAK_MIKAITIS = "Khattak and Mikaitis, arXiv 2512.07004"
_PUBLISHED: _Evidence = ("published", "Xie et al., arXiv 2511.10909v2")
_SASS: _Evidence = ("derived", "SASS of nvcc 13.0")

# What was recorded on real GPUs, 1,000 dot products each: op, format of both A and B, formats of
# both C and D, chips, and how long the dot products were. They speak for every shape of that op and
# those types whose model is the one at the recorded length: where a longer k is a chain of the same
# groups, but not where a shorter k cuts the group, a longer one widens it or, in lowered
# instructions, other products go first. Op and length stand in the source, so that nobody takes it
# for more.
_RECORDINGS: Mapping[str, tuple[tuple[str, str, str, str, int], ...]] = {
    "Volta": (("mma", "f16", "f32 f16", "V100", 4),),
    "Ampere": (
        ("mma", "f16", "f32 f16", "A100, A2", 8),
        ("mma", "bf16", "f32", "A100, A2", 8),
        ("mma", "tf32", "f32", "A100, A2", 4),
    ),
    "Ada Lovelace": (
        ("mma", "f16", "f32 f16", "RTX Ada, L40S", 8),
        ("mma", "bf16", "f32", "RTX Ada, L40S", 8),
        ("mma", "tf32", "f32", "RTX Ada, L40S", 4),
        ("mma", "e4m3 e5m2", "f32", "RTX Ada, L40S", 32),
        ("mma", "e4m3 e5m2", "f16", "RTX Ada", 32),
    ),
    "Hopper": (
        ("mma", "f16", "f32 f16", "H100, H200", 16),
        ("mma", "bf16", "f32", "H100, H200", 16),
        ("mma", "tf32", "f32", "H100, H200", 4),
        ("mma", "e4m3 e5m2", "f16", "H100, H200", 32),  # lowered
        ("wgmma", "e4m3 e5m2", "f32", "H100, H200", 32),
    ),
    "Blackwell": (
        ("mma", "f16", "f32 f16", "B200", 16),
        ("mma", "bf16", "f32", "B200", 16),
        ("mma", "tf32", "f32", "B200", 4),
        ("mma", "e4m3 e5m2", "f32 f16", "B200", 32),  # lowered
    ),
}


@dataclass(frozen=True)
class _Family:
    """Instructions that differ in N only; the name says "nN" where there are several."""

    gpu: str
    op: str
    name: str
    m: int
    ns: Sequence[int]
    k: int
    a: str
    b: str
    c: str
    d: str
    scale: str | None
    block: int | None
    model_at: Callable[[int], Model]  # for any k
    unrecorded: _Evidence  # what stands behind it where there is no recording

    @functools.cached_property
    def model(self) -> Model:
        return self.model_at(self.k)

    def entries(self, ns: Iterable[int]) -> Iterator[Entry]:
        """The instructions of these N."""
        return (Entry(*(*self._fields(n), self.provenance)) for n in ns)

    def has(self, entry: Entry) -> bool:
        """Whether this is one of its instructions, whatever its provenance says."""
        own = self._fields(entry.n)
        return entry.n in self.ns and all(
            getattr(entry, field.name) == value
            for field, value in zip(dataclasses.fields(Entry), own, strict=False)
        )

    def _fields(self, n: int) -> tuple[Any, ...]:
        """All of an entry but its provenance."""
        return (
            self.gpu, self.op, self.name.replace("nN", f"n{n}"), self.m, n, self.k, self.a,
            self.b, self.c, self.d, self.scale, self.block, self.model,
        )  # fmt: skip

    @functools.cached_property
    def provenance(self) -> Provenance:
        """Its own evidence beside the best of those of the same arithmetic."""
        own = self.evidence
        best = _best_evidence(self.gpu)[self.arithmetic]
        if own[0] == best[0][1][0]:
            return Provenance(*own, *own)
        # The nearest kin: the same op, then the same operand, then the same output.
        kin, (level, source) = max(
            best,
            key=lambda x: (
                x[0].op == self.op,
                x[0].a == self.a,
                x[0].d == self.d,
                x[0].k == self.k,
            ),
        )
        return Provenance(*own, level, f"{kin.op} {kin.name}: {source}")

    @property
    def evidence(self) -> _Evidence:
        """What stands behind this very family."""
        if self.a == self.b and self.c == self.d and not self.scale:
            for op, ab, cd, chips, length in _RECORDINGS.get(self.gpu, ()):
                recorded = op == self.op and self.a in ab.split() and self.d in cd.split()
                if recorded and self.model == self.model_at(length):
                    source = f"{chips}, {op} dot products of {length}, {_KHATTAK_MIKAITIS}"
                    return "recorded", source
        return self.unrecorded

    @property
    def arithmetic(self) -> tuple[object, ...]:
        """Equal for families of one GPU that are said to share their evidence."""
        unit = self.model.unit if isinstance(self.model, Lowered) else self.model
        kind = next((kinds for kinds in _UNITS.get(self.gpu, ()) if self.a in kinds), (self.a,))
        return type(self.model), getattr(unit, "F", None), kind


_RANK: Mapping[Level, int] = {"derived": 0, "published": 1, "recorded": 2}


@functools.cache
def _best_evidence(gpu_name: str) -> Mapping[tuple[object, ...], list[tuple[_Family, _Evidence]]]:
    """By arithmetic: the families of the highest level, and what stands behind each."""
    best: dict[tuple[object, ...], list[tuple[_Family, _Evidence]]] = {}
    for f in _families(gpu_name).values():
        here = best.setdefault(f.arithmetic, [])
        evidence = f.evidence
        if here and _RANK[evidence[0]] > _RANK[here[0][1][0]]:
            here.clear()
        if not here or evidence[0] == here[0][1][0]:
            here.append((f, evidence))
    return best


# --- NVIDIA: which instructions exist -------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    """One row of PTX: shapes x types on some GPUs.

    ``shapes``: "m64n8-256k32" has N = 8, 16, ... 256, in steps of the first. ``types``: as mma.sync
    writes them, D.A.B.C. ``lowered``: the compiler makes these of other instructions.
    """

    op: str
    gpus: tuple[str, ...]
    shapes: str
    types: tuple[str, ...]
    kind: str = ""
    block: int | None = None
    scales: tuple[str | None, ...] = (None,)
    lowered: bool = False


def _types(d: str, ab: Sequence[str]) -> tuple[str, ...]:
    """Every A with every B, C as D."""
    return tuple(f"{x}.{a}.{b}.{x}" for a, b, x in product(ab, ab, d.split()))


_F16 = ("f32.f16.f16.f32", "f16.f16.f16.f16")
_BF16 = ("f32.bf16.bf16.f32",)
_TF32 = ("f32.tf32.tf32.f32",)
_F64 = ("f64.f64.f64.f64",)
_ALL_FP8 = _types("f32 f16", _FP8)
_ALL_NARROW = _types("f32 f16", _NARROW)
_MX_NARROW = _types("f32", _NARROW)
_MX_FP4 = ("f32.e2m1.e2m1.f32",)

_BLACKWELLS = ("Blackwell", "RTX Blackwell")
_FROM_AMPERE = ("Ampere", "Ada Lovelace", "Hopper", *_BLACKWELLS)
_FROM_TURING = ("Turing", *_FROM_AMPERE)
_RTX = ("RTX Blackwell",)

_NVIDIA: tuple[_Row, ...] = (
    _Row("mma", ("Volta", "Turing"), "m8n8k4", (_F16[0], "f32.f16.f16.f16", _F16[1])),
    _Row("mma", _FROM_TURING, "m16n8k8", _F16),
    _Row("mma", _FROM_AMPERE, "m16n8k16", _F16),
    _Row("mma", _FROM_AMPERE, "m16n8k8 m16n8k16", _BF16),
    _Row("mma", _FROM_AMPERE, "m16n8k4 m16n8k8", _TF32),
    _Row("mma", _FROM_AMPERE, "m8n8k4", _F64),
    _Row("mma", ("Hopper",), "m16n8k4 m16n8k8 m16n8k16", _F64),
    _Row("mma", _BLACKWELLS, "m16n8k4 m16n8k8 m16n8k16", _F64, lowered=True),
    _Row("mma", ("Ada Lovelace", "RTX Blackwell"), "m16n8k16 m16n8k32", _ALL_FP8),
    _Row("mma", ("Hopper", "Blackwell"), "m16n8k16 m16n8k32", _ALL_FP8, lowered=True),
    _Row("mma", _RTX, "m16n8k32", _ALL_NARROW, "f8f6f4"),
    _Row("mma", _RTX, "m16n8k32", _MX_NARROW, "mxf8f6f4", 32, ("ue8m0",)),
    _Row("mma", _RTX, "m16n8k64", _MX_FP4, "mxf4", 32, ("ue8m0",)),
    _Row("mma", _RTX, "m16n8k64", _MX_FP4, "mxf4nvf4", 32, ("ue8m0",)),
    _Row("mma", _RTX, "m16n8k64", _MX_FP4, "mxf4nvf4", 16, ("ue8m0", "ue4m3")),
    _Row("wgmma", ("Hopper",), "m64n8-256k8", _TF32),
    _Row("wgmma", ("Hopper",), "m64n8-256k16", (*_F16, *_BF16)),
    _Row("wgmma", ("Hopper",), "m64n8-256k32", _ALL_FP8),
    _Row("tcgen05", ("Blackwell",), "m64n8-256k8 m128n16-256k8", _TF32, "tf32"),
    _Row("tcgen05", ("Blackwell",), "m64n8-256k16 m128n16-256k16", (*_F16, *_BF16), "f16"),
    _Row("tcgen05", ("Blackwell",), "m64n8-256k32 m128n16-256k32", _ALL_NARROW, "f8f6f4"),
    _Row("tcgen05", ("Blackwell",), "m128n8-256k32", _MX_NARROW, "mxf8f6f4", 32, ("ue8m0",)),
    _Row("tcgen05", ("Blackwell",), "m128n8-256k64", _MX_FP4, "mxf4", 32, ("ue8m0",)),
    _Row("tcgen05", ("Blackwell",), "m128n8-256k64", _MX_FP4, "mxf4nvf4", 32, ("ue8m0",)),
    _Row("tcgen05", ("Blackwell",), "m128n8-256k64", _MX_FP4, "mxf4nvf4", 16, ("ue8m0", "ue4m3")),
)


def _nvidia(gpu_name: str) -> Iterator[_Family]:
    for row in _NVIDIA:
        if gpu_name not in row.gpus:
            continue
        for shape, types, scale in product(row.shapes.split(), row.types, row.scales):
            m, low, *high, k = map(int, re.findall(r"\d+", shape))
            ns = range(low, max([low, *high]) + 1, low)
            d, a, b, c = types.split(".")
            parts = [
                f"m{m}n{'N' if high else low}k{k}",
                row.kind and f"kind::{row.kind}",
                row.block and f"block{row.block}",
                types if row.op == "mma" else f"{d}.{a}.{b}",
                scale,
            ]
            yield _Family(
                gpu_name, row.op, ".".join(p for p in parts if p), m, ns, k,
                a, b, c, d, scale, row.block,
                functools.partial(_nvidia_model, row, gpu_name, m, a, d),
                _SASS if row.lowered else _PUBLISHED,
            )  # fmt: skip


def _nvidia_model(row: _Row, gpu_name: str, m: int, a: str, d: str, k: int) -> Model:
    if row.block:
        return STFDPA() if k == 32 else GSTFDPA()
    if d == "f64":
        return FMA(RNE_FP64)
    if row.lowered:  # FP8, on two f16 instructions of half the k
        return Lowered(K=k, unit=_unit(gpu_name, "f16").model(k // 2, "f16", d))
    if m == 8:  # m8n8k4 is Volta's instruction: Turing runs it with Volta's arithmetic
        return _VOLTA.model(k, a, d)
    return _unit(gpu_name, a).model(k, a, d)


# --- AMD: which instructions exist ----------------------------------------------------------------

_CDNA1 = (
    "f32_{32x32x2,32x32x1,16x16x4,16x16x1,4x4x1}f32 "
    "f32_{32x32x8,32x32x4,16x16x16,16x16x4,4x4x4}f16 "
    "f32_{32x32x4,32x32x2,16x16x8,16x16x2,4x4x2}bf16 "
)
_AMD: Mapping[str, str] = {
    "CDNA1": _CDNA1,
    "CDNA2": _CDNA1 + "f64_{16x16x4,4x4x4}f64 f32_{32x32x8,32x32x4,16x16x16,16x16x4,4x4x4}bf16_1k",
    "CDNA3": "f64_16x16x4_f64 f64_4x4x4_4b_f64 "
    "f32_{32x32x1_2b,16x16x1_4b,4x4x1_16b,32x32x2,16x16x4}_f32 f32_{16x16x8,32x32x4}_xf32 "
    "f32_{32x32x4_2b,16x16x4_4b,4x4x4_16b,32x32x8,16x16x16}_{f16,bf16} "
    "f32_{16x16x32,32x32x16}_{fp8,bf8}_{fp8,bf8}",
}


def _expand(pattern: str) -> Iterator[str]:
    """Shell-like braces: ``"a{b,c}d"`` gives abd, acd."""
    parts = re.split(r"\{([^}]*)\}", pattern)
    for choice in product(*(p.split(",") if i % 2 else [p] for i, p in enumerate(parts))):
        yield "".join(choice)


def _amd(gpu_name: str) -> Iterator[_Family]:
    for name in (n for p in _AMD.get(gpu_name, "").split() for n in _expand(p)):
        m, n, k = map(int, re.findall(r"\d+", name.partition("_")[2])[:3])
        types = re.findall(r"bf16|xf32|f16|f32|f64|fp8|bf8", name)
        d, a, b = types[0], types[1], types[-1]
        yield _Family(
            gpu_name, "mfma", name, m, (n,), k, a, b, d, d, None, None,
            functools.partial(_amd_model, gpu_name, a, d, name.endswith("_1k")), _PUBLISHED,
        )  # fmt: skip


def _amd_model(gpu_name: str, a: str, d: str, one_k: bool, k: int) -> Model:
    if a in ("f64", "f32"):
        return FMA(RNE_FP64 if d == "f64" else RNE_FP32)
    match gpu_name:
        case "CDNA1":
            return EFDPA(L=4 if a == "f16" else 2)
        case "CDNA2":
            return FTZMulAdd(P=2 if a == "bf16" and not one_k else 4)
    if a in ("fp8", "bf8"):
        return GTRFDPA(L=16)
    return TRFDPA(L=min(k, 4 if a == "xf32" else 8))


# --- look-up --------------------------------------------------------------------------------------


@functools.cache
def _families(gpu_name: str) -> Mapping[str, _Family]:
    """What one GPU has, in the tables' order, by the key of the family's name."""
    return {_key(f.name): f for f in (*_nvidia(gpu_name), *_amd(gpu_name))}


@functools.cache
def catalogue() -> tuple[Entry, ...]:
    """Every instruction of every GPU, in the tables' order, GPU by GPU."""
    return select()


# What may stand before a name, and which op it means.
_PREFIXES = {
    "mma.": "mma",
    "wgmma.mma_async.": "wgmma",
    "wgmma.": "wgmma",
    "tcgen05.mma.": "tcgen05",
    "tcgen05.": "tcgen05",
    "v_mfma_": "mfma",
    "mfma_": "mfma",
    "__builtin_amdgcn_mfma_": "mfma",
}
_OPTIONAL = ("sync", "aligned", "row", "col", "block_scale", "cta_group::1", "cta_group::2")
# PTX's way to write the block: (k, scale_vec).
_BLOCK_OF = {("32", "1x"): "block32", ("64", "2x"): "block32", ("64", "4x"): "block16"}
_ONLY_BLOCK = {"kind::mxf8f6f4": "block32", "kind::mxf4": "block32"}


def _split(name: str) -> tuple[str | None, str]:
    """The op that a name's mnemonic says, if it has one, and the rest in lower case."""
    name = name.strip().lower()
    for prefix, op in _PREFIXES.items():
        if name.startswith(prefix):
            return op, name.removeprefix(prefix)
    return None, name


def _key(name: str) -> str:
    """What is left of a name without mnemonic once everything optional is taken off."""
    if re.match(r"f\d\d_\d", name):  # AMD: for CDNA1's f32_32x32x4f16 CDNA3 has f32_32x32x4_2b_f16
        return re.sub(r"(x\d+)_(?=[a-z])", r"\1", re.sub(r"_\d+b(?=_|$)", "", name))
    k = re.search(r"k(\d+)\.", name)
    parts: list[str] = []
    for part in name.split("."):
        if part in _OPTIONAL:
            continue
        if part.startswith("scale_vec::"):
            part = _BLOCK_OF.get((k[1] if k else "", part.removeprefix("scale_vec::")), part)
        parts.append(part)
    for kind, block in _ONLY_BLOCK.items():
        if kind in parts and not any(p.startswith(("block", "scale_vec")) for p in parts):
            parts.insert(parts.index(kind) + 1, block)
    return ".".join(parts)


def _lookup(gpu_name: str, key: str) -> Entry | None:
    families = _families(gpu_name)
    if gpu_name == "CDNA3":  # its bf16 instructions are CDNA2's _1k ones, and compilers say so
        key = key.removesuffix("_1k")
    if key in families:
        family = families[key]
        return next(family.entries(family.ns))
    family_name = _family_name(key)
    if family_name in families:
        family = families[family_name]
        return next(family.entries(n for n in family.ns if f"n{n}k" in key), None)
    return None


def provenance(entry: Entry) -> Provenance:
    """The catalogue's where it has this very instruction; else the instruction is hypothetical."""
    family = _families(entry.gpu).get(_key(entry.family)) if entry.gpu in GPUS else None
    if family and family.has(entry):
        return family.provenance
    source = f"after {entry.gpu} {entry.op} {entry.name}"
    return Provenance("hypothetical", source, "hypothetical", source)


def find(gpu_name: str, name: str, op: str | None = None) -> Entry:
    """One instruction by GPU and name.

    The name may carry its mnemonic, ``__builtin_amdgcn_``, ``.sync.aligned``, ``.row.col`` and, for
    block scaling, ``.block_scale`` with ``.scale_vec::NX`` in place of ``.blockN``.

    Raises:
        TypeError: a name that is no string.
        ValueError: an unknown GPU or op; a GPU that lacks the instruction (the message says which
            have it); an unknown name (the message gives the nearest).
    """
    generation = gpu(gpu_name)
    check_op(op)
    if not isinstance(name, str):
        raise TypeError(f"an instruction is named by a string, not {name!r}")
    said, rest = _split(name)
    ops = {op, said} - {None}
    key = _key(rest)
    entry = _lookup(generation, key)
    if entry is not None and ops <= {entry.op}:
        return entry
    kind = f"{op} instruction" if op else "instruction"
    if entry is not None:
        raise ValueError(f"{generation} has no {kind} {name!r}; {entry.name} is {entry.op}")
    elsewhere = [e for e in (_lookup(g, key) for g in GPUS) if e and ops <= {e.op}]
    if elsewhere:
        have = "have" if len(elsewhere) > 1 else "has"
        having = ", ".join(e.gpu for e in elsewhere)
        raise ValueError(f"{generation} has no instruction {name!r}; {having} {have} it")
    raise ValueError(f"{generation} has no {kind} {name!r}{_suggestion(generation, key, ops)}")


def _suggestion(gpu_name: str, key: str, ops: set[str | None]) -> str:
    shape = re.match(r"m\d+n(\d+)k", key)
    n = int(shape[1]) if shape else 0
    known = {
        f.name.replace("nN", f"n{min(f.ns, key=lambda x: abs(x - n))}").lower(): f
        for f in _families(gpu_name).values()
        if ops <= {f.op}
    }
    near = _nearest(key, known, 3)
    if not near:
        return ""
    return f"; the nearest {'is' if len(near) == 1 else 'are'} {', '.join(near)}"


def check_op(op: str | None) -> None:
    if op is not None and op not in OPS:
        raise ValueError(f"op is one of {', '.join(OPS)}, not {op!r}")


def select(
    *,
    gpu_name: str | None = None,
    op: str | None = None,
    any_format: str | None = None,
    n: int | None = None,
    **fields: str | int | None,
) -> tuple[Entry, ...]:
    """The instructions that fit every condition given; formats by any of their names.

    Args:
        gpu_name: a GPU's name. op: mma, wgmma, tcgen05 or mfma.
        any_format: a format that A, B, C, D or the scales have.
        n, fields: wanted values of n and of the fields m, k, a, b, c, d, scale, block.
    """
    check_op(op)
    generations = GPUS if gpu_name is None else (gpu(gpu_name),)
    held = formats.get(any_format).name if any_format is not None else None
    wanted: dict[str, str | int] = {}
    for field, value in {"n": n, **fields}.items():
        if value is None:
            continue
        if field not in ("m", "n", "k", "block"):
            value = formats.get(value).name  # type: ignore[arg-type]
        elif type(value) is not int:
            raise TypeError(f"{field} must be an int, not {value!r}")
        if field != "n":
            wanted[field] = value
    return tuple(
        entry
        for g in generations
        for f in _families(g).values()
        if op in (None, f.op)
        and (held is None or held in (f.a, f.b, f.c, f.d, f.scale))
        and all(getattr(f, field) == value for field, value in wanted.items())
        for entry in f.entries(x for x in f.ns if n in (None, x))
    )
