"""The products inside PyTorch's operators: one handler each, in terms of one function.

A handler is given ``product`` (`Product`) and the operator's arguments by their schema's names, and
returns what the operator returns, with the products computed by the instruction and everything
else by PyTorch. ``out=``, in-place and overload are the mode's business.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch.nn.functional as F

import torch
from bitmma.epilogue import Epilogue
from bitmma.torch.policy import DTYPES, UnmodelledProduct

__all__ = ["HANDLERS", "Product"]

Tensor = Any

#: Elements of the unfolded input that a convolution holds at a time.
_COLUMNS = 1 << 26


class Product(Protocol):
    """``round(alpha A B + beta C)``: the instruction's chain, then one rounding to the dtype.

    A (..., M, K), B (..., K, N); C broadcasts to (..., M, N), and with beta = 0 it is not read.
    dtype: of the result; None: A's. epilogue: in place of alpha, beta, C and dtype. fast_accum:
    whether FP8 kernels promote where nobody chose a schedule, see `bitmma.recipes.scaled_mm`.
    """

    def __call__(
        self,
        A: Tensor,
        B: Tensor,
        C: Tensor | None = None,
        *,
        alpha: Any = 1,
        beta: Any = 1,
        dtype: Any | None = None,
        epilogue: Epilogue | None = None,
        fast_accum: bool | None = None,
    ) -> Tensor: ...


def _check(op: str, wanted: Mapping[str, tuple[Tensor, int]]) -> None:
    """Dimensions and dtypes, as PyTorch's own operators check them."""
    for name, (x, ndim) in wanted.items():
        if x.dim() != ndim:
            raise ValueError(f"{op}: {name} must have {ndim} dimensions, got {tuple(x.shape)}")
    dtypes = {name: x.dtype for name, (x, _) in wanted.items()}
    if len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        raise ValueError(f"{op}: operands must have one dtype, got {listed}")


# --- matrices and vectors -------------------------------------------------------------------------


def _mm(product: Product, self: Tensor, mat2: Tensor, out_dtype: Any = None) -> Tensor:
    _check("mm", {"self": (self, 2), "mat2": (mat2, 2)})
    return product(self, mat2, dtype=out_dtype)


def _bmm(product: Product, self: Tensor, mat2: Tensor, out_dtype: Any = None) -> Tensor:
    _check("bmm", {"self": (self, 3), "mat2": (mat2, 3)})
    _check_batch("bmm", self, mat2)
    return product(self, mat2, dtype=out_dtype)


def _check_batch(op: str, a: Tensor, b: Tensor) -> None:
    if a.shape[0] != b.shape[0]:
        raise ValueError(f"{op}: batches differ: {tuple(a.shape)} and {tuple(b.shape)}")


def _addmm(
    product: Product,
    self: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    beta: Any = 1,
    alpha: Any = 1,
    out_dtype: Any = None,
) -> Tensor:
    _check("addmm", {"mat1": (mat1, 2), "mat2": (mat2, 2)})
    return product(mat1, mat2, self, alpha=alpha, beta=beta, dtype=out_dtype)


def _baddbmm(
    product: Product,
    self: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    beta: Any = 1,
    alpha: Any = 1,
    out_dtype: Any = None,
) -> Tensor:
    _check("baddbmm", {"batch1": (batch1, 3), "batch2": (batch2, 3)})
    _check_batch("baddbmm", batch1, batch2)
    return product(batch1, batch2, self, alpha=alpha, beta=beta, dtype=out_dtype)


