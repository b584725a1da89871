"""What goes into a bug report."""
