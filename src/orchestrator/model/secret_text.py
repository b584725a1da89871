"""Texts without secrets: by the name before one, by its own form, or because it is known."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, quote_plus, urlsplit

from orchestrator.model.secret_shapes import folded, without_ends_of_keys, without_shapes
from orchestrator.protocol.planned import OF_THE_PLAN
from orchestrator.protocol.staging import NodePlan, words

if TYPE_CHECKING:  # a command line is looked through without any plan
    from orchestrator.model.plan import Plan

P = TypeVar("P", bound=NodePlan)


HIDDEN = "<secret>"
SHORTEST_SECRET = 6
"""A shorter one would remove ordinary words from the text, and protects nothing."""
_ESCAPED_APOSTROPHE = r"'\\*\"'\\*\"'"
"""As shells have it within apostrophes."""
_QUOTED = (
    r"\"{3}(?s:.*?)\"{3}|'{3}(?s:.*?)'{3}"
    r"|\"(?:[^\"\\\n]|\\[^\n])*\\\n(?s:(?:[^\"\\]|\\.){0,4096})\""
    rf"|(?P<quote>\\*[\"'])(?:{_ESCAPED_APOSTROPHE}|(?!{_ESCAPED_APOSTROPHE}).)*?(?<!\\)(?!{_ESCAPED_APOSTROPHE})(?P=quote)"
    r"(?=[\s,;:&}\])>\\\"'\x1b]|$)|\\*[\"'][^\n]*"
)
"""In three quotes, or in two over lines that end with a backslash; in quotes that may be escaped, up to the same ones;
to the end of the line where they do not close."""
_COLOURS = r"(?:(?:\x1b|\\x1b|\\u001b|\\033)\[[0-9;]*m)*"
_LIST = r"\[(?:\s*b?\\*(?:\"[^\"\n]*\"|'[^'\n]*'),?)+\s*\]?|\[[^\]\n]*\]?"
_NAMED = re.compile(
    r"(?i)(?P<name>(?:(?P<line>passw(?:or)?ds?|passphrase|(?:(?<![a-z])|(?-i:(?<=[a-z])(?=[A-Z])))(?:pass|pwd)"
    r"|sshpass|密码|口令|密钥|令牌"
    r"|requirepass|masterauth|(?:bind|root)pw|psk|otlp(?:_[a-z]{1,10})?_headers"
    r"|secret(?:[_-]?key)?s?|credentials?|authorization|(?<![a-z])(?:set-)?cookies?|x-auth(?:-[\w-]{1,60})?)"
    r"|(?:api|access|private|auth|sign(?:ing)?|encryption|master|account|routing|subscription|shared|hmac|licen[cs]e"
    r"|fernet|storage)[_ -]?keys?|(?-i:(?<![A-Za-z0-9])[A-Z][A-Z0-9_]{0,60}_KEYS?)"
    r"|(?:(?<=[?&])|(?<=&amp;)|(?<=\\u0026)|(?<=%26)|(?<=%3f))(?:key|sig(?:nature)?|code)|session[_-]?(?:id|key)|(?<!num_)tokens?|(?<![a-z])(?:dsn|pat)"
    rf"|webhook(?:[_-]?url)?)(?:[_-]?(?:[0-9]+|id))?{_COLOURS}"
    rf"(?:[^\S\n](?:(?:for|of)[^\S\n][^\s:=]{{1,80}}|provided|given|used|entered))?(?:(?:\\*[\"']|%22|\\u0022)?[^\S\n]*"
    r"(?:=>|:=|[:=\uff1a\uff1d\0]|%3[ad]|\\u003[ad])(?:\\\n)?"
    rf"|\\*[\"']?,?\s+\\*[\"']?value\\*[\"']?[^\S\n]*[:=]|\\*[\"'],)[^\S\n]*{_COLOURS}(?:b(?=[\"']))?)"
    rf"(?P<value>{_QUOTED}|(?:none|null|true|false)(?=[\s,;)}}\]]|$)|[|>][-+]?[^\S\n]*(?:\n[ \t]+[^\n]+)+"
    rf"|(?<=[:=])(?:\n[ \t]*(?:[ \t]|- )(?:\"[^\"\n]*\",?|\S+)[^\S\n]*(?=\n|\Z))+"
    rf"|(?(line)(?:\\\r?\n|[^\n])+|(?:{_LIST}|(?:(?:bearer|basic|token|digest)(?:\s|\\\n)+)?(?!{{)[^\s,;}}\])]+)))"
)
"""A name like a secret's with its value, a password or a header to the end of the line: it may have several words.
Between them stands a sign, a comma (pairs of headers), or the word value (an environment in YAML or JSON).
`tokens: 5` stays: a report is not readable without it."""
_FLAG = re.compile(
    r"(?P<name>--(?:[\w-]{1,60}-)?(?:api-key|key|token|passw(?:or)?d|pwd|passphrase|secret)\\*[\"']?"
    r"(?:\s*,\s*|(?:[\s\0]|\\\r?\n)+)|\bsshpass\s+-p ?|\bcurl\b[^\n]{0,400}?\s(?:"
    r"(?:-b|--cookie|--oauth2-bearer)[ =]|(?:-[a-zA-Z]{0,6}u|--user)[ =]?[\"']?[^\s:]{1,100}:))"
    rf"(?P<value>{_QUOTED}|\S+)"
)
_BY_FORM = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}|A(?:KIA|SIA|BIA|CCA)[0-9A-Z]{16}"
    r"|(?:nvapi|pypi|xapp|dckr_pat|dop_v1|npm|[sr]k_live|[sr]k_test)[_-][\w-]{10,}|AIza[\w-]{20,}|AGE-SECRET-KEY-\w+"
    r"|(?:hv[sbr]|SG|ya29)\.[\w.-]{16,}|1//0[\w-]{16,}|GOCSPX-[\w-]{16,}|(?:api_org|glsa|shpat|lin_api|gsk|figd)_\w{16,}"
    r"|ATATT[\w-]{16,}|SK[0-9a-f]{32}|dapi[0-9a-f]{32}|ms-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|sha256~[\w-]{30,}"
    r"|MUNGE:[\w+/=]{8,}|AQ[A-Za-z0-9+/]{34,40}==|(?:eyJ|LS0tLS1CRUdJTi)[\w+/-]{20,}={0,2}(?![\w.])"
    r"|bot[0-9]{6,}:[\w-]{16,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|(?=\w*[0-9])(?=\w*[a-z])(?=\w*[A-Z])(?!\w*(?:[0-9]{5}|[a-z]{5}|[A-Z]{5}))[A-Za-z0-9]{16,}[\w+/=-]*"
    r")|(?i:\bbearer\s+)[\w.~+/=-]{8,}"
)
"""Hugging Face, OpenAI, GitHub, GitLab, Slack, AWS, NVIDIA and more, JSON web tokens, JSON and PEM in base64, what
follows Bearer, and a long word that has no words in it: digits and letters of both cases, mixed as only chance does."""
_HOOKS = re.compile(r"\bhooks\.slack\.com/\S+|\b(?:web)?hook(?:s|b2)?/[\w/@-]{16,}")
"""Addresses whose path is the secret. One may hold an @, which ends no user's name."""
_IN_TAGS = re.compile(
    r"(?i)(?P<name><[\w:.-]{0,60}(?:passw|pwd|token|secret|api[_-]?key)[\w:.-]{0,60}(?:\s[^<>]{0,200})?>)"
    rf"(?:[^<]|{HIDDEN})+(?=</)"
)
"""A part of what it holds may be hidden already."""
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)", re.DOTALL
)
_URL_USER = re.compile(r"(?i)(?P<scheme>\b[a-z][a-z0-9+.-]{0,30}(?:://|%3a%2f%2f))[^\s\"<>]{0,1000}(?:@|%40)")
"""Up to the last @: a password may hold others, and slashes. Repetitions have an end, so that no line takes long."""
_USER_ALONE = re.compile(
    r"(?P<before>(?<![\w:/@.+-])(?!mailto:)[A-Za-z_][\w.-]{0,40}:)(?!//)(?=[^\s:@/'\"<]{0,80}[A-Za-z])[^\s:@/'\"<]{6,80}"
    r"(?=@(?!sha[0-9])[A-Za-z0-9\[])"
)
"""user:password@host without a scheme; neither a mail's address nor an image's digest."""
_COUNTS = re.compile(r"(?i)^tokens?(?:_[a-z]+)?[\"']?\s*[:=]\s*$")


