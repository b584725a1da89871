"""Plays one row in a lab: up to the moment, the hit, an operator's actions afterwards, and the judgement."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.chaos.disks import Disks
from tests.chaos.rows import ENDING, OLDER, PLACES, NotHere, Row
from tests.chaos.watch import NodeGone, Watch
from tests.support.load import Load
from tests.support.older_release import RUN, unpacked
from tests.support.ports import free_port
from tests.support.preloaded import Running, preloaded
from tests.support.prometheus import Receiver, receiver
from tests.support.router import ROUTER_PORTS, NotInstalled, router_environment, router_group
from tests.support.small_lab import ENVIRONMENT, MODEL, SmallLab
from tests.support.waiting import slack

from l40s_lab.breaking.breaking import break_node, heal_node
from l40s_lab.processes import wait_until
from orchestrator.gang.overview import status_json
from orchestrator.gang.steps.status.reports import see
from orchestrator.loading.inventory import load_inventory
from orchestrator.model.inventory import GangSpec
from orchestrator.remote.fleet import Fleet

NODES = 4
LEASE_S = 14
"""A node shows as silent after half of it; a look at a node that does not answer over SSH takes 10 s."""
SPEED = "0.4"
"""Phases long enough to hit, 3 s from go to ready."""
PATIENCE_S = "2"
"""An engine's timeout of a probe; three probes without an answer mean a hung engine."""

MOMENT_S = 60.0
SHOWN_S = 120.0
"""Time for a state to show: a lease, a look at a dead node, and a busy machine; and while NCCL moves to
another port, no engine is called hung for 75 s (OVER_NOTICE in node/engine/vitality.py)."""
GONE_S = 20.0
OUTLAST_S = 1.5 * LEASE_S
VERB_S = 150.0
UNHEALED_S = LEASE_S + 15.0
"""From a fault that stays until the command has ended, on an idle machine."""
MORE_ANSWERS = 20
CHANGE = ("--replace", "--", "--mem-fraction-static", "0.5")
"""What makes `up` change a gang over to another plan."""
SIGNALS = {
    "rank": "rank {rank}", "parent": "parent", "agent": "agent", "guardian": "guardian", "session": "session",
}  # fmt: skip
"""Processes of a node that get a signal, in the watchman's words."""
PAGES = ("web", "exporter")
"""Commands that answer HTTP and work on no gang."""
MINUTE_S = 60.0


class Otherwise(Exception):
    """The row ended otherwise than the table says; with the reason."""


class Missed(Exception):
    """The moment was missed: nothing was hit, and the row says nothing."""


