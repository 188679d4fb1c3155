"""One model on several GPUs and in FP64, layer by layer: `compare`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import torch
from bitmma import BITS_VERSION
from bitmma.torch.emulation import emulate
from bitmma.torch.policy import Policy
from bitmma.torch.report import Report, aligned

if TYPE_CHECKING:
    import pandas

__all__ = ["Difference", "ModelComparison", "compare"]

Tensor = Any

FP64 = "FP64"


@dataclass(frozen=True)
class Difference:
    """The output of one layer on one GPU, against another's or FP64's.

    Attributes:
        layer: the module's name, "" for the whole model; a second call of it is "name#2". A batched
            product that a module computes itself, as attention does with ``@`` or ``torch.bmm``, is
            "name:bmm", the next one "name:bmm#2".
        kind: the module's class, or the operator.
        gpu, against: which GPU, and another one or "FP64".
        size: elements of the output.
        differing: how many have other bits; None against FP64.
        largest: the largest absolute difference.
        relative: the Frobenius norm of the difference over that of the output it is taken against.
    """

    layer: str
    kind: str
    gpu: str
    against: str
    size: int
    differing: int | None
    largest: float
    relative: float


@dataclass(frozen=True)
class ModelComparison:
    """What `compare` found; shown as a table by ``print``.

    Attributes:
        gpus: as they were named.
        differences: layer by layer in the order of their calls, the whole model's output last; each
            GPU against FP64, then each pair of GPUs.
        outputs: of the whole model, by GPU and "FP64": its first real tensor.
        reports: what each GPU computed.
    """

    gpus: tuple[str, ...]
    differences: tuple[Difference, ...]
    outputs: Mapping[str, Tensor] = field(repr=False)
    reports: Mapping[str, Report] = field(repr=False)

    @property
    def final(self) -> tuple[Difference, ...]:
        """Those of the whole model's output."""
        return tuple(d for d in self.differences if not d.layer)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the outputs as JSON-able data."""
        return {
            "bits_version": BITS_VERSION,
            "gpus": list(self.gpus),
            "differences": [asdict(d) for d in self.differences],
            "reports": {gpu: report.to_dict() for gpu, report in self.reports.items()},
        }

    def to_pandas(self) -> pandas.DataFrame:
        """One line a difference."""
        import pandas

        columns = [*Difference.__annotations__]
        return pandas.DataFrame([asdict(d) for d in self.differences], columns=columns)

    def __str__(self) -> str:
        pairs = [(gpu, FP64) for gpu in self.gpus] + [*combinations(self.gpus, 2)]
        head = ("layer", "", *(f"{a}−{b}" if b == FP64 else f"{a}≠{b}" for a, b in pairs))
        by_layer: dict[str, dict[tuple[str, str], Difference]] = {}
        for d in self.differences:
            by_layer.setdefault(d.layer, {})[d.gpu, d.against] = d
        rows = [
            (layer or "output", next(iter(found.values())).kind, *(_cell(found[p]) for p in pairs))
            for layer, found in by_layer.items()
        ]
        lines = aligned([head, *rows], right=tuple(range(2, len(head))))
        foot = (
            "A−FP64: norm of the difference over that of the FP64 output. "
            "A≠B: how many of the outputs have other bits."
        )
        return "\n".join([*lines, "", foot])


def _cell(d: Difference) -> str:
    if d.differing is None:
        return f"{d.relative:.2e}"
    if not d.differing:
        return "0"
    share = d.differing / d.size
    return "<0.1%" if share < 0.001 else f"{share:.1%}"


def compare(
    model: Any,
    inputs: Any,
    gpus: Sequence[str | Policy],
    *,
    reference: Any | None = None,
    **options: Any,
) -> ModelComparison:
    """Run a model on several GPUs and in FP64, and compare what every layer gives.

    Args:
        model: a `torch.nn.Module` in evaluation mode; its parameters' dtypes say what is multiplied
            by what.
        inputs: a tensor, a tuple of positional or a mapping of keyword arguments.
        gpus: names, or `Policy` objects (each of another GPU).
        reference: the model to run in FP64, if not a copy of ``model`` itself: where that quantises
            inside, for instance. Layers are matched by name.
        options: as for `emulate`.

    Returns:
        Each layer's output on each GPU against the FP64 one and against each other GPU's, and every
        bmm and baddbmm that a layer computes itself. Of a layer that returns several tensors the
        first real one counts.

    Raises:
        TypeError, ValueError: no module, one in training mode (dropout would make differences of
            its own), no GPU or one named twice; what `emulate` raises.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if model.training:
        raise ValueError("model is in training mode, where runs may differ: call model.eval()")
    names = tuple(gpu.gpu if isinstance(gpu, Policy) else gpu for gpu in gpus)
    if isinstance(gpus, str) or not names or len(set(names)) < len(names):
        raise ValueError(f"gpus must be one or more different GPUs, not {gpus!r}")
    found: dict[str, dict[str, Tensor]] = {}
    reports = {}
    for name, gpu in zip(names, gpus, strict=True):
        with emulate(gpu, **options) as run:
            found[name] = _outputs(model, inputs)
        reports[name] = run.report()
    double = copy.deepcopy(model if reference is None else reference).double()
    in_double = tree_map(lambda x: x.double() if _is_real(x) else x, inputs)
    exact = _outputs(double, in_double)
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    differences = [
        difference
        for layer in next(iter(found.values()))
        if layer in exact
        for difference in _differences(
            layer, _kind(layer.partition("#")[0], kinds), {g: y[layer] for g, y in found.items()},
            exact[layer],
        )
    ]  # fmt: skip
    final = {name: y[""] for name, y in {**found, FP64: exact}.items() if "" in y}
    return ModelComparison(names, tuple(differences), final, reports)


