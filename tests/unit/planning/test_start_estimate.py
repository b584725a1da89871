"""How long a start takes, held to every recorded start of the slice on GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.reference_plan import plan_of
from tests.unit.planning.test_memory import CPU, FINE, NEW, PP4, SLICE, STOCK, TP32, of

from orchestrator.model.plan import StartEstimate
from orchestrator.planning.page_cache import GIB, PageCacheFit
from orchestrator.planning.start_estimate import estimate, span, tensors, total, words
from orchestrator.protocol.planned import Layout

RESULTS = json.loads((Path(__file__).parents[2] / "slice/figures.json").read_text())["results"]
GIVEN = {"--cuda-graph-max-bs-decode": ("32",)}
MADE = replace(SLICE, dimensions=replace(SLICE.dimensions, num_nextn_predict_layers=0))


def recorded() -> list[Any]:
    """Every start of the slice that came to ready, with the files in RAM; `restart` had graphs to 128 before it."""
    found = []
    for result in RESULTS:
        for way, figures in _starts(result["figures"]) if not result["step"].startswith("ranks apart") else ():
            most = result["step"].rpartition(" ")[2] if "graphs to" in result["step"] else "128"
            name = f"{result['step']}{way}, {result['at']}"
            cold = not figures.get("compiled_before", most != "32")
            ranks = 1 if result["step"].startswith("one rank") else int(result["gpus"][0])
            nodes = ranks if result["step"].startswith("several nodes") else 1
            machine = (result["engine"].split()[1], ranks, nodes)
            found.append(pytest.param(int(most), machine, cold, figures["start"], id=name))
    return found


def _starts(figures: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """One part may start several times."""
    parts = [("", figures), *((f", {name}", seen) for name, seen in figures.items() if isinstance(seen, dict))]
    return [(way, seen) for way, seen in parts if seen.get("start", {}).get("phases")]


def calculated(most: int, ranks: int, version: str = "0.5.17", nodes: int = 1) -> StartEstimate:
    """The slice's profile is of four ranks; between fewer, each sends a little less."""
    flags = {"--cuda-graph-max-bs-decode": (str(most),)}
    memory = of(
        replace(NEW, engine_version=version),
        Layout(tensor_parallel=4, nnodes=nodes, gpus_per_node=4 // nodes),
        {**flags, "--chunked-prefill-size": ("4096",)} if nodes > 1 else flags,
        profile=MADE,
        context=163_840,
    )
    layout = Layout(tensor_parallel=ranks, nnodes=1, gpus_per_node=ranks)
    found = estimate(MADE, layout, memory, read=0, fits={"node0": PageCacheFit(85 * GIB, 200 * GIB)})
    assert found is not None
    return found


@pytest.mark.parametrize(("most", "machine", "cold", "start"), recorded())
def test_every_recorded_start_lies_in_its_interval(
    most: int, machine: tuple[str, int, int], cold: bool, start: dict[str, Any]
) -> None:
    """Cold: no kernel was compiled before; of 0.5.17 that was each machine's first part, which captures to 32."""
    version, ranks, nodes = machine
    found = calculated(most, ranks, version, nodes)
    phases = found.first if cold else found.again
    least, longest = total(phases)
    assert least <= start["seconds"] <= longest
    for name, seconds in start["phases"].items():
        assert phases[name][0] - 0.5 <= seconds <= phases[name][1] + 0.5, name


def test_an_interval_is_no_barn_door() -> None:
    """From RAM the longest start takes little more than twice the shortest one, as those that were seen."""
    found = calculated(32, 4)
    for phases in (found.first, found.again):
        least, most = total(phases)
        assert most < 2.2 * least


def test_between_nodes_the_captured_sizes_of_prefill_cross_the_network() -> None:
    """Two H200 on TCP, chunks of 4,096: 109 s for prefill, 42 to 50 s on one node; 50 sizes in the engine's log."""
    inside, between = (calculated(32, 2, "0.5.23", nodes).again["graphs"] for nodes in (1, 2))
    more = [after - before for before, after in zip(inside, between, strict=True)]
    assert more[0] < 109 - 50 < 109 - 42 < more[1]
    old = [calculated(32, 2, "0.5.17", nodes).again["graphs"] for nodes in (1, 2)]
    assert old[0] == old[1], "captures decode alone"


def test_the_tensors_are_counted_as_the_slice_has_them() -> None:
    assert tensors(MADE) == 90_427
    assert tensors(FINE) - tensors(replace(FINE, dimensions=MADE.dimensions)) == 1558, "a layer of drafts more"
    assert tensors(replace(FINE, quantisation="none")) < 0.51 * tensors(FINE), "no scales"


def of_files(read: int, room: int, layout: Layout = TP32) -> StartEstimate:
    profile = FINE if layout is TP32 else STOCK
    found = estimate(
        profile, layout, of(layout=layout, profile=profile), read=read, fits={"a": PageCacheFit(read, room)}
    )
    assert found is not None
    return found


def test_loading_is_the_slowest_of_disk_tensors_and_copies() -> None:
    fits = of_files(689 * 10**9, 10**12)
    assert fits.first["weights"] == pytest.approx((31.3, 689.0), abs=0.1)
    assert fits.again["weights"] == pytest.approx((31.3, 59.8), abs=0.1)
    short = of_files(689 * 10**9, 189 * 10**9)
    assert short.again["weights"] == pytest.approx((100.0, 689.0), abs=0.1), "500 of 689 GB at least, all at most"
    staged = of_files(172 * 10**9, 10**12, PP4)
    assert staged.again["weights"][0] == pytest.approx(31.3 / 4, abs=0.1), "a stage's tensors alone"
    assert "graphs" not in staged.first, "not measured for such a rank"
    assert "beside its graphs, which are not measured" in words(staged)


def test_a_plan_says_it_as_an_interval_with_its_source() -> None:
    plan = plan_of(stack="sglang-0.5.23").gangs[0]
    (line,) = (line for line in plan.memory.explanation if line.startswith("start: "))
    assert "the first one" in line and "; later ones" in line and "graphs 3.1 to 7.0 min" in line
    assert line.endswith("the slice of DeepSeek-V3 on 2 and 4 H100 and on 1 and 2 H200, for disks of 1 GB/s or more")
    assert plan.start is not None and plan.start.first["graphs"] == (183.6, 420.5)
    assert plan_of(stack="sglang-0.5.23-cpu").gangs[0].start is None
    assert estimate(FINE, TP32, of(CPU, gpu_total=None), read=9, fits={}) is None and words(None) == ""


def test_spans_are_read_at_a_glance() -> None:
    assert [span(seconds) for seconds in ((11.0, 16.4), (100.0, 179.0), (198.0, 948.0))] == [
        "11 to 16 s",
        "100 to 179 s",
        "3.3 to 15.8 min",
    ]
