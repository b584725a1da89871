"""A host of the inventory as a node of a gang: each variable with the type that it must have, and what it means. What
is wrong is said with its place.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, cast, get_args

from orchestrator.loading.ansible_yaml import Origin, Variable, wrong
from orchestrator.loading.yaml_fields import shown
from orchestrator.model.deadlines import seconds_of
from orchestrator.model.inventory import AUTO, GangPorts, NodeSpec, Overrides, Reach, Transport
from orchestrator.protocol.errors import InputError

_TRUE = {"yes", "on", "true", "1", "y", "t"}  # as Ansible's boolean(), module_utils/parsing/convert_bool.py
_FALSE = {"no", "off", "false", "0", "n", "f"}


class Variables:
    """Typed look at a host's merged variables. Every method gives None, or nothing, where the variable is absent or
    null, and raises InputError where its value is of another kind."""

    def __init__(self, host: str, origin: Origin, values: Mapping[str, Variable]) -> None:
        self.host, self.origin, self._values = host, origin, values

    def names(self) -> Sequence[str]:
        """Every variable that is set for the host."""
        return tuple(self._values)

    def place(self, name: str) -> Origin:
        """Where a variable was written; where the host was named, when it was not written at all."""
        return self._values[name].origin if name in self._values else self.origin

    def wrong(self, name: str, wanted: str, fix: str) -> InputError:
        """The error for a value that is not what is wanted."""
        return wrong(self.place(name), f"found {shown(self._plain(name))}", wanted, fix)

    def text(self, name: str, pattern: str = r"[^\x00-\x1f\x7f]+", wanted: str = "a text") -> str | None:
        """A text (a number counts as its digits) that matches the complete pattern."""
        value = self._plain(name)
        if value is None:
            return None
        if not _is_scalar(value) or re.fullmatch(pattern, str(value)) is None:
            raise self.wrong(name, wanted, f"write `{name}: value`, in quotes if YAML reads it as another type")
        return str(value)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of these texts, the first where nothing is said."""
        text = self.text(name) or choices[0]
        if text not in choices:
            raise self.wrong(name, f"{', '.join(choices[:-1])} or {choices[-1]}", f"write `{name}: {choices[0]}`")
        return text

    def alias(self, *names: str) -> str:
        """The last of the names that is set, else the first: Ansible's rule for names of one variable."""
        return next((name for name in reversed(names) if self._plain(name) is not None), names[0])

    def path(self, name: str) -> str | None:
        """An absolute path on the node, without a trailing slash."""
        text = self.text(name, r"/[^\x00-\x1f\x7f]*", "an absolute path")
        return text if text is None else text.rstrip("/") or "/"

    def file(self, name: str) -> str | None:
        """A file's path on the controller."""
        return self.text(name, r"~?/[^\x00-\x1f\x7f]*", "a file's path on the controller, absolute or from ~/")

    def number(self, name: str, low: int, high: int, *, what: str = "an integer") -> int | None:
        """An integer within bounds; a text of digits counts."""
        return None if (number := self._bounded(name, low, high, int, what)) is None else int(number)

    def seconds(self, name: str, low: int, high: int) -> float | None:
        """A duration within bounds, in seconds: a number, or a text such as 90, 5s, 10m or 2h."""
        return None if (seconds := self._bounded(name, low, high, float, "seconds")) is None else float(seconds)

    def _bounded(self, name: str, low: int, high: int, kind: type[int] | type[float], what: str) -> float | None:
        written: float | str | None = self._plain(name)
        read = seconds_of if kind is float else _integer
        value = read(written) if isinstance(written, str) else written
        if written is None or (isinstance(value, (int, kind)) and not isinstance(value, bool) and low <= value <= high):
            return value
        raise self.wrong(name, f"{what} from {low} to {high}", f"write `{name}: {max(low, 1)}`")

    def truth(self, name: str) -> bool | None:
        """A truth value in any of Ansible's spellings."""
        word = str(self._plain(name)).strip().lower()
        if self._plain(name) is None:
            return None
        if word not in _TRUE | _FALSE:
            raise self.wrong(name, "true or false", f"write `{name}: true`")
        return word in _TRUE

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; a single text is a list of one."""
        value = self._plain(name)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str) and item and item.isprintable() for item in items):
            raise self.wrong(name, "a list of strings", f"write `{name}: [first, second]`, numbers in quotes")
        return tuple(items)

    def entries(self, name: str, pattern: str, wanted: str) -> tuple[str, ...]:
        """A list of different texts, or of integers as their digits, that each match the complete pattern; a text with
        commas, or one that is no number, is a list too. () for a plain number."""
        value = self._plain(name)
        if isinstance(value, str) and not value.isdigit():
            value = [item.strip() for item in value.split(",")]
        if not isinstance(value, list):
            return ()
        items = [str(item) if isinstance(item, (str, int)) and not isinstance(item, bool) else "" for item in value]
        if not items or len(set(items)) < len(items) or not all(re.fullmatch(pattern, item) for item in items):
            raise self.wrong(name, wanted, f"write `{name}: [first, second]`, each once, addresses in quotes")
        return tuple(items)

    def mappings(self, name: str) -> tuple[Mapping[Any, Any], ...]:
        """A list of mappings; what is in them is the caller's to judge. The error does not show the value."""
        value = self._plain(name)
        items = [] if value is None else value
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            fix = f"write `{name}: [{{kind: ...}}]`"
            raise InputError("wanted a list of mappings", where=str(self.place(name)), fix=fix)
        return tuple(items)

    def pairs(self, name: str) -> tuple[tuple[str, str], ...]:
        """A mapping of environment variable names to texts; numbers count as their digits."""
        value = self._plain(name)
        if not isinstance(value, dict | None):
            raise self.wrong(name, "a mapping of names to values", f"write `{name}: {{NCCL_DEBUG: INFO}}`")
        for key, item in (value or {}).items():
            self._env_name(name, key)
            if not _is_scalar(item) or re.search(r"[\x00\n\r]", str(item)):
                place = self.place(name).below(key)
                raise wrong(place, f"found {shown(item)}", "a string on one line", "put the value into quotes")
        return tuple((key, str(item)) for key, item in (value or {}).items())

    def env_names(self, name: str) -> tuple[str, ...]:
        """A list of environment variables' names."""
        return tuple(self._env_name(name, key) for key in self.texts(name))

    def _env_name(self, name: str, key: object) -> str:
        if isinstance(key, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            return key
        place, wanted = self.place(name).below(key), "an environment variable's name"
        raise wrong(place, f"found the name {shown(key)}", wanted, "correct the name")

    def _plain(self, name: str) -> Any:
        return self._values[name].value if name in self._values else None


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _is_scalar(value: object) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


OURS = (
    "l40s_accept", "l40s_address", "l40s_agent_port", "l40s_aliases", "l40s_api_key_file", "l40s_args",
    "l40s_dist_init_port", "l40s_engine_user",
    "l40s_env", "l40s_env_public", "l40s_fs_root", "l40s_gid_index", "l40s_gpus", "l40s_http_host", "l40s_http_port",
    "l40s_ib_hca", "l40s_ib_sl", "l40s_ib_tc",
    "l40s_lease", "l40s_max_queued", "l40s_model_root", "l40s_nccl_port", "l40s_notify", "l40s_port_failover",
    "l40s_role",
    "l40s_router_max_requests", "l40s_router_metrics_port", "l40s_router_policy", "l40s_router_port",
    "l40s_router_tls_cert", "l40s_router_tls_key", "l40s_router_venv",
    "l40s_socket_ifname", "l40s_stack", "l40s_state_dir",
    "l40s_transport", "l40s_venv", "l40s_viewers", "l40s_viewers_logs",
)  # fmt: skip
"""Every variable of ours; inventory/reference.yml explains each."""

ANSIBLES = (
    "ansible_become", "ansible_become_method", "ansible_become_user", "ansible_connection", "ansible_host",
    "ansible_host_key_checking", "ansible_port", "ansible_private_key_file", "ansible_python_interpreter",
    "ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_host", "ansible_ssh_host_key_checking",
    "ansible_ssh_port", "ansible_ssh_private_key_file", "ansible_ssh_user", "ansible_sudo_user", "ansible_user",
)  # fmt: skip
"""Every variable of Ansible's that we read."""

MEMBER, SPARE = "member", "spare"
"""Values of l40s_role."""

_CONNECTIONS: dict[str, Literal["ssh", "local"]] = {
    "ssh": "ssh", "smart": "ssh", "paramiko": "ssh", "paramiko_ssh": "ssh", "local": "local",
}  # fmt: skip
_PYTHON_BY_ANSIBLE = ("auto", "auto_legacy", "auto_silent", "auto_legacy_silent")
_SHORT_NAMES = "ansible.builtin."
_ADDRESS = r"[A-Za-z0-9][A-Za-z0-9._:%-]*|::[0-9A-Fa-f:.]*"
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_GPU = r"[0-9]{1,2}|GPU-[0-9A-Za-z-]{1,64}|(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
_NODE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,252}")


