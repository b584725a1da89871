"""What a node says to each verb: whatever one node says fails that node alone, as a value; the other's answer stays.

A case is the verb's name, a newline, and the bytes that the odd node writes. Two nodes are asked by the code that
commands ask with; only the connection is ours.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from tests.fuzz.mutate import odd_bytes, odd_json
from tests.support import recorded_release as recorded
from tests.support.commands import unasked
from tests.support.healthy_cluster import cluster_of, healthy_nodes

from orchestrator.bench.steps import bench
from orchestrator.checkpoint.steps import chain, checkpoint, verify
from orchestrator.checkpoint.steps.verify import same_roots
from orchestrator.doctor.steps.doctor import diagnose
from orchestrator.doctor.steps.trials import labels_of, try_ways
from orchestrator.engines import bench_client, serving
from orchestrator.gang.overview import status_json
from orchestrator.gang.steps.staging import staged_request
from orchestrator.gang.steps.standing import runs_in
from orchestrator.gang.steps.status import history, live, logs, reports
from orchestrator.jobs import run as workflow_jobs
from orchestrator.jobs.messages import JobLine, JobOrder
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec
from orchestrator.model.per_node import PerNode
from orchestrator.model.profile import Load
from orchestrator.model.snapshot import snapshot_json
from orchestrator.monitoring.metrics import metrics
from orchestrator.monitoring.steps.exporter import Scraper
from orchestrator.nettest.messages import ALL_REDUCE, NettestLine, NettestStep, RailsLine
from orchestrator.nettest.rails import RailPort, judge, ways
from orchestrator.nettest.schedule import Place
from orchestrator.nettest.steps import nettest
from orchestrator.nettest.steps import ports as rails
from orchestrator.nettest.verdict import judge_links, judge_tests
from orchestrator.node.dispatch import VERBS
from orchestrator.planning.judgement import draft
from orchestrator.planning.steps import plan
from orchestrator.planning.steps.look import look
from orchestrator.protocol import jobs, verbs
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.looks import Listening, Outcome, Trial
from orchestrator.protocol.message import Message
from orchestrator.protocol.report import AgentState, ToldError
from orchestrator.remote import node_app
from orchestrator.remote.commands import lines
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import CommandResult, Session
from orchestrator.topology.build import build
from orchestrator.tuning.messages import TuneLine
from orchestrator.tuning.steps import packs, tuning

GOOD, ODD = "node0", "node1"
_ASKED = re.compile(r'"\$f" ([a-z-]+)')


@functools.cache
def _cluster() -> Any:
    return cluster_of(healthy_nodes(2))


@functools.cache
def _nodes() -> tuple[NodeSpec, ...]:
    return tuple(_cluster().specs.values())


def _gang() -> GangSpec:
    return GangSpec(name="gang0", nodes=_nodes())


@dataclass(eq=False)
class Node:
    """A session: what its node says to each verb."""

    spec: NodeSpec
    said: Mapping[str, bytes]
    alive: bool = True
    logging_in: bool = False

    def run(self, command: Any, *, stdin: bytes = b"", deadline_s: float, become: bool | None = None) -> CommandResult:
        return CommandResult(0, self._said(command), b"")

    def stream(
        self, command: Any, *, stdin: bytes = b"", deadline_s: float | None, quiet_s: float | None = None
    ) -> Iterator[bytes]:
        yield from lines([self._said(command)])

    def close(self) -> None:
        """Nothing is open."""

    def _said(self, command: Any) -> bytes:
        asked = _ASKED.search(str(command))
        return self.said[asked[1]] if asked else b""


class Raw(Message):
    """Any request: nobody reads it here."""

    def as_json(self) -> dict[str, Any]:
        return {}


ASKED: Any = Raw()
REBLOCK = jobs.ReblockRequest(source="/a", target="/b", block=64)
HUB = jobs.HubRequest(hub="huggingface", repo="a/b", directory="/a")


def nothing(*_: object, **__: object) -> None:
    """For whoever wants to be told."""


def value(of: Any) -> bytes:
    """A verb's answer."""
    return json.dumps({"ok": True, "value": of.as_json() if isinstance(of, Message) else of}).encode() + b"\n"


def said(*of: Message | Mapping[str, Any]) -> bytes:
    """A verb's lines."""
    return b"".join(json.dumps(one.as_json() if isinstance(one, Message) else dict(one)).encode() + b"\n" for one in of)


# -- how commands ask ------------------------------------------------------------------------------------------------


def every(work: Callable[[Session], object]) -> Callable[[Fleet], None]:
    """Both nodes at once; the good one's answer is there."""

    def play(fleet: Fleet) -> None:
        stays(fleet.on_every(work))

    return play


