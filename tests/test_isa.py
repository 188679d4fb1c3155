"""The catalogue against spec/instructions.md, the golden vectors' names and the recordings."""

import dataclasses
import json
import pickle
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from bitmma import isa
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
    FTZMulAdd,
    Lowered,
    Model,
)

VECTORS = json.loads((Path(__file__).parent / "vectors" / "index.json").read_text())["instructions"]
OP_OF_VECTORS = {
    "mma": "mma",
    "mma_block_scale": "mma",
    "wgmma": "wgmma",
    "tcgen05mma": "tcgen05",
    "tcgen05mma_block_scale": "tcgen05",
    "mfma": "mfma",
}


# --- what exists --------------------------------------------------------------------------------


def test_counts() -> None:
    """Counted by hand from the tables of the PTX and CDNA manuals."""
    shapes = 32 + 16  # tcgen05: N of M = 64, N of M = 128
    scaled = 25 + 1 + 1 + 2  # mxf8f6f4, mxf4, mxf4nvf4 of blocks of 32 and of 16
    assert Counter((e.gpu, e.op) for e in isa.catalogue()) == {
        ("Volta", "mma"): 3,
        ("Turing", "mma"): 3 + 2,
        ("Ampere", "mma"): 2 + 1 + 2 + 2 + 2,
        ("Ada Lovelace", "mma"): 9 + 2 * 2 * 4,
        ("Hopper", "mma"): 9 + 3 + 16,
        ("Hopper", "wgmma"): 32 * (1 + 2 + 1 + 2 * 4),
        ("Blackwell", "mma"): 9 + 3 + 16,
        ("Blackwell", "tcgen05"): shapes * (1 + 2 + 1 + 2 * 25) + 32 * scaled,
        ("RTX Blackwell", "mma"): 9 + 3 + 16 + 2 * 25 + scaled,
        ("CDNA1", "mfma"): 15,
        ("CDNA2", "mfma"): 15 + 2 + 5,
        ("CDNA3", "mfma"): 2 + 5 + 2 + 10 + 8,
    }


def test_names_are_unique_and_found_again() -> None:
    seen = Counter((e.gpu, e.op, e.name) for e in isa.catalogue())
    assert max(seen.values()) == 1
    for e in isa.catalogue():
        assert isa.find(e.gpu, e.name) == e
        assert isa.find(e.gpu, e.full_name, e.op) == e


@pytest.mark.parametrize("row", VECTORS, ids=lambda row: row["file"].removesuffix(".npz"))
def test_every_name_of_the_golden_vectors(row: dict[str, Any]) -> None:
    e = isa.find(row["arch"], row["qualifier"], OP_OF_VECTORS[row["op"]])
    assert (e.gpu, e.name) == (row["arch"], row["qualifier"])
    for field in ("m", "n", "k", "a", "b", "c", "d", "scale", "block"):
        assert getattr(e, field) == row[field], field


def test_entries_are_values() -> None:
    for e in isa.catalogue()[::97]:
        assert pickle.loads(pickle.dumps(e)) == e
        assert hash(pickle.loads(pickle.dumps(e))) == hash(e)


# --- which model --------------------------------------------------------------------------------

V32, V16 = TFDPA(4, 23, RZ_FP32, -131), TFDPA(4, 23, RNE_FP16, -19)


def T(L: int, d: str = "f32") -> TFDPA:
    """Turing, Ampere and Ada."""
    return TFDPA(L, 24, RZ_FP32, -132) if d == "f32" else TFDPA(L, 24, RNE_FP16, -20)


def H(L: int, d: str = "f32", F: int = 25) -> TFDPA:
    """Hopper and the Blackwells."""
    rho = RZ_FP32 if F == 25 else RZ_E8M13
    return TFDPA(L, F, rho, -133) if d == "f32" else TFDPA(L, F, RNE_FP16, -21)


