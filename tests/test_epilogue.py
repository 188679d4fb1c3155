"""Epilogues: every bit against exact rationals, and the order against PyTorch's own operator."""

import pickle
from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bitmma
import slow_products as slow
from bitmma import Epilogue, Schedule, formats
from bitmma.epilogue import float32, fma

HOPPER = bitmma.instruction("H100", "m64n8k32.f32.e4m3.e4m3")
CDNA3 = bitmma.instruction("MI300X", "f32_16x16x32_fp8_fp8")
RNG = np.random.default_rng(0)
M, N = 6, 7

EPILOGUES = {
    "none": {},
    "alpha": {"alpha": -0.3},
    "beta": {"beta": 0.7},
    "alpha and beta": {"alpha": 1e-30, "beta": 1.1},
    "scales": {"scale_a": 0.1, "scale_b": 3.3},
    "one scale": {"scale_b": 2.0**-130},
    "bias": {"bias": RNG.standard_normal(N).astype("f4")},
    "all": {
        "alpha": 1.7, "beta": -2, "scale_a": 0.01, "scale_b": 1e3, "scale_result": 0.3,
        "bias": RNG.standard_normal(N).astype(ml_dtypes.bfloat16),
    },
    "row-wise": {
        "scale_a": RNG.standard_normal((M, 1)).astype("f4"),
        "scale_b": RNG.standard_normal((1, N)).astype("f4"),
    },
    "row-wise and bias": {
        "scale_a": RNG.standard_normal((M, 1)).astype("f4"),
        "scale_b": -np.ones((1, N), "f4"), "bias": RNG.standard_normal(N).astype("f4"),
        "scale_result": np.float32(4e4),
    },
}  # fmt: skip
FORMATS = ("f32", "f16", "bf16", "e4m3", "e5m2", "fp8", "bf8")


def accumulators() -> np.ndarray:
    """Of every kind: ordinary, huge, tiny, halves of bf16's and fp8's last place, specials."""
    x = RNG.standard_normal((M, N)) * 2.0 ** RNG.integers(-30, 30, (M, N))
    x = x.astype("f4")
    x[0] = [0, -0.0, np.inf, -np.inf, np.nan, 3e38, -1e-42]
    x[1, :5] = [1 + 2**-8, 1 + 3 * 2**-8, 1.0625, 464, 65520]
    return x


@pytest.mark.parametrize("out_format", FORMATS)
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("instr", [HOPPER, CDNA3], ids=["ones", "quiet"])
def test_against_rationals(instr: bitmma.Instruction, name: str, out_format: str) -> None:
    e = Epilogue(**EPILOGUES[name], out_format=out_format)
    acc, c = accumulators(), accumulators()[::-1].copy()
    got = e.apply(acc, c, instr.model.nan == "ones")
    assert got.dtype == formats.get(out_format).code_dtype
    for i, j in np.ndindex(M, N):
        want = slow.epilogue(e, instr, int(acc.view("u4")[i, j]), i, j, int(c.view("u4")[i, j]))
        assert int(got[i, j]) == want, (i, j, acc[i, j], c[i, j])


def test_the_cases_show_something() -> None:
    seen: Counter[str] = Counter()
    for parameters in EPILOGUES.values():
        for out_format in FORMATS:
            d = Epilogue(**parameters, out_format=out_format).apply(
                accumulators(), accumulators(), True
            )
            x = formats.decode(d, out_format)
            seen += Counter(
                nan=int(np.isnan(x).sum()), inf=int(np.isinf(x).sum()),
                minus_zero=int(((x == 0) & np.signbit(x)).sum()), number=int((x != 0).sum()),
            )  # fmt: skip
    assert min(seen.values()) > 20 and len(seen) == 4


def test_canonical_nans() -> None:
    nan = np.full((1, 1), np.nan, "f4")
    for out_format, ones, quiet in (
        ("f32", 0x7FFFFFFF, 0x7FC00000), ("f16", 0x7FFF, 0x7E00), ("bf16", 0x7FFF, 0x7FC0),
        ("e4m3", 0x7F, 0x7F), ("e5m2", 0x7F, 0x7E), ("fp8", 0x80, 0x80),
    ):  # fmt: skip
        e = Epilogue(out_format=out_format)
        assert (e.apply(nan, None, True), e.apply(nan, None, False)) == (ones, quiet)


