"""`bitmma.torch.compare`: each layer's numbers are those of separate runs."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest

import bitmma
import bitmma.torch
import slow_torch as slow
import torch
from bitmma.torch import Policy, UnmodelledProduct, compare, emulate

GPUS = ("A100", "H100", "MI300X")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(300, 16)
        with torch.no_grad():  # sums that cancel, so that it shows what was cut
            self.first.weight[:, 150:] = -self.first.weight[:, :150] * (1 + 2.0**-9)
        self.again = torch.nn.Linear(16, 16)

    def forward(self, x: Any, shift: Any = 0) -> dict[str, Any]:
        y = self.first(x) + shift
        return {"count": torch.tensor(3), "y": self.again(self.again(y))}


@pytest.fixture(scope="module")
def net() -> Any:
    torch.manual_seed(0)
    return Net().half().eval()


SEED = torch.Generator().manual_seed(1)
X = torch.randn(7, 150, generator=SEED).half().repeat(1, 2)


def test_numbers(net: Any) -> None:
    result = compare(net, X, GPUS)
    assert [d.layer for d in result.differences[::6]] == ["first", "again", "again#2", ""]
    outputs = {}
    for gpu in GPUS:
        with torch.no_grad(), emulate(gpu) as run:
            outputs[gpu] = net(X)["y"]
        assert slow.equal(result.outputs[gpu], outputs[gpu])
        assert result.reports[gpu] == run.report()
    with torch.no_grad():
        exact = copy.deepcopy(net).double()(X.double())["y"]
    assert slow.equal(result.outputs["FP64"], exact)
    found = {(d.gpu, d.against): d for d in result.final}
    assert len(found) == 6 and {d.kind for d in found.values()} == {"Net"}
    for gpu in GPUS:
        apart = outputs[gpu].double() - exact
        d = found[gpu, "FP64"]
        assert d.differing is None and d.size == 7 * 16
        assert d.largest == apart.abs().max() and d.relative == apart.norm() / exact.norm()
    d = found["A100", "MI300X"]
    apart = outputs["A100"].double() - outputs["MI300X"].double()
    assert d.differing == (slow.codes(outputs["A100"]) != slow.codes(outputs["MI300X"])).sum()
    assert d.largest == apart.abs().max()
    assert any(d.differing for d in result.differences)


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = torch.nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        return torch.softmax(self.query(x) @ x.mT, -1) @ x


def test_products_that_a_layer_computes_itself() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(Attention(), torch.nn.Linear(16, 4)).half().eval()
    x = torch.randn(2, 8, 16).half()
    result = compare(model, x, GPUS[:1])
    found = {d.layer: d for d in result.differences}
    assert list(found) == ["0.query", "0:bmm", "0:bmm#2", "0", "1", ""]
    assert [found["0:bmm"].kind, found["0"].kind] == ["bmm", "Attention"]
    with torch.no_grad(), emulate(GPUS[0]):
        scores = model[0].query(x) @ x.mT
    with torch.no_grad():
        exact = copy.deepcopy(model).double()[0].query(x.double()) @ x.double().mT
    assert found["0:bmm"].largest == (scores.double() - exact).abs().max()
    assert found["0:bmm#2"].largest == found["0"].largest  # what attention returns


def test_table_and_data(net: Any) -> None:
    result = compare(net, {"x": X, "shift": torch.ones(16).half()}, GPUS[:2])
    lines = str(result).splitlines()
    assert lines[0].split() == ["layer", "A100−FP64", "H100−FP64", "A100≠H100"]
    assert [line.split()[0] for line in lines[2:6]] == ["first", "again", "again#2", "output"]
    cells = [line.split()[-1] for line in lines[2:6]]
    assert all(cell == "0" or cell.endswith("%") for cell in cells) and "0.0%" not in cells
    last = result.differences[-1]
    for differing, cell in [(0, "0"), (1, "<0.1%"), (999, "<0.1%"), (1000, "0.1%")]:
        d = replace(last, size=10**6, differing=differing)
        table = str(replace(result, differences=(*result.differences[:-1], d)))
        assert table.splitlines()[5].split()[-1] == cell
    data = result.to_dict()
    assert data["bits_version"] == bitmma.BITS_VERSION and len(data["differences"]) == 12
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = result.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 12
    assert set(frame.against) == {"FP64", "H100"}


def test_another_reference_and_policies(net: Any) -> None:
    exact = copy.deepcopy(net).double()
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.again.weight *= 2
    result = compare(other, (X,), [Policy("H100"), Policy("MI250X")], reference=exact)
    assert result.gpus == ("H100", "MI250X")
    assert all(d.relative > 0.1 for d in result.final if d.against == "FP64")
    result = compare(net.float(), X.float(), ["H100"], fp32="tf32")
    net.half()
    assert 0 < result.final[0].relative < math.inf


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((lambda x: x, X, GPUS), TypeError, "model must be a torch.nn.Module, not function"),
        ((Net().half().train(), X, GPUS), ValueError, "training mode"),
        ((Net().half().eval(), X, "H100"), ValueError, "gpus must be one or more different"),
        ((Net().half().eval(), X, []), ValueError, "gpus must be one or more different"),
        ((Net().half().eval(), X, ["H100", "H100"]), ValueError, "one or more different"),
        ((Net().eval(), X.float(), ["H100"]), UnmodelledProduct, "float32 tensors"),
    ],
)
def test_errors(arguments: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        compare(*arguments)
