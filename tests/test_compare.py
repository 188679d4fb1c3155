"""One input on every unit: the table of the six answers, in full, and what `compare` promises."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import pickle
import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bitmma import engine, formats, isa, reference
from bitmma.analysis import Comparison, answers, compare

FIRST = (("f16", "f16"), ("bf16", "bf16"), ("tf32", "tf32"))
F16, E5M2 = FIRST[:1], (("e5m2", "e5m2"),)

# answer -> (GPU, op, operand pairs, scale, which names): arithmetic.md's table, row by row.
SIX_ANSWERS: dict[float, list[tuple[str, str, tuple[tuple[str, str], ...], str | None, str]]] = {
    # f64/f32 and CDNA1
    -0.875: [
        *((g, "mma", (("f64", "f64"),), None, "")
          for g in ("Ampere", "Ada Lovelace", "Hopper", "Blackwell", "RTX Blackwell")),
        ("CDNA1", "mfma", (("f32", "f32"), ("f16", "f16"), ("bf16", "bf16")), None, ""),
        ("CDNA2", "mfma", (("f32", "f32"), ("f64", "f64")), None, ""),
        ("CDNA3", "mfma", (("f32", "f32"), ("f64", "f64")), None, ""),
    ],
    # Volta f16 (and its m8n8k4 on Turing), CDNA2 f16 and bf16_1k, Ada FP8, Hopper wgmma FP8,
    # lowered FP8 mma.sync on Hopper and Blackwell
    0.0: [
        ("Volta", "mma", F16, None, ""),
        ("Turing", "mma", F16, None, r"^m8n8k4"),
        ("CDNA2", "mfma", F16, None, ""),
        ("CDNA2", "mfma", (("bf16", "bf16"),), None, r"_1k$"),
        ("Ada Lovelace", "mma", E5M2, None, ""),
        ("Hopper", "wgmma", E5M2, None, ""),
        ("Hopper", "mma", E5M2, None, ""),
        ("Blackwell", "mma", E5M2, None, ""),
    ],
    # CDNA2 bf16
    -0.375: [("CDNA2", "mfma", (("bf16", "bf16"),), None, r"bf16$")],
    # Turing, Ampere, Ada, CDNA3 f16 bf16 tf32
    -0.5: [
        ("Turing", "mma", F16, None, r"^m16n8k8"),
        ("Ampere", "mma", FIRST, None, ""),
        ("Ada Lovelace", "mma", FIRST, None, ""),
        ("CDNA3", "mfma", (*FIRST[:2], ("xf32", "xf32")), None, ""),
    ],
    # Hopper, Blackwell, RTX Blackwell f16 bf16 tf32, Blackwell tcgen05 and RTX Blackwell FP8,
    # MX e5m2 with unit scales
    -0.75: [
        ("Hopper", "mma", FIRST, None, ""),
        ("Hopper", "wgmma", FIRST, None, ""),
        ("Blackwell", "mma", FIRST, None, ""),
        ("Blackwell", "tcgen05", (*FIRST, *E5M2), None, ""),
        ("RTX Blackwell", "mma", (*FIRST, *E5M2), None, ""),
        ("Blackwell", "tcgen05", E5M2, "ue8m0", ""),
        ("RTX Blackwell", "mma", E5M2, "ue8m0", ""),
    ],
    # CDNA3 bf8
    -1.0: [("CDNA3", "mfma", (("bf8", "bf8"),), None, "")],
}  # fmt: skip


def all_families() -> set[tuple[str, str, str]]:
    return {(e.gpu, e.op, e.family) for e in isa.catalogue()}


def key(e: isa.Entry) -> tuple[str, str, str]:
    return e.gpu, e.op, e.family


def test_the_six_answers_in_full() -> None:
    result = compare()
    assert [x.value for x in result.answers] == [-1.0, -0.875, -0.75, -0.5, -0.375, 0.0]
    assert math.copysign(1, result.answers[-1].value) == 1
    for answer in result.answers:
        expected = {
            key(e)
            for gpu, op, pairs, scale, name in SIX_ANSWERS[answer.value]
            for e in isa.catalogue()
            if (e.gpu, e.op, e.scale) == (gpu, op, scale)
            and (e.a, e.b) in pairs
            and e.c != "f16"  # which cannot hold 2^23
            and re.search(name, e.name)
        }
        assert {key(e) for e in answer.instructions} == expected, answer.value
        # No row of the table is without instructions.
        for row in SIX_ANSWERS[answer.value]:
            assert any((e.gpu, e.op, e.scale) == (row[0], row[1], row[3])
                       and (e.a, e.b) in row[2] for e in answer.instructions), row  # fmt: skip


def test_the_six_answers_leave_out_what_cannot_hold_the_values() -> None:
    result = compare()
    answered = [key(e) for x in result.answers for e in x.instructions]
    left_out = [key(e) for e in result.left_out]
    assert len(answered) == len(set(answered)) and len(left_out) == len(set(left_out))
    assert set(answered) | set(left_out) == all_families()
    assert not set(answered) & set(left_out)
    for e in result.left_out:
        largest = [formats.decode(formats.get(f).code_dtype.type(formats.get(f).max_code), f)
                   for f in (e.a, e.b, e.c)]  # fmt: skip
        assert largest[0] < 2**13 or largest[1] < 2**10 or largest[2] < 2**23


def test_the_table_as_text() -> None:
    assert (
        str(compare())
        == """\
