"""A sweep as `--json` has it. Pure."""

from __future__ import annotations

from typing import Any

from orchestrator.model.measured import CandidateResult, SweepRecord
from orchestrator.sweep.next_step import best_by_load


def sweep_json(record: SweepRecord) -> dict[str, Any]:
    """The document of `sweep --json`. kept: null where nothing serves."""
    return {
        "sweep": {
            "gang": record.gang,
            "model": record.model,
            "stack": record.stack,
            "load": record.load.as_json(),
            "candidates": [_candidate(result) for result in record.results],
            "network": [
                {
                    "name": trial.name,
                    "env": dict(trial.env),
                    "all_reduce_us": dict(trial.reduces_us),
                    "cause": trial.cause or None,
                }
                for trial in record.trials
            ],
            "best": dict(best_by_load(record)),
            "kept": record.kept or None,
        }
    }


def _candidate(result: CandidateResult) -> dict[str, Any]:
    candidate = result.candidate
    return {
        "id": candidate.id,
        "model": candidate.model,
        "layout": candidate.layout.key,
        "settings": dict(candidate.settings),
        "flags": list(candidate.args),
        "state": result.state.value,
        "cause": result.cause or None,
        "plan_id": result.plan_id or None,
        "kv_tokens": result.kv_tokens,
        "start_s": result.start_s,
        "calculated": dict(candidate.expected) or None,
        "stand_in": result.stand_in,
        "points": [point.as_json() for point in result.points],
    }
