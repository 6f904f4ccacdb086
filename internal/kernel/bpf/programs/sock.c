// Programs of cgroup v2 that choose a backend when a socket connects or sends, so that no packet
// is translated. README.md draws the maps.
//
// A program that cannot decide exactly what the packet plane would decide leaves the address as it is: the
// packets then go to the packet plane. No program ever makes a system call fail.

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define AF_INET 2
#define AF_INET6 10

#define always_inline inline __attribute__((always_inline))

enum { passed = 1 }; // the system call goes on

// Addresses of both families have 16 bytes; those of IPv4 are mapped ones (::ffff:a.b.c.d).
// Addresses and ports are in network byte order.
struct address {
	__u32 word[4];
};

struct endpoint {
	struct address addr;
	__u16 port;
	__u16 zero;
};

// Clients of a frontend. Only these have sockets that this node sees.
enum { of_pods = 0, of_node = 1 };

struct frontend_key {
	struct address addr; // unspecified for NodePorts
	__u16 port;
	__u8 protocol;
	__u8 clients;
};

// A pool is the backends of a port of a Service: a hash of its name. The last byte tells the pools of a port apart.
struct pool {
	__u32 word[4];
};

struct frontend {
	struct pool pool;
	__u32 count; // of backends
};

struct slot_key {
	struct pool pool;
	__u32 slot;
};

// With port 0: the address may be on this node, and connect to itself.
struct member_key {
	struct pool pool;
	struct endpoint backend;
};

struct prefix {
	__u32 bits;
	struct address addr;
};

struct client_key {
	__u64 netns;
	__u32 is4;
	__u32 zero;
};

struct connected {
	__u64 socket;
	struct endpoint backend, service;
};

struct flow_key {
	__u64 socket;
	struct endpoint to;
	__u32 protocol;
};

// The network namespace of the node.
const volatile __u64 node_netns = 0;

// Maps that the program of user space writes.

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct frontend_key);
	__type(value, struct frontend);
} frontends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct slot_key);
	__type(value, struct endpoint);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct member_key);
	__type(value, __u32);
} members SEC(".maps");

// Addresses that serve NodePorts.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct address);
	__type(value, __u32);
} node_addrs SEC(".maps");

// Addresses by which pods on this node are recognized.
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct prefix);
	__type(value, __u32);
} pod_prefixes SEC(".maps");

// Maps that the programs write.

// The source address of a network namespace, as its last TCP connection had it.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct client_key);
	__type(value, struct address);
} clients SEC(".maps");

// From the Service to the backend that a UDP socket has chosen for it.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct endpoint);
} chosen SEC(".maps");

// The Service to which a TCP socket has connected, for what its program sees as its peer. Cookies of sockets count up, so
// this has the newest ones. Neither of the maps made for this is as fast: an LRU takes 0.3 us, storage of sockets 0.7 us.
enum { newest = 65536 };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, newest);
	__type(key, __u32);
	__type(value, struct connected);
} connections SEC(".maps");

// From the backend to the Service, for where datagrams seem to come from.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct endpoint);
} originals SEC(".maps");

// Connections and flows that were decided here, by pool.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct pool);
	__type(value, __u64);
} counts SEC(".maps");

static always_inline __u32 is4(const struct address *a)
{
	return a->word[0] == 0 && a->word[1] == 0 && a->word[2] == bpf_htonl(0xffff);
}

static always_inline int equal(const struct address *a, const struct address *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] && a->word[3] == b->word[3];
}

static always_inline struct address mapped(__u32 addr)
{
	struct address a = { .word = { 0, 0, bpf_htonl(0xffff), addr } };
	return a;
}

static always_inline int has_member(const struct pool *p, const struct endpoint *backend)
{
	struct member_key k = { .pool = *p, .backend = *backend };
	return bpf_map_lookup_elem(&members, &k) != 0;
}

// frontend_of finds the frontend at an address; one of this node has those of NodePorts.
static always_inline struct frontend *frontend_of(const struct endpoint *to, __u8 protocol, __u8 from)
{
	struct frontend_key k = { .addr = to->addr, .port = to->port, .protocol = protocol, .clients = from };
	struct frontend *f = bpf_map_lookup_elem(&frontends, &k);
	if (f || !bpf_map_lookup_elem(&node_addrs, &to->addr))
		return f;
	if (is4(&to->addr))
		k.addr = mapped(0);
	else
		__builtin_memset(&k.addr, 0, sizeof(k.addr));
	return bpf_map_lookup_elem(&frontends, &k);
}

