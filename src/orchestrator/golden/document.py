"""The prompts that are asked, and a baseline as JSON, and back. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.golden.compare import Answer, PromptBaseline

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a baseline is for: the same checkpoint by another stack or layout may rightly answer otherwise."""

    model: str
    stack: str
    layout: str

    @property
    def name(self) -> str:
        """As a file is named."""
        plain = "_".join((self.model, self.stack, self.layout))
        return "".join(char if char.isalnum() or char in "._-" else "-" for char in plain)

    def __str__(self) -> str:
        return f"{self.model} by {self.stack} at {self.layout}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """made_at: epoch seconds; prompts: by prompt id."""

    subject: Subject
    made_at: float
    prompts: Mapping[str, PromptBaseline]


def to_json(baseline: Baseline) -> dict[str, Any]:
    """The document that is stored."""
    subject = baseline.subject
    return {
        "format": FORMAT,
        "model": subject.model,
        "stack": subject.stack,
        "layout": subject.layout,
        "made_at": baseline.made_at,
        "prompts": {
            prompt: {
                "tokens": list(accepted.answer.tokens),
                "logprobs": list(accepted.answer.logprobs),
                "margins": [margin if math.isfinite(margin) else None for margin in accepted.answer.margins],
                "text": accepted.answer.text,
                "varies_from": accepted.varies_from,
                "noise": accepted.noise,
            }
            for prompt, accepted in baseline.prompts.items()
        },
    }


def from_json(raw: Any) -> Baseline:
    """Raises ValueError, with what is wrong, for anything that `to_json` did not make."""
    try:
        if raw["format"] != FORMAT:
            raise ValueError(f"format {raw['format']!r}, this version reads {FORMAT}")
        return Baseline(
            subject=Subject(model=str(raw["model"]), stack=str(raw["stack"]), layout=str(raw["layout"])),
            made_at=float(raw["made_at"]),
            prompts={str(prompt): _accepted(entry) for prompt, entry in raw["prompts"].items()},
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as wrong:
        raise ValueError(f"not a baseline: {type(wrong).__name__} {wrong}") from None


def _accepted(entry: Mapping[str, Any]) -> PromptBaseline:
    return PromptBaseline(
        answer=Answer(
            tokens=tuple(int(token) for token in entry["tokens"]),
            logprobs=tuple(float(value) for value in entry["logprobs"]),
            margins=tuple(math.inf if value is None else float(value) for value in entry["margins"]),
            text=str(entry["text"]),
        ),
        varies_from=None if entry["varies_from"] is None else int(entry["varies_from"]),
        noise=float(entry["noise"]),
    )


MAX_TOKENS = 32
"""Of each answer. Twelve answers are some 400 decode steps: under half a minute on the slowest layout."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """id: as shown and as stored in baselines, so it never changes its meaning."""

    id: str
    text: str


_SENTENCE = (
    "The inventory of shelf {n} lists {n} boxes of screws, {m} boxes of nails and a note that says 'shelf {n}'. "
)

PROMPTS = (
    Prompt("english-fact", "The capital of France is"),
    Prompt("english-story", "It was two in the morning when the lights of the data centre went out, and"),
    Prompt("english-explain", "An all-reduce over PCIe is slower than one over NVLink because"),
    Prompt("chinese-fact", "中国的首都是"),
    Prompt("chinese-explain", "深度学习中,混合专家模型的主要优点是"),
    Prompt("spanish-fact", "El río más largo de América del Sur es"),
    Prompt("german-list", "Die sieben Tage der Woche heißen"),
    Prompt("japanese-fact", "日本で一番高い山は"),
    Prompt("code-python", 'def fibonacci(n: int) -> int:\n    """The n-th Fibonacci number."""\n'),
    Prompt("code-sql", "-- the ten customers with the highest total of orders\nSELECT"),
    Prompt("arithmetic", "12 + 30 = 42\n17 + 25 = 42\n123 + 456 = 579\n608 + 291 ="),
    Prompt(
        "long-context",
        "".join(_SENTENCE.format(n=n, m=3 * n) for n in range(1, 41))
        + "According to the list above, shelf 17 holds this many boxes of nails:",
    ),
)