def without_secrets(text: str) -> str:
    """A text without what looks like a secret, by the name before it or by its own form; `folded` where one was hidden
    by full-width or invisible characters."""
    if (plain := folded(text)) != text and (clean := _without(plain)) != plain:
        return clean
    return _without(text)


def _without(text: str) -> str:
    text = without_shapes(text)
    text = without_ends_of_keys(_PRIVATE_KEY.sub(HIDDEN, text))
    text = _HOOKS.sub(HIDDEN, text)
    text = _URL_USER.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _USER_ALONE.sub(rf"\g<before>{HIDDEN}", text)
    text = _FLAG.sub(rf"\g<name>{HIDDEN}", text)
    text = _IN_TAGS.sub(rf"\g<name>{HIDDEN}", text)
    return _BY_FORM.sub(HIDDEN, _NAMED.sub(_hidden, text))


def is_secret_flag(flag: object, value: object) -> bool:
    """Whether the word after this one of a command line is a secret."""
    return _FLAG.fullmatch(f"{flag} {value}") is not None


def is_secret_name(name: str) -> bool:
    """Whether what has this name is a secret."""
    return _NAMED.search(f"{name}: x") is not None


def long_enough(secrets: Iterable[str]) -> tuple[str, ...]:
    """Each once, without those that ordinary words contain, and as they stand in addresses and in JSON."""
    long = (secret for secret in secrets if len(secret) >= SHORTEST_SECRET)
    return tuple(dict.fromkeys(form for secret in long for form in _forms(secret)))


