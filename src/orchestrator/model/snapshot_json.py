"""A snapshot as a JSON document, format 1: what the probe ships and what `discover --save` writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.model.snapshot import FORMAT, Snapshot


def snapshot_json(snapshot: Snapshot) -> dict[str, Any]:
    """The document; strings may hold lone surrogates (bytes that are no UTF-8), so it is written as ASCII."""
    return {
        "format": FORMAT,
        "node": snapshot.node,
        "taken_at": snapshot.taken_at,
        "files": dict(snapshot.files),
        "links": dict(snapshot.links),
        "errors": dict(snapshot.errors),
        "nvml": dict(snapshot.nvml),
        "host": dict(snapshot.host),
    }


def snapshot_from_json(raw: Any) -> Snapshot:
    """Read the document. Raises ValueError if it is not a snapshot or has another format."""
    if not isinstance(raw, Mapping):
        raise _refusal("found no JSON object")
    if raw.get("format") != FORMAT:
        raise _refusal(f"found format {raw.get('format')!r}, wanted {FORMAT}")
    taken_at = raw.get("taken_at", 0.0)
    if not isinstance(taken_at, (int, float)) or isinstance(taken_at, bool):
        raise _refusal(f"found taken_at {taken_at!r}, wanted seconds since the epoch")
    try:
        taken_at = float(taken_at)
    except OverflowError:
        raise _refusal("found a taken_at beyond any time") from None
    return Snapshot(
        node=str(raw.get("node") or ""),
        taken_at=taken_at,
        files=_texts(raw, "files"),
        links=_texts(raw, "links"),
        errors=_texts(raw, "errors"),
        nvml=_object(raw, "nvml"),
        host=_object(raw, "host"),
    )


def _object(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = raw.get(key) or {}
    if not isinstance(value, dict):
        raise _refusal(f"found {key} that is no object")
    if _beyond(value):
        raise _refusal(f"found a number beyond 64 bits in {key}")
    return value


def _beyond(value: Any) -> bool:
    """Some number inside is larger than any that a machine has: rules calculate with them."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, list):
            left += one
        elif isinstance(one, int) and abs(one) >> 64:
            return True
    return False


def _texts(raw: Mapping[str, Any], key: str) -> dict[str, str]:
    values = _object(raw, key)
    for path, text in values.items():
        if not isinstance(text, str):
            raise _refusal(f"found {key}[{path!r}] that is no text")
    return values


def _refusal(words: str) -> ValueError:
    """One kind of refusal, whatever is wrong with the document."""
    return ValueError(words)
