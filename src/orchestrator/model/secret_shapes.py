"""Secrets that no sign joins to a name: of password files, flags, dialogues, forms, and on the line after a name.

Each shape is looked for only in a text that has one of its words: most log lines have none.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
"""Unicode's Default_Ignorable_Code_Point (DerivedCoreProperties.txt): shown as nothing."""


_ESCAPED = re.compile(
    r"\\+u(?!(?:00[01][0-9a-f]|00[89][0-9a-f]|0022|005c|007f|d[89a-f][0-9a-f]{2}))([0-9a-f]{4})", re.IGNORECASE
)
"""A character as JSON may have it, also of JSON within JSON: not quotes, backslashes, controls and half pairs, whose
meaning would change."""


_OTHERWISE = re.compile(
    r"\\+x(?P<hex>2[de]|3[0-9ad]|4[0-9a-f]|5[0-9af]|6[1-9a-f]|7[0-9a])|&#(?:x(?P<of>[0-9a-f]{2})|0?(?P<ten>[0-9]{2,3}));",
    re.IGNORECASE,
)
"""Letters, digits and the signs of names, as a writer of bytes or of HTML may have them without need."""


def folded(text: str) -> str:
    """Without what is not seen, in the usual width (NFKC of Unicode's annex 15), characters as themselves."""
    if "\\u" in text or "\\U" in text:
        text = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
    if "\\x" in text or "&#" in text:
        text = _OTHERWISE.sub(_itself, text)
    return text if text.isascii() else _INVISIBLE.sub("", unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)))


def _itself(match: re.Match[str]) -> str:
    code = int(match["hex"] or match["of"] or "0", 16) or int(match["ten"] or "0")
    return chr(code) if 0x21 <= code <= 0x7E and chr(code) not in "\"'\\<>&" else match.group()


@dataclass(frozen=True, slots=True)
class _SecretShape:
    """words: one of them is in every text of this shape, in small letters; form: `keep`, and then the secret"""

    words: tuple[str, ...]
    form: re.Pattern[str]


_BLANK = r"(?:\s|\\[rnt])+"
_WORD = r"(?:'[^'\n]*'|\"[^\"\n]*\"|[^\s'\",|;]+)"
_LINE_END = r"(?:\r?\n|(?:\\r)?\\n)"
_SOURCE = "".join(
    rf"(?<!\.{suffix}:)" for suffix in ("py", "pyx", "c", "cc", "cpp", "cu", "cuh", "h", "hpp", "go", "rs")
)
_LEVEL = r"(?:INFO|DEBUG|WARN(?:ING)?|ERROR|CRITICAL|FATAL|TRACE|NOTICE)"
_LOG_HEAD = (
    r"(?:[\[(]?[0-9][0-9:.,TZ/+-]{3,30}[\])]?(?:[ \t][0-9][0-9:.,Z+-]{3,20}[\])]?)?[ \t]+)?"
    rf"(?:[\[(]?{_LEVEL}[\])]?:?[ \t]+)?"
)
_LABELS = (
    "密码", "密碼", "口令", "密钥", "密鑰", "秘钥", "私钥", "私鑰", "金鑰", "令牌", "權杖", "凭证", "憑證", "通行码",
    "验证码", "授权码", "暗号", "パスワード", "비밀번호", "пароль", "contraseña",
    "mot de passe", "passwort", "kennwort", "senha",
)  # fmt: skip
_APART = r"(?:[\s=]|['\"],\s*['\"])?"
"""Between a flag and its value: nothing, a blank, or the borders of a list's entries."""
_CLIENTS = (
    (("mysql", "mariadb", "xtrabackup"), r"(?:mysql|mariadb|xtrabackup)[\w-]*", "-p"),  # after a blank: the database
    (("mongo", "rabbitmqadmin", "cqlsh"), r"(?:mongo\w*|rabbitmqadmin|cqlsh)", f"-p{_APART}"),
    (("login",), r"(?:docker|podman|nerdctl|helm|oras|skopeo|buildah|crane)\s[^\n]{0,80}?\blogin", f"-p{_APART}"),
    (("redis-cli", "keydb-cli", "valkey-cli"), r"(?:redis|keydb|valkey)-cli", f"-a{_APART}"),
    (("ldap",), r"ldap\w+", f"-w{_APART}"),
    (("ipmitool", "sqlcmd", "mosquitto"), r"(?:ipmitool|sqlcmd|mosquitto_\w+)", f"-P{_APART}"),
    (("smbclient", "rpcclient"), r"(?:smb|rpc)client", r"(?:-U|--user)[ =]?['\"]?[^\s%'\"]{1,100}%"),
    (("snmp",), r"snmp\w+", f"-c{_APART}"),
    (("http ", "https "), r"(?<![\w:])https?", r"(?:-a|--auth)[ =]?['\"]?[^\s:'\"]{1,100}:"),
    (("mc alias", "mc config"), r"mc\s+(?:alias\s+set|config\s+host\s+add)\s+\S+\s+\S+", r"(?<=\s)[^\s-]\S*\s"),
    (("wandb",), r"wandb\s+login", r"(?=[0-9a-f]{40})"),
    (("sqlplus", "thin:"), r"(?:sqlplus|jdbc:oracle:(?:thin|oci):)", r"?[\w$.]{1,60}/"),
    (("curl", "wget"), r"(?:curl|wget)", r"(?:-u|--user|--proxy-user)[ =]?['\"]?[^\s:'\"]{1,100}:"),
)
"""Words of a client, its name, and the flag before a password. mysql's -P and psql's -p are ports."""


