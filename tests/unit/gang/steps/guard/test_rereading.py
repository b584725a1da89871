"""When an inventory counts as changed, and when as wrong."""

from __future__ import annotations

from pathlib import Path

from orchestrator.gang.steps.guard.rereading import WRONG_LOOKS, InventoryWatch
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach
from orchestrator.protocol.errors import DeployError, InputError

NODE = NodeSpec(name="a", gang="g", node_rank=0, reach=Reach(host="a"))
FOUND = Inventory(path="hosts.yml", gangs=(GangSpec(name="g", nodes=(NODE,)),))
WRONG = InputError("found no gang", where="hosts.yml", fix="write one")


class Files:
    """stamp: of them; content: what reading gives; changes: they change while they are read."""

    def __init__(self) -> None:
        self.stamp = 1
        self.content: Inventory | Exception = FOUND
        self.changes = False
        self.read = 0
        self.watch = InventoryWatch(lambda: self.stamp, self._read)

    def _read(self) -> Inventory:
        self.read += 1
        self.stamp += self.changes
        if isinstance(self.content, Exception):
            raise self.content
        return self.content

    def looks(self, count: int) -> list[Inventory | DeployError | None]:
        return [self.watch() for _ in range(count)]


def test_files_are_read_once_they_hold_still_and_then_not_again() -> None:
    files = Files()
    assert files.looks(4) == [None, FOUND, None, None] and files.read == 1
    files.stamp = 2
    assert files.watch() is None
    files.stamp = 3
    assert files.watch() is None and files.read == 1
    assert files.looks(3) == [FOUND, None, None] and files.read == 2


def test_what_changes_while_it_is_read_is_read_again() -> None:
    files = Files()
    files.changes = True
    assert files.looks(3) == [None, None, None]
    files.changes = False
    assert files.looks(2) == [FOUND, None]


def test_what_is_wrong_is_told_once_and_only_where_it_stays_so() -> None:
    files = Files()
    assert files.looks(2) == [None, FOUND]
    files.stamp, files.content = 2, WRONG
    assert files.looks(WRONG_LOOKS) == [None] * WRONG_LOOKS
    files.stamp = 3  # somebody goes on writing
    assert files.looks(WRONG_LOOKS) == [None] * WRONG_LOOKS
    assert files.looks(3) == [WRONG, None, None]
    files.stamp, files.content = 4, FOUND
    assert files.looks(3) == [None, FOUND, None]


def test_a_defect_of_ours_in_reading_and_a_folder_that_can_not_be_looked_at_end_nothing(tmp_path: Path) -> None:
    files = Files()
    files.content = ZeroDivisionError("our own")
    told = files.looks(WRONG_LOOKS + 1)[-1]
    assert isinstance(told, InputError) and "ZeroDivisionError" in told.what

    def stamp() -> object:
        raise PermissionError(13, "denied", str(tmp_path))

    assert InventoryWatch(stamp, lambda: FOUND)() is None