def stays(told: PerNode[Any]) -> None:
    assert GOOD in told.values, told.failures
    assert told.values.keys() | told.failures.keys() == {GOOD, ODD}


def typed(verb: str) -> Callable[[Fleet], None]:
    """A verb of the gang's whose answer is a type."""
    return every(lambda session: node_app.ask(session, verb, ASKED, verbs.ANSWERS[verb], deadline_s=5))


def _probe(fleet: Fleet) -> None:
    told = look(fleet, _nodes())
    stays(told)
    for snapshots in (told.values, {GOOD: told.values[GOOD]}):
        topologies = {name: build(one) for name, one in snapshots.items()}
        specs = {name: _cluster().specs[name] for name in snapshots}
        whole = type(_cluster())(topologies=topologies, snapshots=snapshots, specs=specs, stacks={})
        json.dumps([finding.title for finding in diagnose(whole, told.failures).findings])


def _figures(fleet: Fleet) -> None:
    with Scraper(Inventory(path="inventory.yml", gangs=(_gang(),)), (_gang(),)) as scraper:
        scene = scraper.scrape()
    stays(PerNode({n: v for n, v in scene.nodes.items() if not isinstance(v, DeployError)},
                  {n: v for n, v in scene.nodes.items() if isinstance(v, DeployError)}))  # fmt: skip
    assert metrics(scene)
    told = live.node_loads(fleet, reports.see(fleet, [_gang()]))
    assert told[GOOD].gauges is not None
    json.dumps({name: one.as_json() for name, one in told.items()}, allow_nan=False)


def _labels(fleet: Fleet) -> None:
    stays(labels_of(fleet, [GOOD, ODD]))


def _prerequisites(fleet: Fleet) -> None:
    profile, stack = load_profile("DeepSeek-V3-0324-Block64x64"), load_stack("sglang-0.5.23")
    told = plan.prerequisites(fleet, _nodes(), profile, stack)
    assert GOOD in told
    plan.facts_of_hosts(_cluster().snapshots, told)


def _tuned(fleet: Fleet) -> None:
    found = tuning.ask_holdings(fleet, [GOOD, ODD], load_stack("sglang-0.5.23"), {})
    assert GOOD in found.values


def _report(fleet: Fleet) -> None:
    views = reports.see(fleet, [_gang()])
    json.dumps(status_json(views), allow_nan=False)
    assert views[0].nodes[0].error is None
    told = reports.everything(fleet)
    stays(told)
    for answer in told.values.values():
        list(runs_in(answer))


def _history(fleet: Fleet) -> None:
    (account,) = history._accounts(fleet, [_gang()], events=True)
    assert GOOD not in account.failures
    assert GOOD not in history._kept(_gang(), history._histories(fleet, [_gang()], audit=True)).failures


def _logs(fleet: Fleet) -> None:
    inventory = Inventory(path="inventory.yml", gangs=(_gang(),))
    told = list(logs.logs(unasked(inventory, fleet), lines=3, follow=False))
    assert [line.text for line in told if line.node == GOOD and line.failure is None] == ["a line"]


def _staged(session: Session) -> None:
    answer = node_app.ask(session, "staged", ASKED, verbs.StagedAnswer, deadline_s=5)
    staged_request(session.spec, "gang0", answer)


def _ask(session: Session) -> None:
    request = verbs.AskRequest(asks=(verbs.HttpRequest(url="http://x"),))
    (answer,) = node_app.ask_http(session, request, deadline_s=5)
    serving.running_requests(answer.body)
    with contextlib.suppress(ValueError):
        serving.workers(answer.body)


JOB = JobOrder(word="job", noun="job", command=(), deadline_s=1.0, too_long="")


def _bench(session: Session) -> None:
    heard = bench._ClientAnswers(nothing)
    workflow_jobs.follow(session, "gang0", JOB, JobLine, heard.take)
    bench_client.decoding(heard.rows, Load(prompts=4))
    with contextlib.suppress(ValueError):
        bench_client.read(heard.text)


def _nettest(session: Session) -> None:
    places = [Place(node=name, ranks=(rank,)) for rank, name in enumerate((GOOD, ODD))]
    step = NettestStep(id=0, kind=ALL_REDUCE, between="all ranks", groups=((0, 1),), bytes=(8, 16), box_s=1.0)
    heard = nettest._NettestAnswers("gang0", [step], {place.node: place.ranks for place in places}, nothing)
    workflow_jobs.follow(session, "gang0", JOB, NettestLine, functools.partial(heard.take, session.spec.name))
    judge_tests([step], heard.figures, places, {})
    judge_links([step], heard.figures, places, {})


