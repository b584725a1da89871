"""Which hang it is, from what the nodes gathered while their ranks stood still. Pure.

A class is named only by what was read: where stacks, counters or versions are missing, it is one of those that need
none, else HANG-UNKNOWN with what was seen. What is measured (a stopped process, counters that rise) comes before what
only fits a known version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.engines.hang_kinds import KINDS, SEEN_IN
from orchestrator.engines.stacks import WAITS, Activity, StackPlace, place_of
from orchestrator.protocol.advice import exact
from orchestrator.protocol.hang import Hang, HangFacts, HangLook, HungRank, PortLook, RankLook, RasLook, RasRank
from orchestrator.protocol.report import Cause

LONG_S = 3600.0
"""Of service: NVIDIA/nccl#2334 was seen after hours of load, never in tests of minutes."""
MOVING_BYTES_S = 1 << 20
"""A port that carries more than this carries the gang's data; what else uses it (address resolution, a mounted file
system at rest) stays far below."""
WORDS_OF_4_BYTES = ("port_xmit_data", "port_rcv_data")
"""InfiniBand Architecture, PortCounters: they count words of four bytes."""
REPEATS = (
    "local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "implied_nak_seq_err", "rnr_nak_retry_err",
    "req_cqe_error", "resp_cqe_error", "symbol_error", "link_error_recovery", "link_downed", "port_xmit_discards",
    "port_rcv_errors", "roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart",
)  # fmt: skip
"""Counters that rise where what was sent has to be sent again, or is lost (NVIDIA, hw_counters)."""
FILE_CALLS = ("open", "openat", "fsync", "fdatasync", "newfstatat", "getdents64")
"""System calls that are about files, whatever they name."""
BUSY = 90
"""Percent of use of a GPU whose kernel spins."""
CONTINUES = "run `kill -CONT"
"""A fix that has a stopped process go on."""
FRESH_S = 150.0
"""What moved in a look at least this old may have ended since: while it moves, a node looks again every 60 s, for 11 s
at most (node/engine/hang_inquiry.py)."""
MOST_NAMED = 8
MOST_SENTENCES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HangEvidence:
    """What all nodes of a gang gathered. looks: by node; silent: nodes of the gang that gave none; age_s: seconds since
    the newest look began."""

    looks: Mapping[str, HangLook]
    silent: tuple[str, ...] = ()
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _SeenRank:
    """One rank with the places it stood at; () where its stacks were not read, or not twice."""

    node: str
    look: RankLook
    places: tuple[StackPlace, ...]
    on_gpu: bool = False

    @property
    def stands(self) -> bool:
        """Whether it was seen twice at the same place."""
        return len(self.places) == 2 and self.places[0] == self.places[1]

    @property
    def waits(self) -> bool:
        """Whether it stands where others, or its GPU, must come first."""
        return self.stands and self.places[0].activity in WAITS

    @property
    def apart(self) -> bool:
        """Whether both looks show it in code of its own, where nobody has to come to it. One that runs at the same line
        of a program on a GPU may wait for that in a call that shows no frame: of it, this is not known."""
        may_wait = self.on_gpu and self.stands and "R" in self.look.states
        return self.at(Activity.OWN) and len(self.places) == 2 and not may_wait

    def at(self, *activities: Activity) -> bool:
        """Whether both looks show one of these."""
        return bool(self.places) and all(place.activity in activities for place in self.places)

    def named(self, where: str = "", collective: str = "") -> HungRank:
        """As the verdict has it."""
        place = self.places[-1] if self.places else StackPlace(Activity.OWN)
        return HungRank(
            tp_rank=self.look.tp_rank,
            node=self.node,
            where=where or place.where,
            collective=collective or place.operation,
        )


