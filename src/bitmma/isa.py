"""The catalogue: which instructions each GPU has, and the model each follows.

Two kinds of table make it. ``_UNITS`` says how a GPU's matrix unit computes, one row a kind of
operand; ``_NVIDIA`` and ``_AMD`` say which instructions exist, one row a shape. To add a GPU, add
a row to `_GPUS`, its units to ``_UNITS`` and its name to the rows of the instructions it has.

Sources: PTX ISA 9.x; AMD CDNA1, CDNA2 and CDNA3 ISA documents; parameters from Xie et al.,
arXiv 2511.10909v2, tables 4 to 8, and Khattak and Mikaitis, arXiv 2512.07004.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

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

__all__ = ["GPUS", "OPS", "Entry", "Provenance", "catalogue", "find", "gpu", "select"]

Level = Literal["recorded", "published", "derived"]

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
            "published": the model of published papers; "derived": read from compiled code.
        source: which GPUs, papers or compiler.
        family_level, family_source: the best evidence for any instruction that shares this
            instruction's GPU, unit and model.
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
        a, b, c, d: format names. scale, block: the scales' format and how many k share one, or None.
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
    def family(self) -> str:
        """The name with N left open where a family of instructions differs in N only."""
        if self.op in ("wgmma", "tcgen05"):
            return re.sub(r"n\d+k", "nNk", self.name, count=1)
        return self.name


# --- GPUs -----------------------------------------------------------------------------------------

# Generation: the names that mean it. Chips are listed where recordings or papers cover them or
# where vendors document the same compute capability.
_GPUS: Mapping[str, str] = {
    "Volta": "sm_70 V100 TITAN-V",
    "Turing": "sm_75 T4 RTX-2080 RTX-2080-Ti TITAN-RTX",
    "Ampere": "sm_80 sm_86 sm_87 A100 A30 A800 A2 A10 A16 A40 A6000 RTX-A6000 RTX-3060 RTX-3070 "
    "RTX-3080 RTX-3090 RTX-3080-Ti RTX-3090-Ti",
    "Ada Lovelace": "sm_89 Ada RTX-Ada L40S L40 L4 L20 RTX-4060 RTX-4070 RTX-4080 RTX-4090 "
    "RTX-6000-Ada RTX-1000-Ada",
    "Hopper": "sm_90 sm_90a H100 H200 H800 H20 GH200",
    "Blackwell": "sm_100 sm_100a B200 B100 GB200",
    "RTX Blackwell": "sm_120 sm_120a RTX-5060 RTX-5070 RTX-5080 RTX-5090 RTX-PRO-6000",
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
    "RDNA RDNA1 RDNA2 RDNA3 RDNA4 gfx1030 gfx1100 gfx1101 gfx1102 gfx1103 gfx1150 gfx1151 gfx1200 "
    "gfx1201": "RDNA",
    "sm_60 sm_61 P100 Pascal": "Pascal, which has no matrix unit",
}


def _gpu_key(name: str) -> str:
    key = re.sub(r"[\s_\-.]", "", name.lower())
    return re.sub(r"^(nvidia|amd|geforce|instinct|tesla)+", "", key)


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
    if key in _UNMODELLED_ALIASES:
        raise ValueError(
            f"{name!r} is {_UNMODELLED_ALIASES[key]}, which bitmma does not model; "
            f"modelled are {', '.join(GPUS)}"
        )
    near = difflib.get_close_matches(key, _GPU_ALIASES, n=1)
    hint = f"; did you mean {_GPU_ALIASES[near[0]]}?" if near else ""
    raise ValueError(f"unknown GPU {name!r}; modelled are {', '.join(GPUS)}{hint}")


# --- units: how each GPU's T-FDPA works ---------------------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    """T-FDPA of one GPU for some operand formats; L = min(k, row_bytes / operand bytes)."""

    row_bytes: int
    F: int
    rho: Conversion
    e_zero: int
    e_zero_f16: int

    def model(self, k: int, operand_bytes: int, d: str) -> TFDPA:
        L = min(k, self.row_bytes // operand_bytes)
        if d == "f16":
            return TFDPA(L, self.F, RNE_FP16, self.e_zero_f16)
        return TFDPA(L, self.F, self.rho, self.e_zero)


_HALF = ("f16", "bf16", "tf32")
_FP8 = ("e4m3", "e5m2")
_NARROW = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")

_V = _Unit(8, 23, RZ_FP32, -131, -19)
_T = _Unit(16, 24, RZ_FP32, -132, -20)
_ADA8 = _Unit(16, 13, RZ_E8M13, -132, -20)
_H = _Unit(32, 25, RZ_FP32, -133, -21)
_H8 = _Unit(32, 13, RZ_E8M13, -133, -21)

# (GPU, operand formats): the unit. arXiv 2511.10909v2, table 5.
_UNITS: Mapping[tuple[str, tuple[str, ...]], _Unit] = {
    ("Volta", _HALF): _V,
    ("Turing", _HALF): _T,
    ("Ampere", _HALF): _T,
    ("Ada Lovelace", _HALF): _T,
    ("Ada Lovelace", _FP8): _ADA8,
    ("Hopper", _HALF): _H,
    ("Hopper", _FP8): _H8,
    ("Blackwell", _HALF): _H,
    ("Blackwell", _NARROW): _H,
    ("RTX Blackwell", _HALF): _H,
    ("RTX Blackwell", _NARROW): _H,
}


def _unit(gpu_name: str, a: str) -> _Unit:
    return next(u for (g, kinds), u in _UNITS.items() if g == gpu_name and a in kinds)


def _operand_bytes(a: str) -> int:
    return max(8, formats.get(a).width) // 8


# --- NVIDIA: which instructions exist --------------------------------------------------------------------

_FROM_AMPERE = ("Ampere", "Ada Lovelace", "Hopper", "Blackwell", "RTX Blackwell")
_FROM_TURING = ("Turing", *_FROM_AMPERE)


@dataclass(frozen=True)
class _Row:
    """One row of PTX: shapes x types on some GPUs. ``types``: (d, a, b, c)."""

    op: str
    gpus: tuple[str, ...]
    shapes: tuple[str, ...]
    types: tuple[tuple[str, str, str, str], ...]
    kind: str = ""
    block: int | None = None
    scales: tuple[str, ...] = ()


def _types(d: Iterable[str], ab: Iterable[str], *, mixed: bool = True) -> tuple[tuple[str, ...], ...]:
    ab = tuple(ab)
    pairs = product(ab, ab) if mixed else zip(ab, ab, strict=True)
    return tuple((x, a, b, x) for (a, b), x in product(pairs, tuple(d)))


_F16 = (("f32", "f16", "f16", "f32"), ("f16", "f16", "f16", "f16"))
_BF16 = (("f32", "bf16", "bf16", "f32"),)
_TF32 = (("f32", "tf32", "tf32", "f32"),)
_F64 = (("f64", "f64", "f64", "f64"),)
_BOTH = ("f32", "f16")


def _n(low: int, high: int) -> range:
    """N from ``low`` to ``high`` in steps of ``low``."""
    return range(low, high + 1, low)


def _shapes(k: int) -> tuple[str, ...]:
    """tcgen05: M = 64 with N = 8, 16, ... 256 and M = 128 with N = 16, 32, ... 256."""
    return tuple(f"m64n{n}k{k}" for n in _n(8, 256)) + tuple(f"m128n{n}k{k}" for n in _n(16, 256))


def _wgmma(k: int) -> tuple[str, ...]:
    return tuple(f"m64n{n}k{k}" for n in _n(8, 256))


def _scaled(k: int) -> tuple[str, ...]:
    return tuple(f"m128n{n}k{k}" for n in _n(8, 256))


def _block_scale(op: str, gpu_name: str, shapes32: tuple[str, ...], shapes64: tuple[str, ...]):  # type: ignore[no-untyped-def]
    fp4 = _types(("f32",), ("e2m1",))
    return (
        _Row(op, (gpu_name,), shapes32, _types(("f32",), _NARROW), "mxf8f6f4", 32, ("ue8m0",)),
        _Row(op, (gpu_name,), shapes64, fp4, "mxf4", 32, ("ue8m0",)),
        _Row(op, (gpu_name,), shapes64, fp4, "mxf4nvf4", 32, ("ue8m0",)),
        _Row(op, (gpu_name,), shapes64, fp4, "mxf4nvf4", 16, ("ue8m0", "ue4m3")),
    )


_FP8_MMA = ("Ada Lovelace", "Hopper", "Blackwell", "RTX Blackwell")

_NVIDIA: tuple[_Row, ...] = (
    _Row("mma", ("Volta", "Turing"), ("m8n8k4",),
         (_F16[0], ("f32", "f16", "f16", "f16"), _F16[1])),
    _Row("mma", _FROM_TURING, ("m16n8k8",), _F16),
    _Row("mma", _FROM_AMPERE, ("m16n8k16",), _F16),
    _Row("mma", _FROM_AMPERE, ("m16n8k8", "m16n8k16"), _BF16),
    _Row("mma", _FROM_AMPERE, ("m16n8k4", "m16n8k8"), _TF32),
    _Row("mma", _FROM_AMPERE, ("m8n8k4",), _F64),
    _Row("mma", ("Hopper", "Blackwell", "RTX Blackwell"), ("m16n8k4", "m16n8k8", "m16n8k16"), _F64),
    _Row("mma", _FP8_MMA, ("m16n8k16", "m16n8k32"), _types(_BOTH, _FP8)),
    _Row("mma", ("RTX Blackwell",), ("m16n8k32",), _types(_BOTH, _NARROW), "f8f6f4"),
    *_block_scale("mma", "RTX Blackwell", ("m16n8k32",), ("m16n8k64",)),
    _Row("wgmma", ("Hopper",), _wgmma(8), _TF32),
    _Row("wgmma", ("Hopper",), _wgmma(16), (*_F16, *_BF16)),
    _Row("wgmma", ("Hopper",), _wgmma(32), _types(_BOTH, _FP8)),
    _Row("tcgen05", ("Blackwell",), _shapes(8), _TF32, "tf32"),
    _Row("tcgen05", ("Blackwell",), _shapes(16), (*_F16, *_BF16), "f16"),
    _Row("tcgen05", ("Blackwell",), _shapes(32), _types(_BOTH, _NARROW), "f8f6f4"),
    *_block_scale("tcgen05", "Blackwell", _scaled(32), _scaled(64)),
)  # fmt: skip


def _nvidia() -> Iterator[Entry]:
    for row in _NVIDIA:
        for gpu_name, shape, (d, a, b, c), scale in product(
            row.gpus, row.shapes, row.types, row.scales or (None,)
        ):
            m, n, k = map(int, re.findall(r"\d+", shape))
            parts = [
                shape,
                f"kind::{row.kind}" if row.kind else None,
                f"block{row.block}" if row.block else None,
                d, a, b,
                c if row.op == "mma" else None,
                scale,
            ]  # fmt: skip
            yield _entry(
                gpu_name, row.op, ".".join(p for p in parts if p), (m, n, k), (a, b, c, d), scale,
                row.block, _nvidia_model(row, gpu_name, m, k, a, d),
            )  # fmt: skip


def _nvidia_model(row: _Row, gpu_name: str, m: int, k: int, a: str, d: str) -> Model:
    if row.block:
        return STFDPA() if k == 32 else GSTFDPA()
    if d == "f64":
        return FMA(RNE_FP64)
    if row.op == "mma" and a in _FP8 and gpu_name in ("Hopper", "Blackwell"):
        # The compiler makes these of two f16 instructions of half the k: the SASS of nvcc 13.0.
        return Lowered(K=k, unit=_unit(gpu_name, "f16").model(k // 2, 2, d))
    if m == 8 and k == 4:  # Turing runs Volta's instruction with Volta's arithmetic
        gpu_name = "Volta"
    return _unit(gpu_name, a).model(k, _operand_bytes(a), d)


# --- AMD: which instructions exist -------------------------------------------------------------------------

_CDNA1 = (
    "f32_{32x32x2,32x32x1,16x16x4,16x16x1,4x4x1}f32 "
    "f32_{32x32x8,32x32x4,16x16x16,16x16x4,4x4x4}f16 "
    "f32_{32x32x4,32x32x2,16x16x8,16x16x2,4x4x2}bf16 "
)
_AMD: Mapping[str, str] = {
    "CDNA1": _CDNA1,
    "CDNA2": _CDNA1 + "f64_{16x16x4,4x4x4}f64 "
    "f32_{32x32x8,32x32x4,16x16x16,16x16x4,4x4x4}bf16_1k",
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


def _amd() -> Iterator[Entry]:
    for gpu_name, patterns in _AMD.items():
        for name in (n for p in patterns.split() for n in _expand(p)):
            m, n, k = map(int, re.findall(r"(\d+)x(\d+)x(\d+)", name)[0])
            types = re.findall(r"bf16|xf32|f16|f32|f64|fp8|bf8", name)
            d, a, b = types[0], types[1], types[-1]
            yield _entry(
                gpu_name, "mfma", name, (m, n, k), (a, b, d, d), None, None,
                _amd_model(gpu_name, a, d, k, one_k=name.endswith("_1k")),
            )  # fmt: skip


def _amd_model(gpu_name: str, a: str, d: str, k: int, *, one_k: bool) -> Model:
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


# --- provenance ---------------------------------------------------------------------------------------------

_PAPER = "Xie et al., arXiv 2511.10909v2"
_KM = "Khattak and Mikaitis, arXiv 2512.07004"
_SASS = "SASS of nvcc 13.0"

# (GPU, op, operand format, d): the chips whose recorded outputs agree. Each recording is 1,000 dot
# products of the model's group length; operand formats of A and B are the same.
_RECORDED: Mapping[tuple[str, str, str, str], str] = {
    ("Volta", "mma", "f16", "f32"): "V100",
    ("Volta", "mma", "f16", "f16"): "V100",
    **{("Ampere", "mma", a, "f32"): "A100, A2" for a in _HALF},
    ("Ampere", "mma", "f16", "f16"): "A100, A2",
    **{("Ada Lovelace", "mma", a, "f32"): "RTX Ada, L40S" for a in (*_HALF, *_FP8)},
    ("Ada Lovelace", "mma", "f16", "f16"): "RTX Ada, L40S",
    **{("Ada Lovelace", "mma", a, "f16"): "RTX Ada" for a in _FP8},
    **{("Hopper", "mma", a, "f32"): "H100, H200" for a in _HALF},
    **{("Hopper", "mma", a, "f16"): "H100, H200" for a in ("f16", *_FP8)},
    **{("Hopper", "wgmma", a, "f32"): "H100, H200" for a in _FP8},
    **{("Blackwell", "mma", a, "f32"): "B200" for a in (*_HALF, *_FP8)},
    **{("Blackwell", "mma", a, "f16"): "B200" for a in ("f16", *_FP8)},
}


def _entry(
    gpu_name: str, op: str, name: str, mnk: tuple[int, int, int],
    types: tuple[str, str, str, str], scale: str | None, block: int | None, model: Model,
) -> Entry:  # fmt: skip
    provenance = _provenance(gpu_name, op, mnk, types, scale, model)
    return Entry(gpu_name, op, name, *mnk, *types, scale, block, model, provenance)


def _provenance(
    gpu_name: str, op: str, mnk: tuple[int, int, int], types: tuple[str, str, str, str],
    scale: str | None, model: Model,
) -> Provenance:  # fmt: skip
    a, b, c, d = types
    lowered_f64 = d == "f64" and gpu_name in ("Blackwell", "RTX Blackwell") and mnk[0] == 16
    own: tuple[Level, str] = ("published", _PAPER)
    if isinstance(model, Lowered) or lowered_f64:
        own = ("derived", _SASS)
    family = own if not lowered_f64 else ("published", _PAPER)
    chips = {
        o: _RECORDED[(gpu_name, o, f, d)]
        for o in OPS
        for f in (a, b)
        if (gpu_name, o, f, d) in _RECORDED and (isinstance(model, Lowered) or not scale)
    }
    if isinstance(model, Lowered) and not chips:  # f32 output on Hopper: its f16 output is recorded
        other = _RECORDED.get((gpu_name, "mma", a, "f16"))
        if other:
            family = ("recorded", f"{other}, f16 output, {_KM}")
    if chips and not scale:
        where = ", ".join(f"{g} through {o}" if o != op else g for o, g in chips.items())
        same_model = isinstance(model, Lowered) or not (
            gpu_name == "Hopper" and a in _FP8 and op == "wgmma" and d == "f16"
        )  # Hopper's recorded FP8 with f16 output is mma.sync, which is lowered: another model
        if same_model and not (gpu_name == "Hopper" and a in _FP8 and "wgmma" not in chips
                               and op == "wgmma"):  # fmt: skip
            family = ("recorded", f"{where}, {_KM}")
        lengths_agree = not (isinstance(model, Lowered) and mnk[2] == 16)
        if op in chips and a == b and c == d and lengths_agree:
            own = ("recorded", f"{chips[op]}, {_KM}")
    return Provenance(*own, *family)


# --- look-up ----------------------------------------------------------------------------------------------------


@functools.cache
def catalogue() -> tuple[Entry, ...]:
    """Every instruction of every GPU, in the tables' order, GPU by GPU."""
    entries = [*_nvidia(), *_amd()]
    return tuple(sorted(entries, key=lambda e: GPUS.index(e.gpu)))


