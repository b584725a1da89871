"""What sshd, PAM, a login's shell and sudo say when they let nobody in: shown, and judged only by what it says.

Sources: pam_nologin(8), pam_unix and pam_faillock of Linux-PAM, nologin(8), OpenSSH's auth.c and session.c, sudo's and
sudo-rs' messages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import itemgetter

from orchestrator.model.inventory import Reach
from orchestrator.protocol.errors import NodeError

_SHOWN = 300
"""Characters of another program's words in one of our messages."""


@dataclass(frozen=True, slots=True)
class KnownWords:
    """What is said, and the fix for who reads it. {user}, {become}: who logs in, and who runs the command."""

    said: re.Pattern[str]
    fix: str


def _known(pattern: str, fix: str) -> KnownWords:
    return KnownWords(re.compile(pattern, re.IGNORECASE), fix)


OF_A_LOGIN = (
    _known(
        r"system is booting up|unprivileged users are not permitted|maintenance (?:in|mode)"
        r"|(?:(?<!going down )for|being|under|scheduled|in) maint",
        "wait until it has started, then run this again (systemctl is-system-running --wait, there); where that does "
        "not help, remove /run/nologin and /etc/nologin there",
    ),
    _known(
        r"system is going down|(?:system|going down for).{0,40}(?:reboot|power[- ]?off|halt)|going down for maintenance"
        r"|shutting down",
        "wait for it to come back, or end its shutdown there: sudo shutdown -c",
    ),
    _known(
        r"(?:account|password).{0,20} (?:has expired|is expired)|change your password|password change required"
        r"|token (?:is no longer valid|expired)",
        "see what has expired there, and extend it: sudo chage -l {user}; sudo chage -E -1 -M -1 {user}",
    ),
    _known(
        r"account (?:is |has been )?(?:temporarily )?locked|locked due to \d+ failed logins",
        "unlock it there: sudo faillock --user {user} --reset; sudo passwd -u {user}",
    ),
    _known(
        r"account is (?:currently )?(?:not available|disabled)|: restricted\b|interactive git shell",
        "give that user a shell there: sudo usermod -s /bin/bash {user}",
    ),
    _known(
        r"too many logins|maxlogins|resource temporarily unavailable|cannot fork|fork: retry",
        "raise maxlogins and nproc of that user there (/etc/security/limits.conf), or end what it left running: "
        "loginctl terminate-user {user}",
    ),
    _known(
        r"too many authentication failures",
        "name the one key: ansible_ssh_private_key_file and IdentitiesOnly=yes, or raise MaxAuthTries in its "
        "sshd_config",
    ),
    _known(
        r"pam_slurm|no active jobs on this node",
        "run it within a job of that user on this node (salloc), or except the user there, in "
        "/etc/security/access.conf",
    ),
    _known(
        r"allows sftp connections only",
        "except {user} from ForceCommand there (sshd -T -C user={user}), or name another ansible_user",
    ),
    _known(
        r"cannot allocate memory|too many open files",
        "see what uses them up there, as another user if need be: free -h; cat /proc/sys/fs/file-nr",
    ),
    _known(
        r"no space left on device|disk quota exceeded|read-only file system",
        "see its disks, as another user if need be: df -h; df -i",
    ),
)  # fmt: skip

