"""Which values are secrets, and what may be shown or kept: an environment, a plan, a command line."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from orchestrator.model.secret_text import HIDDEN, without_secrets
from orchestrator.protocol.variables import OF_THE_PLAN

if TYPE_CHECKING:  # a command line is looked through without any plan
    from orchestrator.model.plan import NodePlan, Plan

_NAMES = re.compile(
    r"(?:^|_)(?:API_?KEYS?|KEYS?|TOKENS?|SECRETS?|PASS|PASSWD|PASSWORDS?|PASSPHRASE|CREDENTIALS?|AUTHORIZATION|AUTH|"
    r"DSN|COOKIES?)(?:_?[0-9]+)?$|_(?:PWD|PW|PAT)(?:_?[0-9]+)?$|SECRET|PASSWORD|WEBHOOK|(?:^|_)(?:ACCESS_KEY|API_?KEY)",
    re.IGNORECASE,
)
_URL_WITH_USER = re.compile(r"://\S*@")
_PUBLIC = re.compile(
    rf"(?:{'|'.join(OF_THE_PLAN)}|(?:CUBLAS|CUBLASLT|CUDNN|NVIDIA|NVSHMEM|UCX|DG|L40S|OMP|KMP|MKL|TOKENIZERS"
    r"|TRANSFORMERS|TIKTOKEN|HF_HUB|LC)_)\w+|(?:TORCH|PYTHON)\w+|PATH|HOME|LANG|TZ|TMPDIR|LD_PRELOAD"
    r"|LD_LIBRARY_PATH|XDG_CACHE_HOME|HF_HOME|HF_ENDPOINT|(?i:https?_proxy|all_proxy|no_proxy)"
)
"""Names that the engine, its libraries, the system or we document: what they hold is for every reader of a plan."""


def is_secret(name: str, value: str) -> bool:
    """By an environment variable's name (HF_TOKEN, AWS_SECRET_ACCESS_KEY), or an address with a user in it."""
    return bool(value) and bool(_NAMES.search(name) or _URL_WITH_USER.search(value))


def is_hidden(name: str, value: str, public: Collection[str] = ()) -> bool:
    """An environment variable's value that is not shown: a secret, or one of a name that nobody documents and that the
    inventory does not call public."""
    return is_secret(name, value) or (bool(value) and not _PUBLIC.fullmatch(name) and name not in public)


def shown_env(env: Mapping[str, str], public: Collection[str] = ()) -> dict[str, str]:
    """An environment with the values that may be seen by anybody. public: `l40s_env_public`"""
    return {name: HIDDEN if is_hidden(name, value, public) else value for name, value in env.items()}


def shown_flags(flags: Iterable[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """An engine's flags, each with its values, without the secrets that they hold."""
    return tuple(
        (flag, *(HIDDEN if _SECRET_FLAG.match(flag) else without_secrets(value) for value in values))
        for flag, *values in flags
    )


def shown(plan: Plan) -> Plan:
    """The plan as it may be seen by anybody. `up` carries out the other one."""
    gangs = tuple(replace(gang, nodes=tuple(map(_shown_node, gang.nodes))) for gang in plan.gangs)
    return replace(plan, gangs=gangs)


def _shown_node(node: NodePlan) -> NodePlan:
    sources = tuple((name, without_secrets(source)) for name, source in node.sources)
    env = shown_env(dict(node.env), node.env_public)
    return replace(node, env=tuple(env.items()), flags=shown_flags(node.flags), sources=sources)


def fingerprint(secret: str) -> str:
    """Tells a changed secret from the same one, and too little of it for guessing: 16 bits."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()[:4]


LEFT_OUT = "..."
_HOOK = re.compile(r"--on-[a-z]+$")  # argparse takes the beginning of a flag for the flag
_SECRET_FLAG = re.compile(r"--(?:[\w-]+-)?(?:api-key|key|token|password|secret)$")
_ADDRESS = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://\S+")


def typed(words: Sequence[str]) -> str:
    """Words as a shell would split them: of an address scheme and host, of a hook's command the first word, nothing
    of a value whose flag or name says that it is secret."""
    return shlex.join(_kept(words))


def shown_hook(target: str) -> str:
    """What may be shown of a hook: the address's scheme and host, or the command's first word."""
    if _ADDRESS.match(target):
        return _host_of(target)
    try:
        first, *more = shlex.split(target) or [""]
    except ValueError:
        return LEFT_OUT
    return f"{first} {LEFT_OUT}" if more else first


def _kept(words: Sequence[str]) -> Iterator[str]:
    flag = ""
    for word in words:
        if flag:
            yield _value(flag, word)
            flag = ""
            continue
        name, equals, value = word.partition("=")
        if _HOOK.match(name) or _SECRET_FLAG.match(name):
            yield f"{name}={_value(name, value)}" if equals else name
            flag = "" if equals else name
        elif equals and is_secret(name, value):
            yield f"{name}={HIDDEN}"
        else:
            yield without_secrets(_without_secrets(word))


def _value(flag: str, value: str) -> str:
    return shown_hook(value) if _HOOK.match(flag) else HIDDEN


def _without_secrets(text: str) -> str:
    return _ADDRESS.sub(lambda found: _host_of(found.group()), text)


def _host_of(address: str) -> str:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
    except ValueError:
        return LEFT_OUT
    whole = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"
    return whole if address in (whole, f"{whole}/") else f"{whole}/{LEFT_OUT}"