def node_spec(variables: Variables, gang: str) -> NodeSpec:
    """Read one node's variables; its rank is the gang's to give. Raises InputError for an unknown `l40s_` variable
    and for a wrong value."""
    if _NODE_NAME.fullmatch(variables.host) is None:
        what, wanted = f"found the node name {variables.host!r}", "letters, digits, dots, dashes"
        raise wrong(variables.origin, what, wanted, "rename it and write its address as ansible_host")
    _refuse_unknown(variables)
    named = variables.entries("l40s_gpus", _GPU, "a count, or GPUs by index, UUID or PCI address")
    return NodeSpec(
        name=variables.host,
        gang=gang,
        node_rank=0,
        reach=_reach(variables),
        spare=variables.choice("l40s_role", (MEMBER, SPARE)) == SPARE,
        address=_address(variables, "l40s_address"),
        gpus=len(named) or variables.number("l40s_gpus", 1, 64) or 8,
        gpu_names=named,
        fs_root=variables.path("l40s_fs_root") or "/",
        model_root=variables.path("l40s_model_root") or "/workspace",
        stack=variables.text("l40s_stack"),
        venv=variables.path("l40s_venv"),
        state_dir=variables.path("l40s_state_dir"),
        engine_user=variables.text("l40s_engine_user", _NAME, "a user name"),
        viewers=variables.entries("l40s_viewers", _NAME, "a list of user names"),
        viewers_logs=variables.truth("l40s_viewers_logs") or False,
        transport=cast(Transport, variables.choice("l40s_transport", get_args(Transport))),
        http_host=_address(variables, "l40s_http_host") or "0.0.0.0",  # noqa: S104 - the model's default
        api_key_file=variables.file("l40s_api_key_file"),
        aliases=variables.entries("l40s_aliases", r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,99}", "a list of model names"),
        ports=_ports(variables),
        lease_s=variables.seconds("l40s_lease", 1, 86400) or 30.0,
        accept=variables.texts("l40s_accept"),
        overrides=_overrides(variables),
    )


