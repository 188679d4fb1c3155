"""`emulate`: every bit of every operator against plain loops over the reference."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F

import bitmma
import bitmma.torch
import slow_torch as slow
import torch
from bitmma import Schedule
from bitmma.recipes import default_instruction
from bitmma.torch import Policy, UnmodelledProduct, emulate

H100 = default_instruction("H100", "f16")


def rand(*shape: int, dtype: Any = torch.float16, seed: int = 0, spread: float = 2.0) -> Any:
    """Numbers of many magnitudes, so that sums are cut and rounded."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.uniform(-spread, spread, shape)
    return torch.from_numpy(x).to(dtype)


def run(f: Callable[[], Any], *, gpu: str = "H100", **options: Any) -> Any:
    with torch.no_grad(), emulate(gpu, **options):
        return f()


# --- which instruction ----------------------------------------------------------------------------

UNITS = [
    ("V100", torch.float16, "m8n8k4.f32.f16.f16.f32"),
    ("T4", torch.float16, "m16n8k8.f32.f16.f16.f32"),
    ("A100", torch.bfloat16, "m16n8k16.f32.bf16.bf16.f32"),
    ("H100", torch.float16, "m64n256k16.f32.f16.f16"),
    ("H100", torch.float64, "m16n8k16.f64.f64.f64.f64"),
    ("B200", torch.bfloat16, "m128n256k16.kind::f16.f32.bf16.bf16"),
    ("RTX 5090", torch.float16, "m16n8k16.f32.f16.f16.f32"),
    ("MI100", torch.bfloat16, "f32_16x16x8bf16"),
    ("MI250X", torch.bfloat16, "f32_16x16x16bf16_1k"),
    ("MI250X", torch.float64, "f64_16x16x4f64"),
    ("MI300X", torch.float16, "f32_16x16x16_f16"),
]


@pytest.mark.parametrize(("gpu", "dtype", "name"), UNITS)
def test_mm_on_every_kind_of_unit(gpu: str, dtype: Any, name: str) -> None:
    A, B = rand(3, 37, dtype=dtype), rand(37, 4, dtype=dtype, seed=1)
    with emulate(gpu) as context:
        D = A @ B
    (row,) = context.report().rows
    assert row.by.endswith(f" {name}") and row.macs == 3 * 37 * 4
    assert slow.equal(D, slow.matmul(bitmma.instruction(gpu, name), A, B))


def test_gpus_differ_and_from_pytorch() -> None:
    A, B = rand(32, 512, spread=6), rand(512, 32, seed=1, spread=6)
    found = {gpu: run(lambda: A @ B, gpu=gpu) for gpu in ("A100", "H100", "MI250X", "MI300X")}
    found["PyTorch"] = A @ B
    assert len({slow.codes(x).tobytes() for x in found.values()}) == 5


@pytest.mark.parametrize("gpu", ["A100", "H100"])
def test_fp32_as_tf32_rounds_half_away(gpu: str) -> None:
    A, B = rand(4, 21, dtype=torch.float32), rand(21, 3, dtype=torch.float32, seed=1)
    A[0, :4] = torch.tensor([1024.5, -1024.5, 3.4e38, float("inf")])
    A[1, :2] = torch.tensor([float("nan"), 1e-44])
    A[2] = torch.tensor([1 + 2.0**-11] * 21)
    instr = default_instruction(gpu, "tf32")
    want = slow.matmul(instr, slow.to_tf32(A), slow.to_tf32(B))
    assert slow.equal(run(lambda: A @ B, gpu=gpu, fp32="tf32"), want)
    one = run(lambda: torch.tensor([[1024.5]]) @ torch.tensor([[1.0]]), gpu=gpu, fp32="tf32")
    assert one.item() == 1025
    assert bitmma.matmul(np.float32([[1024.5]]), np.float32([[1]]), instruction=instr)[0, 0] == 1024


