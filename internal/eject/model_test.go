package eject

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// model is a port whose backends and evidence change at random.
type model struct {
	rand *rand.Rand
	all  []netip.AddrPort
	port Port
	now  time.Time
	seen map[netip.AddrPort]bool // backends with evidence of a failure
}

func newModel(seed uint64) *model {
	m := &model{rand: rand.New(rand.NewPCG(seed, 0)), now: start, seen: map[netip.AddrPort]bool{}}
	m.all = backends(1 + m.rand.IntN(20))
	m.port = newPort(len(m.all))
	return m
}

// step changes the backends now and then, and decides on random evidence.
func (m *model) step() {
	m.now = m.now.Add(400 * time.Millisecond)
	if m.rand.IntN(50) == 0 {
		m.port.Backends = m.all[:m.rand.IntN(len(m.all)+1)]
	}
	evidence := map[netip.AddrPort]Evidence{}
	for _, b := range m.port.Backends {
		switch m.rand.IntN(4) {
		case 0:
			evidence[b] = failed(m.rand.IntN(4))
			m.seen[b] = true
		case 1:
			evidence[b] = Evidence{Observed: true, Succeeded: true}
		case 2:
			evidence[b] = Evidence{Observed: true, Idle: true}
		}
	}
	m.port.States = m.port.Decide(evidence, m.now)
}

func (m *model) check() error {
	out := 0
	for b, s := range m.port.States {
		if s.Out() {
			out++
		}
		if !m.seen[b] {
			return fmt.Errorf("%s is %+v without a failure", b, s)
		}
	}
	n := len(m.port.Backends)
	if limit := max(1, n*3/10); out > 0 && (out > limit || out >= n) {
		return fmt.Errorf("%d of %d are out", out, n)
	}
	return nil
}

// lossy is a Service behind a network that loses packets. Looks at it are those of package watch.
type lossy struct {
	rand      *rand.Rand
	port      Port
	perSecond float64
	dead      int // index of a backend that never answers; -1: none
	open      []attempt
	records   map[netip.AddrPort]*Record
	succeeded map[netip.AddrPort]bool // since the last look

	ejections int
	first     time.Time
}

// attempt is a connection without an answer.
type attempt struct {
	backend netip.AddrPort
	client  netip.Addr
	began   time.Time
	answer  time.Time // zero: never
	counted bool
}

func newLossy(seed uint64, perSecond float64, dead int) *lossy {
	return &lossy{
		rand: rand.New(rand.NewPCG(seed, 1)), port: newPort(3), perSecond: perSecond, dead: dead,
		records: map[netip.AddrPort]*Record{}, succeeded: map[netip.AddrPort]bool{},
	}
}

const loss = 0.0396 // of a SYN or its answer, with 2 % each

// connect adds a connection of one of four clients.
func (l *lossy) connect(now time.Time) {
	i := l.rand.IntN(len(l.port.Backends))
	b := l.port.Backends[i]
	if s, has := l.port.States[b]; has && l.rand.IntN(16) >= int(s.Share().Part) {
		return
	}
	a := attempt{backend: b, client: client(l.rand.IntN(4)), began: now}
	for after, wait := 10*time.Millisecond, time.Second; i != l.dead; after, wait = after+wait, 2*wait {
		if l.rand.Float64() >= loss {
			a.answer = now.Add(after)
			break
		}
	}
	l.open = append(l.open, a)
}

// look evaluates connections as package watch does.
func (l *lossy) look(now time.Time) {
	var left []attempt
	for _, a := range l.open {
		if !a.answer.IsZero() && !now.Before(a.answer) {
			l.succeeded[a.backend] = true
			continue
		}
		left = append(left, a)
	}
	l.open = left
	known := maps.Clone(l.records) // successes count only for backends that the previous look had listed
	for i := range l.open {
		a := &l.open[i]
		if !a.counted && now.Sub(a.began) >= 1200*time.Millisecond {
			a.counted = true
			l.record(a.backend).Fail(a.client, now)
		}
	}
	for b, r := range known {
		if l.succeeded[b] {
			r.Succeed()
		}
	}
	clear(l.succeeded)
	evidence := map[netip.AddrPort]Evidence{}
	for b, r := range l.records {
		e := r.Take(known[b] != nil)
		e.Idle = !slices.ContainsFunc(l.open, func(a attempt) bool { return a.backend == b })
		evidence[b] = e
	}
	before := maps.Clone(l.port.States)
	l.port.States = l.port.Decide(evidence, now)
	for b, s := range l.port.States {
		if s != before[b] {
			delete(l.records, b)
		}
		if s.Phase == Ejected && s != before[b] {
			if l.ejections++; l.ejections == 1 {
				l.first = now
			}
		}
	}
	maps.DeleteFunc(l.records, func(b netip.AddrPort, r *Record) bool {
		return r.Expired(now) && l.port.States[b].Phase != Trial
	})
	for b, s := range l.port.States {
		if s.Phase == Trial {
			l.record(b)
		}
	}
}

func (l *lossy) record(b netip.AddrPort) *Record {
	if l.records[b] == nil {
		l.records[b] = &Record{}
	}
	return l.records[b]
}

// run lets connections begin at random times, with a look every 400 ms.
func (l *lossy) run(d time.Duration) {
	next := start
	for now := start; now.Before(start.Add(d)); now = now.Add(400 * time.Millisecond) {
		for ; next.Before(now); next = next.Add(l.pause()) {
			l.connect(next)
		}
		l.look(now)
	}
}

func (l *lossy) pause() time.Duration {
	return time.Duration(-math.Log(1-l.rand.Float64()) / l.perSecond * float64(time.Second))
}
