"""Arguments in ansible_ssh_common_args."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.loading.node_spec import BadArguments, ssh_pairs


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("", ()),
        ("-o StrictHostKeyChecking=no", (("stricthostkeychecking", "no"),)),
        ("-oUserKnownHostsFile=/dev/null -C -vv", (("userknownhostsfile", "/dev/null"),)),
        ("-o 'ServerAliveInterval 5'", (("serveraliveinterval", "5"),)),
        ('-o ProxyCommand="ssh -W %h:%p -q hop"', (("proxycommand", "ssh -W %h:%p -q hop"),)),
        ("-J me@a:2222,b -i ~/.ssh/k -l root -p 22 -F /etc/c", (
            ("proxyjump", "me@a:2222,b"), ("identityfile", "~/.ssh/k"), ("user", "root"), ("port", "22"),
            ("configfile", "/etc/c"),
        )),
    ],
)  # fmt: skip
def test_options_come_out_by_name(text: str, pairs: tuple[tuple[str, str], ...]) -> None:
    assert ssh_pairs(text) == pairs


@pytest.mark.parametrize("text", ["-o", "-o X=1", "-o Port", "host", "-", "-L 1:2:3", "-o 'a", "--", "-Cz", "-J"])
def test_what_we_cannot_follow_is_refused(text: str) -> None:
    with pytest.raises(BadArguments):
        ssh_pairs(text)


@given(text=st.text("-oJ =\"'Porta1,%\\", max_size=20))
def test_any_text_is_pairs_or_bad_arguments(text: str) -> None:
    try:
        assert all(name and value for name, value in ssh_pairs(text))
    except BadArguments as wrong:
        assert str(wrong)