def _rails(session: Session) -> None:
    both = {name: [RailPort(node=name, device="mlx5_0", port=1, rate_gbps=100.0)] for name in (GOOD, ODD)}
    heard = rails._RailsAnswers(ways(both))
    rails._follow(session, ASKED, heard)
    heard.note()
    judge(heard.order, heard.said, enough=0.8)


def _tune_run(session: Session) -> None:
    workflow_jobs.follow(session, "gang0", JOB, TuneLine, lambda _: False)


def _job(session: Session) -> None:
    """What any of them is told, at any time."""
    with contextlib.suppress(DeployError):
        _bench(session)
    with contextlib.suppress(DeployError):
        _tune_run(session)
    _nettest(session)


def _ways(fleet: Fleet) -> None:
    try_ways(fleet, _cluster())


def _push(verb: str) -> Callable[[Fleet], None]:
    def play(fleet: Fleet) -> None:
        for name in (GOOD, ODD):
            link = chain.VerbStream(fleet, name, verb, ASKED)
            link.wait()
            try:
                link.begin("127.0.0.1")
                link.files()
            except DeployError:
                assert name == ODD or link.first
            link.hop()
            assert link.failure is None or link.failure.fix != "report this", link.failure

    return play


def _same_root(fleet: Fleet) -> None:
    found = same_roots(fleet, {GOOD: "/a", ODD: "/a"}, "c")
    assert found[GOOD] == GOOD


def _digests(session: Session) -> None:
    verify._digests(session, "/a", fresh=False, report=nothing)


def _inspect(session: Session) -> None:
    judgement = checkpoint.inspected(session, jobs.InspectRequest(directory="/a"))
    json.dumps(judgement.as_json(), default=str)
    with contextlib.suppress(DeployError):
        draft(judgement, name="m", directory="m", source="s")


@dataclass(frozen=True)
class Verb:
    """sound: what the good node says; play: how commands ask it of all nodes; also: other verbs asked on the way."""

    sound: bytes
    play: Callable[[Fleet], None]