a = -8192, -0.5, -0.25, -0.125
b = 1024, 1, 1, 1
c = 8388608

     d  GPU            instructions
    -1  CDNA3          mfma bf8_bf8
-0.875  Ampere         mma f64
        Ada Lovelace   mma f64
        Hopper         mma f64
        Blackwell      mma f64
        RTX Blackwell  mma f64
        CDNA1          mfma f32 f16 bf16
        CDNA2          mfma f32 f64
        CDNA3          mfma f64 f32
 -0.75  Hopper         mma f16 bf16 tf32; wgmma tf32 f16 bf16
        Blackwell      mma f16 bf16 tf32; tcgen05 tf32 f16 bf16 e5m2 e5m2+ue8m0
        RTX Blackwell  mma f16 bf16 tf32 e5m2 e5m2+ue8m0
  -0.5  Turing         mma m16n8k8.f32.f16.f16.f32
        Ampere         mma f16 bf16 tf32
        Ada Lovelace   mma f16 bf16 tf32
        CDNA3          mfma xf32 f16 bf16
-0.375  CDNA2          mfma bf16
     0  Volta          mma f16
        Turing         mma m8n8k4.f32.f16.f16.f32
        Ada Lovelace   mma e5m2
        Hopper         mma e5m2; wgmma e5m2
        Blackwell      mma e5m2
        CDNA2          mfma f16 bf16_1k

