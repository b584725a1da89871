"""A certificate's verdict, its exit code, and digests that a change breaks."""

from __future__ import annotations

import pytest

from orchestrator.model.errors import Exit
from orchestrator.support.certificate import STEPS, CertifiedStep, StepVerdict, certificate, digest, exit_code, overall

OK, DIFFERS, NOT_RUN, WRONG, FAILED, INTERRUPTED = StepVerdict


def steps(*verdicts: StepVerdict) -> list[CertifiedStep]:
    return [CertifiedStep(name=name, verdict=one, seconds=1.0) for name, one in zip(STEPS, verdicts, strict=False)]


@pytest.mark.parametrize(
    ("verdicts", "whole", "code"),
    [
        ((OK,) * 7, OK, Exit.DONE),
        ((OK,) * 6, NOT_RUN, Exit.FINDINGS),
        ((DIFFERS, NOT_RUN, *(OK,) * 5), NOT_RUN, Exit.FINDINGS),
        ((DIFFERS, *(OK,) * 6), DIFFERS, Exit.DIFFERS),
        ((OK, NOT_RUN, WRONG), WRONG, Exit.DIFFERS),
        ((OK, OK, OK, FAILED), FAILED, Exit.DIFFERS),
        ((INTERRUPTED,), INTERRUPTED, Exit.DIFFERS),
    ],
)
def test_the_gravest_step_decides(verdicts: tuple[StepVerdict, ...], whole: StepVerdict, code: int) -> None:
    found = steps(*verdicts)
    assert (overall(found), exit_code(whole)) == (whole, code)
    document = certificate({"stand_in": None}, found)
    assert document["complete"] is (len(verdicts) == len(STEPS)) and document["verdict"] == whole.value


def test_a_digest_is_of_all_that_is_said() -> None:
    document = certificate({"model": "a"}, steps(OK))
    rest = {key: value for key, value in document.items() if key != "digest"}
    assert document["digest"] == digest(rest) != digest({**rest, "model": "b"})
    assert digest({"a": 1, "b": (1, None)}) == digest({"b": [1, None], "a": 1})
