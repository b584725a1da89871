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
    return short_digest(sorted(facts))


def plan_id(plan: Plan) -> str:
    """The same content gives the same id."""
    content = asdict(plan)
    del content["plan_id"]
    return short_digest(content)


def short_digest(value: Any) -> str:
    """Of anything that JSON can hold, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, default=dict, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:_LENGTH]
