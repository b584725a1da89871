"""Making a host ready: ansible-runner over playbooks/. ansible_runner lives here only."""
