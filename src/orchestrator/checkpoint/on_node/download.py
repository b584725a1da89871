"""Verb `download`: a repository of a model hub into a directory of this node, by the hub's own client.

Lines: HubLine, twice a second how far it is, at the end the outcome; of a dry run what would be brought. It grows as
NAME.l40s-download and gets its name when every file has the size and digest that the hub names. When nobody reads any
more the client is ended; the same request resumes: with the files that are not complete (huggingface_hub from 1.0 on),
or within them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import select
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.checkpoint.on_node.target import check_space
from orchestrator.checkpoint.on_node.unfinished import Unfinished
from orchestrator.checkpoint.on_node.work import FileWork, say
from orchestrator.node import dispatch
from orchestrator.node.files import refuse_links
from orchestrator.node.os_errors import os_failures
from orchestrator.node.requests import TICK_S, reader_is_gone, request_of, tell
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.jobs import Downloaded, HubLine, HubRequest, Progress, WouldDownload

PARTIAL = ".l40s-download"
JOURNAL = ".l40s-lock"
ROOM = 1 << 30
"""Bytes that stay free on the disk."""
_CHUNK = 4 << 20
_CLIENTS_OWN = (".cache", "._____temp", ".msc", ".mv", ".mdl", ".git_hash", ".modelscope")
_AGAIN = "run the same command again: it resumes"


def stream(request: dict[str, Any]) -> None:
    """Bring it, check it, give it its name."""
    asked = request_of(HubRequest, request)
    target, python = Path(asked.directory), _python(asked.python)
    unfinished = Unfinished(target, JOURNAL, beside=PARTIAL)
    partial = unfinished.folder
    with os_failures(str(partial)):
        if not target.parent.is_dir():
            raise DeployError(
                "is not a directory",
                where=str(target.parent),
                fix=f"create it: mkdir -p {target.parent}",
                kind="no-model-root",
            )
        if asked.dry_run:
            _rehearse(asked, python, partial, target)
            return
        refuse_links(partial, "")
        with os.fdopen(unfinished.take("download"), "rb"):
            _bring(asked, python, unfinished)


def _rehearse(asked: HubRequest, python: str, partial: Path, target: Path) -> None:
    """Tell what a download would bring. Raises the DeployError that it would begin with."""
    with tempfile.TemporaryDirectory() as scratch, _client(asked, python, Path(scratch)) as client:
        files, commit = _listed(client)
    would = WouldDownload(
        directory=str(target),
        commit=commit,
        files=len(files),
        bytes=_bytes(files),
        held=_held(partial),
        free=shutil.disk_usage(target.parent).free,
        there=target.exists(),
    )
    if not would.there:
        _refuse_small_disk(partial, would.bytes)
    tell(HubLine(would=would).as_json())


def _bring(asked: HubRequest, python: str, unfinished: Unfinished) -> None:
    partial, target = unfinished.folder, unfinished.place
    with _client(asked, python, partial) as client:
        files, commit = _listed(client)
        outcome = Downloaded(
            directory=str(target),
            commit=commit,
            files=len(files),
            bytes=_bytes(files),
            by_size=sum(not _digest_of(listed) for listed in files),
            there=target.exists(),
        )
        if not outcome.there:
            _drop_orphans(partial)
            _refuse_small_disk(partial, outcome.bytes)
            _line(client, lambda: _say("downloading", _held(partial), outcome.bytes, len(files)))
    of = f"of {len(files)} files differ from the hub's, starting with"
    if outcome.there:
        _clear(partial)
        (partial / JOURNAL).unlink(missing_ok=True)
        unfinished.forget()
        with contextlib.suppress(OSError):
            partial.rmdir()
        if wrong := _wrong(target, files):
            fix = f"use another name: --as NAME; or continue the download from it: mv {target} {target}{PARTIAL}"
            raise DeployError(
                f"already exists, and {len(wrong)} {of} {wrong[0]}", where=str(target), fix=fix, kind="differs"
            )
    else:
        if wrong := _wrong(partial, files):
            for path in wrong:
                notes = (partial / ".cache/huggingface/download").glob(f"{path}*")  # that the client has it
                for file in (partial / path, *notes):
                    file.unlink(missing_ok=True)
            raise DeployError(
                f"{len(wrong)} {of} {wrong[0]}; they were removed", where=str(partial), fix=_AGAIN, kind="differs"
            )
        _clear(partial)
        unfinished.finish()
    tell(HubLine(outcome=outcome).as_json())


def _python(path: str) -> str:
    if not os.access(python := os.path.expanduser(path), os.X_OK):
        fix = "install the stack (l40s-deploy prepare), or name an interpreter that has the hub's client: --python PATH"
        raise DeployError("no such interpreter", where=path, fix=fix, kind="no-python")
    return python


@contextlib.contextmanager
def _client(asked: HubRequest, python: str, partial: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The hub's client in a process of its own, which ends with us."""
    application = dispatch.application()
    start = f"import sys; sys.path.insert(0, {application!r}); from orchestrator.node import dispatch; "
    quiet = {
        "HF_HOME": str(partial / ".cache" / "hub"),
        "MODELSCOPE_CACHE": str(partial / ".cache" / "modelscope"),
        "MODELSCOPE_HOME": str(partial / ".cache" / "modelscope-home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_OFFLINE": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with subprocess.Popen(
        [python, "-c", start + "sys.exit(dispatch.serve(sys.argv[1:]))", "hub-client"],
        env={**os.environ, **quiet},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(json.dumps(replace(asked, directory=str(partial)).as_json()).encode() + b"\n")
            yield process
        finally:
            process.kill()


def _line(client: subprocess.Popen[bytes], meanwhile: Callable[[], None]) -> dict[str, Any]:
    """The client's next line. Raises the DeployError that it reports, and BrokenPipeError if our reader is gone.

    It writes whole lines, and nothing behind its last one: what is buffered here is followed by its end.
    """
    assert client.stdout is not None
    while not select.select([client.stdout], [], [], TICK_S)[0]:
        if reader_is_gone(0):
            raise BrokenPipeError
        meanwhile()
    if not (line := client.stdout.readline()):
        raise DeployError(
            f"its client exited with status {client.wait()}", where=str(client.args), fix=_AGAIN, kind="hub"
        )
    reply = dict(json.loads(line))
    if "error" in reply:
        raise DeployError(**reply["error"])
    return reply


def _listed(client: subprocess.Popen[bytes]) -> tuple[list[dict[str, Any]], str]:
    """The files that the hub names, and their commit; held to paths inside the directory: a list from outside is not
    believed. .gitattributes and the like are no part of a checkpoint, and push leaves them."""
    listed = _line(client, lambda: None)
    files = []
    for file in listed.get("files") or ():
        path, size = PurePosixPath(str(file.get("path"))), file.get("size")
        if any(part.startswith(".") and part != ".." for part in path.parts):
            continue
        if path.is_absolute() or ".." in path.parts or not isinstance(size, int) or size < 0:
            raise DeployError(
                f"the hub lists the file {file!r}", where="download", fix="check the repository", kind="bad-list"
            )
        files.append(file)
    if not files:
        raise DeployError(
            "the hub lists no file",
            where="download",
            fix="correct the repository's name or --revision",
            kind="not-found",
        )
    return files, str(listed.get("commit"))


def _bytes(files: Sequence[dict[str, Any]]) -> int:
    return sum(file["size"] for file in files)


def _held(partial: Path) -> int:
    """Bytes on the disk so far, unfinished files too."""
    held = 0
    for folder, _, names in os.walk(partial):
        for name in names:
            with contextlib.suppress(OSError):
                held += os.lstat(f"{folder}/{name}").st_size
    return held


def _drop_orphans(partial: Path) -> None:
    """Unfinished files under random names, which huggingface_hub never goes on with: of the time of a killed client."""
    for path in (partial / ".cache").rglob("*.incomplete"):
        if re.search(r"\.[0-9a-f]{8}\.incomplete$", path.name):
            path.unlink()


def _refuse_small_disk(partial: Path, total: int) -> None:
    check_space(partial.parent, total - _held(partial) + ROOM, 0)


def _wrong(folder: Path, files: Sequence[dict[str, Any]]) -> list[str]:
    """The files that are not what the hub names."""
    work = FileWork(Progress(_bytes(files)))

    def is_right(file: dict[str, Any]) -> bool:
        return _is(folder / file["path"], file, work.add)

    right = work.on(files, is_right, lambda now: _say("verifying", now.done, now.total, len(files)))
    return [file["path"] for file, is_one in zip(files, right, strict=True) if not is_one]


def _is(path: Path, wanted: dict[str, Any], counted: Callable[[int], None]) -> bool:
    try:
        size = path.stat().st_size
    except OSError:
        return False
    if size != wanted["size"]:
        return False
    if not _digest_of(wanted):
        return True
    digest = hashlib.sha256() if wanted.get("sha256") else hashlib.sha1(b"blob %d\0" % size)  # noqa: S324 - git's
    with path.open("rb", buffering=0) as file:
        while data := file.read(_CHUNK):
            digest.update(data)
            counted(len(data))
        os.fsync(file.fileno())  # its bytes are on the disk before the directory gets its name
    return digest.hexdigest() == _digest_of(wanted)


def _digest_of(wanted: dict[str, Any]) -> str:
    """SHA-256, or git's id of a small file; '' where the hub names none."""
    return str(wanted.get("sha256") or wanted.get("git") or "")


def _clear(partial: Path) -> None:
    """What the clients and we keep beside the files."""
    for place in list(partial.iterdir()):
        if place.name in _CLIENTS_OWN and place.is_dir() and not place.is_symlink():
            shutil.rmtree(place, ignore_errors=True)
        elif place.name in _CLIENTS_OWN or place.name.startswith(".git"):
            place.unlink(missing_ok=True)


def _say(doing: str, done: int, total: int, files: int) -> None:
    say(HubLine(doing=doing, done=min(done, total), total=total, files=files))
