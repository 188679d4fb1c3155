"""Fast execution of any model on arrays of raw codes: one face, `mma` and `dpa`."""

from bitmma.engine.cpu import dpa, mma

__all__ = ["dpa", "mma"]