@dataclass(frozen=True, slots=True)
class _Seen:
    """The evidence of all nodes, as the judges below need it."""

    evidence: HangEvidence
    ranks: tuple[_SeenRank, ...]

    @property
    def looks(self) -> Sequence[HangLook]:
        return list(self.evidence.looks.values())

    @property
    def facts(self) -> list[HangFacts]:
        return [look.facts for look in self.looks]

    @property
    def ports(self) -> list[tuple[str, PortLook]]:
        """With their nodes."""
        return [(look.node, port) for look in self.looks for port in look.ports]

    @property
    def all_wait(self) -> bool:
        """Whether every rank of every node was read twice, and waits for others or its GPU."""
        return bool(self.ranks) and not self.evidence.silent and all(rank.waits for rank in self.ranks)

    @property
    def one_operation(self) -> bool:
        """Whether those that stand in a collective stand in the same one."""
        return len({_operation(rank) for rank in self.ranks if rank.at(Activity.COLLECTIVE)}) <= 1


def classify(evidence: HangEvidence) -> Hang:
    """The first class that the evidence shows."""
    seen = _Seen(evidence, tuple(_ranks(evidence)))
    for judge in _JUDGES:
        hang = judge(seen)
        if hang is not None:
            return hang
    return _hang(seen, "HANG-UNKNOWN", _standing_where(seen), *_what_ranks_do(seen), *_what_else_was_seen(seen))


def _ranks(evidence: HangEvidence) -> Iterator[_SeenRank]:
    for node, look in evidence.looks.items():
        for rank in look.ranks:
            places = tuple(place_of(stack) for stack in rank.stacks if stack)
            yield _SeenRank(node, rank, places, on_gpu=bool(look.gpus))


def _operation(rank: _SeenRank) -> tuple[str, tuple[str, ...]]:
    return rank.places[-1].operation, rank.places[-1].path


def _hang(seen: _Seen, name: str, ranks: Sequence[HungRank], *sentences: str, moves: bool = False) -> Hang:
    """With what was counted, and with what could not be read."""
    old = seen.evidence.age_s >= FRESH_S
    if moves and old:
        sentences = (*sentences, f"that was {seen.evidence.age_s:.0f} s ago, and was not seen again")
    missing = [f"{node} gave no evidence" for node in seen.evidence.silent]
    missing += [f"{look.node}: not read: {what} ({why})" for look in seen.looks for what, why in look.unread.items()]
    return Hang(
        name=name,
        ranks=tuple(ranks)[:MOST_NAMED],
        counts=_counts(seen),
        evidence=tuple([*sentences, *missing][:MOST_SENTENCES]),
        fix=KINDS[name].fix,
        moves=moves and not old,
    )


def _counts(seen: _Seen) -> dict[str, int]:
    counts = {
        "ranks": len(seen.ranks),
        "read": sum(len(rank.places) == 2 for rank in seen.ranks),
        "standing": sum(rank.stands for rank in seen.ranks),
        "waiting": sum(rank.waits for rank in seen.ranks),
    }
    ras = next((look.ras for look in seen.looks if look.ras is not None and len(look.ras.launched) == 2), None)
    if ras is not None:
        counts |= {"launched": ras.launched[0], "launched_again": ras.launched[1]}
    return counts


# the judges: each names one class, or returns None


def _stopped(seen: _Seen) -> Hang | None:
    stopped = [rank for rank in seen.ranks if len(rank.look.states) == 2 and set(rank.look.states) <= {"T", "t"}]
    if not stopped:
        return None
    sentences = [f"{_name(rank)} is stopped (state T) at both looks" for rank in stopped[:MOST_NAMED]]
    return _hang(seen, "HANG-HOST", [rank.named("stopped by a signal") for rank in stopped], *sentences)


def _compiling(seen: _Seen) -> Hang | None:
    compilers = {look.node: look.compilers for look in seen.looks if look.compilers}
    ranks = [rank for rank in seen.ranks if rank.at(Activity.COMPILES)]
    if not compilers and not ranks:
        return None
    sentences = [f"{node}: {', '.join(names)} run below the engine" for node, names in compilers.items()]
    sentences += [f"{_name(rank)} compiles: {rank.places[-1].where}" for rank in ranks[:MOST_NAMED]]
    return _hang(seen, "HANG-COMPILE", [rank.named() for rank in ranks], *sentences, moves=True)


