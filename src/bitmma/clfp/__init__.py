"""Closed-loop feature probing: from a black box to a verified model, by itself.

    import bitmma, numpy as np

    box = bitmma.BlackBox(lambda A, B, C: A @ B + C, m=16, n=16, k=32, a="f32")
    report = bitmma.probe(box)
    print(report)                # status, tree, model, features, and how sure it is

The steps are those of Xie et al., arXiv 2511.10909v2, section 3, one module each: `assumptions`,
`tree`, `features`, `space` (models), `loop` (the differential test, and what closes the loop).
"""

from bitmma.clfp import suite
from bitmma.clfp.box import BlackBox
from bitmma.clfp.loop import Progress, probe
from bitmma.clfp.report import Counterexample, Feature, Report, Turn

__all__ = ["BlackBox", "Counterexample", "Feature", "Progress", "Report", "Turn", "probe", "suite"]
