"""The steps of the proof: what is done, and what has to be seen."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import yaml
from tests.gpu import answers, cards, graphs, hangs, measuring, survive, tuned
from tests.gpu.figures import Result, now
from tests.gpu.stage import (
    HOME,
    MODELS,
    ORIGINAL,
    REBLOCKED,
    ROUTER_PORT,
    STACK,
    Gone,
    Otherwise,
    Shape,
    Stage,
    command_of,
    engine_python,
    find_node_in,
    with_what_was_seen,
)

from l40s_lab.processes import wait_until

Record = Callable[[Result], None]
Play = Callable[[Stage, Record], tuple[str, dict[str, Any]]]
ROUTER = f"http://127.0.0.1:{ROUTER_PORT}"
EACH_RANK = 3
"""How often each is killed, in one gang and in two together."""
FEWEST = 4
"""GPUs with which two nodes have several each."""
KILL_S = 70.0
"""Of a start and a kill."""
HUNG_S = 110.0
LEASE_S = 45.0
LONG_ANSWER = 1500
"""Tokens: some seconds."""


@dataclass(frozen=True)
class Step:
    """One step. shape: of the lab it needs, by the number of GPUs; needs_s: less time left, and it is not begun.

    alone: it needs real GPUs; gpus: so many at least
    """

    name: str
    what: str
    play: Play
    shape: Callable[[int], Shape] | None
    needs_s: float = 60.0
    alone: bool = False
    gpus: int = 1


def one_gang(gpus: int) -> Shape:
    """Every GPU a node, all of them one gang."""
    return Shape(1, gpus, 1)


def two_gangs(gpus: int) -> Shape:
    """Every GPU a node, in two gangs."""
    return Shape(2, gpus // 2 * 2, 1)


def one_node(gpus: int) -> Shape:
    """Every GPU in one node."""
    return Shape(1, 1, gpus)


def several_nodes(gpus: int) -> Shape:
    """Two gangs where either has several nodes, else one."""
    return two_gangs(gpus) if gpus >= FEWEST else one_gang(gpus)


def two_nodes(gpus: int) -> Shape:
    """Two nodes that have half of the GPUs each."""
    return Shape(1, 2, gpus // 2)


def topology(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """The machine itself, all GPUs."""
    folder = stage.kept / "topology"
    times, versions = cards.all_reduce(engine_python(real=True), len(stage.gpus), folder)
    inventory = stage.lab.folder / "machine.yml"
    host = {"ansible_connection": "local", "l40s_gpus": len(stage.gpus), "l40s_stack": str(STACK)}
    document = {"gangs": {"children": {"machine": {"hosts": {"host": host}}}}}
    inventory.write_text(yaml.safe_dump(document))
    done = stage.run("doctor", "-i", str(inventory), "--dump-xml", str(folder))
    if not (folder / "host.xml").exists():
        raise Otherwise(f"doctor --dump-xml wrote nothing: {done.stderr[-300:]}")
    differing = cards.compared(folder / "nccl.xml", folder / "host.xml")
    read_back = stage.run("doctor", "--from", str(folder / "nccl.xml"))
    figures = {
        "all_reduce_us": times,
        "versions": versions,
        "differing": differing,
        "from_nccl_xml_exit": read_back.returncode,
    }
    if differing:
        words = ", ".join(f"{name} {theirs} and {ours}" for name, (theirs, ours) in sorted(differing.items()))
        raise Otherwise(f"NCCL's file and ours differ in {words}", **figures)
    return "NCCL's own topology file and ours say the same of every GPU and its links", figures


def look(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """What is found before anything is started."""
    began = time.monotonic()
    document = stage.lab.json("doctor")
    took = time.monotonic() - began
    found = [f"{one['severity']} {one['id']}" for one in document["findings"]]
    gpus = {node["name"]: node["gpus"] for node in document["nodes"]}
    plan = stage.run("plan", "--model", stage.lab.model)
    if plan.returncode:
        raise Otherwise(f"plan ended with {plan.returncode}: {plan.stderr[-300:]}")
    stops = [one for one in found if one.startswith("stop")]
    if stops:
        raise Otherwise(f"doctor stops: {', '.join(stops)}")
    said = f"doctor looked at {len(gpus)} nodes in {took:.1f} s: {', '.join(sorted(set(found))) or 'nothing found'}"
    return said, {"doctor_s": round(took, 1), "findings": found, "gpus_seen": gpus}


def up(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """From nothing to ready; what `status` says of ranks and memory is what NVML says."""
    cold = stage.up()
    gang = stage.gang()
    ranks = [rank for node in gang["nodes"] for rank in node["ranks"]]
    figures: dict[str, Any] = {"up_s": round(cold, 1), "ranks": len(ranks)}
    if len(stage.gpus):
        shown = sorted(int(rank["gpu_memory_bytes"]) >> 20 for rank in ranks)
        true = sorted(held for gpu in stage.gpus.processes() for held in gpu.values())
        pids = {stage.rank("gang0", int(rank["tp_rank"]))[1].pid for rank in ranks}
        figures |= {"rank_mib_shown": shown, "rank_mib_nvml": true}
        if shown != true or pids != {pid for gpu in stage.gpus.processes() for pid in gpu}:
            raise Otherwise("status and NVML differ about the ranks' memory", **figures)
    stage.continues(str(gang["service"]["url"]), **figures)
    return f"{len(ranks)} ranks ready after {cold:.0f} s, their memory as NVML has it; the alphabet goes on", figures


def generation(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """The re-blocked checkpoint against float32."""
    stage.ready()
    said = answers.ask(stage.service())
    (stage.kept / f"{REBLOCKED}.json").write_text(json.dumps(said))
    return _against_reference(said)


def _against_reference(served: answers.Said) -> tuple[str, dict[str, Any]]:
    file = HOME / "reference.json"
    if not wait_until(file.exists, deadline_s=60.0, step_s=0.5):
        raise Otherwise(f"there is no reference: no {file}")
    apart = answers.distance(served, json.loads(file.read_text()))
    if wrong := answers.letters_wrong(served):
        raise Otherwise(wrong, **apart.figures())
    if not apart.near:
        raise Otherwise("log-probabilities are far from float32's", **apart.figures())
    said = (
        f"log-probabilities of 1,194 tokens are {apart.rms:.3f} (rms) from float32's, the likeliest token is the same"
    )
    return f"{said} at {apart.agreement:.0%} of the places; the alphabet goes on", apart.figures()


def original(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """The checkpoint before it was re-blocked, served and asked the same."""
    took = stage.up("--replace", model=ORIGINAL)
    said = answers.ask(stage.service())
    told, figures = _against_reference(said)
    kept = stage.kept / f"{REBLOCKED}.json"
    if not kept.exists():
        return f"128x128 served: {told}", figures
    apart = answers.distance(json.loads(kept.read_text()), said)
    figures = {"up_s": round(took, 1), "to_float32": figures, "between": apart.figures()}
    if not apart.near:
        raise Otherwise("128x128 and 64x64 are far from each other", **figures)
    words = f"64x64 and 128x128 are {apart.rms:.3f} (rms) from each other, each as near to float32"
    return f"{words}; the likeliest token is the same at {apart.agreement:.0%} of the places", figures


def attention(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """Attention data parallel: each rank its own requests' attention; the answers beside tensor parallel's."""
    ranks = len(stage.gpus_of("gang0"))
    took = stage.up("--attn-dp", str(ranks), "--replace")
    figures: dict[str, Any] = {"up_s": round(took, 1), "start": stage.gang()["start"]}
    stage.continues(stage.service(), **figures)
    said = f"TP{ranks} with attention DP {ranks} ready after {took:.0f} s; the alphabet goes on"
    if not stage.lab.real:
        return said, figures
    with with_what_was_seen(figures):
        served = answers.ask(stage.service())
        told, figures["to_float32"] = _against_reference(served)
    kept = stage.kept / f"{REBLOCKED}.json"
    if kept.exists():
        apart = answers.distance(json.loads(kept.read_text()), served)
        figures["to_tensor_parallel"] = apart.figures()
        if not apart.near:
            raise Otherwise("its answers are far from tensor parallel's", **figures)
        told = f"log-probabilities are {apart.rms:.3f} (rms) from TP{ranks}'s; {told}"
    return f"{said}; {told}", figures


def kill(stage: Stage, gang: str, tp_rank: int, *, load: bool) -> Result:
    """SIGKILL to a serving rank: `status` has to name its node, rank and signal."""
    began = time.monotonic()
    figures: dict[str, Any] = {"gang": gang, "ranks": len(stage.gpus_of(gang)), "tp_rank": tp_rank, "load": load}
    try:
        figures["up_s"] = round(stage.ready(gang), 1)
        with stage.load(stage.service(gang)) if load else nullcontext():
            node, process = stage.rank(gang, tp_rank)
            gone = Gone(stage.engine(gang), stage.gpus, stage.gpus_of(gang))
            process.kill(signal.SIGKILL)
            found, told_s = stage.failed(gang)
            figures |= {"node": node, "told_s": told_s, "first": _cause(found), **gone.figures()}
        figures["cause"] = last = _cause(stage.gang(gang))
        right = [node, tp_rank, int(signal.SIGKILL)]
        outcome = last[:3] == right and figures["first"][:3] == right
        if not outcome:
            stage.keep(f"kill-{gang}-{tp_rank}-{int(time.time())}")
        said = f"{node} TP{tp_rank} killed{' under load' if load else ''}: status says"
        return _result(
            "kill", outcome, f"{said} {last[0]} TP{last[1]} signal {last[2]}, after {told_s} s", figures, began
        )
    except (Otherwise, OSError) as error:
        return _result("kill", False, str(error), {**figures, **getattr(error, "figures", {})}, began)


def _cause(gang: dict[str, Any]) -> list[Any]:
    cause = gang.get("cause") or {}
    return [cause.get("node"), cause.get("tp_rank"), cause.get("signal"), cause.get("text")]


def kills_of_one_gang(stage: Stage, record: Record, each_s: float = KILL_S) -> tuple[str, dict[str, Any]]:
    """Each rank at least once, every second one under load. each_s: less time left, and no other kill is begun"""
    ranks = len(stage.gpus_of("gang0"))
    wanted = ranks if ranks >= FEWEST else EACH_RANK * ranks
    done = _kills(stage, record, "gang0", wanted, each_s)
    return _of(done, wanted, "kills named with node, rank and signal")


def _kills(stage: Stage, record: Record, gang: str, wanted: int, each_s: float = KILL_S) -> list[bool]:
    """One rank after the other, each alternately idle and under load; as many as there is time for."""
    ranks, done = len(stage.gpus_of(gang)), list[bool]()
    while len(done) < wanted and stage.left_s > each_s:
        number = len(done)
        record(result := kill(stage, gang, number % ranks, load=_loaded(number, ranks)))
        done.append(result.outcome == "as it should")
    return done


def _loaded(number: int, ranks: int) -> bool:
    """Every second kill is under load, and every rank's in turn."""
    return (number % ranks + number // ranks) % 2 == 1


def freeze(stage: Stage, gang: str = "gang0") -> tuple[str, dict[str, Any]]:
    """A rank that stands still: shown as stopped, then as hung; the guard restarts the gang as a whole."""
    stage.ready(gang)
    last = len(stage.gpus_of(gang)) - 1
    _, process = stage.rank(gang, last)
    old = stage.engine(gang)
    process.kill(signal.SIGSTOP)
    stopped = _state_of(last)
    _, shown_s = stage.seen(gang, lambda one: stopped(one) == "stopped", 20.0, f"TP{last} is stopped")
    _, hung_s = stage.seen(gang, lambda one: one["trouble"] == "hung", HUNG_S, "hung")
    began = time.monotonic()
    guard = stage.run("guard", "--once", gang, timeout=min(150.0 * stage.patience, stage.left_s - 10))
    took = time.monotonic() - began
    left = [one.pid for one in old if one.alive]
    figures = {"stopped_after_s": shown_s, "hung_after_s": round(shown_s + hung_s, 1), "guard_s": round(took, 1)}
    if guard.returncode or left or stage.gang(gang)["state"] != "ready":
        raise Otherwise(f"the guard ended with {guard.returncode}; {len(left)} old processes left", **figures)
    said = f"a stopped rank shown after {shown_s} s, as hung after {figures['hung_after_s']} s"
    return f"{said}; the guard had all of the gang ready again in {took:.0f} s", figures


def _state_of(tp_rank: int) -> Callable[[dict[str, Any]], str]:
    def state(gang: dict[str, Any]) -> str:
        ranks = [rank for node in gang["nodes"] for rank in node["ranks"]]
        return next((str(rank["state"]) for rank in ranks if rank["tp_rank"] == tp_rank), "")

    return state


def agent_killed(stage: Stage, gang: str = "gang0") -> tuple[str, dict[str, Any]]:
    """An agent dies: its engine ends with it, and so does the gang."""
    stage.ready(gang)
    node = stage.nodes_of(gang)[-1]
    gone = Gone(stage.engine(gang), stage.gpus, stage.gpus_of(gang))
    for agent in find_node_in(stage.lab, node).agents():
        agent.kill()
    found, told_s = stage.failed(gang)
    figures = {"told_s": told_s, "cause": _cause(found), **gone.figures()}
    if found["cause"]["node"] != node or gone.processes_s is None:
        raise Otherwise(f"the agent of {node} was killed; {_cause(found)[3]}", **figures)
    return f"{node} named after {told_s} s, every process dead after {gone.processes_s} s", figures


def cut(stage: Stage, gang: str = "gang0") -> tuple[str, dict[str, Any]]:
    """A node's only cable: both sides end when the lease runs out."""
    stage.ready(gang)
    node = stage.nodes_of(gang)[-1]
    gone = Gone(stage.engine(gang), stage.gpus, stage.gpus_of(gang))
    stage.lab.run("break", node, "link-down")
    try:
        found, silent_s = stage.seen(
            gang, lambda one: one["trouble"] == "silent" or one["state"] == "failed", LEASE_S, "silent"
        )
        began = time.monotonic()
        stage.gang(gang)
        look_s = round(time.monotonic() - began, 1)
        figures: dict[str, Any] = {"silent_after_s": silent_s, "status_while_cut_s": look_s, **gone.figures()}
    finally:
        stage.lab.run("heal", node)
    found, _ = stage.failed(gang)
    figures["cause"] = _cause(found)
    if gone.processes_s is None or found["cause"]["node"] != node:
        raise Otherwise(f"{node} was cut off; {_cause(found)[3]}", **figures)
    said = f"shown as silent after {silent_s} s, every process on both sides dead after {gone.processes_s} s"
    return f"{said}; `status` took {look_s} s meanwhile", figures


def foreign(stage: Stage, gang: str = "gang0") -> tuple[str, dict[str, Any]]:
    """Somebody else's process holds memory of a GPU: `up` refuses and names it."""
    stage.run("down", "--now", gang)
    node = stage.nodes_of(gang)[-1]
    hold = "import torch,time; x=torch.zeros(3<<30,dtype=torch.uint8,device='cuda')"
    hold += "; print('held',flush=True); time.sleep(90)"
    words = [*shlex.split(stage.lab.ssh_command(node)), f"exec {engine_python(real=True)} -c {shlex.quote(hold)}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            if holder.stdout.readline() != "held\n":
                raise Otherwise("nothing could be held")
            done = stage.run("up", "--model", stage.lab.model, "--gang", gang)
            said = f"{done.stdout}{done.stderr}"
            figures = {"exit": done.returncode}
            if done.returncode != 3 or "pid" not in said:
                raise Otherwise(f"up ended with {done.returncode}: {said[-300:]}", **figures)
            if left := stage.engine(gang):
                raise Otherwise(f"{len(left)} processes left", **figures)
        finally:
            for process in find_node_in(stage.lab, node).processes():
                if b"torch.zeros" in command_of(process.pid):
                    process.kill()
            holder.kill()
    return "3 GiB held by another process: `up` refuses, names the process, and starts nothing", figures


def restart(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """A gang as a whole: an answer that is under way is finished."""
    stage.ready()
    old, answer = stage.engine(), dict[str, Any]()
    asking = threading.Thread(target=_long_answer, args=(stage.service(), answer), daemon=True)
    asking.start()
    began = time.monotonic()
    done = stage.run("restart", timeout=stage.left_s - 10)
    took = round(time.monotonic() - began, 1)
    asking.join(60)
    gang, left = stage.gang(), [one.pid for one in old if one.alive]
    figures: dict[str, Any] = {"restart_s": took, **answer, "start": gang["start"]}
    if done.returncode or left or gang["state"] != "ready":
        raise Otherwise(f"restart ended with {done.returncode}; {len(left)} old processes left", **figures)
    if not stage.lab.real:
        return f"ready again after {took} s, with new processes only", figures
    if answer.get("tokens") != LONG_ANSWER:
        raise Otherwise(f"the answer that was under way is cut off: {answer}", **figures)
    return f"the answer under way finished first; ready again after {took} s", figures


def down(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """An answer that is under way is finished; then nothing is left."""
    stage.ready()
    url, answer = stage.service(), dict[str, Any]()
    asking = threading.Thread(target=_long_answer, args=(url, answer), daemon=True)
    asking.start()
    time.sleep(1.0)
    gone = Gone(stage.engine(), stage.gpus, stage.gpus_of("gang0"))
    began = time.monotonic()
    done = stage.run("down", timeout=90)
    took = round(time.monotonic() - began, 1)
    asking.join(60)
    figures = {"down_s": took, **answer, **gone.figures(), **leftovers(stage)}
    if stage.lab.real and answer.get("tokens") != LONG_ANSWER:
        raise Otherwise(f"the answer that was under way is cut off: {answer}", **figures)
    if done.returncode or gone.processes_s is None or stage.gang()["state"] not in ("absent", "stopped"):
        raise Otherwise(f"down ended with {done.returncode}; status says {stage.gang()['state']}", **figures)
    if len(stage.gpus) and gone.memory_s is None:
        raise Otherwise("GPU memory is still held", **figures)
    if figures["shm_files"] or figures["tmp_files"]:
        raise Otherwise(f"files left: {figures['shm_files']} in /dev/shm, {figures['tmp_files']} in /tmp", **figures)
    return f"done in {took} s, the answer under way finished first; no process, memory or file left", figures


def _long_answer(url: str, answer: dict[str, Any]) -> None:
    sampling = {"temperature": 0, "max_new_tokens": LONG_ANSWER, "ignore_eos": True}
    body = json.dumps({"text": "abc", "sampling_params": sampling}).encode()
    request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=90) as response:
            answer["tokens"] = json.load(response)["meta_info"]["completion_tokens"]
    except (OSError, ValueError, KeyError) as error:
        answer["tokens"] = repr(error)


def leftovers(stage: Stage) -> dict[str, Any]:
    """How many files are in /dev/shm and /tmp of all nodes, and some of them."""
    found = {place: files(stage, place) for place in ("/dev/shm", "/tmp")}
    left = [name for names in found.values() for name in names]
    return {"shm_files": len(found["/dev/shm"]), "tmp_files": len(found["/tmp"]), "left": left[:6]}


def files(stage: Stage, place: str) -> list[str]:
    """NODE:PATH of every file in this folder of all nodes."""
    folders = {node: find_node_in(stage.lab, node).file(place) for node in stage.lab.hosts()}
    return [f"{node}:{place}/{entry.name}" for node, folder in folders.items() for entry in folder.iterdir()]


def pipeline(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """Tensor parallel inside a node, pipeline parallel between them."""
    each = stage.lab.gpus
    return _served(stage, f"PP2 x TP{each} on two nodes", "--tp", str(each), "--pp", "2")


def tensor(stage: Stage, record: Record) -> tuple[str, dict[str, Any]]:
    """Tensor parallel over both nodes, several ranks on each; then one of them dies."""
    told = _served(stage, f"TP{len(stage.gpus_of('gang0'))} on two nodes")
    record(kill(stage, "gang0", 1, load=False))
    return told


def one_node_of_all(stage: Stage, record: Record) -> tuple[str, dict[str, Any]]:
    """Tensor parallel inside one node; then its last rank dies."""
    ranks = len(stage.gpus_of("gang0"))
    told = _served(stage, f"TP{ranks} on one node")
    record(kill(stage, "gang0", ranks - 1, load=True))
    return told


def _served(stage: Stage, layout: str, *words: str) -> tuple[str, dict[str, Any]]:
    took = stage.up(*words, "--replace")
    stage.continues(stage.service(), up_s=took)
    return f"{layout} ready after {took:.0f} s; the alphabet goes on", {"up_s": round(took, 1)}


def both_up(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """Both gangs, and the router before them."""
    took = stage.up()
    found = stage.lab.json("router", "status")
    healthy = [worker["url"] for worker in found["workers"] if worker["healthy"]]
    figures = {"up_s": round(took, 1), "workers": len(healthy)}
    if len(healthy) != 2:
        raise Otherwise(f"the router has {len(healthy)} healthy workers after up ended well", **figures)
    stage.continues(ROUTER, **figures)
    return f"two gangs ready and in the router after {took:.0f} s; the alphabet goes on through it", figures


def kills_of_two_gangs(stage: Stage, record: Record) -> tuple[str, dict[str, Any]]:
    """Every rank of both gangs, side by side, idle and under load in turn."""

    ranks = len(stage.gpus_of("gang0"))
    wanted = EACH_RANK if ranks == 1 else (EACH_RANK - 1) * ranks
    lanes = [lambda gang=gang: _kills(stage, record, gang, wanted) for gang in ("gang0", "gang1")]
    done = [right for lane in _side_by_side(*lanes) for right in lane]
    return _of(done, 2 * wanted, "kills named with node, rank and signal")


def rolling(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """Gang by gang behind the router, under load without a retry."""
    _both_ready(stage)
    old = stage.engine()
    return _under_load(stage, "restart --rolling", ["restart", "--rolling"], old)


def changed_plan(stage: Stage, _: Record) -> tuple[str, dict[str, Any]]:
    """`up` with another flag rolls the same way."""
    _both_ready(stage)
    words = ["up", "--model", stage.lab.model, "--", "--max-running-requests", "24"]
    return _under_load(stage, "up with a changed plan", words, stage.engine())


def _under_load(stage: Stage, name: str, words: list[str], old: list[Any]) -> tuple[str, dict[str, Any]]:
    with stage.load(ROUTER, clients=stage.clients) as load:
        began = time.monotonic()
        done = stage.run(*words, timeout=stage.left_s - 15)
        took = time.monotonic() - began
    figures: dict[str, Any] = {"seconds": round(took, 1), "requests": load.good + len(load.bad)}
    figures |= {"failed": len(load.bad), "slowest_s": round(load.slowest_s, 1), "why": load.bad[:3]}
    left = [one.pid for one in old if one.alive]
    if done.returncode or load.bad or left:
        stage.keep(words[0])
        said = f"{name} ended with {done.returncode}, {len(load.bad)} requests failed, {len(left)} old processes left"
        raise Otherwise(f"{said}: {done.stderr.strip()[-300:]}", **figures)
    return f"{name}: {load.good} requests in {took:.0f} s, none failed", figures


def _both_ready(stage: Stage) -> None:
    if any(gang["state"] != "ready" for gang in stage.lab.json("status")["gangs"]):
        stage.up()


def troubles(stage: Stage, record: Record) -> tuple[str, dict[str, Any]]:
    """A rank stopped, an agent killed, a cable cut, foreign memory; side by side where there are two gangs."""

    def left() -> list[bool]:
        return [_played(stage, record, "freeze", lambda: freeze(stage, "gang0"), needs_s=150)]

    def right(gang: str) -> list[bool]:
        done = [
            _played(stage, record, "agent killed", lambda: agent_killed(stage, gang), needs_s=60),
            _played(stage, record, "cut", lambda: cut(stage, gang), needs_s=100),
        ]
        if stage.lab.real:
            done.append(_played(stage, record, "foreign memory", lambda: foreign(stage, gang), needs_s=25))
        return done

    if stage.lab.gangs == 1:
        done = left() + right("gang0")
    else:
        done = [one for lane in _side_by_side(left, lambda: right("gang1")) for one in lane]
    return _of(done, len(done), "ended as they should")


def _played(
    stage: Stage, record: Record, name: str, work: Callable[[], tuple[str, dict[str, Any]]], *, needs_s: float
) -> bool:
    result = played(name, work) if stage.left_s > needs_s else not_done(name, "no time left")
    record(result)
    return result.outcome == "as it should"


def _side_by_side(*lanes: Callable[[], list[bool]]) -> list[list[bool]]:
    from concurrent.futures import ThreadPoolExecutor

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(len(lanes)))
        return [one.result() for one in [pool.submit(lane) for lane in lanes]]


def _of(done: list[bool], wanted: int, words: str) -> tuple[str, dict[str, Any]]:
    figures = {"right": sum(done), "played": len(done)}
    said = f"{sum(done)} of {len(done)} {words}"
    if sum(done) < len(done) or not done:
        raise Otherwise(said, **figures)
    return said if len(done) == wanted else f"{said} (time for {len(done)} of {wanted})", figures


def played(name: str, work: Callable[[], tuple[str, dict[str, Any]]]) -> Result:
    """A step's result, whatever becomes of it."""
    began = time.monotonic()
    try:
        said, figures = work()
        return _result(name, True, said, figures, began)
    except Otherwise as error:
        return _result(name, False, str(error), error.figures, began)
    except Exception as error:
        return _result(name, False, f"{type(error).__name__}: {str(error)[-400:]}", {}, began)


def not_done(name: str, why: str) -> Result:
    """For a later call."""
    return Result(step=name, outcome="not done", said=why, at=now())


def _result(name: str, right: bool, said: str, figures: dict[str, Any], began: float) -> Result:
    outcome = "as it should" if right else "otherwise"
    seconds = round(time.monotonic() - began, 1)
    return Result(step=name, outcome=outcome, said=said, figures=figures, seconds=seconds, at=now())  # type: ignore[arg-type]


def model_made() -> bool:
    """Both checkpoints are on this machine."""
    return all((MODELS / name / "config.json").exists() for name in (ORIGINAL, REBLOCKED))


STEPS = (
    Step("topology", "NCCL's own topology file against ours", topology, None, 30, alone=True),
    Step("look", "doctor and plan before anything is started", look, one_gang, 20),
    Step("stack check", "the engine's own kernels, and a wrong tile", tuned.stack_check, one_gang, 150, alone=True),
    Step("up", "from nothing to ready", up, one_gang, 100),
    Step("generation", "log-probabilities against float32", generation, one_gang, 30, alone=True),
    Step("tuning", "kernels tuned, killed, resumed, read", tuned.tuning, one_gang, 240, alone=True),
    Step("golden", "accepted answers, asked again", measuring.golden, one_gang, 110),
    Step("golden under load", "accepted answers among others", measuring.golden_under_load, one_gang, 200),
    Step("draft", "accepted answers with drafts", measuring.draft, one_gang, 200),
    Step("bench", "beside the engine's client by hand", measuring.bench, one_gang, 400),
    Step("sweep", "layouts and settings, one after the other", measuring.sweep, one_gang, 300),
    Step("kills", "each rank of one gang killed", kills_of_one_gang, one_gang, 70),
    Step("original", "the checkpoint before it was re-blocked", original, one_gang, 75, alone=True),
    Step("attention DP", "attention data parallel, answers compared", attention, one_gang, 100, gpus=2),
    Step("down", "an answer under way, then nothing left", down, one_gang, 30),
    Step("both", "two gangs behind the router", both_up, two_gangs, 70, gpus=2),
    Step("kills side by side", "each rank of two gangs killed", kills_of_two_gangs, two_gangs, 80, gpus=2),
    Step("rolling", "restart --rolling under load", rolling, two_gangs, 120, gpus=2),
    Step("troubles", "stopped, agent killed, cut off, foreign memory", troubles, several_nodes, 110, gpus=2),
    Step("changed plan", "up with another flag, under load", changed_plan, two_gangs, 120, gpus=2),
    Step("pipeline", "pipeline parallel over two nodes", pipeline, two_nodes, 60, gpus=2),
    Step("tensor", "tensor parallel over two nodes of several GPUs", tensor, two_nodes, 60, gpus=FEWEST),
    Step("restart", "the gang as a whole", restart, two_nodes, 60, gpus=2),
    Step("degrade", "a node lost, served on without it, restored", survive.degrade, two_nodes, 150, gpus=2),
    Step("skipped collective", "by one of two ranks: which hang it is", hangs.played, None, 120, alone=True, gpus=2),
    Step("nettest", "between the nodes", measuring.nettest, two_nodes, 90, alone=True, gpus=2),
    Step("up --nettest", "tested, then started", measuring.tested_start, two_nodes, 90, alone=True, gpus=2),
    Step("one node", "tensor parallel over all GPUs of one node", one_node_of_all, one_node, 90, gpus=2),
    Step("graphs", "what graphs cost and bring", graphs.graphs, one_node, 330, alone=True),
    Step("torch.compile", "what it costs and brings", graphs.compiled, one_node, 150, alone=True),
    Step("nettest slowed", "NCCL on sockets, found so", measuring.nettest_slowed, one_node, 60, alone=True, gpus=2),
    Step(
        "nettest --verify", "data compared, and flipped", measuring.nettest_verified, one_node, 60, alone=True, gpus=2
    ),
    Step("slowed", "NCCL on sockets, found by bench --gate", measuring.slowed, one_node, 180, alone=True, gpus=2),
)
