"""The command line: what each command prints and writes, and how it fails."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from typer.testing import CliRunner

import bitmma
from bitmma import cases, formats, isa
from bitmma.cli import app, main

BITMMA = [sys.executable, "-c", "import sys; from bitmma.cli import main; sys.exit(main())"]
FP8 = ("H100", "m64n8k32.f32.e4m3.e4m3")
F16 = ("sm_80", "m16n8k16.f32.f16.f16.f32")
MX = ("B200", "m128n8k32.kind::mxf8f6f4.block32.f32.e4m3.e2m1.ue8m0")


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def run(*args: str) -> str:
    """Standard output of a command that must succeed."""
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == 0, result.output
    return result.stdout


def process(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BITMMA, *args], capture_output=True, text=True, **options)


def bits(x: Any) -> Any:
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def assert_same_bits(x: Any, y: Any) -> None:
    assert (x.dtype, x.shape) == (y.dtype, y.shape)
    assert np.array_equal(bits(x), bits(y))


def operands(
    M: int = 70, K: int = 100, N: int = 33, fmt: str = "e4m3", seed: int = 0
) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    return (
        bitmma.quantize(rng.standard_normal((M, K)), fmt),
        bitmma.quantize(rng.standard_normal((K, N)), fmt),
        rng.standard_normal((M, N)).astype(np.float32),
    )


# --- the frame ------------------------------------------------------------------------------------


def test_version() -> None:
    assert run("--version") == f"bitmma {bitmma.__version__} (bits {bitmma.BITS_VERSION})\n"


def test_help_names_every_command_and_is_given_without_arguments() -> None:
    for text in (run("--help"), run("-h"), run()):
        for command in ("list", "compare", "explain", "matmul", "vectors"):
            assert re.search(rf"\b{command}\b", text)
    for command in ("list", "compare", "explain", "matmul", "vectors"):
        assert "Usage" in run(command, "--help")


def test_help_imports_no_engine() -> None:
    program = (
        "import sys; from bitmma.cli import main; main(['--help'])\n"
        "print(sorted(m for m in sys.modules if m.startswith('bitmma.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip().splitlines()[-1] == "['bitmma.cli']"


def test_as_a_process() -> None:
    done = process("compare", "--a=-1,2", "--b", "1 1", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [x["value"] for x in json.loads(done.stdout)["answers"]] == [1.0]
    done = process("compare", "--a", "x", "--b", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bitmma: error: a") and done.stderr.count("\n") == 1


def test_a_reader_that_leaves_is_no_error() -> None:
    reader, writer = os.pipe()
    child = subprocess.Popen([*BITMMA, "list"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    os.close(reader)
    assert child.communicate()[1] == ""
    assert child.returncode == 1


@pytest.mark.parametrize("command", ["compare", "compare --json", "list", "list --json"])
def test_a_closed_stdout_is_one_line(command: str) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *BITMMA, *command.split()], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (2, "bitmma: error: standard output is closed\n")


@pytest.mark.parametrize("command", ["compare", "list", "list --json"])
def test_output_in_ascii(command: str) -> None:
    done = process(*command.split(), env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii() and "Hopper" in done.stdout


# --- list, compare, explain -----------------------------------------------------------------------


def test_list_has_one_row_a_family() -> None:
    data = json.loads(run("list", "--json"))
    families = {(e.gpu, e.op, e.family) for e in isa.catalogue()}
    assert {(x["gpu"], x["op"], x["instruction"]) for x in data} == families
    assert len(data) == len(families)
    assert sum(len(x["n"]) for x in data) == len(isa.catalogue())
    row = next(x for x in data if x["instruction"] == "m64nNk32.f32.e4m3.e4m3")
    assert row["n"] == list(range(8, 257, 8)) and (row["m"], row["k"]) == (64, 32)
    assert row["model"] == {
        "family": "T-FDPA", "L": 32, "F": 13, "rho": "RZ-E8M13", "e_zero": -133,
    }  # fmt: skip
    assert row["provenance"]["level"] == "recorded"
    assert "H100" in row["provenance"]["source"]


def test_list_as_a_table() -> None:
    lines = run("list", "--gpu", "h100", "--op", "wgmma", "--format", "float8_e4m3fn").splitlines()
    rows = [line.split() for line in lines if line.strip().startswith("Hopper")]
    assert len(rows) == 6
    assert rows[0] == [
        "Hopper", "wgmma", "m64nNk32.f32.e4m3.e4m3", "e4m3·e4m3+f32→f32", "T-FDPA", "L=32", "F=13",
        "RZ-E8M13", "e_zero=-133", "recorded",
    ]  # fmt: skip
    assert "6 families, 192 instructions" in lines[-1]
    assert "Lowered K=32 T-FDPA L=16" in run("list", "--gpu", "Hopper")
    assert "published (family recorded)" in run("list", "--gpu", "Hopper")


@pytest.mark.parametrize(
    ("width", "left_out"),
    [("80", "model and formats and provenance"), ("120", "model and formats"), ("160", "model")],
)
def test_list_leaves_out_columns_where_it_is_narrow(
    width: str, left_out: str, monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    lines = run("list", "--gpu", "sm_120").splitlines()
    assert max(map(len, lines)) <= int(width)
    # No name is broken in the middle.
    rows = [line.split()[:4] for line in lines if line.startswith(" RTX Blackwell")]
    families = dict.fromkeys((e.op, e.family) for e in isa.select(gpu_name="sm_120"))
    assert [tuple(row[2:]) for row in rows] == list(families)
    assert f"No room for {left_out}: " in " ".join(lines)


def test_a_family_s_name_is_explained(capsys: Any) -> None:
    for name in ("m64nNk32.f32.e4m3.e4m3", " M64NNK32.F32.E4M3.E4M3"):
        assert main(["explain", "H100", name, "--a=1", "--b=1"]) == 2
        err = capsys.readouterr().err
        assert "one of 8, 16, … 256 for N, such as m64n8k32.f32.e4m3.e4m3" in err


def test_compare_on_chosen_gpus() -> None:
    chosen = ("--gpu", "H100", "--gpu", "gfx942")
    data = json.loads(run("compare", "--json", *chosen))
    assert data == bitmma.compare(gpu=["Hopper", "CDNA3"]).to_dict()
    assert {i["gpu"] for x in data["answers"] for i in x["instructions"]} == {"Hopper", "CDNA3"}


def test_compare_prints_the_six_answers() -> None:
    text = run("compare")
    values = re.findall(r"^ +(-?[\d.]+)  +\w", text, re.M)
    assert values == ["-1", "-0.875", "-0.75", "-0.5", "-0.375", "0"]
    assert json.loads(run("compare", "--json")) == bitmma.compare().to_dict()


@pytest.mark.parametrize(
    "args",
    [
        ("--a=-8192,-0.5,-0.25,-0.125", "--b=1024,1,1,1", "--c=8388608"),
        ("--a", "-8192 -0.5 -0.25 -0.125", "--b", "1024 1 1 1", "--c", "0x1p23"),
        ("--a", "-0x1p13, -0x1p-1,-0x1p-2 ,-0x1p-3", "--b", " 0x1p10 1 1 1 ", "--c", "8388608"),
    ],
)
def test_numbers_are_read_however_they_are_separated(args: tuple[str, ...]) -> None:
    assert run("compare", *args) == run("compare")


def test_explain() -> None:
    args = ("--a", "16 0.125 0.375 1.5", "--b", "16 0.125 0.1875 0.75")
    text = run("explain", *FP8, *args)
    assert "d f32 0x43809800 = 257.1875" in text and "e_max 8" in text
    assert text.splitlines()[1].endswith("; recorded")
    data = json.loads(run("explain", *FP8, *args, "--json"))
    assert data["result"] == {"code": "0x43809800", "value": "0x1.0130000000000p+8"}
    assert len(data["a"]) == 32 and data["d_format"] == "f32"
    assert data["provenance"]["level"] == "recorded" and data["nan"] == "bits"
    # Codes of the operands' formats, and numbers: the same.
    assert data == json.loads(
        run(
            "explain",
            *FP8,
            "--a",
            "0x58,0x1.0p-3,0x2c,0x3c",
            "--b",
            "0x58,0x20,0x24,0x34",
            "--json",
        )
    )


def test_explain_with_scales_and_c() -> None:
    text = run("explain", *MX, "--a=-1", "--b", "1", "--c", "0x3f800000",
               "--scale-a", "2", "--scale-b", "0x80")  # fmt: skip
    assert "d f32 0xc0400000 = -3" in text


# --- matmul ---------------------------------------------------------------------------------------


def save_safetensors(path: str, **arrays: tuple[str, Any]) -> None:
    """By hand: the package's NumPy writer takes no FP8."""
    header, data = {}, b""
    for name, (dtype, array) in arrays.items():
        raw = array.tobytes()
        per_byte = {"F4": (2, 1), "F6_E2M3": (4, 3)}.get(dtype, (1, 1))
        shape = [*array.shape[:-1], array.shape[-1] * per_byte[0] // per_byte[1]]
        header[name] = {
            "dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)],
        }  # fmt: skip
        data += raw
    text = json.dumps(header).encode()
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + data)