def _reach(variables: Variables) -> Reach:
    word = (variables.text("ansible_connection") or "ssh").removeprefix(_SHORT_NAMES)
    if word not in _CONNECTIONS:
        raise variables.wrong("ansible_connection", "ssh or local", "write `ansible_connection: ssh`")
    python = variables.text("ansible_python_interpreter") or "python3"
    options = _ssh_options(variables)
    sudo_user = variables.text(variables.alias("ansible_become_user", "ansible_sudo_user"), _NAME, "a user name")
    return Reach(
        connection=_CONNECTIONS[word],
        host=_address(variables, variables.alias("ansible_host", "ansible_ssh_host")) or variables.host,
        port=variables.number(variables.alias("ansible_port", "ansible_ssh_port"), 1, 65535),
        user=variables.text(variables.alias("ansible_user", "ansible_ssh_user")),
        key_file=variables.text(variables.alias("ansible_private_key_file", "ansible_ssh_private_key_file")),
        known_hosts_file=next((value for name, value in options if name == "userknownhostsfile"), None),
        ssh_options=options,
        become=_becomes(variables),
        become_user=sudo_user or "root",
        python="python3" if python in _PYTHON_BY_ANSIBLE else python,
    )


def _ssh_options(variables: Variables) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for name in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
        text = variables.text(name, r"(?:[^\x00-\x1f\x7f]|\s)*") or ""  # a folded text ends its line
        try:
            pairs += ssh_pairs(text)
        except BadArguments as bad:
            what = f"found {text!r}: {bad}"
            raise wrong(variables.place(name), what, "supported ssh options", "remove the option") from None
    checking = [variables.truth(f"ansible_{ssh}host_key_checking") for ssh in ("", "ssh_")]
    if False in checking:
        pairs.append(("stricthostkeychecking", "no"))
    return tuple(pairs)


