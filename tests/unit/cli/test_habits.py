"""Completion scripts, the operator's own defaults, and quiet output."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.terminal import Terminal

from orchestrator import __version__
from orchestrator.cli.main import VERBS, main
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


def test_the_config_file_names_inventory_and_options(
    asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_config_file_that_is_named_must_be_there(
    asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
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
    def coloured(**env: str) -> bool:
        def verb() -> int:
            for name, value in env.items():
                monkeypatch.setenv(name, value)
            return main(["lab", "faults"])

        return re.search(rb"\x1b\[[0-9;]*3[0-7]", Terminal().run(verb, monkeypatch).raw) is not None

    assert not coloured(NO_COLOR="1")


def test_bash_completes_verbs_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "l40s-deploy.bash"
    script.write_text(capsys.readouterr().out)

    def completed(*words: str) -> set[str]:
        shell = (
            f"source {script}; f=$(complete -p l40s-deploy | grep -o -- '-F [^ ]*' | cut -c4-);"
            f'COMP_WORDS=({" ".join(words)} ""); COMP_CWORD={len(words)}; [ "{words[-1]}" = -- ] && '
            f'COMP_WORDS=({" ".join(words)}) && COMP_CWORD={len(words) - 1}; $f; printf "%s\\n" "${{COMPREPLY[@]}}"'
        )
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True, timeout=20)
        return set(done.stdout.split())

    assert set(VERBS) <= completed("l40s-deploy")
    assert "push" in completed("l40s-deploy", "checkpoint")
    assert {"--watch", "--wide"} <= completed("l40s-deploy", "status", "--")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("status", {"gang0"}),
        ("logs --node", {"l40s-0", "l40s-3"}),
        ("plan --model", {"GLM-4.6-FP8"}),
        ("up", {"gang0", "GLM-4.6-FP8"}),
    ],
)
def test_bash_completes_gangs_nodes_and_models(
    words: str, wanted: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "l40s-deploy.bash"
    script.write_text(capsys.readouterr().out)
    monkeypatch.setenv("L40S_INVENTORY", str(REFERENCE))
    ours = f'l40s-deploy() {{ {sys.executable} -m orchestrator.cli.main "$@"; }}'
    shell = (
        f"{ours}; source {script}; f=$(complete -p l40s-deploy | grep -o -- '-F [^ ]*' | cut -c4-);"
        f'COMP_WORDS=(l40s-deploy {words} ""); COMP_CWORD={len(words.split()) + 1}; $f;'
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True, timeout=120)
    assert wanted <= set(done.stdout.split()), done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_with_every_verb(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert (all(verb in out for verb in VERBS) and "--hung-after" in out) or "hung-after" in out


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_verbs_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    script = tmp_path / "l40s-deploy.fish"
    script.write_text(capsys.readouterr().out)

    def completed(line: str) -> set[str]:
        words = ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=20)
        return {offered.partition("\t")[0] for offered in done.stdout.splitlines()}

    assert set(VERBS) <= completed("l40s-deploy ")
    assert {"--watch", "--wide"} <= completed("l40s-deploy status --")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_takes_the_script_as_the_completion_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "zsh"]) == 0
    (tmp_path / "_l40s-deploy").write_text(capsys.readouterr().out)
    shell = (
        f"autoload -Uz compinit; fpath=({tmp_path} $fpath); compinit -u -d {tmp_path}/dump;"
        "zsh -n $fpath[1]/_l40s-deploy && print ${_comps[l40s-deploy]}"
    )
    done = subprocess.run(["zsh", "-f", "-c", shell], capture_output=True, text=True, check=False, timeout=20)
    assert done.stdout.strip() == "_l40s-deploy", done.stderr


def test_without_a_cluster_the_own_version_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("L40S_LAB_ROOT", str(tmp_path))
    monkeypatch.delenv("L40S_INVENTORY", raising=False)
    assert main(["version"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"l40s-deploy {__version__}") and "no node was asked" in err
