"""What sshd, PAM, shells and sudo print is shown, and is the one thing that the fix is chosen by."""

from __future__ import annotations

import re

import pytest

from orchestrator.model.inventory import Reach
from orchestrator.remote.refusals import OF_A_LOGIN, OF_SUDO, fix_of, last_words, sudo_refusal

BECOME = Reach(host="h", user="deploy", become=True, become_user="l40s")
SUDO = {
    "sudo: a password is required": "NOPASSWD",
    "sudo: a terminal is required to read the password; either use ...\nsudo: a password is required": "NOPASSWD",
    "sudo: no tty present and no askpass program specified": "NOPASSWD",
    "sudo: interactive authentication is required": "NOPASSWD",
    "mesg: ttyname failed\nWelcome\nsudo: a password is required": "NOPASSWD",
    "sudo: unable to resolve host n7: Name or service not known\nsudo: a password is required": "NOPASSWD",
    "Sorry, user deploy is not allowed to execute '/bin/sh' as root on n.": "NOPASSWD",
    "deploy is not in the sudoers file.": "NOPASSWD",
    "sudo: sorry, you must have a tty to run sudo": "!requiretty",
    "sudo: unknown user l40s": "ansible_become_user",
    "sudo: unknown user: l40s\nsudo: error initializing audit plugin sudoers_audit": "ansible_become_user",
    "bash: line 1: sudo: command not found": "install sudo",
    "zsh:1: command not found: sudo": "install sudo",
    "fish: Unknown command: sudo": "install sudo",
    "sh: 1: exec: sudo: not found": "install sudo",
    "sudo: /usr/bin/sudo must be owned by uid 0 and have the setuid bit set": "chmod 4755",
    "sudo: effective uid is not 0, is /usr/bin/sudo on a file system with the 'nosuid' option set": "nosuid",
    "sudo: /etc/sudoers is owned by uid 1000, should be 0": "visudo -c",
    "sudo: account validation failure, is your account locked?": "chage -l deploy",
    "sudo: PAM account management error: Permission denied": "chage -l deploy",
    'sudo: Account expired or PAM config lacks an "account" section for sudo': "chage -l deploy",
    "sudo: pam_open_session: Permission denied\nsudo: policy plugin failed session initialization": "chage -l deploy",
    "sudo: account is locked": "chage -l deploy",
    "sudo: unable to fork: Resource temporarily unavailable": "ulimit -u",
    "deploy is not allowed to run sudo on n0.  This incident will be reported.": "NOPASSWD",
    "sudo: you are not permitted to use the -n option": "NOPASSWD",
    "sudo: ein Passwort ist notwendig": "sudo -n -l -U deploy",
    'sudo: error in /etc/sudo.conf, line 3 while loading plugin "sudoers_policy"\n'
    "sudo: /usr/libexec/sudo/sudoers.so must be owned by uid 0\nsudo: fatal error, unable to load plugins": "sudo.conf",
    "sudo: unable to load /usr/libexec/sudo/sudoers.so: cannot open shared object file": "sudo.conf",
    "sudo: initialization error in plugin sudoers_policy": "sudo.conf",
    "sudo: user 'l40s' not found": "ansible_become_user",
    "sudo: unable to write to I/O log file: No space left on device": "df -h",
    "sudo: unable to open /run/sudo/ts/deploy: Read-only file system": "df -h",
    "sudo: unable to connect to log server": "log_servers",
    "sudo: error initializing I/O plugin sudoers_io": "log_servers",
    "sudo: Account or password is expired, reset your password and try again": "chage -l deploy",
    "We trust you have received the usual lecture from the local System\nsudo: a password is required": "NOPASSWD",
    "sudo: something that no release has said so far": "sudo -n -l -U deploy",
}


