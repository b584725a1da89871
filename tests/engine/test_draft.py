"""`--draft` with the real engines on an emulated node: the same text as without it, and how many tokens a step gives.

The model's prediction layer is right about every letter, so a step gives all that it may. SGLang runs its Triton
kernels in Triton's interpreter (tests/engine/drafting); vLLM drafts on a CPU by itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.load import answered
from tests.support.small_lab import UP_S, SmallLab, small_lab
from tests.support.waiting import slack, until

from l40s_lab.engine.model import CANARY_PROMPT, CANARY_TEXT, DRAFTING, LETTERS, config, tiny_model
from orchestrator.model.profile import Dimensions

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(4000)]

TOKENS = 24
ANSWER_S = 300.0
NEXT_LETTERS = "".join(islice(cycle(LETTERS), len(CANARY_PROMPT), len(CANARY_PROMPT) + TOKENS))
PLUGIN = Path(__file__).parent / "drafting"
ON_NODE = "/workspace/drafting"
OF_ENGINE: Mapping[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "sglang": (
        {"TRITON_INTERPRET": "1", "PYTHONPATH": ON_NODE},
        ("--attention-backend", "triton", "--dtype", "float16", "--decode-log-interval", "2"),
    ),
    "vllm": ({}, ()),
}
"""Variables, and flags after --."""
DRAFTS: Mapping[str, tuple[tuple[str, float | None], ...]] = {
    "sglang": (("off", None), ("mtp", 2.0), ("mtp3", 4.0)),
    "vllm": (("off", None), ("mtp", 2.0)),
}
"""With the tokens of a step. vLLM 0.32.0 on a CPU is not right with mtp3: docs/proven.md says what was seen."""


def profile() -> dict[str, Any]:
    made = config(DRAFTING)
    known = Dimensions.__dataclass_fields__.keys() & made.keys()
    return {
        "name": DRAFTING.name,
        "source": "made by the tests",
        "directory": DRAFTING.name,
        "architecture": "DeepseekV3ForCausalLM",
        "quantisation": "none",
        "trust_remote_code": True,
        "dimensions": {name: made[name] for name in sorted(known)},
        "canary": {"prompt": CANARY_PROMPT, "max_tokens": 4, "expect_any": [CANARY_TEXT]},
    }


def continued(url: str) -> str:
    """As `load.complete`, with patience for an interpreter."""
    body = {"model": DRAFTING.name, "prompt": CANARY_PROMPT, "max_tokens": TOKENS, "temperature": 0}
    with answered(f"{url}/v1/completions", body, ANSWER_S * slack()) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def accept_length(lab: SmallLab) -> float | None:
    serving = lab.gang(code=0)["serving"]
    length: float | None = serving and serving["accept_length"]
    return length


@pytest.mark.parametrize("engine", OF_ENGINE)
def test_a_draft_changes_no_text_and_status_tells_how_much_a_step_gives(engine: str, tmp_path: Path) -> None:
    variables, flags = OF_ENGINE[engine]
    described = tmp_path / f"{DRAFTING.name}.yml"
    described.write_text(yaml.safe_dump(profile()))
    with small_lab(f"draft-{engine}-{os.getpid()}", engine=engine, nodes=1, env=variables) as lab:
        lab.put(tiny_model(tmp_path / "model", DRAFTING), f"/workspace/{DRAFTING.name}")
        lab.put(PLUGIN, ON_NODE)
        for draft, length in DRAFTS[engine]:
            words = ("up", "--model", str(described), "--draft", draft, "--replace")
            lab.deploy(*words, *(("--", *flags) if flags else ()), timeout=UP_S[engine])
            url = lab.gang()["service"]["url"]
            assert continued(url) == NEXT_LETTERS
            if length is None:
                assert accept_length(lab) is None
                continue
            until(lambda: accept_length(lab) is not None, 60 * slack(), "the engine tells it")
            assert accept_length(lab) == pytest.approx(length, rel=0.15)
            assert f"{accept_length(lab):.2f} tokens a step" in lab.deploy("status").stdout