def _forms(secret: str) -> Iterator[str]:
    yield secret
    raw = secret.encode("utf-8", "surrogateescape")
    for quoted in (quote(raw), quote(raw, ""), quote_plus(raw)):
        yield quoted
        yield re.sub("%..", lambda escape: escape.group().lower(), quoted)
    for ascii_only in (True, False):
        once = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield once
        yield json.dumps(once, ensure_ascii=ascii_only)[1:-1]
    yield repr(secret)[1:-1]


def _hidden(assignment: re.Match[str]) -> str:
    counted = _COUNTS.match(assignment["name"]) and re.fullmatch(r"[\[\]0-9.,\s\"]+", assignment["value"])
    is_a_word = assignment["value"].lower() in ("none", "null", "true", "false")
    return assignment.group() if counted or is_a_word else f"{assignment['name']}{HIDDEN}"


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
        (flag, *(HIDDEN if is_secret_flag(flag, "x") else without_secrets(value) for value in values))
        for flag, *values in flags
    )


def shown(plan: Plan) -> Plan:
    """The plan as it may be seen by anybody. `up` carries out the other one."""
    return replace(plan, gangs=tuple(replace(gang, nodes=tuple(map(shown_part, gang.nodes))) for gang in plan.gangs))


def shown_part(part: P) -> P:
    """One node's part of a plan, staged or not, as it may be seen by anybody."""
    flags = shown_flags(part.flags)
    return replace(
        part,
        env=shown_env(part.env, part.env_public),
        flags=flags,
        argv=words(part.command, flags),
        sources={name: without_secrets(source) for name, source in part.sources.items()},
    )


def fingerprint(secret: str) -> str:
    """Tells a changed secret from the same one, and too little of it for guessing: 16 bits."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()[:4]


LEFT_OUT = "..."
_HOOK = re.compile(r"--on-[a-z]+$")  # argparse takes the beginning of a flag for the flag
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
        if _HOOK.match(name) or is_secret_flag(name, "x"):
            yield f"{name}={_value(name, value)}" if equals else name
            flag = "" if equals else name
        elif equals and is_secret(name, value):
            yield f"{name}={HIDDEN}"
        else:
            yield without_secrets(_ADDRESS.sub(lambda address: _host_of(address.group()), word))


def _value(flag: str, value: str) -> str:
    return shown_hook(value) if _HOOK.match(flag) else HIDDEN


def _host_of(address: str) -> str:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
    except ValueError:
        return LEFT_OUT
    whole = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"
    return whole if address in (whole, f"{whole}/") else f"{whole}/{LEFT_OUT}"
