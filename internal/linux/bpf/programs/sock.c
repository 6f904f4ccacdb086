// Programs of cgroup v2 that choose a backend when a socket connects or sends, so that no packet
// is translated. README.md draws the maps.
//
// A program that cannot decide exactly what the packet plane would decide leaves the address as it is: the
// packets then go to the packet plane. No program makes a system call fail.

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define AF_INET 2
#define AF_INET6 10

#define DNS bpf_htons(53)

#define always_inline inline __attribute__((always_inline))

enum { allow = 1 }; // the system call goes on

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

// How a backend is chosen. by_hash: slots are a table of Maglev, and the address of the client chooses one. by_load:
// each backend has one slot, and the one with the fewest connections for its weight is chosen.
enum { by_chance = 0, by_hash = 1, by_load = 2 };

struct frontend {
	struct pool pool;
	__u32 count; // of slots
	__u8 scheduler;
	__u8 slow_start; // some backends may be new, and get a part of their share
	__u16 zero;
	__u64 not_local; // bit n: no backend of the pool on this node has an address that ends with these 6 bits
};

struct slot_key {
	struct pool pool;
	__u32 slot;
};

struct slot {
	struct address addr;
	__u16 port;
	__u16 zero;
	__u32 weight; // for by_load
};

// With port 0: the address may be on this node, and connect to itself.
struct member_key {
	struct pool pool;
	struct endpoint backend;
};

// While a backend is new its share grows. Times are of the clock that bpf_ktime_get_ns reads.
struct ramp {
	__u64 from, until;
};

// The load of a backend.
struct load {
	__u32 counted; // connections, when user space counted them last
	__u32 since;   // connections since then
};

struct client_key {
	__u64 netns;
	__u32 is4;
	__u32 zero;
};

// The backend to which a UDP socket is connected in place of a Service.
struct connected {
	struct endpoint backend, service;
	struct pool pool;
	__u64 netns;
};

// The backend of a TCP socket, the Service to which its program has connected it, and when. since is 0 if nothing
// measures how long it takes.
struct connection {
	__u64 socket;
	__u64 since;
	struct endpoint backend, service;
	struct pool pool;
};

// Connections whose cookies have the same hash. The next one replaces the oldest.
enum { ways = 4 };
struct connection_bucket {
	struct connection way[ways];
	__u64 next;
};

// How long connections took until they were established. Bucket n counts those that took at most 100 us << n, and longer
// than the bucket before allows; the last one counts all others.
enum { bounds = 17, first_bound = 100000 };
struct duration {
	__u64 sum; // in ns
	__u64 bucket[bounds + 1];
};

struct flow_key {
	__u64 socket;
	struct endpoint to;
	__u32 protocol;
};

// The backend that a UDP socket has chosen for a Service. With port 0: the packet plane has chosen one, which the
// socket keeps. The kernel may reuse an entry for another flow while a program reads it, which the copy of the key
// shows.
struct choice {
	struct flow_key flow;
	struct endpoint backend;
	__u32 repeats;    // since the entry was created
	__u64 generation; // of the maps by which the choice was verified; 0: unknown
};

// How many backends a decision has at most.
enum { most_cached = 4 };

// The Service for which a UDP socket has chosen a backend, with a copy of the key as in a choice.
struct reply {
	struct flow_key flow;
	struct endpoint service;
	__u32 zero;
};

// A decision for TCP connections of a network namespace to a Service. It is right as long as the tables do not change.
struct decision {
	__u32 writes; // odd while the entry is written
	struct endpoint service;
	struct address client;
	__u64 netns;
	__u64 generation;
	struct frontend frontend;
	__u32 count; // of backends; 0: they are in slots
	struct endpoint backends[most_cached];
};

// The network namespace of the node.
const volatile __u64 node_netns = 0;

// UDP sockets that connect are balanced: they can be destroyed, as a connected socket does not leave a backend that is
// gone.
const volatile _Bool connected_udp = 0;

// Whether sluice_sockops is attached.
const volatile _Bool measures = 0;

// Which connections are for packets, whatever their Service. Bit n: those of processes in the cgroups of the map
// exempt, and below, that are n levels below the root of all cgroups. Bit 0: those of processes in that root, as
// threads of the kernel are, but not below.
const volatile __u32 exempting = 0;

#define MAP(name, map_type, flags, entries, key_type, value_type)              \
	struct {                                                               \
		__uint(type, map_type);                                        \
		__uint(map_flags, flags);                                      \
		__uint(max_entries, entries);                                  \
		__type(key, key_type);                                         \
		__type(value, value_type);                                     \
	} name SEC(".maps")

#define HASH(name, entries, key_type, value_type)                              \
	MAP(name, BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC, entries, key_type, value_type)

