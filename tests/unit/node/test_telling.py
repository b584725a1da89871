"""Long answers are split into lines that the controller accepts."""

from __future__ import annotations

import json

from orchestrator.node.telling import in_parts
from orchestrator.remote.commands import LONGEST


def test_parts_together_are_the_list_and_none_is_too_long() -> None:
    digests = {f"model-{number:05d}-of-20000-\u00e9.safetensors": "f" * 64 for number in range(20_000)}
    parts = list(in_parts(digests.items()))
    assert dict(pair for part in parts for pair in part) == digests
    assert len(json.dumps({"digests": digests})) > LONGEST
    assert max(len(json.dumps(part)) for part in parts) < LONGEST / 2
    assert not list(in_parts([]))
