"""The user's inventory as gangs of nodes, a router, and who is notified."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.loading import resources
from orchestrator.loading.ansible_yaml import AnsibleInventory
from orchestrator.loading.node_spec import ANSIBLES, OURS, SPARE, Variables, node_spec
from orchestrator.loading.sources import Values, evaluated, read_source
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import Event, GangSpec, Inventory, Mail, NodeSpec, ReceiverKind, Recipient, RouterSpec

TOP_GROUP = "gangs"
ROUTER_GROUP = "router"

_EQUAL_IN_A_GANG: Mapping[str, Callable[[NodeSpec], object]] = {
    "l40s_dist_init_port": lambda node: node.ports.dist_init,
    "l40s_http_port": lambda node: node.ports.http,
    "l40s_nccl_port": lambda node: node.ports.nccl,
    "l40s_agent_port": lambda node: node.ports.agent,
    "l40s_lease": lambda node: node.lease_s,
    "l40s_stack": lambda node: node.stack,
    "l40s_transport": lambda node: node.transport,
}
"""What every node of a gang must agree on, since one engine runs on all of them."""


def load_inventory(path: str | Path) -> Inventory:
    """Read an Ansible inventory: the child groups of `gangs` are the gangs, a host's place is its node rank.

    group_vars/ and host_vars/ beside the file count, as for Ansible. Raises InputError that names the file, the
    path inside it, what was found and what is wanted. From then on stacks and profiles beside this file are known, and
    stacks that it names by a path.
    """
    return read_cluster(path)[0]


def read_cluster(path: str | Path) -> tuple[Inventory, dict[str, Values]]:
    """load_inventory, with all variables of every host, those that we read evaluated."""
    file = Path(path)
    resources.remember(file)
    source = read_source(file, (TOP_GROUP, ROUTER_GROUP))
    hosts = {name: source.hosts_of(name) for name in [*_gang_names(source), *_router_group(source)]}
    values = evaluated(source, [host for group in hosts.values() for host in group], (*OURS, *ANSIBLES))
    variables = {host: Variables(host, source.hosts[host].origin, known) for host, known in values.items()}
    gangs = tuple(_gang(source, name, [variables[host] for host in hosts[name]]) for name in _gang_names(source))
    for gang in gangs:
        _refuse_disagreement(gang, variables)
    _refuse_two_gangs(source, gangs)
    _refuse_shared_addresses(gangs, variables)
    resources.remember_stacks({node.stack for gang in gangs for node in gang.machines if node.stack})
    router = _router(source, gangs, [variables[host] for host in hosts.get(ROUTER_GROUP, ())])
    told = recipients(variables[gangs[0].leader.name])
    return Inventory(path=str(file), gangs=gangs, router=router, notify=told), values


def _gang_names(source: AnsibleInventory) -> list[str]:
    top = source.groups.get(TOP_GROUP)
    if top is None:
        raise InputError(
            f"has no group {TOP_GROUP!r}; wanted one whose child groups are the gangs",
            where=source.shown,
            fix="gangs: {children: {gang0: {hosts: {l40s-[0:3]: }}}}, see inventory/reference.yml",
        )
    if top.hosts:
        raise InputError(
            f"found the host {top.hosts[0]!r} in {TOP_GROUP!r} itself; wanted hosts in its child groups",
            where=str(top.origin.below("hosts").below(top.hosts[0])),
            fix="gangs: {children: {gang0: {hosts: ...}}}",
        )
    if not top.children:
        raise InputError(
            f"found no gang; wanted at least one child group of {TOP_GROUP!r}",
            where=str(top.origin),
            fix="gangs: {children: {gang0: {hosts: ...}}}",
        )
    return top.children


def _router_group(source: AnsibleInventory) -> list[str]:
    return [ROUTER_GROUP] if ROUTER_GROUP in source.groups else []


def _gang(source: AnsibleInventory, name: str, hosts: Sequence[Variables]) -> GangSpec:
    if not hosts:
        raise InputError(
            f"found no host in gang {name!r}; wanted at least one",
            where=str(source.groups[name].origin),
            fix="list its hosts below hosts:, the leader first",
        )
    if not _is_plain(name):
        raise InputError(
            f"found the gang name {name!r}; wanted letters, digits, dots, dashes, at most 100",
            where=str(source.groups[name].origin),
            fix="rename the group",
        )
    found = [node_spec(variables, name) for variables in hosts]
    nodes = [node for node in found if not node.spare]
    spares = [node for node in found if node.spare]
    if not nodes:
        raise InputError(
            f"every host of gang {name!r} is a spare; wanted at least one that is not",
            where=hosts[0].place("l40s_role"),
            fix=f"set l40s_role: {SPARE} on single hosts, not below vars: of the group {name}",
        )
    ranked = [replace(node, node_rank=rank) for rank, node in enumerate([*nodes, *spares])]
    return GangSpec(name=name, nodes=tuple(ranked[: len(nodes)]), spares=tuple(ranked[len(nodes) :]))


def _router(source: AnsibleInventory, gangs: tuple[GangSpec, ...], hosts: Sequence[Variables]) -> RouterSpec | None:
    """The one host of the group `router`; it may be a gang's node too."""
    group = source.groups.get(ROUTER_GROUP)
    if group is None:
        return None
    if len(hosts) != 1 or any(gang.name == ROUTER_GROUP for gang in gangs):
        raise InputError(
            f"found {len(hosts)} hosts in the group {ROUTER_GROUP!r}; wanted one, which runs the router",
            where=str(group.origin),
            fix=f"{ROUTER_GROUP}: {{hosts: {{head: }}}} beside {TOP_GROUP}, see inventory/reference.yml",
        )
    return _router_spec(hosts[0], gangs)


