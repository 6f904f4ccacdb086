package iptables_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

// identity ignores what identifies tables and rules for their removal.
var identity = cmp.Options{
	cmpopts.IgnoreFields(iptables.Outline{}, "Handle"), cmpopts.IgnoreFields(iptables.ChainOutline{}, "Hook"),
	cmpopts.IgnoreFields(iptables.RuleOutline{}, "Handle", "Text", "Every"),
}

func TestOutlinesMatchIptablesSave(t *testing.T) {
	h := newHost(t)
	h.load()
	var want []iptables.Outline
	for _, program := range programs {
		id := iptables.TableID{Variant: iptables.Legacy, Family: iptables.IPv4}
		if strings.HasPrefix(program, "ip6") {
			id.Family = iptables.IPv6
		}
		if strings.HasSuffix(program, "-nft") {
			id.Variant = iptables.NFT
		}
		want = append(want, parse(h.save(program), id)...)
	}
	got := h.outlines()
	for _, tables := range [][]iptables.Outline{got, want} {
		for _, table := range tables {
			slices.SortFunc(table.Chains, func(a, b iptables.ChainOutline) int { return strings.Compare(a.Name, b.Name) })
		}
		slices.SortFunc(tables, func(a, b iptables.Outline) int {
			return strings.Compare(a.String(), b.String())
		})
	}
	if diff := cmp.Diff(want, got, identity); diff != "" {
		t.Errorf("tables (-iptables-save +Outlines):\n%s", diff)
	}
}

// Without the programs only the chains that were added to legacy tables are known.
func TestOutlinesWithoutPrograms(t *testing.T) {
	h := newHost(t)
	h.load()
	var want, got []string
	for _, table := range h.outlines() {
		for _, c := range table.Chains {
			if table.Variant == iptables.Legacy && !c.Builtin {
				want = append(want, table.String()+" "+c.Name)
			}
		}
	}
	kernel := iptables.NewKernel(iptables.Options{NetNS: h.netns, Path: t.TempDir()})
	tables, err := kernel.Outlines(t.Context(), iptables.AllRules)
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		for _, c := range table.Chains {
			if table.Variant == iptables.Legacy {
				got = append(got, table.String()+" "+c.Name)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" || len(want) < 20 {
		t.Errorf("chains (-want +got):\n%s", diff)
	}
}

// Foreign rules keep their order, bytes and counters.
func TestRemovesOnlyKubeProxysRules(t *testing.T) {
	h := newHost(t)
	h.load()
	before := h.saveAll()
	for _, family := range []string{"iptables", "ip6tables"} {
		recorded, err := os.ReadFile(filepath.Join("testdata", family+".save"))
		if err != nil {
			t.Fatal(err)
		}
		loaded := sorted(h.run("", family+"-legacy-save", "--counters"))
		if uncommented(loaded) != uncommented(sorted(string(recorded))) {
			t.Fatalf("%s differs from the loaded rules:\n%s", family, cmp.Diff(string(recorded), loaded))
		}
	}

	if err := h.kernel().Remove(t.Context(), removals(h.outlines())...); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strip(before), h.saveAll()); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	for _, r := range removals(h.outlines()) {
		if r.Size() != 0 {
			t.Errorf("left: %s", r.Table)
		}
	}
	h.run("", "iptables-legacy", "-t", "nat", "-A", "ADMIN", "-j", "DOCKER") // the programs still work
	h.run("", "iptables-nft", "-t", "nat", "-A", "ADMIN", "-j", "DOCKER")
}

