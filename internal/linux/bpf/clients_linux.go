package bpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"

	"github.com/cilium/ebpf/ringbuf"
)

// Pod is the network namespace of a pod, by its cookie, with its source addresses.
type Pod struct {
	NetNS uint64
	IPv4  netip.Addr // invalid: unknown
	IPv6  netip.Addr
}

// entries returns the entries of the map clients.
func (p Pod) entries(do func(key, value []byte)) {
	for is4, a := range []netip.Addr{p.IPv6, p.IPv4} {
		if a.IsValid() {
			do(slices.Concat(native64(p.NetNS), native32(uint32(is4)), native32(0)), address(a))
		}
	}
}

// SetPods makes programs decide for these pods, and for no others. It returns ErrFull if the map has no room for all.
func (c *Conn) SetPods(pods []Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.open(); err != nil {
		return err
	}
	want := map[string]string{}
	for _, p := range pods {
		p.entries(func(k, v []byte) { want[string(k)] = string(v) })
	}
	var gone [][]byte
	err := each(c.maps[sockMapClients], func(k, v []byte) {
		if want[string(k)] == string(v) {
			delete(want, string(k)) // it is there
		} else {
			gone = append(gone, slices.Clone(k))
		}
	})
	if err != nil {
		return fmt.Errorf("read which pods are known: %w", err)
	}
	if len(gone) > 0 { // decisions may have their addresses
		return c.changeTables(func() error { return c.writePods(gone, want) })
	}
	return c.writePods(nil, want)
}

func (c *Conn) writePods(gone [][]byte, add map[string]string) error {
	for _, k := range gone {
		if err := remove(c.maps[sockMapClients], k); err != nil {
			return fmt.Errorf("forget a pod: %w", err)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(add)) {
		err := put(c.maps[sockMapClients], []byte(k), []byte(add[k]))
		if isFull(err) {
			err = ErrFull
		}
		if err != nil {
			return fmt.Errorf("add a pod: %w", err)
		}
	}
	return nil
}

// UnknownClients calls a function with the cookie of the network namespace of a client that is no known pod and has
// connected to a Service, once a second at most, until the context ends. It returns nil then.
func (c *Conn) UnknownClients(ctx context.Context, do func(netns uint64)) error {
	reports, err := c.unknownClients()
	if err != nil {
		return fmt.Errorf("open the reports of unknown clients: %w", err)
	}
	defer func() { _ = reports.Close() }() // it was only read from
	stop := context.AfterFunc(ctx, func() { _ = reports.Close() })
	defer stop()
	for {
		record, err := reports.Read()
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the reports of unknown clients: %w", err)
		}
		if len(record.RawSample) >= 8 {
			do(binary.NativeEndian.Uint64(record.RawSample))
		}
	}
}

func (c *Conn) unknownClients() (*ringbuf.Reader, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.open(); err != nil {
		return nil, err
	}
	return ringbuf.NewReader(c.maps[sockMapUnknownClients])
}
