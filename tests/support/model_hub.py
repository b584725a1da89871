"""A model hub on a loopback port that implements what Hugging Face's and ModelScope's clients use of their HTTP APIs.

Range requests are honoured, as both hubs honour them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

REPO = "lab/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LFS = ".safetensors"
PART = 64 << 10


@dataclass
class ModelHub:
    """files: by path. token: what a client must send, '' for none.

    slow: seconds between two parts of 64 KiB of a file. bytes_sent: per file so far. lie: files sent with wrong
    contents. asked: (method, path, range) of every request
    """

    files: dict[str, bytes]
    token: str = ""
    slow: dict[str, float] = field(default_factory=dict)
    bytes_sent: dict[str, int] = field(default_factory=dict)
    lie: set[str] = field(default_factory=set)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    url: str = ""

    def sent(self, path: str) -> list[str]:
        """The ranges requested of a file, '' for all of it."""
        return [wanted for method, asked, wanted in self.asked if method == "GET" and asked == path]


@contextlib.contextmanager
def model_hub(files: Mapping[str, bytes], **more: Any) -> Iterator[ModelHub]:
    """A hub that serves these files as the repository REPO."""
    hub = ModelHub(dict(files), **more)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _handler(hub: ModelHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

        def _answer(self, *, with_body: bool) -> None:
            asked = urlsplit(self.path)
            path, query = unquote(asked.path), parse_qs(asked.query)
            name = _file_of(path, query)
            hub.asked.append((self.command, name or path, self.headers.get("Range", "")))
            if hub.token and hub.token not in (self.headers.get("Authorization", "") + self.headers.get("Cookie", "")):
                self._send(401, b'{"error": "Invalid credentials", "Message": "login first"}', {}, with_body)
            elif name is not None and name in hub.files:
                self._file(name, with_body)
            else:
                document = _document(hub, path)
                found = document is not None
                body = json.dumps(document if found else {"error": "Repository not found", "Code": 404}).encode()
                headers = {"Content-Type": "application/json"} | ({} if found else {"X-Error-Code": "RepoNotFound"})
                self._send(200 if found else 404, body, headers, with_body)

        def _file(self, name: str, with_body: bool) -> None:
            data = hub.files[name]
            lfs = name.endswith(LFS)
            etag = hashlib.sha256(data).hexdigest() if lfs else _git(data)
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            if lfs:
                headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data))}
            body = bytes(len(data)) if name in hub.lie else data
            span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            status = 200
            if span:
                first, last = int(span[1]), int(span[2] or len(data) - 1)
                headers["Content-Range"] = f"bytes {first}-{min(last, len(data) - 1)}/{len(data)}"
                body, status = body[first : last + 1], 206
            self._send(status, body, headers, with_body, of=name)

        def _send(self, status: int, body: bytes, headers: Mapping[str, str], with_body: bool, of: str = "") -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                with contextlib.suppress(ConnectionError):
                    for at in range(0, len(body), PART):
                        self.wfile.write(body[at : at + PART])
                        hub.bytes_sent[of] = hub.bytes_sent.get(of, 0) + len(body[at : at + PART])
                        time.sleep(hub.slow.get(of, 0.0))

    return Handler


def _file_of(path: str, query: Mapping[str, list[str]]) -> str | None:
    if match := re.fullmatch(rf"/{REPO}/resolve/[^/]+/(.+)", path):
        return match[1]
    if match := re.fullmatch(rf"(?:/api/v1)?/models/{REPO}/resolve/[^/]+/(.+)", path):
        return match[1]
    if path == f"/api/v1/models/{REPO}/repo" and "FilePath" in query:
        return query["FilePath"][0]
    return None


def _document(hub: ModelHub, path: str) -> Any:
    if re.fullmatch(rf"/api/models/{REPO}(/revision/[^/]+)?", path):
        siblings = [_sibling(name, data) for name, data in hub.files.items()]
        return {
            "_id": "1",
            "id": REPO,
            "modelId": REPO,
            "sha": COMMIT,
            "private": False,
            "tags": [],
            "siblings": siblings,
        }
    if re.fullmatch(rf"/api/models/{REPO}/tree/[^/]+/?", path):
        return [_leaf(name, data) for name, data in hub.files.items()]
    if path in (f"/api/v1/models/{REPO}/repo/files", f"/api/v1/models/{REPO}/repo/tree"):
        return _modelscope({"Files": [_entry(name, data) for name, data in hub.files.items()]})
    if path == f"/api/v1/models/{REPO}/revisions":
        branch = {"Revision": "master", "CreatedAt": 1}
        return _modelscope({"RevisionMap": {"Branches": [branch], "Tags": []}})
    if path == f"/api/v1/models/{REPO}":
        return _modelscope({"Name": "tiny", "Path": "lab", "Revision": "master"})
    return None


def _modelscope(data: Any) -> dict[str, Any]:
    return {"Code": 200, "Success": True, "Message": "success", "Data": data}


def _sibling(name: str, data: bytes) -> dict[str, Any]:
    lfs = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return {"rfilename": name, "size": len(data), "blobId": _git(data), **({"lfs": lfs} if name.endswith(LFS) else {})}


def _leaf(name: str, data: bytes) -> dict[str, Any]:
    lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return {
        "type": "file",
        "oid": _git(data),
        "size": len(data),
        "path": name,
        **({"lfs": lfs} if name.endswith(LFS) else {}),
    }


def _entry(name: str, data: bytes) -> dict[str, Any]:
    return {
        "Path": name,
        "Name": name.rpartition("/")[2],
        "Type": "blob",
        "Size": len(data),
        "Sha256": hashlib.sha256(data).hexdigest(),
        "Revision": COMMIT,
        "CommittedDate": 1,
        "IsLFS": name.endswith(LFS),
    }


def _git(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
