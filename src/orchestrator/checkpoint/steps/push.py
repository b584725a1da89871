"""`checkpoint push`: copies a directory to every node. The order of the steps; the bytes go from node to node."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Protocol

from orchestrator.checkpoint.steps.chain import LOOPBACK, Chain, Hop, VerbStream
from orchestrator.checkpoint.steps.checkpoint import HERE, here, of_its_kind
from orchestrator.checkpoint.steps.verify import repair_command, shared_copies
from orchestrator.model.chosen import chosen_nodes, no_such
from orchestrator.model.inventory import Inventory, NodeSpec
from orchestrator.model.per_node import PerNode
from orchestrator.planning.choices import data_network
from orchestrator.planning.steps.look import look
from orchestrator.protocol.errors import DeployError, InputError, LockHeld, VerificationDiffers
from orchestrator.protocol.jobs import Giving, OfferRequest, ReceiveRequest
from orchestrator.records.documents import audit_file
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import NodeRefusal
from orchestrator.topology.build import build

STREAMS = 2
"""Files sent at the same time over one link: the next one is sent while a digest is compared."""


_KINDS: Mapping[str, type[DeployError]] = {
    "lock-held": LockHeld,
    "digest": VerificationDiffers,
    **dict.fromkeys(("target-exists", "target-differs", "no-checkpoint", "unfinished", "no-model"), InputError),
    **dict.fromkeys(("far-link", "odd-name"), InputError),
}
"""Kinds of refusal that have an exit code of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPushRequest:
    """What an operator asks for.

    source:      a directory of this machine, or NODE:/path
    to:          names of nodes; () means all
    name:        of the directory below each node's model root; '' means the source's own
    bytes_per_s: limit for every link of the chain, 0 for none
    port:        where nodes listen for each other, 0 for any free port
    repair:      replace the files that differ in a directory that exists already
    """

    source: str
    to: tuple[str, ...] = ()
    name: str = ""
    streams: int = 0
    bytes_per_s: int = 0
    port: int = 0
    interface: str = ""
    repair: bool = False


NOTHING: PerNode[Hop] = PerNode(values={}, failures={})


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult:
    """The result of a push.

    nodes:    in the order of the chain
    shared:   {node: owner} where a node sees the directory of another one: nothing was sent to it
    network:  what carried the bytes between nodes, '' where there was only one
    repaired: files that differed were to be replaced
    """

    source: str
    directories: Mapping[str, str]
    bytes: int = 0
    files: int = 0
    nodes: PerNode[Hop] = NOTHING
    shared: Mapping[str, str]
    network: str = ""
    seconds: float
    repaired: bool = False

    def complete(self, node: str) -> bool:
        """Whether a node, or the owner of the directory that it shares, has all files; the source always has."""
        owner = self.shared.get(node, node)
        return owner in self.nodes.values or owner not in self.directories

    def there_before(self, node: str) -> bool:
        """Whether nothing had to be sent for this node."""
        owner = self.shared.get(node, node)
        hop = self.nodes.values.get(owner)
        return hop.there if hop else owner not in self.directories


class PushWatcher(Protocol):
    """Is told what happens."""

    def say(self, words: str) -> None:
        """A sentence for the operator."""
        ...

    def moved(self, hops: Sequence[Hop], total: int, offered: int) -> None:
        """Progress of every node. total: bytes to send; offered: bytes that the source has read for its digests."""
        ...


def push(inventory: Inventory, request: CheckpointPushRequest, watcher: PushWatcher) -> PushResult:
    """Copy the directory to every chosen node. A node that fails is a value; the others still get the directory.

    Raises InputError, and the source's failure.
    """
    began = time.monotonic()
    specs = chosen_nodes(inventory.nodes, request.to, "--node")
    node, path = split_place(inventory, request.source)
    directories = destinations(inventory, request)
    everyone = {**specs, **({node.name: node} if node else {})}
    with Fleet(everyone.values()) as fleet, Fleet([here()]) as own:
        shared = _shared(fleet, directories, node, path)
        wanted = [name for name in directories if name not in shared]
        for name, owner in shared.items():
            watcher.say(f"{name}: has the same directory as {owner} (shared file system); nothing to send")
        result = PushResult(
            source=request.source,
            directories=directories,
            shared=shared,
            repaired=request.repair,
            seconds=time.monotonic() - began,
        )
        if not wanted:  # nobody has a source that is not there
            with _origin(fleet, node, path, dict.fromkeys(everyone, LOOPBACK), request):
                return result
        addresses, network, lost = _network(fleet, wanted, node, request, watcher)
        with _origin(own if node is None else fleet, node, path, addresses, request) as (origin, giving):
            chain = Chain(
                fleet=fleet,
                origin=origin,
                source=giving,
                files=origin.files(),
                local=node is None,
                addresses=addresses,
                requests={name: _receive_request(everyone[name], directories[name], request) for name in wanted},
            )
            total = sum(chain.files.values())
            nodes = _all(chain, total, directories, lost, request, watcher)
    seconds = time.monotonic() - began
    return replace(result, bytes=total, files=len(chain.files), nodes=nodes, network=network, seconds=seconds)


