"""A user who may see and not touch: no sudo, no key of the service, over real SSH, on nodes that boot systemd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.ports import free_port
from tests.support.small_lab import RunningLab, SmallLab, small_lab
from tests.support.turns import by_turns
from tests.support.waiting import until

from orchestrator.protocol.errors import Exit

from .conftest import PREPARED, needs_root

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900),
    needs_root,
    PREPARED,
]

STATE = "/var/lib/l40s-deploy"
UP_AGAIN = "run `up` again"
ALLOW = "sed -i 's/^AllowUsers .*/& ann bob/' /etc/ssh/sshd_config.d/l40s-lab.conf"
STRANGER, VIEWER = "viewers: a stranger sees nothing", "viewers: a viewer sees all and changes nothing"
"""Kinds of tests; in a run of `make test` one of each is played."""
VIEWERS = {"l40s_viewers": ["ann"], "l40s_state_dir": STATE}


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab("viewers", level=2) as made:
        if made.running_level() != 2:
            pytest.skip("nodes that boot systemd can't be had here")
        for node in made.hosts():  # sshd lets one user in; a reload ends before it listens again
            made.on(node, f"{ALLOW}; systemctl restart ssh || systemctl restart sshd")
            made.on(node, "useradd --create-home --shell /bin/bash --password '*' bob")
        made.serve()
        yield made


class Viewer(RunningLab):
    """The lab, as this user has it on a machine of his own."""

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "XDG_STATE_HOME": str(self.inventory.parent / "state")}


def viewer(lab: SmallLab, user: str, folder: Path) -> Viewer:
    """His inventory is the operators' with another login, and without sudo."""
    document = yaml.safe_load(lab.inventory.read_text())
    document["all"]["vars"] |= {"ansible_user": user, "ansible_become": False, "l40s_state_dir": STATE}
    inventory = folder / f"{user}.yml"
    inventory.write_text(yaml.safe_dump(document))
    return Viewer(lab.name, lab.root, inventory)


def said(viewer: Viewer, *words: str) -> tuple[int, str]:
    """(exit status, all that was said), which advises nothing that he may not do."""
    done = viewer.deploy(*words, code=None)
    text = " ".join((done.stdout + done.stderr).split())
    assert UP_AGAIN not in text and "Traceback" not in text, (words, text)
    return done.returncode, text


def prepare(lab: SmallLab, **variables: Any) -> None:
    """The nodes as this inventory has them; nothing is done where the last one had the same."""
    was = lab.inventory.read_text()
    lab.write_inventory(vars={**VIEWERS, **variables})
    if lab.inventory.read_text() != was:
        lab.deploy("prepare", "--tags", "viewers", "--stack", "sglang-0.5.23", timeout=240.0)


def refuse_changes(lab: SmallLab, user: Viewer, words: str) -> None:
    """No verb of his changes anything."""
    before = lab.gang()
    for verb in (("down", "gang0"), ("down", "gang0", "--now", "--force"), ("restart", "gang0"), ("up", lab.model)):
        code, text = said(user, *verb)
        assert code != 0 and words in text, (verb, code, text)
    after = lab.gang()
    assert (after["state"], after["run_id"]) == ("ready", before["run_id"])


@pytest.mark.turns(of=STRANGER)
def test_a_user_without_rights_is_told_that_nobody_knows_and_whom_to_ask(lab: SmallLab, tmp_path: Path) -> None:
    bob = viewer(lab, "bob", tmp_path)
    code, text = said(bob, "status")
    assert code == 4 and "gang0 unknown" in text and "may not read" in text and "l40s_viewers: [bob]" in text
    for verb in ("why", "history", "logs"):
        code, text = said(bob, verb)
        assert code != 0 and "bob may not read" in text and "absent" not in text, (verb, code, text)
    refuse_changes(lab, bob, "may not read")


@pytest.mark.turns(of=VIEWER)
def test_a_viewer_sees_all_but_the_logs_and_changes_nothing(lab: SmallLab, tmp_path: Path) -> None:
    prepare(lab)
    ann = viewer(lab, "ann", tmp_path)
    before = lab.gang()
    assert lab.ssh(next(iter(lab.hosts())), "sudo -n -u ann sudo -n true 2>&1 || echo refused").endswith("refused\n")
    code, text = said(ann, "status")
    assert code == 0 and "gang0 ready" in text
    seen = json.loads(ann.deploy("status", "--json").stdout)["gangs"][0]
    assert [node["ranks"] for node in seen["nodes"]] == [node["ranks"] for node in before["nodes"]]
    assert said(ann, "why")[0] == 0
    assert before["run_id"] in said(ann, "history")[1]
    assert said(ann, "doctor")[0] in (0, 3)
    code, text = said(ann, "logs")
    assert code != 0 and "holds prompts" in text and "l40s_viewers_logs: true" in text
    refuse_changes(lab, ann, "log in as root")
    lab.deploy("restart", "gang0")
    again = json.loads(ann.deploy("status", "--json").stdout)["gangs"][0]
    assert again["state"] == "ready" and again["run_id"] != before["run_id"]


LOOKS = (
    ("status", "--wide"), ("status", "--remarks"), ("why", "--all"), ("history", "--commands"), ("discover",),
    ("version",), ("lock",), ("models",),
)  # fmt: skip
WORKS = (
    ("plan", "--diff"), ("notify",), ("guard", "--once"), ("golden", "check"), ("bench",), ("rollback",),
    ("router", "status"), ("prepare",),
)  # fmt: skip


