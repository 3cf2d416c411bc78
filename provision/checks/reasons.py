"""The descriptions of the checks, and the wording of their reasons: code -> message and remedy.

`provision/report/reasons.py` describes the templates. A code without a remedy that is not a result of its own is a part
of other messages.
"""

from __future__ import annotations

from collections.abc import Mapping

from provision.checks.controller_reasons import CONTROLLER_DESCRIPTIONS, CONTROLLER_REASONS
from provision.checks.nccl_reasons import NCCL_REASONS
from provision.model.reason import Wording

_APPLY = "Run: provision apply --limit {node}"
_REPLACE = "Replace the GPU: it has no spare memory left."
_RESET = "End its jobs, then reset the GPU (nvidia-smi --gpu-reset -i {gpus:,}) or reboot the node."
_NVLINK = "Check dmesg for NVLink errors (Xid 74, 144-150) and the fabric manager, then reset all GPUs."
_FABRIC = (
    "Check the fabric manager: journalctl -u nvidia-fabricmanager -n 50 (on B200 and later also nvlsm and ib_umad)."
)
_LANES = "Reseat the GPU or its riser, and check dmesg for PCIe errors (AER)."
_CARD = "Reseat the card or its riser, and check dmesg for PCIe errors (AER) and the slot's settings in the BIOS."
_CABLE = "Reseat or replace the cable and its modules, and check the switch port at the other end."
_DRIVER = "Read dmesg for NVRM and Xid lines; a GPU that fell off the bus needs a reboot of the node."
_LIMITS = "Give the container that is the node higher limits; RDMA needs unlimited locked memory."
_SPACE = "Free space: `docker system df` shows what is used."
_TOPOLOGY = (
    "Compare nvidia-smi topo -m with nvidia-smi nvlink --status, check dmesg for NVLink and PCIe errors and the fabric "
    "manager, then reset all GPUs.[ Until then give jobs no GPU {gpus}.]"
)
_CLOCK = (
    "Compare both clocks with `date -u`, and check the time service of the wrong one: `timedatectl`, `chronyc "
    "tracking`. Such a large difference is often corrected only when that service starts: restart it. Until then "
    "certificates may count as expired or not yet valid, and times in logs and `provision history` are wrong."
)
_APPLY_BOOT = "Run: provision apply --limit {node} --only peer_memory"
_RELOAD_BOOT = (
    "Run: provision reload --limit {node} (why it did not run: journalctl -b -u provision-peer-memory.service)"
)
_LOADING = (
    "Check the kernel's messages (dmesg); a modprobe in state D ends only with a reboot. "
    "Afterwards: provision reload --limit {node}"
)
_NOT_CHECKED = (
    "the check of {provider} did not run at this boot (kernel {kernel}): the last one is of an earlier boot with "
    "kernel {last_kernel}, {since}[; {unit}][; the node has been up for {uptime} s, so it may run soon]"
)
_CUDA = (
    "Put a perftest built with CUDA into the training image (./configure CUDA_H_PATH=/usr/local/cuda/include/cuda.h), "
    "one that supports --use_cuda and, for DMA-BUF, --use_cuda_dmabuf; then measure again."
)
_NO_CUDA = "the path from card to GPU was not measured: the perftest of the training image has no CUDA on {nodes:names}"
_LINK = (
    "Compare its link with that of a good node: rdma link; ethtool -S (or perfquery) for errors and discards; "
    "MTU; cable and switch port; PCIe width and ACS (lspci -vv)."
)
_AGAIN = "Run it again when these nodes are idle and healthy."
_SLOW = (
    "Find the slow node or link: rdma_stack.bandwidth of the nodes, gpu.topology, gpu.pcie_width and peer_memory.path. "
    "Check what NCCL uses: provision run --env NCCL_DEBUG=INFO -- all_reduce_perf -b 1G -e 1G | provision nccl-log - "
    "If the prediction is too high for these machines, set cluster_collective_fraction."
)

_ONE_NODE_FIRST = (
    "Read docs/reference/untested-systems.md, apply to one node first (provision apply --limit NODE), then verify it."
)
_BLOCKED = (
    "{program} blocks TCP ports of jobs (MPI, NCCL)[ and of SSH between containers ({port})] from "
    "{nodes:few}[ (zone {zone})]"
)

