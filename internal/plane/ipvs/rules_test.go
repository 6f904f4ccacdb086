package ipvs

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

func natOf(f *fakeChains) iptables.Chains {
	return f.tables[iptables.Table{Family: iptables.IPv4, Name: nat}]
}

// A table that the kernel refuses is named, and those before it are written once.
func TestARefusedTableIsWrittenOnceItIsAccepted(t *testing.T) {
	fake, fresh := newFake(), newFake()
	change, _ := oneService("10.0.0.1:80")
	written(t, newPlane(fresh.kernel(), route.Families(), 1<<20), change)
	for _, refused := range []iptables.Table{{Family: iptables.IPv6, Name: nat}, {Family: iptables.IPv4, Name: "mangle"}} {
		fake.chains = newFakeChains()
		fake.chains.refuse = refused
		p := newPlane(fake.kernel(), route.Families(), 1<<20)
		for range 3 {
			if err := p.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := p.Plan(change).Apply(t.Context()); err == nil || !strings.Contains(err.Error(), "refused") {
				t.Fatalf("%v: got %v", refused, err)
			}
		}
		fake.chains.refuse = iptables.Table{}
		written(t, p, change)
		if got, want := fake.chains.String(), fresh.chains.String(); got != want {
			t.Errorf("%v: got\n%s\nwant\n%s", refused, got, want)
		}
	}
}

// Rules of mode iptables serve until the addresses lead to virtual servers.
func TestRulesThatBalanceAreReplacedLast(t *testing.T) {
	fake := newFake()
	chains := natOf(fake.chains)
	chains["KUBE-SERVICES"] = iptables.Chain{Policy: "-", Rules: []string{"-j KUBE-SVC-A"}}
	chains["KUBE-SVC-A"] = iptables.Chain{Policy: "-", Rules: []string{"-j DNAT --to-destination 10.0.0.1:80"}}
	change, _ := oneService("10.0.0.1:80")
	p := newPlane(fake.kernel(), route.Families()[:1], 1<<20)
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	plan := p.Plan(change)
	text := plan.String()
	at := -1
	for _, next := range []string{"*filter", "-A -t 10.96.0.1:80", "address add 10.96.0.1", "-X KUBE-SVC-A"} {
		i := strings.Index(text, next)
		if i <= at {
			t.Errorf("%q is not after what comes before it in\n%s", next, text)
		}
		at = i
	}
	if err := plan.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, stale := natOf(fake.chains)["KUBE-SVC-A"]; stale {
		t.Error("the chain of mode iptables is still there")
	}
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again := p.Plan(change); again.Steps() != 0 {
		t.Errorf("a comparison has steps:\n%s", again)
	}
}

// Rules in chains of other programs stay, and so does a chain that they need.
func TestRulesOfOtherProgramsStay(t *testing.T) {
	fake := newFake()
	chains := natOf(fake.chains)
	const mine, needed = "-s 192.0.2.1/32 -j KUBE-POSTROUTING", "-j KUBE-SVC-OLD"
	chains["FW"] = iptables.Chain{Policy: "-", Rules: []string{mine, needed}}
	chains["KUBE-SVC-OLD"] = iptables.Chain{Policy: "-"}
	chains["KUBE-SVC-STALE"] = iptables.Chain{Policy: "-"}
	change, _ := oneService("10.0.0.1:80")
	p := newPlane(fake.kernel(), route.Families(), 1<<20)
	written(t, p, change)
	text := fake.chains.String()
	for want, n := range map[string]int{mine: 1, needed: 1, "nat :KUBE-SVC-OLD\n": 1, "KUBE-SVC-STALE": 0} {
		if got := strings.Count(text, want); got != n {
			t.Errorf("%q is there %d times, want %d, in\n%s", want, got, n, text)
		}
	}
	if err := p.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again := p.Plan(change); again.Steps() != 0 {
		t.Errorf("a comparison has steps:\n%s", again)
	}
}

// A missing virtual server may be an edit, unless the plane has written since the last poll.
func TestAMissingVirtualServerIsReported(t *testing.T) {
	fake := newFake()
	change, _ := oneService("10.0.0.1:80")
	p := newPlane(fake.kernel(), route.Families(), 1<<20)
	written(t, p, change)
	var edits []plane.Edit
	w := poller{plane: p, report: func(e plane.Edit) { edits = append(edits, e) }, wrote: -1}
	poll := func(what string, want ...plane.Edit) {
		t.Helper()
		edits = nil
		if err := w.poll(t.Context()); err != nil || !slices.Equal(edits, want) {
			t.Errorf("%s: %v (%v), want %v", what, edits, err, want)
		}
	}
	server := func(op ipvs.Op, addr string) {
		t.Helper()
		at := ipvs.Server{Addr: netip.MustParseAddr(addr), Protocol: uint8(cluster.TCP), Port: 80}
		c := ipvs.Command{Op: op, Server: at, Settings: ipvs.Settings{Scheduler: "rr"}}
		if err := fake.servers.Apply(t.Context(), []ipvs.Command{c}); err != nil {
			t.Fatal(err)
		}
	}
	missing := plane.Edit{What: "virtual servers", Unclear: true}
	poll("the first poll")
	server(ipvs.Set, "192.0.2.7")
	poll("another program adds a virtual server")
	server(ipvs.Delete, "10.96.0.1")
	poll("a virtual server is missing", missing)
	poll("nothing happens")
	server(ipvs.Delete, "192.0.2.7")
	p.writes.Add(2)
	poll("the plane wrote")
	p.writes.Add(1)
	poll("during a write")
	p.writes.Add(1)
	for w.polls < compareEvery-1 {
		poll("nothing happens")
	}
	poll("everything is compared from time to time", plane.Edit{Possible: true})
}

// uncountable is IPVS that cannot be counted.
type uncountable struct{ Servers }

func (uncountable) Count(context.Context) (int, error) { return 0, context.DeadlineExceeded }

// Why edits are not noticed is part of the status.
func TestAPollThatFailsIsReported(t *testing.T) {
	kernel := newFake().kernel()
	kernel.Servers = uncountable{kernel.Servers}
	p := New(kernel, Options{Families: []route.Family{route.IPv4}, Poll: time.Millisecond})
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	go func() {
		for p.watchTrouble() == "" && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		stop()
	}()
	if err := p.poll(ctx, func(plane.Edit) {}); err != nil {
		t.Error(err)
	}
	if got := p.watchTrouble(); got != context.DeadlineExceeded.Error() {
		t.Errorf("got %q", got)
	}
}
