"""Pseudonymised snapshots: the same machine, and nothing that identifies it."""

from __future__ import annotations

import json
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus
from uuid import UUID

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as some
from hypothesis import strategies as st
from tests.support.faults import FAULTS, ODD, Fault
from tests.support.healthy_cluster import (
    SITE,
    VENV,
    cluster_of,
    cluster_with,
    configuration_space,
    healthy_node,
    healthy_nodes,
)

from orchestrator.doctor.rules.stacks import installed
from orchestrator.doctor.rules.support.cluster import Cluster, Node
from orchestrator.doctor.rules.support.registry import run_rules
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.secret_text import HIDDEN, long_enough, without_secrets
from orchestrator.model.snapshot import Snapshot, snapshot_from_json, snapshot_json
from orchestrator.topology.build import build
from orchestrator.topology.draw import topology_json
from orchestrator.topology.pci import config_space
from orchestrator.topology.redaction import Pseudonyms, Scrubber, redact

KEY = b"\x07" * 32
RECORDED = Path(__file__).parents[2] / "recorded" / "two-h200-vm.json"

ipv4 = some.integers(min_value=0x01000000, max_value=0xDFFFFFFF).map(lambda number: str(IPv4Address(number)))
keys = some.binary(min_size=32, max_size=32)


def _ids(snapshots: Iterable[Snapshot], specs: Mapping[str, NodeSpec]) -> Counter[str]:
    """The count of each finding."""
    named = {snapshot.node: snapshot for snapshot in snapshots}
    topologies = {name: build(snapshot) for name, snapshot in named.items()}
    cluster = Cluster(topologies=topologies, snapshots=named, specs={name: specs[name] for name in named})
    return Counter(finding.id for finding in run_rules(cluster))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_doctor_finds_the_same(fault: Fault) -> None:
    whole = cluster_with(ODD, fault.breaks)
    shown = [ODD, next(name for name in whole.snapshots if name != ODD)]
    hidden = redact([whole.snapshots[name] for name in shown], KEY)
    specs = {new.node: replace(whole.specs[old], name=new.node) for old, new in zip(shown, hidden, strict=True)}
    assert _ids(hidden, specs) == _ids([whole.snapshots[name] for name in shown], whole.specs)


_NAMED = ("name", "mac", "hostname", "serial", "uuid", "address", "guid", "gid", "ipv4", "ipv6", "network", "netmask")


