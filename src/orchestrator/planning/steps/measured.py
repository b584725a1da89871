"""What `sweep` measured on these nodes, beside what is calculated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.model.inventory import GangSpec
from orchestrator.model.measured import Candidate, CandidateResult, CandidateState, SweepRecord
from orchestrator.planning.offers import LayoutFit, ModelOffer
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
    records = [record for record in sweeps_of(gang, offered.model) if record.stack == offered.stack]
    results = [result for record in records for result in measured_in(record)]
    return replace(offered, fits=tuple(replace(fit, here=_here(fit, results)) for fit in offered.fits))


def _here(fit: LayoutFit, results: Sequence[CandidateResult]) -> dict[int, float]:
    """Tokens a second by requests at once, as the plan's own settings got them; of several sweeps the newest."""
    mine = [result for result in results if result.candidate.layout == fit.layout and not result.candidate.settings]
    return {point.requests: point.tok_s for result in reversed(mine) for point in result.points}


def measured_in(record: SweepRecord) -> list[CandidateResult]:
    """The candidates that were measured to their end."""
    return [result for result in record.results if result.state is CandidateState.MEASURED]