def _client(words: tuple[str, ...], name: str, flag: str) -> _SecretShape:
    return _SecretShape(words, re.compile(rf"(?P<keep>\b{name}\b[^\n|;]{{0,400}}?[\s'\"]{flag})(?=[^\s-]){_WORD}"))


_SHAPES = (
    *(_client(*client) for client in _CLIENTS),
    _SecretShape(  # netrc(5), in one line or several
        ("password",),
        re.compile(
            rf"(?P<keep>\b(?:machine|login){_BLANK}(?!or\b|and\b|with\b|the\b|as\b|by\b|via\b)[^\s\\]{{1,255}}{_BLANK}"
            rf"(?:(?:login|account){_BLANK}[^\s\\]{{1,255}}{_BLANK}){{0,2}}password{_BLANK})(?:\"[^\"\n]*\"|[^\s\\'\"]+)"
        ),
    ),
    _SecretShape(  # libpq's password file: host:port:database:user:password
        (":",),
        re.compile(
            rf"(?P<keep>:(?<=[\w*\]]:){_SOURCE}(?:[0-9]{{4,5}}|\*):(?!{_LEVEL}:)(?:[A-Za-z_][\w$-]{{0,62}}|\*)"
            rf":(?!{_LEVEL}:)[A-Za-z_][\w$.-]{{0,62}}:)(?:\\[:\\]|[^\s:\\'\"])+(?=[\s'\"\\]|\Z)"
        ),
    ),
    _SecretShape(
        ("echo", "printf"),
        re.compile(
            rf"(?P<keep>\b(?:echo(?:\s+-[ne]+)?|printf(?:\s+'?%s(?:\\n)?'?)?)\s+){_WORD}"
            r"(?=\s*\|\s*(?:sudo\b[^\n|]{0,40}?-\w*S|[^\n|]{0,60}\b(?:login|chpasswd|passwd|cryptsetup|kinit)\b))"
        ),
    ),
    _SecretShape(  # crypt(5), and the hashes of argon2 and the like
        ("$",),
        re.compile(
            r"(?P<keep>\$(?:[1567y]|gy|2[abxy]|apr1|argon2(?:id|i|d)|scrypt|bcrypt[\w-]*|pbkdf2[\w-]*)\$)"
            r"(?=[^\s:'\"]{0,80}[A-Za-z0-9./]{8})[\w./$=,+-]{8,}"
        ),
    ),
    _SecretShape(  # slapd's and dovecot's hashes (RFC 2307)
        ("}",), re.compile(r"(?P<keep>\{(?:S?SHA|S?MD5|CRYPT|PBKDF2)[-0-9A-Z]{0,8}\})[\w./+$=,-]{8,}", re.IGNORECASE)
    ),
    _SecretShape(  # PuTTY's key files
        ("private-lines:",), re.compile(r"(?P<keep>Private-Lines: ?[0-9]+)(?:\s+[A-Za-z0-9+/=]{8,})+")
    ),
    _SecretShape(  # SQL
        ("identified",),
        re.compile(rf"(?P<keep>(?i:identified\s+(?:with\s+\S{{1,60}}\s+)?(?:by|as))\s+(?:password\s+)?){_WORD}"),
    ),
    _SecretShape(  # a name and a value in quotes
        ("passw", "passphrase", "api key", "secret"),
        re.compile(
            r"(?P<keep>(?<![\w-])(?i:password|passwd|passphrase|api key|secret)\s+)(?:'[^'\n]{4,}'|\"[^\"\n]{4,}\")"
        ),
    ),
    _SecretShape(  # a name and a value that is no word: it has a digit
        ("passw", "passphrase", "api key", "bindpw", "rootpw", "requirepass", "masterauth"),
        re.compile(
            r"(?P<keep>(?<![\w-])(?i:passw(?:or)?d|passphrase|api key|(?:bind|root)pw|requirepass|masterauth)\s+"
            r"(?:(?:is|was)\s+)?)"
            r"(?=[^\s=:]*[0-9])(?=[^\s=:]*[A-Za-z])[^\s=:/.,;()]{6,}(?=[\s.,;)'\"]|\Z)"
        ),
    ),
    _SecretShape(  # a table of the environment
        ("token", "passw", "secret", "_key", "_pass"),
        re.compile(
            r"(?P<keep>(?<![\w-])[A-Z][A-Z0-9_]{0,60}(?:TOKEN|PASSWORD|PASSWD|SECRET|_KEY|_PASS)"
            r"(?:[ \t]*\|[ \t]*|[ \t]{2,}|\t))[^\s|]{6,}"
        ),
    ),
    _SecretShape(  # property lists
        ("<key>",),
        re.compile(
            r"(?P<keep><key>[^<]{0,60}(?i:passw|secret|token|api[ _-]?key|credential)[^<]{0,60}</key>\s*"
            r"<(?:string|data)>)[^<]+"
        ),
    ),
    _SecretShape(
        ("<input",),
        re.compile(
            r"(?P<keep><input\b(?=[^>]{0,400}password)[^>]{0,400}?\bvalue=)(?:'[^']*'|\"[^\"]*\"|[^\s>]+)",
        ),
    ),
    _SecretShape(  # a browser's cookies, as Netscape, curl and wget keep them
        ("\ttrue\t", "\tfalse\t"),
        re.compile(r"(?P<keep>\t(?:TRUE|FALSE)\t[^\t\n]*\t(?:TRUE|FALSE)\t[0-9]+\t[^\t\n]+\t)[^\t\n]+"),
    ),
    _SecretShape(("pass:",), re.compile(r"(?P<keep>-pass(?:in|out)?[ =]['\"]?pass:)[^\s'\"]+")),
    _SecretShape(  # SASL in SMTP, IMAP and POP (RFC 4954, 3501, 5034)
        ("auth",),
        re.compile(
            r"(?P<keep>\b(?i:auth(?:enticate)?)[ \t]+(?i:plain|login|xoauth2|oauthbearer)"
            r"(?:[ \t=]+|\s*\n(?:[^\n]{0,200}\n)??[^\n]{0,20}?))"
            r"(?!(?i:plain|login|xoauth2|cram|digest|ntlm|gssapi|oauthbearer|scram|external)\b)[A-Za-z0-9+/]{6,}={0,2}(?![\w.])"
        ),
    ),
    _SecretShape(  # the same and redis' command alone: a word with a digit, after a user's name or none
        ("auth",),
        re.compile(
            rf"(?P<keep>(?<![\w.-])AUTH(?:['\"]?[ \t,]+|{_LINE_END}\$[0-9]+{_LINE_END})"
            rf"(?:(?!(?i:plain|login|xoauth2)\b)[A-Za-z][\w.-]{{0,63}}[ \t]+)?['\"]?)"
            r"(?=[^\s=:]*[0-9])(?=[^\s=:]*[A-Za-z])[^\s=:'\"]{6,}(?=[\s'\"]|\Z)"
        ),
    ),
    _SecretShape(
        ("334",),
        re.compile(
            rf"(?P<keep>\b334\b[^\n]{{0,200}}?{_LINE_END}['\"]?\s*(?:reply:[^\n]{{0,200}}\n){{0,2}}"
            r"(?:[A-Za-z]{1,8}[:>] ?)?b?['\"]?)[A-Za-z0-9+/]{4,}={0,2}(?![\w.])"
        ),
    ),
    _SecretShape(("login ",), re.compile(rf"(?P<keep>\b[A-Za-z]{{0,3}}[0-9]{{1,6}} LOGIN {_WORD} ){_WORD}")),
    _SecretShape(
        ("pass ",),
        re.compile(
            r"(?P<keep>\bUSER [^\n]{1,100}(?:\n[^\n]{0,200}){0,3}?\n[^\n]{0,20}?\bPASS )[^\s'\"]+",
        ),
    ),
    _SecretShape(  # redis' MONITOR
        ('"auth"',),
        re.compile(r"(?P<keep>\"(?i:auth)\" )\"[^\"\n]*\"(?: \"[^\"\n]*\")?"),
    ),
    _SecretShape(  # RFC 7578
        ("form-data",),
        re.compile(
            r"(?P<keep>\bname=\\*[\"']?[\w.\[\]-]{0,60}(?i:passw|passphrase|pwd|secret|token|api[_-]?key|credential)"
            rf"[\w.\[\]-]{{0,60}}\\*[\"']?[^\n\\]{{0,200}}(?:{_LINE_END}[^\r\n\\]{{1,200}}){{0,5}}?{_LINE_END}{_LINE_END})"
            rf"(?s:.{{1,65536}}?)(?={_LINE_END}--|\Z)"
        ),
    ),
    _SecretShape(  # a line for the name, or a question, and a line for one word
        ("passw", "passphrase", "secret", "token", "key"),
        re.compile(
            r"(?P<keep>\b(?i:(?:passw(?:or)?d|passphrase)\b[^\n:]{0,80}|(?:client[_ -]?)?secret|(?:\w{1,20}[_-])?token"
            r"|(?:api|access|private)[_ -]?key)\\?[\"']?[ \t]*[:=][ \t]*\r?\n"
            rf"{_LOG_HEAD}[ \t]*)(?!<secret>|[^\n]*:\s)[^\s]{{6,}}(?=[ \t]*(?:\r?\n|\Z))"
        ),
    ),
    _SecretShape(
        _LABELS,
        re.compile(
            rf"(?P<keep>(?i:{'|'.join(_LABELS)})\\*[\"'”」】]?\s*(?:[:=]|->|[为是為](?=\s*[\"'“「]?[!-~]{{4}}))\s*"
            rf"{_LOG_HEAD})(?!<secret>)(?:{_WORD}|[“「][^”」\n]*[”」])"
        ),
    ),
)


