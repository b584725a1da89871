"""Plays the table of changes: each change, and each verb after it, by the verbs' own steps on a simulated service, with
a guard beside it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from tests.simulation.beside import NOTHING, Guarding, guarded
from tests.simulation.controllers import STAGE
from tests.simulation.gang import LEASE_S, Gang, Violated, simulated
from tests.simulation.living import begin_to_serve, judge, renamed
from tests.simulation.service import (
    LOOKS,
    NEW_KEY,
    OLD_KEY,
    OTHER_RESTARTS,
    VERBS,
    Said,
    Service,
    inventory_of,
    operated,
    serving,
)
from tests.simulation.world import World

from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Overrides
from orchestrator.model.secret_text import fingerprint
from orchestrator.protocol.report import AgentState
from orchestrator.records.plans import RecordedPlan, keep_plan

TABLE = Path(__file__).with_name("table.yml")
WORDS = {"rolling": "restart --rolling", "maintenance": "restart --maintenance"}
"""Verbs as an operator types them."""
ORDER = (
    "status", "up", "restart", "rolling", "maintenance", "rollback", "down", "router up", "router add", "router remove",
)  # fmt: skip
OF_ROUTER = ("router away", "router port")
"""Changes of where the router is."""
AS_RESTART = ("maintenance", "rollback")
"""Verbs that end as `restart` does where the table has no other words for them."""
CONCERNED = "gang1"
"""The gang that a change is about; as it was started."""
BEFORE = "o"
"""The plan before the one that the gangs have."""
LONGEST_S = 120.0
QUIET_S = 6.0
BEFORE_S = 6.0
"""A guard has looked at everything by then."""
HEARS_S = 2 * LEASE_S
"""After a verb, until a guard has said what it has to say: that nobody knows of a gang takes it a lease."""
OF_ROUTER_S = 36.0
"""The same of the router, whose lease is longer."""


@dataclass(frozen=True)
class Row:
    """A change, and a verb on one of the gangs. gang: as it was started; expects: in the table's words; hears: what a
    guard's receivers hear."""

    what: str
    change: str
    verb: str
    gang: str
    expects: str
    lossy: bool = False
    hears: str = NOTHING

    @property
    def id(self) -> str:
        """A name of its own."""
        where = "it" if self.gang == CONCERNED else "the-other"
        return f"{self.change}-{self.verb}-{where}".replace(" ", "-")


@dataclass
class Played:
    """What came of a row. trouble: '' where it ended, and was heard, as the table says."""

    row: Row
    ended: str = ""
    trouble: str = ""
    heard: str = ""


@dataclass
class Scene:
    """A service that a change is made to."""

    service: Service
    folder: Path
    inventory: Inventory
    typed: str = ""
    """What the inventory calls the gang that the verb is for."""
    by: int = 0
    runs: dict[str, set[str]] = field(default_factory=dict)
    """Runs of each gang's living engines before the verb."""

    def gang(self, name: str) -> Gang:
        return self.service.gangs[name]


def table() -> list[Row]:
    """Every row."""
    return list(_rows(yaml.safe_load(TABLE.read_text("utf-8"))["changes"]))


def _rows(groups: list[dict[str, Any]]) -> Iterator[Row]:
    for group, verb, gang in itertools.product(groups, ORDER, (CONCERNED, "gang0")):
        wanted = group.get("expects" if gang == CONCERNED else "other", {})
        expects = str(wanted.get(WORDS.get(verb, verb)) or (verb in AS_RESTART and wanted.get("restart")) or "works")
        row = Row(group["what"], group["change"], verb, gang, expects, lossy=bool(group.get("lossy")))
        yield replace(row, hears=_heard_of(row, str(group.get("hears", "")), held=bool(group.get("held"))))


def _heard_of(row: Row, of_change: str, *, held: bool) -> str:
    """What the change lets a guard say, and that a gang serves which `router remove` has taken out of the router; where
    a command that was killed holds the gang, it may be that command's that it is out. Nothing else is heard."""
    out = row.verb == "router remove" and row.expects == "works" and not (held and row.gang == CONCERNED)
    words = [*filter(None, of_change.split(", ")), *([f"finding {row.gang}"] if out else [])]
    return ", ".join(sorted(words)) or NOTHING


def play_row(row: Row) -> Played:
    """Play one row to its end."""
    played = Played(row)
    world = World(seed=row.id)
    service = Service(world)
    with simulated(world), operated(service, 2) as folder:
        if row.change == "model":
            service.gangs[CONCERNED].model = "another"
        begin_to_serve(service)
        for gang in service.gangs.values():
            _had_another_plan(gang)
        scene = Scene(service, folder, inventory_of(service, folder), typed=row.gang)
        with guarded(service, folder, scene.inventory) as beside:
            world.run(world.now + BEFORE_S, service.check)
            _play(played, scene, beside)
    return played


