"""Phases and causes on lines as the engines write them: from the articles, the wheels' sources, runs on CPU.

The lines are in lines/: the line's meaning, a tab, the line, in causes.txt a tab and what stands above it where that
counts; nccl.txt is the reviewed table of NCCL's own warnings,
which scripts/nccl_lines.py gathers: cause, versions, file, format.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from orchestrator.engines.causes import COMMON, PCIE_IPC, REMARKS
from orchestrator.engines.engine import Engine
from orchestrator.engines.registry import dialect
from orchestrator.node.engine.watch import EXCEPTION, LogWatch
from orchestrator.protocol.staging import Watch


def lines(name: str) -> list[tuple[str, str]]:
    text = (Path(__file__).parent / "lines" / f"{name}.txt").read_text("utf-8")
    return [(label, line) for label, _, line in (row.partition("\t") for row in text.splitlines())]


WRITTEN = {"sglang-0.4.4": "0.4.4.post1", "sglang-0.5": "0.5.23"}
"""Dialects with the version that wrote the lines."""
LIVES = [(name, phase, line) for name in WRITTEN for phase, line in lines(name)]
REMARKABLE = lines("remarks")
CAUSES = [(label, *line.partition("\t")[::2]) for label, line in lines("causes")]
"""Its cause, the line, the line above it or ''."""
ABOVE_ALL = Watch(causes=COMMON)
ORDINARY = [line for _, line in lines("ordinary")]


def engine(name: str) -> Engine:
    return dialect(name).engine(WRITTEN[name])


def phases(name: str) -> dict[str, str]:
    return {one.phase: one.pattern for one in engine(name).watched.phases}


@pytest.mark.parametrize(("name", "phase", "line"), LIVES)
def test_a_line_marks_its_phase_and_no_other(name: str, phase: str, line: str) -> None:
    assert {marked for marked, pattern in phases(name).items() if re.search(pattern, line)} == {phase}


@pytest.mark.parametrize("name", WRITTEN)
def test_every_phase_has_its_line_and_they_come_in_order(name: str) -> None:
    order = list(phases(name))
    assert list(dict.fromkeys(phase for phase, _ in lines(name))) == order


@pytest.mark.parametrize("line", ORDINARY)
@pytest.mark.parametrize("name", WRITTEN)
def test_other_lines_mark_none(name: str, line: str) -> None:
    assert not [phase for phase, pattern in phases(name).items() if re.search(pattern, line)]


def taken_for(*told: str) -> str | None:
    """The cause that the last of these lines is taken for."""
    watch = LogWatch.of(ABOVE_ALL)
    for line in told[:-1]:
        watch.feed(line, 0.0)
    before = len(watch.suspicions(0.0))
    watch.feed(told[-1], 0.0)
    new = [one.id for one in watch.suspicions(0.0)[before:] if one.id != EXCEPTION]
    return new[0] if new else None


@pytest.mark.parametrize(("wanted", "line", "above"), CAUSES)
def test_a_line_is_taken_for_its_cause(wanted: str, line: str, above: str) -> None:
    assert taken_for(above, line) == wanted


@pytest.mark.parametrize(("wanted", "line", "above"), [row for row in CAUSES if row[2]])
def test_a_bare_line_is_not_taken_for_what_another_tells(wanted: str, line: str, above: str) -> None:
    assert above and taken_for(line) != wanted


ERRNOS = [
    os.strerror(number)
    for number in (
        errno.EPERM, errno.ENOENT, errno.EIO, errno.EBADF, errno.EAGAIN, errno.ENOMEM, errno.EACCES, errno.EBUSY,
        errno.ENODEV, errno.EINVAL, errno.EPIPE, errno.ECONNREFUSED, errno.ETIMEDOUT, errno.EHOSTUNREACH,
        errno.ENETUNREACH, errno.ESTALE,
    )
]  # fmt: skip
"""Words that every call shares. Of these alone nobody can tell what failed."""


@pytest.mark.parametrize("form", ["{}", "OSError: [Errno 5] {}", "RuntimeError: {}", "error: {}", "x: {} (5)"])
@pytest.mark.parametrize("words", ERRNOS)
def test_a_bare_errno_names_no_cause(form: str, words: str) -> None:
    assert taken_for(form.format(words)) is None


@pytest.mark.parametrize(("wanted", "line", "above"), CAUSES)
def test_the_call_or_object_that_failed_decides(wanted: str, line: str, above: str) -> None:
    """Of a line that ends in an errno's words, those words alone are another cause, or none."""
    words = next((words for words in ERRNOS if words.lower() in line.lower()), "")
    if words and not above:
        assert taken_for(f"RuntimeError: {words}") != wanted


