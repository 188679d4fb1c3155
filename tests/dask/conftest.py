"""This folder is for environments with Dask; without it there is nothing to collect."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("distributed") else ["test_*.py"]