DESCRIPTIONS: Mapping[str, tuple[str, str]] = {
    **CONTROLLER_DESCRIPTIONS,
    "node.reachable": ("SSH, login and root work", "fail, and the node has no other result"),
    "node.os": (
        "the system is one that the role `platform` knows",
        "fail; warn for one that is untested or supported with best effort",
    ),
    "node.stack_lock": ("the components of the stack have the versions of stack.lock.yml, if there is one", "fail"),
    "node.clock": ("the node's clock agrees with the controller's within five minutes", "warn"),
    "node.disks": ("the file systems that count can be written, and have room and inodes", "fail"),
    "node.data": (
        (
            "all data volumes of the inventory (`cluster_data`) are mounted from their source, alive, readable "
            "and, unless read-only, writable; judged where there are any"
        ),
        "fail",
    ),
    "node.kind": ("always; the reason says physical machine, virtual machine or container", ""),
    "node.selinux": (
        "no container was denied an access in the last day, and the roles' files have the labels of the policy",
        "warn",
    ),
    "base_system.limits": (
        "hard limits of a login for locked memory and open files have the desired values",
        "fail; warn on a container node that has what its own limits allow",
    ),
    "base_system.hosts": ("all node names resolve to the nodes' data addresses", "fail"),
    "base_system.time_sync": ("the clock is synchronized", "warn; skip on a container node"),
    "base_system.sysctls": (
        "every sysctl of `base_system_sysctls` has its value",
        "fail; warn for one that the kernel lacks; skip on a container node",
    ),
    "base_system.kernel": (
        "the running kernel is that of the last apply",
        "warn, and the role runs again; skip on a container node",
    ),
    "base_system.firewall": (
        "firewalld or ufw admits the TCP ports of jobs, and of SSH between containers, from all other nodes",
        "fail; skip for a single node",
    ),
    "rdma_stack.packages": (
        "rdma-core or an OFED is installed (a requested one in its release), and all packages of the last apply are",
        "fail",
    ),
    "rdma_stack.modules": (
        "DKMS has built a requested vendor's stack for the running kernel, its modules are loaded, and openibd runs",
        (
            "fail, with the compiler's line; warn if they are built for other kernels; skip without a request "
            "(`rdma_stack_source`), and on a container node"
        ),
    ),
    "rdma_stack.firmware": (
        "the firmware of each RDMA card, which nothing here updates",
        "pass; skip without cards",
    ),
    "rdma_stack.devices": (
        "every RDMA device of a card is active",
        "warn when some are down, fail when all are or cards have no device; skip without cards",
    ),
    "rdma_stack.soft_roce": (
        "the module is loaded and the device on the wanted interface is active",
        "fail; skip when not asked for, and on a container node",
    ),
    "rdma_stack.gids": (
        "every active RoCE port has a RoCE v2 GID of an IPv4 address",
        "warn when some lack it, fail when all do; skip without RoCE",
    ),
    "rdma_stack.port_rate": (
        "every active port is as fast as the fastest of the same kind of card on the node",
        "warn; fail for an InfiniBand link of one lane",
    ),
    "rdma_stack.port_errors": (
        "error counters grew no faster since boot than a good link's may",
        (
            "fail for symbol errors beyond the InfiniBand specification's bit error rate, warn for the others; "
            "skip without cards"
        ),
    ),
    "rdma_stack.pcie_width": (
        "network cards have all PCIe lanes, and the speed, that card and slot both can",
        "fail for lanes, warn for speed; skip on a virtual machine or container",
    ),
    "rdma_stack.bandwidth": (
        (
            "level `full`: what the node sends and receives over its data ports is near the line rate; of the "
            "cluster: level `full`: `ib_write_bw` between the containers of all idle nodes reaches the fraction "
            "of the line rate that is set in `bandwidth.py` (Soft-RoCE: it works)"
        ),
        (
            "fail when its ports are down or without GID, when no pair with it worked, or when a port is slow "
            "with every partner; warn when it is one end of a single bad pair, and when its real GPUs could not "
            "be measured because perftest has no CUDA; skip at level `quick`, without RDMA devices, and on a "
            "busy node; of the cluster: fail, with the node, the port or the pair that explains it, and when "
            "nothing was measured, as without two idle nodes with RDMA devices (skip where `--collective` "
            "measured); warn when nodes were left out, or measured in host memory although there is a way to "
            "real GPUs; skip at level `quick`"
        ),
    ),
    "docker_engine.service": ("the unit is active, starts at boot, and the engine answers", "fail"),
    "docker_engine.version": ("the engine reports its version", "fail"),
    "docker_engine.cgroup": ("the node has cgroup v2", "warn; skip on a container node"),
    "docker_engine.selinux": (
        "where SELinux is enabled: container-selinux is installed, and Docker's data and mounts have its labels",
        "fail; warn for mounts, and where SELinux is permissive",
    ),
    "docker_engine.daemon_json": ("the file is valid and holds all that the inventory wants; it may hold more", "fail"),
    "docker_engine.registry_ca": (
        "every CA of `docker_engine_registry_ca` is in place",
        "fail; skip when there is none",
    ),
    "docker_engine.storage": (
        "a current storage driver, and room on its disk",
        "warn below 2 GiB or for a legacy driver, fail below 256 MiB",
    ),
    "gpu.driver": ("nvidia-smi answers", "fail when it hangs or fails, or GPUs have no driver; skip without GPUs"),
    "gpu.count": (
        "nvidia-smi shows as many GPUs as the PCI bus; those handed to virtual machines do not count",
        "fail, with the missing addresses; skip without GPUs",
    ),
    "gpu.state": ("the driver gives values for every GPU and asks for no reset or reboot", "fail; skip without GPUs"),
    "gpu.ecc": (
        "no uncorrected memory error since the last reset; earlier ones are reported, not judged",
        "fail, also for worn on-chip memory; warn when ECC is off; skip for products without",
    ),
    "gpu.row_remap": (
        "no bad memory row (or page) waits for a reset to be replaced, and none failed to be",
        "fail; skip when no GPU reports it",
    ),
    "gpu.nvlink": (
        (
            "every NVLink that should be up is up: on baseboards as many as on the other GPUs, on cards those "
            "of a bridge"
        ),
        (
            "fail; warn on a virtual machine, and when all GPUs lack the same; GPUs with MIG on are not judged; "
            "skip without links"
        ),
    ),
    "gpu.topology": (
        (
            "the matrix of links (`nvidia-smi topo -m`) is sound: no GPU without NVLink, or with fewer lanes, "
            "amid peers that have them, and both directions alike"
        ),
        (
            "fail; warn on a virtual machine, where a bridge could explain it, when PCIe paths contradict each "
            "other, and when the matrix cannot be read; GPUs with MIG on are not judged; waits for "
            "`gpu.nvlink`; skip in a plan, which does not probe it"
        ),
    ),
    "gpu.fabric": (
        ("GPUs have joined their NVLink fabric; with NVLink switches the fabric manager runs, in the driver's version"),
        "fail; warn while they are joining; skip for products without",
    ),
    "gpu.pcie_width": (
        ("PCIe links have all lanes that GPU and slot both can; a lower generation is how idle GPUs save power"),
        (
            "fail; warn on a virtual machine, or when all are alike and the slot is not known; skip when it is "
            "not reported"
        ),
    ),
    "gpu.throttle": (
        "the hardware does not hold the clocks down; idleness, power caps and settings may",
        "fail for heat and power, warn when the driver slows down for heat; skip when no GPU reports it",
    ),
    "gpu.xid": (
        (
            "the kernel's log has no Xid that is the GPU's fault, and no fatal SXid, since boot; those of "
            "programs are reported"
        ),
        (
            "fail; warn for signs of wear, and for what the driver reports as recovered since; skip without "
            "GPUs and on a container node"
        ),
    ),
    "nvidia_driver.modules": (
        "the NVIDIA driver fits the GPUs (kernel modules and branch), and the installed version is loaded",
        (
            "fail where the inventory requests a driver (`nvidia_driver_source`), else warn; warn for a requested "
            "driver on a node without an NVIDIA device; skip without GPUs, and on a container node"
        ),
    ),
    "nvidia_driver.build": (
        "DKMS has built the driver's modules for the running kernel",
        "fail or warn as above, with the compiler's line; skip for drivers without DKMS, and as above",
    ),
    "nvidia_driver.signature": (
        "a kernel that requires signed modules (Secure Boot) gets a signed driver",
        "fail or warn as above; skip as above",
    ),
    "nvidia_driver.nouveau": (
        "nouveau does not take the GPUs from the driver: it is not loaded, and modprobe.d blocks it",
        "fail or warn as above; skip as above",
    ),
    "nvidia_driver.persistence": (
        "the persistence daemon of the driver runs, and starts at boot",
        "fail where the inventory requests it; else skip",
    ),
    "nvidia_driver.firmware": (
        "reports the GSP firmware of the GPUs, and whether confidential computing is on; no role changes them",
        "skip where the driver reports neither",
    ),
    "nvidia_driver.imex": (
        "IMEX runs in the version of the driver on nodes of an NVLink domain (`cluster_nvlink_domain`) only",
        "fail where the inventory requests a driver, else warn; skip on other nodes",
    ),
    "nvidia_driver.mig": (
        "all GPUs have the MIG mode that the inventory requests (`nvidia_driver_mig_mode`)",
        "fail where another mode is set, a GPU waits for a reset, or has no MIG; skip without a request",
    ),
    "nvidia_driver.persistence_mode": (
        "all GPUs have the persistence mode that the inventory requests (`nvidia_driver_persistence_mode`)",
        "fail; skip without a request",
    ),
    "peer_memory.path": (
        "the best way for GPU memory to the network cards is the one in use",
        (
            "fail when its module is not at work, has to be built anew or signed, or runs without the option "
            "that it needs; warn when there is no way, with the nearest one; skip without GPUs or RDMA cards, "
            "and on a container node"
        ),
    ),
    "peer_memory.modules": (
        (
            "nv_peer_mem and nvidia_peermem are not loaded both, and the one that is loaded is built from the "
            "sources that the next boot will load"
        ),
        "fail for both; warn for other sources; skip as above",
    ),
    "peer_memory.binding": (
        "a peer-memory module that is loaded uses the RDMA stack: it is no stub",
        "fail; warn where DMA-BUF needs none; skip as above",
    ),
    "peer_memory.boot": (
        "the way for GPU memory that is recorded for the node came up at this boot, and is still there",
        (
            "fail, with cause and remedy from the node's status file; also when the check did not run at this "
            "boot, hangs, or left no readable word; skip where nothing is recorded, and on a container node. "
            "While it fails, `hostfile` leaves the node out and `run` refuses it (`--allow-degraded` takes it)"
        ),
    ),
    "peer_memory.kernels": (
        (
            "every installed kernel comes up with the modules that the role or the running kernel has, as far "
            "as is seen, and in the word of the node's own program, which is asked again where modules changed "
            "after its record"
        ),
        (
            "warn, with every such kernel and what it lacks, and when it gives no answer; skip as above, and "
            "without NVIDIA modules"
        ),
    ),
    "peer_memory.routing": (
        ("no PCIe bridge (ACS) and no IOMMU stands between GPUs and cards, and a card is near enough to a GPU"),
        "warn; skip as above, and on a virtual machine",
    ),
    "nvidia_container.toolkit": (
        "the packages are installed, of one version, and the hook is on the PATH",
        "fail; skip without GPUs",
    ),
    "nvidia_container.runtime": (
        "docker knows the runtime `nvidia`, or CDI describes the GPUs",
        "fail; skip without GPUs",
    ),
    "training_image.present": ("the engine has the image", "fail; skip when the inventory names none"),
    "training_image.digest": ("the image has the pinned digest", "fail; skip when none is pinned"),
    "training_container.running": ("the container runs", "fail"),
    "training_container.image": ("it was created from the configured image", "fail"),
    "training_container.mounts": (
        ("no folder that the running container has mounted was deleted on the node, nor the file of the nodes' names"),
        "fail",
    ),
    "training_container.devices": ("it has the active RDMA devices and the GPUs", "fail; skip when there are none"),
    "training_container.limits": (
        "the limits inside have the desired values",
        "fail; warn on a container node that gives what it can",
    ),
    "container_ssh.sshd": ("sshd runs in the container and listens on the data address", "fail"),
    "container_ssh.host_key": (
        "the container has a host key, and private keys are readable by their owner only",
        "fail",
    ),
    "container_ssh.known_hosts": ("the key in use of every node is pinned", "fail, with the nodes named"),
    "fabric_host.mtu": ("the data interfaces have the MTU of the inventory", "fail"),
    "fabric_host.arp": ("the data interfaces answer ARP for their own addresses only, where set", "fail"),
    "fabric_host.interface_names": (
        "the interfaces have the names of the inventory; before the next boot, or without a card, it is a warning",
        "fail",
    ),
    "fabric_host.hugepages": (
        "the hugepages of the inventory are reserved; a part of them, or an unsupported size, is a warning",
        "fail",
    ),
    "fabric_host.governor": ("all CPUs have the frequency governor of the inventory", "fail"),
    "fabric_host.kernel_arguments": (
        "boot menu and running kernel have the arguments of the inventory; without a reboot since, it is a warning",
        "fail",
    ),
    "fabric_host.pcie_read_request": (
        "the cards of the data interfaces have the maximum PCIe read request of the inventory",
        "fail",
    ),
    "fabric_host.pcie_acs": ("where disabled, no bridge above cards and GPUs redirects their traffic (ACS)", "fail"),
    "fabric_host.roce": (
        "the RDMA devices on the data interfaces have the default RoCE mode and type of service of the inventory",
        "fail",
    ),
    "package_cache.reachable": (
        "the package cache of the cluster answers the node, and serves all its repositories with http://",
        "fail; warn if packages bypass it; skip without cluster_package_cache",
    ),
    "fabric_host.roce_qos": (
        "the data interfaces have trust, PFC and ECN of the inventory; if they are unknown, it is a warning",
        "fail",
    ),
    "fabric_host.irq_affinity": (
        "interrupts of data cards run on CPUs of the card's NUMA node, where set",
        "fail",
    ),
    "platform.rescue": (
        "the node has not reverted the last change of network or firewall, which the controller did not confirm",
        "warn",
    ),
    "slurm.controller": ("slurmctld answers the node", "fail"),
    "slurm.version": ("the node has the controller's release of Slurm", "fail"),
    "slurm.layout": (
        "slurmd reports a valid layout of the node, and no other node has its host name",
        "fail; skip without slurmd",
    ),
    "kernel.release": ("the node runs the kernel of the inventory (kernel_release)", "fail"),
    "kernel.drain": ("no interrupted kernel upgrade left the node drained", "fail"),
    "slurm.munge": ("the node has the controller's munge key", "fail"),
    "slurm.configuration": (
        "the controller's configuration fits CPUs, memory, GPUs, addresses and labels of all nodes",
        "fail",
    ),
    "slurm.node": ("the node is registered in Slurm and accepts jobs", "fail; warn if an operator drained it"),
    "slurm.gres": ("Slurm counts the GPUs that the node has", "fail"),
    "slurm.devices": ("a job can use only the GPUs that Slurm gave it (ConstrainDevices)", "fail"),
    "slurm.accounting": (
        "slurmdbd answers, and its database has the cluster",
        "fail; skip without `slurm_accounting: slurmdbd`",
    ),
    "container_ssh.trusted_nodes": (
        (
            "authorized_keys and known_hosts hold the nodes of the inventory, with the client keys in use, and "
            "nothing else"
        ),
        "fail, with what is too much or missing named",
    ),
    "profile.driver": ("NVIDIA's driver is of the guide's version or newer", "fail"),
    "profile.docker": ("the same of docker", "fail"),
    "profile.nccl": (
        "the same of NCCL in the training container",
        "fail; warn where none is seen, as torch may have it built in",
    ),
    "profile.system": ("the system is one of the guide's, or one that the role `platform` knows", "fail"),
    "profile.card": ("the GPUs are V100 or newer", "fail; warn where the driver does not report it"),
    "profile.disk": ("the disk for images and containers has the guide's size", "fail"),
    "profile.rdma": ("an RDMA device is active", "fail"),
    "profile.container_toolkit": ("NVIDIA's container toolkit, or nvidia-docker2, is installed", "fail"),
    "profile.containerd": ("containerd is installed and runs", "fail"),
    "profile.cri_plugin": ("the CRI plugin of containerd is enabled; packages of Docker disable it", "fail"),
    "profile.cgroup_driver": ("the runtimes of containerd use the cgroup driver systemd, as the kubelet does", "fail"),
    "profile.nvidia_runtime": ("containerd has NVIDIA's runtime, on a node with GPUs", "fail"),
    "profile.swap": ("swap is off", "fail"),
    "profile.kernel_modules": ("overlay and br_netfilter are loaded", "fail"),
    "profile.sysctls": ("IP forwarding, and filtering of bridges, are on", "fail"),
    "profile.ports": ("the ports of kubelet and kube-proxy are free, or kubelet runs", "fail"),
    "profile.kubernetes": ("never: it has no part here", "skip"),
    "profile.helm": ("never: it has no part here", "skip"),
    "container_ssh.pairs": (
        "from every container the login to every container works and prints nothing",
        "fail, with the pairs and ssh's reason; warn when a node could not take part",
    ),
    "cluster.collective": (
        (
            "`--level full --collective`: an all-reduce over the containers of all idle nodes gives right sums "
            "and reaches `cluster_collective_fraction` of the predicted bus bandwidth (without GPUs: it works)"
        ),
        (
            "fail, also when nothing was measured; warn when nodes were left out, or there is no prediction for "
            "real GPUs; not judged without `--collective`"
        ),
    ),
    "container_ssh.host_keys_distinct": ("no two containers share a host key", "fail"),
    "cluster.data_addresses": (
        "no node claims a data address that is another node's, or that no other node can reach",
        "fail; the node takes no jobs",
    ),
    "cluster.data_network": ("no login failed for want of a way to a data address", "fail"),
    "cluster.data": ("no data volume is on each node's own disk; judged where there are any", "warn"),
    "cluster.skew_os": ("all nodes run the same system", "warn, with the odd nodes first"),
    "cluster.skew_kernel": ("all nodes run the same kernel", "warn, with the odd nodes first"),
    "cluster.skew_docker": ("all engines have the same version", "warn, with the odd nodes first"),
    "cluster.skew_rdma_stack": (
        "all nodes have the same OFED, or rdma-core of the same version",
        "warn, with the odd nodes first",
    ),
    "cluster.skew_firmware": (
        "network cards of one kind have the same firmware on all nodes",
        "warn, with the odd nodes first",
    ),
    "cluster.skew_port_rate": ("all nodes have as many active RDMA ports, as fast", "warn, with the odd nodes first"),
    "cluster.skew_gpus": (
        "all nodes have as many GPUs of the same product: one that left the PCI bus is missed nowhere else",
        "warn, with the odd nodes first",
    ),
    "cluster.skew_driver": ("all nodes have the same NVIDIA driver", "warn, with the odd nodes first"),
    "cluster.skew_vbios": ("GPUs of one product have the same VBIOS on all nodes", "warn, with the odd nodes first"),
    "cluster.skew_image": ("all nodes have the very same training image", "fail, with the odd nodes first"),
}
"""Check id -> when it passes, and its result otherwise."""

