"""The node's side of a push, on this machine: real verbs, loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoint.on_node.push import giver
from orchestrator.checkpoint.on_node.push.target import PushTarget
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.jobs import Giving

RUN = "import sys; from orchestrator.node import dispatch; sys.exit(dispatch.serve(sys.argv[1:]))"


@dataclass
class Verbs:
    """Streaming verbs that this test started."""

    root: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, verb: str, run: str = RUN, **request: Any) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
        """The process and its first line."""
        process = subprocess.Popen([sys.executable, "-c", run, verb], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.running.append(process)
        asked = {"address": "127.0.0.1", "state_dir": str(self.root / f"state{len(self.running)}"), **request}
        assert process.stdin is not None
        process.stdin.write(json.dumps(asked).encode())
        process.stdin.close()
        return process, line(process)

    def offer(self, source: Path) -> dict[str, Any]:
        process, said = self.start("push-offer", directory=str(source))
        files: dict[str, int] = {}
        while "files" in said:
            files |= said["files"]
            said = line(process)
        return {**said, "files": files}

    def receive(
        self, directory: Path, before: dict[str, Any], files: dict[str, int], **more: Any
    ) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
        upstream = {"address": "127.0.0.1", "port": before["port"], "secret": before["secret"]}
        return self.start("push-receive", directory=str(directory), upstream=upstream, files=files, **more)

    def end(self) -> None:
        for process in self.running:
            assert process.stdout is not None
            process.stdout.close()
        for process in self.running:
            process.wait(10)


def line(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    said: dict[str, Any] = json.loads(process.stdout.readline())
    return said


def last(process: subprocess.Popen[bytes], deadline_s: float = 60) -> dict[str, Any]:
    """The line that ends its output: complete, or an error."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        said = line(process)
        if said.get("complete") or said.get("ok") is False:
            return said
    raise AssertionError("neither complete nor an error")


@pytest.fixture
def verbs(tmp_path: Path) -> Iterator[Verbs]:
    started = Verbs(tmp_path)
    yield started
    with suppress(OSError):
        started.end()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "hub" / "snapshots" / "model"
    (folder / "sub dir").mkdir(parents=True)
    for number in range(5):
        (folder / f"model-{number}.bin").write_bytes(os.urandom(300_000))
    (folder / "sub dir" / "x [1]*.json").write_text("{}")
    (folder / "empty").touch()
    (folder / ".cache").write_text("stays")
    blob = tmp_path / "hub" / "blob"
    blob.write_bytes(os.urandom(1000))
    (folder / "linked.bin").symlink_to("../../blob")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def expected(source: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(source).items() if name != ".cache"}


def test_two_links_bring_everything_and_leave_nothing_else(verbs: Verbs, source: Path, tmp_path: Path) -> None:
    first = verbs.offer(source)
    near, said = verbs.receive(tmp_path / "a" / "M", first, first["files"], streams=2)
    far, _ = verbs.receive(tmp_path / "b" / "M", said, first["files"])
    assert last(near)["complete"]
    assert last(far)["complete"]
    verbs.end()
    for place in ("a", "b"):
        assert contents(tmp_path / place / "M") == expected(source)
        assert [path.name for path in (tmp_path / place).iterdir()] == ["M"]


def test_what_an_earlier_run_left_is_used_and_what_was_wrong_is_fetched_again(
    verbs: Verbs, source: Path, tmp_path: Path
) -> None:
    partial = tmp_path / "a" / "M.l40s-partial"
    (partial / ".arriving").mkdir(parents=True)
    whole = (source / "model-0.bin").read_bytes()
    (partial / "model-0.bin").write_bytes(whole)
    (partial / "model-1.bin").write_bytes(b"x" * 300_000)
    (partial / ".arriving" / "model-2.bin").write_bytes((source / "model-2.bin").read_bytes()[:100_000])
    (partial / ".arriving" / "model-3.bin").write_bytes(b"y" * 100_000)
    (partial / ".arriving" / "model-3.bin").chmod(0o600)
    (partial / ".arriving" / "model-4.bin").write_bytes(b"z" * 400_000)
    (partial / "of another model.bin").write_bytes(b"gone afterwards")
    kept = (partial / "model-0.bin").stat().st_ino
    first = verbs.offer(source)
    process, _ = verbs.receive(tmp_path / "a" / "M", first, first["files"])
    assert last(process)["complete"]
    assert contents(tmp_path / "a" / "M") == expected(source)
    assert (tmp_path / "a" / "M" / "model-0.bin").stat().st_ino == kept
    assert (tmp_path / "a" / "M" / "model-3.bin").stat().st_mode & 0o777 == 0o644


