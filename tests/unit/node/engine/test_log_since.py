"""The log's lines since a mark: over one rotation, after two, and without a log at the mark."""

from __future__ import annotations

from pathlib import Path

from orchestrator.node.engine.logfile import LogSince


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_only_what_came_after_the_mark(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    write(log, "old\n")
    with LogSince(str(tmp_path / "engine.log")) as since:
        write(log, "new\nnewer")
        assert list(since.lines()) == ["new", "newer"]


def test_over_rotations(tmp_path: Path) -> None:
    log, before = tmp_path / "engine.log", tmp_path / "engine.log.1"
    write(before, "very old\n")
    write(log, "old\n")
    with (
        LogSince(str(tmp_path / "engine.log")) as once,
        LogSince(str(tmp_path / "engine.log")) as twice,
        LogSince(str(tmp_path / "engine.log")) as thrice,
    ):
        write(log, "new\n")
        log.replace(before)
        write(log, "newer\n")
        assert list(once.lines()) == ["new", "newer"]
        log.replace(before)
        write(log, "newest\n")
        assert list(twice.lines()) == ["new", "newer", "newest"]
        log.replace(before)
        write(log, "last\n")
        assert list(thrice.lines()) == ["new", "newest", "last"]


def test_where_there_was_no_log(tmp_path: Path) -> None:
    with LogSince(str(tmp_path / "engine.log")) as since:
        assert list(since.lines()) == []
        write(tmp_path / "engine.log", "first\n")
        assert list(since.lines()) == ["first"]
