"""The curves of the last hour: what was told, at its place, and nothing that was not."""

from __future__ import annotations

from orchestrator.engines.serving import Serving
from orchestrator.gang.steps.status.live import GangLoad, NodeLoad
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.monitoring.steps.last_hour import HEIGHT, HOUR_S, WIDTH, Sample, curves, sample_of, with_sample
from orchestrator.protocol.gauges import GaugesAnswer, GpuGauges

GIB = 1 << 30


def test_only_the_last_hour_is_kept() -> None:
    samples: tuple[Sample, ...] = ()
    for at in range(0, 2 * int(HOUR_S), 60):
        samples = with_sample(samples, Sample(at=float(at), running=1.0))
    assert samples[0].at == samples[-1].at - HOUR_S and len(samples) == 61
    assert with_sample(samples, Sample(at=0.0)) == (Sample(at=0.0),)  # a clock that was set back


def test_a_curve_ends_on_the_right_and_reaches_its_top() -> None:
    samples = [Sample(at=0.0, tokens_s=10.0), Sample(at=HOUR_S / 2, tokens_s=40.0), Sample(at=HOUR_S, tokens_s=20.0)]
    (curve,) = curves(samples)
    assert (curve.title, curve.newest, curve.extreme) == ("tokens a second", "20.0", "most 40.0")
    first, top, last = (tuple(map(float, point.split(","))) for point in curve.points.split())
    assert first[0] == 0.0 and top == (WIDTH / 2, 2.0) and last[0] == WIDTH
    assert 2.0 < last[1] < first[1] <= HEIGHT - 2


def test_what_was_not_told_is_no_zero() -> None:
    assert curves([Sample(at=1.0), Sample(at=2.0)]) == ()
    (queued,) = curves([Sample(at=1.0, queued=0.0), Sample(at=2.0), Sample(at=3.0, queued=0.0)])
    assert queued.newest == "0" and len(queued.points.split()) == 2


def test_of_free_memory_the_lowest_is_told() -> None:
    (free,) = curves([Sample(at=1.0, least_free=8.0 * GIB), Sample(at=2.0, least_free=6.5 * GIB)])
    assert (free.newest, free.extreme) == ("6.5 GiB", "lowest 6.5 GiB")


def test_a_sample_has_the_gpu_with_the_least_free_memory() -> None:
    gpus = tuple(
        GpuGauges(index=number, memory_total_bytes=45 * GIB, memory_used_bytes=used)
        for number, used in enumerate((40 * GIB, 44 * GIB, None))
    )
    node = NodeView(name="n", node_rank=0, state=NodeState.READY)
    view = GangView(name="g", state=GangState.READY, nodes=(node,))
    nodes = {"n": NodeLoad(gauges=GaugesAnswer(now=1.0, gpus=gpus))}
    busy = GangLoad(now=Serving(running=3, queued=1, prompt_tokens=0.0, generation_tokens=0.0, cache_used=0.4))
    assert sample_of(view, busy, nodes, 9.0) == Sample(at=9.0, running=3, queued=1, cache_used=0.4, least_free=GIB)
    assert sample_of(view, None, {}, 9.0) == Sample(at=9.0)
