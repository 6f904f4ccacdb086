//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/linux/rtnl"
	"github.com/sluice-proxy/sluice/test/harness"
)

// host is the network namespace of this process, which has the addresses of everybody.
type host struct {
	table    *ipvs.Table
	backends []*backend
	runs     uint16
}

func serviceAddr() netip.Addr      { return netip.AddrFrom4([4]byte{10, 96, 0, 1}) }
func backendAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 1, byte(i + 1)}) }
func clientAddr(i int) netip.Addr  { return netip.AddrFrom4([4]byte{10, 0, 2, byte(i + 1)}) }

func newHost(ctx context.Context) (*host, error) {
	h := &host{table: ipvs.New(0)}
	if err := h.table.Load(ctx); err != nil {
		return nil, fmt.Errorf("%w; test/uml runs this program on a kernel that has it", err)
	}
	addrs := []netip.Addr{serviceAddr()}
	for i := range clients {
		addrs = append(addrs, clientAddr(i))
	}
	for i := range backends {
		addrs = append(addrs, backendAddr(i))
	}
	if err := rtnl.New(0).AddAddresses(ctx, "lo", addrs); err != nil {
		return nil, err
	}
	for i := range backends {
		b, err := serve(netip.AddrPortFrom(backendAddr(i), port))
		if err != nil {
			return nil, fmt.Errorf("serve at backend %d: %w", i, err)
		}
		h.backends = append(h.backends, b)
	}
	return h, nil
}

// result is the result of one scheduler in one scenario.
type result struct {
	scheduler string
	took      []time.Duration // of each request that was not refused
	refused   int
	shares    []float64 // the part of the requests of each backend
	most      int64     // connections at the same backend
}

// measure runs all clients. Each run has a port of its own, as IPVS remembers connections of the previous one.
func (h *host) measure(ctx context.Context, o options, s scenario, scheduler string) (result, error) {
	h.runs++
	server := ipvs.Server{Addr: serviceAddr(), Protocol: unix.IPPROTO_TCP, Port: port + h.runs}
	changes := []ipvs.Command{{Op: ipvs.Set, Server: server, Settings: ipvs.Settings{
		Scheduler: scheduler, Ports: scheduler == "mh", // as the plane does
	}}}
	for i, b := range h.backends {
		dest := ipvs.Destination{At: netip.AddrPortFrom(backendAddr(i), port), Weight: s.weight}
		b.reset(1)
		if i == len(h.backends)-1 {
			dest.Weight = 1
			b.reset(s.slow)
		}
		changes = append(changes, ipvs.Command{Op: ipvs.SetDest, Server: server, Dest: dest})
	}
	if err := h.table.Apply(ctx, changes); err != nil {
		return result{}, err
	}
	var all []*client
	for i := range clients {
		all = append(all, &client{
			from: clientAddr(i), to: netip.AddrPortFrom(server.Addr, server.Port),
			random: rand.New(rand.NewPCG(o.seed, uint64(i))), //nolint:gosec // the same numbers for each scheduler
		})
	}
	if err := runAll(all, o.requests); err != nil {
		return result{}, err
	}
	r := h.collect(all)
	r.scheduler = scheduler
	return r, h.table.Delete(ctx, server)
}

func (h *host) collect(all []*client) (r result) {
	for _, c := range all {
		r.took = append(r.took, c.took...)
		r.refused += c.refused
	}
	for _, b := range h.backends {
		r.shares = append(r.shares, float64(b.served.Load())/float64(len(r.took)))
		r.most = max(r.most, b.most.Load())
	}
	return r
}

func printTable(w io.Writer, s scenario, results []result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n", s.title)
	b.WriteString("| scheduler | least and most of a backend, % | the last one, % | connections at one " +
		"| p50, ms | p99, ms | longest, ms | refused, % |\n")
	b.WriteString("|---|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, r := range results {
		millis := func(q float64) float64 { return float64(harness.Quantile(r.took, q)) / 1e6 }
		fmt.Fprintf(&b, "| %s | %.1f, %.1f | %.1f | %d | %.0f | %.0f | %.0f | %.1f |\n", r.scheduler,
			100*slices.Min(r.shares), 100*slices.Max(r.shares), 100*r.shares[len(r.shares)-1], r.most,
			millis(0.5), millis(0.99), millis(1),
			100*float64(r.refused)/float64(len(r.took)+r.refused))
	}
	b.WriteString("\n")
	_, err := io.WriteString(w, b.String())
	return err
}
