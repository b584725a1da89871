"""The fetching side of a push: files from the one before us in the chain, checked while they grow."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.checkpoint.on_node.push.giver import FILES, IDLE_S, USER, rsync
from orchestrator.checkpoint.on_node.push.target import FileEntry
from orchestrator.node import files
from orchestrator.node.failure import Failure
from orchestrator.node.sha256 import CHUNK, Counted

CONNECT_S = 10
POLL_S = 0.02
_DISK = 11
"""rsync(1), EXIT VALUES: error in file I/O; on the fetching side, since the giver only reads."""


class ConnectionLost(Exception):
    """A connection failed or ended early; the next try may do better. The text is rsync's last line."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """The one before us. bytes_per_s: limit for one stream, 0 for none; folder: our own, for the secret"""

    address: str
    port: int
    secret: str
    folder: Path
    bytes_per_s: int = 0

    def keep_secret(self) -> None:
        """The password into a file that only we may read: a command line is everybody's."""
        files.write(str(self.folder / "password"), self.secret + "\n")

    def fetch(self, entries: Sequence[FileEntry], into: Path) -> Fetch:
        """Start to fetch files, in this order, each growing under its own name; what is there already is kept."""
        limit = (f"--bwlimit={max(1, self.bytes_per_s // 1024)}",) if self.bytes_per_s else ()
        words = (*limit, "--append", "--copy-links", "--from0", "--files-from=-", "--outbuf=L", "--out-format=%b %n")
        return Fetch([*self._command(), *words, f"{self._url()}/", f"{into}/"], entries)

    def _command(self) -> list[str]:
        times = (f"--contimeout={CONNECT_S}", f"--timeout={IDLE_S}")
        return rsync(f"--password-file={self.folder}/password", *times, "--no-motd", "-8")

    def _url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"rsync://{USER}@{host}:{self.port}/{FILES}"


class Fetch:
    """One rsync that fetches some files."""

    def __init__(self, command: list[str], entries: Sequence[FileEntry]) -> None:
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
        """Wait for rsync. Raises Lost where it failed, Failure where the disk did."""
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
