package planetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Model is a world, and the parts that carry it into a kernel. It holds a plane
// to this: whatever happens to the cluster, and whatever goes wrong on the way,
// the kernel ends up as if it had been told everything at once.
type Model struct {
	*World
	Options route.Options

	subject  Subject
	compiler *route.Compiler
	plane    plane.Plane
	queue    *plane.Queue
	rehost   *route.Host // the host in the kernel, if it is not that of the table
	fresh    bool        // the plane's belief holds
	meddled  bool        // another program changed the kernel, and may have left what leads to ours
}

// Subject is a kernel, and what makes planes for it.
type Subject struct {
	// Plane makes one that knows nothing yet. It meets the Faults.
	Plane  func(route.Options) plane.Plane
	Faults *Faults
	Rooms  []int // how much room there is for one write, now and then

	// State prints what of the kernel's state history does not decide.
	State func(*route.Table) (string, error)

	// Scratch returns another kernel, which holds nothing.
	Scratch func() Subject

	// Meddle does what another program might do. Disturbed says whether that may
	// be the cause of an error of a write that compared nothing; nil: never.
	Meddle    func(*World) error
	Disturbed func(error) bool

	// Audit looks at the kernel meanwhile. It may be nil.
	Audit Audit
}

// Audit says what must hold after every write of a sync, and at its end.
type Audit interface {
	Begin(m *Model)
	Note() // a write was carried out
	End(m *Model) error
}

const (
	turns = 60
	tries = 100
)

// NewModel makes one. The same seed leads the same life.
func NewModel(seed uint64, s Subject) *Model {
	w := NewWorld(rand.New(rand.NewPCG(seed, 0)))
	m := &Model{World: w, Options: w.Options(), subject: s}
	m.restart()
	return m
}

// Table is what should be.
func (m *Model) Table() *route.Table { return m.compiler.Table() }

func (m *Model) restart() {
	m.Store = m.World.Fresh()
	m.compiler = route.NewCompiler(m.Options)
	m.plane = m.subject.Plane(m.Options)
	m.queue = plane.NewQueue(m.load())
	m.fresh = false
}

// load makes up how changes are divided.
func (m *Model) load() plane.Load {
	return plane.Load{
		Cost:  func(p *route.Port) int { return len(p.Fronts) },
		Piece: Pick(m.Rand, 0, 1, 3, 8),
	}
}

// Run lives through many turns, in each of which something happens.
func (m *Model) Run() error {
	for turn := range turns {
		if err := m.turn(); err != nil {
			return fmt.Errorf("turn %d: %w", turn, err)
		}
	}
	return nil
}

func (m *Model) turn() error {
	for range 1 + m.IntN(4) {
		m.Change()
	}
	switch m.IntN(12) {
	case 0:
		if m.Chance(3) {
			m.Options = m.World.Options() // another configuration finds the same kernel
		}
		m.restart()
	case 1, 2:
		m.fresh, m.meddled = false, true // the watch would tell
		if err := m.subject.Meddle(m.World); err != nil {
			return err
		}
	}
	if err := m.sync(); err != nil {
		return err
	}
	return m.check()
}

// sync does what the loop does: try until it works.
func (m *Model) sync() error {
	f := m.subject.Faults
	f.Room = Pick(m.Rand, m.subject.Rooms...)
	f.deal(m.Rand)
	m.watch()
	for range tries {
		done, err := m.try()
		if done || err != nil {
			return err
		}
		m.fresh = false
		if m.Chance(2) {
			f.deal(m.Rand)
		}
		if m.Chance(3) {
			m.Change()
			m.watch() // what is to come is no longer what it was
		}
	}
	return errors.New("does not come to an end")
}

// try writes what changed. Only what was injected may go wrong, and what others
// did to the kernel may keep it from taking a change once.
func (m *Model) try() (done bool, err error) {
	change, _ := m.compiler.Compile(m.Store.Take())
	if !m.fresh {
		if done, err := m.compare(change); !done || err != nil {
			return false, err
		}
	} else {
		m.enqueue(change)
	}
	for !m.queue.Empty() || m.rehost != nil {
		if done, err := m.piece(); !done || err != nil {
			return false, err
		}
	}
	return true, nil
}

