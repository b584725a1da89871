"""What `nettest` has measured of a gang, as input of the speed model."""

from __future__ import annotations

from orchestrator.model.inventory import GangSpec
from orchestrator.model.profile import ModelProfile
from orchestrator.nettest.schedule import BYTES_A_NUMBER, Between
from orchestrator.records.nettests import last_good


def measured_all_reduces(gang: GangSpec, stack: str, profile: ModelProfile) -> dict[int, float]:
    """Seconds of an all-reduce over all GPUs of the gang, by tokens of this model; {} where nobody has tested it."""
    ranks = sum(node.gpus for node in gang.nodes)
    found = last_good(gang, stack, ranks)
    a_token = profile.dimensions.hidden_size * BYTES_A_NUMBER
    return {
        int(one["bytes"]) // a_token: float(one["measured_us"]) / 1e6
        for one in (found["tests"] if found else ())
        if one["kind"] == Between.ALL.value and one["bytes"] == one["wanted_bytes"] and one["bytes"] % a_token == 0
    }
