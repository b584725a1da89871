"""Short names for a plan's content and for the facts that it rests on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from orchestrator.model.plan import Plan

_LENGTH = 12
"""Hexadecimal digits: enough to tell one operator's plans apart."""


def facts_digest(facts: Iterable[tuple[str, str, str]]) -> str:
    """The same facts give the same digest, whatever their order."""
    return _digest(sorted(facts))


def plan_id(plan: Plan) -> str:
    """The same content gives the same id."""
    content = asdict(plan)
    del content["plan_id"]
    return _digest(content)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:_LENGTH]