@dataclass
class Stage:
    """A lab in which rows are played, one after the other."""

    lab: SmallLab
    watch: Watch
    broken: set[str] = field(default_factory=set)
    """Nodes that have a fault of the lab now, or are upset."""
    upset: dict[str, str] = field(default_factory=dict)
    """Nodes that the test itself has upset, and how; part of the above."""
    struck: set[str] = field(default_factory=set)
    """Nodes with a fault of the lab; part of the above."""
    off: set[str] = field(default_factory=set)
    """Nodes that are switched off, or frozen with whatever runs there."""
    deaths: str = "plain"
    """How the ranks of the next start die."""
    disks: Disks = field(init=False)
    pager: Receiver = field(default_factory=Receiver)
    """Hears what guards send."""
    _open: ExitStack = field(default_factory=ExitStack)
    router: dict[str, Any] = field(default_factory=dict)
    """Its group of the inventory, while there is one."""
    serving: bool = False
    """The last row left a ready gang, which the next may use."""
    _fleet: Fleet | None = None
    _seen: dict[str, str] = field(default_factory=dict)
    _gangs: tuple[GangSpec, ...] = ()

    def __post_init__(self) -> None:
        self.disks = Disks(self.lab.name)

    @classmethod
    def raised(cls, lab: SmallLab) -> Stage:
        """After `lab up`: the inventory with a short lease, and a watchman on every node's console."""
        stage = cls(lab, Watch(lab))
        stage.pager = stage._open.enter_context(receiver())
        stage._write_inventory()
        stage.watch.baseline()
        return stage

    def command(self, name: str, *words: str, older: bool = False) -> Command:
        """Start `l40s-deploy WORDS` in the background. older: the older release's; raises NotHere without one"""
        return Command(self.lab, name, words, self._older_release() if older else None)

    def _older_release(self) -> Path:
        place = self.lab.folder / "older-release"
        if not place.exists():
            place.mkdir()
            if not unpacked(place):
                place.rmdir()
                raise NotHere("this copy of the repository has no older commit")
        return place

    def gang(self) -> dict[str, Any]:
        """The view that `status` shows; over kept connections, as long as no fault is active that they would hide.

        The nodes answer when something has changed, or after a second, so that looking costs this machine little.
        """
        if self.broken:
            self.let_go()
            return self.lab.gang()
        if self._fleet is None:
            inventory = load_inventory(self.lab.inventory)
            self._fleet, self._gangs = Fleet(inventory.nodes), inventory.gangs
        gang: dict[str, Any] = status_json(see(self._fleet, self._gangs, seen=self._seen))["gangs"][0]
        return gang

    def let_go(self) -> None:
        """Close the connections."""
        if self._fleet is not None:
            self._fleet.close()
            self._fleet = None
            self._seen.clear()

    def close(self) -> None:
        """End of play."""
        self.let_go()
        self.watch.close()
        self.disks.close()
        self._open.close()

    def fault(self, verb: str, node: str, *words: str) -> None:
        """Run `lab break` or `lab heal`; healing also ends an upset."""
        if verb == "heal" and node in self.upset:
            self._calm(node, self.upset.pop(node))
        if verb == "heal" and node not in self.struck:
            self.broken.discard(node)
            return
        if verb == "break":
            self.broken.add(node)
            self.struck.add(node)
            if words[0] in ("freeze", "power-off"):
                self.watch[node].close()  # a frozen one would hold the node's end up
        with self.root_of_labs():
            if verb == "break":
                break_node(self.lab.name, node, words[0], words[1:])
            else:
                heal_node(self.lab.name, node, None)
        if verb == "break" and words[0] in ("freeze", "power-off"):
            self.off.add(node)
        elif verb == "heal":
            self.broken.discard(node)
            self.struck.discard(node)
            if node in self.off:
                self.off.discard(node)
                self._wait_for(node)

    def disturb(self, node: str, how: str) -> None:
        """Upsets are no faults of the lab: the test or the node's watchman causes them."""
        self.broken.add(node)
        self.upset[node] = how
        if how == "fsfreeze":
            self.disks.freeze(node)
        elif how == "unrouted":
            self.lab.deploy("router", "remove", "gang0")
        elif how == "shared-state":
            with self.root_of_labs():
                self.disks.share(sorted(PLACES.values()))
        else:
            self.watch[node].ask(do="upset", how=how)

    def _calm(self, node: str, how: str) -> None:
        if how == "fsfreeze":
            self.disks.thaw(node)
        elif how == "unrouted":
            self.lab.deploy("router", "add", "gang0")
        elif how == "shared-state":
            with self.root_of_labs():
                self.disks.part()
        else:
            self.watch[node].ask(do="calm")

    @contextmanager
    def root_of_labs(self) -> Iterator[None]:
        """Set the root of our labs; a fault should not wait until another Python has started."""
        before = os.environ.get("L40S_LAB_ROOT")
        os.environ["L40S_LAB_ROOT"] = self.lab.environment["L40S_LAB_ROOT"]
        try:
            yield
        finally:
            del os.environ["L40S_LAB_ROOT"]
            if before is not None:
                os.environ["L40S_LAB_ROOT"] = before

    def die(self, deaths: str) -> None:
        """From the next start on, the stand-in's ranks die in this way: set in its environment, as a lab would."""
        if deaths == self.deaths:
            return
        self.lab.deploy("down", "--now")
        self.serving, self.deaths = False, deaths
        of_ranks = {} if deaths == "plain" else {"STANDIN_DEATHS": deaths}
        self._write_inventory(l40s_env={**ENVIRONMENT, **self.lab.env, **of_ranks})
        self.let_go()

    def _write_inventory(self, **more: Any) -> None:
        """With a short lease, and a receiver of what guards tell."""
        notify = [{"kind": "webhook", "url": self.pager.url}]
        group = {"router": self.router} if self.router else {}
        self.lab.write_inventory(vars={"l40s_lease": LEASE_S, "l40s_notify": notify, **more}, **group)

    def route(self) -> None:
        """A router on this machine from now on, with what serves. Raises NotHere where none can be installed."""
        try:
            environment = router_environment()
        except NotInstalled as why:
            raise NotHere(str(why)) from None
        self.router = router_group(environment, self.lab.folder / "router", free_port(adjacent=ROUTER_PORTS))
        self._write_inventory()
        self.let_go()

    def unroute(self) -> None:
        """End the router, if there is one."""
        if self.router:
            self.lab.deploy("router", "down", code=None)
            self.router = {}
            self._write_inventory()
            self.let_go()

    def told(self) -> str:
        """What guards have told their receivers last, as they keep it."""
        return " ".join(file.read_text() for file in self.kept("told"))

    def forget_told(self) -> None:
        """The next guard knows nothing of what was told before, nor of what the doctor said in the row before."""
        for kind in ("told", "health"):
            for file in self.kept(kind):
                file.unlink(missing_ok=True)

    def kept(self, kind: str) -> list[Path]:
        """Files of the controller of this kind: told, health."""
        return [*Path(self.lab.environment["XDG_STATE_HOME"]).glob(f"l40s-deploy/{kind}/*.json")]

    def _wait_for(self, node: str) -> None:
        if not until(lambda: "up" in self.lab.on(node, "echo up", check=False), 60):
            raise Otherwise(f"{node} does not come up again")

    def left(self) -> list[str]:
        """Leftovers on the nodes that run."""
        return self.watch.left(frozenset(self.off))


