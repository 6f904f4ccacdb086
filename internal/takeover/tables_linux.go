package takeover

import (
	"context"

	"github.com/sluice-proxy/sluice/internal/linux/nft"
)

// tables finds and deletes tables of nf_tables that other programs made. A socket is open only during a call.
type tables struct{ netns int }

func (t tables) use(do func(*nft.Conn) error) error {
	conn, err := nft.Open(nft.Options{NetNS: t.netns})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all is answered
	return do(conn)
}

// Find returns the tables that exist, without their rules.
func (t tables) Find(ctx context.Context, names ...nft.Table) (found []nft.Outline, err error) {
	err = t.use(func(conn *nft.Conn) error {
		found, err = conn.Outline(ctx, names, nft.NoRules)
		return err
	})
	return found, err
}

// Prune deletes chains of tables, in one transaction.
func (t tables) Prune(ctx context.Context, cuts []nft.Cut) error {
	return t.use(func(conn *nft.Conn) error { return conn.Prune(ctx, cuts) })
}

// Delete deletes tables with all they hold, in one transaction.
func (t tables) Delete(ctx context.Context, names ...nft.Table) error {
	return t.use(func(conn *nft.Conn) error { return conn.DeleteTables(ctx, names...) })
}
