"""Signed jobs: the text that a submitter signs, and verification of a recorded job before its start.

Records of the queue host are data of an untrusted node. A start uses only the signed text: its spec, ID and owner.
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

SIGNED_VERSION = 1
"""Version of the signed text. A change of the fields of `SignedJob`, `JobSpec` or `CodeSource` requires a new one."""

NAMESPACE = "provision-job"
"""Namespace of the signatures: a signature for another purpose is invalid."""
_FORBIDDEN = ("/run", "/var/run", "/proc", "/sys", "/dev")
"""Folders that a submitter's job cannot mount, including all files below."""
_SOCKET = "docker.sock"
_START_LIMIT = 3600
"""Limit of a submitter's --starting-timeout in seconds: an operator's queue waits for the start."""
_PRIORITY_LIMITS = frozenset({"nice", "rtprio"})
"""Limits that slow down all other processes of a node."""
_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Refused(NodeError):
    """A recorded job must not start: it is invalid, or not signed by a user who may submit it."""

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
            f"the description of the job has {len(text)} characters; the limit is {SignedLimits.TEXT}",
            remedy="Store large files on a volume (provision data add), or use --sync-mode.",
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
    """Return the signed job of an entry of the queue host, if it may start.

    Args:
        job: the report of the queue host.
        node: the queue host.
        cluster: the name of the cluster that the job must be signed for.
        signer: returns the public key of a signature; raises ProvisionError if it is invalid.
        trusted: public key -> its owner.

    Raises:
        Refused: it must not start; with a remedy.
    """
    if not job.signed or not job.signature:
        raise Refused(
            f"{job.name} is not signed, so that its submitter is unknown: delete it and submit it again "
            f"(provision delete {job.name})",
            "job.unsigned",
        )
    try:
        key = signer(job.signed, job.signature)
    except ProvisionError as error:
        raise Refused(f"{job.name} has an invalid signature: {error.message}; delete it", "job.signature") from error
    person = trusted.get(key)
    if person is None:
        raise Refused(
            f"{job.name} is signed with a key that this inventory does not list; if you know this key, add it to "
            f'cluster_operators: {{name: NAME, key: "{key}"}}; otherwise delete the job',
            "job.unknown_key",
        )
    signed = _parsed(job, node)
    for what, one, other in (("name", signed.name, job.name), ("id", signed.id, job.id)):
        if one != other:
            raise Refused(
                f"{job.name}: the recorded {what} differs from the signed one ({one}); delete it", f"job.{what}"
            )
    if signed.cluster != cluster:
        raise Refused(
            f"{job.name} was signed for the cluster {signed.cluster}, and this is {cluster}; set cluster_name if "
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
    """Verify that the secrets on the queue host are exactly the signed ones, and that the spec names all of them.

    Raises:
        Refused: they are missing or different.
    """
    named = {*job.spec.secret_env, *(text.partition(":")[2] for text in job.spec.config_files)}
    missing = sorted(named - {*document.env, *document.files})
    again = f"delete it and submit it again (provision delete {job.name})"
    if missing or (not document and secrets_digest(document) != job.secrets):
        what = missing[0] if missing else "a credential for its image or its code"
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
    from provision.batch.spec_checks import check_recorded  # not needed to list jobs

    try:
        check_recorded(job.spec, packed=job.code is not None)
    except ProvisionError as error:
        raise Refused(f"{job.name} cannot be started: {error.message}", "job.spec", remedy=error.remedy) from error
    except Exception as error:  # other jobs start, whatever was signed
        problem = f"its spec cannot be checked ({type(error).__name__})"
        raise Refused(f"{job.name} cannot be started: {problem}", "job.spec") from error


class _Version(msgspec.Struct):
    version: Annotated[int, msgspec.Meta(ge=1)]


def _parsed(job: JobReport, node: str) -> SignedJob:
    """Return the signed document, which must not contain fields that this version does not know."""
    try:
        version = decode(job.signed, _Version, node=node, what="signed text").version
        if version > SIGNED_VERSION:
            raise Refused(
                f"{job.name} was submitted by a newer version of provision (signed format {version}, this one reads "
                f"up to {SIGNED_VERSION}); update provision here, or start it on the machine that submitted it",
                "job.version",
            )
        signed = decode(job.signed, SignedJob, node=node, what="signed text")
        whole = decode(job.signed, dict[str, Any], node=node, what="signed text")
    except InvalidDocument as error:
        raise Refused(
            f"{job.name} is signed in a format that this version cannot read ({error.message}); submit it again",
            "job.format",
        ) from error
    unknown = _unknown_field(whole, msgspec.to_builtins(signed))
    if unknown:
        raise Refused(
            f"{job.name} has a field that this version of provision does not know ({printable_line(unknown[:80])}) "
            "and would start as a different job; update provision here, or submit the job again",
            "job.unknown_field",
        )
    return signed


def _unknown_field(document: Any, known: Any, path: str = "") -> str:
    """Return the path of the first field that is lost when a document is parsed; empty if none is."""
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
    """Return what in a submitter's job only operators may use; empty if it has nothing of this kind."""
    account, _, groups = spec.user.partition(",")
    own_account, _, own_groups = person.user.partition(",")
    if account != own_account or not set(filter(None, groups.split(","))) <= set(own_groups.split(",")):
        return f"it runs as {spec.user or 'root or an account of the image'}; submit it with --user {person.user}"
    if spec.privileged:
        return "--privileged is for operators"
    if spec.allow_drained:
        return "--toleration is for operators"
    if spec.starting_timeout > _START_LIMIT or not spec.starting_timeout:
        return f"--starting-timeout is at most {_START_LIMIT} seconds for submitters"
    if spec.priority > 0:
        return "--priority above 0 is for operators"
    for name in _PRIORITY_LIMITS & spec.ulimits.keys():
        return f"--ulimit {name} is for operators"
    for name in {_DEVICES, *((_VISIBLE,) if spec.no_container else ())} & {*spec.env, *spec.secret_env}:
        return f"--env {name} is for operators: it could select GPUs of other users"
    for mount in spec.mounts:
        source = PurePosixPath("/" + mount.partition(":")[0].lstrip("/"))
        forbidden = any(source.is_relative_to(folder) for folder in _FORBIDDEN)
        if forbidden or ".." in source.parts or str(source).strip("/") == "" or source.name == _SOCKET:
            return f"--mount {mount} is for operators"
    return _slow_fetch(spec)


def _slow_fetch(spec: JobSpec) -> str:
    from provision.batch.code import fetch_request  # not needed to list jobs

    if spec.sync is not None and fetch_request(spec.sync, {})["timeout"] > _START_LIMIT:
        return f"GIT_SYNC_TIMEOUT is at most {_START_LIMIT} seconds for submitters"
    return ""
