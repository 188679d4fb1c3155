"""Closed-loop feature probing: from a black box to a verified model, by itself."""

from bitmma.clfp.box import BlackBox
from bitmma.clfp.loop import Progress, probe
from bitmma.clfp.report import Counterexample, Feature, Report, Turn

__all__ = ["BlackBox", "Counterexample", "Feature", "Progress", "Report", "Turn", "probe"]
