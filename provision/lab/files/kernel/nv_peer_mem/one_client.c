static struct peer_memory_client client = { .name = "nv_mem", .version = "@VERSION@", .acquire = acquire };
static invalidate_peer_memory invalidate;
static void *handle;

static bool register_all(void)
{
	handle = ib_register_peer_memory_client(&client, &invalidate);
	return handle;
}

static void unregister_all(void)
{
	ib_unregister_peer_memory_client(handle);
}
