"""A node's conclusions from a death and from its log: how near it is to the origin, and which rank its errors blame."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.engines.registry import dialect
from orchestrator.node.agent import causes
from orchestrator.node.agent.causes import Weight
from orchestrator.node.engine.kernel_words import KernelWord
from orchestrator.node.engine.tree import EngineProcess, ProcessDeath, Rank
from orchestrator.node.engine.watch import LogWatch
from orchestrator.node.supervision import Death
from orchestrator.protocol.report import Cause

NODES = {"10.77.0.11": "node1", "10.77.0.13": "node3", "fd00::1": "node4"}
KILLED, ENDED, FAILED, UNKNOWN = Death(signal=9), Death(exit_code=0), Death(exit_code=1), Death()
FRAME = '  File "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 2974, in broadcast'
PAIR = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538]"
RAISED = "[2026-11-22 12:27:45 TP{rank}] Scheduler hit an exception: Traceback (most recent call last):"
LOST = (
    RAISED,
    FRAME,
    "    work.wait()",
    f"RuntimeError: {PAIR} Read error [{{address}}]:42398: Connection reset by peer",
)
MEMORY = (RAISED, FRAME, "torch.OutOfMemoryError: CUDA out of memory.")


def watched(*said: tuple[float, tuple[str, ...], int, str]) -> LogWatch:
    """(when, lines, rank, address) each, through the real dialect."""
    watch = LogWatch.of(dialect("sglang-0.5").engine("0.5.17").watch())
    for at, lines, rank, address in said:
        for line in lines:
            watch.feed(line.format(rank=rank, address=address), at)
    return watch


def died(tp_rank: int, death: Death, alive_at: float) -> ProcessDeath:
    return ProcessDeath(Rank(tp_rank=tp_rank, gpu=1, pid=77), death, alive_at)


@pytest.mark.parametrize(
    ("said", "death", "alive_at", "weight", "tp_rank"),
    [
        pytest.param((), KILLED, 9.9, Weight.SEEN, 9, id="killed, and nobody has said anything"),
        pytest.param(((10.1, LOST, 10, "10.77.0.11"),), KILLED, 10.0, Weight.UNSURE, 9, id="looked at too late"),
        pytest.param(((9.0, LOST, 10, "10.77.0.13"),), KILLED, 9.9, Weight.FOLLOWED, 10, id="by its parent"),
        pytest.param(((9.0, LOST, 9, "10.77.0.13"),), KILLED, 8.9, Weight.FOLLOWED, 9, id="after its own error"),
        pytest.param(((9.0, LOST, 9, "10.77.0.13"),), ENDED, 8.9, Weight.FOLLOWED, 9, id="its own error, then exit"),
        pytest.param(((9.0, MEMORY, 10, ""),), KILLED, 9.9, Weight.SEEN, 10, id="another one's error is the reason"),
        pytest.param(((9.0, LOST, 9, "10.77.0.13"), (9.1, MEMORY, 10, "")), KILLED, 9.9, Weight.SEEN, 10, id="both"),
        pytest.param((), ENDED, 9.9, Weight.UNSURE, 9, id="told to end"),
        pytest.param((), FAILED, 9.9, Weight.SEEN, 9, id="failed"),
        pytest.param((), UNKNOWN, 9.9, Weight.SEEN, 9, id="nobody knows how"),
    ],
)
def test_a_ranks_death_is_weighed(
    said: tuple[tuple[float, tuple[str, ...], int, str], ...],
    death: Death,
    alive_at: float,
    weight: Weight,
    tp_rank: int,
) -> None:
    told = causes.rank_died("node1", died(9, death, alive_at), watched(*said), 10.0, NODES)
    assert (told.weight, told.cause.tp_rank) == (weight, tp_rank)
    assert told.cause.secondary is (weight is Weight.FOLLOWED)
    if tp_rank == 9:
        assert (told.cause.signal, told.cause.exit_code) == (death.signal, death.exit_code)


def test_the_parents_own_kill_after_its_childs_error_follows_as_recorded() -> None:
    """The engine.log of node3 in a kill of node1's rank: one GPU a node, so no prefix names a rank."""
    lines = [line.replace(" TP{rank}", "") for line in LOST]
    lines += [
        "[2026-11-22 12:27:45] Received sigquit from a child process. It usually means the child failed.",
        "[2026-11-22 12:27:45] kill_process_tree called: parent_pid=13494, include_parent=True, pid=13494",
    ]
    told = causes.engine_ended("node3", KILLED, watched((9.0, tuple(lines), 3, "10.77.0.11")), 10.0, NODES)
    assert (told.weight, told.blames) == (Weight.FOLLOWED, ("node1",))
    assert told.cause.secondary and told.cause.signature == "PEER-LOST"


CHILD = ("[2026-11-22 12:27:45] Subprocess scheduler_1 (pid=77) crashed with exit code -9. Triggering SIGQUIT",)
OWN = ("[2026-11-22 12:27:45] Traceback (most recent call last):", FRAME, "ValueError: no such thing")