def _play(played: Played, scene: Scene, beside: Guarding) -> None:
    row, service, world, since = played.row, scene.service, scene.service.world, scene.service.world.now
    if row.change == "controller killed":
        service.type(service.controllers[1], "restart", CONCERNED)
        world.run(world.now + 0.3, service.check)  # it is out of the router, and serves what it has
        service.controllers[1].kill()
        service.befall(CONCERNED, for_good=True)
    CHANGED[row.change](scene)
    beside.inventory = scene.inventory
    scene.runs = {name: _living(gang) for name, gang in service.gangs.items()}
    try:
        said = _carry_out(scene, row)
        played.ended, played.trouble = _outcome(scene, row, said)
        if not played.trouble and not row.lossy:
            judge(service)
        world.run(world.now + (OF_ROUTER_S if row.change in OF_ROUTER else HEARS_S), service.check)
    except Violated as violated:
        played.trouble = str(violated).partition(";")[0]
        played.ended = played.ended or "violated"
    played.heard = beside.words(since)
    if not played.trouble and beside.wanted:
        played.trouble = f"a guard beside it would {', '.join(sorted(set(beside.wanted)))}"
    elif not played.trouble and played.heard != row.hears:
        played.trouble = f"heard {played.heard}"


def _had_another_plan(gang: Gang) -> None:
    """Its nodes have kept a run of another plan, which `rollback` goes back to."""
    for node in gang.nodes:
        assert node.report is not None
        past = replace(node.report, run_id="before", plan_id=BEFORE, state=AgentState.STOPPED, started_at=0.5)
        node.kept.append(({**node.request, "run_id": "before", "plan_id": BEFORE}, past))
    keep_plan(gang.name, BEFORE, RecordedPlan(service_url=gang.url))


def _carry_out(scene: Scene, row: Row) -> Said:
    """The verb, to its end."""
    service, controller = scene.service, scene.service.controllers[scene.by]
    service.inventories[controller.name] = scene.inventory
    controller.outcomes.clear()
    service.type(controller, row.verb, scene.typed)
    world = service.world
    world.run(world.now + LONGEST_S, service.check, done=lambda: not controller.busy)
    if controller.busy and row.expects != "waits":
        raise Violated(f"it does not end within {LONGEST_S:g} s")
    if controller.busy:
        controller.outcomes.append("it waits")
    world.run(world.now + QUIET_S, service.check)
    return service.verbs[-1]


def _living(gang: Gang) -> set[str]:
    return {engine.run_id for node in gang.nodes for engine in node.engines if engine.lives}


def _outcome(scene: Scene, row: Row, said: Said) -> tuple[str, str]:
    """(what came of it, why that is not what the table says)."""
    (outcome,) = scene.service.controllers[scene.by].outcomes
    told = " ".join([outcome, *said.words])
    now = {name: _living(gang) for name, gang in scene.service.gangs.items()}
    touched = [name for name in now if now[name] != scene.runs[name]]
    kind, _, words = row.expects.partition(" ")
    kind = kind.rstrip(",")
    words = "" if kind == "changes" else words.removeprefix("told ")
    ended = outcome if touched == [] or outcome.endswith("done") else f"{outcome}; touched {', '.join(touched)}"
    wrong = {
        "works": lambda: _works(scene, row, outcome, now),
        "refused": lambda: _untouched(touched) or ("" if ": done" not in outcome else "it was not refused"),
        "told": lambda: _untouched(touched),
        "untouched": lambda: _untouched(touched),
        "waits": lambda: _untouched(touched),
        "ends": lambda: _ends(scene, row, touched, now),
        "changes": lambda: _changes(scene, row, touched, outcome),
    }[kind]()
    if not wrong and words and words not in told:
        wrong = f"it does not say {words!r}"
    return ended, wrong


def _ends(scene: Scene, row: Row, touched: list[str], now: Mapping[str, set[str]]) -> str:
    """Why the gang has not ended as it should: alone, and without an entry in a router that could be told."""
    if touched != [row.gang] or now[row.gang]:
        return f"touched {touched}"
    return "the router still has it" if not row.lossy and scene.gang(row.gang).url in _entered(scene) else ""


def _changes(scene: Scene, row: Row, touched: list[str], outcome: str) -> str:
    """Why the gang, and no other, does not serve by another plan, with requests."""
    if touched != [row.gang] or not outcome.endswith(": done"):
        return f"touched {touched}: {outcome}"
    return "" if scene.gang(row.gang).url in _entered(scene) else "the router does not have it"


def _entered(scene: Scene) -> set[str]:
    return {worker.url for worker in scene.service.router.workers.values()}


def _untouched(touched: list[str]) -> str:
    return f"it touched {', '.join(touched)}" if touched else ""


