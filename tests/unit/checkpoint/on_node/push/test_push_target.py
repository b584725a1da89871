"""The existing directory at a push's target is compared with the new one."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.checkpoint.on_node.push.target import FileEntry, PushTarget
from orchestrator.node.failure import Failure


def test_a_directory_that_lacks_an_empty_file_is_another_checkpoint(tmp_path: Path) -> None:
    directory = tmp_path / "M"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    entries = [FileEntry("config.json", "config.json", 2), FileEntry("empty", "empty", 0)]
    with pytest.raises(Failure, match="empty is missing there") as told:
        PushTarget(directory, entries).open()
    assert told.value.kind == "target-differs"
    (directory / "empty").touch()
    target = PushTarget(directory, entries)
    target.open()
    assert target.there
