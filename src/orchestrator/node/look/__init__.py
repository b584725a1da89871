"""What the probe reads on a machine, as raw text."""
