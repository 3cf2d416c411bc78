/* SPDX-License-Identifier: GPL-2.0 */
/*
 * SIMULATED: the peer memory interface as clients of a vendor's RDMA stack see it. Written from the interface's
 * names and types alone. Stack @VERSION@.
 */
#ifndef PEER_MEM_H
#define PEER_MEM_H

#include <linux/device.h>
#include <linux/scatterlist.h>
#include <linux/types.h>

#define IB_PEER_MEMORY_NAME_MAX 64
#define IB_PEER_MEMORY_VER_MAX 16

typedef int (*invalidate_peer_memory)(void *handle, u64 core_context);

struct peer_memory_client {
	char name[IB_PEER_MEMORY_NAME_MAX];
	char version[IB_PEER_MEMORY_VER_MAX];
	int (*acquire)(unsigned long address, size_t size, void *private_data, char *peer_name, void **client_context);
	int (*get_pages)(unsigned long address, size_t size, int write, int force, struct sg_table *table,
			 void *client_context, u64 core_context);
	int (*dma_map)(struct sg_table *table, void *client_context, struct device *device, int dmasync, int *mapped);
	int (*dma_unmap)(struct sg_table *table, void *client_context, struct device *device);
	void (*put_pages)(struct sg_table *table, void *client_context);
	unsigned long (*get_page_size)(void *client_context);
	void (*release)(void *client_context);
@MEMBERS@};
@EXTENSION@
void *ib_register_peer_memory_client(const struct peer_memory_client *peer, invalidate_peer_memory *invalidate);
void ib_unregister_peer_memory_client(void *handle);

#endif
