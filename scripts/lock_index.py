#!/usr/bin/env python3
"""Ask the package index whether the locks of the stacks and the router can still be installed from it.

    scripts/lock_index.py                                    # all of ours
    scripts/lock_index.py inventory/stacks/mine.lock --python 3.12

One small request for each package (PEP 503 and 691), all at once, and no download: of each pin, a wheel for the stack's
Python and C library must still be there with a SHA-256 that the lock has. A yanked one is told and does: pip takes it.
Packages that an operator brings (`bring:` in the stack's file) are on no index, and are not asked for. A package with a
local version (torch 2.13.0+cpu) is looked for where pip's --find-links points, then on PyTorch's own index.

Exit codes: 0 all can be had, 3 some can't be had any more, 4 an index did not answer, so that nothing is known.
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import os
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_CHECKOUT / "src"))

from packaging.tags import Tag, compatible_tags, cpython_tags  # noqa: E402
from packaging.utils import InvalidWheelFilename, parse_wheel_filename  # noqa: E402

from orchestrator.hosts.steps import bundle as locks  # noqa: E402
from orchestrator.hosts.steps.parts import platforms  # noqa: E402
from orchestrator.loading.profiles import load_stack  # noqa: E402
from orchestrator.protocol.errors import Exit  # noqa: E402

OURS = ("inventory/stacks/*.lock", "playbooks/roles/router_env/files/*.lock")
PYPI = "https://pypi.org/simple"
PYTORCH = "https://download.pytorch.org/whl/cpu"
"""Where packages with a local version (2.13.0+cpu) are: PyPI takes none (PEP 440, "Local version identifiers")."""
_PYTHON, _GLIBC = "3.11", 39
"""Of a lock without a stack's file beside it (the router's), and the newest C library that nodes have."""
_AT_ONCE = 16
_TRIES = 3
_PAUSE_S = 1.0
_LONGEST = 64 << 20
_JSON = "application/vnd.pypi.simple.v1+json"
_ANCHOR = re.compile(r"<a\s(?P<attributes>[^>]*)>(?P<name>[^<]*)</a>", re.IGNORECASE)
_SHA256 = re.compile(r"#sha256=([0-9a-f]{64})")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class NoAnswer(Exception):
    """An index that could not be asked, with the reason."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that an index offers. yanked: None where it is not, else the reason, '' for none given"""

    name: str
    sha256: str
    yanked: str | None


Page = Sequence[File] | None | NoAnswer
"""What an index offers of a project; None where it knows none."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A line of a lock. digests: empty where the lock has none"""

    name: str
    version: str
    digests: frozenset[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("locks", nargs="*", type=Path, metavar="LOCK", help="ours where none is named")
    parser.add_argument("--python", metavar="VERSION", help="3.12 (default: the stack's)")
    parser.add_argument("--index", default="", metavar="URL", help="of the simple API (default: pip's, else PyPI)")
    parser.add_argument("--local-index", default=PYTORCH, metavar="URL", help="of packages with a local version")
    parser.add_argument("--find-links", default="", metavar="DIR", help="with those, looked at first (default: pip's)")
    parser.add_argument("--timeout", type=float, default=180.0, metavar="S", help="for all requests together")
    args = parser.parse_args()
    files = args.locks or [path for pattern in OURS for path in sorted(_CHECKOUT.glob(pattern))]
    wanted = {file: pins_of(file.read_text("utf-8")) for file in files}
    index = (args.index or of_pip("index-url") or PYPI).rstrip("/")
    folders = tuple(map(Path, (args.find_links or of_pip("find-links")).split()))
    pages = pages_of({pin for pins in wanted.values() for pin in pins}, index, args.local_index.rstrip("/"),
                     folders=folders, deadline=time.monotonic() + args.timeout)  # fmt: skip
    found = [told(file, pins, pages, tags_of(file, args.python)) for file, pins in wanted.items()]
    return Exit.FINDINGS if Exit.FINDINGS in found else max(found, default=0)


def told(file: Path, pins: Sequence[Pin], pages: Mapping[Pin, Page], tags: frozenset[Tag]) -> int:
    """Say what of a lock can't be had; the exit code for it."""
    gone = unknown = 0
    for pin in pins:
        page = pages[pin]
        if isinstance(page, NoAnswer):
            unknown += 1
            words = f"NOT CHECKED: {page}"
        else:
            wrong, note = judged(pin, page, tags)
            gone += bool(wrong)
            words = f"can't be had: {wrong}" if wrong else note
        if words:
            print(f"{file.name}: {pin.name}=={pin.version}: {words}", file=sys.stderr)
    print(f"{file.name}: {len(pins) - gone - unknown} of {len(pins)} packages can be had")
    return Exit.FINDINGS if gone else Exit.UNREACHABLE if unknown else 0


def pages_of(
    pins: Collection[Pin], index: str, local_index: str, *, folders: Sequence[Path], deadline: float
) -> dict[Pin, Page]:
    """What is offered of each pin's project. folders: where packages with a local version are looked for first."""
    found: dict[Pin, Page] = {pin: files for pin in pins if "+" in pin.version and (files := of_folders(pin, folders))}
    places = {pin: f"{local_index if '+' in pin.version else index}/{pin.name}/" for pin in pins if pin not in found}
    answers = asked(sorted(set(places.values())), deadline=deadline)
    return found | {pin: answers[place] for pin, place in places.items()}


def of_folders(pin: Pin, folders: Sequence[Path]) -> tuple[File, ...]:
    """The wheels of a pin's version in folders of this machine."""
    return tuple(
        File(path.name, locks.sha256(path.open("rb")), None)
        for folder in folders
        for path in sorted(folder.glob("*.whl"))
        if locks.plain(path.name.split("-")[0]) == pin.name and (of := _wheel(path.name)) and of[0] == pin.version
    )


def pins_of(lock: str) -> tuple[Pin, ...]:
    """The packages of a lock that Linux installs, with their digests."""
    found = []
    for line in lock.replace("\\\n", " ").splitlines():
        pin = locks.PIN.match(line.strip())
        if pin and "win32" not in (pin["marker"] or ""):
            found.append(Pin(locks.plain(pin["name"]), pin["version"], frozenset(_HASH.findall(line))))
    return tuple(found)


def tags_of(lock: Path, python: str | None) -> frozenset[Tag]:
    """What a wheel may be for: the stack's Python and C library, where its file is beside the lock."""
    stack = load_stack(str(lock.with_suffix(".yml"))) if lock.with_suffix(".yml").is_file() else None
    version = python or (stack.python if stack else _PYTHON)
    glibc = int(stack.glibc_min.partition(".")[2]) if stack and stack.glibc_min else 0
    kinds = platforms(max(glibc, _GLIBC))
    major, minor = map(int, version.split("."))
    exact, pure = (
        cpython_tags((major, minor), platforms=kinds),
        compatible_tags((major, minor), f"cp{major}{minor}", kinds),
    )
    return frozenset((*exact, *pure))


def judged(pin: Pin, page: Sequence[File] | None, tags: frozenset[Tag]) -> tuple[str, str]:
    """Why a pin can't be had, and what is worth knowing of one that can; '' for nothing. page: None for no project"""
    if page is None:
        return "the index has no such project", ""
    if not pin.digests or not (locked := [file for file in page if file.sha256 in pin.digests]):
        locked = [file for file in page if (of := _wheel(file.name)) and of[0] == pin.version]
        if not locked:
            return "the index has no wheel of that version", ""
        if pin.digests:
            return "the index has no file with a SHA-256 of the lock", ""
    fitting = [file for file in locked if (of := _wheel(file.name)) and of[1] & tags]
    if not fitting:
        return f"of what the lock has, only files for another Python or C library: {locked[0].name}", ""
    yanked = [file.yanked for file in fitting if file.yanked is not None]
    return "", f"yanked: {yanked[0] or 'no reason given'}" if len(yanked) == len(fitting) else ""


def _wheel(name: str) -> tuple[str, frozenset[Tag]] | None:
    try:
        _, version, _, tags = parse_wheel_filename(name)
    except InvalidWheelFilename:
        return None
    return str(version), tags


def asked(addresses: Sequence[str], *, deadline: float) -> Mapping[str, Page]:
    """What an index offers of each project. deadline: by time.monotonic"""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(addresses, pool.map(lambda address: _answer(address, deadline), addresses), strict=True))


