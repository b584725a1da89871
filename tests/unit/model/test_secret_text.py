"""What counts as a secret, and that none of it reaches a document, an id that can be guessed from, or a message."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some
from tests.support.reference_cluster import gang
from tests.support.reference_plan import plan_of

from orchestrator.model.inventory import Overrides
from orchestrator.model.plan import Plan
from orchestrator.model.secret_text import (
    HIDDEN,
    is_hidden,
    is_secret,
    shown,
    shown_env,
    shown_flags,
    shown_hook,
    typed,
)
from orchestrator.planning.plan_file import plan_json
from orchestrator.protocol.errors import InputError

SECRET = "hf_abcDEF0123456789"


def plan_with(name: str, value: str, *, public: tuple[str, ...] = (), args: tuple[str, ...] = ()) -> Plan:
    return plan_of(gang(overrides=Overrides(env=((name, value),), env_public=public, args=args)))


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "hf_token", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "SGLANG_API_KEY", "MY_PASSWORD", "APIKEY",
     "X_CREDENTIALS", "SECRET_THING", "DB_PWD", "SENTRY_DSN", "SLACK_WEBHOOK_URL", "GITHUB_PAT", "HF_TOKEN_2",
     "DB_PASS", "REDIS_AUTH", "SGLANG_API_KEY_2"],
)  # fmt: skip
def test_secrets_by_name(name: str) -> None:
    assert is_secret(name, "x")
    assert not is_secret(name, "")


@pytest.mark.parametrize(
    "name",
    ["NCCL_DEBUG", "TOKENIZERS_PARALLELISM", "SGLANG_MAX_NEW_TOKENS_ESTIMATION", "KEYBOARD", "HF_HUB_OFFLINE",
     "PASSENGER_COUNT", "PWD", "PATH", "SSH_AUTH_SOCK"],
)  # fmt: skip
def test_ordinary_names(name: str) -> None:
    assert not is_secret(name, "x")


def test_an_address_with_a_password_is_a_secret_whatever_its_name() -> None:
    for user in ("ann:pw", "ann:p/w", "a@nn:pw", "token"):
        assert is_secret("HTTPS_PROXY", f"http://{user}@proxy:3128")
    assert not is_secret("HTTPS_PROXY", "http://proxy:3128")


def test_a_secret_runs_and_is_not_shown() -> None:
    plan = plan_with("HF_TOKEN", SECRET)
    assert dict(plan.gangs[0].nodes[1].env)["HF_TOKEN"] == SECRET
    assert SECRET not in json.dumps(plan_json(plan))
    assert dict(shown(plan).gangs[0].nodes[1].env)["HF_TOKEN"] == HIDDEN


def test_of_a_name_that_nobody_documents_no_value_is_shown() -> None:
    env = {"DB_HOST": "db", "MY_ID": "7", "NCCLX": "1", "EMPTY": "", "NCCL_DEBUG": "INFO", "no_proxy": "10.0.0.0/8"}
    kept = {"EMPTY": "", "NCCL_DEBUG": "INFO", "no_proxy": "10.0.0.0/8"}
    assert shown_env(env) == {name: kept.get(name, HIDDEN) for name in env}
    plan = plan_with("DB_HOST", "my-own-value")
    assert dict(plan.gangs[0].nodes[1].env)["DB_HOST"] == "my-own-value"
    assert "my-own-value" not in json.dumps(plan_json(plan))


def test_the_inventory_may_call_names_public_but_no_secret() -> None:
    plan = plan_with("DB_HOST", "my-own-value", public=("DB_HOST",))
    assert dict(shown(plan).gangs[0].nodes[1].env)["DB_HOST"] == "my-own-value"
    assert plan.plan_id == plan_with("DB_HOST", "my-own-value").plan_id
    for name, value in (("HF_TOKEN", SECRET), ("DB_HOST", f"pg://u:{SECRET}@db")):
        assert SECRET not in json.dumps(plan_json(plan_with(name, value, public=(name,))))


@pytest.mark.parametrize(
    "args",
    [
        ("--otlp-traces-endpoint", f"http://me:{SECRET}@traces:4317"),
        ("--hicache-storage-backend-extra-config", json.dumps({"access_key": SECRET, "n": 1})),
        ("--tool-server", f"http://tools/?token={SECRET}"),
    ],
)
def test_a_secret_in_an_engines_argument_runs_and_is_not_shown(args: tuple[str, ...]) -> None:
    plan = plan_with("A", "", args=args)
    node = plan.gangs[0].nodes[0]
    assert SECRET in " ".join(node.argv)
    assert SECRET not in json.dumps(plan_json(plan)) + typed(["l40s-deploy", "up", "--", *args])
    (seen,) = [words for words in shown_flags(node.flags) if words[0] == args[0]]
    assert HIDDEN in seen[1]
    assert shown_flags([words for words in node.flags if words[0] != args[0]]) == tuple(
        words for words in node.flags if words[0] != args[0]
    )


@pytest.mark.parametrize("flag", ["--api-key", "--admin-api-key", "--admin-api", "--ssl-keyfile-password"])
def test_a_key_as_an_engines_argument_is_refused_and_not_repeated(flag: str) -> None:
    with pytest.raises(InputError) as refused:
        plan_with("A", "", args=(flag, SECRET))
    assert SECRET not in str(refused.value)


def test_what_a_plan_decides_is_shown() -> None:
    node = plan_with("DB_HOST", "x").gangs[0].nodes[0]
    assert [name for name, value in node.env.items() if is_hidden(name, value)] == ["DB_HOST"]


def test_another_secret_is_another_plan() -> None:
    assert plan_with("HF_TOKEN", SECRET).plan_id == plan_with("HF_TOKEN", SECRET).plan_id
    assert plan_with("HF_TOKEN", SECRET).plan_id != plan_with("HF_TOKEN", "hf_other000000").plan_id


def test_what_an_override_replaced_is_told_but_not_of_secrets() -> None:
    sources = dict(plan_with("HF_TOKEN", SECRET).gangs[0].nodes[0].sources)
    assert SECRET not in " ".join(sources.values())


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
