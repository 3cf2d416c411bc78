"""Signed jobs: the text that a submitter signs, and whether a recorded job may start.

What the head records of a job is data of an untrusted node. A start uses the signed text alone: its spec, id and owner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any

import msgspec

from provision.documents import decode
from provision.documents.jobs import JobReport, SecretsDocument, SignedJob, SignedLimits
from provision.documents.text import printable_line
from provision.errors import InvalidDocument, NodeError, ProvisionError
from provision.model.job import JobSpec
from provision.model.people import Person

__all__ = ["NAMESPACE", "SIGNED_VERSION", "Refused", "check_secrets", "check_signed", "secrets_digest", "signed_text"]

SIGNED_VERSION = 1
"""Of the signed text. A change of the fields of `SignedJob`, `JobSpec` or `CodeSource` needs the next number."""

NAMESPACE = "provision-job"
"""Of the signatures: one that was made for another purpose is not valid."""
_FORBIDDEN = ("/run", "/var/run", "/proc", "/sys", "/dev")
"""Folders that a submitter's job cannot mount, nor anything below them."""
_SOCKET = "docker.sock"
_LONGEST_START = 3600
"""Seconds of a submitter's --starting-timeout: an operator's queue waits for the start."""
_PRIORITY_LIMITS = frozenset({"nice", "rtprio"})
"""Limits that take time from all other processes of a node."""
_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Refused(NodeError):
    """A recorded job must not start: it is not signed by somebody who may submit it, or not valid.

    `code` is the reason for programs; a text may change.
    """

    def __init__(self, message: str, code: str, *, node: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message, node=node, remedy=remedy)
        self.code = code


def signed_text(job: SignedJob) -> str:
    """Return the text that is signed.

    Raises:
        ProvisionError: it is too large.
    """
    text = msgspec.json.encode(job).decode()
    if len(text) > SignedLimits.TEXT:
        raise ProvisionError(
            f"the job's description has {len(text)} characters, {SignedLimits.TEXT} are possible",
            remedy="Put large files on a volume (provision data add), or bring them with --sync-mode.",
        )
    return text


def secrets_digest(document: SecretsDocument) -> str:
    """Return the SHA-256 of the canonical JSON of a job's secrets."""
    return hashlib.sha256(msgspec.json.encode(document, order="sorted")).hexdigest()


def check_signed(
    job: JobReport,
    node: str,
    cluster: str,
    signer: Callable[[str, str], str],
    trusted: Mapping[str, Person],
) -> SignedJob:
    """Return the signed job of an entry of the head, when it may start.

    Args:
        job: as the head reports it.
        node: the head.
        cluster: the name that the job must have been signed for.
        signer: returns the public key that made a signature; raises ProvisionError where it is not valid.
        trusted: public key -> who has it.

    Raises:
        Refused: it must not start; the message says why, and what to do.
    """
    if not job.signed or not job.signature:
        raise Refused(
            f"{job.name} is not signed, so nobody knows who submitted it: delete it and submit it again "
            f"(provision delete {job.name})",
            "job.unsigned",
        )
    try:
        key = signer(job.signed, job.signature)
    except ProvisionError as error:
        raise Refused(
            f"{job.name} has a signature that is not valid: {error.message}; delete it", "job.signature"
        ) from error
    person = trusted.get(key)
    if person is None:
        raise Refused(
            f"{job.name} is signed with a key that this inventory does not list; if you know this key, list it under "
            f'cluster_operators: {{name: NAME, key: "{key}"}}; if you do not, delete the job',
            "job.unknown_key",
        )
    signed = _parsed(job, node)
    for what, one, other in (("name", signed.name, job.name), ("id", signed.id, job.id)):
        if one != other:
            raise Refused(
                f"{job.name} is recorded with another {what} than was signed ({one}); delete it", f"job.{what}"
            )
    if signed.cluster != cluster:
        raise Refused(
            f"{job.name} was signed for the cluster {signed.cluster}, and this is {cluster}; set cluster_name where "
            "several inventories describe one cluster",
            "job.cluster",
        )
    _check_spec(signed)
    problem = _beyond_rights(signed.spec, person) if person.role == "submitter" else ""
    if signed.spec.name != signed.name:
        problem = f"its spec is of another job ({signed.spec.name})"
    if problem:
        raise Refused(f"{job.name}, which {person.name} submitted, must not start: {problem}", "job.rights")
    return signed


