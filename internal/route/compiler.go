package route

import (
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Compiler turns changes of the cluster into changes of a Table. It is used by
// one goroutine. It keeps no copy of what the cluster holds, only pointers.
type Compiler struct {
	opt     Options
	table   *Table
	states  map[cluster.Name]state
	claims  *claims
	builder builder

	// problems are those told already; only Services that have some.
	problems     map[cluster.Name][]Problem
	hostProblems []Problem
}

// NewCompiler returns a Compiler with an empty Table.
func NewCompiler(opt Options) *Compiler {
	return &Compiler{
		opt:      opt,
		table:    &Table{Services: map[cluster.Name]*Service{}},
		states:   map[cluster.Name]state{},
		claims:   newClaims(opt.families()),
		problems: map[cluster.Name][]Problem{},
	}
}

// Table returns the table as of the last Compile. It is the same one all the
// time.
func (c *Compiler) Table() *Table { return c.table }

// Compile takes a change of the cluster into the table and says what is
// different now, and which problems are new. Its cost follows the change; only
// a change of what policy needs to know of the node concerns every Service.
func (c *Compiler) Compile(change cluster.Change) (Change, []Problem) {
	out := Change{Table: c.table}
	before := c.builder.view
	var problems []Problem
	if facts := change.Facts; facts != nil || before == nil {
		if facts == nil {
			facts = &cluster.Facts{}
		}
		out.OldHost, problems = c.setFacts(facts)
	}
	dirty := make([]cluster.Name, 0, len(change.Services))
	for _, st := range change.Services {
		dirty = append(dirty, c.accept(st)...)
	}
	if before != nil && !before.same(c.builder.view) {
		for name := range c.states {
			dirty = append(dirty, name)
		}
	}
	slices.SortFunc(dirty, cluster.Name.Compare)
	for _, name := range slices.Compact(dirty) {
		touch, news := c.compile(name)
		problems = append(problems, news...)
		if touch.Old != touch.New {
			out.Touched = append(out.Touched, touch)
		}
	}
	return out, problems
}

// setFacts takes over what is known of the node; old is nil if the Host is as
// before.
func (c *Compiler) setFacts(facts *cluster.Facts) (old *Host, news []Problem) {
	host, problems := compileHost(c.opt, facts)
	news = without(problems, c.hostProblems)
	c.hostProblems = problems
	c.builder.view = viewOf(c.opt, facts, host)
	if c.table.Host.equal(host) {
		return nil, news
	}
	before := c.table.Host
	c.table.Host = host
	return &before, news
}

// accept takes over the state of a Service and returns the names of those to
// compile again.
func (c *Compiler) accept(st cluster.State) []cluster.Name {
	before, known := c.states[st.Name]
	now := state{st.Service, st.Slices}
	switch {
	case now.service != nil:
		if before.service == now.service && slices.Equal(before.slices, now.slices) {
			return nil
		}
		c.states[st.Name] = now
	case known:
		delete(c.states, st.Name)
	default:
		return nil
	}
	dirty := []cluster.Name{st.Name}
	if before.service != now.service {
		dirty = append(dirty, c.claims.replace(before.service, now.service)...)
	}
	return dirty
}

// compile makes the route of one Service anew. The table keeps the one it has
// if that comes out the same.
func (c *Compiler) compile(name cluster.Name) (Touch, []Problem) {
	old := c.table.Services[name]
	touch := Touch{Name: name, Old: old}
	st, known := c.states[name]
	if !known {
		delete(c.table.Services, name)
		delete(c.problems, name)
		return touch, nil
	}
	made, problems := c.builder.service(st, c.claims)
	news := without(problems, c.problems[name])
	if len(problems) > 0 {
		c.problems[name] = problems
	} else {
		delete(c.problems, name)
	}
	if old != nil && old.equal(made) {
		touch.New = old
		return touch, news
	}
	touch.New = made
	c.table.Services[name] = made
	return touch, news
}

// without returns the problems that are not among the known ones.
func without(problems, known []Problem) []Problem {
	var news []Problem
	for _, p := range problems {
		if !slices.Contains(known, p) {
			news = append(news, p)
		}
	}
	return news
}

// Problems returns what is wrong with a Service at present. The list is not to
// be changed.
func (c *Compiler) Problems(name cluster.Name) []Problem { return c.problems[name] }

// AllProblems returns what is wrong at present with anything, in no order.
func (c *Compiler) AllProblems() []Problem {
	all := slices.Clone(c.hostProblems)
	for _, problems := range c.problems {
		all = append(all, problems...)
	}
	return all
}

// Explain says of every endpoint in the slices of a Service whether it is in a
// pool of one of its Ports, and if not, why. It looks at the pool also if no
// front of the Port uses it. Endpoints are sorted by address.
func (c *Compiler) Explain(name cluster.Name, port *Port, pool Pool) []Choice {
	list, n := gather(nil, c.states[name].slices, backendKey{port.Name, port.Protocol, port.Family})
	choose(list[:n], pool, c.builder.view)
	slices.SortStableFunc(list, func(a, b Choice) int { return a.Backend.Compare(b.Backend) })
	return list
}
