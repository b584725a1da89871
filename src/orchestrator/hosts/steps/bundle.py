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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from orchestrator.model.packages import PIN, pins, plain
from orchestrator.model.profile import Stack
from orchestrator.protocol.errors import InputError, VerificationDiffers
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
    folders: Mapping[str, Path],
    debian: str = "",
) -> StackBundle:
    """Make `path` from the parts; it appears complete or not at all.

    folders: where each part's files are, by its name: wheels, debs (with their index), image (image.tar), vocabularies
    debian:  the release that the Debian packages are of
    Raises InputError where the lock names a package that no wheel is of.
    """
    files = {
        name: file
        for kind, pattern in _PARTS.items()
        for file in (sorted(folders[kind].iterdir()) if kind in folders else ())
        if pattern.fullmatch(name := f"{kind}/{file.name}")
    }
    digests = {name: sha256(file.open("rb")) for name, file in files.items()}
    requirements = _with_digests(lock, digests, str(folders.get("wheels", "")))
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "stack": stack.name,
        "engine_version": stack.engine_version,
        "python": python,
        "files": {REQUIREMENTS: hashlib.sha256(requirements.encode()).hexdigest(), **digests},
    }
    if debian:
        manifest["debian"] = debian
    _write_tar(path, {MANIFEST: json.dumps(manifest, indent=1), REQUIREMENTS: requirements}, files)
    return _bundle(path, manifest, requirements)


def _write_tar(path: Path, texts: Mapping[str, str], files: Mapping[str, Path]) -> None:
    """Whole, or not at all; the texts first."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        with tarfile.open(fresh, "w", format=tarfile.GNU_FORMAT) as tar:
            for name, text in texts.items():
                tar.addfile(_entry(name, len(text.encode())), io.BytesIO(text.encode()))
            for name, file in files.items():
                with file.open("rb") as content:
                    tar.addfile(_entry(name, file.stat().st_size), content)
        fresh.replace(path)
    except OSError as error:
        raise cant_be_written(path, error, "choose a path with free space: --out FILE") from None
    finally:
        fresh.unlink(missing_ok=True)


def read_bundle(path: Path) -> StackBundle:
    """Read a bundle and prove every part of it by its digest.

    Raises InputError for a file that is none, VerificationDiffers for a damaged one.
    """
    with _open(path) as tar:
        manifest = _manifest(tar)
        wanted: dict[str, str] = dict(manifest["files"])
        requirements = ""
        while entry := tar.next():
            digest = wanted.pop(entry.name, None)
            is_part = any(pattern.fullmatch(entry.name) for pattern in _PARTS.values())
            if digest is None or not entry.isreg() or not (is_part or entry.name == REQUIREMENTS):
                raise ValueError(f"{entry.name!r} does not belong in it")
            content = _opened(tar, entry)
            if entry.name == REQUIREMENTS:
                text = content.read(_LARGEST_TEXT)
                requirements, content = text.decode(), io.BytesIO(text)
            if sha256(content) != digest:
                what = f"{entry.name} differs from what the bundle was built with"
                fix = "copy it again, or build it again with `stack build`"
                raise VerificationDiffers(what, where=str(path), fix=fix)
        if wanted:
            raise ValueError(f"{sorted(wanted)[0]} is missing")
        return _bundle(path, manifest, requirements)


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


_MAKE = "create one with `stack build`"


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
            fix="free space there, or set TMPDIR to another temporary directory",
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
    by_name = {plain(name.removeprefix("wheels/").split("-")[0]): digest for name, digest in digests.items()}
    lines = []
    for pin in pins(lock):
        if (digest := by_name.get(plain(pin["name"]))) is not None:
            lines.append(f"{pin[0].strip()} --hash=sha256:{digest}\n")
        elif not pin["marker"]:  # a package for another platform may be left out
            raise InputError(
                f"the wheel of {pin[0]} is missing",
                where=folder,
                fix="the lock file names a package that can't be found",
            )
    return "".join(lines)


def _opened(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    if (content := tar.extractfile(entry)) is None:
        raise ValueError(f"{entry.name!r} is not a file")
    return content


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.uname, entry.gname = size, 0o644, "root", "root"
    return entry


REQUIRE = "--require-hashes"
_BLOCK = 1 << 20
_HASH = re.compile(r"\s*\\?\s*--hash=sha256:[0-9a-f]{64}")


def sha256(content: IO[bytes]) -> str:
    """Of all that is left in it, in hex; closes it."""
    digest = hashlib.sha256()
    with content:
        while block := content.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def bare(lock: str) -> str:
    """The lock without hashes: which packages it wants, and nothing of how that is proved."""
    return _HASH.sub("", lock).replace(f"{REQUIRE}\n", "")


def lacking(lock: str) -> tuple[str, ...]:
    """Pins without a hash, and pip's option where the lock lacks it."""
    words = _HASH.sub(" HASH", lock).splitlines()
    open_pins = [pin[0].strip() for line in words if (pin := PIN.match(line.strip())) and "HASH" not in line]
    return (*(() if REQUIRE in words else (REQUIRE,)), *open_pins)