def _shape(value: Any) -> Any:
    """A topology's document without the replaced fields."""
    if isinstance(value, dict):
        return {key: _shape(inner) for key, inner in value.items() if not any(word in key for word in _NAMED)}
    return [_shape(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("snapshot", [healthy_node("n7", 2), None], ids=["reference", "two-h200-vm"])
def test_the_topology_is_the_same(snapshot: Any) -> None:
    before = snapshot.machine.snapshot(host=snapshot.host, nvml=snapshot.nvml) if snapshot else _recorded()
    (after,) = redact([before], KEY)
    assert _shape(topology_json(build(after))) == _shape(topology_json(build(before)))
    assert snapshot_from_json(json.loads(json.dumps(snapshot_json(after)))) == after


def _recorded() -> Snapshot:
    return snapshot_from_json(json.loads(RECORDED.read_text()))


@settings(max_examples=25, deadline=None)
@given(seed=some.integers())
def test_nothing_that_names_a_machine_stays(seed: int) -> None:
    chance = random.Random(seed)  # so that a secret of few digits is not found by chance
    host, user = f"{_letters(chance)}-hall07-{_letters(chance)}", f"{_letters(chance)}"
    mac, guid, device_serial = chance.randbytes(6).hex(":"), chance.randbytes(8), chance.randbytes(8)
    address = str(IPv4Address(chance.randrange(0x01000000, 0x7F000000)))
    uuid = str(UUID(bytes=chance.randbytes(16)))
    serial = f"1{chance.randrange(10**12):012d}"
    key = chance.randbytes(32)
    node = healthy_node("node0")
    colons = guid.hex(":", -2)
    mapped = IPv4Address(address).packed.hex(":", -2)
    named = f"enx{mac.replace(':', '')}"
    node.machine.files |= {
        "/sys/class/net/bond0/bonding/ad_partner_mac": f"{mac}\n",
        "/proc/net/bonding/bond0": f"Permanent HW addr: {mac}\nARP IP target/s (n.n.n.n form): {address}\n",
        "/sys/class/infiniband/mlx5_0/node_guid": f"{colons}\n",
        "/sys/class/infiniband/mlx5_0/ports/1/gids/7": f"0000:0000:0000:0000:0000:ffff:{mapped}\n",
        "/sys/class/infiniband/mlx5_0/ports/1/gids/8": f"fe80:0000:0000:0000:{colons}\n",
        f"/sys/class/net/{named}/address": f"80:00:00:28:fe:80:00:00:00:00:00:00:{guid.hex(':')}\n",
        f"/sys/devices/pci0000:00/net/{named}/mtu": "9000\n",
        "/proc/sys/kernel/random/boot_id": f"{uuid}\n",
        "/proc/cmdline": f"BOOT_IMAGE=/{user} root=UUID={uuid} ip={address}::{host} iommu=pt pci=realloc\n",
        "/proc/mounts": f"{address}:/export/{user} /mnt/{user} nfs4 rw,clientaddr={address} 0 0\n"
        f"/dev/disk/by-uuid/{uuid} / ext4 rw,relatime 0 0\n",
        "/etc/nccl.conf": f"NCCL_SOCKET_IFNAME={named}\nNCCL_HOSTID={mac}\n",
    }
    node.links[f"/sys/class/net/{named}"] = f"../../devices/pci0000:00/net/{named}"
    nic = next(path for path in node.files if path.endswith("/config"))
    node.files[nic] = _with_serial_number(configuration_space(), device_serial)
    node.gpus[0] |= {"serial": serial, "uuid": f"GPU-{uuid}"}
    node.host.update(
        hostname=host,
        user=user,
        home=f"/home/{user}",
        executable=f"/home/{user}/bin/python3",
        addresses={named: [{"family": "inet", "address": address, "prefixlen": 24}]},
        kernel_log={"xid": [f"NVRM: Xid (PCI:0000:4e:00): 79, pid=1, name={named}"]},
    )
    snapshot = replace(node.machine.snapshot(host=node.host, nvml={"devices": node.gpus}), node=host)
    try:
        (done,) = redact([snapshot], key)
    except ValueError:  # by chance a pseudonym equals an original; the caller takes another key
        (done,) = redact([snapshot], key[::-1] + b"x")
    text = json.dumps(snapshot_json(done)).lower()
    for secret in (host, user, uuid, serial, named, device_serial.hex()):
        assert secret not in text, secret
    for secret in (mac, guid.hex(":"), colons):
        assert secret not in text, secret
    assert f'"{address}"' not in text and f"{address}:" not in text and mapped not in text
    assert "iommu=pt pci=realloc" in text and " nfs4 rw" in text


def _letters(chance: random.Random) -> str:
    return "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=9))


def _with_serial_number(space: bytes, serial: bytes) -> str:
    """An extended capability of that kind as the only one."""
    data = bytearray(space).ljust(512, b"\0")
    data[0x100:0x10C] = b"\x03\x00\x01\x00" + serial
    return data.hex()


def test_a_card_keeps_its_configuration_but_for_its_serial_number() -> None:
    serial = bytes.fromhex("c4aa5c0003a1420c")
    files = {"/sys/x/config": _with_serial_number(configuration_space(), serial)}
    before = Snapshot(node="n", taken_at=0, files=files)
    (after,) = redact([before], KEY)
    old, new = config_space(before, "/sys/x"), config_space(after, "/sys/x")
    assert old.serial_number_at == new.serial_number_at == 0x104
    assert old.data[:0x104] == new.data[:0x104] and old.data[0x10C:] == new.data[0x10C:]
    assert new.data[0x104:0x10C] != serial


def test_a_stack_in_somebodys_home_is_shown_elsewhere_and_judged_alike() -> None:
    node = healthy_node("node1", 1)
    home = "/home/somebody/work"
    for path in [path for path in node.files if path.startswith(VENV)]:
        node.files[path.replace(VENV, f"{home}/venv")] = node.files.pop(path)
    site = SITE.replace(VENV, f"{home}/venv")
    for path in [path for path in node.files if path.startswith(f"{site}/sglang/")]:
        node.files[path.replace(site, f"{home}/sources")] = node.files.pop(path)
    node.files[f"{site}/editable.pth"] = f"{home}/sources\n"
    node.files[f"{home}/venv/pyvenv.cfg"] = f"command = python -m venv {home}/venv\n"
    node.host["stack"] = {**node.host["stack"], "venv": f"{home}/venv"}
    node.host |= {"user": "somebody", "home": "/home/somebody"}
    whole = cluster_of({"node1": node}, first=1)
    (hidden,) = redact(whole.snapshots.values(), KEY)
    assert "somebody" not in json.dumps(snapshot_json(hidden))
    spec = replace(whole.specs["node1"], name=hidden.node)
    before = installed(whole.nodes[0])
    after = installed(Node(spec, build(hidden), hidden, None))
    assert before is not None
    assert after is not None
    assert after.versions == before.versions
    assert len(after.versions) == 5
    assert after.root == "/source0"


def test_what_is_equal_between_machines_stays_equal() -> None:
    nodes = healthy_nodes(2)
    for node in nodes.values():
        node.gpus[0]["uuid"] = "GPU-11111111-2222-3333-4444-555555555555"
    snapshots = [node.machine.snapshot(host=node.host, nvml={"devices": node.gpus}) for node in nodes.values()]
    one, other = redact(snapshots, KEY)
    assert one.nvml["devices"][0]["uuid"] == other.nvml["devices"][0]["uuid"]
    assert [one.node, other.node] == ["machine1", "machine2"]


@given(one=ipv4, other=ipv4, length=some.integers(8, 32), key=keys)
def test_addresses_of_one_network_are_of_one_network_afterwards(one: str, other: str, length: int, key: bytes) -> None:
    names = Pseudonyms(key)
    together = ip_address(other) in ip_network(f"{one}/{length}", strict=False)
    assert (ip_address(names.ip(other)) in ip_network(f"{names.ip(one)}/{length}", strict=False)) == together
    assert ip_address(names.ip(one)).is_global == ip_address(one).is_global
    assert names.ip(one) == names.ip(one)


@given(raw=some.binary(min_size=16, max_size=16), key=keys)
def test_what_kind_of_address_it_is_stays(raw: bytes, key: bytes) -> None:
    before = ip_address(raw)
    after = ip_address(Pseudonyms(key).ip(str(before)))
    kinds = ("is_loopback", "is_link_local", "is_multicast", "is_global", "is_unspecified", "version")
    assert [getattr(after, kind) for kind in kinds] == [getattr(before, kind) for kind in kinds]


def test_a_gid_follows_its_card_and_its_address() -> None:
    names = Pseudonyms(KEY)
    mac = names.mac("0c:42:a1:03:5c:aa")
    local = names.gid("fe80:0000:0000:0000:0e42:a1ff:fe03:5caa")
    assert local.replace(":", "")[16:] == f"{int(mac[:2], 16) ^ 2:02x}{mac[3:8]}fffe{mac[9:]}".replace(":", "")
    mapped = names.gid("0000:0000:0000:0000:0000:ffff:0a01:0203").replace(":", "")[-8:]
    assert IPv4Address(int(mapped, 16)) == IPv4Address(names.ip("10.1.2.3"))


@pytest.mark.parametrize(
    "text",
    ["580.159.04", "13.580.159.04", "0000:4e:00.0", "00000000:00:06.0", "(PCI:0000:4e:00)", "23:15:26", "a::b::c"],
)
def test_versions_addresses_on_the_bus_and_times_are_no_identity(text: str) -> None:
    assert Pseudonyms(KEY).in_text(text) == text


def test_an_identity_in_an_unexpected_place_is_refused() -> None:
    node = healthy_node("node0")
    node.host["hostname"] = "h"
    node.gpus[0]["serial"] = "1654922006536"
    node.files["/proc/driver/nvidia/params"] = "Board: 1654922006536\n"
    with pytest.raises(ValueError, match="'1654922006536' in /proc/driver/nvidia/params"):
        redact([node.machine.snapshot(host=node.host, nvml={"devices": node.gpus})], KEY)


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
    ],
)
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
