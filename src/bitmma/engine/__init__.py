"""Fast execution of any model on arrays of raw codes: `mma` and `dpa`, or a `plan` of them."""

from bitmma.engine.cpu import Plan, dpa, mma, plan

__all__ = ["Plan", "dpa", "mma", "plan"]