def _address(variables: Variables, name: str) -> str | None:
    text = variables.text(name, _ADDRESS, "an IP address or a host name")
    if text and re.fullmatch(r"[0-9.]+", text):
        try:
            ipaddress.ip_address(text)
        except ValueError:
            raise variables.wrong(name, "an IP address or a host name", "write it as 10.0.0.11") from None
    return text


def _ports(variables: Variables) -> GangPorts:
    usual, taken, chosen = GangPorts(), dict[int | None, str](), dict[str, Any]()
    for kind in ("dist_init", "http", "agent", "nccl"):
        name = f"l40s_{kind}_port"
        number = chosen[kind] = variables.number(name, 1, 65535) or getattr(usual, kind)
        if number is not None and number in taken:
            named, other = (name, taken[number]) if name in variables.names() else (taken[number], name)
            raise variables.wrong(named, f"a port that {other} does not have", f"write `{named}: {number + 1}`")
        taken[number] = name
    return GangPorts(**chosen)


def _overrides(variables: Variables) -> Overrides:
    words = variables.texts("l40s_args")
    try:
        arguments = tuple(shlex.split(words[0])) if len(words) == 1 else words
    except ValueError:
        raise variables.wrong("l40s_args", "engine flags with matching quotes", "write them as a list") from None
    return Overrides(
        socket_ifname=variables.text("l40s_socket_ifname", r"[\^=]{0,2}[A-Za-z0-9_.,@:-]+", "an interface name"),
        ib_hca=variables.text("l40s_ib_hca", r"[\^=]{0,2}[A-Za-z0-9_.,:-]+", "RDMA devices as NCCL_IB_HCA has them"),
        gid_index=variables.number("l40s_gid_index", 0, 255),
        ib_tc=variables.number("l40s_ib_tc", 0, 255),
        ib_sl=variables.number("l40s_ib_sl", 0, 15),
        port_failover=bool(variables.truth("l40s_port_failover")),
        env=variables.pairs("l40s_env"),
        env_public=variables.env_names("l40s_env_public"),
        args=arguments,
        max_queued=most_requests(variables, "l40s_max_queued"),
    )


MOST_REQUESTS = 100_000
"""That a queue or a router may be told to hold."""


def most_requests(variables: Variables, name: str) -> str:
    """A number in digits, AUTO, or '' where nothing is said."""
    if variables.text(name) == AUTO:
        return AUTO
    number = variables.number(name, 1, MOST_REQUESTS, what=f"{AUTO} or an integer")
    return "" if number is None else str(number)


