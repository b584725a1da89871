"""SGLang by version: argv, log phases, causes, endpoints, stop order. Pure."""
