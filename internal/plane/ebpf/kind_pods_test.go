package ebpf

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/kernel/netns"
	"github.com/sluice-proxy/sluice/internal/route"
)

// fakePods are the pods that programs know.
type fakePods struct {
	known   []bpf.Pod
	reports chan uint64
}

func (f *fakePods) SetPods(pods []bpf.Pod) error {
	f.known = pods
	return nil
}

func (f *fakePods) UnknownClients(ctx context.Context, do func(uint64)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case n := <-f.reports:
			do(n)
		}
	}
}

func addrs(list ...string) (all []netip.Addr) {
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

// Pods are namespaces that are attached to that of the node, or have the address of an endpoint, and have one address of a family in the pod CIDRs.
func TestPodsAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := &fakePods{reports: make(chan uint64)}
		lists := 0
		all := []netns.Namespace{
			{Cookie: 1, Attached: true, Addrs: addrs("10.180.0.1", "172.17.0.1", "fd00:10:180::1")},
			{Cookie: 2, Addrs: addrs("10.180.0.2")},                                 // inside of a pod
			{Cookie: 3, Addrs: addrs("10.180.0.3")},                                 // an endpoint, by SR-IOV
			{Cookie: 4, Attached: true, Addrs: addrs("10.180.0.4", "10.180.0.44")},  // which one it uses depends on routes
			{Cookie: 5, Attached: true, Addrs: addrs("10.9.0.5", "fd00:10:180::5")}, // another pod CIDR
			{Cookie: 6, Attached: true},
		}
		p := newPodFinder(kernel, func(context.Context) ([]netns.Namespace, error) {
			lists++
			return all, nil
		}, func(err error) { t.Error(err) })
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		svc := &route.Service{Name: cluster.Name{Namespace: "ns", Name: "web"}, Ports: []route.Port{{Here: addrs("10.180.0.3")}}}
		table := &route.Table{Services: map[cluster.Name]*route.Service{svc.Name: svc}}
		table.Host.Detector = route.Detector{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.180.0.0/24"), netip.MustParsePrefix("fd00:10:180::/64")}}
		p.Applied(route.Change{Table: table})
		synctest.Wait()
		want := []bpf.Pod{
			{NetNS: 1, IPv4: addrs("10.180.0.1")[0], IPv6: addrs("fd00:10:180::1")[0]}, {NetNS: 3, IPv4: addrs("10.180.0.3")[0]},
			{NetNS: 5, IPv6: addrs("fd00:10:180::5")[0]},
		}
		if !slices.Equal(kernel.known, want) {
			t.Errorf("the pods are %v, want %v", kernel.known, want)
		}
		report := func(netns uint64, searches int) {
			t.Helper()
			time.Sleep(time.Second)
			before := lists
			kernel.reports <- netns
			synctest.Wait()
			if lists-before != searches {
				t.Errorf("a client in namespace %d causes %d searches, want %d", netns, lists-before, searches)
			}
		}
		report(2, 0)
		all = append(all, netns.Namespace{Cookie: 7, Attached: true, Addrs: addrs("10.180.0.7")})
		report(7, 1)
		if last := kernel.known[len(kernel.known)-1]; last.NetNS != 7 {
			t.Errorf("the last pod is %v, want that of namespace 7", last)
		}
		time.Sleep(ignoreTime)
		report(2, 1)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