@functools.cache
def _index() -> Mapping[tuple[str, str], Entry]:
    index: dict[tuple[str, str], Entry] = {}
    for e in catalogue():
        index.setdefault((e.gpu, _name_key(e.name)), e)
    return index


_BLOCK_OF = {("32", "1x"): "32", ("64", "2x"): "32", ("64", "4x"): "16"}


def _name_key(name: str) -> str:
    """What is left of a name once everything optional is taken off."""
    key = name.strip().lower()
    for op, mnemonic in _MNEMONIC.items():
        key = key.removeprefix(mnemonic).removeprefix(f"{op}.")
    key = key.removeprefix("sync.aligned.").removeprefix("mfma_")
    key = re.sub(r"\.(row\.col|sync\.aligned|cta_group::\d)\b", "", key)
    key = re.sub(r"^(cta_group::\d\.)", "", key)
    vec = re.search(r"\.scale_vec::(\dx)", key)
    shape_k = re.search(r"^m\d+n\d+k(\d+)", key)
    key = re.sub(r"\.scale_vec::\dx|\.block_scale|\.block(16|32)\b", _keep_block, key)
    if vec and shape_k and (shape_k[1], vec[1]) in _BLOCK_OF:
        block = _BLOCK_OF[shape_k[1], vec[1]]
        key = re.sub(r"(kind::\w+)", rf"\1.block{block}", key, count=1)
    elif re.search(r"kind::(mxf8f6f4|mxf4)\.(?!block)", key):
        key = re.sub(r"(kind::\w+)", r"\1.block32", key, count=1)  # the only one there is
    if re.match(r"f\d\d_\d", key):  # AMD: CDNA3 writes f32_32x32x4_2b_f16 for CDNA1's f32_32x32x4f16
        key = re.sub(r"_\d+b(?=_|$)", "", key)
        key = re.sub(r"(x\d+)_(?=[a-z])", r"\1", key)
    return key


