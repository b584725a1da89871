"""Stands in for Hugging Face's client on a node that reaches no hub: its repositories are directories of the node."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from types import SimpleNamespace

HUB = Path("/srv/l40s-lab/hub")


class RepositoryNotFoundError(Exception):
    """No such repository."""


class HfApi:
    """The part of the client's interface that lists a repository."""

    def __init__(self, **_: object) -> None:
        """Without an address, or a token for it."""

    def model_info(self, repo: str, **_: object) -> SimpleNamespace:
        """The files of a repository, whatever the revision."""
        if not (HUB / repo).is_dir():
            known = ", ".join(f"{place.parent.name}/{place.name}" for place in HUB.glob("*/*"))
            raise RepositoryNotFoundError(f"the lab's hub has only {known}, not {repo}")
        files = [
            SimpleNamespace(
                rfilename=file.name,
                size=file.stat().st_size,
                lfs={"sha256": hashlib.sha256(file.read_bytes()).hexdigest()},
                blob_id="",
            )
            for file in sorted((HUB / repo).iterdir())
        ]
        return SimpleNamespace(sha="0" * 40, siblings=files)


def snapshot_download(repo: str, *, local_dir: str, **_: object) -> None:
    """Bring its files."""
    shutil.copytree(HUB / repo, local_dir, dirs_exist_ok=True)
