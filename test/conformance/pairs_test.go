//go:build linux

package conformance

import (
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/machine"
)

const (
	pairsAtOnce  = 2_000
	enoughRaces  = 50
	raceDeadline = 5 * time.Minute

	// slowAnswer is how late backends answer, as name servers do that ask others. Linux 5.7 and later add an entry
	// for a datagram that lost the race to another backend, but only for a second (nf_conntrack_core.c,
	// nf_ct_resolve_clash_harder); older ones drop the datagram.
	slowAnswer = 1500 * time.Millisecond
)

// Two datagrams that a socket sends at the same time get the same backend, so that conntrack merges their entries. With
// backends at random it has an entry for each, and loses answers.
func TestPairsOfDatagrams(t *testing.T) {
	if runtime.NumCPU() == 1 {
		t.Skip("with one processor no two threads run at the same time")
	}
	for name, from := range map[string]string{"pod": "10.180.0.9", "node, masqueraded": "node"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of the time is spent waiting
			testPairs(t, from)
		})
	}
}

func testPairs(t *testing.T, from string) {
	t.Helper()
	e := scenario{
		cluster: []string{service("dns", `clusterIP: 172.30.0.41, ports: [{port: 53, protocol: UDP}]`)},
	}.setUpAlone(t, nftablesPlane())
	for _, a := range []string{"10.180.0.1", "10.180.0.2", "10.180.0.3"} {
		e.serveSlowly(t, a)
	}
	if err := apply(slice("dns", "53/udp", "10.180.0.1 A", "10.180.0.2 A", "10.180.0.3 A"))(e); err != nil {
		t.Fatal(err)
	}
	if lost := e.race(t, from); lost > 0 {
		t.Errorf("%d datagrams were lost, want none", lost)
	}
	e.proxy.stop() // the rules stay
	deleteRulesWith(t, e.lab.NodeA, "jhash")
	lost := e.race(t, from)
	t.Logf("with backends at random %d datagrams are lost", lost)
	if lost == 0 {
		t.Error("with backends at random none was lost")
	}
}

// race sends pairs of datagrams until enough of them were in the kernel at the same time, and returns how many were
// lost.
func (e *env) race(t *testing.T, from string) (lost int) {
	t.Helper()
	client, probe, err := e.probe(from, "172.30.0.41:53/udp")
	if err != nil {
		t.Fatal(err)
	}
	before, sent := clashes(t, e.lab.NodeA), 0
	for began := time.Now(); clashes(t, e.lab.NodeA)-before < enoughRaces; sent += pairsAtOnce {
		if time.Since(began) > raceDeadline {
			t.Fatalf("of %d pairs only %d were sent at the same time", sent, clashes(t, e.lab.NodeA)-before)
		}
		n, err := client.Pairs(pairsAtOnce, probe.To, slowAnswer+machine.Scale(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		lost += n
	}
	t.Logf("%d pairs, %d of them at the same time: %d datagrams lost", sent, clashes(t, e.lab.NodeA)-before, lost)
	return lost
}

// clashes returns how many entries of conntrack lost the race to another one for the same packet.
func clashes(t *testing.T, h *lab.Host) (n uint64) {
	t.Helper()
	lines := strings.Split(h.MustRun("cat", "/proc/net/stat/nf_conntrack"), "\n")
	at := slices.Index(strings.Fields(lines[0]), "clashres")
	for _, line := range lines[1:] { // one for each processor
		if fields := strings.Fields(line); len(fields) > at {
			count, err := strconv.ParseUint(fields[at], 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			n += count
		}
	}
	return n
}

// serveSlowly starts a pod on node A that answers datagrams at port 53 late.
func (e *env) serveSlowly(t *testing.T, addr string) {
	t.Helper()
	if err := e.pod(addr + " A"); err != nil {
		t.Fatal(err)
	}
	h := e.hosts[addr]
	var conn net.PacketConn
	err := h.Do(func() (err error) {
		largeBuffer := func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
			}), err)
		}
		conn, err = (&net.ListenConfig{Control: largeBuffer}).ListenPacket(context.Background(), "udp4", ":53")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	e.world.serving[server{h.Name(), lab.UDP, 53}] = true
	t.Cleanup(func() { _ = conn.Close() }) // it ends the goroutine
	go func() {
		for b := make([]byte, 1<<10); ; {
			_, client, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			time.AfterFunc(slowAnswer, func() { _, _ = conn.WriteTo([]byte("!"), client) }) // the client counts answers
		}
	}()
}

// deleteRulesWith deletes the rules of the plane that have a word.
func deleteRulesWith(t *testing.T, h *lab.Host, word string) {
	t.Helper()
	chain, deleted := "", 0
	for line := range strings.Lines(h.MustRun("nft", "-a", "list", "table", "ip", "sluice")) {
		line = strings.TrimSpace(line)
		if name, is := strings.CutPrefix(line, "chain "); is {
			chain, _, _ = strings.Cut(name, " ")
		}
		if _, handle, is := strings.Cut(line, "# handle "); is && strings.Contains(line, word) {
			h.MustRun("nft", "delete", "rule", "ip", "sluice", chain, "handle", handle)
			deleted++
		}
	}
	if deleted == 0 {
		t.Fatalf("no rule has %q", word)
	}
}