def test_a_directory_that_is_there_is_compared_and_never_written(verbs: Verbs, source: Path, tmp_path: Path) -> None:
    same, other = tmp_path / "same", tmp_path / "other"
    shutil.copytree(source, same)
    shutil.copytree(source, other)
    changed = bytearray((other / "model-3.bin").read_bytes())
    changed[7] ^= 1
    (other / "model-3.bin").write_bytes(changed)
    first = verbs.offer(source)
    process, said = verbs.receive(same, first, first["files"])
    assert said["there"]
    assert last(process)["complete"]
    process, _ = verbs.receive(other, first, first["files"])
    error = last(process)["error"]
    assert error["kind"] == "target-differs"
    assert error["where"].endswith("model-3.bin")
    assert (other / "model-3.bin").read_bytes() == changed


def test_a_second_push_into_the_same_place_is_refused(verbs: Verbs, source: Path, tmp_path: Path) -> None:
    """Until the first one ends, though its process may end much later: a thread of it waits for the disk."""
    lingers = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); "
    first = verbs.offer(source)
    files = {**first["files"], "never ready": 1}
    before, _ = verbs.receive(tmp_path / "M", first, files, run=lingers + RUN)
    _, said = verbs.receive(tmp_path / "M", first, files)
    assert said["error"]["kind"] == "lock-held"
    assert before.stdout is not None
    before.stdout.close()
    assert any("port" in verbs.receive(tmp_path / "M", first, files)[1] for _ in range(20))
    assert before.poll() is None
    before.kill()


def test_a_giver_whose_disk_stalls_is_waited_for(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = giver.Giver(source)
    monkeypatch.setattr(giver, "LINE_S", 1.0)
    stalled = threading.Event()
    monkeypatch.setattr("orchestrator.node.files.opened", lambda path: stalled.wait(1.5) or os.open(path, os.O_RDONLY))
    known = Giving(address="127.0.0.1", port=slow.listen("127.0.0.1", 0), secret=slow.secret)
    slow.offer("model-0.bin", "")
    assert len(b"".join(map(bytes, giver.bytes_of(known, "model-0.bin", 0)))) == 300_000


def test_without_the_secret_nothing_is_given_and_with_it_what_is_offered(
    verbs: Verbs, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = verbs.offer(source)
    known = Giving(address="127.0.0.1", port=first["port"], secret=first["secret"])
    ready = giver.ready_at(known)
    while next(ready)[0] != "model-0.bin":
        pass
    assert (
        b"".join(bytes(part) for part in giver.bytes_of(known, "model-0.bin", 299_990))
        == ((source / "model-0.bin").read_bytes()[299_990:])
    )
    for other in (".cache", "../blob", str(source / "model-0.bin")):
        assert not list(giver.bytes_of(known, other, 0))
    guessed = Giving(address="127.0.0.1", port=first["port"], secret="guessed")
    with pytest.raises(giver.ConnectionLost, match="another program"):
        next(giver.bytes_of(guessed, "model-0.bin", 0))
    monkeypatch.setattr(giver, "proves", lambda *_: True)
    assert not list(giver.bytes_of(guessed, "model-0.bin", 0))


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda folder: (folder / ".l40s-reblock.json").touch(), "unfinished"),
        (shutil.rmtree, "no-checkpoint"),
        (lambda folder: (folder / "bad\nname").touch(), "odd-name"),
        (lambda folder: (folder / "far").symlink_to("/etc"), "far-link"),
        (lambda folder: (folder / "far").symlink_to("/etc/passwd"), "far-link"),
    ],
)
def test_a_source_that_is_no_whole_checkpoint_is_refused(verbs: Verbs, source: Path, spoil: Any, kind: str) -> None:
    spoil(source)
    said = verbs.offer(source)
    assert said["error"]["kind"] == kind


def test_too_little_space_is_told_before_the_first_byte(verbs: Verbs, source: Path, tmp_path: Path) -> None:
    first = verbs.offer(source)
    _, said = verbs.receive(tmp_path / "M", first, {"huge": 1 << 60})
    assert said["error"]["kind"] == "no-space"


def test_files_that_are_links_to_one_file_all_arrive_and_a_percent_sign_is_no_variable(
    verbs: Verbs, tmp_path: Path
) -> None:
    """In a repair of nothing, which makes the directory."""
    folder = tmp_path / "100%of%all" / "M"
    folder.mkdir(parents=True)
    (folder / "blob").touch()
    (folder / "text").write_text("text")
    for number in range(4):
        (folder / f"empty-{number}").symlink_to("blob")
        (folder / f"text-{number}").symlink_to("text")
    first = verbs.offer(folder)
    process, _ = verbs.receive(tmp_path / "a" / "M", first, first["files"], repair=True)
    assert last(process).get("complete")
    assert contents(tmp_path / "a" / "M") == contents(folder)


