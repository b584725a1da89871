"""Scenarios, played as an operator would experience them."""
