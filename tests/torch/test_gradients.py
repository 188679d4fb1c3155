"""Gradients inside `emulate`: emulated when asked for, an error otherwise, never PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import slow_torch as slow
import torch
from bitmma.recipes import default_instruction
from bitmma.torch import GradientError, Policy, UnmodelledProduct, emulate

H100 = default_instruction("H100", "f16")


def rand(*shape: int, seed: int = 0) -> Any:
    x = np.random.default_rng(seed).standard_normal(shape)
    return torch.from_numpy(x).half().requires_grad_()


def test_linear() -> None:
    x, w, b, g = rand(5, 33), rand(4, 33, seed=1), rand(4, seed=2), rand(5, 4, seed=3).detach()
    with emulate("H100", backward=True) as context:
        F.linear(x, w, b).backward(g)
    assert slow.equal(x.grad, slow.matmul(H100, g, w.detach()))
    assert slow.equal(w.grad, slow.matmul(H100, g.t(), x.detach()))
    assert slow.equal(b.grad, g.sum(0))
    assert context.report().products == 3


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups", "transposed"),
    [(1, 0, 1, 1, False), (2, 1, 1, 2, False), (2, 1, 2, 1, False), (2, 1, 1, 2, True)],
)
def test_convolution(
    stride: int, padding: int, dilation: int, groups: int, transposed: bool
) -> None:
    """Each gradient is a product whose factors PyTorch's own operators lay out."""
    x = rand(2, 4, 6, 7)
    w = rand(4, 6 // groups, 3, 2, seed=1) if transposed else rand(6, 4 // groups, 3, 2, seed=1)
    call = F.conv_transpose2d if transposed else F.conv2d
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    with emulate("H100", backward=True) as context:
        y = call(x, w, **options)
        g = rand(*y.shape, seed=2).detach()
        y.backward(g)
    assert {row.op for row in context.report().rows} == {"convolution", "convolution_backward"}

    # Weights: K over (image, position); unfold lays the windows out.
    small, large = (x.detach(), g) if transposed else (g, x.detach())
    unfold = {"stride": stride, "padding": padding, "dilation": dilation}
    windows = F.unfold(large, w.shape[2:], **unfold)
    windows = windows.unflatten(2, (-1,)).transpose(1, 2)  # (N, P, C R S)
    positions = [
        (n + 2 * padding - dilation * (k - 1) - 1) // stride + 1
        for n, k in zip(large.shape[2:], w.shape[2:], strict=True)
    ]
    windows = windows.unflatten(1, positions)[:, : small.shape[2], : small.shape[3]]
    windows = windows.flatten(0, 2).unflatten(1, (groups, -1))
    rows = small.permute(1, 0, 2, 3).flatten(1).unflatten(0, (groups, -1))
    want = [slow.matmul(H100, rows[i], windows[:, i]) for i in range(groups)]
    assert slow.equal(w.grad, torch.cat(want).reshape(w.shape))

    # The input: the other convolution, forward.
    with torch.no_grad(), emulate("H100"):
        if transposed:
            want_x = F.conv2d(g, w, **options)
        else:
            more = [
                n - ((m - 1) * stride - 2 * padding + dilation * (k - 1) + 1)
                for n, m, k in zip(x.shape[2:], g.shape[2:], w.shape[2:], strict=True)
            ]
            want_x = F.conv_transpose2d(g, w, **options, output_padding=more)
    assert slow.equal(x.grad, want_x)


def attention(x: Any) -> Any:
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...], int]] = {
    "linear layers": (
        lambda: torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 4)),
        (3, 6), 2 + 4,
    ),
    "attention": (lambda: attention, (1, 2, 5, 8), 2 * 2 + 4 * 2),
    "lstm": (lambda: torch.nn.LSTM(6, 4), (2, 1, 6), 3 + 2 + 2 + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_leave_nothing_to_pytorch(name: str) -> None:
    make, shape, products = MODELS[name]
    torch.manual_seed(0)
    model = make()
    model = model.half() if isinstance(model, torch.nn.Module) else model
    with emulate("H100", backward=True) as context:
        y = model(rand(*shape))
        (y[0] if isinstance(y, tuple) else y).float().sum().backward()
    assert context.report().fallbacks == ()
    assert context.report().products == products


def test_gradient_products_belong_to_their_module() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 4)).half()
    g = torch.ones(3, 4).half()
    with emulate("H100", backward=True, modules={"1": Policy("MI300X")}) as context:
        net(rand(3, 6)).backward(g)
    by = {(row.module, row.op): row.by.split()[0] for row in context.report().rows}
    assert by == {
        ("0", "addmm"): "Hopper", ("0", "mm"): "Hopper",
        ("1", "addmm"): "CDNA3", ("1", "mm"): "CDNA3",
    }  # fmt: skip


