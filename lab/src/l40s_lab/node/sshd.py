"""What the sshds of all levels have in their configuration (sshd_config(5))."""

from __future__ import annotations

ALL_LEVELS = """PasswordAuthentication no
StrictModes no
UseDNS no
PrintMotd no
MaxStartups 100
MaxSessions 100
KexAlgorithms -sntrup*,mlkem*
"""
"""Keys only; no reverse look-ups, which would wait for a name server.

The post-quantum key exchanges go: OpenSSH's sntrup761 was measured at 65 ms of processor time on each side, and all
nodes of a lab share the processors of one machine.
"""
WITHOUT_PAM = """KbdInteractiveAuthentication no
UsePAM no
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
"""
"""Of the sshds that no distribution has configured."""
