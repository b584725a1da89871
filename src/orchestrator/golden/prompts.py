"""The prompts that are asked: several languages, code, arithmetic, and a long context.

Plain text without a chat template, decoded greedily, so that every layer, expert and kernel takes part and nothing
but the checkpoint and the arithmetic decides.
"""

from __future__ import annotations

from dataclasses import dataclass

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