func sorted(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// uncommented removes comments, which contain the time.
func uncommented(text string) string {
	return regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(text, "")
}

// A request for a legacy table creates it, and then every packet passes its hooks. Outlines must not create tables.
func TestScanCreatesNoTables(t *testing.T) {
	h := newHost(t)
	h.run("", "iptables-legacy", "-t", "mangle", "-A", "INPUT", "-j", "ACCEPT")
	const where = "/proc/thread-self/net/ip_tables_names"
	before := h.run("", "cat", where, "/proc/thread-self/net/ip6_tables_names")
	if before != "mangle\n" {
		t.Fatalf("the tables are %q, want one", before)
	}
	if tables := h.outlines(); len(tables) != 1 || tables[0].Name != "mangle" {
		t.Errorf("read %v, want one table", tables)
	}
	if after := h.run("", "cat", where, "/proc/thread-self/net/ip6_tables_names"); after != before {
		t.Errorf("the tables are %q, before %q", after, before)
	}
	if ruleset := h.run("", "nft", "list", "ruleset"); ruleset != "" {
		t.Errorf("nf_tables has %s", ruleset)
	}
}

// An nft table that does not belong to iptables is ignored.
func TestOtherNftTablesAreIgnored(t *testing.T) {
	h := newHost(t)
	h.run("table ip kube-proxy { chain KUBE-SERVICES { } ; }\ntable inet nat { chain KUBE-SERVICES { } ; }",
		"nft", "-f", "-")
	if tables := h.outlines(); tables != nil {
		t.Errorf("read %v, want nothing", tables)
	}
}

// nft encodes comments, verdict maps and statements differently than iptables-nft.
func TestReadsRulesThatNftWrote(t *testing.T) {
	h := newHost(t)
	h.run(`table ip filter {
		chain A { }
		chain INPUT {
			type filter hook input priority 0
			tcp dport 1 counter jump A comment "by nft"
			tcp dport 2 goto A
			tcp dport vmap { 3 : jump A }
			ip saddr 192.0.2.1 reject
			ct state new counter
		}
	}`, "nft", "-f", "-")
	got := h.outlines()[0]
	want := iptables.Outline{
		TableID: iptables.TableID{Variant: iptables.NFT, Family: iptables.IPv4, Name: "filter"},
		Chains: []iptables.ChainOutline{{Name: "A"}, {Name: "INPUT", Builtin: true, Rules: []iptables.RuleOutline{
			{Target: "A", Jump: true}, {Target: "A", Jump: true}, {}, {Target: "REJECT"}, {},
		}}},
	}
	if diff := cmp.Diff(want, got, identity); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	r := iptables.Removal{Table: got.TableID, Handle: got.Handle, Chains: []string{"A"}}
	for _, rule := range got.Chains[1].Rules[:2] {
		r.Rules = append(r.Rules, iptables.ChainRule{Chain: "INPUT", RuleOutline: rule})
	}
	before := h.run("", "nft", "list", "ruleset")
	if err := h.kernel().Remove(t.Context(), r); !errors.Is(err, iptables.ErrInUse) {
		t.Errorf("remove a chain that a verdict map jumps to: got %v, want %v", err, iptables.ErrInUse)
	}
	if after := h.run("", "nft", "list", "ruleset"); after != before {
		t.Errorf("rules (-before +after):\n%s", cmp.Diff(before, after))
	}
}

func TestTheErrorWithoutPrivilegeNamesTheCapability(t *testing.T) {
	h := newHost(t)
	h.load()
	before := h.outlines()
	var errs []error
	kerneltest.Do(t, h.netns, func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			return fmt.Errorf("drop capabilities: %w", err)
		}
		kernel := iptables.NewKernel(iptables.Options{Lock: h.lock})
		_, err := kernel.Outlines(t.Context(), iptables.AllRules)
		errs = append(errs, err)
		for _, r := range removals(before) {
			if r.Table.Variant == iptables.NFT {
				errs = append(errs, kernel.Remove(t.Context(), r))
			}
		}
		return nil
	})
	for _, err := range errs {
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			t.Errorf("got %v, want an error about CAP_NET_ADMIN", err)
		}
	}
	if diff := cmp.Diff(before, h.outlines()); diff != "" {
		t.Errorf("tables (-before +after):\n%s", diff)
	}
}

var policy = regexp.MustCompile(`(?m)^:.*\n`)

// Without the programs, or without CAP_NET_RAW, legacy tables are not changed, but nft tables are.
func TestLegacyTablesBeyondReach(t *testing.T) {
	for name, run := range map[string]func(h host) error{
		"no programs": func(h host) error {
			kernel := iptables.NewKernel(iptables.Options{NetNS: h.netns, Lock: h.lock, Path: t.TempDir()})
			return kernel.Remove(t.Context(), removals(h.outlines())...)
		},
		"no CAP_NET_RAW": func(h host) (err error) {
			all := removals(h.outlines())
			kerneltest.Do(t, h.netns, func() error {
				if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_NET_RAW, 0, 0, 0); err != nil {
					return fmt.Errorf("drop CAP_NET_RAW: %w", err)
				}
				err = iptables.NewKernel(iptables.Options{Lock: h.lock}).Remove(t.Context(), all...)
				return nil
			})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.load()
			before := h.save("iptables-legacy") + h.save("ip6tables-legacy")
			if err := run(h); !errors.Is(err, iptables.ErrBeyondReach) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %v on one line", err, iptables.ErrBeyondReach)
			}
			if diff := cmp.Diff(before, h.save("iptables-legacy")+h.save("ip6tables-legacy")); diff != "" {
				t.Errorf("legacy tables (-before +after):\n%s", diff)
			}
			for _, r := range removals(h.outlines()) {
				if r.Table.Variant == iptables.NFT && r.Size() > 0 {
					t.Errorf("left: %s", r.Table)
				}
			}
		})
	}
}

