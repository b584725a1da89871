"""Requests and tokens out of an engine's metrics."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from orchestrator.engines.serving import Serving, running_requests, serving

REAL = """# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"} 12.0
sglang:num_queue_reqs{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"} 3.0
sglang:token_usage{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"} 0.41
sglang:generation_tokens_total{model_name="tiny"} 1.7308e+06
sglang:prompt_tokens_total{model_name="tiny"} 128201.0
"""


def test_what_sglang_says() -> None:
    wanted = Serving(running=12, queued=3, prompt_tokens=128201.0, generation_tokens=1730800.0, cache_used=0.41)
    assert serving(REAL) == wanted


def of_rank(**ranks: str) -> str:
    """The same figures told by another rank."""
    text = "".join(f"{line}\n" for line in REAL.splitlines() if "tp_rank" in line)
    for name, rank in ranks.items():
        text = text.replace(f'{name}="0"', f'{name}="{rank}"')
    return text


@pytest.mark.parametrize("ranks", [{"tp_rank": "1"}, {"pp_rank": "1"}, {"pp_rank": "1", "tp_rank": "3"}])
def test_ranks_of_one_group_report_the_same_requests(ranks: Mapping[str, str]) -> None:
    assert serving(REAL + of_rank(**ranks)) == serving(REAL)


def test_groups_of_attention_data_parallelism_have_their_own_requests() -> None:
    grouped = REAL.replace("{engine", '{dp_rank="0",engine') + of_rank(tp_rank="4").replace(
        "{engine", '{dp_rank="1",engine'
    ).replace("0.41", "0.6")
    wanted = Serving(running=24, queued=6, prompt_tokens=128201.0, generation_tokens=1730800.0, cache_used=0.6)
    assert serving(grouped) == wanted
    assert running_requests(grouped) == 30


def test_a_page_that_is_no_metrics_says_nothing() -> None:
    assert serving("<html>502 Bad Gateway</html>") is None
    assert serving("sglang:num_running_reqs many\n") is None
    assert serving("sglang:num_running_reqs 1e999\n") is None


@pytest.mark.parametrize(
    ("lines", "length"),
    [
        ('sglang:spec_accept_length{tp_rank="0"} 1.8\n', 1.8),
        ('sglang:spec_accept_length{tp_rank="0"} 0.0\n', None),
        (
            'vllm:spec_decode_num_drafts_total{a="b"} 200.0\nvllm:spec_decode_num_accepted_tokens_total{a="b"} 150.0\n',
            1.75,
        ),
        ('vllm:spec_decode_num_drafts_total{a="b"} 0.0\n', None),
    ],
)
def test_tokens_of_a_step_with_speculative_decoding(lines: str, length: float | None) -> None:
    found = serving(REAL + lines)
    assert found is not None and found.accept_length == length
