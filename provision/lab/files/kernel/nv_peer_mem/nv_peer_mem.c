// SPDX-License-Identifier: GPL-2.0
/* SIMULATED: stands in for nv_peer_mem @VERSION@. It registers itself with the RDMA stack; there is no GPU memory. */
#include <linux/errno.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <rdma/ib_verbs.h>
#include <rdma/peer_mem.h>
#include "nv-p2p.h"

static int enable_dbg;
module_param(enable_dbg, int, 0);
MODULE_PARM_DESC(enable_dbg, "1: say more");

static int acquire(unsigned long address, size_t size, void *private_data, char *peer_name, void **client_context)
{
	struct nvidia_p2p_page_table *table = NULL;

	if (nvidia_p2p_get_pages(0, 0, address, size, &table, NULL, NULL) == 0)
		nvidia_p2p_put_pages(0, 0, address, table);
	return 0; /* not memory of a GPU: there is none */
}

@CLIENTS@
/* Whoever holds it open stands for a job whose memory is registered: the module is in use. */
static const struct file_operations job_file = { .owner = THIS_MODULE };
static struct miscdevice job = {
	.minor = MISC_DYNAMIC_MINOR, .name = "simulated_gpu_job", .fops = &job_file, .mode = 0600
};

static int __init nv_peer_mem_init(void)
{
	if (enable_dbg)
		pr_info("SIMULATED nv_peer_mem: %s\n", ib_event_msg(IB_EVENT_PORT_ACTIVE));
	if (misc_register(&job))
		return -EINVAL;
	if (!register_all()) {
		misc_deregister(&job);
		pr_err("SIMULATED nv_peer_mem: error while registering client\n");
		return -EINVAL;
	}
	pr_info("SIMULATED nv_peer_mem: version @VERSION@ registered, without any GPU\n");
	return 0;
}

static void __exit nv_peer_mem_exit(void)
{
	unregister_all();
	misc_deregister(&job);
}

module_init(nv_peer_mem_init);
module_exit(nv_peer_mem_exit);
MODULE_DESCRIPTION("SIMULATED peer memory client nv_peer_mem");
MODULE_VERSION("@VERSION@");
MODULE_LICENSE("Dual BSD/GPL");
