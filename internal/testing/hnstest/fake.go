// Package hnstest has an HNS in memory, for tests on every operating system.
package hnstest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// ErrInUse is the error of the deletion of an endpoint to which a load balancer refers.
var ErrInUse = errors.New("a load balancer refers to the endpoint")

// Fake is HNS in memory. It refuses invalid requests. Where the behaviour of the real HNS is not documented, it does
// the stricter thing, or has an option. Its methods are safe for concurrent use.
type Fake struct {
	Version hns.Features

	// StuckModify means that changes in place succeed without an effect, as in some versions.
	StuckModify bool

	// SharedAddrs means that a container of this host may have the address of a remote endpoint.
	SharedAddrs bool

	// KeepDangling means that load balancers stay when the network of their endpoints is deleted, with their IDs.
	KeepDangling bool

	// Normalize, if not nil, returns a written load balancer in the form in which HNS returns it.
	Normalize func(hns.LoadBalancer) hns.LoadBalancer

	// Refuse, if not nil, returns an error for calls that HNS does not accept, by their line in Writes.
	Refuse func(write string) error

	// Broken, if not nil, is the error of each attempt to read a network.
	Broken error

	mu        sync.Mutex
	networks  map[string]hns.Network // by name
	endpoints map[string]hns.Endpoint
	owners    map[place]string // IDs of endpoints
	balancers map[string]hns.LoadBalancer
	last      int // number of the last ID
	requests  []Request

	// Writes lists the writes, one line each.
	Writes []string
}

// New returns a recent HNS with one network.
func New(network hns.Network) *Fake {
	f := &Fake{
		Version:  hns.Features{V2: true, RemoteSubnet: true, DSR: true, SessionAffinity: true, DualStack: true, Modify: true},
		networks: map[string]hns.Network{}, endpoints: map[string]hns.Endpoint{}, owners: map[place]string{},
		balancers: map[string]hns.LoadBalancer{},
	}
	f.AddNetwork(network)
	return f
}

func (f *Fake) id() string {
	f.last++
	return fmt.Sprintf("c0ffee00-abcd-4ef0-8abc-%012x", f.last)
}

// AddNetwork creates a network with a new ID.
func (f *Fake) AddNetwork(n hns.Network) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n.ID = f.id()
	f.networks[n.Name] = n
}

// SetRemote changes the remote subnets of a network.
func (f *Fake) SetRemote(name string, remote []hns.RemoteSubnet) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.networks[name]
	n.Remote = remote
	f.networks[name] = n
}

// SetProvider changes the node of a remote endpoint, as if it had been created for another one.
func (f *Fake) SetProvider(id string, node netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.endpoints[id]
	e.Provider = node
	f.endpoints[id] = e
}

// write notes a write, unless it is refused.
func (f *Fake) write(line string) error {
	if f.Refuse != nil {
		if err := f.Refuse(line); err != nil {
			return err
		}
	}
	f.Writes = append(f.Writes, line)
	return nil
}

// Written returns a copy of Writes.
func (f *Fake) Written() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.Writes)
}

// DeleteNetwork deletes a network with its endpoints. If KeepDangling is not set, it also deletes load balancers whose
// endpoints are all gone.
func (f *Fake) DeleteNetwork(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gone := f.networks[name].ID
	delete(f.networks, name)
	maps.DeleteFunc(f.endpoints, func(_ string, e hns.Endpoint) bool { return e.Network == gone })
	maps.DeleteFunc(f.balancers, func(_ string, l hns.LoadBalancer) bool {
		return !f.KeepDangling && !slices.ContainsFunc(l.Endpoints, func(id string) bool { return f.endpoints[id].ID != "" })
	})
}

// SetVersion replaces Version.
func (f *Fake) SetVersion(v hns.Features) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Version = v
}

// Features returns the features of the version.
func (f *Fake) Features(context.Context) (hns.Features, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Version, nil
}

// Network returns the network with a name.
func (f *Fake) Network(_ context.Context, name string) (hns.Network, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Broken != nil {
		return hns.Network{}, f.Broken
	}
	n, has := f.networks[name]
	if !has {
		return n, fmt.Errorf("network %s: %w", name, hns.ErrNoNetwork)
	}
	return n, nil
}

// Endpoints returns the endpoints of all networks, sorted by ID.
func (f *Fake) Endpoints(context.Context) ([]hns.Endpoint, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []hns.Endpoint
	for _, id := range slices.Sorted(maps.Keys(f.endpoints)) {
		all = append(all, returnedEndpoint(f.endpoints[id]).Canonical())
	}
	return all, nil
}

// CreateEndpoint creates an endpoint. No two in a network have the same address, unless SharedAddrs is set.
func (f *Fake) CreateEndpoint(_ context.Context, e hns.Endpoint) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e = e.Canonical()
	inNetwork := func(n hns.Network) bool { return n.ID == e.Network }
	if !slices.ContainsFunc(slices.Collect(maps.Values(f.networks)), inNetwork) {
		return "", fmt.Errorf("network %s: %w", e.Network, hns.ErrNoNetwork)
	}
	for _, p := range f.places(e) {
		if id, taken := f.owners[p]; taken {
			return "", fmt.Errorf("endpoint %s has the address %s already", id, p.addr)
		}
	}
	if err := f.write(fmt.Sprintf("create endpoint %s", e.Addrs)); err != nil {
		return "", err
	}
	e.ID = f.id()
	f.endpoints[e.ID] = e
	for _, p := range f.places(e) {
		f.owners[p] = e.ID
	}
	return e.ID, nil
}

