"""The log's lines since a mark: over one rotation, after two, and without a log at the mark."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node.engine.logfile import MARK, LogFile, Redactor, log_since_now, secrets_of
from orchestrator.node.verbs import logs


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_only_what_came_after_the_mark(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    write(log, "old\n")
    with log_since_now(str(tmp_path / "engine.log")) as since:
        write(log, "new\nnewer")
        assert list(since()) == ["new", "newer"]


def test_over_rotations(tmp_path: Path) -> None:
    log, before = tmp_path / "engine.log", tmp_path / "engine.log.1"
    write(before, "very old\n")
    write(log, "old\n")
    with (
        log_since_now(str(tmp_path / "engine.log")) as once,
        log_since_now(str(tmp_path / "engine.log")) as twice,
        log_since_now(str(tmp_path / "engine.log")) as thrice,
    ):
        write(log, "new\n")
        log.replace(before)
        write(log, "newer\n")
        assert list(once()) == ["new", "newer"]
        log.replace(before)
        write(log, "newest\n")
        assert list(twice()) == ["new", "newer", "newest"]
        log.replace(before)
        write(log, "last\n")
        assert list(thrice()) == ["new", "newest", "last"]


def test_where_there_was_no_log(tmp_path: Path) -> None:
    with log_since_now(str(tmp_path / "engine.log")) as since:
        assert list(since()) == []
        write(tmp_path / "engine.log", "first\n")
        assert list(since()) == ["first"]


@pytest.mark.parametrize(
    ("env", "flags", "staged", "secrets"),
    [
        ({"HF_TOKEN": "hf_abcdef"}, [], [], ("hf_abcdef",)),
        ({"OPENAI_API_KEY": "sk-123456"}, [], [], ("sk-123456",)),
        ({"TOKENIZERS_PARALLELISM": "false-false", "MAX_TOKENS": "1234567"}, [], [], ()),
        ({}, [("--api-key", "sk-123456"), ("--port", "8000")], [], ("sk-123456",)),
        ({}, [("--admin-api-key", "sk-654321")], [], ("sk-654321",)),
        ({}, [("--api-key",)], [], ()),
        ({}, [("--tokenizer-path", "/models/abc")], [], ()),
        ({"A_PASSWORD": "no"}, [], [], ()),
        ({"A_PASSWORD": "staged-too"}, [], ["staged-too", "another"], ("staged-too", "another")),
    ],
)
def test_what_is_a_secret(
    env: dict[str, str], flags: list[tuple[str, ...]], staged: list[str], secrets: tuple[str, ...]
) -> None:
    assert secrets_of(env, flags, staged) == secrets


SECRETS = ("sk-aaaa", "sk-aaaab", "aaaa-bbbb")
PIECES = st.lists(
    st.sampled_from([*SECRETS, "sk-", "a", "aaa", "aaaa-", "b", "\n", " api_key='", "'"]), max_size=30
).map("".join)


@given(PIECES, st.integers(1, 9))
def test_no_secret_comes_through_and_nothing_else_is_lost(text: str, step: int) -> None:
    data = text.encode()
    cut = Redactor(SECRETS)
    pieces = b"".join(cut.feed(data[at : at + step]) for at in range(0, len(data), step)) + cut.finish()
    whole = Redactor(SECRETS)
    assert pieces == whole.feed(data) + whole.finish()
    assert not any(secret.encode() in pieces for secret in SECRETS)
    if not any(secret in text for secret in SECRETS):
        assert pieces == data


def test_the_engines_own_account_of_its_arguments() -> None:
    line = b"server_args=ServerArgs(api_key='sk-secret-1', port=8000)\n"
    assert Redactor(["sk-secret-1"]).feed(line) == b"server_args=ServerArgs(api_key='" + MARK + b"', port=8000)\n"


@pytest.mark.parametrize("rotations_at", [(5,), (5, 9)])
def test_a_follower_misses_no_line_and_sees_none_twice(tmp_path: Path, rotations_at: tuple[int, ...]) -> None:
    path, out = str(tmp_path / "engine.log"), io.BytesIO()
    log = LogFile(path, limit=1 << 20)
    file = logs._tail(path, 10, out)
    assert file is None
    for number in range(12):
        if number in rotations_at:
            log.limit = 1
        log.write(b"%04d\n" % number)
        log.limit = 1 << 20
        if number not in (3, 4):  # lines that are written between two looks, before the file moves
            for _ in range(2):
                file, _wrote = logs._follow(path, file, out)
    assert out.getvalue().split() == [b"%04d" % number for number in range(12)]
    log.close()
    assert file is not None
    file.close()


@pytest.mark.parametrize("lines", [0, 3, 500, 5000])
def test_a_tail_right_after_a_rotation_goes_on_in_the_file_before(tmp_path: Path, lines: int) -> None:
    path, out = str(tmp_path / "engine.log"), io.BytesIO()
    text = [b"%06d" % number for number in range(1000)]
    Path(f"{path}.1").write_bytes(b"".join(line + b"\n" for line in text[:995]))
    Path(path).write_bytes(b"".join(line + b"\n" for line in text[995:]))
    file = logs._tail(path, lines, out)
    assert out.getvalue().split() == (text[-lines:] if lines else [])
    assert file is not None and logs._follow(path, file, out) == (file, False)
    file.close()
