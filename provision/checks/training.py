"""The training image and the container made from it."""

from __future__ import annotations

from provision.checks.base import check
from provision.checks.base_system import amount, limit_problems
from provision.checks.wording import few
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import Unknown
from provision.facts.container import Container

__all__ = ["compute_uverbs"]


@check("training_image.present", after="docker_engine.service")
def _present(scene: Scene) -> Verdict:
    reference = scene.want("training_image_reference", default="")
    if not reference:
        undecided = scene.undecided("training_image_reference")
        return skip("training_image_reference holds Jinja" if undecided else "the inventory names no training image")
    image = known(scene.facts.image)
    if image is None:
        return fail(f"the image {reference} is not on the node", scene.apply)
    return passed(f"{reference} is image {image.id.removeprefix('sha256:')[:12]}")


@check("training_image.digest", after="training_image.present")
def _digest(scene: Scene) -> Verdict:
    image = known(scene.facts.image) if scene.want("training_image_reference", default="") else None
    if image is None:
        return skip("there is no image to compare")
    wanted = scene.want("training_image_digest", default="")
    digests = [digest.partition("@")[2] for digest in image.digests]
    if not wanted:
        return skip(f"the inventory pins no digest (found {', '.join(digests) or 'none: it was loaded from a file'})")
    if wanted not in digests and wanted != image.id:
        return fail(f"the image's digest is {', '.join(digests) or 'none'}, not {wanted}", scene.apply)
    return passed(wanted)


@check("training_container.running", after="docker_engine.service")
def _running(scene: Scene) -> Verdict:
    name = scene.want("training_container_name", default="provision-training")
    container = known(scene.facts.container)
    if container is None:
        return fail(f"there is no container {name}", scene.apply)
    if not container.running:
        return fail(
            f"the container {name} is {container.status} (its program ended with code {container.exit_code})",
            f"See why: docker logs --tail 50 {name}. Then: {scene.apply}",
        )
    return passed(f"{name} runs ({'privileged' if container.privileged else 'not privileged'})")


@check("training_container.image", after="training_container.running")
def _image(scene: Scene) -> Verdict:
    container = _container(scene)
    image = known(scene.facts.image)
    if image is None:
        return skip("there is no image to compare with")
    if container.image_id != image.id:
        return fail("the container was made from another image than the one that is wanted now", scene.apply)
    return passed(f"made from {container.image_id.removeprefix('sha256:')[:12]}, the image that is wanted")


@check("training_container.mounts", after="training_container.running")
def _mounts(scene: Scene) -> Verdict:
    container = _container(scene)
    if container.deleted:
        gone = few([f"{mount.source} (mounted in it as {mount.target})" for mount in container.deleted])
        return fail(
            f"the running container still holds what was deleted on the node: {gone}",
            f"Only a new container gets what is there now. {scene.apply}",
        )
    return passed("nothing that it has mounted was deleted on the node")


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
        return fail(f"devices are missing in the container: {', '.join(missing)}", scene.apply)
    if not wanted:
        return skip(
            "the node has no device to give" + (" (its GPUs are stand-ins)" if simulated else ""), simulated=simulated
        )
    return passed(f"it has {', '.join(wanted)}", simulated=simulated)


@check("training_container.limits", after="training_container.running")
def _limits(scene: Scene) -> Verdict:
    container = _container(scene)
    ulimits: dict[str, object] = scene.want("training_container_ulimits", default={"memlock": -1})
    if scene.want("training_container_profile", default="default") == "privileged":
        ulimits = {"memlock": -1}  # that profile sets no more than the reference does
    wanted = {_KERNEL_NAMES[key]: _limit(value) for key, value in ulimits.items() if key in _KERNEL_NAMES}
    own = known(scene.facts.limits).init if scene.container else None
    problems, cut = limit_problems(wanted, container.limits, own)
    if problems:
        return fail(f"limits inside the container are too low: {'; '.join(problems)}", scene.apply)
    if cut:
        return warn(
            f"limits inside the container are cut to the node's own: {'; '.join(cut)}",
            "Give the container that is the node higher limits; RDMA needs unlimited locked memory.",
        )
    return passed("; ".join(f"{name.removeprefix('Max ')} {amount(container.limits.get(name))}" for name in wanted))


_KERNEL_NAMES = {"memlock": "Max locked memory", "nofile": "Max open files", "stack": "Max stack size"}


def _limit(value: object) -> int | None:
    """Docker's -1 is unlimited; a string such as ``soft:hard`` counts by its hard half."""
    text = str(value).rpartition(":")[2]
    return int(text) if text.isdecimal() else None


def _container(scene: Scene) -> Container:
    container = known(scene.facts.container)
    if container is None:  # the check before this one has failed then
        raise AssertionError("judged after training_container.running")
    return container
