"""`stack check --arch`: which GPUs each library of a stack's lock holds code for. No GPU and no node is asked."""

from __future__ import annotations

import mmap
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from orchestrator.loading.profiles import stack_lock
from orchestrator.model.packages import pins, plain
from orchestrator.protocol.errors import InputError
from orchestrator.tuning.gpu_code import Fatbin, Holds, fatbins, holds, listed

_LIBRARY = re.compile(r"\.so(\.\d+)*$")
_WHEEL = re.compile(r"(?:.*/)?(?P<name>[A-Za-z0-9._]+)-(?P<version>[^-/]+)-[^/]*\.whl")
_INSTALLED = re.compile(r"(?P<name>[A-Za-z0-9._]+)-(?P<version>[^-]+)\.dist-info")
_CUOBJDUMP_S = 300.0
"""For one library of a gigabyte."""
_LARGEST = 4 << 30
"""Bytes of one library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCode:
    """One library of a package, or a whole package that can't be read: `library` is '' then.

    code:    all that it holds, as `sm_89` and `compute_90`
    running: fat binaries of `fat_binaries` that have something for the GPU that was asked about; None where only
        cuobjdump could read it, which does not say
    why:     it is unknown; '' otherwise
    """

    package: str
    version: str
    library: str = ""
    holds: Holds = Holds.UNKNOWN
    code: tuple[str, ...] = ()
    fat_binaries: int = 0
    running: int | None = None
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        """A member of `libraries[]`."""
        names = ("package", "version", "library", "fat_binaries", "running")
        return {
            **{name: getattr(self, name) for name in names},
            "holds": self.holds.value,
            "code": list(self.code),
            "why": self.why or None,
        }


Told = Callable[[str, int, int], None]
"""(package, place, of)."""
_Opened = tuple[str, IO[bytes]]
_Package = Callable[[], AbstractContextManager[Iterator[_Opened]]]
"""Opens a package: its libraries, one after the other."""


def check_code(stack: str, place: Path, arch: int, told: Told) -> tuple[LibraryCode, ...]:
    """What each package of the lock holds for a GPU of this architecture, the gravest first.

    place: a folder of wheels, a bundle of `stack build`, or an environment's folder
    Raises InputError for a place that is none of these, and a stack without a lock.
    """
    lock = stack_lock(stack).read_text("utf-8")
    wanted = list(dict.fromkeys((plain(pin["name"]), pin["version"]) for pin in pins(lock)))
    with ExitStack() as open_files:
        there = _packages(place, open_files)
        if not there:
            raise InputError(
                "no package is there",
                where=str(place),
                fix=f"name wheels, an environment or a bundle: l40s-deploy stack build {stack} --out gpu.bundle",
            )
        found: list[LibraryCode] = []
        for number, (name, version) in enumerate(wanted, 1):
            told(name, number, len(wanted))
            found += _of_package(name, version, there, arch)
    order = list(Holds)
    return tuple(sorted(found, key=lambda each: (order.index(each.holds), each.package, each.library)))


def _of_package(name: str, version: str, there: Mapping[tuple[str, str], _Package], arch: int) -> list[LibraryCode]:
    other = sorted(its_version for its_name, its_version in there if its_name == name)
    if (package := there.get((name, version))) is None:
        why = f"{', '.join(other)} is there instead" if other else "it is not there"
        return [LibraryCode(package=name, version=version, why=why)]
    try:
        with package() as libraries:
            return [_of_library(name, version, library, content, arch) for library, content in libraries]
    except (OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        return [LibraryCode(package=name, version=version, why=f"it can't be read: {error}")]


def _of_library(name: str, version: str, library: str, content: IO[bytes], arch: int) -> LibraryCode:
    with tempfile.NamedTemporaryFile(prefix="l40s-library-") as copy:
        shutil.copyfileobj(content, copy)
        copy.flush()
        known = LibraryCode(package=name, version=version, library=library)
        try:
            found = _fatbins(Path(copy.name))
        except ValueError as error:
            return _by_cuobjdump(known, Path(copy.name), str(error), arch)
    filled = [fatbin for fatbin in found if fatbin]
    return LibraryCode(
        package=name,
        version=version,
        library=library,
        holds=holds(found, arch),
        code=_names(filled),
        fat_binaries=len(filled),
        running=sum(any(code.runs_on(arch) for code in fatbin) for fatbin in filled),
    )


def _names(found: list[Fatbin]) -> tuple[str, ...]:
    return tuple(map(str, sorted({code for fatbin in found for code in fatbin})))


def _fatbins(path: Path) -> tuple[Fatbin, ...]:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise ValueError("it is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return fatbins(mapped)


def _by_cuobjdump(library: LibraryCode, path: Path, why: str, arch: int) -> LibraryCode:
    """Of what our reader does not understand, where CUDA's own tool is installed."""
    if (tool := shutil.which("cuobjdump")) is None:
        return _unknown(library, why)
    command = [tool, "--list-elf", "--list-ptx", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_CUOBJDUMP_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return _unknown(library, f"{why}; cuobjdump: {error}")
    found = listed(done.stdout.decode("utf-8", "replace"))
    if done.returncode or not found:
        return _unknown(library, f"{why}; cuobjdump says nothing of it either")
    return LibraryCode(
        package=library.package,
        version=library.version,
        library=library.library,
        holds=holds(found, arch),
        code=_names(list(found)),
    )


def _unknown(library: LibraryCode, why: str) -> LibraryCode:
    return LibraryCode(package=library.package, version=library.version, library=library.library, why=why)


def _packages(place: Path, open_files: ExitStack) -> dict[tuple[str, str], _Package]:
    """What is in a place, by plain name and version."""
    try:
        if place.is_file():
            tar = tarfile.open(place, "r:")  # noqa: SIM115 - the stack of open files closes it
            open_files.callback(tar.close)
            return _named({name: _in_tar(tar, name) for name in tar.getnames()}, _WHEEL)
        wheels = {path.name: _in_file(path) for path in sorted(place.glob("*.whl"))}
        if wheels:
            return _named(wheels, _WHEEL)
        folders = sorted(place.rglob("site-packages")) or [place]
        installed = {path.name: _installed(path) for folder in folders for path in sorted(folder.glob("*.dist-info"))}
        return _named(installed, _INSTALLED)
    except (OSError, tarfile.TarError) as error:
        raise InputError(
            f"can't be read: {error}", where=str(place), fix="name a folder of wheels, an environment or a bundle"
        ) from None


def _named(packages: Mapping[str, _Package], pattern: re.Pattern[str]) -> dict[tuple[str, str], _Package]:
    matched = ((pattern.fullmatch(name), package) for name, package in packages.items())
    return {(plain(match["name"]), match["version"]): package for match, package in matched if match}


def _in_tar(tar: tarfile.TarFile, name: str) -> _Package:
    def opened() -> AbstractContextManager[Iterator[_Opened]]:
        if (content := tar.extractfile(name)) is None:
            raise OSError(f"{name!r} is no file")
        return _wheel(content)

    return opened


def _in_file(path: Path) -> _Package:
    return lambda: _wheel(path)


@contextmanager
def _wheel(wheel: Path | IO[bytes]) -> Iterator[Iterator[_Opened]]:
    with zipfile.ZipFile(wheel) as archive:
        members = [entry for entry in archive.infolist() if _LIBRARY.search(entry.filename)]
        if too_large := [entry.filename for entry in members if entry.file_size > _LARGEST]:
            raise OSError(f"{too_large[0]} has over {_LARGEST} bytes")
        yield ((entry.filename, archive.open(entry)) for entry in members)


def _installed(info: Path) -> _Package:
    @contextmanager
    def opened() -> Iterator[Iterator[_Opened]]:
        lines = (info / "RECORD").read_text("utf-8", "replace").splitlines()
        names = [name for name in (line.split(",")[0] for line in lines) if _LIBRARY.search(name)]
        root = info.parent.resolve()
        inside = [root / name for name in names if (root / name).resolve().is_relative_to(root)]
        with ExitStack() as files:
            yield ((str(path.relative_to(root)), files.enter_context(path.open("rb"))) for path in inside)

    return opened


def code_json(stack: str, arch: int, found: tuple[LibraryCode, ...]) -> dict[str, Any]:
    """The document of `stack check --arch --json`."""
    return {"stack": stack, "arch": f"sm_{arch}", "libraries": [library.as_json() for library in found]}