def lowered(K: int, d: str) -> Lowered:
    return Lowered(K, H(K // 2, d), ((0, 1), (2, 3)))


@pytest.mark.parametrize(
    ("gpu", "name", "model"),
    [
        ("Volta", "m8n8k4.f32.f16.f16.f32", V32),
        ("Volta", "m8n8k4.f32.f16.f16.f16", V32),
        ("Volta", "m8n8k4.f16.f16.f16.f16", V16),
        ("Turing", "m8n8k4.f32.f16.f16.f32", V32),
        ("Turing", "m8n8k4.f16.f16.f16.f16", V16),
        ("Turing", "m16n8k8.f32.f16.f16.f32", T(8)),
        ("Turing", "m16n8k8.f16.f16.f16.f16", T(8, "f16")),
        ("Ampere", "m16n8k16.f32.f16.f16.f32", T(8)),
        ("Ampere", "m16n8k16.f16.f16.f16.f16", T(8, "f16")),
        ("Ampere", "m16n8k8.f32.bf16.bf16.f32", T(8)),
        ("Ampere", "m16n8k8.f32.tf32.tf32.f32", T(4)),
        ("Ampere", "m16n8k4.f32.tf32.tf32.f32", T(4)),
        ("Ampere", "m8n8k4.f64.f64.f64.f64", FMA(RNE_FP64)),
        ("Ada", "m16n8k16.f32.bf16.bf16.f32", T(8)),
        ("Ada", "m16n8k32.f32.e4m3.e5m2.f32", TFDPA(16, 13, RZ_E8M13, -132)),
        ("Ada", "m16n8k16.f16.e5m2.e5m2.f16", TFDPA(16, 13, RNE_FP16, -20)),
        ("Hopper", "m16n8k16.f32.f16.f16.f32", H(16)),
        ("Hopper", "m16n8k8.f32.f16.f16.f32", H(8)),
        ("Hopper", "m16n8k8.f32.tf32.tf32.f32", H(8)),
        ("Hopper", "m16n8k4.f32.tf32.tf32.f32", H(4)),
        ("Hopper", "m16n8k16.f64.f64.f64.f64", FMA(RNE_FP64)),
        ("Hopper", "m16n8k32.f32.e4m3.e4m3.f32", lowered(32, "f32")),
        ("Hopper", "m16n8k16.f16.e4m3.e5m2.f16", lowered(16, "f16")),
        ("Hopper", "m64n128k8.f32.tf32.tf32", H(8)),
        ("Hopper", "m64n256k16.f16.f16.f16", H(16, "f16")),
        ("Hopper", "m64n8k32.f32.e4m3.e5m2", H(32, "f32", 13)),
        ("Hopper", "m64n8k32.f16.e5m2.e4m3", H(32, "f16", 13)),
        ("Blackwell", "m16n8k32.f16.e5m2.e5m2.f16", lowered(32, "f16")),
        ("Blackwell", "m16n8k8.f64.f64.f64.f64", FMA(RNE_FP64)),
        ("Blackwell", "m128n16k32.kind::f8f6f4.f32.e2m1.e3m2", H(32)),
        ("Blackwell", "m64n8k32.kind::f8f6f4.f16.e4m3.e4m3", H(32, "f16")),
        ("Blackwell", "m64n8k8.kind::tf32.f32.tf32.tf32", H(8)),
        ("Blackwell", "m128n8k32.kind::mxf8f6f4.block32.f32.e4m3.e2m1.ue8m0", STFDPA()),
        ("Blackwell", "m128n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3", GSTFDPA()),
        ("RTX Blackwell", "m16n8k32.f32.e4m3.e4m3.f32", H(32)),
        ("RTX Blackwell", "m16n8k16.f16.e4m3.e4m3.f16", H(16, "f16")),
        ("RTX Blackwell", "m16n8k32.kind::f8f6f4.f32.e3m2.e2m3.f32", H(32)),
        ("RTX Blackwell", "m16n8k64.kind::mxf4.block32.f32.e2m1.e2m1.f32.ue8m0", GSTFDPA()),
        ("CDNA1", "f32_16x16x4f32", FMA(RNE_FP32)),
        ("CDNA1", "f32_16x16x16f16", EFDPA(4)),
        ("CDNA1", "f32_16x16x8bf16", EFDPA(2)),
        ("CDNA2", "f64_16x16x4f64", FMA(RNE_FP64)),
        ("CDNA2", "f32_16x16x16f16", FTZMulAdd(4)),
        ("CDNA2", "f32_16x16x8bf16", FTZMulAdd(2)),
        ("CDNA2", "f32_16x16x16bf16_1k", FTZMulAdd(4)),
        ("CDNA3", "f32_16x16x8_xf32", TRFDPA(4)),
        ("CDNA3", "f32_16x16x16_f16", TRFDPA(8)),
        ("CDNA3", "f32_32x32x4_2b_bf16", TRFDPA(4)),  # L is at most k
        ("CDNA3", "f32_16x16x32_fp8_bf8", GTRFDPA(16)),
        ("CDNA3", "f32_32x32x1_2b_f32", FMA(RNE_FP32)),
    ],
)
def test_models(gpu: str, name: str, model: Model) -> None:
    assert isa.find(gpu, name).model == model


def test_the_defaults_are_the_published_parameters() -> None:
    assert STFDPA() == STFDPA(32, 25, RZ_FP32, -133)
    assert GSTFDPA() == GSTFDPA(64, 16, 35, RZ_FP32, -139)
    assert TRFDPA(8) == TRFDPA(8, 24, 31, RNE_FP32)
    assert GTRFDPA(16) == GTRFDPA(16, 24, 31, RNE_FP32)


def test_every_model_gives_the_entrys_output_and_fits_its_k() -> None:
    for e in isa.catalogue():
        assert e.model.d == e.d
        assert e.k % e.model.group == 0
        assert e.block is None or e.k % e.block == 0


# --- spellings ----------------------------------------------------------------------------------

MXF4 = "m16n8k64.kind::mxf4nvf4"


@pytest.mark.parametrize(
    ("gpu", "spelling", "name"),
    [
        ("sm_120a", "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X"
         ".f32.e2m1.e2m1.f32.ue4m3", f"{MXF4}.block16.f32.e2m1.e2m1.f32.ue4m3"),
        ("sm_120a", "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::2X"
         ".f32.e2m1.e2m1.f32.ue8m0", f"{MXF4}.block32.f32.e2m1.e2m1.f32.ue8m0"),
        ("RTX 5090", "m16n8k32.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e5m2.f32.ue8m0",
         "m16n8k32.kind::mxf8f6f4.block32.f32.e4m3.e5m2.f32.ue8m0"),
        ("RTX 5090", "m16n8k32.kind::mxf8f6f4.f32.e4m3.e5m2.f32.ue8m0",
         "m16n8k32.kind::mxf8f6f4.block32.f32.e4m3.e5m2.f32.ue8m0"),
        ("A100", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
         "m16n8k16.f32.bf16.bf16.f32"),
        ("A100", "m16n8k16.row.col.f32.f16.f16.f32", "m16n8k16.f32.f16.f16.f32"),
        ("a100", "  M16N8K16.F32.F16.F16.F32 ", "m16n8k16.f32.f16.f16.f32"),
        ("V100", "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32", "m8n8k4.f32.f16.f16.f32"),
        ("H100", "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", "m64n8k32.f32.e4m3.e4m3"),
        ("H100", "wgmma.mma_async.m64n8k32.f32.e4m3.e4m3", "m64n8k32.f32.e4m3.e4m3"),
        ("B200", "tcgen05.mma.m64n8k16.kind::f16.f32.f16.f16", "m64n8k16.kind::f16.f32.f16.f16"),
        ("B200", "tcgen05.mma.cta_group::1.m64n8k16.kind::f16.f32.f16.f16",
         "m64n8k16.kind::f16.f32.f16.f16"),
        ("B200", "m128n8k64.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.ue4m3",
         "m128n8k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1.ue4m3"),
        ("MI300X", "v_mfma_f32_16x16x16_f16", "f32_16x16x16_f16"),
        ("MI300X", "f32_16x16x16f16", "f32_16x16x16_f16"),
        ("MI300X", "f32_32x32x4_f16", "f32_32x32x4_2b_f16"),
        ("MI100", "v_mfma_f32_32x32x8f16", "f32_32x32x8f16"),
        ("MI100", "__builtin_amdgcn_mfma_f32_32x32x8f16", "f32_32x32x8f16"),
        ("MI250X", "__builtin_amdgcn_mfma_f64_16x16x4f64", "f64_16x16x4f64"),
        ("MI250X", "__builtin_amdgcn_mfma_f32_16x16x16bf16_1k", "f32_16x16x16bf16_1k"),
        ("MI300X", "__builtin_amdgcn_mfma_f32_16x16x16bf16_1k", "f32_16x16x16_bf16"),
        ("MI300X", "__builtin_amdgcn_mfma_f32_32x32x4bf16_1k", "f32_32x32x4_2b_bf16"),
        ("MI300X", "__builtin_amdgcn_mfma_f32_16x16x32_fp8_bf8", "f32_16x16x32_fp8_bf8"),
        ("MI300X", "__builtin_amdgcn_mfma_f32_16x16x8_xf32", "f32_16x16x8_xf32"),
        ("MI250X", "v_mfma_f32_32x32x8bf16_1k", "f32_32x32x8bf16_1k"),
    ],
)  # fmt: skip
def test_spellings(gpu: str, spelling: str, name: str) -> None:
    assert isa.find(gpu, spelling).name == name


@pytest.mark.parametrize(
    ("alias", "generation"),
    [
        ("Hopper", "Hopper"), ("hopper", "Hopper"), ("sm_90", "Hopper"), ("SM90a", "Hopper"),
        ("h100", "Hopper"), ("NVIDIA H200", "Hopper"), ("Ada", "Ada Lovelace"),
        ("ada lovelace", "Ada Lovelace"), ("Ada-Lovelace", "Ada Lovelace"),
        ("L40S", "Ada Lovelace"),
        ("sm_89", "Ada Lovelace"), ("GeForce RTX 4090", "Ada Lovelace"), ("sm_86", "Ampere"),
        ("A2", "Ampere"), ("RTX 3080", "Ampere"), ("sm_70", "Volta"), ("Tesla V100", "Volta"),
        ("T4", "Turing"), ("sm_75", "Turing"), ("B200", "Blackwell"), ("sm_100a", "Blackwell"),
        ("RTX Blackwell", "RTX Blackwell"), ("sm_120", "RTX Blackwell"),
        ("rtx5090", "RTX Blackwell"),
        ("MI300X", "CDNA3"), ("gfx942", "CDNA3"), ("AMD Instinct MI250X", "CDNA2"),
        ("Radeon Instinct MI100", "CDNA1"),
        ("gfx90a", "CDNA2"), ("gfx908", "CDNA1"), ("cdna1", "CDNA1"),
    ],
)  # fmt: skip
def test_gpu_aliases(alias: str, generation: str) -> None:
    assert isa.gpu(alias) == generation


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("sm_103", "sm_103"), ("B300", "sm_103"), ("gfx950", "CDNA4"), ("MI355X", "CDNA4"),
        ("RDNA3", "RDNA"), ("gfx1100", "RDNA"), ("sm_60", "Pascal"), ("sm_121", "GB10"),
        ("RX 7900", "a Radeon"), ("AMD Radeon RX 9070 XT", "a Radeon"), ("RX 580", "a Radeon"),
        ("Radeon Pro W7900", "a Radeon"), ("GTX 1650", "a GTX.*no matrix unit"),
        ("NVIDIA GeForce GTX 1080 Ti", "a GTX.*no matrix unit"), ("Tesla P40", "Pascal"),
        ("Instinct MI50", "GCN"), ("GB10", "GB10"), ("Thor", "Jetson Thor"),
    ],
)  # fmt: skip
def test_chips_that_are_not_modelled_say_so(name: str, what: str) -> None:
    with pytest.raises(ValueError, match=r"bitmma does not model.*modelled are Volta") as caught:
        isa.gpu(name)
    message = str(caught.value)
    assert re.search(what, message) and "did you mean" not in message
    # 'GB10' is GB10, which needs no saying.
    plain = name.lower().replace("_", "") in what.lower() or name in ("sm_103", "gfx950", "sm_121")
    assert message.startswith("bitmma does not" if plain else f"{name!r} is ")


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: isa.gpu("Hoper"), ValueError, "unknown GPU 'Hoper'.*did you mean Hopper"),
        (lambda: isa.gpu("TPU v5"), ValueError, "unknown GPU 'TPU v5'; modelled are Volta, Turing"),
        (lambda: isa.gpu(90), TypeError, "gpu must be a name such as 'H100', not 90"),
        (lambda: isa.find("H100", 3), TypeError, "an instruction is named by a string, not 3"),
        (lambda: isa.find("H100", "m16n8k16.f32.fp16.fp16.f32"), ValueError,
         "Hopper has no instruction 'm16n8k16.f32.fp16.*nearest.*m16n8k16.f32.f16.f16.f32"),
        (lambda: isa.find("A100", "m16n8k32.f32.e4m3.e4m3.f32"), ValueError,
         "Ampere has no instruction .*; Ada Lovelace, Hopper, Blackwell, RTX Blackwell have it"),
        (lambda: isa.find("V100", "m16n8k8.f32.f16.f16.f32"), ValueError,
         "Volta has no instruction .*; Turing, Ampere, .* have it"),
        (lambda: isa.find("H100", "m64n8k32.f32.e4m3.e4m3", "mma"), ValueError,
         "Hopper has no mma"),
        (lambda: isa.find("H100", "m64n8k32.f32.e4m3.e4m3", "mmma"), ValueError,
         "op is one of mma, wgmma, tcgen05, mfma"),
        (lambda: isa.find("MI100", "f32_16x16x16f17"), ValueError, "nearest are f32_16x16x16f16"),
        (lambda: isa.select(op="mmma"), ValueError, "op is one of mma, wgmma, tcgen05, mfma"),
        (lambda: isa.select(a="f17"), ValueError, "unknown format 'f17'"),
    ],
)  # fmt: skip
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_select() -> None:
    def names(**conditions: Any) -> list[str]:
        return [e.name for e in isa.select(**conditions)]

    assert names(gpu_name="V100") == [
        "m8n8k4.f32.f16.f16.f32", "m8n8k4.f32.f16.f16.f16", "m8n8k4.f16.f16.f16.f16",
    ]  # fmt: skip
    assert names(gpu_name="A100", a="float64") == ["m8n8k4.f64.f64.f64.f64"]
    assert names(gpu_name="MI300X", a="fp8", b="bf8") == [
        "f32_16x16x32_fp8_bf8", "f32_32x32x16_fp8_bf8",
    ]  # fmt: skip
    assert {e.gpu for e in isa.select(any_format="ue4m3")} == {"Blackwell", "RTX Blackwell"}
    assert {e.op for e in isa.select(gpu_name="sm_100", any_format="e4m3")} == {"mma", "tcgen05"}
    assert len(isa.select()) == len(isa.catalogue())
    assert isa.select(gpu_name="Volta", a="f64") == ()


