"""Verb `push-receive`: one link of the chain. Fetches from the one before, offers to the one after.

The answer is lines: first {"port", "secret"} of our own offer, then how far it is twice a second, `complete` in the
last ones: the directory is in its place, and others are still served. It ends when nobody reads any more.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.on_node.digests import CHUNK, Digests
from orchestrator.checkpoint.on_node.push.giver import ConnectionLost, Giver, bytes_of, ready_at
from orchestrator.checkpoint.on_node.push.target import REPAIR, PushTarget, checked
from orchestrator.checkpoint.on_node.shard import write_at
from orchestrator.node import files
from orchestrator.node.os_errors import failure_of, os_failures
from orchestrator.node.requests import TICK_S, reader_is_gone, request_of, tell
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.jobs import ReceiveRequest

PATIENCE_S = 20.0
"""When connections to the one before us have failed for this long, it counts as lost."""
AGAIN_S = 0.2
TRIES = 2


def stream(request: dict[str, Any]) -> None:
    """Fetch, check, offer, finish, and serve until the caller goes away."""
    os.umask(0o022)  # whoever the engine runs as must be able to read what arrives
    asked = request_of(ReceiveRequest, request)
    try:
        entries = checked(asked.files)
    except ValueError as wrong:
        raise DeployError(
            f"the list of files is refused: {wrong}", where="request", fix=files.FIX, kind="outside"
        ) from None
    target = PushTarget(Path(asked.directory), entries, repair=asked.repair)
    with os_failures(asked.directory):
        lock = target.open()
        giver = Giver(target.folder)
        port = giver.listen(asked.address, asked.port)
        arrival = Arrival(asked, target, Digests(files.state_dir(asked.state_dir)), giver)
        tell({"port": port, "secret": giver.secret, "there": target.there})
        threading.Thread(target=arrival.listen, daemon=True).start()
        for _ in range(max(1, asked.streams)):
            threading.Thread(target=arrival.work, daemon=True).start()
        try:
            while not reader_is_gone(TICK_S):
                tell(arrival.progress())
                if arrival.failure is not None:
                    raise arrival.failure
        finally:
            arrival.stopped = True
            if lock is not None:  # now: a thread that waits for the disk ends this process long afterwards
                os.close(lock)


class Arrival:
    """All files of one directory that are being received, by several threads, which end at their next step once it is
    stopped."""

    def __init__(self, asked: ReceiveRequest, target: PushTarget, digests: Digests, giver: Giver) -> None:
        self.failure: DeployError | None = None
        self.stopped = False
        self._target = target
        self._digests = digests
        self._upstream = asked.upstream
        self._rate = -(-asked.bytes_per_s // max(1, asked.streams))
        self._giver = giver
        self._todo = deque(target.entries)
        self._left = len(target.entries)
        self._ready: dict[str, str] = {}
        self._tries: Counter[str] = Counter()
        self._here = dict.fromkeys(target.entries, 0)
        """Bytes of each that are here and checked, or being checked."""
        self._sent = 0
        self._complete = not target.entries
        self._lost_since = 0.0
        """When connections began to fail, monotonic; 0 while they do not."""
        self._news = threading.Condition()

    def progress(self) -> dict[str, Any]:
        """How far this node is."""
        return {"bytes": sum(self._here.values()), "complete": self._complete, "sent": self._sent}

    def listen(self) -> None:
        """A thread's life: hear what is ready; when the connection ends, begin again."""
        self._live(self._hear)

    def work(self) -> None:
        """A thread's life: take what is ready, until nothing is left."""
        self._live(self._step)

    def _live(self, step: Callable[[], None]) -> None:
        while self._left and not self.stopped and self.failure is None:
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
                self.failure = self.failure or DeployError(what, where=where, fix=f"{fix} --port", kind="upstream")
            time.sleep(AGAIN_S)
        except Exception as wrong:
            self.failure = self.failure or failure_of(wrong, str(self._target.directory), "push-receive")

    def _hear(self) -> None:
        for path, digest in ready_at(self._upstream):
            with self._news:
                if path in self._target.entries:  # memory is for ours only
                    self._ready[path] = digest
                    self._lost_since = 0.0
                    self._news.notify_all()

    def _step(self) -> None:
        """The first file that is ready; waits a little for it. What did not come is to be fetched again."""
        with self._news:
            path = next((path for path in self._todo if path in self._ready), None)
            if path is None:
                self._news.wait(AGAIN_S)
                return
            self._todo.remove(path)
        came = False
        try:
            came = self._is_here(path) or self._fetched(path)
        finally:
            if not came:
                with self._news:
                    self._todo.appendleft(path)
        if came:
            self._offer(path)

    def _offer(self, path: str) -> None:
        """To the next node; with the last one the directory gets its name."""
        self._giver.offer(path, self._ready[path])
        with self._news:
            self._left -= 1
            if self._left:
                return
        self._target.finish()
        self._giver.root = self._target.folder
        self._complete = True

    def _is_here(self, path: str) -> bool:
        """Whether a file is in its place with the right digest; a wrong one goes, unless it was never ours."""
        place, repairs = self._target.folder / path, self._target.repairs
        size = files.size(place)
        if size >= 0 and not (repairs and size != self._target.entries[path]):
            if self._digests.of(place, partial(self._count, path), fresh=repairs) == self._ready[path]:
                return True
            self._here[path] = 0
        if self._target.there:
            state = "is missing" if size < 0 else "differs from the source,"
            raise DeployError(
                f"{state} in a directory that existed before", where=str(place), fix=REPAIR, kind="target-differs"
            )
        if size >= 0 and not repairs:
            place.unlink()
        return False

    def _fetched(self, path: str) -> bool:
        """Whether a file has come, behind what is here of it already, with the right digest; a wrong one goes.

        Raises DeployError where it has come wrong too often.
        """
        digest, wanted, size = hashlib.sha256(), self._ready[path], self._target.entries[path]
        self._here[path] = 0
        with self._target.arriving(path) as arriving:
            while data := os.pread(arriving, CHUNK, self._here[path]):
                digest.update(data)
                self._count(path, len(data))
            for part in self._coming(path, size - self._here[path]):
                digest.update(part)
                write_at(arriving, part, self._here[path])
                self._lost_since = 0.0
                self._count(path, len(part))
            if (sha256 := digest.hexdigest()) == wanted:
                self._digests.keep(self._target.place(arriving, path), sha256)
                self._sent += 1
                return True
            os.ftruncate(arriving, 0)
        self._here[path] = 0
        self._tries[path] += 1
        if self._tries[path] >= TRIES:
            what = f"arrived {TRIES} times with SHA-256 {sha256[:16]}..., but the source has {wanted[:16]}..."
            fix = "check whether the source has changed; if not, test memory and disk of this node and the previous one"
            raise DeployError(what, where=path, fix=fix, kind="digest")
        return False

    def _coming(self, path: str, left: int) -> Generator[memoryview, None, None]:
        """The last bytes of a file, so many, not faster than our share of the link. Raises ConnectionLost."""
        if left <= 0:
            return
        began, came = time.monotonic(), 0
        with closing(bytes_of(self._upstream, path, self._here[path], self._rate or CHUNK)) as coming:
            for data in coming:
                yield data
                came += len(data)
                if came >= left:
                    return
                if self._rate:
                    time.sleep(max(0.0, began + came / self._rate - time.monotonic()))
        raise ConnectionLost("it closed the connection")

    def _count(self, path: str, count: int) -> None:
        if self.stopped:
            raise DeployError("the controller no longer waits for it", where="push-receive", fix="", kind="stopped")
        self._here[path] += count