def test_fp32_on_cdna3_is_cut_by_the_instruction() -> None:
    A, B = rand(4, 21, dtype=torch.float32), rand(21, 3, dtype=torch.float32, seed=1)
    want = slow.matmul(default_instruction("MI300X", "xf32"), A, B)
    assert slow.equal(run(lambda: A @ B, gpu="MI300X", fp32="tf32"), want)


@pytest.mark.parametrize("gpu", ["H100", "MI300X", "V100"])
def test_fp32_ieee_is_a_chain_of_fused_multiply_adds(gpu: str) -> None:
    A, B = rand(4, 21, dtype=torch.float32), rand(21, 3, dtype=torch.float32, seed=1)
    want = slow.matmul(default_instruction("MI300X", "f32"), A, B)
    assert slow.equal(run(lambda: A @ B, gpu=gpu, fp32="ieee"), want)


# --- operators ------------------------------------------------------------------------------------

A, B, C = rand(5, 33), rand(33, 4, seed=1), rand(5, 4, seed=2)
BATCH_A, BATCH_B = rand(3, 5, 18, seed=3), rand(3, 18, 4, seed=4)


def of(*operands: Any, **options: Any) -> Any:
    return slow.matmul(H100, *operands, **options)


def batched(c: Any = None, **options: Any) -> Any:
    return torch.stack([of(a, b, c, **options) for a, b in zip(BATCH_A, BATCH_B, strict=True)])


def addbmm() -> Any:
    y = of(BATCH_A[0], BATCH_B[0], C, alpha=0.5, beta=3.0)
    for i in (1, 2):
        y = of(BATCH_A[i], BATCH_B[i], y, alpha=0.5)
    return y


