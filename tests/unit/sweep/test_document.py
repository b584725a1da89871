"""The document of `sweep --json`."""

from __future__ import annotations

import json

from tests.unit.sweep.made import record, result

from orchestrator.model.measured import CandidateState
from orchestrator.sweep.document import sweep_json


def test_its_keys() -> None:
    kept = record(
        result("a", {1: 50.0, 4: 100.0}, kv_tokens=7, start_s=3.0),
        result("b", state=CandidateState.FAILED, cause="no memory"),
        kept="a",
    )
    document = json.loads(json.dumps(sweep_json(kept)))["sweep"]
    assert document.keys() == {"gang", "model", "stack", "load", "candidates", "network", "best", "kept"}
    first, second = document["candidates"]
    assert {"id", "layout", "settings", "state", "cause", "kv_tokens", "start_s", "points"} <= first.keys()
    assert (first["state"], first["cause"], first["layout"]) == ("measured", None, "TP4")
    assert {"requests", "tok_s", "ttft_ms", "itl_ms", "runs", "noise"} <= first["points"][0].keys()
    assert (second["state"], second["cause"], second["points"]) == ("failed", "no memory", [])
    assert (document["best"], document["kept"]) == ({"1": "a", "4": "a"}, "a")
    assert sweep_json(record())["sweep"]["kept"] is None
