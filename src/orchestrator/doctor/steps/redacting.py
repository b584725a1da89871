"""Snapshots that may be shown to strangers."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from orchestrator.model.errors import VerificationDiffers
from orchestrator.model.snapshot import Snapshot
from orchestrator.topology.redaction import redact

KEY_BYTES = 32
_ATTEMPTS = 3


def redacted(snapshots: Mapping[str, Snapshot]) -> dict[str, Snapshot]:
    """The same machines under pseudonyms, by their original names. The key is forgotten.

    Raises VerificationDiffers where something that tells who they are would stay: nothing may be shown then.
    """
    if not snapshots:
        return {}
    for _ in range(_ATTEMPTS):  # a pseudonym may happen to be another one's original
        done, trouble = _attempt(snapshots)
        if done:
            return done
    raise VerificationDiffers(
        f"data that identifies a machine would remain: {trouble}",
        where="--redact",
        fix="nothing was written. Inspect that part without --redact",
    )


def _attempt(snapshots: Mapping[str, Snapshot]) -> tuple[dict[str, Snapshot], str]:
    """Nothing and why, where it did not come out well."""
    try:
        return dict(zip(snapshots, redact(snapshots.values(), secrets.token_bytes(KEY_BYTES)), strict=True)), ""
    except ValueError as left:
        return {}, str(left)
