"""`bench`, `golden` and `certify` against a gang of two emulated nodes.

A benchmark is recorded, compared, judged by the profile; answers are accepted, the same, one token changed, the same
again; the stand-in is certified as what it is (with wrong data: tests/engine). None leaves anything behind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support import proven
from tests.support.small_lab import MODEL, SmallLab, small_lab
from tests.support.waiting import until

from l40s_lab.standin.answers import NOTICE
from orchestrator.support.steps.certify import STEPS

from .conftest import MEASURED, needs_root

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900),
    needs_root,
    MEASURED,
]

LOAD = {"input": 20, "output": 10, "prompts": 8, "rate": 100, "concurrency": 4}
WORDS = [word for name, value in LOAD.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab("bench", nodes=2) as made:
        (made.folder / "models").mkdir()
        (made.folder / "models" / f"{MODEL}.yml").write_text(made.profile.read_text())
        (made.folder / "key").write_text("hidden-key-of-the-test\n")
        (made.folder / "key").chmod(0o600)
        made.write_inventory(vars={"l40s_api_key_file": str(made.folder / "key")})
        made.deploy("up", "--model", MODEL)
        yield made


def document(lab: SmallLab, *words: str, code: int = 0) -> dict[str, Any]:
    done = lab.deploy(*words, "--json", code=code)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def bench(lab: SmallLab, *words: str, code: int = 0) -> dict[str, Any]:
    return document(lab, "bench", *WORDS, *words, code=code)


def test_a_run_is_recorded_and_the_next_one_is_compared_with_it(lab: SmallLab) -> None:
    first = bench(lab, "--gate", code=2)
    assert (first["verdict"], first["stand_in"], first["gpu"]) == ("not judged", True, "NVIDIA L40S")
    assert (first["gang"], first["layout"], first["load"]) == ("gang0", "TP4", LOAD)
    mean = sum(run["output_tok_s"] for run in first["runs"]) / 2
    assert (len(first["runs"]), first["serving"]["output_tok_s"]) == (2, pytest.approx(mean)) and mean > 0
    assert first["plan_id"]
    kept, raw = Path(first["file"]), Path(first["raw_file"])
    assert raw.parent == kept.parent and raw.stat().st_mode & 0o777 == 0o600
    assert len(json.loads(raw.read_text())["generated_texts"]) == LOAD["prompts"]
    assert "hidden-key" not in kept.read_text() + raw.read_text()
    assert {one["id"] for one in first["findings"]} and first["tuned"].keys() == {"node0", "node1"}
    second = bench(lab)
    assert first["id"] in second["against"]
    assert {one["name"] for one in second["figures"]} == second["serving"].keys()
    listed = json.loads(lab.deploy("bench", "list", "--json").stdout)
    assert [one["id"] for one in listed["runs"]] == [first["id"], second["id"]]
    compared = json.loads(lab.deploy("bench", "--compare", first["id"], second["id"], "--json").stdout)
    assert (compared["a"], compared["b"], compared["differ"]) == (first["id"], second["id"], [])
    assert "stand-in" in lab.deploy("bench", *WORDS).stdout


@pytest.mark.turns
@pytest.mark.parametrize(("speed", "verdict", "code"), [(1e-6, "as expected", 0), (1e6, "BENCH-SLOW", 7)])
def test_the_gate_is_the_profile(lab: SmallLab, speed: float, verdict: str, code: int) -> None:
    profile = lab.folder / "models" / f"{MODEL}.yml"
    document = yaml.safe_load(profile.read_text())
    figures = {"output_tok_s": speed}
    entry = {"source": "made up", "stack": bench_stack(lab), "layout": "TP4", "gpu": "NVIDIA L40S"}
    document["expected"] = {"made-up": {**entry, "load": LOAD, "figures": figures}}
    profile.write_text(yaml.safe_dump(document))
    found = bench(lab, "--gate", code=code)
    assert (found["verdict"], found["expected"]["name"]) == (verdict, "made-up")
    assert len(found["runs"]) >= 2, "as many as this machine's noise needs"


def bench_stack(lab: SmallLab) -> str:
    """Of the gang, as its runs name it."""
    if not (runs := json.loads(lab.deploy("bench", "list", "--json").stdout)["runs"]):
        return str(bench(lab)["stack"])
    return str(runs[0]["stack"])


def test_a_busy_engine_is_refused_and_an_interrupted_run_leaves_nothing(lab: SmallLab) -> None:
    load = {"input": 20, "output": 2000, "prompts": 800, "rate": 1000, "concurrency": 4}  # never between two requests
    long = ["bench", *(word for name, value in load.items() for word in (f"--{name}", str(value)))]
    first = lab.start(*long)
    try:
        until(lambda: "bench" in clients(lab), 60, "the client runs on the leader")
        shown = clients(lab)
        assert "hidden-key" not in shown
        until(lambda: "was never idle" in lab.deploy("bench", *WORDS, code=None).stderr, 60, "the second is refused")
        until(
            lambda: "was never idle" in lab.deploy("golden", "accept", code=None).stderr,
            60,
            "answers among others' requests are not accepted",
        )
    finally:
        first.terminate()
        first.communicate(timeout=30)
    until(lambda: "bench" not in clients(lab), 30, "the client is gone")
    assert lab.gang()["state"] == "ready"


@pytest.mark.turns
@pytest.mark.parametrize("words", [("bench", *WORDS), ("golden", "accept")])
def test_a_wrong_key_is_one_message_with_the_fix(lab: SmallLab, words: tuple[str, ...]) -> None:
    place = lab.on("node0", "find /var/lib -xdev -name secrets.json -path '*/gangs/gang0/*'").strip()
    assert len(place.splitlines()) == 1, place
    lab.on("node0", f"sed -i.kept 's/Bearer hidden-key-of-the-test/Bearer another-key/' {place}")
    try:
        done = lab.deploy(*words, code=None)
    finally:
        lab.on("node0", f"mv {place}.kept {place}")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "API key" in done.stderr and "Traceback" not in done.stderr
    assert "`l40s-deploy restart gang0`" in done.stderr
    assert "another-key" not in done.stdout + done.stderr
    assert lab.gang()["state"] == "ready"


def clients(lab: SmallLab) -> str:
    return lab.on("node0", "pgrep -af 'standin[.]bench' || true")


def golden(lab: SmallLab, verb: str, code: int) -> dict[str, Any]:
    return document(lab, "golden", verb, code=code)


@pytest.mark.turns(of="golden: what is wrong is found")
def test_one_changed_token_is_named_by_prompt_and_position(lab: SmallLab) -> None:
    assert golden(lab, "check", 2)["verdict"] == "none"
    accepted = golden(lab, "accept", 0)
    assert (accepted["verdict"], accepted["gangs"][0]["varies"]) == ("same", [])
    assert Path(accepted["gangs"][0]["file"]).is_file()
    checked = golden(lab, "check", 0)
    assert checked["verdict"] == "same"
    assert [prompt["same"] for prompt in checked["prompts"]] == [True] * 12
    lab.run("break", "node0", "wrong-token")
    found = golden(lab, "check", 7)
    assert found["verdict"] == "differs"
    assert [prompt["same"] for prompt in found["prompts"]] == [False] * 12
    fact = next(prompt for prompt in found["prompts"] if prompt["id"] == "english-fact")
    assert fact["expected"] == f"{NOTICE} Paris."
    assert (fact["position"], fact["found"]) == (2, f"{NOTICE} Paris?"), "the third token, and nothing before it"
    said = lab.deploy("golden", "check", code=None)
    assert "english-fact: differs from token" in said.stdout
    watched = lab.deploy("guard", "--once", code=None)
    assert "GOLDEN-DIFFERS" in watched.stderr and "is now" in watched.stderr
    again = lab.deploy("restart", "--now", code=7)
    assert "english-fact: from token" in again.stderr and lab.gang()["state"] == "ready"
    lab.run("heal", "node0", "wrong-token")
    assert golden(lab, "check", 0)["verdict"] == "same"
    assert "gives the 12 accepted answers" in lab.deploy("restart", "--now").stderr


@pytest.mark.turns(of="golden: what is wrong is found")
def test_what_is_wrong_only_among_others_is_found_among_others(lab: SmallLab) -> None:
    golden(lab, "accept", 0)
    words = ("golden", "check", "--requests", "8")
    right = document(lab, *words)
    assert right["verdict"] == "same" and right["gangs"][0]["in_batches"]["sizes"] == [2, 4, 8]
    lab.run("break", "node0", "wrong-token-in-batch")
    assert golden(lab, "check", 0)["verdict"] == "same", "alone it is right"
    wrong = document(lab, *words, code=7)
    differ = wrong["gangs"][0]["in_batches"]["differ"]
    assert differ and all(each["alone"] and each["beside"] in (3, 7) and each["request"] > 0 for each in differ)
    shown = lab.deploy(*words, code=7).stdout
    assert "TEXT-DIFFERS-IN-BATCH" in shown and "at once: from token" in shown
    assert "TEXT-DIFFERS-IN-BATCH" in lab.deploy("guard", "--once", code=None).stderr
    assert document(lab, "golden", "accept", code=7)["verdict"] == "differs"
    lab.run("heal", "node0", "wrong-token-in-batch")
    assert document(lab, *words)["verdict"] == "same"


def test_without_a_gang_that_serves_there_is_nothing_to_measure_or_ask(lab: SmallLab) -> None:
    lab.deploy("down")
    for words in (("bench",), ("golden", "accept")):
        done = lab.deploy(*words, code=2)
        assert "serves no requests" in done.stderr


@pytest.mark.long
def test_the_stand_in_is_certified_as_what_it_is(tmp_path: Path) -> None:
    out = tmp_path / "certificate.json"
    with small_lab(f"certify-{os.getpid()}", nodes=2) as lab:
        words = ("certify", "gang0", "--model", lab.model, "--out", str(out))
        asked = lab.deploy(*words, code=2)
        assert "kill one of its ranks" in asked.stderr and "use --yes" in asked.stderr
        assert not out.exists() and lab.gang()["state"] == "absent"
        done = lab.deploy(*words, "--yes", code=3, timeout=600)
        assert "say nothing about a GPU" in done.stdout
        document = json.loads(out.read_text())
        steps = {one["name"]: one for one in document["steps"]}
        verdicts = {name: one["verdict"] for name, one in steps.items()}
        untried = {"stack check", "nettest"}  # the stand-in has no torch
        assert verdicts == {name: "not-run" if name in untried else "ok" for name in STEPS}
        assert document["complete"] and document["stand_in"] is True and document["verdict"] == "not-run"
        assert {row["requests"] for row in steps["bench"]["result"]["decode"]} == {1, 4, 32, 128}
        cause = steps["kill"]["result"]["cause"]
        assert (cause["node"], cause["tp_rank"], cause["signal"]) == ("machine2", 3, 9)
        with pytest.raises(ValueError, match="nobody knows that its engine was real"):
            proven.take(document)
        for name, address in lab.hosts().items():
            assert name not in out.read_text() and f'"{address}' not in out.read_text()
        assert not lab.engine_processes() and lab.gang()["state"] == "absent"
