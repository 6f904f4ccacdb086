package route

import (
	"slices"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/cow"
)

// Compiler turns changes of the cluster into changes of a Table. It is used by
// one goroutine. It keeps no copy of what the cluster holds, only pointers.
type Compiler struct {
	opt     Options
	table   *Table
	records cow.Set[*record] // by name
	claims  *claims
	builder builder

	hostProblems []Problem // those told already

	compiled int // Services so far, as a measure of the work
}

// record is what the Compiler knows of one Service of the cluster. A record in
// Compiler.records never changes: snapshots share it.
type record struct {
	state

	made     *Service  // nil: not compiled yet
	troubles *troubles // those told already; nil: none
}

// recordOf returns a record that is equal, as a key, to the one of a Service.
func recordOf(name cluster.Name) *record {
	return &record{state: state{service: &cluster.Service{Name: name}}}
}

func compareRecords(a, b *record) int { return a.service.Name.Compare(b.service.Name) }

// NewCompiler returns a Compiler with an empty Table.
func NewCompiler(opt Options) *Compiler {
	return &Compiler{
		opt:     opt,
		table:   &Table{Services: map[cluster.Name]*Service{}},
		records: cow.New(compareRecords),
		claims:  newClaims(opt.families()),
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
	dirty = c.appendAffected(dirty, before)
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

// appendAffected adds the Services that may come out different because of what is
// known of the node now; before is nil if nothing was known.
func (c *Compiler) appendAffected(dirty []cluster.Name, before *view) []cluster.Name {
	now := c.builder.view
	if before == nil || before == now {
		return dirty
	}
	all, moved := !before.same(now), before.own.moved(now.own)
	if !all && len(moved) == 0 {
		return dirty
	}
	for r := range c.records.All() {
		if all || uses(r.service, moved) {
			dirty = append(dirty, r.service.Name)
		}
	}
	return dirty
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
	var before record
	known := c.records.Get(recordOf(st.Name))
	if known != nil {
		before = *known
	}
	now := state{st.Service, st.Slices}
	switch {
	case now.service != nil:
		if before.service == now.service && slices.Equal(before.slices, now.slices) {
			return nil
		}
		c.records.Put(&record{now, before.made, before.troubles})
	case known != nil:
		c.records.Delete(known)
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
	r := c.records.Get(recordOf(name))
	if r == nil {
		delete(c.table.Services, name)
		return touch, nil
	}
	c.compiled++
	made, problems := c.builder.service(r.state, c.claims)
	if excess := c.excess(made); excess != nil {
		made = &Service{Name: name, Ignored: excess.Reason + ": " + excess.Value}
		problems = []Problem{*excess}
	}
	now, news := c.trouble(r, problems)
	if old != nil && old.equal(made) {
		made = old
	}
	touch.New = made
	c.table.Services[name] = made
	c.records.Put(&record{r.state, made, now})
	return touch, news
}

// trouble returns the problems of the Service compiled last, and those that are
// new. A claim lost to another owner than before is not new: otherwise a tenant
// could cause very many reports by changing the owner.
func (c *Compiler) trouble(r *record, others []Problem) (now *troubles, news []Problem) {
	before, lost := r.troubles, c.builder.lost
	if len(lost) == 0 && len(others) == 0 {
		return nil, nil
	}
	now = &troubles{svc: r.service, lost: losses(lost), conflicts: digest(lost, c.claims), others: others}
	news = render(digest(before.newlyLost(lost), c.claims), r.service)
	if before != nil {
		others = without(others, before.others)
	}
	return now, append(news, others...)
}

// tooLarge is the field of problems about the size of a Service.
const tooLarge = "spec"

// excess returns the problem of a Service that is too large for the data plane;
// nil if it is not.
func (c *Compiler) excess(svc *Service) *Problem {
	if c.opt.Excess == nil {
		return nil
	}
	size, limit := c.opt.Excess(svc)
	if limit == "" {
		return nil
	}
	return &Problem{Object: "Service " + svc.Name.String(), Field: tooLarge, Value: size, Reason: "too large, not programmed: " + limit}
}

// without returns the problems that are not among the known ones.
func without(problems, known []Problem) []Problem {
	var news []Problem
	for _, p := range problems {
		if !slices.ContainsFunc(known, p.repeats) {
			news = append(news, p)
		}
	}
	return news
}

// repeats reports whether a problem says no more than a known one. A Service that
// is too large in another way, as its endpoints come and go, is nothing new.
func (p Problem) repeats(known Problem) bool {
	if p.Field == tooLarge {
		p.Value, known.Value = "", ""
	}
	return p == known
}