def keep_npy(name: str, x: Any) -> str:
    np.save(f"{name}.npy", x)
    return f"{name}.npy"


def keep_npy_codes(name: str, x: Any) -> str:
    return keep_npy(name, bits(x).view(f"i{x.dtype.itemsize}"))


def keep_npy_fortran(name: str, x: Any) -> str:
    return keep_npy(name, np.asfortranarray(x))


def keep_npz(name: str, x: Any) -> str:
    np.savez(f"{name}.npz", other=np.zeros(3), **{name: bits(x)})
    return f"{name}.npz:{name}"


def keep_npz_compressed(name: str, x: Any) -> str:
    np.savez_compressed(f"{name}.NPZ", **{name: x})
    os.replace(f"{name}.NPZ.npz", f"{name}.NPZ")
    return f"{name}.NPZ"


def keep_safetensors(name: str, x: Any) -> str:
    tag = {"float8_e4m3fn": "F8_E4M3", "float32": "F32", "float16": "F16"}[x.dtype.name]
    save_safetensors(f"{name}.safetensors", pad=("U8", np.zeros(5, np.uint8)), **{name: (tag, x)})
    return f"{name}.safetensors:{name}"


def load(path: str) -> Any:
    if path.endswith(".npy"):
        return np.load(path)
    return (np.load(path) if path.endswith(".npz") else safetensors.numpy.load_file(path))["d"]


KEEPERS = [
    keep_npy, keep_npy_codes, keep_npy_fortran, keep_npz, keep_npz_compressed, keep_safetensors,
]  # fmt: skip


