"""`l40s_notify`: how it is read, and that an error names the entry and shows no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.loading.inventory import load_inventory
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import Event, Mail, ReceiverKind, Recipient

INVENTORY = """
gangs:
  children: {{g: {{hosts: {{node0: , node1: }}}}}}
  vars:
    l40s_notify: {value}
"""


def read(folder: Path, value: str) -> tuple[Recipient, ...]:
    file = folder / "hosts.yml"
    file.write_text(INVENTORY.format(value=value))
    return load_inventory(file).notify


def test_webhooks_and_mail(tmp_path: Path) -> None:
    slack, mail = read(
        tmp_path,
        "[{kind: slack, url_file: ~/slack, events: [failed]}, {kind: email, server: 'mail:25', from: a@b, to: c@d}]",
    )
    assert slack == Recipient(kind=ReceiverKind.SLACK, url_file="~/slack", events=frozenset({Event.FAILED}))
    assert mail.mail == Mail(server="mail", port=25, sender="a@b", to=("c@d",)) and mail.events == frozenset(Event)


def test_nobody_is_told_by_default(tmp_path: Path) -> None:
    assert read(tmp_path, "") == ()


WRONG = [
    ("slack", "wanted a list of mappings", "l40s_notify"),
    ("[{kind: teams, url: s3cret}]", "wanted slack or feishu", "l40s_notify/0/kind"),
    ("[{kind: slack}]", "either url or url_file", "l40s_notify/0/url"),
    ("[{kind: slack, url: s3cret}]", "an http(s) address", "l40s_notify/0/url"),
    ("[{kind: slack, url_file: a, token: s3cret}]", "found the key 'token'", "l40s_notify/0"),
    ("[{kind: slack, url_file: a, sign_file: b}]", "only feishu and dingtalk sign", "sign_file"),
    ("[{kind: slack, url_file: a, events: [died]}]", "failed, degraded, restored", "events"),
    ("[{kind: email, server: mail, from: a@b}]", "from and to", "l40s_notify/0/to"),
    ("[{kind: email, server: mail, from: a@b, to: c@d, user: u}]", "user and password_file", "user"),
    ("[{kind: email, server: mail, from: a@b, to: c@d, tls: ssl3}]", "starttls or tls or none", "tls"),
    ("[{kind: email, server: 'mail:x', from: a@b, to: c@d}]", "HOST or HOST:PORT", "server"),
]


@pytest.mark.parametrize(("value", "what", "where"), WRONG)
def test_what_is_wrong_is_named_and_no_secret_is_shown(tmp_path: Path, value: str, what: str, where: str) -> None:
    with pytest.raises(InputError) as wrong:
        read(tmp_path, value)
    assert what in wrong.value.what and where in wrong.value.where and wrong.value.fix
    assert "s3cret" not in wrong.value.what + wrong.value.where + wrong.value.fix
