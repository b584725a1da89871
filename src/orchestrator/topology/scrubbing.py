"""Texts of a bug report: without secrets, and with other words for who and where somebody is. Pure.

What is replaced is known (the inventory's names, the machines' addresses and numbers), or shows by its form or by the
word before it. `CANNOT_TELL` says what neither shows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from orchestrator.model.secret_shapes import folded
from orchestrator.model.secret_text import HIDDEN, is_secret_flag, is_secret_name, without_secrets
from orchestrator.topology.redaction import ANYTHING, Pseudonyms

CANNOT_TELL = (
    "what your clients wrote and the engine answered, where it was told to log it",
    "a secret that is an ordinary word or a number, with no name of one before it",
    "people's and projects' names in prose, and other machines' names without an address",
    "names of files and models: of a path below /data, /mnt and the like, and of a model's path, the end stays",
    "MAC addresses, GUIDs and serial numbers of other machines, where no word or form says that they are one",
    "a name of one or two letters, or of letters alone within another word; a user's name in another case",
    "DOMAIN\\name where the name begins as \\n, \\t and the like; a MAC address of digits that may be a date and time",
    "text in pictures, in base64, compressed or in another encoding",
)
"""For whoever reads a report before sending it."""
_KINDS = {
    "ip": "IP address", "host": "IP address in a host's name", "mac": "MAC address", "long_mac": "MAC address",
    "gid": "GID", "guid": "GUID", "eui": "GUID", "uuid": "UUID", "name": "interface named by its address",
}  # fmt: skip
ACCOUNTS = frozenset(
    ("root", "nobody", "daemon", "admin", "ubuntu", "debian", "centos", "rocky", "fedora", "ec2-user", "azureuser",
     "cloud-user", "opc", "sglang", "vllm", "engine", "l40s", "docker", "ansible", "slurm", "www-data", "linuxbrew")
)  # fmt: skip
"""Users of distributions, clouds and engines: they name nobody, and are words that logs are full of."""
_OF_HARDWARE = re.compile(
    r"(?i)(?:gpu|tp|pp|dp|ep|rank|cpu|numa|mlx|mlx5|eth|ib|bond|nic|cuda|nvme|port|rail|xid|stage|layer)[-_.]?[0-9]+"
)
"""As a node's name, it is looked for in its own spelling alone."""
_SHORT, _ANY_CASE = 3, 4
_CASES = (str, str.lower, str.upper)
_SPELLINGS = ("joined", "any case", "exact", "host")
_PERSON = re.compile(
    r"(?P<before>/(?:home[0-9]?|homes|Users|u)/|%2[fF](?:home|Users)%2[fF]|(?<![\w/.~])~(?=[\w.-]+/)"
    r"|(?<![A-Za-z])(?:USER|LOGNAME|SUDO_USER|USERNAME|CN) ?= ?|\b(?:e?[ug]id=|groups=|(?<=\)),)[0-9]+\("
    r"|\b(?:for|by) (?:(?:invalid )?user |(?=[\w.-]{1,64}\(uid=))"
    r"|\b(?:publickey|password|keyboard-interactive/pam) for (?:invalid user )?"
    r"|\b(?:ssh|ecdsa|sk-ssh)-[\w@.-]{1,40} AAAA[\w+/=]{16,2000} |(?=[\w.-]{1,64} : (?:TTY|PWD)=))"
    r"(?P<who>[A-Za-z_][\w.-]{0,63}(?:(?<=[\w.-])@[\w.-]{1,64})?)(?![\w.-])"
)
"""By the folder, variable or sentence that a name stands in: sudo's, sshd's and id's, and the comment of a key."""
_ACCOUNT = re.compile(
    r"(?<![\w-])arn:(?P<cloud>aws[\w-]{0,20}:[\w-]{1,40}:[\w-]{0,30}):(?P<account>[0-9]{12}):"
    r"(?P<kind>(?:user|(?:assumed-)?role/[\w+=,.@-]{1,64}|federated-user|mfa|sts)/)?(?P<who>(?<=/)[\w+=,.@-]{1,64})?"
    r"|(?<![\w\\:/.-])(?P<domain>[A-Z][A-Z0-9-]{1,14})(?P<slash>\\{1,4})"
    r"(?P<member>[A-Zac-dg-mo-qsw-z][\w.-]{0,63})(?![\w\\])"
    r"|(?<![\w.-])(?P<registry>[0-9]{12})(?=\.dkr\.ecr\.)"
)
"""An ARN's account and who in it; DOMAIN\\user, but for names that begin as an escape of a text does (\\n, \\t)."""
_DIGITS = re.compile(
    r"(?P<labelled>(?i:(?<![a-z])(?:mac(?:[ _-]?addr(?:ess)?)?|hw[ _-]?addr|lladdr|(?:link/)?ether)"
    r"\\*[\"']?\s*[:= ]\s*\\*[\"']?))?"
    r"(?<![\w-])(?P<mac>[0-9]{2}(?P<join>[-_])(?:[0-9]{2}(?P=join)){4}[0-9]{2})(?![\w-])"
)
"""A MAC address of digits alone, with dashes; without a word before it where it is no date and time of day."""
_DATE = re.compile(
    r"(?:[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[1-9]|[12][0-9]|3[01])-(?:0[1-9]|1[0-2])-[0-9]{2})"
    r"-(?:[01][0-9]|2[0-3])-[0-5][0-9]-[0-5][0-9]"
)
_UNITS = r"(?:service|socket|timer|target|slice|scope|mount|path|conf|py|so|log|sock)"
_MAIL = re.compile(
    rf"(?<![\w.+-])[\w.+-]{{1,64}}(?:@|%40)(?:[\w-]{{1,63}}\.){{1,8}}(?!{_UNITS}\b)[^\W\d_]{{2,24}}(?![\w-]|\.\w)"
)
_PART = r"[^\s/'\"\\,:;()\[\]{}<>|=&]+"
_ROOTS = (
    "data|datasets|mnt|srv|nfs|shared?|scratch|lustre|gpfs|beegfs|ceph(?:fs)?|weka|export|vol(?:ume)?s?|storage|projects?"
    "|media|net|raid|nvme|ssd|disks?|work|team|users?"
)
_PLACE = re.compile(
    rf"(?<![\w.:/~-])(?P<place>/(?:{_ROOTS})[0-9]*(?:/{_PART})+)"
    rf"|(?i:(?:model|tokenizer|adapter|lora|checkpoint)[_-](?:path|dir|root))s?\\*[\"']?[\s:=,]{{1,3}}\\*[\"']?"
    rf"(?P<model>/{_PART}(?:/{_PART})+)"
)
_WORD_PATH = re.compile(
    r"(?<![^\s='\"(])(?![A-Za-z][\w+.-]*://)(?P<folder>(?:~|[\w.@+-]+)?(?:/[\w.@+~-]+)*)/(?=[\w.-])"
)
"""In a command line."""
_LABELLED = re.compile(
    r"(?i)(?=[sagmhlenwi])(?:"
    r"(?P<label>(?<![a-z])(?:serial(?:[ _-]?(?:number|num|no\.?|#))?|s/n|sn|service[ _-]?tag|asset[ _-]?tag)"
    r"\]?\\*[\"']?\s*[:=]\s*\\*[\"']?|(?<![a-z/])s/n\s+|\bID_SERIAL(?:_SHORT)?=|\bmachine[-_ ]id\W{1,3}"
    r"|(?<![\w-])i-(?=[0-9a-f]{17}(?![\w-])))(?P<serial>(?=[A-Z_-]*[0-9])[A-Z0-9][A-Z0-9_-]{5,60})(?![\w.])"
    r"|(?P<of>(?:guid|(?<![a-z])(?:mac(?:[ _-]?addr(?:ess)?)?|hw[ _-]?addr|lladdr|(?:link/)?ether))"
    r"\\*[\"']?\s*[:= ]\s*\\*[\"']?(?:0x)?|\b(?:eui\.|naa\.|nvme-eui\.|wwn(?:-|[:= ]\s*)(?:0x)?))"
    r"(?P<bare>[0-9a-f]{16}|[0-9a-f]{12})(?![0-9a-z]))"
)
_BARE = re.compile(
    r"(?<![0-9A-Za-z])(?P<hex>(?:0[xX])?(?:(?i:fe80)0{12})?)(?P<digits>[0-9a-fA-F]{12}(?:[0-9a-fA-F]{4})?)(?![0-9A-Za-z])"
)
_EUI = ("0300", "fffe")
"""In the middle of a GUID that is made of a MAC address: NVIDIA's adapters, and IEEE's EUI-64."""


