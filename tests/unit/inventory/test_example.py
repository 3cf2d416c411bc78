import re
from pathlib import Path

import yaml

from provision.inventory import load
from provision.inventory.example import render
from provision.inventory.specs import read_specs
from provision.resources import roles_folder

FOLDER = Path(__file__).parents[3] / "inventories" / "example"


def test_the_example_documents_exactly_all_variables():
    """group_vars/all.yml of the example is what the roles' argument_specs say (refresh: see example.py)."""
    specs = read_specs(roles_folder())
    text = (FOLDER / "group_vars" / "all.yml").read_text()
    documented = set(re.findall(r"^# (\w+):", text, re.MULTILINE)) | set(yaml.safe_load(text))

    assert {name for name in documented if name.startswith(specs.prefixes)} == set(specs.options)
    assert text == render(specs), "run: python -m provision.inventory.example > inventories/example/group_vars/all.yml"


def test_the_example_loads_with_all_lines_uncommented(tmp_path):
    """Taking the '# ' off every documented default gives an inventory that is accepted without a warning."""
    group_vars = tmp_path / "example" / "group_vars"
    group_vars.mkdir(parents=True)
    (tmp_path / "example" / "hosts.yml").write_text((FOLDER / "hosts.yml").read_text())
    text = (FOLDER / "group_vars" / "all.yml").read_text()
    used = re.sub(r"^# (?=\w+:|  |- )", "", text, flags=re.MULTILINE)
    values = yaml.safe_load(used)
    (group_vars / "all.yml").write_text(yaml.safe_dump(values))

    cluster = load(tmp_path / "example")

    assert set(read_specs(roles_folder()).options) <= set(values)
    assert [node.name for node in cluster.nodes] == ["gpu1", "gpu2", "gpu3", "cpu1"]
    assert cluster.warnings == ()
