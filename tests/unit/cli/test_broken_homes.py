"""Every verb on machines that lack something: a sentence or the answer, never a traceback."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.broken_homes import DRIPPING, KINDS, RIGHTS_COUNT, command_lines
from tests.support.dripping_node import would_take_s
from tests.support.turns import by_turns, sampled
from tests.support.waiting import slack

from orchestrator import model
from orchestrator.cli.main import VERBS, every_parser, verbs_of
from orchestrator.model.lacks import lack_of
from orchestrator.protocol.errors import Exit
from orchestrator.protocol.lacks import OF

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[3]
BY_TURNS = ("our config folder unreadable", "unreadable", "state is odd", "no threads")
"""One of them is played in a run; `make long` plays all, and the others."""
LIMIT_S = 90.0
"""Of all that a verb asks a node whose answers never end."""
LONGER_S: dict[str, tuple[float, str]] = {
    "down": (300.0, "the node's part is told to end, and has --timeout for that"),
    "checkpoint push": (150.0, "what is there is read before"),
    "checkpoint verify": (400.0, "files are read, which takes minutes"),
    "support-bundle": (200.0, "a node has 100 s in all its parts together, and what it is asked last its own time"),
    "guard": (float("inf"), "it looks again and again"),
    "web": (float("inf"), "it looks again and again"),
    "exporter": (float("inf"), "it looks again and again"),
}
LIMITS_PAGE = Path(__file__).with_name("limits.md")
_HEAD = """# How long a node may keep a verb

Written from the parser of the command line. Each verb is played beside a node whose answers never end (they drip); the
sum of all that it asks that node stays below this, one question after the other.

| verb | at most, in s | why longer |
|---|---|---|
"""
MOST_ASK = 15
"""So many of all verbs reach that node at least, on a busy machine too; of a share of them, half as many."""
SHARE = 3
"""A run of the tests plays one verb in so many; `make long` all."""


def played(kind: str) -> list[list[str]]:
    """Command lines, which the commit chooses."""
    lines = list(command_lines())
    return sampled(f"verbs of {kind}", lines, len(lines) // SHARE)


def as_anybody(*words: str) -> list[str]:
    """For root too, rights count."""
    if os.geteuid() != 0:
        return [*words]
    if shutil.which(RIGHTS_COUNT[0]) is None:
        pytest.skip("setpriv is not installed")
    return [*RIGHTS_COUNT, *words]


def in_words(output: str) -> str:
    """Without what Python says of an object that it failed to make."""
    return output.split("Exception ignored in:", maxsplit=1)[0]


@pytest.mark.parametrize(
    "kind",
    [
        *by_turns(BY_TURNS),
        *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS if kind not in BY_TURNS),
    ],
)
def test_every_verb_has_words_for_it(kind: str, tmp_path: Path) -> None:
    lines = played(kind)
    command = as_anybody(sys.executable, "-m", "tests.support.broken_homes", str(tmp_path), kind, json.dumps(lines))
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120 * slack(), check=False)
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", str(tmp_path)], check=False, timeout=20, capture_output=True)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["verb"] for one in told} == {" ".join(line) for line in lines}, done.stderr
    odd = [one for one in told if "Traceback" in in_words(one["output"]) or one["code"] not in {*Exit} - {Exit.DEFECT}]
    assert not odd, odd


def test_every_verb_ends_within_its_limit_beside_a_node_that_drips(tmp_path: Path) -> None:
    """Counted, not waited for: all that it asks that node, one question after the other."""
    lines = played(DRIPPING)
    command = [sys.executable, "-m", "tests.support.broken_homes", str(tmp_path), DRIPPING, json.dumps(lines)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120 * slack(), check=False)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["verb"] for one in told} == {" ".join(line) for line in lines}, done.stderr
    odd = [one for one in told if "Traceback" in one["output"] or one["code"] == Exit.DEFECT]
    assert not odd, odd
    would_take = {one["verb"]: would_take_s(one["output"]) for one in told}
    least = MOST_ASK * len(lines) // (2 * len(list(command_lines())))
    assert sum(seconds > 0 for seconds in would_take.values()) >= least
    late = {verb: seconds for verb, seconds in would_take.items() if seconds > limit_s(verb)}
    assert not late, late


def test_the_page_has_every_verb() -> None:
    """Written by UPDATE_GOLDEN=1, from the parser."""
    if os.environ.get("UPDATE_GOLDEN"):
        LIMITS_PAGE.write_text(limits_page())
    assert LIMITS_PAGE.read_text() == limits_page()


def limits_page() -> str:
    """Each verb's limit, and why it is longer than most."""
    rows = [f"| `{verb}` | {_in_s(limit_s(verb))} | {_reason(verb)} |\n" for verb in map(_name, command_lines())]
    return _HEAD + "".join(rows)


