"""An API key from a file: private to its owner, in characters valid in a header, and never in a message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.certificates import certified_key

from orchestrator.loading.secret_file import read_api_key, read_certified_key, read_private_line
from orchestrator.protocol.errors import InputError

KEY = "sk-0123456789abcdef"


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "key"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("text", [KEY, f"{KEY}\n", f"  {KEY}==\n"])
def test_a_key_and_the_blanks_around_it(tmp_path: Path, text: str) -> None:
    assert read_api_key(written(tmp_path, text), where="here") == text.strip()


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        (KEY, 0o640, "may be read by others (mode 0640)"),
        (KEY, 0o604, "may be read by others (mode 0604)"),
        ("tiny!", 0o600, "does not hold a key"),
        ("", 0o600, "does not hold a key"),
        ("-looks-like-a-flag", 0o600, "does not hold a key"),
        ("two words of it", 0o600, "does not hold a key"),
        (f"{KEY}\n{KEY}", 0o600, "does not hold a key"),
        ("quote'quote'quote", 0o600, "does not hold a key"),
        ("x" * 1000, 0o600, "does not hold a key"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, mode: int, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read_api_key(written(tmp_path, text, mode), where="inventory: node0")
    assert says in caught.value.what
    assert caught.value.where == "inventory: node0"
    assert not text or text not in str(caught.value)


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be read"):
        read_api_key(tmp_path / "none", where="x")
    (tmp_path / "key").write_bytes(b"\xff" * 20)
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(InputError, match="is not a text file"):
        read_api_key(tmp_path / "key", where="x")
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError, match="not a regular file"):
            read_api_key(path, where="x")
        with pytest.raises(InputError, match="not a regular file"):
            read_certified_key(path, path, where="x", key_where="y")


def test_which_of_two_files_is_wrong_is_told(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text(certified_key("router.example")[0])
    for cert, where in (("cert.pem", "the key's"), ("none.pem", "the certificate's")):
        with pytest.raises(InputError, match="can't be read") as told:
            read_certified_key(tmp_path / cert, tmp_path / "none.pem", where="the certificate's", key_where="the key's")
        assert told.value.where == where


def test_a_private_line_may_have_blanks_but_one_line_only(tmp_path: Path) -> None:
    assert read_private_line(written(tmp_path, " curl -d x \n"), what="the hook", where="x") == "curl -d x"
    for text in ("", "one\ntwo"):
        with pytest.raises(InputError, match="does not hold one line"):
            read_private_line(written(tmp_path, text), what="the hook", where="x")
    with pytest.raises(InputError, match="may be read by others"):
        read_private_line(written(tmp_path, KEY, 0o644), what="the hook", where="x")
