"""The emulated cluster: it uses the rest of the package like an operator does; only its CLI verb imports it."""
