"""One host's variables, read with the type that each must have; what is wrong is said with its place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.loading.ansible_yaml import Origin, Variable
from orchestrator.model.errors import InputError

_TRUE = {"yes", "on", "true", "1", "y", "t"}  # as Ansible's boolean(), module_utils/parsing/convert_bool.py
_FALSE = {"no", "off", "false", "0", "n", "f"}


class Variables:
    """Typed look at a host's merged variables. Every method gives the default where the variable is absent
    or null, and raises InputError where its value is of another kind."""

    def __init__(self, host: str, origin: Origin, values: Mapping[str, Variable]) -> None:
        self.host = host
        self.origin = origin
        self._values = values

    def names(self) -> Sequence[str]:
        """Every variable that is set for the host."""
        return tuple(self._values)

    def place(self, name: str) -> str:
        """Where a variable was written; where the host was named, when it was not written at all."""
        return str(self._values[name].origin if name in self._values else self.origin)

    def wrong(self, name: str, wanted: str, fix: str) -> InputError:
        """The error for a value that is not what is wanted."""
        value = self._values[name].value if name in self._values else None
        return InputError(f"found {_shown(value)}; wanted {wanted}", where=self.place(name), fix=fix)

    def text(self, name: str, pattern: str = r"[^\x00-\x1f\x7f]+", wanted: str = "a text") -> str | None:
        """A text (a number counts as its digits) that matches the complete pattern."""
        value = self._plain(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise self.wrong(name, wanted, f"write `{name}: value`, in quotes if YAML reads it as another type")
        text = str(value)
        if re.fullmatch(pattern, text) is None:
            raise self.wrong(name, wanted, f"correct {name}")
        return text

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of these texts, the first where nothing is said."""
        text = self.text(name) or choices[0]
        if text not in choices:
            raise self.wrong(name, f"{', '.join(choices[:-1])} or {choices[-1]}", f"write `{name}: {choices[0]}`")
        return text

    def first_text(self, *names: str) -> str | None:
        """The text of the last of the names that is set: Ansible's rule for aliases of a variable."""
        found = [text for text in map(self.text, names) if text is not None]
        return found[-1] if found else None

    def path(self, name: str) -> str | None:
        """An absolute path on the node, without a trailing slash."""
        text = self.text(name, r"/[^\x00-\x1f\x7f]*", "an absolute path")
        return text if text is None else text.rstrip("/") or "/"

    def number(self, name: str, low: int, high: int) -> int | None:
        """An integer within bounds; a text of digits counts."""
        value = self._plain(name)
        if value is None:
            return None
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(name, f"an integer from {low} to {high}", f"write `{name}: {max(low, 1)}`")
        return value

    def seconds(self, name: str, low: float, high: float) -> float | None:
        """A duration in seconds within bounds."""
        value = self._plain(name)
        if value is None:
            return None
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
            value = float(value)
        bad = isinstance(value, bool) or not isinstance(value, (int, float))
        if bad or not low <= value <= high:
            raise self.wrong(name, f"seconds from {low:g} to {high:g}", f"write `{name}: 30`")
        return float(value)

    def truth(self, name: str) -> bool | None:
        """A truth value in any of Ansible's spellings."""
        value = self._plain(name)
        if value is None:
            return None
        word = str(value).strip().lower()
        if word not in _TRUE | _FALSE or isinstance(value, (list, dict)):
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
        items = value if isinstance(value, list) else [] if value is None else [None]
        if not all(isinstance(item, dict) for item in items):
            raise InputError(
                "wanted a list of mappings", where=self.place(name), fix=f"write `{name}: [{{kind: ...}}]`"
            )
        return tuple(items)

    def pairs(self, name: str) -> tuple[tuple[str, str], ...]:
        """A mapping of environment variable names to texts; numbers count as their digits."""
        value = self._plain(name)
        if value is None:
            return ()
        if not isinstance(value, dict):
            raise self.wrong(name, "a mapping of names to values", f"write `{name}: {{NCCL_DEBUG: INFO}}`")
        return tuple((self._env_name(name, key), self._env_value(name, key, item)) for key, item in value.items())

    def env_names(self, name: str) -> tuple[str, ...]:
        """A list of environment variables' names."""
        return tuple(self._env_name(name, key) for key in self.texts(name))

    def _env_name(self, name: str, key: object) -> str:
        if isinstance(key, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            return key
        where = f"{self.place(name)}/{key}"
        raise InputError(
            f"found the name {_shown(key)}; wanted an environment variable's name", where=where, fix="correct the name"
        )

    def _env_value(self, name: str, key: object, value: object) -> str:
        plain = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        if plain and not re.search(r"[\x00\n\r]", str(value)):
            return str(value)
        raise InputError(
            f"found {_shown(value)}; wanted a string on one line",
            where=f"{self.place(name)}/{key}",
            fix="put the value into quotes",
        )

    def _plain(self, name: str) -> Any:
        return self._values[name].value if name in self._values else None


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
