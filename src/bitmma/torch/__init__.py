"""Run a PyTorch model with another GPU's matrix products.

    import bitmma.torch

    with bitmma.torch.emulate("H100") as run, torch.inference_mode():
        y = model(x)
    print(run.report())

`emulate` runs a model; `compare` runs it on several GPUs and in FP64; `Policy` says what computes
which product. Importing this registers ``torch.ops.bitmma.matmul`` and
``torch.ops.bitmma.scaled_mm``, for programs that are compiled or exported. See docs/torch.md.
"""

from bitmma.torch.comparison import ModelComparison, compare
from bitmma.torch.emulation import emulate
from bitmma.torch.library import matmul, scaled_mm
from bitmma.torch.mode import GradientError
from bitmma.torch.policy import Policy, UnmodelledProduct
from bitmma.torch.report import Report, Row

__all__ = [
    "GradientError",
    "ModelComparison",
    "Policy",
    "Report",
    "Row",
    "UnmodelledProduct",
    "compare",
    "emulate",
    "matmul",
    "scaled_mm",
]
