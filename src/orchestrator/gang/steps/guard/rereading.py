"""An inventory that is read again whenever its files have changed, once they hold still: an editor or a copy may write
a file in several steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.model.inventory import Inventory
from orchestrator.protocol.errors import DeployError, InputError

WRONG_LOOKS = 3
"""Files that are wrong at so many looks in a row, and that nobody has written meanwhile, are said to be wrong."""
NOT_YET = object()


@dataclass
class InventoryWatch:
    """Called again and again: the inventory, why it can't be used, or None where there is nothing new.

    stamp: another value once a file has changed; read: raises DeployError
    """

    stamp: Callable[[], object]
    read: Callable[[], Inventory]
    _known: object = field(default=NOT_YET)
    """Of the files whose content was told."""
    _seen: object = field(default=NOT_YET)
    """At the last look."""
    _wrong_looks: int = 0

    def __call__(self) -> Inventory | DeployError | None:
        """What is new. Raises nothing."""
        now = self._stamp()
        settled, self._seen = now == self._seen, now
        if not settled:
            self._wrong_looks = 0
        if now == self._known or not settled:
            return None
        newer = self._read()
        if self._stamp() != now:
            return None
        if isinstance(newer, DeployError):
            self._wrong_looks += 1
            if self._wrong_looks < WRONG_LOOKS:
                return None
        self._known = now
        return newer

    def _stamp(self) -> object:
        try:
            return self.stamp()
        except OSError as wrong:
            return str(wrong)

    def _read(self) -> Inventory | DeployError:
        """A file that finds a defect of ours ends no guard."""
        try:
            return self.read()
        except DeployError as wrong:
            return wrong
        except Exception as defect:
            return InputError(
                f"a defect of l40s-deploy: {defect!r:.200}", where="inventory", fix="l40s-deploy support-bundle"
            )
