"""Bad input gets one clear line: the argument, what came, what is accepted."""

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bitmma
from bitmma import Epilogue, Schedule
from bitmma.models import (
    EFDPA,
    FMA,
    GSTFDPA,
    STFDPA,
    TFDPA,
    Conversion,
    FTZMulAdd,
    Lowered,
    Model,
)

F16 = bitmma.instruction("H100", "m16n8k16.f32.f16.f16.f32")
MX = bitmma.instruction("RTX Blackwell", "m16n8k32.kind::mxf8f6f4.block32.f32.e4m3.e5m2.f32.ue8m0")

A, B, C = np.zeros((16, 16), "f2"), np.zeros((16, 8), "f2"), np.zeros((16, 8), "f4")
MX_A = np.zeros((16, 32), ml_dtypes.float8_e4m3fn)
MX_B = np.zeros((32, 8), ml_dtypes.float8_e5m2)
S = ml_dtypes.float8_e8m0fnu
SA, SB = np.ones((16, 1), S), np.ones((1, 8), S)
F64 = bitmma.instruction("A100", "m8n8k4.f64.f64.f64.f64")
ONES = np.ones((16, 1), "f4")
PROMOTED: Any = {
    "schedule": Schedule(16), "promote_scale_a": ONES, "promote_block_a": (1, 16),
    "promote_block_b": (16, 8),
}  # fmt: skip


def matmul(*operands: Any, instruction: Any = F16, **more: Any) -> Any:
    return bitmma.matmul(*operands, instruction=instruction, **more)


def mma(model: Any = None, *operands: Any, a: Any = "f16", **more: Any) -> Any:
    return bitmma.mma(model or TFDPA(), *(operands or (A, B)), a=a, **more)


def deep(x: Any) -> Any:
    """With 31 leading dimensions."""
    return x.reshape((1,) * 31 + x.shape)