// is_pod reports whether the clients in a namespace are known to be a pod of this node, other than a
// backend of this pool: a connection of a backend to itself needs source NAT.
static always_inline int is_pod(__u64 netns, const struct endpoint *to, const struct pool *p)
{
	struct client_key k = { .netns = netns, .is4 = is4(&to->addr) };
	struct address *own = bpf_map_lookup_elem(&clients, &k);
	if (!own)
		return 0;
	struct prefix whole = { .bits = 128, .addr = *own };
	if (!bpf_map_lookup_elem(&pod_prefixes, &whole))
		return 0;
	struct endpoint self = { .addr = *own };
	return !has_member(p, &self);
}

// is_bound reports whether the program has chosen the source of the connection.
static always_inline int is_bound(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	if (!sk)
		return 1;
	if (sk->bound_dev_if || sk->src_ip4)
		return 1;
	if (sk->family != AF_INET6)
		return 0;
	return sk->src_ip6[0] || sk->src_ip6[1] || sk->src_ip6[2] || sk->src_ip6[3];
}

static always_inline void count(const struct pool *p)
{
	__u64 one = 1, *n = bpf_map_lookup_elem(&counts, p);
	if (n)
		(*n)++;
	else
		bpf_map_update_elem(&counts, p, &one, BPF_ANY);
}

static always_inline int draw(const struct frontend *f, struct endpoint *backend)
{
	struct slot_key k = { .pool = f->pool };
	if (!f->count)
		return 0;
	k.slot = bpf_get_prandom_u32() % f->count;
	struct endpoint *b = bpf_map_lookup_elem(&slots, &k);
	if (!b)
		return 0;
	*backend = *b;
	return 1;
}

static always_inline void remember(__u64 socket, const struct endpoint *backend, const struct endpoint *service)
{
	__u32 i = socket % newest;
	struct connected *c = bpf_map_lookup_elem(&connections, &i);
	if (!c)
		return;
	c->socket = 0; // until all of it is there
	c->backend = *backend;
	c->service = *service;
	c->socket = socket;
}

// balance chooses a backend, and returns 0 if the packet plane must.
static always_inline int balance(struct bpf_sock_addr *ctx, const struct endpoint *to, struct endpoint *backend)
{
	__u8 protocol = ctx->protocol;
	__u64 netns = bpf_get_netns_cookie(ctx);
	__u8 from = netns == node_netns ? of_node : of_pods;
	struct frontend *f = frontend_of(to, protocol, from);
	if (!f || is_bound(ctx) || (from == of_pods && !is_pod(netns, to, &f->pool)))
		return 0;
	struct flow_key k = { .to = *to, .protocol = protocol };
	if (protocol == IPPROTO_UDP) {
		k.socket = bpf_get_socket_cookie(ctx);
		struct endpoint *last = bpf_map_lookup_elem(&chosen, &k);
		if (last && has_member(&f->pool, last)) {
			*backend = *last;
			k.to = *backend;
			if (!bpf_map_lookup_elem(&originals, &k)) // it was evicted
				bpf_map_update_elem(&originals, &k, to, BPF_ANY);
			return 1;
		}
	}
	if (!draw(f, backend))
		return 0;
	if (protocol == IPPROTO_UDP)
		bpf_map_update_elem(&chosen, &k, backend, BPF_ANY);
	count(&f->pool);
	if (protocol == IPPROTO_UDP) {
		k.to = *backend;
		bpf_map_update_elem(&originals, &k, to, BPF_ANY);
	} else {
		remember(bpf_get_socket_cookie(ctx), backend, to);
	}
	return 1;
}

// peer finds the Service to which a TCP socket has connected.
static always_inline int peer(struct bpf_sock_addr *ctx, struct endpoint *from)
{
	__u64 socket = bpf_get_socket_cookie(ctx);
	__u32 i = socket % newest;
	struct connected *c = bpf_map_lookup_elem(&connections, &i);
	if (!c || c->socket != socket || c->backend.port != from->port || !equal(&c->backend.addr, &from->addr))
		return 0;
	*from = c->service;
	return 1;
}

