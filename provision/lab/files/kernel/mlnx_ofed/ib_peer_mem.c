// SPDX-License-Identifier: GPL-2.0
/*
 * SIMULATED: stands in for the peer memory interface of a vendor's RDMA stack. A client can be registered under its
 * name, and one name only once; memory is never asked for. It uses a symbol of ib_core, as the real one is part of it.
 */
#include <linux/kernel.h>
#include <linux/kobject.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>
#include <linux/version.h>
#include <rdma/ib_verbs.h>
#include <rdma/peer_mem.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
#define PARENT mm_kobj
#else
#define PARENT kernel_kobj
#endif

struct registered {
	struct list_head list;
	struct kobject *folder;
	char name[IB_PEER_MEMORY_NAME_MAX];
	char version[IB_PEER_MEMORY_VER_MAX];
};

static LIST_HEAD(clients);
static DEFINE_MUTEX(clients_lock);
static struct kobject *memory_peers;

static ssize_t version_show(struct kobject *folder, struct kobj_attribute *attribute, char *buffer)
{
	struct registered *client;
	ssize_t length = 0;

	mutex_lock(&clients_lock);
	list_for_each_entry(client, &clients, list)
		if (client->folder == folder)
			length = scnprintf(buffer, PAGE_SIZE, "%s\n", client->version);
	mutex_unlock(&clients_lock);
	return length;
}

static struct kobj_attribute version_attribute = __ATTR_RO(version);

static int nothing_to_invalidate(void *handle, u64 core_context)
{
	return 0;
}

static struct registered *find(const char *name)
{
	struct registered *client;

	list_for_each_entry(client, &clients, list)
		if (!strcmp(client->name, name))
			return client;
	return NULL;
}

void *ib_register_peer_memory_client(const struct peer_memory_client *peer, invalidate_peer_memory *invalidate)
{
	struct registered *client, *other;

	client = kzalloc(sizeof(*client), GFP_KERNEL);
	if (!client)
		return NULL;
	strscpy(client->name, peer->name, sizeof(client->name));
	strscpy(client->version, peer->version, sizeof(client->version));
	mutex_lock(&clients_lock);
	other = find(client->name);
	if (!other) {
		INIT_LIST_HEAD(&client->list);
		list_add_tail(&client->list, &clients);
	}
	mutex_unlock(&clients_lock);
	if (other) {
		pr_err("SIMULATED ib_peer_mem: a client called %s is registered already\n", client->name);
		kfree(client);
		return NULL;
	}
	client->folder = kobject_create_and_add(client->name, memory_peers);
	if (client->folder && sysfs_create_file(client->folder, &version_attribute.attr))
		pr_warn("SIMULATED ib_peer_mem: %s has no version file\n", client->name);
	if (invalidate)
		*invalidate = nothing_to_invalidate;
	pr_info("SIMULATED ib_peer_mem: client %s registered (%s)\n", client->name, ib_event_msg(IB_EVENT_PORT_ACTIVE));
	return client;
}
EXPORT_SYMBOL(ib_register_peer_memory_client);

void ib_unregister_peer_memory_client(void *handle)
{
	struct registered *client = handle;

	kobject_put(client->folder);
	mutex_lock(&clients_lock);
	list_del(&client->list);
	mutex_unlock(&clients_lock);
	pr_info("SIMULATED ib_peer_mem: client %s left\n", client->name);
	kfree(client);
}
EXPORT_SYMBOL(ib_unregister_peer_memory_client);

static int __init ib_peer_mem_init(void)
{
	memory_peers = kobject_create_and_add("memory_peers", PARENT);
	if (!memory_peers)
		return -ENOMEM;
	pr_info("SIMULATED ib_peer_mem: peer memory interface %s, without any RDMA card\n", THIS_MODULE->version);
	return 0;
}

static void __exit ib_peer_mem_exit(void)
{
	kobject_put(memory_peers);
}

module_init(ib_peer_mem_init);
module_exit(ib_peer_mem_exit);
MODULE_DESCRIPTION("SIMULATED peer memory interface of a vendor's RDMA stack");
MODULE_VERSION("@VERSION@");
MODULE_LICENSE("GPL");
