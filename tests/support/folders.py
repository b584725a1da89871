"""Folders that are deleted while somebody still writes into them."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from tests.support.waiting import until


def delete_in_use(folder: Path | str) -> None:
    """Delete a folder, however often a process that lives on writes another file into it meanwhile."""

    def gone() -> bool:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
        return not Path(folder).exists()

    until(gone, what=f"{folder} is empty and deleted")