def test_second_derivatives_and_a_training_loop() -> None:
    x = rand(3, 6)
    with emulate("H100", backward=True) as context:
        y = (x @ x.t()).float().sum()
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        slope.float().pow(2).sum().backward()
    assert context.report().products == 5 and x.grad is not None
    net = torch.nn.Linear(6, 3).half()
    optimiser = torch.optim.SGD(net.parameters(), 0.1)
    before = net.weight.detach().clone()
    with emulate("H100", backward=True) as context:
        for _ in range(2):
            optimiser.zero_grad()
            F.cross_entropy(net(x.detach()).float(), torch.tensor([0, 1, 2])).backward()
            optimiser.step()
    assert context.report().products == 4 and not slow.equal(net.weight.detach(), before)


# --- errors ---------------------------------------------------------------------------------------


class Square(torch.autograd.Function):
    """A product whose gradient autograd does not record itself."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g @ x.t() + x.t() @ g


LOSSES: dict[str, Callable[[Any], Any]] = {
    "a product": lambda x: (x @ x).float().sum(),
    "a product without saved tensors": lambda x: torch.addmm(x, x.detach(), x.detach()).sum(),
    "attention": lambda x: attention(x[None, None]).float().sum(),
    "checkpointed": lambda x: checkpoint(torch.mm, x, x, use_reentrant=False).float().sum(),
    "checkpointed, reentrant": lambda x: (
        checkpoint(torch.mm, x, x, use_reentrant=True).float().sum()
    ),
    "a function of its own": lambda x: Square.apply(x).float().sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_backward_outside_the_context(name: str) -> None:
    context = emulate("H100", backward=True)
    with context:
        loss = LOSSES[name](rand(8, 8))
    with pytest.raises(GradientError, match="must be called inside that same context"):
        loss.backward()
    with context:
        loss = LOSSES[name](rand(8, 8))
    with emulate("A100", backward=True), pytest.raises(GradientError, match="that same context"):
        loss.backward()
    with context:
        loss = LOSSES[name](rand(8, 8))
    with context:  # left and entered again
        loss.backward()


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_that_nobody_asked_for(name: str) -> None:
    with pytest.raises(GradientError, match="backward=True"), emulate("H100"):
        LOSSES[name](rand(8, 8)).backward()
    with pytest.raises(GradientError, match="backward=True"):
        with emulate("H100"):
            loss = LOSSES[name](rand(8, 8))
        loss.backward()


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_no_gradient_no_error(guard: Any) -> None:
    x = rand(4, 4)
    with emulate("H100"), guard():
        y = x @ x
    assert slow.equal(y, slow.matmul(H100, x.detach(), x.detach()))


def test_backward_of_what_was_recorded_outside() -> None:
    x = rand(8, 8)
    loss = (x @ x).float().sum()
    with emulate("H100"), pytest.raises(GradientError, match="mm is called by backward"):
        loss.backward()
    loss = (x @ x).float().sum()
    with emulate("H100", backward=True) as context:
        loss.backward()
    assert context.report().products == 2
    y = rand(1, 1, 8, 8)
    loss = attention(y).float().sum()
    with emulate("H100", backward=True), pytest.raises(UnmodelledProduct, match="attention"):
        loss.backward()
