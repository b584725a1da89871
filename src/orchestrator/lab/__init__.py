"""The emulated cluster: uses the house like an operator does; nothing imports it but its cli verb."""
