//go:build linux

package main

import (
	"context"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// repeated is one kind of change, made many times.
type repeated struct {
	P50, P99      time.Duration
	CPU           time.Duration // of the whole process, per change
	Allocs, Bytes float64       // per change
}

// change is a kind of change, made to the store again and again.
type change struct {
	into  func(*result) *repeated
	edits []func()
}

// changes are all kinds, in an order in which each finds what it needs.
func (m maker) changes(o options, store *cluster.Store) []change {
	n := o.child
	at := func(i int) int { return i * 7919 % n } // all over the place
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
		{func(r *result) *repeated { return &r.Replace }, set(func(i int) *cluster.Slice {
			return m.slice(at(i), 0, 1, 4+i/n%2)
		})},
		{func(r *result) *repeated { return &r.Grow }, set(func(i int) *cluster.Slice {
			return m.slice(at(i), 0, 1, 2, 3)
		})},
		{func(r *result) *repeated { return &r.Shrink }, set(func(i int) *cluster.Slice {
			return m.slice(at(i), 0, 1, 2)
		})},
		{func(r *result) *repeated { return &r.Add }, times(func(i int) func() {
			svc, sl := m.service(n+i), m.slice(n+i, 0, 1, 2)
			return func() {
				store.SetService(svc)
				store.SetSlice(sl)
			}
		})},
		{func(r *result) *repeated { return &r.Delete }, times(func(i int) func() {
			name, sl := m.service(n+i).Name, m.slice(n+i).Name
			return func() {
				store.DeleteService(name)
				store.DeleteSlice(sl)
			}
		})},
	}
}

// repeat makes all changes of a kind, each a pass of its own.
func (p *path) repeat(ctx context.Context, c change) (repeated, error) {
	took := make([]time.Duration, len(c.edits))
	before, err := usage()
	if err != nil {
		return repeated{}, err
	}
	for i, edit := range c.edits {
		began := time.Now()
		edit()
		if err := p.next(ctx); err != nil {
			return repeated{}, err
		}
		took[i] = time.Since(began)
	}
	after, err := usage()
	if err != nil {
		return repeated{}, err
	}
	slices.Sort(took)
	n := len(took)
	return repeated{
		P50: took[n/2], P99: took[n*99/100],
		CPU:    (after.cpu - before.cpu) / time.Duration(n),
		Allocs: float64(after.allocs-before.allocs) / float64(n),
		Bytes:  float64(after.bytes-before.bytes) / float64(n),
	}, nil
}
