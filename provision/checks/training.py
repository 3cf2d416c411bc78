"""The training image and the container made from it."""

from __future__ import annotations

from provision.checks.base import check
from provision.checks.base_system import limit_amounts, limit_problems
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import Unknown
from provision.facts.container import Container
from provision.model.reason import reason


@check("training_image.present", after="docker_engine.service")
def _present(scene: Scene) -> Verdict:
    reference = scene.want("training_image_reference", default="")
    if not reference:
        undecided = scene.undecided("training_image_reference")
        return skip("training_image.present.template" if undecided else "training_image.present.none")
    image = known(scene.facts.image)
    if image is None:
        return fail("training_image.present.missing", image=reference)
    return passed("training_image.present.ok", image=reference, id=image.id.removeprefix("sha256:")[:12])


@check("training_image.digest", after="training_image.present")
def _digest(scene: Scene) -> Verdict:
    image = known(scene.facts.image) if scene.want("training_image_reference", default="") else None
    if image is None:
        return skip("training_image.no_image")
    wanted = scene.want("training_image_digest", default="")
    digests = [digest.partition("@")[2] for digest in image.digests]
    if not wanted:
        return skip("training_image.digest.not_pinned", digests=digests or ("none: it was loaded from a file",))
    if wanted not in {*digests, image.id, image.config_digest}:
        return fail("training_image.digest.differs", digests=digests or ("none",), desired=wanted)
    return passed("training_image.digest.ok", digest=wanted)


@check("training_container.running", after="docker_engine.service")
def _running(scene: Scene) -> Verdict:
    name = scene.want("training_container_name", default="provision-training")
    container = known(scene.facts.container)
    if container is None:
        return fail("training_container.running.missing", container=name)
    if not container.running:
        return fail(
            "training_container.running.stopped", container=name, state=container.status, exit_code=container.exit_code
        )
    return passed(
        "training_container.running.privileged" if container.privileged else "training_container.running.ok",
        container=name,
    )


@check("training_container.image", after="training_container.running")
def _image(scene: Scene) -> Verdict:
    container = _container(scene)
    image = known(scene.facts.image)
    if image is None:
        return skip("training_image.no_image")
    if container.image_id != image.id:
        return fail("training_container.image.differs")
    return passed("training_container.image.ok", id=container.image_id.removeprefix("sha256:")[:12])


@check("training_container.mounts", after="training_container.running")
def _mounts(scene: Scene) -> Verdict:
    container = _container(scene)
    if container.deleted:
        mounts = [
            reason("training_container.mounts.mount", source=mount.source, target=mount.target)
            for mount in container.deleted
        ]
        return fail("training_container.mounts.deleted", mounts=mounts)
    return passed("training_container.mounts.ok")


def compute_uverbs(scene: Scene) -> list[str]:
    """Device nodes of the active RDMA devices that the container should have."""
    rdma = known(scene.facts.rdma)
    excluded: list[object] = scene.want("training_container_rdma_excluded", default=[])
    return [
        d.uverbs for d in rdma.devices if d.active and d.uverbs and d.uverbs in rdma.nodes and d.name not in excluded
    ]


@check("training_container.devices", after="training_container.running")
def _devices(scene: Scene) -> Verdict:
    container = _container(scene)
    wanted = [f"infiniband/{name}" for name in compute_uverbs(scene)]
    gpus = () if isinstance(scene.facts.gpus, Unknown) else scene.facts.gpus
    simulated = scene.simulated("nvidia-smi") and bool(gpus)
    if not simulated:
        wanted += [f"nvidia{gpu.index}" for gpu in gpus]
    missing = [name for name in wanted if name not in container.devices]
    if missing:
        return fail("training_container.devices.missing", devices=missing)
    if not wanted:
        code = "training_container.devices.simulated" if simulated else "training_container.devices.none"
        return skip(code, simulated=simulated)
    return passed("training_container.devices.ok", devices=wanted, simulated=simulated)


@check("training_container.limits", after="training_container.running")
def _limits(scene: Scene) -> Verdict:
    container = _container(scene)
    ulimits: dict[str, object] = scene.want("training_container_ulimits", default={"memlock": -1})
    if scene.want("training_container_profile", default="default") == "privileged":
        ulimits = {"memlock": -1}  # this profile sets only the limit of the reference
    wanted = {_KERNEL_NAMES[key]: _limit(value) for key, value in ulimits.items() if key in _KERNEL_NAMES}
    own = known(scene.facts.limits).init if scene.container else None
    problems, cut = limit_problems(wanted, container.limits, own)
    if problems:
        return fail("training_container.limits.too_low", limits=problems)
    if cut:
        return warn("training_container.limits.cut", limits=cut)
    return passed("training_container.limits.ok", limits=limit_amounts(wanted, container.limits))


_KERNEL_NAMES = {"memlock": "Max locked memory", "nofile": "Max open files", "stack": "Max stack size"}


def _limit(value: object) -> int | None:
    """Return a hard limit: Docker's -1 is unlimited; of ``soft:hard`` the second number counts."""
    text = str(value).rpartition(":")[2]
    return int(text) if text.isdecimal() else None


def _container(scene: Scene) -> Container:
    container = known(scene.facts.container)
    if container is None:  # training_container.running has failed in this case
        raise AssertionError("judged after training_container.running")
    return container
