"""For environments with Matplotlib and pandas; without them there is nothing to collect."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("matplotlib") and find_spec("pandas") else ["test_*.py"]
