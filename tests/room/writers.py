"""Functions that make or write files, found in the code itself; `python -m tests.room` writes the page."""

from __future__ import annotations

import ast
import builtins
import errno
import io
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from pathlib import Path
from unittest import mock

from orchestrator.bench.store import keep_raw
from orchestrator.checkpoint.on_node import shard
from orchestrator.checkpoint.on_node.digests import Digests
from orchestrator.checkpoint.on_node.push.target import PushTarget
from orchestrator.checkpoint.on_node.target import target_failures
from orchestrator.checkpoint.on_node.unfinished import Unfinished
from orchestrator.hosts.steps import bundle as stack_bundle
from orchestrator.hosts.steps import prepare, runner, stack
from orchestrator.jobs.on_node import job
from orchestrator.loading import sources
from orchestrator.model.lacks import lack_of
from orchestrator.node import files
from orchestrator.node.agent import record
from orchestrator.node.bounded_log import append_line
from orchestrator.node.engine import scratch
from orchestrator.node.engine.logfile import LogFile
from orchestrator.node.os_errors import os_failures
from orchestrator.node.verbs import lock, same_root, stage
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.verbs import LockHolder
from orchestrator.records import documents
from orchestrator.remote import app_archive, ssh_keys
from orchestrator.support.steps import bundle
from orchestrator.tuning.on_node import tune
from orchestrator.tuning.steps import packs
from orchestrator.tuning.steps import run as tuning

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "orchestrator"
PAGE = Path(__file__).with_name("room.md")
KINDS: Mapping[str, int] = {
    "bytes": errno.ENOSPC, "inodes": errno.ENOSPC, "quota": errno.EDQUOT, "read-only": errno.EROFS,
    "descriptors": errno.EMFILE, "memory": errno.ENOMEM,
}  # fmt: skip
NO_INODES = os.statvfs_result((4096, 4096, 100, 50, 50, 1000, 10, 0, 0, 255))
"""Half of its bytes are free, and no inode."""
_MAKERS = {
    "write_text", "write_bytes", "mkdir", "makedirs", "mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryDirectory",
}  # fmt: skip
_CREATE = ("O_CREAT", "O_WRONLY", "O_RDWR")
WHO = {
    "/on_node/": "job on a node", "node/agent/": "agent", "node/engine/": "agent", "node/bounded_log.py": "agent",
    "node/files.py": "agent", "node/supervision.py": "agent", "node/": "verb on a node",
}  # fmt: skip
"""By a part of the path; the first that fits, else the controller."""
ELSEWHERE = {
    "hosts/": "the command ends; `lack_of` in cli/main.py has the words",
    "loading/": "the command ends; `lack_of` in cli/main.py has the words",
    "planning/": "the command ends; `lack_of` in cli/main.py has the words",
    "tuning/steps/": "the command ends; `lack_of` in cli/main.py has the words",
    "cli/": "/dev/null alone is opened, and where it can't be the command goes on",
    "/on_node/": "the job ends; `os_failures` has the words, on its node alone",
    "node/verbs/": "the verb ends; `state_failures` has the words, on its node alone",
    "node/look/": "the look goes on, and names what it could not read",
    "node/engine/": "the start ends; the agent reports why",
    "node/supervision.py": "the process keeps its name",
    "checkpoint/": "the job ends; `os_failures` has the words, on its node alone",
}
"""What comes of writers that are not played here, by the beginning or a part of their names."""
Play = Callable[[Path], object]


