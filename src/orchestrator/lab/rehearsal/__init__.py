"""Scenarios played as an operator would live them."""
