"""Secrets without a sign before them, and those that full-width or unseen characters hide; what is none stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from orchestrator.model.secret_shapes import folded
from orchestrator.model.secret_text import HIDDEN, without_secrets


@pytest.mark.parametrize(
    "text",
    [
        "machine db.example login anna password hunter22",
        "machine db\n  login anna\n  password hunter22\n",
        "default login anna password hunter22",
        "netrc: 'machine h\\nlogin anna\\npassword hunter22\\n'",
        "db.example:5432:mydb:anna:hunter22",
        "*:*:*:anna:hunter22",
        "read pgpass: 10.0.0.1:5432:*:anna:hunter\\:22",
        "mysql -u root -phunter22 db",
        "mysqldump -h x -P 3306 -phunter22",
        "['mysql', '-u', 'a', '-phunter22']",
        "sh -c \"mysql -p'hunter22 x' -e 1\"",
        "redis-cli -h x -a hunter22 ping",
        "mongosh -u a -p hunter22",
        "docker login -u anna -p hunter22 reg",
        "ldapsearch -x -w hunter22 -b dc",
        "ipmitool -I lanplus -U a -P hunter22 power",
        "smbclient //h/s -U anna%hunter22",
        "echo hunter22 | sudo -S ls",
        "echo 'hunter22' | docker login -u a --password-stdin",
        "openssl rsa -passin pass:hunter22 -in x",
        "C: AUTH PLAIN AGFubmEAaHVudGVyMjI=",
        "AUTH LOGIN YW5uYQ==\n334 UGFzc3dvcmQ6\naHVudGVyMjI=",
        "send: 'AUTH PLAIN AGFubmEAaHVudGVyMjI=\\r\\n'",
        "AUTH LOGIN\r\n334 VXNlcm5hbWU6\r\nYW5uYQ==\r\n334 UGFzc3dvcmQ6\r\naHVudGVyMjI=\r\n",
        "reply: b'334 UGFzc3dvcmQ6\\r\\n'\nreply: retcode (334); Msg: b'UGFzc3dvcmQ6'\nsend: 'aHVudGVyMjI=\\r\\n'",
        "a001 LOGIN anna hunter22",
        "USER anna\n331 need\nPASS hunter22",
        "---> USER anna\n---> PASS hunter22",
        '1339518083.1 [0 127.0.0.1:1] "AUTH" "hunter22"',
        "AUTH PLAIN\n334\nAGFubmEAaHVudGVyMjI=",
        '--b\r\nContent-Disposition: form-data; name="password"\r\n\r\nhunter22\r\n--b--',
        "b'--b\\r\\nContent-Disposition: form-data; name=\"api_key\"\\r\\n\\r\\nhunter22\\r\\n--b--'",
        "Password:\nhunter22\nnext thing",
        "12:01:02 INFO Password:\n12:01:02 INFO hunter22\n",
        "Enter passphrase for key '/x/y':\nhunter22",
        "token:\nhunter22",
        "\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44\uff1ahunter22",
        "pass\u200bword: hunter22",
        "p\xadassword=hunter22",
        "api\u2060_key=hunter22",
        "\u5bc6\u7801\uff1ahunter22",
        "登录密码为 hunter22",
        "访问密钥是hunter22",
        "口令 = 'hunter22'",
        "\u201c\u5bc6\u7801\u201d\uff1a\u201chunter22\u201d",
        "\u30d1\u30b9\u30ef\u30fc\u30c9\uff1ahunter22",
        "Passwort: hunter22",
        "\u5bc6\u7801:\nhunter22",
        "<password>hunter22 C9xgMU1lkaMFZ5GBAa1PBle8 hunter22</password>",
        "entry: anna:$6$saltsalt$hunter22hunter22./:19000:0",
        "getent: anna:$y$j9T$F5Jx5$hunter22hunter22:",
        "hash $2b$12$hunter22hunter22hunter22",
        "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$hunter22hunter22",
    ],
)
def test_a_secret_of_any_shape_is_hidden(text: str) -> None:
    clean = without_secrets(text)
    assert HIDDEN in clean
    assert not any(piece in clean for piece in ("hunter", "HVudGVy"))


@pytest.mark.parametrize(
    "text",
    [
        "login or password incorrect",
        "scheduler.py:1234:sglang:INFO:Starting",
        "mysql -P 3306 -u x",
        "250-AUTH PLAIN LOGIN",
        "test PASS ok",
        "AUTH failed for x",
        "密码错误",
        "密码为空",
        "password:\nPermission denied",
        "token:\nnext line",
        "node1:8123:9901 [3] NCCL INFO x",
        "error: Authentication PLAIN failed",
        "keys:\n  - a b\nz",
        "aa:1234:cd:ef:00:11",
        "fe80:0000:abcd:ef01:1234:1234:5678:9abc",
        "tcp://node0:29500:foo",
        "Load key:\nmodel.layers.3.mlp.weight: ok",
        "docker run -p 8000:8000 x",
        "echo done | tee x",
        "machine check events logged",
        "tp 8: token:\n\nx",
        "[2026-01-02 03:04:05] a.cc:1234:foo:bar:baz",
        "PCI:0000:c0:00.0 x",
        "awk '{print $1$2$3}' $1$ costs $5$",
        "密码是什么\uff1f加载完成\uff1a 92 个文件",
    ],
)
def test_what_only_looks_like_one_stays(text: str) -> None:
    assert without_secrets(text) == text


@given(some.text("abc \uff41\uff1a\u200b\u00ad\ufeff密码", max_size=40))
def test_a_text_is_folded_once(text: str) -> None:
    assert folded(folded(text)) == folded(text)
    assert not {"\u200b", "\u00ad", "\ufeff", "\uff41"} & set(folded(text))
