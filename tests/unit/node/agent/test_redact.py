"""Secrets never reach the log, at whatever byte the engine's output is split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node.engine.redact import MARK, Redactor, secrets_of


@pytest.mark.parametrize(
    ("env", "flags", "staged", "secrets"),
    [
        ({"HF_TOKEN": "hf_abcdef"}, [], [], ("hf_abcdef",)),
        ({"OPENAI_API_KEY": "sk-123456"}, [], [], ("sk-123456",)),
        ({"TOKENIZERS_PARALLELISM": "false-false", "MAX_TOKENS": "1234567"}, [], [], ()),
        ({}, [("--api-key", "sk-123456"), ("--port", "8000")], [], ("sk-123456",)),
        ({}, [("--admin-api-key", "sk-654321")], [], ("sk-654321",)),
        ({}, [("--api-key",)], [], ()),
        ({}, [("--tokenizer-path", "/models/abc")], [], ()),
        ({"A_PASSWORD": "no"}, [], [], ()),
        ({"A_PASSWORD": "staged-too"}, [], ["staged-too", "another"], ("staged-too", "another")),
    ],
)
def test_what_is_a_secret(
    env: dict[str, str], flags: list[tuple[str, ...]], staged: list[str], secrets: tuple[str, ...]
) -> None:
    assert secrets_of(env, flags, staged) == secrets


SECRETS = ("sk-aaaa", "sk-aaaab", "aaaa-bbbb")
PIECES = st.lists(
    st.sampled_from([*SECRETS, "sk-", "a", "aaa", "aaaa-", "b", "\n", " api_key='", "'"]), max_size=30
).map("".join)


@given(PIECES, st.integers(1, 9))
def test_no_secret_comes_through_and_nothing_else_is_lost(text: str, step: int) -> None:
    data = text.encode()
    cut = Redactor(SECRETS)
    pieces = b"".join(cut.feed(data[at : at + step]) for at in range(0, len(data), step)) + cut.finish()
    whole = Redactor(SECRETS)
    assert pieces == whole.feed(data) + whole.finish()
    assert not any(secret.encode() in pieces for secret in SECRETS)
    if not any(secret in text for secret in SECRETS):
        assert pieces == data


def test_the_engines_own_account_of_its_arguments() -> None:
    line = b"server_args=ServerArgs(api_key='sk-secret-1', port=8000)\n"
    assert Redactor(["sk-secret-1"]).feed(line) == b"server_args=ServerArgs(api_key='" + MARK + b"', port=8000)\n"


def test_without_secrets_nothing_is_held_back() -> None:
    assert Redactor().feed(b"abc") == b"abc"
