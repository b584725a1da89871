"""A support bundle of a real failed gang: it contains everything but secrets, names and addresses."""

from __future__ import annotations

import json
import os
import re
import stat
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.local_gang import LocalGang
from tests.support.waiting import until

from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Overrides, Reach
from orchestrator.protocol.errors import InputError, VerificationDiffers
from orchestrator.support.steps import bundle as support
from orchestrator.topology.scrubbing import CANNOT_TELL, Scrubber

pytestmark = pytest.mark.processes

KEY = "correct-horse-battery-staple"
TOKEN = "hf_abcdefghijklmnopqrstuvwx"


def with_key(gang: LocalGang, folder: Path) -> Inventory:
    file = folder / "key"
    file.write_text(KEY + "\n")
    file.chmod(0o600)
    nodes = tuple(replace(node, api_key_file=str(file)) for node in gang.gang.nodes)
    return replace(gang.inventory, gangs=(replace(gang.gang, nodes=nodes),))


def texts(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        return {
            entry.name.partition("/")[2]: (archive.extractfile(entry) or entry).read().decode()  # type: ignore[union-attr]
            for entry in archive.getmembers()
        }


def test_everything_but_secrets_names_and_addresses(
    local: Callable[..., LocalGang], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "from-the-environment")
    lines = f"key {KEY} sent to 203.0.113.77|HF_TOKEN={TOKEN}|ready on from-the-environment"
    gang = local(env={-1: {"FAKE_LINES": lines}})
    gang.up()
    gang.kill_rank(1)
    until(lambda: gang.view().state.value == "failed", 20)
    made = support.bundle(with_key(gang, tmp_path), (), tmp_path / "out.tar.gz")
    found = texts(made.path)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    manifest = json.loads(found["manifest.json"])
    assert manifest["missing"] == {} and set(manifest["files"]) == set(found) - {"manifest.json", "READ-FIRST.txt"}
    assert {"status.json", "why.json", "hangs.json", "history.json", "versions.json", "logs/around-failure.log"} <= set(
        found
    )
    assert {"snapshots/machine1.json", "snapshots/machine2.json", "logs/machine1.log"} <= set(found)
    everything = "\n".join([*found, *found.values()])
    for secret in (KEY, TOKEN, "from-the-environment", "203.0.113.77"):
        assert secret not in everything, secret
    said = "\n".join(text for name, text in found.items() if not name.startswith("snapshots/"))  # NUMA's node0
    assert gang.name(0) not in said and gang.name(1) not in said
    assert json.loads(found["status.json"])["gangs"][0]["cause"]["tp_rank"] == 1
    assert "sent to" in everything  # the log itself is included
    with tarfile.open(made.path) as archive:
        assert archive.getnames()[0] == "l40s-deploy-support/READ-FIRST.txt"
    first = found["READ-FIRST.txt"]
    assert all(kind in first for kind in CANNOT_TELL) and "x name of a machine" in first and "x secret" in first
    assert manifest["replaced"]["secret"] >= 3


def test_without_logs_no_line_of_a_log_is_read(local: Callable[..., LocalGang], tmp_path: Path) -> None:
    gang = local(env={-1: {"FAKE_LINES": "a-line-of-a-client"}})
    gang.up()
    gang.kill_rank(1)
    until(lambda: gang.view().state.value == "failed", 20)
    found = texts(support.bundle(gang.inventory, (), tmp_path / "out.tar.gz", with_logs=False).path)
    assert not [name for name in found if name.startswith("logs/")]
    assert "a-line-of-a-client" not in "".join(found.values())
    assert "--without-logs" in found["READ-FIRST.txt"].splitlines()[0]


def test_users_that_are_words_of_logs_and_domains_are_told_apart() -> None:
    node = NodeSpec(name="n", gang="g", node_rank=0, engine_user="sglang",
                    reach=Reach(host="n7.prod.example.org", user="anna"), model_root="/data/acme/models")  # fmt: skip
    inventory = Inventory(path="/srv/lab/acme/i.yml", gangs=(GangSpec(name="g", nodes=(node,)),))
    scrubber = support.scrubber_of(inventory, [node], b"k" * 32, {})
    said = "anna@db.prod.example.org: sglang.srt loads /data/acme/models/M by /srv/lab/acme/i.yml"
    shown = scrubber.text(said)
    assert re.fullmatch(r"user\d+@db\.domain\d+: sglang\.srt loads /folder\d+/M by /folder\d+/i\.yml", shown), shown


def test_a_bundle_that_would_hold_a_secret_is_not_written(
    local: Callable[..., LocalGang], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = local()
    monkeypatch.setattr(Scrubber, "text", lambda _, text: text)
    monkeypatch.setattr("getpass.getuser", lambda: os.environ[""])  # a user without a name is no reason to end
    with pytest.raises(VerificationDiffers, match="would still contain"):
        support.bundle(gang.inventory, (), tmp_path / "out.tar.gz")
    assert not list(tmp_path.glob("*out.tar.gz*"))


def test_what_a_plan_does_not_show_of_a_nodes_environment_is_known_beside_its_name() -> None:
    env = (("MY_MODE", "default"), ("MY_PLACE", "hall-7"), ("NCCL_DEBUG", "INFO"), ("DB_PASS", "hunter22"))
    node = NodeSpec(name="n", gang="g", node_rank=0, reach=Reach(host="n"),
                    overrides=Overrides(env=env, env_public=("MY_PLACE",)))  # fmt: skip
    inventory = Inventory(path="i.yml", gangs=(GangSpec(name="g", nodes=(node,)),))
    scrubber = support.scrubber_of(inventory, [node], b"k" * 32, {})
    said = "MY_MODE=default MY_PLACE=hall-7 NCCL_DEBUG=INFO by default hunter22 {'MY_MODE': 'default'}"
    assert scrubber.text(said) == "<secret> MY_PLACE=hall-7 NCCL_DEBUG=INFO by default <secret> {<secret>}"


def test_where_no_bundle_can_be_written_no_node_is_asked(local: Callable[..., LocalGang], tmp_path: Path) -> None:
    gang, old = local(), tmp_path / "out.tar.gz"
    old.write_text("mine")
    places = (
        (old, "exists already"),
        (tmp_path / "none" / "out.tar.gz", "its folder does not exist"),
        (Path("/proc/out.tar.gz"), "can't be written"),
        (tmp_path / ("x" * 300), "can't be written: File name too long"),
    )
    for out, why in places:
        with pytest.raises(InputError, match=why):
            support.bundle(gang.inventory, (), out)
