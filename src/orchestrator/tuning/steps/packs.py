"""Packs of tuned configs on the controller's disk, a directory or a tar with the same parts; and `tuning fetch`, which
makes one of published configs, by commit and digest."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import re
import shutil
import tarfile
import time
import urllib.parse
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from orchestrator.engines.registry import dialects, engine_of
from orchestrator.engines.tuned_wanted import device_name
from orchestrator.loading import resources, yaml_fields
from orchestrator.loading.stacks import load_stack
from orchestrator.loading.yaml_fields import Section
from orchestrator.model.errors import InputError, Unreachable, VerificationDiffers
from orchestrator.records.documents import cant_be_written
from orchestrator.remote.download import downloaded
from orchestrator.tuning.pack import (
    DERIVED,
    LARGEST_PART,
    MANIFEST,
    MOST_PARTS,
    PUBLISHED,
    Derived,
    Pack,
    Published,
    devices,
    manifest,
    parts_of,
    read_pack,
)

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


def save_pack(path: Path, pack: Pack) -> None:
    """Write a pack; it appears complete or not at all. Raises InputError for a path that exists or can't be written,
    and for a pack that could not be read again."""
    parts = {MANIFEST: manifest(pack), **pack.texts}
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    if path.exists() or path.is_symlink():
        raise InputError("already exists", where=str(path), fix="choose another path, or remove it")
    try:
        _judged(parts)
        if path.name.endswith(_TARS):
            _write_tar(draft, parts, packed=not path.name.endswith(".tar"))
        else:
            _write_folder(draft, parts)
        draft.rename(path)
    except ValueError as wrong:
        raise InputError(f"the pack would not be valid: {wrong}", where=str(path), fix="nothing was written") from None
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
        file = folder / part
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode("utf-8"))


def _write_tar(path: Path, parts: Mapping[str, str], *, packed: bool) -> None:
    with tarfile.open(path, "w:gz" if packed else "w", format=tarfile.GNU_FORMAT) as tar:
        for part, text in parts.items():
            content = text.encode("utf-8")
            entry = tarfile.TarInfo(part)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))


_AT_ONCE = 8


def fetch(
    name: str, out: Path, *, stack_name: str, gpu: str, checkout: Path | None = None, timeout_s: float = 3600.0
) -> tuple[Published, Pack]:
    """Make a pack of what was published for a stack and GPU. Nothing is written before every file is proved.

    gpu: as NVML names it; checkout: a clone of the publisher's repository, None to download
    Raises InputError where there is nothing for it, Unreachable for a file that can't be had, VerificationDiffers for
    one with another digest.
    """
    published, stack = load_published(name), load_stack(stack_name)
    lookup = engine_of(stack).tuned
    wanted = parts_of(published, lookup, device_name(gpu))
    if not wanted:
        raise InputError(
            f"{published.name} has no config for {gpu}",
            where="--gpu",
            fix="GPUs that it has some for: " + ", ".join(one.replace("_", " ") for one in devices(published)),
        )
    texts = _texts(published, dict(wanted.values()), checkout, time.monotonic() + timeout_s)
    pack = Pack(
        dialect=stack.dialect,
        engine_version=stack.engine_version,
        device=device_name(gpu),
        triton=published.triton,
        texts={part: texts[path] for part, (path, _) in sorted(wanted.items())},
        made=DERIVED if lookup.by_triton else PUBLISHED,
        origin=published.origin,
    )
    save_pack(out, pack)
    return published, pack


def fetched_json(published: Published, pack: Pack, out: Path) -> dict[str, Any]:
    """The document of `tuning fetch --json`."""
    return {
        "pack": str(out),
        "made": pack.made,
        "origin": pack.origin,
        "licence": published.licence,
        "commit": published.commit,
        **pack.about,
        "note": published.note,
        "files": sorted(pack.texts),
    }


def _texts(published: Published, digests: Mapping[str, str], checkout: Path | None, deadline: float) -> dict[str, str]:
    """By path, each proved."""

    def one(path: str) -> str:
        inside = f"{published.folder}/{path}"
        if checkout is not None:
            place = str(checkout / inside)
            content = _read(checkout / inside)
        else:
            place = published.address.format(commit=published.commit, file=urllib.parse.quote(inside))
            content = _download(place, deadline)
        found = hashlib.sha256(content).hexdigest()
        if found != digests[path]:
            raise VerificationDiffers(
                f"its SHA-256 is {found}, wanted {digests[path]}",
                where=place,
                fix=f"nothing was written. Use the file of commit {published.commit}",
            )
        return content.decode("utf-8")

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(digests, pool.map(one, digests), strict=True))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_PART + 1)
    except OSError as error:
        raise InputError(
            f"can't be read: {error.strerror or error}",
            where=str(path),
            fix="name a checkout of that commit with --checkout DIR",
        ) from None


def _download(address: str, deadline: float) -> bytes:
    try:
        return downloaded(address, LARGEST_PART + 1, deadline - time.monotonic())
    except OSError as error:
        raise Unreachable(
            f"can't be downloaded: {getattr(error, 'reason', error)}",
            where=address,
            fix="clone the repository on a machine with access, check out the commit, and use --checkout DIR",
        ) from None


def load_published(name: str) -> Published:
    """The set with this name (or in this .yml file). InputError has the nearest names."""
    top = yaml_fields.read(yaml_fields.choose("set of published configs", name, resources.folders("tuned")))
    address = top.text("address")
    if not address.startswith("https://") or "{file}" not in address:
        raise top.wrong("address", f"found {address!r:.60}, wanted https://... with {{file}} in it")
    files = top.section("files")
    return top.into(
        Published,
        commit=_hexadecimal(top, "commit", 40),
        address=address,
        folder=top.text("folder").strip("/"),
        files={_path(files, path): _hexadecimal(files, path, 64) for path in files.names()},
        derived={
            name: one.into(Derived, source=_path(one, one.text("from")), sha256=_hexadecimal(one, "sha256", 64))
            for name, one in top.sections("derived")
        },
    )


def _path(section: Section, path: str) -> str:
    if path.startswith("/") or ".." in path.split("/") or not path.endswith(".json"):
        raise section.wrong("", f"found {path!r:.80}, wanted a relative path of a .json file")
    return path


def _hexadecimal(section: Section, key: str, digits: int) -> str:
    text = section.text(key)
    if re.fullmatch(rf"[0-9a-f]{{{digits}}}", text) is None:
        raise section.wrong(key, f"found {text!r:.60}, wanted {digits} hexadecimal digits")
    return text