def _waits_for_files(seen: _Seen) -> Hang | None:
    waiting = [rank for rank in seen.ranks if _file_call(rank) or _uninterruptible(rank)]
    if not waiting or not any(rank.waits for rank in seen.ranks if rank not in waiting):
        return None
    sentences = [
        f"{_name(rank)} waits in the kernel at both looks: {_kernel_words(rank)}" for rank in waiting[:MOST_NAMED]
    ]
    ranks = [rank.named(_kernel_words(rank)) for rank in waiting]
    return _hang(seen, "HANG-HOST", ranks, *sentences, *_others_wait(seen))


def _uninterruptible(rank: _SeenRank) -> bool:
    return len(rank.look.states) == 2 and all(state == "D" for state in rank.look.states)


def _file_call(rank: _SeenRank) -> str:
    """The call on a file that it was blocked in at both looks; '' for none."""
    calls = set(rank.look.calls)
    call = next(iter(calls)) if len(rank.look.calls) == 2 and len(calls) == 1 else ""
    name, _, target = call.partition(" ")
    on_file = target.startswith("/") and not target.startswith("/dev/")
    return call if on_file or name in FILE_CALLS else ""


def _kernel_words(rank: _SeenRank) -> str:
    call = next((call for call in rank.look.calls if call), "")
    return f"state D, {call or 'a call that was not read'}" if _uninterruptible(rank) else call


def _tuning(seen: _Seen) -> Hang | None:
    ranks = [rank for rank in seen.ranks if rank.at(Activity.TUNES)]
    if not ranks or not any(facts.p2p_off for facts in seen.facts):
        return None
    sentences = [f"{_name(rank)} stands in FlashInfer's autotuner" for rank in ranks[:MOST_NAMED]]
    sentences.append("peer-to-peer between GPUs is off (NCCL_P2P_DISABLE)")
    return _hang(seen, "HANG-AUTOTUNE", [rank.named() for rank in ranks], *sentences)


def _behind(seen: _Seen) -> Hang | None:
    late = [rank for rank in seen.ranks if rank.apart]
    if late and len(late) < len(seen.ranks) and any(rank.waits for rank in seen.ranks):
        missed = Counter(rank.places[-1].operation for rank in seen.ranks if rank.waits)
        operation = missed.most_common(1)[0][0]
        sentences = [f"{_name(rank)} is at {rank.places[-1].where}{_call_words(rank)}" for rank in late[:MOST_NAMED]]
        ranks = [rank.named(collective=operation) for rank in late]
        return _hang(seen, "HANG-RANK-BEHIND", ranks, *sentences, *_others_wait(seen))
    return _behind_by_ras(seen)


def _call_words(rank: _SeenRank) -> str:
    calls = rank.look.calls
    return f" ({calls[0]})" if len(calls) == 2 and calls[0] and calls[0] == calls[1] else ""


def _with_laggards(seen: _Seen) -> RasLook | None:
    """The first look at NCCL RAS that names somebody who stays behind."""
    return next((look.ras for look in seen.looks if look.ras is not None and look.ras.behind), None)


def _lagging(seen: _Seen) -> list[tuple[_SeenRank, RasRank]]:
    """NCCL names a process; its TP rank is known by its node's look."""
    ras = _with_laggards(seen)
    if ras is None or len(set(ras.launched)) != 1 or len(ras.launched) != 2:
        return []
    by_process = {(rank.node, rank.look.pid): rank for rank in seen.ranks}
    return [(rank, lag) for lag in ras.behind if (rank := by_process.get((lag.node, lag.pid))) is not None]


def _counted(lagging: Sequence[tuple[_SeenRank, RasRank]]) -> list[str]:
    return [
        f"NCCL RAS: {_name(rank)} has launched {lag.launched} of {lag.most} {lag.operation}, at both looks"
        for rank, lag in lagging[:MOST_NAMED]
    ]


