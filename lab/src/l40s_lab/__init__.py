"""The emulated cluster: it uses the product as an operator does, and the product does not know it."""
