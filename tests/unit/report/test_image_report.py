"""Images are compared across nodes whose Docker has different image stores."""

from __future__ import annotations

import pytest

from provision.errors import ConnectionFailed
from provision.report.image_report import states_document
from provision.workflow.images import ImageState

CONFIG, INDEX, OTHER = (f"sha256:{letter * 64}" for letter in "abc")
OWN_STORE = ImageState(CONFIG, f"r/t@{INDEX}", 1)
CONTAINERD = ImageState(INDEX, f"r/t@{INDEX}", 1)


@pytest.mark.parametrize(
    ("states", "same"),
    [
        ((OWN_STORE, CONTAINERD), True),
        ((OWN_STORE, ImageState(OTHER, f"r/t@{OTHER}", 1)), False),
        ((CONTAINERD, ImageState(OTHER, f"r/t@{OTHER}", 1)), False),
        ((OWN_STORE, ImageState(CONFIG, f"mirror/t@{OTHER}", 1)), True),  # pushed twice, compressed differently
        ((ImageState(CONFIG), ImageState(CONFIG)), True),
        ((ImageState(CONFIG), ImageState(OTHER)), False),
        ((OWN_STORE, ImageState()), False),
        ((ImageState(), ImageState()), False),
    ],
)
def test_an_image_is_the_same_in_both_stores(states: tuple[ImageState, ...], same: bool) -> None:  # noqa: FBT001
    """Its ID is another one in the image store of containerd, its digest in the registry is not."""
    named = {f"gpu{number}": state for number, state in enumerate(states)}

    assert states_document("t:1", named)["same"] is same
    assert states_document("t:1", {**named, "gpu9": ConnectionFailed("no", node="gpu9")})["same"] is False
