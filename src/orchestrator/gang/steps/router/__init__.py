"""The router in front of the gangs."""
