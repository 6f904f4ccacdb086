package route

import (
	"maps"
	"reflect"
	"runtime"
	"slices"
	"sync"

	"github.com/tidwall/btree"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Compiler turns changes of the cluster into changes of a Table. Only one goroutine may
// use it. It keeps pointers to the cluster's values and copies none.
type Compiler struct {
	opt     Options
	table   *Table
	records *btree.BTreeG[*record] // by name; a copy takes constant time
	claims  *claims
	builder builder
	key     *record // for searches in records

	hostProblems []Problem // that Compile has returned

	compiled int // Services so far, for tests of the cost
}

// record is one Service of the cluster with its route. Snapshots share it, so it does not change.
type record struct {
	state

	made     *Service  // nil: not compiled yet
	reported *reported // nil: it has no problems
}

// recordOf returns a record with the key of a Service, to search for it.
func recordOf(name cluster.Name) *record {
	return &record{state: state{service: &cluster.Service{Name: name}}}
}

func isBefore(a, b *record) bool { return a.service.Name.Compare(b.service.Name) < 0 }

// NewCompiler returns a Compiler with an empty Table.
func NewCompiler(opt Options) *Compiler {
	return &Compiler{
		opt:     opt,
		table:   &Table{Services: map[cluster.Name]*Service{}},
		records: btree.NewBTreeGOptions(isBefore, btree.Options{NoLocks: true}),
		claims:  newClaims(opt.families()),
		key:     recordOf(cluster.Name{}),
	}
}

// Table returns the table as of the last Compile, which the next Compile changes in place.
func (c *Compiler) Table() *Table { return c.table }

// Compile applies a change of the cluster to the table. It returns the changes there, and the new problems. Its cost is
// proportional to the change, except that a change of the node's addresses, zone or detector may concern every Service.
func (c *Compiler) Compile(change cluster.Delta) (Change, []Problem) {
	out := Change{Table: c.table}
	before := c.builder.view
	var problems []Problem
	if facts := change.Facts; facts != nil || before == nil {
		if facts == nil {
			facts = &cluster.Facts{}
		}
		out.OldHost, problems = c.setFacts(facts)
	}
	affected := make([]cluster.Name, 0, len(change.Services))
	for _, st := range change.Services {
		affected = c.accept(affected, st)
	}
	affected = c.appendAffected(affected, before)
	slices.SortFunc(affected, cluster.Name.Compare)
	affected = slices.Compact(affected)
	out.Touched = make([]Touch, 0, len(affected))
	for names := range slices.Chunk(affected, block) {
		for _, made := range c.compile(names) {
			touch, added := c.take(made)
			problems = append(problems, added...)
			if touch.Old != touch.New {
				out.Touched = append(out.Touched, touch)
			}
		}
	}
	return out, problems
}

// appendAffected adds Services whose routes may change with the view of the node; before is nil for the first view.
func (c *Compiler) appendAffected(names []cluster.Name, before *view) []cluster.Name {
	now := c.builder.view
	if before == nil || before == now {
		return names
	}
	all, changed := !before.same(now), before.own.changed(now.own)
	if !all && len(changed) == 0 {
		return names
	}
	for r := range c.records.Scan {
		if all || uses(r.service, changed) {
			names = append(names, r.service.Name)
		}
	}
	return names
}

// setFacts sets the facts about the node. It returns the former Host if that changes, and the new problems.
func (c *Compiler) setFacts(facts *cluster.Facts) (old *Host, added []Problem) {
	host, problems := compileHost(c.opt, facts)
	added = without(problems, c.hostProblems)
	c.hostProblems = problems
	c.builder.view = viewOf(c.opt, facts, host)
	if reflect.DeepEqual(c.table.Host, host) {
		return nil, added
	}
	before := c.table.Host
	c.table.Host = host
	return &before, added
}

// accept sets the state of a Service. It adds the names of the Services whose routes it affects.
func (c *Compiler) accept(affected []cluster.Name, st cluster.State) []cluster.Name {
	var before record
	c.key.service.Name = st.Name
	known, exists := c.records.Get(c.key)
	if exists {
		before = *known
	}
	now := state{st.Service, st.Slices, st.Shares}
	switch {
	case now.service != nil:
		if before.service == now.service && slices.Equal(before.slices, now.slices) &&
			maps.Equal(before.shares, now.shares) {
			return affected
		}
		c.records.Set(&record{now, before.made, before.reported})
	case exists:
		c.records.Delete(known)
	default:
		return affected
	}
	affected = append(affected, st.Name)
	if before.service != now.service {
		affected = append(affected, c.claims.replace(before.service, now.service)...)
	}
	return affected
}

// take puts a compiled Service into the table, which keeps an equal one.
func (c *Compiler) take(m compiled) (Touch, []Problem) {
	old := c.table.Services[m.name]
	touch := Touch{Name: m.name, Old: old}
	if m.record == nil {
		delete(c.table.Services, m.name)
		return touch, nil
	}
	c.compiled++
	now, added := c.reportedOf(m)
	if old != nil && old.equal(m.made) {
		m.made = old
	}
	touch.New = m.made
	c.table.Services[m.name] = m.made
	c.records.Set(&record{m.record.state, m.made, now})
	return touch, added
}

// reportedOf returns the problems of a Service, and the new ones among them. A lost claim is not new because its
// owner has changed: otherwise a tenant could cause very many reports by changing the owner.
func (c *Compiler) reportedOf(m compiled) (now *reported, added []Problem) {
	before, svc, others := m.record.reported, m.record.service, m.problems
	if len(m.lost) == 0 && len(others) == 0 {
		return nil, nil
	}
	now = &reported{svc: svc, lost: losses(m.lost), conflicts: digest(m.lost, c.claims), others: others}
	added = render(digest(before.added(m.lost), c.claims), svc)
	if before != nil {
		others = without(others, before.others)
	}
	return now, append(added, others...)
}

// tooLarge is the field of problems about the size of a Service.
const tooLarge = "spec"

// without returns the problems that repeat none of the known ones.
func without(problems, known []Problem) []Problem {
	var added []Problem
	for _, p := range problems {
		if !slices.ContainsFunc(known, p.repeats) {
			added = append(added, p)
		}
	}
	return added
}

// repeats reports whether a problem is a known one. The size of a Service that is too large does not matter.
func (p Problem) repeats(known Problem) bool {
	if p.Field == tooLarge {
		p.Value, known.Value = "", ""
	}
	return p == known
}

// Services are compiled in blocks. Several workers compile the Services of a block in parallel.
const (
	block   = 4096
	portion = 64 // for fewer Services another worker does not pay
)

// compiled is a Service that was compiled, before the table has it.
type compiled struct {
	name     cluster.Name
	record   *record // nil: the Service does not exist
	made     *Service
	problems []Problem   // without lost claims
	lost     []candidate // frontends that it asks for, but others own
}

// compile computes the routes of Services. It changes nothing.
func (c *Compiler) compile(names []cluster.Name) []compiled {
	list := make([]compiled, len(names))
	workers := min(runtime.GOMAXPROCS(0), (len(names)+portion-1)/portion)
	if workers <= 1 {
		c.compileInto(list, names, &c.builder)
		return list
	}
	var running sync.WaitGroup
	each := (len(names) + workers - 1) / workers
	for begin := 0; begin < len(names); begin += each {
		end := min(begin+each, len(names))
		running.Go(func() { c.compileInto(list[begin:end], names[begin:end], &builder{view: c.builder.view}) })
	}
	running.Wait()
	return list
}

func (c *Compiler) compileInto(list []compiled, names []cluster.Name, by *builder) {
	key := recordOf(cluster.Name{})
	for i, name := range names {
		list[i].name, key.service.Name = name, name
		if r, exists := c.records.Get(key); exists {
			list[i] = c.compileOne(r, by)
		}
	}
}

func (c *Compiler) compileOne(r *record, by *builder) compiled {
	made, problems := by.service(r.state, c.claims)
	if excess := c.excess(made); excess != nil {
		made = &Service{Name: made.Name, Ignored: excess.Reason + ": " + excess.Value}
		problems = []Problem{*excess}
	}
	return compiled{r.service.Name, r, made, problems, slices.Clone(by.lost)}
}

// excess returns the problem of a Service that is too large for the data plane; nil otherwise.
func (c *Compiler) excess(svc *Service) *Problem {
	if c.opt.Excess == nil {
		return nil
	}
	size, limit := c.opt.Excess(svc)
	if limit == "" {
		return nil
	}
	return &Problem{
		Object: "Service " + svc.Name.String(), Field: tooLarge, Value: size, Reason: "too large, not programmed: " + limit,
	}
}