REASONS: Mapping[str, Wording] = {
    **NCCL_REASONS,
    **CONTROLLER_REASONS,
    # Any check
    "check.no_jobs": Wording("it takes no jobs (cluster_takes_jobs: false)"),
    "check.role_disabled": Wording("the role {role} is disabled on this node"),
    "check.waits": Wording("waits for {check}"),
    "check.fact_unavailable": Wording(
        "{cause}", "Log in to the node and run that command manually to see where it stops."
    ),
    "check.failed": Wording(
        "the facts of the node cannot be judged: {error}: {cause}",
        "Log in to the node and run the commands of this check manually; report the error: provision support-bundle",
    ),
    # node
    "node.reachable.ok": Wording("reached, and {host} answers as root"),
    "node.reachable.failed": Wording("{cause}", "Log in manually with the same user and key to see what is wrong."),
    "node.reachable.failed_with_remedy": Wording("{cause}", "{remedy}"),
    "node.os.ok": Wording("{system}, kernel {kernel}, {architecture}"),
    "node.os.best_effort": Wording(
        "{system}, kernel {kernel}: support is best effort; only unit tests cover it, no node with it was ever set up",
        _ONE_NODE_FIRST,
    ),
    "node.os.untested": Wording(
        "{system}, kernel {kernel}: untested; only its name is known to work, no node with it was ever set up",
        _ONE_NODE_FIRST,
    ),
    "node.os.unsupported": Wording(
        "{system} ({name}) is not supported; supported are: {supported}",
        "Install [{nearest}, the nearest of ]the supported systems, or add {file} for this one; see "
        "docs/reference/systems.md.",
    ),
    "node.os.interim": Wording(
        "{system} ({name}) is an interim release and is not supported; supported are: {supported}",
        "Install a release with long-term support[: {nearest} is the nearest]; see docs/reference/systems.md.",
    ),
    "node.os.unknown": Wording(
        "its system is unknown: it has no /etc/os-release; supported are: {supported}", "Install a supported system."
    ),
    "node.kind.container": Wording("a container ({detail}): the host has its kernel modules and sysctls"),
    "node.kind.virtual_machine": Wording("a virtual machine ({detail})"),
    "node.kind.physical": Wording("a physical machine ({detail})"),
    "node.stack_lock.none": Wording("no stack.lock.yml in the folder of the inventory"),
    "node.stack_lock.ok": Wording("the versions of the lock: {components}"),
    "node.stack_lock.differs": Wording("{deviations:;}", "{deviations:remedy}"),
    "node.clock.ok": Wording("the node's clock agrees with the controller's"),
    "node.clock.unknown": Wording("the time of the probe is unknown"),
    "node.clock.ahead": Wording("the node's clock is {seconds:span} ahead of the controller's", _CLOCK),
    "node.clock.behind": Wording("the node's clock is {seconds:span} behind the controller's", _CLOCK),
    "node.disks.ok": Wording("{count} file systems are writable and have free space"),
    "node.disks.read_only": Wording(
        "mounted read-only: {paths}",
        "Find the cause in `dmesg` (usually a file system error); then mount -o remount,rw PATH, or reboot.",
    ),
    "node.disks.full": Wording("{disks:;}", "Free space there: du -xs PATH/*, du -xs --inodes PATH/*."),
    "node.disks.space": Wording("{path} has {free_mib} MiB free"),
    "node.disks.inodes": Wording("{path} has {free} inodes free"),
    "node.data.ok": Wording("all data volumes of the inventory are mounted and usable"),
    "node.data.findings": Wording("{problems:;}", "{advice}"),
    "node.data.problem": Wording("{volume}: {problem}"),
    # base_system
    "node.selinux.off": Wording("SELinux is not enabled[; the next boot sets it to {configured}]"),
    "node.selinux.ok": Wording("SELinux is {mode}[; the next boot sets it to {configured}]"),
    "node.selinux.denied": Wording(
        "SELinux denied {count} accesses of containers in the last 24 hours: {denials:;}",
        "Give the files a label for containers on the node: semanage fcontext -a -t container_file_t 'PATH(/.*)?' && "
        "restorecon -R PATH; for devices: setsebool -P container_use_devices on. All records: ausearch -m avc",
    ),
    "node.selinux.denial": Wording("{command}: {permissions} on {kind}[ {name}] of type {type}"),
    "node.selinux.labels": Wording(
        "{count} files of the roles have a label that the policy does not have for them: {files:;}",
        "Run on the node: restorecon -v {paths}",
    ),
    "node.selinux.label": Wording("{path} is {current}, not {desired}"),
    "base_system.limits.ok": Wording("{limits:;}"),
    "base_system.limits.amount": Wording("{limit} {current}"),
    "base_system.limits.limit": Wording("{limit} {current} instead of {desired}"),
    "base_system.limits.too_low": Wording("hard limits of a login are too low: {limits:;}", _APPLY),
    "base_system.limits.cut": Wording("hard limits are cut to those of this container: {limits:;}", _LIMITS),
    "base_system.hosts.disabled": Wording("disabled by base_system_hosts_enabled"),
    "base_system.hosts.no_addresses": Wording("no node has a known data address"),
    "base_system.hosts.ok": Wording("{count} node names resolve to data addresses"),
    "base_system.hosts.wrong": Wording("names resolve wrongly on the node: {names:few}", _APPLY),
    "base_system.hosts.address": Wording("{name} is {current} instead of {desired}"),
    "base_system.hosts.loopback": Wording("{name} is also a loopback address"),
    "base_system.time_sync.disabled": Wording("disabled by base_system_time_sync_check_enabled"),
    "base_system.time_sync.container": Wording("a container has the clock of its host"),
    "base_system.time_sync.ok": Wording("the clock is synchronized[ ({services})]"),
    "base_system.time_sync.not_yet": Wording(
        "{services} runs, but the clock is not synchronized yet",
        "Check its time servers: chronyc sources, or timedatectl timesync-status.",
    ),
    "base_system.time_sync.no_service": Wording(
        "no service keeps the clock synchronized",
        "Install and configure chrony, or set base_system_time_sync_check_enabled: false.",
    ),
    "base_system.kernel.container": Wording("a container has the kernel of its host"),
    "base_system.kernel.ok": Wording("kernel {kernel}[; {others} can start at the next boot]"),
    "base_system.kernel.changed": Wording("the kernel changed since the last apply, from {before} to {kernel}", _APPLY),
    "base_system.firewall.none": Wording("neither firewalld nor ufw is active"),
    "base_system.firewall.no_addresses": Wording("no other node has a known data address"),
    "base_system.firewall.ok": Wording("{program} admits {count} other nodes"),
    "base_system.firewall.blocked": Wording(
        _BLOCKED + "; the role admits {sources}",
        "Run: provision apply --limit {node} (or set cluster_firewall: check, and admit these sources yourself)",
    ),
    "base_system.firewall.unmanaged": Wording(_BLOCKED, "Run on the node: {commands}"),
    "base_system.firewall.decided": Wording(
        _BLOCKED + ": {cause}", "Change this rule of the node's firewall; an apply does not change it."
    ),
    "base_system.sysctls.none": Wording("the inventory sets no sysctls"),
    "base_system.sysctls.container": Wording("a container cannot set sysctls: they are its host's"),
    "base_system.sysctls.ok": Wording("{count} sysctls have the desired values"),
    "base_system.sysctls.differ": Wording("sysctls differ: {sysctls:;}", _APPLY),
    "base_system.sysctls.value": Wording("{name} is {current}, not {desired}"),
    "base_system.sysctls.missing": Wording(
        "this kernel has no sysctl called {names}",
        "Remove it from base_system_sysctls, unless another kernel of the node has it.",
    ),
    # rdma_stack
    "rdma_stack.no_card": Wording("no RDMA card"),
    "rdma_stack.packages.ofed": Wording("{ofed} is installed"),
    "rdma_stack.packages.ok": Wording("{package} {version}"),
    "rdma_stack.packages.container": Wording("a container gets a vendor's RDMA stack for listed kernels only"),
    "rdma_stack.packages.vendor": Wording("{profile} {version} ({ofed})"),
    "rdma_stack.packages.no_profile": Wording("{profile} of the requested RDMA stack is not installed", _APPLY),
    "rdma_stack.packages.other_version": Wording(
        "{profile} {installed} is installed, and {requested} is requested; `apply` replaces no installed packages",
        "Correct rdma_stack_version. To change the release, drain the node, remove the stack with `provision reset`, "
        "reboot the node, and apply again.",
    ),
    "rdma_stack.modules.none": Wording("the inventory requests no vendor's RDMA stack"),
    "rdma_stack.modules.container": Wording("a container has its host's kernel modules"),
    "rdma_stack.modules.ok": Wording("{trees} is built for the running kernel, and openibd runs"),
    "rdma_stack.modules.other_kernel": Wording(
        "the RDMA stack is built for kernel {kernels}, and the node runs {running}",
        "Reboot the node into one of these kernels, or correct rdma_stack_kernels.",
    ),
    "rdma_stack.modules.not_built": Wording(
        "DKMS has not built the requested RDMA stack for the running kernel", _APPLY
    ),
    "rdma_stack.modules.build_failed": Wording(
        "DKMS cannot build {name} {version} for the running kernel: {explanation} ({line})",
        "{advice} The complete output is in /var/lib/dkms/{name}/{version}/build/make.log.",
    ),
    "rdma_stack.modules.replaced": Wording(
        "the loaded modules {modules:and} are not those of the installed RDMA stack",
        "End the jobs on the node, then reboot it.",
    ),
    "rdma_stack.modules.openibd": Wording("openibd is {state}, and {enabled}enabled at boot", _APPLY),
    "rdma_stack.firmware.not_reported": Wording("no RDMA card reports its firmware"),
    "rdma_stack.firmware.ok": Wording("{firmware:few}"),
    "rdma_stack.packages.not_installed": Wording("rdma-core is not installed", _APPLY),
    "rdma_stack.packages.removed": Wording("packages were removed since the last apply: {packages}", _APPLY),
    "rdma_stack.devices.none": Wording("no RDMA device and no RDMA card on the PCI bus"),
    "rdma_stack.devices.no_device": Wording(
        "{cards} RDMA cards are on the PCI bus, but the kernel has no RDMA device",
        f"Check the driver's messages: dmesg | grep -i mlx. {_APPLY}",
    ),
    "rdma_stack.devices.all_down": Wording(
        "no port is active: {devices}", "Check cables, switch ports and (InfiniBand) the subnet manager."
    ),
    "rdma_stack.devices.some_down": Wording(
        "{active} of {count} devices are active; not: {devices}",
        "Check their cables and switch ports, if jobs use them.",
    ),
    "rdma_stack.devices.ok": Wording("{count} devices active: {devices}"),
    "rdma_stack.soft_roce.disabled": Wording("the inventory does not enable Soft-RoCE"),
    "rdma_stack.soft_roce.container": Wording("a container cannot load kernel modules"),
    "rdma_stack.soft_roce.module_missing": Wording("the kernel module rdma_rxe is not loaded", _APPLY),
    "rdma_stack.soft_roce.no_device": Wording("no Soft-RoCE device on {interface}", _APPLY),
    "rdma_stack.soft_roce.inactive": Wording(
        "the Soft-RoCE device {device} is not active", "Check that the link is up: {command}"
    ),
    "rdma_stack.soft_roce.ok": Wording("{device} on {interfaces} is active"),
    "rdma_stack.gids.no_port": Wording("no active RoCE port"),
    "rdma_stack.gids.none": Wording(
        "no port has a RoCE v2 GID of an IPv4 address: {devices}",
        "Give the cards' network interfaces their IPv4 addresses.",
    ),
    "rdma_stack.gids.missing": Wording(
        "without a RoCE v2 GID of an IPv4 address: {devices}",
        "Give their network interfaces IPv4 addresses, if jobs use them.",
    ),
    "rdma_stack.gids.ok": Wording("RoCE v2 over IPv4: {devices}"),
    "rdma_stack.port_rate.not_reported": Wording("no active port of a card reports its rate"),
    "rdma_stack.port_rate.lanes_lost": Wording("InfiniBand links have lost lanes: {ports:few}", _CABLE),
    "rdma_stack.port_rate.slower": Wording(
        "ports are slower than others of the same kind of card: {ports:few}",
        f"{_CABLE} No fault if they belong to a slower network.",
    ),
    "rdma_stack.port_rate.ok": Wording("{count} active ports at {rates:and} Gbit/s"),
    "rdma_stack.port_errors.errors": Wording("errors since boot, {seconds:span} ago: {errors:few}", _CABLE),
    "rdma_stack.port_errors.counter": Wording("{port}: {count} {what} ({per_hour:.2g} per hour)"),
    "rdma_stack.port_errors.ok": Wording(
        "no more errors than a good link has since boot, {seconds:span} ago[; from congestion and ended jobs: {others}]"
    ),
    "rdma_stack.pcie_width.virtual": Wording(
        "a virtual machine or container does not report the cards' own PCIe links"
    ),
    "rdma_stack.pcie_width.not_reported": Wording("no network card reports its PCIe link"),
    "rdma_stack.pcie_width.ok": Wording("{count} cards have all PCIe lanes that they and their slots support"),
    "rdma_stack.pcie_width.narrow": Wording(
        "cards have fewer PCIe lanes than they and their slots support: {cards:few}", _CARD
    ),
    "rdma_stack.pcie_width.slow": Wording(
        "cards' PCIe links are slower than they and their slots support: {cards:few}", _CARD
    ),
    "rdma_stack.bandwidth.ok": Wording("{summary}[; {notes:;}]"),
    "rdma_stack.bandwidth.ports": Wording("{cause}", _LINK),
    "rdma_stack.bandwidth.left_out": Wording("{cause}"),
    "rdma_stack.bandwidth.no_partner": Wording("there was no other node to measure with"),
    "rdma_stack.bandwidth.fault": Wording("{fault}", _LINK),
    "rdma_stack.bandwidth.bad_pair": Wording(
        "part of a bad pair, and it is unknown which end is at fault: {pairs:few}", _LINK
    ),
    "rdma_stack.bandwidth.bad_partners": Wording("all its partners are at fault; see the cluster's results"),
    "rdma_stack.bandwidth.no_cuda": Wording(f"{{summary}}; {_NO_CUDA}", _CUDA),
    "rdma_stack.bandwidth.cluster_no_cuda": Wording(f"{{summary}}[; {{notes:;}}]; {_NO_CUDA}", _CUDA),
    "rdma_stack.bandwidth.some_nodes": Wording("{summary}[; {notes:;}]; left out: {left_out:few}", _AGAIN),
    "rdma_stack.bandwidth.some_nodes_no_cuda": Wording(
        f"{{summary}}[; {{notes:;}}]; {_NO_CUDA}; left out: {{left_out:few}}", f"{_CUDA} {_AGAIN}"
    ),
    "rdma_stack.bandwidth.faults": Wording("{faults:;}[; {good} of {count} measurements are good]", _LINK),
    "rdma_stack.bandwidth.only_collective": Wording("no pair was measured ({cause}); see cluster.collective"),
    "rdma_stack.bandwidth.not_measured": Wording(
        "nothing was measured: {cause}",
        "Measure with two or more idle nodes that have an RDMA device and a running training container, or verify "
        "without --level full.",
    ),
    "rdma_stack.bandwidth.every_node": Wording("on every node: {cause}"),
    "rdma_stack.bandwidth.too_few": Wording("fewer than two nodes could take part: {left_out:few}"),
    "rdma_stack.bandwidth.one_node": Wording("there is one node"),
    "rdma_stack.bandwidth.nodes": Wording("{nodes:names} ({cause})"),
    "rdma_stack.bandwidth.host_memory": Wording("in host memory: {causes:;}"),
    "rdma_stack.bandwidth.gpus_unknown": Wording("the GPUs are not known: {cause}"),
    "rdma_stack.bandwidth.no_gpu": Wording("there is no GPU"),
    "rdma_stack.bandwidth.simulated_gpus": Wording("the GPUs are SIMULATED"),
    "rdma_stack.bandwidth.soft_device": Wording("a device made in software copies through the host"),
    "rdma_stack.bandwidth.no_gdr_path": Wording("GPU memory has no way to the cards: {cause}"),
    "rdma_stack.bandwidth.perftest_without_cuda": Wording("the perftest of the training image does not know {option}"),
    "rdma_stack.bandwidth.soft_roce": Wording(
        "Soft-RoCE has no line rate to compare with, and its bandwidth says nothing about a card"
    ),
    "rdma_stack.bandwidth.sampled": Wording("a sample, because there are too many nodes for all pairs"),
    "rdma_stack.bandwidth.summary": Wording(
        "{count:times measurement} between containers, {memory:and} memory, up to {highest} Gb/s; the lowest is "
        "{lowest}"
    ),
    "rdma_stack.bandwidth.of": Wording("{object}: {fault}"),
    "rdma_stack.bandwidth.dead": Wording("no pair with it worked: {cause}"),
    "rdma_stack.bandwidth.port_failed": Wording(
        "nothing worked over {device}[ when {role}] with any of {partners} partners: {cause}"
    ),
    "rdma_stack.bandwidth.port_slow": Wording(
        "slow over {device}[ when {role}] with each of {partners} partners, e.g. {example}"
    ),
    "rdma_stack.bandwidth.pair": Wording("{sender} -> {receiver} {gbit_s}[ of {line_rate}] Gb/s"),
    "rdma_stack.bandwidth.pair_failed": Wording("{sender} -> {receiver} failed: {cause}"),
    # docker_engine
    "docker_engine.service.not_installed": Wording("the Docker engine is not installed", _APPLY),
    "docker_engine.service.not_active": Wording(
        "docker.service is {state}",
        "Find the cause: journalctl -u docker -n 50. Then run: provision apply --limit {node}",
    ),
    "docker_engine.service.no_answer": Wording(
        "docker.service is active, but the engine does not answer: {cause}",
        "Find the cause: journalctl -u docker -n 50",
    ),
    "docker_engine.service.not_enabled": Wording("Docker runs, but does not start at boot (it is {state})", _APPLY),
    "docker_engine.service.ok": Wording("docker.service is active, starts at boot, and answers"),
    "docker_engine.version.ok": Wording("engine {version}, cgroup v{cgroup_version} by {cgroup_driver}"),
    "docker_engine.cgroup.ok": Wording("cgroup v{version}"),
    "docker_engine.cgroup.container": Wording("a container has the cgroups of its host"),
    "docker_engine.cgroup.v1": Wording(
        "the node has cgroup v1, which Docker 29 deprecates: jobs in systemd units do not report that memory ran out",
        "When the node is idle: grubby --update-kernel=ALL --args=systemd.unified_cgroup_hierarchy=1 (without grubby: "
        "add it to GRUB_CMDLINE_LINUX in /etc/default/grub, and run update-grub), then reboot.",
    ),
    "docker_engine.selinux.off": Wording("SELinux is not enabled"),
    "docker_engine.selinux.ok": Wording("labels for containers[; Docker's data has the type {type}]"),
    "docker_engine.selinux.no_policy": Wording("SELinux is enabled, and {package} is not installed", _APPLY),
    "docker_engine.selinux.data_root": Wording(
        "Docker's data in {path} has the type {current}, not {desired}",
        "When the node is idle, run on it: {commands}",
    ),
    "docker_engine.selinux.mounts": Wording(
        "containers are confined (selinux-enabled in daemon.json), and cannot use what they mount: {mounts:;}",
        "Label a path that only containers use: semanage fcontext -a -t container_file_t 'PATH(/.*)?' && "
        "restorecon -R PATH. No path is relabelled on its own, and no mount gets :z.",
    ),
    "docker_engine.selinux.mount": Wording("{path} is {type}"),
    "docker_engine.daemon_json.invalid": Wording(
        "/etc/docker/daemon.json cannot be used: {cause}",
        f"Correct the file, or remove it if nothing in it is needed. {_APPLY}",
    ),
    "docker_engine.daemon_json.differs": Wording(
        "/etc/docker/daemon.json differs from the inventory: {settings:;}", _APPLY
    ),
    "docker_engine.daemon_json.setting": Wording("{name} is {current}"),
    "docker_engine.daemon_json.not_needed": Wording("there is no daemon.json, and none is needed"),
    "docker_engine.daemon_json.ok": Wording("valid, {count} options, including all of the inventory"),
    "docker_engine.registry_ca.none": Wording("the inventory names no registry with its own CA"),
    "docker_engine.registry_ca.differs": Wording("CA certificates under /etc/docker/certs.d: {registries:;}", _APPLY),
    "docker_engine.registry_ca.missing": Wording("{registry} has none"),
    "docker_engine.registry_ca.other": Wording("{registry} has another"),
    "docker_engine.registry_ca.ok": Wording("the CA of {registries} is trusted"),
    "docker_engine.storage.full": Wording("the disk is full: {free_mib} MiB free at {path}", _SPACE),
    "docker_engine.storage.low": Wording("little free space: {free_mib} MiB free at {path}", _SPACE),
    "docker_engine.storage.legacy_driver": Wording(
        "the storage driver is {driver}, which is slow or no longer supported[, {free_gib} GiB free at {path}]",
        "Put Docker's data root on ext4 or xfs (ftype=1), where overlay2 works.",
    ),
    "docker_engine.storage.ok": Wording("storage driver {driver}[, {free_gib} GiB free at {path}]"),
    # gpu
    "gpu.none": Wording("the node has no GPU"),
    "gpu.driver.no_answer": Wording("{cause}", _DRIVER),
    "gpu.driver.missing": Wording(
        "{count} NVIDIA GPUs are on the PCI bus, but no driver serves them",
        "Install the NVIDIA driver, or let `provision apply` install it (nvidia_driver_source).",
    ),
    "gpu.driver.ok": Wording("driver {versions}"),
    "gpu.count.missing": Wording(
        "nvidia-smi lists {count} GPUs, the PCI bus has {on_bus}[; it does not list {missing}]", _DRIVER
    ),
    "gpu.count.ok": Wording("{count} x {products}"),
    "gpu.state.errors": Wording("the driver reports errors instead of values: {values:;}", _RESET),
    "gpu.state.value": Wording("GPU {gpu}: {texts}"),
    "gpu.state.reboot": Wording("the driver requests a recovery: {actions}", "End the jobs, then reboot the node."),
    "gpu.state.reset": Wording("the driver requests a recovery: {actions}", _RESET),
    "gpu.state.ok": Wording("{count} GPUs answer and need no recovery"),
    "gpu.state.not_reported": Wording("{count} GPUs answer (this driver does not report whether they need a recovery)"),
    "gpu.ecc.not_reported": Wording("no GPU of the node has or reports ECC"),
    "gpu.ecc.sram_worn": Wording("too many uncorrected errors in on-chip memory: GPU {gpus}", _REPLACE),
    "gpu.ecc.errors": Wording(
        "uncorrected memory errors since the last reset: {errors}",
        f"{_RESET} If they return, run dcgmi diag -r 3.",
    ),
    "gpu.ecc.disabled": Wording(
        "ECC is disabled, or will be after the next reset: GPU {gpus}",
        "Enable it (nvidia-smi -e 1) and reboot, unless it is disabled on purpose.",
    ),
    "gpu.ecc.ok": Wording("no uncorrected memory error since the last reset[; before: {past}]"),
    "gpu.row_remap.failed": Wording("a bad memory row could not be replaced: GPU {gpus}", _REPLACE),
    "gpu.row_remap.pending": Wording("bad memory is in use until a reset replaces it: GPU {gpus}", _RESET),
    "gpu.row_remap.not_reported": Wording(
        "no GPU of the node reports replaced memory (product, driver, MIG or virtual GPU)"
    ),
    "gpu.row_remap.ok": Wording("no memory waits to be replaced[; replaced after uncorrected errors: {replaced}]"),
    "gpu.nvlink.none": Wording("no GPU of the node uses an NVLink"),
    "gpu.nvlink.down": Wording("NVLinks are down: {gpus:;}", _NVLINK),
    "gpu.nvlink.down_virtual": Wording("NVLinks are down: {gpus:;} (possibly set by the hypervisor)", _NVLINK),
    "gpu.nvlink.links": Wording("GPU {gpu} has {active} of {links}[ (down: {down})]"),
    "gpu.nvlink.alike": Wording(
        "{down} of {links} NVLinks of every GPU are down", f"{_NVLINK} No fault if the baseboard wires no more."
    ),
    "gpu.nvlink.all_down": Wording(
        "no GPU has an active NVLink", f"{_NVLINK} No fault if the baseboard wires no more."
    ),
    "gpu.nvlink.ok": Wording("up to {links} NVLinks per GPU, none of them down"),
    "gpu.topology.not_requested": Wording("not requested: a plan does not probe the links between GPUs"),
    "gpu.topology.unreadable": Wording(
        "the links between the GPUs are unknown: {cause}", "Run nvidia-smi topo -m on the node to see its output."
    ),
    "gpu.topology.ok": Wording("{summary}"),
    "gpu.topology.faults": Wording("{faults:;}", _TOPOLOGY),
    "gpu.topology.faults_virtual": Wording("{faults:;} (possibly set by the hypervisor)", _TOPOLOGY),
    "gpu.fabric.none": Wording("the GPUs of the node join no NVLink fabric"),
    "gpu.fabric.not_joined": Wording("GPUs have not joined the NVLink fabric: {gpus:few}", _FABRIC),
    "gpu.fabric.state": Wording("GPU {gpu} reports {state}[ {status}]"),
    "gpu.fabric.joining": Wording(
        "GPUs are joining the NVLink fabric: GPU {gpus}", f"Wait a few minutes and verify again. {_FABRIC}"
    ),
    "gpu.fabric.ok": Wording("{gpus} GPUs have joined the NVLink fabric"),
    "gpu.fabric.manager_ok": Wording("nvidia-fabricmanager serves {switches} NVLink switches"),
    "gpu.fabric.manager_not_active": Wording(
        "{switches} NVLink switches, but nvidia-fabricmanager is {state}: CUDA programs end with error 802",
        "Install the fabric manager of exactly the driver's version, and start it: "
        "systemctl enable --now nvidia-fabricmanager",
    ),
    "gpu.fabric.manager_version": Wording(
        "the fabric manager is {version}, the driver {drivers}",
        "Install the fabric manager of exactly the driver's version, and restart it.",
    ),
    "gpu.pcie_width.not_reported": Wording("the width of the GPUs' PCIe links is not reported"),
    "gpu.pcie_width.ok": Wording("PCIe links have all lanes: {lanes} lanes"),
    "gpu.pcie_width.lanes": Wording("GPU {gpu} has {lanes} of {possible} lanes"),
    "gpu.pcie_width.narrow": Wording("PCIe links have fewer lanes than possible: {gpus:few}", _LANES),
    "gpu.pcie_width.maybe_narrow": Wording(
        "PCIe links have fewer lanes than the GPUs support: {gpus:few}",
        f"{_LANES} No fault if the slots have no more lanes, or the hypervisor gives no more.",
    ),
    "gpu.throttle.not_reported": Wording("no GPU of the node reports what limits its clocks"),
    "gpu.throttle.slowed": Wording("clocks are limited: {causes:;}", "{advice: }"),
    "gpu.throttle.cause": Wording("{cause} (GPU {gpus})"),
    "gpu.throttle.ok": Wording("only idleness, power caps or settings limit the clocks"),
    "gpu.xid.container": Wording("a container has the kernel log of its host, if any"),
    "gpu.xid.unreadable": Wording("{cause}", "Run dmesg on the node as root to see the error."),
    "gpu.xid.since_boot": Wording("since boot"),
    "gpu.xid.since_log": Wording("in the last {seconds:span}, the log reaches no further"),
    "gpu.xid.errors": Wording("{errors:few} ({since})", "{advice: } A reboot resets this check."),
    "gpu.xid.one": Wording("{kind} {number} at {address}: {meaning}[ ({seconds:span} ago)]"),
    "gpu.xid.many": Wording("{kind} {number} at {address}: {meaning} ({count} times[, last {seconds:span} ago])"),
    "gpu.xid.harmless": Wording("no Xid caused by a GPU fault {since}; {errors:few}"),
    "gpu.xid.ok": Wording("no Xid {since}"),
    # nvidia_driver
    "nvidia_driver.container": Wording("a container uses its host's NVIDIA driver"),
    "nvidia_driver.simulated": Wording("the GPUs are SIMULATED and have no driver of NVIDIA"),
    "nvidia_driver.modules.ok": Wording("driver {version}, {flavor} kernel modules"),
    "nvidia_driver.modules.none": Wording("the running kernel has no modules of the NVIDIA driver"),
    "nvidia_driver.modules.missing": Wording(
        "the requested NVIDIA driver is not installed for the running kernel", _APPLY
    ),
    "nvidia_driver.modules.wrong_flavor": Wording(
        "the {flavor} kernel modules of driver {version} do not drive GPUs of {architectures:and}",
        "Install the other kernel modules: the open ones for Blackwell and Grace Hopper, the proprietary ones for "
        "Volta and older. nvidia_driver_flavor: auto chooses them.",
    ),
    "nvidia_driver.modules.unsupported": Wording(
        "{causes:;}", "Install a driver branch for these GPUs (nvidia_driver_branch)."
    ),
    "nvidia_driver.modules.other_version": Wording(
        "driver {installed} is installed, and {requested} is requested", _APPLY
    ),
    "nvidia_driver.modules.other_branch": Wording(
        "driver {installed} is installed, and branch {requested} is requested; `apply` did not replace its packages",
        "Install the requested branch with the package manager of the node, or correct nvidia_driver_branch.",
    ),
    "nvidia_driver.modules.reboot": Wording(
        "driver {loaded} is loaded, and {installed} is installed for the running kernel",
        "End the jobs on the node, then reboot it.",
    ),
    "nvidia_driver.modules.no_device": Wording(
        "no NVIDIA device: driver {version} ({flavor} kernel modules) is installed for the running kernel, and loads "
        "only on a node with a GPU",
        "Add a GPU to the node, or set nvidia_driver_without_gpu_enabled: false if it never gets one.",
    ),
    "nvidia_driver.modules.other_kernel": Wording(
        "the driver is built for kernel {kernels}, and the node runs {running}",
        "Reboot the node into one of these kernels, or correct nvidia_driver_kernels.",
    ),
    "nvidia_driver.modules.not_loaded": Wording(
        "driver {version} is installed and not loaded[: {explanation}][ ({line})]",
        "[{advice} ]Check on the node: modprobe nvidia; dmesg | grep NVRM",
    ),
    "nvidia_driver.build.none": Wording("no driver is built by DKMS"),
    "nvidia_driver.build.ok": Wording("{trees} is built for the running kernel"),
    "nvidia_driver.build.not_built": Wording(
        "DKMS has not built {name} {version} for the running kernel",
        "Install the headers of the running kernel, then run on the node: dkms autoinstall -k $(uname -r)",
    ),
    "nvidia_driver.build.failed": Wording(
        "DKMS cannot build {name} {version} for the running kernel: {explanation} ({line})",
        "{advice} The complete output is in /var/lib/dkms/{name}/{version}/build/make.log.",
    ),
    "nvidia_driver.signature.ok": Wording("the driver is signed by {signer}"),
    "nvidia_driver.signature.not_required": Wording("the kernel loads modules without a signature"),
    "nvidia_driver.signature.unsigned": Wording(
        "the kernel requires signed modules (Secure Boot), and the driver has no signature",
        "Enrol the certificate of DKMS (mokutil --import /var/lib/dkms/mok.pub, then reboot and confirm at the "
        "console) and build the modules again, or install modules that the distribution signed.",
    ),
    "nvidia_driver.nouveau.ok": Wording("nouveau is not loaded"),
    "nvidia_driver.nouveau.not_blocked": Wording("nothing keeps the kernel from loading nouveau at boot", _APPLY),
    "nvidia_driver.nouveau.loaded": Wording(
        "nouveau is loaded, and takes the GPUs from the NVIDIA driver",
        "Block it (modprobe.d: blacklist nouveau; then rebuild the initramfs), and reboot the node.",
    ),
    "nvidia_driver.persistence.ok": Wording("nvidia-persistenced runs"),
    "nvidia_driver.persistence.none": Wording("nvidia-persistenced is not requested ({state})"),
    "nvidia_driver.persistence.not_active": Wording(
        "nvidia-persistenced is {state}, and {enabled}enabled at boot", _APPLY
    ),
    "nvidia_driver.firmware.ok": Wording("GSP firmware {versions}[; confidential computing is {confidential}]"),
    "nvidia_driver.firmware.none": Wording("the driver reports neither GSP firmware nor confidential computing"),
    "nvidia_driver.imex.ok": Wording("IMEX runs for the NVLink domain {domain}"),
    "nvidia_driver.imex.not_needed": Wording("the node is in no NVLink domain of several nodes"),
    "nvidia_driver.imex.left": Wording(
        "nvidia-imex.service is {state} with the nodes of an NVLink domain that the node left",
        "Run: provision apply --limit {node}, when the node is idle. With nvidia_driver_source: present, run "
        "`systemctl disable --now nvidia-imex.service` on the node.",
    ),
    "nvidia_driver.imex.missing": Wording(
        "IMEX is not installed, which the NVLink domain {domain} requires",
        "Install nvidia-imex in exactly the version of the driver, or let `provision apply` install the driver "
        "(nvidia_driver_source); Debian has no such package.",
    ),
    "nvidia_driver.imex.other_version": Wording(
        "{packages} has another version than driver {version}", "Install it in exactly the version of the driver."
    ),
    "nvidia_driver.imex.not_active": Wording(
        "nvidia-imex.service is {state}", "Read `journalctl -b -u nvidia-imex.service` on the node."
    ),
    "nvidia_driver.modes.unset": Wording("the inventory requests none"),
    "nvidia_driver.mig.ok": Wording("MIG mode is {mode} on all GPUs that have one"),
    "nvidia_driver.mig.unsupported": Wording(
        "GPU {gpus} ({names}) has no MIG mode", "Set nvidia_driver_mig_mode to an empty value for this node."
    ),
    "nvidia_driver.mig.differs": Wording("MIG mode is not {mode} on GPU {gpus}", _APPLY),
    "nvidia_driver.mig.reset": Wording("MIG mode is {mode} on GPU {gpus} only after a reset of the GPU", _RESET),
    "nvidia_driver.persistence_mode.ok": Wording("persistence mode is {mode} on all GPUs"),
    "nvidia_driver.persistence_mode.differs": Wording("persistence mode is not {mode} on GPU {gpus}", _APPLY),
    # peer_memory
    "peer_memory.container": Wording("a container has its host's kernel modules"),
    "peer_memory.simulated": Wording("the GPUs are SIMULATED and have no kernel modules"),
    "peer_memory.no_card": Wording("the node has no RDMA card"),
    "peer_memory.soft_devices": Wording("the node has only software RDMA devices"),
    "peer_memory.no_module": Wording("no peer memory module is loaded"),
    "peer_memory.path.ok": Wording("{summary}"),
    "peer_memory.path.blocked": Wording("GPU memory goes through the host: {cause}", "{cause:remedy}"),
    "peer_memory.path.not_used": Wording(
        "{path} could be used, and needs: {needs:;}[; {used} is in use instead]", "{needs:remedy}"
    ),
    "peer_memory.modules.ok": Wording("{modules:;}"),
    "peer_memory.modules.conflict": Wording(
        "{modules:and} are loaded; they exclude each other",
        "Keep nvidia_peermem: /etc/init.d/nv_peer_mem stop; rmmod nv_peer_mem; remove the package of nv_peer_mem.",
    ),
    "peer_memory.modules.replaced": Wording(
        "the loaded {modules:and} was built from other sources than the one that the next boot loads",
        "With no job on the node: {program} unload && {program} load, or reboot it.",
    ),
    "peer_memory.binding.ok": Wording("{modules} uses the RDMA stack"),
    "peer_memory.binding.stub": Wording(
        "{modules} is loaded and uses neither ib_core nor ib_uverbs: a stub, built without the RDMA stack",
        "Install the RDMA stack first, then rebuild the driver's modules (dkms install --force nvidia/VERSION -k "
        "KERNEL, or reinstall the driver), unload the module and load it again.",
    ),
    "peer_memory.boot.not_recorded": Wording("no GPUDirect RDMA path is recorded for this node"),
    "peer_memory.boot.ok": Wording("{provider} is ready on kernel {kernel} since {since}"),
    "peer_memory.boot.fact_unavailable": Wording(
        "it is unknown whether GPUDirect RDMA came up: {cause}",
        "Log in to the node and run that command manually to see where it stops.",
    ),
    "peer_memory.boot.invalid_record": Wording("{path} {cause}", "Run: provision reload --limit {node}"),
    "peer_memory.boot.never_checked": Wording(
        "{provider} is configured, and no check of it was ever recorded[; {unit}]", _RELOAD_BOOT
    ),
    "peer_memory.boot.never_checked_unit": Wording(
        "{provider} is configured, and no check of it was ever recorded[; {unit}]", _APPLY_BOOT
    ),
    "peer_memory.boot.not_checked": Wording(_NOT_CHECKED, _RELOAD_BOOT),
    "peer_memory.boot.not_checked_unit": Wording(_NOT_CHECKED, _APPLY_BOOT),
    "peer_memory.boot.other_provider": Wording(
        "{desired} is configured, but {provider} was checked at this boot", f"An apply did not finish. {_APPLY_BOOT}"
    ),
    "peer_memory.boot.failed": Wording(
        "{provider} did not come up[ ({cause})]: {explanation}",
        "{advice} Afterwards: provision reload --limit {node}",
    ),
    "peer_memory.boot.unloaded": Wording(
        "{module} was loaded at this boot, and is not loaded any more", "Run: provision reload --limit {node}"
    ),
    "peer_memory.boot.loading": Wording(
        "{module} is being loaded (since {since}[, {age} s ago])",
        "Wait until it ends, at most {limit} s after its start, and verify again.",
    ),
    "peer_memory.boot.hangs": Wording("loading {module} hangs (begun {since}[, {age} s ago])[; {unit}]", _LOADING),
    "peer_memory.boot.cut_off": Wording(
        "loading {module} was interrupted without a result (begun {since}[, {age} s ago])[; {unit}]", _LOADING
    ),
    "peer_memory.boot.no_unit": Wording("there is no unit {unit}"),
    "peer_memory.boot.unit_not_enabled": Wording("its unit is {state}, so it does not start at boot"),
    "peer_memory.boot.unit": Wording("its unit is {state}[ ({result})]"),
    "peer_memory.kernels.no_modules": Wording("the running kernel has no NVIDIA modules that others could lack"),
    "peer_memory.kernels.not_built": Wording(
        "{kernels:;}",
        "Before the next boot: provision apply --limit {node} --only peer_memory, which installs headers "
        "and builds for every kernel; or on the node, if the headers are installed: {program} build.[ {advice: }] "
        "Or remove those of {releases} that are not needed.",
    ),
    "peer_memory.kernels.incomplete": Wording("{kernels:;}", "Before the next boot: {steps:;}. Or remove the kernel."),
    "peer_memory.kernels.incomplete_running": Wording(
        "{kernels:;}",
        "Before the next boot: {steps:;}. Or remove the kernel. Install first what insmod loaded.",
    ),
    "peer_memory.kernels.kernel": Wording("kernel {kernel} would come up without {lacks}[ ({explanation})]"),
    "peer_memory.kernels.peermem": Wording("an nvidia_peermem that is no stub"),
    "peer_memory.kernels.ofed": Wording("OFED's RDMA stack"),
    "peer_memory.kernels.rebuild": Wording(
        "dkms autoinstall -k {kernel} (twice: it does not keep the order RDMA stack, driver, nv_peer_mem)"
    ),
    "peer_memory.kernels.rebuild_with_headers": Wording(
        "install the headers of {kernel}, then dkms autoinstall -k {kernel} (twice: it does not keep the order RDMA "
        "stack, driver, nv_peer_mem)"
    ),
    "peer_memory.kernels.not_judged": Wording(
        "the node's own record is older than the modules of {kernels}: whether {module} still fits them is unknown",
        "Run on the node: {program} check",
    ),
    "peer_memory.kernels.ok": Wording("{modules} for all of {kernels}"),
    "peer_memory.routing.virtual_machine": Wording("a virtual machine requires ACS and the IOMMU"),
    "peer_memory.routing.needs": Wording("GPUDirect RDMA needs {needs:;}", "{needs:remedy}"),
    "peer_memory.routing.acs_unknown": Wording(
        "no IOMMU translates between GPUs and cards; ACS is unknown, because lspci is missing"
    ),
    "peer_memory.routing.ok": Wording("neither ACS nor an IOMMU redirects traffic between GPUs and cards"),
    "reload.busy": Wording("a job is running: {jobs}", "Wait until it has ended, or end it, and try again."),
    "reload.busy_unknown": Wording(
        "it is unknown whether a job is running: {cause}",
        "Log in to the node and find out why python3 does not run there.",
    ),
    "reload.not_unloaded": Wording("{cause}", "{advice}"),
    "reload.not_restarted": Wording(
        "{unit} could not be restarted (exit {exit_code}): {output}", "Read on the node: journalctl -b -u {unit}"
    ),
    "reload.script_failed": Wording(
        "the script on the node ended with code {exit_code}: {output}",
        "Check that the login user may become root without a terminal, and that /run is writable.",
    ),
    "reload.no_module": Wording("nothing to load: the provider is none"),
    "reload.never_applied": Wording("the role peer_memory was never applied", _APPLY_BOOT),
    "reload.result_unknown": Wording(
        "the module was reloaded, and its state is unknown, because the probe failed: {cause}",
        "[{advice} ]Run: provision verify --limit {node}",
    ),
    "reload.not_started": Wording("{cause}", "[{advice}]"),
    "reload.unreachable": Wording("{cause}", "[{advice}]"),
    # nvidia_container
    "nvidia_container.toolkit.not_installed": Wording("{package} is not installed", _APPLY),
    "nvidia_container.toolkit.versions_differ": Wording(
        "the toolkit's packages have different versions: {packages}", _APPLY
    ),
    "nvidia_container.toolkit.no_hook": Wording("nvidia-container-runtime-hook is not on the PATH", _APPLY),
    "nvidia_container.toolkit.ok": Wording("{package} {version}"),
    "nvidia_container.runtime.ok": Wording("Docker has the runtime nvidia"),
    "nvidia_container.runtime.cdi": Wording("CDI describes the GPUs: {files}"),
    "nvidia_container.runtime.missing": Wording(
        "Docker has no runtime called nvidia, and no CDI file describes the GPUs", _APPLY
    ),
    # training_image, training_container
    "training_image.no_image": Wording("there is no image to compare with"),
    "training_image.present.none": Wording("the inventory names no training image"),
    "training_image.present.template": Wording("training_image_reference contains a Jinja template"),
    "training_image.present.missing": Wording("the image {image} is not on the node", _APPLY),
    "training_image.present.ok": Wording("{image} is image {id}"),
    "training_image.digest.not_pinned": Wording("the inventory pins no digest (the image has {digests})"),
    "training_image.digest.differs": Wording("the image's digest is {digests}, not {desired}", _APPLY),
    "training_image.digest.ok": Wording("{digest}"),
    "training_container.running.missing": Wording("there is no container {container}", _APPLY),
    "training_container.running.stopped": Wording(
        "the container {container} is {state} (its program ended with code {exit_code})",
        "Find the cause: docker logs --tail 50 {container}. Then run: provision apply --limit {node}",
    ),
    "training_container.running.ok": Wording("{container} runs (not privileged)"),
    "training_container.running.privileged": Wording("{container} runs (privileged)"),
    "training_container.image.differs": Wording(
        "the container was created from another image than the configured one", _APPLY
    ),
    "training_container.image.ok": Wording("created from {id}, the configured image"),
    "training_container.mounts.deleted": Wording(
        "the running container still uses directories that were deleted on the node: {mounts:few}",
        f"Only a new container has the current ones. {_APPLY}",
    ),
    "training_container.mounts.mount": Wording("{source} (mounted in it as {target})"),
    "training_container.mounts.ok": Wording("none of its mounted directories was deleted on the node"),
    "training_container.devices.missing": Wording("devices are missing in the container: {devices}", _APPLY),
    "training_container.devices.none": Wording("the node has no device for the container"),
    "training_container.devices.simulated": Wording(
        "the node has no device for the container (its GPUs are SIMULATED)"
    ),
    "training_container.devices.ok": Wording("it has {devices}"),
    "training_container.limits.too_low": Wording("limits inside the container are too low: {limits:;}", _APPLY),
    "training_container.limits.cut": Wording(
        "limits inside the container are cut to the node's own: {limits:;}", _LIMITS
    ),
    "training_container.limits.ok": Wording("{limits:;}"),
    # container_ssh
    "container_ssh.no_files": Wording("there are no SSH files"),
    "container_ssh.sshd.not_running": Wording(
        "no sshd runs in the container", f"Find the cause: docker logs --tail 50 {{container}}. {_APPLY}"
    ),
    "container_ssh.sshd.no_port": Wording(
        "nothing listens on port {port}", f"Find the cause: docker logs --tail 50 {{container}}. {_APPLY}"
    ),
    "container_ssh.sshd.other_address": Wording("port {port} does not listen on the data address {address}", _APPLY),
    "container_ssh.sshd.ok": Wording("sshd listens on {address} port {port}"),
    "container_ssh.host_key.missing": Wording("the container has no host key yet", _APPLY),
    "container_ssh.host_key.readable": Wording("other users can read private keys: {files}", _APPLY),
    "container_ssh.host_key.ok": Wording("{fingerprint}"),
    "container_ssh.known_hosts.differ": Wording(
        "another host key is pinned than the one in use: {nodes:names}",
        "Run: provision apply --limit {node}[,{others:,}]",
    ),
    "container_ssh.known_hosts.missing": Wording(
        "no host key is pinned for: {nodes:names}", "Run: provision apply --limit {node}[,{others:,}]"
    ),
    "container_ssh.known_hosts.ok": Wording("the host keys of {count} nodes are pinned"),
    "container_ssh.trusted_nodes.differ": Wording("{problems:;}", "Run: provision apply"),
    "container_ssh.trusted_nodes.admits": Wording("authorized_keys still admits {nodes:names}"),
    "container_ssh.trusted_nodes.knows": Wording("known_hosts still knows {nodes:names}"),
    "container_ssh.trusted_nodes.other_key": Wording(
        "authorized_keys admits another key than the one in use of {nodes:names}"
    ),
    "container_ssh.trusted_nodes.not_admitted": Wording("authorized_keys lacks {nodes:names}"),
    "container_ssh.trusted_nodes.not_known": Wording("known_hosts lacks {nodes:names}"),
    "container_ssh.trusted_nodes.ok": Wording("exactly the {count} nodes of the inventory can log in and are known"),
    "container_ssh.pairs.not_tried": Wording("no pairs were tried: no node has a running training container"),
    "container_ssh.pairs.ok": Wording("{count} of {count} logins between containers work and print nothing"),
    "container_ssh.pairs.some_nodes": Wording(
        "{count} of {count} logins between containers work and print nothing, but some nodes could not take part: "
        "{nodes:names}",
        "Run provision verify on these nodes, and fix what failed.",
    ),
    "container_ssh.pairs.failed": Wording(
        "{failed} of {count} logins between containers failed: {problems:;}", "Run: provision apply --limit {nodes:,}"
    ),
    "container_ssh.pairs.problem": Wording("{pairs:names}: {cause}"),
    "container_ssh.pairs.no_answer": Wording("no answer within {seconds} s"),
    "container_ssh.pairs.no_connection": Wording("{cause}"),
    "container_ssh.pairs.ssh": Wording("{cause}"),
    "container_ssh.pairs.prints": Wording("the login prints {bytes} bytes, which breaks MPI's daemons"),
    "container_ssh.pairs.no_result": Wording("the login could not be tried"),
    "container_ssh.host_keys_distinct.no_keys": Wording("no container has a host key yet"),
    "container_ssh.host_keys_distinct.ok": Wording("{count} containers, each with its own host key"),
    "container_ssh.host_keys_distinct.shared": Wording(
        "containers share a host key: {keys:;}",
        "Remove /var/lib/provision/container_ssh/keys/ssh_host_ed25519_key on {others:,} and run: provision apply",
    ),
    "container_ssh.host_keys_distinct.key": Wording("{nodes} share {key}"),
    # cluster
    "cluster.data_addresses.ok": Wording("no two of {nodes} nodes claim the same data address"),
    "cluster.data_addresses.refused": Wording(
        "{nodes:;}", "Set cluster_data_address for these nodes, or check which host answers with their names."
    ),
    "cluster.data_network.not_tried": Wording("no logins between containers were tried"),
    "cluster.data_network.ok": Wording(
        "{nodes} nodes reach each other's data addresses (their sshd listens nowhere else)"
    ),
    "cluster.data_network.unreachable": Wording(
        "data addresses cannot be reached: {pairs:names}",
        "Check addresses, routes and firewalls of the data network on these nodes.",
    ),
    "cluster.data.ok": Wording("all nodes have the same data volumes"),
    "cluster.skew.too_few": Wording("fewer than two nodes report their {what}"),
    "cluster.skew.same": Wording("{nodes} nodes have the same {what}: {values}"),
    "cluster.skew.odd": Wording("{what} {values:;}; {usual} on the {others} others"),
    "cluster.skew.no_majority": Wording("{what} {values:;}; no value has a majority"),
    "cluster.skew.value": Wording("{value} on {nodes:names}"),
    "cluster.skew_os.differ": Wording("{differences:.}", "Install one operating system on all nodes."),
    "cluster.skew_kernel.differ": Wording(
        "{differences:.}", "Upgrade the odd nodes, or reboot those that still run an older kernel."
    ),
    "cluster.skew_docker.differ": Wording("{differences:.}", "Upgrade Docker on the odd nodes."),
    "cluster.skew_image.differ": Wording(
        "{differences:.}", "Pin training_image_digest in the inventory, then run: provision apply"
    ),
    "cluster.skew_rdma_stack.differ": Wording("{differences:.}", "Install one RDMA stack of one version on all nodes."),
    "cluster.skew_firmware.differ": Wording(
        "{differences:.}", "Install the others' firmware on the odd nodes' cards (mlxfwmanager, or flint for one card)."
    ),
    "cluster.skew_port_rate.differ": Wording(
        "{differences:.}", "Check rdma_stack.devices and rdma_stack.port_rate of the odd nodes."
    ),
    "cluster.skew_gpus.differ": Wording(
        "{differences:.}",
        "If the nodes were delivered alike, look for the missing GPU in the BMC and in dmesg, and power-cycle the "
        "node.",
    ),
    "cluster.skew_driver.differ": Wording(
        "{differences:.}",
        "Install one NVIDIA driver on all nodes, and reboot those where an older one is still loaded.",
    ),
    "cluster.skew_vbios.differ": Wording(
        "{differences:.}", "Ask the vendor of the nodes for one VBIOS on all GPUs of a product."
    ),
    "cluster.collective.not_measured": Wording("nothing was measured: {cause}", _SLOW),
    "cluster.collective.not_possible": Wording("nothing was measured: {cause}", "{advice}"),
    "cluster.collective.wrong": Wording(
        "{elements} elements of the sums are wrong ({measured})",
        "Drain the nodes and test their GPUs, memory and links one by one: provision verify --level full --limit NODE",
    ),
    "cluster.collective.slow": Wording("{measured}; {comparison}", _SLOW),
    "cluster.collective.some_nodes": Wording("{measured}; {comparison}; left out: {left_out:few}", _AGAIN),
    "cluster.collective.not_compared": Wording(
        "{measured}; {comparison}", "Run: provision place --gpus 1 --workers 2 --explain"
    ),
    "cluster.collective.ok": Wording("{measured}; {comparison}"),
    "cluster.collective.measured": Wording(
        "all-reduce of {size_mib} MiB over {ranks} ranks on {nodes:names} ({program}, {memory}): {gb_s:.4g} GB/s bus "
        "bandwidth"
    ),
    "cluster.collective.simulated": Wording("the GPUs are SIMULATED, so this does not measure GPUs"),
    "cluster.collective.fraction": Wording(
        "{fraction:.0%} of the predicted {gb_s:.4g} GB/s; {minimum:.0%} is required"
    ),
    "cluster.collective.no_prediction": Wording("there is no prediction ({cause})"),
    "cluster.collective.node": Wording("{name} ({cause})"),
    # profile
    "profile.version": Wording("{component} {version}"),
    "profile.fact_unavailable": Wording("{cause}", "Run provision verify for more about the node."),
    "profile.not_used": Wording("it is not used: jobs start without it"),
    "profile.no_gpu": Wording("nvidia-smi lists no GPU", "See gpu.driver of `provision verify`."),
    "profile.driver.old": Wording(
        "NVIDIA driver {version}: the guide requires {required} or newer", "Install a newer NVIDIA driver."
    ),
    "profile.docker.old": Wording(
        "docker {version}: the guide requires {required} or newer", "Upgrade Docker, or let `provision apply` do it."
    ),
    "profile.nccl.old": Wording(
        "NCCL {version}: the guide requires {required} or newer", "Use a training image with a newer NCCL."
    ),
    "profile.nccl.no_container": Wording(
        "the training container does not run",
        f"{_APPLY}. Or inspect the image: provision image inspect IMAGE",
    ),
    "profile.nccl.missing": Wording(
        "the training container has no NCCL library; PyTorch may contain one",
        "Inspect the image: provision image inspect IMAGE",
    ),
    "profile.system.ok": Wording("{system} is one of the guide's systems"),
    "profile.system.supported": Wording("{system} is not one of the guide's systems, but the roles support it"),
    "profile.system.unsupported": Wording(
        "neither the guide nor the roles support {system}", "Install a supported system: {supported}."
    ),
    "profile.card.old": Wording(
        "{product} has compute capability {capability}, and V100 has {required}",
        "Do not expect the guide's figures: they are those of V100.",
    ),
    "profile.card.unknown": Wording(
        "the driver does not report the generation of {products}",
        "Check that it is V100 or newer. Drivers from 510 on report it.",
    ),
    "profile.card.ok": Wording("{products}: V100 or newer"),
    "profile.disk.unknown": Wording("the size of the disk is unknown"),
    "profile.disk.ok": Wording("the disk for images and containers has {size}"),
    "profile.disk.small": Wording(
        "the disk for images and containers has {size}, and the guide requires {required_gb} GB",
        "Give the node a larger disk, or move Docker's data there: docker_engine_data_root.",
    ),
    "profile.rdma.ok": Wording("{devices}: active, with the {stack} driver"),
    "profile.rdma.none": Wording("there is no RDMA device", "See the checks rdma_stack.* of `provision verify`."),
    "profile.rdma.inactive": Wording("no RDMA device is active", "See the checks rdma_stack.* of `provision verify`."),
    "profile.containerd.missing": Wording("containerd is not installed", "Install the package containerd.io."),
    "profile.containerd.stopped": Wording(
        "containerd is not running (state {state})", "Start it: systemctl enable --now containerd"
    ),
    "profile.cri.disabled": Wording(
        "the CRI plugin is in disabled_plugins of containerd",
        "Write the default configuration to /etc/containerd/config.toml: containerd config default",
    ),
    "profile.cri.enabled": Wording("the CRI plugin is enabled"),
    "profile.cgroups.not_systemd": Wording(
        "containerd does not use the cgroup driver systemd for {runtimes}",
        "Set SystemdCgroup = true in the options of these runtimes in /etc/containerd/config.toml.",
    ),
    "profile.cgroups.systemd": Wording("{runtimes} use the cgroup driver systemd"),
    "profile.nvidia_runtime.missing": Wording(
        "containerd has no runtime with nvidia-container-runtime",
        "Run: nvidia-ctk runtime configure --runtime=containerd, or install NVIDIA's GPU operator.",
    ),
    "profile.nvidia_runtime.ok": Wording("the runtime {runtime} is NVIDIA's"),
    "profile.swap.on": Wording("swap is on: {devices}", "Run swapoff -a, and remove the entries from /etc/fstab."),
    "profile.swap.off": Wording("swap is off"),
    "profile.modules.missing": Wording(
        "the kernel modules {modules} are not loaded",
        "Load them, and name them in /etc/modules-load.d/kubernetes.conf.",
    ),
    "profile.modules.loaded": Wording("{modules} are loaded"),
    "profile.sysctls.off": Wording(
        "{keys} must be 1", "Set them in /etc/sysctl.d/kubernetes.conf, and load br_netfilter before."
    ),
    "profile.sysctls.on": Wording("{keys} are 1"),
    "profile.ports.used": Wording("ports of kubelet or kube-proxy are in use: {ports}", "Stop the programs: ss -ltnp"),
    "profile.ports.free": Wording("{ports} are free"),
    "profile.ports.kubelet": Wording("kubelet runs and uses its ports"),
    "profile.container_toolkit.missing": Wording(
        "neither nvidia-container-toolkit nor nvidia-docker2 is installed", _APPLY
    ),
    # host entries
    "host.unreachable": Wording("cannot be reached: {cause}"),
    "host.no_address": Wording("it has no address on the data network"),
    "host.container_unknown": Wording("the state of its training container is unknown: {cause}"),
    "host.no_container": Wording("it has no training container; run: provision apply"),
    "host.container_stopped": Wording("its training container is {state}"),
    "host.cpus_unknown": Wording("the number of its CPUs is unknown: {cause}"),
    "host.gpus_unknown": Wording("the number of its GPUs is unknown: {cause}"),
    "host.gpus_missing": Wording("only {usable} of its {count} GPUs can be used"),
}
