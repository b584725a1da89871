"""We read an inventory as Ansible does, or refuse it with a message."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hostile import ODD_YAML

from orchestrator.loading.ansible_yaml import AnsibleInventory, BadPattern, expand, read_ansible_inventory
from orchestrator.loading.yaml_fields import parse_yaml
from orchestrator.protocol.errors import InputError

REFERENCE = Path(__file__).resolve().parents[3] / "inventory" / "reference.yml"

CASES: dict[str, dict[str, str]] = {
    "plain": {
        "hosts.yml": """
            all:
              hosts: {alone: {x: 1}}
              vars: {everywhere: 1, x: 0}
              children:
                gangs:
                  children:
                    gang1: {hosts: {b: , a: {ansible_host: 10.0.0.1}}}
                    gang0: {hosts: {d: {y: [1, two]}, c: }}
                  vars: {x: group}
        """
    },
    "a merged mapping that merges, deeper than who merges it": {
        "hosts.yml": "a: {children: {b: {hosts: {n: &n {<<: {x: 1, y: 1}, x: 2}}}}}\nc: {vars: {<<: *n}, hosts: {o: }}"
    },
    "ranges and ports": {
        "hosts.yml": """
            gangs:
              children:
                numbers: {hosts: {"l40s-[0:3]": {a: 1}, "n[08:11]": , "s[1:9:4]-x": }}
                letters: {hosts: {"r[a:c]": , "[x:z]y": , "r[a:b][1:2]": , "q[:2]": }}
                ports: {hosts: {"host.example:2222": , "p[0:1]:22": , "[fe80::7]:2022": , "fe80::8": }}
        """
    },
    "precedence": {
        "hosts.yml": """
            all:
              vars: {v1: all, v2: all, v3: all, v4: all, v5: all, v6: all, v7: all, v8: all}
              children:
                parent:
                  vars: {v2: parent, v3: parent, v4: parent, v5: parent, v6: parent, v8: parent}
                  children:
                    zebra: {vars: {v3: zebra, v4: zebra, v5: zebra, v6: zebra}, hosts: {n0: {v6: host}, n1: }}
                    apple: {vars: {v4: apple, v5: apple, v6: apple}, hosts: {n0: , n1: }}
                    loud: {vars: {v5: loud, ansible_group_priority: 10}, hosts: {n1: }}
                deep: {children: {deeper: {children: {apple: }, vars: {v7: deeper, v4: deeper}}}, vars: {v7: deep}}
        """
    },
    "vars files": {
        "hosts.yml": """
            gangs:
              vars: {a: inline, b: inline, c: inline, d: inline, h: inline}
              children:
                gang0: {hosts: {n0: {c: host, d: host}, n1: {e: host}}, vars: {b: gang inline}}
        """,
        "group_vars/all.yml": "a: all file\nb: all file\nonly: all\nansible_group_priority: 5\n",
        "group_vars/gangs/one.yml": "a: gangs one\nb: gangs one\n",
        "group_vars/gangs/two.yaml": "b: gangs two\n",
        "group_vars/gangs/.hidden.yml": "b: hidden\n",
        "group_vars/gangs/backup.yml~": "b: backup\n",
        "group_vars/gangs/deeper/three.json": '{"h": {"x": 1}}',
        "group_vars/gang0": "f: bare file name\n",
        "group_vars/gang0.yml": "f: passed over, since the bare name exists\n",
        "host_vars/n0.yml": "d: host file\n",
        "host_vars/n1.json": '{"e": "host file", "list": [1, 2]}',
        "group_vars/empty.yml": "",
    },
    "one group in many places": {
        "hosts.yml": """
            gangs: {children: {gang0: , gang1: }}
            gang0: {hosts: {b: {x: 1}, a: }, vars: {m: {one: 1}}}
            more: {children: {gang0: {hosts: {c: {z: 1}}, vars: {m: {two: 2}, k: 1}}}, hosts: {b: {x: 2, y: 2}}}
            gang1: {hosts: lonely}
            ungrouped: {hosts: {stray: {x: 1}, b: }, vars: {u: 1}}
        """
    },
    "hosts of child groups": {
        "hosts.yml": """
            gangs:
              children:
                gang0: {children: {rack1: {hosts: {c: , d: }}, rack0: {hosts: {b: , a: , c: }}}, hosts: {first: }}
        """
    },
    "yaml's ways": {
        "hosts.yml": """
            base: &base {hosts: {x0: }, vars: &vars {flag: yes, port: 0x10, text: "yes", empty: , when: 12:30}}
            gangs: {children: {gang0: {hosts: {x0: {unsafe: !unsafe "{{ no }}"}}, vars: {<<: *vars, port: 17}}}}
        """
    },
}


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder / "hosts.yml"


COUNT, SEED = 60, 20250801
GROUPS = [*(f"g{number}" for number in range(6)), "all", "ungrouped"]
HOSTS = ["h[0:1]", "h0", "h2", "h[1:3]", "h4:2200"]
ORACLE = """
import json, sys
from ansible.cli.inventory import InventoryCLI
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.vars.manager import VariableManager
init_plugin_loader([])
for path in json.load(sys.stdin):
    loader = DataLoader()
    inventory = InventoryManager(loader, [path])
    variables = VariableManager(loader, inventory)
    def of(host):
        return InventoryCLI._remove_internal(variables.get_vars(host=host, include_hostvars=False, stage="all"))
    print(json.dumps(inventory._inventory.processed_sources and {
        "groups": {name: [[host.name for host in group.hosts], [child.name for child in group.child_groups]]
                   for name, group in inventory.groups.items() if name not in ("all", "ungrouped")},
        "hosts": {host.name: of(host) for host in inventory.hosts.values()},
    } or None))