func (m *Model) enqueue(change route.Change) {
	for _, t := range change.Touched {
		m.queue.Add(t)
	}
	if m.rehost == nil {
		m.rehost = change.OldHost
	}
}

// compare compares everything; what the plan leaves out is queued.
func (m *Model) compare(change route.Change) (done bool, err error) {
	if err := m.plane.Refresh(context.Background()); err != nil {
		return false, unlessInjected(err)
	}
	change.Partly = m.Chance(2)
	plan := m.plane.Plan(change)
	if err := plan.Apply(context.Background()); err != nil {
		return false, explained(unlessInjected(err), plan)
	}
	m.fresh, m.rehost = true, nil
	m.queue.Clear()
	if partial, ok := plan.(plane.Partial); ok {
		for _, svc := range partial.Left() {
			m.queue.Add(route.Touch{Name: svc.Name, Old: svc, New: m.Table().Services[svc.Name]})
		}
	}
	return true, nil
}

// piece writes a part of what waits.
func (m *Model) piece() (done bool, err error) {
	change := route.Change{Table: m.Table(), OldHost: m.rehost}
	if m.rehost != nil {
		change.Touched = m.queue.All()
	} else {
		change.Touched = m.queue.Next()
	}
	change.Underway = m.queue.Underway()
	plan := m.plane.Plan(change)
	err = plan.Apply(context.Background())
	if err == nil {
		m.rehost = nil
		return true, nil
	}
	if m.meddled && m.subject.Disturbed != nil && m.subject.Disturbed(err) {
		return false, nil
	}
	return false, explained(unlessInjected(err), plan)
}

func explained(err error, plan plane.Plan) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\n%s", err, plan)
}

func unlessInjected(err error) error {
	if errors.Is(err, ErrInjected) {
		return nil
	}
	return err
}

// watch begins to audit every write from here on.
func (m *Model) watch() {
	if m.subject.Audit == nil {
		return
	}
	m.subject.Audit.Begin(m)
	m.subject.Faults.After = m.subject.Audit.Note
}

// check compares the kernel with one that was told everything at once, and
// wants nothing to be left to do.
func (m *Model) check() error {
	*m.subject.Faults = Faults{Room: m.subject.Faults.Room}
	if m.subject.Audit != nil {
		if err := m.subject.Audit.End(m); err != nil {
			return err
		}
	}
	table := m.compiler.Table()
	other := m.subject.Plane(m.Options)
	if err := other.Refresh(context.Background()); err != nil {
		return err
	}
	if plan := other.Plan(route.Change{Table: table}); plan.Steps() != 0 {
		return fmt.Errorf("something is left to do:\n%s", plan)
	}
	got, err := m.subject.State(table)
	if err != nil {
		return err
	}
	want, err := m.fromScratch()
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("the kernel holds (-), unlike from scratch (+):\n%s", difference(got, want))
	}
	return nil
}

// fromScratch tells another kernel everything at once.
func (m *Model) fromScratch() (string, error) {
	scratch := m.subject.Scratch()
	p := scratch.Plane(m.Options)
	if err := p.Refresh(context.Background()); err != nil {
		return "", err
	}
	compiler := route.NewCompiler(m.Options)
	change, _ := compiler.Compile(m.World.Fresh().Take())
	if err := p.Plan(change).Apply(context.Background()); err != nil {
		return "", err
	}
	return scratch.State(change.Table)
}

// difference returns the lines that only one of two texts has.
func difference(got, want string) string {
	count := map[string]int{}
	for line := range strings.Lines(got) {
		count[line]++
	}
	for line := range strings.Lines(want) {
		count[line]--
	}
	var list []string
	for _, line := range slices.Sorted(maps.Keys(count)) {
		switch n := count[line]; {
		case n > 0:
			list = append(list, "-"+line)
		case n < 0:
			list = append(list, "+"+line)
		}
	}
	if len(list) > 0 {
		return strings.Join(list, "")
	}
	has, wants := strings.SplitAfter(got, "\n"), strings.SplitAfter(want, "\n")
	for i := range has {
		if has[i] != wants[i] {
			list = append(list, "-"+has[i], "+"+wants[i])
		}
	}
	return "in this order:\n" + strings.Join(list, "")
}