// Maps of the route table. User space creates them larger.

HASH(frontends, 1, struct frontend_key, struct frontend);
HASH(slots, 1, struct slot_key, struct slot);
HASH(members, 1, struct member_key, __u32);

// Addresses that serve NodePorts.
HASH(node_addrs, 1, struct address, __u32);

// The number of the present content of the maps above. It is odd while user space changes them, and a new one
// afterwards.
MAP(generation, BPF_MAP_TYPE_ARRAY, 0, 1, __u32, __u64);

// Maps that other parts of user space write.

// The source addresses of pods of this node, by their network namespaces, and the primary addresses of the node. Clients
// in other namespaces are for packets.
HASH(clients, 16384, struct client_key, struct address);

// The ids of cgroups: connections of processes in them, and below, are for packets.
HASH(exempt, 65536, __u64, __u32);

HASH(new_backends, 65536, struct member_key, struct ramp);

// The connections of this node to backends of frontends that are by_load: user space writes what it counts, and
// programs add the connections since. A backend that is not here is chosen by chance.
HASH(loads, 65536, struct endpoint, struct load);

// Maps that the programs write.

// The last decisions of each processor, by a hash of the Service and the network namespace: one look-up in place of up
// to five, and Services that are used often stay in the cache of the processor, however many there are.
enum { cache_size = 256 };
MAP(decisions, BPF_MAP_TYPE_PERCPU_ARRAY, 0, cache_size, __u32, struct decision);

// From the Service to the backend that a UDP socket has chosen for it.
MAP(udp_choices, BPF_MAP_TYPE_LRU_HASH, 0, 65536, struct flow_key, struct choice);

// The TCP connections of the last sockets, for what a program sees as its peer. The kernel gives each processor 4,096
// cookies at a time, so that their order is not that of the sockets: buckets are chosen by a hash. TestAgeOfConnections
// computes how long they last. An LRU would take 0.3 us for each connection, storage of sockets 0.7 us.
enum { buckets = 16384 };
MAP(connections, BPF_MAP_TYPE_ARRAY, 0, buckets, __u32, struct connection_bucket);

// The UDP sockets that are connected through Services, until they are closed. It does not evict: a socket that is not
// here could not be destroyed when its backend is gone. Without room the packet plane has the sockets that connect.
HASH(udp_sockets, 65536, __u64, struct connected);

// From the backend to the Service, for where datagrams seem to come from.
MAP(udp_replies, BPF_MAP_TYPE_LRU_HASH, 0, 65536, struct flow_key, struct reply);

// Connections and flows that were decided here, by pool.
MAP(counts, BPF_MAP_TYPE_LRU_PERCPU_HASH, 0, 65536, struct pool, __u64);

// The same by pool and backend. Not for each processor: with 64 of them that would take 40 MB.
MAP(backend_counts, BPF_MAP_TYPE_LRU_HASH, 0, 65536, struct member_key, __u64);

// How long TCP connections took, of the last pools. Not for each processor either.
MAP(durations, BPF_MAP_TYPE_LRU_HASH, 0, 1024, struct pool, struct duration);

static always_inline __u32 is4(const struct address *a)
{
	return a->word[0] == 0 && a->word[1] == 0 && a->word[2] == bpf_htonl(0xffff);
}

static always_inline int equal(const struct address *a, const struct address *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] && a->word[3] == b->word[3];
}

static always_inline int same(const struct endpoint *a, const struct endpoint *b)
{
	return a->port == b->port && equal(&a->addr, &b->addr);
}

static always_inline int same_pool(const struct pool *a, const struct pool *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] && a->word[3] == b->word[3];
}

static always_inline struct address mapped(__u32 addr)
{
	struct address a = { .word = { 0, 0, bpf_htonl(0xffff), addr } };
	return a;
}

static always_inline __u32 mix(__u32 h)
{
	h = (h ^ (h >> 16)) * 0x85ebca6b;
	h = (h ^ (h >> 13)) * 0xc2b2ae35;
	return h ^ (h >> 16);
}

// current_generation returns the generation of the maps; 0 while user space changes them.
static always_inline __u64 current_generation(void)
{
	__u32 only = 0;
	__u64 *g = bpf_map_lookup_elem(&generation, &only);
	return g && !(*g & 1) ? *g : 0;
}

static always_inline int has_member(const struct pool *p, const struct endpoint *backend)
{
	struct member_key k = { .pool = *p, .backend = *backend };
	return bpf_map_lookup_elem(&members, &k) != 0;
}

// is_unspecified reports whether an address is unspecified, which connects to the own host. The keys of NodePorts have
// it too.
static always_inline int is_unspecified(const struct address *a)
{
	return !a->word[3] && !a->word[0] && !a->word[1] && (!a->word[2] || is4(a));
}

