package iptables

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

func ours(chain string) bool { return strings.HasPrefix(chain, "KUBE-") }

// observer is a host whose chains are watched.
type observer struct {
	*host
	edits     chan Edit
	sentinels int // number of edits by sentinel
}

func observe(t *testing.T, variant Variant, prepare func(*host)) *observer {
	t.Helper()
	h := newHost(t, variant)
	prepare(h)
	return observeHost(t, h)
}

func observeHost(t *testing.T, h *host) *observer {
	t.Helper()
	o := &observer{host: h, edits: make(chan Edit, 1000)}
	ctx, cancel := context.WithCancel(t.Context())
	done, listening := make(chan error, 1), make(chan struct{})
	go func() {
		done <- o.tools.Watch(ctx, ours, func() { close(listening) }, func(e Edit) { o.edits <- e })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the watch ended with: %v", err)
		}
	})
	<-listening
	return o
}

// next waits for an edit.
func (o *observer) next() Edit {
	o.t.Helper()
	select {
	case e := <-o.edits:
		return e
	case <-time.After(20 * time.Second):
		o.t.Fatal("no edit was reported")
		return Edit{}
	}
}

// sentinel edits a chain of the proxy in a table that no test uses, and returns the What of
// the edit that Watch reports.
func (o *observer) sentinel() string {
	o.t.Helper()
	o.sentinels++
	chain := fmt.Sprintf("KUBE-SENTINEL-%d", o.sentinels)
	o.run("iptables -w 10 -t mangle -N " + chain)
	return "chain " + chain + " in mangle"
}

// settle waits until all changes so far have been processed, and returns the reported
// edits. They are reported in the order of changes: all earlier ones arrive before that of a sentinel.
func (o *observer) settle() []Edit {
	o.t.Helper()
	var all []Edit
	for last := o.sentinel(); ; {
		e := o.next()
		if e.What == last {
			return all
		}
		all = append(all, e)
	}
}