def _refuse_unknown(variables: Variables) -> None:
    for name in variables.names():
        if name.startswith("l40s_") and name not in OURS:
            near = get_close_matches(name, OURS, n=1, cutoff=0.5)
            fix = f"write {near[0]}" if near else f"known: {', '.join(OURS)}"
            raise wrong(variables.place(name), f"found the unknown variable {name}", "a known l40s_ variable", fix)


HONOURED = frozenset({
    "addkeystoagent", "batchmode", "certificatefile", "checkhostip", "clearallforwardings", "compression",
    "configfile", "connectionattempts", "connecttimeout", "controlmaster", "controlpath", "controlpersist",
    "exitonforwardfailure", "forwardagent", "forwardx11", "globalknownhostsfile", "gssapiauthentication",
    "hashknownhosts", "hostkeyalias", "hostname", "identitiesonly", "identityagent", "identityfile", "ipqos",
    "kbdinteractiveauthentication", "loglevel", "numberofpasswordprompts",
    "passwordauthentication", "port", "preferredauthentications", "proxycommand", "proxyjump",
    "pubkeyauthentication", "requesttty", "serveralivecountmax", "serveraliveinterval", "stricthostkeychecking",
    "tcpkeepalive", "updatehostkeys", "user", "userknownhostsfile", "verifyhostkeydns", "visualhostkey",
})  # fmt: skip
"""ssh_config(5) options that we follow, and those that change nothing for us: we multiplex, keep connections
alive, bound every wait and never prompt by our own means. Any other option is refused."""

_FLAGS = set("46AaCKknqTtVvxXYy")
_VALUES = {"J": "proxyjump", "i": "identityfile", "l": "user", "p": "port", "F": "configfile"}
_PAIR = re.compile(r"\s*(?P<name>[A-Za-z0-9]+)(?:\s*=\s*|\s+)(?P<value>.*\S)\s*", re.DOTALL)


class BadArguments(ValueError):
    """Arguments that OpenSSH would refuse or that we cannot follow; the message says which."""


def _becomes(variables: Variables) -> bool:
    """Whether by sudo; any other way is refused."""
    become, method = variables.truth("ansible_become") or False, variables.text("ansible_become_method") or "sudo"
    if become and method.removeprefix(_SHORT_NAMES) != "sudo":
        raise variables.wrong("ansible_become_method", "sudo", "sudo, the only supported become method")
    return become


def _letter(word: str) -> tuple[str, str]:
    """The letter of an option, and what is attached to it."""
    if len(word) < 2 or word[0] != "-":
        raise BadArguments(f"{word!r} is not an ssh option")
    return word[1], word[2:]


def ssh_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """(option in lower case, value) pairs in the order given; -J, -i, -l, -p and -F come out under their
    option's name (-F as configfile). Raises BadArguments."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadArguments(f"cannot be split into words: {error}") from None
    pairs: list[tuple[str, str]] = []
    while words:
        letter, attached = _letter(words.pop(0))
        if letter in _FLAGS and set(attached) <= _FLAGS:
            continue
        if letter != "o" and letter not in _VALUES:
            raise BadArguments(f"-{letter} is not a supported ssh option (-o, -J, -i, -l, -p, -F)")
        value = attached or (words.pop(0) if words else "")
        if not value:
            raise BadArguments(f"-{letter} has no value")
        pairs.append(_pair(value) if letter == "o" else (_VALUES[letter], value))
    return tuple(pairs)


def _pair(text: str) -> tuple[str, str]:
    match = _PAIR.fullmatch(text)
    if match is None:
        raise BadArguments(f"-o {text!r} is not Name=value")
    if match["name"].lower() not in HONOURED:
        raise BadArguments(f"-o {match['name']} is not a supported option")
    value = match["value"]
    return match["name"].lower(), value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