128 kinds of instruction, 6 answers; +ue8m0, +ue4m3: block-scaled, with unit scales; 290 cannot \
hold the values."""
    )


def test_answers_are_the_reference_s() -> None:
    """Every instruction, chained or padded to seven terms, against `reference`."""
    a, b, c = [1.5, -2, 0.5, 3, -1, 2, 0.5], [2, 1, -0.5, 1, 0.5, 1.5, -4], 0.5
    result = compare(a, b, c)
    checked = 0
    for answer in result.answers:
        for e in answer.instructions:
            pad = [0.0] * (-len(a) % e.k)
            codes = [
                formats.quantize(np.array(x), f).view(formats.get(f).code_dtype).tolist()
                for x, f in (([*a, *pad], e.a), ([*b, *pad], e.b), ([c], e.c))
            ]
            scales: dict[str, Any] = {}
            if e.scale and e.block:
                unit = [{"ue8m0": 127, "ue4m3": 0x38}[e.scale]] * (len(codes[0]) // e.block)
                scales = {"scale_format": e.scale, "block": e.block}
                scales |= {"scale_a": unit, "scale_b": unit}
            code = reference.chain(
                e.model, codes[0], codes[1], codes[2][0], k=e.k,
                a_format=e.a, b_format=e.b, c_format=e.c, **scales,
            )  # fmt: skip
            d = formats.get(e.d).code_dtype.type(code)
            assert float(formats.decode(d, e.d)) == answer.value, e.name
            checked += 1
    # Only what cannot be chained is left out: FP16 c, FP32 d, k = 4.
    assert {e.name for e in result.left_out} == {"m8n8k4.f32.f16.f16.f16"}
    assert checked == len(all_families()) - len(result.left_out)


def test_one_engine_call_for_each_model_and_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Counted:
        @staticmethod
        def mma(model: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(model)
            return engine.mma(model, *args, **kwargs)

    monkeypatch.setattr(answers, "engine", Counted)
    compare([1, 1], [1, 1])
    distinct = {(e.model, e.a, e.b, e.c, e.k, e.scale, e.block) for e in isa.catalogue()}
    assert len(calls) == len(distinct) < 200


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        ([-(2.0**13), -0.5, -0.25, -0.125], [1024, 1, 1, 1], 2**23),
        (["-0x1p13", "-.5", "-25e-2", "-0.125"], ["1024.0", "1", "1", "0x1p+0"], "8388608"),
        (np.array([-8192, -0.5, -0.25, -0.125], np.float16), (1024, 1, 1, 1), np.float32(2**23)),
    ],
)
def test_however_the_numbers_are_written(a: Any, b: Any, c: Any) -> None:
    assert compare(a, b, c) == compare()


def test_a_c_of_its_own() -> None:
    assert compare(c=0).c == 0 and compare(c=0) != compare()
    assert compare([1], [1]).c == 0


def test_only_the_gpus_asked_for() -> None:
    whole = compare()
    for gpus in ("H100", ["sm_90"], ("Hopper", "MI300X")):
        names = {isa.gpu(g) for g in ([gpus] if isinstance(gpus, str) else gpus)}
        some = compare(gpu=gpus)
        wanted = [(x.value, [e for e in x.instructions if e.gpu in names]) for x in whole.answers]
        assert [(x.value, list(x.instructions)) for x in some.answers] == [
            w for w in wanted if w[1]
        ]
        assert list(some.left_out) == [e for e in whole.left_out if e.gpu in names]
    with pytest.raises(ValueError, match="H101"):
        compare(gpu="H101")


def test_long_values_are_shown_as_codes() -> None:
    x = compare(["0.1", "1"], ["0.5", "1"], gpu="H100")
    assert x.rounded == ("0.1",) and x.to_dict()["rounded"] == ["0.1"]
    assert x.answers[0].codes == {"f64": "0x3ff0cccccccccccd"}
    lines = str(x).splitlines()
    assert lines[0] == "a = 0.1, 1"
    assert lines[5:7] == ["                ≈ 1.05  Hopper  mma f64", "f64 0x3ff0cccccccccccd"]
    assert lines[-1].endswith("; 0.1 is no binary number, the nearest f64 was taken.")
    for held in ([0.1], ["0x1.999999999999ap-4"], ["1e2"], ["-.5"], ["0e99999999"], ["inf"]):
        assert compare(held, ["1"], gpu="H100").rounded == ()
    # A value of several output formats has a code in each; NaN, which has many, none.
    assert compare(["1"], ["1"], gpu="H100").answers[0].codes == {
        "f32": "0x3f800000", "f16": "0x3c00", "f64": "0x3ff0000000000000",
    }  # fmt: skip
    assert compare(["nan"], ["1"], gpu="H100").answers[0].codes == {}


def test_long_inputs_are_folded() -> None:
    lines = str(compare([1.5] * 30 + [2**-11] + [3] * 3, [*range(34)], gpu="A100")).splitlines()
    assert lines[0] == "a = 1.5 ×30, 0x1p-11, 3, 3, 3"
    assert lines[1] == "b = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … (34 in all)"


def test_what_only_double_holds_is_asked_of_double_only() -> None:
    assert {e.a for x in compare([1e300], [1]).answers for e in x.instructions} == {"f64"}


def test_zeros_and_nans_are_told_apart() -> None:
    assert [x.value.hex() for x in compare([0.0], [1.0]).answers] == ["0x0.0p+0"]
    # c = -0: IEEE's fma keeps it, T-FDPA never returns it.
    zeros = compare(["-0"], ["1"], "-0")
    assert {x.value.hex() for x in zeros.answers} == {"0x0.0p+0", "-0x0.0p+0"}
    nans = compare(["inf", 1], [0, 1])
    assert len(nans.answers) == 1 and math.isnan(nans.answers[0].value)
    # No Inf in e4m3 and its kin, neither Inf nor NaN in fp6 and fp4: left out.
    assert not {"e4m3", "fp8", "e2m1"} & {e.a for e in nans.answers[0].instructions}
    assert nans == compare(["inf", 1], [0, 1]) and hash(nans) == hash(compare(["inf", 1], [0, 1]))


def test_results_are_values() -> None:
    x = compare()
    assert pickle.loads(pickle.dumps(x)) == x and hash(x) == hash(compare())
    assert x != compare([1], [1])
    nan = compare([math.nan], [1])
    assert pickle.loads(pickle.dumps(nan)) == nan
    assert x.answers[0].gpus == ("CDNA3",)
    assert x.answers[0].families == (
        ("CDNA3", "f32_16x16x32_bf8_bf8"),
        ("CDNA3", "f32_32x32x16_bf8_bf8"),
    )
    with pytest.raises(AttributeError):
        x.c = 1.0  # type: ignore[misc]


def test_data_and_tables_say_the_same() -> None:
    x: Comparison = compare([math.inf, 1, 2], [0, 1, 0.5], 1)
    data = json.loads(json.dumps(x.to_dict(), allow_nan=False))
    for answer, own in zip(data["answers"], x.answers, strict=True):
        for shown, e in zip(answer["instructions"], own.instructions, strict=True):
            assert shown["provenance"] == dataclasses.asdict(e.provenance)
            assert shown["nan"] == ("bits" if e.model.nan == "ones" else "any")
    assert data["a"] == ["inf", 1.0, 2.0] and data["answers"][0]["value"] == "nan"
    assert sum(len(v["instructions"]) for v in data["answers"]) + len(data["left_out"]) == len(
        all_families()
    )
    for result in (x, compare()):
        out = io.StringIO()
        Console(file=out, width=80, color_system=None).print(result)
        assert max(map(len, out.getvalue().splitlines())) <= 80
        page = "".join(ET.fromstring(f"<html>{result._repr_html_()}</html>").itertext())
        squeezed = sorted(re.sub(r"[\s─]", "", str(result)))
        assert sorted(re.sub(r"[\s─]", "", out.getvalue())) == squeezed
        assert sorted(re.sub(r"[\s─]", "", page)) == squeezed


def test_pairs_of_formats_are_drawn_together() -> None:
    text = str(compare([1], [1]))
    assert "Ada Lovelace   mma f16 bf16 tf32 f64 {e4m3,e5m2}×{e4m3,e5m2}" in text
    # 2^13 in a only: e5m2 there, any FP8 in b.
    assert "Ada Lovelace   mma f16 bf16 tf32 f64 e5m2×{e4m3,e5m2}" in str(compare([2**13], [1]))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([1], None), ValueError, ("a", "without b")),
        ((None, [1]), ValueError, ("b", "without a")),
        (([1, 2], [1]), ValueError, ("a has 2", "b has 1")),
        (([], []), ValueError, ("empty",)),
        ((["0x3c00"], [1]), ValueError, ("a", "0x3c00", "code", "0x3c00p0")),
        (([1], [1], "0X10"), ValueError, ("c", "0X10", "code")),
        ((["0.10000000000000001"], [1]), ValueError, ("a", "0.1", "not representable")),
        (([1], ["one"]), ValueError, ("b", "'one'")),
        (([1], [None]), TypeError, ("b", "None")),
        (([1], [1], [1]), TypeError, ("c",)),
        ((["1e400"], [1]), ValueError, ("a", "1e400", "not representable")),
        (([1], [1], "1e5000"), ValueError, ("c", "1e5000")),
    ],
)
def test_errors(arguments: Any, error: type[Exception], words: tuple[str, ...]) -> None:
    with pytest.raises(error) as raised:
        compare(*arguments)
    for word in words:
        assert word in str(raised.value)
