"""What a lab is asked for, as typed and in a scenario: wrong input is one message with code 2, and starts nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.hostile import ODD_YAML

from l40s_lab.life import down as removing
from l40s_lab.life.down import down
from l40s_lab.life.request import Request
from l40s_lab.life.status import status
from l40s_lab.node import inside
from l40s_lab.rehearsal import scenario
from orchestrator.cli.main import main
from orchestrator.protocol.errors import InputError


@pytest.fixture(autouse=True)
def own_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "labs"
    monkeypatch.setenv("L40S_LAB_ROOT", str(root))
    return root


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "--wiring", "left"], "no wiring 'left'"),
        (["up", "--name", "../lab"], "found '../lab'"),
        (["up", "--nodes", "0"], "found 0, wanted 1 to 240"),
        (["up", "--nodes", "5", "--gangs", "2"], "5 nodes cannot be divided into 2 equal gangs"),
        (["up", "--gangs", "0"], "--gangs: found 0, wanted 1 or more"),
        (["status"], "no lab named 'lab'"),
        (["status", "--name", "A"], "found 'A'"),
        (["down", "--name", "A"], "found 'A'"),
    ],
)
def test_wrong_input_is_told_and_nothing_is_started(
    words: list[str], said: str, own_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and "fix:" in err
    assert not own_root.exists()


def test_under_json_an_error_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "status", "--json"]) == 2
    assert set(json.loads(capsys.readouterr().err.splitlines()[-1])["error"]) == {"what", "where", "fix"}


def test_down_of_nothing_is_done(own_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "down"]) == 0
    assert "there is no lab 'lab'" in capsys.readouterr().err
    assert not own_root.exists()


def test_what_follows_exec_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's own attributes of a command line do not replace it."""
    ran: list[object] = []

    def execute(*given: object) -> int:
        ran.extend(given)
        return 0

    monkeypatch.setattr(inside, "execute", execute)
    assert main(["lab", "exec", "node0", "--name", "x", "--", "python3", "-c", "print(1)"]) == 0
    assert ran == ["x", "node0", ["python3", "-c", "print(1)"]]


@pytest.mark.parametrize(
    ("request_", "where"),
    [
        (Request(nodes=241), "--nodes"),
        (Request(nodes=4, gangs=0), "--gangs"),
        (Request(engine="sglang", ranks=0), "--ranks"),
        (Request(engine="sglang", ranks=9), "--ranks"),
        (Request(ranks=8), "--ranks"),
        (Request(engine="none", level=1), "--level"),
        (Request(engine="none", deaths="cuda"), "--deaths"),
        (Request(like="mine.yml", nodes=4), "--like"),
        (Request(like="mine.yml", gangs=1), "--like"),
        (Request(recorded="snapshots", wiring="wrong"), "--from"),
        (Request(stack="sglang-0.5.23"), "--stack"),
        (Request(gpus="host"), "--gpus host"),
        (Request(gpus="host", stack="sglang-0.5.23", wiring="wrong"), "--gpus host"),
        (Request(gpus="host", stack="sglang-0.5.23", recorded="snapshots"), "--gpus host"),
        (Request(gpus="host", stack="sglang-0.5.23", engine="sglang"), "--gpus host"),
        (Request(gpus="host", stack="sglang-0.5.23", level=2), "--level"),
    ],
)
def test_what_cannot_be_is_refused(request_: Request, where: str) -> None:
    with pytest.raises(InputError) as refused:
        request_.check()
    assert refused.value.where == where


@pytest.mark.parametrize(
    ("name", "fix"), [("opA", "opa"), ("My Lab_2", "my-lab-2"), ("x" * 25, "x" * 24), ("../", "lab"), ("", "lab")]
)
def test_a_name_that_would_do_is_offered(name: str, fix: str) -> None:
    with pytest.raises(InputError) as refused:
        Request(name=name).check()
    assert (refused.value.where, refused.value.fix) == ("--name", f"--name {fix}")


def test_those_that_ship_can_be_read() -> None:
    assert set(scenario.names()) == {"three-weeks", "dead-rank", "rolling-restart"}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (None, "wanted a mapping"),
        ({"summary": "x"}, "wanted steps"),
        ({"summary": "x", "steps": [{}]}, "steps[0]"),
        ({"summary": "x", "steps": [{"run": "status", "exits": 0}]}, "found 'exits'"),
        ({"summary": "x", "steps": [{"run": "status", "exit": True}]}, "wanted int"),
        ({"summary": "x", "steps": [{"run": "say 'it"}]}, "No closing quotation"),
        ({"summary": "x", "steps": [{"break": "node2"}]}, "at least 2 words"),
        ({"summary": "x", "steps": [{"break": "node2 gpu-lots 1"}]}, "did you mean gpu-lost"),
        ({"summary": "x", "steps": [{"until": "failed", "cause": {"who": 1}}]}, "found 'who'"),
        ({"summary": "x", "lab": {"nodes": "four"}, "steps": [{"say": "x"}]}, "lab.nodes"),
        ({"summary": "x", "steps": [{"lab": {"wires": "right"}}]}, "found 'wires'"),
    ],
)
def test_mistakes_are_told_with_their_place(document: object, said: str) -> None:
    with pytest.raises(InputError) as told:
        scenario.parse(document, "mine", "mine.yml")
    assert said in str(told.value)


def test_a_file_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="dead-rank"):
        scenario.load(str(tmp_path / "none.yml"))


@pytest.mark.parametrize("text", ODD_YAML)
def test_yaml_of_any_shape_is_refused_without_a_defect(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.yml").write_text(text)
    with pytest.raises(InputError):
        scenario.load(str(tmp_path / "odd.yml"))


OTHER_FORMATS = (
    '{"shows": [], "gangs": ["gang0"], "nodes": ["node0"], "recorded": []}',
    '{"shows": [{"from": "/a"}], "gangs": {}, "nodes": [], "recorded": []}',
    '{"shows": [], "gangs": {}, "nodes": [], "recorded": [], "colour": "red"}',
    '["no", "mapping"]',
    "no JSON",
)


@pytest.mark.parametrize("text", OTHER_FORMATS)
def test_a_lab_of_another_version_is_named_and_taken_down(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("L40S_LAB_ROOT", str(tmp_path / "labs"))
    place = tmp_path / "labs" / "old"
    place.mkdir(parents=True)
    (place / "blueprint.json").write_text(text)
    with pytest.raises(InputError, match="another version") as refused:
        status("old")
    assert refused.value.fix == "remove it with `l40s-deploy lab down --name old`"
    assert down("old")
    assert not place.exists()


def test_a_lab_of_the_same_name_in_another_directory_keeps_its_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(removing, "_remove_links", asked.append)
    for root in ("one", "two"):
        monkeypatch.setenv("L40S_LAB_ROOT", str(tmp_path / root))
        (tmp_path / root / "lab").mkdir(parents=True)
        assert down("lab")
    assert len({*asked}) == 2
