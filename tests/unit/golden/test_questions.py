"""Questions of a file, and which answers to them are right."""

from __future__ import annotations

import json

import pytest

from orchestrator.golden.questions import LONGEST_QUESTION, MOST_QUESTIONS, Question, is_right, questions_of


@pytest.mark.parametrize(
    ("wanted", "answer", "right"),
    [
        ("72", "48 + 24 = 72", True),
        ("72", "She sold 72 clips.", True),
        ("72", "**72**.", True),
        ("72", "72 in 2 months", False),
        ("72", "", False),
        ("1,234", "It is $1234.00", True),
        ("0.5", "a half, or .5", False),
        ("-3", "4 - 7 = -3", True),
        ("7", "10-3=7", True),
        ("2024", "2023-2024", True),
        ("72", "<think>it is 72</think>\nI don't know: 70", False),
        ("Paris", " Paris\n", True),
        ("Paris", "It is Paris", False),
        ("paris", "Paris", False),
        ("1e3", "1000", False),
    ],
)
def test_the_last_number_or_the_exact_text_is_right(wanted: str, answer: str, right: bool) -> None:
    assert is_right(wanted, answer) is right


def test_a_file_of_gsm8ks_kind_is_read() -> None:
    lines = [
        json.dumps({"question": "How many?", "answer": "48/2 = <<48/2=24>>24.\n#### 1,072"}),
        "",
        json.dumps({"question": "Capital of France?", "answer": "Paris", "id": 7}),
        json.dumps({"question": "6 times 7?", "answer": 42}),
    ]
    wanted = (Question("How many?", "1,072"), Question("Capital of France?", "Paris"), Question("6 times 7?", "42"))
    assert questions_of("\n".join(lines)) == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no question"),
        ("\n[1]", "line 2: found no text as `question`"),
        ("{", "line 1: "),
        ("[" * 100_000, "line 1: "),
        ('{"question": "a"}', "none as `answer`"),
        ('{"question": "a", "answer": true}', "none as `answer`"),
        ('{"question": "a", "answer": "#### "}', "none as `answer`"),
        (json.dumps({"question": "a" * (LONGEST_QUESTION + 1), "answer": "1"}), "characters"),
        ('{"question": "a", "answer": "1"}\n' * (MOST_QUESTIONS + 1), "more than 1000"),
    ],
)
def test_what_is_no_such_file_is_named_by_its_line(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        questions_of(text)
