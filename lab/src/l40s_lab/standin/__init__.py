"""A stand-in for SGLang: its command line, processes, ports, log and endpoints, without a model and without GPUs.

A package that needs only Python 3.10's standard library, so that an emulated node can run it with
`python3 -m standin --plays 0.5.23 -- <sglang arguments>`. Its log, its model list and its answers say that no model is
loaded. Its behaviour is taken from sglang 0.5.23 (also measured: the real one on CPU) and from the sources of sglang
0.4.4.post1 (never run here).
"""