@functools.cache
def every_verb() -> Mapping[str, Verb]:
    """By name, all of them."""
    stack = load_stack("sglang-0.5.23")
    gauges = {
        "now": 1.0,
        "gpus": [{"index": 0, "power_mw": 1}],
        "ports": [{"device": "m", "port": 1, "counters": {"a": 1}}],
    }
    ready = recorded.answers()[f"{GOOD} ready settled"]
    state = value(verbs.StateAnswer(state=AgentState.ARMED))
    lock = verbs.LockHolder(token="t", who="ops", host="h", pid=1)
    progress = jobs.Progress(10, 5)
    found = {
        "path": "/a", "config": json.dumps({"num_hidden_layers": 1, "architectures": ["X"], "num_attention_heads": 8}),
        "block": [64, 64], "shards": {"named": 1, "readable": 1, "unused": []}, "bytes": {"files": 8, "tensors": 4},
        "tensors": {"count": 1, "by_dtype": {"F8_E4M3": {"count": 1, "bytes": 4}}}, "layers": {"0": 1},
        "experts": {"0": 2}, "faults": [{"id": "X", "severity": "note", "where": "a", "what": "b", "fix": ""}],
    }  # fmt: skip
    block = jobs.Reblocked(written=progress, proof=jobs.Proof(1, 1, 1, 1), old_block=(128, 128), new_block=(64, 64))
    brought = jobs.Downloaded(directory="/a", commit="c", files=1, bytes=1, by_size=0, there=False)
    listening = Listening(tcp={"5000": "listening"}, ephemeral=4000, udp={"10.0.0.11": 4001}, rails={}, pid=7)
    dialed = Trial(target=ODD, address="10.0.0.12", port=5000, kind="tcp", side="tcp", outcome=Outcome.OPEN, ms=0.1)
    result = {"completed": 1, "total_input_tokens": 1, "total_output_tokens": 1, "duration": 1.0,
              "input_throughput": 1.0, "output_throughput": 1.0}  # fmt: skip
    return {
        "probe": Verb(value(snapshot_json(_cluster().snapshots[GOOD])), _probe),
        "figures": Verb(value({"now": 1.0, "reports": ready["reports"], "gauges": gauges,
                               "locks": {"gang0": lock.as_json()}, "xids": [{"pci_bus_id": "a", "xid": 1, "count": 1}],
                               "answers": []}), _figures),
        "labels": Verb(value({}), _labels),
        "prerequisites": Verb(value({"config": found["config"], "glibc": "2.36", "engine": True}), _prerequisites),
        "tune": Verb(value(jobs.TuneAnswer(triton="3.6.0", written=("a",), left={"b": "c"})),
                     every(lambda session: packs._put(session, stack, None, check=True))),
        "tuned": Verb(value({"root": "/x", "versions": {"a": "1"}, "folders": {"f": {"n": "{}"}}}), _tuned),
        "stage": Verb(value(verbs.StageAnswer(folder="/x")), typed("stage")),
        "check": Verb(value(verbs.CheckAnswer(refusals=(ToldError(kind="no-model", what="w", where="/x", fix="f"),),
                                              checkpoint={"config.json": "a"})), typed("check")),
        "arm": Verb(state, typed("arm")),
        "go": Verb(state, typed("go")),
        "stop": Verb(value(verbs.StopAnswer(state="stopped", left_behind=(1,))), typed("stop")),
        "report": Verb(value(ready), _report),
        "logs": Verb(b"a line\n", _logs),
        "lock": Verb(value(verbs.LockAnswer(held=lock, mine=True)),
                     every(lambda session: node_app.ask_lock(session, ASKED))),
        "history": Verb(value(recorded.histories()[GOOD]), _history),
        "excerpt": Verb(value(verbs.ExcerptAnswer(found=True, lines=("a",), marked=0)), typed("excerpt")),
        "staged": Verb(value(recorded.staged()[GOOD]), every(_staged)),
        "ask": Verb(value({"answers": [{"status": 200, "body": json.dumps(
            {"workers": [{"id": "a", "url": "u", "is_healthy": True, "load": 1}],
             "loads": [{"num_running_reqs": 1, "num_waiting_reqs": 0}]})}]}), every(_ask)),
        "job": Verb(said(JobLine(answered=1, of=2), {"begun": "x"}, {"job": "x", "us": 1.0},
                         NettestLine(step=0, group=0, us=1.0), NettestLine(done=0), JobLine(result=json.dumps(result)),
                         JobLine(ended=0)), every(_job)),
        "rails": Verb(said(RailsLine(run=0, text="x"), RailsLine(run=1, status=1), RailsLine(ended=True)),
                      every(_rails)),
        "listen": Verb(value(listening), _ways),
        "dial": Verb(value([dialed.as_json()]), _ways),
        "push-offer": Verb(said({"port": 7, "secret": "abc"}, {"files": {"a/b": 5}}, {"complete": True}),
                           _push("push-offer")),
        "push-receive": Verb(said({"port": 7, "secret": "abc", "there": False}, {"bytes": 5, "complete": True}),
                             _push("push-receive")),
        "same-root": Verb(value(jobs.SameRootAnswer(done=True)), _same_root),
        "digests": Verb(said(jobs.DigestsLine(total=1, digests={"a": "b"}), jobs.DigestsLine(files=1)),
                        every(_digests)),
        "reblock": Verb(said(jobs.ReblockLine(doing="proving", progress=progress), jobs.ReblockLine(outcome=block)),
                        every(lambda session: checkpoint.followed(session, "reblock", REBLOCK, jobs.ReblockLine,
                                                                  nothing))),
        "inspect": Verb(value(found), every(_inspect)),
        "download": Verb(said(jobs.HubLine(doing="verifying", total=1), jobs.HubLine(outcome=brought)),
                         every(lambda session: checkpoint.followed(session, "download", HUB, jobs.HubLine, nothing))),
    }  # fmt: skip


COSTLY = ("probe",)
"""A target of its own: a doctor's whole look takes a hundred times as long as the others."""


def odd_answer(names: Sequence[str]) -> Callable[[random.Random, bytes], bytes]:
    """A case of one of these verbs."""

    def made(rng: random.Random, _: bytes) -> bytes:
        name = rng.choice(names)
        sound = every_verb()[name].sound
        whole = sound.splitlines(keepends=True)
        at = rng.randrange(len(whole))
        try:
            whole[at] = odd_json(rng, whole[at]) + b"\n"
        except ValueError:  # of a log
            whole[at] = odd_bytes(rng, whole[at])
        text = b"".join(whole)
        return name.encode() + b"\n" + (odd_bytes(rng, text) if rng.random() < 0.2 else text)

    return made


def hear(names: Sequence[str], case: bytes) -> None:
    """Ask both nodes; what is no case is what every verb is answered with."""
    first, _, rest = case.partition(b"\n")
    name = first.decode("ascii", "replace")
    for verb, odd in ((name, rest),) if name in names else ((one, case) for one in names):
        sound = {other: one.sound for other, one in every_verb().items()}
        heard = {GOOD: sound, ODD: {**sound, verb: odd}}
        connected = mock.patch("orchestrator.remote.fleet.connect", functools.partial(_connect, heard))
        with connected, Fleet(_nodes()) as fleet:
            every_verb()[verb].play(fleet)


def _connect(heard: Mapping[str, Mapping[str, bytes]], spec: NodeSpec, deadline_s: float) -> Node:
    return Node(spec, heard[spec.name])


NAMES = tuple(name for name in VERBS if name not in COSTLY)
