package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// refuseRules makes the fake refuse input that contains a text.
func refuseRules(fake *fakeKernel, text string) {
	fake.fail = func(_ iptables.Family, input []byte) error {
		for i, line := range bytes.Split(input, []byte("\n")) {
			if bytes.Contains(line, []byte(text)) {
				return &iptables.RestoreError{Program: "iptables-restore", Line: i + 1, Rule: string(line), Reason: "not supported"}
			}
		}
		return nil
	}
}

// wantRefused verifies that an error refuses one Service, and contains the rule and the reason.
func wantRefused(t *testing.T, err error, name string) {
	t.Helper()
	var refused plane.Refused
	if !errors.As(err, &refused) || !slices.Equal(refused.Names(), []cluster.Name{{Namespace: "shop", Name: name}}) {
		t.Fatalf("error %v, want that shop/%s is refused", err, name)
	}
	if text := err.Error(); !strings.Contains(text, "-> 10.") || !strings.Contains(text, "not supported") {
		t.Errorf("%q does not contain the rule and the reason", text)
	}
}

// A Service whose rules are refused does not keep other Services from being written, at the
// start and later, whatever fits into one restore.
func TestARefusedServiceDoesNotBlockOthers(t *testing.T) {
	for _, room := range []int{0, 40, 1} {
		t.Run(fmt.Sprint("room ", room), func(t *testing.T) {
			fake := newFake()
			fake.room = room
			s := newTestCluster(t, fake, nodeCIDR())
			s.addServices(20)
			s.setService(3, 0)
			refuseRules(fake, `svc-7:http -> `)
			_, err := s.trySync()
			wantRefused(t, err, "svc-7")
			chains := s.nat()
			for i := range 20 {
				there := strings.Contains(strings.Join(chains[services].Rules, "\n"),
					fmt.Sprintf(`"shop/svc-%d:http cluster IP"`, i))
				if want := i != 7 && i != 3; there != want {
					t.Errorf("the frontend of svc-%d exists: %v, want %v", i, there, want)
				}
			}
			s.setService(8, 2)
			if _, err := s.trySync(); err != nil {
				t.Errorf("another Service is refused: %v", err)
			}
			s.refresh()
			_, err = s.trySync()
			wantRefused(t, err, "svc-7") // still refused, after every Refresh

			fake.fail = nil
			s.refresh()
			s.sync()
			s.checkSettled()
		})
	}
}

// If another program flushes all rules between two restores, the next one refers to missing
// chains. This is not the fault of a Service.
func TestAFlushDuringAWriteIsNotARefusal(t *testing.T) {
	for at := 1; ; at++ {
		fake := newFake()
		fake.room = 40
		s := newTestCluster(t, fake, nodeCIDR())
		watched, stop := watch(t, s.plane)
		<-watched
		s.addServices(20)
		restores := 0
		fake.fail = func(iptables.Family, []byte) error {
			if restores++; restores == at {
				fake.flush()
				fake.report(iptables.Edit{What: "all"})
			}
			return nil
		}
		_, err := s.trySync()
		if errors.As(err, new(plane.Refused)) {
			t.Fatalf("flush before restore %d: %v", at, err)
		}
		if err != nil {
			s.refresh()
			s.sync()
		}
		stop()
		if restores < at {
			break
		}
		if at > 1 && err == nil {
			t.Errorf("flush before restore %d: no error", at)
		}
	}
}

// watch runs Watch until stop is called.
func watch(t *testing.T, p *Plane) (subscribed <-chan struct{}, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- p.Watch(ctx, func() { close(begun) }, func(plane.Edit) {}) }()
	return begun, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// While its new rules are refused, a Service keeps its old ones and the chains to which
