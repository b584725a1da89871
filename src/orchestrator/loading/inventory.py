"""The user's inventory as gangs of nodes, a router, and who is notified."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.loading import resources
from orchestrator.loading.ansible_yaml import AnsibleInventory, Origin, wrong
from orchestrator.loading.node_spec import ANSIBLES, OURS, SPARE, Variables, most_requests, node_spec
from orchestrator.loading.sources import Values, evaluated, read_source
from orchestrator.model.chosen import replicas_of
from orchestrator.model.inventory import (
    ROUTER_GANG,
    ROUTER_POLICIES,
    Event,
    GangSpec,
    Inventory,
    Mail,
    NodeSpec,
    ReceiverKind,
    Recipient,
    RouterSpec,
    is_gang_name,
)
from orchestrator.protocol.errors import InputError

TOP_GROUP = "gangs"

_EQUAL_IN_A_GANG: Mapping[str, Callable[[NodeSpec], object]] = {
    "l40s_aliases": lambda node: node.aliases,
    "l40s_dist_init_port": lambda node: node.ports.dist_init,
    "l40s_http_port": lambda node: node.ports.http,
    "l40s_nccl_port": lambda node: node.ports.nccl,
    "l40s_agent_port": lambda node: node.ports.agent,
    "l40s_lease": lambda node: node.lease_s,
    "l40s_max_queued": lambda node: node.overrides.max_queued,
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
    source = read_source(file, (TOP_GROUP, ROUTER_GANG))
    names = _gang_names(source)
    hosts = {name: source.hosts_of(name) for name in (*names, *source.groups.keys() & {ROUTER_GANG})}
    values = evaluated(source, [host for group in hosts.values() for host in group], (*OURS, *ANSIBLES))
    variables = {host: Variables(host, source.hosts[host].origin, known) for host, known in values.items()}
    gangs = tuple(_gang(source, name, [variables[host] for host in hosts[name]]) for name in names)
    for gang in gangs:
        _refuse_disagreement(gang, variables)
    _refuse_shared(source, gangs, variables)
    if ROUTER_GANG in source.groups:
        _refuse_queues(gangs, variables)
    router = _router(source, gangs, [variables[host] for host in hosts.get(ROUTER_GANG, ())])
    recipients = _recipients(variables[gangs[0].leader.name])
    resources.remember_stacks(_stacks_of(gangs))
    return Inventory(path=str(file), gangs=gangs, router=router, notify=recipients), values


def _gang_names(source: AnsibleInventory) -> list[str]:
    top = source.groups.get(TOP_GROUP)
    if top is None:
        place, fix = Origin(source.shown, 0, ""), "gangs: {children: {gang0: {hosts: {l40s-[0:3]: }}}}"
        what = f"has no group {TOP_GROUP!r}"
        raise wrong(place, what, "one whose child groups are the gangs", f"{fix}, see inventory/reference.yml")
    fix = "gangs: {children: {gang0: {hosts: ...}}}"
    if top.hosts:
        place, what = (
            top.origin.below("hosts").below(top.hosts[0]),
            f"found the host {top.hosts[0]!r} in {TOP_GROUP!r}",
        )
        raise wrong(place, f"{what} itself", "hosts in its child groups", fix)
    if not top.children:
        raise wrong(top.origin, "found no gang", f"at least one child group of {TOP_GROUP!r}", fix)
    return top.children


def _gang(source: AnsibleInventory, name: str, hosts: Sequence[Variables]) -> GangSpec:
    place = source.groups[name].origin
    if not hosts:
        fix = "list its hosts below hosts:, the leader first"
        raise wrong(place, f"found no host in gang {name!r}", "at least one", fix)
    if not is_gang_name(name):
        wanted = "letters, digits, dots, dashes, at most 100"
        raise wrong(place, f"found the gang name {name!r}", wanted, "rename the group")
    specs = sorted((node_spec(variables, name) for variables in hosts), key=lambda node: node.spare)
    if specs[0].spare:
        fix = f"set l40s_role: {SPARE} on single hosts, not below vars: of the group {name}"
        what = f"every host of gang {name!r} is a spare"
        raise wrong(hosts[0].place("l40s_role"), what, "at least one that is not", fix)
    ranked = [replace(node, node_rank=rank) for rank, node in enumerate(specs)]
    nodes, spares = (tuple(node for node in ranked if node.spare is spare) for spare in (False, True))
    return GangSpec(name=name, nodes=nodes, spares=spares)


def _refuse_disagreement(gang: GangSpec, variables: Mapping[str, Variables]) -> None:
    for name, value in _EQUAL_IN_A_GANG.items():
        common = value(gang.leader)
        for node in gang.machines[1:]:
            if value(node) != common:
                what = f"found {value(node)} on {node.name}, {common} on {gang.leader.name}"
                wanted = f"one {name} for all nodes of gang {gang.name!r}"
                fix = f"set {name} below vars: of the group {gang.name}"
                raise wrong(variables[node.name].place(name), what, wanted, fix)


def _refuse_queues(gangs: Sequence[GangSpec], variables: Mapping[str, Variables]) -> None:
    """An engine answers 503 when its queue is full, and after three of these the router leaves the gang alone for 15 s,
    full or not (`--cb-failure-threshold` of engines/router.py)."""
    limited = next((gang.leader for gang in gangs if gang.leader.overrides.max_queued), None)
    if limited is not None:
        raise variables[limited.name].wrong(
            "l40s_max_queued",
            "no limit of a gang behind a router, which stops sending requests to a gang that refuses some",
            "remove it; instead, set l40s_router_max_requests: auto below vars: of the group router",
        )


def _stacks_of(gangs: Sequence[GangSpec]) -> set[str]:
    return {node.stack for gang in gangs for node in gang.machines if node.stack}


def _refuse_shared(source: AnsibleInventory, gangs: Sequence[GangSpec], variables: Mapping[str, Variables]) -> None:
    _refuse_two_gangs(source, gangs)
    _refuse_two_machines(gangs, variables)


def _refuse_two_gangs(source: AnsibleInventory, gangs: Sequence[GangSpec]) -> None:
    home: dict[str, str] = {}
    for gang, node in [(spec, node) for spec in gangs for node in spec.machines]:
        other = home.setdefault(node.name, gang.name)
        if other != gang.name:
            place = source.groups[gang.name].origin.below("hosts").below(node.name)
            what = f"found {node.name!r} in the gangs {other!r} and {gang.name!r}"
            fix = "remove it from one of the two; a node's GPUs belong to one engine"
            raise wrong(place, what, "it in one", fix)


def _refuse_two_machines(gangs: Sequence[GangSpec], variables: Mapping[str, Variables]) -> None:
    """Two nodes with one address."""
    taken: dict[tuple[str, str], str] = {}
    for node in (node for gang in gangs for node in gang.machines):
        claims = [("l40s_address", node.address)] if node.address is not None else []
        if node.reach.connection == "ssh":
            claims.append(("ansible_host", f"{node.reach.host}:{node.reach.port or 22}"))
        for name, address in claims:
            other = taken.setdefault((name, address), node.name)
            if other != node.name:
                what = f"found {name} {address} for {other!r} and {node.name!r}"
                fix = f"give one of them its own {name}"
                raise wrong(variables[node.name].place(name), what, "one machine per node", fix)


def _router(source: AnsibleInventory, gangs: Sequence[GangSpec], hosts: Sequence[Variables]) -> RouterSpec | None:
    """The one host of the group `router`; it may be a gang's node too. Raises InputError as node_spec does."""
    group = source.groups.get(ROUTER_GANG)
    if group is None:
        return None
    if len(hosts) != 1 or any(gang.name == ROUTER_GANG for gang in gangs):
        fix = f"{ROUTER_GANG}: {{hosts: {{head: }}}} beside {TOP_GROUP}, see inventory/reference.yml"
        what = f"found {len(hosts)} hosts in the group {ROUTER_GANG!r}"
        raise wrong(group.origin, what, "one, which runs the router", fix)
    (variables,) = hosts
    node = node_spec(variables, ROUTER_GANG)
    usual = RouterSpec(node=node)
    port = variables.number("l40s_router_port", 1, 65535) or usual.port
    metrics = variables.number("l40s_router_metrics_port", 1, 65535) or usual.metrics_port
    if port == metrics:
        wanted = "a port other than l40s_router_metrics_port"
        raise variables.wrong("l40s_router_port", wanted, "write `l40s_router_port: 30000`")
    cert, key = map(variables.file, _TLS)
    if (cert is None) != (key is None):
        there, missing = _TLS if cert else reversed(_TLS)
        raise variables.wrong(there, f"{missing} beside it", "name both PEM files, or neither")
    return RouterSpec(
        node=node,
        port=port,
        metrics_port=metrics,
        venv=variables.path("l40s_router_venv") or usual.venv,
        policy=variables.choice("l40s_router_policy", ROUTER_POLICIES),
        tls_cert=cert,
        tls_key=key,
        aliases=_aliases(gangs),
        gang_key_file=_gang_key_file(variables, gangs) if node.api_key_file else None,
        max_requests=most_requests(variables, "l40s_router_max_requests"),
    )


