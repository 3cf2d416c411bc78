#!/usr/bin/python3
"""Serve one folder over HTTP, read only: ``serve_repository.py FOLDER PORT ADDRESS...``; standard library only."""

import functools
import http.server
import sys
import threading


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files without listings and log."""

    protocol_version = "HTTP/1.1"

    def list_directory(self, path: object) -> None:  # noqa: ARG002
        """Refuse to list a folder."""
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Log nothing; apt reports missing files itself."""


def main(folder: str, port: str, *addresses: str) -> None:
    """Listen on `port` of each of `addresses` until ended."""
    handler = functools.partial(Handler, directory=folder)
    servers = [http.server.ThreadingHTTPServer((address, int(port)), handler) for address in addresses]
    for server in servers[1:]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    servers[0].serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
