"""The parts of a bundle, brought into a folder: wheels by pip, Debian packages by apt-get, an image, vocabularies.

Wheels are for this machine's Python or for another version of it. Debian packages come with all that they depend on,
of the release of the machine that this runs on: for another release, run it on a machine of that one. An image is an
archive out of this machine's Docker or podman.

Vocabularies that tokenizers download at run time are held to the digests that the tokenizers expect. SGLang 0.5.23
needs one for gpt-oss alone (srt/entrypoints/openai/serving_responses.py, `use_harmony`), by openai_harmony 0.0.4, which
looks into $TIKTOKEN_ENCODINGS_BASE before it asks the network and refuses another digest
(src/tiktoken_ext/public_encodings.rs). Other models bring theirs. The router (smg 1.13.0) has the same crate and does
without vocabularies: it passes requests on as text.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.loading.resources import role_defaults
from orchestrator.model.profile import Stack
from orchestrator.protocol.errors import InputError, Unreachable, VerificationDiffers
from orchestrator.remote.deadline import downloaded

DEB_INDEX = "Packages"
"""The index of a flat repository (wiki.debian.org/DebianRepository/Format)."""
VOCABULARIES = {
    "o200k_base.tiktoken": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base.tiktoken": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}
"""SHA-256 by name, as openai_harmony's library has them."""
VOCABULARY_SOURCE = "https://openaipublic.blob.core.windows.net/encodings/"
_LARGEST_VOCABULARY = 64 << 20
DIFFERS = "DO NOT MATCH THE HASHES"
"""What pip says of a file that is not among those that the lock was made with."""
HASHES_DIFFER = (
    "find out who changed that package: it is not the file that the lock was made with; where the lock lacks only this "
    "Python's wheel, add it from a place that you trust: scripts/lock_hashes.py LOCK --python VERSION"
)
_LONGER = "try again with a longer --timeout"
_PIP = (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--progress-bar=off")
_OLDEST_GLIBC, _NEWEST_GLIBC = 5, 39
"""Minor versions of glibc 2.x: manylinux1 is 2.5 (PEP 513), Ubuntu 24.04 has 2.39."""


def download_wheels(
    lock: str, folder: Path, *, python: str, find_links: str, deadline_s: float, progress: Callable[[str], None]
) -> None:
    """Put a wheel of every package of the lock's text into `folder`.

    python:     major.minor that they are for
    find_links: one more place to look, beside those that pip is configured with; '' for none
    progress:   called with the name of each package as pip comes to it
    Raises InputError with pip's own words, Unreachable where it does not end in time.
    """
    requirements = folder / "requirements.txt"
    requirements.touch(mode=0o600)  # the place may hold a password
    requirements.write_text(_source(find_links) + lock)
    target = [] if python == f"{sys.version_info.major}.{sys.version_info.minor}" else platform_options(python)
    output: deque[str] = deque(maxlen=200)
    with subprocess.Popen(
        [*_PIP, *target, f"--dest={folder}", f"--requirement={requirements}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "LC_ALL": "C.UTF-8"},
    ) as pip:
        hearing = threading.Thread(target=_hear, args=(pip, output, progress), daemon=True)
        hearing.start()
        try:
            status = pip.wait(deadline_s)
        except subprocess.TimeoutExpired:
            what = f"pip did not download all packages within {deadline_s:.0f} s"
            fix = f"{_LONGER}; finished downloads stay in the cache"
            raise Unreachable(what, where="pip download", fix=fix) from None
        finally:
            pip.kill()
            hearing.join(5)
            requirements.unlink()
    if status != 0:
        raise _refused_by_pip(output)


def _refused_by_pip(output: Sequence[str]) -> InputError:
    errors = [line.removeprefix("ERROR: ") for line in output if line.startswith("ERROR: ")]
    reason = " | ".join(errors) or (output[-1] if output else "pip gave no reason")
    fix = HASHES_DIFFER if DIFFERS in reason else "add a package location with --find-links PLACE"
    return InputError(reason, where="pip download", fix=fix)


def _source(find_links: str) -> str:
    if not find_links:
        return ""
    is_index = find_links.startswith(("http://", "https://")) and not find_links.endswith(".html")
    return f"--{'extra-index-url' if is_index else 'find-links'} {find_links}\n"


def _hear(pip: subprocess.Popen[str], output: deque[str], progress: Callable[[str], None]) -> None:
    assert pip.stdout is not None
    for line in pip.stdout:
        output.append(line.strip())
        if line.startswith(("Collecting ", "Processing ")):  # the second where the file lies on this machine
            progress(line.split()[1].rpartition("/")[2])


def platform_options(python: str, *, newest_glibc: int = _NEWEST_GLIBC) -> list[str]:
    """Options for another Python than pip's own; pip then has to be told every kind of wheel that will do.

    python: major.minor; newest_glibc: minor version of glibc 2.x there
    """
    return [
        f"--python-version={python}",
        "--implementation=cp",
        *(f"--abi={abi}" for abi in (f"cp{python.replace('.', '')}", "abi3", "none")),
        *(f"--platform={name}" for name in platforms(newest_glibc)),
    ]


def platforms(newest_glibc: int = _NEWEST_GLIBC) -> list[str]:
    """Every platform that a wheel for this machine's processor may be for, newest C library first."""
    machine = platform.machine()
    glibc = [f"manylinux_2_{minor}_{machine}" for minor in range(newest_glibc, _OLDEST_GLIBC - 1, -1)]
    older = [f"manylinux{year}_{machine}" for year in ("2014", "2010", "1")]
    return [*glibc, *older, f"linux_{machine}"]


def base_packages() -> tuple[str, ...]:
    """What every node gets in addition to its stack's list: the role system_packages has the list."""
    return tuple(role_defaults("system_packages")["system_packages_base"])


def python_packages(version: str) -> tuple[str, ...]:
    """The interpreter that a virtual environment is made from (playbooks/library/l40s_host.py asks for the same)."""
    return tuple(f"python{version}{part}" for part in ("", "-dev", "-venv"))


def release() -> str:
    """This machine's distribution, release and architecture, in the nodes' form: 'debian bookworm amd64'."""
    facts = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines() if "=" in line
    )
    words = [facts.get(key, "").strip("\"'") for key in ("ID", "VERSION_CODENAME")]
    return " ".join([*words, _debian(["dpkg", "--print-architecture"], 30).strip()])


def download_debs(packages: Sequence[str], folder: Path, *, deadline_s: float) -> None:
    """Put these packages, whatever they depend on, and an index of it all into `folder`.

    A node installs what it lacks of them. Raises InputError with apt's own words, Unreachable where it takes too long.
    """
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        fix = "build the bundle on a machine with the nodes' Debian or Ubuntu release"
        raise InputError("this machine has no apt-get", where="--debian", fix=fix)
    with tempfile.TemporaryDirectory(prefix=".l40s-apt-", dir=folder.parent) as scratch:
        apt = _apt(Path(scratch))
        _debian([*apt, "update"], deadline_s)
        _debian([*apt, "--yes", "--no-install-recommends", "--download-only", "install", *packages], deadline_s)
        for file in sorted(Path(scratch, "archives").glob("*.deb")):
            file.rename(folder / file.name.replace("%3a", "."))  # an epoch's colon, which tar takes for a host's
    (folder / DEB_INDEX).write_text("".join(_deb_entry(file) for file in sorted(folder.glob("*.deb"))), "utf-8")


def _apt(folder: Path) -> list[str]:
    """apt-get with this machine's sources and nothing else of it: its lists may be old or away, and with no package
    installed all that one depends on is brought."""
    for name in ("lists", "archives"):
        (folder / name / "partial").mkdir(parents=True)
    options = {
        "Dir::State::status": "/dev/null",
        "Dir::State::lists": str(folder / "lists"),
        "Dir::Cache::archives": str(folder / "archives"),
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "pkgCacheGen::ForceEssential": ",",
        "Debug::NoLocking": "1",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    return ["apt-get", "--quiet", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]


def _deb_entry(file: Path) -> str:
    control = _debian(["dpkg-deb", "--field", str(file)], 60).strip()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return f"{control}\nFilename: ./{file.name}\nSize: {file.stat().st_size}\nSHA256: {digest}\n\n"


def _debian(words: Sequence[str], deadline_s: float) -> str:
    done = _run(words, deadline_s, absent="is not installed", fix="build the bundle on a Debian or Ubuntu machine")
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()[-1:]
        fix = "name packages that this release has, or fix the apt sources"
        raise InputError(" | ".join(errors) or "gave no reason", where=words[0], fix=fix)
    return done.stdout


def save_image(stack: Stack, into: Path, *, deadline_s: float) -> None:
    """Write the stack's image. Raises InputError with the program's own words, Unreachable where it takes too long.

    An archive keeps an image's id and loses the digest by which a registry knows it: only an id can be asked for again.
    """
    if not stack.image.startswith("sha256:"):
        raise InputError(
            f"found {stack.image!r}, wanted the image's id: an archive does not keep a registry's digest",
            where=f"stack {stack.name}: image",
            fix=f"`{stack.install} image inspect --format '{{{{.Id}}}}' NAME` shows it; or let prepare pull the image",
        )
    words = [stack.install, "image", "save", "--output", str(into), stack.image]
    done = _run(words, deadline_s, absent="does not exist", fix="save the image on the machine where it was built")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["gave no reason"])[-1]
        raise InputError(reason, where=f"{stack.install} image save", fix="build or load the image here first")


def _run(words: Sequence[str], deadline_s: float, *, absent: str, fix: str) -> subprocess.CompletedProcess[str]:
    """A program to its end. absent, fix: what is said where there is no such program."""
    try:
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=deadline_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unreachable(f"did not end within {deadline_s:.0f} s", where=words[0], fix=_LONGER) from None
    except FileNotFoundError:
        raise InputError(absent, where=words[0], fix=fix) from None


def bring_vocabularies(folder: Path, *, source: str = "", deadline_s: float) -> None:
    """Put every known vocabulary into `folder`, from a directory, or from where openai_harmony itself takes it.

    Raises InputError or Unreachable where one can't be had, VerificationDiffers where its digest is another.
    """
    for name, digest in VOCABULARIES.items():
        where = str(Path(source) / name) if source else f"{VOCABULARY_SOURCE}{name}"
        content = _vocabulary(where, deadline_s)
        if (actual := hashlib.sha256(content).hexdigest()) != digest:
            fix = "download it again from the tokenizer's publisher"
            raise VerificationDiffers(f"its SHA-256 is {actual}, wanted {digest}", where=where, fix=fix)
        (folder / name).write_bytes(content)


def _vocabulary(where: str, deadline_s: float) -> bytes:
    """A file's, or an address's."""
    try:
        if where.startswith(VOCABULARY_SOURCE):
            return downloaded(where, _LARGEST_VOCABULARY, deadline_s)
    except OSError as error:
        what = f"can't be downloaded: {getattr(error, 'reason', error)}"
        fix = "download the files on a machine with access and use --vocabularies DIR"
        raise Unreachable(what, where=where, fix=fix) from None
    try:
        with Path(where).open("rb") as file:
            return file.read(_LARGEST_VOCABULARY)
    except OSError as error:
        fix = f"put {', '.join(VOCABULARIES)} into that folder"
        raise InputError(f"can't be read: {error.strerror or error}", where=where, fix=fix) from None
