"""The benchmark client's command line by version, and its result file."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engines import bench_client
from orchestrator.engines.registry import engine_of
from orchestrator.loading.profiles import load_stack
from orchestrator.model.profile import Load

LOAD = Load(input=20, output=10, prompts=2, concurrency=2)
RESULT: dict[str, Any] = {
    "duration": 2.0, "completed": 2, "total_input_tokens": 40, "total_output_tokens": 20,
    "total_output_tokens_retokenized": 20, "request_throughput": 1.0, "input_throughput": 20.0,
    "output_throughput": 10.0, "mean_e2e_latency_ms": 900.0, "median_e2e_latency_ms": 900.0, "mean_ttft_ms": 100.0,
    "median_ttft_ms": 100.0, "p99_ttft_ms": 100.0, "mean_itl_ms": 80.0, "median_itl_ms": 80.0, "p95_itl_ms": 81.0,
    "p99_itl_ms": 82.0, "generated_texts": ["a", "b"], "errors": ["", ""], "itls": [[0.08], [0.082]],
    "server_info": {"api_key": "secret"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "most"),
    [([(2, 40, 9.0, 0)], 0), ([(2, 40, 9.0, 1)], 0), ([(1, 40, 9.0, 0), (3, 60, 9.0, 1)], 4), ([(9.0,)], 0), ([], 0)],
)
def test_more_requests_than_a_run_sends_are_others(rows: list[tuple[float, ...]], most: int) -> None:
    """One more may be the agent's probe."""
    assert bench_client.more_at_once(rows, LOAD) == most


def test_what_is_kept_of_a_result_has_every_answer_and_not_the_engines_arguments() -> None:
    kept = bench_client.without_arguments(json.dumps(RESULT) + "\nno JSON\n[1]\n" + json.dumps(RESULT))
    first, second = (json.loads(line) for line in kept.splitlines())
    assert first == second == {key: value for key, value in RESULT.items() if key != "server_info"}
    assert first["itls"] and first["generated_texts"] == ["a", "b"]


@pytest.mark.parametrize(
    ("stack", "module", "own"),
    [
        ("sglang-0.4.4-l40s", "sglang.bench_serving", []),
        ("sglang-0.5.23", "sglang.benchmark.serving", ["--flush-cache", "--output-details"]),
    ],
)
def test_the_command_line_is_the_articles_with_each_versions_own(stack: str, module: str, own: list[str]) -> None:
    words = bench_client.command(
        engine_of(load_stack(stack)), Load(), url="http://10.0.0.11:8000", model="m", tokenizer="/w/m"
    )
    assert words[0] == module
    assert " ".join(words[1:7]) == "--backend sglang-oai --host 10.0.0.11 --port 8000"
    line = " ".join(words)
    for part in ("random-input-len 200", "random-output-len 200", "num-prompts 256", "request-rate 128",
                 "max-concurrency 128", "random-range-ratio 1", "seed 1"):  # fmt: skip
        assert f"--{part} " in line
    assert all(flag in words for flag in own)
    assert ("--flush-cache" in words) == bool(own)


def test_a_result_is_read_without_requests_and_without_the_engines_arguments() -> None:
    result = bench_client.read("\n" + json.dumps(RESULT) + "\n")
    assert bench_client.flaw(result, LOAD) == ""
    assert (result.figures["output_tok_s"], result.figures["total_tok_s"]) == (10.0, 30.0)
    assert result.figures["itl_max_ms"] == pytest.approx(82.0)
    assert "secret" not in json.dumps(dict(result.raw))
    assert not result.stand_in


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"completed": 1, "errors": ["", "Bad Gateway: x"]}, "1 of 2 requests were answered: Bad Gateway: x"),
        ({"total_output_tokens": 19}, "19 tokens were returned, 20 requested"),
        ({"generated_texts": ["a", ""]}, "1 of 2 answers are empty"),
        ({"generated_texts": None, "total_output_tokens_retokenized": 0}, "only 0 tokens of text"),
    ],
)
def test_a_run_with_a_missing_answer_means_nothing(wrong: dict[str, Any], words: str) -> None:
    assert words in bench_client.flaw(bench_client.read(json.dumps({**RESULT, **wrong})), LOAD)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "7", "not json", json.dumps({**RESULT, "duration": float("nan")}),
     json.dumps({**RESULT, "completed": None}), json.dumps({**RESULT, "itls": 7}), "[" * 100_000],
)  # fmt: skip
def test_what_is_no_result_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        bench_client.read(text)


JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3))


@given(st.sampled_from(sorted(RESULT)), JSON)
def test_any_value_is_read_or_refused(key: str, value: Any) -> None:
    with contextlib.suppress(ValueError):
        bench_client.read(json.dumps({**RESULT, key: value}))


def test_decoding_alone_lies_between_the_last_first_token_and_the_first_end() -> None:
    told = {**RESULT, "ttfts": [1.0, 2.0], "itls": [[0.5] * 6, [0.25] * 8]}
    assert bench_client.read(json.dumps(told)).decode_tok_s == pytest.approx((4 + 8) / 2.0)
    assert bench_client.read(json.dumps({**told, "ttfts": [1.0, 9.0]})).decode_tok_s is None
    assert bench_client.read(json.dumps({**told, "itls": [[0.5]]})).decode_tok_s is None


LOG = [  # as 0.4.4 and 0.5.23 write it
    (
        "[2026-07-14 10:15:00 TP0] Decode batch. #running-req: 4, #token: 820, token usage: 0.00, "
        "gen throughput (token/s): 153.98, largest-len: 0, #queue-req: 0, "
    ),
    (
        "[2026-07-14 10:15:00 TP0] Decode batch, #running-req: 4, #token: 1400, token usage: 0.01, cuda graph: True, "
        "gen throughput (token/s): 150.25, #queue-req: 2"
    ),
]


def test_the_log_lines_of_both_versions() -> None:
    found = [match.groups() for line in LOG if (match := re.search(bench_client.DECODE_LINE, line))]
    assert found == [("4", "820", "153.98", "0"), ("4", "1400", "150.25", "2")]


def test_decoding_is_read_where_the_articles_read_it() -> None:
    load = Load(prompts=4, concurrency=4, output=512)
    inner = [(4.0, 900.0, 150.0, 0.0), (4.0, 1430.0, 140.0, 0.0), (4.0, 2000.0, 130.0, 0.0)]
    around = [(4.0, 810.0, 90.0, 0.0), *inner, (4.0, 2500.0, 99.0, 0.0)]
    others = [(3.0, 1437.0, 1.0, 0.0), (4.0, 1437.0, 1.0, 2.0), (4.0, float("nan"), 1.0, 0.0), (4.0,)]
    log = bench_client.decoding([*around[:2], *others, *around[2:]], load)
    assert log == bench_client.DecodeLog(tok_s=140.0, tokens=1430, mean=140.0, least=130.0, most=150.0, lines=3)
    assert bench_client.decoding(around[:2], load) is None


def test_where_the_articles_have_no_line_the_middle_of_the_answers_counts() -> None:
    rows = [(2.0, float(tokens), float(tokens), 0.0) for tokens in range(200, 1200, 100)]
    log = bench_client.decoding(rows, Load(prompts=2, concurrency=2, input=100, output=600))
    assert log is not None and log.tokens == 800


def test_tokens_are_counted_where_a_message_holds_several() -> None:
    told = {**RESULT, "ttfts": [1.0, 1.0], "itls": [[0.5] * 8, [0.5] * 8], "output_lens": [17, 13]}
    read = bench_client.read(json.dumps(told))
    assert read.decode_tok_s == pytest.approx((8 * 2.0 + 8 * 1.5) / 4.0)
    assert read.figures["accept_length"] == pytest.approx((16 + 12) / 16)
    plain = bench_client.read(json.dumps({**told, "output_lens": [9, 9]}))
    assert plain.decode_tok_s == pytest.approx(16 / 4.0) and "accept_length" not in plain.figures
