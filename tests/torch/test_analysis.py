"""Errors of products of tensors: those of the same arrays."""

import numpy as np

import torch
from bitmma import analysis


def test_tensors() -> None:
    which = ("MI300X", "f32_16x16x16_f16")
    A, B = (analysis.sample("normal", s, seed=7).astype(np.float16) for s in ((4, 32), (32, 5)))
    e = analysis.errors(which, torch.from_numpy(A), torch.from_numpy(B))
    assert (e.error == analysis.errors(which, A, B).error).all()