@pytest.mark.parametrize("line", [line for wanted, line, _ in CAUSES if wanted == "GPU-OUT-OF-MEMORY"])
def test_a_gpu_without_memory_is_no_node_without_memory(line: str) -> None:
    assert [cause.id for cause in COMMON if re.search(cause.pattern, line)] == ["GPU-OUT-OF-MEMORY"]


def test_every_cause_has_an_example() -> None:
    assert {cause.id for cause in COMMON} == {wanted for wanted, _, _ in CAUSES}


@pytest.mark.parametrize("line", [*ORDINARY, *(line for _, _, line in LIVES)])
def test_ordinary_lines_are_no_cause(line: str) -> None:
    assert not [cause.id for cause in COMMON if re.search(cause.pattern, line)]


@pytest.mark.parametrize(("wanted", "line"), REMARKABLE)
def test_what_only_costs_speed_is_a_remark_and_no_cause(wanted: str, line: str) -> None:
    assert [remark.id for remark in (*REMARKS, *PCIE_IPC) if re.search(remark.pattern, line)] == [wanted]
    assert not [cause.id for cause in COMMON if re.search(cause.pattern, line)]


REQUESTS = [
    '[2026-11-20 14:11:35] INFO:     127.0.0.1:35072 - "GET /?torch.OutOfMemoryError HTTP/1.1" 404 Not Found',
    '[2026-11-20 14:11:35] INFO:     ::1:35072 - "GET /?torch.OutOfMemoryError HTTP/1.1" 200 OK',
    '[2026-11-20 14:11:35] INFO:      - "GET /?EADDRINUSE HTTP/1.1" 200 OK',
    'INFO:     10.0.0.5:40004 - "GET /?max_total_num_tokens=1 HTTP/1.1" 200 OK',
    '[2026-11-20 14:11:35] \x1b[32mINFO\x1b[0m:     127.0.0.1:35072 - "GET /?EADDRINUSE HTTP/1.1" 200 OK',
    'torch.OutOfMemoryError HTTP/1.1" 404 Not Found',
    'torch.OutOfMemoryError HTTP/1.1" 599 ',
]


@pytest.mark.parametrize("line", [*REQUESTS, *(line[:100] for line in REQUESTS[:5])])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_clients_words_in_the_access_log_are_no_cause(name: str, line: str) -> None:
    watch = LogWatch.of(engine(name).watch())
    watch.begin(0.0)
    assert not watch.feed(line, 1.0)
    assert watch.suspect(0.0) is None and watch.last_lines() == ()


@pytest.mark.parametrize("line", [line for _, line, _ in CAUSES])
@pytest.mark.parametrize("name", WRITTEN)
def test_no_causes_line_looks_like_a_request(name: str, line: str) -> None:
    assert not re.search(engine(name).watched.requests, line)


PAUSES = [
    "[2026-11-20 10:00:00 TP0] Update engine weights online from disk begin. avail mem=3.10 GB",
    "[2026-11-20 10:00:00 TP0] Entering DeepGEMM JIT Pre-Compile session. It may take a long time",
    "[2026-11-20 10:00:00 TP0] Try DeepGEMM JIT Compiling for <GROUPED_GEMM_NT_F8F8BF16_CONTIG> N=512, K=7168",
]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_pause_is_announced_and_ended_by_the_engines_own_lines(name: str) -> None:
    watch = LogWatch.of(engine(name).watch())
    assert all(watch.announces_pause(line) and not watch.shows_work(line) for line in PAUSES)
    for line in ("[2026-11-20 10:05:00 TP0] Update weights end.", "[TP0] Decode batch, #running-req: 1"):
        assert watch.shows_work(line) and not watch.announces_pause(line)
    assert not any(watch.announces_pause(line) for line in ORDINARY)


