"""What an engine is busy with, and which gangs its router has, out of their own answers."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any

CERTIFICATE_FILE = "router-cert.pem"
"""The secret file of the router's gang with the certificate that it shows."""
METRICS = "/metrics"
"""Where every version has them (--enable-metrics)."""
_LINE = re.compile(r"^(?:sglang|vllm)[:_](?P<name>\w+)(?P<labels>\{[^}]*\})? (?P<value>[0-9.eE+-]+)$", re.MULTILINE)
_OF_VLLM = {
    "num_requests_running": "num_running_reqs",
    "num_requests_waiting": "num_queue_reqs",
    "kv_cache_usage_perc": "token_usage",
    "request_success_total": "num_requests_total",
    "spec_decode_num_drafts_total": "drafts",
    "spec_decode_num_accepted_tokens_total": "accepted_drafts",
}
"""What vLLM calls otherwise (v1/metrics/loggers.py)."""
_RANK = re.compile(r'\b(?:tp|pp|moe_ep)_rank="[^"]*",?')


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Requests that are answered now and that wait; tokens since the engine started; share of the KV cache in use,
    None where the engine does not tell; tokens that a step gives each request, None without speculative decoding."""

    running: int
    queued: int
    prompt_tokens: float
    generation_tokens: float
    cache_used: float | None = None
    accept_length: float | None = None

    def as_json(self) -> dict[str, Any]:
        """gangs[].serving of `status --json`."""
        shares = {"cache_used": self.cache_used, "accept_length": self.accept_length}
        return {"running": self.running, "queued": self.queued, **shares}


def serving(metrics: str) -> Serving | None:
    """Out of the answer to /metrics; None where that holds nothing of an engine."""
    figures = _figures(metrics)
    if "num_running_reqs" not in figures:
        return None
    return Serving(
        running=int(sum(figures["num_running_reqs"])),
        queued=int(sum(figures.get("num_queue_reqs", ()))),
        prompt_tokens=sum(figures.get("prompt_tokens_total", ())),
        generation_tokens=sum(figures.get("generation_tokens_total", ())),
        cache_used=max(figures.get("token_usage", ()), default=None),
        accept_length=_accept_length(figures),
    )


def _accept_length(figures: Mapping[str, Collection[float]]) -> float | None:
    """SGLang tells the mean of its last steps, of each group (0 without drafts: observability/metrics_collector.py);
    vLLM counts drafts and what was accepted of them since it started, beside which each step gives one token
    (v1/spec_decode/metrics.py)."""
    lengths = [length for length in figures.get("spec_accept_length", ()) if length > 0]
    if lengths:
        return sum(lengths) / len(lengths)
    drafts = sum(figures.get("drafts", ()))
    return 1 + sum(figures.get("accepted_drafts", ())) / drafts if drafts else None


def _figures(metrics: str) -> dict[str, Collection[float]]:
    """Each figure by SGLang's name, once for each group of attention data parallelism. The ranks of a group that tell
    (one of each pipeline stage; with --enable-metrics-for-all-schedulers all) tell of the same requests."""
    groups_by_name: dict[str, dict[str, float]] = {}
    for line in _LINE.finditer(metrics):
        with suppress(ValueError):
            value = float(line["value"])
            if isfinite(value):
                of_groups = groups_by_name.setdefault(_OF_VLLM.get(line["name"], line["name"]), {})
                group = _RANK.sub("", line["labels"] or "")
                of_groups[group] = max(value, of_groups.get(group, 0.0))
    return {name: of_groups.values() for name, of_groups in groups_by_name.items()}


RUN_LABEL = "l40s_run"
"""What the router is told with a gang, beside its address: GANG/RUN that serves there (`run_entry`)."""
UNKNOWN_MODEL = "unknown"
"""The model of a gang that would not tell the router."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as the router has it, with the other names that it goes by."""

    name: str
    aliases: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """By what requests may name it."""
        return f"{self.name} (also {', '.join(self.aliases)})" if self.aliases else self.name


@dataclass(frozen=True, slots=True)
class Worker:
    """A gang as the router has it. id: the router's own; load: requests that it runs there now.

    models: whose requests it sends there, () where it does not tell
    run:    that it was added for, as `run_entry` names it; '' for not known
    """

    id: str
    url: str
    healthy: bool
    load: int
    models: tuple[ServedModel, ...] = ()
    run: str = ""


def run_entry(gang: str, run_id: str) -> str:
    """A gang's run as the router's entries name it, with the gang that its operator meant: a node that reports another
    gang's run is not taken for that gang. '' for no run."""
    return f"{gang}/{run_id}" if run_id else ""


def workers(body: str) -> tuple[Worker, ...]:
    """Out of the answer to GET /workers, without those that it was told to remove: smg lists them for another 5 s.
    Raises ValueError where it is none."""
    try:
        return tuple(_worker(worker) for worker in json.loads(body)["workers"] if worker.get("status") != "draining")
    except (AttributeError, KeyError, TypeError, OverflowError, RecursionError) as wrong:
        raise ValueError(f"the router's list of workers can't be read: {wrong!r}") from None


def _worker(listed: dict[str, Any]) -> Worker:
    """smg lists `models`, `status` and `labels`; sglang-router's `model_id` is the engine's path or 'unknown'."""
    models = listed.get("models") or ()
    return Worker(
        id=str(listed["id"]),
        url=str(listed["url"]).rstrip("/"),
        healthy=bool(listed["is_healthy"]),
        load=int(listed.get("load") or 0),
        models=tuple(ServedModel(str(model["id"]), tuple(map(str, model.get("aliases") or ()))) for model in models),
        run=str((listed.get("labels") or {}).get(RUN_LABEL, "")),
    )


def running_requests(body: str) -> int | None:
    """Requests that an engine has, out of its answer to /v1/loads (0.5) or /metrics; None where that is neither."""
    try:
        return sum(int(load["num_running_reqs"]) + int(load["num_waiting_reqs"]) for load in json.loads(body)["loads"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        figures = serving(body)
        return figures.running + figures.queued if figures else None


def finished_requests(body: str) -> int | None:
    """Requests that an engine has answered since it started, out of its /metrics; None where it does not tell."""
    totals = _figures(body).get("num_requests_total")
    return int(sum(totals)) if totals is not None else None