def _kind(layer: str, kinds: Mapping[str, str]) -> str:
    module, colon, operator = layer.partition(":")
    return operator if colon else kinds[module]


def _is_real(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _outputs(model: Any, inputs: Any) -> dict[str, Tensor]:
    """Each module's first real output and its own batched products, in the order in which they end;
    the model's is last."""
    outputs: dict[str, Tensor] = {}
    calls: dict[str, int] = {}

    def keep(name: str, output: Any) -> None:
        y = next((x for x in tree_leaves(output) if _is_real(x)), None)
        if y is not None:
            calls[name] = calls.get(name, 0) + 1
            count = f"#{calls[name]}" if calls[name] > 1 else ""
            outputs[name + count] = y.detach().clone()

    running: list[str] = []  # the modules that are being called, the innermost last

    def leave(name: str, output: Any) -> None:
        running.pop()
        keep(name, output)

    hooks = []
    for name, module in model.named_modules():
        enter = module.register_forward_pre_hook(lambda _, __, name=name: running.append(name))
        done = module.register_forward_hook(
            lambda _, __, output, name=name: leave(name, output), always_call=True
        )
        hooks += [enter, done]
    args, kwargs = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    args = args if isinstance(args, tuple) else (args,)
    try:
        with torch.no_grad(), _BatchedProducts(lambda op, y: keep(f"{running[-1]}:{op}", y)):
            model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs


class _BatchedProducts(TorchDispatchMode):
    """Hears of every batched product, whoever computes it."""

    def __init__(self, heard: Callable[[str, Any], None]) -> None:
        super().__init__()
        self._heard = heard

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        operator = func.overloadpacket.__name__
        if operator in ("bmm", "baddbmm"):
            self._heard(operator, result)
        return result


def _differences(
    layer: str, kind: str, found: Mapping[str, Tensor], exact: Tensor
) -> Iterator[Difference]:
    pairs = [(gpu, FP64, y, exact) for gpu, y in found.items()]
    pairs += [(a, b, found[a], found[b]) for a, b in combinations(found, 2)]
    for gpu, against, y, z in pairs:
        if y.shape != z.shape:
            raise ValueError(
                f"{layer or 'the model'} gives {tuple(y.shape)} on {gpu} and {tuple(z.shape)} on "
                f"{against}; layers are matched by name"
            )
        apart = y.double() - z.double()
        differing = None if against == FP64 else _other_bits(y, z)
        largest = apart.abs().max().item() if apart.numel() else 0.0
        norm = z.double().norm().item()
        relative = apart.norm().item() / norm if norm else apart.norm().item()
        yield Difference(layer, kind, gpu, against, y.numel(), differing, largest, relative)


def _other_bits(y: Tensor, z: Tensor) -> int:
    width = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[y.element_size()]
    return int((y.contiguous().view(width) != z.contiguous().view(width)).sum())