@pytest.mark.parametrize("user", by_turns(["ann", "bob"], of=lambda user: STRANGER if user == "bob" else VIEWER))
def test_every_verb_of_a_viewer_and_of_a_stranger_says_what_it_may_not(
    lab: SmallLab, user: str, tmp_path: Path
) -> None:
    prepare(lab)
    own, before = viewer(lab, user, tmp_path), lab.gang()["run_id"]
    told = {words: said(own, *words) for words in (*LOOKS, *WORKS)}
    code, text = said(own, "support-bundle", "--out", str(tmp_path / "report.tar.gz"))
    assert code in (0, 4) and (tmp_path / "report.tar.gz").is_file(), text
    defects = {words: text for words, (code, text) in told.items() if code == Exit.DEFECT}
    assert defects == {}
    if user == "ann":
        assert {words: text for words, (code, text) in told.items() if words in LOOKS and code not in (0, 3)} == {}
    assert (lab.gang()["state"], lab.gang()["run_id"]) == ("ready", before)


def test_web_of_a_viewer_shows_the_gang(lab: SmallLab, tmp_path: Path) -> None:
    import urllib.request

    prepare(lab)
    port = free_port()
    page = viewer(lab, "ann", tmp_path).start("web", f"--listen=127.0.0.1:{port}")

    def shown() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    try:
        until(lambda: "gang0" in (text := shown()) and "ready" in text, 60.0, shown)
        assert UP_AGAIN not in shown()
    finally:
        page.terminate()
        page.communicate(timeout=30)


@pytest.mark.turns(of="viewers: another inventory is followed")
def test_who_is_named_no_more_sees_no_more(lab: SmallLab, tmp_path: Path) -> None:
    prepare(lab)
    ann = viewer(lab, "ann", tmp_path)
    assert said(ann, "status")[0] == 0
    lab.write_inventory(vars={"l40s_state_dir": STATE})
    lab.deploy("prepare", "--tags", "viewers", "--stack", "sglang-0.5.23", timeout=240.0)
    assert said(ann, "status")[0] == 4


@pytest.mark.turns(of="viewers: another inventory is followed")
def test_logs_that_are_taken_back_are_not_shown(lab: SmallLab, tmp_path: Path) -> None:
    prepare(lab, l40s_viewers_logs=True)
    ann = viewer(lab, "ann", tmp_path)
    assert said(ann, "logs")[0] == 0
    prepare(lab)
    assert said(ann, "status")[0] == 0 and said(ann, "logs")[0] != 0


@pytest.mark.turns(of="viewers: another inventory is followed")
def test_the_router_s_host_of_its_own_has_viewers_too(lab: SmallLab, tmp_path: Path) -> None:
    document = yaml.safe_load(lab.inventory.read_text())
    document["all"]["vars"] |= {**VIEWERS, "l40s_viewers": ["cyd"]}
    hosts = document["all"]["children"]["gangs"]["children"]["gang0"]["hosts"]
    head = list(hosts)[-1]
    document["all"]["children"]["router"] = {"hosts": {head: hosts.pop(head)}}
    inventory = tmp_path / "router.yml"
    inventory.write_text(yaml.safe_dump(document))
    lab.deploy("prepare", "-i", str(inventory), "--tags", "viewers", "--node", head, timeout=240.0)
    assert members(lab, head) == ["cyd"]
    assert lab.on(head, f"stat -c '%G %a' {STATE}").split() == ["l40s-viewers", "2751"]
    assert "cyd" not in members(lab, next(iter(hosts)))


@pytest.mark.turns(of="viewers: another inventory is followed")
def test_the_logs_are_a_viewers_only_where_the_inventory_says_so(lab: SmallLab, tmp_path: Path) -> None:
    prepare(lab, l40s_viewers_logs=True)
    ann = viewer(lab, "ann", tmp_path)
    code, text = said(ann, "logs")
    assert code == 0 and text
    for node in lab.hosts():
        files = {*lab.on(node, f"find {STATE}/gangs -type f -perm /0044 -printf '%f\\n'").split()}
        assert {"report.json", "engine.log", "current"} <= files
        assert not {"run.json", "key", "launch.sh"} & files and not any("secret" in name for name in files)


def members(lab: SmallLab, node: str) -> list[str]:
    """Of the viewers' group; empty where there is no such group."""
    line = lab.on(node, "getent group l40s-viewers || true").strip()
    return [name for name in line.rpartition(":")[2].split(",") if name]


@pytest.mark.turns(of="prepare: what it made by a tag is taken back")
def test_remove_takes_viewers_and_what_they_saw_back(lab: SmallLab) -> None:
    prepare(lab, l40s_viewers_logs=True)
    lab.deploy("down", "gang0", "--now")
    lab.deploy("prepare", "--remove", timeout=240.0)
    for node in lab.hosts():
        assert members(lab, node) == [] and lab.on(node, "id ann 2>&1 || true").endswith("no such user\n")
        shown = "'(' -name '*.json' -o -name '*.jsonl' -o -name 'engine.log*' ')' -perm /0044"
        handed_on = "-perm /2000 -o -nogroup -o -name viewers-logs"
        assert lab.on(node, f"find {STATE} {handed_on}; find {STATE}/gangs -type f {shown}") == ""
