"""A bundle: all packages of a stack in one file, with the digest of every part, for nodes that reach no package index.

It is an uncompressed tar: manifest.json first, then requirements.txt (the lock with the digest of every wheel, so that
pip on the node proves each once more) and wheels/, or image/ of a stack in a container; where they were asked for debs/
(Debian packages with their index) and vocabularies/ (what tokenizers would download). The same parts give the same
bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from orchestrator.hosts.steps.locks import pins, plain, sha256
from orchestrator.model.errors import InputError, VerificationDiffers
from orchestrator.model.profile import Stack
from orchestrator.records.documents import cant_be_written

FORMAT = 1
MANIFEST = "manifest.json"
REQUIREMENTS = "requirements.txt"
_LARGEST_TEXT = 4 << 20
"""Bytes of a manifest or lock; a file that claims more is no bundle."""
_PARTS = {
    "wheels": re.compile(r"wheels/[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl"),
    "debs": re.compile(r"debs/([A-Za-z0-9][A-Za-z0-9._+~-]*\.deb|Packages)"),
    "image": re.compile(r"image/image\.tar"),
    "vocabularies": re.compile(r"vocabularies/[A-Za-z0-9][A-Za-z0-9._-]*"),
}


@dataclass(frozen=True, slots=True)
class StackBundle:
    """One bundle as its manifest has it.

    python: major.minor that its wheels were built for
    debian: release that its Debian packages are of, as 'debian bookworm amd64'; '' where it has none
    vocabularies: the tokenizers' files that it has
    image:  it has the archive of a container image
    digest: SHA-256 of the manifest, which holds the digests of all else
    lock:   text of its requirements.txt
    """

    path: Path
    stack: str
    engine_version: str
    python: str
    digest: str
    lock: str
    packages: int
    bytes: int
    debian: str = ""
    vocabularies: tuple[str, ...] = ()
    image: bool = False


def write_bundle(
    path: Path,
    stack: Stack,
    *,
    python: str,
    lock: str,
    wheels: Path,
    debs: Path | None = None,
    debian: str = "",
    vocabularies: Path | None = None,
    image: Path | None = None,
) -> StackBundle:
    """Make `path` from the wheels in a folder; it appears complete or not at all.

    debs: a folder of Debian packages with their index, and `debian` the release that they are of
    vocabularies: a folder of tokenizers' files
    image: a folder with the archive of the stack's image, image.tar
    Raises InputError where the lock names a package that the folder lacks.
    """
    files = {f"wheels/{file.name}": file for file in sorted(wheels.glob("*.whl"))}
    digests = {name: sha256(file.open("rb")) for name, file in files.items()}
    requirements = _with_digests(
        lock, {name.partition("/")[2]: digest for name, digest in digests.items()}, str(wheels)
    )
    for kind, folder in (("debs", debs), ("vocabularies", vocabularies), ("image", image)):
        for file in sorted(folder.iterdir()) if folder else ():
            files[f"{kind}/{file.name}"] = file
            digests[f"{kind}/{file.name}"] = sha256(file.open("rb"))
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "stack": stack.name,
        "engine_version": stack.engine_version,
        "python": python,
        "files": {REQUIREMENTS: hashlib.sha256(requirements.encode()).hexdigest(), **digests},
    }
    if debs:
        manifest["debian"] = debian
    fresh = path.with_name(f"{path.name}.new")
    try:
        with tarfile.open(fresh, "w", format=tarfile.GNU_FORMAT) as tar:
            _add_text(tar, MANIFEST, json.dumps(manifest, indent=1))
            _add_text(tar, REQUIREMENTS, requirements)
            for name, file in files.items():
                with file.open("rb") as content:
                    tar.addfile(_entry(name, file.stat().st_size), content)
        fresh.replace(path)
    except OSError as error:
        raise cant_be_written(path, error, "choose a path with free space: --out FILE") from None
    finally:
        fresh.unlink(missing_ok=True)
    return _bundle(path, manifest, requirements)


def read_bundle(path: Path) -> StackBundle:
    """Read a bundle and prove every part of it by its digest.

    Raises InputError for a file that is none, VerificationDiffers for a damaged one.
    """
    with _open(path) as tar:
        return _proved(path, tar)


def stack_in(path: Path) -> str:
    """The stack that a bundle names, by its manifest alone. Raises InputError for a file that is none."""
    with _open(path) as tar:
        return str(_manifest(tar)["stack"])


@contextmanager
def _open(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r:") as tar:
            yield tar
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror or error}", where=str(path), fix=_MAKE) from None
    except (tarfile.TarError, EOFError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"is not a complete bundle: {error}", where=str(path), fix=_MAKE) from None


_MAKE = "create one: l40s-deploy stack build STACK --out FILE"


def _proved(path: Path, tar: tarfile.TarFile) -> StackBundle:
    manifest = _manifest(tar)
    wanted: dict[str, str] = dict(manifest["files"])
    requirements = ""
    while entry := tar.next():
        digest = wanted.pop(entry.name, None)
        if digest is None or not entry.isreg() or not _may_hold(entry.name):
            raise ValueError(f"{entry.name!r} does not belong in it")
        content = _opened(tar, entry)
        if entry.name == REQUIREMENTS:
            text = content.read(_LARGEST_TEXT)
            requirements, content = text.decode(), io.BytesIO(text)
        if sha256(content) != digest:
            raise VerificationDiffers(
                f"{entry.name} differs from what the bundle was built with",
                where=str(path),
                fix="copy it again, or build it again with `l40s-deploy stack build`",
            )
    if wanted:
        raise ValueError(f"{sorted(wanted)[0]} is missing")
    return _bundle(path, manifest, requirements)


def _may_hold(name: str) -> bool:
    return name == REQUIREMENTS or any(pattern.fullmatch(name) for pattern in _PARTS.values())


def copy_part(bundle: StackBundle, part: str, into: Path) -> None:
    """Write one part (wheels, debs, vocabularies) of a bundle that was read as a tar of its own.

    Raises InputError where there is no room for it.
    """
    try:
        with tarfile.open(bundle.path, "r:") as whole, tarfile.open(into, "w", format=tarfile.GNU_FORMAT) as tar:
            while entry := whole.next():
                if _PARTS[part].fullmatch(entry.name) and entry.isreg():
                    tar.addfile(_entry(entry.name, entry.size), _opened(whole, entry))
    except OSError as error:
        raise InputError(
            f"{part} of {bundle.path} can't be unpacked: {error.strerror or error}",
            where=str(into.parent),
            fix="free space there, or use another temporary directory: TMPDIR=DIR l40s-deploy prepare ...",
        ) from None


def _manifest(tar: tarfile.TarFile) -> Mapping[str, Any]:
    first = tar.next()
    if first is None or first.name != MANIFEST or first.size > _LARGEST_TEXT:
        raise ValueError("it does not start with a manifest")
    manifest = json.loads(_opened(tar, first).read())
    if manifest["format"] != FORMAT:
        raise ValueError(f"its format is {manifest['format']!r}, and this version reads {FORMAT}")
    if not re.fullmatch(r"3\.\d{1,3}", manifest["python"]):
        raise ValueError(f"its Python is {manifest['python']!r}")
    return dict(manifest)


def _bundle(path: Path, manifest: Mapping[str, Any], requirements: str) -> StackBundle:
    names: list[str] = list(manifest["files"])
    return StackBundle(
        path=path,
        stack=str(manifest["stack"]),
        engine_version=str(manifest["engine_version"]),
        python=str(manifest["python"]),
        digest=hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest(),
        lock=requirements,
        packages=sum(name.startswith("wheels/") for name in names),
        bytes=path.stat().st_size,
        debian=str(manifest.get("debian") or ""),
        image=any(name.startswith("image/") for name in names),
        vocabularies=tuple(name.partition("/")[2] for name in names if name.startswith("vocabularies/")),
    )


def _with_digests(lock: str, digests: Mapping[str, str], folder: str) -> str:
    """The lock's pins with their wheels' digests; options and comments are left out."""
    by_name = {plain(wheel.split("-")[0]): digest for wheel, digest in digests.items()}
    lines = []
    for pin in pins(lock):
        digest = by_name.get(plain(pin["name"]))
        if digest is not None:
            lines.append(f"{pin[0].strip()} --hash=sha256:{digest}\n")
        elif not pin["marker"]:  # a package for another platform may be left out
            raise InputError(
                f"the wheel of {pin[0]} is missing",
                where=folder,
                fix="the lock file names a package that can't be found",
            )
    return "".join(lines)


def _opened(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(entry)
    if content is None:
        raise ValueError(f"{entry.name!r} is not a file")
    return content


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    tar.addfile(_entry(name, len(content)), io.BytesIO(content))


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.uname, entry.gname = size, 0o644, "root", "root"
    return entry
