"""Role `hub-client`: a model hub's own client at work, in an environment that has it (the engine's has both).
With "dry_run" it lists the files and brings none.

stdin: {"hub": "huggingface" | "modelscope", "repo", "revision", "directory", "endpoint", "token", "exclude": [...],
"dry_run"}.
Lines: {"commit", "files": [{"path", "size", "sha256", "git"}]} before the first byte, {"done": true} at the end, else
{"error": {...}} as a DeployError. sha256 is '' for small files of Hugging Face, whose git id `git` is known instead.
The token comes by stdin alone; the client's own caches lie below the directory and go with it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any

from orchestrator.protocol.errors import DeployError

PACKAGES = {"huggingface": "huggingface_hub", "modelscope": "modelscope"}
WORKERS = 8
_GATED = (401, 403)
_ABSENT = (400, 404)


def run(_arguments: Sequence[str]) -> int:
    """Exit status 0 when everything is there, 1 after a reported error."""
    request = json.loads(sys.stdin.buffer.readline())
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a client that prints must not be taken for us

    def tell(line: dict[str, Any]) -> None:
        channel.write(json.dumps(line) + "\n")
        channel.flush()

    try:
        {"huggingface": _huggingface, "modelscope": _modelscope}[request["hub"]](request, tell)
    except DeployError as failure:
        tell({"error": failure.as_told()})
        return 1
    except Exception as fault:  # dozens of classes of the clients and of what they stand on
        tell({"error": _words(fault, request).as_told()})
        return 1
    tell({"done": True})
    return 0


def _huggingface(request: dict[str, Any], tell: Any) -> None:
    hub = _client(request)
    token = request["token"] or None
    api = hub.HfApi(endpoint=request["endpoint"] or None, token=token)
    info = api.model_info(request["repo"], revision=request["revision"] or None, files_metadata=True)
    files = [
        {
            "path": file.rfilename,
            "size": file.size,
            "sha256": (getattr(file.lfs, "sha256", None) or file.lfs["sha256"]) if file.lfs else "",
            "git": file.blob_id or "",
        }
        for file in info.siblings
    ]
    tell({"commit": info.sha, "files": _wanted(files, request)})
    if request["dry_run"]:
        return
    hub.snapshot_download(
        request["repo"],
        revision=info.sha,
        local_dir=request["directory"],
        endpoint=request["endpoint"] or None,
        token=token,
        max_workers=WORKERS,
        ignore_patterns=list(request["exclude"]) or None,
    )


def _modelscope(request: dict[str, Any], tell: Any) -> None:
    if request["endpoint"]:
        os.environ["MODELSCOPE_ENDPOINT"] = request["endpoint"]
        os.environ["MODELSCOPE_URL_SCHEME"], _, domain = request["endpoint"].partition("://")
        os.environ["MODELSCOPE_URL_SCHEME"] += "://"
        os.environ["MODELSCOPE_DOMAIN"] = domain  # how older releases are told
    if request["token"]:
        os.environ["MODELSCOPE_API_TOKEN"] = request["token"]
    _client(request)
    revision = request["revision"] or "master"
    tell({"commit": revision, "files": _wanted(_listed_by_modelscope(request["repo"], revision), request)})
    if request["dry_run"]:
        return
    importlib.import_module("modelscope.hub.snapshot_download").snapshot_download(
        request["repo"],
        revision=revision,
        local_dir=request["directory"],
        ignore_file_pattern=list(request["exclude"]) or None,
    )


def _listed_by_modelscope(repo: str, revision: str) -> list[dict[str, Any]]:
    """Its newer releases stand on modelscope_hub, and leave digests out of what they show under the older name."""
    try:
        hub = importlib.import_module("modelscope_hub.api")
    except ImportError:
        api = importlib.import_module("modelscope.hub.api").HubApi()
        return [
            {"path": file["Path"], "size": file["Size"], "sha256": file.get("Sha256") or "", "git": ""}
            for file in api.get_model_files(repo, revision=revision, recursive=True)
            if file.get("Type") != "tree"
        ]
    return [
        {"path": file.path, "size": file.size, "sha256": getattr(file, "sha256", None) or "", "git": ""}
        for file in hub.HubApi().list_repo_files(repo, "model", revision=revision)
        if file.type != "tree"
    ]


def _client(request: dict[str, Any]) -> Any:
    package = PACKAGES[request["hub"]]
    try:
        return importlib.import_module(package)
    except ImportError as fault:
        raise DeployError(
            f"{sys.executable} has no {package} ({fault})",
            where=sys.executable,
            fix=f"there: python3 -m venv ~/hub && ~/hub/bin/pip install {package}; then use --python ~/hub/bin/python",
            kind="no-client",
        ) from None


def _wanted(files: Sequence[dict[str, Any]], request: dict[str, Any]) -> list[dict[str, Any]]:
    return [file for file in files if not any(fnmatch(file["path"], pattern) for pattern in request["exclude"])]


def _words(fault: Exception, request: dict[str, Any]) -> DeployError:
    """What a client's exception means to an operator."""
    status = getattr(getattr(fault, "response", None), "status_code", None)
    where = f"{request['hub']}: {request['repo']}"
    words = " ".join(str(fault).split())[:300]
    if isinstance(fault, OSError) and fault.errno and not isinstance(fault, ConnectionError):
        return DeployError(
            words, where=where, fix="check the disk and its free space, then run it again: it resumes", kind="io"
        )
    if status in _GATED or "Gated" in type(fault).__name__:
        return DeployError(
            words, where=where, fix="accept the model's terms on its page, and use --token-file FILE", kind="refused"
        )
    if status in _ABSENT or "NotFound" in type(fault).__name__ or "NotExist" in type(fault).__name__:
        return DeployError(
            words,
            where=where,
            fix="correct the repository's name or --revision; --from selects the hub",
            kind="not-found",
        )
    what = f"{type(fault).__name__}: {words}"
    return DeployError(
        what, where=where, fix="run it again: it resumes; the node needs HTTPS to the hub, or https_proxy", kind="hub"
    )
