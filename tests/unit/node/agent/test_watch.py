"""Log lines into phases and suspicions; lines as they arrive, and the file they go to."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.messages import message

from orchestrator.node.engine.logfile import LONGEST_LINE, LineCutter, LogFile
from orchestrator.node.engine.watch import LogWatch, RankException, Tracebacks, rank_of_title
from orchestrator.node.network.wire import LONGEST_MESSAGE
from orchestrator.node.verbs.logs import cut
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.link import Account
from orchestrator.protocol.report import Cause
from orchestrator.protocol.staging import Watch

WATCH = {
    "phases": [
        {"phase": "rendezvous", "pattern": r"Init parallel begin"},
        {"phase": "weights", "pattern": r"Load weight begin|shards:.*\| (?P<step>\d+)/(?P<of>\d+)"},
        {"phase": "graphs", "pattern": r"Capture .* begin"},
    ],
    "rank_prefix": r"^\[.* TP(?P<tp>\d+)\]",
    "causes": [
        {"id": "peer", "pattern": "closed by peer", "text": "a peer left", "fix": "look there", "secondary": True},
        {"id": "oom", "pattern": "out of memory", "text": "no memory", "fix": "less"},
    ],
}


def test_phases_go_one_way_and_count() -> None:
    watch = LogWatch.of(message(Watch, WATCH))
    watch.begin(1.0)
    assert watch.phase.name == "rendezvous"
    assert watch.feed("Load weight begin", 2.0)
    assert watch.feed("Multi-thread loading shards:  25%|##5  | 41/163 [00:10<00:30]", 3.0)
    assert (watch.phase.name, watch.phase.step, watch.phase.of, watch.phase.since) == ("weights", 41, 163, 2.0)
    assert not watch.feed("Init parallel begin", 4.0)
    assert watch.feed("Capture decode begin", 5.0)
    assert not watch.feed("shards: | 42/163", 6.0)
    assert (watch.phase.name, watch.phase.step) == ("graphs", 0)
    watch.finish(7.0)
    assert watch.phase.name == "ready"
    assert not watch.feed("Capture decode begin", 8.0)


def test_what_did_not_keep_an_engine_from_getting_ready_explains_no_later_death() -> None:
    watch = LogWatch.of(message(Watch, WATCH))
    watch.feed("[x TP3] CUDA out of memory", 10.0)
    watch.feed("[x TP5] connection closed by peer", 28.0)
    watch.finish(30.0)
    assert [one.id for one in watch.suspicions(since=0.0)] == ["peer"]


def test_a_primary_cause_comes_before_a_secondary_one_that_was_seen_first() -> None:
    watch = LogWatch.of(message(Watch, WATCH))
    watch.feed("[x TP3] connection closed by peer", 10.0)
    watch.feed("[x TP5] CUDA out of memory", 11.0)
    found = watch.suspect(since=0.0)
    assert found is not None and (found.id, found.tp_rank, found.at) == ("oom", 5, 11.0)
    assert found.lines == ("[x TP5] CUDA out of memory",)
    assert watch.suspect(since=12.0) is None


@pytest.mark.parametrize(
    ("flood", "later_s"), [("closed by peer", 1.0), ("closed by peer", 100.0), ("out of memory", 100.0)]
)
def test_many_suspicious_lines_do_not_hide_a_later_cause(flood: str, later_s: float) -> None:
    more = {"id": "crash", "pattern": "illegal", "text": "it crashed", "fix": "look"}
    watch = LogWatch.of(message(Watch, {**WATCH, "causes": [*WATCH["causes"], more]}))
    for _ in range(200):
        watch.feed(f"[x TP3] {flood}", 10.0)
    watch.feed("[x TP5] illegal memory access", 10.0 + later_s)
    found = watch.suspect(since=10.0 + later_s - 30.0)
    assert found is not None and (found.id, found.tp_rank) == ("crash", 5)


def test_last_lines_are_the_ranks_own_where_the_prefix_shows() -> None:
    watch = LogWatch.of(message(Watch, WATCH))
    for line in ("[x TP1] a", "[x TP2] b", "no prefix", "[x TP1] c"):
        watch.feed(line, 0.0)
    assert watch.last_lines(1) == ("[x TP1] a", "[x TP1] c")
    assert watch.last_lines(7) == ()
    assert watch.last_lines() == ("[x TP1] a", "[x TP2] b", "no prefix", "[x TP1] c")


def test_the_longest_lines_of_a_cause_fit_into_a_message_of_the_link() -> None:
    watch = LogWatch.of(message(Watch, WATCH))
    for _ in range(20):
        watch.feed("[x TP3] out of memory" + "\N{GRINNING FACE}" * 60_000, 10.0)
    found = watch.suspect(since=0.0)
    assert found is not None and found.id == "oom"
    cause = Cause(node="n", text=found.text, at=10.0, lines=watch.last_lines(3))
    assert len(json.dumps(Account(type="failed", cause=cause).as_json())) < LONGEST_MESSAGE
    whole = f"{'x' * 60_000} and its end"
    watch.feed(whole, 11.0)
    assert cut(iter(["a", whole, "b"]), [watch.last_lines()[-1]], before=1, after=1).lines == ("a", whole, "b")


@pytest.mark.parametrize("digits", ["9" * 1500, "\N{ARABIC-INDIC DIGIT FIVE}", "\N{SUPERSCRIPT TWO}"])
def test_numbers_that_nothing_counts_to_are_none(digits: str) -> None:
    watch = LogWatch.of(message(Watch, WATCH))
    watch.begin(0.0)
    watch.feed(f"shards: | {digits}/163", 1.0)
    watch.feed(f"[x TP{digits}] out of memory"[:2000], 2.0)
    found = watch.suspect(0.0)
    assert found is not None and found.tp_rank in (None, 5)
    assert watch.last_lines() and watch.phase.step in (0, 5)
    assert rank_of_title(f"sglang::scheduler_TP{digits}", re.compile(r"_TP(?P<tp>\d+)"), [1, 2]) is None


def test_a_pattern_that_does_not_compile_is_told() -> None:
    with pytest.raises(DeployError, match="does not compile"):
        LogWatch.of(message(Watch, {"phases": [{"phase": "x", "pattern": "("}]}))


@pytest.mark.parametrize(
    ("title", "expected", "rank"),
    [
        ("sglang::scheduler_TP19", [16, 19], 19),
        ("sglang::scheduler_TP19 --x", [16, 19], 19),
        ("sglang::scheduler_TP3", [16, 19], None),
        ("sglang::scheduler", [4], 4),
        ("sglang::scheduler", [4, 5], None),
        ("vim sglang::scheduler_TP19", [19], None),
    ],
)
def test_a_title_names_its_rank(title: str, expected: list[int], rank: int | None) -> None:
    pattern = re.compile(r"^sglang::scheduler(?:_TP(?P<tp>\d+))?")
    assert rank_of_title(title, pattern, expected) == rank


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20)), st.integers(1, 7))
def test_lines_come_out_whole_however_they_arrive(lines: list[str], step: int) -> None:
    cutter = LineCutter()
    data = "".join(f"{line}\n" for line in lines).encode()
    arrived = [line for at in range(0, len(data), step) for line in cutter.feed(data[at : at + step])]
    assert arrived == [line.rstrip() for line in lines if line.encode().strip()]


def test_a_progress_bar_is_lines() -> None:
    assert list(LineCutter().feed(b"1/3\r2/3\r3/3")) == ["1/3", "2/3"]


def test_colours_are_no_part_of_a_line() -> None:
    coloured = b"\x1b[2m2026-01-01T00:00:00Z\x1b[0m \x1b[33m WARN\x1b[0m no worker\x1b[K\n\x1b[0m\nlone \x1b escape\n"
    assert list(LineCutter().feed(coloured)) == ["2026-01-01T00:00:00Z  WARN no worker", "lone \x1b escape"]


def test_of_an_endless_line_the_beginning_is_kept_and_no_piece_of_it_is_a_line() -> None:
    cutter = LineCutter()
    for _ in range(100):
        assert list(cutter.feed(b"x" * 10_000)) == []
    assert list(cutter.feed(b" CUDA out of memory\nnext\n")) == ["x" * LONGEST_LINE, "next"]


REQUESTS = WATCH | {"requests": r"INFO: +\S* - \"|HTTP/1\.1\" \d{3} \w+$"}


@pytest.mark.parametrize(
    "line",
    [
        'INFO:     10.0.0.5:40004 - "GET /?out of memory HTTP/1.1" 404 Not Found',
        'INFO:     10.0.0.5:40004 - "GET /?' + "out_of memory" * 9000,
        'ut of memory, out of memory" HTTP/1.1" 404 Found',
        "x" * 3000 + " out of memory",
        "loading: out-of-memory," * 200 + "shards:|3/4 out of memory",
    ],
    ids=["request", "long request", "its end", "past 2 KB", "its middle"],
)
def test_what_a_client_wrote_is_neither_cause_nor_phase_nor_shown(line: str) -> None:
    watch = LogWatch.of(message(Watch, REQUESTS))
    watch.feed("Load weight begin", 0.0)
    watch.feed(line, 1.0)
    assert watch.suspect(0.0) is None and watch.phase.step == 0
    assert not any("out of memory" in line for line in watch.last_lines())
    watch.feed("torch: out of memory", 2.0)
    found = watch.suspect(0.0)
    assert found is not None and found.lines[-1] == "torch: out of memory"


def test_the_log_is_bounded_and_keeps_its_newest_lines(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "engine.log"), limit=1000)
    for number in range(1000):
        log.write(b"%04d\n" % number)
    log.close()
    kept = [path.read_text() for path in (tmp_path / "engine.log.1", tmp_path / "engine.log")]
    assert all(len(text) <= 1000 for text in kept)
    assert "".join(kept).splitlines()[-200:] == [f"{number:04d}" for number in range(800, 1000)]


def test_a_full_disk_ends_nothing() -> None:
    log = LogFile("/dev/full")
    log.write(b"lost\n")
    log.write(b"lost too\n")
    log.close()


LOG = """\
[2026-11-22 12:27:45 TP3] Scheduler hit an exception: Traceback (most recent call last):
  File "/srt/managers/scheduler.py", line 2641, in run_scheduler_process
    scheduler = Scheduler(
ModuleNotFoundError: No module named 'flash_attn_3'
During handling of the above exception, another exception occurred:
Traceback (most recent call last):
  File "/srt/model_executor/model_runner.py", line 1204, in init_attention_backend
    raise ValueError(
  File "/srt/layers/attention/registry.py", line 77, in create
ImportError: Can not import FA3 in sgl_kernel. Please check your installation.
[2026-11-22 12:27:45] Received sigquit from a child process. It usually means the child failed.
no line of anybody's
"""
LAST = "ImportError: Can not import FA3 in sgl_kernel. Please check your installation."


def rank_of(line: str) -> int | None:
    found = re.match(r"\[[^\]]* TP(\d+)\]", line)
    return int(found[1]) if found else None


def test_a_traceback_belongs_to_the_rank_that_logged_it_to_its_last_line() -> None:
    tracebacks = Tracebacks()
    owners = [tracebacks.feed(line, rank_of(line), 5.0) for line in LOG.splitlines()]
    assert owners == [3] * 10 + [None, None]
    assert tracebacks.raised == RankException(3, LAST, "/srt/layers/attention/registry.py:77", 5.0)


@pytest.mark.parametrize(
    ("below", "exception", "wanted"),
    [
        (["    assert a == b", "           ^^^^^^"], "AssertionError", "AssertionError: assert a == b"),
        (["    assert a == b, ("], "AssertionError:", "AssertionError: assert a == b"),
        (["    assert a == b"], "AssertionError: 5 is odd", "AssertionError: 5 is odd"),
        (["    assert a == b"], "ValueError", "ValueError"),
        (["    raise AssertionError"], "AssertionError", "AssertionError"),
        (["    assert a == b", '  File "/y.py", line 2, in h', "    h()"], "AssertionError", "AssertionError"),
        ([], "AssertionError", "AssertionError"),
    ],
)
def test_an_assertion_without_words_has_the_line_of_code_of_its_own_frame(
    below: list[str], exception: str, wanted: str
) -> None:
    reader = Tracebacks()
    for line in ["Traceback (most recent call last):", '  File "/x.py", line 1, in g', *below, exception]:
        reader.feed(line, None, 0.0)
    assert reader.raised is not None and reader.raised.text == wanted


def test_a_traceback_without_a_prefix_belongs_to_nobody_and_another_record_ends_one() -> None:
    tracebacks = Tracebacks()
    for line in ("[x TP3] failed: Traceback (most recent call last):", '  File "a.py", line 1, in f', "[x TP4] hello"):
        assert tracebacks.feed(line, rank_of(line), 1.0) == rank_of(line) or line.startswith("  File")
    assert tracebacks.feed("Traceback (most recent call last):", None, 1.0) is None
    assert tracebacks.feed("KeyError: 'x'", None, 2.0) is None
    assert tracebacks.raised == RankException(None, "KeyError: 'x'", "", 2.0)


@given(st.lists(st.sampled_from([*LOG.splitlines(), "", " ", "Error:", "[", "\x00"]), max_size=40))
def test_any_order_of_lines_is_taken(lines: list[str]) -> None:
    tracebacks = Tracebacks()
    for line in lines:
        assert tracebacks.feed(line, rank_of(line), 0.0) in (None, 3)
