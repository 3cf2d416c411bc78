"""Keys that sign and verify jobs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from provision.batch.direct_record import DirectRecord
from provision.batch.signed import NAMESPACE, check_signed, signed_text
from provision.connectors import ssh_signatures
from provision.connectors.file_cache import remembered
from provision.documents import decode
from provision.documents.jobs import JobReport, SignedJob
from provision.errors import ProvisionError
from provision.model import Cluster
from provision.model.people import Person


class JobKeys:
    """Signs and verifies the jobs of one cluster."""

    def __init__(self, cluster: str, people: Mapping[str, Person], own: Path) -> None:
        self.cluster = cluster
        self._listed = {person.key: person for person in people.values()}
        self._own = own

    def sign(self, job: SignedJob) -> tuple[str, str]:
        """Return the signed text and its signature; make this controller's own key if no other can sign."""
        text = signed_text(job)
        key = ssh_signatures.choose_signing_key(self._listed, self._own)
        return text, ssh_signatures.sign(text.encode(), key, NAMESPACE)

    def check(self, job: JobReport, node: str) -> SignedJob:
        """Return the signed job of an entry of `node`, if it may start.

        Raises:
            Refused: it must not start.
        """
        return check_signed(job, node, self.cluster, _signer, self._trusted)

    def is_own(self, job: JobReport) -> bool:
        """Return whether the user of this controller signed a job, with its own key or a key of the user."""
        return _signer(job.signed, job.signature) in ssh_signatures.public_keys_of_user(self._own)

    def _controller_keys(self) -> set[str]:
        """Return the public keys of this controller that can be read."""
        keys = set()
        for path in (self._own, _named()):
            if path is not None and path.exists():
                with suppress(ProvisionError):
                    keys.add(_public_key(path))
        return keys

    def owns(self, job: DirectRecord, user: str) -> bool:
        """Return whether this user submitted a job.

        The key decides if the inventory lists it. Several accounts of a machine may use the controller's own key: then
        the name of the submitter must match too. For unsigned jobs of earlier versions, only the name counts.
        """
        same_name = job.owner.partition("@")[0] == user.partition("@")[0]
        if not job.signed or not job.signature:
            return not job.owner or job.owner == user
        try:
            key = _signer(job.signed, job.signature)
            signed = decode(job.signed, SignedJob, node="", what="signed text")
        except ProvisionError:
            return False
        if (signed.id, signed.name) != (job.id, job.spec.name):
            return False
        return key in ssh_signatures.public_keys_of_user(self._own) and (same_name or key in self._listed)

    @property
    def _trusted(self) -> Mapping[str, Person]:
        """Public key -> person: those of the inventory, and the keys of this controller."""
        trusted = {key: Person("this controller", key, "operator") for key in self._controller_keys()}
        return trusted | self._listed


def keys_of(cluster: Cluster, head: str) -> JobKeys:
    """Return the keys that sign and verify the jobs of a cluster; `head` names a cluster without ``cluster_name``."""
    from provision.inventory.people import people
    from provision.local_files import state_folder

    name = str(cluster.nodes[0].variables.get("cluster_name") or head)
    return JobKeys(name, people(cluster), state_folder() / "signing_key")


@remembered
def _public_key(path: Path) -> str:
    return ssh_signatures.public_key_of(path)


def _named() -> Path | None:
    name = os.environ.get(ssh_signatures.KEY_VARIABLE)
    return Path(name).expanduser() if name else None


def _signer(text: str, signature: str) -> str:
    return ssh_signatures.signer(text.encode(), signature, NAMESPACE)