// place is an address that one endpoint can have.
type place struct {
	network string
	addr    netip.Addr
	remote  bool
}

func (f *Fake) places(e hns.Endpoint) (list []place) {
	for _, a := range e.Addrs {
		list = append(list, place{e.Network, a, e.Remote && f.SharedAddrs})
	}
	return list
}

func (f *Fake) forget(id string) {
	for _, p := range f.places(f.endpoints[id]) {
		delete(f.owners, p)
	}
	delete(f.endpoints, id)
}

// DeleteEndpoint deletes an endpoint to which no load balancer refers.
func (f *Fake) DeleteEndpoint(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	id = hns.ID(id)
	e, has := f.endpoints[id]
	if !has {
		return fmt.Errorf("endpoint %s: %w", id, hns.ErrNotFound)
	}
	for _, l := range f.balancers {
		if slices.Contains(l.Endpoints, id) {
			return fmt.Errorf("%w: %s, load balancer %s", ErrInUse, e.Addrs, l)
		}
	}
	if err := f.write(fmt.Sprintf("delete endpoint %s", e.Addrs)); err != nil {
		return err
	}
	f.forget(id)
	return nil
}

// KillEndpoint deletes an endpoint from everywhere, as when a container ends.
func (f *Fake) KillEndpoint(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget(id)
	for at, l := range f.balancers {
		l.Endpoints = slices.DeleteFunc(slices.Clone(l.Endpoints), func(e string) bool { return e == id })
		f.balancers[at] = l
	}
}

// LoadBalancers returns all load balancers, sorted by ID.
func (f *Fake) LoadBalancers(context.Context) ([]hns.LoadBalancer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []hns.LoadBalancer
	for _, id := range slices.Sorted(maps.Keys(f.balancers)) {
		all = append(all, f.returned(f.balancers[id]).Canonical())
	}
	return all, nil
}

// returnedEndpoint returns an endpoint as HNS returns it: the ID of its network is spelled in another way than in the
// document of the network.
func returnedEndpoint(e hns.Endpoint) hns.Endpoint {
	e.Network = strings.ToUpper(e.Network)
	return e
}

// returned returns a load balancer as HNS returns it: its IDs are spelled in another way than in the documents of
// endpoints.
func (f *Fake) returned(l hns.LoadBalancer) hns.LoadBalancer {
	if f.Normalize != nil {
		l = f.Normalize(l)
	}
	l = l.Canonical() // a copy
	l.ID = strings.ToUpper(l.ID)
	for i, id := range l.Endpoints {
		l.Endpoints[i] = strings.ToUpper(id)
	}
	return l
}

// CreateLoadBalancer creates a load balancer.
func (f *Fake) CreateLoadBalancer(_ context.Context, l hns.LoadBalancer) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l = l.Canonical()
	l.ID = f.id()
	if err := f.check(l); err != nil {
		return "", err
	}
	if err := f.write("create " + l.String()); err != nil {
		return "", err
	}
	f.balancers[l.ID] = l
	return l.ID, nil
}

// ModifyLoadBalancer changes a load balancer in place.
func (f *Fake) ModifyLoadBalancer(_ context.Context, l hns.LoadBalancer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	l = l.Canonical()
	if !f.Version.Modify {
		return hns.ErrNotImplemented
	}
	if _, has := f.balancers[l.ID]; !has {
		return fmt.Errorf("load balancer %s: %w", l.ID, hns.ErrNotFound)
	}
	if err := f.check(l); err != nil {
		return err
	}
	if err := f.write("modify " + l.String()); err != nil || f.StuckModify {
		return err
	}
	f.balancers[l.ID] = l
	return nil
}

// DeleteLoadBalancer deletes a load balancer.
func (f *Fake) DeleteLoadBalancer(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	id = hns.ID(id)
	l, has := f.balancers[id]
	if !has {
		return fmt.Errorf("load balancer %s: %w", id, hns.ErrNotFound)
	}
	if err := f.write("delete " + l.String()); err != nil {
		return err
	}
	delete(f.balancers, id)
	return nil
}

// check verifies a load balancer before it is stored.
func (f *Fake) check(l hns.LoadBalancer) error {
	if len(l.Endpoints) == 0 {
		return errors.New("a load balancer needs endpoints")
	}
	for _, id := range l.Endpoints {
		if _, has := f.endpoints[id]; !has {
			return fmt.Errorf("endpoint %s: %w", id, hns.ErrNotFound)
		}
	}
	if l.Flags.DSR && !f.Version.DSR || l.Flags.Affinity && !f.Version.SessionAffinity {
		return hns.ErrNotImplemented
	}
	for _, o := range f.balancers {
		same := o.VIP == l.VIP && o.Protocol == l.Protocol && o.Port == l.Port && o.Flags.IPv6 == l.Flags.IPv6
		if o.ID != l.ID && same {
			return fmt.Errorf("%w: %s", hns.ErrPortExists, l)
		}
	}
	return nil
}
