from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.remote.session import lines


@given(chunks=st.lists(st.binary(max_size=5).map(lambda chunk: chunk.replace(b"a", b"\n"))))
def test_nothing_is_lost_and_every_line_is_whole(chunks: list[bytes]) -> None:
    found = list(lines(chunks))
    assert b"".join(found) == b"".join(chunks)
    assert all(line.endswith(b"\n") for line in found[:-1])
    assert all(line.count(b"\n") <= 1 and line for line in found)
