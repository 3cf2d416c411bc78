"""What the roles' variables and preconditions come to, for inventories and nodes of all kinds."""

from __future__ import annotations

from tests.support.expressions import Role


def test_runtimes_of_the_site_stay_beside_nvidias() -> None:
    """A GPU node gets the NVIDIA runtime in addition to those that the inventory names."""
    kata = {"kata": {"runtimeType": "io.containerd.kata.v2"}}
    role = Role("nvidia_container", cluster_container_runtimes=kata)
    fact = role.task("configure", "Offer the runtime to docker_engine")["ansible.builtin.set_fact"]

    runtimes = role.templar.template(fact["cluster_container_runtimes"])

    assert runtimes == {**kata, "nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}
