"""Advice is exact where the gang and the model are known, and a sentence where they are not."""

from __future__ import annotations

import pytest
from tests.support.advice import commands, refused

from orchestrator.engines import causes, exceptions
from orchestrator.engines.hang_kinds import KINDS
from orchestrator.model.advice import start_with_a_model
from orchestrator.protocol.advice import exact
from orchestrator.protocol.staging import CausePattern

TABLES = [value for module in (causes, exceptions) for value in vars(module).values() if isinstance(value, tuple)]
FIXES = sorted(
    {kind.fix for kind in KINDS.values()}
    | {cause.fix for table in TABLES for cause in table if isinstance(cause, CausePattern)}
)


@pytest.mark.parametrize("fix", [fix for fix in FIXES if "GANG" in fix or "MODEL" in fix])
def test_every_cause_names_its_gang_and_model(fix: str) -> None:
    known = exact(fix, gang="big one", model="DeepSeek-V3")
    assert "GANG" not in known and "MODEL" not in known
    assert list(commands(known)) and not any(map(refused, commands(known)))
    unknown = exact(fix)
    assert "GANG" not in unknown and "MODEL" not in unknown and unknown != known


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("verify it with `l40s-deploy checkpoint verify MODEL`", "verify it with `checkpoint verify`"),
        ("run `l40s-deploy restart GANG`; see `l40s-deploy logs`", "run `restart`; see `l40s-deploy logs`"),
        ("a GANG in a sentence, `MODEL` too", "a GANG in a sentence, `MODEL` too"),
    ],
)
def test_of_an_unknown_gang_or_model_the_verb_is_left(words: str, shown: str) -> None:
    assert exact(words) == shown


def test_names_are_quoted() -> None:
    assert exact("`l40s-deploy restart GANG`", gang="a; b") == "`l40s-deploy restart 'a; b'`"
    assert "--gang 'a; b', --replace" in start_with_a_model("a; b", "--replace")
