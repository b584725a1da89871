"""The node application as one zip file: a pure function of the sources and of our Python, named by its own digest.

Each source has its byte code beside it, which a node with the same Python loads instead of compiling the source at
every verb (that is two thirds of a verb's time); any other Python finds another magic number and takes the source.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import marshal
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_WITH_ON_NODE = ("__init__", "messages")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest date that a zip file can hold: no clock in the result
_FORMAT = b"2"  # counts up when the archive is made in another way from the same sources
_UNCHECKED_HASH = (1).to_bytes(4, "little")  # PEP 552: byte code that is valid whatever its source looks like
_NO_REFERENCES = 2  # of marshal: later versions write what depends on who else holds an object


_making = threading.Lock()


@dataclass(frozen=True, slots=True)
class App:
    """digest: SHA-256 of the archive in hex; name: its file name on every node."""

    content: bytes
    digest: str

    @property
    def name(self) -> str:
        return f"l40s-node-{self.digest[:32]}.pyz"


def application() -> App:
    """The application of this version, made once a process and kept in the user's cache by its sources' digest."""
    with _making:
        return _application()


def build(sources: Mapping[str, bytes]) -> bytes:
    """A zip archive of these files, with byte code; the same files give the same bytes from the same Python."""
    import zipfile  # 20 ms that only a new version pays

    sources = {**sources, **{f"{name}c": byte_code(name, text) for name, text in sources.items()}}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(sources):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, sources[name])
    return buffer.getvalue()


def byte_code(name: str, source: bytes) -> bytes:
    """The contents of a .pyc file of this Python."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    head = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source)
    return head + marshal.dumps(code, _NO_REFERENCES)


def sources() -> dict[str, bytes]:
    """Every file of the archive by its name inside: the node and protocol packages, on_node/ and messages.py of the
    packages that have something to do there, pynvml, the entry point."""
    node = _PACKAGE / "node"
    ours = [*node.rglob("*.py"), *(_PACKAGE / "protocol").rglob("*.py")]
    for there in _PACKAGE.glob("*/on_node"):
        ours += [*there.rglob("*.py"), *(path for path in there.parent.glob("*.py") if path.stem in _WITH_ON_NODE)]
    files = {f"orchestrator/{path.relative_to(_PACKAGE)}": path for path in ours}
    files["orchestrator/__init__.py"] = _PACKAGE / "__init__.py"
    files["__main__.py"] = node / "__main__.py"
    files["pynvml.py"] = _pynvml()
    return {name: path.read_bytes() for name, path in files.items()}


@cache
def _application() -> App:
    files = sources()
    seed = hashlib.sha256(_FORMAT + importlib.util.MAGIC_NUMBER)
    for name in sorted(files):
        seed.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    kept = _cache_dir() / f"node-app-{seed.hexdigest()[:32]}"
    if (app := _read(kept)) is None:
        content = build(files)
        app = App(content, hashlib.sha256(content).hexdigest())
        _keep(kept, app)
    return app


def _pynvml() -> Path:
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise RuntimeError("pynvml (package nvidia-ml-py) is not installed; it is one of our dependencies")
    return Path(spec.origin)


def _cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "l40s-deploy"


def _read(path: Path) -> App | None:
    """A kept application: its digest on the first line, then its bytes. None for a file that is torn or strange."""
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    actual = hashlib.sha256(content).hexdigest()
    return App(content, actual) if digest == actual.encode("ascii") else None


def _keep(path: Path, app: App) -> None:
    """Keep the application; without a writable cache it is built each time."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.write_bytes(app.digest.encode("ascii") + b"\n" + app.content)
        temporary.replace(path)
