"""Verb `push-receive`: one link of the chain. Fetches from the one before, offers to the one after.

The answer is lines: first {"port", "secret"} of our own offer, then how far it is twice a second, `complete` in the
last ones: the directory is in its place, and others are still served. It ends when nobody reads any more, and with it
everything that it started.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.on_node.digests import CHUNK, Counted, Digests
from orchestrator.checkpoint.on_node.push.giver import (
    FILES,
    IDLE_S,
    USER,
    ConnectionLost,
    Giver,
    hear_ready,
    own_folder,
    rsync,
)
from orchestrator.checkpoint.on_node.push.target import REPAIR, FileEntry, PushTarget, entries_of
from orchestrator.node import files
from orchestrator.node.failure import Failure, failure_of, os_failures
from orchestrator.node.requests import TICK_S, reader_is_gone, request_of, tell
from orchestrator.protocol.jobs import Giving, ReceiveRequest

PATIENCE_S = 20.0
"""When connections to the one before us have failed for this long, it counts as lost."""
AGAIN_S = 0.2
MOST_AT_ONCE = 16
"""Files that one rsync fetches, so that streams share what is ready."""
TRIES = 2
CONNECT_S = 10
POLL_S = 0.02
_DISK = 11
"""rsync(1), EXIT VALUES: error in file I/O; on the fetching side, since the giver only reads."""


def stream(request: dict[str, Any]) -> None:
    """Fetch, check, offer, finish, and serve until the caller goes away."""
    os.umask(0o022)  # whoever the engine runs as must be able to read what arrives
    asked = request_of(ReceiveRequest, request)
    try:
        entries = entries_of(asked.files)
    except ValueError as wrong:
        raise Failure("outside", f"the list of files is refused: {wrong}", "request", files.FIX) from None
    target = PushTarget(Path(asked.directory), entries, repair=asked.repair)
    with os_failures(asked.directory):
        _receive(asked, files.state_dir(asked.state_dir), target)


def _receive(asked: ReceiveRequest, state: str, target: PushTarget) -> None:
    folder = own_folder(state, "receive")
    target.open()
    giver = Giver(folder, target.folder)
    try:
        port = giver.listen(asked.address, asked.port)
        arrival = Arrival(target, Digests(state), asked.upstream, _command(asked, folder, target.arriving), giver)
        tell({"port": port, "secret": giver.secret, "there": target.there})
        for work in (arrival.listen, *[arrival.work] * max(1, asked.streams)):
            threading.Thread(target=work, daemon=True).start()
        try:
            while not reader_is_gone(TICK_S):
                tell(arrival.progress())
                if arrival.failure is not None:
                    raise arrival.failure
        finally:
            arrival.stop()
    finally:
        giver.close()
        target.close()


def _command(asked: ReceiveRequest, folder: Path, into: Path) -> list[str]:
    """argv of an rsync that fetches the files that its stdin names, in that order, each growing under its own name, and
    keeps what is there already. folder: our own, for the password: a command line is everybody's."""
    before = asked.upstream
    files.write(str(folder / "password"), before.secret + "\n")
    rate = asked.bytes_per_s // max(1, asked.streams)
    host = f"[{before.address}]" if ":" in before.address else before.address
    return rsync(
        f"--password-file={folder}/password",
        f"--contimeout={CONNECT_S}",
        f"--timeout={IDLE_S}",
        "--no-motd",
        "-8",
        *([f"--bwlimit={max(1, rate // 1024)}"] if rate else ()),
        "--append",
        "--copy-links",
        "--from0",
        "--files-from=-",
        "--outbuf=L",
        "--out-format=%b %n",
        f"rsync://{USER}@{host}:{before.port}/{FILES}/",
        f"{into}/",
    )


