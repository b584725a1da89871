from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.lab.hardware import wiring
from orchestrator.lab.hardware.machine import Nic, PcieSwitch
from orchestrator.model.errors import InputError


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    document = copy.deepcopy(wiring.load("right"))
    change(document)
    return document


@pytest.mark.parametrize(
    ("change", "place", "found"),
    [
        (lambda d: d.pop("primary"), "w", "primary"),
        (lambda d: d.update(primary="eth9"), "w: primary", "eth9"),
        (lambda d: d.update(cabling=1), "w: cabling", "cabling"),
        (lambda d: d["roots"][0].update(numa="left"), "w: roots[0]: numa", "left"),
        (lambda d: d["roots"][0].update(bus=True), "w: roots[0]: bus", "True"),
        (lambda d: d["roots"][1]["ports"][0].update(card={"gpus": {}}), "w: roots[1]: ports[0]: card", "gpus"),
        (lambda d: d["roots"][2]["ports"][0]["card"]["nic"].pop("ports"), "w: roots[2]: ports[0]: card.nic", "ports"),
        (
            lambda d: d["roots"][2]["ports"][0]["card"]["nic"]["ports"][0].update(state="half"),
            "w: roots[2]: ports[0]: card.nic: ports[0]: state",
            "half",
        ),
        (lambda d: d["bonds"][0].update(slaves=["ens9"]), "w: bonds.bond0", "ens9"),
        (lambda d: d["bonds"][0].update(slaves="ens7f0np0"), "w: bonds[0]: slaves", "a list"),
    ],
)
def test_a_complaint_names_the_place_and_what_was_found(change: Any, place: str, found: str) -> None:
    with pytest.raises(InputError) as refused:
        wiring.parse(changed(change), "w")
    assert refused.value.where == place
    assert found in refused.value.what


def test_an_unknown_wiring_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="no wiring 'left'") as refused:
        wiring.load("left")
    assert refused.value.fix.startswith("one of right, wrong")


@pytest.mark.parametrize("text", ["- 1\n", "a: [\n", ""])
def test_a_file_that_is_no_wiring_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.yml"
    file.write_text(text)
    with pytest.raises(InputError):
        wiring.load(str(file))


def test_a_file_of_ones_own_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text((wiring.BUILT_IN / "right.yml").read_text().replace("bus: 0x37", "bus: 0x38"))
    assert wiring.parse(wiring.load(str(file)), str(file)).roots[2].bus == 0x38


def test_right_and_wrong_differ_as_the_articles_tell() -> None:
    right, wrong = (wiring.parse(wiring.load(name), name) for name in ("right", "wrong"))

    def cards_behind_switches(machine: Any) -> int:
        switches = [port.card for root in machine.roots for port in root.ports if isinstance(port.card, PcieSwitch)]
        return sum(isinstance(port.card, Nic) for switch in switches for port in switch.ports)

    assert (cards_behind_switches(right), cards_behind_switches(wrong)) == (2, 1)
    assert (right.primary, wrong.primary) == ("bond0", "ens7f0np0")
