"""This folder is for environments with Matplotlib and pandas; without them, nothing is collected."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("matplotlib") and find_spec("pandas") else ["test_*.py"]
