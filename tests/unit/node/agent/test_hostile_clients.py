"""A client of the engine writes into its log: its agents keep their time, and take nothing of that for a cause."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from orchestrator.engines.dialects import DIALECTS, dialect

if TYPE_CHECKING:
    from tests.support.gang import Cluster

Gang = Callable[..., "Cluster"]
LINES = 32
LINE_BYTES = 60_000
QUOTED = "torch.OutOfMemoryError"


def watched(name: str) -> dict[str, object]:
    """A dialect's own patterns over the scripted engine's processes and endpoints."""
    from tests.support import gang

    own = dialect(name).watch()
    return own | {key: gang.WATCH[key] for key in ("rank_title", "phases", "http", "probe", "stop")}


def get(cluster: Cluster, query: str) -> None:
    connection = http.client.HTTPConnection(cluster.http, timeout=60)
    connection.request("GET", f"/?{query}")
    connection.getresponse().read()
    connection.close()


@pytest.mark.parametrize("name", DIALECTS)
def test_long_requests_end_no_gang_and_quoted_errors_are_no_cause(gang: Gang, name: str) -> None:
    from tests.support.waiting import until

    cluster = gang(nodes=2, lease_s=4.0, env={0: {"FAKE_ACCESS": "1"}}, changes={-1: {"watch": watched(name)}})
    cluster.ready()
    for _ in range(LINES):
        get(cluster, "ibv_poll_cq" * (LINE_BYTES // 11))
    get(cluster, QUOTED * (LINE_BYTES // len(QUOTED)))
    get(cluster, QUOTED)
    log = cluster.log(0)
    until(lambda: log.read_text().count(f'/?{QUOTED} HTTP/1.1" 200 OK') == 1, 60.0, "the last request is in the log")
    assert cluster.states() == ["ready", "ready"]
    cluster.kill_rank(1)
    until(lambda: cluster.states() == ["failed", "failed"], 20.0, f"failed: {cluster.states()}")
    cause = cluster.report(0)["cause"]
    assert (cause["tp_rank"], cause["signal"], cause["signature"]) == (1, 9, "")
    assert not any("?" in line for line in cause["lines"])
    cluster.nothing_left()
