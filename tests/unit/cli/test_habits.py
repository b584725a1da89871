"""Completion scripts, the operator's own defaults, and quiet output."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.terminal import Terminal

from orchestrator import __version__
from orchestrator.cli.main import VERBS, main
from orchestrator.cli.screen import fitted
from orchestrator.cli.tables import cell, plain_table
from orchestrator.gang.overview import Overview

REFERENCE = Path(__file__).resolve().parents[3] / "inventory" / "reference.yml"
INVENTORY = """
all:
  children:
    gangs:
      children:
        g: {hosts: {a: {ansible_host: 192.0.2.1}}}
        h: {hosts: {b: {ansible_host: 192.0.2.2}}}
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """A home with an inventory in its config file; yields the gangs that `status` was asked for."""
    (tmp_path / "hosts.yml").write_text(INVENTORY)
    monkeypatch.setenv("L40S_CONFIG", str(tmp_path / "config.yml"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("L40S_INVENTORY", raising=False)
    gangs: list[tuple[str, ...]] = []

    def overview(_: object, named: tuple[str, ...] = ()) -> Overview:
        gangs.append(named)
        return Overview(views=())

    monkeypatch.setattr("orchestrator.gang.commands.status.overview", overview)
    return gangs


def config(text: str) -> None:
    Path("config.yml").write_text(text)


def test_the_file_names_inventory_and_options(asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    config("inventory: hosts.yml\noptions:\n  status: {gang: [g], wide: false}\n")
    assert main(["status"]) == 0
    assert "inventory in " in capsys.readouterr().err
    assert main(["status", "h"]) == 0  # what is typed replaces it
    assert main(["--json", "status", "--wide", "h"]) == 0
    assert asked == [("g",), ("h",), ("h",)]


@pytest.mark.parametrize(
    ("text", "where", "fix"),
    [
        ("inventroy: hosts.yml\n", "config.yml: inventroy", "did you mean inventory?"),
        ("options: {status: {gnag: g}}\n", "config.yml: options.status.gnag", "did you mean gang?"),
        ("options: {status: [gang]}\n", "config.yml: options.status", "correct this file"),
        ("quiet: [\n", "config.yml", ""),
    ],
)
def test_a_wrong_config_file_is_one_message(
    asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str], text: str, where: str, fix: str
) -> None:
    config(text)
    assert main(["status", "-i", "hosts.yml"]) == 2
    err = capsys.readouterr().err
    assert where in err and fix in err and "Traceback" not in err


def test_a_named_config_file_must_be_there(asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "-i", "hosts.yml"]) == 2
    assert "$L40S_CONFIG" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("-q", "status"), ("status", "--quiet"), ("status",)])
def test_quiet_says_results_and_errors_only(
    asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    config("inventory: hosts.yml\nquiet: true\n" if words == ("status",) else "inventory: hosts.yml\n")
    assert main(words) == 0
    assert capsys.readouterr().err == ""
    assert main([*words, "-i", "/none.yml"]) == 2
    assert "/none.yml" in capsys.readouterr().err


def test_no_color_takes_the_colours_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def verb() -> int:
        monkeypatch.setenv("NO_COLOR", "1")
        return main(["lab", "faults"])

    assert not re.search(rb"\x1b\[[0-9;]*3[0-7]", Terminal().run(verb, monkeypatch).raw)


def test_rows_of_a_table_that_is_too_wide_are_lines() -> None:
    table = plain_table("name", "value")
    for name in ("one", "two"):
        table.add_row(cell(name), cell("v" * 15))
    assert list(map(str, fitted(table, 20))) == [f"name  value\none  {'v' * 15}\ntwo  {'v' * 15}"]


def test_rows_that_do_not_fit_keep_their_indent_and_a_long_word_its_length() -> None:
    table = plain_table("setting", "value", "source", left=("value", "source"))
    table.add_row(cell("PATH"), cell("/opt/" + "v" * 30), cell("of the stack first, then the system's own"))
    lines = str(fitted(table, 30)[0]).split("\n")
    assert lines == [
        "setting  value  source",
        "PATH",
        f"      /opt/{'v' * 30}",
        "      of the stack first, then",
        "      the system's own",
    ]


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Path]:
    """A shell's completion script, as a file."""

    def write(shell: str) -> Path:
        assert main(["completion", shell]) == 0
        path = tmp_path / "_l40s-deploy"
        path.write_text(capsys.readouterr().out)
        return path

    return write


def told(*words: str) -> list[str]:
    """The lines that a shell prints."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("", {*VERBS}),
        ("checkpoint ", {"push"}),
        ("status --", {"--watch", "--wide"}),
        ("status ", {"gang0"}),
        ("logs --node ", {"l40s-0", "l40s-3"}),
        ("plan --model ", {"GLM-4.6-FP8"}),
        ("up ", {"gang0", "GLM-4.6-FP8"}),
    ],
)
def test_bash_completes_verbs_options_gangs_nodes_and_models(
    typed: str, wanted: set[str], script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("L40S_INVENTORY", str(REFERENCE))
    words = typed if typed.endswith("--") else f'{typed}""'
    shell = (
        f'l40s-deploy() {{ {sys.executable} -m orchestrator.cli.main "$@"; }}; source {script("bash")};'
        f"COMP_WORDS=(l40s-deploy {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1));"
        "$(complete -p l40s-deploy | grep -o -- '-F [^ ]*' | cut -c4-); printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    assert wanted <= {*told("bash", "-c", shell)}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_with_every_verb(shell: str, script: Callable[[str], Path]) -> None:
    text = script(shell).read_text()
    assert all(verb in text for verb in VERBS) and "hung-after" in text


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_verbs_and_options(script: Callable[[str], Path]) -> None:
    path = script("fish")
    for line, wanted in (("l40s-deploy ", {*VERBS}), ("l40s-deploy status --", {"--watch", "--wide"})):
        offered = told("fish", "--no-config", "-c", f"source {path}; complete -C '{line}'")
        assert wanted <= {one.partition("\t")[0] for one in offered}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_the_script_as_the_completion_of_the_command(script: Callable[[str], Path]) -> None:
    folder = script("zsh").parent
    shell = (
        f"autoload -Uz compinit; fpath=({folder} $fpath); compinit -u -d {folder}/dump;"
        "zsh -n $fpath[1]/_l40s-deploy && print ${_comps[l40s-deploy]}"
    )
    assert told("zsh", "-f", "-c", shell) == ["_l40s-deploy"]


def test_without_a_cluster_the_own_version_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("L40S_LAB_ROOT", str(tmp_path))
    monkeypatch.delenv("L40S_INVENTORY", raising=False)
    assert main(["version"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"l40s-deploy {__version__}") and "no node was asked" in err