#: What is called, and what it must give.
CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "mm": (lambda: A.mm(B), lambda: of(A, B)),
    "mm.out": (lambda: torch.mm(A, B, out=torch.empty(0, dtype=A.dtype)), lambda: of(A, B)),
    "mm of strided": (lambda: rand(33, 5).t() @ B, lambda: of(rand(33, 5).t(), B)),
    "mm of nothing": (lambda: A[:, :0] @ B[:0], lambda: torch.zeros(5, 4).half()),
    "addmm": (lambda: torch.addmm(C, A, B), lambda: of(A, B, C)),
    "addmm, alpha, beta": (
        lambda: torch.addmm(C, A, B, alpha=-0.3, beta=1.7),
        lambda: of(A, B, C, alpha=np.float32(-0.3), beta=np.float32(1.7)),
    ),
    "addmm, beta 0": (
        lambda: torch.addmm(torch.full_like(C, torch.nan), A, B, beta=0), lambda: of(A, B)
    ),
    "addmm_": (lambda: C.clone().addmm_(A, B), lambda: of(A, B, C)),
    "addmm.out": (
        lambda: torch.addmm(C, A, B, out=torch.empty_like(C)), lambda: of(A, B, C)
    ),
    "bmm": (lambda: BATCH_A.bmm(BATCH_B), batched),
    "baddbmm": (
        lambda: torch.baddbmm(C, BATCH_A, BATCH_B, alpha=2, beta=0.5),
        lambda: batched(C, alpha=2, beta=0.5),
    ),
    "addbmm": (lambda: torch.addbmm(C, BATCH_A, BATCH_B, alpha=0.5, beta=3), addbmm),
    "mv": (lambda: A @ B[:, 0], lambda: of(A, B[:, :1])[:, 0]),
    "addmv": (
        lambda: torch.addmv(C[:, 0], A, B[:, 0], beta=0.5),
        lambda: of(A, B[:, :1], C[:, :1], beta=0.5)[:, 0],
    ),
    "dot": (lambda: A[0].dot(B[:, 0]), lambda: of(A[:1], B[:, :1])[0, 0]),
    "vdot": (lambda: A[0].vdot(B[:, 0]), lambda: of(A[:1], B[:, :1])[0, 0]),
    "linear": (
        lambda: F.linear(BATCH_A, BATCH_B[0].t(), C[0]),
        lambda: of(BATCH_A.flatten(0, 1), BATCH_B[0], C[0]).unflatten(0, (3, 5)),
    ),
    "linear, inference": (
        lambda: torch.inference_mode()(F.linear)(A, B.t(), C[0]), lambda: of(A, B, C[0])
    ),
    "einsum": (lambda: torch.einsum("bik,bkj->bij", BATCH_A, BATCH_B), batched),
    "tensordot": (lambda: torch.tensordot(A, B, 1), lambda: of(A, B)),
    "chain_matmul": (
        lambda: torch.chain_matmul(A, B, C.t()), lambda: of(of(A, B), C.t())
    ),
    "multi_dot": (lambda: torch.linalg.multi_dot([A, B]), lambda: of(A, B)),
    "matrix_power": (
        lambda: torch.linalg.matrix_power(BATCH_A[0, :, :5], 2),
        lambda: of(BATCH_A[0, :, :5], BATCH_A[0, :, :5]),
    ),
    "_addmm_activation": (
        lambda: torch.ops.aten._addmm_activation(C, A, B), lambda: of(A, B, C).relu()
    ),
    "_grouped_mm, rows": (
        lambda: torch._grouped_mm(
            A[:, :16].bfloat16(), B[:32].reshape(2, 16, 4).bfloat16(),
            offs=torch.tensor([2, 5]).int(),
        ),
        lambda: torch.cat([
            slow.matmul(
                default_instruction("H100", "bf16"), A[s, :16].bfloat16(),
                B[:32].reshape(2, 16, 4)[i].bfloat16(),
            )
            for i, s in enumerate((slice(2), slice(2, 5)))
        ]),
    ),
    "autocast": (
        lambda: torch.autocast("cpu", torch.float16)(F.linear)(
            A.float(), B.t().float(), C[0].float()
        ),
        lambda: of(A, B, C[0]),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")
@pytest.mark.parametrize("name", CASES)
def test_operators(name: str) -> None:
    call, want = CASES[name]
    assert slow.equal(run(call), want())


def test_large_products_are_those_of_bitmma_matmul() -> None:
    x, y = rand(130, 300, spread=6), rand(300, 70, seed=1, spread=6)
    want = bitmma.matmul(x, y, instruction=H100).half()
    assert slow.equal(run(lambda: x @ y), want)
    assert slow.equal(run(lambda: x @ y, threads=3), want)


def test_a_schedule_and_an_instruction_by_operator_and_format() -> None:
    k8 = "m16n8k8.f32.f16.f16.f32"
    every = Schedule(promote_every=16)
    options = {"instruction": {"bmm:f16": k8}, "schedule": {"mm": every, "bf16": Schedule()}}
    with torch.no_grad(), emulate("H100", **options) as context:
        x, y = A @ B, BATCH_A @ BATCH_B
    assert slow.equal(x, of(A, B, schedule=every))
    wanted = bitmma.instruction("H100", k8)
    assert slow.equal(y[1], slow.matmul(wanted, BATCH_A[1], BATCH_B[1]))
    assert [row.schedule for row in context.report().rows] == ["promote_every=16", "chain"]
    assert slow.equal(run(lambda: A @ B, schedule=every), of(A, B, schedule=every))


# --- convolutions ---------------------------------------------------------------------------------


def conv_by_loops(x: Any, w: Any, stride: int, padding: int, dilation: int, groups: int) -> Any:
    """im2col, K over (channel, row, column), by index arithmetic."""
    N, _, H, W = x.shape
    O, per, R, S = w.shape
    out = [(n + 2 * padding - dilation * (r - 1) - 1) // stride + 1 for n, r in ((H, R), (W, S))]
    y = torch.empty(N, O, *out, dtype=x.dtype)
    for g in range(groups):
        columns = torch.zeros(N, *out, per * R * S, dtype=x.dtype)
        for k in range(per * R * S):
            c, r, s = k // (R * S), k // S % R, k % S
            for i, j in np.ndindex(*out):
                u, v = i * stride + r * dilation - padding, j * stride + s * dilation - padding
                if 0 <= u < H and 0 <= v < W:
                    columns[:, i, j, k] = x[:, g * per + c, u, v]
        own = slice(g * O // groups, (g + 1) * O // groups)
        rows = w[own].reshape(O // groups, -1)
        found = of(columns.flatten(0, 2), rows.t())
        y[:, own] = found.reshape(N, *out, -1).permute(0, 3, 1, 2)
    return y


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 1, 2), (1, 2, 2, 1)]
)
def test_conv2d(stride: int, padding: int, dilation: int, groups: int) -> None:
    x, w, b = rand(2, 4, 6, 5), rand(6, 4 // groups, 3, 2, seed=1), rand(6, seed=2)
    want = conv_by_loops(x, w, stride, padding, dilation, groups) + b[:, None, None]
    got = run(lambda: F.conv2d(x, w, b, stride, padding, dilation, groups))
    assert slow.equal(got, want)


def test_conv_transpose2d() -> None:
    """Every output is one chain over (channel, row, column) of the kernel turned round."""
    x, w = rand(1, 4, 3, 3), rand(4, 2, 3, 3, seed=1)
    apart = torch.zeros(1, 4, 5, 5).half()
    apart[..., ::2, ::2] = x
    turned = w.flip(2, 3).reshape(2, 2, 2, 3, 3).transpose(1, 2).reshape(4, 2, 3, 3)
    want = conv_by_loops(apart, turned, 1, 1, 1, 2)
    got = run(lambda: F.conv_transpose2d(x, w, stride=2, padding=1, groups=2))
    assert slow.equal(got, want)


def test_conv1d_and_conv3d() -> None:
    x, w = rand(2, 3, 9), rand(4, 3, 3, seed=1)
    want = conv_by_loops(x[..., None], w[..., None], 2, 0, 1, 1)[..., 0]
    assert slow.equal(run(lambda: F.conv1d(x, w, stride=2)), want)
    x, w = x[..., None, None], w[..., None, None]
    assert slow.equal(run(lambda: F.conv3d(x, w, stride=(2, 1, 1)))[..., 0, 0], want)


# --- attention, recurrent layers, transformers ----------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_attention_stays_in_its_dtype(dtype: Any, guard: Any) -> None:
    """q and k by the root of 1/sqrt(d), S = q k^T, softmax, P v: each stored in the dtype."""
    instr = default_instruction("H100", slow.FORMATS[dtype])
    q, k, v = (rand(1, 2, 6, 16, dtype=dtype, seed=s, spread=1) for s in range(3))
    mask = torch.ones(6, 6).tril().bool()
    with guard(), emulate("H100") as context:
        got = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert {row.op for row in context.report().rows} == {"bmm"}
    root = 16**-0.25
    for head in range(2):
        scores = slow.matmul(instr, q[0, head] * root, (k[0, head] * root).t())
        weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
        assert slow.equal(got[0, head], slow.matmul(instr, weights, v[0, head]))


def test_the_switches_are_put_back() -> None:
    def state() -> tuple[bool, ...]:
        cuda = torch.backends.cuda
        return (
            torch._C._get_mkldnn_enabled(), torch.backends.mha.get_fastpath_enabled(),
            cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(),
            cuda.fp16_bf16_reduction_math_sdp_allowed(),
        )  # fmt: skip

    before = state()
    with pytest.raises(UnmodelledProduct), emulate("H100"):
        assert state() != before
        torch.eye(3) @ torch.eye(3)
    assert state() == before


def test_lstm_is_made_of_its_products() -> None:
    lstm = torch.nn.LSTM(6, 4).half().requires_grad_(False)
    x = rand(3, 2, 6)
    with emulate("H100") as context:
        y, (h, c) = lstm(x)
    w_x, w_h, b_x, b_h = lstm.all_weights[0]
    h_t = c_t = torch.zeros(2, 4).half()
    projected = of(x.flatten(0, 1), w_x.t(), b_x).unflatten(0, (3, 2))
    for t in range(3):
        gates = of(h_t, w_h.t(), b_h) + projected[t]
        i, f, g, o = gates.chunk(4, 1)
        c_t = f.sigmoid() * c_t + i.sigmoid() * g.tanh()
        h_t = o.sigmoid() * c_t.tanh()
        assert slow.equal(y[t], h_t)
    assert slow.equal(h[0], h_t) and slow.equal(c[0], c_t)
    assert context.report().fallbacks == () and context.report().products == 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("layer", "products"),
    [
        (lambda: torch.nn.GRU(8, 8, 2, bidirectional=True), 4 + 4 * 3),
        (lambda: torch.nn.RNN(8, 8), 4),
        (lambda: torch.nn.LSTMCell(8, 8), 2),
        (lambda: torch.nn.TransformerEncoderLayer(8, 2, 16), 4 + 2 * 10),
    ],
)
def test_layers_with_fast_paths_are_decomposed(layer: Callable[[], Any], products: int) -> None:
    model = layer().half().eval()
    x = rand(3, 5, 8) if not isinstance(model, torch.nn.LSTMCell) else rand(3, 8)
    for guard in (torch.no_grad, torch.inference_mode):
        with guard(), emulate("H100") as context:
            model(x)
        report = context.report()
        assert report.fallbacks == () and report.products == products, report


@pytest.mark.filterwarnings("ignore")
def test_a_padded_encoder_takes_no_nested_tensors() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).half()
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()
    padding = torch.tensor([[False] * 4 + [True]] * 3)
    with torch.no_grad(), emulate("H100") as context:
        y = encoder(rand(3, 5, 8), src_key_padding_mask=padding)
    assert y.shape == (3, 5, 8) and context.report().fallbacks == ()


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.cdist(rand(30, 6, dtype=torch.float32), rand(40, 6, dtype=torch.float32)),
        lambda: torch.linalg.matrix_exp(rand(4, 4, dtype=torch.float32)),
        lambda: F.bilinear(
            *[rand(3, 4, dtype=torch.float32)] * 2, rand(5, 4, 4, dtype=torch.float32)
        ),
        lambda: F.affine_grid(rand(1, 2, 3, dtype=torch.float32), (1, 1, 3, 3), False),
        lambda: torch._foreach_mm([torch.eye(2)], [torch.eye(2)])[0],
    ],
)  # fmt: skip
def test_kernels_that_call_for_products_are_decomposed(call: Callable[[], Any]) -> None:
    with emulate("H100", fp32="tf32") as context:
        got = call()
    assert context.report().products > 0 and context.report().fallbacks == ()
    assert got.shape == call().shape


