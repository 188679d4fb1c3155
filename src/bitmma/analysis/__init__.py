"""Why results differ, and where precision goes.

- `compare`: one dot product on everything, grouped by answer.
- `errors`: a product against its exact result: bias, ulps, what caused them, whether bounds held.
- `discrepancy`: the same product on two units: how many outputs differ, how much, and which step
  of their arithmetic makes them.
- `symmetry`, `monotonicity`: two properties that a sum has and some units lack.
- `sample`: seeded inputs, the same bits on every machine; `exact_product`: exact results.

Results are plain dataclasses; each has ``to_pandas()`` and prints as a table.
"""

from bitmma.analysis.accuracy import Cause, Errors, Statistics, errors
from bitmma.analysis.answers import Answer, Comparison, compare
from bitmma.analysis.bounds import Bound
from bitmma.analysis.differences import (
    Asymmetry,
    Difference,
    NonMonotonicity,
    Step,
    discrepancy,
    monotonicity,
    symmetry,
)
from bitmma.analysis.exact import Exact, exact_product
from bitmma.analysis.inputs import DISTRIBUTIONS, sample

__all__ = [
    "DISTRIBUTIONS",
    "Answer",
    "Asymmetry",
    "Bound",
    "Cause",
    "Comparison",
    "Difference",
    "Errors",
    "Exact",
    "NonMonotonicity",
    "Statistics",
    "Step",
    "compare",
    "discrepancy",
    "errors",
    "exact_product",
    "monotonicity",
    "sample",
    "symmetry",
]