@pytest.mark.parametrize(
    ("seen", "death", "parents", "said", "follows"),
    [
        pytest.param(True, FAILED, KILLED, CHILD, True, id="it was seen to outlive its parent"),
        pytest.param(False, KILLED, KILLED, (), False, id="its parent was seen to outlive it"),
        pytest.param(None, KILLED, KILLED, (), True, id="nobody said a word"),
        pytest.param(None, UNKNOWN, UNKNOWN, (), True, id="nobody knows how"),
        pytest.param(None, KILLED, KILLED, CHILD, False, id="the parent told of its child"),
        pytest.param(None, FAILED, KILLED, (), True, id="it noticed that its parent was gone"),
        pytest.param(None, Death(signal=11), KILLED, (), False, id="no parent's death makes it crash"),
        pytest.param(None, FAILED, Death(signal=11), (), True, id="the parent crashed"),
        pytest.param(None, KILLED, ENDED, (), False, id="the parent ended in order"),
        pytest.param(None, KILLED, FAILED, OWN, True, id="the parent failed by itself"),
        pytest.param(None, KILLED, FAILED, (), False, id="the parent failed without a word"),
    ],
)
def test_who_of_two_that_died_at_once_was_first(
    seen: bool | None, death: Death, parents: Death, said: tuple[str, ...], follows: bool
) -> None:
    one = replace(died(9, death, 9.9), follows=seen)
    assert causes.follows(one, parents, watched((9.0, said, 0, "")), 10.0) is follows


def test_what_those_below_wrote_after_their_parents_end_does_not_explain_it() -> None:
    watch = watched((9.0, LOST, 9, "10.77.0.13"))
    told = causes.engine_ended("node1", KILLED, watch, 8.9, NODES)
    assert (told.weight, told.blames, told.cause.secondary) == (Weight.SEEN, (), False)
    assert causes.engine_ended("node1", KILLED, watch, 9.1, NODES).weight is Weight.FOLLOWED


@pytest.mark.parametrize(
    ("said", "alive_at", "weight"),
    [((), 9.9, Weight.SEEN), (CHILD, 8.9, Weight.UNSURE), (CHILD, 9.9, Weight.FOLLOWED)],
    ids=["first", "what followed was read before", "killed by its parent"],
)
def test_a_process_beside_the_ranks_is_named_by_its_title(
    said: tuple[str, ...], alive_at: float, weight: Weight
) -> None:
    part = ProcessDeath(EngineProcess("sglang::detokenizer", pid=78), KILLED, alive_at)
    told = causes.rank_died("node1", part, watched((9.0, said, 0, "")), 10.0, NODES)
    assert told.weight is weight
    assert "the engine's process sglang::detokenizer (pid 78) was killed by signal 9 (SIGKILL)" in told.cause.text


@pytest.mark.parametrize(("death", "weight"), [(KILLED, Weight.SEEN), (ENDED, Weight.UNSURE), (FAILED, Weight.SEEN)])
def test_a_parents_death_without_a_word_is_weighed_and_only_the_leaders_ends_in_order(
    death: Death, weight: Weight
) -> None:
    told = [causes.engine_ended("node1", death, watched(), 10.0, NODES, leads=leads).weight for leads in (False, True)]
    assert told == [weight, Weight.SEEN]


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        ("Read error [10.77.0.11]:42398: Connection reset by peer", ("node1",)),
        ("Connection closed by peer [10.77.0.13]:9", ("node3",)),
        ("Connection closed by peer [fd00::1]:9", ("node4",)),
        ("Connection closed by peer [10.77.0.111]:9", ()),
        ("Connection closed by peer [192.0.2.1]:9", ()),
        ("Connection closed by peer", ()),
    ],
)
def test_an_error_blames_the_node_whose_address_it_carries(error: str, blamed: tuple[str, ...]) -> None:
    watch = watched((9.0, (f"RuntimeError: {error}",), 0, ""))
    assert causes.blames(watch, 0.0, NODES) == blamed
    assert causes.blames(watch, 9.5, NODES) == ()


def test_a_killed_ranks_cause_carries_its_own_lines_only() -> None:
    launcher = (
        "[2026-11-22 12:27:40] Exception in ASGI application",
        "Traceback (most recent call last):",
        '  File "prometheus_client/exposition.py", line 80, in generate_latest',
        "ValueError: no such metric",
    )
    own = ("[2026-11-22 12:27:41 TP{rank}] Decode batch, #running-req: 1",)
    watch = watched((9.0, own, 9, ""), (9.1, launcher, 0, ""))
    told = causes.rank_died("node1", died(9, KILLED, 9.9), watch, 10.0, NODES)
    assert told.cause.lines == ("[2026-11-22 12:27:41 TP9] Decode batch, #running-req: 1",)


