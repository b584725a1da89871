"""A greedy generation with its token ids, asked of SGLang's own /generate. Pure.

The same in 0.4.4 and 0.5.23: `return_logprob` brings `meta_info.output_token_logprobs` and `output_top_logprobs`, each
entry (log-probability, token id, text or null) (srt/managers/tokenizer_manager.py, detokenize_logprob_tokens).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.golden.compare import Answer

TOO_LONG = "longer than the model's context length"
"""What SGLang says of such a prompt (managers/tokenizer_manager.py)."""
PATH = "/generate"
_RUNNERS_UP = 2


def request(prompt: str, max_tokens: int) -> dict[str, Any]:
    """The body of the request."""
    return {
        "text": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": max_tokens},
        "return_logprob": True,
        "logprob_start_len": -1,
        "top_logprobs_num": _RUNNERS_UP,
    }


def answer_of(document: Any) -> Answer:
    """The answer in a response's JSON. Raises ValueError where it holds no token ids."""
    try:
        meta = document["meta_info"]
        chosen = [(float(entry[0]), int(entry[1])) for entry in meta["output_token_logprobs"]]
        margins = tuple(_margin(place, meta) for place in range(len(chosen)))
        text = str(document["text"])
    except (KeyError, TypeError, IndexError, ValueError) as wrong:
        raise ValueError(f"the engine's answer contains no token ids: {type(wrong).__name__} {wrong}") from None
    if not chosen:
        raise ValueError("the engine's answer is empty")
    return Answer(
        tokens=tuple(token for _, token in chosen),
        logprobs=tuple(logprob for logprob, _ in chosen),
        margins=margins,
        text=text,
    )


def _margin(place: int, meta: Mapping[str, Any]) -> float:
    """How far the runner-up is behind; infinite where the engine names none."""
    top = (meta.get("output_top_logprobs") or [])[place : place + 1]
    likely = sorted((float(entry[0]) for entry in top[0]), reverse=True) if top and top[0] else []
    return likely[0] - likely[1] if len(likely) > 1 else float("inf")
