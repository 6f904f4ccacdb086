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

// Whoever may create Services does not cut off a node: the ports of an address of
// the node stay the node's own, and so do the proxy's servers.
func TestServicesDoNotTakeThePortsOfTheNode(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t)
			w.args = append(w.args, "--proxy-mode="+mode, "--nodeport-addresses=0.0.0.0/0,::/0")
			w.lab.NodeA.Serve(lab.TCP, 2222)
			w.lab.NodeA.Serve(lab.TCP, 10250)
			d := w.start(launch{})
			d.settled(1)
			w.ownAddress(d)
			w.laterAddress(d)
			w.ownPorts(d)
			w.same()
		})
	}
}

const (
	nodeIP4, nodeIP6 = "192.168.0.2", "2001:db8::1"
	laterIP4         = "192.168.0.77"
)

// ofThePods is a Service with the pods behind it and these ports.
func ofThePods(name, kind string, ips [2]string, ports ...object) []any {
	objects := web(0, 1, 2)
	var targets []object
	for _, p := range ports {
		targets = append(targets, object{"name": p["name"], "port": 80})
	}
	for i, o := range objects {
		o.(object)["ports"] = targets // of the slices
		meta := object{"name": name, "namespace": "default"}
		if i > 0 {
			meta = object{"name": fmt.Sprint(name, i), "namespace": "default", "labels": object{"kubernetes.io/service-name": name}}
		}
		o.(object)["metadata"] = meta
	}
	delete(objects[0].(object), "ports")
	objects[0].(object)["spec"] = object{"type": kind, "clusterIP": ips[0], "clusterIPs": ips, "ports": ports}
	return objects
}

// reaches waits until a port of node A is reached from outside and from the node
// itself.
func (w *world) reaches(addr string, port uint16) {
	w.Helper()
	for _, from := range []*lab.Host{w.lab.Outside, w.lab.NodeA, w.client} {
		w.serves(lab.Way{From: from, To: netip.AddrPortFrom(netip.MustParseAddr(addr), port)}, true)
	}
}

// healthy asks the health server of node A from outside.
func (w *world) healthy(addr string) {
	w.Helper()
	client := harness.Client(w.lab.Outside, 5*time.Second)
	w.eventually(func() error {
		resp, err := client.Get("http://" + netip.AddrPortFrom(netip.MustParseAddr(addr), 10256).String() + "/livez")
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("/livez says %s", resp.Status)
		}
		return nil
	})
}

// ownAddress: a ClusterIP is an address of the node.
func (w *world) ownAddress(d *daemon) {
	w.Helper()
	w.write("taken.json", ofThePods("taken", "ClusterIP", [2]string{nodeIP4, nodeIP6}, object{"name": "a", "port": 80}, object{"name": "b", "port": 10256}))
	d.settled(2)
	d.says("is an address of node node-a")
	d.says("would hide this proxy's health server")
	w.answeredBy(w.client, netip.MustParseAddrPort(nodeIP4+":80"), 0, 1, 2)
	for _, addr := range []string{nodeIP4, nodeIP6} {
		w.reaches(addr, 2222)
		w.healthy(addr)
	}
}

// laterAddress: the node gets such an address while the Service is there.
func (w *world) laterAddress(d *daemon) {
	w.Helper()
	a := netip.MustParseAddr(laterIP4)
	w.write("later.json", ofThePods("later", "ClusterIP", [2]string{laterIP4, "fd00:172:30::77"},
		object{"name": "a", "port": 80}, object{"name": "b", "port": 10256}))
	d.settled(3)
	w.lab.NodeA.AddAddr(a)
	w.reaches(laterIP4, 2222)
	w.healthy(laterIP4)
	d.says(laterIP4 + ` reason="is an address of node node-a`)
	w.answeredBy(w.client, netip.AddrPortFrom(a, 80), 0, 1, 2)
	w.lab.NodeA.DelAddr(a)
	d.settled(3)
}

// ownPorts: NodePorts are those of the health server and of kubelet.
func (w *world) ownPorts(d *daemon) {
	w.Helper()
	w.write("ports.json", ofThePods("ports", "NodePort", [2]string{"172.30.0.90", "fd00:172:30::90"},
		object{"name": "a", "port": 80, "nodePort": 10256}, object{"name": "b", "port": 81, "targetPort": 80, "nodePort": 10250}))
	d.settled(4)
	d.says("10256/tcp")
	w.healthy(nodeIP4)
	w.healthy(nodeIP6)
	d.says("hides a socket of this node that listens on")
}
