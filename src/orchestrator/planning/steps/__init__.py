"""Plans made, kept and compared."""
