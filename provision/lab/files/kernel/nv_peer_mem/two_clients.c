static struct peer_memory_client_ex client = {
	.client = { .name = "nv_mem", .version = "@VERSION@", .acquire = acquire },
	.ex_size = sizeof(struct peer_memory_client_ex),
};
static struct peer_memory_client_ex client_nc = {
	.client = { .name = "nv_mem_nc", .version = "@VERSION@", .acquire = acquire },
	.ex_size = sizeof(struct peer_memory_client_ex),
	.flags = PEER_MEM_INVALIDATE_UNMAPS,
};
static invalidate_peer_memory invalidate;
static void *handle, *handle_nc;

static bool register_all(void)
{
	handle = ib_register_peer_memory_client(&client.client, &invalidate);
	if (!handle)
		return false;
	handle_nc = ib_register_peer_memory_client(&client_nc.client, NULL);
	if (!handle_nc)
		ib_unregister_peer_memory_client(handle);
	return handle_nc;
}

static void unregister_all(void)
{
	ib_unregister_peer_memory_client(handle_nc);
	ib_unregister_peer_memory_client(handle);
}
