# Installs and uses the release in /release as an unprivileged user without network; `release_smoke.py` starts it.
set -eux
mkdir -p "$HOME/site"
cd "$HOME/site"
python3 -m venv "$HOME/venv"
"$HOME/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --find-links /release/wheels \
  /release/gpu_provision-*.whl
PATH="$HOME/venv/bin:$PATH"
provision --version | grep -F "provision $VERSION"
provision doctor
provision init gpu1=192.0.2.1 gpu2=192.0.2.2 --user root --known-hosts /release/keys --image registry.example.com/train:1
# No node can be reached: the plan says so, and finds the inventory by itself.
provision plan --json > plan.json || [ $? = 1 ]
grep -F '"reachable": false' plan.json
provision gdr --assume driver=570.133.20,kernel=6.8.0,stack=inbox,gpu=H100
ansible-galaxy collection install --offline /release/provision-cluster-*.tar.gz
ansible-playbook -i inventories/cluster provision.cluster.site --list-tasks | grep -F "docker_engine : "
