"""What `sweep` measured on these nodes, beside what is calculated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.model.inventory import GangSpec
from orchestrator.model.measured import Candidate, CandidateResult, CandidateState, SweepRecord
from orchestrator.planning.offers import LayoutFit, ModelOffer
from orchestrator.planning.roofline import OwnPoint
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.records.sweeps import sweeps_of


def request_of(candidate: Candidate, gang: str, stack: str) -> PlanRequest:
    """The request that plans just this candidate."""
    layout, model = candidate.layout, candidate.file or candidate.model
    bare = PlanRequest(model=model, stack=stack, extra_args=candidate.args, gangs=(gang,))
    if candidate.named:
        return replace(bare, layout=candidate.named)
    return replace(
        bare,
        tp=layout.tensor_parallel,
        pp=layout.pipeline_parallel,
        ep=layout.expert_parallel,
        attn_dp=layout.attention_data_parallel,
    )


def with_measured(offered: ModelOffer, gang: GangSpec) -> ModelOffer:
    """The same, with what was measured of each layout on these nodes by this stack."""
    results = _results(gang, offered.model, offered.stack)
    return replace(offered, fits=tuple(replace(fit, here=_here(fit, results)) for fit in offered.fits))


def _here(fit: LayoutFit, results: Sequence[CandidateResult]) -> dict[int, float]:
    """Tokens a second by requests at once, as the plan's own settings got them; of several sweeps the newest."""
    mine = [result for result in results if result.candidate.layout == fit.layout and not result.candidate.settings]
    return {point.requests: point.tok_s for result in reversed(mine) for point in result.points}


def own_points(gang: GangSpec, model: str, stack: str) -> tuple[OwnPoint, ...]:
    """Decoding by the plan's own settings, as `sweep` measured it on these nodes: what the calculation is fitted to. A
    stand-in's figures are none."""
    real = [result for result in _results(gang, model, stack) if not (result.candidate.settings or result.stand_in)]
    points = {
        (result.candidate.layout, point.requests): point.decode_tok_s
        for result in reversed(real)
        for point in result.points
    }
    return tuple(
        OwnPoint(layout=layout, requests=requests, tokens_per_s=speed)
        for (layout, requests), speed in points.items()
        if speed
    )


def _results(gang: GangSpec, model: str, stack: str) -> list[CandidateResult]:
    """Of the model by the stack, the newest sweep first."""
    records = [record for record in sweeps_of(gang, model) if record.stack == stack]
    return [result for record in records for result in measured_in(record, model)]


def measured_in(record: SweepRecord, model: str) -> list[CandidateResult]:
    """The candidates of this model that were measured to their end."""
    mine = (result for result in record.results if result.candidate.model == model)
    return [result for result in mine if result.state is CandidateState.MEASURED]
