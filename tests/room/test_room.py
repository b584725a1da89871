"""Where there is no room, every writer goes on without its file, or ends in words that name a command."""

from __future__ import annotations

import re

import pytest
from tests.room import starters
from tests.room.writers import KINDS, PAGE, PLAYED, elsewhere, outcome, page, writers

MAY_BE_LOST = {
    "bench/store.py:keep_raw", "checkpoint/on_node/digests.py:Digests.keep", "node/engine/logfile.py:LogFile._append",
    "node/engine/scratch.py:make", "node/verbs/same_root.py:answer", "records/documents.py:RunRecord.event",
    "records/documents.py:note", "remote/app_archive.py:_keep", "remote/ssh_keys.py:record",
}  # fmt: skip
"""What nobody waits for: the work is worth more than its record."""

WANTED = {
    "bytes": "df -h FOLDER", "inodes": "df -i FOLDER", "quota": "df -h FOLDER", "descriptors": "ulimit -n",
    "memory": "ps aux", "read-only": "mount|writable|another file|another path|choose a path",
}  # fmt: skip
"""The command that shows what is used up."""


def test_each_writer_is_played_or_has_words_elsewhere() -> None:
    here = writers()
    assert PLAYED.keys() <= set(here), "the code no longer has it"
    assert [writer for writer in here if writer not in PLAYED and not elsewhere(writer)] == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("writer", PLAYED)
def test_no_room_ends_in_words_or_in_nothing(writer: str, kind: str) -> None:
    told = outcome(writer, kind)
    assert (told == "goes on") == (writer in MAY_BE_LOST), told
    if told != "goes on":
        assert re.search(WANTED[kind], told), told


def test_no_inode_is_not_called_a_full_disk_on_a_node() -> None:
    assert "df -i FOLDER" in outcome("node/files.py:write", "inodes")
    assert "df -h FOLDER" in outcome("node/files.py:write", "bytes")


def test_each_starter_of_a_thread_or_process_has_an_outcome() -> None:
    here = starters.starters()
    assert starters.PLAYED.keys() <= set(here), "the code no longer has it"
    assert [starter for starter in here if not starters.outcome_of(starter)] == []
    assert [part for part in starters.OTHERS if not any(starter.startswith(part) for starter in here)] == []


def test_the_page_is_what_the_code_does() -> None:
    assert PAGE.read_text() == page() + starters.section(), "python -m tests.room"