_ALLOW = (
    "allow it on the node: echo '{user} ALL=({become}) NOPASSWD: ALL' > /etc/sudoers.d/l40s-deploy, "
    "or set ansible_become: false and log in as that user"
)
_PASSWORD = re.compile(
    r"password is required|terminal is required to (?:read|authenticate)|no tty present|interactive authentication is"
    r" required|askpass",
    re.IGNORECASE,
)
OF_SUDO = (
    _known(
        r"must have a tty",
        "let it run without a terminal, on the node: echo 'Defaults:{user} !requiretty' > "
        "/etc/sudoers.d/l40s-deploy-tty",
    ),
    KnownWords(_PASSWORD, _ALLOW),
    _known(
        r"not in the sudoers file|not allowed to|not permitted to use the -n|may not run sudo"
        r"|i'm afraid i can't do that",
        _ALLOW,
    ),
    _known(
        r"command not found|not found: sudo|unknown command|: not found",
        "install sudo on the node, or set ansible_become: false and log in as that user",
    ),
    _known(
        r"unknown user|user '.{1,80}' not found",
        "make that user with `l40s-deploy prepare`, or correct ansible_become_user",
    ),
    _known(
        r"setuid bit|nosuid|no new privileges|effective uid is not 0",
        "have sudo run as root there: chown root:root /usr/bin/sudo && chmod 4755 /usr/bin/sudo, on a file system "
        "without nosuid",
    ),
    _known(
        r"parse error|syntax error|no valid sudoers|is owned by|is world writable|bad permissions",
        "mend its sudoers as root there: visudo -c",
    ),
    _known(
        r"while loading plugin|unable to (?:load|initialize policy)|initialization error in plugin",
        "mend what its plugins need, as root there: sudo -V; cat /etc/sudo.conf",
    ),
    _known(
        r"log server|i/o plugin",
        "let its log server be reached, or go on without it: log_servers and ignore_log_errors, as root there: visudo",
    ),
    _known(
        r"no space left on device|disk quota exceeded|read-only file system",
        "see its disks, as another user if need be: df -h; df -i",
    ),
    _known(
        r"account validation|account expired|password is expired|has expired|is locked|PAM account management|pam_\w+: "
        r"|PAM authentication|PAM config|session initialization",
        "see what PAM has against that account, on the node: sudo chage -l {user}; journalctl -t sudo -n 20",
    ),
    _known(
        r"resource temporarily unavailable|unable to (?:fork|allocate)|cannot allocate memory|too many open files",
        "end what uses up that node's processes or memory there: ps aux --sort=-rss | head; ulimit -u",
    ),
)  # fmt: skip
_SEE_SUDO = "see what it says on the node: sudo -n -l -U "

_SUDOS = re.compile(
    r"^(sudo: |sudo-rs: |Sorry, user |.{1,80} is not (?:in the sudoers file|allowed to run sudo)|"
    r".*sudo: (command )?not found|.*(command not found|[Uu]nknown command): '?sudo\b).*",
    re.MULTILINE,
)
"""Sudo's own complaints, and what sh, bash, zsh and fish say without one; the part before a colon is not translated."""
_REMARK = re.compile(r"unable to resolve host|setrlimit\(|error initializing audit plugin|timestamp", re.IGNORECASE)
"""Sudo goes on after these."""


def fix_of(words: str, known: tuple[KnownWords, ...], otherwise: str, reach: Reach) -> str:
    """The fix of the known words that stand last in these: a greeting stands before the reason. `otherwise` where none
    are."""
    placed = [(match.end(), words_of.fix) for words_of in known for match in words_of.said.finditer(words)]
    if not placed:
        return otherwise
    _, fix = max(placed, key=itemgetter(0))
    return fix.format(user=reach.user or "USER", become=reach.become_user)


def sudo_refusal(node: str, reach: Reach, output: bytes) -> NodeError | None:
    """The error if sudo would not run a command, by what was said before it could begin; else None."""
    lines = [match[0].strip() for match in _SUDOS.finditer(output.decode("utf-8", "replace"))]
    lines = [line for line in lines if not _REMARK.search(line)]
    if not lines:
        return None
    words = next((line for line in lines if any(known.said.search(line) for known in OF_SUDO)), lines[-1])[:_SHOWN]
    who, how = reach.user or "the SSH user", ""
    if _PASSWORD.search(words):
        how = " without a password"
    what = f"sudo does not let {who} become {reach.become_user}{how}: {words}"
    return NodeError(what, where=node, fix=fix_of(words, OF_SUDO, _SEE_SUDO + (reach.user or "USER"), reach))


def last_words(text: bytes) -> str:
    """The end of what another program printed, in one line; '' for nothing."""
    lines = text[-(1 << 16) :].decode("utf-8", "replace").split("\n")
    words = " ".join(" ".join(line.split()) for line in lines if line.strip())
    return words if len(words) <= _SHOWN else f"...{words[-_SHOWN:]}"