@pytest.mark.parametrize("output", ["d.npy", "d.npz", "d.safetensors"])
@pytest.mark.parametrize("keep", KEEPERS)
def test_matmul_on_every_kind_of_file(keep: Callable[[str, Any], str], output: str) -> None:
    A, B, C = operands()
    expected = bitmma.matmul(A, B, C, instruction=FP8)
    a, b, c = keep("a", A), keep("b", B), keep("c", C)
    printed = run("matmul", *FP8, a, b, "--c", c, "-o", output)
    M, N = expected.shape
    untyped = keep in (keep_npy, keep_npy_fortran, keep_npz_compressed)
    read = "; read A as e4m3, B as e4m3" if untyped else ""
    assert printed == f"{output}: {M} × {N} of f32{read}; {bitmma.instruction(*FP8).title}\n"
    assert_same_bits(load(output), expected)
    assert not [p for p in os.listdir() if "part" in p]


def test_matmul_mixes_kinds_of_files_and_arrays() -> None:
    A, B, C = operands()
    a, b, c = keep_safetensors("a", A), keep_npy_codes("b", B), keep_npz("c", C)
    run("matmul", *FP8, a, b, "--c", c, "-o", "d.npy")
    assert_same_bits(np.load("d.npy"), bitmma.matmul(A, B, C, instruction=FP8))


def test_matmul_without_c_writes_f16_and_overwrites() -> None:
    A, B, _ = operands(fmt="f16")
    instr = ("Hopper", "m64n16k16.f16.f16.f16")
    Path("d.npy").write_text("old")
    run("matmul", *instr, keep_npy("a", A), keep_npy("b", B), "-o", "d.npy")
    assert_same_bits(np.load("d.npy"), bitmma.matmul(A, B, instruction=instr))


def test_matmul_with_a_schedule_and_an_epilogue() -> None:
    A, B, C = operands(20, 300, 9)
    sa, sb = np.random.default_rng(1).random((2, 20, 3)).astype(np.float32)
    schedule = bitmma.Schedule(128, 2, "contiguous", 128)
    names = [keep_npy(n, x) for n, x in zip("abcst", (A, B, C, sa, sb[:3, :1]), strict=True)]
    said = run(
        "matmul", *FP8, *names[:2], "--c", names[2], "-o", "d.npz",
        "--schedule", str(schedule), "--promote-scale-a", names[3], "--promote-scale-b", names[4],
        "--alpha", "0.3", "--beta=-1", "--out-format", "bf16",
    )  # fmt: skip
    assert said.startswith(
        "d.npz: 20 × 9 of bf16, as uint16 codes; read A as e4m3, B as e4m3; Hopper wgmma "
    )
    expected = bitmma.matmul(
        A, B, C, instruction=FP8, schedule=schedule, promote_scale_a=sa, promote_scale_b=sb[:3, :1],
        epilogue=bitmma.Epilogue(alpha=0.3, beta=-1, out_format="bf16"),
    )  # fmt: skip
    assert np.array_equal(np.load("d.npz")["d"], bits(expected))
    run("matmul", *FP8, *names[:2], "-o", "d.npy", "--schedule", "promote_every=32",
        "--promote-scale-a", keep_npy("u", sa[:10]), "--promote-block-a", "2,128")  # fmt: skip
    expected = bitmma.matmul(
        A, B, instruction=FP8, schedule=bitmma.Schedule(32), promote_scale_a=sa[:10],
        promote_block_a=(2, 128),
    )  # fmt: skip
    assert_same_bits(np.load("d.npy"), expected)


@pytest.mark.parametrize(
    ("gpu", "fmt", "title"),
    [
        ("H100", "f16", "Hopper wgmma m64n256k16.f32.f16.f16, the default for f16·f16"),
        ("L40S", "e4m3", "Ada Lovelace mma m16n8k32.f32.e4m3.e4m3.f32, the default for e4m3·e4m3"),
        ("A100", "f32", "Ampere mma m16n8k8.f32.tf32.tf32.f32, the default for tf32·tf32"),
        ("MI300X", "f32", "CDNA3 mfma f32_16x16x4_f32, the default for f32·f32"),
        ("H100", "f64", "Hopper mma m16n8k16.f64.f64.f64.f64, the default for f64·f64"),
    ],
)
def test_matmul_picks_the_default_and_says_so(gpu: str, fmt: str, title: str) -> None:
    A, B, _ = operands(9, 70, 5, fmt)
    keep = keep_safetensors if fmt == "e4m3" else keep_npy
    printed = run("matmul", gpu, keep("a", A), keep("b", B), "-o", "d.npy")
    assert printed.endswith(f"; {title}\n") and printed.startswith("d.npy: ")
    instr = (gpu, title.split(",")[0].split()[-1])
    assert_same_bits(np.load("d.npy"), bitmma.matmul(A, B, instruction=instr))