def check_secrets(job: SignedJob, document: SecretsDocument, node: str) -> None:
    """Return when the secrets that the head stores are exactly those that were signed, and the spec names all of them.

    Raises:
        Refused: they are missing, or others.
    """
    named = {*job.spec.secret_env, *(text.partition(":")[2] for text in job.spec.config_files)}
    missing = sorted(named - {*document.env, *document.files})
    again = f"delete it and submit it again (provision delete {job.name})"
    if missing or (not document and secrets_digest(document) != job.secrets):
        what = missing[0] if missing else "a login for its image or its code"
        raise Refused(
            f"{job.name} needs secrets that {node} does not store ({what}); they are removed when a job ends: {again}",
            "job.secrets_missing",
            node=node,
        )
    if secrets_digest(document) != job.secrets:
        raise Refused(
            f"the secrets of {job.name} are not those that were signed: {again}", "job.secrets_changed", node=node
        )
    unnamed = set(document.env) - set(job.spec.secret_env)
    if unnamed:
        raise Refused(
            f"{job.name} has a secret variable that its spec does not name: {min(unnamed)[:80]!r}",
            "job.secrets_unnamed",
            node=node,
        )


def _check_spec(job: SignedJob) -> None:
    from provision.batch.spec_checks import check_recorded  # a list of jobs checks none

    try:
        check_recorded(job.spec, packed=job.code is not None)
    except ProvisionError as error:
        raise Refused(f"{job.name} cannot be started: {error.message}", "job.spec", remedy=error.remedy) from error
    except Exception as error:  # whatever somebody has signed, other jobs start
        problem = f"its spec cannot be checked ({type(error).__name__})"
        raise Refused(f"{job.name} cannot be started: {problem}", "job.spec") from error


class _Version(msgspec.Struct):
    version: Annotated[int, msgspec.Meta(ge=1)]


def _parsed(job: JobReport, node: str) -> SignedJob:
    """Return the signed document, which must have no field that this version does not know."""
    try:
        version = decode(job.signed, _Version, node=node, what="signed text").version
        if version > SIGNED_VERSION:
            raise Refused(
                f"{job.name} was submitted by a newer version of provision (signed format {version}, this one reads "
                f"up to {SIGNED_VERSION}); update provision here, or start it from where it was submitted",
                "job.version",
            )
        signed = decode(job.signed, SignedJob, node=node, what="signed text")
        whole = decode(job.signed, dict[str, Any], node=node, what="signed text")
    except InvalidDocument as error:
        raise Refused(
            f"{job.name} is signed, but not in a form that this version reads ({error.message}); submit it again",
            "job.format",
        ) from error
    unknown = _unknown_field(whole, msgspec.to_builtins(signed))
    if unknown:
        raise Refused(
            f"{job.name} has a field that this version of provision does not know ({printable_line(unknown[:80])}) "
            "and would start as another job without it; update provision here, or submit the job again",
            "job.unknown_field",
        )
    return signed


def _unknown_field(document: Any, known: Any, path: str = "") -> str:
    """Return the path of the first field of a document that is lost when it is parsed; empty for none."""
    if isinstance(document, dict) and isinstance(known, dict):
        parts = ((f"{path}.{key}".lstrip("."), value, known.get(key)) for key, value in document.items())
        lost = next((f"{path}.{key}".lstrip(".") for key in document if key not in known), "")
    elif isinstance(document, list) and isinstance(known, list | tuple):
        parts = ((path, value, other) for value, other in zip(document, known, strict=False))
        lost = ""
    else:
        return ""
    return lost or next(filter(None, (_unknown_field(value, other, name) for name, value, other in parts)), "")


def _beyond_rights(spec: JobSpec, person: Person) -> str:  # noqa: PLR0911 - one for each right
    """Return what a submitter's job asks for that only operators may have; empty for nothing."""
    account, _, groups = spec.user.partition(",")
    own_account, _, own_groups = person.user.partition(",")
    if account != own_account or not set(filter(None, groups.split(","))) <= set(own_groups.split(",")):
        return f"it runs as {spec.user or 'root, or an account of the image'}; submit it with --user {person.user}"
    if spec.privileged:
        return "--privileged is for operators"
    if spec.allow_drained:
        return "--toleration is for operators"
    if spec.starting_timeout > _LONGEST_START or not spec.starting_timeout:
        return f"--starting-timeout is at most {_LONGEST_START} seconds for submitters"
    if spec.priority > 0:
        return "--priority above 0 is for operators"
    for name in _PRIORITY_LIMITS & spec.ulimits.keys():
        return f"--ulimit {name} is for operators"
    for name in {_DEVICES, *((_VISIBLE,) if spec.no_container else ())} & {*spec.env, *spec.secret_env}:
        return f"--env {name} is for operators: it could name GPUs of others"
    for mount in spec.mounts:
        source = PurePosixPath("/" + mount.partition(":")[0].lstrip("/"))
        forbidden = any(source.is_relative_to(folder) for folder in _FORBIDDEN)
        if forbidden or ".." in source.parts or str(source).strip("/") == "" or source.name == _SOCKET:
            return f"--mount {mount} is for operators"
    return _slow_fetch(spec)


def _slow_fetch(spec: JobSpec) -> str:
    from provision.batch.code import fetch_request  # a list of jobs checks none

    if spec.sync is not None and fetch_request(spec.sync, {})["timeout"] > _LONGEST_START:
        return f"GIT_SYNC_TIMEOUT is at most {_LONGEST_START} seconds for submitters"
    return ""