def test_families_leave_n_open() -> None:
    families = {e.family for e in isa.select(gpu_name="Hopper", op="wgmma")}
    assert len(families) == 12 and "m64nNk32.f32.e4m3.e4m3" in families
    assert {e.family for e in isa.select(gpu_name="Volta")} == {
        e.name for e in isa.select(gpu_name="Volta")
    }


# --- provenance ---------------------------------------------------------------------------------

#: GPU, op, operand format of both A and B, output format: what index.json of the recordings lists.
RECORDED = {
    *(("Volta", "mma", "f16", d) for d in ("f32", "f16")),
    *((gpu, "mma", "f16", "f16") for gpu in ("Ampere", "Ada Lovelace", "Hopper", "Blackwell")),
    *((gpu, "mma", a, "f32") for gpu in ("Ampere", "Ada Lovelace", "Hopper", "Blackwell")
      for a in ("f16", "bf16", "tf32")),
    *(("Ada Lovelace", "mma", a, d) for a in ("e4m3", "e5m2") for d in ("f32", "f16")),
    *(("Hopper", "wgmma", a, "f32") for a in ("e4m3", "e5m2")),
    *(("Hopper", "mma", a, "f16") for a in ("e4m3", "e5m2")),
    *(("Blackwell", "mma", a, d) for a in ("e4m3", "e5m2") for d in ("f32", "f16")),
}  # fmt: skip
CHIPS = {
    "Volta": "V100", "Ampere": "A100, A2", "Ada Lovelace": "RTX Ada", "Hopper": "H100, H200",
    "Blackwell": "B200",
}  # fmt: skip


