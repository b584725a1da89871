"""A source whose list names files elsewhere: the real push and verbs; only its application lies."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.hostile import talker
from tests.support.waiting import until
from tests.unit.checkpoint.steps.test_verify import Silent, cluster, node

from orchestrator.checkpoint.on_node.push import giver
from orchestrator.checkpoint.on_node.push import target as push_target
from orchestrator.checkpoint.steps import push as workflow
from orchestrator.checkpoint.steps.chain import VerbStream
from orchestrator.checkpoint.steps.checkpoint import HERE
from orchestrator.checkpoint.steps.push import CheckpointPushRequest, push
from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.protocol.errors import DeployError, NodeError
from orchestrator.protocol.jobs import Giving

LIAR = """
import sys
application, verb = sys.argv[-2:]
sys.path.insert(0, application)
from orchestrator.node import dispatch
from orchestrator.checkpoint.on_node.push import giver
honest = giver.read
def lie(directory):
    (_, size), *others = honest(directory).items()
    return dict([({path!r}, size), *others])
giver.read = lie
giver.Digests.of = lambda *_, **__: "0" * 64
sys.exit(dispatch.serve([verb]))
"""
RECEIVE = "import sys; from orchestrator.node import dispatch; sys.exit(dispatch.serve(['push-receive']))"


def liar(folder: Path, path: str) -> str:
    """A python that lies about the first file's path."""
    program = folder / "liar.py"
    program.write_text(LIAR.format(path=path))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    python.chmod(0o755)
    return str(python)


def outside(tmp_path: Path) -> set[str]:
    """Everything below the test's folder, except where writing is allowed."""
    return {
        str(path.relative_to(tmp_path))
        for path in tmp_path.rglob("*")
        if path.is_file() and path.relative_to(tmp_path).parts[0] not in ("models", "state")
    }


@pytest.mark.parametrize(
    "path", ["../../escaped", "{here}/escaped", "sub/../../../escaped", ".l40s-push.json", "nul\0"]
)
@pytest.mark.parametrize("controller", ["checks", "does not"])
def test_a_list_that_names_a_file_elsewhere_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, controller: str
) -> None:
    """Refused by the controller; and by the receiver, if the controller does not check."""
    inventory, source = cluster(node("a", tmp_path / "models")), tmp_path / "M"
    for folder in (tmp_path / "models", source):
        folder.mkdir()
    (source / "config.json").write_text("{}")
    (source / "other").write_text("other")
    python = liar(tmp_path, path.format(here=tmp_path))
    reach = Reach(connection="local", host="localhost", python=python)
    here = NodeSpec(name=HERE, gang="", node_rank=0, reach=reach)
    monkeypatch.setattr(workflow, "here", lambda: here)
    if controller != "checks":
        monkeypatch.setattr(VerbStream, "files", lambda link: link._listed)
    before = outside(tmp_path)
    if controller == "checks":
        with pytest.raises(NodeError, match="list of files is not valid") as told:
            push(inventory, CheckpointPushRequest(source=str(source)), Silent())
        assert told.value.where == HERE
    else:
        failure = push(inventory, CheckpointPushRequest(source=str(source)), Silent()).nodes.failures["a"]
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
        {"../../etc/shadow": 1},
        {"/etc/shadow": 1},
        {"a": -1},
        {"a": True},
        {"a": 1 << 62},
        {"a": 1 << 70},
        {"a": 1, "a/b": 1},
        {"a": "a"},
        [["a", 1]],
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
    target = push_target.PushTarget(tmp_path / "M", {"sub/file": 4})
    with pytest.raises(DeployError, match="is a symbolic link"):
        target.open()
        with target.arriving("sub/file") as arriving:
            target.place(arriving, "sub/file")
    assert not list(elsewhere.iterdir())


def test_what_arrived_as_a_link_or_as_a_second_name_of_a_file_is_never_touched(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    target = push_target.PushTarget(tmp_path / "M", {"file": 3})
    target.open()
    arrived = tmp_path / "M.l40s-partial" / ".arriving" / "file"
    for make in ("symlink_to", "hardlink_to"):
        getattr(arrived, make)(secret)
        with pytest.raises(DeployError), target.arriving("file"):
            pass
        arrived.unlink()
    assert secret.read_text() == "root's"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_stranger_at_either_end_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slowly it greets, and however deep its words are."""
    monkeypatch.setattr(giver, "LINE_S", 0.3)
    port = giver.Giver(tmp_path).listen("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.settimeout(0.05)

        def is_left() -> bool:
            try:
                stranger.sendall(b"{")
                return stranger.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        until(is_left, 10, "the connection is closed")
    with talker(b"[" * 60_000 + b"\n") as port, pytest.raises(giver.ConnectionLost):
        next(giver.ready_at(Giving(address="127.0.0.1", port=port, secret="secret")))
