"""What was measured and found earlier, as metrics: bench, nettest, doctor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from orchestrator.monitoring import catalogue as names
from orchestrator.monitoring.family import Families
from orchestrator.monitoring.scene import Scene

GIGABIT = 1e9 / 8
MILLI = 1e-3
MICRO = 1e-6


def measured_figures(families: Families, scene: Scene) -> None:
    """The newest of everything, of this inventory's gangs."""
    gangs = {gang.name for gang in scene.gangs}
    for bench in scene.measured.benches:
        if bench["gang"] in gangs:
            _bench(families, bench)
    for nettest in scene.measured.nettests:
        if nettest["gang"] in gangs:
            _nettest(families, nettest)
    _findings(families, scene)


def _findings(families: Families, scene: Scene) -> None:
    """What NCCL's lines show of the running gangs counts as found now."""
    running = [(finding.id, finding.severity.value, finding.node) for view in scene.views for finding in view.transport]
    kept = scene.looked.findings if scene.looked is not None else ()
    for (name, severity, node), count in Counter([*kept, *running]).items():
        families.add(names.FINDING, count, id=name, severity=severity, node=node)
    families.add(names.DOCTOR_AT, scene.looked.at if scene.looked is not None else None)


def _bench(families: Families, bench: Mapping[str, Any]) -> None:
    load = bench["load"]
    words = f"{load.get('prompts')} x {load.get('input')}+{load.get('output')}, {load.get('concurrency')} at once"
    who = {"gang": bench["gang"], "model": bench["model"], "stack": bench["stack"], "load": words}
    serving = bench["serving"]
    families.add(names.BENCH_AT, bench["at"], **who)
    families.add(names.BENCH_TOKENS, serving.get("output_tok_s"), **who)
    families.add(names.BENCH_TTFT, _times(serving.get("ttft_median_ms"), MILLI), **who)
    families.add(names.BENCH_ITL, _times(serving.get("itl_median_ms"), MILLI), **who)


def _nettest(families: Families, nettest: Mapping[str, Any]) -> None:
    gang = nettest["gang"]
    families.add(names.NETTEST_AT, nettest["at"], gang=gang)
    families.add(names.NETTEST_SLOW, nettest["verdict"] == "slow", gang=gang)
    if isinstance(verification := nettest.get("verification"), dict):
        families.add(names.NETTEST_CORRUPT, verification.get("verdict") == "corrupt", gang=gang)
    for test in nettest["tests"]:
        labels = {"gang": gang, "bytes": test["bytes"], "between": test["kind"], "where": test.get("where", "")}
        families.add(names.NETTEST_REDUCE, _times(test.get("measured_us"), MICRO), **labels)
    for link in nettest["links"]:
        labels = {"gang": gang, "from": link["from"], "to": link["to"], "between": link["kind"]}
        slower = min(link.get("tries_gbps") or [link.get("measured_gbps")])
        families.add(names.NETTEST_LINK, _times(slower, GIGABIT), **labels)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
