package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

// memory answers which backends clients keep, by a connection of its own. It is safe for concurrent use.
type memory struct {
	netns  int
	layout layout

	mu   sync.Mutex
	conn *nft.Conn // nil: nobody has asked yet
}

func newMemory(netns int) *memory { return &memory{netns: netns, layout: newLayout()} }

func (m *memory) open() (err error) {
	if m.conn == nil {
		m.conn, err = nft.Open(nft.Options{NetNS: m.netns})
	}
	return err
}

func (m *memory) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn == nil {
		return nil
	}
	return m.conn.Close()
}

// remembered implements Remembered of plane.Opened, by the look-ups that a packet makes.
func (m *memory) remembered(f route.Key, client netip.Addr) (backend netip.AddrPort, left time.Duration, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.open(); err != nil {
		return backend, 0, err
	}
	kind := route.ClusterIP
	if !f.Addr.IsValid() {
		kind = route.NodePort
	}
	frontend := &route.Frontend{Kind: kind, Addr: f.Addr, Port: f.Port}
	s, t := &m.layout.spaces[spaceOf(frontend)], tableFor(f.Family)
	key := m.layout.key(&route.Port{Family: f.Family, Protocol: f.Protocol}, frontend).key
	id, ok, err := m.conn.Get(t, s.affinity.Name, key)
	if !ok || err != nil {
		return backend, 0, err
	}
	number, ok, err := m.conn.Get(t, m.layout.clients.Name, id.Data+string(nft.Key{}.Addr(client)))
	if !ok || err != nil {
		return backend, 0, err
	}
	to, ok, err := m.conn.Get(t, s.backends.Name, key+number.Data)
	if !ok || err != nil {
		return backend, 0, err
	}
	size := client.BitLen() / 8
	addr, is := netip.AddrFromSlice([]byte(to.Data[:min(size, len(to.Data))]))
	if !is || len(to.Data) < size+2 {
		return backend, 0, fmt.Errorf("map %s has an element of %d bytes, want an address and a port", s.backends.Name, len(to.Data))
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16([]byte(to.Data[size:]))), number.Left, nil
}
