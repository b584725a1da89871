"""The words of ansible_ssh_common_args and ansible_ssh_extra_args as (option, value) pairs, or refused."""

from __future__ import annotations

import re
import shlex

HONOURED = frozenset({
    "addkeystoagent", "batchmode", "certificatefile", "checkhostip", "clearallforwardings", "compression",
    "configfile", "connectionattempts", "connecttimeout", "controlmaster", "controlpath", "controlpersist",
    "exitonforwardfailure", "forwardagent", "forwardx11", "globalknownhostsfile", "gssapiauthentication",
    "hashknownhosts", "hostkeyalias", "hostname", "identitiesonly", "identityagent", "identityfile", "ipqos",
    "kbdinteractiveauthentication", "loglevel", "numberofpasswordprompts",
    "passwordauthentication", "port", "preferredauthentications", "proxycommand", "proxyjump",
    "pubkeyauthentication", "requesttty", "serveralivecountmax", "serveraliveinterval", "stricthostkeychecking",
    "tcpkeepalive", "updatehostkeys", "user", "userknownhostsfile", "verifyhostkeydns", "visualhostkey",
})  # fmt: skip
"""ssh_config(5) options that we follow, and those that change nothing for us: we multiplex, keep connections
alive, bound every wait and never prompt by our own means. Any other option is refused."""

_FLAGS = set("46AaCKknqTtVvxXYy")
_VALUES = {"J": "proxyjump", "i": "identityfile", "l": "user", "p": "port", "F": "configfile"}
_PAIR = re.compile(r"\s*(?P<name>[A-Za-z0-9]+)(?:\s*=\s*|\s+)(?P<value>.*\S)\s*", re.DOTALL)


class BadArguments(ValueError):
    """Arguments that OpenSSH would refuse or that we cannot follow; the message says which."""


def parse(text: str) -> tuple[tuple[str, str], ...]:
    """(option in lower case, value) pairs in the order given; -J, -i, -l, -p and -F come out under their
    option's name (-F as configfile). Raises BadArguments."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadArguments(f"cannot be split into words: {error}") from None
    pairs: list[tuple[str, str]] = []
    while words:
        word = words.pop(0)
        if len(word) < 2 or word[0] != "-":
            raise BadArguments(f"{word!r} is not an ssh option")
        letter, attached = word[1], word[2:]
        if letter in _FLAGS and set(attached) <= _FLAGS:
            continue
        if letter != "o" and letter not in _VALUES:
            raise BadArguments(f"-{letter} is not a supported ssh option (-o, -J, -i, -l, -p, -F)")
        value = attached or (words.pop(0) if words else "")
        if not value:
            raise BadArguments(f"-{letter} has no value")
        pairs.append(_pair(value) if letter == "o" else (_VALUES[letter], value))
    return tuple(pairs)


def _pair(text: str) -> tuple[str, str]:
    match = _PAIR.fullmatch(text)
    if match is None:
        raise BadArguments(f"-o {text!r} is not Name=value")
    name = match["name"].lower()
    if name not in HONOURED:
        raise BadArguments(f"-o {match['name']} is not a supported option")
    value = match["value"]
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    return name, value
