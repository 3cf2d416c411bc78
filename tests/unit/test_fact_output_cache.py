"""What nodes print alike is kept from look to look, for the operator alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.workflow import fact_output_cache

NAMES = ("gpu1", "gpu2")
LONG = "package=1\n" * 300


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an operator's outputs are kept who has none yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "provision" / "outputs"


def keep_one() -> None:
    outputs = fact_output_cache.load(NAMES)
    outputs.saw([LONG])
    outputs.saw([LONG])
    fact_output_cache.save(NAMES, outputs)


def test_the_next_probe_reads_the_cached_outputs(cache: Path):
    """For the same nodes; others' are others."""
    keep_one()
    (digest,) = fact_output_cache.load(NAMES).digests()
    assert fact_output_cache.load(NAMES).known(digest) == LONG
    assert not fact_output_cache.load(("gpu1", "gpu3")).digests()
    (file,) = cache.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_probe_without_new_outputs_writes_nothing(cache: Path):
    """A plan every minute does not write every minute."""
    fact_output_cache.save(NAMES, fact_output_cache.load(NAMES))
    assert not cache.exists()


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"a": 1}', b"0" * 64 + b"\n{}"])
def test_a_damaged_cache_file_is_ignored(cache: Path, content: bytes):
    """Nothing of it is believed, and nothing fails."""
    keep_one()
    (file,) = cache.iterdir()
    file.write_bytes(content)
    assert not fact_output_cache.load(NAMES).digests()


def test_a_cache_file_of_another_user_is_ignored(cache: Path):
    """What somebody else could have written is not believed."""
    keep_one()
    (file,) = cache.iterdir()
    file.chmod(0o644)
    assert not fact_output_cache.load(NAMES).digests()
