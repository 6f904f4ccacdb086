package localnet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/route"
)

const device = "net/ipv4/conf/eth0/route_localnet"

// machine is a kernel whose every state is inspected: what a process that is
// killed between two writes leaves behind is the state after the first of them.
type machine struct {
	t          *testing.T
	tables     *nft.Fake
	values     map[string]string
	left       int   // writes that succeed; negative: all
	unreadable error // why nf_tables cannot be read
	exempt     bool  // the state is not the Follower's doing
}

var errKilled = errors.New("killed")

func newMachine(t *testing.T) *machine {
	return &machine{t: t, tables: nft.NewFake(), left: -1, values: map[string]string{
		key: "0", device: "0", "net/ipv4/conf/lo/route_localnet": "1",
	}}
}

func (m *machine) routed() bool { return m.values[key] == "1" || m.values[device] == "1" }

func (m *machine) guarded() bool {
	var s state
	if err := s.readGuard(m.t.Context(), m.tables); err != nil {
		m.t.Fatal(err)
	}
	return s.guard == intact
}

// write carries out a write and verifies that neighbours are kept out after it.
func (m *machine) write(do func() error) error {
	if m.left == 0 {
		return errKilled
	}
	m.left--
	if err := do(); err != nil {
		return err
	}
	if m.routed() && !m.guarded() && !m.exempt {
		m.t.Errorf("127.0.0.0/8 is routed without a guard:\n%s", m)
	}
	return nil
}

func (m *machine) String() string {
	return fmt.Sprintf("%v\n%s", m.values, m.tables.Tables[Table()])
}

func (m *machine) Match(string) (map[string]string, error) { return maps.Clone(m.values), nil }

func (m *machine) Set(name, value string) error {
	return m.write(func() error { m.values[name] = value; return nil })
}

func (m *machine) Read(ctx context.Context, t nft.Table, expected []nft.ExpectedKeys) (*nft.State, error) {
	if m.unreadable != nil {
		return nil, m.unreadable
	}
	return m.tables.Read(ctx, t, expected)
}

func (m *machine) Commit(ctx context.Context, tx *nft.Tx) error {
	return m.write(func() error { return m.tables.Commit(ctx, tx) })
}

func (m *machine) DeleteTables(ctx context.Context, tables ...nft.Table) error {
	return m.write(func() error { return m.tables.DeleteTables(ctx, tables...) })
}

func (m *machine) Watch(ctx context.Context, tables []nft.Table, subscribed func(), report func(nft.Edit)) error {
	return m.tables.Watch(ctx, tables, subscribed, report)
}

// process is one life of Sluice.
type process struct {
	*Follower
	host    *route.Host
	reports []string
}

func (m *machine) start() *process {
	p := &process{}
	p.Follower = New(Options{Sysctl: m, Kernel: m, Report: func(err error) { p.reports = append(p.reports, err.Error()) }})
	p.follow()
	return p
}

// follow makes an attempt, and reports a failure, as Run would.
func (p *process) follow() {
	if _, err := p.restore(context.Background()); err != nil {
		p.opt.Report(err)
	}
}

func (p *process) serve(addrs ...string) {
	c := route.Change{Table: &route.Table{}, OldHost: p.host}
	for _, a := range addrs {
		c.Table.Host.NodePorts.Addrs = append(c.Table.Host.NodePorts.Addrs, netip.MustParseAddr(a))
	}
	p.host = &c.Table.Host
	p.Applied(c)
	if p.behind {
		p.follow()
	}
}

func (p *process) localhost() { p.serve("127.0.0.1", "192.168.0.2") }
func (p *process) outside()   { p.serve("192.168.0.2", "::1") }

// want compares what the kernel has in the end: the parameter, and "guard", "marked guard" or "nothing".
func (m *machine) want(value, what string) {
	m.t.Helper()
	var s state
	_ = s.readGuard(m.t.Context(), m.tables)
	got := map[presence]string{absent: "nothing", damaged: "damaged guard", intact: "guard"}[s.guard]
	if s.mark {
		got = "marked " + got
	}
	if m.values[key] != value || got != what {
		m.t.Errorf("route_localnet %s with %s, want %s with %s", m.values[key], got, value, what)
	}
}

