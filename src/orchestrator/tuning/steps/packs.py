"""Packs of tuned configs on the controller's disk: a directory, or a tar with the same parts."""

from __future__ import annotations

import io
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.engines.registry import dialects
from orchestrator.model.errors import InputError
from orchestrator.node.below import FIX, plain_path
from orchestrator.records.documents import cant_be_written
from orchestrator.tuning.pack import LARGEST_PART, MANIFEST, MOST_PARTS, Pack, manifest, read_pack

_TARS = (".tar", ".tar.gz", ".tgz")


def load_pack(path: Path) -> Pack:
    """A pack, proved and judged. Raises InputError with the reason where it can't be used."""
    try:
        parts = dict(_of_folder(path) if path.is_dir() else _of_tar(path))
        return _judged(parts)
    except OSError as error:
        raise InputError(
            f"can't be read: {error.strerror or error}",
            where=str(path),
            fix="create a pack with `l40s-deploy tuning pull PACK`",
        ) from None
    except (ValueError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as wrong:
        raise InputError(
            f"the pack is not valid: {wrong}",
            where=str(path),
            fix="nothing was written. Create the pack again with `l40s-deploy tuning pull PACK`",
        ) from None


def proved(pack: Pack, where: str) -> Pack:
    """The pack, judged as one that is read. Raises InputError with the reason where it can't be used."""
    try:
        return _judged({MANIFEST: manifest(pack), **pack.texts})
    except ValueError as wrong:
        raise InputError(f"the pack would not be valid: {wrong}", where=where, fix="nothing was written") from None


def save_pack(path: Path, pack: Pack) -> None:
    """Write a pack; it appears complete or not at all. Raises InputError for a path that exists or can't be written."""
    parts = {MANIFEST: manifest(pack), **pack.texts}
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    if path.exists() or path.is_symlink():
        raise InputError("already exists", where=str(path), fix="choose another path, or remove it")
    try:
        if path.name.endswith(_TARS):
            _write_tar(draft, parts, packed=not path.name.endswith(".tar"))
        else:
            _write_folder(draft, parts)
        draft.rename(path)
    except ValueError as wrong:
        raise InputError(f"the pack is not valid: {wrong}", where=str(path), fix=FIX) from None
    except OSError as error:
        raise cant_be_written(path, error, "choose a path with free space") from None
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)


def _judged(parts: Mapping[str, str]) -> Pack:
    return read_pack(parts, {name: one.engine(one.versions[-1]).tuned.by_triton for name, one in dialects().items()})


def _of_folder(path: Path) -> Iterator[tuple[str, str]]:
    for number, file in enumerate(sorted(file for file in path.rglob("*") if not file.is_dir())):
        part = str(file.relative_to(path))
        if number > MOST_PARTS:
            raise ValueError(f"it has more than {MOST_PARTS} parts")
        if file.is_symlink() or not file.is_file():
            raise ValueError(f"{part} is not a regular file")
        with file.open("rb") as content:
            yield part, _text(part, content.read(LARGEST_PART + 1))


def _of_tar(path: Path) -> Iterator[tuple[str, str]]:
    with tarfile.open(path, "r:*") as tar:
        for number, entry in enumerate(tar):
            if number > 2 * MOST_PARTS:
                raise ValueError(f"it has more than {MOST_PARTS} parts")
            if entry.isdir():
                continue
            part = entry.name.removeprefix("./")
            content = tar.extractfile(entry) if entry.isreg() else None
            if content is None:
                raise ValueError(f"{part!r} is not a regular file")
            yield part, _text(part, content.read(LARGEST_PART + 1))


def _text(part: str, data: bytes) -> str:
    if len(data) > LARGEST_PART:
        raise ValueError(f"{part} is longer than {LARGEST_PART} bytes")
    return data.decode("utf-8")


def _write_folder(folder: Path, parts: Mapping[str, str]) -> None:
    for part, text in parts.items():
        file = folder / plain_path(part)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode("utf-8"))


def _write_tar(path: Path, parts: Mapping[str, str], *, packed: bool) -> None:
    with tarfile.open(path, "w:gz" if packed else "w", format=tarfile.GNU_FORMAT) as tar:
        for part, text in parts.items():
            content = text.encode("utf-8")
            entry = tarfile.TarInfo(plain_path(part))
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
