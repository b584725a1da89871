"""`up --gate` with the real engine: another flag passes; a plan that is slower, says a wrong token or does not start
brings the old plan back, which answers as before (tests/engine/planted makes it so)."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from tests.support.load import complete
from tests.support.small_lab import UP_S, SmallLab, small_lab

from l40s_lab.engine.environment import ENGINE_STACK, python_version
from l40s_lab.engine.model import CANARY_PROMPT, CANARY_TEXT, byte_vocabulary
from orchestrator.loading.resources import data_dir

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(6000)]

ON_NODE = "/workspace/planted"
ALWAYS = {"PYTHONPATH": ON_NODE}
LOAD = ("--input", "20", "--output", "20", "--prompts", "8", "--rate", "100", "--concurrency", "4")
FLAG = ("--chunked-prefill-size", "64")
NOISY = ("--gate-within", "50%")
"""A busy machine's speed varies; a planted sleep costs more: the tiny model takes 18 ms a token without it. With 0.3 s
the gate asked for more than seven minutes."""
SAME_SPEED = ("--gate-within", "95%")
"""Where both plans are as fast: what else runs meanwhile may take more than half of a machine from one of them."""
TOKENS = byte_vocabulary()
PLANTED: Mapping[str, tuple[dict[str, str], str]] = {
    "wrong token": ({"PLANTED_WRONG": f"{TOKENS['t']},{TOKENS['v']}"}, "is now"),
    "no start": ({"PLANTED_NO_START": "1"}, "out of memory"),
    "slower": ({"PLANTED_SLEEP_S": "0.1"}, "% slower"),
}
"""What each adds to the environment, and what the verdict says. The canary has no t."""

OTHER = "0.5.22"
"""A release of SGLang whose packages are near enough to those of the lab's own: it runs among them."""


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    """It serves with FLAG, which a gate has let pass, and has a benchmark of that."""
    with small_lab(f"gate-{os.getpid()}", engine="sglang", nodes=1, env=ALWAYS) as made:
        made.put(Path(__file__).parent / "planted", ON_NODE)
        made.serve()
        made.deploy("bench", *LOAD, timeout=900)
        yield made


def gate(lab: SmallLab, code: int, *stack: str) -> tuple[str, str]:
    """What `up --gate` said, and the gang's plan before."""
    before = lab.gang()["plan_id"]
    within = NOISY if code else SAME_SPEED
    words = ("up", "--model", lab.model, *stack, "--gate", *within, "--replace", "--", *FLAG)
    return str(lab.deploy(*words, code=code, timeout=UP_S["sglang"]).stderr), before


def answers(lab: SmallLab) -> str:
    return complete(lab.gang()["service"]["url"], lab.model, CANARY_PROMPT, len(CANARY_TEXT) + 12)


def test_another_flag_passes(lab: SmallLab) -> None:
    words, before = gate(lab, 0)
    assert "passed" in words and "speed, 4 at once" in words and "answers among others" in words, words
    assert lab.gang()["plan_id"] != before
    assert answers(lab) == "ghijklmnopqrstuv"
    lab.deploy("bench", *LOAD, timeout=900)


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_worse_brings_the_old_plan_back(lab: SmallLab, planted: str) -> None:
    added, why = PLANTED[planted]
    lab.env = {**ALWAYS, **added}
    lab.write_inventory()
    words, before = gate(lab, 7)
    assert why in words and f"gang0 is back on its previous plan {before}" in words, words
    told = next(run["gate"] for run in lab.json("history", "gang0")["runs"] if run["gate"])
    assert told["verdict"] == "not passed" and why in told["why"]
    page = Path(told["html"]).read_text()
    assert "not passed" in page and next(iter(added)) in page
    gang = lab.gang()
    assert (gang["state"], gang["plan_id"]) == ("ready", before)
    assert answers(lab) == "ghijklmnopqrstuv"
    print(*told["page"], sep="\n")


def other_version(lab: SmallLab, folder: Path) -> str:
    """The name of a stack that is the lab's own but for SGLang, on every node and beside the inventory."""
    wanted = ("--no-deps", "--only-binary", ":all:", "--python-version", python_version())
    wheel = ("--platform", "manylinux_2_34_x86_64", "-d", str(folder), f"sglang=={OTHER}")
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", *wanted, *wheel], check=True, timeout=300)
    name, base = f"sglang-{OTHER}-cpu", f"/opt/l40s/venvs/{ENGINE_STACK}"
    stack = yaml.safe_load((data_dir("inventory") / "stacks" / f"{ENGINE_STACK}.yml").read_text())
    version = f"{stack['torch_version']}+cpu"
    venv = folder / "venv"
    site = venv / "lib" / f"python{python_version()}" / "site-packages"
    torch = site / f"torch-{version}.dist-info"
    torch.mkdir(parents=True)
    (torch / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    (site / "base.pth").write_text(f"{base}/lib/python{python_version()}/site-packages\n")
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (venv / "bin").mkdir()
    (venv / "bin" / "python3").symlink_to("/usr/bin/python3")
    zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(site)
    lab.put(venv, f"/opt/l40s/venvs/{name}")
    described = lab.folder / "stacks" / f"{name}.yml"
    described.parent.mkdir()
    del stack["advisories"]  # those of another release
    described.write_text(yaml.safe_dump({**stack, "name": name, "engine_version": OTHER}))
    return name


def test_another_version_is_held_against_this_one(lab: SmallLab, tmp_path: Path) -> None:
    lab.env = dict(ALWAYS)
    lab.write_inventory()
    words, before = gate(lab, 0, "--stack", other_version(lab, tmp_path))
    assert "passed" in words and "answers among others" in words, words
    assert lab.gang()["plan_id"] != before
    assert answers(lab) == "ghijklmnopqrstuv"
    words, other = gate(lab, 0, "--stack", ENGINE_STACK)
    assert "passed" in words and lab.gang()["plan_id"] != other