def _behind_by_ras(seen: _Seen) -> Hang | None:
    """Not where it waits itself: it has come to the end of what it had to launch."""
    lagging = _lagging(seen)
    if not lagging or seen.all_wait:
        return None
    ranks = [rank.named(collective=lag.operation) for rank, lag in lagging]
    return _hang(seen, "HANG-RANK-BEHIND", ranks, *_counted(lagging))


def _diverged_by_ras(seen: _Seen) -> Hang | None:
    """All ranks wait, and have not launched the same. Who has launched fewer has skipped a collective, or waits for one
    that another rank has skipped: the fewer of both are named, of two ranks both."""
    lagging = _lagging(seen)
    if not lagging or not seen.all_wait:
        return None
    late = [rank for rank, _ in lagging]
    ahead = [rank for rank in seen.ranks if rank not in late]
    fewer = min((late, ahead), key=len) if len(late) != len(ahead) else list(seen.ranks)
    sentences = [*_counted(lagging), "all ranks wait, none is in code of its own", *_others_wait(seen)]
    return _hang(seen, "HANG-DIVERGED", [rank.named() for rank in fewer], *sentences)


def _diverged(seen: _Seen) -> Hang | None:
    """Not judged with pipeline stages: there, ranks of two stages stand in different collectives by right."""
    in_one = [rank for rank in seen.ranks if rank.waits and rank.at(Activity.COLLECTIVE)]
    groups = Counter(map(_operation, in_one))
    if len(groups) < 2 or any(facts.pp > 1 for facts in seen.facts):
        return None
    usual = groups.most_common(1)[0][0]
    ordered = sorted(in_one, key=lambda rank: (groups[_operation(rank)], rank.look.tp_rank))
    sentences = [_group_words(in_one, group) for group, _ in reversed(groups.most_common())]
    ranks = [rank.named() for rank in ordered if _operation(rank) != usual or len(groups) == len(in_one)]
    return _hang(seen, "HANG-DIVERGED", ranks, *sentences)


def _caller(ranks: Sequence[_SeenRank], group: tuple[str, tuple[str, ...]]) -> str:
    return next(rank.places[-1].where for rank in ranks if _operation(rank) == group)


def _repeats(seen: _Seen) -> Iterator[str]:
    for node, port in seen.ports:
        for name in REPEATS:
            if port.rose.get(name):
                yield f"{node}: {port.name}: {name} rose by {port.rose[name]} in {port.apart_s:.1f} s"


def _group_words(ranks: Sequence[_SeenRank], group: tuple[str, tuple[str, ...]]) -> str:
    """The ranks in one of several operations, and where they call it."""
    return f"{_names([rank for rank in ranks if _operation(rank) == group])} in {group[0]} at {_caller(ranks, group)}"


def _fabric(seen: _Seen) -> Hang | None:
    if not seen.all_wait or not seen.one_operation:
        return None
    down = [f"{node}: {port.name} is {port.state}" for node, port in seen.ports if _is_down(port)]
    repeats = list(_repeats(seen))
    moving = [f"{node}: {port.name} carries {_rate(port) / 1e6:.1f} MB/s" for node, port in seen.ports if _moves(port)]
    if not (down or repeats or moving):
        return None
    sentences = (*down, *repeats[:MOST_NAMED], *moving[:MOST_NAMED], *_others_wait(seen))
    return _hang(seen, "HANG-FABRIC", (), *sentences, moves=bool(moving))


def _is_down(port: PortLook) -> bool:
    return bool(port.state) and "ACTIVE" not in port.state.upper()


def _rate(port: PortLook) -> float:
    """Bytes a second, the larger one of both directions; 0 where it was not read twice."""
    words = max(port.rose.get(name, 0) for name in WORDS_OF_4_BYTES)
    return 4 * words / port.apart_s if port.apart_s > 0 else 0.0