// they jump. Deletions of other Services are written.
func TestARefusedServiceStaysAsItWas(t *testing.T) {
	for _, c := range []struct {
		room, gone int
	}{{0, 2}, {40, 2}, {0, maxDeletions + 5}} {
		t.Run(fmt.Sprint("room ", c.room, ", gone ", c.gone), func(t *testing.T) {
			fake := newFake()
			fake.room = c.room
			s := newTestCluster(t, fake, nodeCIDR())
			s.addServices(50)
			s.sync()
			svc := s.compiler.Table().Services[cluster.Name{Namespace: "shop", Name: "svc-7"}]
			name := idOf(svc.Ports[0].ID(svc.Name))
			before := s.nat()
			s.endpoints("svc-7", "10.180.9.9")
			refuseRules(fake, `svc-7:http -> `)
			if _, err := s.trySync(); err == nil || errors.As(err, new(plane.Refused)) {
				t.Fatalf("error %v, want one that refuses no Service before everything is compared", err)
			}
			for i := range c.gone {
				s.remove(fmt.Sprint("svc-", 10+i))
			}
			s.refresh()
			_, err := s.trySync()
			wantRefused(t, err, "svc-7")
			after := s.nat()
			if !slices.Equal(before[name.pool(route.Cluster)].Rules, after[name.pool(route.Cluster)].Rules) {
				t.Errorf("%s is %v, want as before", name.pool(route.Cluster), after[name.pool(route.Cluster)])
			}
			for _, rule := range after[name.pool(route.Cluster)].Rules {
				if to := iptables.Target(rule); to != markMasq && !slices.Equal(before[to].Rules, after[to].Rules) {
					t.Errorf("%s is %v, want as before", to, after[to])
				}
			}
			if strings.Contains(strings.Join(after[services].Rules, "\n"), "svc-10:") {
				t.Error("the frontend of a Service that was deleted is still there")
			}
			fake.fail = nil
			s.refresh()
			s.sync()
			s.checkSettled()
		})
	}
}

// failAt makes input fail at a text. Like the programs, it writes the tables before that.
type failAt struct {
	*fakeKernel
	text string
}

func (h *failAt) Restore(ctx context.Context, f iptables.Family, input []byte) error {
	before, _, found := bytes.Cut(input, []byte(h.text))
	if !found {
		return h.fakeKernel.Restore(ctx, f, input)
	}
	commit := []byte("COMMIT\n")
	committed := bytes.Count(before, commit)
	if committed > 0 {
		if err := h.fakeKernel.Restore(ctx, f, before[:bytes.LastIndex(before, commit)+len(commit)]); err != nil {
			return err
		}
	}
	return &iptables.RestoreError{Program: "iptables-restore", Reason: "not supported: -> 10.", Committed: committed}
}

// The programs write table by table. Tables that were written before the failing one are
// not written again while the refused Service is searched.
func TestNothingIsWrittenTwice(t *testing.T) {
	kernel := &failAt{fakeKernel: newFake(), text: "svc-7:http -> "}
	s := newTestCluster(t, kernel, nodeCIDR())
	s.addServices(20)
	for i := range 4 {
		s.setService(i, 0) // refused by a rule of the table filter
	}
	for range 3 {
		_, err := s.trySync()
		wantRefused(t, err, "svc-7")
		filter, err := kernel.Read(t.Context(), iptables.Table{Family: iptables.IPv4, Name: "filter"})
		if err != nil {
			t.Fatal(err)
		}
		for name, c := range filter {
			for i, rule := range c.Rules {
				if slices.Contains(c.Rules[:i], rule) {
					t.Errorf("more than once in %s: %s", name, rule)
				}
			}
		}
		s.refresh()
	}
}

// Errors of rules that all Services need are not refusals of a Service, and neither are errors without a rule.
func TestOtherErrorsAreNotRefusals(t *testing.T) {
	lock := errors.New("lock /run/xtables.lock: held")
	for _, c := range []struct {
		what string
		fail func(*fakeKernel)
	}{
		{"a fixed chain", func(f *fakeKernel) { refuseRules(f, "-A KUBE-MARK-MASQ -j MARK") }},
		{"a jump", func(f *fakeKernel) { refuseRules(f, "-I PREROUTING") }},
		{"the lock", func(f *fakeKernel) { f.fail = func(iptables.Family, []byte) error { return lock } }},
	} {
		t.Run(c.what, func(t *testing.T) {
			fake := newFake()
			s := newTestCluster(t, fake, nodeCIDR())
			s.addServices(5)
			c.fail(fake)
			_, err := s.trySync()
			if refused := plane.Refused(nil); err == nil || errors.As(err, &refused) {
				t.Fatalf("error %v, want one that is not a refusal", err)
			}
			fake.fail = nil
			s.refresh()
			s.sync()
			s.checkSettled()
		})
	}
}