#: What is done, the error, and words of its message in their order.
CASES: dict[str, tuple[Callable[[], Any], type[Exception], list[str]]] = {
    # shapes
    "A transposed": (
        lambda: F16(A[:8], B),
        ValueError,
        ["A must be (..., 16, 16) for m16n8k16.f32.f16.f16.f32, got (8, 16)"],
    ),
    "B": (lambda: F16(A, B.T), ValueError, ["B must be (..., 16, 8)", "got (8, 16)"]),
    "C": (lambda: F16(A, B, C[:, :1]), ValueError, ["C must be (..., 16, 8)", "got (16, 1)"]),
    "A vector": (lambda: F16(A[0], B), ValueError, ["A must be (..., 16, 16)", "got (16,)"]),
    "0-d": (lambda: F16(A[0, 0], B), ValueError, ["A must be (..., 16, 16)", "got ()"]),
    "batches": (
        lambda: F16(np.stack([A] * 2), np.stack([B] * 3)),
        ValueError,
        ["leading dimensions do not broadcast: A (2, 16, 16), B (3, 16, 8)"],
    ),
    "dpa a": (lambda: F16.dpa(A[:, :8], A), ValueError, ["a must be (..., 16)", "got (16, 8)"]),
    "dpa b": (lambda: F16.dpa(A, B), ValueError, ["b must be (..., 16)", "got (16, 8)"]),
    "dpa c": (
        lambda: F16.dpa(A, A, C),
        ValueError,
        ["leading dimensions do not broadcast: a (16, 16), b (16, 16), c (16, 8)"],
    ),
    "inner dimensions": (
        lambda: matmul(A, B[:5]),
        ValueError,
        ["inner dimensions differ: A is (16, 16) and B is (5, 8); B must be (..., 16, N)"],
    ),
    "matmul C": (
        lambda: matmul(A, B, C[0]),
        ValueError,
        ["C must be (..., 16, 8) for A (16, 16) times B (16, 8), got (8,)"],
    ),
    "matmul vector": (lambda: matmul(A[0], B), ValueError, ["A must be (..., M, K), got (16,)"]),
    "matmul B vector": (lambda: matmul(A, B[0]), ValueError, ["B must be (..., K, N), got (8,)"]),
    "mma inner": (lambda: mma(None, A, A[:3]), ValueError, ["inner dimensions differ"]),
    # dtypes and values
    "float64": (
        lambda: F16(A.astype("f8"), B),
        TypeError,
        [
            "A must be float16 values or uint16 codes of f16, not float64",
            "bitmma.quantize(A, 'f16')",
        ],
    ),
    "C in float64": (
        lambda: F16(A, B, C.astype("f8")),
        TypeError,
        ["C must be float32 values or uint32 codes of f32, not float64; bitmma.quantize(C, 'f32')"],
    ),
    "bfloat16": (
        lambda: F16(A, B.astype(ml_dtypes.bfloat16)),
        TypeError,
        ["B must be float16 values", "not bfloat16"],
    ),
    "codes too wide": (lambda: F16(A.astype("i4"), B), TypeError, ["A must be", "not int32"]),
    "codes too narrow": (lambda: F16(A.astype("u1"), B), TypeError, ["A must be", "not uint8"]),
    "bool": (lambda: F16(A.astype(bool), B), TypeError, ["A must be", "not bool"]),
    "complex": (lambda: F16(A.astype("c8"), B), TypeError, ["A must be", "not complex64"]),
    "object": (lambda: F16(A.astype(object), B), TypeError, ["A must be", "not object"]),
    "text": (lambda: F16(A.astype("U1"), B), TypeError, ["A must be", "not <U1"]),
    "void too wide": (lambda: F16(A.view("V4"), B), TypeError, ["A must be", "not |V4"]),
    "record": (lambda: F16(A.view([("x", "u2")]), B), TypeError, ["A must be float16"]),
    "masked": (lambda: F16(np.ma.masked_array(A), B), TypeError, ["A is a masked array"]),
    "list": (
        lambda: F16(A.tolist(), B),
        TypeError,
        ["A must be a NumPy array or a PyTorch tensor, not list", "quantize"],
    ),
    "None": (lambda: F16(None, B), TypeError, ["A must be a NumPy array", "not NoneType"]),
    "scalar C": (lambda: F16(A, B, 0.0), TypeError, ["C must be a NumPy array", "not float"]),
    "fp4 code": (
        lambda: bitmma.mma(TFDPA(), *[np.full((2, 2), 16, "u1")] * 2, a="e2m1"),
        ValueError,
        ["A has a code with bits above the 4 of e2m1: 0x10", "one a byte, in the low bits"],
    ),
    "unrepresentable": (
        lambda: F16.explain([0.1], [1]),
        ValueError,
        ["a[0] = 0.1 is not representable in f16; nearest are", "bitmma.quantize"],
    ),
    "explain text": (lambda: F16.explain([1], ["x"]), ValueError, ["b[0] = 'x' is neither"]),
    "explain too long": (
        lambda: F16.explain([1] * 17, [1]),
        ValueError,
        ["a has 17 elements, one instruction takes 16"],
    ),
    "explain matrix": (
        lambda: F16.explain(A, B[:, 0]),
        ValueError,
        ["a must be a vector of up to 16, got (16, 16)"],
    ),
    "explain c": (
        lambda: F16.explain([1], [1], C[0]),
        ValueError,
        ["c must be one number, got (8,)"],
    ),
    # kinds
    "codes and values": (
        lambda: F16(A.view("u2"), B, C),
        TypeError,
        ["A is NumPy integer codes and B is NumPy values; all operands of a call", "one kind"],
    ),
    "codes in C": (
        lambda: F16(A, B, C.view("u4")),
        TypeError,
        ["A is NumPy values and C is NumPy integer codes"],
    ),
    "codes in a scale": (
        lambda: MX(MX_A, MX_B, None, SA, SB.view("u1")),
        TypeError,
        ["A is NumPy values and scale_b is NumPy integer codes"],
    ),
    # scales
    "missing": (
        lambda: MX(MX_A, MX_B),
        ValueError,
        ["scale_a is missing: m16n8k32.kind::mxf8f6f4", "needs (..., 16, 1) scales of ue8m0"],
    ),
    "one missing": (lambda: MX(MX_A, MX_B, None, SA), ValueError, ["scale_b is missing"]),
    "superfluous": (
        lambda: F16(A, B, C, SA),
        ValueError,
        ["scale_a was given, but m16n8k16.f32.f16.f16.f32 has no block scales"],
    ),
    "superfluous b": (lambda: matmul(A, B, scale_b=SB), ValueError, ["scale_b was given"]),
    "superfluous in dpa": (
        lambda: F16.dpa(A, A, None, None, SA),
        ValueError,
        ["scale_b was given"],
    ),
    "superfluous in explain": (
        lambda: F16.explain([1], [1], 0, scale_a=[1]),
        ValueError,
        ["scale_a was given"],
    ),
    "missing in explain": (
        lambda: MX.explain([1], [1], scale_a=1),
        ValueError,
        ["scale_b is missing"],
    ),
    "two in explain": (
        lambda: MX.explain([1], [1], 0, [1, 1], 1),
        ValueError,
        ["scale_a must be one scale or 1, got 2"],
    ),
    "scale shape": (
        lambda: MX(MX_A, MX_B, None, SA.T, SB),
        ValueError,
        ["scale_a must be (..., 16, 1) for m16n8k32", "got (1, 16)"],
    ),
    "scale_b shape in matmul": (
        lambda: matmul(MX_A, MX_B, instruction=MX, scale_a=SA, scale_b=np.ones((2, 8), S)),
        ValueError,
        ["scale_b must be (..., 1, 8) for A (16, 32) times B (32, 8), blocks of 32, got (2, 8)"],
    ),
    "scale dtype": (
        lambda: MX(MX_A, MX_B, None, SA.astype("f4"), SB),
        TypeError,
        ["scale_a must be float8_e8m0fnu values or uint8 codes of ue8m0, not float32"],
    ),
    "scale batch": (
        lambda: MX(np.stack([MX_A] * 2), MX_B, None, np.stack([SA] * 3), SB),
        ValueError,
        ["leading dimensions do not broadcast: A (2, 16, 32), B (32, 8), scale_a (3, 16, 1)"],
    ),
    # look-up
    "GPU": (
        lambda: bitmma.instruction("Hoper", F16.name),
        ValueError,
        ["unknown GPU 'Hoper'", "Volta", "did you mean Hopper?"],
    ),
    "GPU not modelled": (
        lambda: bitmma.instruction("MI355X", F16.name),
        ValueError,
        ["'MI355X' is CDNA4 (gfx950), which bitmma does not model"],
    ),
    "GPU no string": (lambda: bitmma.instruction(90, F16.name), TypeError, ["gpu must be a name"]),
    "name": (
        lambda: bitmma.instruction("H100", "m16n8k16.f32.f16.f16.f23"),
        ValueError,
        ["Hopper has no instruction 'm16n8k16.f32.f16.f16.f23'; the nearest are", F16.name],
    ),
    "name no string": (lambda: bitmma.instruction("H100", None), TypeError, ["named by a string"]),
    "lacking": (
        lambda: bitmma.instruction("V100", F16.name),
        ValueError,
        [
            "Volta has no instruction",
            "Ampere, Ada Lovelace, Hopper, Blackwell, RTX Blackwell have it",
        ],
    ),
    "op": (lambda: bitmma.instructions(op="hmma"), ValueError, ["op is one of mma", "'hmma'"]),
    "format": (
        lambda: bitmma.instructions(a="e4m4"),
        ValueError,
        ["unknown format 'e4m4'; formats are f64"],
    ),
    "matmul instruction": (
        lambda: matmul(A, B, instruction=F16.name),
        TypeError,
        ["instruction must be an Instruction or a (gpu, name) pair, not 'm16n8k16"],
    ),
    "matmul pair": (
        lambda: matmul(A, B, instruction=("H100", "nope")),
        ValueError,
        ["Hopper has no instruction 'nope'"],
    ),
    # models and their arguments
    "F": (lambda: TFDPA(F=65), ValueError, ["TFDPA: F must be 1 to 64, not 65"]),
    "L": (lambda: TFDPA(L=0), ValueError, ["TFDPA: L must be 1 to 4096, not 0"]),
    "L type": (lambda: TFDPA(L=4.0), TypeError, ["TFDPA: L must be an int, not 4.0"]),
    "replace": (
        lambda: dataclasses.replace(F16.model, F=0),  # type: ignore[type-var]
        ValueError,
        ["TFDPA: F must be 1 to 64, not 0"],
    ),
    "rho": (
        lambda: TFDPA(rho="RZ"),
        ValueError,
        [
            "TFDPA: rho must be a Conversion or one of RZ_FP32, RZ_E8M13, RNE_FP16, RNE_FP32, "
            "RNE_FP64, not 'RZ'"
        ],
    ),
    "rho type": (lambda: EFDPA(rho=23), TypeError, ["EFDPA: rho must be a Conversion or", "23"]),
    "rho of FMA": (lambda: FMA("RZ-FP32"), ValueError, ["RNE_FP32 or RNE_FP64, not RZ-FP32"]),
    "rho mode": (lambda: Conversion("RX", "f32"), ValueError, ["mode is one of RNE", "'RX'"]),
    "G": (lambda: GSTFDPA(G=5), ValueError, ["GSTFDPA: G must divide L=64, not 5"]),
    "P": (lambda: FTZMulAdd(P=3), ValueError, ["FTZMulAdd: P is 2 or 4, not 3"]),
    "parts": (lambda: Lowered(parts=((0, 2),)), ValueError, ["Lowered: parts must split"]),
    "no model": (lambda: mma("TFDPA"), TypeError, ["model must be one of bitmma.models"]),
    "operand format": (lambda: mma(a="f17"), ValueError, ["unknown format 'f17'"]),
    "operand format type": (lambda: mma(a=16), TypeError, ["named by a string"]),
    "scale as operand": (lambda: mma(a="ue8m0"), ValueError, ["a is ue8m0, which has no zero"]),
    "scale without block": (
        lambda: mma(STFDPA(), scale="ue8m0"),
        ValueError,
        ["scale and block go together, got scale='ue8m0' and block=None"],
    ),
    "scale for another model": (
        lambda: mma(scale="ue8m0", block=32),
        ValueError,
        ["TFDPA(", "has no block scales; STFDPA and GSTFDPA have"],
    ),
    "scale format": (
        lambda: mma(STFDPA(), scale="f16", block=32),
        ValueError,
        ["scale is ue8m0 or ue4m3, not 'f16'"],
    ),
    "block": (
        lambda: mma(STFDPA(), scale="ue8m0", block=16),
        ValueError,
        ["block must be a multiple of 32", "not 16"],
    ),
    "block type": (
        lambda: mma(STFDPA(), scale="ue8m0", block=32.0),
        TypeError,
        ["block must be an int, not 32.0"],
    ),
    "mma scales": (
        lambda: mma(STFDPA(), scale="ue8m0", block=32),
        ValueError,
        ["scale_a is missing", "scales of ue8m0"],
    ),
    "subclass": (
        lambda: mma(type("Mine", (TFDPA,), {})()),
        TypeError,
        ["model must be one of bitmma.models (FMA, ", "Lowered), not Mine("],
    ),
    "base class": (lambda: mma(Model()), TypeError, ["model must be one of", "not Model()"]),
    "subclass in Lowered": (
        lambda: Lowered(unit=type("Mine", (TFDPA,), {})()),
        TypeError,
        ["Lowered: unit must be a TFDPA, not Mine("],
    ),
    "mode type": (
        lambda: Conversion([], "f32"),  # type: ignore[arg-type]
        TypeError,
        ["Conversion: mode must be a string, not []"],
    ),
    "format of rho": (
        lambda: Conversion("RZ", ["f32"]),  # type: ignore[arg-type]
        TypeError,
        ["Conversion: format must be a string, not ['f32']"],
    ),
    "P type": (lambda: FTZMulAdd(2.0), TypeError, ["P must be an int, not 2.0"]),  # type: ignore[arg-type]
    "P of NumPy": (lambda: FTZMulAdd(np.int64(4)), TypeError, ["P must be an int"]),  # type: ignore[arg-type]
    **{
        f"parts {parts}": (
            lambda parts=parts: Lowered(parts=parts),
            TypeError,
            ["Lowered: parts must be sets of ints such as ((0, 1), (2, 3)), not"],
        )
        for parts in (5, None, ((0, 1), 2), ((0, "a"),), ((0.0, 1.0),), ((False, True),))
    },
    "block list": (lambda: mma(scale="ue8m0", block=[32]), TypeError, ["block must be an int"]),
    "block bool": (
        lambda: mma(STFDPA(L=1), scale="ue8m0", block=True),
        TypeError,
        ["block must be an int, not True"],
    ),
    "scale list": (lambda: mma(scale=[]), TypeError, ["format is named by a string, not list"]),
    "b list": (lambda: mma(b=[]), TypeError, ["b: a format is named by a string, not list"]),
    # changed instructions
    **{
        f"replace {change}": (
            lambda change=change: dataclasses.replace(F16, **change),
            error,
            [words],
        )
        for change, error, words in (
            ({"a": "zz"}, ValueError, "a: unknown format 'zz'; formats are"),
            ({"c": []}, TypeError, "c: a format is named by a string, not list"),
            ({"b": "ue8m0"}, ValueError, "b is ue8m0, which has no zero"),
            ({"d": "f16"}, ValueError, "d is f16, but the model's output is f32: TFDPA("),
            ({"model": None}, TypeError, "model must be one of bitmma.models"),
            ({"k": 0}, ValueError, "Instruction: k must be 1 or more, not 0"),
            ({"k": "x"}, TypeError, "Instruction: k must be an int, not 'x'"),
            ({"k": 16.0}, TypeError, "Instruction: k must be an int, not 16.0"),
            ({"m": -1}, ValueError, "Instruction: m must be 1 or more, not -1"),
            ({"n": True}, TypeError, "Instruction: n must be an int, not True"),
            ({"gpu": None}, TypeError, "gpu must be a string, not None"),
            ({"op": "hmma"}, ValueError, "op is one of mma"),
            ({"block": 32}, ValueError, "scale and block go together"),
            ({"block": [32]}, TypeError, "block must be an int, not [32]"),
            ({"scale": "ue8m0", "block": 16}, ValueError, "has no block scales"),
        )
    },
    "replace k of blocks": (
        lambda: dataclasses.replace(MX, k=48),
        ValueError,
        ["k must be a multiple of the block of 32, not 48"],
    ),
    # too many dimensions
    "dimensions": (
        lambda: F16(deep(A), B),
        ValueError,
        ["A may have up to 30 leading dimensions, not 31"],
    ),
    "dimensions of C": (lambda: F16(A, B, deep(C)), ValueError, ["C may have up to 30 leading"]),
    "dimensions in dpa": (lambda: F16.dpa(deep(A[0]), A), ValueError, ["a may have up to 30"]),
    "dimensions in matmul": (lambda: matmul(A, deep(B)), ValueError, ["B may have up to 30"]),
    "dimensions in mma": (lambda: mma(None, deep(A), B), ValueError, ["A may have up to 30"]),
    # look-up by what is no text or number
    **{
        f"instructions {change}": (
            lambda change=change: bitmma.instructions(**change),
            TypeError,
            [words],
        )
        for change, words in (
            ({"m": "16"}, "m must be an int, not '16'"),
            ({"m": [1]}, "m must be an int, not [1]"),
            ({"n": [8]}, "n must be an int, not [8]"),
            ({"k": True}, "k must be an int, not True"),
            ({"k": 16.0}, "k must be an int, not 16.0"),
            ({"a": 1}, "a format is named by a string, not int"),
        )
    },
    # rounding
    "rounding": (
        lambda: bitmma.quantize(A, "f16", rounding=[]),  # type: ignore[arg-type]
        TypeError,
        ["rounding must be a string, not []"],
    ),
    "quantize masked": (
        lambda: bitmma.quantize(np.ma.masked_array([1.0], [True]), "f16"),
        TypeError,
        ["x is a masked array"],
    ),
    # what explain takes for numbers
    **{
        f"explain {x!r}": (
            lambda x=x: F16.explain(x, [1]),
            TypeError,
            [f"a must be numbers or strings in a list, not a {type(x).__name__}"],
        )
        for x in ({3: 9}, {1, 2}, b"1")
    },
    "compare set": (lambda: bitmma.compare({1, 2}, [1, 2]), TypeError, ["a must be", "not a set"]),
    "huge integer": (
        lambda: F16.explain([10**5000], [1]),
        ValueError,
        ["a[0] has 16610 bits; no format needs 10000"],
    ),
    "huge fraction": (
        lambda: F16.explain([1], [Fraction(1, 10**5000)]),
        ValueError,
        ["b[0] has 16610 bits"],
    ),
    # schedules, epilogues and their scales
    **{
        f"Schedule {change}": (lambda change=change: Schedule(**change), error, [words])
        for change, error, words in (
            ({"promote_every": 0}, ValueError, "Schedule: promote_every must be 1 or more, not 0"),
            ({"promote_every": 1.5}, TypeError, "Schedule: promote_every must be an int, not 1.5"),
            ({"split_k": True}, TypeError, "Schedule: split_k must be an int, not True"),
            ({"split_tile": -1}, ValueError, "Schedule: split_tile must be 1 or more, not -1"),
            ({"reduce": "tree"}, ValueError, "reduce is 'serial' or 'pairwise', not 'tree'"),
            ({"split_order": None}, ValueError, "split_order is 'contiguous' or 'interleaved', no"),
            ({"promote_fused": 1}, TypeError, "promote_fused must be True or False, not 1"),
        )
    },
    **{
        f"parse {text!r}": (lambda text=text: Schedule.parse(text), error, [words])
        for text, error, words in (
            ("promote", ValueError, "'promote' is no field with its value; write chain, or some"),
            ("every=3", ValueError, "'every=3' is no field with its value"),
            ("split_k=2,split_k=3", ValueError, "'split_k=3' is given twice"),
            ("split_k=two", ValueError, "split_k must be a positive integer, not 'two'"),
            ("split_k=None", ValueError, "split_k must be a positive integer, not 'None'"),
            ("promote_every=-1", ValueError, "promote_every must be a positive integer, not '-1'"),
            ("promote_every=0", ValueError, "Schedule: promote_every must be 1 or more"),
            ("promote_fused=yes", ValueError, "promote_fused is True or False, not 'yes'"),
            ("reduce=tree", ValueError, "reduce is 'serial' or 'pairwise'"),
            (None, TypeError, "a schedule is parsed from a string, not NoneType"),
        )
    },
    **{
        f"matmul {name}": (lambda more=more: matmul(A, B, **more), error, words)
        for name, more, error, words in (
            ("schedule", {"schedule": "chain"}, TypeError, ["schedule must be a bitmma.Schedule"]),
            (
                "epilogue",
                {"epilogue": 1},
                TypeError,
                ["epilogue must be a bitmma.Epilogue or No"],
            ),
            (
                "executor",
                {"executor": 2},
                TypeError,
                ["executor must be a concurrent.futures"],
            ),
            (
                "promote_every",
                {"schedule": Schedule(24)},
                ValueError,
                ["promote_every must be a multiple of 16, the k of m16n8k16.f32.f16.f16.f32, not"],
            ),
            (
                "split_tile",
                {"schedule": Schedule(split_k=2, split_tile=8)},
                ValueError,
                ["split_tile must be a multiple of 16", "not 8"],
            ),
            (
                "split_k",
                {"schedule": Schedule(split_k=2, split_tile=16)},
                ValueError,
                ["split_k must be at most 1 for K = 16 in tiles of 16, not 2"],
            ),
            (
                "scale without promotion",
                {"promote_scale_a": ONES},
                ValueError,
                ["promote_scale_a was given, but the schedule has no promote_every"],
            ),
            (
                "scale's block",
                {**PROMOTED, "promote_block_a": (1, 24)},
                ValueError,
                ["promote_block_a must span a multiple of promote_every = 16 along k, not 24"],
            ),
            (
                "scale's block type",
                {**PROMOTED, "promote_block_a": 16},
                TypeError,
                ["promote_block_a must be two positive integers, not 16"],
            ),
            (
                "scale's empty block",
                {**PROMOTED, "promote_block_a": (0, 16)},
                ValueError,
                ["promote_block_a must be two positive integers, not (0, 16)"],
            ),
            (
                "scale's shape",
                {**PROMOTED, "promote_block_a": (4, 16)},
                ValueError,
                ["promote_scale_a must be (..., 4, 1), one for each block of (4, 16)", "(16, 1)"],
            ),
            (
                "scale's type",
                {**PROMOTED, "promote_scale_a": ONES.astype("f8")},
                TypeError,
                ["promote_scale_a must be float32 values", "not float64"],
            ),
            (
                "scale's dimensions",
                {**PROMOTED, "promote_scale_a": deep(ONES)},
                ValueError,
                ["promote_scale_a may have up to 30 leading dimensions, not 31"],
            ),
            (
                "scale's batch",
                {
                    **PROMOTED,
                    "promote_scale_a": np.ones((2, 16, 1), "f4"),
                    "promote_scale_b": np.ones((3, 1, 1), "f4"),
                },
                ValueError,
                ["leading dimensions do not broadcast: A (16, 16), B (16, 8)"],
            ),
            (
                "C of f16",
                {"C": B, "schedule": Schedule(16)},
                TypeError,
                ["C must be float32 values or uint32 codes of f32, not float16"],
            ),
            ("beta", {"epilogue": Epilogue(beta=1)}, ValueError, ["has a beta, but there is no C"]),
            (
                "bias",
                {"epilogue": Epilogue(bias=np.ones(16, "f4"))},
                ValueError,
                ["the epilogue's bias must be (8,), got (16,)"],
            ),
            (
                "row-wise",
                {"epilogue": Epilogue(scale_a=ONES)},
                ValueError,
                ["scale_a and scale_b must be two numbers or of shapes (16, 1) and (1, 8), got"],
            ),
        )
    },
    "a chain across scale blocks": (
        lambda: matmul(
            np.zeros((16, 64), "f2"),
            np.zeros((64, 8), "f2"),
            schedule=Schedule(32, 2, "interleaved", 16),
            promote_scale_a=np.ones((16, 2), "f4"),
            promote_block_a=(1, 32),
        ),
        ValueError,
        ["promote_scale_a: with promote_every=32,split_k=2", "runs across"],
    ),
    "promotion scales in f64": (
        lambda: matmul(
            np.zeros((8, 4)),
            np.zeros((4, 8)),
            instruction=F64,
            schedule=Schedule(4),
            promote_scale_a=np.ones((8, 1), "f4"),
        ),
        ValueError,
        ["promote_scale_a is for FP32 accumulators, those of m8n8k4.f64"],
    ),
    "epilogue in f64": (
        lambda: matmul(np.zeros((8, 4)), np.zeros((4, 8)), instruction=F64, epilogue=Epilogue()),
        ValueError,
        ["an epilogue is for FP32 accumulators, those of m8n8k4.f64"],
    ),
    "no chain of f16 and f32": (
        lambda: matmul(A, B, instruction=("V100", "m8n8k4.f32.f16.f16.f16"), schedule=Schedule(8)),
        ValueError,
        ["C of f16 and gives a D of f32, so it cannot be chained"],
    ),
    **{
        f"Epilogue {name}": (lambda change=change: Epilogue(**change), error, [words])
        for name, change, error, words in (
            ("alpha", {"alpha": [1, 2]}, ValueError, "alpha must be one number, got shape (2,)"),
            ("text", {"alpha": "1"}, TypeError, "alpha must be numbers, not '1'"),
            ("bool", {"beta": True}, TypeError, "beta must be numbers, not True"),
            ("bias", {"bias": np.array(["x"])}, TypeError, "bias: x must be real numbers, not"),
            ("double", {"scale_a": np.array(0.1)}, ValueError, "scale_a must hold float32 values"),
            ("out", {"out_format": "f64"}, ValueError, "out_format is one of f32, f16, bf16, e4m3"),
            ("out type", {"out_format": 16}, TypeError, "a format is named by a string, not int"),
            ("both", {"alpha": 2, "scale_a": ONES}, ValueError, "come without alpha and beta"),
        )
    },
    # threads
    "threads": (lambda: matmul(A, B, threads=0), ValueError, ["threads must be", "0"]),
    "threads type": (lambda: matmul(A, B, threads=1.5), TypeError, ["threads must be", "1.5"]),
    "threads bool": (lambda: mma(threads=True), TypeError, ["threads must be", "True"]),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case: str) -> None:
    action, error, words = CASES[case]
    with pytest.raises(error) as caught:
        action()
    assert type(caught.value) is error
    message = str(caught.value)
    position = 0
    for word in words:
        assert word in message[position:], message
        position = message.index(word, position)
    assert "\n" not in message


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("0", "-1", "many", "1.5", "9" * 20):
        monkeypatch.setenv("BITMMA_NUM_THREADS", value)
        with pytest.raises(ValueError, match=f"BITMMA_NUM_THREADS must be .*{value}"):
            matmul(A, B)
    monkeypatch.setenv("BITMMA_NUM_THREADS", "9" * 5000)
    with pytest.raises(ValueError, match="BITMMA_NUM_THREADS must be a positive integer, not '99"):
        matmul(A, B)


def test_thirty_leading_dimensions() -> None:
    lead = (1,) * 30
    assert F16(A.reshape(lead + A.shape), B).shape == (*lead, 16, 8)
    assert F16.dpa(A[0].reshape((*lead, 16)), A[0]).shape == lead
    assert matmul(A, B.reshape(lead + B.shape)).shape == (*lead, 16, 8)


def test_what_is_written_otherwise_is_the_same() -> None:
    parts: Any = [[0, 1], [2, 3]]
    assert hash(Lowered(parts=parts)) == hash(Lowered()) and Lowered(parts=parts) == Lowered()
    assert dataclasses.replace(F16, a="float16") is not F16
    assert dataclasses.replace(F16, a="float16") == F16
