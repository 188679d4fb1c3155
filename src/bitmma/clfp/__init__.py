"""Closed-loop feature probing: from a black box to a verified model, by itself."""
