"""What `restart` says on Ctrl-C."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from orchestrator.cli.screen import Screen
from orchestrator.gang.commands import restart
from orchestrator.gang.steps.restart_sequence import RestartRequest
from orchestrator.model.errors import Exit


@pytest.mark.parametrize("dry_run", [False, True])
def test_ctrl_c_in_a_rehearsal_speaks_of_no_gang_that_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dry_run: bool
) -> None:
    def ctrl_c(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(restart, "rehearse_restart" if dry_run else "restart", ctrl_c)
    nobody: Any = None
    try:
        code = restart.carry_out(nobody, RestartRequest(), Namespace(dry_run=dry_run), Screen(), nobody)
    except KeyboardInterrupt:  # main says that it was interrupted
        code = Exit.INTERRUPTED
    assert code is Exit.INTERRUPTED
    assert ("detached" in capsys.readouterr().err) is not dry_run
