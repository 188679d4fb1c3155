"""Which of PyTorch's operators hold matrix products, as data.

Every operator that reaches the mode is one of

- a **product**: emulated (`PRODUCTS`);
- **decomposed**: its kernel is run with the mode on, so that the products inside, which it asks the
  dispatcher for, are emulated. `KERNELS_TO_DECOMPOSE` by name, and every CompositeImplicit
  operator;
- **opaque** (`OPAQUE`): it computes products, or a library computes some for it, where the mode
  cannot see them: an error, or native and counted;
- **an integer product** (`INTEGER_PRODUCTS`): exact whoever computes it, so native, and counted;
- **no product** (`not_products.txt`): native;
- unknown: in none of the tables. An error: a newer PyTorch, or somebody's own operator.

How the tables were made, for PyTorch 2.13 (docs/torch.md says more): every name that the
dispatcher knows was put in a table by hand; and PyTorch's own sample inputs for all operators
(op_db) were run under the mode with MKL and oneDNN reporting each of their calls, to see that no
product was left to them. tests/torch repeats both.
"""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import Any, Literal

import torch

__all__ = [
    "FUSED",
    "HIDDEN_COMPOSITES",
    "INTEGER_PRODUCTS",
    "KERNELS_TO_DECOMPOSE",
    "OPAQUE",
    "PRODUCTS",
    "Kind",
    "base_name",
    "kind",
]

Kind = Literal["product", "decomposed", "opaque", "integer product", "no product", "unknown"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Emulated, by base name: overload, ``out=`` and the in-place underscore taken off.
PRODUCTS = _names(
    """
    mm bmm addmm baddbmm addbmm _addmm_activation mv addmv dot vdot
    convolution convolution_overrideable convolution_backward convolution_backward_overrideable
    conv_tbc _scaled_mm _scaled_mm_v2 _grouped_mm
    """
)

#: Kernels that ask the dispatcher for their products (bmm, matmul, addmm).
KERNELS_TO_DECOMPOSE = _names(
    """
    _trilinear _euclidean_dist _cdist_forward linalg_matrix_exp affine_grid_generator
    torch_nn::_linear_cross_entropy_batch_chunked
    torch_nn::_linear_cross_entropy_batch_chunked_no_reduction
    _foreach_mm _native::_foreach_mm_native_0 linear _convolution linalg_pinv
    """
)

INTEGER_PRODUCTS = frozenset({"_int_mm"})

#: Products that the mode cannot see into. What takes their place is said in docs/torch.md.
OPAQUE = _names(
    """
    _scaled_grouped_mm _scaled_grouped_mm_v2
    _weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu
    _weight_int4pack_mm_with_scales_and_zeros _dyn_quant_matmul_4bit _mixed_dtypes_linear
    linear_backward matmul_backward _embedding_bag_per_sample_weights_backward

    _native_multi_head_attention _transformer_encoder_layer_fwd
    _triton_multi_head_attention _triton_scaled_dot_attention
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
    _scaled_dot_product_fused_attention_overrideable
    _scaled_dot_product_fused_attention_overrideable_backward
    _scaled_dot_product_attention_math_for_mps
    _flash_attention_forward _flash_attention_backward
    _flash_attention_forward_no_dropout_inplace
    _efficient_attention_forward _efficient_attention_backward
    _cudnn_attention_forward _cudnn_attention_backward

    mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward
    miopen_rnn miopen_rnn_backward _lstm_mps lstm_mps_backward quantized_lstm quantized_gru

    slow_conv3d_forward _slow_conv2d_forward _slow_conv2d_backward
    slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d
    _conv_depthwise2d conv_depthwise3d _nnpack_spatial_convolution
    mkldnn_convolution mkldnn_linear mkldnn_linear_backward mkldnn_linear_backward_input
    mkldnn_linear_backward_weights
    cudnn_convolution cudnn_convolution_transpose cudnn_convolution_relu
    cudnn_convolution_add_relu miopen_convolution miopen_convolution_transpose
    miopen_depthwise_convolution miopen_convolution_relu miopen_convolution_add_relu
    _mps_convolution _mps_convolution_transpose mps_convolution_backward
    mps_convolution_transpose_backward cudnn_affine_grid_generator
    cudnn_affine_grid_generator_backward

    _sparse_addmm _sparse_sparse_matmul sspaddmm hspmm sparse_sampled_addmm _sparse_mm_reduce_impl
    _sparse_mm_reduce_impl_backward _spsolve _cslt_sparse_mm _cslt_sparse_mm_search
    _sparse_semi_structured_addmm _sparse_semi_structured_apply_dense
    _sparse_semi_structured_linear _sparse_semi_structured_mm

    cholesky cholesky_inverse cholesky_solve _cholesky_solve_helper geqrf ormqr
    linalg_cholesky_ex _linalg_det _linalg_slogdet _linalg_solve_ex _linalg_svd _linalg_eigh
    _linalg_eigvals linalg_eig linalg_eigvals linalg_householder_product linalg_inv_ex
    linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex
    linalg_lu_solve linalg_qr linalg_solve_triangular triangular_solve prims::svd

    quantized::conv1d quantized::conv1d_relu quantized::conv1d_dynamic quantized::conv2d
    quantized::conv2d_relu quantized::conv2d_add quantized::conv2d_add_relu
    quantized::conv2d_dynamic quantized::conv3d quantized::conv3d_relu quantized::conv3d_dynamic
    quantized::conv_transpose1d quantized::conv_transpose1d_dynamic quantized::conv_transpose2d
    quantized::conv_transpose2d_dynamic quantized::conv_transpose3d
    quantized::conv_transpose3d_dynamic quantized::linear quantized::linear_relu
    quantized::linear_leaky_relu quantized::linear_tanh quantized::linear_dynamic
    quantized::linear_relu_dynamic quantized::linear_dynamic_fp16
    quantized::linear_dynamic_fp16_unpacked_weight quantized::linear_relu_dynamic_fp16
    quantized::linear_with_input_q_dq_qweight_dq_output_fp32
    quantized::linear_with_input_q_dq_qweight_dq_relu_output_fp32 quantized::matmul
    quantized::int4mm_packed_weight_cpu quantized::quantized_gru_cell_dynamic
    quantized::quantized_lstm_cell_dynamic quantized::quantized_rnn_relu_cell_dynamic
    quantized::quantized_rnn_tanh_cell_dynamic
    _quantized::conv2d _quantized::conv2d_relu _quantized::conv3d _quantized::conv3d_relu
    _quantized::conv_transpose1d _quantized::conv_transpose2d _quantized::linear
    _quantized::linear_dynamic _quantized::wrapped_fbgemm_linear_fp16_weight
    _quantized::wrapped_quantized_linear _quantized::_wrapped_quantized_linear_prepacked
    sparse::qlinear sparse::qlinear_relu sparse::qlinear_dynamic sparse::qlinear_relu_dynamic
    onednn::linear_dynamic_fp16 onednn::linear_relu_dynamic_fp16 onednn::qconv_pointwise
    onednn::qconv1d_pointwise onednn::qconv2d_pointwise onednn::qconv3d_pointwise
    onednn::qlinear_pointwise mkl::_mkl_linear mkldnn::_linear_pointwise
    mkldnn::_convolution_pointwise mkldnn::_convolution_transpose_pointwise
    mkldnn_prepacked::conv2d_run inductor::_mm_plus_mm symm_mem::_async_input_mm
    symm_mem::fused_all_gather_matmul symm_mem::fused_all_gather_scaled_matmul
    symm_mem::fused_matmul_reduce_scatter symm_mem::fused_scaled_matmul_reduce_scatter
    torch_attn::_varlen_attn torch_attn::_varlen_attn_backward torch_attn::_varlen_attn_out
    onnx::Attention
    """
)

#: Opaque, and above the dispatcher's Python key: composites whose kernels call FBGEMM outright. The
#: mode sees them only where Python calls them.
HIDDEN_COMPOSITES = _names(
    """
    fbgemm_linear_int8_weight fbgemm_linear_int8_weight_fp32_activation
    fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation
    quantized_lstm_cell quantized_gru_cell quantized_rnn_relu_cell quantized_rnn_tanh_cell
    _wrapped_quantized_linear_prepacked
    """
)

#: Nodes of TorchScript that compute (or may compute) products without the dispatcher.
FUSED = (
    "prim::mkldnn_convolution",
    "prim::oneDNNFusionGroup",
    "prim::TensorExprGroup",
    "prim::TensorExprDynamicGroup",
    "prim::CudaFusionGroup",
    "prim::FusionGroup",
)


@functools.cache
def _not_products() -> frozenset[str]:
    text = (files("bitmma.torch") / "not_products.txt").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return _names(" ".join(lines))


def base_name(qualified: str) -> str:
    """``"aten::addmm_"`` is "addmm", ``"quantized::linear"`` is itself: a name of the tables."""
    name = qualified.removeprefix("aten::")
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def kind(qualified: str, overload: str = "") -> Kind:
    """What the tables say of an operator, such as ``("aten::addmm", "out")``."""
    name = base_name(qualified)
    if name in PRODUCTS:
        return "product"
    if name in OPAQUE or name in HIDDEN_COMPOSITES:
        return "opaque"
    if name in INTEGER_PRODUCTS:
        return "integer product"
    if name in KERNELS_TO_DECOMPOSE or _is_composite(qualified, overload):
        return "decomposed"
    if name in _not_products() or name.startswith("bitmma::"):
        return "no product"
    return "unknown"


def _is_composite(qualified: str, overload: str) -> bool:
    """Whether its kernel is made of other operators, for any backend and autograd."""
    full = f"{qualified}.{overload}" if overload else qualified
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has(full, "CompositeImplicitAutograd"))


