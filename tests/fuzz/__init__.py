"""Odd files into every reader of files: whatever they hold, the answer is a value or an error in words."""
