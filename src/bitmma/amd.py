"""AMD's instructions under the published simulator's constructor.

from bitmma.amd import MFMA
D = MFMA("CDNA3", "f32_16x16x16_f16")(A, B, C)
"""

from __future__ import annotations

from typing import Any

from bitmma._face import Face

__all__ = ["MFMA"]


class MFMA(Face):
    """``v_mfma_...``. Where an instruction holds several blocks, a call takes one of them."""

    _op = "mfma"

    def __call__(self, A: Any, B: Any, C: Any | None = None) -> Any:
        """D = A B + C: see `bitmma.Instruction`."""
        return self._run(A, B, C)
