"""Kinds of exceptions, on what engines and packages raise.

lines/exceptions.txt: its kind, the exception, and where it was raised, with tabs between them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.engines.exceptions import POINTERS, RAISED
from orchestrator.node.engine.watch import LogWatch
from orchestrator.protocol.staging import Watch

ROWS = [
    (kind, *words.partition("\t")[::2])
    for kind, _, words in (
        row.partition("\t")
        for row in (Path(__file__).parent / "lines" / "exceptions.txt").read_text("utf-8").splitlines()
    )
]
"""'none' is of no kind: it must stay unknown."""
WATCH = LogWatch.of(Watch(raised=RAISED, pointers=POINTERS))
BY_CLASS = {
    "ImportError": "PACKAGES-DIFFER",
    "NotImplementedError": "SETTING-REFUSED",
    "huggingface_hub.errors.RepositoryNotFoundError": "MODEL-MISSING",
    "json.decoder.JSONDecodeError": "FILE-BROKEN",
    "requests.exceptions.ConnectionError": "SERVER-UNREACHABLE",
    "triton.compiler.errors.CompilationError": "KERNEL-COMPILE",
}
"""Classes that alone tell the kind."""


def kind_of(text: str, file: str = "") -> str:
    kind, _ = WATCH.kind_of(text, file)
    return kind.id if kind else "none"


@pytest.mark.parametrize(("wanted", "text", "file"), ROWS)
def test_an_exception_is_of_its_kind(wanted: str, text: str, file: str) -> None:
    assert kind_of(text, file) == wanted


@pytest.mark.parametrize(("wanted", "text", "file"), ROWS)
def test_a_class_alone_names_no_kind(wanted: str, text: str, file: str) -> None:
    """Without its words and place nobody can tell what failed."""
    name = text.partition(":")[0]
    assert kind_of(f"{name}: it happened") == BY_CLASS.get(name, "none")


def test_every_kind_has_an_example() -> None:
    assert {kind.id for kind in RAISED} == {wanted for wanted, _, _ in ROWS} - {"none"}


@pytest.mark.parametrize(
    "pointer",
    [
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: failed. See inner exception for details.",
        "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.",
        "ray.exceptions.RayActorError: The actor died because of an error raised in its creation task",
    ],
)
def test_who_points_at_another_exception_does_not_replace_it(pointer: str) -> None:
    watch = LogWatch.of(Watch(raised=RAISED, pointers=POINTERS))
    begin = ("Traceback (most recent call last):", '  File "/v/x.py", line 7, in f')
    for line in (*begin, "KeyError: 'nobody has seen this'", *begin, pointer):
        watch.feed(line, 0.0)
    raised = watch.tracebacks.raised
    assert raised is not None and raised.text == "KeyError: 'nobody has seen this'"
    assert re.search(POINTERS, pointer)
