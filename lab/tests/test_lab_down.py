"""Labs whose files this version can't read can still be taken down."""

from __future__ import annotations

from pathlib import Path

import pytest

from l40s_lab.life import down as removing
from l40s_lab.life.down import down
from l40s_lab.life.status import status
from orchestrator.model.errors import InputError

OTHER_FORMATS = (
    '{"shows": [], "gangs": ["gang0"], "nodes": ["node0"], "recorded": []}',
    '{"shows": [{"from": "/a"}], "gangs": {}, "nodes": [], "recorded": []}',
    '{"shows": [], "gangs": {}, "nodes": [], "recorded": [], "colour": "red"}',
    '["no", "mapping"]',
    "no JSON",
)


@pytest.mark.parametrize("text", OTHER_FORMATS)
def test_a_lab_of_another_version_is_named_and_taken_down(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("L40S_LAB_ROOT", str(tmp_path / "labs"))
    place = tmp_path / "labs" / "old"
    place.mkdir(parents=True)
    (place / "blueprint.json").write_text(text)
    with pytest.raises(InputError, match="another version") as refused:
        status("old")
    assert refused.value.fix == "remove it with `l40s-deploy lab down --name old`"
    assert down("old")
    assert not place.exists()


def test_a_lab_of_the_same_name_in_another_directory_keeps_its_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(removing, "_remove_links", asked.append)
    for root in ("one", "two"):
        monkeypatch.setenv("L40S_LAB_ROOT", str(tmp_path / root))
        (tmp_path / root / "lab").mkdir(parents=True)
        assert down("lab")
    assert len({*asked}) == 2