def hashed(lock: str, digests: Mapping[str, Iterable[str]]) -> str:
    """The lock with these SHA-256 in place of its own, and pip's option before the first package.

    digests: by `plain` name; a package that it lacks stays without one
    """
    lines, has_digests = [], False
    for line in bare(lock).splitlines():
        pin = PIN.match(line.strip())
        if pin and not has_digests:
            lines.append(REQUIRE)
            has_digests = True
        sha256s = sorted(set(digests.get(plain(pin["name"]), ()))) if pin else []
        lines.append(" \\\n".join([line, *(f"    --hash=sha256:{digest}" for digest in sha256s)]))
    return "\n".join(lines) + "\n"


def wheels(stack: Stack, folder: str) -> dict[str, Path]:
    """The wheel of each package that this stack needs and no index has, by `name==version`.

    folder: what --find-links names. Raises InputError with the first that is missing and where it can be had.
    """
    return {pin: _wheel(stack, pin, words, folder) for pin, words in stack.bring}


def refuse_without(stack: Stack) -> None:
    """Raises InputError for a stack that can't be installed from an index alone."""
    for pin, words in stack.bring:
        raise InputError(
            f"{pin} is on no package index, so this stack can't be installed from one",
            where=f"stack {stack.name}",
            fix=f"{words}; then build a bundle with `stack build` and the `--find-links` of its directory,"
            " which `prepare --bundle` installs",
        )


def with_brought(lock: str, wheels_by_pin: Mapping[str, Path]) -> str:
    """The lock with these wheels, by their SHA-256 where it asks for digests."""
    proved = REQUIRE in lock.splitlines()
    lines = (f"{pin} --hash=sha256:{sha256(file.open('rb'))}" if proved else pin for pin, file in wheels_by_pin.items())
    return "\n".join([lock.rstrip("\n"), *lines, ""])


def _wheel(stack: Stack, pin: str, words: str, folder: str) -> Path:
    name, _, version = pin.partition("==")
    begins = f"{plain(name).replace('-', '_')}-{version}"
    place = Path(folder).expanduser() if folder and "://" not in folder else None
    files = sorted(place.glob("*.whl")) if place else []
    fitting = [file for file in files if re.match(rf"{re.escape(begins)}[-+]", file.name.lower())]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise InputError(
            f"several wheels are {pin}: {', '.join(file.name for file in fitting)}",
            where=str(place),
            fix="leave one of them there",
        )
    raise InputError(
        f"{pin} is on no package index" + (f", and no {begins}-*.whl is in {place}" if place else ""),
        where=f"stack {stack.name}",
        fix=f"{words}; then add --find-links DIR with the folder that holds it",
    )
