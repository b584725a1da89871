"""Which process a traceback's lines belong to, and what was raised; a log as SGLang writes it."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node.engine.tracebacks import RankException, Tracebacks

LOG = """\
[2026-11-22 12:27:45 TP3] Scheduler hit an exception: Traceback (most recent call last):
  File "/srt/managers/scheduler.py", line 2641, in run_scheduler_process
    scheduler = Scheduler(
ModuleNotFoundError: No module named 'flash_attn_3'
During handling of the above exception, another exception occurred:
Traceback (most recent call last):
  File "/srt/model_executor/model_runner.py", line 1204, in init_attention_backend
    raise ValueError(
  File "/srt/layers/attention/registry.py", line 77, in create
ImportError: Can not import FA3 in sgl_kernel. Please check your installation.
[2026-11-22 12:27:45] Received sigquit from a child process. It usually means the child failed.
no line of anybody's
"""
LAST = "ImportError: Can not import FA3 in sgl_kernel. Please check your installation."


def rank_of(line: str) -> int | None:
    found = re.match(r"\[[^\]]* TP(\d+)\]", line)
    return int(found[1]) if found else None


def test_a_traceback_belongs_to_the_rank_that_logged_it_to_its_last_line() -> None:
    tracebacks = Tracebacks()
    owners = [tracebacks.feed(line, rank_of(line), 5.0) for line in LOG.splitlines()]
    assert owners == [3] * 10 + [None, None]
    assert tracebacks.raised == RankException(3, LAST, "/srt/layers/attention/registry.py:77", 5.0)


def test_a_traceback_without_a_prefix_belongs_to_nobody_and_another_record_ends_one() -> None:
    tracebacks = Tracebacks()
    for line in ("[x TP3] failed: Traceback (most recent call last):", '  File "a.py", line 1, in f', "[x TP4] hello"):
        assert tracebacks.feed(line, rank_of(line), 1.0) == rank_of(line) or line.startswith("  File")
    assert tracebacks.feed("Traceback (most recent call last):", None, 1.0) is None
    assert tracebacks.feed("KeyError: 'x'", None, 2.0) is None
    assert tracebacks.raised == RankException(None, "KeyError: 'x'", "", 2.0)


@given(st.lists(st.sampled_from([*LOG.splitlines(), "", " ", "Error:", "[", "\x00"]), max_size=40))
def test_any_order_of_lines_is_taken(lines: list[str]) -> None:
    tracebacks = Tracebacks()
    for line in lines:
        assert tracebacks.feed(line, rank_of(line), 0.0) in (None, 3)
