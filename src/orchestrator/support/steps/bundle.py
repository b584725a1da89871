"""`support-bundle`: one file for a bug report. It names what can't be read, and has the rest."""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import re
import secrets
import socket
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.doctor.steps.recordings import file_name
from orchestrator.gang.steps.locks import user as who_types
from orchestrator.gang.steps.operation import Operation, connected
from orchestrator.gang.steps.status.history import (
    GangHistory,
    around_failure,
    hang_looks,
    history,
    versions,
    why,
    why_json,
)
from orchestrator.gang.steps.status.live import loaded_json, node_loads
from orchestrator.gang.steps.status.logs import logs
from orchestrator.gang.steps.status.overview import overview
from orchestrator.loading.secret_file import read_api_key, read_private_line
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.inventory import Inventory, NodeSpec, Overrides, Recipient
from orchestrator.model.secret_text import is_hidden, is_secret, long_enough
from orchestrator.model.snapshot import snapshot_json
from orchestrator.planning.steps.look import look
from orchestrator.protocol.errors import DeployError, InputError, VerificationDiffers
from orchestrator.records.documents import cant_be_written, draft_of, expect_writable
from orchestrator.remote.allowance import allotted
from orchestrator.remote.fleet import Fleet
from orchestrator.topology.redaction import Pseudonyms, redact_under
from orchestrator.topology.scrubbing import ACCOUNTS, CANNOT_TELL, Scrubber

LOG_LINES = 400
"""Of each node's newest log, in addition to those around the failure."""
AROUND = 200
KEY_BYTES = 32
PATIENCE_S = 100.0
"""With each node, over all parts: enough where its two looks alone never end, so that the rest of it is there."""
FIRST = "READ-FIRST.txt"
"""In the archive's order, which is the names', before all others."""
_OF_A_RUN = ("run_id", "plan_id", "model", "started", "ended", "end", "by", "command")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportBundle:
    """What was written. missing: what is not in it, with the reason."""

    path: Path
    files: tuple[str, ...]
    missing: Mapping[str, str]
    bytes: int


def bundle(
    inventory: Inventory,
    gangs: tuple[str, ...],
    out: Path,
    step: Callable[[str], None] = lambda _: None,
    *,
    with_logs: bool = True,
) -> SupportBundle:
    """Ask the nodes, remove secrets and names, and write one archive of mode 0600. with_logs: False for no log line

    Its first file says what was replaced how often, and what can't be told from text. A node that has taken PATIENCE_S
    is left out of the parts that remain.

    Raises InputError if the file can't be written, VerificationDiffers if it would contain a secret; nothing is
    written then.
    """
    expect_writable(out, _ANOTHER_FILE, new=True)
    nodes = [node for gang in chosen_gangs(inventory, gangs) for node in gang.nodes]
    scrubber = scrubber_of(inventory, nodes, secrets.token_bytes(KEY_BYTES), os.environ)
    with allotted(PATIENCE_S), connected(inventory) as operation:
        step("snapshots")
        # first: their numbers are known in other texts then
        texts, missing = _snapshots(operation.fleet, nodes, scrubber.pseudonyms)
        _gather(scrubber, _sources(operation, gangs, with_logs=with_logs), texts, missing, step)
        if with_logs:
            step("logs")
            _logs(operation, gangs, scrubber, texts, missing)
    scrubbed = scrubber.value(missing)
    about = {"nodes": len(nodes), "logs": with_logs, "replaced": dict(sorted((+scrubber.replaced).items()))}
    texts["manifest.json"] = _manifest({**about, "files": sorted(texts), "missing": scrubbed})
    texts[FIRST] = _first(scrubber.replaced, with_logs=with_logs)
    _refuse_left(texts, scrubber)
    return SupportBundle(path=out, files=tuple(sorted(texts)), missing=scrubbed, bytes=_write(out, texts))


def _manifest(about: Mapping[str, Any]) -> str:
    here = {"version": __version__, "python": platform.python_version(), "kernel": platform.release()}
    return _json({"format": 1, **here, "taken_at": time.time(), **about})


def _refuse_left(texts: Mapping[str, str], scrubber: Scrubber) -> None:
    """Raises VerificationDiffers where a known secret or name is still there."""
    for name, text in texts.items():
        # `redact` has checked the names in snapshots, where NUMA domains are called node0, as machines often are
        in_snapshot = name.startswith("snapshots/")
        judge = Scrubber(scrubber.pseudonyms, scrubber.secrets) if in_snapshot else scrubber
        if left := judge.left(f"{name}\n{text}"):
            raise VerificationDiffers(
                f"{name} would still contain {'a secret' if left in scrubber.secrets else repr(left)}",
                where="support-bundle",
                fix="nothing was written. Report this bug without the bundle",
            )


