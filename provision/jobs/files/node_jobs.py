"""Answers one request about batch jobs on this node, and ends. README.md of `provision/jobs` has the requests.

It arrives over SSH on standard input with its parts, the modules `node_*.py`, followed by the request as one line of
JSON, and is root's. Only the parts that a request needs are compiled, because each request starts Python anew. Python
3.6 or newer, and nothing else.
"""

import json
import os
import sys

from node_files import Refused

REQUESTS = {
    "reserve": "node_queue",
    "hold_queue": "node_queue",
    "queue": "node_queue",
    "queues": "node_queue",
    "secrets": "node_queue",
    "event": "node_queue",
    "drain": "node_queue",
    "look": "node_look",
    "watch": "node_watch",
    "report": "node_reports",
    "lease": "node_leasing",
    "hold": "node_leasing",
    "release": "node_leasing",
    "renew": "node_leasing",
    "prepare": "node_prepare",
    "start": "node_start",
    "logs": "node_logs",
    "stop": "node_ending",
    "delete": "node_ending",
}
"""Request -> the part that has a function of its name."""


def main():
    """Answer the request on standard input."""
    try:
        request = json.loads(request_line().decode())
        do = request["do"]
        answer = getattr(__import__(REQUESTS[do]), do)(request)
    except Refused as refusal:
        print(json.dumps(refusal.answer))
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as problem:
        import node_storage  # needed by few requests

        print(json.dumps(node_storage.refusal(problem).answer))
        return 1
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as problem:
        print(json.dumps(Refused("the request makes no sense: {!r}".format(problem)).answer))
        return 1
    if answer is not None:
        print(json.dumps(answer))
    return 0


def request_line():
    """Return our input up to a newline or its end."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1 << 16)
        if not piece:
            break
        line += piece
    return line


if __name__ == "__main__":
    sys.exit(main())
