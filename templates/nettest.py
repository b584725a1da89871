"""The ranks of one node in a network test: torch.distributed out of the engine's own environment.

    python3 nettest.py RESULTS ORDER

RESULTS is the number of an open file: one JSON object a line, flushed. ORDER is a file; its keys are those of
`RanksOrder` (nettest/messages.py). This process imports torch once and forks one process a GPU before CUDA is touched.
Every rank goes through the steps in the same order with a barrier after each.

Those that verify come first: every transfer carries a pattern of sender, receiver and position and is compared on the
receiver's device, every all-reduce with its known sum. Wrong data ends the test once all pairs, or all sums, were
compared: nothing is timed then.

Within its box of time a step that times takes as many bytes and repetitions as fit. Links that look slow beside the
others of their kind are measured again at the end, each in turns with one that does not, for AGAIN_S together:
something else may have had the processor. It ends with the first rank that fails.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

gc.disable()  # what torch's import makes stays: looking through it again and again is an eighth of the import
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

GRAPH_OPS = 20
REPLAYS = 50
MOST_REPEATS = 20
SHARE = 1 / 3
"""Of a box for one operation: the first ones open connections and tell the pace."""
FIRST_BYTES = 256 << 10
"""Of a first transfer or all-reduce: enough to tell a slow link, and soon over on one."""
BURST = 8
"""Most transfers between two looks at the clock, on GPUs: over NVLink one is shorter than the answer to it."""
MOST_GROWTH = 4
"""From a transfer to the next: what is saved up for a slow link lets small ones pass."""
SUSPECT = 0.7
"""Of the link in the middle of its kind."""
MORE_TRIES = 4
MOST_SUSPECTS = 24
AGAIN_S = 20.0
"""For all suspects together: a slow node with 8 GPUs makes 24, and four tries of each and of another take a minute."""
NO_ROOM = f"a CUDA graph of {GRAPH_OPS} would not fit into the time of one size"
CANT = "this NCCL or driver can't capture it in a CUDA graph"
ENDS_S = 0.7
"""What the other ranks say of the first one's death comes within this."""
TAIL = 3
"""Bytes beyond a whole number of words, in every transfer that is compared."""
MOST_EXACT = 2048
"""Up to it, sums of whole numbers are exact in float16, in any order."""
MIX = -0x61C8864680B583EB
"""Odd, and its bits are spread (2**64 / golden ratio, as a signed word): no two positions have the same word."""
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG, prctl(2)


_Link = tuple[str, int, int]
"""(what is measured, sending rank, receiving rank)."""


def main() -> int:
    """Fork the ranks and wait for them; 0 when all of them were done."""
    results = int(sys.argv[1])
    order = json.loads(Path(sys.argv[2]).read_text())
    parent = os.getpid()
    gc.freeze()
    gc.enable()
    ranks: dict[int, int] = {}
    for place, rank in enumerate(order["ranks"]):
        pid = os.fork()
        if pid == 0:
            os._exit(_one(order, rank, place, results, parent))
        ranks[pid] = rank
    _say(results, started={str(rank): pid for pid, rank in ranks.items()})
    return _wait(ranks, results)


def _wait(ranks: dict[int, int], results: int) -> int:
    failed = False
    while ranks:
        pid, status = os.waitpid(-1, 0)
        rank = ranks.pop(pid)
        if status == 0:
            continue
        if os.WIFSIGNALED(status):
            _say(results, died=rank, signal=os.WTERMSIG(status))
        if not failed:
            failed = True
            threading.Timer(ENDS_S, _kill, [ranks]).start()
    return int(failed)


def _kill(ranks: dict[int, int]) -> None:
    for pid in tuple(ranks):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _one(order: dict[str, Any], rank: int, place: int, results: int, parent: int) -> int:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    try:
        _Rank(order, rank, place, results).work()
    except BaseException as error:  # whatever it is, the operator hears of it
        _say(results, failed=rank, what=f"{type(error).__name__}: {error}".splitlines()[0][:300])
        return 1
    return 0


