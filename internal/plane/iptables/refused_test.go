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
	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
	"github.com/sluice-proxy/sluice/internal/plane"
)

// picky refuses input that has a text in it.
func picky(fake *fakeKernel, text string) {
	fake.fail = func(_ iptables.Family, input []byte) error {
		for i, line := range bytes.Split(input, []byte("\n")) {
			if bytes.Contains(line, []byte(text)) {
				return &iptables.RestoreError{Program: "iptables-restore", Line: i + 1, Rule: string(line), Reason: "it is Tuesday"}
			}
		}
		return nil
	}
}

// wantRefused wants an error that is about one Service, and names its rule.
func wantRefused(t *testing.T, err error, name string) {
	t.Helper()
	var refused plane.Refused
	if !errors.As(err, &refused) || !slices.Equal(refused.Names(), []cluster.Name{{Namespace: "shop", Name: name}}) {
		t.Fatalf("error %v, want that shop/%s is refused", err, name)
	}
	if text := err.Error(); !strings.Contains(text, "-> 10.") || !strings.Contains(text, "it is Tuesday") {
		t.Errorf("%q does not say which rule and why", text)
	}
}

// A Service whose rules are refused keeps no other from theirs, at the start and
// later, whatever fits into one restore.
func TestARefusedServiceHoldsUpNoOther(t *testing.T) {
	for _, room := range []int{0, 40, 1} {
		t.Run(fmt.Sprint("room ", room), func(t *testing.T) {
			fake := newFake()
			fake.room = room
			s := newStory(t, fake, nodeCIDR())
			s.crowd(20)
			s.member(3, 0)
			picky(fake, `svc-7:http -> `)
			_, err := s.try()
			wantRefused(t, err, "svc-7")
			chains := s.nat()
			for i := range 20 {
				there := strings.Contains(strings.Join(chains[services].Rules, "\n"), fmt.Sprintf(`"shop/svc-%d:http cluster IP"`, i))
				if want := i != 7 && i != 3; there != want {
					t.Errorf("the frontend of svc-%d is there: %v, want %v", i, there, want)
				}
			}
			s.member(8, 2)
			if _, err := s.try(); err != nil {
				t.Errorf("another Service is refused as well: %v", err)
			}
			s.refresh()
			_, err = s.try()
			wantRefused(t, err, "svc-7") // still, and again after every look at the kernel

			fake.fail = nil
			s.refresh()
			s.happens()
			s.right()
		})
	}
}

// If another program flushes all rules between two restores, the next one misses chains.
// No Service is the cause.
func TestAFlushDuringAWriteIsNoRefusal(t *testing.T) {
	for at := 1; ; at++ {
		fake := newFake()
		fake.room = 40
		s := newStory(t, fake, nodeCIDR())
		watched, stop := watch(t, s.plane)
		<-watched
		s.crowd(20)
		restores := 0
		fake.fail = func(iptables.Family, []byte) error {
			if restores++; restores == at {
				fake.flush()
				fake.report(iptables.Edit{What: "all"})
			}
			return nil
		}
		_, err := s.try()
		if errors.As(err, new(plane.Refused)) {
			t.Fatalf("flush before restore %d: %v", at, err)
		}
		if err != nil {
			s.refresh()
			s.happens()
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

// While its new rules are refused a Service stays as it was, with the chains that
// its old ones lead to; what the others lose goes.
func TestARefusedServiceStaysAsItWas(t *testing.T) {
	for _, c := range []struct {
		room, gone int
	}{{0, 2}, {40, 2}, {0, maxDeletions + 5}} {
		t.Run(fmt.Sprint("room ", c.room, ", gone ", c.gone), func(t *testing.T) {
			fake := newFake()
			fake.room = c.room
			s := newStory(t, fake, nodeCIDR())
			s.crowd(50)
			s.happens()
			name := idOf(s.compiler.Table().Services[cluster.Name{Namespace: "shop", Name: "svc-7"}], 0)
			before := s.nat()
			s.endpoints("svc-7", "10.180.9.9")
			picky(fake, `svc-7:http -> `)
			if _, err := s.try(); err == nil || errors.As(err, new(plane.Refused)) {
				t.Fatalf("error %v, want one that blames nobody before everything was compared", err)
			}
			for i := range c.gone {
				s.remove(fmt.Sprint("svc-", 10+i))
			}
			s.refresh()
			_, err := s.try()
			wantRefused(t, err, "svc-7")
			after := s.nat()
			if !slices.Equal(before[name.cluster()].Rules, after[name.cluster()].Rules) {
				t.Errorf("%s is %v, want as before", name.cluster(), after[name.cluster()])
			}
			for _, rule := range after[name.cluster()].Rules {
				if to := iptables.Target(rule); to != markMasq && !slices.Equal(before[to].Rules, after[to].Rules) {
					t.Errorf("%s is %v, want as before", to, after[to])
				}
			}
			if strings.Contains(strings.Join(after[services].Rules, "\n"), "svc-10:") {
				t.Error("the frontend of a Service that was deleted is still there")
			}
			fake.fail = nil
			s.refresh()
			s.happens()
			s.right()
		})
	}
}

// halfway refuses input at a text, as the programs do: the tables before that are
// written.
type halfway struct {
	*fakeKernel
	text string
}

func (h *halfway) Restore(ctx context.Context, f iptables.Family, input []byte) error {
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
	return &iptables.RestoreError{Program: "iptables-restore", Reason: "it is Tuesday: -> 10.", Committed: committed}
}

// The programs write table by table. What is written before a table is refused is
// not written again while it is found out whose rules they are.
func TestNothingIsWrittenTwice(t *testing.T) {
	kernel := &halfway{fakeKernel: newFake(), text: "svc-7:http -> "}
	s := newStory(t, kernel, nodeCIDR())
	s.crowd(20)
	for i := range 4 {
		s.member(i, 0) // refused by a rule of the table filter
	}
	for range 3 {
		_, err := s.try()
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

// What all Services need is refused for all, and so is what is no answer of the
// program to a rule.
func TestOtherErrorsAreNoRefusals(t *testing.T) {
	lock := errors.New("lock /run/xtables.lock: held")
	for _, c := range []struct {
		what string
		fail func(*fakeKernel)
	}{
		{"a fixed chain", func(f *fakeKernel) { picky(f, "-A KUBE-MARK-MASQ -j MARK") }},
		{"a jump", func(f *fakeKernel) { picky(f, "-I PREROUTING") }},
		{"the lock", func(f *fakeKernel) { f.fail = func(iptables.Family, []byte) error { return lock } }},
	} {
		t.Run(c.what, func(t *testing.T) {
			fake := newFake()
			s := newStory(t, fake, nodeCIDR())
			s.crowd(5)
			c.fail(fake)
			_, err := s.try()
			if refused := plane.Refused(nil); err == nil || errors.As(err, &refused) {
				t.Fatalf("error %v, want one that is no refusal", err)
			}
			fake.fail = nil
			s.refresh()
			s.happens()
			s.right()
		})
	}
}