# --- FP8 ------------------------------------------------------------------------------------------

E4M3 = torch.float8_e4m3fn


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("gpu", ["Ada", "H100", "B200"])
def test_scaled_mm_is_its_recipe(gpu: str, fast: bool) -> None:
    a, b = rand(4, 320, dtype=E4M3), rand(5, 320, dtype=E4M3, seed=1).t()
    s, t, bias = torch.tensor(0.37), torch.tensor([1.3]), rand(5, dtype=torch.bfloat16)
    with emulate(gpu) as context:
        got = torch._scaled_mm(a, b, s, t, bias, out_dtype=torch.bfloat16, use_fast_accum=fast)
    recipe = bitmma.recipes.scaled_mm(gpu, use_fast_accum=fast)
    assert slow.equal(got, recipe(a, b, scale_a=s, scale_b=t, bias=bias))
    (row,) = context.report().rows
    assert row.schedule == str(recipe.schedule) and row.formats == "e4m3"
    assert (row.schedule == "chain") == (fast or gpu == "B200")


def test_scaled_mm_by_rows_and_as_the_public_function() -> None:
    a, b = rand(4, 64, dtype=E4M3), rand(5, 64, dtype=torch.float8_e5m2, seed=1).t()
    s, t = rand(4, 1, dtype=torch.float32).abs(), rand(1, 5, dtype=torch.float32).abs()
    recipe = bitmma.recipes.scaled_mm("H100", b="e5m2")
    want = recipe(a, b, scale_a=s, scale_b=t)
    assert slow.equal(run(lambda: torch._scaled_mm(a, b, s, t, out_dtype=torch.bfloat16)), want)
    kinds = F.ScalingType
    assert slow.equal(run(lambda: F.scaled_mm(a, b, s, kinds.RowWise, t, kinds.RowWise)), want)
    one = torch.tensor(2.0)
    want = recipe(a, b, scale_a=one, scale_b=one)
    got = run(lambda: F.scaled_mm(a, b, one, kinds.TensorWise, one, kinds.TensorWise))
    assert slow.equal(got, want)
    with pytest.raises(UnmodelledProduct, match="scales of blocks"):
        run(lambda: F.scaled_mm(a, b, s, kinds.BlockWise1x128, t, kinds.BlockWise128x128))


