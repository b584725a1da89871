"""Gangs as wholes: started, stopped, restarted, changed."""
