"""Results as pandas tables."""

import numpy as np
import pandas

from bitmma import analysis


def test_frames() -> None:
    cdna2, cdna3 = ("MI250X", "f32_16x16x16f16"), ("MI300X", "f32_16x16x16_f16")
    A, B = (analysis.sample("normal", (16, 16), seed=i).astype(np.float16) for i in (1, 2))
    results = [
        analysis.errors(cdna3, A, B),
        analysis.discrepancy(cdna3, cdna2, A, B),
        analysis.symmetry(cdna3, A, B),
        analysis.monotonicity(cdna3, A, B),
    ]
    for result in results:
        frame = result.to_pandas()
        assert isinstance(frame, pandas.DataFrame)
        assert frame.to_dict("records") == result.rows()
    assert results[0].to_pandas()["mse"].dtype == float
