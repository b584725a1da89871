"""Inventories that only Ansible can read, by Ansible's own commands: the same nodes, in Ansible's order."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.loading import node_spec as node_spec_module
from orchestrator.loading.inventory import load_inventory
from orchestrator.loading.node_spec import ANSIBLES
from orchestrator.loading.sources import knows_a_vault_password, reading_settings
from orchestrator.model.inventory import Inventory
from orchestrator.protocol.errors import InputError

BESIDE = Path(sys.executable).parent
INI = """
    # ours
    [gangs:children]
    gang1
    gang0

    [gang0]
    zeta ansible_host=10.0.0.9 l40s_args="--a 'b c'"
    alpha l40s_gpus=4

    [gang1]
    node[2:1:1]
    node-[10:9:1]
    b
    a

    [gang0:vars]
    ansible_user=ops
    l40s_env={"NCCL_DEBUG": "INFO"}
"""
DIRECTORY = {
    "20-hosts.ini": "[gang0]\nzeta\nalpha ansible_host=10.0.0.1\n",
    "10-more.yml": "gangs: {children: {gang0: {hosts: {omega: }, children: {rack9: {hosts: {c: , b: }}, rack1: }}}}\n",
    "30-last.yml": "rack1: {hosts: {a: , omega: }}\nrouter: {hosts: {head: {ansible_connection: local}}}\n",
    "group_vars/gang0.yml": "ansible_user: ops\nl40s_gpus: 4\n",
    "host_vars/alpha.yml": "l40s_address: 10.1.0.1\n",
    "README.md": "no inventory\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No settings of the user apply."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(files: dict[str, str]) -> None:
    for name, text in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def listed(path: str, group: str) -> list[str]:
    """The operator's output."""
    done = subprocess.run(
        [str(BESIDE / "ansible"), group, "-i", path, "--list-hosts"], capture_output=True, text=True, check=True
    )
    return done.stdout.split()[2:]


def ranks(inventory: Inventory) -> dict[str, list[str]]:
    return {gang.name: [node.name for node in gang.nodes] for gang in inventory.gangs}


