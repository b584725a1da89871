"""Requests and tokens out of an engine's metrics."""

from __future__ import annotations

from orchestrator.engines.serving import Serving, serving

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


def test_other_ranks_report_the_same_requests() -> None:
    others = "".join(
        line.replace('tp_rank="0"', 'tp_rank="1"') + "\n" for line in REAL.splitlines() if "tp_rank" in line
    )
    assert serving(REAL + others) == serving(REAL)


def test_a_page_that_is_no_metrics_says_nothing() -> None:
    assert serving("<html>502 Bad Gateway</html>") is None
    assert serving("sglang:num_running_reqs many\n") is None
