"""known_hosts files as sshd(8) describes them: names, patterns, hashed names, markers. Pure text work."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

_MARKERS = ("@cert-authority", "@revoked")


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One line that speaks of the host we asked for. key: base64 as in the file."""

    marker: str
    kind: str
    key: str
    file: str
    line: int


def host_key_name(host: str, port: int) -> str:
    """The name under which OpenSSH keeps a host's key."""
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"


def keys_for(name: str, text: str, file: str) -> Iterator[KnownKey]:
    """Every line of a known_hosts file that matches a name; lines that are not understood are passed over."""
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0] in _MARKERS else ""
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        if _matches(fields[0], name):
            yield KnownKey(marker, fields[1], fields[2], file, number)


def fingerprint(key: bytes) -> str:
    """A public key's fingerprint as ssh-keygen -l prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode("ascii").rstrip("=")


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|"):
        return _is_hash_of(patterns, name)
    found = False
    for pattern in patterns.lower().split(","):
        negated = pattern.startswith("!")
        if _is_like(name, pattern[negated:]):
            if negated:
                return False
            found = True
    return found


def _is_like(name: str, pattern: str) -> bool:
    """OpenSSH knows * and ? only; brackets are part of `[host]:port`."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def _is_hash_of(hashed: str, name: str) -> bool:
    """`|1|salt|hash`, both base64: the hash is HMAC-SHA1 of the name keyed by the salt."""
    parts = hashed.split("|")
    if len(parts) != 4 or parts[1] != "1":
        return False
    try:
        salt, wanted = base64.b64decode(parts[2], validate=True), base64.b64decode(parts[3], validate=True)
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), wanted)
