// Package tables finds and deletes tables of nf_tables that other programs
// made. What is in them it does not read.
package tables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/kernel/nft"
)

// attempts is how often a listing is tried when others change what is listed.
const attempts = 10

// Options say where to look.
type Options struct {
	NetNS int // file descriptor of a network namespace; 0: the current one
}

// Table is a table that is there.
type Table struct {
	nft.Table
	Chains int
	// Entrances are its base chains at which packets enter the node, from the
	// network or from its programs: by them connections get into the table.
	Entrances []string
}

// Tables are those of one network namespace. A socket is open only during a
// call.
type Tables struct{ opts Options }

// New returns access to the tables.
func New(opts Options) *Tables { return &Tables{opts: opts} }

// Find returns those of the named tables that exist.
func (t *Tables) Find(ctx context.Context, names ...nft.Table) ([]Table, error) {
	conn, err := t.open()
	if err != nil {
		return nil, err
	}
	var found []Table
	for range attempts {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		found, err = find(conn, names)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list tables of nf_tables: %w", err)
	}
	return found, nil
}

func find(conn *nftables.Conn, names []nft.Table) ([]Table, error) {
	var found []Table
	for _, name := range names {
		family := nftables.TableFamily(name.Family)
		all, err := conn.ListTablesOfFamily(family)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(all, func(t *nftables.Table) bool { return t.Name == name.Name }) {
			continue
		}
		chains, err := conn.ListChainsOfTableFamily(family)
		if err != nil {
			return nil, err
		}
		found = append(found, describe(name, chains))
	}
	return found, nil
}

// describe says what a table holds, given the chains of its family.
func describe(name nft.Table, chains []*nftables.Chain) Table {
	table := Table{Table: name}
	for _, c := range chains {
		if c.Table.Name != name.Name {
			continue
		}
		table.Chains++
		if h := c.Hooknum; h != nil && (*h == *nftables.ChainHookPrerouting || *h == *nftables.ChainHookOutput) {
			table.Entrances = append(table.Entrances, c.Name)
		}
	}
	slices.Sort(table.Entrances)
	return table
}

// Close deletes the entrances of tables, in one transaction: from then on no
// connection gets into them. What is gone already is none of its business.
func (t *Tables) Close(ctx context.Context, tables ...Table) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	conn, err := t.open()
	if err != nil {
		return err
	}
	for _, table := range tables {
		for _, chain := range table.Entrances {
			conn.DelChain(&nftables.Chain{Table: library(table.Table), Name: chain})
		}
	}
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete chains of nf_tables: %w", err)
	}
	return nil
}

// Delete deletes tables with all that is in them, in one transaction. Those that
// are gone already are none of its business.
func (t *Tables) Delete(ctx context.Context, tables ...nft.Table) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	conn, err := t.open()
	if err != nil {
		return err
	}
	for _, table := range tables {
		conn.AddTable(library(table)) // deleting a table that is missing fails
		conn.DelTable(library(table))
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("delete tables of nf_tables: %w", err)
	}
	return nil
}

func (t *Tables) open() (*nftables.Conn, error) {
	var opts []nftables.ConnOption
	if t.opts.NetNS != 0 {
		opts = append(opts, nftables.WithNetNSFd(t.opts.NetNS))
	}
	conn, err := nftables.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket to nf_tables: %w", err)
	}
	return conn, nil
}

func library(t nft.Table) *nftables.Table {
	return &nftables.Table{Name: t.Name, Family: nftables.TableFamily(t.Family)}
}
