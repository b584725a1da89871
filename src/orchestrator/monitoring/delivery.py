"""Alertmanager's configuration: critical alerts are delivered at once."""

from __future__ import annotations

from typing import Any

RECEIVER = "operators"


def delivery(receiver: str) -> dict[str, Any]:
    """A complete alertmanager.yml. receiver: address of a webhook, '' for none."""
    hook = {"webhook_configs": [{"url": receiver, "send_resolved": True}]} if receiver else {}
    return {
        "route": {
            "receiver": RECEIVER,
            "group_by": ["alertname", "gang"],
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "4h",
            "routes": [
                {
                    "matchers": ['severity="critical"'],
                    "receiver": RECEIVER,
                    "group_wait": "0s",
                    "group_interval": "10s",
                }
            ],
        },
        "inhibit_rules": [
            {
                "source_matchers": ['alertname="L40sGangFailed"'],
                "target_matchers": ['alertname=~"L40sGangDegraded|L40sCanarySlow|L40sStartLate"'],
                "equal": ["gang"],
            }
        ],
        "receivers": [{"name": RECEIVER, **hook}],
    }
