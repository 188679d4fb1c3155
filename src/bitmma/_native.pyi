from typing import Any

import numpy as np
import numpy.typing as npt

def mma(
    spec: npt.NDArray[np.int64],
    a: npt.NDArray[Any],
    b: npt.NDArray[Any],
    c: npt.NDArray[Any] | None,
    d: npt.NDArray[Any],
    scale_a: npt.NDArray[Any] | None,
    scale_b: npt.NDArray[Any] | None,
    isa: str = "",
    exact: bool = False,
) -> None: ...
def has_kernel(spec: npt.NDArray[np.int64], isa: str = "") -> bool: ...
def isas() -> list[str]: ...
