"""Runs on a node's console while rows are played: hits what it is ordered to hit, reports leftovers.

Orders are lines of JSON on stdin, answers lines of JSON on stdout. Standard library only; it uses no network.

{"do": "strike", "moments", "what", "how", "before", "patience_s"}: `{"watches": true}` at once. Then, when this node's
part of a gang is at one of those moments (the phase or the state of its report, in another run than `before`), the hit:
`{"hit": pids}`, none where nothing was to be hit; `{"missed": where it was last}` when the moment did not come.
{"do": "signal", "pids", "how"}. {"do": "run"}: the run that was staged last.
{"do": "listeners"}: the ports that somebody listens on.
{"do": "left", "usual"}: what an engine or an agent left here, in words; usual: the machine's own listeners.
{"do": "upset", "how"}, {"do": "calm"}: what UPSETS says, and its end.
{"do": "holds", "gang", "pid"}: whether the controller of that process id holds its lock.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

GANG = pathlib.Path("/var/lib/l40s-deploy/gangs/gang0")
CLOCK = pathlib.Path("/run/l40s-lab/clock")
"""Seconds that every program's wall clock is ahead, while the lab's fault clock-skew is active."""
CLAIMS = pathlib.Path("/run/l40s-lab/gpu-claims")
UNITS = pathlib.Path("/run/systemd/transient")
OURS = ("sglang::", "standin", "agent.pyz", "l40s-agent", "l40s-guardian")
LOOK_EVERY_S = 0.004
RESET_S = 0.8
"""An agent has 2 s to reconnect its link."""
ENDING = ("draining", "stopping")
OVER = ("ready", "failed", "stopped")
"""Final states: no moment on the way up comes after these."""
LISTENS = "0A"
STEP_S = 3600
GUARDIAN = "l40s-guardian"
APPLICATION = re.compile(r"/l40s-node-[0-9a-f]+\.pyz ")
"""What serves a controller's session: the node application under its own name."""
OWN_PORTS = range(1024, 32768)
"""Below the ephemeral range: an engine's internal sockets on loopback come and go with its processes."""


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        do = order["do"]
        if do == "strike":
            say(watches=True)
            say(**strike(order))
        elif do == "signal":
            signalled(order["pids"], order["how"])
            say(done=True)
        elif do == "run":
            say(run=current())
        elif do == "holds":
            say(holds=read(GANG.parent / order["gang"] / "lock").get("pid") == order["pid"])
        elif do == "upset":
            UPSETS[order["how"]]()
            say(done=True)
        elif do == "calm":
            subprocess.run(["umount", *odd_reports()], check=bool(odd_reports()))
            if CLOCK.exists():
                set_clock(0)
            say(done=True)
        elif do == "listeners":
            say(listeners=sorted(set(listeners())))
        elif do == "left":
            say(left=[*processes(), *claims(), *units(), *sorted(set(listeners()) - set(order["usual"]))])