def _moves(port: PortLook) -> bool:
    return _rate(port) > MOVING_BYTES_S


def _graph(seen: _Seen) -> Hang | None:
    replaying = [rank for rank in seen.ranks if rank.at(Activity.GRAPH)]
    between = any(facts.nnodes > 1 for facts in seen.facts)
    fits = all(rank.at(Activity.GRAPH, Activity.GPU) for rank in seen.ranks)
    if not (seen.all_wait and replaying and fits and between):
        return None
    words = f"{_names(replaying)} of {len(seen.ranks)} ranks stand in the replay of a CUDA graph, on several nodes"
    return _by_version(seen, "HANG-GRAPH-NCCL", words)


def _registered(seen: _Seen) -> Hang | None:
    busy = [gpu.utilization for look in seen.looks for gpu in look.gpus]
    spins = bool(busy) and all(used is not None and used >= BUSY for used in busy)
    if not (_still_over_nccl(seen) and spins and any(facts.registers for facts in seen.facts)):
        return None
    words = "NCCL's log shows buffers registered for the network; all GPUs are fully used, no port's counter moves"
    return _by_version(seen, "HANG-NETREG", words)


def _resilient(seen: _Seen) -> Hang | None:
    hours = max((facts.serving_s for facts in seen.facts), default=0.0)
    if not (_still_over_nccl(seen) and any(facts.roce for facts in seen.facts) and hours >= LONG_S):
        return None
    words = f"over RoCE, after {hours / 3600:.1f} h of service; no counter of the gang's ports moves"
    return _by_version(seen, "HANG-IB-RESILIENCY", words)


def _still_over_nccl(seen: _Seen) -> bool:
    """All ranks wait in one place, and the ports of several nodes were read twice and are silent."""
    ports = seen.ports
    read = bool(ports) and all(port.apart_s > 0 for _, port in ports)
    return seen.all_wait and seen.one_operation and read and any(facts.nnodes > 1 for facts in seen.facts)


def _by_version(seen: _Seen, name: str, words: str) -> Hang | None:
    """Where every node that tells its NCCL's version has one in which this was seen."""
    known = next(rule for rule in SEEN_IN if rule.id == name)
    versions = {facts.nccl for facts in seen.facts if facts.nccl}
    if not versions or not all(known.has(version) for version in versions):
        return None
    seen_in = f"NCCL {', '.join(sorted(versions))}: {known.words} ({known.source})"
    return _hang(seen, name, (), words, seen_in, *_others_wait(seen))


def _diverted(seen: _Seen) -> Hang | None:
    nodes = [look.node for look in seen.looks if look.facts.redirected and look.facts.p2p_off is False]
    if not (seen.all_wait and seen.one_operation and nodes):
        return None
    words = f"{', '.join(nodes)}: ACS redirects, or an IOMMU translates, what GPUs send each other, and NCCL may do so"
    return _hang(seen, "HANG-P2P", (), words, *_others_wait(seen))


_JUDGES = (
    _stopped, _compiling, _waits_for_files, _tuning, _behind, _diverged, _diverged_by_ras, _fabric, _graph, _registered,
    _resilient, _diverted,
)  # fmt: skip


# in words


def _name(rank: _SeenRank) -> str:
    return f"TP{rank.look.tp_rank} on {rank.node}"


def _names(ranks: Sequence[_SeenRank]) -> str:
    """'TP0, TP1, TP2' or 'TP0 and 30 more'."""
    numbers = sorted(rank.look.tp_rank for rank in ranks)
    shown = ", ".join(f"TP{number}" for number in numbers[:MOST_NAMED])
    return shown + (f" and {len(numbers) - MOST_NAMED} more" if len(numbers) > MOST_NAMED else "")


def _others_wait(seen: _Seen) -> list[str]:
    """Where the ranks that wait do so."""
    return [f"{ranks} wait in {place}" for ranks, place in _by_place(rank for rank in seen.ranks if rank.waits)]


