"""Command lines in locks and the audit log: their contents, and what they must never contain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from orchestrator.model.secret_text import shown_hook, typed

SECRET = "s3cr3t-0123456789"


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["up", "--model", "M", "--", "--mem-fraction-static", "0.9"], "up --model M -- --mem-fraction-static 0.9"),
        (["guard", "--on-failed", "/bin/page ops"], "guard --on-failed '/bin/page ...'"),
        (["guard", "--on-failed", "/bin/page"], "guard --on-failed /bin/page"),
        (["guard", "--on-failed", "@/etc/l40s/hook"], "guard --on-failed @/etc/l40s/hook"),
        (["guard", "--on-ready", "https://hooks.example.org"], "guard --on-ready https://hooks.example.org"),
        (
            ["guard", "--on-ready", "https://a:b@h.example:8443/T/x?y=z#q"],
            "guard --on-ready https://h.example:8443/...",
        ),
        (["guard", "--on-ready", "http://[::1]:80/x"], "guard --on-ready 'http://[::1]:80/...'"),
        (["guard", "--on-ready=https://h/x", "--once"], "guard --on-ready=https://h/... --once"),
        (["up", "--", "--api-key", SECRET, "--tp", "8"], "up -- --api-key '<secret>' --tp 8"),
        (["up", "--", "--admin-api-key=" + SECRET], "up -- '--admin-api-key=<secret>'"),
        (["up", "HF_TOKEN=" + SECRET], "up 'HF_TOKEN=<secret>'"),
        (["guard", "--on-failed"], "guard --on-failed"),
    ],
)
def test_what_is_kept(words: list[str], kept: str) -> None:
    assert typed(words) == kept


@given(
    flag=some.sampled_from(["--on-ready", "--on-failed", "--on-f", "--on-r"]),
    hook=some.sampled_from(
        [
            "curl -d {} https://example.org/x",
            "sh -c 'TOKEN={} notify'",
            "sh -c 'open {}",
            "https://example.org/services/{}",
            "https://{}@example.org/",
            "https://user:{}@example.org",
            "http://example.org?{}",
            "http://example.org/#{}",
            "http://[{}/x",
            "http://example.org:{}/x",
        ]
    ),
    joined=some.booleans(),
    before=some.lists(some.sampled_from(["guard", "--once", "--gang", "gang0", "--limit=3"]), max_size=4),
)
def test_no_secret_of_a_hook_stays(flag: str, hook: str, joined: bool, before: list[str]) -> None:
    target = hook.format(SECRET)
    words = [*before, f"{flag}={target}"] if joined else [*before, flag, target]
    assert SECRET not in typed(words)
    assert SECRET not in shown_hook(target)


def test_an_address_anywhere_else_loses_its_secrets_too() -> None:
    assert SECRET not in typed(["prepare", "--find-links", f"https://user:{SECRET}@index.example.org/simple?{SECRET}"])
