"""No room: every function that writes, and what comes of it where there is none."""
