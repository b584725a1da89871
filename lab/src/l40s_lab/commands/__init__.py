"""The words after `lab`."""