def _addbmm(
    product: Product, self: Tensor, batch1: Tensor, batch2: Tensor, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    """As PyTorch does it on GPUs too: an addmm for each of the batch, rounded each time."""
    _check("addbmm", {"batch1": (batch1, 3), "batch2": (batch2, 3)})
    _check_batch("addbmm", batch1, batch2)
    result = self.expand(batch1.shape[1], batch2.shape[2])
    if not len(batch1):
        return result * beta if beta != 0 else torch.zeros_like(result)
    for i, (a, b) in enumerate(zip(batch1, batch2, strict=True)):
        result = product(a, b, result, alpha=alpha, beta=beta if i == 0 else 1)
    return result


def _addmm_activation(
    product: Product,
    self: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    beta: Any = 1,
    alpha: Any = 1,
    use_gelu: bool = False,
) -> Tensor:
    """PyTorch's definition: addmm, then the activation of what was stored."""
    result = _addmm(product, self, mat1, mat2, beta, alpha)
    return F.gelu(result, approximate="tanh") if use_gelu else torch.relu(result)


def _mv(product: Product, self: Tensor, vec: Tensor) -> Tensor:
    _check("mv", {"self": (self, 2), "vec": (vec, 1)})
    return product(self, vec[:, None])[:, 0]


def _addmv(
    product: Product, self: Tensor, mat: Tensor, vec: Tensor, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    _check("addmv", {"mat": (mat, 2), "vec": (vec, 1)})
    column = self.expand(len(mat))[:, None]
    return product(mat, vec[:, None], column, alpha=alpha, beta=beta)[:, 0]


def _dot(product: Product, self: Tensor, tensor: Tensor) -> Tensor:
    _check("dot", {"self": (self, 1), "tensor": (tensor, 1)})
    return product(self[None], tensor[:, None])[0, 0]


def _vdot(product: Product, self: Tensor, other: Tensor) -> Tensor:
    return _dot(product, self, other)  # complex tensors do not come this far


def _grouped_mm(
    product: Product,
    self: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: Any = None,
) -> Tensor:
    """One product a group; ``offs`` are the ends of the groups along whichever axis they share."""
    if bias is not None:
        raise UnmodelledProduct("_grouped_mm with a bias, which PyTorch does not define either")
    if (offs is None) != (self.dim() == mat2.dim() == 3):
        raise ValueError("_grouped_mm: offs is for two-dimensional operands, and needed for these")
    if offs is None:
        return product(self, mat2, dtype=out_dtype)
    ends = offs.tolist()
    spans = [slice(*pair) for pair in itertools.pairwise([0, *ends])]
    if self.dim() == mat2.dim() == 2:  # groups along K
        parts = [product(self[:, s], mat2[s], dtype=out_dtype) for s in spans]
        return torch.stack(parts)
    if self.dim() == 2:  # along M
        parts = [product(self[s], b, dtype=out_dtype) for s, b in zip(spans, mat2, strict=True)]
        return _filled_up(torch.cat(parts), 0, len(self))
    parts = [product(a, mat2[:, s], dtype=out_dtype) for s, a in zip(spans, self, strict=True)]
    return _filled_up(torch.cat(parts, 1), 1, mat2.shape[1])


def _filled_up(x: Tensor, axis: int, size: int) -> Tensor:
    """Zeros where no group reaches; PyTorch leaves them undefined."""
    missing = size - x.shape[axis]
    return F.pad(x, (0, 0, 0, missing) if axis == 0 else (0, missing)) if missing else x


def _scaled_mm(
    product: Product,
    self: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """Scales of whole tensors or, (M, 1) and (1, N), of rows and columns; all float32."""
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scale.dtype != torch.float32:
            raise UnmodelledProduct(f"_scaled_mm with {name} of {scale.dtype}; float32 is modelled")
    wanted = (len(self), 1), (1, mat2.shape[1])
    given = tuple(scale_a.shape), tuple(scale_b.shape)
    if given != wanted and not scale_a.numel() == scale_b.numel() == 1:
        raise UnmodelledProduct(
            f"_scaled_mm with scales of shapes {given[0]} and {given[1]}; modelled are one number "
            f"each or {wanted[0]} and {wanted[1]}, and scales of blocks in bitmma.matmul"
        )
    epilogue = Epilogue(
        scale_a=scale_a, scale_b=scale_b, bias=bias, scale_result=scale_result,
        out_format=DTYPES[out_dtype or self.dtype],
    )  # fmt: skip
    return product(self, mat2, epilogue=epilogue, fast_accum=use_fast_accum)


#: Of torch.nn.functional.ScalingType: one scale a tensor, one a row of A and a column of B.
_TENSOR_WISE, _ROW_WISE = 0, 1


def _scaled_mm_v2(
    product: Product,
    self: Tensor,
    mat2: Tensor,
    scale_a: Sequence[Tensor],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Tensor],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: Tensor | None = None,
    out_dtype: Any = None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Tensor:
    """What torch.nn.functional.scaled_mm calls; of its recipes the two that `_scaled_mm` has."""
    recipes = [*recipe_a], [*recipe_b]
    plain = not any(swizzle_a) and not any(swizzle_b) and not len(contraction_dim)
    if recipes not in (([_TENSOR_WISE],) * 2, ([_ROW_WISE],) * 2) or not plain:
        raise UnmodelledProduct(
            "scaled_mm with scales of blocks, swizzled or of other kinds than TensorWise and "
            "RowWise; bitmma.matmul and bitmma.recipes have scales of blocks"
        )
    a, b = scale_a[0], scale_b[0]
    if recipes[0] == [_ROW_WISE]:
        a, b = a.reshape(-1, 1), b.reshape(1, -1)
    return _scaled_mm(product, self, mat2, a, b, bias, None, out_dtype, use_fast_accum)


# --- convolutions ---------------------------------------------------------------------------------

# All are im2col products whose K runs over (channel, *kernel), the last index fastest, and over
# (image, *position) in gradients of the weight. cuDNN's kernels may walk K in another order.


def _windows(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """(N, C, *out, *kernel): what each output sees, a view of the padded input."""
    x = _padded(x, [(p, p) for p in padding])
    for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        reach = (k - 1) * d + 1
        if x.shape[2 + axis] < reach:
            raise ValueError(
                f"convolution: the padded input has {x.shape[2 + axis]} elements along axis "
                f"{2 + axis}, less than the {reach} that the kernel reaches over"
            )
        x = x.unfold(2 + axis, reach, s)[..., ::d]
    return x


def _padded(x: Tensor, sides: Sequence[tuple[int, int]]) -> Tensor:
    """Zeros added (or, where negative, elements taken off) before and after each spatial axis."""
    flat = [n for side in reversed(sides) for n in side]
    return torch.constant_pad_nd(x, flat) if any(flat) else x


def _columns(windows: Tensor, groups: int) -> Tensor:
    """(N, groups, K, P): the windows as matrices, K over (channel, *kernel), P over positions."""
    n = (windows.dim() - 2) // 2
    N, C = windows.shape[:2]
    channels_kernel_out = [1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n)]
    ordered = windows.permute(0, *channels_kernel_out)
    kernel, out = windows.shape[2 + n :], windows.shape[2 : 2 + n]
    return ordered.reshape(N, groups, C // groups * math.prod(kernel), math.prod(out))


def _correlate(
    product: Product,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """A convolution's forward: (N, C, *in) and (O, C/groups, *kernel) to (N, O, *out)."""
    O, kernel = len(weight), weight.shape[2:]
    if x.shape[1] != weight.shape[1] * groups or O % groups:
        raise ValueError(
            f"convolution: input {tuple(x.shape)} and weight {tuple(weight.shape)} do not fit "
            f"{groups} groups"
        )
    rows = weight.reshape(groups, O // groups, -1)
    windows = _windows(x, kernel, stride, padding, dilation)
    out = windows.shape[2 : 2 + len(kernel)]
    share = max(1, _COLUMNS // max(1, math.prod(windows.shape[1:])))
    parts = [product(rows, _columns(some, groups)) for some in windows.split(share)]
    return torch.cat(parts).reshape(len(x), O, *out)


def _spread(
    product: Product,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """A transposed convolution: (N, I, *in) and (I, O/groups, *kernel) to (N, O, *out).

    As the convolution that it is: of x with stride - 1 zeros between its elements, with the kernel
    turned round. The zeros take part in the chain, as products of +0 or -0.
    """
    I, kernel = len(weight), weight.shape[2:]
    spread = ((n - 1) * s + 1 for n, s in zip(x.shape[2:], stride, strict=True))
    apart = x.new_zeros(*x.shape[:2], *spread)
    apart[(..., *(slice(None, None, s) for s in stride))] = x
    reaches = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    sides = [
        (r - p, r - p + more) for r, p, more in zip(reaches, padding, output_padding, strict=True)
    ]
    turned = weight.flip([*range(2, weight.dim())])
    by_group = turned.reshape(groups, I // groups, -1, *kernel).transpose(1, 2)
    ones, none = [1] * len(kernel), [0] * len(kernel)
    return _correlate(
        product, _padded(apart, sides), by_group.reshape(-1, I // groups, *kernel), ones, none,
        dilation, groups,
    )  # fmt: skip


def _convolution(
    product: Product,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """The bias is added afterwards, in the dtype, as PyTorch does with cuDNN and MIOpen."""
    _check("convolution", {"input": (input, weight.dim()), "weight": (weight, weight.dim())})
    each = [_each(x, weight.dim() - 2) for x in (stride, padding, dilation, output_padding)]
    stride, padding, dilation, output_padding = each
    if min((*padding, *output_padding), default=0) < 0:
        raise ValueError(
            f"convolution: negative padding: {padding}, of the output {output_padding}"
        )
    if transposed:
        y = _spread(product, input, weight, stride, padding, dilation, output_padding, groups)
    else:
        y = _correlate(product, input, weight, stride, padding, dilation, groups)
    return y if bias is None else y + bias.reshape(-1, *[1] * (weight.dim() - 2))


def _each(given: Sequence[int], n: int) -> list[int]:
    """One number for each spatial axis."""
    return [*given] * n if len(given) == 1 else [*given]


def _weight_gradient(
    product: Product,
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """(O, C/groups, *kernel) of a forward that took x (N, C, *in) to (N, O, *out)."""
    N, O = grad.shape[:2]
    # The last outputs may not reach the end of the input: what is beyond them has no gradient.
    windows = _windows(x, kernel, stride, padding, dilation)
    windows = windows[(slice(None), slice(None), *(slice(n) for n in grad.shape[2:]))]
    columns = _columns(windows, groups)  # (N, groups, C/groups kernel, P)
    rows = grad.reshape(N, groups, O // groups, -1).permute(1, 2, 0, 3).flatten(2)
    columns = columns.permute(1, 0, 3, 2).flatten(1, 2)  # (groups, N P, C/groups kernel)
    return product(rows, columns).reshape(O, -1, *kernel)


def _convolution_backward(
    product: Product,
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None = None,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    transposed: bool = False,
    output_padding: Sequence[int] = (),
    groups: int = 1,
    output_mask: Sequence[bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    kernel = weight.shape[2:]
    stride, padding, dilation = (_each(x, len(kernel)) for x in (stride, padding, dilation))
    of_input = of_weight = of_bias = None
    if output_mask[0] and transposed:
        of_input = _correlate(product, grad_output, weight, stride, padding, dilation, groups)
    elif output_mask[0]:
        more = [
            n - ((m - 1) * s - 2 * p + d * (k - 1) + 1)
            for n, m, s, p, d, k in zip(
                input.shape[2:], grad_output.shape[2:], stride, padding, dilation, kernel,
                strict=True,
            )
        ]  # fmt: skip
        of_input = _spread(product, grad_output, weight, stride, padding, dilation, more, groups)
    if output_mask[1]:
        small, large = (input, grad_output) if transposed else (grad_output, input)
        of_weight = _weight_gradient(
            product, small, large, kernel, stride, padding, dilation, groups
        )
    if output_mask[2]:
        of_bias = grad_output.sum([0, *range(2, grad_output.dim())])
    return of_input, of_weight, of_bias


def _convolution_backward_overrideable(
    product: Product, grad_output: Tensor, input: Tensor, weight: Tensor, **more: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    return _convolution_backward(product, grad_output, input, weight, **more)


def _conv_tbc(product: Product, self: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """(T, B, C) by (kernel, C, O): as PyTorch does it, an addmm for each place of the kernel."""
    _check("conv_tbc", {"self": (self, 3), "weight": (weight, 3)})
    T, B, _ = self.shape
    x = torch.constant_pad_nd(self, [0, 0, 0, 0, pad, pad])
    out = T + 2 * pad - len(weight) + 1
    y = bias.expand(out * B, -1)
    for i, w in enumerate(weight):
        y = product(x[i : i + out].reshape(out * B, -1), w, y)
    return y.reshape(out, B, -1)


HANDLERS: Mapping[str, Callable[..., Any]] = {
    "mm": _mm,
    "bmm": _bmm,
    "addmm": _addmm,
    "baddbmm": _baddbmm,
    "addbmm": _addbmm,
    "_addmm_activation": _addmm_activation,
    "mv": _mv,
    "addmv": _addmv,
    "dot": _dot,
    "vdot": _vdot,
    "convolution": _convolution,
    "convolution_overrideable": _convolution,
    "convolution_backward": _convolution_backward,
    "convolution_backward_overrideable": _convolution_backward_overrideable,
    "conv_tbc": _conv_tbc,
    "_grouped_mm": _grouped_mm,
    "_scaled_mm": _scaled_mm,
    "_scaled_mm_v2": _scaled_mm_v2,
}
