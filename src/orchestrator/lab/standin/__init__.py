"""A stand-in for SGLang: its command line, processes, ports, log and endpoints, without a model and without GPUs.

A package of its own that needs nothing but Python 3.10's standard library, so that an emulated node can run it
by `python3 -m standin --plays 0.5.23 -- <sglang arguments>`. It says in its log, its model list and its answers
that no model is loaded. What it plays is taken from sglang 0.5.23 (also measured: the real one on CPU) and from
the sources of sglang 0.4.4.post1 (never run here).
"""