def _works(scene: Scene, row: Row, outcome: str, now: Mapping[str, set[str]]) -> str:
    """Why the verb has not done what it is for."""
    mine, before = now[row.gang], scene.runs[row.gang]
    others = [name for name in now if name != row.gang and now[name] != scene.runs[name]]
    serves = serving(scene.gang(row.gang)) is not None
    fine = {
        "status": serves and mine == before,
        "up": serves and mine == before,
        "restart": serves and mine != before,
        "rolling": serves and mine != before,
        "down": not mine,
        "maintenance": serves and mine != before,
        "rollback": serves and mine != before and {node.plan_id for node in scene.gang(row.gang).nodes} == {BEFORE},
        "router up": serves and mine == before,
        "router add": serves and mine == before,
        "router remove": serves and mine == before and scene.gang(row.gang).url not in _entered(scene),
    }[row.verb]
    if not outcome.endswith(": done"):
        return "it was refused"
    return "" if fine and not others else f"it did something else: {sorted(mine)} after {sorted(before)}, {others}"


def _of_gang(scene: Scene, change: Callable[[GangSpec], GangSpec | None]) -> None:
    """Change the concerned gang in the inventory; None takes it out."""
    changed = (change(gang) if gang.name == CONCERNED else gang for gang in scene.inventory.gangs)
    scene.inventory = replace(scene.inventory, gangs=tuple(gang for gang in changed if gang is not None))


def _of_first(scene: Scene, change: Callable[[NodeSpec], NodeSpec]) -> None:
    _of_gang(scene, lambda gang: replace(gang, nodes=(change(gang.nodes[0]), *gang.nodes[1:])))


def _of_each(scene: Scene, change: Callable[[NodeSpec], NodeSpec]) -> None:
    _of_gang(scene, lambda gang: replace(gang, nodes=tuple(map(change, gang.nodes))))


def _rename(scene: Scene) -> None:
    _of_gang(scene, lambda gang: renamed(gang, "prod-b"))
    scene.typed = scene.typed.replace(CONCERNED, "prod-b")


def _swap_names(scene: Scene) -> None:
    first, second = scene.inventory.gangs
    scene.inventory = replace(scene.inventory, gangs=(renamed(first, second.name), renamed(second, first.name)))
    scene.typed = {first.name: second.name, second.name: first.name}[scene.typed]


def _other_gone(scene: Scene) -> None:
    scene.inventory = replace(scene.inventory, gangs=scene.inventory.gangs[1:])


def _to(host: str) -> Callable[[NodeSpec], NodeSpec]:
    return lambda node: replace(node, reach=replace(node.reach, host=host))


def _swap_nodes(*fields: str) -> Callable[[GangSpec], GangSpec]:
    """The values that the first two nodes of a gang have of these fields, each for the other."""

    def change(gang: GangSpec) -> GangSpec:
        first, second = gang.nodes
        return replace(gang, nodes=(_with_fields(first, second, fields), _with_fields(second, first, fields)))

    return change


def _with_fields(node: NodeSpec, other: NodeSpec, fields: tuple[str, ...]) -> NodeSpec:
    values: dict[str, Any] = {name: getattr(other, name) for name in fields}
    return replace(node, **values)


def _regroup(scene: Scene, goes: int = 1, comes: int = 0) -> None:
    """A node of the first gang and one of the second one, by their ranks."""
    first, second = scene.inventory.gangs
    ours, theirs = list(first.nodes), list(second.nodes)
    ours[goes] = replace(second.nodes[comes], gang=first.name, node_rank=goes)
    theirs[comes] = replace(first.nodes[goes], gang=second.name, node_rank=comes)
    regrouped = (replace(first, nodes=tuple(ours)), replace(second, nodes=tuple(theirs)))
    scene.inventory = replace(scene.inventory, gangs=regrouped)


def _exchange_addresses(scene: Scene) -> None:
    """Of the second node of the first gang and the first one of the second."""
    first, second = scene.inventory.gangs
    ours, theirs = first.nodes[1], second.nodes[0]
    fields = ("reach", "state_dir")
    exchanged = (
        replace(first, nodes=(first.nodes[0], _with_fields(ours, theirs, fields))),
        replace(second, nodes=(_with_fields(theirs, ours, fields), second.nodes[1])),
    )
    scene.inventory = replace(scene.inventory, gangs=exchanged)


def _router_away(scene: Scene) -> None:
    router = scene.inventory.router
    assert router is not None
    scene.inventory = replace(scene.inventory, router=replace(router, node=_to("gone")(router.node)))


def _router_gone(scene: Scene) -> None:
    scene.inventory = replace(scene.inventory, router=None)


def _router_port(scene: Scene) -> None:
    assert scene.inventory.router is not None
    scene.inventory = replace(scene.inventory, router=replace(scene.inventory.router, port=31000))