def _is_plain(name: str) -> bool:
    """Fit for a folder's name on the nodes."""
    return name.isascii() and name[0].isalnum() and len(name) <= 100 and all(c.isalnum() or c in "._-" for c in name)


def _refuse_disagreement(gang: GangSpec, variables: dict[str, Variables]) -> None:
    for name, value in _EQUAL_IN_A_GANG.items():
        wanted = value(gang.leader)
        for node in gang.machines[1:]:
            if value(node) != wanted:
                raise InputError(
                    f"found {value(node)} on {node.name}, {wanted} on {gang.leader.name}; "
                    f"wanted one {name} for all nodes of gang {gang.name!r}",
                    where=variables[node.name].place(name),
                    fix=f"set {name} below vars: of the group {gang.name}",
                )


def _refuse_two_gangs(source: AnsibleInventory, gangs: tuple[GangSpec, ...]) -> None:
    home: dict[str, str] = {}
    for gang in gangs:
        for node in gang.machines:
            if node.name in home:
                raise InputError(
                    f"found {node.name!r} in the gangs {home[node.name]!r} and {gang.name!r}; wanted it in one",
                    where=str(source.groups[gang.name].origin.below("hosts").below(node.name)),
                    fix="remove it from one of the two; a node's GPUs belong to one engine",
                )
            home[node.name] = gang.name


def _refuse_shared_addresses(gangs: tuple[GangSpec, ...], variables: dict[str, Variables]) -> None:
    taken: dict[tuple[str, ...], NodeSpec] = {}
    for node in (node for gang in gangs for node in gang.machines):
        claims: list[tuple[str, ...]] = []
        if node.address is not None:
            claims.append(("l40s_address", node.address))
        if node.reach.connection == "ssh":
            claims.append(("ansible_host", node.reach.host, str(node.reach.port or 22)))
        for claim in claims:
            if claim in taken:
                name = claim[0]
                raise InputError(
                    f"found {name} {':'.join(claim[1:])} for {taken[claim].name!r} and {node.name!r}; "
                    "wanted one machine per node",
                    where=variables[node.name].place(name),
                    fix=f"give one of them its own {name}",
                )
            taken[claim] = node


_FILE = r"~?/[^\x00-\x1f\x7f]*"
_FILE_WORDS = "a file's path on the controller, absolute or from ~/"


def _router_spec(variables: Variables, gangs: Sequence[GangSpec]) -> RouterSpec:
    """Read the router's host. Raises InputError as node_spec does."""
    node = node_spec(variables, ROUTER_GROUP)
    usual = RouterSpec(node=node)
    port = variables.number("l40s_router_port", 1, 65535) or usual.port
    metrics = variables.number("l40s_router_metrics_port", 1, 65535) or usual.metrics_port
    if port == metrics:
        raise variables.wrong(
            "l40s_router_port", "a port other than l40s_router_metrics_port", "write `l40s_router_port: 30000`"
        )
    cert, key = (variables.text(name, _FILE, _FILE_WORDS) for name in ("l40s_router_tls_cert", "l40s_router_tls_key"))
    if (cert is None) != (key is None):
        there, missing = ("cert", "key") if cert else ("key", "cert")
        raise variables.wrong(
            f"l40s_router_tls_{there}", f"l40s_router_tls_{missing} beside it", "name both PEM files, or neither"
        )
    return RouterSpec(
        node=node,
        port=port,
        metrics_port=metrics,
        venv=variables.path("l40s_router_venv") or usual.venv,
        tls_cert=cert,
        tls_key=key,
        gang_key_file=_gang_key_file(variables, gangs) if node.api_key_file else None,
    )


