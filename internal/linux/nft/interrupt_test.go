package nft

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A long listing of a large map ends with its context, and the connection can be used afterwards.
func TestReadEndsWithItsContext(t *testing.T) {
	c, _ := realKernel(t)
	table := tables[0]
	set := Set{Name: "large", Key: []Type{Addr, Port}}
	tx := &Tx{}
	tx.AddTable(table)
	tx.AddSet(table, set)
	commit(t, c, tx)
	for i := range 8 {
		tx := &Tx{}
		for j := range 4000 {
			tx.Add(table, set, Element{Key: string(Key{}.Addr(addr(IP4, 4000*i+j)).Port(80))})
		}
		commit(t, c, tx)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond) // far too short
	defer cancel()
	if _, err := c.Read(ctx, table, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Read = %v, want context.DeadlineExceeded", err)
	}
	state, err := c.Read(context.Background(), table, nil)
	if err != nil || state.Count() != 32000 {
		t.Errorf("Read = %d elements, %v; want 32000", state.Count(), err)
	}
}
