"""Texts for one line: without the frames of a traceback, and of whole words."""

from __future__ import annotations

import pytest

from orchestrator.model.words import one_line

TRACEBACK = """ends: the engine died: Traceback (most recent call last):
  File "/opt/x/scheduler.py", line 9, in run
    load()

  File "/opt/x/model.py", line 3, in load
RuntimeError: CUDA out of memory
"""


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        (TRACEBACK, 400, "ends: the engine died: RuntimeError: CUDA out of memory"),
        ("ends: one two three", 16, "ends: one ..."),
        ("a\nb", 9, "a b"),
        ("Traceback (most recent call last):", 99, ""),
    ],
)
def test_one_line(text: str, most: int, shown: str) -> None:
    assert one_line(text, most) == shown