def _spare(scene: Scene) -> None:
    def more(gang: GangSpec) -> GangSpec:
        node = replace(gang.nodes[0], name="n9", spare=True, reach=replace(gang.nodes[0].reach, host="n9"))
        return replace(gang, spares=(node,))

    _of_gang(scene, more)


def _other_controller(scene: Scene) -> None:
    scene.by = 1


def _staged(**keys: object) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        for node in scene.gang(CONCERNED).nodes:
            node.request = {**node.request, **keys}

    return change


def _router_with(**changes: object) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        assert scene.inventory.router is not None
        scene.inventory = replace(scene.inventory, router=replace(scene.inventory.router, **changes))  # type: ignore[arg-type]

    return change


def _key(scene: Scene) -> None:
    """The gangs have the one that they were started with."""
    _key_gone(scene)
    file = scene.folder / "key"
    file.touch(0o600)
    file.write_text(f"{NEW_KEY}\n")
    _router_with(gang_key_file=str(file))(scene)


def _key_gone(scene: Scene) -> None:
    for worker in scene.service.router.workers.values():
        worker.key = OLD_KEY
    for gang in scene.service.gangs.values():
        for node in gang.nodes:
            node.request = {**node.request, "api_key": fingerprint(OLD_KEY)}
            node.kept = [({**request, "api_key": fingerprint(OLD_KEY)}, past) for request, past in node.kept]


def _nodes_of(change: Callable[[NodeSpec], NodeSpec]) -> Callable[[Scene], None]:
    return lambda scene: _of_each(scene, change)


CHANGED: dict[str, Callable[[Scene], None]] = {
    "nothing": lambda _: None,
    "renamed": _rename,
    "names swapped": _swap_names,
    "other gang gone": _other_gone,
    "gang gone": lambda scene: _of_gang(scene, lambda _: None),
    "node renamed": lambda scene: _of_first(scene, lambda node: replace(node, name="m2")),
    "node names swapped": lambda scene: _of_gang(scene, _swap_nodes("name")),
    "addresses swapped": lambda scene: _of_gang(scene, _swap_nodes("reach", "state_dir")),
    "regrouped": _regroup,
    "leaders regrouped": lambda scene: _regroup(scene, 0, 0),
    "members regrouped": lambda scene: _regroup(scene, 1, 1),
    "addresses exchanged": _exchange_addresses,
    "address gone": lambda scene: _of_first(scene, _to("gone")),
    "address of another node": lambda scene: _of_first(scene, _to("n0")),
    "host key": lambda _: STAGE[0].strangers.add("n2"),
    "aliases": _router_with(aliases={CONCERNED: ("default",), "gang0": ("other",)}),
    "user": _nodes_of(
        lambda node: replace(node, reach=replace(node.reach, user="other"), state_dir=f"{node.state_dir}-of-other")
    ),
    "engine user": _nodes_of(lambda node: replace(node, engine_user="other")),
    "cards": _nodes_of(lambda node: replace(node, transport="tcp", overrides=Overrides(ib_hca="mlx5_9"))),
    "agent port": _nodes_of(lambda node: replace(node, ports=replace(node.ports, agent=7800))),
    "gpus": _nodes_of(lambda node: replace(node, gpus=4)),
    "http port": _nodes_of(lambda node: replace(node, ports=replace(node.ports, http=9000))),
    "lease": _nodes_of(lambda node: replace(node, lease_s=60.0)),
    "paths": _nodes_of(lambda node: replace(node, model_root="/data", venv="/opt/other")),
    "stack": _nodes_of(lambda node: replace(node, stack="vllm-0.33.0", overrides=Overrides(args=("--x",)))),
    "state directory": _nodes_of(lambda node: replace(node, state_dir=f"{node.state_dir}-other")),
    "order": lambda scene: _of_gang(scene, lambda gang: replace(gang, nodes=gang.nodes[::-1])),
    "node gone": lambda scene: _of_gang(scene, lambda gang: replace(gang, nodes=gang.nodes[:1])),
    "spare": _spare,
    "router gone": _router_gone,
    "router away": _router_away,
    "router port": _router_port,
    "key": _key,
    "key gone": _key_gone,
    "model": lambda _: None,
    "certificate": _router_with(tls_cert="/nowhere/cert.pem", tls_key="/nowhere/key.pem"),
    "controller": _other_controller,
    "controller killed": lambda _: None,
    "older release": _staged(cache="/var/cache"),
    "newer release": _staged(protocol=99, sharded_how="ring"),
}
_TWO_OF_THESE = ("router anew",)
VERBS_PLAYED = {verb: play for verb, play in {**VERBS, **OTHER_RESTARTS, **LOOKS}.items() if verb not in _TWO_OF_THESE}
