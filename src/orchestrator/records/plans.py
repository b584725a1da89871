"""What this machine started: where each plan of a gang serves, and what was asked for. What the nodes say later is
held against it; another controller has no record of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.protocol.errors import InputError
from orchestrator.records.documents import named_file, read_document, write_document

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPlan:
    """asked: the JSON of an `Asked`; None where the plan was made for no operator's words."""

    service_url: str
    asked: Mapping[str, Any] | None = None


def keep_plan(gang: str, plan_id: str, plan: RecordedPlan) -> None:
    """Replace it. A record that can't be written is none: what the nodes agree on counts then."""
    document = {"format": FORMAT, "gang": gang, "plan_id": plan_id, **asdict(plan)}
    with contextlib.suppress(InputError):
        write_document(named_file("plans", "\0".join((gang, plan_id))), document)


def recorded_plan(gang: str, plan_id: str) -> RecordedPlan | None:
    """None where this machine did not start it, or the record can't be read."""
    return read_document(named_file("plans", "\0".join((gang, plan_id))), _made)


def recorded_url(gang: str, plan_id: str) -> str:
    """Where this plan serves; '' where there is no record of it."""
    plan = recorded_plan(gang, plan_id)
    return plan.service_url if plan is not None else ""


def _made(document: Mapping[str, Any]) -> RecordedPlan | None:
    if document["format"] != FORMAT:
        return None
    asked = document["asked"]
    return RecordedPlan(service_url=str(document["service_url"]), asked=None if asked is None else dict(asked))