@pytest.mark.parametrize("said", SUDO)
def test_sudo_is_told_with_its_own_words_and_the_fix_for_them(said: str) -> None:
    refusal = sudo_refusal("n0", BECOME, said.encode())
    assert refusal is not None and refusal.where == "n0"
    assert "deploy" in refusal.what and any(line in refusal.what for line in said.splitlines())
    assert SUDO[said] in refusal.fix
    assert ("NOPASSWD" in refusal.fix) == (SUDO[said] == "NOPASSWD")


@pytest.mark.parametrize("said", ["no such file", "welcome to sudo: the game", "", "sudo: unable to resolve host n7"])
def test_other_words_are_no_refusal_of_sudo(said: str) -> None:
    assert sudo_refusal("n0", BECOME, said.encode()) is None


LOGIN = {
    '"System is booting up. Unprivileged users are not permitted to log in yet. Please come back later."': "nologin",
    "System is going down. Unprivileged users are not permitted to log in anymore.": "nologin",
    "Closed for maintenance until 18:00": "nologin",
    "The system is under maintenance.": "nologin",
    "The system is going down for reboot at Tue!": "shutdown -c",
    "The system will power off now!": "shutdown -c",
    "Account temporarily locked (10 minutes left)": "faillock --user deploy",
    "This account is not available.": "usermod -s /bin/bash deploy",
    "Access denied by pam_slurm_adopt: you have no active jobs on this node": "salloc",
    "This service allows sftp connections only.": "ForceCommand",
    "-bash: fork: Cannot allocate memory": "free -h",
    "Your password will expire in 3 days.": "look there",
    "Your account has expired; please contact your system administrator.": "chage -E -1",
    "WARNING: Your password has expired.\nPassword change required but no TTY available.": "chage -E -1",
    "The account is locked due to 3 failed logins.": "faillock --user deploy",
    "This account is currently not available.": "usermod -s /bin/bash deploy",
    "Too many logins for 'deploy'.": "maxlogins",
    "bash: fork: retry: Resource temporarily unavailable": "maxlogins",
    "Too many authentication failures": "ansible_ssh_private_key_file",
    "/bin/bash: No space left on device": "df -i",
    "*** This is a private system ***": "look there",
    "Authentication token is no longer valid; new one required": "chage -E -1",
    "User account has expired": "chage -E -1",
    "-rbash: exec: restricted": "usermod -s /bin/bash deploy",
    "rbash: line 1: /bin/sh: restricted: cannot specify `/' in command names": "usermod -s /bin/bash deploy",
    "fatal: Interactive git shell is not enabled.\nhint: ~/git-shell-commands ...": "usermod -s /bin/bash deploy",
    "This node is down for maintenance, back at 17:00": "nologin",
    "Maintenance in progress": "nologin",
    "The system is going down for maintenance NOW!": "shutdown -c",
    "closed for maintenance on Sundays. Your password has expired.\nPassword change required but no TTY": "chage -E -1",
    "System is going down for reboot NOW!": "shutdown -c",
    "Last password change: 3 days ago. Account temporarily locked": "faillock",
    "If this account is not available call 7. bash: fork: retry: Resource temporarily unavailable": "maxlogins",
}


@pytest.mark.parametrize("said", LOGIN)
def test_a_login_that_is_refused_has_the_fix_for_what_was_said(said: str) -> None:
    assert LOGIN[said] in fix_of(last_words(said.encode()), OF_A_LOGIN, "look there", BECOME)


@pytest.mark.parametrize(("known", "told"), [(OF_SUDO, SUDO), (OF_A_LOGIN, LOGIN)])
def test_all_known_words_are_tested(known: tuple[object, ...], told: dict[str, str]) -> None:
    for one in OF_SUDO if known is OF_SUDO else OF_A_LOGIN:
        assert any(re.search(one.said, words) for words in told), one.said.pattern


def test_words_are_shown_in_one_short_line() -> None:
    assert last_words(b"a\n\n  b \xff\r\n") == "a b �"
    assert last_words(b"") == ""
    assert len(last_words(b"x" * 200_000)) == 303
