//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/test/harness"
)

// result are the measurements of one size in one process. Durations are nanoseconds in its JSON.
type result struct {
	Cold    parts // first load into an empty kernel
	Adopt   parts // a restart without changes
	Heap    uint64
	PeakRSS uint64 // of the cold load and all changes
	Files   int    // file descriptors after the cold load

	Replace, Grow, Shrink, Add, Delete changeStats
}

// parts are the times of one pass from the store to the kernel.
type parts struct {
	Compile, Refresh, Plan, Apply time.Duration
	CPU                           time.Duration // of the whole process, in all parts
	Steps                         int
}

func (p parts) total() time.Duration { return p.Compile + p.Refresh + p.Plan + p.Apply }

// pipeline is the store, compiler and plane of a proxy, as its loop uses them.
type pipeline struct {
	store    *cluster.Store
	compiler *route.Compiler
	plane    plane.Plane
}

func newPipeline(o options) (*pipeline, error) {
	opened, _, err := openPlane(o.plane, o.dir, route.Families())
	if err != nil {
		return nil, err
	}
	return pipelineOf(opened), nil
}

func pipelineOf(p plane.Plane) *pipeline {
	return &pipeline{
		store: cluster.NewStore(),
		compiler: route.NewCompiler(route.Options{
			NodeName: "node-0000", Families: route.Families(),
			Detector: route.DetectorOptions{
				Kind: route.DetectClusterCIDR, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
			},
			NodePorts: route.NodePortOptions{Primary: true},
		}),
		plane: p,
	}
}

// full runs the first pass, which compares everything with the kernel.
func (p *pipeline) full(ctx context.Context) (parts, error) {
	var took parts
	before, err := usage()
	if err != nil {
		return took, err
	}
	began := time.Now()
	change, problems := p.compiler.Compile(p.store.Take())
	took.Compile = lap(&began)
	if len(problems) > 0 {
		return took, fmt.Errorf("compile: %+v", problems[0])
	}
	if err := p.plane.Refresh(ctx); err != nil {
		return took, err
	}
	took.Refresh = lap(&began)
	plan := p.plane.Plan(change)
	took.Steps = plan.Steps()
	took.Plan = lap(&began)
	if err := plan.Apply(ctx); err != nil {
		return took, err
	}
	took.Apply = lap(&began)
	after, err := usage()
	took.CPU = after.cpu - before.cpu
	return took, err
}

// close closes the files of the process; the kernel keeps its state.
func (p *pipeline) close() error {
	if open, is := p.plane.(io.Closer); is {
		return open.Close()
	}
	return nil
}

// lap returns the time since began, and sets began to now.
func lap(began *time.Time) time.Duration {
	now := time.Now()
	d := now.Sub(*began)
	*began = now
	return d
}

// next runs one of the following passes.
func (p *pipeline) next(ctx context.Context) error {
	change, _ := p.compiler.Compile(p.store.Take())
	plan := p.plane.Plan(change)
	if plan.Steps() == 0 {
		return fmt.Errorf("nothing to write for %d touched Services", len(change.Touched))
	}
	return plan.Apply(ctx)
}

func measure(o options) (result, error) {
	var r result
	ctx := context.Background()
	stop, err := profile(o)
	if err != nil {
		return r, err
	}
	p, err := newPipeline(o)
	if err != nil {
		return r, err
	}
	m := newGenerator()
	m.fill(p.store, o.child)
	if r.Cold, err = p.full(ctx); err != nil {
		return r, fmt.Errorf("load: %w", err)
	}
	r.Heap = heap()
	if r.Files, err = openFiles(); err != nil {
		return r, err
	}
	for _, c := range m.changes(o, p.store) {
		if *c.into(&r), err = p.repeat(ctx, c); err != nil {
			return r, fmt.Errorf("change: %w", err)
		}
	}
	if r.PeakRSS, err = harness.PeakMemory("self"); err != nil {
		return r, err
	}
	if err := stop(); err != nil {
		return r, err
	}
	runtime.KeepAlive(p)
	if err := p.close(); err != nil {
		return r, err
	}
	r.Adopt, err = adopt(ctx, o)
	return r, err
}

// adopt measures a restart: only the kernel keeps its state.
func adopt(ctx context.Context, o options) (parts, error) {
	p, err := newPipeline(o)
	if err != nil {
		return parts{}, err
	}
	newGenerator().fill(p.store, o.child)
	took, err := p.full(ctx)
	if err == nil && took.Steps != 0 && !planeNamed(o.plane).transient {
		err = fmt.Errorf("a restart without changes took %d steps, want 0", took.Steps)
	}
	return took, errors.Join(err, p.close())
}