@dataclass
class Command:
    """One `l40s-deploy` that runs while something is hit. release: the folder of another one's source"""

    lab: SmallLab
    name: str
    words: tuple[str, ...]
    release: Path | None = None

    def __post_init__(self) -> None:
        self.file = self.lab.folder / f"said-{self.name}"
        self.process = self._started()

    def _started(self) -> Running | subprocess.Popen[bytes]:
        environment = self.lab.environment
        if self.release is None:
            return preloaded().start(self.words, self.file, self.file, environment)
        with self.file.open("wb") as said:
            return subprocess.Popen(
                [sys.executable, "-c", RUN, *self.words],
                env={**environment, "PYTHONPATH": str(self.release / "src")},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    @property
    def said(self) -> str:
        return self.file.read_text(errors="replace")

    def ended(self, deadline_s: float = VERB_S) -> int:
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise Otherwise(f"`{self.words[0]}` has not ended after {deadline_s:.0f} s: {self.said[-200:]}") from None

    def connects(self, deadline_s: float) -> bool:
        """Wait until it has opened a socket."""
        return until(lambda: any(_is_socket(entry) for entry in _open_files(self.process.pid)), deadline_s, 0.002)

    def close(self) -> None:
        """End it if it still runs, stopped or not."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


def play(stage: Stage, row: Row) -> str:
    """'' if it ended as expected, else the difference; raises Missed if nothing could be hit."""
    with ExitStack() as over:
        over.callback(clear, stage)
        game = Game(stage, row, over)
        try:
            game.play()
            stage.serving = row.end["state"] == "ready" and not stage.broken and not row.first
        except Otherwise as words:
            return str(words)
        except NodeGone as gone:
            return f"its console does not answer: {gone}"
        except AssertionError as failed:
            return f"a command failed: {failed}"
    return ""


def clear(stage: Stage) -> None:
    """Whatever happened: heal everything, and end whatever runs."""
    for node in sorted(stage.broken):
        stage.fault("heal", node)
    stage.unroute()
    if stage.serving:
        return
    with suppress(NodeGone):
        if not stage.left():
            return
    for _ in range(3):
        stage.lab.deploy("down", "--now", "--force", code=None)
        with suppress(NodeGone):
            if until(lambda: not stage.left(), 5):
                return
    raise AssertionError(f"the stage can't be cleared: {stage.left()}")


@dataclass
class Game:
    """One row, being played."""

    stage: Stage
    row: Row
    over: ExitStack
    verb: Command | None = None
    load: Load | None = None
    beside: Command | None = None
    """Another release's, or beside another release's."""
    hit: tuple[int, ...] = ()
    struck_at: float = 0.0

    def play(self) -> None:
        """The row, to its end as the table has it."""
        row = self.row
        self.set_up()
        self.strike()
        if row.end.get("meanwhile"):
            self._expect(dict(row.end["meanwhile"]), "meanwhile")
        for step in row.steps:
            self.do(step)
        self.verb_ended()
        self._expect({name: row.end[name] for name in ("state", "blames") if name in row.end}, "at the end")
        self._count_requests()
        if row.end["state"] not in ("ready", "degraded"):
            self._nothing_left("at the end")

    def set_up(self) -> None:
        """What the row begins with: a gang that serves, or none, and the faults that were there before."""
        row, stage = self.row, self.stage
        stage.die(row.deaths)
        ready, stage.serving = stage.serving, False
        if ready and (row.first or not row.begins_served):
            stage.lab.deploy("down", "--now")
        if row.first:
            node, *words = row.first.split()
            if words == ["router"]:
                stage.route()
            elif words == ["own-disk"]:
                with stage.root_of_labs():
                    stage.disks.give(node)
            else:
                stage.fault("break", node, *words)
        if row.begins_served:
            if not (ready and stage.gang()["state"] == "ready"):
                stage.lab.serve()
            if stage.router:
                stage.lab.deploy("router", "up")
            if "failed_requests" in row.end:
                self.load_it()

    def strike(self) -> None:
        """At the row's moment. Raises Missed."""
        # each node's own: a node that was off may have missed a run
        self._strike({node: str(self.stage.watch[node].ask(do="run")["run"]) for node in (*PLACES.values(),)})
        if self.row.second is not None:
            with suppress(Missed):  # what was hit first may have ended it
                replace(self, row=self.row.second)._strike_at_peace()

    # -- up to the hit ------------------------------------------------------------------------------------------

    def load_it(self) -> None:
        """Clients ask all the time from now on."""
        url = ""

        def is_told() -> bool:  # a slow leader may not answer at once
            nonlocal url
            url = str(self.stage.gang()["service"]["url"])
            return bool(url)

        until(is_told, SHOWN_S, 1.0)
        self.load = self.over.enter_context(Load(url, MODEL, clients=2, pause_s=0.05))
        if not until(lambda: self.load is not None and self.load.good > 1, 30):
            raise Otherwise(f"no answer before anything was hit: {self.load.bad[:1]}")

    def _begin(self) -> None:
        """The command that is running at the hit."""
        row = self.row
        words = self._words("up")
        if row.under in PAGES:
            words = (row.under, "--listen", "127.0.0.1:0")
        elif row.under not in ("", OLDER):
            words = (*words, *CHANGE) if row.under == "up --replace" else tuple(row.under.split())
        elif row.at in ENDING:
            words = ("down",)
        elif row.at == "ready":
            words = ("guard",)
        self.verb = self.stage.command(words[0], *words, older=row.under == OLDER)
        self.over.callback(self.verb.close)
        if row.under == "guard":  # it has something to restart the gang for
            reason: dict[str, Any] = {"moments": ["ready"], "what": "rank 3", "how": "KILL", "before": ""}
            man = self.stage.watch["node1"]
            man.ask(do="strike", patience_s=MOMENT_S, **reason)
            man.answer(MOMENT_S + 20)

    def _words(self, verb: str) -> tuple[str, ...]:
        return (verb, "--model", str(self.stage.lab.profile)) if verb == "up" else tuple(verb.split())

    def _strike(self, before: Mapping[str, str]) -> None:
        row = self.row
        if row.at == "before":
            self._break()
            self._begin()
        elif row.at == "ready":
            self._strike_at_peace()
        elif row.at == "connecting":
            self._begin()
            assert self.verb is not None
            if not self.verb.connects(MOMENT_S):
                raise Missed(self.verb.said[-200:])
            self._hit_controller()
        else:
            self._strike_on_the_way(before if row.at not in ENDING else {})

    def _strike_at_peace(self) -> None:
        row = self.row
        if row.hit == "controller":
            self._begin_to_look()
            self._hit_controller()
        elif row.hit == "session":
            self._begin_to_look()
            self._hit_process(row.node, "ready", {})
        elif row.hit == "release":
            self._begin_to_look()
            self._break()
        elif row.hit in ("fault", "upset"):
            self._break()
        else:
            self._hit_process(row.node, "ready", {})

    def _begin_to_look(self) -> None:
        """A guard that has its lock, or a page that listens."""
        self._begin()
        verb = self.verb
        assert verb is not None
        looks = verb.connects(MOMENT_S) if self.row.under in PAGES else until(self._guards, MOMENT_S, 0.02)
        if not looks:
            raise Missed(verb.said[-200:])

    def _guards(self) -> bool:
        return self._locked("guard.gang0")

    def _strike_on_the_way(self, before: Mapping[str, str]) -> None:
        row = self.row
        if row.at == "failed":
            self._hit_process("node2", "weights", before, what="rank 5", how="KILL", then=self._begin)
            self._wait_for("node2", "failed", before)
            self._hit_controller()
        elif row.at == "locking":
            self._begin()
            if not until(lambda: self._locked("gang0"), MOMENT_S, 0.02):
                raise Missed("no lock was taken")
            self._hit_controller()
        elif row.hit in SIGNALS and self._whose_moment != row.node:
            self._wait_for(self._whose_moment, row.at, before, then=self._begin)
            self._hit_process(row.node, "starting", before, also=("warming",))
        elif row.hit in SIGNALS:
            self._hit_process(row.node, row.at, before, then=self._begin)
        else:
            self._wait_for(self._whose_moment, row.at, before, then=self._begin)
            self._hit_controller() if row.hit == "controller" else self._break()

    @property
    def _whose_moment(self) -> str:
        """The node whose report has it: only a leader's says that it warms up."""
        return PLACES["leader"] if self.row.at == "warm-up" else self.row.node

    def _hit_process(
        self,
        node: str,
        moment: str,
        before: Mapping[str, str],
        *,
        what: str = "",
        how: str = "",
        also: tuple[str, ...] = (),
        then: Callable[[], None] = lambda: None,
    ) -> None:
        row, man = self.row, self.stage.watch[node]
        what = what or SIGNALS[row.hit].format(rank=row.rank)
        order: dict[str, Any] = {"moments": [moment, *also], "what": what, "how": how or row.how}
        order["before"] = before.get(node, "")
        man.ask(do="strike", patience_s=MOMENT_S, **order)
        then()
        answer = man.answer(MOMENT_S + 20)
        if "missed" in answer:
            raise Missed(f"{node} was last {answer['missed']}; {self.verb.said[-200:] if self.verb else ''}")
        self.hit, self.struck_at = tuple(answer["hit"]), time.monotonic()

    def _wait_for(
        self, node: str, moment: str, before: Mapping[str, str], *, then: Callable[[], None] = lambda: None
    ) -> None:
        hit, self.hit = self.hit, ()
        self._hit_process(node, moment, before, what="nothing", how="KILL", then=then)
        self.hit = hit

    def _hit_controller(self) -> None:
        assert self.verb is not None
        if self.verb.process.poll() is not None:
            raise Missed(f"it had ended: {self.verb.said[-200:]}")
        self.hit, self.struck_at = (self.verb.process.pid,), time.monotonic()
        self.verb.process.send_signal(getattr(signal, f"SIG{self.row.how}"))
        if self.row.how != "STOP":
            self.verb.ended(10)

    def _break(self) -> None:
        self.struck_at = time.monotonic()
        if self.row.hit == "release":
            words = self._words(self.row.how)
            self.beside = self.stage.command("beside", *words, older=self.row.under != OLDER)
            self.over.callback(self.beside.close)
            return
        for node in self.row.nodes:
            if self.row.hit == "upset":
                self.stage.disturb(node, self.row.how)
            else:
                self.stage.fault("break", node, *self.row.how.split())

    def _locked(self, gang: str) -> bool:
        pid = self.verb.process.pid if self.verb is not None else 0
        return bool(self.stage.watch["node0"].ask(do="holds", gang=gang, pid=pid)["holds"])

    # -- afterwards ---------------------------------------------------------------------------------------------

    def do(self, step: str) -> None:
        """One step of an operator's."""
        row, lab = self.row, self.stage.lab
        if step == "continue":
            if row.hit == "controller":
                os.kill(self.hit[0], signal.SIGCONT)
            else:
                self.stage.watch[row.node].ask(do="signal", pids=self.hit, how="CONT")
        elif step == "minute":
            until(lambda: time.monotonic() - self.struck_at > MINUTE_S, 2 * MINUTE_S)
        elif step == "heal":
            if row.at in ENDING:
                self.verb_ended()  # it should work without the node
            for node in sorted(self.stage.broken):
                self.stage.fault("heal", node)
        elif step == "up":
            self.verb_ended()
            lab.serve()
        elif step == "guard":
            if row.how != "STOP":
                self._expect({"state": "failed"}, "before the guard looks")
            lab.deploy("guard", "--once")
        elif step == "status":
            assert self.stage.lab.deploy("status", code=None).returncode in (0, 3, 4, 5)
        elif step == "serve":
            self._serve_more()
        elif step == "outlast":
            began = time.monotonic()  # how long it lasts is what the row is about
            until(lambda: time.monotonic() - began > OUTLAST_S, 2 * OUTLAST_S)
        elif step == "dead":
            self._expect({"state": "failed"}, "after its lease")
        else:
            self.verb_ended()
            lab.deploy(step, code=None if self.stage.broken else 0)

    def _serve_more(self) -> None:
        if self.load is None:
            self.verb_ended()
            self.load_it()
        load = self.load
        assert load is not None
        goal = load.good + MORE_ANSWERS
        if not until(lambda: load.good >= goal or bool(load.bad), SHOWN_S) or load.bad:
            gang = self.stage.gang()
            cause = (gang["cause"] or {}).get("text", "no cause")
            raise Otherwise(f"{load.good} of {goal} answers, failed: {load.bad[:2]}; {gang['state']}: {cause}")

    def verb_ended(self) -> None:
        """Wait for the command that was running, unless it was itself hit; a guard keeps running."""
        row, verb = self.row, self.verb
        self._beside_ended()
        if verb is None or verb.words[0] in ("guard", *PAGES):
            return
        if row.hit == "controller" and row.how != "STOP":
            return
        left_s = VERB_S
        if row.unhealed and self.struck_at:
            left_s = self.struck_at + UNHEALED_S * slack() - time.monotonic()
        code, wanted = verb.ended(max(0.0, left_s)), row.end.get("verb")
        if (wanted == "not 0" and code == 0) or (isinstance(wanted, int) and code != wanted):
            raise Otherwise(f"`{verb.words[0]}` ended with {code}: {' '.join(verb.said[-400:].split())}")
        if "says" in row.end and row.end["says"] not in verb.said:
            raise Otherwise(f"`{verb.words[0]}` does not say {row.end['says']!r}: {' '.join(verb.said[-400:].split())}")

    def _beside_ended(self) -> None:
        """Wait for the other release's command: its exit code, and no traceback."""
        other, self.beside = self.beside, None
        if other is None:
            return
        code = other.ended()
        if code not in self.row.end["other"] or "Traceback" in other.said:
            raise Otherwise(f"`{self.row.how}` beside it ended with {code}: {' '.join(other.said[-400:].split())}")

    # -- the judgement ------------------------------------------------------------------------------------------

    def _expect(self, wanted: dict[str, Any], when: str) -> None:
        """Wait until `status` shows it, or until the time limit."""
        if wanted.pop("left", "") == "nothing":
            self._expect(wanted, when)
            self._nothing_left(when)
            return
        trouble = [f"{when}: not looked at"]

        def is_so() -> bool:
            gang = self.stage.gang()
            trouble[:] = self._differences(gang, wanted)
            return not trouble

        if not until(is_so, SHOWN_S, 1.0 if self.stage.broken else 0.1):
            raise Otherwise(f"{when}: {'; '.join(trouble)}")

    def _differences(self, gang: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
        state, cause = wanted.get("state"), gang["cause"] or {}
        found = []
        if state == "not running":
            found += [] if gang["state"] in ("absent", "failed") else [f"the gang is {gang['state']}"]
        elif state not in (None, gang["state"]):
            found.append(f"the gang is {gang['state']} {gang['trouble']}: {cause.get('text')}")
        if wanted.get("trouble") not in (None, gang["trouble"]):
            found.append(f"the trouble is {gang['trouble']!r} ({gang['state']})")
        if "says" in wanted and not any(wanted["says"] in remark for remark in gang["remarks"]):
            found.append(f"remarks are {gang['remarks']}")
        if "contact" in wanted and not any(node["contact"] == wanted["contact"] for node in gang["nodes"]):
            found.append(f"contacts are {[node['contact'] for node in gang['nodes']]}")
        if wanted.get("blames") == "either":
            nodes = {self.row.node, *((self.row.second.node,) if self.row.second else ())}
            found += [] if cause.get("node") in nodes else [f"the cause is neither's: {cause.get('text')}"]
        elif "blames" in wanted:
            found += [
                f"the cause has {name} {cause.get(name)}, not {value}: {cause.get('text')}"
                for name, value in self._blamed(wanted["blames"]).items()
                if cause.get(name) != value
            ]
        return found

    def _blamed(self, what: str) -> dict[str, Any]:
        row = self.row
        number = {"signal": int(getattr(signal, f"SIG{row.how}", 0))}
        node, rank = {"node": row.node}, {"tp_rank": row.rank}
        if row.at == "failed":
            return {"node": "node2", "tp_rank": 5, "signal": 9}
        of: dict[str, dict[str, Any]] = {
            "node": node,
            "gpu": {**node, **rank},
            "rank": {**node, **rank, **number},
            "parent": {**node, **number},
        }
        return dict(of[what])

    def _count_requests(self) -> None:
        if self.load is None:
            return
        wanted = self.row.end["failed_requests"]
        if len(self.load.bad) != wanted:
            raise Otherwise(f"{len(self.load.bad)} of {self.load.good} requests failed: {self.load.bad[:2]}")

    def _nothing_left(self, when: str) -> None:
        if not until(lambda: not self.stage.left(), GONE_S):
            raise Otherwise(f"{when} is left: {'; '.join(self.stage.left())[:300]}")


def until(done: Callable[[], bool], deadline_s: float, pause_s: float = 0.2) -> bool:
    """Whether it came true in time; checked seldom, since a check is often a complete command."""
    return wait_until(done, deadline_s=deadline_s, step_s=pause_s)


def _open_files(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []


def _is_socket(entry: Path) -> bool:
    try:
        return str(entry.readlink()).startswith("socket:")
    except OSError:
        return False