def is_recorded(e: isa.Entry) -> bool:
    """Operands of one type, c and d too, in groups as long as the recordings': of Hopper's and
    Blackwell's mma, no m16n8k8 (groups of 8; recorded were 16, of tf32 4), and k32 if lowered."""
    listed = (e.gpu, e.op, e.a, e.d) in RECORDED
    alike = e.a == e.b and e.c == e.d and e.scale is None
    other = e.gpu in ("Hopper", "Blackwell") and e.op == "mma" and e.k == 8
    return listed and alike and not other and not (isinstance(e.model, Lowered) and e.k != 32)


def test_recorded_is_said_exactly_where_there_is_a_recording() -> None:
    wrong = [
        (e.gpu, e.op, e.name, str(e.provenance))
        for e in isa.catalogue()
        if (e.provenance.level == "recorded") != is_recorded(e)
    ]
    assert wrong == []
    for e in filter(is_recorded, isa.catalogue()):
        assert CHIPS[e.gpu] in e.provenance.source
        assert f", {e.op} dot products of " in e.provenance.source


def test_what_was_recorded_in_other_groups_is_published() -> None:
    for gpu in ("Hopper", "Blackwell"):
        for types in ("f32.f16.f16.f32", "f16.f16.f16.f16", "f32.bf16.bf16.f32"):
            short = isa.find(gpu, f"m16n8k8.{types}").provenance
            assert (short.level, short.family_level) == ("published", "recorded")
            assert isa.find(gpu, f"m16n8k16.{types}").provenance.level == "recorded"
        tf32 = [isa.find(gpu, f"m16n8k{k}.f32.tf32.tf32.f32").provenance.level for k in (4, 8)]
        assert tf32 == ["recorded", "published"]
    for types in ("f32.f16.f16.f32", "f32.bf16.bf16.f32"):  # two groups of 8, as recorded
        assert isa.find("A100", f"m16n8k16.{types}").provenance.level == "recorded"