// Another program, which takes the same lock, adds rules before, during and after the
// removal. No change of either is lost.
func TestRemovalWorksWhileOtherProgramsWrite(t *testing.T) {
	h := newHost(t)
	h.load()
	before := map[string]string{}
	for _, program := range programs {
		before[program] = h.save(program)
	}
	var written atomic.Int32 // rules of the other program
	started, removed, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i, last := 0, false; !last; i++ {
			select {
			case <-removed:
				last = true
			default:
			}
			for _, program := range programs {
				h.run("", program, "-w", "-t", "nat", "-A", "ADMIN", "-p", "tcp", "--dport", fmt.Sprint(10000+i))
				written.Add(1)
			}
			if i == 0 {
				close(started)
			}
		}
	}()
	<-started
	first := written.Load()
	for {
		err := h.kernel().Remove(t.Context(), removals(h.outlines())...)
		if errors.Is(err, iptables.ErrInUse) {
			continue
		}
		if err != nil {
			t.Error(err)
		}
		break
	}
	if written.Load() == first {
		t.Error("the other program added no rule during the removal")
	}
	close(removed)
	<-done
	for _, program := range programs {
		var want []string
		for i := range int(written.Load()) / len(programs) {
			want = append(want, fmt.Sprintf("[0:0] -A ADMIN -p tcp -m tcp --dport %d", 10000+i))
		}
		want = append(want, strings.Split(strip(before[program]), "\n")...)
		// iptables-legacy -A sets the counters of policies to 0.
		got := policy.ReplaceAllString(sorted(h.save(program)), "")
		if diff := cmp.Diff(policy.ReplaceAllString(sorted(strings.Join(want, "\n")), ""), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", program, diff)
		}
	}
}

func TestStopsWithTheContext(t *testing.T) {
	h := newHost(t)
	h.load()
	all := removals(h.outlines())
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := h.kernel().Outlines(ctx, iptables.AllRules); !errors.Is(err, context.Canceled) {
		t.Errorf("read: got %v, want %v", err, context.Canceled)
	}
	if err := h.kernel().Remove(ctx, all...); !errors.Is(err, context.Canceled) {
		t.Errorf("remove: got %v, want %v", err, context.Canceled)
	}
	if diff := cmp.Diff(all, removals(h.outlines())); diff != "" {
		t.Errorf("tables (-before +after):\n%s", diff)
	}
}

// Some matches keep state outside of their rule: a set, a list of addresses, a rate limit.
// Foreign rules keep this state.
func TestRulesOfOtherProgramsKeepTheirState(t *testing.T) {
	for _, program := range []string{"iptables-legacy", "iptables-nft"} {
		h := newHost(t)
		kerneltest.Do(t, h.netns, func() error {
			return errors.Join(
				netlink.IpsetCreate("others", "hash:ip", netlink.IpsetCreateOptions{Family: unix.AF_INET}),
				netlink.IpsetAdd("others", &netlink.IPSetEntry{IP: net.IPv4(127, 0, 0, 1).To4()}),
			)
		})
		h.run(`*filter
:OUTPUT ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
-A OUTPUT -j KUBE-SERVICES
-A OUTPUT -m set --match-set others dst -p udp -m udp --dport 9 -m recent --set --name seen --rdest
-A OUTPUT -p udp -m udp --dport 9 -m hashlimit --hashlimit-upto 5/hour --hashlimit-burst 5`+
			` --hashlimit-mode dstip --hashlimit-name few -j ACCEPT
-A KUBE-SERVICES -m set --match-set others src -m recent --update --name KUBE-SEP-AAAAAAAAAAAAAAAA
COMMIT
`, program+"-restore")
		send := func() {
			kerneltest.Do(t, h.netns, func() error {
				conn, err := net.Dial("udp", "127.0.0.1:9")
				if err != nil {
					return fmt.Errorf("dial: %w", err)
				}
				defer func() { _ = conn.Close() }()
				_, err = conn.Write([]byte("x"))
				return err
			})
		}
		send()
		seen := h.run("", "cat", "/proc/thread-self/net/xt_recent/seen")
		before := h.save(program)
		if err := h.kernel().Remove(t.Context(), removals(h.outlines())...); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strip(before), h.save(program)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", program, diff)
		}
		if after := h.run("", "cat", "/proc/thread-self/net/xt_recent/seen"); after != seen ||
			!strings.Contains(seen, "127.0.0.1") {
			t.Errorf("%s: the list of addresses was %q, now it is %q", program, seen, after)
		}
		send()
		if got := h.save(program); !strings.Contains(got, "[2:58] -A OUTPUT -p udp -m set --match-set others dst") {
			t.Errorf("%s: the set does not match any more:\n%s", program, got)
		}
	}
}
