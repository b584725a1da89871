"""`init`: from hosts to an inventory: who they are, whether we may log in and use sudo, which network they share."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.loading.ansible_yaml import BadPattern, expand
from orchestrator.loading.resources import data_dir
from orchestrator.model.deadlines import ANSWER_S, INIT_CONNECT_S
from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.model.per_node import PerNode
from orchestrator.model.topology import NETWORKS, Area
from orchestrator.planning.choices import not_read
from orchestrator.planning.steps.look import look
from orchestrator.protocol.errors import InputError, NodeError
from orchestrator.records.documents import write_whole
from orchestrator.remote import ssh_way
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session
from orchestrator.remote.ssh_target import target_of
from orchestrator.remote.ssh_way import ShownKey, remember_host_keys
from orchestrator.topology.build import build
from orchestrator.topology.network import tcp_interface

__all__ = ["ShownKey", "remember_host_keys"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """What an operator says of the hosts.

    hosts: NAME, NAME=ADDRESS, or a range such as l40s-[0:3], the leader first
    """

    hosts: tuple[str, ...]
    gang: str = "gang0"
    user: str = ""
    port: int | None = None
    key_file: str = ""
    stack: str = ""


@dataclass(frozen=True, slots=True)
class Login:
    """Who we are there. sudo: '' where we are root or become it without a password, else what sudo says."""

    user: str
    root: bool
    sudo: str


def refuse_existing(path: Path) -> None:
    """Raises InputError: an existing inventory is never overwritten."""
    if path.exists() or path.is_symlink():
        raise InputError("already exists; init never overwrites a file", where=str(path), fix="use --out ANOTHER.yml")


_RANGE = re.compile(r"\[\d+:\d+(:\d+)?\]")


def nodes_of(request: InitRequest) -> tuple[NodeSpec, ...]:
    """The hosts as nodes of one gang. Raises InputError for a word that is not a host."""
    named: dict[str, Reach] = {}
    for word in request.hosts or ("",):
        for name, address, port in _meant(word):
            if name in named:
                raise _no_host(f"{word!r} names {name!r} twice")
            named[name] = Reach(
                host=address or name,
                port=port or request.port,
                user=request.user or None,
                key_file=request.key_file or None,
            )
    return tuple(
        NodeSpec(name=name, gang=request.gang, node_rank=rank, reach=reach)
        for rank, (name, reach) in enumerate(named.items())
    )


def _meant(word: str) -> list[tuple[str, str, int | None]]:
    """Name, address and port of each host of a word; '' for an address that it does not have."""
    pattern, _, address = word.partition("=")
    try:
        names, port = expand(pattern)
        addresses = expand(address)[0] if _RANGE.search(address) else (address,)
    except BadPattern as wrong:
        raise _no_host(f"{word!r} {wrong}") from None
    if not all(names) or len(addresses) != (len(names) if address else 1):
        raise _no_host(f"{word!r} is not a host")
    return [(name, at, port) for name, at in zip(names, addresses if address else [""] * len(names), strict=True)]


def _no_host(what: str) -> InputError:
    fix = "name each host once, as l40s-0, l40s-[0:3], l40s-0=10.0.0.1 or l40s-[0:3]=10.0.0.[1:4]"
    return InputError(what, where="HOST", fix=fix)


def usual_user(node: NodeSpec) -> str:
    """The default login: ~/.ssh/config's user, else this process's."""
    return target_of(node).user


def scan(nodes: Sequence[NodeSpec]) -> PerNode[ShownKey]:
    """The host key that each node shows."""
    return ssh_way.scan_host_keys(nodes, deadline_s=INIT_CONNECT_S)


def log_in(nodes: Sequence[NodeSpec]) -> PerNode[Login]:
    """Log in everywhere, and try sudo where we are not root."""
    with Fleet(nodes, connect_deadline_s=INIT_CONNECT_S) as fleet:
        return fleet.on_every(_who)


def see(nodes: Sequence[NodeSpec], logins: Mapping[str, Login]) -> tuple[Sequence[NodeSpec], str]:
    """Nodes on which we can log in, with their GPUs (0: none) and the addresses in the network that they share; and why
    in that one, '' where they share none. Raises the failure of a node that can't be read."""
    able = [replace(node, reach=replace(node.reach, become=_becomes(logins.values()))) for node in nodes]
    with Fleet(able, connect_deadline_s=INIT_CONNECT_S) as fleet:
        topologies = {name: build(snapshot) for name, snapshot in look(fleet, able).all().items()}
    for name, topology in topologies.items():
        if lacking := topology.lacks(*NETWORKS, Area.PCI, Area.GPUS):
            raise not_read(name, lacking, "what to write of it", "write the inventory by hand")
    choices = tcp_interface(topologies)
    addresses = {name: choice.address for name, choice in choices.items()}
    seen = [replace(node, gpus=len(topologies[node.name].gpus), address=addresses.get(node.name)) for node in nodes]
    return seen, next((choice.reason for choice in choices.values()), "")


