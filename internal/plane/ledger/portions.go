package ledger

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-proxy/sluice/internal/plane"
)

// Plans are plans for parts of the kernel that do not lead to each other, such as
// the tables of two IP families, written one after the other.
type Plans []plane.Plan

// Steps returns the sum of all steps.
func (p Plans) Steps() int { return p.sum(plane.Plan.Steps) }

// Kept returns the sum of all that is kept.
func (p Plans) Kept() int { return p.sum(plane.Plan.Kept) }

func (p Plans) sum(of func(plane.Plan) int) int {
	n := 0
	for _, plan := range p {
		n += of(plan)
	}
	return n
}

// String prints all plans.
func (p Plans) String() string {
	var b strings.Builder
	for _, plan := range p {
		b.WriteString(plan.String())
	}
	return b.String()
}

// Apply writes all plans. A Service that is refused by several is refused for all their reasons.
func (p Plans) Apply(ctx context.Context) error {
	return applyAll(ctx, slices.Values(p))
}

// applyAll writes plans up to the first error that is not a plane.Refused.
func applyAll(ctx context.Context, plans iter.Seq[plane.Plan]) error {
	refused := plane.Refused{}
	for plan := range plans {
		if err := refused.Merge(plan.Apply(ctx)); err != nil {
			return err
		}
	}
	return refused.Err()
}

// Portions is a plan in parts, each of which is computed while the one before it is written.
// A first load of many Services so takes less time, and memory for two parts only.
type Portions struct {
	parts       iter.Seq[plane.Plan]
	computed    Plans // all parts, if Steps, Kept or String was called before Apply
	applied     bool
	steps, kept int // of the parts that Apply has begun to write
}

// NewPortions returns a plan of parts. Computing a part must not depend on whether the ones before it are written yet.
func NewPortions(parts iter.Seq[plane.Plan]) *Portions { return &Portions{parts: parts} }

// Steps returns the sum of all steps; after a failed Apply, of the parts up to the failed one.
func (p *Portions) Steps() int {
	if p.applied {
		return p.steps
	}
	return p.all().Steps()
}

// Kept returns the sum of all that is kept.
func (p *Portions) Kept() int {
	if p.applied {
		return p.kept
	}
	return p.all().Kept()
}

// String prints all parts. After Apply, which does not keep them, it prints nothing.
func (p *Portions) String() string {
	if p.applied {
		return ""
	}
	return p.all().String()
}

func (p *Portions) all() Plans {
	if p.computed == nil {
		p.computed = slices.Collect(p.parts)
		p.parts = slices.Values(p.computed)
	}
	return p.computed
}

// Apply writes all parts.
func (p *Portions) Apply(ctx context.Context) error {
	p.applied, p.computed = true, nil
	return applyAll(ctx, func(yield func(plane.Plan) bool) {
		for part := range ahead(p.parts) {
			p.steps += part.Steps()
			p.kept += part.Kept()
			if !yield(part) {
				return
			}
		}
	})
}

// ahead computes each item of a sequence while the caller handles the one before it.
func ahead[T any](items iter.Seq[T]) iter.Seq[T] {
	return func(yield func(T) bool) {
		computed, stop := make(chan T), make(chan struct{})
		var running sync.WaitGroup
		running.Go(func() {
			defer close(computed)
			for item := range items {
				select {
				case computed <- item:
				case <-stop:
					return
				}
			}
		})
		defer running.Wait()
		defer close(stop)
		for item := range computed {
			if !yield(item) {
				return
			}
		}
	}
}
