package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// The model test: after any sequence of changes and failures HNS holds the same as if
// everything had been written at once.

// kindsOfHNS are the versions of HNS that the model runs on.
func kindsOfHNS() map[string]func(*hnstest.Fake) {
	return map[string]func(*hnstest.Fake){
		"recent": func(f *hnstest.Fake) { f.KeepDangling = true },
		"old": func(f *hnstest.Fake) {
			f.Version = hns.Features{V2: true, RemoteSubnet: true}
		},
	}
}

func TestModelOnTheFake(t *testing.T) {
	for name, kind := range kindsOfHNS() {
		for _, network := range []hns.NetworkType{hns.L2Bridge, hns.L2Tunnel, hns.Overlay} {
			t.Run(fmt.Sprint(name, " ", network), func(t *testing.T) {
				for seed := range seeds.Of(t, 6) {
					s := newSubject(network, kind)
					if err := planetest.NewModel(seed, s.hooks()).Run(); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// subject is the plane and an HNS, for the model.
type subject struct {
	fake    *hnstest.Fake
	network hns.NetworkType
	kind    func(*hnstest.Fake)
	faults  *planetest.Faults
	foreign []string // the IDs of load balancers of another program
}

const networkName, rootName = "cbr0", "cbr0_ep"

func newSubject(network hns.NetworkType, kind func(*hnstest.Fake)) *subject {
	s := &subject{network: network, kind: kind, faults: &planetest.Faults{Room: 1}}
	s.fake = hnstest.New(hns.Network{Name: networkName, Type: network, Remote: subnets("192.168.0.3")})
	kind(s.fake)
	s.fake.AddNetwork(hns.Network{Name: "other", Type: hns.L2Bridge})
	s.addPods()
	return s
}

// subnets returns the remote subnets of the network while a node has the pods of node b.
func subnets(node string) []hns.RemoteSubnet {
	return []hns.RemoteSubnet{{Prefix: netip.MustParsePrefix("10.180.1.0/24"), Provider: netip.MustParseAddr(node)}}
}

// pods is how many containers this node has in each family. A few endpoints of the model, which have higher
// addresses, lack one.
const pods = 64

// addPods creates the endpoints of the containers on this node, as a CNI does.
func (s *subject) addPods() {
	n, err := s.fake.Network(context.Background(), networkName)
	if err != nil {
		panic(err)
	}
	root := hns.Endpoint{Network: n.ID, Name: rootName, MAC: "00-15-5D-00-00-02", Addrs: planetest.Addrs("10.180.99.2")}
	if _, err := s.fake.CreateEndpoint(context.Background(), root); err != nil {
		panic(err)
	}
	for _, format := range []string{"10.180.0.%d", "fd00:10:180::%x"} {
		for i := range pods {
			e := hns.Endpoint{Network: n.ID, MAC: "00-15-5D-00-00-01", Addrs: planetest.Addrs(fmt.Sprintf(format, i+1))}
			if _, err := s.fake.CreateEndpoint(context.Background(), e); err != nil {
				panic(err)
			}
		}
	}
}

func (s *subject) options() Options {
	opt := Options{
		Network: networkName, DSR: s.fake.Version.DSR, RootEndpoint: rootName, HealthPort: 10256,
		Node: func() (netip.Addr, string, error) {
			return netip.MustParseAddr("192.168.0.2"), "00:15:5d:00:00:02", nil
		},
	}
	if s.network == hns.Overlay {
		opt.SourceVIP = netip.MustParseAddr("10.180.99.1")
	}
	return opt
}

func (s *subject) hooks() planetest.Subject {
	return planetest.Subject{
		Plane:   func(route.Options) plane.Plane { return New(&faulty{Fake: s.fake, faults: s.faults}, s.options()) },
		Faults:  s.faults,
		Rooms:   []int{1},
		State:   s.state,
		Scratch: func() planetest.Subject { return s.scratch().hooks() },
		Edit:    s.edit,
		Disturbed: func(err error) bool {
			return errors.Is(err, hns.ErrPortExists) || errors.Is(err, hns.ErrNotFound)
		},
	}
}

func (s *subject) scratch() *subject { return newSubject(s.network, s.kind) }

// state prints what HNS holds, without IDs, and checks that what another program made is there.
func (s *subject) state(*route.Table) (string, error) {
	ctx := context.Background()
	n, err := s.fake.Network(ctx, networkName)
	if err != nil {
		return "", err
	}
	list, err := endpointsOf(ctx, s.fake, n.ID)
	if err != nil {
		return "", err
	}
	var lines []string
	names := map[string]string{}
	for _, e := range list {
		names[e.ID] = fmt.Sprint(e.Addrs)
		lines = append(lines, fmt.Sprint("endpoint ", e.Name, e.Addrs, e.MAC, e.Provider, e.Remote))
	}
	balancers, err := s.fake.LoadBalancers(ctx)
	if err != nil {
		return "", err
	}
	foreign := 0
	for _, l := range balancers {
		if slices.Contains(s.foreign, l.ID) {
			foreign++
			continue
		}
		var to []string
		for _, id := range l.Endpoints {
			to = append(to, names[id])
		}
		slices.Sort(to)
		lines = append(lines, fmt.Sprint(l, to))
	}
	if foreign != len(s.foreign) {
		return "", fmt.Errorf("%d load balancers of another program, want %d", foreign, len(s.foreign))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}

// edit edits HNS as another program might.
func (s *subject) edit(w *planetest.World) error {
	ctx := context.Background()
	if w.Chance(6) { // the CNI makes the network anew
		s.fake.DeleteNetwork(networkName)
		s.fake.AddNetwork(hns.Network{Name: networkName, Type: s.network, Remote: subnets("192.168.0.3")})
		s.addPods()
		return nil
	}
	if w.Chance(4) && len(s.foreign) == 0 {
		if err := s.addForeign(ctx); err != nil {
			return err
		}
	}
	n, err := s.fake.Network(ctx, networkName)
	if err != nil {
		return err
	}
	if w.Chance(3) { // a remote endpoint that an earlier run left
		a := planetest.Addrs("10.180.9.9")
		// it may be there
		_, _ = s.fake.CreateEndpoint(ctx, hns.Endpoint{Network: n.ID, Addrs: a, MAC: hns.MAC(a[0]), Remote: true})
	}
	return s.editObjects(w, n.ID)
}

// addForeign adds a load balancer of another program in another network.
func (s *subject) addForeign(ctx context.Context) error {
	other, err := s.fake.Network(ctx, "other")
	if err != nil {
		return err
	}
	e, err := s.fake.CreateEndpoint(ctx, hns.Endpoint{Network: other.ID, Addrs: planetest.Addrs("192.0.2.1")})
	if err != nil {
		return err
	}
	id, err := s.fake.CreateLoadBalancer(ctx, hns.LoadBalancer{
		VIP: netip.MustParseAddr("192.0.2.7"), Protocol: 6, Port: 80, Target: 80, Endpoints: []string{e},
	})
	s.foreign = append(s.foreign, id)
	return err
}

// editObjects deletes and changes some objects of the plane.
func (s *subject) editObjects(w *planetest.World, network string) error {
	ctx := context.Background()
	balancers, err := s.fake.LoadBalancers(ctx)
	if err != nil {
		return err
	}
	for _, l := range balancers {
		if slices.Contains(s.foreign, l.ID) {
			continue
		}
		switch w.IntN(8) {
		case 0:
			err = s.fake.DeleteLoadBalancer(ctx, l.ID)
		case 1:
			l.Flags.External = !l.Flags.External
			err = s.replace(ctx, l)
		case 2:
			l.Endpoints = l.Endpoints[:1]
			err = s.replace(ctx, l)
		}
		if err != nil {
			return err
		}
	}
	list, err := endpointsOf(ctx, s.fake, network)
	if err != nil {
		return err
	}
	for _, e := range list {
		switch {
		case e.Remote && w.Chance(10):
			s.fake.KillEndpoint(e.ID)
		case e.Remote && e.Provider.IsValid() && w.Chance(10): // the subnet was another node's
			s.fake.SetProvider(e.ID, netip.MustParseAddr("192.168.0.4"))
		}
	}
	return nil
}

// endpointsOf returns the endpoints of a network.
func endpointsOf(ctx context.Context, f *hnstest.Fake, network string) ([]hns.Endpoint, error) {
	list, err := f.Endpoints(ctx)
	return slices.DeleteFunc(list, func(e hns.Endpoint) bool { return e.Network != network }), err
}

func (s *subject) replace(ctx context.Context, l hns.LoadBalancer) error {
	if err := s.fake.DeleteLoadBalancer(ctx, l.ID); err != nil {
		return err
	}
	_, err := s.fake.CreateLoadBalancer(ctx, l)
	return err
}

// faulty is an HNS whose calls fail at times.
type faulty struct {
	*hnstest.Fake
	faults *planetest.Faults
	down   bool // a write failed, and the next call fails as well
}

// write makes a write fail at times, and then the call after it.
func (f *faulty) write(do func() error) error {
	err := f.faults.Write(do)
	f.down = errors.Is(err, planetest.ErrInjected)
	return err
}

// Network implements HNS.
func (f *faulty) Network(ctx context.Context, name string) (hns.Network, error) {
	if f.down {
		f.down = false
		return hns.Network{}, planetest.ErrInjected
	}
	return f.Fake.Network(ctx, name)
}

func (f *faulty) LoadBalancers(ctx context.Context) ([]hns.LoadBalancer, error) {
	if err := f.faults.Read(); err != nil {
		return nil, err
	}
	return f.Fake.LoadBalancers(ctx)
}

func (f *faulty) CreateEndpoint(ctx context.Context, e hns.Endpoint) (id string, err error) {
	err = f.write(func() (err error) { id, err = f.Fake.CreateEndpoint(ctx, e); return err })
	return id, err
}

func (f *faulty) DeleteEndpoint(ctx context.Context, id string) error {
	return f.write(func() error { return f.Fake.DeleteEndpoint(ctx, id) })
}

func (f *faulty) CreateLoadBalancer(ctx context.Context, l hns.LoadBalancer) (id string, err error) {
	err = f.write(func() (err error) { id, err = f.Fake.CreateLoadBalancer(ctx, l); return err })
	return id, err
}

func (f *faulty) ModifyLoadBalancer(ctx context.Context, l hns.LoadBalancer) error {
	return f.write(func() error { return f.Fake.ModifyLoadBalancer(ctx, l) })
}

func (f *faulty) DeleteLoadBalancer(ctx context.Context, id string) error {
	return f.write(func() error { return f.Fake.DeleteLoadBalancer(ctx, id) })
}
