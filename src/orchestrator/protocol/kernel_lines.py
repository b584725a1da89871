"""Lines of the kernel about broken hardware, as patterns: agents search the kernel's log, `why --log` what is pasted.

Source: Linux mm/memory-failure.c (SIGBUS), arch/x86/kernel/cpu/mce/core.c and drivers/edac/edac_mc.c.
"""

from __future__ import annotations

PCI_ADDRESS = r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
"""One group."""
MEMORY_BROKEN = r"Memory failure: 0x[0-9a-f]{1,16}: Sending SIGBUS to .{1,16}:(\d{1,10}) due to hardware memory"
"""One group: the process."""
MACHINE_CHECK = (
    r"mce: \[Hardware Error\]: CPU \d{1,5}: Machine Check Exception: |mce: Uncorrected hardware memory error|"
    r"EDAC MC\d{1,3}: \d{1,9} UE "
)
PCIE_ERROR_FIX = "reseat the card and its riser, check its power; swap slots to see whether the errors follow the card"
NOT_STARTED = "could not be started by its driver"
"""Of a GPU: RmInitAdapter failed."""
CONTAINED_ERROR = "has a contained memory error"
"""Of a GPU: Xid 94."""
BROKEN_MEMORY_FIX = "have the DIMM replaced: `ras-mc-ctl --errors`, or the board's event log, names it"
