//go:build linux

package main

import (
	"context"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// changeStats are measurements of many changes of one kind.
type changeStats struct {
	P50, P99      time.Duration
	CPU           time.Duration // of the whole process, per change
	Allocs, Bytes float64       // per change
}

// change is a kind of change, made repeatedly to the store.
type change struct {
	into  func(*result) *changeStats
	edits []func()
}

// changes returns all kinds, ordered so that the objects that each needs exist.
func (m generator) changes(o options, store *cluster.Store) []change {
	n := o.child
	at := func(i int) int { return i * 7919 % n } // spread over all Services
	set := func(of func(i int) *cluster.Slice) []func() {
		edits := make([]func(), o.changes)
		for i := range edits {
			sl := of(i)
			edits[i] = func() { store.SetSlice(sl) }
		}
		return edits
	}
	times := func(edit func(i int) func()) []func() {
		edits := make([]func(), o.changes)
		for i := range edits {
			edits[i] = edit(i)
		}
		return edits
	}
	return []change{
		{func(r *result) *changeStats { return &r.Replace }, set(func(i int) *cluster.Slice {
			return m.slice(at(i), 0, 1, 4+i/n%2)
		})},
		{func(r *result) *changeStats { return &r.Grow }, set(func(i int) *cluster.Slice {
			return m.slice(at(i), 0, 1, 2, 3)
		})},
		{func(r *result) *changeStats { return &r.Shrink }, set(func(i int) *cluster.Slice {
			return m.slice(at(i), 0, 1, 2)
		})},
		{func(r *result) *changeStats { return &r.Add }, times(func(i int) func() {
			svc, sl := m.service(n+i), m.slice(n+i, 0, 1, 2)
			return func() {
				store.SetService(svc)
				store.SetSlice(sl)
			}
		})},
		{func(r *result) *changeStats { return &r.Delete }, times(func(i int) func() {
			name, sl := m.service(n+i).Name, m.slice(n+i).Name
			return func() {
				store.DeleteService(name)
				store.DeleteSlice(sl)
			}
		})},
	}
}

// repeat makes all changes of a kind, one pass for each.
func (p *pipeline) repeat(ctx context.Context, c change) (changeStats, error) {
	before, err := usage()
	if err != nil {
		return changeStats{}, err
	}
	took, err := p.times(ctx, c)
	if err != nil {
		return changeStats{}, err
	}
	after, err := usage()
	if err != nil {
		return changeStats{}, err
	}
	slices.Sort(took)
	n := len(took)
	return changeStats{
		P50: took[n/2], P99: took[n*99/100],
		CPU:    (after.cpu - before.cpu) / time.Duration(n),
		Allocs: float64(after.allocs-before.allocs) / float64(n),
		Bytes:  float64(after.bytes-before.bytes) / float64(n),
	}, nil
}

// times makes all changes of a kind, and returns how long each took.
func (p *pipeline) times(ctx context.Context, c change) ([]time.Duration, error) {
	took := make([]time.Duration, len(c.edits))
	for i, edit := range c.edits {
		began := time.Now()
		edit()
		if err := p.next(ctx); err != nil {
			return nil, err
		}
		took[i] = time.Since(began)
	}
	return took, nil
}
