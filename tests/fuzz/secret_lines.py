"""Text with a secret in it, in the shapes that logs, configurations and command lines have: none of it may be left."""

from __future__ import annotations

import base64
import json
import random
import re
import shlex
import string
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape

import yaml

from orchestrator.model.secret_text import without_secrets

LETTERS = string.ascii_letters + string.digits
PASSWORDS = (
    "password", "passwd", "PASSWORD", "DB_PASS", "db_pwd", "PGPASSWORD", "dbPassword", "smtp-password", "client_secret",
    "clientSecret", "SECRET", "secret_key", "passphrase", "REDIS_PASSWORD_2", "ssl_keyfile_password", "credentials",
)  # fmt: skip
TOKENS = (
    "api_key", "API-KEY", "apiKey", "admin_api_key", "HF_TOKEN", "HF_TOKEN_2", "hf-token", "access_token", "authToken",
    "GITHUB_PAT", "SENTRY_DSN", "AWS_ACCESS_KEY_ID", "private_key", "SLACK_WEBHOOK_URL", "x-api-key", "token",
    "LICENSE_KEY", "FERNET_KEY", "hmac_key",
)  # fmt: skip
FLAGS = ("--api-key", "--admin-api-key", "--hf-token", "--password", "--ssl-keyfile-password", "--client-secret")
BEFORE = (
    "",
    "12:01:02 INFO ",
    "[2026-01-02 03:04:05 TP3] ",
    "worker 2: x=1 ",
    "\x1b[32mINFO\x1b[0m: ",
    "ERROR (a.py:7) ",
)
AFTER = ("", "\nnext line", "\r\n")


def plain(rng: random.Random, most: int = 40) -> str:
    """Letters and digits."""
    return "".join(rng.choices(LETTERS, k=rng.randrange(8, most)))


def token(rng: random.Random) -> str:
    """One word, as keys are."""
    return plain(rng) + "".join(rng.choice("._~+/-=") + plain(rng, 12) for _ in range(rng.randrange(3)))


def password(rng: random.Random) -> str:
    """One word of anything on a keyboard."""
    return "".join(
        plain(rng, 12) + rng.choice("!#$%^*()_+-=[]{}|;:,.<>/?@&'\"\\") for _ in range(rng.randrange(1, 4))
    ) + plain(rng)


def sentence(rng: random.Random) -> str:
    """Some words."""
    return " ".join(rng.choice((token, password))(rng) for _ in range(rng.randrange(1, 4)))


def _odd_json(name: str, value: str, rng: random.Random) -> str:
    text = json.dumps(
        {"a": 1, name: value, "n": [2]}, indent=rng.choice((None, None, 1)), ensure_ascii=rng.random() < 0.5
    )
    for _ in range(rng.randrange(3)):
        text = json.dumps({"request": text})
    return text


def _odd_repr(name: str, value: str, rng: random.Random) -> str:
    made: Any = {"a": None, name: value, "b": 2}
    for _ in range(rng.randrange(3)):
        made = [repr(made)]
    return repr(made)


def _user(rng: random.Random) -> str:
    return rng.choice(("anna", "me%40example.org", "a@b", "", plain(rng)))


def _url(value: str, rng: random.Random) -> str:
    scheme = rng.choice(("https", "redis", "postgresql+psycopg", "amqp", "http"))
    url = f"{scheme}://{_user(rng)}:{value}@{rng.choice(('db', '10.1.2.3', 'hub.example.org'))}:80/x?y=1"
    return rng.choice(("{}", "'{}'", 'GET "{}"', "({})", "url={},", "<{}>")).format(url)


def _in_url(rng: random.Random) -> str:
    """A password as some write it into an address; a blank or a quote ends an address."""
    return re.sub(r"[\s\"'<>]", "", password(rng))


Made = tuple[str, str]
"""A text, and what of it is secret."""


def _both(
    text: Callable[[str, str, random.Random], str], value: Callable[[random.Random], str], names: tuple[str, ...]
) -> Callable[[random.Random], Made]:
    def make(rng: random.Random) -> Made:
        secret = value(rng)
        return text(rng.choice(names), secret, rng), secret

    return make


