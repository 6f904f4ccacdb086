//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/route"

	"github.com/sluice-proxy/sluice/internal/linux/ipset"
	"github.com/sluice-proxy/sluice/internal/linux/iptables"
	"github.com/sluice-proxy/sluice/internal/linux/ipvs"
	planeipvs "github.com/sluice-proxy/sluice/internal/plane/ipvs"
	"github.com/sluice-proxy/sluice/internal/takeover"
)

// comparison has the measurements of mode ipvs and of the programs that write the same, one after the other in the
// same kernel. Missing measurements are empty.
type comparison struct {
	Sluice, Programs contender
	Nothing          []time.Duration // ipvsadm --restore without input
}

// contender has the durations of Sluice, or of the programs.
type contender struct {
	Cold    map[mechanism]time.Duration // the load of an empty kernel
	Changes []time.Duration             // one endpoint of one Service replaced, each time
}

func (c contender) total() (sum time.Duration) {
	for _, d := range c.Cold {
		sum += d
	}
	return sum
}

// mechanism is a part of the kernel, by the program that writes it; thinking is everything but the writes of Sluice.
type mechanism string

const (
	virtualServers mechanism = "ipvsadm"
	ipsets         mechanism = "ipset"
	addresses      mechanism = "ip"
	rules          mechanism = "iptables-restore"
	thinking       mechanism = ""
)

// timedKernel measures the time of all writes.
type timedKernel struct{ spent map[mechanism]time.Duration }

func (t timedKernel) around(k planeipvs.Kernel) planeipvs.Kernel {
	return planeipvs.Kernel{
		Servers: timedServers{k.Servers, t}, Sets: timedSets{k.Sets, t}, Links: timedLinks{k.Links, t},
		Chains: timedChains{k.Chains, t},
	}
}

func (t timedKernel) add(m mechanism, began time.Time) { t.spent[m] += time.Since(began) }

type timedServers struct {
	planeipvs.Servers
	timedKernel
}

// Apply implements planeipvs.Servers.
func (t timedServers) Apply(ctx context.Context, changes []ipvs.Command) error {
	defer t.add(virtualServers, time.Now())
	return t.Servers.Apply(ctx, changes)
}

type timedSets struct {
	planeipvs.Sets
	timedKernel
}

// Apply implements planeipvs.Sets.
func (t timedSets) Apply(ctx context.Context, changes []ipset.Command) error {
	defer t.add(ipsets, time.Now())
	return t.Sets.Apply(ctx, changes)
}

type timedLinks struct {
	planeipvs.Links
	timedKernel
}

// Change implements planeipvs.Links.
func (t timedLinks) Change(ctx context.Context, name string, add, remove []netip.Addr) error {
	defer t.add(addresses, time.Now())
	return t.Links.Change(ctx, name, add, remove)
}

type timedChains struct {
	planeipvs.Chains
	timedKernel
}

// Restore implements planeipvs.Chains.
func (t timedChains) Restore(ctx context.Context, f iptables.Family, input []byte) error {
	defer t.add(rules, time.Now())
	return t.Chains.Restore(ctx, f, input)
}

// measurePrograms measures Sluice, removes its rules, and measures the programs.
func measurePrograms(o options) (c comparison, err error) {
	ctx := context.Background()
	kernel, err := openIPVSKernel(o.dir)
	if err != nil {
		return c, err
	}
	open := func(k planeipvs.Kernel) *pipeline {
		p := pipelineOf(planeipvs.New(k, planeipvs.Options{Families: route.Families(), Mark: mark}))
		newGenerator().fill(p.store, o.child)
		return p
	}
	stop, err := profile(o)
	if err != nil {
		return c, err
	}
	timed := timedKernel{map[mechanism]time.Duration{}}
	p := open(timed.around(kernel))
	if c.Sluice, err = p.measureSluice(ctx, o, timed); err != nil {
		return c, err
	}
	if err := stop(); err != nil {
		return c, err
	}
	quiet := takeover.Options{Log: slog.New(slog.DiscardHandler), IgnoreKubeProxy: true}
	if _, err := takeover.Cleanup(ctx, quiet); err != nil {
		return c, fmt.Errorf("remove what Sluice wrote: %w", err)
	}
	if _, err := exec.LookPath(string(virtualServers)); err != nil {
		return c, nil // not measured
	}
	if c.Programs, err = open(kernel).measureRestore(ctx, o); err != nil {
		return c, err
	}
	for range o.changes {
		began := time.Now()
		if err := (command{line: "ipvsadm --restore"}).run(); err != nil {
			return c, err
		}
		c.Nothing = append(c.Nothing, time.Since(began))
	}
	return c, nil
}

func (p *pipeline) measureSluice(ctx context.Context, o options, timed timedKernel) (c contender, err error) {
	cold, err := p.full(ctx)
	if err != nil {
		return c, fmt.Errorf("load: %w", err)
	}
	c.Cold = maps.Clone(timed.spent)
	c.Cold[thinking] = cold.total() - c.total()
	c.Changes, err = p.times(ctx, newGenerator().changes(o, p.store)[0])
	return c, err
}

// measureRestore measures the programs with the input that Sluice would write. Each time Sluice verifies the result,
// or learns it.
func (p *pipeline) measureRestore(ctx context.Context, o options) (c contender, err error) {
	c.Cold = map[mechanism]time.Duration{}
	change, _ := p.compiler.Compile(p.store.Take())
	if err := p.plane.Refresh(ctx); err != nil {
		return c, err
	}
	for _, cmd := range commands(p.plane.Plan(change).String()) {
		began := time.Now()
		if err := cmd.run(); err != nil {
			return c, err
		}
		c.Cold[cmd.writes()] += time.Since(began)
	}
	if err := p.plane.Refresh(ctx); err != nil {
		return c, err
	}
	same := p.plane.Plan(change)
	if same.Steps() != 0 {
		return c, fmt.Errorf("the programs wrote something else:\n%s", same)
	}
	if err := same.Apply(ctx); err != nil {
		return c, err
	}
	for _, edit := range newGenerator().changes(o, p.store)[0].edits {
		edit()
		change, _ := p.compiler.Compile(p.store.Take())
		plan := p.plane.Plan(change)
		cmds := commands(plan.String())
		began := time.Now()
		for _, cmd := range cmds {
			err = errors.Join(err, cmd.run())
		}
		c.Changes = append(c.Changes, time.Since(began))
		if err := errors.Join(err, plan.Apply(ctx)); err != nil {
			return c, err
		}
	}
	return c, nil
}

type command struct{ line, input string }

// commands reads the text of a plan: "# PROGRAM ARGUMENTS", followed by its input. It joins successive inputs of the
// same program.
func commands(plan string) []command {
	var list []command
	for line := range strings.Lines(plan) {
		title, is := strings.CutPrefix(line, "# ")
		title = strings.TrimSpace(title)
		switch last := len(list) - 1; {
		case !is:
			list[last].input += line
		case last < 0 || list[last].line != title:
			list = append(list, command{line: title})
		}
	}
	return list
}

func (c command) run() error {
	words := strings.Fields(c.line)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdin = strings.NewReader(c.input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", c.line, err, out)
	}
	return nil
}

// writes returns the kind of objects that the command writes.
func (c command) writes() mechanism {
	name := strings.Replace(strings.Fields(c.line)[0], "ip6tables", "iptables", 1)
	return mechanism(name)
}
