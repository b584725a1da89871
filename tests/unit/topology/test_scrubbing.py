"""Texts of a bug report: no secret, nobody's name, and everything that a diagnosis needs."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.model.secret_text import HIDDEN, long_enough, without_secrets
from orchestrator.topology.redaction import Pseudonyms
from orchestrator.topology.scrubbing import Scrubber

SECRETS = st.text(string.ascii_letters + string.digits + "._~+/-", min_size=8, max_size=60)


def scrubber(*secrets: str, **names: str) -> Scrubber:
    return Scrubber(Pseudonyms(b"k" * 32), secrets, names)


@given(SECRETS, st.text(max_size=40), st.text(max_size=40))
def test_a_known_secret_is_nowhere(secret: str, before: str, after: str) -> None:
    clean = scrubber(secret)
    assert secret not in clean.text(before + secret + after) or secret in HIDDEN
    document = clean.value({"log": [before + secret, {"deep": secret + after}], secret: 1})
    assert secret not in repr(document) or secret in repr(scrubber().value({"log": [before, {"deep": after}], "x": 1}))


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdef123456",
        "authorization=Basic dXNlcjpwYXNz",
        "HF_TOKEN=hf_abcdefghijklmnopqrstuv",
        "export AWS_SECRET_ACCESS_KEY='wJalrXUtnFEMI/K7MDENG'",
        '{"api_key": "s3cret-value"}',
        "--api-key: s3cret-value, next",
        "got hf_abcdefghijklmnopqrstuv from the hub",
        "password: hunter2",
        "https://anna:hunter2@hub.example/x",
        r"{\"password\": \"s3cret value\", \"n\": 1}",
        r"""'{"request": "{\\"api_key\\": \\"s3cret-value\\"}"}'""",
        "serve --admin-api-key s3cret-value --port 1",
        "['--hf-token', 's3cret-value', '--port', '1']",
        "Authorization: Token s3cret-value",
        'Authorization: Digest username="x", response="s3cret-value"',
        '{"Authorization": "Digest username=\\"x\\", response=\\"s3cret-value\\""}',
        "https://anna:hun/s3cret-value@hub.example/x",
        "https://an@na:s3cret@value@hub.example/x",
        "https://s3cret-value@hub.example/x",
        "redis%3A%2F%2Fu%3As3cret-value%40host",
        "DB_PASS=s3cret-value",
        "db_pwd: 'it's s3cret'",
        "SENTRY_DSN=s3cret-value",
        "HF_TOKEN_2=s3cret-value",
        "Cookie: a=b; session=s3cret-value",
        "set-cookie: a=b; session=s3cret-value",
        "X-Auth: s3cret-value",
        "X-Auth-Token: some s3cret-value",
        "GET /x?api-key%3Ds3cret-value&n=1",
        "password: correct horse s3cret-value, s3cret",
        'password: "not closed s3cret-value',
        "post to https://hooks.slack.com/services/T0/B0/s3cret",
        "https://open.feishu.cn/open-apis/bot/v2/hook/s3cret-value-s3cret",
        "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=s3cret",
        "https://api.telegram.org/bot123456789:s3cret-value_s3cret/sendMessage",
        "https://b.example/x?sv=2020&sig=s3cret&se=2025",
        "AccountName=a;AccountKey=s3cret==;Suffix=x",
        "<db><password>s3cret value</password></db>",
        '<auth API_KEY="s3cret"><hf-token kind="x">s3cret</hf-token></auth>',
        "api_keys:\n  - s3cret\n  - s3cret-2\nz: 1",
        'password:\n  "s3cret value",\nz: 1',
        "密码\uff1as3cret",
        r"\u0022password\u0022:\u0022s3cret\u0022",
        "python\0--api-key\0s3cret\0--tp\08",
        "HF_TOKEN=\\\ns3cret",
        "SSHPASS=s3cret sshpass -e ssh h",
        "the key nvapi-s3cret_value-s3cret was refused",
        "machine h login anna password Wq7XkLm29PvTs3cret",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\ns3cret\n-----END PGP PRIVATE KEY BLOCK-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----",
        f"12:01 {'s3cret' * 10}\n12:01 s3cret==\n12:01 -----END RSA PRIVATE KEY-----",
        "PuTTY-User-Key-File-3: ssh-ed25519\nPrivate-Lines: 1\nAAAAs3cret\nPrivate-MAC: 01",
        ".dockerconfigjson: eyJhdXRocyI6eyJyZWciOns3cret",
        "client-key-data: LS0tLS1CRUdJTiBSU0EgUFJJs3cret",
        "aws_session_token = s3cret",
        "x hvs.CAESIJs3cretabcdefgh", "x SG.abcdefghs3cret.abcdefgh", "x ya29.a0AfH6s3cretabcdef",
        "x GOCSPX-abcdefghijs3cret", "x api_org_abcdefghijs3cret", "MUNGE:AwQDAABs3cret:",
        "olcRootPW: {SSHA}abcdefs3cret", "LICENSE_KEY=s3cret", "FERNET_KEY: s3cret", "hmac_key=s3cret", "psk=s3cret",
        "PresharedKey = s3cret+s3cret=", "OTEL_EXPORTER_OTLP_HEADERS=x-team=s3cret",
        '{"cookies": {"sid": "s3cret"}}', "curl -b 'sid=s3cret' http://h", "curl -sSu anna:s3cret http://h",
        ".h.example\tTRUE\t/\tFALSE\t1893456000\tsid\ts3cret",
        "curl -H 'Authorization: Bearer \\\ns3cret-value' http://h", "serve --api-key \\\n    s3cret --tp 8",
        'password: "first \\\n  s3cret"\nz: 1', 'api_key = """s3cret"""',
        'GET "https://h/send?a=b\\u0026key=s3cret"', "https://h/send?a=b&amp;key=s3cret",
        "https://x.office.com/webhookb2/0123-abc@def/IncomingWebhook/s3cret-value-s3cret/1",
        "Incorrect API key provided: s3cret.", "Invalid API key s3cret1 used", "the password is s3cret1",
        "Password for anna: s3cret", "requirepass s3cret1", "bindpw s3cret1",
        "CREATE USER anna IDENTIFIED BY 's3cret'", "ALTER USER anna WITH PASSWORD 's3cret'",
        "HF_TOKEN                s3cret", "| HF_TOKEN | s3cret |",
        "via anna:s3cret@proxy:3128", "rsync anna:s3cret@h::x", "jdbc:oracle:thin:anna/s3cret@h:1521/x",
        "snmpget -v2c -c s3cret h", "http -a anna:s3cret http://h", "mc alias set m http://h:9000 admin s3cret",
        "echo s3cret | kinit anna", "<key>ApiKey</key><string>s3cret</string>",
        '<input name="pw" type="password" value="s3cret">',
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_hidden(text: str) -> None:
    clean = scrubber().text(text)
    assert HIDDEN in clean
    for secret in ("abcdef123456", "dXNlcjpwYXNz", "hf_abc", "wJalr", "s3cret", "hunter2", "b3Blb"):
        assert secret not in clean


RECORDED_TEXTS = Path(__file__).parents[2] / "recorded"
NEEDED = (
    "node1:812:990 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB bond0:10.0.0.7<0>",
    "node1:812:990 [3] NCCL INFO comm 0x55d0 rank 3 nranks 32 cudaDev 3 busId 4e000 commId 0x6f1c2b9a7d3e5f01",
    "GID[3] fe80:0000:0000:0000:0e42:a1ff:fe03:5caa",
    "image: l40s/sglang@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "[2026-01-02 03:04:05 TP3] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=3.91 GB",
    "[TP0] Prefill batch. #new-seq: 1, #new-token: 512, #cached-token: 0, token usage: 0.00, #running-req: 0",
    "max_total_num_tokens=180224, chunked_prefill_size=4096, max_prefill_tokens=16384, context_len=163840",
    "eos_token_id=[1, 2], bos_token_id=0, 'max_new_tokens': 16, skip_special_tokens=True temperature=0",
    "usage: {'prompt_tokens': 12, 'completion_tokens': 5, 'total_tokens': 17}",
    "GET https://huggingface.co/zai-org/GLM-4.6-FP8/resolve/main/model-00001-of-00092.safetensors HTTP/1.1 200",
    "/workspace/DeepSeek-V3-0324-Block64x64/model.safetensors.index.json: key: model.layers.3.mlp.experts.7.weight",
    "MiniMaxM2ForCausalLM Qwen3MoeForCausalLM _ZN3c104cuda9SetDeviceEa E=257,N=256,device_name=NVIDIA_L40S",
    "tokens:\n  in the batch are counted\nkey not found: lm_head\ntoken:\nnext line",
    "Exception: CUDA error: uncorrectable ECC error encountered; Xid 79, pid=1, name=sglang::schedul, pass --tp 8",
    "sudo: a password is required; api key file: /etc/l40s/key; the password was wrong; token is invalid",
    "pulled docker.io/lmsysorg/sglang:v0.5.23@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "TP0:123456 file.py:120 rank0:0@node1",
    "CACHE_KEY of 3 layers, KV_KEY_SIZE=4, NCCL_IB_PKEY=0x7fff, ssh-ed25519 AAAA, Loading done\nfinished",
    "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /store_based_barrier_key/1",
)


@pytest.mark.parametrize(
    "text",
    [*NEEDED, *(pytest.param(file.read_text(), id=file.name) for file in sorted(RECORDED_TEXTS.glob("**/*.*"))
                if file.suffix in (".log", ".txt", ".xml", ".topo") or "lspci" in file.name)],
)  # fmt: skip
def test_what_a_diagnosis_needs_stays(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    "encoded",
    [quote, partial(quote, safe=""), quote_plus, lambda one: json.dumps(one)[1:-1], lambda one: repr(one)[1:-1],
     lambda one: json.dumps(json.dumps(one)[1:-1])[1:-1], lambda one: json.dumps(one, ensure_ascii=False)[1:-1],
     lambda one: re.sub("%..", lambda hexed: hexed.group().lower(), quote(one, safe=""))],
)  # fmt: skip
@given(st.text(st.characters(codec="utf-8")))
def test_a_known_secret_is_nowhere_in_any_encoding(encoded: Callable[[str], str], text: str) -> None:
    form = encoded(f"q7{text}7q")
    assume(len(text) > 2)
    assert form not in scrubber(*long_enough([f"q7{text}7q"])).text(f"x {form} y")


def test_names_and_addresses_get_pseudonyms_that_agree() -> None:
    clean = scrubber(**{"l40s-0": "machine1", "anna": "user1"})
    text = clean.text("anna@l40s-0 (10.1.2.3) waits for l40s-01; 10.1.2.3 is l40s-0's; Susanna")
    assert text.startswith("user1@machine1 (") and "10.1.2.3" not in text
    assert "l40s-01" in text and "Susanna" in text  # other words are left alone
    address = text.partition("(")[2].partition(")")[0]
    assert text.count(address) == 2


def test_figures_stay() -> None:
    line = "Decode batch. #running-req: 3, #token: 1201, token usage: 0.41, gen throughput (token/s): 312.4"
    assert scrubber().text(line) == line
    line = "ServerArgs(tokenizer_path='/m', api_key=None, ssl_keyfile_password=None, max_total_tokens=5, tp=8)"
    assert scrubber().text(line) == line
    assert scrubber().value({"tokens_s": 312.4, "kv_tokens": 99, "api_key": "x1y2", "password": ["a b"]}) == {
        "tokens_s": 312.4, "kv_tokens": 99, "api_key": HIDDEN, "password": [HIDDEN]
    }  # fmt: skip


def test_what_is_left_is_found() -> None:
    assert scrubber("abcdef").left("x abcdef y") == "abcdef"
    assert scrubber(anna="user1").left("by anna") == "anna"
    assert scrubber("abcdef", anna="user1").left("Susanna") == ""


def test_short_words_are_no_secrets() -> None:
    assert long_enough(["abc", "abcdef", "abcdef"]) == ("abcdef",)


NAMES = {
    "node-7": "machine1", "rack2-node11": "machine2", "gpu-0": "machine3", "alpha": "machine4", "ab": "machine5",
    "mem-gpu": "machine6",
    "node-7.prod.example.org": "machine1-host", "prod.example.org": "domain1", "anna": "user1", "l40s7": "user2",
}  # fmt: skip


def named() -> Scrubber:
    return Scrubber(Pseudonyms(KEY), (), NAMES, ("/data/acme/models", "/srv/lab/inventories"))


KEY = b"k" * 32


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("NODE-7 Node_7 node7 node.7 NoDe-7", "machine1 machine1 machine1 machine1 machine1"),
        ("rack2_node11-ib0 backup-node7.log x_node7_y", "machine2-ib0 backup-machine1.log x_machine1_y"),
        ("node-7node-7->Rack2Node11", "machine1machine1->machine2"),
        ("node-77 xnode7 node7x", "node-77 xnode7 node7x"),
        ("\u8282\u70b9node-7\u6b63\u5e38", "\u8282\u70b9machine1\u6b63\u5e38"),
        ("no\u200bde-7 \uff4e\uff4f\uff44\uff45-\uff17", "machine1 machine1"),
        ("MEM_GPU mem.gpu mem-gpu.example x_mem_gpu-ib0", "machine6 machine6 machine6.example x_machine6-ib0"),
        ("memgpu mem gpu mem-gpus item-gpu mem--gpu", "memgpu mem gpu mem-gpus item-gpu mem--gpu"),
        ("gpu-0 on GPU0 gpu0", "machine3 on GPU0 gpu0"),
        ("ALPHA:5000 alpha alphabet num_alpha", "machine4:5000 machine4 alphabet num_alpha"),
        ("ab:812:990 [3] anna@ab:22 ssh://ab host=ab crab ab initio", None),
        ("x.prod.example.org node-7.prod.example.org", "x.domain1 machine1-host"),
        ("Anna anna annabel", "Anna user1 annabel"),
        ("/home/bob/x ~carol/y /Users/bob /home/ubuntu/x /home/anna/z", None),
        ("mail bob.smith@corp.example.com, l40s-agent@gang0.service", "mail mail1, l40s-agent@gang0.service"),
        ("model_path='/data/acme/models/DeepSeek-V3', tp=8", "model_path='/folder1/DeepSeek-V3', tp=8"),
        ("model_path='/secret-lab/models/DeepSeek-V3'", "model_path='/folder1/DeepSeek-V3'"),
        ("--model-path /mnt/lab/a/DeepSeek-V3 --tp 8", "--model-path /folder1/DeepSeek-V3 --tp 8"),
        ("load /scratch/lab/ckpt/model-00001-of-00092.safetensors", "load /folder1/model-00001-of-00092.safetensors"),
        (
            'File "/data/lab/venv/lib/python3.11/site-packages/sglang/srt/x.py"',
            'File "/folder1/site-packages/sglang/srt/x.py"',
        ),
    ],
)
def test_names_in_any_spelling_and_places(text: str, shown: str | None) -> None:
    clean = named().text(text)
    if shown is not None:
        assert clean == shown
    elif "ssh" in text:
        assert clean == "machine5:812:990 [3] user1@machine5:22 ssh://machine5 host=machine5 crab ab initio"
    else:
        assert clean == "/home/someone1/x ~someone2/y /Users/someone1 /home/ubuntu/x /home/user1/z"


@pytest.mark.parametrize(
    ("label", "identity"),
    [
        *(("", identity) for identity in (
            "0c-42-a1-03-5c-aa", "0C42.A103.5CAA", "0c:42:a1:03:5c:aa", "ip-10-20-30-40", "host_10_20_30_40",
            "0x0c42a103005caa00", "0c42a1fffe5caa00", "c4-70-bd-ff-ff-0a-12-3e",
        )),
        *(("", digits) for digits in ("00-50-56-98-34-71", "52_54_00_12_34_56", "94-40-99-11-22-33")),
        ("mac=", "26-11-28-13-44-21"), ("link/ether ", "26-11-28-13-44-21"),
        ("node_guid: 0x", "1234567890abcdef"), ("Port GUID: ", "0xe8ebd303009a1b2c"), ("hwaddr=", "0c42a1035caa"),
        ('"mac": "', "0c42a1035caa"), ("Serial Number                         : ", "1654922006536"),
        ("serial=", "MT2242X12345"), ("[SN] Serial number: ", "MT2242X12345"), ("Service Tag: ", "7XK92Z3"),
        ("S/N: ", "PX-1234-77"),
    ],
)  # fmt: skip
@given(before=st.sampled_from(["", "at ", "x=1, ", "["]), after=st.sampled_from(["", " is up", ", y=2", "]"]))
def test_an_identity_in_any_writing_gets_another_one(label: str, identity: str, before: str, after: str) -> None:
    clean = named()
    shown = clean.text(f"{before}{label}{identity}{after}")
    assert identity not in shown
    assert shown.startswith(f"{before}{label}") and shown.endswith(after)
    assert sum(clean.replaced.values()) == 1
    assert shown == named().text(f"{before}{label}{identity}{after}")  # the same key, the same pseudonym


@given(raw=st.binary(min_size=6, max_size=6).filter(lambda raw: any(char in raw.hex() for char in "abcdef")))
def test_a_known_mac_is_the_same_machine_in_every_writing(raw: bytes) -> None:
    assume(any(raw) and raw != b"\xff" * 6)
    clean, digits = named(), raw.hex()
    shown = clean.text(raw.hex(":")).replace(":", "")
    assert clean.text(raw.hex("-")).replace("-", "") == shown
    assert clean.text(f"{digits[:4]}.{digits[4:8]}.{digits[8:]}").replace(".", "") == shown
    assert clean.text(f"mac {digits} of it") == f"mac {shown} of it"
    assert clean.text(f"container {digits}") == f"container {shown}"  # known by now, no word needed


@pytest.mark.parametrize(
    "text",
    [
        "/home2/judy/x", "/u/judy/x", "%2Fhome%2Fjudy%2Fx", "uid=1000(judy) gid=7(judy) groups=7(judy),27(sudo)",
        "judy : TTY=pts/0 ; USER=root", "session opened for user judy(uid=1000) by judy(uid=0)",
        "Accepted publickey for judy from h port 5", "Failed password for invalid user judy from h", "LOGNAME=judy",
        f"ssh-ed25519 {'A' * 40} judy@laptop", "CN=judy,OU=x", "judy%40example.org", "judy@例子.广告",
        "用户judy@example.org",
    ],
)  # fmt: skip
def test_who_shows_by_a_word_or_a_sign_gets_another_name(text: str) -> None:
    clean = named()
    assert "judy" not in clean.text(text) and +clean.replaced


@pytest.mark.parametrize(
    "text",
    [
        "0c42-a103-5caa", "0c42:a103:5caa", "0c_42_a1_03_5c_aa", "fe800000000000000e42a1fffe035caa",
        "eui.0c42a1035caa0001",
        "wwn-0x0c42a1035caa0001", "S/N MT0c42a1035c", "ID_SERIAL_SHORT=MT0c42a1035c", "ID_SERIAL=Some_SSD_MT0c42a1035c",
        "machine-id 0c42a1035caa4f5e8d9c0b1a2f3e4d5c", "i-0c42a1035caa4f5e8", "gid 0xfe800000000000000e42a1fffe035caa",
    ],
)  # fmt: skip
def test_a_number_in_a_writing_of_switches_and_disks_gets_another_one(text: str) -> None:
    clean = named()
    digits = re.sub("[-:_]", "", clean.text(text)).lower()
    assert "0c42a1" not in digits and "0e42a1fffe" not in digits and +clean.replaced


@pytest.mark.parametrize(
    ("text", "leaks"),
    [
        ("arn:aws:iam::123456789012:user/judy", ("123456789012", "judy")),
        ("arn:aws:sts::123456789012:assumed-role/admin/judy@x denied", ("123456789012", "judy")),
        ("arn:aws-cn:s3:::bucket arn:aws:ec2:eu-west-1:123456789012:instance/i", ("123456789012",)),
        ("logon of ACME\\judy failed", ("ACME", "judy")),
        (r'{"user": "ACME-LAB\\judy"}', ("ACME", "judy")),
        (r"no\u0064e-7 \\u006eode7 \U006eode-7", ("de-7", "ode7", "ode-7")),
        (r'{"\u5bc6\u7801": "s3cret-value"}', ("s3cret",)),
        (r"pass\u0077ord=s3cret-value", ("s3cret",)),
        ("sending AUTH s3cret77x", ("s3cret",)),
        ("redis AUTH default s3cret77x", ("s3cret",)),
        ('["AUTH","s3cret77x"]', ("s3cret",)),
        ("*2\r\n$4\r\nAUTH\r\n$9\r\ns3cret77x\r\n", ("s3cret",)),
        (r"pass\x77ord=s3cret-value password&#61;s3cret-value", ("s3cret",)),
        ("123456789012.dkr.ecr.eu-west-1.amazonaws.com/x:1", ("123456789012",)),
    ],
)
def test_accounts_escapes_and_a_bare_auth_leave(text: str, leaks: tuple[str, ...]) -> None:
    clean = named()
    shown = clean.text(text)
    assert not [leak for leak in leaks if leak in shown] and +clean.replaced, shown


def test_a_short_name_is_no_part_of_an_address() -> None:
    """A node may be called as a MAC address begins."""
    assert named().text("ab:00:00:00:00:00").startswith("02:")
    assert named().text("[ab]:22 ssh-rsa") == "[machine5]:22 ssh-rsa"
    assert named().text("NODE%2D7 node%2e7") == "machine1 machine1"


KEPT = (
    *(one.replace("node1", "hostless").replace("10.0.0.7", "127.0.0.1") for one in NEEDED if "fe80" not in one),
    "0000:4e:00.0 00000000:C1:00.0 (PCI:0000:4e:00) 65:00.0 pci10de:26b9",
    "sglang 0.5.3.post1 torch 2.9.0+cu128 driver 580.159.04 CUDA 12.8.1 NCCL 2.27.5 2024.12.01 26-11-28-13-44-21",
    "commit 3f2a9c1d7e5b container 9f86d081884c at 0x7f3a5c2b1d40 commHash 0x6f1c2b9a7d3e5f01",
    "12.5 GiB of 44.52 GiB, 1024x1024, 8x32, 3.91 GB/s, 2026-01-02T03:04:05.123Z, 48:12, tp 8 ep 32",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1 /opt/l40s/venvs/sglang-0.5.23/bin/python3",
    "/workspace/DeepSeek-V3/config.json",
    "GET /v1/chat/completions 200, POST /generate, /sys/class/net/eth0/mtu, /data/x.bin, serial=False, /proc/1/fd/3",
    "l40s/sglang@sha256:9f86d0 @torch.jit user@host SN: 1 sglang.srt.managers import root ubuntu",
    r"ERROR\nline INFO\tx C:\\new {\"a\": \"\u0022\"} arn:aws:s3:::bucket 28-11-26-13-44-21 AUTH failed AUTH 200",
    "NCCL INFO Channel 00/0 : 3[3] -> 11[3] [send] via NET/IB/0/GDRDMA/Shared",
)


@pytest.mark.parametrize("text", KEPT)
def test_what_an_engineer_needs_stays(text: str) -> None:
    clean = named()
    assert clean.text(text) == text
    assert not +clean.replaced


def test_the_controllers_paths_leave_a_commands_words() -> None:
    clean = named()
    words = "l40s-deploy up gang0 --inventory /srv/lab/inventories/acme/inv.yml --model M --out ../secret/x.json"
    shown = clean.value({"command": words})
    assert shown == {"command": "l40s-deploy up gang0 --inventory /folder1/inv.yml --model M --out /folder2/x.json"}


def test_it_counts_what_it_replaces() -> None:
    clean = named()
    clean.text("node-7 node7 10.1.2.3 by anna password=abcdefgh")
    assert +clean.replaced == {"name of a machine": 2, "IP address": 1, "secret": 1, "name of a user": 1}