def _gang_key_file(variables: Variables, gangs: Sequence[GangSpec]) -> str | None:
    """What the router sends to the gangs in place of its clients' key: it has one for all of them."""
    files = {gang.leader.api_key_file for gang in gangs if gang.leader.api_key_file}
    if len(files) > 1:
        raise variables.wrong(
            "l40s_api_key_file",
            f"one API key for all gangs behind a router that asks for a key (they have {', '.join(sorted(files))})",
            "use the same l40s_api_key_file for all gangs, or remove the router's",
        )
    return next(iter(files), None)


_NOTIFY = "l40s_notify"
_WEB = ("kind", "url", "url_file", "sign_file", "events")
_MAIL = ("kind", "server", "from", "to", "tls", "user", "password_file", "events")
_SIGNED = (ReceiverKind.FEISHU, ReceiverKind.DINGTALK)
_PORTS = {"starttls": 587, "tls": 465, "none": 25}


def recipients(variables: Variables) -> tuple[Recipient, ...]:
    """The list, in its order. Raises InputError that names the entry and the key."""
    return tuple(
        _RecipientEntry(variables.place(_NOTIFY), place, entry).read()
        for place, entry in enumerate(variables.mappings(_NOTIFY))
    )


class _RecipientEntry:
    def __init__(self, where: str, place: int, entry: Mapping[Any, Any]) -> None:
        self._where = f"{where}/{place}"
        self._entry = entry

    def read(self) -> Recipient:
        kind = self._kind()
        self._refuse_unknown(_MAIL if kind is ReceiverKind.EMAIL else _WEB)
        if kind is ReceiverKind.EMAIL:
            return Recipient(kind=kind, mail=self._mail(), events=self._events())
        url, file = self._text("url"), self._text("url_file")
        if bool(url) == bool(file):
            raise self._wrong("url", "either url or url_file", "write the address into a file of mode 600: url_file")
        if url and not url.startswith(("http://", "https://")):
            raise self._wrong("url", "an http(s) address", "url: https://HOST/PATH")
        sign = self._text("sign_file")
        if sign and kind not in _SIGNED:
            raise self._wrong("sign_file", "no such key: only feishu and dingtalk sign", "remove sign_file")
        return Recipient(kind=kind, url=url, url_file=file, sign_file=sign, events=self._events())

    def _kind(self) -> ReceiverKind:
        try:
            return ReceiverKind(self._text("kind"))
        except ValueError:
            raise self._wrong("kind", " or ".join(kind.value for kind in ReceiverKind), "kind: webhook") from None

    def _mail(self) -> Mail:
        server, _, port = self._text("server").partition(":")
        tls = self._text("tls") or "starttls"
        if tls not in _PORTS:
            raise self._wrong("tls", " or ".join(_PORTS), "tls: starttls")
        if not server or (port and not port.isdigit()):
            raise self._wrong("server", "HOST or HOST:PORT", "server: smtp.example.org:587")
        to = self._texts("to")
        if not self._text("from") or not to:
            raise self._wrong("to", "from and to", "from: l40s@example.org, to: [ops@example.org]")
        user, password = self._text("user"), self._text("password_file")
        if bool(user) != bool(password):
            raise self._wrong(
                "user", "user and password_file, or neither", "write the password into a file of mode 600"
            )
        return Mail(
            server=server,
            port=int(port) if port else _PORTS[tls],
            sender=self._text("from"),
            to=to,
            tls=tls,
            user=user,
            password_file=password,
        )

    def _events(self) -> frozenset[Event]:
        found = self._texts("events")
        try:
            return frozenset(map(Event, found)) if found else frozenset(Event)
        except ValueError:
            known = ", ".join(event.value for event in Event)
            raise self._wrong("events", f"a list of {known}", "leave events out for all of them") from None

    def _text(self, key: str) -> str:
        value = self._entry.get(key, "")
        if not isinstance(value, str) or not value.isprintable():
            raise self._wrong(key, "a string on one line", f"put {key} into quotes")
        return value.strip()

    def _texts(self, key: str) -> tuple[str, ...]:
        value = self._entry.get(key, [])
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str) and item and item.isprintable() for item in items):
            raise self._wrong(key, "a list of strings", f"{key}: [first, second]")
        return tuple(items)

    def _refuse_unknown(self, known: tuple[str, ...]) -> None:
        for key in self._entry:
            if key not in known:
                raise InputError(
                    f"found the key {str(key)[:40]!r}; wanted {', '.join(known)}",
                    where=self._where,
                    fix="correct or remove it; an address or password belongs into a file of mode 600",
                )

    def _wrong(self, key: str, wanted: str, fix: str) -> InputError:
        """What was found is not shown: it may be a secret."""
        return InputError(f"wanted {wanted}", where=f"{self._where}/{key}", fix=fix)
