"""NVIDIA's instructions under the published simulator's constructors.

    from bitmma.nv_ptx import WGMMA
    wgmma = WGMMA("Hopper", "m64n8k32.f32.e4m3.e4m3")
    D = wgmma(A, B, C)

Operands as everywhere in bitmma; fp4 operands may also be packed two a byte along k, the first in
the low nibble: uint8 of shape (..., m, k/2) and (..., k/2, n).
"""

from __future__ import annotations

from typing import Any

from bitmma._face import Face

__all__ = ["MMA", "WGMMA", "MMABlockScale", "TCGen05MMA", "TCGen05MMABlockScale"]


class MMA(Face):
    """``mma.sync`` without block scaling: ``MMA("Ampere", "m16n8k16.f32.f16.f16.f32")``."""

    _op = "mma"

    def __call__(self, A: Any, B: Any, C: Any | None = None) -> Any:
        """D = A B + C: see `bitmma.Instruction`."""
        return self._run(A, B, C)


class WGMMA(MMA):
    """``wgmma.mma_async``: ``WGMMA("Hopper", "m64n8k32.f32.e4m3.e4m3")``."""

    _op = "wgmma"


class TCGen05MMA(MMA):
    """``tcgen05.mma``: ``TCGen05MMA("Blackwell", "m64n8k16.kind::f16.f32.f16.f16")``."""

    _op = "tcgen05"


class MMABlockScale(Face):
    """``mma.sync`` with block scaling.

    ``MMABlockScale("RTX Blackwell", "m16n8k64.kind::mxf4.block32.f32.e2m1.e2m1.f32.ue8m0")``
    """

    _op = "mma"
    _scaled = True

    def __call__(self, A: Any, B: Any, C: Any | None, scale_A: Any, scale_B: Any) -> Any:
        """D = (A times its scales) (B times its scales) + C: see `bitmma.Instruction`."""
        return self._run(A, B, C, scale_A, scale_B)


class TCGen05MMABlockScale(MMABlockScale):
    """``tcgen05.mma`` with block scaling."""

    _op = "tcgen05"