# --- what is left to PyTorch ----------------------------------------------------------------------


def test_integers_are_native_and_counted() -> None:
    x = torch.arange(6).reshape(2, 3)
    with emulate("H100") as context:
        assert torch.equal(x @ x.t(), torch.tensor([[5, 14], [14, 50]]))
        torch._int_mm(torch.ones(32, 32).char(), torch.ones(32, 32).char())
    assert [(r.op, r.native, r.macs) for r in context.report().rows] == [
        ("mm", True, 12), ("_int_mm", True, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "options", "words"),
    [
        (lambda: torch.eye(3) @ torch.eye(3), {}, "mm of float32 tensors; fp32='tf32' computes"),
        (lambda: A.bfloat16() @ B.bfloat16(), {"gpu": "T4"},
         "Turing has no instruction for bf16.*; Ampere, .*CDNA3 have it"),
        (lambda: A.double() @ B.double(), {"gpu": "V100"}, "Volta has no .*f64.*; Ampere"),
        (lambda: A.float() @ B.float(), {"gpu": "MI100", "fp32": "tf32"}, "CDNA1 has no .* tf32"),
        (lambda: A.cfloat() @ B.cfloat(), {}, "mm of torch.complex64 tensors"),
        (lambda: A.to_sparse() @ B, {}, "mm of torch.sparse_coo tensors"),
        (lambda: torch._scaled_mm(
            A.to(E4M3)[:, :32], B.t().to(E4M3)[:, :32].contiguous().t(), *[torch.tensor(1.0)] * 2
        ), {"gpu": "A100"}, "_scaled_mm: Ampere has no .* e4m3.*; Ada Lovelace, Hopper,"),
        (lambda: A @ B, {"instruction": {"f16": "m16n8k8.f32.bf16.bf16.f32"}},
         "was chosen for it, whose A is bf16, not torch.float16"),
    ],
)  # fmt: skip
def test_unmodelled_products(call: Any, options: Any, words: str) -> None:
    with pytest.raises(UnmodelledProduct, match=words):
        run(call, **options)
    if "scaled" not in words:
        options = {"gpu": "H100"} | options
        with torch.no_grad(), emulate(**options, fallback="native") as context:
            got = call()
        assert torch.equal(got.to_dense(), call().to_dense())
        (row,) = context.report().fallbacks
        assert row.native and row.calls == 1