def test_matmul_block_scaled_from_packed_fp4() -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(0, 256, (40, 80), dtype=np.uint8) & 0x7E
    b = rng.integers(0, 16, (80, 24), dtype=np.uint8)
    scale_a = rng.integers(120, 134, (40, 3), dtype=np.uint8)
    scale_b = rng.integers(120, 134, (3, 24), dtype=np.uint8)
    pairs = np.ascontiguousarray(b[:, 0::2] | b[:, 1::2] << 4)
    save_safetensors("w.safetensors", b=("F4", pairs), s=("F8_E8M0", scale_b))
    np.savez("a.npz", a=a, s=scale_a)
    run("matmul", *MX, "a.npz:a", "w.safetensors:b", "-o", "d.npz",
        "--scale-a", "a.npz:s", "--scale-b", "w.safetensors:s")  # fmt: skip
    expected = bitmma.matmul(a, b, instruction=MX, scale_a=scale_a, scale_b=scale_b)
    assert_same_bits(np.load("d.npz")["d"], expected)


def test_matmul_block_scaled_values_from_npy() -> None:
    """Arrays of ml_dtypes come back from .npy as void bytes."""
    A = bitmma.quantize(np.random.default_rng(2).standard_normal((16, 32)), "e4m3")
    B = bitmma.quantize(np.random.default_rng(3).standard_normal((32, 8)), "e2m1")
    scale_a, scale_b = np.full((16, 1), 2, ml_dtypes.float8_e8m0fnu), np.ones((1, 8))
    scale_b = scale_b.astype(ml_dtypes.float8_e8m0fnu)
    names = [keep_npy(n, x) for n, x in zip("abst", (A, B, scale_a, scale_b), strict=True)]
    assert np.load(names[0]).dtype.kind == "V"
    run("matmul", *MX, *names[:2], "--scale-a", names[2], "--scale-b", names[3], "-o", "d.npy")
    expected = bitmma.matmul(A, B, instruction=MX, scale_a=scale_a, scale_b=scale_b)
    assert_same_bits(np.load("d.npy"), expected)


def test_matmul_does_not_replace_its_operands(capsys: Any) -> None:
    A, B, _ = operands(fmt="f16")
    before = A.copy()
    keep_npy("a", A), keep_npy("b", B)
    assert main(["matmul", *F16, "a.npy", "b.npy", "-o", "./a.npy"]) == 2
    assert "-o 'a.npy' is also A" in capsys.readouterr().err
    assert_same_bits(np.load("a.npy"), before)


def test_corrupted_npz_is_noticed(capsys: Any) -> None:
    A, B, _ = operands(fmt="f16")
    np.savez("a.npz", a=A)
    content = Path("a.npz").read_bytes()
    at = content.index(A.tobytes()) + 5
    Path("a.npz").write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert main(["matmul", *F16, "a.npz", keep_npy("b", B), "-o", "d.npy"]) == 2
    assert "A: a.npz cannot be read as .npz: Bad CRC" in capsys.readouterr().err


def test_matmul_of_too_many_dimensions(capsys: Any) -> None:
    A, B, _ = operands(fmt="f16")
    args = [keep_npy("a", A.reshape((1,) * 31 + A.shape)), keep_npy("b", B)]
    assert main(["matmul", *F16, *args, "-o", "d.npy"]) == 2
    assert "A may have up to 30 leading dimensions, not 31" in capsys.readouterr().err


def test_vectors_of_a_seed_beyond_int64(capsys: Any) -> None:
    assert main(["vectors", *F16, "-o", "v.npz", "--seed", "9" * 23]) == 2
    assert "--seed" in (message := capsys.readouterr().err) and message.count("\n") == 1
    assert main(["vectors", *F16, "-o", "v.npz", "--cases", "2", "--seed", str(2**63 - 1)]) == 0