def vault(text: str, *words: str) -> str:
    Path("password").write_text("let me in")
    done = subprocess.run(
        [str(BESIDE / "ansible-vault"), *words, "--vault-password-file", "password"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_an_ini_inventory_has_ansible_s_order() -> None:
    written({"hosts": INI})
    inventory = load_inventory("hosts")
    assert ranks(inventory) == {gang.name: listed("hosts", gang.name) for gang in inventory.gangs}
    assert ranks(inventory)["gang0"] == ["zeta", "alpha"]
    zeta, alpha = inventory.gangs[1].nodes if inventory.gangs[1].name == "gang0" else inventory.gangs[0].nodes
    assert (zeta.reach.host, zeta.reach.user, zeta.overrides.args) == ("10.0.0.9", "ops", ("--a", "b c"))
    assert (alpha.gpus, alpha.overrides.env) == (4, (("NCCL_DEBUG", "INFO"),))


def test_a_directory_is_merged_by_ansible() -> None:
    written({f"prod/{name}": text for name, text in DIRECTORY.items()})
    inventory = load_inventory("prod")
    assert ranks(inventory)["gang0"] == listed("prod", "gang0")
    assert inventory.router is not None and inventory.router.node.name == "head"
    nodes = {node.name: node for node in inventory.nodes}
    assert nodes["alpha"].address == "10.1.0.1" and nodes["alpha"].reach.host == "10.0.0.1"
    assert {node.gpus for node in nodes.values()} == {4} and nodes["c"].reach.user == "ops"


def test_a_program_and_a_plugin_s_file_are_run_by_ansible() -> None:
    written({"hosts.py": '#!/bin/sh\necho \'{"gangs": {"children": ["g"]}, "g": {"hosts": ["b", "a"]}}\'\n'})
    Path("hosts.py").chmod(0o755)
    assert ranks(load_inventory("hosts.py")) == {"g": ["b", "a"]}
    written({"some.generator.yml": GENERATED})
    assert ranks(load_inventory("some.generator.yml")) == {"g": ["n2", "n1"]}


GENERATED = """
    plugin: ansible.builtin.generator
    hosts: {name: "{{ names }}", parents: [{name: g, parents: [{name: gangs}]}]}
    layers: {names: [n2, n1]}
"""

TEMPLATED = """
    gangs:
      vars:
        base: 10.0.0
        l40s_address: "{{ base }}.{{ number }}"
        l40s_env: {A: "{{ number }}", B: "plain"}
        ansible_user: "{{ nope | default(omit) }}"
        ansible_host: "{{ inventory_hostname }}.example"
        never_read: "{{ nope }}"
      children:
        gang0: {hosts: {b: {number: 1, l40s_gpus: "{{ 2 + 2 }}"}, a: {number: 2, l40s_gpus: 4}}}
"""


def test_templates_of_a_plain_file_are_evaluated_by_ansible() -> None:
    written({"hosts.yml": TEMPLATED, "ansible.cfg": "[defaults]\ncallback_result_format = yaml\nno_log = 1\n"})
    first, second = load_inventory("hosts.yml").nodes
    assert (first.name, first.address, first.gpus, first.reach.host) == ("b", "10.0.0.1", 4, "b.example")
    assert first.reach.user is None
    assert (second.address, second.overrides.env) == ("10.0.0.2", (("A", "2"), ("B", "plain")))


def test_a_template_without_a_value_is_named_with_its_place() -> None:
    written({"hosts.yml": TEMPLATED.replace("{{ 2 + 2 }}", "{{ many }}")})
    with pytest.raises(InputError) as caught:
        load_inventory("hosts.yml")
    assert caught.value.where == "hosts.yml:11: gangs/children/gang0/hosts/b/l40s_gpus"
    assert "on b: 'many' is undefined" in caught.value.what and "write the value itself" in caught.value.fix


def test_a_vaulted_value_is_opened_where_ansible_knows_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = vault("10.9.9.9", "encrypt_string", "--stdin-name", "l40s_address")
    Path("hosts.yml").write_text(
        "gangs:\n  vars:\n" + textwrap.indent(secret, " " * 4) + "\n  children: {g: {hosts: {n: }}}\n"
    )
    with pytest.raises(InputError) as caught:
        load_inventory("hosts.yml")
    assert "ANSIBLE_VAULT_PASSWORD_FILE" in caught.value.fix and caught.value.where.startswith("hosts.yml:3")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", "password")
    assert next(load_inventory("hosts.yml").nodes).address == "10.9.9.9"


def test_a_vaulted_file_counts_where_ansible_knows_the_password() -> None:
    written({"site/hosts.yml": "gangs: {children: {g: {hosts: {b: , a: }}}}", "plain": "l40s_gpus: 2\n"})
    written({"site/group_vars/gangs/vault.yml": vault(Path("plain").read_text(), "encrypt", "--output=-")})
    assert [node.gpus for node in load_inventory("site/hosts.yml").nodes] == [8, 8]
    Path("ansible.cfg").write_text("[defaults]\nvault_password_file = password\n")
    assert [(node.name, node.gpus) for node in load_inventory("site/hosts.yml").nodes] == [("b", 2), ("a", 2)]


def test_variables_that_may_not_be_read_are_told_with_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Mock(side_effect=PermissionError(13, "Permission denied"))
    written({"site/hosts.yml": "gangs: {children: {g: {hosts: {b: }}}}", "site/group_vars/all/x.yml": ""})
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", "password")
    monkeypatch.setattr(Path, "read_bytes", refused)
    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(InputError, match="cannot be read: Permission denied") as caught:
        load_inventory("site/hosts.yml")
    assert caught.value.where.endswith("site/group_vars/all")


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"hosts": "[gangs:children]\ng\n[g]\nb x=1 stray\n"}, "stray"),
        ({"hosts/a.yml": "gangs: {children: {g: {hosts: {b: }}}}", "hosts/b.yml": "gangs: [\n"}, "b.yml"),
    ],
    ids=["a line of an INI file", "one file of a directory"],
)
def test_what_ansible_cannot_read_is_told_in_its_words(files: dict[str, str], what: str) -> None:
    written(files)
    with pytest.raises(InputError, match="Ansible cannot read it") as caught:
        load_inventory("hosts")
    assert what in caught.value.what and "ansible-inventory -i hosts --list" in caught.value.fix


