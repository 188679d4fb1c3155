"""What the tests share: settings of Hypothesis, the recordings' folder, how bits are compared."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from bitmma import formats
from bitmma.models import Model

# "ci" is the default, so that two runs of the suite try the same examples.
# HYPOTHESIS_PROFILE=search looks for new ones, =thorough for a long time.
_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", derandomize=True, database=None, max_examples=100, **_common)
settings.register_profile("search", max_examples=100, print_blob=True, **_common)
settings.register_profile("thorough", max_examples=5_000, print_blob=True, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The folder of the golden vectors."""
    return Path(__file__).parent / "vectors"


@pytest.fixture(scope="session")
def recordings() -> Path:
    """The folder of the recordings of real GPUs, which are not part of the repository."""
    folder = os.environ.get("BITMMA_RECORDINGS")
    if not folder:
        pytest.skip("recordings of real GPUs: BITMMA_RECORDINGS names no folder")
    path = Path(folder)
    if not (path / "index.json").is_file():
        pytest.fail(f"BITMMA_RECORDINGS={folder} holds no index.json")
    return path


@pytest.fixture(scope="session")
def assert_same_bits() -> Callable[..., None]:
    """``assert_same_bits(model, got, want, label="")``: equal codes of the model's output.

    Where the model does not know NaN payloads, NaN equals NaN and everything else goes by bits.
    """

    def check(model: Model, got: Any, want: Any, label: str = "") -> None:
        got, want = np.asarray(got), np.asarray(want)
        assert got.dtype == want.dtype == formats.get(model.d).code_dtype, label
        assert got.shape == want.shape, label
        wrong = got != want
        if model.nan == "quiet" and wrong.any():
            both = (formats.decode(x, model.d) for x in (got, want))
            wrong &= ~np.logical_and(*map(np.isnan, both))
        if wrong.any():
            shown = [
                f"  {tuple(map(int, i))}: got {got[tuple(i)]:#x}, want {want[tuple(i)]:#x}"
                for i in np.argwhere(wrong)[:5]
            ]
            pytest.fail("\n".join([f"{label} {model}: {wrong.sum()} of {wrong.size}", *shown]))

    return check
