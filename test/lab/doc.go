// Package lab builds a small cluster in network namespaces, for tests with real packets:
// nodes, pods behind veths, and an outside host, with IPv4 and IPv6.
//
//	outside 203.0.113.2 ------ br0 192.168.0.1
//	                            |            |
//	     node A 192.168.0.2 ----+            +---- node B 192.168.0.3
//	      |          |                               |
//	pod 10.180.0.1  pod 10.180.0.2           pod 10.180.1.1
//
// Node A is the node under test: it is the default route of the outside host and node B, so it receives packets for
// Service addresses and VIPs. Packets that it does not handle go to the outside host, where a Tap captures them and
// nothing answers. The pods of other nodes also reach the outside host through node A, which can therefore translate
// their connections without masquerading. It cannot do so if replies bypass it: a client on node B needs a backend on
// another node, or masquerading.
//
// A test binary calls Main from TestMain, which runs it again in new namespaces, including a user namespace if it is
// not root. The network of the machine is never changed. Only file descriptors of the process refer to the namespaces,
// so they end with it, even if it is killed.
//
//	func TestMain(m *testing.M) { lab.Main(m) }
//
//	func TestService(t *testing.T) {
//		l := lab.New(t, lab.Options{})
//		web := l.Pod(l.NodeA, "10.180.0.1", "fd00:10:180::1")
//		web.Serve(lab.TCP, 80)
//		client := l.Pod(l.NodeA, "10.180.0.2", "fd00:10:180::2")
//		r := client.Dial(lab.TCP, netip.MustParseAddrPort("172.30.0.41:80"))
//		// r.Outcome, r.Backend (which answered), r.Source (client address that it saw)
//	}
package lab
