"""The certificates of the nodes' keys, which encrypt secrets and the input of steps."""

from __future__ import annotations

from provision.errors import NodeError
from provision.model.reason import reason
from provision.report.reasons import error_of

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def check_certificate(text: str, node: str) -> None:
    """Check the certificate of a node before something is encrypted for its key.

    openssl encrypts for all nodes in one command, so one invalid certificate would make all submissions fail.

    Raises:
        NodeError: it is missing, not one PEM block, or not that of a key on the curve of our keys.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    if not text.strip():
        raise _invalid("it is empty", node)
    if not (text.strip().startswith(_BEGIN) and text.strip().endswith(_END) and text.count("-----BEGIN") == 1):
        raise _invalid("it is not one PEM block", node)
    try:
        key = x509.load_pem_x509_certificate(text.encode("ascii")).public_key()
    except Exception as error:
        raise _invalid(str(error)[:200] or type(error).__name__, node) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise _invalid("its key is not on the curve P-256", node)


def _invalid(cause: str, node: str) -> NodeError:
    return error_of(NodeError, reason("slurm.certificate", cause=cause), node=node)
