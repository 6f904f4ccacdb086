// Package lab builds a little cluster in network namespaces, for tests that send
// real packets: nodes, pods behind a veth, and an outside host, in IPv4 and IPv6.
//
//	outside 203.0.113.2 ------ br0 192.168.0.1
//	                            |            |
//	     node A 192.168.0.2 ----+            +---- node B 192.168.0.3
//	      |          |                               |
//	pod 10.180.0.1  pod 10.180.0.2           pod 10.180.1.1
//
// Node A is the node under test: the outside and node B send everything they
// have no better route for (service addresses, VIPs) to it. What it does not
// take itself it sends to the outside, where a Tap sees it and nobody answers.
// Pods of other nodes talk with the outside through node A too, so it can
// translate for them without masquerading. It cannot do that where the answer
// does not pass it: a client on node B needs a backend elsewhere, or masquerade.
//
// A test binary calls Main from TestMain, which runs it again in fresh
// namespaces (also a user namespace when it is not root); the machine's own
// network is never touched. Namespaces are held by file descriptors of the
// process alone, so they go when it goes, however it ends.
//
//	func TestMain(m *testing.M) { lab.Main(m) }
//
//	func TestService(t *testing.T) {
//		l := lab.New(t, lab.Options{})
//		web := l.Pod(l.NodeA, "10.180.0.1", "fd00:10:180::1")
//		web.Serve(lab.TCP, 80)
//		client := l.Pod(l.NodeA, "10.180.0.2", "fd00:10:180::2")
//		r := client.Dial(lab.TCP, netip.MustParseAddrPort("172.30.0.41:80"))
//		// r.Outcome, r.Backend (who answered), r.Source (whom it saw)
//	}
package lab