BACKEND = (
    "[2026-11-22 12:27:45 TP{rank}] Scheduler hit an exception: Traceback (most recent call last):",
    '  File "/srt/layers/attention/registry.py", line 77, in create_fa3',
    "RuntimeError: Can not import FA3 in sgl_kernel. Please check your installation.",
)
SIGQUIT = ("[2026-11-22 12:27:45] Received sigquit from a child process. It usually means the child failed.",)


def test_an_exception_that_no_pattern_knows_is_the_cause_with_its_file() -> None:
    watch = watched((9.0, BACKEND, 9, ""), (9.1, SIGQUIT, 0, ""))
    for told in (
        causes.rank_died("node1", died(9, KILLED, 9.9), watch, 10.0, NODES),
        causes.rank_died("node1", died(8, KILLED, 9.9), watch, 10.0, NODES),
        causes.engine_ended("node1", KILLED, watch, 10.0, NODES),
    ):
        assert (told.weight, told.cause.tp_rank, told.cause.signature) == (Weight.UNSURE, 9, "EXCEPTION")
        assert told.cause.text.startswith(
            "engine process exited: RuntimeError: Can not import FA3 in sgl_kernel. Please check your installation."
            " (/srt/layers/attention/registry.py:77)"
        )
        assert told.cause.lines[-1] == BACKEND[-1] and not told.cause.secondary


def test_an_exception_of_a_known_kind_is_named_with_its_words_and_one_that_points_at_it_is_not() -> None:
    missing = (*BACKEND[:2], "ImportError: cannot import name 'fa3' from 'sgl_kernel' (/venv/sgl_kernel/__init__.py)")
    pointer = ("Traceback (most recent call last):", BACKEND[1], "RuntimeError: failed. See root cause above.")
    told = causes.engine_ended("node1", KILLED, watched((9.0, missing, 9, ""), (9.1, pointer, 0, "")), 10.0, NODES)
    assert (told.weight, told.cause.signature) == (Weight.UNSURE, "PACKAGES-DIFFER")
    assert "cannot import name 'fa3' from 'sgl_kernel'" in told.cause.text


@pytest.mark.parametrize(
    ("said", "signature"),
    [
        pytest.param(((9.0, BACKEND, 9, ""), (9.1, MEMORY, 10, "")), "GPU-OUT-OF-MEMORY", id="a known cause"),
        pytest.param(((9.0, LOST, 8, "10.77.0.13"), (9.1, BACKEND, 9, "")), "EXCEPTION", id="a peer's end"),
        pytest.param(((9.0, BACKEND, 9, ""), (9.1, ("[x TP9] Decode batch",), 9, "")), "", id="it went on"),
        pytest.param(((9.0, BACKEND, 9, ""), (9.1, ("[x TP8] Decode batch",), 9, "")), "EXCEPTION", id="another did"),
        pytest.param(((9.0, BACKEND, 9, ""), (9.1, (BACKEND[0], *MEMORY[1:]), 9, "")), "GPU-OUT-OF-MEMORY", id="twice"),
    ],
)
def test_an_unknown_exception_is_a_cause_where_nothing_better_is_known(
    said: tuple[tuple[float, tuple[str, ...], int, str], ...], signature: str
) -> None:
    assert causes.engine_ended("node1", KILLED, watched(*said), 10.0, NODES).cause.signature == signature


def test_a_launchers_exception_while_it_serves_is_no_cause() -> None:
    lines = ("Traceback (most recent call last):", "  File x", "ValueError: no such metric")
    watch = watched((9.0, lines, 0, ""))
    assert causes.engine_ended("node1", FAILED, watch, 10.0, NODES).cause.signature == "EXCEPTION"
    watch = watched()
    watch.finish(1.0)
    for line in lines:
        watch.feed(line, 9.0)
    assert causes.engine_ended("node1", FAILED, watch, 10.0, NODES).cause.signature == ""


def test_the_kernels_word_is_joined_and_comes_before_everything() -> None:
    watch = watched((9.0, LOST, 10, "10.77.0.13"))
    told = causes.rank_died("node1", died(9, Death(signal=6), 9.9), watch, 10.0, NODES)
    assert told.weight is Weight.FOLLOWED
    line = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
    joined = causes.explained(told, KernelWord("XID-79", "GPU 1 fell off the bus (Xid 79)", "power-cycle it", line))
    assert joined.weight is Weight.SEEN and not joined.cause.secondary
    assert joined.cause.text.startswith("GPU 1 fell off the bus (Xid 79): ") and joined.cause.lines[-1] == line


@pytest.mark.parametrize(
    ("signature", "secondary", "explains"),
    [("GPU-OUT-OF-MEMORY", False, True), ("PEER-LOST", True, False), ("IB-UNREACHABLE", False, False),
     ("RDMA-PORT-DOWN", False, False), ("EXCEPTION", False, False), ("", False, False)],
)  # fmt: skip
def test_which_logs_explain_themselves(signature: str, secondary: bool, explains: bool) -> None:
    cause = Cause(node="node1", text="x", signature=signature, secondary=secondary)
    assert causes.explains_itself(cause) is explains
