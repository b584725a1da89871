"""What a look reads of a machine, as raw text."""