def write(path: Path, request: InitRequest, seen: Sequence[NodeSpec], logins: Mapping[str, Login]) -> None:
    """The annotated inventory, complete or not at all; an existing file stays. Raises InputError."""
    refuse_existing(path)
    chosen: dict[str, object] = {
        "ansible_user": request.user,
        "ansible_port": request.port,
        "ansible_ssh_private_key_file": request.key_file,
        "ansible_become": _becomes(logins.values()),
        "l40s_stack": request.stack,
    }
    text = first_inventory(
        (data_dir("inventory") / "reference.yml").read_text("utf-8"),
        path=str(path),
        gang=request.gang,
        nodes=seen,
        variables={name: value for name, value in chosen.items() if value},
    )
    write_whole(path, text, over=False, folders=0o777, fix="use --out FILE in a writable directory")


def _becomes(logins: Collection[Login]) -> bool:
    """Whether to run commands through sudo: if no login is root, and sudo asks for a password on no node."""
    return not all(login.root for login in logins) and not any(login.sudo for login in logins)


def _who(session: Session) -> Login:
    done = session.run(["id", "-u", "-n"], deadline_s=ANSWER_S, become=False)
    user = done.out.decode("utf-8", "replace").strip()
    if done.status or not user:
        raise NodeError("`id -u -n` gives no answer", where=session.spec.name, fix="check the login shell of that user")
    if session.run(["id", "-u"], deadline_s=ANSWER_S, become=False).out.strip() == b"0":
        return Login(user, root=True, sudo="")
    try:
        tried = session.run(["true"], deadline_s=ANSWER_S, become=True)
    except NodeError as refused:
        return Login(user, root=False, sudo=refused.what)
    return Login(user, root=False, sudo="" if tried.status == 0 else tried.err.decode("utf-8", "replace").strip())


_HEADER = """\
# Written by `l40s-deploy init`. An ordinary Ansible inventory: `ansible -i {path} all -m ping` reads the same file.
#
# The child groups of `gangs` are the gangs (one gang runs one engine), the order of the hosts in a gang is the node
# rank, the first host is the leader and serves HTTP. Variables can be set for any host or group, in group_vars/ and in
# host_vars/. Lines that are commented out show a default or a choice.
"""
_PLAIN = re.compile(r"[A-Za-z_/~][A-Za-z0-9_./~@-]*|\d+\.\d+\.\d+\.\d+")
_OTHER_TYPES = re.compile(r"(?i)y|yes|n|no|on|off|true|false|null|~")


def first_inventory(
    reference: str, *, path: str, gang: str, nodes: Sequence[NodeSpec], variables: Mapping[str, object]
) -> str:
    """reference: the text of inventory/reference.yml. nodes: with their GPUs, 0 for none. variables: values for all
    nodes, by name; what is not named keeps the reference's line, but ansible_user, which is commented out."""
    gpus = Counter(node.gpus for node in nodes if node.gpus)
    most = gpus.most_common(1)[0][0] if gpus else 0
    body = reference[reference.index("\ngangs:\n") :]
    hosts = "".join(_host(node, most) for node in nodes)
    body = re.sub(
        r"    gang0:\n      hosts:\n(?:        .*\n)+",
        lambda _: f"    {_yaml(gang)}:\n      hosts:\n{hosts}",
        body,
        count=1,
    )
    body = re.sub(r"^    (ansible_user:)", r"    # \1", body, count=1, flags=re.MULTILINE)
    for name, value in {**variables, **({"l40s_gpus": most} if most else {})}.items():
        body = _with(body, name, value)
    return _HEADER.format(path=path) + body


def _host(node: NodeSpec, most: int) -> str:
    facts = {
        "ansible_host": node.reach.host if node.reach.host != node.name else "",
        "l40s_address": node.address,
        "l40s_gpus": node.gpus if node.gpus != most else 0,
    }
    shown = ", ".join(f"{name}: {_yaml(value)}" for name, value in facts.items() if value)
    return f"        {_yaml(node.name)}:{f' {{{shown}}}' if shown else ''}\n"


def _with(body: str, name: str, value: object) -> str:
    """The line of a variable, commented out or not, with this value; what is said behind it stays."""
    line = re.compile(rf"^    (?:# )?{name}: *(?P<old>[^#\n]*?)(?P<rest> +# .*)?$", re.MULTILINE)
    if (match := line.search(body)) is None:
        raise AssertionError(f"the reference inventory has no line for {name}")
    return f"{body[: match.start()]}    {name}: {_yaml(value)}{match['rest'] or ''}{body[match.end() :]}"


def _yaml(value: object) -> str:
    """A value as YAML reads it back: JSON is YAML, and plain words and addresses need no quotes."""
    text = str(value)
    is_plain = _PLAIN.fullmatch(text) and not _OTHER_TYPES.fullmatch(text)
    return text if isinstance(value, str) and is_plain else json.dumps(value)