func TestTheParameterFollowsTheNodePorts(t *testing.T) {
	for _, tt := range []struct {
		name        string
		before      string
		live        func(*machine)
		value, what string
	}{
		{"127.0.0.1 serves NodePorts", "0", func(m *machine) { m.start().localhost() }, "1", "marked guard"},
		{"only other addresses do", "0", func(m *machine) { m.start().outside() }, "0", "nothing"},
		{"a reload adds 127.0.0.1", "0", func(m *machine) {
			p := m.start()
			p.outside()
			p.localhost()
		}, "1", "marked guard"},
		{"a reload removes 127.0.0.1", "0", func(m *machine) {
			p := m.start()
			p.localhost()
			p.outside()
		}, "0", "nothing"},
		{"a restart with the same configuration", "0", func(m *machine) {
			m.start().localhost()
			m.start().localhost()
		}, "1", "marked guard"},
		{"a restart that has not read the cluster", "0", func(m *machine) {
			m.start().localhost()
			m.start()
		}, "1", "marked guard"},
		{"127.0.0.1 was removed while the daemon was down", "0", func(m *machine) {
			m.start().localhost()
			m.start().outside()
		}, "0", "nothing"},
		{"found on and needed", "1", func(m *machine) { m.start().localhost() }, "1", "guard"},
		{"found on and not needed", "1", func(m *machine) { m.start().outside() }, "1", "guard"},
		{"found on, needed, and then not", "1", func(m *machine) {
			m.start().localhost()
			m.start().outside()
		}, "1", "guard"},
		{"found on, set to 0 by a person", "1", func(m *machine) {
			m.start().outside()
			m.values[key] = "0"
			m.start().outside()
		}, "0", "nothing"},
		{"found on for an interface only", "0", func(m *machine) {
			m.values[device] = "1"
			m.start().outside()
		}, "0", "guard"},
		{"found on for an interface, and needed, and then not", "0", func(m *machine) {
			m.values[device] = "1"
			m.start().localhost()
			m.start().outside()
		}, "0", "guard"},
		{"found on for an interface, needed, flushed, and then not needed", "0", func(m *machine) {
			m.values[device] = "1"
			p := m.start()
			p.localhost()
			m.flush()
			p.outside()
		}, "0", "guard"},
		{"everything is flushed and restored", "0", func(m *machine) {
			p := m.start()
			p.localhost()
			m.flush()
			p.edit(nft.Edit{})
			p.follow()
		}, "1", "marked guard"},
		{"everything is flushed after a restart, restored, and 127.0.0.1 removed", "0", func(m *machine) {
			m.start().localhost()
			p := m.start()
			p.localhost()
			m.flush()
			p.edit(nft.Edit{})
			p.follow()
			m.start().outside()
		}, "0", "nothing"},
		{"everything is flushed while the daemon is down", "0", func(m *machine) {
			m.start().localhost()
			m.flush()
			m.start().outside()
		}, "1", "guard"},
		{"prepared for a later process", "0", func(m *machine) { m.prepare() }, "1", "marked guard"},
		{"prepared, and not needed", "0", func(m *machine) {
			m.prepare()
			m.start().outside()
		}, "0", "nothing"},
		{"a change of the guard is not a reason to remove it", "0", func(m *machine) {
			p := m.start()
			p.outside()
			m.prepare() // another Sluice
			p.edit(nft.Edit{})
			p.follow()
		}, "1", "marked guard"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			m.values[key] = tt.before
			tt.live(m)
			m.want(tt.value, tt.what)
		})
	}
}

// flush is "nft flush ruleset".
func (m *machine) flush() { _ = m.tables.DeleteTables(m.t.Context(), Table()) }

func (m *machine) prepare() {
	if err := New(Options{Sysctl: m, Kernel: m}).Prepare(m.t.Context()); err != nil {
		m.t.Error(err)
	}
}

func TestRemoveRestoresTheParameterOrReportsIt(t *testing.T) {
	for _, tt := range []struct {
		name        string
		before      string
		live        func(*machine)
		value, what string
		lines       string
	}{
		{
			"Sluice set it", "0", func(m *machine) { m.start().localhost() }, "0", "nothing",
			"removed sluice: route_localnet, net.ipv4.conf.all.route_localnet is 0 again\n" +
				"removed sluice: table ip sluice-localnet",
		},
		{
			"another program set it", "1", func(m *machine) { m.start().localhost() }, "1", "guard",
			"kept sluice: " + errLeftOn.Error(),
		},
		{
			"another program set it, and there is no guard", "1", func(*machine) {}, "1", "guard",
			"kept sluice: " + errLeftOn.Error(),
		},
		{"nothing is there", "0", func(*machine) {}, "0", "nothing", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			m.values[key] = tt.before
			tt.live(m)
			lines, err := New(Options{Sysctl: m, Kernel: m}).Remove(t.Context())
			if got := strings.Join(lines, "\n"); err != nil || got != tt.lines {
				t.Errorf("it returns %q, %v, want %q", got, err, tt.lines)
			}
			m.want(tt.value, tt.what)
		})
	}
}

// Whatever the kernel has at the start, and after whichever write each process is
// killed, 127.0.0.0/8 is never routed without a guard.
func TestTheGuardIsInPlaceAtEveryMoment(t *testing.T) {
	deeds := []func(*process){
		(*process).localhost, (*process).outside, func(p *process) { _, _ = p.Remove(context.Background()) },
	}
	for n := range 2 * 2 * 3 * 6 * 3 * 6 * 3 {
		take := func(of int) int {
			x := n % of
			n /= of
			return x
		}
		m := newMachine(t)
		m.values[key], m.values[device] = fmt.Sprint(take(2)), fmt.Sprint(take(2))
		for range 2 {
			deed, writes := take(3), take(6)
			m.exempt = true // until the start has written something
			m.left = writes
			p := &process{Follower: New(Options{Sysctl: m, Kernel: m, Report: func(error) {}})}
			p.follow()
			if m.left == 0 {
				continue
			}
			m.exempt = false
			deeds[deed](p)
		}
		m.left = -1
		deeds[take(3)](m.start())
		if m.routed() && !m.guarded() {
			t.Errorf("in the end 127.0.0.0/8 is routed without a guard:\n%s", m)
		}
		if t.Failed() {
			return
		}
	}
}
