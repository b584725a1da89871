"""Entry of the node application: one verb, a JSON request on stdin, a JSON answer on stdout.

Kept to syntax that any python3 can read, so that an old one gets a message instead of a traceback.
The answer is {"ok": true, "value": ...} or {"ok": false, "error": {"kind", "what", "where", "fix"}}.
"""

import json
import sys

OLDEST = (3, 10)


def main():  # type: ignore[no-untyped-def]
    if sys.version_info < OLDEST:
        error = {
            "kind": "old-python",
            "what": "python3 is %d.%d; 3.10 or newer is needed" % sys.version_info[:2],
            "where": sys.executable,
            "fix": "install a newer python3 and name it with ansible_python_interpreter",
        }
        print(json.dumps({"ok": False, "error": error}))
        return 0
    from orchestrator.node import dispatch

    return dispatch.serve(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())  # type: ignore[no-untyped-call]