def _headers(rng: random.Random) -> Made:
    name = rng.choice(("Authorization", "authorization", "Proxy-Authorization", "X-Auth", "Cookie", "Set-Cookie"))
    kind = rng.choice(("Bearer", "Token", "Basic", "Digest", "token", ""))
    secret = token(rng)
    if kind == "":
        name = rng.choice((name, "X-Auth-Token", "X-Api-Key"))
    if kind == "Basic":
        secret = base64.b64encode(f"anna:{sentence(rng)}".encode()).decode()
    said = f'username="anna", realm="x", response="{secret}", nc=1' if kind == "Digest" else f"{kind} {secret}".strip()
    if "ookie" in name:
        said = f"a=b; session={secret}; Path=/"
    shapes = (
        f"{name}: {said}",
        f"curl -H {shlex.quote(f'{name}: {said}')} http://h/",
        repr({"host": "h", name: said, "accept": "*/*"}),
        repr([("host", "h"), (name, said), ("accept", "*/*")]),
        repr([(b"host", b"h"), (name.lower().encode(), said.encode())]),
        json.dumps([["host", "h"], [name, said]]),
        json.dumps({"headers": json.dumps({name: said})}),
        f"GET /v1 HTTP/1.1\r\nHost: h\r\n{name}: {said}\r\nAccept: */*\r\n",
    )
    return rng.choice(shapes), secret


def _flag(rng: random.Random) -> Made:
    flag = rng.choice(FLAGS)
    if rng.random() < 0.5:
        secret = sentence(rng)
        words = ["serve", flag, secret, "--tp", "8"]
        return rng.choice((shlex.join(words), repr(words), json.dumps({"argv": words}))), secret
    secret = token(rng)
    others = ("curl -u anna:{} http://h", "curl --user anna:{} http://h", "sshpass -p {} ssh h")
    shapes = (f"serve {flag} {{}} --tp 8", f"serve {flag}={{}} --tp 8", rng.choice(others))
    return rng.choice(shapes).format(secret), secret