# --- modules and reports --------------------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(33, 8), torch.nn.Linear(8, 8))
        self.head = torch.nn.Linear(8, 4)
        self.half().requires_grad_(False)

    def forward(self, x: Any) -> Any:
        y = self.head(self.body(x))
        return y @ y.t()


def test_policies_by_module() -> None:
    net = Net()
    modules = {"body.0": "native", "body": Policy("A100"), "he*": Policy("MI300X")}
    with emulate("H100", modules=modules) as context:
        y = net(A)
    rows = {row.module: row for row in context.report().rows}
    assert {name: row.by.split()[0] for name, row in rows.items()} == {
        "body.0": "as", "body.1": "Ampere", "head": "CDNA3", "": "Hopper",
    }  # fmt: skip
    first = F.linear(A, net.body[0].weight, net.body[0].bias)
    second = slow.matmul(
        default_instruction("A100", "f16"), first, net.body[1].weight.t(), net.body[1].bias
    )
    head = slow.matmul(
        default_instruction("MI300X", "f16"), second, net.head.weight.t(), net.head.bias
    )
    assert slow.equal(y, of(head, head.t()))


def test_native_modules_may_hold_anything() -> None:
    class Inverse(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.inv(x)

    net = torch.nn.Sequential(Inverse())
    with emulate("H100", modules={"0": "native"}) as context:
        net(torch.eye(3))
    (row,) = context.report().rows
    assert (row.module, row.op, row.by) == ("0", "linalg_inv_ex", "as modules= says")
    with emulate("H100"), pytest.raises(UnmodelledProduct, match="a factorisation or a solver"):
        net(torch.eye(3))


def test_report() -> None:
    net = Net()
    with emulate("H100") as context:
        net(A)
        net(A)
    report = context.report()
    assert [(r.module, r.op, r.calls, r.products, r.macs) for r in report.rows] == [
        ("body.0", "addmm", 2, 2, 2 * 5 * 33 * 8),
        ("body.1", "addmm", 2, 2, 2 * 5 * 8 * 8),
        ("head", "addmm", 2, 2, 2 * 5 * 8 * 4),
        ("", "mm", 2, 2, 2 * 5 * 4 * 5),
    ]
    assert report.products == 8 and report.macs == sum(r.macs or 0 for r in report.rows)
    lines = str(report).splitlines()
    assert lines[0].split() == [
        "module", "op", "operands", "computed", "by", "calls", "products", "MACs",
    ]  # fmt: skip
    assert lines[2].split()[:4] == ["body.0", "addmm", "f16", "Hopper"]
    assert lines[-1] == f"Hopper: 8 products emulated, {report.macs:,} MACs."
    assert report.to_dict()["rows"][0]["module"] == "body.0"
    assert report.to_dict()["bits_version"] == bitmma.BITS_VERSION


def test_modules_that_raise_leave_no_trace() -> None:
    class Raises(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyError

    with emulate("H100") as context:
        with pytest.raises(KeyError):
            torch.nn.Sequential(Raises())(A)
        A @ B
    assert [row.module for row in context.report().rows] == [""]


# --- the context ----------------------------------------------------------------------------------


def test_nested_contexts_the_inner_one_counts() -> None:
    with emulate("A100") as outer, emulate("MI300X") as inner:
        D = A @ B
    assert outer.report().rows == () and inner.report().products == 1
    assert slow.equal(D, slow.matmul(default_instruction("MI300X", "f16"), A, B))


def test_one_thread_and_one_entry() -> None:
    found: list[Any] = []
    context = emulate("MI250X")
    with context:
        thread = threading.Thread(target=lambda: found.append(A @ B))
        thread.start()
        thread.join()
        with pytest.raises(ValueError, match="already entered"), context:
            pass
    assert slow.equal(found[0], A @ B) and context.report().rows == ()
    with context:  # again, after it was left
        A @ B
    assert context.report().products == 1


def test_shapes_without_numbers_are_pytorchs() -> None:
    from torch._subclasses import FakeTensorMode

    with emulate("H100") as context:
        assert (A.to("meta") @ B.to("meta")).shape == (5, 4)
        with FakeTensorMode():
            assert (torch.empty(5, 33) @ torch.empty(33, 4)).shape == (5, 4)
    assert context.report().rows == ()


def test_wrappers_are_taken_apart() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    with torch.no_grad(), emulate("H100") as context:
        D = TwoTensor(A, A + 1) @ TwoTensor(B, B)
    assert slow.equal(D.a, of(A, B)) and slow.equal(D.b, of(A + 1, B))
    assert context.report().products == 2


def test_nothing_is_copied_or_written() -> None:
    from bitmma.engine.operands import to_codes

    for x, fmt in ((A, "f16"), (A.bfloat16(), "bf16"), (B.t(), "f16"), (A.to(E4M3), "e4m3")):
        codes, _ = to_codes(x, fmt, "x")
        assert codes.__array_interface__["data"][0] == x.data_ptr()
    before = A.clone(), B.clone(), C.clone()
    run(lambda: torch.addmm(C, A, B))
    assert all(slow.equal(x, y) for x, y in zip((A, B, C), before, strict=True))


def test_flush_to_zero_changes_no_bit() -> None:
    x, y = A * 2.0**-13, B * 2.0**-11
    want = run(lambda: torch.addmm(C * 2.0**-14, x, y))
    assert torch.set_flush_denormal(True)
    try:
        got = run(lambda: torch.addmm(C * 2.0**-14, x, y))
    finally:
        torch.set_flush_denormal(False)
    assert slow.equal(got, want) and (want.abs() < 2.0**-14).any()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("H101",), ValueError, "unknown GPU 'H101'"),
        (("gfx950",), ValueError, "does not model"),
        (("H100", {"fp32": "fp32"}), ValueError, "fp32 is one of 'raise', 'tf32', 'ieee'"),
        (("H100", {"fallback": "cpu"}), ValueError, "fallback is 'raise' or 'native'"),
        (("H100", {"modules": {"a": "A100"}}), TypeError, "modules must map patterns"),
        (("H100", {"no_products": "a::b"}), TypeError, "no_products must be a collection"),
        (("H100", {"threads": -1}), ValueError, "threads must be a positive integer, not -1"),
        (("H100", {"threads": 1.5}), TypeError, "threads must be a positive integer, not 1.5"),
        (("H100", {"backward": 3}), TypeError, "backward must be True or False, not 3"),
        (("H100", {"schedule": {"matmul": Schedule()}}), ValueError, "has the key 'matmul'"),
        (("H100", {"schedule": {"mm": 128}}), TypeError, r"schedule\['mm'\] must be Schedule"),
        (("H100", {"instruction": {"mm": "m16n8k17"}}), ValueError, "has no instruction"),
        (("H100", {"instruction": {"f16:mm": "m16n8k16.f32.f16.f16.f32"}}), ValueError, "bmm:f16"),
        ((Policy("H100"), {"fp32": "tf32"}), ValueError, "belong in the Policy"),
    ],
)  # fmt: skip
def test_arguments_that_mean_nothing(arguments: Any, error: Any, words: str) -> None:
    gpu, options = (*arguments, {})[:2]
    with pytest.raises(error, match=words):
        emulate(gpu, **options)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: torch.mm(A, C), "inner dimensions differ"),
        (lambda: torch.mm(A, B.bfloat16()), "mm: operands must have one dtype"),
        (lambda: torch.mm(A, B[None]), "mm: mat2 must have 2 dimensions"),
        (lambda: torch.bmm(BATCH_A, BATCH_B[:2]), "bmm: batches differ"),
        (lambda: torch.addmm(C.float(), A, B), "addmm: the addend must be torch.float16"),
        (lambda: torch.mm(A, B, out=torch.empty(5, 4)), "out must be torch.float16"),
        (lambda: F.conv1d(BATCH_A, rand(2, 4, 3)), "do not fit 1 groups"),
        (lambda: F.conv1d(BATCH_A[..., :2], rand(2, 5, 3)), "less than the 3 that the kernel"),
        (lambda: F.conv2d(BATCH_A, rand(2, 3, 1, 1), padding=(0, -1)), "negative padding"),
        (lambda: F.conv_transpose2d(BATCH_A, rand(3, 2, 1, 1), padding=-1), "negative padding"),
    ],
)
def test_operands_that_do_not_fit(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run(call)
