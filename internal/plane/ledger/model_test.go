package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/test/seeds"
)

// service is a Service of the model: so many rows, and frontends that lead to all of them and to a pool.
type service struct {
	rows      int
	frontends []int
	value     int  // of rows
	bad       bool // the kernel refuses its frontends
}

func (s *service) entries(id string) []testEntry {
	if s == nil {
		return nil
	}
	var list []testEntry
	value := fmt.Sprintf("pool:%d", s.rows)
	for i := range s.rows {
		key := fmt.Sprintf("%s-%d", id, i)
		list = append(list, testEntry{name{row, key}, fmt.Sprint("backend ", s.value)})
		value += " row:" + key
	}
	if s.bad {
		value += " bad"
	}
	list = append(list, testEntry{name{pool, fmt.Sprint(s.rows)}, "pool"})
	for _, f := range s.frontends {
		list = append(list, testEntry{name{frontend, fmt.Sprint(f)}, value},
			testEntry{name{refusal, fmt.Sprint(f / 4)}, "refused"})
	}
	return distinct(list)
}

// distinct leaves out what a Service has twice.
func distinct(list []testEntry) []testEntry {
	known := map[name]bool{}
	return slices.DeleteFunc(list, func(e testEntry) bool {
		had := known[e.Key]
		known[e.Key] = true
		return had
	})
}

// world is what should be, and what the ledger was last told.
type world struct {
	*rand.Rand
	kernel   *fake
	ledger   *Ledger[name, string]
	want     map[string]*service
	written  map[string]*service
	compares bool
	refused  plane.Refused
}

func newWorld(seed uint64) *world {
	k := newFake()
	k.bad = "bad"
	return &world{
		Rand: rand.New(rand.NewPCG(seed, 0)), kernel: k, ledger: newLedger(), compares: true,
		want: map[string]*service{}, written: map[string]*service{},
	}
}

// change makes up another state of some Service. Frontends move between Services.
func (w *world) change() {
	id := fmt.Sprint("svc-", w.IntN(8))
	if w.IntN(4) == 0 {
		delete(w.want, id)
		return
	}
	s := &service{rows: w.IntN(5), value: w.IntN(3), bad: w.IntN(8) == 0}
	for range w.IntN(4) {
		f := w.IntN(16)
		for other, o := range w.want {
			if slices.Contains(o.frontends, f) {
				moved := *o
				moved.frontends = slices.DeleteFunc(slices.Clone(o.frontends), func(g int) bool { return g == f })
				w.want[other] = &moved
			}
		}
		if !slices.Contains(s.frontends, f) {
			s.frontends = append(s.frontends, f)
		}
	}
	w.want[id] = s
}

// plan returns a plan for everything that differs.
func (w *world) plan() *testPlan {
	var p *testPlan
	if w.compares {
		p = w.ledger.Compare(w.kernel, w.kernel.list())
		p.Host(nil, host())
	} else {
		p = w.ledger.Change(w.kernel)
	}
	names := maps.Clone(w.want)
	maps.Copy(names, w.written)
	for _, id := range slices.Sorted(maps.Keys(names)) {
		old, now := w.written[id], w.want[id]
		if !w.compares && (old == now || w.refused[cluster.Name{Name: id}] != nil) {
			continue
		}
		p.Service(cluster.Name{Name: id}, old.entries(id), now.entries(id))
	}
	p.End()
	return p
}

// host is an entry that belongs to no Service.
func host() []testEntry { return []testEntry{{name{frontend, "host"}, ""}} }

// sync writes until it works, as the loop does.
func (w *world) sync() error {
	for range 50 {
		before := len(w.refused)
		p := w.plan()
		err := p.Apply(context.Background())
		refused, is := errors.AsType[plane.Refused](err)
		switch {
		case err == nil && !w.compares:
			w.keep()
			return nil
		case err == nil, is && w.compares:
			w.refused, w.compares = refused, false
			w.keep()
			return w.blame()
		case w.compares && !errors.Is(err, errInjected), is:
			return fmt.Errorf("%w\n%s", err, p)
		case !w.compares && before == 0 && !errors.Is(err, errInjected) && !errors.Is(err, errBad):
			return fmt.Errorf("%w\n%s", err, p)
		}
		w.compares = true
	}
	return errors.New("does not come to an end")
}

// keep remembers what was written. Refused Services are changed by comparisons only.
func (w *world) keep() {
	for id := range w.written {
		if w.want[id] == nil {
			delete(w.written, id)
		}
	}
	maps.Copy(w.written, w.want)
}

// blame wants exactly the bad Services to be refused.
func (w *world) blame() error {
	for id, s := range w.want {
		err := w.refused[cluster.Name{Name: id}]
		if bad := s.bad && len(s.frontends) > 0; bad != (err != nil) {
			return fmt.Errorf("%s is bad: %v, and refused: %w", id, bad, err)
		}
	}
	return nil
}

// check compares the kernel with what all good Services need. Entries that only bad Services may lead to do not matter.
func (w *world) check() error {
	want := map[name]string{}
	for _, e := range host() {
		want[e.Key] = e.Value
	}
	for id, s := range w.want {
		if w.refused[cluster.Name{Name: id}] == nil {
			for _, e := range s.entries(id) {
				want[e.Key] = e.Value
			}
		}
	}
	for key, value := range want {
		if had, there := w.kernel.entries[key]; !there || had != value {
			return fmt.Errorf("%s %s is %q, want %q", key.of, key.id, had, value)
		}
	}
	if len(w.refused) > 0 {
		return nil
	}
	for key := range w.kernel.entries {
		if _, wanted := want[key]; !wanted {
			return fmt.Errorf("%s %s is left", key.of, key.id)
		}
	}
	return nil
}

// Whatever changes, whatever fails, and whichever Services the kernel refuses, it ends up with what all other Services
// need, and refuses nothing on the way because of the order.
func TestModel(t *testing.T) {
	for seed := range seeds.Of(t, 100) {
		w := newWorld(seed)
		for turn := range 60 {
			if err := w.turn(); err != nil {
				t.Fatalf("turn %d: %v\n%s", turn, err, strings.Join(w.kernel.log, "--\n"))
			}
		}
	}
}

func (w *world) turn() error {
	w.kernel.log = nil
	w.kernel.room = []int{1, 3, 10, 1 << 20}[w.IntN(4)]
	for range 1 + w.IntN(4) {
		w.change()
	}
	if w.IntN(6) == 0 || len(w.refused) > 0 && w.IntN(2) == 0 {
		w.compares = true
	}
	w.kernel.writes, w.kernel.failAt, w.kernel.before = 0, w.IntN(20), w.IntN(2) == 0
	if err := w.sync(); err != nil {
		return err
	}
	if len(w.refused) > 0 {
		w.compares = true // what waits for that is not written yet
		w.kernel.failAt = 0
		if err := w.sync(); err != nil {
			return err
		}
	}
	return w.check()
}
