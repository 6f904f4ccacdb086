package iptables

import (
	"context"
	"hash/maphash"
)

// Digest reads and hashes a legacy table like the watch does.
func (k *Kernel) Digest(ctx context.Context, id TableID, seed maphash.Seed, ours func(chain string) bool) (Digest, Stamp, error) {
	t, err := k.read(ctx, id)
	if err != nil {
		return Digest{}, Stamp{}, err
	}
	return t.digest(seed, ours), t.stamp, nil
}