def _say(results: int, **words: Any) -> None:
    """Lines of several ranks never mix: each is one write shorter than PIPE_BUF."""
    os.write(results, (json.dumps(words) + "\n").encode())


class _Rank:
    def __init__(self, order: dict[str, Any], rank: int, place: int, results: int) -> None:
        self.order, self.rank, self.results = order, rank, results
        self.cuda = order["device"] == "cuda"
        if self.cuda:
            torch.cuda.set_device(place)
        self.most = BURST if self.cuda else 1
        """Transfers at once."""
        self.device = torch.device("cuda", place) if self.cuda else torch.device("cpu")
        torch.set_num_threads(1)
        self.store = self._join()
        self.control = dist.new_group(backend="gloo") if self.cuda else dist.group.WORLD
        self.groups: dict[tuple[int, ...], Any] = {}
        self.pace: dict[_Link, float] = {}
        """Of each link that starts here: bytes a second in its best try."""
        self.words = torch.zeros(0, dtype=torch.int64, device=self.device)
        """What `_pattern` is made of."""
        self.wrong = 0
        """Bytes that differed, on the rank where most did."""
        self.slowest_byte = 0.0
        """Seconds a byte over the slowest link that was verified."""

    def _join(self) -> Any:
        reach = timedelta(seconds=self.order["reach_s"])
        place = f"{self.order['host']}:{self.order['port']}"
        try:
            store = dist.TCPStore(
                self.order["host"],
                self.order["port"],
                self.order["world"],
                is_master=self.rank == 0,
                timeout=reach,
                wait_for_workers=False,
            )
        except Exception as error:
            raise RuntimeError(f"no rendezvous at {place}: {error}") from None
        store.add("joined", 1)
        self._gather(store, "joined", place)
        dist.init_process_group(
            "nccl" if self.cuda else "gloo",
            store=store,
            rank=self.rank,
            world_size=self.order["world"],
            timeout=timedelta(seconds=self.order["timeout_s"]),
        )
        return store

    def _gather(self, store: Any, key: str, place: str) -> None:
        end = time.monotonic() + self.order["reach_s"]
        while (there := store.add(key, 0)) < self.order["world"]:
            if time.monotonic() > end:
                raise RuntimeError(f"{there} of {self.order['world']} ranks came to {place}")
            time.sleep(0.02)

    def work(self) -> None:
        begin = time.monotonic()
        for _, steps in itertools.groupby(self.order["steps"], lambda step: step["verify"] and step["kind"]):
            if self.wrong:
                break  # sums through a link that corrupts data say nothing new, and may never end
            for step in steps:
                self._measure(step)
                if self.rank == 0:
                    _say(self.results, done=step["id"], seconds=round(time.monotonic() - begin, 3))
        if not self.wrong and not self.order["steps"][-1]["verify"]:
            self._again(begin)
        self.store.add("done", 1)
        if self.rank == 0:
            with suppress(RuntimeError):  # the store is in this process: the others leave first
                self._gather(self.store, "done", "the end")

    def _measure(self, step: dict[str, Any]) -> None:
        """One step, and then wait for the others."""
        sums = step["kind"] == "all-reduce"
        if step["verify"]:
            self._compared(step, self._verify_sums(step) if sums else self._verify_pair(step))
            return
        self._collective(step) if sums else self._pairs(step)
        dist.barrier(group=self.control)

    def _compared(self, step: dict[str, Any], seen: list[tuple[int, int]]) -> None:
        """Say it, and let all ranks know. seen: (bytes, of them wrong) of each transfer that was compared here"""
        wrong = sum(bad for _, bad in seen)
        if seen:
            place, _ = self._mine(step)
            size = max(size for size, _ in seen)
            _say(self.results, step=step["id"], group=place, rank=self.rank, bytes=size, wrong=wrong)
        told = torch.tensor([wrong, self.slowest_byte], dtype=torch.float64)
        dist.all_reduce(told, op=dist.ReduceOp.MAX, group=self.control)
        self.wrong, self.slowest_byte = max(self.wrong, int(told[0].item())), float(told[1].item())

    def _verify_pair(self, step: dict[str, Any]) -> list[tuple[int, int]]:
        _, pair = self._mine(step)
        seen = list[tuple[int, int]]()
        if not pair:
            return seen
        start, end = pair

        def give(wanted: int) -> float:
            size = wanted + TAIL
            payload = self._pattern(start, end, size).view(torch.uint8)[:size]
            return self._transfer(end, size, 1, payload) / size

        if self.rank == start:
            self.slowest_byte = max(self.slowest_byte, _grown(give, step["bytes"][0], step["box_s"]))
            self._order(end, 0, 0)
        else:
            self._take(start, lambda size, words: seen.append((size, _wrong(words, self._pattern(start, end, size)))))
        return seen

    def _pattern(self, start: int, end: int, size: int) -> Any:
        """The words of so many bytes from one rank to another; what is beyond them in the last word is zero."""
        count = -(-size // 8)
        if len(self.words) < count:
            self.words = torch.arange(count, dtype=torch.int64, device=self.device).mul_(MIX)
        words = self.words[:count] ^ _signed((start << 32 | end + 1) * MIX)
        words.view(torch.uint8)[size:] = 0
        return words

    def _verify_sums(self, step: dict[str, Any]) -> list[tuple[int, int]]:
        """Of each size as often as the engine's path differs: as it is called, and in a CUDA graph."""
        _, ranks = self._mine(step)
        seen = list[tuple[int, int]]()
        if len(ranks) < 2:
            return seen
        group = self._group(ranks)
        for wanted in step["bytes"]:
            count = _fitting(wanted, self.slowest_byte, step["box_s"]) // 2 + 1
            mine, sums = self._addends(ranks.index(self.rank), len(ranks), count)
            found = torch.zeros_like(mine)

            def reduce(found: Any = found, mine: Any = mine) -> None:
                dist.all_reduce(found.copy_(mine), group=group)

            reduce()
            seen.append((2 * count, _wrong(found, sums)))
            if self.cuda and step["captured"] and _captured(reduce, 1) is not None:
                seen.append((2 * count, _wrong(found, sums)))
        return seen

    def _addends(self, place: int, ranks: int, count: int) -> tuple[Any, Any]:
        """(what the rank at this place adds, what the sum of all of them has to be)."""
        most = next((bits for bits in (7, 3, 1) if bits * ranks <= MOST_EXACT), 0)
        positions = torch.arange(count, dtype=torch.int32, device=self.device)

        def of(place: int) -> Any:
            spread = (positions + place * 0x01000193 % (1 << 31)).mul_(0x2C1B3C6D)
            return spread.bitwise_right_shift_(17).bitwise_and_(most).to(torch.float16)

        sums = of(0)
        for other in range(1, ranks):
            sums += of(other)
        return of(place), sums

    def _again(self, begin: float) -> None:
        """The suspects in rounds, each in turns with the link in the middle of its kind; every rank finds the same."""
        told: list[Any] = [None] * self.order["world"]
        dist.all_gather_object(told, self.pace, group=self.control)
        suspects = _suspects({link: pace for one in told for link, pace in one.items()})
        _look_again(suspects, self._once_more, tries=MORE_TRIES, budget_s=AGAIN_S)
        if self.rank == 0:
            _say(self.results, done=len(self.order["steps"]), seconds=round(time.monotonic() - begin, 3))

    def _once_more(self, link: _Link, beside: float) -> tuple[float, float]:
        """(bytes a second, seconds that it took), known to all ranks then. beside: pace of the link that was measured
        just before; 0: say nothing"""
        between, start, end = link
        step = next(
            step
            for step in self.order["steps"]
            if not step["verify"] and step["between"] == between and [start, end] in step["groups"]
        )
        found = torch.zeros(2, dtype=torch.float32)
        begin = time.monotonic()
        if self.rank == start:
            found[0] = self._give(end, step, beside=beside)
            found[1] = time.monotonic() - begin
        elif self.rank == end:
            self._take(start)
        dist.broadcast(found, start, group=self.control)
        return float(found[0].item()), float(found[1].item())

    def _mine(self, step: dict[str, Any]) -> tuple[int, tuple[int, ...]]:
        """(place, ranks) of the group that this rank is in."""
        groups = enumerate(step["groups"])
        return next(((place, tuple(ranks)) for place, ranks in groups if self.rank in ranks), (-1, ()))

    def _group(self, ranks: tuple[int, ...]) -> Any:
        if len(ranks) == self.order["world"]:
            return dist.group.WORLD
        if ranks not in self.groups:
            self.groups[ranks] = dist.new_group(list(ranks), use_local_synchronization=True)
        return self.groups[ranks]

    def _collective(self, step: dict[str, Any]) -> None:
        place, ranks = self._mine(step)
        if len(ranks) < 2:
            return
        group, captured = self._group(ranks), self.cuda and step["captured"]
        dist.all_reduce(torch.zeros(1, device=self.device), group=group)  # opens the connections
        pace = self._first_pace(min(FIRST_BYTES, step["bytes"][0]), group)
        for wanted in step["bytes"]:
            reduction, once = _fitted(lambda size: _Reduction(self, size, group), wanted, pace, step["box_s"])
            seconds, uncaptured = _reduced(reduction, once, step["box_s"], captured=captured)
            slowest = self.slowest(seconds, group)
            pace = slowest / reduction.size
            if self.rank == ranks[0]:
                _say(
                    self.results,
                    step=step["id"],
                    group=place,
                    bytes=reduction.size,
                    us=round(slowest * 1e6, 2),
                    captured=captured and not uncaptured,
                    uncaptured=uncaptured,
                )

    def _first_pace(self, size: int, group: Any) -> float:
        """Seconds a byte of one small all-reduce: on a slow link a large one would not end in time."""
        return _Reduction(self, size, group).once() / size

    def slowest(self, seconds: float, group: Any) -> float:
        """The same number on every rank of the group, so that all of them decide the same."""
        found = torch.tensor([seconds], dtype=torch.float32, device=self.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
        return float(found.item())

    def _pairs(self, step: dict[str, Any]) -> None:
        _, pair = self._mine(step)
        if not pair:
            return
        if self.rank == pair[0]:
            pace = self._give(pair[1], step)
            link = (step["between"], self.rank, pair[1])
            self.pace[link] = max(self.pace.get(link, 0.0), pace)
        else:
            self._take(pair[0])

    def _give(self, peer: int, step: dict[str, Any], *, beside: float | None = None) -> float:
        """Bytes a second; said where it is not only to be compared with."""
        size, times = _moved(
            lambda size, count: self._transfer(peer, size, count, self._zeros(size)),
            step["bytes"][0],
            step["box_s"],
            self.most,
        )
        self._order(peer, 0, 0)
        took = statistics.median(times) if self.cuda else min(times)  # of a CPU, what else runs there is no matter
        if beside != 0.0:
            words = {"beside_us": round(size / beside * 1e6, 2)} if beside else {}
            place = step["groups"].index([self.rank, peer])
            _say(self.results, step=step["id"], group=place, bytes=size, us=round(took * 1e6, 2), **words)
        return size / took

    def _order(self, peer: int, size: int, count: int) -> None:
        dist.send(torch.tensor([size, count], dtype=torch.int64), peer, group=self.control)

    def _zeros(self, size: int) -> Any:
        return torch.zeros(size, dtype=torch.uint8, device=self.device)

    def _transfer(self, peer: int, size: int, count: int, payload: Any) -> float:
        """Seconds of one of some transfers until the peer has them all and has said so."""
        self._order(peer, size, count)
        if self.cuda:
            torch.cuda.synchronize()
        answer = torch.zeros(2, dtype=torch.int64)
        begin = time.perf_counter()
        self._move(dist.isend, payload, peer, count)
        dist.recv(answer, peer, group=self.control)
        return (time.perf_counter() - begin) / count

    def _take(self, peer: int, compare: Callable[[int, Any], None] | None = None) -> None:
        """compare: takes the bytes and words of each transfer; what did not arrive is zero in them"""
        order = torch.zeros(2, dtype=torch.int64)
        while True:
            dist.recv(order, peer, group=self.control)
            size, count = (int(number) for number in order.tolist())
            if not size:
                return
            blank = torch.zeros if compare else torch.empty
            words = blank(-(-size // 8), dtype=torch.int64, device=self.device)
            self._move(dist.irecv, words.view(torch.uint8)[:size], peer, count)
            dist.send(order, peer, group=self.control)
            if compare:
                compare(size, words)

    def _move(self, way: Callable[..., Any], payload: Any, peer: int, count: int) -> None:
        """Through the communicator of all ranks: NCCL would make one for each pair otherwise."""
        if not self.cuda:
            for _ in range(count):
                way(payload, peer).wait()
            return
        for _ in range(count):
            for request in dist.batch_isend_irecv([dist.P2POp(way, payload, peer)]):
                request.wait()
        torch.cuda.synchronize()


class _Reduction:
    """All-reduces of one size, for `_reduced`."""

    def __init__(self, rank: _Rank, size: int, group: Any) -> None:
        self.rank, self.size, self.group = rank, size, group
        self.tensor = torch.zeros(size // 2, dtype=torch.float16, device=rank.device)
        self.graph: Any = None

    def work(self) -> None:
        """One."""
        dist.all_reduce(self.tensor, group=self.group)

    def once(self) -> float:
        """Seconds of one on the slowest rank: every rank knows the same."""
        return self.rank.slowest(self.seconds(), self.group)

    def seconds(self) -> float:
        """Of one, on this rank."""
        return _seconds(self.work, self.rank.cuda)

    def capture(self) -> bool:
        """GRAPH_OPS of them in a CUDA graph, replayed once; False where this can't be."""
        self.graph = _captured(self.work, GRAPH_OPS)
        return self.graph is not None

    def replay(self) -> float:
        """Seconds of the graph, on this rank."""
        return _seconds(self.graph.replay, cuda=True)


def _fitted(make: Callable[[int], _Reduction], wanted: int, pace: float, box_s: float) -> tuple[_Reduction, float]:
    """All-reduces of as many of the wanted bytes as fit, and seconds of one. pace: seconds a byte of a smaller one,
    which had to wait for something else than the link perhaps."""
    share, spent = box_s * SHARE, 0.0
    size = _fitting(wanted, pace, share)
    while True:
        reduction = make(size)
        spent += reduction.once()  # may open connections that only this size needs
        once = reduction.once()
        spent += once
        more = min(_fitting(wanted, once / size, share), MOST_GROWTH * size)
        if more <= size or spent > box_s:
            return reduction, once
        size = more


def _reduced(reduction: _Reduction, once: float, box_s: float, *, captured: bool) -> tuple[float, str]:
    """Median seconds of one on this rank, about a box together, and why it was not in a CUDA graph; '' where it was.

    once: seconds of one
    """
    replays = _replays(once, box_s)
    if captured and replays and reduction.capture():
        return statistics.median(reduction.replay() for _ in range(replays)) / GRAPH_OPS, ""
    repeats = max(1, min(MOST_REPEATS, int(box_s / max(once, 1e-6)) - 2))
    seconds = statistics.median(reduction.seconds() for _ in range(repeats))
    return seconds, "" if not captured else CANT if replays else NO_ROOM


def _replays(once: float, box_s: float) -> int:
    """How often a graph fits into the box, after once to warm it up; 0: it is not worth capturing."""
    return max(0, min(REPLAYS, int(box_s / (GRAPH_OPS * max(once, 1e-6))) - 1))


def _moved(transfer: Callable[[int, int], float], wanted: int, box_s: float, most: int) -> tuple[int, list[float]]:
    """Bytes of a transfer, and the seconds that each burst of them took for one of its transfers; about a box together.

    transfer: so many bytes, so often; seconds of one
    """
    size, count, seconds = min(FIRST_BYTES, wanted), 1, 0.0
    for _ in range(2):  # the first one opens the connection
        seconds = transfer(size, 1)
    share = box_s * SHARE
    size = _fitting(wanted, seconds / size, share)
    begin, times = time.monotonic(), list[float]()
    while not times or (len(times) < MOST_REPEATS and time.monotonic() - begin < box_s):
        times.append(transfer(size, count))
        best = min(times)
        more = min(_fitting(wanted, best / size, share), MOST_GROWTH * size)
        often = max(count, min(most, int(share / max(best, 1e-9)))) if more <= size else count
        if more > size or often >= 2 * count:
            size, count, times = max(size, more), often, []  # small ones, and single ones, are not the link
    return size, times


def _look_again(
    suspects: list[tuple[_Link, _Link]],
    once_more: Callable[[_Link, float], tuple[float, float]],
    *,
    tries: int,
    budget_s: float,
) -> None:
    """Each suspect once, then those again that were slow again, for so many seconds in all."""
    spent = 0.0
    for _ in range(tries):
        for suspect, usual in tuple(suspects):
            if spent >= budget_s:
                return
            beside, took = once_more(usual, 0.0)
            pace, also = once_more(suspect, beside)
            spent += took + also
            if pace >= SUSPECT * beside:
                suspects.remove((suspect, usual))


def _suspects(paces: dict[_Link, float]) -> list[tuple[_Link, _Link]]:
    """The slowest links of each kind, each with the one in the middle of its kind."""
    kinds: dict[str, list[tuple[float, _Link]]] = {}
    for link, pace in paces.items():
        kinds.setdefault(link[0], []).append((pace, link))
    found = []
    for links in kinds.values():
        pace, usual = sorted(links)[len(links) // 2]
        found += [(slow / pace, link, usual) for slow, link in links if slow < SUSPECT * pace]
    return [(link, usual) for _, link, usual in sorted(found)[:MOST_SUSPECTS]]


def _grown(transfer: Callable[[int], float], wanted: int, box_s: float) -> float:
    """Transfers of more and more bytes up to the wanted ones, while one takes less than the box; seconds a byte of the
    last one.

    transfer: so many bytes; seconds a byte
    """
    size = min(FIRST_BYTES, wanted)
    transfer(size)  # opens the connection
    while True:
        pace = transfer(size)
        more = min(wanted, MOST_GROWTH * size)
        if more == size or pace * more > box_s:
            return pace
        size = more


def _wrong(found: Any, wanted: Any) -> int:
    """Bytes that differ."""
    if torch.equal(found, wanted):
        return 0
    return int((found.view(torch.uint8) != wanted.view(torch.uint8)).sum().item())


def _signed(number: int) -> int:
    """Its lowest 64 bits, as a word of a tensor."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _fitting(wanted: int, pace: float, box_s: float) -> int:
    """As many of the wanted bytes as pass within the box, by the pace (seconds a byte) seen so far; a power of two."""
    if pace * wanted <= box_s:
        return wanted
    return min(wanted, 1 << max(12, int(box_s / pace).bit_length() - 1))


def _seconds(work: Callable[[], Any], cuda: bool) -> float:
    if cuda:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _captured(work: Callable[[], Any], times: int) -> Any:
    """A CUDA graph of so many of them, as the engine decodes, replayed once; None where this NCCL or driver can't."""
    try:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(times):
                work()
        graph.replay()
        torch.cuda.synchronize()
    except RuntimeError:
        return None
    return graph


if __name__ == "__main__":
    os._exit(main())  # all is said: to take torch's modules apart takes half a second of a processor