IN_USE = "[2026-11-20 10:00:00 TP0] FlashInfer PCIe-IPC workspace built (world=8, max_numel=917504, hidden=7168)"
ENABLED = "FlashInfer PCIe-IPC all-reduce enabled (world=8, workspace sized on first reduction)"
ASKED = {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"}


def test_what_is_asked_for_is_proved_by_the_line_that_comes_once_it_works() -> None:
    watch = LogWatch.of(engine("sglang-0.5").watch(ASKED))
    watch.feed(ENABLED, 1.0)
    assert watch.proved == [] and "log does not show that it is in use" in watch.unproved[0]
    for rank in range(2):
        watch.feed(IN_USE.replace("TP0", f"TP{rank}"), 2.0)
    assert watch.proved == ["the PCIe-IPC all-reduce"] and watch.unproved == []


@pytest.mark.parametrize("line", [line for name, line in REMARKABLE if name == "PCIE-IPC-OFF"])
def test_what_the_log_denies_is_one_remark_and_not_two(line: str) -> None:
    watch = LogWatch.of(engine("sglang-0.5").watch(ASKED))
    watch.feed(line, 1.0)
    assert (watch.proved, watch.unproved, len(watch.remarked)) == ([], [], 1)


def test_what_nobody_asks_for_needs_no_proof() -> None:
    assert engine("sglang-0.5").watch({}).proofs == ()


NCCL = [row.split("\t") for row in (Path(__file__).parent / "lines" / "nccl.txt").read_text("utf-8").splitlines()]
NCCL_WATCH = engine("sglang-0.5").watch()
CONVERSION = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?(?:hh?|ll?|z|j)?([diuxXpsfgcm])")
SAMPLES = {"s": "x1", "p": "0x7f00", "m": "Success", "f": "1.5", "g": "1.5"}
FILLED = [
    ("with error %d", "with error 12", "IB-UNREACHABLE"),
    ("with error %d", "with error 4", "GDR-REFUSED"),
    ("with error %d", "with error 5", "-"),
    ("with status=%d", "with status=12", "IB-UNREACHABLE"),
    ("with status=%d", "with status=4", "GDR-REFUSED"),
    ("with status=%d", "with status=5", "-"),
    ("with status=%s(%d)", "with status=IBV_WC_RETRY_EXC_ERR(12)", "IB-UNREACHABLE"),
    ("with status=%s(%d)", "with status=IBV_WC_LOC_PROT_ERR(4)", "GDR-REFUSED"),
    ("with status=%s(%d)", "with status=IBV_WC_WR_FLUSH_ERR(5)", "-"),
    ("with status=%s(%d)", "with status=IBV_WC_GENERAL_ERR(21)", "-"),
    ("async event : %s", "async event : port error", "RDMA-PORT-DOWN"),
    ("async error event: %s", "async error event: port error", "RDMA-PORT-DOWN"),
    ("non-fatal async event: %s", "non-fatal async event: port error", "RDMA-PORT-DOWN"),
    ("non-fatal async event: %s", "non-fatal async event: port active", "-"),
    ("async fatal event: %s", "async fatal event: local catastrophic error", "RDMA-CARD-FAILED"),
    ("ibv_modify_qp failed with %d %s", "ibv_modify_qp failed with 22 Invalid argument", "IB-GID"),
    ("ibv_modify_qp failed with %d %s", "ibv_modify_qp failed with 61 No data available", "IB-GID"),
    ("ibv_modify_qp failed with %d %s", "ibv_modify_qp failed with 110 Connection timed out", "IB-UNREACHABLE"),
    ("Call to %s failed with error %s", "Call to ibv_modify_qp failed with error Invalid argument", "IB-GID"),
    ("Call to %s failed with error %s", "Call to ibv_reg_mr failed with error Cannot allocate memory", "IB-MEMLOCK"),
    ("Call to %s failed with error %s", "Call to ibv_reg_mr failed with error Bad address", "GDR-REFUSED"),
    ("Call to %s failed with error %s", "Call to ibv_get_device_list failed with error x", "-"),
    ("Call to %s failed : %s", "Call to bind failed : Address already in use", "-"),
    ("Call to %s failed: %s", "Call to bind failed: Address already in use", "-"),
    ("Call to %s failed : %s", "Call to posix_fallocate failed : No space left on device", "SHM-TOO-SMALL"),
    ("Call to %s failed: %s", "Call to posix_fallocate failed: No space left on device", "SHM-TOO-SMALL"),
    ("Cuda failure '%s'", "Cuda failure 'out of memory'", "GPU-OUT-OF-MEMORY"),
    ("Cuda failure %d '%s'", "Cuda failure 2 'out of memory'", "GPU-OUT-OF-MEMORY"),
    ("Cuda failure %d '%s'", "Cuda failure 711 'peer mapping resources exhausted'", "GPU-PEERS-EXCEEDED"),
    ("Connect to %s failed : %s", "Connect to 10.0.0.2<4> failed : No route to host", "PORT-BLOCKED"),
    ("onnect to %s failed : %s", "onnect to fe80::2%ib1<4> failed : Cannot assign it", "WRONG-INTERFACE"),
    ("Connect to %s returned %d(%s)", "Connect to 10.0.0.2<4> returned 113(No route to host)", "PORT-BLOCKED"),
    ("Connect to %s returned %d(%s)", "Connect to 10.0.0.2<4> returned 111(Connection refused)", "PEER-LOST"),
    ("connect to %s returned %s,", "connect to 10.0.0.2<4> returned No route to host,", "PORT-BLOCKED"),
    ("connect to %s returned %s,", "connect to 10.0.0.2<4> returned Connection refused,", "PEER-LOST"),
    ("connect returned %s,", "connect returned No route to host,", "PORT-BLOCKED"),
    ("Call to %s %s failed : %s", "Call to recv from 10.0.0.2<4> failed : Connection timed out", "PEER-LOST"),
    ("Error while %s", "Error while attaching to", "SHM-GONE"),
    ("Error while %s shared memory segment %s (size %ld), error: %s",
     "Error while creating shared memory segment /dev/shm/x (size 1), error: No space left on device", "SHM-TOO-SMALL"),
    ("Error while %s shared memory segment %s (size %ld), error: %s",
     "Error while creating shared memory segment /dev/shm/x (size 1), error: Permission denied", "-"),
    ("failed to extend %s to %ld bytes, error: %s",
     "failed to extend /dev/shm/nccl-x to 9 bytes, error: No space left on device", "SHM-TOO-SMALL"),
]  # fmt: skip
"""Part of a format, what NCCL writes there, the cause."""


def cause_of(file: str, form: str) -> str:
    line = CONVERSION.sub(lambda found: SAMPLES.get(found[1], "7"), form.replace("\\n", " "))
    watch = LogWatch.of(NCCL_WATCH)
    watch.feed(f"node1:100:141 [0] {file}:12 NCCL WARN {line}", 0.0)
    suspicion = watch.suspect(0.0)
    return suspicion.id if suspicion else "-"


def test_every_warning_of_nccl_is_taken_for_what_the_table_says() -> None:
    assert {form: found for wanted, _, file, form in NCCL if (found := cause_of(file, form)) != wanted} == {}


@pytest.mark.parametrize("version", ["2.21.5", "2.27.7", "2.28.9", "2.30.7", "2.32.3"])
@pytest.mark.parametrize(
    "part", ["bootstrap", "misc/socket|os/linux", "transport/net_ib", "transport/net_socket", "ras/"]
)
def test_the_table_has_each_version_and_part(version: str, part: str) -> None:
    files = [file for _, versions, file, _ in NCCL if version in versions.split(",")]
    assert any(re.match(part, file) for file in files) or (version, part) == ("2.21.5", "ras/"), "RAS came with 2.24"


@pytest.mark.parametrize(("part", "written", "wanted"), FILLED, ids=[written for _, written, _ in FILLED])
def test_what_a_warning_says_decides(part: str, written: str, wanted: str) -> None:
    found = {form: cause_of(file, form.replace(part, written)) for _, _, file, form in NCCL if part in form}
    assert set(found.values()) == {wanted}, found
