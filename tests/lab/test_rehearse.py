"""Rehearsals as an operator types them: one that ends as expected, and one that does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import RunningLab, needs_root

pytestmark = [pytest.mark.lab, needs_root]


def test_a_dead_rank_at_night_ends_as_expected(labs: Callable[[str], RunningLab]) -> None:
    lab = labs("night")
    done = lab.run("rehearse", "dead-rank")
    assert "failed: TP19" in done.stdout and "as expected" in done.stdout
    assert not lab.directory.exists()


def test_an_end_that_differs_is_told_with_its_step(labs: Callable[[str], RunningLab], tmp_path: Path) -> None:
    story = tmp_path / "story.yml"
    story.write_text(
        "summary: a fault that doctor is not expected to find\n"
        "lab: {nodes: 3, level: 1}\n"
        "steps:\n"
        "  - break: node1 gpu-lost 0\n"
        "  - {run: doctor, exit: 0}\n"
    )
    lab = labs("differs")
    done = lab.run("rehearse", str(story), check=False)
    assert done.returncode == 7, done.stderr
    assert "steps[1]" in done.stderr and "wanted exit code 0, found 3" in done.stderr
    assert not lab.directory.exists()
