// SPDX-License-Identifier: GPL-2.0 OR MIT
/* SIMULATED: stands in for the GPU driver's module. It drives nothing, and its P2P functions give no memory. */
#include <linux/errno.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include "nv-p2p.h"

static struct proc_dir_entry *folder;

int nvidia_p2p_get_pages(u64 token, u32 va_space, u64 address, u64 length, struct nvidia_p2p_page_table **table,
			 void (*freed)(void *data), void *data)
{
	return -EINVAL;
}
EXPORT_SYMBOL(nvidia_p2p_get_pages);

int nvidia_p2p_put_pages(u64 token, u32 va_space, u64 address, struct nvidia_p2p_page_table *table)
{
	return -EINVAL;
}
EXPORT_SYMBOL(nvidia_p2p_put_pages);

int nvidia_p2p_dma_map_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *table,
			     struct nvidia_p2p_dma_mapping **mapping)
{
	return -EINVAL;
}
EXPORT_SYMBOL(nvidia_p2p_dma_map_pages);

int nvidia_p2p_dma_unmap_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *table,
			       struct nvidia_p2p_dma_mapping *mapping)
{
	return -EINVAL;
}
EXPORT_SYMBOL(nvidia_p2p_dma_unmap_pages);

int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *table)
{
	return 0;
}
EXPORT_SYMBOL(nvidia_p2p_free_page_table);

int nvidia_p2p_free_dma_mapping(struct nvidia_p2p_dma_mapping *mapping)
{
	return 0;
}
EXPORT_SYMBOL(nvidia_p2p_free_dma_mapping);

static int version_show(struct seq_file *file, void *data)
{
	seq_puts(file, "NVRM version: NVIDIA UNIX @FLAVOUR@ Kernel Module  @DRIVER@  SIMULATED\n");
	return 0;
}

static int __init nvidia_init(void)
{
	folder = proc_mkdir("driver/nvidia", NULL);
	if (!folder || !proc_create_single("version", 0444, folder, version_show)) {
		proc_remove(folder);
		return -ENOMEM;
	}
	pr_info("SIMULATED nvidia: driver @DRIVER@, without any GPU\n");
	return 0;
}

static void __exit nvidia_exit(void)
{
	proc_remove(folder);
}

module_init(nvidia_init);
module_exit(nvidia_exit);
MODULE_DESCRIPTION("SIMULATED GPU driver");
MODULE_VERSION("@DRIVER@");
MODULE_LICENSE("@LICENSE@");
