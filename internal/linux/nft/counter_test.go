package nft

import (
	"context"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// counting returns a table that counts UDP packets to 127.0.0.1 and ::1 by their port.
func counting(t Table) *Tx {
	set := Set{Name: "ports", Key: []Type{Proto, Port}, Dynamic: true, Size: 3, Timeout: time.Hour}
	tx := &Tx{}
	tx.AddTable(t)
	tx.AddSet(t, set)
	tx.SetChain(t, Chain{
		Name: "output", Hook: &Hook{Type: "filter", Point: Output},
		Rules: []Rule{NewRule(OfProtocol(unix.IPPROTO_UDP), Count("ports", L4Proto(), DestinationPort()))},
	})
	return tx
}

// Packets are counted by their element. A set that does not exist has none.
func TestCountersOfElements(t *testing.T) {
	for _, table := range tables {
		conn, netns := realKernel(t)
		if list, err := counters(conn, table); len(list) > 0 || err != nil {
			t.Errorf("without a table: got %v, %v", list, err)
		}
		commit(t, conn, counting(table))
		host := map[Family]string{IP4: "127.0.0.1", IP6: "::1"}[table.Family]
		kerneltest.Do(t, netns, func() error {
			c, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			for port, n := range map[int]int{7: 3, 8: 1, 9: 20} {
				for range n {
					if _, err := c.WriteTo([]byte("x"), &net.UDPAddr{IP: net.ParseIP(host), Port: port}); err != nil {
						return err
					}
				}
			}
			return nil
		})
		list, err := counters(conn, table)
		if err != nil {
			t.Fatal(err)
		}
		for i := range list {
			if e := &list[i]; e.Expires > time.Hour || e.Expires < 50*time.Minute {
				t.Errorf("%x expires in %s, want an hour", e.Key, e.Expires)
			} else {
				e.Expires = 0
			}
		}
		slices.SortFunc(list, func(a, b Counter) int { return strings.Compare(a.Key, b.Key) })
		key := func(port uint16) string { return string(Key{}.Proto(unix.IPPROTO_UDP).Port(port)) }
		want := []Counter{{Key: key(7), Packets: 3}, {Key: key(8), Packets: 1}, {Key: key(9), Packets: 20}}
		if !slices.Equal(list, want) {
			t.Errorf("got %v, want %v", list, want)
		}
		readAgain(t, conn, netns, table)
	}
}

func counters(conn *Conn, table Table) (list []Counter, err error) {
	err = conn.Counters(context.Background(), table, "ports", func(c Counter) { list = append(list, c) })
	return list, err
}

// readAgain verifies that what nft lists can be loaded again, counters included.
func readAgain(t *testing.T, conn *Conn, netns int, table Table) {
	t.Helper()
	before, err := counters(conn, table)
	if err != nil {
		t.Fatal(err)
	}
	file := t.TempDir() + "/rules"
	if err := os.WriteFile(file, []byte("flush ruleset\n"+runNft(t, netns, "list", "ruleset")), 0o600); err != nil {
		t.Fatal(err)
	}
	runNft(t, netns, "-f", file)
	after, err := counters(conn, table)
	sum := func(list []Counter) (n uint64) {
		for _, e := range list {
			n += e.Packets
		}
		return n
	}
	if err != nil || len(after) != len(before) || sum(after) != sum(before) {
		t.Errorf("loaded %v, %v, want %v", after, err, before)
	}
}