def scrubber_of(
    inventory: Inventory, nodes: Sequence[NodeSpec], key: bytes, environment: Mapping[str, str]
) -> Scrubber:
    """What takes out the secrets, and the names and addresses of these nodes. key: random bytes that nobody keeps"""
    return Scrubber(
        Pseudonyms(key), known_secrets(inventory, environment), _names(nodes, inventory), _folders(nodes, inventory)
    )


_ANOTHER_FILE = "name another file with --out"
_ORDINARY_FOLDERS = re.compile(r"/(?:[^/]*|opt/l40s(?:/.*)?|var/lib/l40s-deploy|tmp/.*|home/[^/]*)")


def _folders(nodes: Sequence[NodeSpec], inventory: Inventory) -> tuple[str, ...]:
    """Where this machine's user works, and where the nodes keep models, engines and state."""
    mine = [Path(inventory.path).expanduser().absolute().parent, Path("~").expanduser()]
    with contextlib.suppress(OSError):  # a folder that is gone
        mine.append(Path.cwd())
    theirs = [folder for node in nodes for folder in (node.model_root, node.venv, node.state_dir) if folder]
    return tuple(folder for folder in (*map(str, mine), *theirs) if not _ORDINARY_FOLDERS.fullmatch(folder))


def _files_to_notify(recipients: Sequence[Recipient]) -> set[str]:
    """Files with a secret that somebody is notified with; '' among them."""
    files = {file for recipient in recipients for file in (recipient.url_file, recipient.sign_file)}
    return files | {recipient.mail.password_file for recipient in recipients if recipient.mail}


def known_secrets(inventory: Inventory, environment: Mapping[str, str]) -> tuple[str, ...]:
    """API keys of all nodes and of the router, what is needed to notify, and secrets in the nodes' and in this
    process's environment; of l40s_env also what else is not shown, beside its name. A key that can't be read can't get
    into the bundle either."""
    every = [*inventory.nodes, *([inventory.router.node] if inventory.router else [])]
    hidden = [
        *_of_environment(environment.items()),
        *(override for node in every for override in _of_node(node.overrides)),
    ]
    hidden += [recipient.url for recipient in inventory.notify]
    for file in _files_to_notify(inventory.notify) - {""}:
        with contextlib.suppress(DeployError):
            hidden.append(read_private_line(Path(file).expanduser(), what="the secret", where="l40s_notify"))
    for file in {node.api_key_file for node in every if node.api_key_file}:
        with contextlib.suppress(DeployError):
            hidden.append(read_api_key(Path(file).expanduser(), where=file))
    return long_enough(hidden)


def _of_environment(variables: Iterable[tuple[str, str]]) -> list[str]:
    return [value for name, value in variables if is_secret(name, value)]


def _of_node(own: Overrides) -> list[str]:
    hidden = [(name, value) for name, value in own.env if is_hidden(name, value, own.env_public)]
    beside = [form % secret for secret in hidden for form in ("%s=%s", '"%s": "%s"', "'%s': '%s'")]
    return [*_of_environment(own.env), *beside]


def _domains(hosts: Iterable[str]) -> list[str]:
    return sorted({domain for host in hosts if "." in (domain := host.partition(".")[2])})


def _names(nodes: Sequence[NodeSpec], inventory: Inventory) -> dict[str, str]:
    """What hosts and people are called in the bundle, by name. Nodes have the names of their snapshots."""
    machines = _numbered("machine", [node.name for node in nodes])
    machines |= _numbered("other", [node.name for node in inventory.nodes if node.name not in machines])
    hosts = {node.reach.host: f"{machines[node.name]}-host" for node in inventory.nodes}
    hosts = {socket.gethostname(): "controller"} | {host: word for host, word in hosts.items() if not _is_address(host)}
    users = {user or "" for node in nodes for user in (node.reach.user, node.engine_user)} | {who_types()}
    names = _numbered("user", sorted(users - ACCOUNTS))
    names |= _numbered("domain", _domains(hosts)) | hosts | machines
    return {name: word for name, word in names.items() if name not in ("", "localhost", word)}


def _numbered(word: str, names: Sequence[str]) -> dict[str, str]:
    return {name: f"{word}{number}" for number, name in enumerate(names, 1)}


def _is_address(host: str) -> bool:
    return host.replace(".", "").isdigit() or ":" in host


def _sources(operation: Operation, gangs: tuple[str, ...], *, with_logs: bool) -> dict[str, Callable[[], Any]]:
    """By the name of the file that is made of it."""

    def status() -> dict[str, Any]:
        seen = overview(operation, gangs)
        return loaded_json(seen, node_loads(operation.fleet, seen.views))

    sources: dict[str, Callable[[], Any]] = {
        "status.json": status,
        "versions.json": lambda: [version.as_json() for version in versions(operation, gangs)],
        "why.json": lambda: why_json(why(operation, gangs, events=True)),
        "hangs.json": lambda: hang_looks(operation, gangs),
        "history.json": lambda: [_record(kept) for kept in history(operation, gangs)],
    }
    if with_logs:
        sources["logs/around-failure.log"] = lambda: _around(operation, gangs)
    return sources