_END_OF_A_KEY = re.compile(r"-----END [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----")
_FULL, _LAST = (re.compile(rf"(?:.{{0,60}}[\s>|:\]])?[A-Za-z0-9+/=]{{{least},76}}\s*") for least in (40, 2))
"""Lines of a key in PEM, the last one of which may be short (RFC 7468), with what a log has before them."""


def without_ends_of_keys(text: str) -> str:
    """A text without the lines before the end of a private key whose beginning is elsewhere: a log's last lines."""
    parts = _END_OF_A_KEY.split(text)
    ends = _END_OF_A_KEY.findall(text)
    clean = [*map(_without_last_lines, parts[:-1]), parts[-1]]
    return clean[0] + "".join(end + part for end, part in zip(ends, clean[1:], strict=True))


def _without_last_lines(text: str) -> str:
    lines = text.split("\n")
    first, form = len(lines) - 1, _LAST
    while first > 0 and form.fullmatch(lines[first - 1]):
        first, form = first - 1, _FULL
    return "\n".join((*lines[:first], "<secret>", *lines[-1:])) if first < len(lines) - 1 else text


def without_shapes(text: str) -> str:
    """A text without the secrets of these shapes."""
    lowered = text.lower()
    for shape in _SHAPES:
        if any(word in lowered for word in shape.words):
            text = shape.form.sub(r"\g<keep><secret>", text)
    return text