def _writes(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in _MAKERS:
        return True
    if name not in ("open", "fdopen"):
        return False
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    modes = [str(value.value) for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    to_write = any(set(mode) <= set("rwaxb+t") and set(mode) & set("wax+") for mode in modes if mode)
    return to_write or any(flag in ast.unparse(call) for flag in _CREATE)


def _within(node: ast.AST, scope: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        is_scope = isinstance(child, (ast.FunctionDef, ast.ClassDef))
        inner = f"{scope}.{child.name}".lstrip(".") if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else scope
        if not is_scope and isinstance(child, ast.Call) and _writes(child):
            yield scope
        yield from _within(child, inner)


@cache
def trees() -> Mapping[str, ast.Module]:
    """The product's files, parsed, by their paths in it."""
    return {str(file.relative_to(SOURCE)): ast.parse(file.read_text()) for file in sorted(SOURCE.rglob("*.py"))}


@cache
def writers() -> tuple[str, ...]:
    """Every one, as FILE:FUNCTION."""
    return tuple(sorted({f"{name}:{scope}" for name, tree in trees().items() for scope in _within(tree, "")}))


def who(writer: str) -> str:
    """Which of our processes."""
    return next((process for part, process in WHO.items() if part in f"{writer}"), "controller")


def elsewhere(writer: str) -> str:
    """'' for one that has to be played."""
    return next((words for part, words in ELSEWHERE.items() if writer.startswith(part) or f"{part}" in writer), "")


PLAYED: Mapping[str, Play] = {
    "bench/store.py:keep_raw": lambda _: keep_raw("a", "text"),
    "checkpoint/on_node/digests.py:Digests.keep": lambda folder: Digests(f"{folder}/s").keep(Path("/").stat(), "a"),
    "checkpoint/on_node/push/target.py:PushTarget.open": lambda folder: PushTarget(folder / "t", {"a": 1}).open(),
    "checkpoint/on_node/shard.py:can_share": lambda folder: _of_target(lambda: _shared(folder), folder),
    "checkpoint/on_node/unfinished.py:Unfinished.take": lambda folder: _of_target(
        lambda: os.close(Unfinished(folder / "t", ".j", beside=".p").take("push")), folder
    ),
    "hosts/steps/bundle.py:_write_tar": lambda folder: stack_bundle._write_tar(folder / "b.tar", {"a": "b"}, {}),
    "hosts/steps/prepare.py:_unpacked": lambda folder: prepare._unpacked(mock.Mock(lock="a==1"), folder),
    "hosts/steps/runner.py:_settings": lambda folder: runner._settings(folder, 1, "word"),
    "hosts/steps/stack.py:_beside": lambda folder: _entered(stack._beside(folder / "out.tar")),
    "jobs/on_node/job.py:_folder": lambda folder: _on_node(
        lambda _: _entered(job._folder(str(folder), mock.Mock(owner=lambda: None))), folder
    ),
    "loading/sources.py:_run": lambda folder: sources._run("ansible-inventory", folder / "hosts.yml", "--list"),
    "node/agent/record.py:_append": lambda folder: _on_node(lambda path: record._append(path, "x\n"), folder),
    "node/bounded_log.py:append_line": lambda folder: _on_node(lambda path: append_line(path, "x"), folder),
    "node/engine/logfile.py:LogFile._append": lambda folder: LogFile(str(folder / "log")).write(b"x"),
    "node/engine/scratch.py:make": lambda folder: scratch.make(mock.Mock(folder=str(folder / "gangs/g/runs/r"))),
    "node/files.py:write": lambda folder: _on_node(lambda path: files.write(path, "x"), folder),
    "node/files.py:write_in_any_case": lambda folder: _on_node(lambda path: files.write_in_any_case(path, "x"), folder),
    "node/verbs/lock.py:_acquire": lambda folder: _in_state(
        lambda: lock._acquire(f"{folder}/gangs/g/lock", LockHolder(token="t"), "", "node0"), folder
    ),
    "node/verbs/same_root.py:answer": lambda folder: same_root.answer(
        {"op": "write", "directory": str(folder), "name": f".l40s-nonce-{7:016x}", "names": [], "child": ""}
    ),
    "node/verbs/stage.py:make_cache": lambda folder: _in_state(
        lambda: stage.make_cache(str(folder), mock.Mock(env={"XDG_CACHE_HOME": f"{folder}/cache/p"})), folder
    ),
    "node/verbs/stage.py:make_folders": lambda folder: _in_state(
        lambda: stage.make_folders(str(folder), f"{folder}/gangs/g/runs/r"), folder
    ),
    "records/documents.py:RunRecord.event": lambda folder: documents.RunRecord(folder).event("x"),
    "records/documents.py:expect_writable": lambda folder: documents.expect_writable(
        folder / "x", "name another file with --out"
    ),
    "records/documents.py:note": lambda _: documents.note("up", gang="g", holder={}),
    "records/documents.py:write_whole": lambda folder: documents.write_whole(folder / "a" / "x", "t", folders=0o700),
    "remote/app_archive.py:_keep": lambda folder: app_archive._keep(folder / "app", mock.Mock(digest="a", content=b"")),
    "remote/ssh_keys.py:record": lambda folder: ssh_keys.record(
        mock.Mock(known_hosts=[folder / "known"], host_key_name="h"), "ssh-ed25519", "AAAA"
    ),
    "support/steps/bundle.py:_write": lambda folder: bundle._write(folder / "b.tar.gz", {"a": "b"}),
    "tuning/on_node/tune.py:_Keeping.__enter__": lambda folder: _in_state(
        lambda: _entered(tune._Keeping(folder / "venv", dry=False)), folder
    ),
    "tuning/on_node/tune.py:_write": lambda folder: _in_state(
        lambda: tune._write(f"{folder}/venv/lib/configs/c.json", "{}"), folder
    ),
    "tuning/steps/packs.py:_write_folder": lambda folder: packs._write_folder(folder / "pack", {"a/b": "c"}),
    "tuning/steps/run.py:keep_result": lambda _: tuning.keep_result("k", {}),
}


def _on_node(write: Callable[[str], object], folder: Path) -> None:
    with os_failures(str(folder / "x")):
        write(str(folder / "x"))


def _in_state(write: Callable[[], object], folder: Path) -> None:
    with files.state_failures(str(folder)):
        write()


def _of_target(write: Callable[[], object], folder: Path) -> None:
    with target_failures(folder / "t"):
        write()


def _shared(folder: Path) -> bool:
    with Path(sys.executable).resolve().open("rb") as source:
        return shard.can_share(source.fileno(), folder)


def _entered(context: AbstractContextManager[object]) -> None:
    with context:
        pass


@contextmanager
def no_room(kind: str, folder: Path) -> Iterator[None]:
    """Nothing can be made or opened below a folder."""

    def refusing(real: Callable[..., object]) -> Callable[..., object]:
        def call(path: object, *words: object, **more: object) -> object:
            if not isinstance(path, int) and str(path).startswith(str(folder)):
                raise OSError(KINDS[kind], os.strerror(KINDS[kind]), str(path))
            return real(path, *words, **more)

        return call

    with ExitStack() as stack:
        makers = ((os, "open"), (os, "mkdir"), (builtins, "open"), (io, "open"), (tarfile, "bltn_open"))
        for module, name in makers:
            stack.enter_context(mock.patch.object(module, name, refusing(getattr(module, name))))
        if kind == "inodes":
            stack.enter_context(mock.patch.object(os, "statvfs", lambda _: NO_INODES))
        yield


@cache
def outcome(writer: str, kind: str) -> str:
    """What comes of it, played once: `goes on`, or the words. Raises what is no words."""
    with tempfile.TemporaryDirectory(prefix="room-") as name:
        folder = Path(name)
        places = {"XDG_STATE_HOME": name, "TMPDIR": name}
        with mock.patch.dict(os.environ, places), mock.patch.object(tempfile, "tempdir", name), no_room(kind, folder):
            try:
                PLAYED[writer](folder)
            except DeployError as told:
                return f"{told.what}; {told.fix}".replace(name, "FOLDER")
            except OSError as error:
                if (lack := lack_of(error)) is None:
                    raise
                return f"{lack.what}; {lack.fix}".replace(name, "FOLDER")
    return "goes on"


HEAD = """# No room

Written by `python -m tests.room`, from the functions in src/ that make or write a file. Each kind of room was
refused to the ones below, and this is what came of it. The guard and the exporter write nothing of their own: the
guard's notes are `note` and `write_whole` of the controller, and the router's are its node's agent's.

| writer | whose | where nothing can be written |
|---|---|---|
"""
REST = """
The others are not played; what stands around them in the code:

| in | where nothing can be written |
|---|---|
"""


def page() -> str:
    """As it is committed."""
    played = "".join(f"| `{writer}` | {who(writer)} | {_said(writer)} |\n" for writer in sorted(PLAYED))
    return HEAD + played + REST + "".join(f"| `{part}` | {words} |\n" for part, words in ELSEWHERE.items())


def _said(writer: str) -> str:
    by_words: dict[str, list[str]] = {}
    for kind in KINDS:
        by_words.setdefault(outcome(writer, kind), []).append(kind)
    if list(by_words) == ["goes on"]:
        return "played: goes on without it"
    return "played: " + "<br>".join(f"**{', '.join(kinds)}**: {words}" for words, kinds in by_words.items())