// frontend_of finds the frontend at an address; one of this node has those of NodePorts.
static always_inline struct frontend *frontend_of(const struct endpoint *to, __u8 protocol, __u8 from)
{
	struct frontend_key k = { .addr = to->addr, .port = to->port, .protocol = protocol, .clients = from };
	if (is_unspecified(&to->addr))
		return 0;
	struct frontend *f = bpf_map_lookup_elem(&frontends, &k);
	if (f || !bpf_map_lookup_elem(&node_addrs, &to->addr))
		return f;
	if (is4(&to->addr))
		k.addr = mapped(0);
	else
		__builtin_memset(&k.addr, 0, sizeof(k.addr));
	return bpf_map_lookup_elem(&frontends, &k);
}

// A process that connects, as far as its socket tells.
struct client {
	__u64 netns;
	__u8 kind;
	struct address addr; // of a pod
};

// is_pod finds the address of a client, and reports whether it is a pod of this node, other than a backend of the
// pool: a connection of a backend to itself needs source NAT. A connection to the pod's own address stays in the pod.
static always_inline int is_pod(struct client *c, const struct endpoint *to, const struct frontend *f)
{
	struct client_key k = { .netns = c->netns, .is4 = is4(&to->addr) };
	struct address *own = bpf_map_lookup_elem(&clients, &k);
	if (!own)
		return 0;
	c->addr = *own;
	if (equal(&c->addr, &to->addr))
		return 0;
	if (f->not_local >> (bpf_ntohl(c->addr.word[3]) & 63) & 1)
		return 1;
	struct endpoint self = { .addr = c->addr };
	return !has_member(&f->pool, &self);
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

static always_inline void count(const struct pool *p, const struct endpoint *backend)
{
	struct member_key k = { .pool = *p, .backend = *backend };
	__u64 zero = 0, one = 1, *n = bpf_map_lookup_elem(&counts, p);
	if (n)
		(*n)++;
	else
		bpf_map_update_elem(&counts, p, &one, BPF_ANY);
	n = bpf_map_lookup_elem(&backend_counts, &k);
	if (!n) {
		bpf_map_update_elem(&backend_counts, &k, &zero, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&backend_counts, &k);
	}
	if (n)
		__sync_fetch_and_add(n, 1);
}

// is_exempt reports whether the connections of this process are for packets. The verifier removes the code of levels
// without exempt cgroups.
enum { deepest = 16 };
static always_inline int is_exempt(void)
{
	if (exempting & 1 && !bpf_get_current_ancestor_cgroup_id(1))
		return 1;
#pragma unroll
	for (int level = 1; level <= deepest; level++) {
		if (!(exempting >> level & 1))
			continue;
		__u64 id = bpf_get_current_ancestor_cgroup_id(level);
		if (!id)
			return 0;
		if (bpf_map_lookup_elem(&exempt, &id))
			return 1;
	}
	return 0;
}

// client_of returns the client that connects, without its address.
static always_inline struct client client_of(struct bpf_sock_addr *ctx)
{
	struct client c = { .netns = bpf_get_netns_cookie(ctx) };
	c.kind = c.netns == node_netns ? of_node : of_pods;
	return c;
}

// allowed finds the frontend of a connection, unless its socket or process makes it one for packets.
static always_inline struct frontend *allowed(struct bpf_sock_addr *ctx, const struct endpoint *to, const struct client *c)
{
	struct frontend *f = frontend_of(to, ctx->protocol, c->kind);
	return !f || is_bound(ctx) || is_exempt() ? 0 : f;
}

// is_known reports whether a client is the node or a known pod.
static always_inline int is_known(struct client *c, const struct endpoint *to, const struct frontend *f)
{
	return c->kind == of_node || is_pod(c, to, f);
}

// decidable finds the frontend of a connection that can be decided here.
static always_inline struct frontend *decidable(struct bpf_sock_addr *ctx, const struct endpoint *to, struct client *c)
{
	struct frontend *f = allowed(ctx, to, c);
	return f && is_known(c, to, f) ? f : 0;
}

// source_of finds the address that packets of a connection would have as their source: the node uses the destination if
// that is its own, or else its primary address.
static always_inline int source_of(const struct client *c, const struct endpoint *to, struct address *source)
{
	struct client_key k = { .netns = c->netns, .is4 = is4(&to->addr) };
	struct address *primary;
	if (c->kind != of_node) {
		*source = c->addr;
		return 1;
	}
	if (bpf_map_lookup_elem(&node_addrs, &to->addr)) {
		*source = to->addr;
		return 1;
	}
	if (!(primary = bpf_map_lookup_elem(&clients, &k)))
		return 0;
	*source = *primary;
	return 1;
}

#define rotate(x, n) ((x) << (n) | (x) >> (32 - (n)))

// hash_of returns the hash of an address that the packet plane computes (jhash of nf_tables), as package slots does.
enum { hash_seed = 0x51 };
static always_inline __u32 hash_of(const struct address *source)
{
	__u32 a, b, c;
	a = b = c = 0xdeadbeef + (is4(source) ? 4 : 16) + hash_seed;
	if (!is4(source)) {
		a += source->word[0], b += source->word[1], c += source->word[2];
		a -= c, a ^= rotate(c, 4), c += b;
		b -= a, b ^= rotate(a, 6), a += c;
		c -= b, c ^= rotate(b, 8), b += a;
		a -= c, a ^= rotate(c, 16), c += b;
		b -= a, b ^= rotate(a, 19), a += c;
		c -= b, c ^= rotate(b, 4), b += a;
	}
	a += source->word[3];
	c ^= b, c -= rotate(b, 14);
	a ^= c, a -= rotate(c, 11);
	b ^= a, b -= rotate(a, 25);
	c ^= b, c -= rotate(b, 16);
	a ^= c, a -= rotate(c, 4);
	b ^= a, b -= rotate(a, 14);
	c ^= b, c -= rotate(b, 24);
	return c;
}

// share returns how much of its share a backend gets, in 256ths: all, unless it is new.
enum { full_share = 256, least_share = 26 };
static always_inline __u32 share(const struct frontend *f, const struct endpoint *backend)
{
	struct member_key k = { .pool = f->pool, .backend = *backend };
	struct ramp *r;
	if (!f->slow_start || !(r = bpf_map_lookup_elem(&new_backends, &k)))
		return full_share;
	__u64 now = bpf_ktime_get_ns(), from = r->from, until = r->until;
	if (now >= until || now < from)
		return full_share;
	__u32 part = (now - from) * full_share / (until - from);
	return part < least_share ? least_share : part;
}

static always_inline int backend_at(const struct frontend *f, __u32 slot, struct endpoint *backend, __u32 *weight)
{
	struct slot_key k = { .pool = f->pool, .slot = slot };
	struct slot *s = bpf_map_lookup_elem(&slots, &k);
	if (!s)
		return 0;
	backend->addr = s->addr;
	backend->port = s->port;
	backend->zero = 0;
	*weight = s->weight;
	return 1;
}

// draw chooses a slot by a number, which it scales as nf_tables does. A new backend passes some of its connections on to
// other slots, by the low bits of the number.
enum { draws = 4 };
static always_inline int draw(const struct frontend *f, __u32 number, struct endpoint *backend)
{
	__u32 weight;
	for (int i = 0; i < draws; i++) {
		if (!backend_at(f, (__u64)number * f->count >> 32, backend, &weight))
			return 0;
		if (!f->slow_start || (number & 0xff) < share(f, backend))
			return 1;
		number = mix(number + 1);
	}
	return 1;
}

// least chooses the backend with the fewest connections for its weight, of eight whose place is random. It chooses by
// chance if the load of one of them is unknown.
enum { compared = 8 };
static always_inline int least(const struct frontend *f, struct endpoint *backend)
{
	__u32 first = bpf_get_prandom_u32() % f->count, weight;
	__u64 best = ~0ULL;
	for (__u32 i = 0; i < compared && i < f->count; i++) {
		struct endpoint b;
		if (!backend_at(f, (first + i) % f->count, &b, &weight) || !weight)
			continue;
		struct load *l = bpf_map_lookup_elem(&loads, &b);
		if (!l)
			return backend_at(f, first, backend, &weight);
		__u64 n = (((__u64)l->counted + l->since + 1) << 24) / (weight * share(f, &b));
		if (n < best) {
			best = n;
			*backend = b;
		}
	}
	return best != ~0ULL;
}

static always_inline int choose(const struct frontend *f, const struct client *c, const struct endpoint *to,
				struct endpoint *backend)
{
	struct address source;
	__u32 number;
	if (!f->count)
		return 0;
	if (f->scheduler == by_load)
		return least(f, backend);
	if (f->scheduler != by_hash)
		number = bpf_get_prandom_u32();
	else if (source_of(c, to, &source))
		number = hash_of(&source);
	else
		return 0;
	return draw(f, number, backend);
}

// add_load adds a connection to the load of its backend.
static always_inline void add_load(const struct frontend *f, const struct endpoint *backend)
{
	struct load *l;
	if (f->scheduler == by_load && (l = bpf_map_lookup_elem(&loads, backend)))
		__sync_fetch_and_add(&l->since, 1);
}

static always_inline struct connection_bucket *bucket_of(__u64 socket)
{
	__u32 i = mix(socket) % buckets;
	return bpf_map_lookup_elem(&connections, &i);
}

// Without CAP_PERFMON the verifier takes no offset that depends on the path to it. So the functions below have the code
// for each way, which no_merge() keeps the compiler from merging.
#define each_way(i) _Pragma("unroll") for (int i = 0; i < ways; i++)
#define no_merge(i) asm volatile("" ::"i"(i) : "memory")

// delete_connection deletes an earlier connection of a TCP socket.
static always_inline void delete_connection(__u64 socket)
{
	struct connection_bucket *bucket = bucket_of(socket);
	if (!bucket)
		return;
	each_way(i) {
		if (bucket->way[i].socket == socket) {
			bucket->way[i].socket = 0;
			no_merge(i);
		}
	}
}

// store_connection stores the connection of a TCP socket.
static always_inline void store_connection(__u64 socket, const struct pool *pool, const struct endpoint *backend,
					   const struct endpoint *service)
{
	struct connection_bucket *bucket = bucket_of(socket);
	if (!bucket)
		return;
	__u64 at = bucket->next++ % ways;
	each_way(i) {
		if (at == i) {
			struct connection *c = &bucket->way[i];
			c->socket = 0; // until all of it is there
			c->backend = *backend;
			c->service = *service;
			c->pool = *pool;
			c->since = measures ? bpf_ktime_get_ns() : 0;
			c->socket = socket;
			no_merge(i);
		}
	}
}

// service_of finds the Service to which a program has connected a TCP socket, if the socket is connected to the
// backend that was chosen.
static always_inline int service_of(__u64 socket, const struct endpoint *backend, struct endpoint *service)
{
	struct connection_bucket *bucket = bucket_of(socket);
	int found = 0;
	if (!bucket)
		return 0;
	each_way(i) {
		struct connection *c = &bucket->way[i];
		if (c->socket == socket && same(&c->backend, backend)) {
			*service = c->service;
			found = c->socket == socket; // otherwise another connection has taken its place meanwhile
			no_merge(i);
		}
	}
	return found;
}

static always_inline struct decision *cache_entry(const struct endpoint *to, __u64 netns)
{
	__u32 i = mix(to->addr.word[3] ^ (__u32)to->port << 8 ^ (__u32)netns) % cache_size;
	return bpf_map_lookup_elem(&decisions, &i);
}

#define barrier() asm volatile("" ::: "memory")

// What is decided about a connection.
enum { undecided = 0, has_frontend = 1, has_backend = 2 };

// read_cache repeats the last decision, if nothing has changed since. Another process may run on this processor at any
// moment, and replace the entry: the number of writes shows that.
static always_inline int read_cache(const struct endpoint *to, __u64 now, struct client *c, struct frontend *f,
				    struct endpoint *backend)
{
	struct decision *d = cache_entry(to, c->netns);
	if (!d || !now)
		return undecided;
	__u32 writes = *(volatile __u32 *)&d->writes;
	barrier();
	if (writes & 1 || d->netns != c->netns || d->generation != now || !same(&d->service, to))
		return undecided;
	__u32 count = d->count;
	c->addr = d->client;
	*f = d->frontend;
	if (count)
		*backend = d->backends[bpf_get_prandom_u32() % count & (most_cached - 1)];
	barrier();
	if (*(volatile __u32 *)&d->writes != writes)
		return undecided;
	return count ? has_backend : has_frontend;
}

// cache_backends copies the backends of a frontend that chooses among few by chance.
static always_inline void cache_backends(struct decision *d, const struct frontend *f)
{
	__u32 weight;
	d->count = 0;
	if (f->scheduler != by_chance || f->slow_start || f->count > most_cached)
		return;
	for (__u32 i = 0; i < most_cached && i < f->count; i++)
		if (!backend_at(f, i, &d->backends[i], &weight))
			return;
	d->count = f->count;
}

static always_inline void write_cache(const struct endpoint *to, __u64 now, const struct client *c, const struct frontend *f)
{
	struct decision *d = cache_entry(to, c->netns);
	if (!d || !now)
		return;
	__u32 writes = *(volatile __u32 *)&d->writes;
	if (writes & 1)
		return;
	__sync_fetch_and_add(&d->writes, 1);
	if (*(volatile __u32 *)&d->writes != writes + 1) { // another process has replaced the entry meanwhile, or is about to
		__sync_fetch_and_add(&d->writes, 1);
		return;
	}
	d->service = *to;
	d->client = c->addr;
	d->netns = c->netns;
	d->generation = now;
	d->frontend = *f;
	cache_backends(d, f);
	barrier();
	__sync_fetch_and_add(&d->writes, 1);
}

// decide copies the frontend of a TCP connection, if the connection can be decided here, and a backend if there is a
// last decision with some.
static always_inline int decide(struct bpf_sock_addr *ctx, const struct endpoint *to, struct client *c,
				struct frontend *f, struct endpoint *backend)
{
	__u64 now = current_generation(); // before any map is read
	int last = read_cache(to, now, c, f, backend);
	if (last)
		return is_bound(ctx) || is_exempt() ? undecided : last;
	struct frontend *found = decidable(ctx, to, c);
	if (!found)
		return undecided;
	*f = *found;
	write_cache(to, now, c, f);
	return has_frontend;
}

// connect_tcp chooses a backend for a connection, and returns 0 if the packet plane must.
static always_inline int connect_tcp(struct bpf_sock_addr *ctx, const struct endpoint *to, struct endpoint *backend)
{
	__u64 socket = bpf_get_socket_cookie(ctx);
	struct client client = client_of(ctx);
	struct frontend f;
	delete_connection(socket);
	int decided = decide(ctx, to, &client, &f, backend);
	if (!decided || (decided == has_frontend && !choose(&f, &client, to, backend)))
		return 0;
	store_connection(socket, &f.pool, backend, to);
	count(&f.pool, backend);
	add_load(&f, backend);
	return 1;
}

static always_inline int same_flow(const struct flow_key *a, const struct flow_key *b)
{
	return a->socket == b->socket && same(&a->to, &b->to) && a->protocol == b->protocol;
}

// reply_of finds the Service for which a socket has chosen a backend.
static always_inline int reply_of(const struct flow_key *k, struct endpoint *service)
{
	struct reply *o = bpf_map_lookup_elem(&udp_replies, k);
	if (!o)
		return 0;
	*service = o->service;
	barrier();
	return same_flow(&o->flow, k);
}

// choice_of finds the choice of a socket.
static always_inline int choice_of(const struct flow_key *k, struct choice *c)
{
	struct choice *last = bpf_map_lookup_elem(&udp_choices, k);
	if (!last)
		return 0;
	last->repeats++;
	*c = *last;
	barrier();
	return same_flow(&last->flow, k);
}

// add_reply lets replies of a backend to a socket seem to come from a Service. It returns 0 if they seem to come from
// another one already.
static always_inline int add_reply(__u64 socket, const struct endpoint *backend, const struct endpoint *to)
{
	struct flow_key k = { .socket = socket, .to = *backend, .protocol = IPPROTO_UDP };
	struct reply o = { .flow = k, .service = *to };
	struct endpoint now;
	if (reply_of(&k, &now))
		return same(&now, to);
	bpf_map_update_elem(&udp_replies, &k, &o, BPF_ANY);
	return 1;
}

// send_unconnected chooses a backend for a datagram of a socket that is not connected, and returns 0 if the packet
// plane must. It repeats the choice for the last datagram, also that of the packet plane. It verifies it only after a
// change of the maps, and every 16 datagrams: udp_replies may have evicted the entry that replies need.
enum { unverified = 16 };
static always_inline int send_unconnected(struct bpf_sock_addr *ctx, const struct endpoint *to, struct endpoint *backend)
{
	__u64 now = current_generation(); // before any other map is read
	struct flow_key k = { .socket = bpf_get_socket_cookie(ctx), .to = *to, .protocol = IPPROTO_UDP };
	struct choice c;
	int has = choice_of(&k, &c);
	if (has && now && c.generation == now && c.repeats % unverified) {
		*backend = c.backend;
		return !is_bound(ctx) && !is_exempt();
	}
	if (has && !c.backend.port)
		return 0;
	struct client client = client_of(ctx);
	struct frontend *f = allowed(ctx, to, &client);
	if (!f)
		return 0;
	if (has && has_member(&f->pool, &c.backend)) {
		*backend = c.backend;
		int own = add_reply(k.socket, backend, to);
		c.generation = own ? now : 0;
		bpf_map_update_elem(&udp_choices, &k, &c, BPF_EXIST);
		return own;
	}
	struct choice next = { .flow = k };
	if (!is_known(&client, to, f)) {
		bpf_map_update_elem(&udp_choices, &k, &next, BPF_ANY);
		return 0;
	}
	if (!choose(f, &client, to, backend) || !add_reply(k.socket, backend, to))
		return 0;
	next.backend = *backend;
	next.generation = now;
	bpf_map_update_elem(&udp_choices, &k, &next, BPF_ANY);
	count(&f->pool, backend);
	return 1;
}

// is_at reports whether a socket is connected to a backend. It reads all words first: the verifier wants constant
// offsets.
static always_inline int is_at(struct bpf_sock *sk, const struct endpoint *e)
{
	volatile struct bpf_sock *v = sk;
	struct address a = { .word = { v->dst_ip6[0], v->dst_ip6[1], v->dst_ip6[2], v->dst_ip6[3] } };
	__u32 a4 = v->dst_ip4;
	return v->dst_port == e->port && (is4(&e->addr) ? a4 == e->addr.word[3] : equal(&a, &e->addr));
}

// connected_backend finds the backend to which a UDP socket is connected through this Service, if that still serves.
static always_inline int connected_backend(struct bpf_sock_addr *ctx, const struct endpoint *to, struct endpoint *backend)
{
	__u64 socket = bpf_get_socket_cookie(ctx);
	struct bpf_sock *sk = ctx->sk;
	struct connected *c = bpf_map_lookup_elem(&udp_sockets, &socket);
	if (!c || !sk || sk->bound_dev_if || !same(&c->service, to) || !is_at(sk, &c->backend))
		return 0;
	if (!has_member(&c->pool, &c->backend))
		return 0;
	struct frontend *f = frontend_of(to, IPPROTO_UDP, c->netns == node_netns ? of_node : of_pods);
	if (!f || !same_pool(&f->pool, &c->pool))
		return 0;
	*backend = c->backend;
	return 1;
}

// choose_connected chooses a backend for a UDP socket that connects: the one to which it has sent before, if any.
static always_inline int choose_connected(struct bpf_sock_addr *ctx, const struct endpoint *to, struct endpoint *backend)
{
	struct client client = client_of(ctx);
	struct frontend *f = connected_udp ? decidable(ctx, to, &client) : 0;
	if (!f)
		return 0;
	struct connected c = { .service = *to, .netns = client.netns };
	struct flow_key k = { .socket = bpf_get_socket_cookie(ctx), .to = *to, .protocol = IPPROTO_UDP };
	struct choice last;
	if (choice_of(&k, &last) && has_member(&f->pool, &last.backend))
		*backend = last.backend;
	else if (!choose(f, &client, to, backend))
		return 0;
	c.backend = *backend;
	c.pool = f->pool;
	if (bpf_map_update_elem(&udp_sockets, &k.socket, &c, BPF_ANY))
		return 0;
	count(&f->pool, backend);
	add_load(f, backend);
	return 1;
}

// connect_udp connects a UDP socket. One that is connected and connects to something else keeps its source: that is for
// packets, as are all Services but DNS. A resolver closes its socket soon, while others that stay connected would lose
// it with their backend.
static always_inline int connect_udp(struct bpf_sock_addr *ctx, const struct endpoint *to, struct endpoint *backend)
{
	__u64 socket = bpf_get_socket_cookie(ctx);
	if (to->port == DNS && (connected_backend(ctx, to, backend) || choose_connected(ctx, to, backend)))
		return 1;
	bpf_map_delete_elem(&udp_sockets, &socket);
	return 0;
}

static always_inline int connect(struct bpf_sock_addr *ctx, const struct endpoint *to, struct endpoint *backend)
{
	switch (ctx->protocol) {
	case IPPROTO_TCP:
		return connect_tcp(ctx, to, backend);
	case IPPROTO_UDP:
		return connect_udp(ctx, to, backend);
	}
	return 0;
}

// send chooses a backend for a datagram. A connected socket gets replies from its peer only. A datagram whose source
// the program has chosen (IP_PKTINFO) is for packets.
static always_inline int send(struct bpf_sock_addr *ctx, const struct endpoint *to, struct endpoint *backend, int has_source)
{
	struct bpf_sock *sk = ctx->sk;
	if (to->port != DNS)
		return 0;
	if (sk && sk->dst_port)
		return connected_backend(ctx, to, backend);
	return has_source ? 0 : send_unconnected(ctx, to, backend);
}

// peer finds the Service to which a socket has connected.
static always_inline int peer(struct bpf_sock_addr *ctx, struct endpoint *from)
{
	__u64 socket = bpf_get_socket_cookie(ctx);
	if (ctx->protocol == IPPROTO_UDP) {
		struct connected *c = bpf_map_lookup_elem(&udp_sockets, &socket);
		if (!c || !same(&c->backend, from))
			return 0;
		*from = c->service;
		return 1;
	}
	struct endpoint service;
	if (!service_of(socket, from, &service))
		return 0;
	*from = service;
	return 1;
}

// service_of_reply finds the Service to which a UDP socket is connected, or has sent.
static always_inline int service_of_reply(struct bpf_sock_addr *ctx, struct endpoint *from)
{
	struct bpf_sock *sk = ctx->sk;
	if (sk && sk->dst_port)
		return peer(ctx, from);
	struct flow_key k = { .socket = bpf_get_socket_cookie(ctx), .to = *from, .protocol = ctx->protocol };
	struct endpoint service;
	if (!reply_of(&k, &service))
		return 0;
	*from = service;
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

static always_inline int has_source6(struct bpf_sock_addr *ctx)
{
	return ctx->msg_src_ip6[0] || ctx->msg_src_ip6[1] || ctx->msg_src_ip6[2] || ctx->msg_src_ip6[3];
}

#define ADDRESS_PROGRAM(name, section, family, condition, decide)              \
	SEC(section) int name(struct bpf_sock_addr *ctx)                       \
	{                                                                      \
		struct endpoint seen = read##family(ctx), now = seen;          \
		if ((condition) && decide)                                     \
			write##family(ctx, &now);                              \
		return allow;                                                  \
	}

ADDRESS_PROGRAM(sluice_connect4, "cgroup/connect4", 4, 1, connect(ctx, &seen, &now))
ADDRESS_PROGRAM(sluice_connect6, "cgroup/connect6", 6, 1, connect(ctx, &seen, &now))
ADDRESS_PROGRAM(sluice_sendmsg4, "cgroup/sendmsg4", 4, ctx->protocol == IPPROTO_UDP, send(ctx, &seen, &now, ctx->msg_src_ip4 != 0))
ADDRESS_PROGRAM(sluice_sendmsg6, "cgroup/sendmsg6", 6, ctx->protocol == IPPROTO_UDP, send(ctx, &seen, &now, has_source6(ctx)))
ADDRESS_PROGRAM(sluice_recvmsg4, "cgroup/recvmsg4", 4, 1, service_of_reply(ctx, &now))
ADDRESS_PROGRAM(sluice_recvmsg6, "cgroup/recvmsg6", 6, 1, service_of_reply(ctx, &now))
ADDRESS_PROGRAM(sluice_getpeer4, "cgroup/getpeername4", 4, 1, peer(ctx, &now))
ADDRESS_PROGRAM(sluice_getpeer6, "cgroup/getpeername6", 6, 1, peer(ctx, &now))

// sluice_release forgets a socket that is closed.
SEC("cgroup/sock_release") int sluice_release(struct bpf_sock *sk)
{
	__u64 socket = bpf_get_socket_cookie(sk);
	if (sk->protocol == IPPROTO_UDP)
		bpf_map_delete_elem(&udp_sockets, &socket);
	else if (sk->protocol == IPPROTO_TCP)
		delete_connection(socket);
	return allow;
}

// start_of finds when a program connected a TCP socket to a Service, and to which pool. It returns 0 if none did.
static always_inline __u64 start_of(__u64 socket, struct pool *pool)
{
	struct connection_bucket *bucket = bucket_of(socket);
	__u64 since = 0;
	if (!bucket)
		return 0;
	each_way(i) {
		struct connection *c = &bucket->way[i];
		if (c->socket == socket) {
			*pool = c->pool;
			since = c->since;
			barrier();
			if (*(volatile __u64 *)&c->socket != socket) // another connection has taken its place meanwhile
				since = 0;
			no_merge(i);
		}
	}
	return since;
}

// bucket_for returns the bucket of a duration in ns. It has no branches: the verifier wants one offset for all paths.
static always_inline __u32 bucket_for(__u64 took)
{
	__u64 longer = 0;
#pragma unroll
	for (int i = 0; i < bounds; i++) {
		__u64 left = ((__u64)first_bound << i) - took;
		asm volatile("" : "+r"(left));
		longer += left >> 63;
	}
	return longer;
}

// sluice_sockops measures how long a connection took from connect() until the SYN-ACK came, including SYNs that were
// sent again. The kernel runs it several times for each TCP connection, but not for packets of established ones.
SEC("sockops") int sluice_sockops(struct bpf_sock_ops *ctx)
{
	struct pool pool = {};
	__u64 since, took;
	struct duration *d;
	if (ctx->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		return allow;
	since = start_of(bpf_get_socket_cookie(ctx), &pool);
	if (!since)
		return allow;
	took = bpf_ktime_get_ns() - since;
	d = bpf_map_lookup_elem(&durations, &pool);
	if (!d) {
		struct duration none = {};
		bpf_map_update_elem(&durations, &pool, &none, BPF_NOEXIST);
		d = bpf_map_lookup_elem(&durations, &pool);
	}
	if (!d)
		return allow;
	__sync_fetch_and_add(&d->bucket[bucket_for(took)], 1);
	__sync_fetch_and_add(&d->sum, took);
	return allow;
}

char _license[] SEC("license") = "Apache-2.0";