def _receive_request(node: NodeSpec, directory: str, request: CheckpointPushRequest) -> ReceiveRequest:
    """Without files, upstream and address: the chain knows them."""
    return ReceiveRequest(
        directory=directory,
        files={},
        upstream=Giving(),
        address="",
        state_dir=node.state_dir,
        port=request.port,
        streams=request.streams or (1 if request.bytes_per_s else STREAMS),
        bytes_per_s=request.bytes_per_s,
        repair=request.repair,
    )


def destinations(inventory: Inventory, request: CheckpointPushRequest) -> dict[str, str]:
    """The directory on each chosen node except the source itself. Raises InputError."""
    node, path = split_place(inventory, request.source)
    name = request.name or PurePosixPath(path).name
    if name in ("", ".", "..") or "/" in name:
        raise InputError(
            f"{name!r} is not a valid directory name", where="--as", fix="--as DeepSeek-V3-0324-Block64x64"
        )
    chosen = chosen_nodes(inventory.nodes, request.to, "--node").values()
    directories = {spec.name: str(PurePosixPath(spec.model_root, name)) for spec in chosen}
    if node is not None and directories.get(node.name) == path:
        del directories[node.name]
    return directories


def split_place(inventory: Inventory, place: str) -> tuple[NodeSpec | None, str]:
    """NODE:/path as (node, path); anything else is a path of this machine. Raises InputError for an unknown node."""
    name, colon, path = place.partition(":")
    if not colon or "/" in name:
        return None, str(Path(place).resolve())
    nodes = {node.name: node for node in inventory.nodes}
    if name not in nodes:
        raise no_such("node", name, nodes, where=place)
    if not path.startswith("/"):
        raise InputError(f"found the path {path!r}, wanted an absolute one", where=place, fix=f"{name}:/path")
    return nodes[name], str(PurePosixPath(path))


def _shared(fleet: Fleet, directories: Mapping[str, str], node: NodeSpec | None, path: str) -> dict[str, str]:
    """{node: owner} where another node's directory is the node's own too, so that nothing has to be sent."""
    names = {PurePosixPath(directory).name for directory in directories.values()}
    source = {node.name: path} if node is not None and names == {PurePosixPath(path).name} else {}
    owners = shared_copies(fleet, {**source, **directories})
    return {name: owner for name, owner in owners.items() if name in directories}


def _network(
    fleet: Fleet,
    wanted: Sequence[str],
    node: NodeSpec | None,
    request: CheckpointPushRequest,
    watcher: PushWatcher,
) -> tuple[Mapping[str, str], str, Mapping[str, DeployError]]:
    """Every node's address for the others, the reason for this choice, and the nodes that did not answer.

    For a chain of one, no node is examined. Raises the source's failure, InputError where no network is shared.
    """
    between = list(dict.fromkeys([*([node.name] if node else []), *wanted]))
    if len(between) < 2:
        return dict.fromkeys(between, LOOPBACK), "", {}
    looked = look(fleet, [fleet.nodes[name] for name in between])
    if node is not None and node.name in looked.failures:
        raise looked.failures[node.name]
    if not looked.values:
        raise looked.failures[between[0]]
    network = data_network({name: build(snapshot) for name, snapshot in looked.values.items()}, request.interface)
    watcher.say(f"between nodes over {network.reason}")
    return network.addresses, network.reason, looked.failures


@contextmanager
def _origin(
    fleet: Fleet, node: NodeSpec | None, path: str, addresses: Mapping[str, str], request: CheckpointPushRequest
) -> Iterator[tuple[VerbStream, Giving]]:
    address = LOOPBACK if node is None else addresses[node.name]
    state = node.state_dir if node is not None else str(audit_file().parent)
    asked = OfferRequest(directory=path, address=address, port=request.port if node else 0, state_dir=state)
    link = VerbStream(fleet, node.name if node else HERE, "push-offer", asked)
    try:
        try:
            giving = link.begin(address)
        except DeployError as failure:
            raise of_its_kind(failure, _KINDS) from None
        yield link, giving
    finally:
        link.end()
        link.wait()


def _all(
    chain: Chain,
    total: int,
    directories: Mapping[str, str],
    lost: Mapping[str, DeployError],
    request: CheckpointPushRequest,
    watcher: PushWatcher,
) -> PerNode[Hop]:
    """One chain after another, each without the nodes that failed: the others resume where they stopped."""
    complete: dict[str, Hop] = {}
    failures = dict(lost)

    def report(hops: Sequence[Hop]) -> None:
        shown = {**complete, **{hop.name: hop for hop in hops}}
        shown |= {name: Hop(name, "failed", 0) for name in failures}
        ordered = [shown.get(name) or Hop(name, "waiting", 0) for name in chain.requests]
        watcher.moved(ordered, total, chain.origin.read)

    while left := [name for name in chain.requests if name not in complete and name not in failures]:
        ready, failed = chain.run(left, report)
        if not ready and not failed:
            raise DeployError("the transfer ended without a result", where=chain.origin.name, fix="push again")
        complete |= {hop.name: hop for hop in ready}
        for name, failure in failed.items():
            if name not in complete:
                failures[name] = of_its_kind(failure, _KINDS)
                if isinstance(failure, NodeRefusal) and failure.kind == "target-differs":
                    failures[name].fix = repair_command(request.source, [name], PurePosixPath(directories[name]).name)
                watcher.say(f"{failure.where}: {failure.what}")
    report([])
    return PerNode(values=complete, failures=failures).ordered(list(chain.requests))
