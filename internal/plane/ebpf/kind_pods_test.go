package ebpf

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/netns"
	"github.com/sluice-proxy/sluice/internal/route"
)

// fakePods are the pods that programs know.
type fakePods struct{ known []bpf.Pod }

func (f *fakePods) SetPods(pods []bpf.Pod) error {
	f.known = pods
	return nil
}

func (f *fakePods) NetNS() uint64 { return 100 }

// node is the namespace of the node.
func node() bpf.Pod {
	list := addrs("192.168.0.2", "2001:db8::2")
	return bpf.Pod{NetNS: 100, IPv4: list[0], IPv6: list[1]}
}

func addrs(list ...string) (all []netip.Addr) {
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

// finder is a podFinder that runs, with the namespaces that it finds.
type finder struct {
	*podFinder
	kernel *fakePods

	mu    sync.Mutex
	all   []netns.Namespace
	lists int
}

// searches returns how often Run has searched so far.
func (f *finder) searches() int {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists
}

// set replaces a namespace, or adds one behind the last.
func (f *finder) set(i int, n netns.Namespace) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all[:i:i], n)
}

func startFinder(t *testing.T, all ...netns.Namespace) *finder {
	f := &finder{kernel: &fakePods{}, all: all}
	list := func(context.Context) ([]netns.Namespace, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.lists++
		return slices.Clone(f.all), nil
	}
	watch := func(ctx context.Context, _ func()) error {
		<-ctx.Done()
		return nil
	}
	f.podFinder = newPodFinder(f.kernel, namespaces{list, watch}, func(err error) { t.Error(err) })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	svc := &route.Service{
		Name: cluster.Name{Namespace: "ns", Name: "web"}, Ports: []route.Port{{Here: addrs("10.180.0.3")}},
	}
	table := &route.Table{Services: map[cluster.Name]*route.Service{svc.Name: svc}}
	table.Host.Primary = addrs("192.168.0.2", "2001:db8::2")
	table.Host.Detector = route.Detector{
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.180.0.0/24"), netip.MustParsePrefix("fd00:10:180::/64")},
	}
	f.Applied(route.Change{Table: table})
	synctest.Wait()
	return f
}

// Pods are namespaces that are attached to that of the node, or have the address of an endpoint, and have one address
// of a family in the pod CIDRs.
func TestPodsAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFinder(
			t,
			netns.Namespace{Cookie: 1, Attached: true, Addrs: addrs("10.180.0.1", "172.17.0.1", "fd00:10:180::1")},
			netns.Namespace{Cookie: 2, Addrs: addrs("10.180.0.2")},                                 // inside of a pod
			netns.Namespace{Cookie: 3, Addrs: addrs("10.180.0.3")},                                 // an endpoint, by SR-IOV
			netns.Namespace{Cookie: 4, Attached: true, Addrs: addrs("10.180.0.4", "10.180.0.44")},  // routes choose one
			netns.Namespace{Cookie: 5, Attached: true, Addrs: addrs("10.9.0.5", "fd00:10:180::5")}, // another pod CIDR
			netns.Namespace{Cookie: 6}, // not attached yet
		)
		want := []bpf.Pod{
			node(),
			{NetNS: 1, IPv4: addrs("10.180.0.1")[0], IPv6: addrs("fd00:10:180::1")[0]},
			{NetNS: 3, IPv4: addrs("10.180.0.3")[0]},
			{NetNS: 5, IPv6: addrs("fd00:10:180::5")[0]},
		}
		if !slices.Equal(f.kernel.known, want) {
			t.Errorf("the pods are %v, want %v", f.kernel.known, want)
		}
		// A pod that changes no link of the node is found by the next search.
		f.set(5, netns.Namespace{Cookie: 7, Addrs: addrs("10.180.0.3")})
		time.Sleep(maxSearch)
		f.searches()
		time.Sleep(maxSearch)
		f.searches()
		if last := f.kernel.known[len(f.kernel.known)-1]; last.NetNS != 7 {
			t.Errorf("the last pod is %v, want that of namespace 7", last)
		}
	})
}

// A pod that is being made is found once it has an address. One that never gets one causes few searches.
func TestPodsThatAreMadeAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFinder(t, netns.Namespace{Cookie: 1, Attached: true})
		if len(f.kernel.known) > 1 {
			t.Errorf("the pods are %v, want the node only", f.kernel.known)
		}
		f.set(0, netns.Namespace{Cookie: 1, Attached: true, Addrs: addrs("10.180.0.1")})
		time.Sleep(3 * minSearch)
		f.searches()
		want := []bpf.Pod{node(), {NetNS: 1, IPv4: addrs("10.180.0.1")[0]}}
		if !slices.Equal(f.kernel.known, want) {
			t.Errorf("the pods are %v, want %v", f.kernel.known, want)
		}
		f.set(1, netns.Namespace{Cookie: 2, Attached: true})
		before := f.searches()
		f.search()
		time.Sleep(time.Hour)
		if n := f.searches() - before; n < 10 || n > 90 {
			t.Errorf("%d searches in an hour for a pod without an address, want 10 to 90", n)
		}
	})
}