def _by_place(ranks: Iterable[_SeenRank]) -> list[tuple[str, str]]:
    """(the ranks, what they do and where) of those that do the same, at the second look."""
    groups: dict[str, list[_SeenRank]] = {}
    for rank in ranks:
        place = rank.places[-1]
        groups.setdefault(f"{place.operation or _WORDS[place.activity]} at {place.where}", []).append(rank)
    return [(_names(mine), place) for place, mine in groups.items()]


_WORDS = {
    Activity.COLLECTIVE: "a collective",
    Activity.POINT: "a send or receive",
    Activity.GRAPH: "the replay of a CUDA graph",
    Activity.GPU: "a wait for the GPU",
    Activity.COMPILES: "a compilation",
    Activity.TUNES: "FlashInfer's autotuner",
    Activity.IDLE: "a wait for requests",
    Activity.OWN: "code of its own",
}


def _standing_where(seen: _Seen) -> list[HungRank]:
    return [rank.named() for rank in seen.ranks if rank.places]


def _what_ranks_do(seen: _Seen) -> list[str]:
    """Without a class: every activity with its ranks, at the second look."""
    idle = [rank for rank in seen.ranks if rank.at(Activity.IDLE)]
    if idle and all(rank.waits or rank in idle for rank in seen.ranks if rank.places):
        return ["the ranks wait for requests: what stands still is before them (web server, tokenizer)"]
    return [f"{ranks} in {place}" for ranks, place in _by_place(rank for rank in seen.ranks if rank.places)]


def _what_else_was_seen(seen: _Seen) -> Iterator[str]:
    """Without a class: NCCL's counts, the ports' and the GPUs' sensors."""
    yield from _totals(seen)
    rates = sorted(_rate(port) for _, port in seen.ports if port.apart_s > 0)
    if rates:
        yield f"ports: {len(rates)} of {len(seen.ports)} read twice, {rates[0] / 1e6:.1f} to {rates[-1] / 1e6:.1f} MB/s"
    gpus = [gpu for look in seen.looks for gpu in look.gpus]
    sensors = (
        _range("used", "%", [gpu.utilization for gpu in gpus]),
        _range("power", "W", [gpu.power_w for gpu in gpus]),
        _range("clock", "MHz", [gpu.clock_mhz for gpu in gpus]),
    )
    if any(sensors):
        yield f"{len(gpus)} GPUs: {', '.join(filter(None, sensors))}"


def _totals(seen: _Seen) -> Iterator[str]:
    """Whether the operations that NCCL counts have become more."""
    counts = _counts(seen)
    if "launched" in counts:
        more = counts["launched_again"] - counts["launched"]
        moved = f"{more} more than at the first look" if more else "as many as at the first look"
        yield f"NCCL RAS: all ranks together have launched {counts['launched_again']} operations, {moved}"


def _range(name: str, unit: str, values: Sequence[float | None]) -> str:
    """'power 92 to 101 W'; '' where no GPU tells it."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return ""
    least, most = f"{known[0]:.0f}", f"{known[-1]:.0f}"
    return f"{name} {least} {unit}" if least == most else f"{name} {least} to {most} {unit}"


def with_hang(cause: Cause, hang: Hang, gang: str) -> Cause:
    """A hung gang's cause, with the class as its id. A fix that names a process stays."""
    kind, first = KINDS[hang.name], next(iter(hang.ranks), None)
    known = hang.name != "HANG-UNKNOWN"
    shown = hang.evidence[0] if hang.evidence else ""
    named = first if known and len(hang.ranks) == 1 else None
    fix = cause.fix if cause.fix.startswith(CONTINUES) else exact(hang.fix, gang=gang)
    return replace(
        cause,
        signature=hang.name,
        hang=replace(hang, fix=fix),
        node=named.node if named is not None and named.node else cause.node,
        tp_rank=named.tp_rank if named is not None else cause.tp_rank,
        text=f"{kind.title}: {shown}; {cause.text}" if known and shown else cause.text,
        fix=fix,
    )
