package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kubechain"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// The model test: after any sequence of changes and failures the kernel holds the same
// as if everything had been written at once.

func TestModelOnTheFake(t *testing.T) {
	for seed := range seeds.Of(t, 10) {
		fake := newFake()
		s := newSubject(fake)
		s.audit = newAudit(fake)
		if err := s.run(seed); err != nil {
			t.Fatal(err)
		}
	}
}

func TestModelOnTheKernel(t *testing.T) {
	seeds.Long(t)
	for _, variant := range variants() {
		t.Run(string(variant), func(t *testing.T) {
			for seed := range seeds.Of(t, 2) {
				kernel, _ := realKernel(t, variant)
				if err := newSubject(kernel).run(seed); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// faulty is a kernel whose reads and writes sometimes fail, also between two tables of one
// input, and whose writes are small.
type faulty struct {
	Kernel
	*planetest.Faults
}

func (k faulty) Room() int { return k.Faults.Room }

func (k faulty) Read(ctx context.Context, t iptables.Table) (iptables.Chains, error) {
	if err := k.Faults.Read(); err != nil {
		return nil, err
	}
	return k.Kernel.Read(ctx, t)
}

func (k faulty) Restore(ctx context.Context, f iptables.Family, input []byte) error {
	commit := []byte("COMMIT\n")
	for part := range bytes.SplitAfterSeq(input, commit) {
		if len(part) == 0 {
			continue
		}
		if err := k.Write(func() error { return k.Kernel.Restore(ctx, f, part) }); err != nil {
			return err
		}
	}
	return nil
}

// subject is the plane and a kernel, for the model.
type subject struct {
	kernel    Kernel
	faults    *planetest.Faults
	listeners []netip.Addr
	audit     *audit // nil: the kernel is not a fake, and its steps cannot be observed
	foreign   string // the rules of other programs after their last edit
}

func newSubject(kernel Kernel) *subject {
	return &subject{kernel: kernel, faults: &planetest.Faults{Room: 1 << 20}}
}

func (s *subject) plane(kernel Kernel) *Plane {
	return New(kernel, Options{Families: route.Families(), Mark: testMark, Listeners: s.listeners})
}

func (s *subject) scratch() planetest.Subject {
	other := newSubject(newFake())
	other.listeners = s.listeners
	return other.hooks()
}

func (s *subject) run(seed uint64) error {
	return planetest.NewModel(seed, s.hooks()).Run()
}

func (s *subject) hooks() planetest.Subject {
	return planetest.Subject{
		Plane:   func(route.Options) plane.Plane { return s.plane(faulty{s.kernel, s.faults}) },
		Faults:  s.faults,
		Rooms:   []int{1, 20, 60, 60, 200, 1 << 20, 1 << 20},
		State:   s.state,
		Scratch: s.scratch,
		Edit:    s.editTables,
		Disturbed: func(err error) bool {
			if _, ok := errors.AsType[plane.Refused](err); ok {
				return true
			}
			_, ok := errors.AsType[*iptables.RestoreError](err)
			return ok
		},
		Audit: s,
	}
}

// Begin implements planetest.Audit.
func (s *subject) Begin(m *planetest.Model) {
	if s.audit != nil {
		s.audit.Begin(m)
	}
}

// Note implements planetest.Audit.
func (s *subject) Note() {
	if s.audit != nil {
		s.audit.Note()
	}
}

// End implements planetest.Audit. The rules of other programs must not have changed.
func (s *subject) End(m *planetest.Model) error {
	if s.audit != nil {
		if err := s.audit.End(m); err != nil {
			return err
		}
	}
	foreign, err := s.others()
	if err != nil {
		return err
	}
	if s.foreign != "" && foreign != s.foreign {
		return fmt.Errorf("foreign rules before\n%s\nnow\n%s", s.foreign, foreign)
	}
	return nil
}

// state prints our rules. Only the order of rules in shared chains depends on history.
func (s *subject) state(table *route.Table) (string, error) {
	var all strings.Builder
	p := s.plane(s.kernel)
	if err := p.Refresh(context.Background()); err != nil {
		return "", err
	}
	for _, f := range p.families {
		seen := p.state[f.ip]
		used := (&listing{state: seen}).usedByOthers()
		for _, t := range everyTable() {
			for _, name := range slices.Sorted(maps.Keys(seen[t])) {
				rules := seen[t][name].Rules
				if kubechain.Proxy(name) && used[key{table: t, chain: name}] && len(rules) == 0 && owned(name) {
					continue // kept only for rules of other programs
				}
				for _, line := range f.ownRules(t, name, rules, &table.Host) {
					fmt.Fprintf(&all, "%s %s %s %s\n", f.kernel.Program(), t, name, line)
				}
			}
		}
	}
	return all.String(), nil
}

// ownRules returns our rules in a chain.
func (f *family) ownRules(t table, name string, rules []string, host *route.Host) []string {
	k := key{table: t, chain: name}
	lines := []string{"exists"}
	switch {
	case k.shared():
		tail := 0
		for _, e := range f.entrances {
			if k == (key{table: nat, chain: e.frontends}) {
				tail = len(f.tail(e, host))
			}
		}
		head := slices.Sorted(slices.Values(rules[:max(0, len(rules)-tail)]))
		return append(append(lines, head...), rules[max(0, len(rules)-tail):]...)
	case kubechain.Proxy(name):
		return append(lines, rules...)
	}
	var jumps, guards []string // at any position
	for _, rule := range rules {
		switch to := iptables.Target(rule); {
		case slices.Contains(builtin(t), name) && toProxy(to):
			jumps = append(jumps, rule)
		case to == localnet, t == filter && name == localnet && rule == guard().rule && f.loopback(host):
			guards = append(guards, rule)
		}
	}
	return append(jumps, guards...)
}

// others prints the rules of other programs.
func (s *subject) others() (string, error) {
	var all strings.Builder
	p := s.plane(s.kernel)
	if err := p.Refresh(context.Background()); err != nil {
		return "", err
	}
	for _, f := range p.families {
		seen := p.state[f.ip]
		for _, t := range everyTable() {
			for _, name := range slices.Sorted(maps.Keys(seen[t])) {
				if kubechain.Proxy(name) || name == localnet {
					continue
				}
				for _, rule := range seen[t][name].Rules {
					if to := iptables.Target(rule); to != localnet &&
						(seen[t][name].Policy == "-" || !kubechain.Proxy(to) || to == markMasq) {
						fmt.Fprintf(&all, "%s %s %s %s\n", f.kernel.Program(), t, name, rule)
					}
				}
			}
		}
	}
	return all.String(), nil
}