def _keep_block(match: re.Match[str]) -> str:
    return match[0] if re.fullmatch(r"\.block(16|32)", match[0]) else ""


def find(gpu_name: str, name: str, op: str | None = None) -> Entry:
    """One instruction by GPU and name.

    The name may carry its mnemonic, ``.sync.aligned``, ``.row.col`` and, for block scaling,
    ``.block_scale`` with ``.scale_vec::NX`` in place of ``.blockN``.

    Raises:
        TypeError: a name that is no string.
        ValueError: an unknown GPU; a GPU that lacks the instruction (the message says which have
            it); an unknown name (the message gives the nearest).
    """
    generation = gpu(gpu_name)
    if not isinstance(name, str):
        raise TypeError(f"an instruction is named by a string, not {name!r}")
    key = _name_key(name)
    entry = _index().get((generation, key))
    if entry is not None and op in (None, entry.op):
        return entry
    having = [g for g in GPUS if (g, key) in _index() and op in (None, _index()[g, key].op)]
    if having:
        raise ValueError(f"{generation} has no instruction {name!r}; {', '.join(having)} have it")
    names = {k: e.name for (g, k), e in _index().items() if g == generation and op in (None, e.op)}
    near = [names[k] for k in difflib.get_close_matches(key, names, n=3, cutoff=0.5)]
    hint = f"; the nearest are {', '.join(near)}" if near else ""
    kind = f"{op} instruction" if op else "instruction"
    raise ValueError(f"{generation} has no {kind} {name!r}{hint}")


def select(
    *,
    gpu_name: str | None = None,
    op: str | None = None,
    any_format: str | None = None,
    **types: str | int | None,
) -> Sequence[Entry]:
    """The instructions that fit every condition given; formats by any of their names.

    Args:
        gpu_name: a GPU's name. op: mma, wgmma, tcgen05 or mfma.
        any_format: a format that A, B, C, D or the scales have.
        types: wanted values of the fields a, b, c, d, scale, m, n, k, block.
    """
    if op is not None and op not in OPS:
        raise ValueError(f"op is one of {', '.join(OPS)}, not {op!r}")
    entries: Iterable[Entry] = catalogue()
    if gpu_name is not None:
        generation = gpu(gpu_name)
        entries = (e for e in entries if e.gpu == generation)
    if op is not None:
        entries = (e for e in entries if e.op == op)
    if any_format is not None:
        wanted_format = formats.get(any_format).name
        entries = (e for e in entries if wanted_format in (e.a, e.b, e.c, e.d, e.scale))
    for field, value in types.items():
        if value is None:
            continue
        wanted = formats.get(value).name if isinstance(value, str) else value
        entries = [e for e in entries if getattr(e, field) == wanted]
    return tuple(entries)
