"""Each alternative of each pattern that names a cause has the call or the object that failed, in every table.

A text that matches it is made of the pattern itself; what is left of that text once only words are kept that every
failure shares (an errno's, 'error', 'failed') is not that cause.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from tests.unit.engines.test_bounded_work import beginnings

from orchestrator.engines.host_causes import HOST, HOST_GENERAL
from orchestrator.engines.registry import dialects
from orchestrator.node.engine.watch import EXCEPTION, LogWatch
from orchestrator.protocol.staging import CausePattern, Watch

if sys.version_info >= (3, 11):
    from re import _constants as sre  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_constants as sre
    import sre_parse as parser

WATCHES = {name: dialect.engine(dialect.versions[-1]).watch() for name, dialect in dialects().items()}
TABLES: dict[str, tuple[CausePattern, ...]] = {
    "host": HOST,
    "host, general": HOST_GENERAL,
    **{f"{name}, lines": tuple(watch.causes) for name, watch in WATCHES.items()},
    **{f"{name}, exceptions": tuple(watch.raised) for name, watch in WATCHES.items()},
}
TELLING = {
    os.strerror(errno.EADDRINUSE): {"PORT-IN-USE"},
    os.strerror(errno.EMFILE): {"OPEN-FILES-LIMIT"},
    os.strerror(errno.ENOSPC): {"DISK-FULL"},
    os.strerror(errno.EDQUOT): {"DISK-FULL"},
    os.strerror(errno.ECONNRESET): {"PEER-LOST"},
    os.strerror(errno.ENOKEY): {"MODULE-UNSIGNED"},
    "CUDA error": {"CUDA-CALL-FAILED"},
}
"""Shared words that name the object all the same: a port, a disk, a limit, a connection, CUDA."""
SHARED = [
    *sorted({os.strerror(number) for number in errno.errorcode} - TELLING.keys()),
    *("error", "failed", "failure", "fatal", "warning", "exception", "refused", "denied", "timed out", "timeout"),
    *("unhandled system error", "unhandled cuda error", "internal error", "NCCL WARN", "RuntimeError", "OSError"),
    *("ValueError", "AssertionError", "KeyError", "unknown error", "invalid argument", "not found"),
]
"""What one failure has in common with others."""
_SHARED = re.compile("|".join(re.escape(words) for words in sorted(SHARED, key=len, reverse=True)), re.IGNORECASE)
FORMS = ("{}", "RuntimeError: {}", "OSError: [Errno 12] {}", "x: error: {}", "h1:1:2 [0] NCCL WARN {}")


def alternatives(pattern: str) -> Iterator[str]:
    """Texts that match the pattern, of each of its first branches at least one where one can be made."""
    tree: Any = parser.parse(pattern)
    branches = tree[0][1][1] if len(tree) == 1 and tree[0][0] is sre.BRANCH else [tree]
    for branch in branches:
        made = [text for text in beginnings(branch) if re.search(pattern, text)]
        yield from made[:2] + made[-1:]


def left_of(text: str) -> str:
    """The words of it that every failure shares."""
    return ": ".join(match[0] for match in _SHARED.finditer(text))


def cases() -> list[tuple[str, CausePattern]]:
    return [(name, cause) for name, table in TABLES.items() for cause in dict.fromkeys(table)]


def named(causes: Iterable[CausePattern], line: str) -> set[str]:
    """Ids that a line alone, without anything above it, shows."""
    watch = LogWatch.of(Watch(causes=tuple(causes)))
    watch.feed(line, 0.0)
    return {suspicion.id for suspicion in watch.suspicions(0.0)} - {EXCEPTION}


@pytest.mark.parametrize(("table", "cause"), cases(), ids=[f"{table}: {cause.id}" for table, cause in cases()])
def test_without_its_own_words_a_line_is_not_that_cause(table: str, cause: CausePattern) -> None:
    texts = {left_of(text) for text in alternatives(cause.pattern)} - {""}
    for text in texts:
        for form in FORMS:
            assert cause.id not in named(TABLES[table], form.format(text)), form.format(text)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("form", FORMS)
def test_an_errno_alone_is_no_cause_in_any_table(table: str, form: str) -> None:
    shown = {words: named(TABLES[table], form.format(words)) for words in (*SHARED, *TELLING)}
    assert {words: ids for words, ids in shown.items() if ids - TELLING.get(words, set())} == {}


def test_most_patterns_yield_a_text() -> None:
    without = [cause.id for _, cause in cases() if not any(alternatives(cause.pattern))]
    assert len(without) < len(cases()) / 10, without