// original finds the Service to which a UDP socket has sent.
static always_inline int original(struct bpf_sock_addr *ctx, struct endpoint *from)
{
	struct flow_key k = { .socket = bpf_get_socket_cookie(ctx), .to = *from, .protocol = ctx->protocol };
	struct endpoint *to = bpf_map_lookup_elem(&originals, &k);
	if (!to)
		return 0;
	*from = *to;
	return 1;
}

static always_inline struct endpoint read4(struct bpf_sock_addr *ctx)
{
	struct endpoint e = { .addr = mapped(ctx->user_ip4), .port = ctx->user_port };
	return e;
}

static always_inline void write4(struct bpf_sock_addr *ctx, const struct endpoint *e)
{
	ctx->user_ip4 = e->addr.word[3];
	ctx->user_port = e->port;
}

static always_inline struct endpoint read6(struct bpf_sock_addr *ctx)
{
	struct endpoint e = { .port = ctx->user_port };
	e.addr.word[0] = ctx->user_ip6[0];
	e.addr.word[1] = ctx->user_ip6[1];
	e.addr.word[2] = ctx->user_ip6[2];
	e.addr.word[3] = ctx->user_ip6[3];
	return e;
}

static always_inline void write6(struct bpf_sock_addr *ctx, const struct endpoint *e)
{
	ctx->user_ip6[0] = e->addr.word[0];
	ctx->user_ip6[1] = e->addr.word[1];
	ctx->user_ip6[2] = e->addr.word[2];
	ctx->user_ip6[3] = e->addr.word[3];
	ctx->user_port = e->port;
}

#define ADDRESS_PROGRAM(name, section, family, condition, decide)              \
	SEC(section) int name(struct bpf_sock_addr *ctx)                       \
	{                                                                      \
		struct endpoint seen = read##family(ctx), now = seen;          \
		if ((condition) && decide)                                     \
			write##family(ctx, &now);                              \
		return passed;                                                 \
	}

// A connected UDP socket would stay on a backend that is gone: the packet plane has its packets.
ADDRESS_PROGRAM(sluice_connect4, "cgroup/connect4", 4, ctx->protocol == IPPROTO_TCP, balance(ctx, &seen, &now))
ADDRESS_PROGRAM(sluice_connect6, "cgroup/connect6", 6, ctx->protocol == IPPROTO_TCP, balance(ctx, &seen, &now))
ADDRESS_PROGRAM(sluice_sendmsg4, "cgroup/sendmsg4", 4, ctx->protocol == IPPROTO_UDP, balance(ctx, &seen, &now))
ADDRESS_PROGRAM(sluice_sendmsg6, "cgroup/sendmsg6", 6, ctx->protocol == IPPROTO_UDP, balance(ctx, &seen, &now))
ADDRESS_PROGRAM(sluice_recvmsg4, "cgroup/recvmsg4", 4, 1, original(ctx, &now))
ADDRESS_PROGRAM(sluice_recvmsg6, "cgroup/recvmsg6", 6, 1, original(ctx, &now))
ADDRESS_PROGRAM(sluice_getpeer4, "cgroup/getpeername4", 4, 1, peer(ctx, &now))
ADDRESS_PROGRAM(sluice_getpeer6, "cgroup/getpeername6", 6, 1, peer(ctx, &now))

// sluice_learn remembers the source address of a network namespace.
SEC("sockops") int sluice_learn(struct bpf_sock_ops *ctx)
{
	if (ctx->op != BPF_SOCK_OPS_TCP_CONNECT_CB)
		return 1;
	struct client_key k = { .netns = bpf_get_netns_cookie(ctx) };
	struct address own = {};
	if (k.netns == node_netns)
		return 1;
	if (ctx->family == AF_INET) {
		own = mapped(ctx->local_ip4);
	} else {
		own.word[0] = ctx->local_ip6[0];
		own.word[1] = ctx->local_ip6[1];
		own.word[2] = ctx->local_ip6[2];
		own.word[3] = ctx->local_ip6[3];
	}
	k.is4 = is4(&own);
	if (k.is4 ? (own.word[3] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000)
		  : own.word[0] == 0 || (own.word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000))
		return 1; // loopback, link-local: not what other connections have
	struct address *last = bpf_map_lookup_elem(&clients, &k);
	if (!last || !equal(last, &own))
		bpf_map_update_elem(&clients, &k, &own, BPF_ANY);
	return 1;
}

char _license[] SEC("license") = "Apache-2.0";
