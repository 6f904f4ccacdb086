// Package resolver tests that DNS resolvers work in mode ebpf: the resolvers of glibc, musl and Go query CoreDNS
// behind a Service, in a pod and on the node, while the daemon restarts and CoreDNS is replaced.
//
//	         socket                                    when a backend goes away
//	glibc    one, connected, for A and AAAA            the socket is destroyed; glibc sends the query again at once
//	musl     one, unconnected, for A and AAAA          the next datagram goes to another backend
//	Go       one for A and one for AAAA, connected     the socket is destroyed; Go sends the query again at once
//
// It needs coredns in TEST_TOOLS (hack/test-tools.sh), gcc and musl-gcc.
package resolver
