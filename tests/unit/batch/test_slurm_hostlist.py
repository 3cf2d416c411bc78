"""Lists of host names as Slurm compresses them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.batch.slurm.hostlist import expand
from provision.errors import InvalidDocument


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("(null)", []),
        ("gpu1", ["gpu1"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[01-03,7],login", ["gpu01", "gpu02", "gpu03", "gpu7", "login"]),
        ("rack[1-2]-node[1,3].site", ["rack1-node1.site", "rack1-node3.site", "rack2-node1.site", "rack2-node3.site"]),
        ("gpu[9-11]", ["gpu9", "gpu10", "gpu11"]),
    ],
)
def test_a_list_is_expanded_in_its_order(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "gpu[1-", "gpu[1-3", "gpu1]", "gpu[[1]]", "gpu[3-1]", "gpu[a-b]", "gpu[]", "a,,b", "a b", "a;b", "-x", "$(id)",
        "gpu[1-999999999]", "a[1-1000]b[1-1000]", "../x", "a/b", "gpu[1-2,]", "a\nb",
    ],
)  # fmt: skip
def test_any_other_text_is_refused(text: str) -> None:
    """The names reach commands and tables."""
    with pytest.raises(InvalidDocument):
        expand(text)


def test_a_list_has_a_limit() -> None:
    assert len(expand("n[1-10]", 10)) == 10
    with pytest.raises(InvalidDocument):
        expand("n[1-11]", 10)
    with pytest.raises(InvalidDocument):
        expand("n[1-6],m[1-5]", 10)


@given(st.text(alphabet="ab01[]-,. ", max_size=40))
def test_a_name_never_begins_with_an_option_or_contains_a_space(text: str) -> None:
    try:
        names = expand(text, 1000)
    except InvalidDocument:
        return
    assert all(name[0].isalnum() and " " not in name and "[" not in name for name in names)
