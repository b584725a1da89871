"""Odd texts and values, made from sound ones; a pure function of a random generator."""

from __future__ import annotations

import json
import random
from typing import Any

SNIPPETS = (
    b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\x1b[2J", b"\r", b"\t", b"[" * 3000, b"{\"a\":" * 3000,
    b"- " * 2000, b"!!int x", b"!!binary x", b"!!timestamp 2001-99-99", b"!!python/object:os.system x", b"&a [*a]",
    b"*none", b"<<: 1", b"? [a]\n: b\n", b"---\n", b"%YAML 9.9\n", b"9" * 5000, b"1e999", b".inf", b"-.nan", b"0o777",
    b"0x" + b"f" * 900, b"~x", b"\"\\ud800\"", b"'", b"{{ x }}", b"!vault |\n  x\n", b"null", b"true", b"[]", b"{}",
    b"\n", b": ", b"#", b"Include ~x\n", b"Match exec false\n", b"Host *\n", b"%h%%%q", b"${HOME}", b"-1", b"../../x",
    b"/", b"18446744073709551616",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1 << 31, 1 << 63, 1 << 64, 10**400, 10**5000, 0.5, -0.0, float("inf"), float("nan"),
    1e308, "", " ", "\0", "\ud800", "\x1b[2J", "a" * 5000, "../../x", "/", "~x", "{{ x }}", "1", "-1", "9" * 4500,
    "none",
    [], {}, [[]], [None], {"": None}, {"a": {"b": []}}, [1, "a", None], "10.0.0.1", "0x10",
)  # fmt: skip


def deep(depth: int, *, mapping: bool) -> Any:
    """A value so deeply nested."""
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if mapping else [value]
    return value


def odd_bytes(rng: random.Random, data: bytes) -> bytes:
    """A few changes of a text: bytes flipped, cut, doubled, snippets put in."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(found) + 1)
        to = min(len(found), at + rng.choice((1, 1, 4, 30, 300)))
        kind = rng.randrange(6)
        if kind == 0 and at < len(found):
            found[at] = rng.randrange(256)
        elif kind == 1:
            del found[at:to]
        elif kind == 2:
            found[at:at] = found[at:to]
        elif kind == 3:
            found[at:] = b""
        else:
            found[at : to if kind == 4 else at] = rng.choice(SNIPPETS)
    return bytes(found)


def odd_value(rng: random.Random, value: Any) -> Any:
    """The value with one thing inside it replaced, left out or put in somewhere."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        kind = rng.randrange(10)
        if kind == 0:
            return {name: inner for name, inner in value.items() if name != key}
        if kind == 1:
            return {**value, rng.choice((*VALUES[:12], "\ud800", "x")): value[key]}
        return {**value, key: odd_value(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        changed = [odd_value(rng, value[at])] * rng.choice((0, 1, 1, 1, 2))
        return [*value[:at], *changed, *value[at + 1 :]]
    if rng.random() < 0.05:
        return deep(rng.choice((3, 60, 150)), mapping=rng.random() < 0.5)
    return rng.choice(VALUES)


def odd_json(rng: random.Random, text: bytes) -> bytes:
    """A JSON text: another value in it, or other bytes."""
    if rng.random() < 0.3:
        return odd_bytes(rng, text)
    value = json.loads(text)
    for _ in range(rng.choice((1, 1, 2))):
        value = odd_value(rng, value)
    return dumped(value).encode("utf-8", "surrogatepass")


def dumped(value: Any) -> str:
    """JSON of anything: integers of any length and keys of any kind as other programs write them."""
    if isinstance(value, dict):
        inner = (
            f"{dumped(str(key)[:6000] if not isinstance(key, int) else 'n')}: {dumped(item)}"
            for key, item in value.items()
        )
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dumped, value)) + "]"
    if type(value) is int and abs(value) >= 1 << 70:
        return "9" * min(5000, value.bit_length() * 3 // 10)
    return json.dumps(value)