def _answer(address: str, deadline: float) -> Page:
    reason = "the time limit was reached"
    for attempt in range(_TRIES):
        left = deadline - time.monotonic() - attempt * _PAUSE_S
        if left <= 0:
            break
        time.sleep(attempt * _PAUSE_S)
        try:
            return _page(address, left)
        except urllib.error.HTTPError as refused:
            if refused.code in (404, 410):
                return None
            reason = f"HTTP {refused.code}"
        except (OSError, ValueError, EOFError) as wrong:
            reason = str(getattr(wrong, "reason", wrong))
    return NoAnswer(f"{address} did not answer: {reason}")


def _page(address: str, left: float) -> Sequence[File]:
    if not address.startswith(("https://", "http://")):
        raise ValueError("wanted an address with http:// or https://")
    request = urllib.request.Request(  # noqa: S310 - checked above
        address, headers={"Accept": f"{_JSON}, text/html;q=0.1", "Accept-Encoding": "gzip", "User-Agent": "l40s-deploy"}
    )
    with urllib.request.urlopen(request, timeout=min(left, 60.0), context=_trusted()) as answer:  # noqa: S310
        raw = answer.read(_LONGEST)
        kind = answer.headers.get_content_type()
        if answer.headers.get("Content-Encoding") == "gzip":
            raw = gzip.decompress(raw)
    return files_of(raw.decode("utf-8", "replace"), kind)


@cache
def _trusted() -> ssl.SSLContext:
    """Read once: the certificates of this machine take longer to read than a page."""
    return ssl.create_default_context()


def files_of(text: str, kind: str) -> tuple[File, ...]:
    """The files that a page of the simple API names. kind: its content type; ValueError for none of that API's."""
    if kind == _JSON:
        said = json.loads(text)["files"]
        return tuple(
            File(one["filename"], one["hashes"].get("sha256", ""), _yanked(one.get("yanked", False))) for one in said
        )
    if kind != "text/html":
        raise ValueError(f"found {kind}, wanted the simple API of a package index")
    found = []
    for anchor in _ANCHOR.finditer(text):
        attributes = html.unescape(anchor["attributes"])
        digest = _SHA256.search(attributes)
        yanked = re.search(r'data-yanked="([^"]*)"', attributes)
        found.append(File(html.unescape(anchor["name"]).strip(), digest[1] if digest else "", yanked and yanked[1]))
    return tuple(found)


def _yanked(said: bool | str) -> str | None:
    return None if said is False else "" if said is True else said


def of_pip(option: str) -> str:
    """What pip's environment or configuration says of an option, '' for nothing."""
    if value := os.environ.get(f"PIP_{option.replace('-', '_').upper()}", ""):
        return value
    asked = (sys.executable, "-m", "pip", "config", "get", f"global.{option}")
    return subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
