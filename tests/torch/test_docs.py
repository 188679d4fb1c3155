"""docs/torch.md is true: its Python runs, and prints what the comments say."""

import contextlib
import io
import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "torch.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_block(block: str) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block, {})
    expected = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
    assert set(expected) <= set(printed.getvalue().splitlines())


def test_there_are_blocks() -> None:
    assert len(BLOCKS) == 4