#: Why an operator is opaque, and what to do: by a part of its name, the first that fits.
_HINTS = {
    "quantized": "integer arithmetic of a CPU library",
    "sparse": "sparse matrix units are not modelled",
    "attn": "an attention kernel of its own; torch.nn.functional.scaled_dot_product_attention is "
    "emulated",
    "attention": "an attention kernel of its own; torch.nn.functional.scaled_dot_product_attention "
    "is emulated",
    "encoder_layer": "a fused layer; torch.nn.TransformerEncoderLayer itself is emulated",
    "conv": "one library's own convolution; torch.nn.functional.conv2d and the like are emulated",
    "rnn": "one library's own RNN; torch.nn.RNN, GRU and LSTM are emulated",
    "pack_mm": "packed weights are not modelled",
    "scaled": "torch._scaled_mm is emulated",
    "linalg": "a factorisation or a solver: what a GPU's library makes of it is not modelled",
    "chol": "a factorisation or a solver: what a GPU's library makes of it is not modelled",
    "tri": "a factorisation or a solver: what a GPU's library makes of it is not modelled",
}


def explain_opaque(name: str) -> str:
    """What an error says of an opaque operator."""
    hint = next((hint for part, hint in _HINTS.items() if part in name), "")
    return (
        f"{name} computes matrix products where they cannot be emulated"
        f"{f' ({hint})' if hint else ''}; fallback='native' leaves it to PyTorch and counts it"
    )
