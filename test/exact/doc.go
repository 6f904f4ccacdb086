// Package exact compares what programs see of their sockets in modes nftables and ebpf. A table has ways to use
// sockets: connected or not, bound, kept or new, with options. Each is used by a pod and by the node, before and
// after changes of backends, Services and modes. docs/ebpf.md lists the differences with a reason for each; any other
// fails the test.
package exact