def test_a_gang_without_hosts_is_told() -> None:
    written({"hosts": "[gangs:children]\ng\n[g]\n"})
    with pytest.raises(InputError, match="found no host in gang 'g'"):
        load_inventory("hosts")


def test_every_variable_of_ansible_s_that_is_read_is_evaluated() -> None:
    text = Path(node_spec_module.__file__).read_text()
    assert set(re.findall(r"\"(ansible_[a-z_]+)\"", text)) == set(ANSIBLES)


def test_settings_come_from_the_environment_else_from_the_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reading_settings() == {} and not knows_a_vault_password()
    written(
        {"home/.ansible.cfg": "[defaults]\nvault_password_file=~/secret\n[inventory]\nenable_plugins = ini, yaml\n"}
    )
    home = Path.home()
    assert reading_settings() == {
        "ANSIBLE_VAULT_PASSWORD_FILE": str(home / "secret"),
        "ANSIBLE_INVENTORY_ENABLED": "ini, yaml",
    }
    written({"ansible.cfg": "[defaults]\nvault_identity_list = dev@x\n"})
    assert reading_settings() == {"ANSIBLE_VAULT_IDENTITY_LIST": "dev@x"}
    Path.cwd().chmod(0o777)
    assert "ANSIBLE_INVENTORY_ENABLED" in reading_settings()
    monkeypatch.setenv("ANSIBLE_CONFIG", "/nonexistent")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", "mine")
    assert reading_settings()["ANSIBLE_VAULT_PASSWORD_FILE"] == "mine" and knows_a_vault_password()


@given(text=st.text(max_size=80))
def test_any_ansible_cfg_is_read_or_left_to_ansible(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.cfg"
    path.write_text("[defaults]\n" + text, encoding="utf-8", errors="surrogateescape")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANSIBLE_CONFIG", str(path))
        assert isinstance(reading_settings(), dict)


@pytest.mark.parametrize(
    "value",
    [
        "{{ lookup('pipe', 'touch ran; echo me') }}",
        "{% set r = query('pipe', 'touch ran; echo me') %}{{ r[0] }}",
        "{{ other }}",
        "plain",
    ],
)
@pytest.mark.parametrize("allowed", [True, False])
def test_lookups_run_nothing_where_the_operator_forbids_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, allowed: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("L40S_CONFIG", str(tmp_path / "config.yml"))
    (tmp_path / "config.yml").write_text(f"lookups: {str(allowed).lower()}\n")
    hosts = tmp_path / "hosts.yml"
    host = {"ansible_host": "10.0.0.1", "ansible_user": value, "other": "{{ q('pipe', 'touch ran; echo me')[0] }}"}
    host = {key: text for key, text in host.items() if key != "other" or value == "{{ other }}"}
    hosts.write_text(json.dumps({"all": {"children": {"gangs": {"children": {"g": {"hosts": {"n": host}}}}}}}))
    if allowed or value == "plain":
        load_inventory(hosts)
    else:
        with pytest.raises(InputError, match="uses a lookup on n"):
            load_inventory(hosts)
    assert (tmp_path / "ran").exists() == (allowed and value != "plain")


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hosts.yml")
    for path in (tmp_path / "hosts.yml", Path("/dev/zero")):
        with pytest.raises(InputError, match="not a regular file"):
            load_inventory(path)
