"""Vocabularies that tokenizers download at run time, brought once and held to the digests that the tokenizers expect.

SGLang 0.5.23 needs one for gpt-oss alone (srt/entrypoints/openai/serving_responses.py, `use_harmony`), by
openai_harmony 0.0.4, which looks into $TIKTOKEN_ENCODINGS_BASE before it asks the network and refuses another digest
(src/tiktoken_ext/public_encodings.rs). sglang-router 0.3.2 has the same crate. Other models bring theirs.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from orchestrator.model.errors import InputError, Unreachable, VerificationDiffers
from orchestrator.remote.download import downloaded

KNOWN = {
    "o200k_base.tiktoken": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base.tiktoken": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}
"""SHA-256 by name, as openai_harmony's library has them."""
SOURCE = "https://openaipublic.blob.core.windows.net/encodings/"
_LARGEST = 64 << 20


def bring(folder: Path, *, source: str = "", deadline_s: float) -> None:
    """Put every known vocabulary into `folder`, from a directory, or from where openai_harmony itself takes it.

    Raises InputError or Unreachable where one can't be had, VerificationDiffers where its digest is another.
    """
    for name, digest in KNOWN.items():
        content = _read(Path(source) / name) if source else _fetch(f"{SOURCE}{name}", deadline_s)
        found = hashlib.sha256(content).hexdigest()
        if found != digest:
            raise VerificationDiffers(
                f"its SHA-256 is {found}, wanted {digest}",
                where=str(Path(source) / name) if source else f"{SOURCE}{name}",
                fix="download it again from the tokenizer's publisher",
            )
        (folder / name).write_bytes(content)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST)
    except OSError as error:
        raise InputError(
            f"can't be read: {error.strerror or error}", where=str(path), fix=f"put {', '.join(KNOWN)} into that folder"
        ) from None


def _fetch(address: str, deadline_s: float) -> bytes:
    try:
        return downloaded(address, _LARGEST, deadline_s)
    except OSError as error:
        raise Unreachable(
            f"can't be downloaded: {getattr(error, 'reason', error)}",
            where=address,
            fix="download the files on a machine with access and use --vocabularies DIR",
        ) from None
