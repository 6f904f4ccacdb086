//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/lab"
)

// site is a node with the rules of a Service, a pod that is the client, and the backend.
type site struct {
	node    *lab.Host
	client  *lab.Host
	to      unix.SockaddrInet4
	port    uint16 // of the backend
	listens int
	sockets []int    // to connect with
	rules   []string // of the chain that translates and counts, as they are
	ends    [2]int   // of a connection
}

// placement returns the backend of the clients on a node.
type placement func(l *lab.Lab, node *lab.Host, i byte) *lab.Host

func outside(l *lab.Lab, _ *lab.Host, _ byte) *lab.Host { return l.Outside }

// podOf returns the pod of a node that is the backend there.
func podOf(l *lab.Lab, node *lab.Host, i byte) *lab.Host {
	return l.Pod(node, netip.AddrFrom4([4]byte{10, 180, i, 1}).String())
}

// site loads the rules of a Service into a node, and opens a connection to its backend.
func (backend placement) site(t lab.T, l *lab.Lab, node *lab.Host, i byte) *site {
	t.Helper()
	s := &site{
		port: 8080 + uint16(i),
		node: node, client: l.Pod(node, netip.AddrFrom4([4]byte{10, 180, i, 9}).String()),
		to: unix.SockaddrInet4{Port: 80, Addr: [4]byte{172, 30, 0, 80}},
	}
	on := backend(l, node, i)
	err := errors.Join(s.listen(on), s.load(on.Addr4()))
	if err == nil {
		s.ends[0], err = s.connected()
	}
	if err == nil {
		s.ends[1], _, err = unix.Accept(s.listens)
	}
	if err != nil {
		t.Fatalf("a connection to the Service: %v", err)
	}
	for line := range strings.Lines(node.MustRun("nft", "list", "chain", "ip", "sluice", chain)) {
		if line = strings.TrimSpace(line); strings.Contains(line, "dnat") || line == "drop" {
			s.rules = append(s.rules, line)
		}
	}
	if len(s.counting()) != len(s.plain())+2 {
		t.Fatalf("the rules are\n%s", strings.Join(s.rules, "\n"))
	}
	return s
}

// chain is the chain that translates and counts connections to addresses.
const chain = "at-backends"

// counting returns the rules of the chain as they are.
func (s *site) counting() []string { return s.rules }

// plain returns the rules that do not count.
func (s *site) plain() []string {
	return slices.DeleteFunc(slices.Clone(s.rules), func(r string) bool { return strings.Contains(r, "update @") })
}

func (s *site) load(backend netip.Addr) error {
	ctx := context.Background()
	conn, err := nft.Open(nft.Options{NetNS: s.node.NetNSFD()})
	if err != nil {
		return err
	}
	store := cluster.NewStore()
	store.SetNode(planetest.NewNode("10.180.0.0/16"))
	name := cluster.Name{Namespace: "shop", Name: "web"}
	store.SetService(&cluster.Service{
		Name: name, ClusterIPs: planetest.Addrs("172.30.0.80"), Ports: []cluster.ServicePort{{Protocol: lab.TCP, Port: 80}},
	})
	store.SetSlice(&cluster.Slice{
		Name: name, Service: name, Ports: []cluster.SlicePort{{Protocol: lab.TCP, Port: s.port}},
		Endpoints: []cluster.Endpoint{planetest.Endpoint(backend.String(), "a")},
	})
	compiler := route.NewCompiler(route.Options{NodeName: "a", Families: route.Families()})
	change, _ := compiler.Compile(store.Take())
	p := nftables.New(conn, nftables.Options{Families: route.Families(), Mark: 0x4000})
	if err := p.Refresh(ctx); err != nil {
		return errors.Join(err, conn.Close())
	}
	return errors.Join(p.Plan(change).Apply(ctx), conn.Close())
}

func (s *site) listen(on *lab.Host) error {
	return on.Do(func() (err error) {
		if s.listens, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.Bind(s.listens, &unix.SockaddrInet4{Port: int(s.port)}), unix.Listen(s.listens, 128))
	})
}

// rewrite replaces the rules of the chain.
func (s *site) rewrite(rules []string) {
	const add = "add rule ip sluice " + chain + " "
	s.node.Nft("flush chain ip sluice " + chain + "\n" + add + strings.Join(rules, "\n"+add) + "\n")
}

// socket returns a socket that is reset when it is closed.
func (s *site) socket() (int, error) {
	if len(s.sockets) == 0 {
		if err := s.client.Do(s.open); err != nil {
			return 0, err
		}
	}
	fd := s.sockets[0]
	s.sockets = s.sockets[1:]
	return fd, nil
}

func (s *site) open() error {
	for range 256 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		s.sockets = append(s.sockets, fd)
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return err
		}
	}
	return nil
}

func (s *site) connected() (int, error) {
	fd, err := s.socket()
	if err != nil {
		return 0, err
	}
	return fd, errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), unix.Connect(fd, &s.to))
}

// connect returns how long a call of connect takes. The kernel passes all packets of it within that call.
func (s *site) connect() (time.Duration, error) {
	fd, err := s.socket()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	err = unix.Connect(fd, &s.to)
	took := time.Since(began)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return 0, fmt.Errorf("connect: %w", err)
	}
	fd, _, err = unix.Accept(s.listens)
	return took, errors.Join(err, unix.Close(fd))
}

// exchange returns how long eight bytes take to the backend and back, one after the other.
func (s *site) exchange() (time.Duration, error) {
	b := []byte{0}
	began := time.Now()
	for i := range 16 {
		_, sent := unix.Write(s.ends[i%2], b)
		_, received := unix.Read(s.ends[1-i%2], b)
		if err := errors.Join(sent, received); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}
