"""The inventory that `init` writes is the annotated reference with the operator's hosts, and reads back the same."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.questions import Questions
from orchestrator.cli.screen import Screen
from orchestrator.hosts.commands import init as init_verb
from orchestrator.hosts.steps.init import InitRequest, first_inventory, nodes_of, refuse_existing
from orchestrator.loading.inventory import load_inventory
from orchestrator.loading.resources import data_dir
from orchestrator.model.inventory import Inventory, NodeSpec, Reach
from orchestrator.protocol.errors import InputError

REFERENCE = (data_dir("inventory") / "reference.yml").read_text()


@pytest.mark.parametrize(
    ("options", "answers", "asked", "key"),
    [
        ([], ["a b", "deploy", "~/.ssh/l40s"], ["hosts", "SSH user", "SSH private key"], "~/.ssh/l40s"),
        ([], ["a, b", "", ""], ["hosts", "SSH user", "SSH private key"], ""),
        (["--key", "id"], ["a b", ""], ["hosts", "SSH user"], "id"),
        (["--key", "id", "--user", "x"], ["a b"], ["hosts"], "id"),
        (["a", "b"], [], [], ""),
    ],
)
def test_what_the_options_do_not_say_is_asked_for_the_key_too(
    options: list[str], answers: list[str], asked: list[str], key: str
) -> None:
    class Asked(Questions):
        def text(self, question: str, option: str, default: str | None = None) -> str:
            said.append((question, option))
            return answers[len(said) - 1] or default or ""

    said: list[tuple[str, str]] = []
    parser = argparse.ArgumentParser()
    init_verb.configure(parser)
    request = init_verb._request(parser.parse_args(options), Asked(Screen(), "init"))
    assert (request.hosts, request.key_file) == (("a", "b"), key)
    assert [question.split(" (")[0].split(",")[0] for question, _ in said] == asked
    assert all(option in ("HOST ...", "--user USER", "--key FILE") for _, option in said)


def node(name: str, host: str = "", address: str | None = None, gpus: int = 0) -> NodeSpec:
    return NodeSpec(name=name, gang="g", node_rank=0, reach=Reach(host=host or name), address=address, gpus=gpus)


def written(folder: Path, *nodes: NodeSpec, gang: str = "gang0", **variables: object) -> Inventory:
    text = first_inventory(REFERENCE, path="hosts.yml", gang=gang, nodes=nodes, variables=variables)
    (folder / "hosts.yml").write_text(text)
    return load_inventory(folder / "hosts.yml")


def test_hosts_and_values_stand_in_the_annotated_reference(tmp_path: Path) -> None:
    inventory = written(
        tmp_path,
        node("l40s-1", "10.0.0.2", "10.1.0.2", gpus=8),
        node("l40s-0", gpus=8),
        node("n", gpus=4),
        gang="first",
        ansible_user="deploy",
        ansible_port=2222,
        ansible_ssh_private_key_file="~/.ssh/a key",
        ansible_ssh_common_args="-o ProxyJump=gate:22",
        ansible_become=True,
        l40s_stack="sglang-0.4.4-l40s",
    )
    (gang,) = inventory.gangs
    leader, second, third = gang.nodes
    assert (gang.name, leader.name, leader.reach.host, leader.address) == ("first", "l40s-1", "10.0.0.2", "10.1.0.2")
    assert (second.reach.host, second.address, second.gpus, third.gpus) == ("l40s-0", None, 8, 4)
    assert (leader.reach.user, leader.reach.port, leader.reach.become) == ("deploy", 2222, True)
    assert leader.reach.key_file == "~/.ssh/a key" and leader.reach.ssh_options == (("proxyjump", "gate:22"),)
    assert leader.stack == "sglang-0.4.4-l40s"
    text = (tmp_path / "hosts.yml").read_text()
    assert "l40s-deploy init" in text and "# l40s_accept:" in text and "192.168" not in text.partition("# router:")[0]
    assert "commands run through `sudo -n`" in text  # the reference's comment on a line stays next to it


def test_what_nobody_said_is_left_to_ssh(tmp_path: Path) -> None:
    (gang,) = written(tmp_path, node("n0")).gangs
    reach = gang.leader.reach
    assert (reach.user, reach.port, reach.key_file, reach.become, gang.leader.gpus) == (None, None, None, False, 8)


@given(name=st.text(min_size=1, max_size=8), address=st.text(max_size=8))
def test_any_text_is_read_back_or_refused(name: str, address: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    try:
        (read,) = written(folder, node(f"n{name}", "h", address)).nodes
    except InputError:
        return
    assert (read.name, read.address or "") == (f"n{name}", address)


def test_hosts_are_names_ranges_and_addresses() -> None:
    hosts = ("l40s-[0:1]", "head=10.0.0.9", "m:2222", "n[0:1]=10.0.1.[8:9]")
    request = InitRequest(hosts=hosts, user="ops")
    nodes = nodes_of(request)
    assert [(node.name, node.reach.host, node.reach.port) for node in nodes] == [
        ("l40s-0", "l40s-0", None),
        ("l40s-1", "l40s-1", None),
        ("head", "10.0.0.9", None),
        ("m", "m", 2222),
        ("n0", "10.0.1.8", None),
        ("n1", "10.0.1.9", None),
    ]
    assert nodes[0].reach.user == "ops"


@pytest.mark.parametrize(
    "hosts", [(), ("a", "a"), ("=10.0.0.1",), ("n[0:1]=10.0.0.1",), ("n[0:2]=h[1:2]",), ("n[0:1]=h[1:3]",), ("n[0:",)]
)
def test_a_word_that_is_no_host_is_told(hosts: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        nodes_of(InitRequest(hosts=hosts))
    assert caught.value.where == "HOST" and caught.value.fix


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path, tmp_path / "link"):
        with pytest.raises(InputError, match="never overwrites"):
            refuse_existing(path)
