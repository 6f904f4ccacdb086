package layer2

import (
	"context"
	"slices"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// rebuild writes the generation that is not in use, and then deletes the other one.
func (f *Follower) rebuild(ctx context.Context, w *writer, c *content) error {
	there, err := existing(ctx, f.opt.Kernel)
	if err != nil {
		return err
	}
	if f.g, err = f.free(ctx, there); err != nil {
		return err
	}
	w.g = f.g
	if err := f.opt.Kernel.DeleteTables(ctx, f.g.tables()...); err != nil {
		return err
	}
	if w.build(c); w.err != nil {
		return w.err
	}
	return f.opt.Kernel.DeleteTables(ctx, (1 - f.g).tables()...)
}

// free returns the generation that is not in use. Both exist if an earlier run was killed before it deleted the old
// generation, or before it wrote the chains of the new one, which come last.
func (f *Follower) free(ctx context.Context, there []nft.Table) (generation, error) {
	for g := range generation(generations) {
		if !slices.ContainsFunc(there, func(t nft.Table) bool { return t.Name == g.name() }) {
			return g, nil
		}
	}
	complete, err := f.opt.Kernel.Has(ctx, side{ip: nft.IP4}.table(0), prerouting)
	if err != nil || !complete {
		return 0, err
	}
	return 1, nil
}

// Remove deletes all tables of this package and the tunnel, and returns a description of each.
func Remove(ctx context.Context, k Kernel, t Tunnel) (removed []string, err error) {
	there, err := existing(ctx, k)
	if err != nil {
		return nil, err
	}
	for _, t := range there {
		removed = append(removed, "table "+t.String())
	}
	if len(there) > 0 {
		err = k.DeleteTables(ctx, there...)
	}
	if err != nil {
		return removed, err
	}
	had, err := t.Remove()
	if had {
		removed = append(removed, "interface "+TunnelName)
	}
	return removed, err
}

// existing returns the tables of this package that exist.
func existing(ctx context.Context, k Kernel) (there []nft.Table, err error) {
	for _, t := range Tables() {
		has, err := k.Has(ctx, t, "")
		if err != nil {
			return nil, err
		}
		if has {
			there = append(there, t)
		}
	}
	return there, nil
}