def test_the_list_of_recordings_is_the_index(recordings: Path) -> None:
    rows = json.loads((recordings / "index.json").read_text())
    assert len(rows) == 48
    assert {(r["arch"], r["op"], r["a"], r["d"]) for r in rows} == RECORDED
    assert all(r["a"] == r["b"] and r["c"] == r["d"] for r in rows)
    for r in rows:  # and the source names the very chip
        found = isa.select(gpu_name=r["gpu"], op=r["op"], a=r["a"], b=r["b"], c=r["c"], d=r["d"])
        sources = {e.provenance.source for e in found if is_recorded(e)}
        assert sources and all(r["gpu"] in source for source in sources), r["file"]
        assert all(f"{r['op']} dot products of {r['k']}, " in s for s in sources), r["file"]


def test_derived_is_what_was_read_from_machine_code() -> None:
    derived = {e for e in isa.catalogue() if e.provenance.level == "derived"}
    expected = {
        e for e in isa.catalogue()
        if (isinstance(e.model, Lowered) and not is_recorded(e))
        or (e.d == "f64" and e.m == 16 and e.gpu in ("Blackwell", "RTX Blackwell"))
    }  # fmt: skip
    assert derived == expected
    assert all("SASS" in e.provenance.source for e in derived)
    rest = [e for e in isa.catalogue() if e not in derived and not is_recorded(e)]
    assert all(e.provenance.level == "published" for e in rest)
    assert all("2511.10909" in e.provenance.source for e in rest)


