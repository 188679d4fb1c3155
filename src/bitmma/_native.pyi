from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

def mma(
    spec: npt.NDArray[np.int64],
    a: Any,
    b: Any,
    c: Any,
    d: Any,
    scale_a: Any,
    scale_b: Any,
    isa: str = "",
    exact: bool = False,
    promote: int = 0,
    promote_fused: bool = True,
    promote_scale_a: Any = None,
    promote_scale_b: Any = None,
    watch: npt.NDArray[np.int64] | None = None,
) -> bool: ...

class Direct:
    def __init__(
        self,
        spec: npt.NDArray[np.int64],
        dtypes: tuple[np.dtype[Any] | None, ...],
        outputs: tuple[int, ...],
        most: int,
        isa: str = "",
    ) -> None: ...
    def compute(self, a: Any, b: Any, c: Any, scale_a: Any, scale_b: Any) -> Any: ...

T = TypeVar("T")

def in_default_environment(f: Callable[[], T]) -> T: ...
def has_kernel(spec: npt.NDArray[np.int64], isa: str = "") -> bool: ...
def isas() -> list[str]: ...
