from pathlib import Path

import pytest

PLATFORM = """
argument_specs:
  main:
    options:
      cluster_name: {type: str, default: ""}
      cluster_slots: {type: int, default: 0}
      cluster_head: {type: str, default: ""}
      cluster_data_networks: {type: list, elements: str, default: []}
      cluster_data_address: {type: str, default: ""}
"""
DOCKER = """
argument_specs:
  main:
    options:
      docker_engine_enabled: {type: bool, default: true}
      docker_engine_source: {type: str, default: distribution, choices: [distribution, docker]}
      docker_engine_registry_mirrors: {type: list, elements: str, default: []}
      docker_engine_address_pools:
        type: list
        elements: dict
        default: []
        options: {base: {type: str, required: true}, size: {type: int}}
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds what another one, or the person at this machine, left behind."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own-cache"))


@pytest.fixture
def roles(tmp_path: Path) -> Path:
    """A roles folder with two small argument_specs."""
    for name, text in (("platform", PLATFORM), ("docker_engine", DOCKER)):
        folder = tmp_path / "roles" / name / "meta"
        folder.mkdir(parents=True)
        (folder / "argument_specs.yml").write_text(text)
    return tmp_path / "roles"


@pytest.fixture
def write(tmp_path: Path):
    """Write files of an inventory folder and return the folder."""

    def _write(**files: str) -> Path:
        folder = tmp_path / "inventory"
        for name, text in files.items():
            path = folder / name.replace("__", "/").replace("_yml", ".yml").replace("_ini", ".ini")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return _write
