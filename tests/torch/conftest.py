"""This folder is for environments with PyTorch; without it there is nothing to collect."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]

if find_spec("torch"):
    import torch

    torch.set_num_threads(1)  # small tensors: threads would only wait for each other
