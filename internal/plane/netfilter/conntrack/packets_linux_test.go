package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	kernel "github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// bench is a host with two backends of its own and a sender that uses one socket all the time and expects no answer.
type bench struct {
	netns    int
	backends [2]*net.UDPConn
	sender   *net.UDPConn
}

var (
	vip  = netip.MustParseAddrPort("10.96.0.10:53")
	ends = [2]netip.AddrPort{netip.MustParseAddrPort("10.1.0.1:5353"), netip.MustParseAddrPort("10.1.0.2:5353")}
)

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{netns: kerneltest.Namespace(t)}
	kerneltest.Do(t, b.netns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, a := range []string{"10.1.0.1/32", "10.1.0.2/32"} {
			addr, err := netlink.ParseAddr(a)
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(lo, addr); err != nil {
				return err
			}
		}
		// Whoever is not translated goes nowhere.
		nowhere := &netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4(10, 96, 0, 0), Mask: net.CIDRMask(16, 32)},
		}
		if err := netlink.RouteAdd(nowhere); err != nil {
			return err
		}
		for i, end := range ends {
			if b.backends[i], err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(end)); err != nil {
				return err
			}
		}
		b.sender, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(vip))
		return err
	})
	t.Cleanup(func() {
		if err := errors.Join(b.backends[0].Close(), b.backends[1].Close(), b.sender.Close()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// translate makes the address lead to one backend, or to none (-1).
func (b *bench) translate(t *testing.T, to int) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(b.netns))
	if err != nil {
		t.Fatal(err)
	}
	table := &nftables.Table{Name: "test", Family: nftables.TableFamilyIPv4}
	conn.AddTable(table)
	conn.DelTable(table)
	conn.AddTable(table)
	chain := conn.AddChain(&nftables.Chain{
		Name: "out", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest,
	})
	// The kernel tracks flows only while a rule asks for it.
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
	}})
	if to >= 0 {
		a := ends[to].Addr().As4()
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: vip.Addr().AsSlice()},
			&expr.Immediate{Register: 1, Data: a[:]},
			&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, ends[to].Port())},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
		}})
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
}

// arrives sends one packet and says at which backend it arrives; -1: nowhere.
func (b *bench) arrives(t *testing.T) int {
	t.Helper()
	text := fmt.Sprint(time.Now().UnixNano())
	if _, err := b.sender.Write([]byte(text)); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatal(err)
	}
	for i, backend := range b.backends {
		if err := backend.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 64)
		n, err := backend.Read(buf)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		if string(buf[:n]) == text {
			return i
		}
	}
	return -1
}

// A sender that keeps its socket and is never answered follows the Service through its whole life: no backend, the
// first, another, none. Before each look the kernel keeps it where it was.
func TestPackets(t *testing.T) {
	t.Run("S-197 S-198 S-199 S-213 one sender through the life of a service", oneSender)
}

func oneSender(t *testing.T) {
	b := newBench(t)
	table, err := kernel.Open(b.netns)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = table.Close() }()
	f := New(Options{Table: table})
	steps := []struct {
		service       string
		to            int
		before, after int
	}{
		{"dns: 10.96.0.10:53 =", -1, -1, -1},
		{"dns: 10.96.0.10:53 = 10.1.0.1:5353", 0, -1, 0},
		{"dns: 10.96.0.10:53 = 10.1.0.1:5353 10.1.0.2:5353", 1, 0, 0},
		{"dns: 10.96.0.10:53 = 10.1.0.2:5353", 1, 0, 1},
		{"dns: 10.96.0.10:53 =", -1, 1, -1},
		{"dns: 10.96.0.10:53 = 10.1.0.1:5353", 0, -1, 0},
		{"-dns", -1, 0, -1},
	}
	var seen []int
	for i, s := range steps {
		b.translate(t, s.to)
		if got := b.arrives(t); got != s.before {
			t.Errorf("step %d: before the look packets arrive at %d, want %d", i, got, s.before)
		}
		f.Applied(change(t, allLocal(), s.service))
		settle(t, f)
		got := b.arrives(t)
		if got != s.after {
			t.Errorf("step %d: after the look packets arrive at %d, want %d", i, got, s.after)
		}
		seen = append(seen, got)
	}
	if !slices.Contains(seen, 0) || !slices.Contains(seen, 1) {
		t.Errorf("packets never arrived: %v", seen)
	}
}
