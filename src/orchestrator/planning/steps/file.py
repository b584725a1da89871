"""A plan as a file: what was asked for, on which facts it rests, what it would run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from orchestrator.model.errors import InputError
from orchestrator.model.plan import Plan
from orchestrator.planning.plan_file import plan_json, saved_plan
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.records.documents import write_whole

FORMAT = 1


def write_plan(path: Path, plan: Plan, request: PlanRequest) -> None:
    """Write the plan's document with the request that it came from. Raises InputError where it can't be written."""
    asked = asdict(replace(request, saved=None))
    document = {"format": FORMAT, **plan_json(plan), "request": asked}
    write_whole(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def read_request(path: Path) -> PlanRequest:
    """The request of a plan file, which refuses any other plan than the file's. Raises InputError."""
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != FORMAT:
            raise _wrong(path, f"found format {document['format']!r:.40}, wanted {FORMAT}")
        return _request(path, document)
    except OSError as failure:
        raise InputError(
            f"this file can't be read: {failure.strerror or failure}",
            where=str(path),
            fix="specify a file from `l40s-deploy plan --out`",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
        raise _wrong(path, f"this is not a plan: {wrong!r:.100}") from None


def _request(path: Path, document: Mapping[str, Any]) -> PlanRequest:
    asked = document["request"]
    return PlanRequest(
        model=str(asked["model"]),
        stack=None if asked["stack"] is None else str(asked["stack"]),
        tp=_degree(asked["tp"]),
        pp=_degree(asked["pp"]),
        ep=_degree(asked["ep"]),
        attn_dp=_degree(asked.get("attn_dp")),
        layout=str(asked.get("layout", "")),
        replicas=asked.get("replicas") is True,
        extra_args=tuple(str(word) for word in asked["extra_args"]),
        gangs=tuple(str(name) for name in asked["gangs"]),
        without=tuple(str(name) for name in asked.get("without", ())),
        saved=saved_plan(str(path), document),
    )


def _degree(value: object) -> int | None:
    return None if value is None else int(str(value))


def _wrong(path: Path, what: str) -> InputError:
    return InputError(what, where=str(path), fix="write it with `l40s-deploy plan --out FILE`")