def _key(name: str) -> str:
    return re.sub("[-_.]|%2[de]|%5f", "", name.lower())


def _any_join(name: str, sign: str = "(?:[-_.]|%2[DdEe]|%5[Ff])?") -> str:
    """Letters and digits of a name, joined by any sign or none, as addresses have them too. sign: by this one"""
    return sign.join(map(re.escape, re.findall(r"[0-9]+|[^\W\d_]+|[^\w.-]+", name)))


def _either(words: list[str]) -> str:
    return "|".join(sorted(words, key=len, reverse=True)) or r"(?!)"


@dataclass(frozen=True)
class Scrubber:
    """secrets: known ones, each taken out wherever it is; names: who and where somebody is -> what to call it; folders:
    whose names tell it too; replaced: how often, by kind"""

    pseudonyms: Pseudonyms
    secrets: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    replaced: Counter[str] = field(default_factory=Counter, compare=False)

    def text(self, text: str) -> str:
        """Without secrets, under pseudonyms, in the usual width."""
        before = text.count(HIDDEN)
        text = without_secrets(self._without_known(folded(self._without_known(text))))
        self.replaced["secret"] += text.count(HIDDEN) - before
        for folder in self._folders:
            if folder in text:
                text = self._folder_of(folder).sub(lambda match: self._folder(match.group()), text)
        text = _PLACE.sub(self._shown_place, text)
        text = self._named.sub(self._called, text) if self.names else text
        text = _PERSON.sub(self._person, text)
        if "arn:" in text or "\\" in text or ".dkr." in text:
            text = _ACCOUNT.sub(self._account, text)
        if "@" in text or "%40" in text:
            text = _MAIL.sub(lambda match: self._word("mail", match.group(), "e-mail address"), text)
        return self._without_numbers(text)

    def value(self, value: Any, name: str = "") -> Any:
        """The same for every text of a JSON value; a value whose name is a secret's is removed entirely."""
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(inner, str(key)) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [
                HIDDEN if is_secret_flag(before, entry) else self.value(entry, name)
                for before, entry in zip(("", *value), value, strict=False)
            ]
        if not isinstance(value, str):
            return value
        if value and is_secret_name(name):
            return HIDDEN
        if value in self.names:
            return self._count(self.names[value])
        return self.text(_WORD_PATH.sub(self._shown_folder, value) if name == "command" else value)

    def left(self, text: str) -> str:
        """The first known secret or name that is still in a text, '' for none."""
        match = self._named.search(folded(text)) if self.names else None
        return next((secret for secret in self.secrets if secret and secret in text), match.group() if match else "")

    def _without_known(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def _without_numbers(self, text: str) -> str:
        for number, other in self.pseudonyms.numbers.items():
            if len(number) >= _ANY_CASE and number in text:
                self.replaced["serial number"] += text.count(number)
                text = text.replace(number, other)
        text = _LABELLED.sub(self._labelled, text)
        text = _BARE.sub(self._bare, text)
        return _DIGITS.sub(self._of_digits, ANYTHING.sub(self._identity, text))

    def _identity(self, match: re.Match[str]) -> str:
        kind = str(match.lastgroup)
        other = str(getattr(self.pseudonyms, kind)(match.group()))
        self.replaced[_KINDS[kind]] += other != match.group()
        return other

    def _labelled(self, match: re.Match[str]) -> str:
        if match["serial"]:
            self.replaced["serial number"] += 1
            return f"{match['label']}{self.pseudonyms.number(match['serial'])}"
        self.replaced["MAC address or GUID"] += 1
        return f"{match['of']}{self.pseudonyms.bare(match['bare'].lower())}"

    def _bare(self, match: re.Match[str]) -> str:
        digits = match["digits"].lower()
        made_of_mac = len(digits) == 16 and digits[6:10] in _EUI and not digits.startswith("ffff")
        if not made_of_mac and digits not in self._known_digits():
            return match.group()
        self.replaced["MAC address or GUID"] += 1
        return f"{match['hex'] or ''}{self.pseudonyms.bare(digits)}"

    def _known_digits(self) -> frozenset[str]:
        """Of every address and GUID so far; looked at where a text has what may be number."""
        given = self.pseudonyms.given
        digits, count = self._digits.get("known", (frozenset(), -1))
        if count != len(given):
            bare = (re.sub("[:.-]", "", original).lower() for original in given if re.search("[:-]", original))
            digits = frozenset(number for number in bare if len(number) in (12, 16))
            self._digits["known"] = (digits, len(given))
        return digits

    @cached_property
    def _digits(self) -> dict[str, tuple[frozenset[str], int]]:
        return {}

    @cached_property
    def _secrets(self) -> list[str]:
        return sorted(filter(None, self.secrets), key=len, reverse=True)

    @cached_property
    def _folders(self) -> list[str]:
        return sorted((folder for folder in set(self.folders) if folder.count("/") > 1), key=len, reverse=True)

    @staticmethod
    def _folder_of(folder: str) -> re.Pattern[str]:
        return re.compile(rf"(?<![\w./-]){re.escape(folder)}(?![\w-])")

    def _folder(self, folder: str) -> str:
        return self._word("/folder", folder, "folder")

    def _shown_place(self, match: re.Match[str]) -> str:
        path = match["place"] or match["model"]
        folder, inside, rest = path.partition("/site-packages/")
        if not inside:
            folder, inside, rest = path.rpartition("/")
        if folder.count("/") < 2:
            return match.group()
        return f"{match.group().removesuffix(path)}{self._folder(folder)}{inside}{rest}"

    def _shown_folder(self, match: re.Match[str]) -> str:
        folder = match["folder"]
        known = folder in ("", ".", "..", "~") or (folder.startswith("/") and folder.count("/") < 2)
        return match.group() if known else f"{self._folder(folder)}/"

    def _person(self, match: re.Match[str]) -> str:
        who = match["who"]
        if who.lower() in ACCOUNTS or who in self.names.values():
            return match.group()
        return f"{match['before']}{self._word('someone', who, 'other person')}"

    def _account(self, match: re.Match[str]) -> str:
        if match["domain"]:
            domain = self._word("domain", match["domain"], "account")
            return f"{domain}{match['slash']}{self._word('someone', match['member'], 'other person')}"
        account = self._word("account", match["account"] or match["registry"], "account")
        if match["registry"]:
            return account
        who = self._word("someone", match["who"], "other person") if match["who"] else ""
        return f"arn:{match['cloud']}:{account}:{match['kind'] or ''}{who}"

    def _of_digits(self, match: re.Match[str]) -> str:
        digits, dashed = re.sub("[-_]", "", match["mac"]), match["mac"].replace("_", "-")
        is_one = match["labelled"] or digits in self._known_digits() or not _DATE.fullmatch(dashed)
        if not is_one or match["mac"] in self.pseudonyms.given.values():
            return match.group()
        other = self.pseudonyms.mac(match["mac"])
        self.replaced["MAC address"] += other != match["mac"]
        return f"{match['labelled'] or ''}{other}"

    def _word(self, word: str, original: str, kind: str) -> str:
        self.replaced[kind] += 1
        return self.pseudonyms.word(word, original)

    def _count(self, word: str) -> str:
        self.replaced[f"name of a {re.split('[0-9]', word)[0]}"] += 1
        return word

    def _called(self, match: re.Match[str]) -> str:
        if match.lastgroup != "loose":
            return self._count(self._words.get(match.group()) or self._words[_key(match.group())])
        return self._each.sub(lambda one: self._count(self._words[_key(one.group())]), match.group())

    @cached_property
    def _words(self) -> dict[str, str]:
        return {**{_key(name): word for name, word in self.names.items()}, **self.names}

    @cached_property
    def _each(self) -> re.Pattern[str]:
        return re.compile(_either([_any_join(name) for name in self.names if self._is_loose(name)]), re.IGNORECASE)

    @staticmethod
    def _is_loose(name: str) -> bool:
        """It can't be a word of a language."""
        is_plain = len(name) < _SHORT or _OF_HARDWARE.fullmatch(name)
        return not is_plain and bool(re.search("[0-9.]", name)) and bool(re.search(r"[^\W\d_]", name))

    @cached_property
    def _named(self) -> re.Pattern[str]:
        """loose: in any case, with any joins, beside any sign; joined: the same, but never without a sign within; word:
        where it stands alone; host: where one stands."""
        spellings = {name: self._spelling(name) for name in self.names}
        of = {kind: _either([re.escape(n) for n, own in spellings.items() if own == kind]) for kind in _SPELLINGS}
        joined = _either([_any_join(n, "[-_.]") for n, own in spellings.items() if own == "joined"])
        first = "".join(sorted({re.escape(form(name[0])) for name in self.names for form in _CASES}))
        return re.compile(
            rf"(?<![A-Za-z0-9])(?=[{first}])(?:"
            rf"(?P<loose>(?i:{self._each.pattern})+)(?![A-Za-z0-9])"
            rf"|(?P<joined>(?i:{joined}))(?![A-Za-z0-9])"
            rf"|(?<![\w.-])(?P<word>(?i:{of['any case']})|{of['exact']})(?![\w-])"
            rf"|(?:(?<=@)|(?<=://)|(?<=host[= ])|(?<=node[= ]))(?P<host>{of['host']})(?![\w.-])"
            rf"|(?:(?m:^)|(?<=\[))(?P<first>{of['host']})(?=:[0-9]+:(?![0-9A-Fa-f]{{2}}(?::[0-9A-Fa-f]{{2}}){{3}}\b)|\]:[0-9]))"
        )

    def _spelling(self, name: str) -> str:
        if self._is_loose(name):
            return "loose"
        if re.fullmatch(r"[^\W\d_]+(?:[-_][^\W\d_]+)+", name) and not self._is_user(name):
            return "joined"  # of letters alone: without its sign it may be a word
        if len(name) < _SHORT and not re.search("[0-9]", name):
            return "host"
        return "exact" if len(name) < _ANY_CASE or self._is_user(name) else "any case"

    def _is_user(self, name: str) -> bool:
        return self.names[name].startswith("user")
