"""Gangs and nodes from an inventory: the meaning of each variable, and the message for a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.loading.inventory import load_inventory
from orchestrator.loading.node_spec import OURS, BadArguments, ssh_pairs
from orchestrator.model.inventory import Event, GangPorts, Mail, NodeSpec, Overrides, Reach, ReceiverKind, Recipient
from orchestrator.protocol.errors import InputError

REFERENCE = Path(__file__).resolve().parents[3] / "inventory" / "reference.yml"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def one_node(variables: str) -> NodeSpec:
    """The node of an inventory with these variables, as YAML flow text on its host."""
    Path("hosts.yml").write_text(f"gangs:\n  children:\n    gang0:\n      hosts:\n        n0: {{{variables}}}\n")
    return next(load_inventory("hosts.yml").nodes)


def test_the_reference_is_one_gang_of_four_nodes() -> None:
    inventory = load_inventory(REFERENCE)
    (gang,) = inventory.gangs
    assert [node.name for node in gang.nodes] == ["l40s-0", "l40s-1", "l40s-2", "l40s-3"]
    assert [node.node_rank for node in gang.nodes] == [0, 1, 2, 3]
    assert gang.leader.address == "10.0.0.10"
    assert gang.leader.reach == Reach(host="192.168.10.10", user="deploy")
    assert {node.gpus for node in inventory.nodes} == {8}
    assert gang.leader.ports == GangPorts()


def test_a_gang_and_its_replicas_have_aliases_which_its_nodes_share(folder: Path) -> None:
    text = (
        "{children: {gang0: {hosts: {n0: {ansible_host: a}, n1: {ansible_host: b%s}}, vars: {l40s_aliases: [x, y]}}}}"
    )
    Path("hosts.yml").write_text(f"gangs: {text % ''}\nrouter: {{hosts: {{head: {{ansible_host: c}}}}}}\n")
    router = load_inventory("hosts.yml").router
    assert router is not None
    assert router.aliases == dict.fromkeys(("gang0", "gang0-0", "gang0-1"), ("x", "y"))
    Path("hosts.yml").write_text(f"gangs: {text % ', l40s_aliases: [z]'}\n")
    with pytest.raises(InputError, match="l40s_aliases"):
        load_inventory("hosts.yml")


def test_the_reference_explains_every_variable() -> None:
    text = REFERENCE.read_text()
    assert [name for name in OURS if name not in text] == []


def test_what_is_not_said_has_its_default(folder: Path) -> None:
    assert one_node("") == NodeSpec(name="n0", gang="gang0", node_rank=0, reach=Reach(host="n0"))


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("[1, 3]", ("1", "3")),
        ("'1,3'", ("1", "3")),
        ("[GPU-0a1b-2c]", ("GPU-0a1b-2c",)),
        ("['0000:17:00.0', '98:00.0']", ("0000:17:00.0", "98:00.0")),
    ],
)
def test_gpus_may_be_named(folder: Path, said: str, names: tuple[str, ...]) -> None:
    node = one_node(f"l40s_gpus: {said}")
    assert (node.gpus, node.gpu_names) == (len(names), names)


def test_every_variable_of_ours_reaches_the_node(folder: Path) -> None:
    node = one_node(
        "l40s_address: 10.0.0.1, l40s_gpus: 4, l40s_fs_root: /lab/n0/, l40s_model_root: /models, "
        "l40s_stack: sglang-0.5.23, l40s_venv: /opt/v, l40s_state_dir: /s, l40s_engine_user: l40s, "
        "l40s_transport: rdma, l40s_http_host: '::', l40s_http_port: 8001, l40s_dist_init_port: 5001, "
        "l40s_nccl_port: 5002, l40s_agent_port: '7701', l40s_lease: 1.5m, l40s_accept: [A, B@n0], "
        "l40s_socket_ifname: bond0, l40s_ib_hca: '=mlx5_0:1,mlx5_2:1', l40s_gid_index: 3, "
        "l40s_env: {NCCL_DEBUG: INFO, N: 1}, l40s_env_public: [N, MODE], l40s_args: [--a, 'b c']"
    )
    assert node == NodeSpec(
        name="n0",
        gang="gang0",
        node_rank=0,
        reach=Reach(host="n0"),
        address="10.0.0.1",
        gpus=4,
        fs_root="/lab/n0",
        model_root="/models",
        stack="sglang-0.5.23",
        venv="/opt/v",
        state_dir="/s",
        engine_user="l40s",
        transport="rdma",
        http_host="::",
        ports=GangPorts(http=8001, dist_init=5001, nccl=5002, agent=7701),
        lease_s=90.0,
        accept=("A", "B@n0"),
        overrides=Overrides(
            socket_ifname="bond0",
            ib_hca="=mlx5_0:1,mlx5_2:1",
            gid_index=3,
            env=(("NCCL_DEBUG", "INFO"), ("N", "1")),
            env_public=("N", "MODE"),
            args=("--a", "b c"),
        ),
    )


def test_flags_may_stand_in_one_text(folder: Path) -> None:
    assert one_node("l40s_args: --a 'b c' --d").overrides.args == ("--a", "b c", "--d")


def test_ansibles_variables_say_how_to_reach_it(folder: Path) -> None:
    node = one_node(
        "ansible_host: 10.9.0.1, ansible_port: '2222', ansible_user: deploy, ansible_become: 'yes', "
        "ansible_become_user: l40s, ansible_python_interpreter: /usr/bin/python3.11, "
        "ansible_ssh_private_key_file: /k, ansible_private_key_file: /older, "
        'ansible_ssh_common_args: "-o UserKnownHostsFile=/kh -J hop\\n", ansible_host_key_checking: false, '
        "ansible_ssh_extra_args: ''"
    )
    assert node.reach == Reach(
        host="10.9.0.1",
        port=2222,
        user="deploy",
        key_file="/k",
        known_hosts_file="/kh",
        ssh_options=(("userknownhostsfile", "/kh"), ("proxyjump", "hop"), ("stricthostkeychecking", "no")),
        become=True,
        become_user="l40s",
        python="/usr/bin/python3.11",
    )


@pytest.mark.parametrize(
    ("word", "kind"),
    [("local", "local"), ("ssh", "ssh"), ("smart", "ssh"), ("paramiko_ssh", "ssh"), ("ansible.builtin.ssh", "ssh")],
)
def test_the_connections_that_we_have(word: str, kind: str, folder: Path) -> None:
    assert one_node(f"ansible_connection: {word}").reach.connection == kind


def test_a_discovered_python_is_python3(folder: Path) -> None:
    assert one_node("ansible_python_interpreter: auto_silent").reach.python == "python3"


NODE = "hosts.yml:5: gangs/children/gang0/hosts/n0"

WRONG = [
    ("l40s_http_prot: 1", f"{NODE}/l40s_http_prot", "unknown variable", "l40s_http_port"),
    ("l40s_http_port: http", f"{NODE}/l40s_http_port", "found 'http'; wanted an integer from 1 to 65535", ""),
    ("l40s_http_port: 65536", f"{NODE}/l40s_http_port", "found 65536", ""),
    ("l40s_http_port: 5000", f"{NODE}/l40s_http_port", "wanted a port that l40s_dist_init_port does not have", "5001"),
    ("l40s_gpus: true", f"{NODE}/l40s_gpus", "found True", ""),
    ("l40s_gpus: many", f"{NODE}/l40s_gpus", "found 'many'", "l40s_gpus: [first, second]"),
    ("l40s_gpus: [0, 0]", f"{NODE}/l40s_gpus", "found [0, 0]", "each once"),
    ("l40s_gpus: [0000:17:00.0]", f"{NODE}/l40s_gpus", "wanted a count, or GPUs by", "addresses in quotes"),
    ("l40s_gpus: 0", f"{NODE}/l40s_gpus", "found 0", ""),
    ("l40s_transport: infiniband", f"{NODE}/l40s_transport", "wanted auto, rdma or tcp", "auto"),
    ("l40s_model_root: models", f"{NODE}/l40s_model_root", "wanted an absolute path", ""),
    ("l40s_lease: .nan", f"{NODE}/l40s_lease", "wanted seconds", ""),
    ("l40s_lease: 30d", f"{NODE}/l40s_lease", "found '30d'; wanted seconds", ""),
    ("l40s_address: 10.0.0", f"{NODE}/l40s_address", "wanted an IP address", ""),
    ("l40s_address: 'a b'", f"{NODE}/l40s_address", "wanted an IP address", ""),
    ("l40s_env: [A=1]", f"{NODE}/l40s_env", "wanted a mapping", ""),
    ("l40s_env: {A: yes}", f"{NODE}/l40s_env/A", "found True", "quotes"),
    ("l40s_env: {A-B: x}", f"{NODE}/l40s_env/A-B", "environment variable's name", ""),
    ("l40s_env_public: [A-B]", f"{NODE}/l40s_env_public/A-B", "environment variable's name", ""),
    ("l40s_env_public: {A: true}", f"{NODE}/l40s_env_public", "wanted a list of strings", ""),
    ("l40s_args: [1]", f"{NODE}/l40s_args", "wanted a list of strings", ""),
    ('l40s_args: "--a \'b"', f"{NODE}/l40s_args", "matching quotes", ""),
    ("l40s_accept: [[]]", f"{NODE}/l40s_accept", "wanted a list of strings", ""),
    ("ansible_connection: winrm", f"{NODE}/ansible_connection", "wanted ssh or local", ""),
    ("ansible_become: maybe", f"{NODE}/ansible_become", "wanted true or false", ""),
    ("ansible_become: true, ansible_become_method: su", f"{NODE}/ansible_become_method", "wanted sudo", ""),
    ("ansible_port: 0", f"{NODE}/ansible_port", "found 0", ""),
    ("ansible_ssh_common_args: -o ProxyUseFdpass=yes", f"{NODE}/ansible_ssh_common_args", "ProxyUseFdpass", ""),
    ("ansible_ssh_common_args: -w 0", f"{NODE}/ansible_ssh_common_args", "-w is not", ""),
]


@pytest.mark.parametrize(("variables", "where", "what", "fix"), WRONG, ids=[case[0] for case in WRONG])
def test_a_wrong_value_names_file_path_found_and_wanted(
    variables: str, where: str, what: str, fix: str, folder: Path
) -> None:
    with pytest.raises(InputError) as caught:
        one_node(variables)
    assert caught.value.where == where
    assert what in caught.value.what
    assert fix in caught.value.fix
    assert caught.value.fix


GANGS = "gangs: {children: {gang0: {hosts: {a: }}, gang1: {hosts: {b: }}}}\n"
WRONG_CLUSTERS = {
    "no gangs": ("all: {hosts: {a: }}", "hosts.yml", "no group 'gangs'"),
    "gangs without children": ("gangs: {vars: {a: 1}}", "hosts.yml:1: gangs", "no gang"),
    "hosts of gangs itself": ("gangs: {hosts: {a: }}", "hosts.yml:1: gangs/hosts/a", "child groups"),
    "an empty gang": ("gangs: {children: {g: }}", "hosts.yml:1: gangs/children/g", "no host"),
    "an odd gang name": ("gangs: {children: {../g: {hosts: {a: }}}}", "hosts.yml:1: gangs/children/../g", "gang name"),
    "an odd node name": (
        "gangs: {children: {g: {hosts: {a b: }}}}",
        "hosts.yml:1: gangs/children/g/hosts/a b",
        "node name",
    ),
    "a node in two gangs": (
        "gangs: {children: {g: {hosts: {a: }}, h: {hosts: {a: }}}}",
        "hosts.yml:1: gangs/children/h/hosts/a",
        "in the gangs 'g' and 'h'",
    ),
    "one SSH address twice": (
        "gangs: {children: {g: {hosts: {a: {ansible_host: x}, b: {ansible_host: x}}}}}",
        "hosts.yml:1: gangs/children/g/hosts/b/ansible_host",
        "ansible_host x:22 for 'a' and 'b'",
    ),
    "one rendezvous address twice": (
        "gangs: {children: {g: {hosts: {a: {l40s_address: x}, b: {l40s_address: x}}}}}",
        "hosts.yml:1: gangs/children/g/hosts/b/l40s_address",
        "l40s_address x for 'a' and 'b'",
    ),
    "ports that differ in a gang": (
        "gangs: {children: {g: {hosts: {a: , b: {l40s_http_port: 8001}}}}}",
        "hosts.yml:1: gangs/children/g/hosts/b/l40s_http_port",
        "found 8001 on b, 8000 on a",
    ),
    "an unknown role": (
        "gangs: {children: {g: {hosts: {a: {l40s_role: idle}}}}}",
        "hosts.yml:1: gangs/children/g/hosts/a/l40s_role",
        "wanted member or spare",
    ),
    "nothing but spares": (
        "gangs: {children: {g: {hosts: {a: {l40s_role: spare}}}}}",
        "hosts.yml:1: gangs/children/g/hosts/a/l40s_role",
        "every host of gang 'g' is a spare",
    ),
    "a spare with another port": (
        "gangs: {children: {g: {hosts: {a: , b: {l40s_role: spare, l40s_http_port: 8001}}}}}",
        "hosts.yml:1: gangs/children/g/hosts/b/l40s_http_port",
        "wanted one l40s_http_port",
    ),
    "a spare at a node's address": (
        "gangs: {children: {g: {hosts: {a: {ansible_host: h}, b: {ansible_host: h, l40s_role: spare}}}}}",
        "hosts.yml:1: gangs/children/g/hosts/b/ansible_host",
        "wanted one machine per node",
    ),
    "two routers": (f"{GANGS}router: {{hosts: {{c: , d: }}}}", "hosts.yml:2: router", "found 2 hosts"),
    "no router in its group": (f"{GANGS}router: {{hosts: {{}}}}", "hosts.yml:2: router", "found 0 hosts"),
    "a router with one port for two": (
        f"{GANGS}router: {{hosts: {{c: {{l40s_router_port: 29000}}}}}}",
        "hosts.yml:2: router/hosts/c/l40s_router_port",
        "other than l40s_router_metrics_port",
    ),
    "an unknown variable of a router": (
        f"{GANGS}router: {{hosts: {{c: {{l40s_router_prot: 1}}}}}}",
        "hosts.yml:2: router/hosts/c/l40s_router_prot",
        "l40s_router_prot",
    ),
}


@pytest.mark.parametrize("case", WRONG_CLUSTERS)
def test_a_wrong_cluster_is_refused_in_words(case: str, folder: Path) -> None:
    text, where, what = WRONG_CLUSTERS[case]
    Path("hosts.yml").write_text(text)
    with pytest.raises(InputError) as caught:
        load_inventory("hosts.yml")
    assert caught.value.where == where
    assert what in caught.value.what


def test_two_gangs_may_have_other_ports(folder: Path) -> None:
    Path("hosts.yml").write_text(
        "gangs: {children: {g: {hosts: {a: }}, h: {hosts: {b: }, vars: {l40s_http_port: 8001}}}}"
    )
    assert [gang.leader.ports.http for gang in load_inventory("hosts.yml").gangs] == [8000, 8001]


def test_an_error_in_group_vars_names_that_file(folder: Path) -> None:
    Path("hosts.yml").write_text("gangs: {children: {g: {hosts: {a: }}}}")
    Path("group_vars").mkdir()
    Path("group_vars/gangs.yml").write_text("# ports\nl40s_http_port: none\n")
    with pytest.raises(InputError) as caught:
        load_inventory("hosts.yml")
    assert caught.value.where == "group_vars/gangs.yml:2: l40s_http_port"


def test_variables_that_are_not_ours_may_hold_anything(folder: Path) -> None:
    assert one_node("secret: !vault x, other: '{{ y }}', ansible_password: '{{ z }}'").name == "n0"


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates()),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=4), inner, max_size=2)),
    max_leaves=4,
)
NAMES = st.sampled_from([
    *OURS, "ansible_host", "ansible_port", "ansible_user", "ansible_become", "ansible_become_user",
    "ansible_connection", "ansible_ssh_common_args", "ansible_python_interpreter", "ansible_private_key_file",
    "ansible_ssh_host", "ansible_become_method", "ansible_host_key_checking",
])  # fmt: skip


@given(variables=st.dictionaries(NAMES, VALUES, max_size=4))
def test_any_value_is_a_node_or_an_input_error(
    variables: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "hosts.yml"
    path.write_text(yaml.safe_dump({"gangs": {"children": {"g": {"hosts": {"n0": variables}}}}}, allow_unicode=True))
    try:
        node = next(load_inventory(path).nodes)
    except InputError as wrong:
        assert wrong.where.startswith(str(path))
    else:
        assert node.name == "n0"


def test_a_spare_is_of_the_gang_and_none_of_its_nodes(folder: Path) -> None:
    hosts = "{a: {l40s_role: spare}, b: , c: {l40s_role: member}}"
    Path("hosts.yml").write_text(f"gangs: {{children: {{gang0: {{hosts: {hosts}}}}}}}\n")
    inventory = load_inventory("hosts.yml")
    (gang,) = inventory.gangs
    assert ([node.name for node in gang.nodes], [node.name for node in gang.spares]) == (["b", "c"], ["a"])
    assert [(node.name, node.node_rank, node.spare) for node in inventory.nodes] == [
        ("b", 0, False),
        ("c", 1, False),
        ("a", 2, True),
    ]


def read(folder: Path, more: str):  # type: ignore[no-untyped-def]
    file = folder / "hosts.yml"
    file.write_text(GANGS + more)
    return load_inventory(file).router


def test_none_unless_asked_for(tmp_path: Path) -> None:
    assert read(tmp_path, "") is None


def test_a_host_with_its_own_ports(tmp_path: Path) -> None:
    spec = read(tmp_path, "router: {hosts: {head: {ansible_host: 10.0.0.1, l40s_router_port: 8080}}}\n")
    assert (spec.node.name, spec.port, spec.metrics_port) == ("head", 8080, 29000)
    assert spec.url == "http://10.0.0.1:8080"


def test_how_it_chooses_a_gang(tmp_path: Path) -> None:
    assert read(tmp_path, "router: {hosts: {a: }}\n").policy == "cache_aware"
    assert read(tmp_path, "router: {hosts: {a: {l40s_router_policy: round_robin}}}\n").policy == "round_robin"
    with pytest.raises(InputError, match="cache_aware, power_of_two, round_robin or random"):
        read(tmp_path, "router: {hosts: {a: {l40s_router_policy: least}}}\n")


def test_how_many_requests_it_lets_in(tmp_path: Path) -> None:
    assert read(tmp_path, "router: {hosts: {a: }}\n").max_requests == ""
    assert read(tmp_path, "router: {hosts: {a: {l40s_router_max_requests: 160}}}\n").max_requests == "160"
    assert read(tmp_path, "router: {hosts: {a: {l40s_router_max_requests: auto}}}\n").max_requests == "auto"
    with pytest.raises(InputError, match="an integer from 1 to 100000"):
        read(tmp_path, "router: {hosts: {a: {l40s_router_max_requests: 0}}}\n")
    with pytest.raises(InputError, match="wanted auto or an integer from 1"):
        read(tmp_path, "router: {hosts: {a: {l40s_router_max_requests: many}}}\n")


@pytest.mark.parametrize(("written", "read_as"), [("auto", "auto"), ("64", "64"), ("'64'", "64")])
def test_a_gangs_own_limit_is_refused_behind_a_router(tmp_path: Path, written: str, read_as: str) -> None:
    limited = f"all: {{vars: {{l40s_max_queued: {written}}}}}\n"
    file = tmp_path / "hosts.yml"
    file.write_text(GANGS + limited)
    assert {node.overrides.max_queued for node in load_inventory(file).nodes} == {read_as}
    with pytest.raises(InputError, match="l40s_router_max_requests: auto below vars: of the group router"):
        read(tmp_path, limited + "router: {hosts: {head: }}\n")


def test_a_limit_is_a_number_or_left_to_the_plan(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="an integer from 1 to 100000"):
        read(tmp_path, "all: {vars: {l40s_max_queued: many}}\n")


def test_a_gangs_node_may_run_it(tmp_path: Path) -> None:
    assert read(tmp_path, "router: {hosts: {a: }}\n").node.gang == "router"


def notified(folder: Path, value: str) -> tuple[Recipient, ...]:
    file = folder / "hosts.yml"
    file.write_text(f"gangs: {{children: {{g: {{hosts: {{node0: }}}}}}, vars: {{l40s_notify: {value}}}}}")
    return load_inventory(file).notify


def test_webhooks_and_mail(tmp_path: Path) -> None:
    slack, mail = notified(
        tmp_path,
        "[{kind: slack, url_file: ~/slack, events: [failed]}, {kind: email, server: 'mail:25', from: a@b, to: c@d}]",
    )
    assert slack == Recipient(kind=ReceiverKind.SLACK, url_file="~/slack", events=frozenset({Event.FAILED}))
    assert mail.mail == Mail(server="mail", port=25, sender="a@b", to=("c@d",)) and mail.events == frozenset(Event)


WRONG_RECIPIENTS = [
    ("slack", "wanted a list of mappings", "l40s_notify"),
    ("{kind: slack, url_file: a}", "wanted a list of mappings", "l40s_notify"),
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


@pytest.mark.parametrize(("value", "what", "where"), WRONG_RECIPIENTS)
def test_what_is_wrong_is_named_and_no_secret_is_shown(tmp_path: Path, value: str, what: str, where: str) -> None:
    with pytest.raises(InputError) as wrong:
        notified(tmp_path, value)
    assert what in wrong.value.what and where in wrong.value.where and wrong.value.fix
    assert "s3cret" not in wrong.value.what + wrong.value.where + wrong.value.fix


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
