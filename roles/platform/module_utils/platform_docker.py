"""Requests to the Docker engine of this node, over its socket.

The docker program is not used where a request contains variables of a container: they would be in its environment, which
it reads itself, or on its command line, which all users can read.
"""

import http.client
import json
import socket

SOCKET = "/run/docker.sock"
SECONDS = 60


class DockerError(Exception):
    """The engine does not answer, or refuses a request."""


class _Connection(http.client.HTTPConnection):
    """A connection to the engine's socket."""

    def connect(self):
        """Open the connection."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(SOCKET)


def docker(method, path, body=None, seconds=SECONDS):
    """Return the answer of the engine to a request, None if the object does not exist.

    Raises:
        DockerError: there is no answer, or an error; its text is the message of the engine.
    """
    connection = _Connection("docker", timeout=seconds)
    headers = {} if body is None else {"Content-Type": "application/json"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        content, status = answer.read().decode("utf-8", "replace"), answer.status
    except (OSError, http.client.HTTPException) as problem:
        raise DockerError(
            "{}: {}".format(SOCKET, getattr(problem, "strerror", None) or problem or "no answer")
        ) from None
    finally:
        connection.close()
    try:
        document = json.loads(content) if content.strip() else {}
    except ValueError:
        document = {"message": content.strip()}
    if status == 404 and method in ("GET", "DELETE"):
        return None
    if status >= 400:
        raise DockerError(str(document.get("message") or "HTTP status {}".format(status)))
    return document
