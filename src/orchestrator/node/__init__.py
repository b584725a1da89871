"""What runs ON a node: a zip application of the standard library and pynvml, Python 3.10 or newer."""
