"""What was typed, for locks and the audit log."""

from __future__ import annotations

import sys

from orchestrator.model.secret_text import typed


def command_line() -> str:
    """What was typed, for locks and the audit log: without hooks' and other secrets."""
    return typed(["l40s-deploy", *sys.argv[1:]])[:300]
