"""The command line: what argparse leaves to be wished for, and the operator's own defaults."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from textwrap import wrap
from typing import Any, NoReturn

from orchestrator.model.chosen import no_such
from orchestrator.protocol.errors import InputError

_INVENTORY = ("-i", "--inventory")
_CHOICE = re.compile(
    r"argument (?P<what>.+?): invalid choice: '(?P<name>.*?)' \(choose from (?P<known>.*)\)", re.DOTALL
)
_NAME = re.compile(r"  \S+ {2,}(?=\S)")
"""What stands before the summary of a verb."""
_LIKE = 0.75
"""How much alike (difflib's ratio) two options are for one to be a slip of the other: --modle and --model are 0.86,
an engine's --mem-fraction-static and the nearest of ours 0.5."""
_LEAST = 20
"""Columns that a summary needs to be read in."""


class Parser(argparse.ArgumentParser):
    """Its errors are ours: one message with a fix, one document with --json; its help too."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        """Raises InputError."""
        if (wrong := _CHOICE.match(message)) and not wrong["what"].startswith("-"):
            known = [name.strip("' ") for name in wrong["known"].split(",")]
            if self.prog == "l40s-deploy":
                raise no_such("verb", wrong["name"], known, where=self.prog, lister="l40s-deploy --help")
            raise no_such("action", wrong["name"], known, where=self.prog)
        raise InputError(message, where=self.prog, fix=f"run `{self.prog} --help` for the options")


def strange(words: Sequence[str], verb: str, actions: Iterable[argparse.Action]) -> InputError:
    """Words that a verb does not know. actions: all that it has."""
    known = sorted({option for action in actions for option in action.option_strings})
    likely = {
        word: near[0]
        for word in (word.partition("=")[0] for word in words if word.startswith("--"))
        if (near := get_close_matches(word, known, n=1, cutoff=_LIKE))
    }
    meant = f"did you mean {' '.join(likely.values())}? " if likely else ""
    return InputError(
        f"unrecognized arguments: {' '.join(words)}",
        where=f"l40s-deploy {verb}",
        fix=f"{meant}run `l40s-deploy {verb} --help` for the options",
    )


def without_quiet(words: Sequence[str], default: bool) -> tuple[list[str], bool]:
    """The words without -q and --quiet, which may stand anywhere before `--`, and whether one was there."""
    end = words.index("--") if "--" in words else len(words)
    left = [word for word in words[:end] if word not in ("-q", "--quiet")]
    return [*left, *words[end:]], default or len(left) < end


def arranged(words: Sequence[str], verbs: Mapping[str, str]) -> list[str]:
    """The words with the verb first: `help VERB`, and the options that may stand anywhere (-i, --json) before it."""
    before: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and (taken := _anywhere(rest)):
        before += rest[:taken]
        del rest[:taken]
    if rest[:1] == ["help"]:
        asked = [word for word in rest[1:] if not word.startswith("-")]
        if asked and asked[0] not in verbs:
            raise no_such("verb", asked[0], verbs, where="l40s-deploy help", lister="l40s-deploy --help")
        return [*asked, "--help"]
    return [*rest[:1], *before, *rest[1:]]


FORMER_SPELLINGS = (
    (("checkpoint",), "inspect", "check"),
    (("checkpoint", "reblock"), "--prove", "--verify"),
    (("nettest",), "--verify-only", "--verify"),
)
"""After which words, what was typed in release 0.1, and what it is called now; they go with release 0.3."""


def as_now(words: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The words of a command in today's spelling, its verb first, and what was replaced: as it was and as it is."""
    end = words.index("--") if "--" in words else len(words)
    changed, replaced = list(words), []
    for verb, former, now in FORMER_SPELLINGS:
        names = _names(changed[:end])
        named = tuple(changed[place] for place in names[: len(verb)])
        may_be_at = range(1, end) if former.startswith("-") else names[len(verb) : len(verb) + 1]
        place = next((place for place in may_be_at if changed[place] == former), None)
        if named == verb and place is not None:
            changed[place] = now
            replaced.append((" ".join([*verb, former]), " ".join([*verb, now])))
    return changed, replaced


def _names(words: Sequence[str]) -> list[int]:
    """The places of words that are neither an option nor the inventory's name after one."""
    options = [place for place, word in enumerate(words) if word.startswith("-")]
    values = [place + 1 for place in options if words[place] in _INVENTORY]
    return [place for place in range(len(words)) if place not in options and place not in values]


def _anywhere(words: Sequence[str]) -> int:
    """How many of these words are an option that every verb may have."""
    return 2 if words[0] in _INVENTORY else int(words[0] == "--json" or words[0].startswith("--inventory="))


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Lines as they are written, and words whole: a summary too long for the terminal continues below itself, a command
    after a backslash, with its comment above."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(f"{indent}{line}" for row in text.splitlines() for line in self._within(row, width))

    def _within(self, line: str, width: int) -> list[str]:
        name = _NAME.match(line)
        if len(line) <= width or (name is not None and width - name.end() < _LEAST):
            return [line]
        if name is not None:
            return wrap(line, width, subsequent_indent="".ljust(name.end()), break_on_hyphens=False)
        if not line.startswith("  "):
            return self._split_lines(line, width)
        command, _, comment = line.partition("  # ")
        above = [f"  # {comment.strip()}"] if comment else []
        broken = wrap(
            command.strip(), width - 4, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )
        return [*above, *(f"  {part} \\" for part in broken[:-1]), *(f"  {part}" for part in broken[-1:])]


_ADVANCED = (
    *("--timeout", "--hung-after", "--undo-on-interrupt", "--no-golden", "--nettest-min", "--ep"),
    *("--attn-dp", "--without-router", "--run", "--reboots", "--check-kernels"),
)
_MANY = 12


def described(parser: argparse.ArgumentParser) -> None:
    """Have the --help of each verb below say what the list of verbs says of it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:
                action.choices[listed.dest].description = listed.help
                described(action.choices[listed.dest])


def apart(parser: argparse.ArgumentParser) -> None:
    """Where a verb has many options, have its --help show those that are rarely used in a group of their own."""
    rare = [action for action in parser._actions if set(action.option_strings) & {*_ADVANCED}]
    if len(parser._actions) > _MANY and rare:
        group = parser.add_argument_group("advanced")
        parser._optionals._group_actions = [action for action in parser._optionals._group_actions if action not in rare]
        group._group_actions.extend(rare)


def in_groups(groups: Mapping[str, Mapping[str, str]], example: str) -> str:
    """Verbs by what they are for, as --help shows them."""
    width = max(len(name) for verbs in groups.values() for name in verbs)
    blocks = [
        f"{title}:\n" + "\n".join(f"  {name:<{width}}  {summary}" for name, summary in verbs.items())
        for title, verbs in groups.items()
    ]
    return "\n\n".join([*blocks, f"Run `l40s-deploy help VERB` for its options.\nexample: {example}"])


def added(
    words: Sequence[str], parser: argparse.ArgumentParser, options: Mapping[str, Any], file: Path | None
) -> list[str]:
    """Words of a verb, with those of the file's options that were not typed added after the verb. GANG of a verb that
    takes it as a position gets another default.

    parser: of that verb. An option that excludes a typed one is left out. Raises InputError for an option that the
    verb does not have, or a value of another kind.
    """
    known = parser._option_string_actions
    positions = {action.dest: action for action in parser._actions if action.metavar == "GANG" and action.nargs == "*"}
    typed = _typed(words, parser)
    more: list[str] = []
    for name, value in options.items():
        if name in positions:
            positions[name].default = _values(value)
            continue
        action = known.get(f"--{name}")
        if action is None:
            raise _unknown(name, parser.prog, [*known, *(f"--{position}" for position in positions)], file)
        if id(action) not in typed:
            more += _words(action, f"--{name}", value)
    return [*words[:1], *more, *words[1:]]


def _unknown(name: str, prog: str, known: Sequence[str], file: Path | None) -> InputError:
    near = get_close_matches(f"--{name}", known, n=1)
    return InputError(
        f"{prog} has no option --{name}",
        where=f"{file}: options.{prog.rpartition(' ')[2]}.{name}",
        fix=f"did you mean {near[0].removeprefix('--')}?" if near else f"run `{prog} --help`",
    )


def _values(value: Any) -> list[str]:
    return [str(entry) for entry in (value if isinstance(value, list) else [value])]


def _typed(words: Sequence[str], parser: argparse.ArgumentParser) -> set[int]:
    """Identities of the options that were typed, and of those that a typed one excludes."""
    typed = {id(action) for word in words for action in _meant(word, parser._option_string_actions)}
    for group in parser._mutually_exclusive_groups:
        members = {id(action) for action in group._group_actions}
        typed |= members if members & typed else set()
    return typed


def _meant(word: str, known: Mapping[str, argparse.Action]) -> Iterator[argparse.Action]:
    """What a word may mean: argparse accepts the beginning of a long option as the option."""
    name = word.partition("=")[0]
    if name.startswith("--"):
        yield from (action for option, action in known.items() if option.startswith(name) and name != "--")
    elif name[:2] in known:
        yield known[name[:2]]


def _words(action: argparse.Action, option: str, value: Any) -> list[str]:
    if action.nargs == 0:
        return [option] if value is True else []
    values = _values(value)
    single = isinstance(action, argparse._AppendAction) or len(values) == 1
    return [f"{option}={text}" for text in values] if single else [option, *values]
