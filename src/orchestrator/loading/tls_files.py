"""A certificate and its key out of PEM files on the controller. Errors never show the key."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from orchestrator.loading.secret_file import read_private_text
from orchestrator.model.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedKey:
    """certificate: PEM text with the chain as it is in the file; until: when its first certificate expires (UTC)"""

    certificate: str
    key: str = field(repr=False)
    until: datetime


def read_certified_key(cert: Path, key: Path, *, where: str) -> CertifiedKey:
    """Both files, if they belong together. Raises InputError."""
    try:
        text = cert.read_text("ascii")
        first = x509.load_pem_x509_certificate(text.encode())
    except OSError as failure:
        raise InputError(
            f"{cert} can't be read: {failure.strerror or failure}", where=where, fix="name the certificate's PEM file"
        ) from None
    except ValueError:
        raise InputError(
            f"{cert} holds no PEM certificate", where=where, fix="name the certificate's PEM file"
        ) from None
    private = read_private_text(key, what="the certificate's private key", where=where)
    try:
        public = load_pem_private_key(private.encode(), password=None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(
            f"{key} holds no PEM private key, or one with a password",
            where=where,
            fix=f"openssl pkey -in {key} -out plain.pem, mode 0600, and name plain.pem",
        ) from None
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if public.public_bytes(*form) != first.public_key().public_bytes(*form):
        raise InputError(
            f"{key} is not the key of the certificate in {cert}",
            where=where,
            fix="name the two files of one certificate",
        )
    return CertifiedKey(certificate=text.strip() + "\n", key=f"{private}\n", until=first.not_valid_after_utc)
