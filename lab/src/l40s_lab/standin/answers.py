"""Answers of an engine without a model: text that says so, in the formats of the OpenAI and SGLang APIs."""

from __future__ import annotations

import os
import time
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOTICE = "[stand-in: no model loaded]"
OWNER = "l40s-deploy stand-in"
_LIKELY, _UNLIKELY = -0.01, -6.0
"""Log-probabilities of a token and of the second choice: far apart."""
WRONG_TOKEN = Path("/run/l40s-lab/wrong-token")
"""While a lab's fault keeps this file, every answer ends with a wrong piece."""
WRONG_IN_BATCH = Path("/run/l40s-lab/wrong-token-in-batch")
"""While a lab's fault keeps this file, those answers do that are asked for while ENOUGH others are made."""
ENOUGH = 3
SAYS_MODEL = "STANDIN_SAYS_MODEL"
"""With this in its environment, every answer of an engine ends with the name of the model that it serves, whatever
model a request named."""
PLANNED_WRONG = "STANDIN_WRONG_TOKEN"
"""With this in its environment, every answer of an engine ends with a wrong piece: a plan that answers otherwise."""


@dataclass(frozen=True)
class Question:
    """One generation to make. `rid` is its request id; tokens are the pieces of text of its answer."""

    rid: str
    prompt_tokens: int
    tokens: tuple[str, ...]
    finish: str

    def text(self, first: int = 0, last: int | None = None) -> str:
        return "".join(self.tokens[first:last])


class BadRequest(Exception):
    """A request that the engine refuses with 400."""


def question(
    prompt: str | list[int], limit: int, ignore_eos: bool, rid: str | None = None, *, beside: int = 0, model: str = ""
) -> Question:
    """The answer to a prompt, of the requested length. beside: how many others are being answered; model: that is
    served"""
    words = prompt_tokens(prompt)
    pieces = [NOTICE, *_sentence(prompt, words)]
    if WRONG_TOKEN.exists() or PLANNED_WRONG in os.environ or (beside >= ENOUGH and WRONG_IN_BATCH.exists()):
        pieces[-1] = "?"
    if model and SAYS_MODEL in os.environ:
        pieces.append(f" by {model}")
    while ignore_eos and len(pieces) < limit:
        pieces.append(f" word{len(pieces)}")
    limit = max(limit, 1)
    finish = "length" if len(pieces) > limit or ignore_eos else "stop"
    return Question(rid or uuid.uuid4().hex, max(words, 1), tuple(pieces[:limit]), finish)


def prompt_tokens(prompt: str | list[int]) -> int:
    """Without a tokenizer, a word counts as a token."""
    return len(prompt.split()) if isinstance(prompt, str) else len(prompt)


def _sentence(prompt: str | list[int], count: int) -> list[str]:
    """The one fact that canaries ask for, else a sentence on the prompt's length."""
    if isinstance(prompt, str) and "capital" in prompt and "France" in prompt:
        return [" Paris", "."]
    return [" The", " prompt", " had", f" {count}", " words."]


def prompts_of(value: Any) -> list[str | list[int]]:
    """One or many prompts, as text or as token ids; raises BadRequest for anything else."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        return [value]
    if isinstance(value, list) and value and all(isinstance(item, (str, list)) for item in value):
        return list(value)
    raise BadRequest("prompt must be a string, a list of strings, or token ids")


def chat_prompt(messages: Any) -> str:
    """The text of a conversation; raises BadRequest if it is malformed."""
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list that is not empty")
    parts = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        parts.append(str(content or ""))
    return "\n".join(parts)


def count_of(value: Any, default: int) -> int:
    """A number of tokens; raises BadRequest for anything but a positive number."""
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadRequest(f"max_tokens must be a positive integer, got {value!r}")
    return min(value, 100_000)


def usage(questions: Sequence[Question], *, new: bool) -> dict[str, Any]:
    """Token counts of a request; `new`: in the form of 0.5 (openai/protocol.py, UsageInfo)."""
    prompt = sum(asked.prompt_tokens for asked in questions)
    made = sum(len(asked.tokens) for asked in questions)
    told = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + made,
        "completion_tokens": made,
        "prompt_tokens_details": None,
    }
    return {**told, "reasoning_tokens": 0, "completion_tokens_details": None} if new else told


def whole(model: str, questions: list[Question], *, chat: bool, new: bool) -> dict[str, Any]:
    """The complete answers of a request, as a chat or as plain text."""

    def said(text: str) -> dict[str, Any]:
        plain = {"text": text, "matched_stop": None}
        return {"message": {"role": "assistant", "content": text, "tool_calls": None}} if chat else plain

    choices = [
        {"index": place, **said(asked.text()), "logprobs": None, "finish_reason": asked.finish}
        for place, asked in enumerate(questions)
    ]
    head = _head(questions[0].rid, "chat.completion" if chat else "text_completion", model)
    return {**head, "choices": choices, "usage": usage(questions, new=new)}


def chunk(model: str, asked: Question, first: int, last: int, *, chat: bool) -> dict[str, Any]:
    """The tokens of one step of a stream."""
    text = asked.text(first, last)
    delta = {"content": text} if first else {"role": "assistant", "content": text}
    finish = asked.finish if last == len(asked.tokens) else None
    choice = {"index": 0, **({"delta": delta} if chat else {"text": text}), "logprobs": None, "finish_reason": finish}
    return {**_head(asked.rid, _streamed(chat), model), "choices": [choice], "usage": None}


def usage_chunk(model: str, asked: Question, *, chat: bool, new: bool) -> dict[str, Any]:
    """The last chunk of a stream, for a client that asked for usage."""
    return {**_head(asked.rid, _streamed(chat), model), "choices": [], "usage": usage([asked], new=new)}


def _streamed(chat: bool) -> str:
    return "chat.completion.chunk" if chat else "text_completion"


def generated(asked: Question, last: int | None = None, *, logprobs: bool = False) -> dict[str, Any]:
    """SGLang's own /generate: the complete text so far, also while streaming."""
    made = len(asked.tokens) if last is None else last
    finish: dict[str, Any] | None = {"type": asked.finish} if made == len(asked.tokens) else None
    if finish and asked.finish == "length":
        finish["length"] = made
    tokens: dict[str, list[Any]] = {"output_token_logprobs": [], "output_top_logprobs": []} if logprobs else {}
    for piece in asked.tokens[:made] if logprobs else ():
        tokens["output_token_logprobs"].append([_LIKELY, token_id(piece), None])
        tokens["output_top_logprobs"].append([[_LIKELY, token_id(piece), None], [_UNLIKELY, 0, None]])
    return {
        "text": asked.text(0, made),
        "meta_info": {
            **tokens,
            "id": asked.rid,
            "finish_reason": finish,
            "prompt_tokens": asked.prompt_tokens,
            "completion_tokens": made,
            "cached_tokens": 0,
        },
    }


def token_id(piece: str) -> int:
    """A number for a piece of text, the same in every process."""
    return zlib.crc32(piece.encode()) % 129_000 + 1


def _head(rid: str, kind: str, model: str) -> dict[str, Any]:
    return {"id": rid, "object": kind, "created": int(time.time()), "model": model}
