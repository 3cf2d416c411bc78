/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* SIMULATED: the GPU driver's P2P interface, written from its names and types alone. Driver @DRIVER@. */
#ifndef NV_P2P_H
#define NV_P2P_H

#include <linux/pci.h>
#include <linux/types.h>

struct nvidia_p2p_page {
	u64 physical_address;
};

struct nvidia_p2p_page_table {
	u32 version;
	u32 page_size;
	struct nvidia_p2p_page **pages;
	u32 entries;
@MEMBERS@};

struct nvidia_p2p_dma_mapping {
	u32 version;
	u32 entries;
	u64 *dma_addresses;
};

int nvidia_p2p_get_pages(u64 token, u32 va_space, u64 address, u64 length, struct nvidia_p2p_page_table **table,
			 void (*freed)(void *data), void *data);
int nvidia_p2p_put_pages(u64 token, u32 va_space, u64 address, struct nvidia_p2p_page_table *table);
int nvidia_p2p_dma_map_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *table,
			     struct nvidia_p2p_dma_mapping **mapping);
int nvidia_p2p_dma_unmap_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *table,
			       struct nvidia_p2p_dma_mapping *mapping);
int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *table);
int nvidia_p2p_free_dma_mapping(struct nvidia_p2p_dma_mapping *mapping);

#endif
