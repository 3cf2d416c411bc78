"""Asks the package cache of the cluster whether it serves this node, and lists the repositories that bypass it.

The receipt of the role platform has the URL of the cache and the hosts of its repositories. The request is answered
from the cache alone (``only-if-cached``), so that a probe of many nodes causes no downloads.
"""

import glob
import http.client
import json
import re
from typing import Any, Dict, List
from urllib.parse import urlsplit

from provision.node.rpm_sources import enabled_addresses

RECEIPT = "platform.json"
SOURCES = ("/etc/apt/sources.list", "/etc/apt/sources.list.d/*.list", "/etc/apt/sources.list.d/*.sources")
OWN_REPOSITORIES = "/etc/yum.repos.d/provision-*.repo"
REPOSITORIES = "/etc/yum.repos.d/*.repo"
SECONDS = 4
LARGEST = 1 << 20
MOST = 20
REFUSED = 403


def text_of(path: str) -> str:
    """Return the text of a small file, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(LARGEST)
    except OSError:
        return ""


def package_proxy(folder: str) -> Dict[str, Any]:
    """Return the URL, whether it serves this node, and hosts that bypass it; empty if the node uses no cache.

    Args:
        folder: the folder of the receipts.
    """
    try:
        setting = json.loads(text_of(folder + "/" + RECEIPT))["inputs"]["package_cache"]
        url, hosts = str(setting["url"]), [str(host) for host in setting["hosts"]]
        place = urlsplit(url)
        place.port  # noqa: B018 - raises an error if it is invalid
    except (ValueError, LookupError, TypeError):
        return {}
    answer, cause = "unreachable", ""
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=SECONDS)
    try:
        headers = {"Cache-Control": "only-if-cached", "Connection": "close"}
        connection.request("HEAD", "http://{}/".format(hosts[0] if hosts else ""), headers=headers)
        answer = "refused" if connection.getresponse().status == REFUSED else "ok"
    except (OSError, http.client.HTTPException) as error:
        cause = (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]
    finally:
        connection.close()
    served = [host[:-3] if host.endswith(":80") else host for host in hosts]
    others = [host for host in sources() if host not in served]
    return {"url": url, "answer": answer, "cause": cause, "others": others[:MOST]}


def sources() -> List[str]:
    """Return the hosts of the node's repositories with http://, each with its port unless that is 80."""
    paths = [path for pattern in SOURCES for path in sorted(glob.glob(pattern))]
    lines = [line for path in paths for line in text_of(path).splitlines() if not line.lstrip().startswith("#")]
    addresses = [word for line in lines for word in re.findall(r"\bhttp://\S+", line)]
    addresses += enabled_addresses(REPOSITORIES, lambda: "")
    addresses += [word for path in glob.glob(OWN_REPOSITORIES) for word in re.findall(r"\bhttp://\S+", text_of(path))]
    hosts = [url[7:].partition("/")[0].rpartition("@")[2].lower() for url in addresses if url.startswith("http://")]
    return list(dict.fromkeys(host[:-3] if host.endswith(":80") else host for host in hosts if host))