def _gather(
    scrubber: Scrubber,
    sources: Mapping[str, Callable[[], Any]],
    texts: dict[str, str],
    missing: dict[str, str],
    step: Callable[[str], None],
) -> None:
    for name, made in sources.items():
        step(name)
        try:
            value = made()
        except DeployError as failure:
            missing[name] = f"{failure.where}: {failure.what}"
        else:
            texts[name] = scrubber.text(value) if isinstance(value, str) else _json(scrubber.value(value))


def _logs(
    operation: Operation, gangs: tuple[str, ...], scrubber: Scrubber, texts: dict[str, str], missing: dict[str, str]
) -> None:
    lines: dict[str, list[str]] = {}
    for line in logs(operation, gangs=gangs, lines=LOG_LINES, nodes=(), follow=False):
        if line.failure is not None:
            missing[f"logs/{line.node}"] = line.failure.what
        else:
            lines.setdefault(line.node, []).append(line.text)
    for node, log_lines in lines.items():
        texts[f"logs/{file_name(scrubber.value(node))}.log"] = scrubber.text("\n".join(log_lines) + "\n")


def _first(replaced: Mapping[str, int], *, with_logs: bool) -> str:
    """What a reader should know before sending it."""
    counts = [f"  {count} x {kind}" for kind, count in sorted(replaced.items()) if count > 0]
    lines = ["A support bundle of l40s-deploy."]
    if not with_logs:
        lines = ["A support bundle of l40s-deploy. The nodes' log lines were left out (--without-logs)."]
    lines += [
        "",
        "Replaced, so that it shows neither secrets nor who and where you are (in snapshots more, uncounted):",
    ]
    lines += counts or ["  nothing"]
    lines += ["", "What can't be told from text. Please look for it before you send this:"]
    lines += [f"  - {kind}" for kind in CANNOT_TELL]
    lines += ["", "Log lines hold most of it: `l40s-deploy support-bundle --without-logs` leaves them out."]
    return "\n".join(lines) + "\n"


def _record(kept: GangHistory) -> dict[str, Any]:
    return {
        "gang": kept.gang,
        "runs": [{name: getattr(run, name) for name in _OF_A_RUN} for run in kept.runs],
        "audit": [dict(line) for line in kept.audit],
        "unreachable": {name: failure.what for name, failure in kept.failures.items()},
    }


def _around(operation: Operation, gangs: tuple[str, ...]) -> str:
    try:
        excerpts = around_failure(operation, gangs, before=AROUND, after=AROUND)
    except InputError as none:
        return f"{none.what}\n"
    parts: list[str] = []
    for excerpt in excerpts:
        parts += [f"== {excerpt.verdict.gang}: {excerpt.verdict.cause.node}"]
        parts += [("> " if at == excerpt.marked else "  ") + line for at, line in enumerate(excerpt.lines)]
    return "\n".join(parts) + "\n"


def _snapshots(fleet: Fleet, nodes: list[NodeSpec], pseudonyms: Pseudonyms) -> tuple[dict[str, str], dict[str, str]]:
    """Texts, and what is missing. Redacted as by `discover --redact`, under the names that the other files use."""
    looked = look(fleet, nodes)
    missing = {f"snapshots/{name}": failure.what for name, failure in looked.failures.items()}
    seen = [looked.values[node.name] for node in nodes if node.name in looked.values]
    names = _numbered("machine", [node.name for node in nodes])
    try:
        redacted = redact_under(seen, pseudonyms)
    except ValueError as left:
        return {}, {**missing, "snapshots": f"left out: data that identifies a machine would remain ({left})"}
    texts = {
        f"snapshots/{file_name(names[snapshot.node])}.json": json.dumps(
            {**snapshot_json(done), "node": names[snapshot.node]}, indent=1
        )
        + "\n"
        for snapshot, done in zip(seen, redacted, strict=True)
    }
    return texts, missing


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=True, sort_keys=False) + "\n"


def _write(out: Path, files: Mapping[str, str]) -> int:
    draft = draft_of(out)
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for name, text in sorted(files.items()):
                data = text.encode("utf-8", "backslashreplace")
                entry = tarfile.TarInfo(f"l40s-deploy-support/{name}")
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
                archive.addfile(entry, io.BytesIO(data))
        draft.replace(out)
    except OSError as failure:
        draft.unlink(missing_ok=True)
        raise cant_be_written(out, failure, _ANOTHER_FILE) from None
    return out.stat().st_size
