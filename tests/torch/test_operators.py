"""Every operator of PyTorch is in a table, and none leaves a product to a CPU library."""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import re
import sys
import types
import unittest
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils._pytree import tree_leaves

import bitmma.torch
import torch
from bitmma.torch import UnmodelledProduct, operators
from bitmma.torch.products import HANDLERS

VERSION = "2.13"


#: Parts of PyTorch that register operators of their own, and only once they are imported.
LAZY = (
    "torch._dynamo", "torch._inductor.compile_fx", "torch.nn.attention.varlen",
    "torch.distributed.pipelining", "torch.nn.modules.linear_cross_entropy",
    "torch.distributed.tensor.experimental._context_parallel._cp_custom_ops",
)  # fmt: skip


@functools.cache
def names() -> list[tuple[str, str]]:
    """Every operator and overload that the dispatcher knows."""
    for module in LAZY:
        importlib.import_module(module)
    found = [name.partition(".") for name in torch._C._dispatch_get_all_op_names()]
    return [(name, overload) for name, _, overload in found if not name.startswith("bitmma_test")]


def test_this_is_the_version_that_the_tables_are_for() -> None:
    assert torch.__version__.startswith(VERSION), (
        f"the tables are for PyTorch {VERSION}, and know nothing that is new in {torch.__version__}"
    )


def test_every_operator_is_in_a_table() -> None:
    kinds: dict[str, set[str]] = {}
    for name, overload in names():
        kinds.setdefault(operators.kind(name, overload), set()).add(name)
    assert kinds.pop("unknown", set()) == set()
    assert {kind: len(found) > 0 for kind, found in kinds.items()} == dict.fromkeys(
        ("product", "decomposed", "opaque", "integer product", "no product"), True
    )
    assert sum(map(len, kinds.values())) > 1800


def test_the_tables_are_disjoint_and_name_operators_that_exist() -> None:
    tables = {
        "products": operators.PRODUCTS,
        "decomposed": operators.KERNELS_TO_DECOMPOSE,
        "opaque": operators.OPAQUE,
        "hidden": operators.HIDDEN_COMPOSITES,
        "integer": operators.INTEGER_PRODUCTS,
        "no products": operators._not_products(),
    }
    for (a, first), (b, second) in itertools.combinations(tables.items(), 2):
        assert not first & second, (a, b)
    known = {operators.base_name(name) for name, _ in names()}
    for name, table in tables.items():
        assert table <= known, name
    assert set(HANDLERS) == operators.PRODUCTS


#: Names that sound like products and hold none: docs/torch.md says why.
SOUND_LIKE_PRODUCTS = {
    "addr", "trace", "linalg_cross", "linalg_vector_norm", "linalg__powsum",
    "_linalg_check_errors", "_compute_linear_combination", "_fused_sdp_choice", "_cdist_backward",
    "_thnn_fused_gru_cell", "_thnn_fused_gru_cell_backward", "_thnn_fused_lstm_cell",
    "_thnn_fused_lstm_cell_backward_impl", "_cudnn_rnn_flatten_weight",
    "_convert_weight_to_int4pack_for_cpu",
}  # fmt: skip

PRODUCT_WORDS = re.compile(
    r"(^|_)(mm|bmm|addmm|mv|addmv|addr|dot|vdot|gru|rnn|lstm|lu|qr|svd|trace|sdp)(_|$)|matmul|"
    r"(^|_|q)linear(?!1d)|conv(\d|_|olution)|attention|attn|cdist|euclid|linalg|chol|solve|gemm|int\dpack"
)
#: Of packed weights: how they are laid out, or read back.
PACKING = re.compile(
    r"pack$|pack_fp16|pack_legacy|unpack|reorder|pack_gemm|quantized::conv\w+_\w+$"
)


def test_nothing_that_sounds_like_a_product_is_called_none() -> None:
    found = {n for n in operators._not_products() if PRODUCT_WORDS.search(n.split("::")[-1])}
    assert {n for n in found if not PACKING.search(n)} == SOUND_LIKE_PRODUCTS


def test_unknown_operators_are_errors() -> None:
    with torch.library._scoped_library("bitmma_test", "DEF") as library:
        library.define("secret(Tensor x) -> Tensor")
        library.impl("secret", lambda x: x @ x, "CPU")
        x = torch.eye(3)
        with (
            bitmma.torch.emulate("H100", fp32="ieee"),
            pytest.raises(
                UnmodelledProduct,
                match=r"bitmma_test::secret is unknown .* no_products={'bitmma_test",
            ),
        ):
            torch.ops.bitmma_test.secret(x)
        with bitmma.torch.emulate("H100", no_products={"bitmma_test::secret"}) as run:
            assert torch.equal(torch.ops.bitmma_test.secret(x), x)
        assert run.report().rows == ()
        with bitmma.torch.emulate("H100", fallback="native") as run:
            assert torch.equal(torch.ops.bitmma_test.secret(x), x)
        (row,) = run.report().rows
        assert row.native and row.op == "bitmma_test::secret" and row.macs is None


def test_composites_of_others_are_decomposed() -> None:
    with torch.library._scoped_library("bitmma_test", "DEF") as library:
        library.define("open(Tensor x) -> Tensor")
        library.impl("open", lambda x: x @ x, "CompositeImplicitAutograd")
        for guard in (torch.no_grad, torch.inference_mode):
            with bitmma.torch.emulate("H100") as run, guard():
                torch.ops.bitmma_test.open(torch.eye(3).half())
            assert [row.op for row in run.report().rows] == ["mm"]


