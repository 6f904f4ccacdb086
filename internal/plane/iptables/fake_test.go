package iptables

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-proxy/sluice/internal/linux/iptables"
)

// fakeKernel stands for the programs and the kernel. It refuses input that they refuse, and
// applies each table of the input as a whole or not at all. Set its fields before use.
type fakeKernel struct {
	// fail, if set, may return an error before the input is applied.
	fail func(f iptables.Family, input []byte) error
	// failRead, if set, may return an error instead of a table.
	failRead func(iptables.Table) error

	room int // what Room returns; 0: no limit

	report func(iptables.Edit) // the function that Watch was called with

	mu     sync.Mutex
	lines  int
	tables map[iptables.Table]*fakeTable
}

// newFake returns a host without rules. Both families have the tables nat, filter and mangle with the built-in chains.
func newFake() *fakeKernel {
	f := &fakeKernel{tables: map[iptables.Table]*fakeTable{}}
	for _, family := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
		for _, name := range []string{"nat", "filter", "mangle"} {
			f.tables[iptables.Table{Family: family, Name: name}] = newFakeTable(name)
		}
	}
	return f
}

// Room implements Kernel.
func (f *fakeKernel) Room() int {
	if f.room == 0 {
		return math.MaxInt
	}
	return f.room
}

// written returns the number of lines with chains and rules that Restore has received.
func (f *fakeKernel) written() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lines
}

// Read implements Kernel.
func (f *fakeKernel) Read(ctx context.Context, table iptables.Table) (iptables.Chains, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if f.failRead != nil {
		if err := f.failRead(table); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	chains := iptables.Chains{}
	if t := f.tables[table]; t != nil {
		for name, c := range t.chains {
			chains[name] = iptables.Chain{Policy: c.Policy, Rules: slices.Clone(c.Rules)}
		}
	}
	return chains, nil
}

// Watch implements Kernel. Tests call report.
func (f *fakeKernel) Watch(
	ctx context.Context, _ func(string) bool, subscribed func(), report func(iptables.Edit),
) error {
	f.report = report
	subscribed()
	<-ctx.Done()
	return nil
}

// Restore implements Kernel.
func (f *fakeKernel) Restore(ctx context.Context, family iptables.Family, input []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if f.fail != nil {
		if err := f.fail(family, input); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.run(family, string(input), &f.lines)
}

// flush removes everything.
func (f *fakeKernel) flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for table := range f.tables {
		f.tables[table] = newFakeTable(table.Name)
	}
}

// edit applies the input of another program, which may also contain -F.
func (f *fakeKernel) edit(t testing.TB, family iptables.Family, input string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.run(family, input, new(int)); err != nil {
		t.Fatal(err)
	}
}

// command is one line of the input of a restore.
type command struct {
	verb  string // "*", ":", "COMMIT", "-A", "-I", "-D", "-X", "-F", "-N"
	name  string // of a table or chain
	at    int    // number of the rule in -I and -D; 0: none
	rest  string // the rule, or the policy
	valid bool   // false: an empty line or a comment
}

func parseCommand(line string) command {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' {
		return command{}
	}
	c := command{valid: true}
	if line[0] == '*' || line[0] == ':' {
		c.verb = line[:1]
		c.name, c.rest, _ = strings.Cut(line[1:], " ")
		c.rest, _, _ = strings.Cut(c.rest, " ")
		return c
	}
	c.verb, c.rest, _ = strings.Cut(line, " ")
	c.name, c.rest, _ = strings.Cut(c.rest, " ")
	first, rest, _ := strings.Cut(c.rest, " ")
	if n, err := strconv.Atoi(first); err == nil {
		c.at, c.rest = n, rest
	}
	return c
}

// run applies input.
func (f *fakeKernel) run(family iptables.Family, input string, lines *int) (err error) {
	refused := &iptables.RestoreError{Program: "fake-restore"}
	var current *attempt
	defer func() {
		if current != nil {
			current.undo()
		}
	}()
	for line := range strings.Lines(input) {
		refused.Line++
		c := parseCommand(line)
		switch {
		case !c.valid:
			continue
		case c.verb == "*" && (current != nil || f.tables[iptables.Table{Family: family, Name: c.name}] == nil):
			err = fmt.Errorf("unable to initialize table '%s'", c.name)
		case c.verb == "*":
			current = f.tables[iptables.Table{Family: family, Name: c.name}].begin()
		case current == nil:
			err = programError("no table is named before it")
		case c.verb == "COMMIT":
			current = nil
			refused.Committed++
		default:
			*lines++
			err = current.do(c)
		}
		if err != nil {
			refused.Rule, refused.Reason = strings.TrimSpace(line), err.Error()
			return refused
		}
	}
	if current != nil {
		refused.Reason = "COMMIT expected"
		return refused
	}
	return nil
}

// String prints all tables that are not empty, as PROGRAM-save does, those of IPv4 first.
func (f *fakeKernel) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, row := range bothFamilies() {
		for _, name := range []string{"mangle", "nat", "filter"} {
			if t := f.tables[iptables.Table{Family: row.kernel, Name: name}]; !t.untouched() {
				fmt.Fprintf(&b, "# %s\n*%s\n%sCOMMIT\n", row.kernel.Program(), name, t)
			}
		}
	}
	return b.String()
}
