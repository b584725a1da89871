"""What an interrupted command had not reached: what goes on by itself, and what is left to its own command."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.gang.operations import GangOperation, OperationKind
from orchestrator.gang.steps import resume
from orchestrator.gang.steps.restart import ROLLING, RestartRequest

KEPT = {"timeout_s": 7.0, "of a later release": 1, "command": "no", "verb": "no"}


@pytest.mark.parametrize(
    ("what", "options", "goes_on"),
    [
        (OperationKind.ROLLING, KEPT, True),
        (OperationKind.ROLLING, {"without_router": True}, False),
        (OperationKind.RESTART, {}, False),
        (OperationKind.MAINTENANCE, {}, False),
        (OperationKind.CHANGE, {}, False),
    ],
)
def test_only_what_others_serve_through_goes_on_by_itself(
    monkeypatch: pytest.MonkeyPatch, what: OperationKind, options: dict[str, Any], goes_on: bool
) -> None:
    asked: list[RestartRequest] = []

    def restart(_: object, request: RestartRequest, __: object) -> Any:
        asked.append(request)
        return SimpleNamespace(views=("a", "b"))

    monkeypatch.setattr(resume, "restart", restart)
    left = [GangOperation(gang=gang, what=what, command="l40s-deploy typed", options=options) for gang in ("a", "b")]
    went_on: Any = resume.go_on(SimpleNamespace(), left, "l40s-deploy up", SimpleNamespace())  # type: ignore[arg-type]
    views, words = went_on
    if goes_on:
        wanted = RestartRequest(verb=ROLLING, gangs=("a", "b"), command="l40s-deploy up", timeout_s=7.0)
        assert asked == [wanted] and list(views) == ["a", "b"] and words == ()
    else:
        assert not asked and views == ()
        assert [word.split()[0] for word in words] == ["a", "b"]
        assert all("serves as before" in word and "run `l40s-deploy typed` again" in word for word in words)
