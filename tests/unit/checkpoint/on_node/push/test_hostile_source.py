"""A source whose list names files elsewhere: the real push, verbs and rsync; only its application lies."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.hostile import talker
from tests.support.waiting import slack

from orchestrator.checkpoint.on_node.push import giver
from orchestrator.checkpoint.on_node.push import target as push_target
from orchestrator.checkpoint.steps import push as workflow
from orchestrator.checkpoint.steps.chain import Hop, VerbStream
from orchestrator.checkpoint.steps.push import CheckpointPushRequest, push
from orchestrator.model.errors import NodeError
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach
from orchestrator.node.failure import Failure

pytestmark = pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")

LIAR = """
import sys
application, verb = sys.argv[-2:]
sys.path.insert(0, application)
from orchestrator.node import dispatch
from orchestrator.checkpoint.on_node.push import offer as push_offer
from orchestrator.checkpoint.on_node.push.target import FileEntry
honest = push_offer.read
def lie(directory):
    root, (first, *others) = honest(directory)
    return root, (FileEntry({path!r}, first.source, first.size), *others)
push_offer.read = lie
sys.exit(dispatch.serve([verb]))
"""
RECEIVE = "import sys; from orchestrator.node import dispatch; sys.exit(dispatch.serve(['push-receive']))"


class Nobody:
    """A watcher that does nothing."""

    def say(self, words: str) -> None:
        """Ignored."""

    def moved(self, hops: Sequence[Hop], total: int, offered: int) -> None:
        """Ignored."""


def liar(folder: Path, path: str) -> str:
    """A python that lies about the first file's path."""
    program = folder / "liar.py"
    program.write_text(LIAR.format(path=path))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    python.chmod(0o755)
    return str(python)


def cluster(tmp_path: Path) -> Inventory:
    (tmp_path / "models").mkdir()
    reach = Reach(host="a", connection="local", python=sys.executable)
    node = NodeSpec(
        name="a", gang="g", node_rank=0, reach=reach, model_root=f"{tmp_path}/models", state_dir=f"{tmp_path}/state"
    )
    return Inventory(path="hosts.yml", gangs=(GangSpec(name="g", nodes=(node,)),))


def source_of(tmp_path: Path) -> Path:
    source = tmp_path / "source" / "M"
    source.mkdir(parents=True)
    (source / "config.json").write_text("{}")
    (source / "other").write_text("other")
    return source


def outside(tmp_path: Path) -> set[str]:
    """Everything below the test's folder, except where writing is allowed."""
    return {
        str(path.relative_to(tmp_path))
        for path in tmp_path.rglob("*")
        if path.is_file() and path.relative_to(tmp_path).parts[0] not in ("models", "state")
    }


def paths(tmp_path: Path) -> list[str]:
    return ["../../escaped", f"{tmp_path}/escaped", "sub/../../../escaped", ".l40s-push.json", "nul\0"]


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("controller", ["checks", "does not"])
def test_a_list_that_names_a_file_elsewhere_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int, controller: str
) -> None:
    """Refused by the controller; and by the receiver, if the controller does not check."""
    inventory, source = cluster(tmp_path), source_of(tmp_path)
    python = liar(tmp_path, paths(tmp_path)[which])
    reach = Reach(connection="local", host="localhost", python=python)
    here = NodeSpec(name=workflow.HERE, gang="", node_rank=0, reach=reach)
    monkeypatch.setattr(workflow, "_here", lambda: here)
    if controller != "checks":
        monkeypatch.setattr(VerbStream, "files", lambda link: [push_target.FileEntry(*one) for one in link._listed])
    before = outside(tmp_path)
    if controller == "checks":
        with pytest.raises(NodeError, match="list of files is not valid") as told:
            push(inventory, CheckpointPushRequest(source=str(source)), Nobody())
        assert told.value.where == workflow.HERE
    else:
        failure = push(inventory, CheckpointPushRequest(source=str(source)), Nobody()).nodes.failures["a"]
        assert "list of files is refused" in failure.what
        assert failure.fix
    assert outside(tmp_path) == before
    assert not list((tmp_path / "models").iterdir())


def receive(tmp_path: Path, files: Any) -> dict[str, Any]:
    """The receiving verb's answer to a list; there is no source to fetch from."""
    upstream = {"address": "127.0.0.1", "port": 1, "secret": "s"}
    request = {
        "directory": f"{tmp_path}/M", "files": files, "upstream": upstream, "address": "127.0.0.1",
        "state_dir": f"{tmp_path}/state",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", RECEIVE], input=json.dumps(request).encode(), capture_output=True, timeout=60, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    return answer


@pytest.mark.parametrize(
    "files",
    [
        [["a", "../../etc/shadow", 1]],
        [["a", "/etc/shadow", 1]],
        [["a", "a", -1]],
        [["a", "a", True]],
        [["a", "a", 1 << 70]],
        [["a", "a", 1], ["a", "b", 1]],
        [["a", "a", 1], ["a/b", "b", 1]],
        [["a", "a"]],
        {"a": 1},
        "a",
        None,
    ],
)
def test_the_receiver_refuses_every_other_odd_list(tmp_path: Path, files: Any) -> None:
    assert receive(tmp_path, files)["error"]["kind"] in ("outside", "bad-request")
    assert not (tmp_path / "M.l40s-partial").exists()


@pytest.mark.parametrize("place", ["M.l40s-partial", "M.l40s-partial/sub", "M.l40s-partial/.arriving"])
def test_a_link_that_leads_out_of_the_place_is_refused(tmp_path: Path, place: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).symlink_to(elsewhere)
    target = push_target.PushTarget(tmp_path / "M", [push_target.FileEntry("sub/file", "file", 4)])
    arrived = tmp_path / "arrived"
    arrived.write_text("evil")
    with pytest.raises(Failure, match="is a symbolic link"):
        target.open()
        target.place(arrived, "sub/file")
    target.close()
    assert not list(elsewhere.iterdir())


def test_what_arrived_as_a_link_or_as_a_second_name_of_a_file_is_never_touched(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    target = push_target.PushTarget(tmp_path / "M", [push_target.FileEntry("file", "file", 6)])
    target.open()
    for make in ("symlink_to", "hardlink_to"):
        arrived = target.arriving / "file"
        getattr(arrived, make)(secret)
        with pytest.raises(Failure):
            target.place(arrived, "file")
        arrived.unlink()
    target.close()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_stranger_at_either_end_of_the_notes_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slowly it greets, and however deep its words are."""
    monkeypatch.setattr(giver, "LINE_S", 0.3)
    ours, theirs = socket.socketpair()
    telling = threading.Thread(
        target=giver.tell_ready, args=(ours, "secret", giver.Ready(), contextlib.nullcontext()), daemon=True
    )
    telling.start()
    with theirs, contextlib.suppress(OSError):
        ends = time.monotonic() + 10.0 * slack()
        while telling.is_alive() and time.monotonic() < ends:
            theirs.send(b"{")
            telling.join(0.05)
    assert not telling.is_alive()
    with talker(b"[" * 60_000 + b"\n") as port, pytest.raises(giver.ConnectionLost):
        giver.hear_ready("127.0.0.1", port, "secret", lambda path, digest: None)
