"""One node's part of a run, as the controller staged it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.node import files
from orchestrator.node.agent import secret_files
from orchestrator.node.engine import redact
from orchestrator.node.failure import Failure
from orchestrator.protocol.message import Unreadable
from orchestrator.protocol.run_files import KeptSecrets
from orchestrator.protocol.staging import StagingRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(StagingRequest):
    """The staged data, and its folder. Key and secrets are in separate files there."""

    folder: str

    def path(self, name: str) -> str:
        """A file in the run's folder."""
        return f"{self.folder}/{name}"

    @property
    def state(self) -> str:
        """The state directory that it lies in."""
        return self.folder.partition("/gangs/")[0]

    @property
    def unit_name(self) -> str:
        """Name of the run's transient unit or container, in characters that systemd and Docker allow. The nodes of a
        lab may share one systemd or Docker."""
        return "l40s-deploy-" + re.sub(r"[^A-Za-z0-9_.-]", "_", f"{self.gang}-{self.node}-{self.run_id}")

    def link_key(self) -> bytes:
        """The run's secret for the leader link."""
        text = files.read_text(self.path(files.KEY_FILE))
        if not text:
            raise Failure("no-key", "the run's key is missing", self.path(files.KEY_FILE), "run `up` again")
        return bytes.fromhex(text.strip())

    def hidden_words(self) -> tuple[str, ...]:
        """Words that must not appear in the engine's log."""
        return redact.secrets_of(self.env, self.flags, self._secrets().redact)

    def authorization(self) -> str:
        """The header that the engine's HTTP requires, '' for none."""
        return self._secrets().authorization

    def secret_file(self, name: str) -> str:
        """Path of one of the gang's secret files; '' for none."""
        return secret_files.path(self.gang_dir, name)

    @property
    def gang_dir(self) -> str:
        """Folder for files of the gang, not of one run."""
        return os.path.dirname(os.path.dirname(self.folder))

    def _secrets(self) -> KeptSecrets:
        return secret_files.kept(self.gang_dir)


def staged_in(folder: str) -> Run:
    """The run that was staged in a folder. Raises Failure if there is none."""
    return run_of(files.read_json(f"{folder}/{files.RUN_FILE}"), folder)


def run_of(request: Mapping[str, Any], folder: str) -> Run:
    """From a staging request. Raises Failure for a field that is missing or unreadable, naming it."""
    found = Run.read({**request, "folder": folder})
    if isinstance(found, Unreadable):
        raise Failure("bad-request", f"no staging request: {found}", folder, "run `up` again")
    words = (*found.argv, *found.env, *found.env.values(), found.model_path, found.working_dir, found.venv_python)
    if any("\0" in word for word in words):
        raise Failure("bad-request", "the command line contains a NUL byte", folder, "run `up` again")
    return found
