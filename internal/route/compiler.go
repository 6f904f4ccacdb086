package route

import (
	"reflect"
	"slices"

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
	now := state{st.Service, st.Slices}
	switch {
	case now.service != nil:
		if before.service == now.service && slices.Equal(before.slices, now.slices) {
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