def test_a_repair_sends_the_files_that_differ_and_touches_no_other(verbs: Verbs, source: Path, tmp_path: Path) -> None:
    """Down a chain of two: a changed byte, another length, a missing file; unnoticed, with times as they were."""
    folders = [tmp_path / name / "M" for name in "ab"]
    for folder in folders:
        shutil.copytree(source, folder)
        flipped = folder / "model-3.bin"
        times, data = flipped.stat(), bytearray(flipped.read_bytes())
        data[7] ^= 1
        flipped.write_bytes(data)
        os.utime(flipped, ns=(times.st_atime_ns, times.st_mtime_ns))
        (folder / "model-1.bin").write_bytes(b"short")
        (folder / "sub dir" / "x [1]*.json").unlink()
        (folder / "somebody's own").touch()
    kept = [(folder / "model-0.bin").stat().st_ino for folder in folders]
    held = (folders[0] / "model-3.bin").open("rb")
    first = verbs.offer(source)
    near, said = verbs.receive(folders[0], first, first["files"], repair=True)
    far, _ = verbs.receive(folders[1], said, first["files"], repair=True)
    assert last(near)["sent"] == last(far)["sent"] == 3
    verbs.end()
    for folder in folders:
        assert contents(folder) == expected(source) | {"somebody's own": b"", ".cache": b"stays"}
        assert [path.name for path in folder.parent.iterdir()] == ["M"]
    assert [(folder / "model-0.bin").stat().st_ino for folder in folders] == kept
    assert held.read() != contents(source)["model-3.bin"], "who reads the old file goes on reading it"
    held.close()


def test_a_repair_that_was_killed_leaves_the_directory_as_it_was_and_goes_on(
    verbs: Verbs, source: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "a" / "M"
    shutil.copytree(source, folder)
    (folder / "model-2.bin").write_bytes(b"x" * 300_000)
    before = contents(folder)
    first = verbs.offer(source)
    process, _ = verbs.receive(folder, first, {**first["files"], "never ready": 1}, repair=True)
    process.kill()
    process.wait(10)
    assert contents(folder) in (before, before | {"model-2.bin": (source / "model-2.bin").read_bytes()})
    process, _ = verbs.receive(folder, first, first["files"], repair=True)
    assert last(process)["complete"]
    assert {name: data for name, data in contents(folder).items() if name != ".cache"} == expected(source)
    assert [path.name for path in folder.parent.iterdir()] == ["M"]


def test_a_repair_of_most_of_a_directory_is_refused(verbs: Verbs, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "M"
    folder.mkdir()
    (folder / "config.json").write_text("another model's")
    first = verbs.offer(source)
    _, said = verbs.receive(folder, first, first["files"], repair=True)
    assert said["error"]["kind"] == "target-exists"
    assert contents(folder) == {"config.json": b"another model's"}


def test_strangers_get_few_threads_and_no_patience_and_do_not_keep_a_push_from_its_work(
    verbs: Verbs, source: Path, tmp_path: Path
) -> None:
    """Hundreds of connections that say nothing, something else, or only begin to greet; all from another address."""
    first = verbs.offer(source)
    offering = verbs.running[0]
    words = (b"", b"{", b'{"nonce": "00"}\n', b"GET / HTTP/1.1\r\n\r\n")
    strangers = []
    threads = 0
    try:
        for number in range(300):
            stranger = socket.create_connection(("127.0.0.1", first["port"]), 5, source_address=("127.0.0.9", 0))
            with suppress(OSError):
                stranger.sendall(words[number % len(words)])
            strangers.append(stranger)
            if number % 50 == 49:
                threads = max(threads, len(list(Path(f"/proc/{offering.pid}/task").iterdir())))
        process, _ = verbs.receive(tmp_path / "a" / "M", first, first["files"], streams=2)
        assert last(process)["complete"]
    finally:
        for stranger in strangers:
            stranger.close()
    assert threads < 20


def test_a_directory_that_lacks_an_empty_file_is_another_checkpoint(tmp_path: Path) -> None:
    directory = tmp_path / "M"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    entries = {"config.json": 2, "empty": 0}
    with pytest.raises(DeployError, match="empty is missing there") as told:
        PushTarget(directory, entries).open()
    assert told.value.kind == "target-differs"
    (directory / "empty").touch()
    target = PushTarget(directory, entries)
    target.open()
    assert target.there