// base are the rules before edits: chains of ours, jumps to them, and foreign rules around these.
const base = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
:KUBE-EMPTY - [0:0]
:DOCKER - [0:0]
-A PREROUTING -j DOCKER
-A PREROUTING -j KUBE-SERVICES
-A PREROUTING -p udp -j DOCKER
-A DOCKER -j RETURN
-A KUBE-SERVICES -p tcp -j KUBE-SVC-A
-A KUBE-SERVICES -p udp -j KUBE-SVC-A
-A KUBE-SVC-A -j RETURN
COMMIT
*filter
:KUBE-SERVICES - [0:0]
:DOCKER - [0:0]
-A INPUT -j KUBE-SERVICES
-A KUBE-SERVICES -j RETURN
COMMIT
`

// reset replaces all rules by those of base.
func (o *observer) reset() {
	o.t.Helper()
	clean := "*nat\n-F\n-X\nCOMMIT\n*filter\n-F\n-X\nCOMMIT\n"
	for _, family := range families() {
		o.restore(family, clean)
		o.restore(family, base)
	}
}

func TestEditsOfOtherProgramsAreReported(t *testing.T) {
	o := observe(t, NFT, func(*host) {})
	for _, tt := range []struct {
		command string
		want    string
	}{
		{"iptables -t nat -F KUBE-SERVICES", "rule of KUBE-SERVICES in nat"},
		{"iptables -F KUBE-SERVICES", "rule of KUBE-SERVICES in filter"},
		{"ip6tables -t nat -F KUBE-SVC-A", "rule of KUBE-SVC-A in nat of IPv6"},
		{"iptables -t nat -F", "rule of "},
		{"iptables -t nat -X KUBE-EMPTY", "chain KUBE-EMPTY in nat"},
		{"iptables -t nat -N KUBE-NEW", "chain KUBE-NEW in nat"},
		{"iptables -t nat -D PREROUTING -j KUBE-SERVICES", "rule of PREROUTING in nat"},
		{"iptables -D INPUT -j KUBE-SERVICES", "rule of INPUT in filter"},
		{"ip6tables -D INPUT -j KUBE-SERVICES", "rule of INPUT in filter of IPv6"},
		{"iptables -I OUTPUT -j KUBE-SERVICES", "rule of OUTPUT in filter"},
		{"iptables -t nat -I KUBE-SVC-A -j ACCEPT", "rule of KUBE-SVC-A in nat"},
		{"iptables -t nat -R KUBE-SVC-A 1 -j ACCEPT", "rule of KUBE-SVC-A in nat"},
		{"iptables -t nat -D KUBE-SERVICES 1", "rule of KUBE-SERVICES in nat"},
		{"iptables -t nat -A DOCKER -j KUBE-SVC-A", "rule of DOCKER in nat"},
		{"iptables -t nat -I PREROUTING -j RETURN", "rule of PREROUTING in nat"},
	} {
		o.reset()
		o.settle()
		o.run("iptables -t nat -A DOCKER -j ACCEPT") // a foreign chain: not reported
		if reported := o.settle(); len(reported) > 0 {
			t.Fatalf("before %q: reported %v", tt.command, reported)
		}
		o.run(tt.command)
		e := o.next()
		if !strings.HasPrefix(e.What, tt.want) {
			t.Errorf("after %q: reported %q, want %q", tt.command, e.What, tt.want)
		}
		if !strings.Contains(e.By, "tables-nft (thread ") {
			t.Errorf("after %q: by %q", tt.command, e.By)
		}
		o.settle()
	}
}

// A jump that is moved behind foreign rules is reported, although the number of rules stays the same.
func TestAJumpThatIsMovedIsReported(t *testing.T) {
	o := observe(t, NFT, func(h *host) { h.restore(IPv4, base) })
	input := "*nat\n-D PREROUTING -j KUBE-SERVICES\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n"
	file := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(file, []byte(input), 0o600); err != nil {
		t.Fatal(err)
	}
	o.run("iptables-restore --noflush " + file)
	if e := o.next(); e.What != "rule of PREROUTING in nat" {
		t.Errorf("reported %+v", e)
	}
}

// Edits of the tables of iptables-nft by nft are reported as well.
func TestEditsByNftAreReported(t *testing.T) {
	o := observe(t, NFT, func(*host) {})
	for _, command := range []string{
		"nft flush table ip nat", "nft delete table ip nat", "nft flush ruleset", "nft flush chain ip nat KUBE-SVC-A",
	} {
		o.restore(IPv4, base)
		o.run(command)
		if e := o.next(); !strings.Contains(e.What, "KUBE-S") || !strings.HasPrefix(e.By, "nft (thread ") {
			t.Errorf("after %q: reported %+v", command, e)
		}
	}
	if reported := o.settle(); len(reported) > 0 {
		t.Errorf("reported too much: %v", reported)
	}
}

// Edits of foreign chains and rules are not reported.
func TestChainsOfOtherProgramsAreNotReported(t *testing.T) {
	o := observe(t, NFT, func(h *host) { h.restore(IPv4, base) })
	for _, command := range []string{
		"iptables -t nat -F DOCKER",
		"iptables -t nat -I PREROUTING -p tcp -j DOCKER",
		"iptables -t nat -A PREROUTING -p tcp -j ACCEPT",
		"iptables -t nat -D PREROUTING -p udp -j DOCKER",
		"iptables -N THEIRS",
		"iptables -I INPUT -j THEIRS",
		"iptables -P FORWARD DROP",
		"iptables -t mangle -A PREROUTING -j ACCEPT",
		"iptables -t raw -A PREROUTING -j ACCEPT",
		"iptables -t nat -S",
		"ip6tables -t nat -A PREROUTING -p tcp -j ACCEPT",
	} {
		o.run(command)
		if reported := o.settle(); len(reported) > 0 {
			t.Errorf("after %q: reported %v", command, reported)
		}
	}
}

// Writes of Restore are not reported, whatever their size. Edits between two of them are.
func TestOwnWritesAreNotReported(t *testing.T) {
	o := observe(t, NFT, func(*host) {})
	o.restore(IPv4, base)
	for round := range 5 {
		var b strings.Builder
		b.WriteString("*nat\n")
		for i := range 1000 {
			fmt.Fprintf(&b, ":KUBE-SVC-%d-%d - [0:0]\n-A KUBE-SVC-%d-%d -j ACCEPT\n", round, i, round, i)
		}
		b.WriteString("-D PREROUTING -j KUBE-SERVICES\n-I PREROUTING -j KUBE-SERVICES\nCOMMIT\n")
		o.restore(IPv4, b.String())
	}
	if reported := o.settle(); len(reported) > 0 {
		t.Fatalf("reported %v", reported)
	}
	o.run("iptables -t nat -I KUBE-SVC-0-1 -j RETURN")
	o.restore(IPv4, "*nat\n:KUBE-SVC-A - [0:0]\n-A KUBE-SVC-A -j ACCEPT\nCOMMIT\n")
	if e := o.next(); e.What != "rule of KUBE-SVC-0-1 in nat" {
		t.Errorf("reported %+v", e)
	}
	if reported := o.settle(); len(reported) > 0 {
		t.Errorf("reported additional edits: %v", reported)
	}
}

// An edit while Restore is called repeatedly is reported; the writes of Restore are not.
func TestEditsDuringARestore(t *testing.T) {
	o := observe(t, NFT, func(h *host) { h.restore(IPv4, base) })
	inputs := make(chan error)
	go func() {
		var err error
		for i := range 20 {
			input := fmt.Sprintf("*nat\n:KUBE-SVC-%d - [0:0]\n-A KUBE-SVC-%d -j ACCEPT\nCOMMIT\n", i, i)
			if err == nil {
				err = o.tools.Restore(t.Context(), IPv4, []byte(input))
			}
		}
		inputs <- err
	}()
	o.run("iptables -w 10 -t nat -I KUBE-SVC-A -j ACCEPT")
	if err := <-inputs; err != nil {
		t.Fatal(err)
	}
	if e := o.next(); e.What != "rule of KUBE-SVC-A in nat" {
		t.Errorf("reported %+v", e)
	}
	if reported := o.settle(); len(reported) > 0 {
		t.Errorf("reported additional edits: %v", reported)
	}
}

// If another socket has the netlink port of a program, edits through that socket are not
// detected meanwhile, so one edit is reported as lost.
func TestAProgramWithoutItsPort(t *testing.T) {
	o := observe(t, NFT, func(h *host) { h.restore(IPv4, base) })
	folder := t.TempDir()
	program := filepath.Join(folder, "iptables-nft-restore")
	script := fmt.Sprintf("#!/bin/sh\necho $$ >%s/pid.new; mv %[1]s/pid.new %[1]s/pid\n"+
		"until [ -e %[1]s/go ]; do sleep 0.01; done\nexec %[2]s \"$@\"\n", folder, "/usr/sbin/iptables-nft-restore")
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	o.tools.programs = map[Family]programs{IPv4: {restore: program}}
	o.tools.opts.Path = "/usr/sbin:/usr/bin:/bin"
	done := make(chan error, 1)
	go func() {
		done <- o.tools.Restore(t.Context(), IPv4, []byte("*nat\n:KUBE-SVC-A - [0:0]\n-A KUBE-SVC-A -j ACCEPT\nCOMMIT\n"))
	}()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{
		NetNS: o.netns, PID: uint32(numberIn(t, filepath.Join(folder, "pid"))),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := os.WriteFile(filepath.Join(folder, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if reported := o.settle(); !slices.Contains(reported, Edit{What: nft.Lost}) {
		t.Errorf("reported %v, want an edit that is lost", reported)
	}
	o.run("iptables -t nat -F KUBE-SVC-A")
	if e := o.next(); e.What != "rule of KUBE-SVC-A in nat" {
		t.Errorf("reported %+v", e)
	}
}

// numberIn waits for a file and reads the number in it.
func numberIn(t *testing.T, path string) int {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		n, convErr := strconv.Atoi(strings.TrimSpace(string(b)))
		if err = errors.Join(err, convErr); err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Fatalf("nothing wrote %s", path)
	return 0
}
