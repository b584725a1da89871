"""Secrets, and texts that identify a person or a place, are removed from a text; figures stay."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.topology.pseudonyms import Pseudonyms
from orchestrator.topology.scrubbing import HIDDEN, Scrubber, long_enough

SECRETS = st.text(string.ascii_letters + string.digits + "._~+/-", min_size=8, max_size=60)


def scrubber(*secrets: str, **names: str) -> Scrubber:
    return Scrubber(Pseudonyms(b"k" * 32), secrets, names)


@given(SECRETS, st.text(max_size=40), st.text(max_size=40))
def test_a_known_secret_is_nowhere(secret: str, before: str, after: str) -> None:
    clean = scrubber(secret)
    assert secret not in clean.text(before + secret + after) or secret in HIDDEN
    document = clean.value({"log": [before + secret, {"deep": secret + after}], secret: 1})
    assert secret not in repr(document) or secret in repr(scrubber().value({"log": [before, {"deep": after}], "x": 1}))


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdef123456",
        "authorization=Basic dXNlcjpwYXNz",
        "HF_TOKEN=hf_abcdefghijklmnopqrstuv",
        "export AWS_SECRET_ACCESS_KEY='wJalrXUtnFEMI/K7MDENG'",
        '{"api_key": "s3cret-value"}',
        "--api-key: s3cret-value, next",
        "got hf_abcdefghijklmnopqrstuv from the hub",
        "password: hunter2",
        "https://anna:hunter2@hub.example/x",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str) -> None:
    clean = scrubber().text(text)
    assert HIDDEN in clean
    for secret in ("abcdef123456", "dXNlcjpwYXNz", "hf_abc", "wJalr", "s3cret", "hunter2", "b3Blb"):
        assert secret not in clean


def test_names_and_addresses_get_pseudonyms_that_agree() -> None:
    clean = scrubber(**{"l40s-0": "machine1", "anna": "user1"})
    text = clean.text("anna@l40s-0 (10.1.2.3) waits for l40s-01; 10.1.2.3 is l40s-0's; Susanna")
    assert text.startswith("user1@machine1 (") and "10.1.2.3" not in text
    assert "l40s-01" in text and "Susanna" in text  # other words are left alone
    address = text.partition("(")[2].partition(")")[0]
    assert text.count(address) == 2


def test_figures_stay() -> None:
    line = "Decode batch. #running-req: 3, #token: 1201, token usage: 0.41, gen throughput (token/s): 312.4"
    assert scrubber().text(line) == line
    assert scrubber().value({"tokens_s": 312.4, "kv_tokens": 99, "api_key": "x1y2", "password": ["a b"]}) == {
        "tokens_s": 312.4, "kv_tokens": 99, "api_key": HIDDEN, "password": [HIDDEN]
    }  # fmt: skip


def test_what_is_left_is_found() -> None:
    assert scrubber("abcdef").left("x abcdef y") == "abcdef"
    assert scrubber(anna="user1").left("by anna") == "anna"
    assert scrubber("abcdef", anna="user1").left("Susanna") == ""


def test_short_words_are_no_secrets() -> None:
    assert long_enough(["abc", "abcdef", "abcdef"]) == ("abcdef",)
