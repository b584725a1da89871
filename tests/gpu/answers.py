"""What a served model says of fixed prompts, held to the float32 reference and to another checkpoint's answers."""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.gpu import checkpoint

WORST_RMS = 0.3
"""Of log-probabilities, in nats: block FP8 with FP8 activations against float32 (0.08 to 0.15 were seen)."""
LEAST_AGREEMENT = 0.85
"""Of the likeliest token, place by place (0.90 to 0.97 were seen)."""
_TIMEOUT_S = 60.0

Said = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Distance:
    """Over all prompts but the letters, whose next token is certain."""

    rms: float
    largest: float
    agreement: float

    @property
    def near(self) -> bool:
        """As near as quantised arithmetic comes."""
        return self.rms <= WORST_RMS and self.agreement >= LEAST_AGREEMENT

    def figures(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


def ask(url: str) -> dict[str, dict[str, Any]]:
    """Prompt -> log-probabilities of its own next tokens, the likeliest token at each place, 32 greedy tokens."""
    said = {}
    for name, tokens in checkpoint.prompts().items():
        body = {
            "input_ids": tokens,
            "sampling_params": {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 2,
        }
        request = urllib.request.Request(
            f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            meta = json.load(response)["meta_info"]
        said[name] = {
            "next": [entry[0] for entry in meta["input_token_logprobs"]][1:],
            "best": [entry[0][1] if entry else None for entry in meta["input_top_logprobs"]][1:],
            "greedy": [entry[1] for entry in meta["output_token_logprobs"]],
        }
    return said


def distance(one: Said, other: Said) -> Distance:
    """How far two of them are apart. A place without a likeliest token is left out."""
    gaps: list[float] = []
    agree: list[bool] = []
    for name in one:
        if name == "letters":
            continue
        gaps += [abs(a - b) for a, b in zip(one[name]["next"], other[name]["next"], strict=True)]
        agree += [a == b for a, b in _pairs(one[name]["best"], other[name]["best"])]
    return Distance(math.sqrt(sum(gap**2 for gap in gaps) / len(gaps)), max(gaps), sum(agree) / len(agree))


def _pairs(one: Sequence[Any], other: Sequence[Any]) -> list[tuple[int, int]]:
    """The reference says one place more: what follows the last token."""
    return [(a, b) for a, b in zip(one, other, strict=False) if a is not None and b is not None]


def letters_wrong(said: Said) -> str:
    """'' where the alphabet goes on."""
    start = checkpoint.prompts()["letters"][0]
    wanted = [start + number % 26 for number in range(32)]
    return "" if said["letters"]["greedy"] == wanted else f"the alphabet goes on with {said['letters']['greedy'][:8]}"
