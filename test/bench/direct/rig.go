//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/harness"
	"github.com/sluice-proxy/sluice/test/lab"
)

const (
	limit = time.Minute
	vip   = "198.51.100.80"
	pods  = "10.180.0.0/16"
)

// rig has nodes behind the outside host, which is a router with ECMP and has the clients.
type rig struct {
	lab.T
	lab     *lab.Lab
	nodes   [3]*lab.Host
	pods    []*lab.Host
	at      map[netip.Addr]int // the index of the node of each pod
	dir     string
	program string // Sluice
	file    string // of Services
	direct  bool   // the Service has the annotation

	api *apiserver.Cluster // nil: Services are in the file
}

func newRig(t lab.T) (*rig, error) {
	r := &rig{T: t, lab: lab.New(t, lab.Options{Timeout: 5 * time.Second}), at: map[netip.Addr]int{}}
	r.nodes = [3]*lab.Host{r.lab.NodeA, r.lab.NodeB, r.node("node-c", "192.168.0.4")}
	for _, n := range r.nodes {
		n.MustRun("ip", "route", "replace", "default", "via", "192.168.0.1", "dev", "eth0", "onlink")
		n.MustRun("sh", "-c", "ip -6 route del default; true") // through another node
	}
	r.lab.Outside.MustRun("sysctl", "-qw", "net.ipv4.fib_multipath_hash_policy=1")
	var err error
	if r.dir, err = os.MkdirTemp("/run", "direct-"); err != nil {
		return nil, err
	}
	r.file = filepath.Join(r.dir, "all.json")
	t.Cleanup(func() { _ = os.RemoveAll(r.dir) })
	r.program, err = harness.ProgramIn(r.dir)
	return r, err
}

func (r *rig) node(name, addr string) *lab.Host { return r.lab.Node(name, addr) }

// pod adds a pod to a node.
func (r *rig) pod(node int) {
	a := harness.PodAddr(len(r.pods))
	pod := r.lab.Pod(r.nodes[node], a.String())
	pod.Serve(lab.TCP, 80)
	r.pods = append(r.pods, pod)
	r.at[a] = node
}

// enterAt makes the router divide connections among these nodes.
func (r *rig) enterAt(nodes ...int) {
	args := []string{"ip", "route", "replace", vip}
	for _, i := range nodes {
		args = append(args, "nexthop", "via", r.nodes[i].Addr4().String(), "dev", "br0", "onlink")
	}
	r.lab.Outside.MustRun(args...)
}

// service returns the Service.
func service() *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "172.30.0.80", ClusterIPs: []string{"172.30.0.80"}, ExternalIPs: []string{vip},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{
				{Name: "tcp", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "udp", Port: 80, Protocol: corev1.ProtocolUDP},
			},
		},
	}
}

// slice returns the EndpointSlice with some pods.
func (r *rig) slice(pods []int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{},
	}
	for _, p := range service().Spec.Ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol})
	}
	for _, i := range pods {
		addr, yes := r.pods[i].Addr4(), true
		node := r.nodes[r.at[addr]].Name()
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{addr.String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes},
		})
	}
	return s
}

// apply publishes the Service with some pods as its endpoints.
func (r *rig) apply(pods ...int) error {
	if r.api != nil {
		return r.api.PutSlice(context.Background(), "default", r.slice(pods))
	}
	web := service()
	if r.direct {
		web.Annotations = map[string]string{"sluice-proxy.github.io/external": "direct"}
	}
	objects := []any{web, r.slice(pods)}
	for _, n := range r.nodes {
		objects = append(objects, corev1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: n.Name()},
			Status: corev1.NodeStatus{
				Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.Addr4().String()}},
			},
		})
	}
	var text []byte
	for _, o := range objects {
		b, err := json.Marshal(o)
		if err != nil {
			return err
		}
		text = append(append(append(text, "---\n"...), b...), '\n')
	}
	return harness.Replace(r.file, text)
}

// sluice starts Sluice on a node, with the Services of the file.
func (r *rig) sluice(node *lab.Host) (*harness.Process, error) {
	return harness.Start(node, exec.Command(r.program, "--manifests="+r.file,
		"--hostname-override="+node.Name(), "--proxy-mode=nftables", "--cluster-cidr="+pods, "--reload-jitter=0"))
}

// reachesAll returns an error until a node reaches all others.
func reachesAll(p *harness.Process, node *lab.Host) error {
	if err := p.Alive(); err != nil {
		return err
	}
	var s inspect.Status
	err := admin.Dial(admin.Options{NetNS: node.NetNSFD()}).Get(context.Background(), "/status", nil, &s)
	if err != nil {
		return err
	}
	if s.Direct == nil || len(s.Direct.Peers) != 2 {
		return fmt.Errorf("%s passes nothing on", node.Name())
	}
	for _, peer := range s.Direct.Peers {
		if peer.Why != "" {
			return fmt.Errorf("%s does not reach %+v", node.Name(), peer)
		}
	}
	return nil
}

// serves returns an error until a node has rules of the Service.
func serves(node *lab.Host) error {
	_, err := node.Run("", "sh", "-c", "nft list ruleset | grep -q "+vip)
	return err
}

// serveAPI starts an API server with the Service.
func (r *rig) serveAPI(nodes ...*lab.Host) error {
	r.api = apiserver.Start(r)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for _, n := range nodes {
		if err := r.api.PutNode(ctx, n.Name(), nil, n.Addr4().String()); err != nil {
			return err
		}
		r.api.Forward(r, n)
	}
	_, err := r.api.Client.CoreV1().Services("default").Create(ctx, service(), metav1.CreateOptions{})
	return err
}

// kubeProxy starts kube-proxy on a node, with the Services of the API server.
func (r *rig) kubeProxy(program string, node *lab.Host) (*harness.Process, error) {
	kubeconfig, err := r.api.Kubeconfig("")
	if err != nil {
		return nil, err
	}
	return harness.Start(node, exec.Command(program, "--kubeconfig="+kubeconfig, "--hostname-override="+node.Name(),
		"--proxy-mode=nftables", "--cluster-cidr="+pods, "--conntrack-max-per-core=0",
		"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"))
}
