"""Secrets, certificates and keys out of files of the controller. Errors never show what is in a secret file."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from orchestrator.loading.resources import read_regular
from orchestrator.protocol.errors import InputError

_TOKEN = re.compile(r"[A-Za-z0-9._~+/][A-Za-z0-9._~+/-]{7,511}=*")
"""What an Authorization header may carry (RFC 6750, b64token), long enough to be found in a log without
mistaking anything else for it, and never like a flag."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_api_key(path: Path, *, where: str) -> str:
    """The key in a file, blanks around it left out. Raises InputError."""
    text = read_private_text(path, what="the key", where=where)
    if _TOKEN.fullmatch(text) is None:
        what = f"{path} does not hold a key: wanted 8 or more of A-Z a-z 0-9 . _ ~ + / - on one line, no - first"
        raise InputError(what, where=where, fix=f"openssl rand -hex 24 > {path}")
    return text


def read_private_line(path: Path, *, what: str, where: str) -> str:
    """The one line in a file, blanks around it left out. Raises InputError."""
    text = read_private_text(path, what=what, where=where)
    if not text or not text.isprintable():
        raise InputError(f"{path} does not hold one line", where=where, fix=f"write {what} into it, nothing else")
    return text


def read_private_text(path: Path, *, what: str, where: str) -> str:
    """All of a file, blanks around it left out. Raises InputError."""
    mode, content = _read(path, f"name a file that contains {what}", where)
    try:
        text = content.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file", where=where, fix=f"write {what} into it, nothing else") from None
    if mode & _OTHERS:
        what = f"{path} may be read by others (mode {stat.S_IMODE(mode):04o})"
        raise InputError(what, where=where, fix=f"chmod 600 {path}")
    return text


def _read(path: Path, fix: str, where: str) -> tuple[int, bytes]:
    try:
        return read_regular(path)
    except OSError as failure:
        raise InputError(f"{path} can't be read: {failure.strerror or failure}", where=where, fix=fix) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedKey:
    """certificate: PEM text with the chain as it is in the file; until: when its first certificate expires (UTC)"""

    certificate: str
    key: str = field(repr=False)
    until: datetime


def valid_until(certificate: str) -> datetime | None:
    """When the first certificate of a PEM text expires (UTC); None for what is none."""
    try:
        return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc
    except ValueError:
        return None


def read_certificate(cert: Path, *, where: str) -> str:
    """The PEM text, with the chain as it is in the file. Raises InputError."""
    fix = "name the certificate's PEM file"
    _, content = _read(cert, fix, where)
    try:
        x509.load_pem_x509_certificate(content)
        return content.decode("ascii").strip() + "\n"
    except ValueError:
        raise InputError(f"{cert} holds no PEM certificate", where=where, fix=fix) from None


def read_certified_key(cert: Path, key: Path, *, where: str, key_where: str) -> CertifiedKey:
    """Both files, if they belong together. Raises InputError."""
    text = read_certificate(cert, where=where)
    first = x509.load_pem_x509_certificate(text.encode())
    private = read_private_text(key, what="the certificate's private key", where=key_where)
    try:
        public = load_pem_private_key(private.encode(), password=None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        what = f"{key} holds no PEM private key, or one with a password"
        fix = f"openssl pkey -in {key} -out plain.pem, mode 0600, and name plain.pem"
        raise InputError(what, where=key_where, fix=fix) from None
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if public.public_bytes(*form) != first.public_key().public_bytes(*form):
        what = f"{key} is not the key of the certificate in {cert}"
        raise InputError(what, where=where, fix="name the two files of one certificate")
    return CertifiedKey(certificate=text, key=f"{private}\n", until=first.not_valid_after_utc)
