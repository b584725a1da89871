"""Verbs about gangs: one module each, with `answer(request)` or `stream(request)`."""
