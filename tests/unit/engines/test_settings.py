"""Settings by name: every version takes the flags that they become, and says what it lacks."""

from __future__ import annotations

import pytest

from orchestrator.engines.engine import Engine
from orchestrator.engines.registry import dialect, dialects
from orchestrator.engines.settings import DEFAULTS, SAME_TEXT, SETTINGS, setting_flags
from orchestrator.protocol.errors import InputError

VERSIONS = [(name, version) for name, known in dialects().items() if "sglang" in name for version in known.versions]
VALUES = {
    "graphs": ("on", "off", "16"),
    "draft": ("off", "mtp", "mtp3"),
    "chunk": ("2048",),
    "kv": ("auto", "fp8", "fp8_e5m2"),
    "attention": ("triton", "flashinfer"),
    "prefill-graphs": ("on", "off"),
}
LACKS = {("0.4", "draft"), ("0.4", "prefill-graphs")}


def engine(name: str, version: str) -> Engine:
    return dialect(name).engine(version)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("family", "version"), VERSIONS)
def test_every_version_takes_what_it_is_given(family: str, version: str, name: str) -> None:
    its = engine(family, version)
    for value in VALUES[name]:
        if value != DEFAULTS.get(name) and (version[:3], name) in LACKS:
            with pytest.raises(InputError, match=r"has no flag|can't draft") as refused:
                setting_flags(its, name, value)
            assert refused.value.where == f"--vary {name}={value}" and refused.value.fix
            continue
        words = setting_flags(its, name, value)
        assert bool(words) == (value != DEFAULTS.get(name))
        its.flags().given(words, where="test")


@pytest.mark.parametrize(
    ("name", "value"), [("chunk", "many"), ("graphs", "0"), ("draft", "eagle"), ("prefill-graphs", "8"), ("speed", "9")]
)
def test_what_is_no_value_is_refused_with_those_that_are(name: str, value: str) -> None:
    with pytest.raises(InputError) as refused:
        setting_flags(engine("sglang-0.5", "0.5.23"), name, value)
    assert refused.value.fix
    if name in SETTINGS:
        assert refused.value.what.startswith(f"found {value!r}, wanted ")


def test_settings_that_leave_the_text_alone_are_settings() -> None:
    assert set(SETTINGS) >= SAME_TEXT >= {"graphs", "draft"} and not SAME_TEXT & {"kv", "attention"}