def test_an_exact_zero_is_plus_zero_and_an_underflow_keeps_its_sign() -> None:
    acc = np.float32([[0.0, 2.0**-100, -(2.0**-100)]])
    d = Epilogue(scale_a=-(2.0**-100)).apply(acc, None, True)
    assert d.tolist() == [[0, 0x80000000, 0]]


def test_fma_rounds_once() -> None:
    words = RNG.integers(0, 2**32, (3, 3000), dtype=np.uint64).astype(np.uint32)
    for where, exponents in ((0, (0x70, 0x70, 0x60)), (1, (0x30, 0x38, 1))):  # that meet
        fields = np.array(exponents)[:, None] + RNG.integers(0, 25, (3, 1000))
        words[:, where::3] = (words[:, where::3] & 0x807FFFFF) | fields << 23
    a, b, c = words.view("f4")
    with np.errstate(all="ignore"):
        c[::4] = -(a[::4].astype("f8") * b[::4].astype("f8")).astype("f4")  # cancellation
        d = fma(a, b, c)
    for x, y, z, got in zip(*words, d.view("u4"), strict=True):
        want = slow.fma(int(x), int(y), int(z), "f32", 0x7FC00000)
        assert int(got) == want or (np.isnan(got.view("f4")) and want == 0x7FC00000)
    finite = d[np.isfinite(d)]
    assert len(finite) > 1500 and (abs(finite) < 2.0**-126).sum() > 100


def test_fma_rounds_what_float64_would_round_twice() -> None:
    """1 + 2^-24 is a tie, and what float64 drops beside it decides."""
    x, y = np.float32(2.0**-12 * (1 + 2.0**-20)), np.float32(2.0**-12 * (1 - 2.0**-20))
    product = np.float64(x) * np.float64(y)  # 2^-24 (1 - 2^-40)
    above = np.float32(1 + 2.0**-23)
    assert np.float32(product + above) == np.float32(1 + 2.0**-22)  # the tie went to even
    assert fma(x, y, above) == above
    assert fma(-x, y, above) == above


# --- in a product ---------------------------------------------------------------------------------


def operands(K: int = 96) -> tuple[Any, Any]:
    a = bitmma.quantize(RNG.standard_normal((M, K)), "e4m3")
    return a, bitmma.quantize(RNG.standard_normal((K, N)), "e4m3")


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("s", [Schedule(), Schedule(32), Schedule(split_k=2, split_tile=32)])
def test_matmul_applies_it_to_its_accumulators(name: str, s: Schedule) -> None:
    a, b = operands()
    c = RNG.standard_normal((M, N)).astype("f4")
    for out_format in ("f32", "bf16"):
        e = Epilogue(**EPILOGUES[name], out_format=out_format)
        d = bitmma.matmul(a, b, c, instruction=HOPPER, schedule=s, epilogue=e)
        start = None if e.beta is not None else c
        acc = bitmma.matmul(a, b, start, instruction=HOPPER, schedule=s)
        assert d.dtype == formats.get(out_format).dtype
        assert np.array_equal(d.view(f"u{d.itemsize}"), e.apply(acc, c, True))


def test_large_results_are_finished_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from bitmma import gemm

    a, b = operands()
    e = Epilogue(**EPILOGUES["row-wise and bias"], out_format="f16")
    a, b = np.stack([a, a[::-1]]), b[None]
    whole = bitmma.matmul(a, b, instruction=HOPPER, epilogue=e)
    monkeypatch.setattr(gemm, "_EPILOGUE_OUTPUTS", 30)
    assert np.array_equal(bitmma.matmul(a, b, instruction=HOPPER, epilogue=e), whole)


def test_an_f16_unit_s_accumulators_are_widened() -> None:
    instr = bitmma.instruction("H100", "m64n8k32.f16.e4m3.e4m3")
    a, b = operands()
    d = bitmma.matmul(a, b, instruction=instr, epilogue=Epilogue(out_format="f16"))
    assert np.array_equal(d, bitmma.matmul(a, b, instruction=instr))
    wide = bitmma.matmul(a, b, instruction=instr, epilogue=Epilogue())
    assert wide.dtype == np.float32 and np.array_equal(wide, d.astype("f4"))


def test_float32_numbers() -> None:
    assert float32(0.1, "x") == np.float32(0.1)  # as a C float
    assert float32(np.float64(0.5), "x") == 0.5
    with pytest.raises(ValueError, match=r"alpha must hold float32 values; 0\.1 is none"):
        Epilogue(alpha=np.float64(0.1))
    pickle.loads(pickle.dumps(Epilogue(alpha=2, bias=np.ones(3, "f4"))))