"""


def made(dice: random.Random, folder: Path) -> Path:
    """A random inventory with files in group_vars/ and host_vars/."""

    def variables() -> dict[str, Any]:
        found: dict[str, Any] = {name: dice.randint(0, 99) for name in dice.sample("abcdef", dice.randint(0, 3))}
        if dice.random() < 0.2:
            found["ansible_group_priority"] = dice.randint(0, 12)
        if dice.random() < 0.2:
            found["m"] = {dice.choice("xy"): dice.randint(0, 9)}
        return found

    def group(depth: int) -> dict[str, Any] | None:
        if dice.random() < 0.15:
            return None
        sections: dict[str, Any] = {
            "vars": variables(),
            "hosts": {name: dice.choice([None, variables()]) for name in dice.sample(HOSTS, dice.randint(0, 3))},
        }
        if depth < 3:
            sections["children"] = {name: group(depth + 1) for name in dice.sample(GROUPS[:6], dice.randint(0, 2))}
        chosen = dice.sample(sorted(sections), dice.randint(0, len(sections)))
        return {name: sections[name] for name in chosen}

    folder.mkdir()
    data = {name: group(0) for name in dice.sample(GROUPS, dice.randint(1, 4))}
    (folder / "hosts.yml").write_text(yaml.safe_dump(data, sort_keys=False))
    for kind, names in (("group_vars", GROUPS), ("host_vars", ["h0", "h1", "h4"])):
        (folder / kind).mkdir()
        for name in dice.sample(names, 2):
            file = folder / kind / f"{name}{dice.choice(['', '.yml', '.yaml', '.json'])}"
            file.write_text(json.dumps(variables()))
    return folder / "hosts.yml"


def ours(inventory: AnsibleInventory) -> dict[str, Any]:
    return {
        "groups": {
            name: [group.hosts, group.children]
            for name, group in inventory.groups.items()
            if name not in ("all", "ungrouped")
        },
        "hosts": {
            host: {name: variable.value for name, variable in inventory.variables_of(host).items()}
            for host in inventory.hosts
        },
    }


def test_inventories_are_read_as_ansible_s_own_classes_read_them(tmp_path: Path) -> None:
    """The reference, those above, and random ones, which may be refused where Ansible only warns."""
    dice = random.Random(SEED)
    known = [REFERENCE, *(written(tmp_path / case, files) for case, files in CASES.items())]
    paths = [*known, *(made(dice, tmp_path / str(number)) for number in range(COUNT))]
    (tmp_path / "ansible.cfg").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", ORACLE],
        input=json.dumps([str(path) for path in paths]),
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"), "ANSIBLE_HOME": str(tmp_path / "home")},
    )
    compared = 0
    for path, answer in zip(paths, done.stdout.splitlines(), strict=True):
        theirs = json.loads(answer)
        try:
            inventory = read_ansible_inventory(path)
        except InputError as refused:
            assert path not in known and (theirs is None or "ungrouped" in refused.what), (refused, path.read_text())
            continue
        assert json.loads(json.dumps(ours(inventory))) == theirs, path.read_text()
        compared += 1
    assert compared > len(known) + COUNT / 3


def test_hosts_of_child_groups_follow_the_groups_own(tmp_path: Path) -> None:
    inventory = read_ansible_inventory(written(tmp_path, CASES["hosts of child groups"]))
    assert inventory.hosts_of("gang0") == ("first", "c", "d", "b", "a")


WRONG = {
    "not a mapping": ("- a\n- b\n", "hosts.yml", "a list"),
    "empty": ("", "hosts.yml", "nothing"),
    "broken": ("gangs:\n  children: [\n", "hosts.yml:3", "not valid YAML"),
    "tab": ("gangs:\n\tx: 1\n", "hosts.yml:2", "indented with a TAB"),
    "a key twice": ("gangs: {}\ngangs: {}\n", "hosts.yml:2", "appears twice"),
    "unknown tag": ("gangs: !python/object:os.system {}\n", "hosts.yml:1", "not valid YAML"),
    "misspelt section": ("gangs:\n  childern: {}\n", "hosts.yml:2: gangs/childern", "not a section"),
    "hosts as a list": ("gangs:\n  hosts:\n    - a\n", "hosts.yml:2: gangs/hosts", "a list"),
    "a number for a host": ("gangs:\n  hosts:\n    1:\n", "hosts.yml:3: gangs/hosts/1", "host name 1; wanted a text"),
    "a truth value for a group": ("yes:\n  hosts: {}\n", "hosts.yml:1: True", "group name True; wanted"),
    "a group below itself": (
        "a: {children: {b: {children: {a: }}}}\n",
        "hosts.yml:1: a/children/b/children/a",
        "itself",
    ),
    "a loop in pieces": ("a: {children: {b: }}\nb: {children: {a: }}\n", "hosts.yml:2: b/children/a", "itself"),
    "a loop by alias": ("a: &x {children: {b: *x}}\n", "hosts.yml:1", "itself"),
    "a value that holds itself": ("a: {vars: {l40s_gpus: &x [*x]}}\n", "hosts.yml:1", "itself"),
    "one name twice": ("a: {hosts: {a: }}\n", "hosts.yml:1: a/hosts/a", "a host and a group"),
    "a text for variables": ("a: {hosts: {n: text}}\n", "hosts.yml:1: a/hosts/n", "a text"),
    "a bad priority": ("a: {vars: {ansible_group_priority: high}}\n", "hosts.yml:1: a/vars/ansible", "'high'"),
    "no priority": ("a: {vars: {ansible_group_priority: .inf}}\n", "hosts.yml:1: a/vars/ansible", "found inf"),
    "an open bracket": ("a: {hosts: {'n[0:1': }}\n", "hosts.yml:1: a/hosts/n[0:1", "bracket"),
    "a child of ungrouped": ("ungrouped: {children: {a: }}\n", "hosts.yml:1: ungrouped/children/a", "`ungrouped`"),
    "all below": ("a: {children: {all: }}\n", "hosts.yml:1: a/children/all", "`all`"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_are_told_with_their_place(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, where, what = WRONG[case]
    monkeypatch.chdir(tmp_path)
    Path("hosts.yml").write_text(text)
    with pytest.raises(InputError) as caught:
        read_ansible_inventory(Path("hosts.yml"))
    assert caught.value.where.startswith(where)
    assert what in caught.value.what
    assert caught.value.fix


def test_a_wholly_vaulted_file_is_passed_over(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"hosts.yml": "g: {hosts: {n: }}", "group_vars/all/vault.yml": "$ANSIBLE_VAULT;1.1;AES256\n66\n"}
    )
    assert read_ansible_inventory(path).variables_of("n") == {}


def test_an_error_in_a_vars_file_names_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, {"hosts.yml": "g: {hosts: {n: }}", "host_vars/n.yml": "- not\n- a mapping\n"})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        read_ansible_inventory(Path("hosts.yml")).variables_of("n")
    assert caught.value.where == "host_vars/n.yml"


LEAVES = st.sampled_from([
    "gangs", "hosts", "children", "vars", "a", "n[0:2]", "n[", "~", "1", "yes", "2001-99-99", "!!int x", "!!bool x",
    "!vault x", "!unsafe {a: b}", "&a a", "*a", "<<", "0o", "1:30", "'{{ x }}'", "!!binary x", "!!timestamp x",
    "!!set {a}", "!!float ''", "[a, b]", "{a: b}", "? a", "ansible_group_priority", "l40s_gpus", "\x85", "\ud800",
])  # fmt: skip


def yaml_texts() -> st.SearchStrategy[str]:
    flow = st.recursive(
        LEAVES,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(lambda items: "[" + ", ".join(items) + "]"),
            st.lists(st.tuples(LEAVES, inner), max_size=4).map(
                lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
            ),
        ),
        max_leaves=12,
    )
    return st.one_of(flow, st.text(max_size=60), st.lists(flow, max_size=3).map("\n".join))


@given(text=yaml_texts())
def test_any_text_is_a_value_or_an_input_error(text: str) -> None:
    try:
        parse_yaml(text, "hosts.yml")
    except InputError as wrong:
        assert wrong.where.startswith("hosts.yml")


@pytest.mark.parametrize("text", ["[" * 100_000, *(text for text in ODD_YAML if "&a0" in text)])
def test_what_nests_too_deep_or_stands_for_too_much_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match="not valid YAML"):
        parse_yaml(text, "hosts.yml")


NAMES = st.text("abcxyz-.", min_size=1, max_size=8)


@given(
    head=NAMES,
    tail=st.text("abc-.", max_size=4),
    first=st.integers(0, 300),
    count=st.integers(1, 40),
    step=st.integers(1, 5),
)
def test_a_numeric_range_counts(head: str, tail: str, first: int, count: int, step: int) -> None:
    last = first + count - 1
    names, port = expand(f"{head}[{first}:{last}:{step}]{tail}")
    assert names == tuple(f"{head}{number}{tail}" for number in range(first, last + 1, step))
    assert port is None


@given(head=NAMES, first=st.integers(0, 99), count=st.integers(1, 30), port=st.integers(1, 65535))
def test_leading_zeros_keep_the_width(head: str, first: int, count: int, port: int) -> None:
    last = first + count - 1
    names, found = expand(f"{head}[{first:04}:{last:04}]:{port}")
    assert names == tuple(f"{head}{number:04}" for number in range(first, last + 1))
    assert found == port


@given(text=st.text("ab01:[]-. \u0663", max_size=14))
def test_any_text_is_names_or_a_bad_pattern(text: str) -> None:
    try:
        names, _ = expand(text)
    except BadPattern:
        return
    assert names and all(names)


@pytest.mark.parametrize(
    "pattern",
    ["n[3:1]", "n[1]", "n[1:]", "n[1:2:0]", "n[1:2:3:4]", "n[a:1]", "n[01:100]", "n[0:99999]", "n[0:99][0:99]", "n[0:1",
     "n]", "n:0", "n:70000", "", "n[aa:bb]", "[::1]"],
)  # fmt: skip
def test_what_is_no_range_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        expand(pattern)