def unit_of(e: isa.Entry) -> tuple[Any, ...]:
    """What instructions of one unit and model share: GPU, model, F, and kind of operands."""
    unit = getattr(e.model, "unit", e.model)
    wide = {"f64": "f64", "f32": "f32", "f16": "16", "bf16": "16", "tf32": "16", "xf32": "16"}
    return e.gpu, type(e.model), getattr(unit, "F", None), wide.get(e.a, "8")


def test_a_familys_evidence_is_of_its_own_unit() -> None:
    """No recording of another model speaks for an instruction: FP8 mma.sync of Hopper and of B200
    ran on the f16 unit, so it says nothing about wgmma or tcgen05 FP8, nor they about it."""
    recorded = {unit_of(e) for e in isa.catalogue() if is_recorded(e)}
    wrong = {
        (e.gpu, e.op, e.family, str(e.provenance))
        for e in isa.catalogue()
        if (e.provenance.family_level == "recorded") != (unit_of(e) in recorded)
    }
    assert not wrong, (len(wrong), sorted(wrong)[:8])


def test_a_familys_evidence_is_at_least_the_instructions_own() -> None:
    rank = {"derived": 0, "published": 1, "recorded": 2}
    for e in isa.catalogue():
        p = e.provenance
        assert rank[p.family_level] >= rank[p.level], e.name
        if p.level == "recorded":
            assert p.family_level == "recorded"


def test_provenance_is_the_same_for_every_n() -> None:
    by_family: dict[tuple[str, str, str], set[isa.Provenance]] = defaultdict(set)
    for e in isa.catalogue():
        by_family[e.gpu, e.op, e.family].add(e.provenance)
    assert all(len(found) == 1 for found in by_family.values())


def test_provenance_reads_well() -> None:
    p = isa.find("H100", "m16n8k16.f32.f16.f16.f32").provenance
    assert str(p).startswith("recorded (H100, H200, ") and "family" not in str(p)
    other = dataclasses.replace(p, level="published", source="a paper")
    assert str(other).startswith("published (a paper); family: recorded (H100")