OPAQUE_CALLS: dict[str, Callable[[], Any]] = {
    "fbgemm_linear_fp16_weight": lambda: torch.fbgemm_linear_fp16_weight(
        torch.ones(2, 4), torch.fbgemm_pack_gemm_matrix_fp16(torch.ones(3, 4)), torch.zeros(3)
    ),
    "linalg_inv_ex": lambda: torch.linalg.inv(torch.eye(3)),
    "_linalg_solve_ex": lambda: torch.linalg.solve(torch.eye(3), torch.eye(3)),
    "_linalg_svd": lambda: torch.linalg.svdvals(torch.eye(3)),
    "linalg_qr": lambda: torch.linalg.qr(torch.eye(3)),
    "mkldnn_convolution": lambda: torch.mkldnn_convolution(
        torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2), None, (0, 0), (1, 1), (1, 1), 1
    ),
    "mkldnn_rnn_layer": lambda: torch.mkldnn_rnn_layer(
        torch.ones(2, 1, 4), *[torch.ones(16, 4)] * 2, *[torch.ones(16)] * 2,
        *[torch.zeros(1, 4)] * 2, False, [], 2, 4, 1, True, False, False, False,
    ),
    "_scaled_dot_product_flash_attention_for_cpu": lambda: (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*[torch.ones(1, 1, 4, 8)] * 3)
    ),
    "sparse_sampled_addmm": lambda: torch.sparse.sampled_addmm(
        torch.eye(3).to_sparse_csr(), torch.ones(3, 3), torch.ones(3, 3)
    ),
    "_weight_int8pack_mm": lambda: torch._weight_int8pack_mm(
        torch.ones(1, 32).bfloat16(), torch.ones(16, 32).char(), torch.ones(16).bfloat16()
    ),
    "quantized::linear_dynamic": lambda: torch.ao.quantization.quantize_dynamic(
        torch.nn.Sequential(torch.nn.Linear(4, 4)), {torch.nn.Linear}
    )(torch.ones(2, 4)),
    "_native_multi_head_attention": lambda: torch._native_multi_head_attention(
        *[torch.ones(1, 2, 4)] * 3, 4, 2, torch.ones(12, 4), torch.ones(12), torch.eye(4),
        torch.zeros(4),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPAQUE_CALLS)
def test_opaque_operators_raise_or_are_counted(name: str) -> None:
    call = OPAQUE_CALLS[name]
    with torch.no_grad():
        with (
            bitmma.torch.emulate("H100", fp32="ieee"),
            pytest.raises(
                UnmodelledProduct, match=f"{name} computes matrix products where they cannot"
            ),
        ):
            call()
        with bitmma.torch.emulate("H100", fp32="ieee", fallback="native") as run:
            call()
    assert any(row.native and row.op == name for row in run.report().rows)


# --- PyTorch's own samples, with the libraries watched --------------------------------------------

#: What MKL and oneDNN print of each call, but for Fourier transforms: no matrix unit does these.
LIBRARY_CALL = re.compile(r"^(MKL_VERBOSE (?!FFT|oneMKL|Intel)\w+\(|onednn_verbose.*exec)", re.M)
SAMPLES = 8


def op_db() -> list[Any]:
    """PyTorch's operators with sample inputs; its module wants expecttest, for other things."""
    if "expecttest" not in sys.modules:
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this PyTorch has no MKL")
def test_no_library_computes_a_product(capfd: pytest.CaptureFixture[str]) -> None:
    """Operators either raise or leave MKL and oneDNN alone, and give what they should look like."""

    def printed() -> str:
        ctypes.CDLL(None).fflush(None)
        return capfd.readouterr().out

    ran, raised, emulated = set(), set(), set()
    samples = list(op_db())
    verbose = torch.backends.mkl, torch.backends.mkldnn
    printed()
    with verbose[0].verbose(verbose[0].VERBOSE_ON), verbose[1].verbose(verbose[1].VERBOSE_ON):
        torch.eye(64) @ torch.eye(64)
        assert LIBRARY_CALL.search(printed())  # they do print
        for op in samples:
            if torch.float32 not in op.dtypes:
                continue
            name = op.full_name
            torch.manual_seed(0)
            found = op.sample_inputs_func(op, "cpu", torch.float32, False)
            for x in itertools.islice(found, SAMPLES):
                with torch.no_grad():
                    try:
                        want = op(x.input, *x.args, **x.kwargs)
                    except Exception:
                        continue  # a sample that is not for this
                    printed()
                    try:
                        with bitmma.torch.emulate("MI300X", fp32="ieee") as run:
                            got = op(x.input, *x.args, **x.kwargs)
                    except UnmodelledProduct:
                        raised.add(name)
                    else:
                        ran.add(name)
                        emulated |= {name} if run.report().products else set()
                        for y, z in zip(tree_leaves(got), tree_leaves(want), strict=True):
                            if isinstance(z, torch.Tensor):
                                assert (y.shape, y.dtype) == (z.shape, z.dtype), name
                text = printed()
                if name not in raised:  # what came before the error may have been its own
                    assert not LIBRARY_CALL.search(text), (name, text)
    assert len(ran) > 500 and len(raised) < 60
    assert {"matmul", "einsum", "matrix_exp", "nn.functional.conv2d"} <= emulated
    assert {"linalg.inv", "linalg.svd", "cholesky", "sparse.sampled_addmm"} <= raised
