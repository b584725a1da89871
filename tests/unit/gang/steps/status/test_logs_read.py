"""Whole logs, as people have posted them or as a node's relatives would write them, through the classification.

logs/NAME.log, or logs/NAME/NODE.log for several nodes; NAME.expected: what is to be said of it, and where it is from.
UPDATE_GOLDEN=1 writes what is said now; the diff is a review.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engines.literals import shapes_of, telling
from orchestrator.engines.registry import newest
from orchestrator.gang.steps.status.logs_read import LogsSummary, read_logs, words_of, words_of_causes
from orchestrator.node.engine.watch import LogWatch

LOGS = Path(__file__).parent / "logs"
RECORDED = Path(__file__).parents[3] / "engines/logs"
CASES = sorted(path.stem for path in LOGS.glob("*.expected"))


def told(name: str) -> LogsSummary:
    place = LOGS / name
    files = sorted(place.glob("*.log")) if place.is_dir() else [LOGS / f"{name}.log"]
    return read_logs({file.stem: file.read_text("utf-8").splitlines() for file in files})


def words(seen: LogsSummary) -> list[str]:
    said = {
        "cause": f"{seen.cause.signature} on {seen.cause.node}" if seen.cause else "none",
        "secondary": ", ".join(f"{one.signature} on {one.node}" for one in seen.secondary),
        "exception": seen.exception if seen.cause is None else "",
        "nccl_warning": seen.nccl_warning if seen.cause is None else "",
        "engine": f"{seen.engine} {seen.version}".strip(),
        "nccl": seen.nccl,
        "transport": seen.transport,
        "findings": ", ".join(one.id for one in seen.findings),
    }
    return [f"{key}: {value}" for key, value in said.items() if value]


@pytest.mark.parametrize("name", CASES)
def test_a_log_is_taken_for_what_it_shows(name: str) -> None:
    file = LOGS / f"{name}.expected"
    wanted = file.read_text("utf-8").splitlines()
    source = [line for line in wanted if line.startswith("source: ")]
    assert source, "where it is from"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text("\n".join([*words(told(name)), *source]) + "\n")
        return
    assert words(told(name)) == [line for line in wanted if line not in source]


@pytest.mark.parametrize("before", ["", "2026-11-20T10:00:00.1Z stdout F "])
@pytest.mark.parametrize("header", [[], ["Traceback (most recent call last):", '  File "/v/vllm/a.py", line 1, in f']])
def test_a_rank_of_vllm_is_named_by_the_prefix_of_its_lines(header: list[str], before: str) -> None:
    prefix = f"{before}(Worker_TP5 pid=9) ERROR 11-20 10:00:00 [multiproc_executor.py:1] "
    lines = [prefix + line for line in (*header, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")]
    seen = read_logs({"n0": lines})
    assert seen.cause is not None
    assert (seen.cause.signature, seen.cause.node, seen.cause.tp_rank) == ("GPU-OUT-OF-MEMORY", "n0", 5)


def test_a_row_of_a_pasted_table_names_its_gpu() -> None:
    seen = read_logs({"n0": ["|   3  ERR!                On   | 00000000:3E:00.0 Off |                 ERR! |"]})
    assert seen.cause is not None and "(GPU 3)" in seen.cause.text


@pytest.mark.parametrize(
    ("name", "wanted", "unwanted"),
    [
        ("llmd706-803", "another version than the node's driver", "too old"),
        ("assert-of-another-kind", "(numel % width == 0)", "index"),
        ("fractal2835-credential", "clock", "binding"),
    ],
)
def test_a_hint_is_of_its_own_kind(name: str, wanted: str, unwanted: str) -> None:
    cause = told(name).cause
    assert cause is not None and wanted in cause.text and unwanted not in f"{cause.text} {cause.fix}"


def test_whose_port_can_t_be_reached_is_in_the_line() -> None:
    seen = told("vllm14340-c10d-master-unreachable")
    assert seen.cause is not None and "to 10.0.0.12, 29400" in seen.cause.text


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("vllm28411-assert-without-header", "assert reorganized_kv_c_normed.shape[0] == sum_seq_len"),
        ("sglang3436-numerator", "assert numerator % denominator == 0"),
    ],
)
def test_an_assertion_without_words_is_told_with_its_line_of_code(name: str, code: str) -> None:
    seen = told(name)
    assert seen.cause is not None and seen.cause.text.endswith(f"AssertionError: {code}")
    assert seen.exception.startswith(f"AssertionError: {code} (" if "header" not in name else f"AssertionError: {code}")


def test_every_log_is_a_case() -> None:
    assert {path.stem for path in LOGS.iterdir()} == set(CASES)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("sglang-0.5.23-cpu/worker-killed.leader", ("", ["PEER-LOST"], "RuntimeError: ")),  # hours after it was ready
        ("vllm-0.32.0-cpu/core-killed", ("", ["CHILD-FAILED"], "vllm.v1.engine.exceptions.EngineDeadError: ")),
        ("vllm-0.32.0-cpu/file-cut", ("SHARD-CORRUPT", ["CHILD-FAILED"], "")),
        ("vllm-0.32.0-cpu/flag-refused", ("FLAG-REFUSED", [], "")),
        ("vllm-0.32.0-cpu/flag-value", ("FLAG-REFUSED", [], "")),
        ("vllm-0.32.0-cpu/port-taken", ("PORT-IN-USE", [], "")),
        ("vllm-0.32.0-cpu/worker-killed.leader", ("", [], "")),
    ],
)
def test_what_was_recorded_is_read_with_its_own_engines_words(name: str, wanted: tuple[str, list[str], str]) -> None:
    seen = read_logs({"node0": (RECORDED / f"{name}.log").read_text("utf-8").splitlines()})
    cause = seen.cause.signature if seen.cause else ""
    assert (cause, [one.signature for one in seen.secondary]) == wanted[:2]
    assert seen.engine == name.partition("-")[0]
    assert cause or seen.exception.startswith(wanted[2])


@pytest.mark.parametrize(
    ("lines", "engine"),
    [
        (['  File "/v/vllm/_custom_ops.py", line 3', "server_args=ServerArgs(model_path='/m')"], "sglang "),
        (['  File "/v/site-packages/vllm/v1/engine/core.py", line 3'], "vllm "),
        (["vLLM API server version 0.32.0", "pip list: sglang"], "vllm 0.32.0"),
        (["ready"], " "),
    ],
)
def test_whose_log_it_is(lines: list[str], engine: str) -> None:
    seen = read_logs({"a": lines})
    assert f"{seen.engine} {seen.version}" == engine


def test_a_cause_names_both_ends_its_lines_and_a_fix() -> None:
    cause = told("bootstrap-no-route").cause
    assert cause is not None and "(bond0 10.0.0.3 to 10.0.0.4<56849>)" in cause.text
    assert "No route to host" in cause.lines[-1] and cause.fix
    document = json.loads(json.dumps(told("bootstrap-no-route").as_json()))
    assert document["cause"]["id"] == "PORT-BLOCKED" and document["cause"]["lines"] == list(cause.lines)
    assert document["transport"] is None and document["engine"] == "sglang"


BEGIN = "Traceback (most recent call last):"
PREFIXES = [
    "[pod/gang-0-1/engine] ", "2026-11-25T10:00:00.123456789Z ", "2026-11-25T10:00:00.123456789Z stderr F ",
    "Nov 25 10:00:00 h1 l40s-gang0[123]: ", "2026-11-25T10:00:00+0800 h1 l40s-gang0[123]: ", "engine-1  | ",
    "l40s_engine.1.k2j3h4k5@node3    | ", "> ", "[1,3]<stderr>:", "[rank3]: ", " 3: ", "\x1b[31m",
    "(Worker_TP3 pid=1234) ERROR 11-25 10:00:00 [multiproc_executor.py:597] ",
    "(RayWorkerWrapper pid=123, ip=10.0.0.2) ", "(RayWorkerVllm pid=14289) ERROR 04-17 09:00:33 ray_utils.py:44] ",
    "gang-0-1 engine ", "<30>Nov 25 10:00:00 h1 sglang[123]: ", "<30>1 2026-11-25T10:00:00.123Z h1 sglang 123 - - ",
    "Wed 2026-11-25 10:00:00 CST h1 sglang[1]: ", "I1126 12:00:00.000000       1 file.go:1] ", "     9\t",
    "2026-11-25 10:00:00 ", "[2026-11-25 10:00:00] ", "node1: ", "[node1] out: ", "[1] 10:00:00 ", "[RANK 3] ", "    ",
    "\x1b[36mengine-1  |\x1b[0m ", "\x1b[36mengine-1\x1b[0m  | ", "[36mengine-1  |[0m ", "[1,3]<stderr>[rank3]: ",
    "\x1b[36m(RayWorkerWrapper pid=123, ip=10.0.0.2)\x1b[0m ", "Wed Nov 25 10:00:00 2026[1,3]<stderr>:", "##[error]",
    "gpu3: ", "logs/node3.log:12:", "2026-11-25 10:00:00.123\t", "[2026-11-25 10:00:00,123] [INFO] ",
    "INFO 2025-11-19T20:16:36.096625454Z [resource.labels.containerName: vllm] ",
    "[2026-02-24T20:21:58Z] ", "2025-05-30 18:28:27.890 | ", "2025-03-07 23:50:31,001 - __main__ - INFO - ",
]  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
def test_whoever_passed_a_log_on_its_prefix_hides_nothing(prefix: str) -> None:
    text = [
        BEGIN,
        '  File "/opt/x/model_runner.py", line 187, in __init__',
        "ValueError: nobody has seen this before",
    ]
    assert read_logs({"a": [prefix + line for line in text]}).exception == f"{text[-1]} (/opt/x/model_runner.py:187)"
    lines = (LOGS / "ib-retry-230.log").read_text("utf-8").splitlines()
    seen = read_logs({"a": [prefix + line for line in lines]})
    assert seen.cause is not None and seen.cause.signature == "IB-UNREACHABLE"
    assert seen.transport == "IB over mlx5_0:1, mlx5_1:1"


DRESSES: dict[str, Callable[[str], str]] = {
    "coloured words": lambda line: re.sub(r"(Error|WARN|ERROR)", "\x1b[1;31m\\1\x1b[0m", line),
    "a coloured line": lambda line: f"\x1b[31m{line}\x1b[0m",
    "a page's entities": html.escape,
    "grep": lambda line: f"node3.log:{line}",
    "pdsh": lambda line: f"gpu3: {line}",
    "Ray's count": lambda line: f"(RayWorkerWrapper pid=9, ip=10.0.0.2) {line} [repeated 7x across cluster]",
    "colours whose escapes were lost": lambda line: f"[31m{line}[0m",
    "mpirun --timestamp-output": lambda line: f"Mon Jan  5 10:05:00 2026[1,3]<stderr>:{line}",
    "a time": lambda line: f"2026-01-05 10:05:00,123 {line}",
}
FOLLOWS = {
    "srun": ["srun: error: gpu-3: task 3: Exited with exit code 1"],
    "the parent of a rank": [BEGIN, '  File "/v/sglang/srt/entrypoints/engine.py", line 880, in f', "EOFError"],
}
"""A failure, and tells nothing of it."""


@pytest.mark.parametrize("dress", DRESSES)
def test_whatever_dresses_its_lines_the_cause_is_the_same(dress: str) -> None:
    different = {}
    for name in CASES[::6]:
        file = LOGS / f"{name}.log"
        lines = file.read_text("utf-8").splitlines() if file.is_file() else []
        if len(lines) < 3:  # too few to tell a name before each from the words of one
            continue
        bare, dressed = (read_logs({"a": log}).cause for log in (lines, [*map(DRESSES[dress], lines)]))
        if (bare.signature if bare else "") != (dressed.signature if dressed else ""):
            different[name] = dressed
    assert different == {}


@pytest.mark.parametrize("end", FOLLOWS)
def test_what_follows_a_failure_is_not_taken_for_it(end: str) -> None:
    different = {}
    for name in CASES[::6]:
        file = LOGS / f"{name}.log"
        lines = file.read_text("utf-8").splitlines() if file.is_file() else []
        alone, followed = (read_logs({"a": log}) for log in (lines, [*lines, *FOLLOWS[end]]))
        if alone.engine == "vllm" != followed.engine:  # what follows is the other engine's: no log has both
            continue
        if alone.cause and (followed.cause is None or followed.cause.signature != alone.cause.signature):
            different[name] = followed.cause
    assert different == {}


def test_an_engine_that_goes_on_was_not_ended_by_what_stands_above() -> None:
    lines = ["h1:1:9 [0] NCCL WARN NET/IB : mlx5_6:1 Got async event : port error"]
    work = "[2026-01-05 10:05:10 TP0] Decode batch. #running-req: 48, #token: 161212"
    assert read_logs({"a": [*lines, work]}).cause is None
    killed = "[99123.1] Out of memory: Killed process 4123 (python3) total-vm:1kB"
    for above in ([], ["[2026-01-05 10:00:00] The server is fired up and ready to roll!"]):
        seen = read_logs({"a": [killed, *above, work]}).cause
        assert seen is not None and seen.signature == "HOST-OUT-OF-MEMORY"
    for since in ([], [work]):
        seen = read_logs({"a": [*lines, *since, "RuntimeError: Watchdog caught collective operation timeout"]}).cause
        assert seen is not None and seen.signature == "RDMA-PORT-DOWN"


@pytest.mark.parametrize(
    "line",
    [
        'I excluded OOM: there is no "CUDA out of memory" anywhere',
        "We set ulimit -l unlimited, and saw no OOMKilled",
        "    except torch.cuda.OutOfMemoryError:",
    ],
)
def test_what_somebody_wrote_of_a_failure_is_none(line: str) -> None:
    assert read_logs({"a": ["[2026-01-05 10:00:00 TP0] Load weight begin. avail mem=43.11 GB", line]}).cause is None


def test_what_torch_passes_on_is_read_as_nccls_own_words() -> None:
    for before in ("", "[rank3]: ", "(Worker_TP1 pid=9) ERROR 05-02 11:20:05 [a.py:2] "):
        seen = read_logs({"a": [f"{before}Last error:", f"{before}XML Import Channel : dev 1 not found."]})
        assert seen.cause is not None and seen.cause.signature == "NCCL-GRAPH-FILE"
        assert seen.nccl_warning == "XML Import Channel : dev 1 not found."


def test_a_weak_cause_of_one_log_hides_no_sure_one_of_another() -> None:
    weak, sure = "CUDA error: unspecified launch failure", "NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"
    for logs in ({"a": [weak], "b": [sure]}, {"a": [sure], "b": [weak]}):
        seen = read_logs(logs).cause
        assert seen is not None and seen.signature == "RDMA-PORT-DOWN"


@pytest.mark.parametrize("prefix", ["node{}: ", "[10.0.0.{}] ", "gang-0-{} engine "])
def test_lines_of_two_nodes_in_turn_keep_their_own_exceptions(prefix: str) -> None:
    lost = "DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error"
    both = [[BEGIN, '  File "/x/a.py", line 3, in f', end] for end in (lost, "ValueError: odd")]
    lines = [prefix.format(node) + line for pair in zip(*both, strict=True) for node, line in enumerate(pair, 1)]
    seen = read_logs({"a": lines})
    node = prefix.format(1).removesuffix(" engine ").strip("[]: ")
    assert seen.cause is None and "ValueError: odd" in seen.exception
    assert [(one.signature, one.node) for one in seen.secondary] == [("PEER-LOST", node)]


def test_a_rank_s_own_prefix_is_kept() -> None:
    own = "[2026-11-25 10:00:05 TP3] "
    text = [
        f"{own}Scheduler hit an exception: {BEGIN}",
        '  File "/x/a.py", line 3, in f',
        "ValueError: CUDA out of memory",
    ]
    cause = read_logs({"a": [f"{own}x {BEGIN}", *text]}).cause
    assert cause is not None and (cause.signature, cause.tp_rank) == ("GPU-OUT-OF-MEMORY", 3)


@pytest.mark.parametrize("name", ["log", "MESSAGE", "message", "msg"])
def test_a_log_of_which_each_line_is_json_is_read(name: str) -> None:
    lines = (LOGS / "ib-retry-230.log").read_text("utf-8").splitlines()
    wrapped = [json.dumps({"stream": "stderr", name: f"{line}\n"}) for line in lines]
    seen = read_logs({"a": ['{"log":' + "[" * 60_000, '{"log": 7}', '{"msg"', *wrapped]})
    assert seen.cause is not None and (seen.cause.signature, seen.cause.node) == ("IB-UNREACHABLE", "n1")
    assert seen.transport == "IB over mlx5_0:1, mlx5_1:1"


def test_what_an_engine_survived_is_no_cause_of_its_end() -> None:
    early = "[2026-11-25 10:00:05 TP1] port 5001 is in use. Waiting for 15 seconds for port_base to be available."
    ready = "[2026-11-25 10:20:00] The server is fired up and ready to roll!"
    assert read_logs({"a": [early]}).cause is not None
    assert read_logs({"a": [early, ready]}).cause is None


XID = "[12345.6] NVRM: Xid (PCI:0000:41:00): "


@pytest.mark.parametrize(
    ("line", "cause", "words"),
    [
        (f"{XID}79, pid='<unknown>', GPU has fallen off the bus.", "GPU-LOST", "0000:41:00"),
        (f"{XID}48, pid=2345, An uncorrectable double bit error (DBE) has been detected", "XID-48", "0000:41:00"),
        (f"{XID}94, pid=7194, name=python3, Contained: SM (0x1). RST: No, D-RST: No", "GPU-ECC", "memory error"),
        (f"{XID}31, pid=2345, name=python3, MMU Fault: ENGINE GRAPHICS faulted", "GPU-KERNEL-FAULT", "illegal"),
        (f"{XID}109, pid=2345, name=python3, Ch 00000005, errorString CTX SWITCH TIMEOUT", "GPU-KERNEL-FAULT", "109"),
        (f"{XID}140, pid='<unknown>', name=<unknown>, An uncorrectable ECC error", "XID-140", "0000:41:00"),
        (f"{XID}154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "XID-154", "reset"),
        (f"{XID}154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", None, ""),
        ("inotify_add_watch(/x) failed: No space left on device", None, ""),
        ("failed (exitcode: -9) local_rank: 3 (pid: 123) of binary: /usr/bin/python", "KILLED", "SIGKILL"),
        (f"{XID}45, pid=2345, name=python3, Ch 00000008", None, ""),
        (
            "[1.5] Memory cgroup out of memory: Killed process 12 (python3) total-vm:1kB",
            "CGROUP-OUT-OF-MEMORY",
            "cgroup",
        ),
        ("[1.5] oom-kill:constraint=CONSTRAINT_MEMCG,task=sglang::schedul,pid=12", "CGROUP-OUT-OF-MEMORY", "cgroup"),
        ("[1.5] oom-kill:constraint=CONSTRAINT_NONE,task=python3,pid=12", "HOST-OUT-OF-MEMORY", "the node was"),
        ("NVRM: API mismatch: the client has the version 550.54, but", "GPU-DRIVER", "different versions"),
        ("NVRM: GPU 0000:41:00.0: RmInitAdapter failed! (0x62:0x40:2407)", "GPU-LOST", "could not be started"),
        ("NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:", "GPU-BAR1-SMALL", "BAR"),
        ("x.service: A process of this unit has been killed by the OOM killer.", "HOST-OUT-OF-MEMORY", "systemd"),
        ("Some common causes include: (1) the process was killed by the OOM killer due to high memory usage", None, ""),
        (" Reason: OOMKilled", "HOST-OUT-OF-MEMORY", "cgroup"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=123.0.", "HOST-OUT-OF-MEMORY", "Slurm"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "HOST-OUT-OF-MEMORY", "memory"),
        ("x: 0 Workers (tasks / actors) killed due to memory pressure (OOM), 1 Workers crashed", None, ""),
        ("x: 2 Workers (tasks / actors) killed due to memory pressure (OOM)", "HOST-OUT-OF-MEMORY", "memory"),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "HOST-OUT-OF-MEMORY", "memory"),
        (f"{XID}149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)", "GPU-NVLINK", "NVLink"),
        (f"{XID}144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008)", None, ""),
        ("NVRM: GPU6 _kgspLogRpcTimeout: ********************* GSP Timeout ********", "XID-119", "(GPU6)"),
        (
            "nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x3b address=0x388 flags=0x20]",
            "IOMMU-TRANSLATING",
            "(41:00.0)",
        ),
        ("ahci 0000:02:00.1: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x3b address=0x388 flags=0x20]", None, ""),
        (
            "DMAR: [DMA Write NO_PASID] Request device [3b:00.0] fault addr 0x9ff80 [fault reason 0x05]",
            "IOMMU-TRANSLATING",
            "(3b:00.0)",
        ),
        ("nvidia 0000:21:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=x", "PCIE-ERROR", "0000:21:00.0"),
        ("nvidia 0000:21:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer", None, ""),
        (
            "mlx5_core 0000:86:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)",
            "NIC-DOWN",
            "cable",
        ),
        ("mlx5_core 0000:86:00.0: Port module event: module 0, Cable plugged", None, ""),
        ("blk_update_request: I/O error, dev nvme1n1, sector 123456 op 0x0:(READ)", "STORAGE-FAILED", "disk"),
        ("Memory failure: 0x1f: Sending SIGBUS to python3:77 due to hardware memory corr", "MEMORY-BROKEN", "memory"),
        ("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7", "MACHINE-CHECK", "hardware"),
        (
            "slurmstepd: error: *** STEP 12.0 ON n3 CANCELLED AT 2025-11-25T12:00:05 DUE TO TIME LIMIT ***",
            "JOB-CANCELLED",
            "time",
        ),
        ("slurmstepd: error: *** STEP 12.0 ON n3 CANCELLED AT 2025-11-25T12:00:05 ***", None, ""),
        ("Normal Killing 2m kubelet Container engine failed startup probe, will be restarted", "PROBE-FAILED", "load"),
        ("Warning Failed 2m kubelet Error: ErrImagePull", "IMAGE-MISSING", "image"),
        ("0/4 nodes are available: 4 Insufficient nvidia.com/gpu. preemption: 0/4", "GPU-UNSCHEDULED", "free"),
        ('runc create failed: exec: "sglang": executable file not found in $PATH', "ENGINE-MISSING", "image"),
        ("Rank 0 scheduler died during initialization (exit code: -9).", "RANK-DIED-STARTING", "OOM killer"),
        ("Rank 0 scheduler died during initialization (exit code: -11).", "RANK-DIED-STARTING", "SIGSEGV"),
    ],
)
def test_what_the_kernel_says_beside_it_counts(line: str, cause: str | None, words: str) -> None:
    seen = read_logs({"a": [line]}).cause
    assert (seen.signature if seen else None, words in (seen.text if seen else "")) == (cause, True)


def test_the_exception_shown_is_the_root_and_not_who_points_at_it() -> None:
    lines = [
        "(EngineCore pid=35) ERROR 05-16 04:02:07 [core.py:1159] TypeError: nobody has seen this before",
        f"(APIServer pid=7) {BEGIN}",
        '(APIServer pid=7)   File "/v/bin/vllm", line 8, in <module>',
        "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    assert read_logs({"a": lines}).exception == "TypeError: nobody has seen this before"
    assert "Engine core initialization failed" in read_logs({"a": lines[1:]}).exception


def test_who_did_not_come_is_told_from_one_log() -> None:
    line = "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/3 clients joined."
    seen = read_logs({"a": [line]}).cause
    assert seen is not None and seen.signature == "PEER-MISSING"


@pytest.mark.parametrize(
    ("errno", "secondary"), [("97 - Address family not supported", []), ("111 - Connection refused", ["PEER-MISSING"])]
)
def test_a_connection_that_is_tried_again_is_no_cause_of_a_hang(errno: str, secondary: list[str]) -> None:
    line = (
        f"[W503 01:52:07 socket.cpp:752] [c10d] The client socket has failed to connect to [n1]:5000 (errno: {errno})."
    )
    seen = read_logs({"a": [line, "[2025-05-03 01:53:10 TP0] Load weight begin. avail mem=43.80 GB"]})
    assert (seen.cause, [one.signature for one in seen.secondary]) == (None, secondary)


@pytest.mark.parametrize("header", [[BEGIN], []])
def test_an_exception_that_the_engine_survived_is_shown_and_no_cause(header: list[str]) -> None:
    raised = [*header, '  File "/v/sglang/x.py", line 7, in <module>', "ImportError: cannot import name 'a' from 'b'"]
    went_on = "[2025-05-03 01:53:10 TP0] Load weight begin. avail mem=43.80 GB"
    assert (seen := read_logs({"a": raised}).cause) is not None and seen.signature == "PACKAGES-DIFFER"
    after = read_logs({"a": [*raised, went_on]})
    assert after.cause is None and after.exception.startswith("ImportError: cannot import")


def test_what_ended_native_code_is_shown_where_nothing_is_known() -> None:
    thrown = ["terminate called after throwing an instance of 'c10::Error'", "  what():  nobody has seen this before"]
    seen = read_logs({"a": thrown})
    assert (seen.cause, seen.exception) == (None, "nobody has seen this before")


@pytest.mark.parametrize(
    ("told", "warning"),
    [
        (["Cuda failure 999 'unknown error'"], "Cuda failure 999 'unknown error'"),
        (["", "Killed"], ""),
        (["Exception raised from checkForNCCLErrors"], ""),
        (["Last error:", "Cuda failure 1 'invalid argument'"], "Cuda failure 1 'invalid argument'"),
    ],
)
def test_what_torch_passes_on_of_nccl_is_its_warning(told: list[str], warning: str) -> None:
    lines = ["[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled cuda error"]
    lines += [f"[rank0]: {line}" for line in ("ncclUnhandledCudaError: Call to CUDA function failed.", "Last error:")]
    assert read_logs({"a": [*lines, *(f"[rank0]: {line}" for line in told)]}).nccl_warning == warning


@given(st.lists(st.text(max_size=80), max_size=8))
def test_any_text_is_read(lines: list[str]) -> None:
    read_logs({"a": lines, "b": lines})


WATCH = newest().engine(newest().versions[-1]).watch()
LINES = [line for file in sorted(LOGS.glob("*.log")) for line in file.read_text("utf-8").splitlines()]


@given(st.lists(st.sampled_from(LINES), max_size=30))
def test_what_is_looked_up_by_shape_is_what_a_search_in_each_line_finds(lines: list[str]) -> None:
    slow = LogWatch.of(WATCH)
    fast = LogWatch.of(WATCH)
    shapes = shapes_of(lines)
    kinds, kinds_of_causes = telling(words_of(WATCH), shapes), telling(words_of_causes(WATCH), shapes)
    for line, shape in zip(lines, shapes, strict=True):
        slow.feed(line, 0.0)
        fast.feed(line, 0.0, plain=shape not in kinds, quiet=shape not in kinds_of_causes)
    assert fast.suspicions(0.0) == slow.suspicions(0.0)
    assert (fast.phase, fast.remarked, fast.last_lines()) == (slow.phase, slow.remarked, slow.last_lines())
