// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * SIMULATED: stands in for nvidia-peermem. Like the real one it is built empty, and refuses to load without a word,
 * where the driver was built before the RDMA stack.
 */
#include <linux/errno.h>
#include <linux/module.h>
#include "nv-p2p.h"

#ifdef PEER_MEMORY_PRESENT
#include <rdma/ib_verbs.h>
#include <rdma/peer_mem.h>

static struct peer_memory_client client = { .name = "nv_mem", .version = "@DRIVER@" };
static invalidate_peer_memory invalidate;
static void *handle;

static int __init nvidia_peermem_init(void)
{
	handle = ib_register_peer_memory_client(&client, &invalidate);
	if (!handle)
		return -EINVAL;
	nvidia_p2p_free_page_table(NULL);
	pr_info("SIMULATED nvidia-peermem: registered (%s), without any GPU\n", ib_event_msg(IB_EVENT_PORT_ACTIVE));
	return 0;
}

static void __exit nvidia_peermem_exit(void)
{
	ib_unregister_peer_memory_client(handle);
}
#else
static int __init nvidia_peermem_init(void)
{
	return -EINVAL;
}

static void __exit nvidia_peermem_exit(void)
{
}
#endif

static int peerdirect_support;
module_param(peerdirect_support, int, 0444);
MODULE_PARM_DESC(peerdirect_support, "1: interface of an old RDMA stack; it changes nothing here");

module_init(nvidia_peermem_init);
module_exit(nvidia_peermem_exit);
MODULE_DESCRIPTION("SIMULATED peer memory client of the GPU driver");
MODULE_VERSION("@DRIVER@");
MODULE_LICENSE("Dual MIT/GPL");