_TLS = ("l40s_router_tls_cert", "l40s_router_tls_key")


def _aliases(gangs: Sequence[GangSpec]) -> dict[str, tuple[str, ...]]:
    """By gang, and by what its replicas are called."""
    named = [(gang, each.name) for gang in gangs for each in (gang, *replicas_of(gang))]
    return {name: gang.leader.aliases for gang, name in named if gang.leader.aliases}


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


def _recipients(variables: Variables) -> tuple[Recipient, ...]:
    """The list, in its order. Raises InputError that names the entry and the key."""
    place, entries = variables.place(_NOTIFY), variables.mappings(_NOTIFY)
    return tuple(_RecipientEntry(place.below(number), entry).read() for number, entry in enumerate(entries))


class _RecipientEntry:
    def __init__(self, place: Origin, entry: Mapping[Any, Any]) -> None:
        self._place, self._entry = place, entry

    def read(self) -> Recipient:
        kinds = {kind.value: kind for kind in ReceiverKind}
        kind = kinds.get(self._text("kind"))
        if kind is None:
            raise self._wrong("kind", " or ".join(kinds), "kind: webhook")
        known = _MAIL if kind is ReceiverKind.EMAIL else _WEB
        for key in self._entry:
            if key not in known:
                fix = "correct or remove it; an address or password belongs into a file of mode 600"
                raise wrong(self._place, f"found the key {str(key)[:40]!r}", ", ".join(known), fix)
        if kind is ReceiverKind.EMAIL:
            return Recipient(kind=kind, mail=self._mail(), events=self._events())
        url, file, sign = map(self._text, ("url", "url_file", "sign_file"))
        if bool(url) == bool(file):
            raise self._wrong("url", "either url or url_file", "write the address into a file of mode 600: url_file")
        if url and not url.startswith(("http://", "https://")):
            raise self._wrong("url", "an http(s) address", "url: https://HOST/PATH")
        if sign and kind not in _SIGNED:
            raise self._wrong("sign_file", "no such key: only feishu and dingtalk sign", "remove sign_file")
        return Recipient(kind=kind, url=url, url_file=file, sign_file=sign, events=self._events())

    def _mail(self) -> Mail:
        server, _, port = self._text("server").partition(":")
        tls, sender, to = self._text("tls") or "starttls", self._text("from"), self._texts("to")
        user, password = self._text("user"), self._text("password_file")
        if tls not in _PORTS:
            raise self._wrong("tls", " or ".join(_PORTS), "tls: starttls")
        if not server or (port and not port.isdigit()):
            raise self._wrong("server", "HOST or HOST:PORT", "server: smtp.example.org:587")
        if not sender or not to:
            raise self._wrong("to", "from and to", "from: l40s@example.org, to: [ops@example.org]")
        if bool(user) != bool(password):
            fix = "write the password into a file of mode 600"
            raise self._wrong("user", "user and password_file, or neither", fix)
        return Mail(
            server=server,
            port=int(port or _PORTS[tls]),
            sender=sender,
            to=to,
            tls=tls,
            user=user,
            password_file=password,
        )

    def _events(self) -> frozenset[Event]:
        events, known = self._texts("events"), [event.value for event in Event]
        if not {*events} <= {*known}:
            raise self._wrong("events", f"a list of {', '.join(known)}", "leave events out for all of them")
        return frozenset(map(Event, events or known))

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

    def _wrong(self, key: str, wanted: str, fix: str) -> InputError:
        """What was found is not shown: it may be a secret."""
        return InputError(f"wanted {wanted}", where=f"{self._place}/{key}", fix=fix)
