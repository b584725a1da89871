"""`logs` of a file that is moved away while it is read."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from orchestrator.node.engine.logfile import LogFile
from orchestrator.node.verbs import logs


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