@pytest.mark.parametrize("tile", [1, 5000, 1 << 40])
@pytest.mark.parametrize("output", ["d.npy", "d.npz", "d.safetensors"])
def test_matmul_in_tiles_with_leading_dimensions(
    tile: int, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bitmma.cli import products

    monkeypatch.setattr(products, "_TILE", tile)
    monkeypatch.setattr(products, "_SIDE", 4)
    rng = np.random.default_rng(4)
    A = rng.standard_normal((3, 1, 40, 24)).astype(np.float16)
    B = rng.standard_normal((2, 24, 9)).astype(np.float16)
    C = rng.standard_normal((40, 9)).astype(np.float32)
    names = [keep_npy(n, x) for n, x in zip("abc", (A, B, C), strict=True)]
    run("matmul", *F16, *names[:2], "--c", names[2], "-o", output, "--threads", "2")
    expected = bitmma.matmul(A, B, C, instruction=F16)
    assert expected.shape == (3, 2, 40, 9)
    assert_same_bits(load(output), expected)


@pytest.mark.parametrize(("M", "K", "N"), [(0, 8, 8), (8, 0, 8), (8, 8, 0), (0, 0, 0)])
@pytest.mark.parametrize("output", ["d.npy", "d.npz", "d.safetensors"])
def test_matmul_of_nothing(M: int, K: int, N: int, output: str) -> None:
    A, B, C = np.ones((M, K), np.float16), np.ones((K, N), np.float16), np.ones((M, N), np.float32)
    names = [keep_npy(n, x) for n, x in zip("abc", (A, B, C), strict=True)]
    run("matmul", *F16, *names[:2], "--c", names[2], "-o", output)
    assert_same_bits(load(output), bitmma.matmul(A, B, C, instruction=F16))


def test_matmul_reads_mapped_files(monkeypatch: pytest.MonkeyPatch) -> None:
    from bitmma.cli import files

    A, _, _ = operands()
    for keep in (keep_npy, keep_npy_fortran, keep_npz, keep_safetensors):
        array = files.load(keep("a", A), "A")
        assert isinstance(array, np.memmap) and array.shape == A.shape
        assert np.array_equal(bits(array), bits(A))


def test_equal_products_make_equal_files() -> None:
    A, B, _ = operands()
    a, b = keep_npy("a", A), keep_npy("b", B)
    for suffix in ("npy", "npz", "safetensors"):
        run("matmul", *FP8, a, b, "-o", f"x.{suffix}", "--threads", "1")
        run("matmul", *FP8, a, b, "-o", f"y.{suffix}", "--threads", "3")
        assert Path(f"x.{suffix}").read_bytes() == Path(f"y.{suffix}").read_bytes()


def test_a_bar_is_drawn_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from bitmma.cli import products

    monkeypatch.setattr(products, "_PATIENCE", -1.0)
    monkeypatch.setattr(products, "_TILE", 1)
    monkeypatch.setattr(products, "_SIDE", 16)
    A, B, _ = operands(fmt="f16", M=64)
    args = ["matmul", *F16, keep_npy("a", A), keep_npy("b", B), "-o", "d.npy"]
    assert main(args) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(args) == 0
    assert "products" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(number: int) -> None:
    size = 1 << 14
    # Small tiles: Python hears the signal between two, however slow the machine or the build is.
    program = BITMMA[-1].replace("sys.exit", "products._TILE = products._SIDE = 16; sys.exit")
    program = program.replace("import main", "import main, products")
    # Whoever started the tests in the background may have had it ignored, which is inherited.
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); " + program
    for name in "ab":  # sparse files: zeros that take no room
        array = np.lib.format.open_memmap(f"{name}.npy", "w+", np.float16, (size, size))
        array.flush()
    Path("d.npy").write_text("old")
    # A group of its own: the signal is for the child alone.
    child = subprocess.Popen(
        [*BITMMA[:-1], program, "matmul", *F16, "a.npy", "b.npy", "-o", "d.npy"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 600
        while not [p for p in os.listdir() if p.endswith(".part")]:
            assert time.monotonic() < deadline and child.poll() is None
            time.sleep(0.01)
        time.sleep(0.3)
        child.send_signal(number)
        out, err = child.communicate(timeout=600)
    finally:
        child.kill()  # one that did not heed it would compute for an hour
    assert (child.returncode, out, err) == (128 + number, "", "")
    assert sorted(os.listdir()) == ["a.npy", "b.npy", "d.npy"]
    assert Path("d.npy").read_text() == "old"


# --- vectors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("instr", [FP8, MX, ("CDNA3", "f32_16x16x8_xf32")])
def test_vectors_npz(instr: tuple[str, str]) -> None:
    i = bitmma.instruction(*instr)
    run("vectors", *instr, "--cases", "60", "--seed", "5", "-o", "v.npz")
    v = np.load("v.npz")
    wanted = cases.generate(i.model, i.a, i.b, i.c, i.k, 60, 5, scale_format=i.scale, block=i.block)
    for name in ("a", "b", "c", "category"):
        assert_same_bits(v[name], getattr(wanted, name))
    assert ("scale_a" in v) == ("scale_b" in v) == bool(i.scale)
    scales = [v["scale_a"], v["scale_b"]] if i.scale else []
    assert_same_bits(v["d"], bits(i.dpa(v["a"], v["b"], v["c"], *scales)))
    assert v["categories"].tolist() == list(cases.CATEGORIES)
    assert (str(v["gpu"]), str(v["instruction"])) == (i.gpu, i.name)
    assert (int(v["bits_version"]), int(v["seed"])) == (bitmma.BITS_VERSION, 5)
    assert (str(v["model"]), str(v["provenance"])) == (repr(i.model), str(i.provenance))
    assert str(v["nan"]) == ("any" if i.gpu == "CDNA3" else "bits")
    assert f"a:{i.a} b:{i.b} c:{i.c} " in str(v["formats"]) and f" d:{i.d}" in str(v["formats"])
    assert len(set(v["category"].tolist())) == len(cases.CATEGORIES)


@pytest.mark.parametrize("suffix", ["txt", "hex"])
@pytest.mark.parametrize("instr", [FP8, MX, ("MI300X", "f64_4x4x4_4b_f64")])
def test_vectors_text(instr: tuple[str, str], suffix: str, monkeypatch: Any) -> None:
    from bitmma.cli import golden

    monkeypatch.setattr(golden, "_PIECE", 7)
    i = bitmma.instruction(*instr)
    common = (*instr, "--cases", "30", "--seed", "1")
    run("vectors", *common, "-o", f"v.{suffix}")
    run("vectors", *common, "-o", "v.npz")
    v = np.load("v.npz")
    header, *lines = Path(f"v.{suffix}").read_text().splitlines()
    assert header.startswith(f"// bitmma bits {bitmma.BITS_VERSION}; gpu: {i.gpu}; instruction: ")
    assert f"; model: {i.model!r}; provenance: {i.provenance}; nan: " in header
    assert f"; nan: {'any' if i.gpu == 'CDNA3' else 'bits'}; " in header
    fields = re.findall(r"(\w+)\[(\d+)\]:(\w+)", header)
    assert [f[0] for f in fields] == (
        ["a", "b", "c", "scale_a", "scale_b", "d"] if i.scale else ["a", "b", "c", "d"]
    )
    assert len(lines) == 30
    for row, line in enumerate(lines):
        words, category = line.split(" // ")
        words = words.split(" ")
        for name, count, fmt in fields:
            found, words = words[: int(count)], words[int(count) :]
            assert [int(w, 16) for w in found] == np.atleast_1d(v[name][row]).tolist()
            assert {len(w) for w in found} == {-(-formats.get(fmt).width // 4)}
        assert words == []
        assert category == cases.CATEGORIES[v["category"][row]]


def test_vectors_of_chosen_categories() -> None:
    first, second = cases.CATEGORIES[2], cases.CATEGORIES[5]
    run("vectors", *F16, "--cases", "8", "--category", f"{second},{first}", "-o", "v.npz")
    assert set(np.load("v.npz")["category"].tolist()) == {2, 5}


def test_vectors_help_lists_the_categories() -> None:
    text = re.sub(r"[\s│]+", " ", run("vectors", "--help"))
    assert ", ".join(cases.CATEGORIES) in text


@pytest.mark.parametrize(
    ("instr", "options", "changes"),
    [
        (FP8, ("--F", "20", "--rho", "RNE-FP32"), {"F": 20, "rho": bitmma.models.RNE_FP32}),
        (FP8, ("--L=8", "--e-zero=-20", "--rho", "rne_fp16"),
         {"L": 8, "e_zero": -20, "rho": bitmma.models.RNE_FP16}),
        (MX, ("--F", "40", "--L", "16"), {"F": 40, "L": 16}),
        (("MI300X", "f32_16x16x16_f16"), ("--F2", "20"), {"F2": 20}),
    ],
)  # fmt: skip
def test_vectors_of_a_hypothetical_unit(
    instr: tuple[str, str], options: tuple[str, ...], changes: dict[str, Any]
) -> None:
    i = bitmma.instruction(*instr)
    model = dataclasses.replace(i.model, **changes)
    common = ("vectors", *instr, "--cases", "40", "--seed", "3", *options)
    run(*common, "-o", "v.npz")
    run(*common, "-o", "v.hex")
    v = np.load("v.npz")
    wanted = cases.generate(model, i.a, i.b, i.c, i.k, 40, 3, scale_format=i.scale, block=i.block)
    assert_same_bits(v["a"], wanted.a)
    scales = {}
    if i.scale:
        scales = {"scale_a": v["scale_a"][:, None, :], "scale_b": v["scale_b"][..., None],
                  "scale": i.scale, "block": i.block}  # fmt: skip
    d = bitmma.mma(model, v["a"][:, None, :], v["b"][..., None], v["c"][:, None, None],
                   a=i.a, b=i.b, c=i.c, **scales)  # fmt: skip
    assert_same_bits(v["d"], bits(d[:, 0, 0]))
    assert str(v["gpu"]) == f"hypothetical, after {i.gpu}" and str(v["model"]) == repr(model)
    assert str(v["provenance"]).startswith("hypothetical")
    header = Path("v.hex").read_text().splitlines()[0]
    assert f"gpu: hypothetical, after {i.gpu}; " in header and repr(model) in header
    assert f"d[1]:{model.d}" in header


# --- errors ---------------------------------------------------------------------------------------


@pytest.fixture
def some_files() -> None:
    A, B, C = operands(16, 20, 8, "f16")
    np.save("a.npy", A)
    np.save("b.npy", B)
    np.save("c.npy", C)
    np.save("row.npy", C[:1])
    np.save("f64.npy", np.zeros((16, 20)))
    np.save("vector.npy", np.zeros(20, np.float16))
    np.save("record.npy", np.zeros((16, 20), [("x", "<f2")]))
    np.save("objects.npy", np.array([[None]]), allow_pickle=True)
    np.save("lead.npy", np.zeros((3, 20, 8), np.float16))
    np.save("lead2.npy", np.zeros((2, 16, 20), np.float16))
    np.save("fp4.npy", np.full((32, 8), 0x1F, np.uint8))
    np.savez("two.npz", x=A, y=B)
    np.savez("objects.npz", x=np.array([None]))
    Path("text.npy").write_text("no array")
    Path("text.npz").write_text("no archive")
    Path("text.safetensors").write_text("no tensors at all")
    Path("empty.npy").write_bytes(b"")
    Path("cut.npy").write_bytes(Path("a.npy").read_bytes()[:-9])
    Path("cut.npz").write_bytes(Path("two.npz").read_bytes()[:-40])
    save_safetensors("w.safetensors", x=("F16", A), six=("F6_E2M3", np.zeros((4, 3), np.uint8)))
    raw = Path("w.safetensors").read_bytes()
    Path("cut.safetensors").write_bytes(raw[:-5])
    np.save("e5m2.npy", np.zeros((16, 20), ml_dtypes.float8_e5m2))
    Path("folder.npy").mkdir()
    Path("data.csv").write_text("1,2\n")


MATMUL = ("matmul", *F16)
ERRORS: list[tuple[tuple[str, ...], str]] = [
    # commands and options
    (("nothing",), "nothing"),
    (("list", "--nothing"), "--nothing"),
    (("explain", "H100"), "INSTR"),
    (("explain", *F16, "--a", "1"), "--b"),
    (("vectors", *F16), "-o"),
    (("vectors", *F16, "-o", "v.npz", "--cases", "many"), "'--cases'"),
    # names
    (("list", "--gpu", "H101"), "H101"),
    (("list", "--gpu", "MI355X"), "CDNA4"),
    (("list", "--format", "f12"), "f12"),
    (("list", "--op", "dp4a"), "mma, wgmma, tcgen05, mfma"),
    (("explain", "H100", "m16n8k17.f32.f16.f16.f32", "--a=1", "--b=1"), "m16n8k16.f32.f16.f16.f32"),
    (("explain", "Volta", F16[1], "--a=1", "--b=1"), "Ampere"),
    (("compare", "--gpu", "H101"), "H101"),
    # numbers
    (("compare", "--a", "1"), "without b"),
    (("compare", "--a", "1 2", "--b", "1"), "a has 2"),
    (("compare", "--a", "", "--b", "1"), "a"),
    (("compare", "--a", "1,,2", "--b", "1 2"), "a[1]"),
    (("compare", "--a", "0x3c", "--b", "1"), "0x3c"),
    (("compare", "--a", "1e400", "--b", "1"), "1e400"),
    (("compare", "--a", "1", "--b", "1", "--c", "1 2"), "--c"),
    (("explain", *F16, "--a", "0.1", "--b", "1"), "nearest"),
    (("explain", *F16, "--a", "0.1", "--b", "1"), "; in Python, bitmma.quantize rounds"),
    (("explain", *F16, "--a", "0x10000", "--b", "1"), "0x10000"),
    (("explain", *F16, "--a", " ".join(["1"] * 17), "--b", "1"),
     "a has 17 elements, one instruction takes 16: explain the first 16, then the next ones"),
    (("explain", *F16, "--a", "1", "--b", "1", "--scale-a", "1"), "scale"),
    (("explain", *MX, "--a", "1", "--b", "1"), "scale_a"),
    (("explain", *MX, "--a", "1", "--b", "1", "--scale-a", "3", "--scale-b", "1"), "ue8m0"),
    # files
    ((*MATMUL, "gone.npy", "b.npy", "-o", "d.npy"), "A: 'gone.npy' does not exist"),
    ((*MATMUL, "folder.npy", "b.npy", "-o", "d.npy"), "A: 'folder.npy' is not a file"),
    ((*MATMUL, "data.csv", "b.npy", "-o", "d.npy"), ".npy, .npz or .safetensors"),
    ((*MATMUL, "a.npy:x", "b.npy", "-o", "d.npy"), "'x'"),
    ((*MATMUL, "two.npz", "b.npy", "-o", "d.npy"), "two.npz holds 2 arrays"),
    ((*MATMUL, "two.npz:z", "b.npy", "-o", "d.npy"), "no array 'z', but: x, y"),
    ((*MATMUL, "w.safetensors:z", "b.npy", "-o", "d.npy"), "no array 'z', but: six, x"),
    ((*MATMUL, "w.safetensors:six", "b.npy", "-o", "d.npy"), "F6_E2M3"),
    ((*MATMUL, "a.npy", "b.npy", "--c", "gone.npy", "-o", "d.npy"), "--c: 'gone.npy'"),
    *(
        ((*MATMUL, name, "b.npy", "-o", "d.npy"), f"A: {name} cannot be read as .")
        for name in ("text.npy", "empty.npy", "cut.npy", "objects.npy", "objects.npz", "text.npz",
                     "cut.npz", "text.safetensors", "cut.safetensors")
    ),
    ((*MATMUL, "e5m2.npy", "b.npy", "-o", "d.npy"), "save codes, x.view(np.uint8)"),
    # arrays
    ((*MATMUL, "f64.npy", "b.npy", "-o", "d.npy"), "float64"),
    ((*MATMUL, "record.npy", "b.npy", "-o", "d.npy"), "A must be float16"),
    ((*MATMUL, "a.npy", "b.npy", "--c", "row.npy", "-o", "d.npy"), "--c must be (..., 16, 8)"),
    ((*MATMUL, "vector.npy", "b.npy", "-o", "d.npy"), "A must be (..., M, K)"),
    ((*MATMUL, "a.npy", "a.npy", "-o", "d.npy"), "B must be (..., 20, N)"),
    ((*MATMUL, "lead2.npy", "lead.npy", "-o", "d.npy"), "broadcast"),
    ((*MATMUL, "a.npy", "b.npy", "--scale-a", "a.npy", "-o", "d.npy"), "--scale-a was given"),
    (("matmul", *MX, "a.npy", "b.npy", "-o", "d.npy"), "--scale-a is missing"),
    (("matmul", "Volta", "m8n8k4.f32.f16.f16.f16", "a.npy", "b.npy", "-o", "d.npy"), "chained"),
    ((*MATMUL, "a.npy", "b.npy", "-o", "d.npy", "--threads", "0"), "threads"),
    # schedules, epilogues, defaults
    *(
        ((*MATMUL, "a.npy", "b.npy", "-o", "d.npy", *more), words)
        for more, words in (
            (("--schedule", "fast"), "schedule 'fast': 'fast' is no field with its value; write"),
            (("--schedule", "promote_every=24"), "promote_every must be a multiple of 16"),
            (("--schedule", "split_k=3"), "split_k must be at most 1 for K = 20 in tiles of 128"),
            (("--promote-scale-a", "c.npy"), "--promote-scale-a was given, but the schedule has"),
            (("--promote-scale-a", "a.npy"), "--promote-scale-a must be float32"),
            (("--schedule", "promote_every=16", "--promote-scale-a", "c.npy"),
             "--promote-scale-a must be (..., 16, 1), one for each block of (1, 128), got (16, 8)"),
            (("--promote-block-a", "128"), "--promote-block-a is two positive integers"),
            (("--promote-block-b", "0,x"), "--promote-block-b is two positive integers"),
            (("--schedule", "promote_every=16", "--promote-scale-a", "c.npy",
              "--promote-block-a", "0,16"), "--promote-block-a must be two positive integers"),
            (("--out-format", "f64"), "out_format is one of f32, f16"),
            (("--beta", "1"), "the epilogue has a beta, but there is no C"),
            (("--alpha", "x"), "--alpha"),
        )
    ),
    (("matmul", "H100", "a.npy", "-o", "d.npy"), "GPU [INSTR] A B: 1 arguments are given"),
    (("matmul", "H101", "a.npy", "b.npy", "-o", "d.npy"), "H101"),
    (("matmul", "H100", "a.npy", "fp4.npy", "-o", "d.npy"), "B holds uint8 codes, which do not"),
    (("matmul", "V100", "f64.npy", "f64.npy", "-o", "d.npy"), "Volta has no instruction for f64"),
    (("matmul", "H100", "a.npy", "b.npy", "--scale-a", "c.npy", "-o", "d.npy"),
     "with --scale-a, an instruction must be named"),
    # outputs
    ((*MATMUL, "a.npy", "b.npy", "-o", "d.txt"), ".npy, .npz or .safetensors"),
    ((*MATMUL, "a.npy", "b.npy", "-o", "no/d.npy"), "cannot write 'no/d.npy'"),
    ((*MATMUL, "a.npy", "b.npy", "-o", "folder.npy"), "cannot write 'folder.npy'"),
    ((*MATMUL, "a.npy", "b.npy", "-o", "a.npy/d.npy"), "cannot write 'a.npy/d.npy'"),
    (("vectors", *F16, "-o", "v.npy"), ".npz, .txt or .hex"),
    (("vectors", *F16, "-o", "no/v.npz"), "cannot write 'no/v.npz'"),
    (("vectors", *F16, "-o", "v.npz", "--category", "odd"), "'odd'"),
    (("vectors", *F16, "-o", "v.npz", "--cases=-3"), "'--cases'"),
    (("vectors", *F16, "-o", "v.npz", "--cases=0"), "'--cases'"),
    (("vectors", *F16, "-o", "v.npz", "--seed=-1"), "'--seed'"),
    (("vectors", *F16, "-o", "v.npz", "--F2=3"), "--F2: TFDPA(L=8"),
    (("vectors", *F16, "-o", "v.npz", "--F=65"), "F must be 1 to 64, not 65"),
    (("vectors", *F16, "-o", "v.npz", "--rho=RD"), "RZ_FP32, RZ_E8M13, RNE_FP16"),
    (("vectors", *MX, "-o", "v.npz", "--L=64"), "--L must divide the block of 32"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "words"), ERRORS, ids=[" ".join(e[0]) for e in ERRORS])
@pytest.mark.usefixtures("some_files")
def test_errors_are_one_line_and_code_2(args: tuple[str, ...], words: str, capsys: Any) -> None:
    before = {p.name: p.read_bytes() for p in Path().iterdir() if p.is_file()}
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("bitmma: error: ") and err.count("\n") == 1 and err.endswith("\n")
    assert words in err
    assert "Traceback" not in err
    # Nothing half-written, nothing lost.
    assert {p.name: p.read_bytes() for p in Path().iterdir() if p.is_file()} == before


@pytest.mark.usefixtures("some_files")
def test_a_failure_half_way_leaves_the_old_output(monkeypatch: Any, capsys: Any) -> None:
    from bitmma.cli import products

    calls = []

    def full_disk(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return original(*args)

    original = products._tile
    monkeypatch.setattr(products, "_tile", full_disk)
    monkeypatch.setattr(products, "_TILE", 1)
    monkeypatch.setattr(products, "_SIDE", 4)
    Path("d.npz").write_text("old")
    before = sorted(os.listdir())
    assert main([*MATMUL, "a.npy", "b.npy", "-o", "d.npz"]) == 2
    assert capsys.readouterr().err == (
        "bitmma: error: cannot write 'd.npz': No space left on device\n"
    )
    assert sorted(os.listdir()) == before and Path("d.npz").read_text() == "old"


def test_safetensors_missing_is_said(monkeypatch: Any, capsys: Any) -> None:
    save_safetensors("a.safetensors", x=("F16", np.zeros((16, 16), np.float16)))
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert main([*MATMUL, "a.safetensors", "a.safetensors", "-o", "d.npy"]) == 2
    assert "pip install 'bitmma[io]'" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["e4m3", "e5m2", "bf16"])
def test_matmul_of_formats_that_npy_cannot_name(out: str) -> None:
    """Codes, which the line says; safetensors says it itself."""
    A, B, _ = operands()
    expected = bitmma.matmul(A, B, instruction=FP8, epilogue=bitmma.Epilogue(out_format=out))
    names = keep_npy_codes("a", A), keep_npy_codes("b", B)
    said = run("matmul", *FP8, *names, "-o", "d.npy", "--out-format", out)
    assert f"of {out}, as uint{8 * expected.itemsize} codes; " in said
    assert np.array_equal(np.load("d.npy"), bits(expected))
    said = run("matmul", *FP8, *names, "-o", "d.safetensors", "--out-format", out)
    assert f"of {out}; " in said
