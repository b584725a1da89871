"""Unit files."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.units import EXPORTER, GUARD, install, start_words, unit_text
from orchestrator.protocol.errors import InputError


def test_words_stay_words(tmp_path: Path) -> None:
    text = unit_text(GUARD, Path("/etc/l40s/hosts.yml"), ["--on-failed", 'mail -s "100% $HOME"\nExecStart=/bin/evil'])
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert line.endswith(
        r'"--inventory" "/etc/l40s/hosts.yml" "--on-failed" "mail -s \"100%% $$HOME\"?ExecStart=/bin/evil"'
    )


def test_giving_up_holds_an_order_to_end_is_no_failure_and_relative_paths_keep_their_meaning() -> None:
    lines = unit_text(GUARD, Path("/etc/l40s/hosts.yml"), []).splitlines()
    held = {"Restart=on-failure", "RestartPreventExitStatus=5", "SuccessExitStatus=130"}
    assert held | {f"WorkingDirectory={Path.cwd()}"} <= {*lines}


def test_a_folder_that_takes_no_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can't be written"):
        install(GUARD, tmp_path / "hosts.yml", [], tmp_path / "file")


def test_another_clusters_unit_is_not_replaced_without_a_word(tmp_path: Path) -> None:
    one, other = tmp_path / "one" / "hosts.yml", tmp_path / "two" / "hosts.yml"
    first = install(GUARD, one, [], tmp_path)
    assert install(GUARD, one, ["--limit", "3"], tmp_path) == first
    second = install(GUARD, other, [], tmp_path)
    assert str(one) in first.read_text() and second.name == "l40s-deploy-guard-two.service"
    with pytest.raises(InputError, match="unit of something else"):
        install(GUARD, tmp_path / "three" / "two" / "hosts.yml", [], tmp_path)
    assert str(other) in second.read_text()


def test_a_user_s_unit_needs_lingering_and_a_machine_s_does_not() -> None:
    own = start_words(Path("/home/anna/.config/systemd/user/l40s-deploy-guard.service"))
    assert "  systemctl --user enable --now l40s-deploy-guard.service" in own and "loginctl enable-linger" in own[-1]
    assert max(map(len, own[1:])) <= 80  # a terminal breaks no command
    machine = start_words(Path("/etc/systemd/system/l40s-deploy-guard.service"))
    assert machine[1:] == ("  systemctl daemon-reload", "  systemctl enable --now l40s-deploy-guard.service")


def test_an_exporter_is_started_again_whatever_it_ended_with() -> None:
    text = unit_text(EXPORTER, Path("/etc/l40s/hosts.yml"), ["--listen", ":9941"])
    assert "Restart=on-failure" in text and "RestartPreventExitStatus" not in text
    assert '"exporter" "--inventory" "/etc/l40s/hosts.yml" "--listen" ":9941"' in text
