package planetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// Model is a World, and a plane that writes it to a kernel. It verifies that after any sequence of changes and failures
// the kernel holds the same as if everything had been written at once to an empty one.
type Model struct {
	*World
	Options route.Options

	subject  Subject
	compiler *route.Compiler
	plane    plane.Plane
	queue    *plane.Queue
	rehost   *route.Host // the Host in the kernel, if the table has another one
	known    bool        // the plane knows the state of the kernel
	edited   bool        // another program has changed the kernel, and may refer to objects of the plane
	pieces   int         // of the queue that were planned; some are planned twice
}

// Subject is a kernel with functions that return planes for it.
type Subject struct {
	// Plane returns a new plane for the kernel. Faults make its reads and writes fail.
	Plane  func(route.Options) plane.Plane
	Faults *Faults
	Rooms  []int // values of Faults.Room to choose from

	// State returns the part of the state of the kernel that must not depend on history.
	State func(*route.Table) (string, error)

	// Scratch returns another, empty kernel.
	Scratch func() Subject

	// Edit edits the kernel as another program might. Disturbed reports whether that
	// may be the cause of an error of a write that compared nothing; nil: never.
	Edit      func(*World) error
	Disturbed func(error) bool

	// Audit verifies the kernel after every write. It may be nil.
	Audit Audit
}

// Audit verifies invariants after every write of a sync, and at its end.
type Audit interface {
	Begin(m *Model)
	Note() // after a write
	End(m *Model) error
}

// Rounds is how many rounds of random events Run runs.
const Rounds = 60

const tries = 100 // attempts of one sync

// NewModel returns a Model. The same seed leads to the same sequence of events.
func NewModel(seed uint64, s Subject) *Model {
	w := NewWorld(rand.New(rand.NewPCG(seed, 0)))
	m := &Model{World: w, Options: w.Options(), subject: s}
	m.restart()
	return m
}

// Table returns the table that the kernel should hold.
func (m *Model) Table() *route.Table { return m.compiler.Table() }

func (m *Model) restart() {
	m.Store = m.World.Fresh()
	m.compiler = route.NewCompiler(m.Options)
	m.plane = m.subject.Plane(m.Options)
	m.queue = plane.NewQueue(m.load())
	m.known = false
}

func (m *Model) load() plane.Load {
	return plane.Load{
		Cost:  func(p *route.Port) int { return len(p.Frontends) },
		Piece: Pick(m.Rand, 0, 1, 3, 8),
	}
}

// Run runs many rounds of random events.
func (m *Model) Run() error { return m.RunFor(Rounds) }

// RunFor runs rounds of random events, for tests whose kernel is slow.
func (m *Model) RunFor(rounds int) error {
	for n := range rounds {
		if err := m.round(); err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
	}
	return nil
}

func (m *Model) round() error {
	for range 1 + m.IntN(4) {
		m.Change()
	}
	switch m.IntN(12) {
	case 0:
		if m.Chance(3) {
			m.Options = m.World.Options() // a restart with another configuration
		}
		m.restart()
	case 1, 2:
		m.known, m.edited = false, true // as Watch would notify the loop
		if err := m.subject.Edit(m.World); err != nil {
			return err
		}
	}
	if err := m.sync(); err != nil {
		return err
	}
	return m.check()
}

// sync writes changes until it succeeds, as the loop does.
func (m *Model) sync() error {
	f := m.subject.Faults
	f.Room = Pick(m.Rand, m.subject.Rooms...)
	f.choose(m.Rand)
	m.audit()
	for range tries {
		done, err := m.try()
		if done || err != nil {
			return err
		}
		m.known = false
		if m.Chance(2) {
			f.choose(m.Rand)
		}
		if m.Chance(3) {
			m.Change()
			m.audit() // starts again, as the table has changed
		}
	}
	return fmt.Errorf("no success after %d attempts", tries)
}

// try makes one attempt to write the changes. It returns an error unless that was injected,
// or caused once by an edit of another program.
func (m *Model) try() (done bool, err error) {
	change, _ := m.compiler.Compile(m.Store.Take())
	if !m.known {
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

// compare compares everything.
func (m *Model) compare(change route.Change) (done bool, err error) {
	if err := m.plane.Refresh(context.Background()); err != nil {
		return false, unlessInjected(err, nil)
	}
	plan := m.plane.Plan(change)
	if err := plan.Apply(context.Background()); err != nil {
		return false, unlessInjected(err, plan)
	}
	m.known, m.rehost = true, nil
	m.queue.Clear()
	return true, nil
}

// piece writes a part of the queue.
func (m *Model) piece() (done bool, err error) {
	change := route.Change{Table: m.Table(), OldHost: m.rehost}
	if m.rehost != nil {
		change.Touched = m.queue.All()
	} else {
		change.Touched = m.queue.Next()
	}
	change.Underway = m.queue.Underway()
	plan := m.plane.Plan(change)
	if m.pieces++; m.pieces%4 == 0 {
		if again := m.plane.Plan(change).String(); again != plan.String() {
			return false, fmt.Errorf("a second plan for the same change differs:\n%s\nthe first:\n%s", again, plan)
		}
	}
	err = plan.Apply(context.Background())
	if err == nil {
		m.rehost = nil
		return true, nil
	}
	if m.edited && m.subject.Disturbed != nil && m.subject.Disturbed(err) {
		return false, nil
	}
	return false, unlessInjected(err, plan)
}

// unlessInjected returns an error with the plan that failed; nil for an injected error.
func unlessInjected(err error, plan fmt.Stringer) error {
	switch {
	case errors.Is(err, ErrInjected):
		return nil
	case plan == nil:
		return err
	}
	return fmt.Errorf("%w\n%s", err, plan)
}

// audit starts to audit the writes.
func (m *Model) audit() {
	if m.subject.Audit == nil {
		return
	}
	m.subject.Audit.Begin(m)
	m.subject.Faults.After = m.subject.Audit.Note
}

// check verifies that a comparison finds nothing to write, and that another kernel holds
// the same after everything was written to it at once.
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
		return fmt.Errorf("a comparison has steps:\n%s", plan)
	}
	got, err := m.subject.State(table)
	if err != nil {
		return err
	}
	want, err := m.fromScratch()
	if err != nil {
		return err
	}
	if diff := cmp.Diff(got, want); diff != "" {
		return fmt.Errorf("the kernel holds (-), unlike from scratch (+):\n%s", diff)
	}
	return nil
}

// fromScratch writes everything at once to another kernel.
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
