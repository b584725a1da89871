"""Which values are secrets, and a plan that may be shown: in documents, on screens and in records."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a command line is looked through without any plan
    from orchestrator.model.plan import NodePlan, Plan

HIDDEN = "<secret>"

_NAMES = re.compile(
    r"(?:^|_)(?:API_?KEYS?|KEYS?|TOKENS?|SECRETS?|PASS|PASSWD|PASSWORDS?|PASSPHRASE|CREDENTIALS?|AUTHORIZATION)$"
    r"|SECRET|PASSWORD|(?:^|_)(?:ACCESS_KEY|API_?KEY)",
    re.IGNORECASE,
)
_URL_WITH_PASSWORD = re.compile(r"://[^/\s:@]+:[^/\s@]+@")


def is_secret(name: str, value: str) -> bool:
    """By an environment variable's name (HF_TOKEN, AWS_SECRET_ACCESS_KEY), or an address with a password in it."""
    return bool(value) and bool(_NAMES.search(name) or _URL_WITH_PASSWORD.search(value))


def shown_env(env: Mapping[str, str]) -> dict[str, str]:
    """An environment without its secrets."""
    return {name: HIDDEN if is_secret(name, value) else value for name, value in env.items()}


def shown(plan: Plan) -> Plan:
    """The plan as it may be seen by anybody. `up` carries out the other one."""
    gangs = tuple(replace(gang, nodes=tuple(map(_shown_node, gang.nodes))) for gang in plan.gangs)
    return replace(plan, gangs=gangs)


def _shown_node(node: NodePlan) -> NodePlan:
    return replace(node, env=tuple(shown_env(dict(node.env)).items()))


def fingerprint(secret: str) -> str:
    """Tells a changed secret from the same one, and too little of it for guessing: 16 bits."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()[:4]