def _name(line: list[str]) -> str:
    """Without the values that it must be given, and without options."""
    verbs: list[str] = []
    below = verbs_of(every_parser())
    for word in line:
        if word not in below:
            break
        verbs.append(word)
        below = verbs_of(below[word])
    return " ".join(verbs)


def _in_s(seconds: float) -> str:
    return "until it is stopped" if seconds == float("inf") else f"{seconds:.0f}"


def _reason(verb: str) -> str:
    return next((words for start, (_, words) in LONGER_S.items() if verb.startswith(start)), "")


def limit_s(verb: str) -> float:
    """By how it begins."""
    return next((seconds for start, (seconds, _) in LONGER_S.items() if verb.startswith(start)), LIMIT_S)


def test_each_verb_of_ours_is_played() -> None:
    assert {line[0] for line in command_lines()} >= VERBS.keys()


@pytest.mark.parametrize("bars", ["folder", "file"])
def test_logs_that_may_not_be_read_are_told(bars: str, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "node0.log").write_text("x\n")
    barred = folder if bars == "folder" else folder / "node0.log"
    barred.chmod(0)
    command = as_anybody(sys.executable, "-m", "orchestrator.cli.main", "why", "--log", str(folder))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60 * slack(), check=False)
    barred.chmod(0o700)
    assert done.returncode == Exit.INPUT and "Permission denied" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("number", OF)
def test_a_lack_names_the_file_and_a_command(number: int) -> None:
    lack = lack_of(OSError(number, os.strerror(number), "/x/y"))
    assert lack is not None and lack.where == "/x/y" and lack.fix and lack.what[0].islower()


def test_what_says_nothing_of_this_machine_is_a_defect() -> None:
    assert lack_of(RuntimeError("odd")) is None and lack_of(ValueError()) is None
    assert lack_of(OSError("odd")) is None and lack_of(OSError(errno.EACCES, "odd")) is None
    assert lack_of(RuntimeError("can't start new thread")) and lack_of(MemoryError())


@pytest.mark.parametrize("number", OF)
def test_a_path_is_quoted_into_its_command(number: int) -> None:
    lack = lack_of(OSError(number, os.strerror(number), "/x y;reboot/$(z)"))
    assert lack is not None and lack.where == "/x y;reboot/$(z)"
    assert ("ls -ld" in lack.fix or "df " in lack.fix) == ("'/x y;reboot" in lack.fix)


def test_what_may_be_our_defect_names_the_line_of_code() -> None:
    """A file of ours that is not there is one; another file's error says where it was asked for."""
    assert lack_of(FileNotFoundError(errno.ENOENT, "No such file", f"{Path(model.__file__).parent}/x.yml")) is None
    code = compile("\nopen('/no/such/file')", f"{Path(model.__file__).parents[1]}/records/odd.py", "exec")
    with pytest.raises(FileNotFoundError) as raised:
        exec(code)
    lack = lack_of(raised.value)
    assert lack is not None and re.search(r"report this: records/odd\.py:2$", lack.fix)


def test_a_full_disk_is_looked_at_by_a_folder_that_exists() -> None:
    lack = lack_of(OSError(errno.ENOSPC, "No space left on device", "/var/lib/x/run.json.new"))
    assert lack is not None and lack.fix.endswith("df -h /var/lib/x; df -i /var/lib/x")