def say(**answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def strike(order: dict[str, Any]) -> dict[str, Any]:
    """Wait for the moment without sleeping, so as not to miss it."""
    end = time.monotonic() + float(order["patience_s"])
    ending = {*order["moments"]} & {*ENDING}
    last = ""
    while time.monotonic() < end:
        run_id = current()
        run = GANG / "runs" / run_id
        report = read(run / "report.json") if run_id and run_id != order["before"] else {}
        places = (report.get("state"), (report.get("phase") or {}).get("name"))
        last = " ".join(filter(None, places)) or last
        if any(moment in places for moment in order["moments"]):
            if order["what"] == "nothing":
                return {"hit": []}
            hit = signalled(victims(run, report, order["what"]), order["how"])
            if hit:
                return {"hit": hit}
        if report.get("state") in {*OVER} - {*order["moments"]} - ({"ready"} if ending else set()):
            break
        time.sleep(LOOK_EVERY_S)
    return {"missed": last or "nothing was staged"}


def reset() -> None:
    """The firewall answers the agents' port with resets, in both directions, for less than an agent waits."""
    rules = "tcp dport 7700 reject with tcp reset\n tcp sport 7700 reject with tcp reset\n"
    chains = [f"chain {hook} {{ type filter hook {hook} priority 0;\n {rules} }}\n" for hook in ("input", "output")]
    nft(f"table inet chaos {{\n {''.join(chains)} }}\n")
    time.sleep(RESET_S)
    nft("delete table inet chaos\n")


def nft(rules: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=rules.encode(), check=True)


def odd_report() -> None:
    """The run's report gets a text for a number and null for a time, and stays so."""
    place = GANG / "runs" / current() / "report.json"
    odd = place.with_name("odd-report")
    odd.write_text(json.dumps({**read(place), "started_at": "yesterday", "phase": {"name": "ready", "since": None}}))
    subprocess.run(["mount", "--bind", str(odd), str(place)], check=True)


def odd_reports() -> list[str]:
    """Mount points of odd reports."""
    mounts = (line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines())
    return [place for place in mounts if place.endswith("/report.json")]


def clock_step() -> None:
    """The wall clock of every program is an hour ahead from now on, also of running ones (lab/preload/clock.c).

    An emulation: the kernel has one wall clock for all nodes, and no namespace for it.
    """
    set_clock(STEP_S)


def clock_step_back() -> None:
    """The same, an hour behind."""
    set_clock(-STEP_S)


def set_clock(seconds: int) -> None:
    CLOCK.with_name("clock.new").write_text(f"{seconds}\n")
    CLOCK.with_name("clock.new").rename(CLOCK)


UPSETS = {"reset": reset, "odd-report": odd_report, "clock-step": clock_step, "clock-step-back": clock_step_back}


def victims(run: pathlib.Path, report: dict[str, Any], what: str) -> list[int]:
    """Process ids; none where there is none (yet)."""
    agent = read(run / "agent.json").get("pid") or 0
    if what == "agent":
        return [int(agent)] if agent else []
    if what == "guardian":
        return [pid for pid in children(int(agent)) if comm(pid) == GUARDIAN]
    if what == "session":
        return [pid for pid, title in titles() if APPLICATION.search(title)]
    if what == "parent":
        parent = report.get("engine_pid") or 0
        return [int(parent)] if parent else []
    number = int(what.split()[1])
    ranks = (rank for rank in report.get("ranks") or () if rank["tp_rank"] == number)
    return [int(rank["pid"]) for rank in ranks if rank["pid"]]  # 0 before it is found: that would be our own group


def signalled(pids: list[int], how: str) -> list[int]:
    """Those that were still there."""
    hit = []
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number_of(how))
            hit.append(pid)
    return hit


def children(parent: int) -> list[int]:
    try:
        tasks = [*pathlib.Path(f"/proc/{parent}/task").iterdir()]
        return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    except OSError:
        return []


def comm(pid: int) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def current() -> str:
    try:
        return (GANG / "current").read_text().strip()
    except OSError:
        return ""


def read(path: pathlib.Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def number_of(name: str) -> int:
    return int(getattr(signal, f"SIG{name}"))


def processes() -> Iterator[str]:
    for pid, title in titles():
        with suppress(OSError):  # it may end while we look
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
            if state not in "ZX" and any(word in title for word in OURS) and is_no_verb(title):
                yield f"process {pid} ({state}) {title[:60]}"


def titles() -> Iterator[tuple[int, str]]:
    """Of every process, its words."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")


def is_no_verb(title: str) -> bool:
    """An application process that serves a controller's session is not an agent."""
    return "agent.pyz" not in title or any(f".pyz {role}" in title for role in ("agent", "gpus"))


def claims() -> Iterator[str]:
    """GPU memory held by a living process."""
    for claim in CLAIMS.glob("[0-9]*.*"):
        with suppress(OSError, ValueError, IndexError):
            started = int(claim.read_text().split()[1])
            stat = pathlib.Path(f"/proc/{claim.suffix[1:]}/stat").read_text().rpartition(") ")[2].split()
            if stat[0] not in "ZX" and int(stat[19]) == started:
                yield f"memory of GPU {claim.stem} held by {claim.suffix[1:]}"


def units() -> Iterator[str]:
    return (f"unit {unit.name}" for unit in UNITS.glob("l40s-deploy-*"))


def listeners() -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in pathlib.Path(table).read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                port = int(local.rpartition(":")[2], 16)
                if state == LISTENS and port in OWN_PORTS:
                    yield f"listener on port {port}"


if __name__ == "__main__":
    main()
