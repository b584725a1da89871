"""Names of the secret files that an engine or the router is started with. They are in the gang's folder on the node."""

CONFIG_FILE = "engine-secrets.yml"
"""An engine's own configuration file."""
ARGUMENTS_FILE = "engine-secrets.args"
"""Arguments, one a line, for templates/launch_with_secrets.py."""
STUB_FILE = "launch_with_secrets.py"
