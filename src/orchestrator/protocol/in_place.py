"""What a controller has run in a gang's place: the part of such an order that they share."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.protocol.message import Message
from orchestrator.protocol.staging import StagingRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlaceOrder(Message):
    """One node's part.

    run:     as for an engine, whose user, rights and environment the program's processes have
    program: its text
    """

    run: StagingRequest
    program: str
    deadline_s: float
