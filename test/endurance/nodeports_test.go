//go:build linux

package endurance

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

// Services cannot make a node unreachable: the sockets of the node and the servers of the proxy
// stay reachable at the addresses of the node.
func TestServicesDoNotTakeThePortsOfTheNode(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := newTestEnv(t)
			w.args = append(w.args, "--proxy-mode="+mode, "--nodeport-addresses=0.0.0.0/0,::/0")
			w.lab.NodeA.Serve(lab.TCP, 2222)
			w.lab.NodeA.Serve(lab.TCP, 10250)
			d := w.start(launch{})
			d.waitSynced(1)
			w.checkNodeAddress(d)
			w.checkAddedAddress(d)
			w.checkNodePorts(d)
			w.checkDiff()
		})
	}
}

const (
	nodeIP4, nodeIP6 = "192.168.0.2", "2001:db8::1"
	laterIP4         = "192.168.0.77"
)

// podService is a Service with these ports and the pods as endpoints.
func podService(name, kind string, ips [2]string, ports ...object) []any {
	objects := web(0, 1, 2)
	var targets []object
	for _, p := range ports {
		targets = append(targets, object{"name": p["name"], "port": 80})
	}
	for i, o := range objects {
		o.(object)["ports"] = targets // of slices
		meta := object{"name": name, "namespace": "default"}
		if i > 0 {
			meta = object{
				"name": fmt.Sprint(name, i), "namespace": "default", "labels": object{"kubernetes.io/service-name": name},
			}
		}
		o.(object)["metadata"] = meta
	}
	delete(objects[0].(object), "ports")
	objects[0].(object)["spec"] = object{"type": kind, "clusterIP": ips[0], "clusterIPs": ips, "ports": ports}
	return objects
}

// waitReachable waits until a port of node A is reachable from outside, from the node and from a pod.
func (w *testEnv) waitReachable(addr string, port uint16) {
	w.Helper()
	for _, from := range []*lab.Host{w.lab.Outside, w.lab.NodeA, w.client} {
		w.waitServed(lab.Way{From: from, To: netip.AddrPortFrom(netip.MustParseAddr(addr), port)}, true)
	}
}

// waitLivez waits until the health server of node A answers a client outside.
func (w *testEnv) waitLivez(addr string) {
	w.Helper()
	client := harness.Client(w.lab.Outside, 5*time.Second)
	w.eventually(func() error {
		resp, err := client.Get("http://" + netip.AddrPortFrom(netip.MustParseAddr(addr), 10256).String() + "/livez")
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("/livez returns %s", resp.Status)
		}
		return nil
	})
}

// checkNodeAddress creates a Service whose ClusterIPs are addresses of the node.
func (w *testEnv) checkNodeAddress(d *daemon) {
	w.Helper()
	w.write("taken.json", podService("taken", "ClusterIP", [2]string{nodeIP4, nodeIP6}, object{"name": "a", "port": 80},
		object{"name": "b", "port": 10256}))
	d.waitSynced(2)
	d.waitForLog("is an address of node node-a")
	d.waitForLog("would hide this proxy's health server")
	w.waitAnsweredBy(w.client, netip.MustParseAddrPort(nodeIP4+":80"), 0, 1, 2)
	for _, addr := range []string{nodeIP4, nodeIP6} {
		w.waitReachable(addr, 2222)
		w.waitLivez(addr)
	}
}

// checkAddedAddress adds the ClusterIP of an existing Service to the node.
func (w *testEnv) checkAddedAddress(d *daemon) {
	w.Helper()
	a := netip.MustParseAddr(laterIP4)
	w.write("later.json", podService("later", "ClusterIP", [2]string{laterIP4, "fd00:172:30::77"},
		object{"name": "a", "port": 80}, object{"name": "b", "port": 10256}))
	d.waitSynced(3)
	w.lab.NodeA.AddAddr(a)
	w.waitReachable(laterIP4, 2222)
	w.waitLivez(laterIP4)
	d.waitForLog(laterIP4 + ` reason="is an address of node node-a`)
	w.waitAnsweredBy(w.client, netip.AddrPortFrom(a, 80), 0, 1, 2)
	w.lab.NodeA.DelAddr(a)
	d.waitSynced(3)
}

// checkNodePorts creates a Service with the ports of the health server and of kubelet as NodePorts.
func (w *testEnv) checkNodePorts(d *daemon) {
	w.Helper()
	w.write("ports.json", podService("ports", "NodePort", [2]string{"172.30.0.90", "fd00:172:30::90"},
		object{"name": "a", "port": 80, "nodePort": 10256},
		object{"name": "b", "port": 81, "targetPort": 80, "nodePort": 10250}))
	d.waitSynced(4)
	d.waitForLog("10256/tcp")
	w.waitLivez(nodeIP4)
	w.waitLivez(nodeIP6)
	d.waitForLog("hides a socket of this node that listens on")
}