class Arrival:
    """All files of one directory that are being received, by several threads. command: of one rsync"""

    def __init__(
        self, target: PushTarget, digests: Digests, upstream: Giving, command: Sequence[str], giver: Giver
    ) -> None:
        self.failure: Failure | None = None
        self._target = target
        self._digests = digests
        self._upstream = upstream
        self._command = command
        self._giver = giver
        self._todo = deque(target.entries)
        self._wanted = {entry.path for entry in target.entries}
        self._left = len(target.entries)
        self._ready: dict[str, str] = {}
        self._tries: Counter[str] = Counter()
        self._placed: set[str] = set()
        self._bytes = 0
        self._sent = 0
        self._complete = not target.entries
        self._stopped = False
        self._lost_since = 0.0
        """When connections began to fail, monotonic; 0 while they do not."""
        self._fetches: set[Fetch] = set()
        self._news = threading.Condition()

    def progress(self) -> dict[str, Any]:
        """How far this node is: bytes that are here and checked, or being checked."""
        return {"bytes": self._bytes, "complete": self._complete, "sent": self._sent}

    def stop(self) -> None:
        """End every rsync; threads end at their next step."""
        self._stopped = True
        for fetch in list(self._fetches):
            fetch.kill()

    def listen(self) -> None:
        """A thread's life: hear what is ready; when the connection ends, begin again."""
        before = self._upstream
        self._live(lambda: hear_ready(before.address, before.port, before.secret, self._hear))

    def work(self) -> None:
        """A thread's life: take what is ready, until nothing is left."""
        self._live(self._step)

    def _live(self, step: Callable[[], None]) -> None:
        while self._left and not self._stopped and self.failure is None:
            self._try(step)

    def _try(self, step: Callable[[], None]) -> None:
        """The first failure ends all. A broken connection is made again; whoever has not answered for long is gone."""
        try:
            step()
        except ConnectionLost as lost:
            self._lost_since = self._lost_since or time.monotonic()
            if time.monotonic() - self._lost_since > PATIENCE_S:
                what = f"the previous node in the chain sends nothing: {lost}"
                where = f"{self._upstream.address} port {self._upstream.port}"
                fix = (
                    "check that this node reaches that port; choose another network with --interface, another port with"
                )
                self.failure = self.failure or Failure("upstream", what, where, f"{fix} --port")
            time.sleep(AGAIN_S)
        except Exception as wrong:
            self.failure = self.failure or failure_of(wrong, str(self._target.directory), "push-receive")

    def _hear(self, path: str, digest: str) -> None:
        with self._news:
            if path not in self._wanted:
                return  # none of ours: memory is for those only
            self._ready[path] = digest
            self._lost_since = 0.0
            self._news.notify_all()

    def _step(self) -> None:
        batch = self._take()
        try:
            if missing := [entry for entry in batch if not self._is_here(entry)]:
                self._fetch(missing)
        finally:  # what did not come is to be fetched again
            with self._news:
                self._todo.extendleft(reversed([entry for entry in batch if entry.path not in self._placed]))

    def _take(self) -> list[FileEntry]:
        """Some of the files that are ready, in their order; waits a little for the first."""
        with self._news:
            ready = [entry for entry in self._todo if entry.path in self._ready]
            if not ready:
                self._news.wait(AGAIN_S)
            batch = ready[: max(1, min(MOST_AT_ONCE, len(ready) // 2))]
            for entry in batch:
                self._todo.remove(entry)
            return batch

    def _is_here(self, entry: FileEntry) -> bool:
        """Whether a file is in its place with the right digest; a wrong one goes, unless it was never ours."""
        path = self._target.folder / entry.path
        if not path.exists():
            if self._target.there:
                what = "is missing in a directory that existed before"
                raise Failure("target-differs", what, str(path), REPAIR)
            return False
        size = path.stat().st_size
        if self._target.repairs and size != entry.size:
            return False
        if self._digests.of(path, self._counted, fresh=self._target.repairs) == self._ready[entry.path]:
            self._done(entry)
            return True
        if self._target.there:
            what = "differs from the source, in a directory that existed before"
            raise Failure("target-differs", what, str(path), REPAIR)
        self._counted(-size)
        if not self._target.repairs:
            path.unlink()
        return False

    def _fetch(self, batch: Sequence[FileEntry]) -> None:
        arriving = self._target.arriving
        for entry in batch:
            files.refuse_links(arriving, entry.source)
            if files.size(arriving / entry.source) > entry.size:  # --append leaves what is longer
                (arriving / entry.source).unlink()
        fetch = Fetch(self._command, batch)
        self._fetches.add(fetch)
        try:
            for entry in batch:
                self._check(entry, fetch)
            fetch.end()
        finally:
            fetch.kill()
            self._fetches.discard(fetch)

    def _check(self, entry: FileEntry, fetch: Fetch) -> None:
        path = self._target.arriving / entry.source
        came, before = 0, files.size(path)

        def counted(count: int) -> None:
            nonlocal came
            came += count
            if came > before:
                self._lost_since = 0.0
            self._counted(count)

        digest = fetch.follow(entry, path, counted)
        if digest is None or not path.exists():  # another entry with the same source has taken it
            self._counted(-came)
            return
        wanted = self._ready[entry.path]
        if digest == wanted:
            self._digests.keep(self._target.place(path, entry.path), digest)
            self._sent += 1
            self._done(entry)
            return
        self._counted(-came)
        path.unlink()
        self._tries[entry.path] += 1
        if self._tries[entry.path] >= TRIES:
            what = f"arrived {TRIES} times with SHA-256 {digest[:16]}..., but the source has {wanted[:16]}..."
            fix = "check whether the source has changed; if not, test memory and disk of this node and the previous one"
            raise Failure("digest", what, entry.path, fix)

    def _done(self, entry: FileEntry) -> None:
        self._placed.add(entry.path)
        self._giver.offer(entry.path, self._ready[entry.path])
        with self._news:
            self._left -= 1
            if self._left:
                return
        self._target.finish()
        self._giver.move(self._target.folder)
        self._complete = True

    def _counted(self, count: int) -> None:
        if self._stopped:
            raise Failure("stopped", "the controller no longer waits for it", "push-receive")
        with self._news:
            self._bytes += count


class Fetch:
    """One rsync that fetches some files."""

    def __init__(self, command: Sequence[str], entries: Sequence[FileEntry]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._finished: set[str] = set()
        self._errors = b""
        wanted = b"".join(entry.source.encode("utf-8", "surrogateescape") + b"\0" for entry in entries)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(wanted)
            self._process.stdin.close()
        self._readers = [threading.Thread(target=work, daemon=True) for work in (self._read_names, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def follow(self, entry: FileEntry, path: Path, counted: Counted) -> str | None:
        """The file's SHA-256 once rsync has done with it; None where it came to an end before the file's."""
        digest, at = hashlib.sha256(), 0
        while True:
            ended = self._process.poll() is not None
            with contextlib.suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
                file.seek(at)
                while data := file.read(CHUNK):
                    digest.update(data)
                    at += len(data)
                    counted(len(data))
            if at >= entry.size and (ended or entry.source in self._finished):
                return digest.hexdigest()
            if ended:
                return None
            time.sleep(POLL_S)

    def end(self) -> None:
        """Wait for rsync. Raises ConnectionLost where it failed, Failure where the disk did."""
        status = self._process.wait()
        for reader in self._readers:
            reader.join(1)
        if status == _DISK:
            fix = "check the disk (`df -h`, `dmesg`), then push again; it resumes where it stopped"
            raise Failure("io", _last_line(self._errors), "rsync", fix)
        if status:
            raise ConnectionLost(_last_line(self._errors) or f"rsync ended with {status}")

    def kill(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait()

    def _read_names(self) -> None:
        """rsync tells a file when it has done with it: it will not touch that name again."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            _, _, name = line.decode("utf-8", "surrogateescape").rstrip("\n").partition(" ")
            self._finished.add(name)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = (self._errors + line)[-4096:]


def _last_line(text: bytes) -> str:
    """rsync's last line is its own summary; the one before it says why."""
    lines = text.decode("utf-8", "replace").strip().splitlines()
    reasons = [line for line in lines if not line.startswith("rsync error:")]
    return (reasons or lines or [""])[-1][:300]