def _form(rng: random.Random) -> Made:
    body = plain(rng) + plain(rng) + plain(rng)
    kind = rng.choice(("hf_", "sk-", "ghp_", "github_pat_", "glpat-", "xoxb-", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0."))
    return rng.choice(("got {} from it", "{}", "'{}'", "key({})")).format(kind + body), body


def _list(name: str, value: str, rng: random.Random) -> str:
    values = [value, value[::-1], value]
    return rng.choice((f"{name}s={values!r}", json.dumps({f"{name}s": values}), f"{name}s: {values!r} n=1"))


def _environment(name: str, value: str, rng: random.Random) -> str:
    return rng.choice((
        yaml.safe_dump([{"name": name, "value": value}, {"name": "B", "value": "c"}], width=9999, sort_keys=False),
        json.dumps([{"name": name, "value": value}]),
        repr({"Env": ["A=b", f"{name}={value}", "C=d"]}),
        f"\x1b[36m{name}\x1b[0m=\x1b[35m{value}\x1b[0m",
    ))  # fmt: skip


def _key_value(name: str, value: str, rng: random.Random) -> str:
    return name + rng.choice(("=", " = ", ": ", "=>", ":", "\uff1a", "=\\\n")) + value


def _words(name: str, value: str, rng: random.Random) -> str:
    return f"{name}{rng.choice(('=', ': ', ' = '))}{value}"


def _shell(name: str, value: str, rng: random.Random) -> str:
    before = rng.choice(("", "export ", "env A=b ", "docker run -e "))
    return f"{before}{name.replace('-', '_')}={shlex.quote(value)} x"


def _yaml(name: str, value: str, rng: random.Random) -> str:
    return yaml.safe_dump({"a": 1, name: value, "z": 2}, width=9999, sort_keys=False)


def _block(name: str, value: str, rng: random.Random) -> str:
    return f"a: 1\n{name}: {rng.choice('|>')}{rng.choice(('', '-'))}\n  {value}\nz: 2\n"


def _query(name: str, value: str, rng: random.Random) -> str:
    return f"a=1&{name}={rng.choice((quote, quote_plus))(value)}&b=2"


def _password_file(rng: random.Random) -> Made:
    secret = token(rng)
    shapes = (
        f"machine h{plain(rng)} login anna password {secret}",
        f"machine h\n  login anna\n\tpassword {secret}\nmachine i login b password {secret}\n",
        f"default login anna account x password {secret}\n",
        repr(f"machine h\nlogin anna\npassword {secret}\n"),
        f"db.example.org:{rng.randrange(1024, 65536)}:{rng.choice(('mydb', '*'))}:anna:{secret}",
        f"*:*:*:anna:{secret}\n# the next one\nh:5432:*:b:{secret}",
    )
    return rng.choice(shapes), secret


CLIENTS = (
    "mysql -u root -p{} db", "mysqldump -P 3306 -h h -p{}", "redis-cli -h h -a {} ping", "mongosh -u a -p {} x",
    "docker login -u anna -p {} hub", "ldapsearch -x -w {} -b dc=x", "ipmitool -U a -P {} power status",
    "smbclient //h/s -U anna%{}", "echo {} | sudo -S ls", "echo -n {} | docker login -u a --password-stdin",
    "openssl rsa -passin pass:{} -in k", "wget --user x --proxy-user anna:{} http://h",
    "curl -sSu anna:{} http://h", "curl -b sid={} http://h", "snmpget -v2c -c {} h", "http -a anna:{} http://h",
    "mc alias set m http://h:9000 admin {}", "echo {} | kinit anna",
)  # fmt: skip


def _client(rng: random.Random) -> Made:
    secret = plain(rng)
    line = rng.choice(CLIENTS).format(secret)
    return rng.choice((line, f"+ {line}", f"sh -c {shlex.quote(line)}", f"cmd={line!r}")), secret


def _dialogue(rng: random.Random) -> Made:
    word = sentence(rng)
    secret = base64.b64encode(f"\0anna\0{word}".encode()).decode()
    asked = base64.b64encode(b"Password:").decode()
    shapes = (
        f"C: AUTH PLAIN {secret}", f"auth=plain; AUTHENTICATE PLAIN {secret}\r\n",
        f"AUTH PLAIN\r\n334 \r\n{secret}\r\n",
        f"send: 'AUTH PLAIN {secret}\\r\\n'",
        f"AUTH LOGIN\r\n334 VXNlcm5hbWU6\r\nYW5uYQ==\r\n334 {asked}\r\n{secret}\r\n",
        f"S: 334 {asked}\nC: {secret}\n", f"reply: b'334 {asked}\\r\\n'\nsend: '{secret}\\r\\n'",
    )  # fmt: skip
    if rng.random() < 0.7:
        return rng.choice(shapes), secret
    secret = token(rng)
    plainly = (
        f"a1 LOGIN anna {secret}\r\n", f"---> USER anna\n<--- 331 go on\n---> PASS {secret}\n",
        f'1.2 [0 127.0.0.1:1] "AUTH" "anna" "{secret}"',
    )  # fmt: skip
    return rng.choice(plainly), secret


def _multipart(name: str, value: str, rng: random.Random) -> str:
    more = rng.choice(("", "\r\nContent-Type: text/plain; charset=utf-8"))
    part = f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}\r\n--b--\r\n'
    return rng.choice((part, repr(part.encode()), part.replace("\r", "")))


def _next_line(name: str, value: str, rng: random.Random) -> str:
    head = rng.choice(("", "12:01:02 ", "12:01:02 INFO ", "[2026-01-02 03:04:05] WARNING: ", "2026-01-02T03:04:05Z "))
    return f"{head}{name}{rng.choice((':', ': ', ' =', '='))}\n{head}{value}\n{head}goes on"


def _wide(name: str, value: str, rng: random.Random) -> str:
    wide = "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in name)
    return rng.choice((wide, name)) + rng.choice(("\uff1a", "\uff1d", "\uff1a ", "=")) + value


def _unseen(name: str, value: str, rng: random.Random) -> str:
    at = rng.randrange(1, len(name))
    hidden = rng.choice(("\u200b", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u202e"))
    return f"{name[:at]}{hidden}{name[at:]}{rng.choice(('=', ': '))}{value}"


def _statement(name: str, value: str, rng: random.Random) -> str:
    """Sentences, directives and tables, with a blank between a name and its value."""
    shapes = (
        f"CREATE USER anna IDENTIFIED BY '{value}'", f"ALTER ROLE anna WITH PASSWORD '{value}'",
        f"| {name} | {value} |", f"{name}          {value}", f"Incorrect API key provided: {value}",
        f"Password for anna: {value}", f"requirepass {value}1a", f"bindpw {value}1a", f"the password is {value}1a",
        f"proxy anna:{value}@h:3128", f"<key>Api{name}</key>\n<string>{value}</string>",
    )  # fmt: skip
    return rng.choice(shapes)


def _continued(name: str, value: str, rng: random.Random) -> str:
    """Over two lines, the first of which ends with a backslash."""
    shapes = (
        f"serve --api-key \\\n  {value} --tp 8",
        f'{name}: "x \\\n  {value}"',
        f"Authorization: Bearer \\\n{value}",
    )
    return rng.choice(shapes)


LABELS = ("密码", "登录密码", "口令", "API密钥", "访问令牌", "密碼", "私钥", "パスワード", "비밀번호", "Passwort")


def _label(name: str, value: str, rng: random.Random) -> str:
    sign = rng.choice((":", "\uff1a", " = ", "\uff1a\n") if name == "Passwort" else (":", "\uff1a", "=", "为", "是 "))
    return f"{name}{sign}{value}\uff0c用户: a"


ALL = PASSWORDS + TOKENS
SHAPES: dict[str, Callable[[random.Random], Made]] = {
    "JSON": _both(_odd_json, sentence, ALL),
    "Python's repr": _both(_odd_repr, sentence, ALL),
    "keyword": _both(lambda n, v, _: f"Config(x=1, {n.replace('-', '_')}={v!r}, y=None)", sentence, ALL),
    "key=value": _both(_key_value, token, ALL),
    "words to the end of the line": _both(_words, sentence, PASSWORDS),
    "shell": _both(_shell, sentence, PASSWORDS),
    "shell's words": _both(_shell, token, TOKENS),
    "logfmt": _both(lambda n, v, _: f"level=info {n}={json.dumps(v)} n=1", sentence, ALL),
    "YAML": _both(_yaml, sentence, PASSWORDS),
    "YAML's words": _both(_yaml, token, TOKENS),
    "YAML's next line": _both(lambda n, v, rng: f"a: 1\n{n}:\n  {rng.choice(('', '- '))}{v}\nz: 2", token, ALL),
    "XML": _both(
        lambda n, v, _: f"<a><{n}>{escape(v)}</{n}></a>", sentence, ("password", "api_key", "HF_TOKEN", "secret")
    ),
    "YAML's block": _both(_block, sentence, ALL),
    "list": _both(_list, token, ("api_key", "token", "password", "secret")),
    "environment": _both(_environment, token, ("HF_TOKEN", "DB_PASS", "SENTRY_DSN", "API_KEY")),
    "URL": _both(lambda _, v, rng: _url(v, rng), _in_url, ALL),
    "quoted URL": _both(lambda _, v, rng: _url(quote(v, rng.choice(("", "/"))), rng), sentence, ALL),
    "URL in percent": _both(lambda _, v, __: f"next={quote(f'https://u:{v}@h/x', '')}&a=1", _in_url, ALL),
    "query": _both(lambda n, v, rng: f"GET /x?{_query(n, v, rng)} HTTP/1.1", sentence, ALL),
    "query in percent": _both(lambda n, v, rng: quote(_query(n, v, rng), ""), sentence, ALL),
    "header": _headers,
    "flag": _flag,
    "own form": _form,
    "password file": _password_file,
    "client": _client,
    "dialogue": _dialogue,
    "multipart": _both(_multipart, sentence, ("password", "api_key", "user[passwd]", "hf-token", "client_secret")),
    "next line": _both(
        _next_line, token, ("password", "Password", "api_key", "hf_token", "passphrase", "client_secret")
    ),
    "statement": _both(_statement, plain, ("HF_TOKEN", "DB_PASSWORD", "API_KEY")),
    "continued line": _both(_continued, plain, ALL),
    "full width": _both(_wide, token, ALL),
    "unseen characters": _both(_unseen, token, ("password", "api_key", "hf_token", "secret_key", "passphrase")),
    "label of another language": _both(_label, token, LABELS),
}


def pieces(secret: str) -> list[str]:
    """Runs of letters and digits: no encoding changes them, and no other text has them by chance."""
    return [piece for piece in re.split(r"[^A-Za-z0-9]+", secret) if len(piece) >= 6]


def odd_line(rng: random.Random, _: bytes = b"") -> bytes:
    """A case: the shape, a text, and what may not be left of it."""
    shape = rng.choice(list(SHAPES))
    text, secret = SHAPES[shape](rng)
    return json.dumps([shape, rng.choice(BEFORE) + text + rng.choice(AFTER), pieces(secret)]).encode()


def scrub(case: bytes) -> None:
    """Raises AssertionError where a piece is left."""
    shape, text, hidden = json.loads(case)
    clean = without_secrets(text)
    assert not any(piece in clean for piece in hidden), f"{shape} leaves a secret"
