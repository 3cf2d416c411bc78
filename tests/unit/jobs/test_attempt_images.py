"""The workers of a job run the same image, whatever image store the Docker of their nodes has."""

from __future__ import annotations

import pytest

from provision.documents.jobs import Image, Prepared
from provision.errors import NodeError
from provision.jobs import attempt_start

AMD64, ARM64, INDEX, OTHER = (f"sha256:{letter * 64}" for letter in "abcd")


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (Image(AMD64, INDEX), Image(AMD64, INDEX), True),
        (Image(AMD64, INDEX), Image(INDEX, INDEX), True),  # the manifest of one could not be read
        (Image(AMD64, INDEX), Image(ARM64, INDEX), True),  # nodes of two platforms
        (Image(AMD64), Image(AMD64, INDEX), True),  # loaded from a file into Docker's own store, and into containerd's
        (Image(AMD64), Image(ARM64), False),
        (Image(AMD64, INDEX), Image(ARM64, OTHER), False),
    ],
)
def test_different_images_under_one_name_are_refused(first: Image, second: Image, same: bool) -> None:  # noqa: FBT001
    """The message names both nodes."""
    prepared = {"gpu1": Prepared({"t:1": first}), "gpu2": Prepared({"t:1": second})}

    if same:
        attempt_start._same_images(prepared)
        return
    with pytest.raises(NodeError, match=r"t:1 differs here .* from the one on gpu1") as caught:
        attempt_start._same_images(prepared)
    assert caught.value.node == "gpu2"
