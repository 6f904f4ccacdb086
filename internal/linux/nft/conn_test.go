package nft

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	ip4   = tables[0]
	first = Element{Key: string(Key{}.Addr(addr(IP4, 1)))}
)

func TestNoTableIsNil(t *testing.T) {
	for name, k := range kernels(t) {
		if s := read(t, k, ip4); s != nil {
			t.Errorf("%s: %s", name, s)
		}
		if err := k.DeleteTables(context.Background(), tables...); err != nil {
			t.Errorf("%s: delete missing tables: %v", name, err)
		}
		commit(t, k, &Tx{})
	}
}

// A refused transaction leaves nothing, and the next one works.
func TestRefusedTransactionsLeaveNothing(t *testing.T) {
	ctx := context.Background()
	for name, k := range kernels(t) {
		t.Run(name, func(t *testing.T) {
			tx := &Tx{}
			tx.AddTable(ip4)
			tx.AddSet(ip4, some)
			commit(t, k, tx)
			for i := range 5 {
				bad := &Tx{}
				bad.AddSet(ip4, pairs)
				bad.Add(ip4, some, Element{Key: string(Key{}.Addr(addr(IP4, 100+i)))})
				bad.DeleteChain(ip4, "no-such-chain")
				if err := k.Commit(ctx, bad); err == nil {
					t.Fatal("a missing chain was deleted")
				}
				good := &Tx{}
				good.Add(ip4, some, Element{Key: string(Key{}.Addr(addr(IP4, i)))})
				commit(t, k, good)
			}
			s := read(t, k, ip4)
			if n := len(s.Sets["some"].Elements); n != 5 || len(s.Sets) != 1 {
				t.Errorf("%d elements in %d sets, want 5 in 1:\n%s", n, len(s.Sets), s)
			}
		})
	}
}

// A transaction counts as refused because of its contents only, and not because objects are missing that it
// needs: another program has deleted them.
func TestMissingObjectsAreNotARefusal(t *testing.T) {
	jump := Chain{Name: "jump", Rules: []Rule{NewRule(Goto("no-such-chain"))}}
	for name, k := range kernels(t) {
		for what, build := range map[string]func(*Tx){
			"an element in a missing table": func(tx *Tx) { tx.Add(tables[1], some, first) },
			"an element in a missing set":   func(tx *Tx) { tx.Add(ip4, some, first) },
			"an element to delete":          func(tx *Tx) { tx.AddSet(ip4, some); tx.Delete(ip4, some, first) },
			"an element with a missing chain": func(tx *Tx) {
				tx.AddSet(ip4, ways)
				tx.Add(ip4, ways, Element{Key: string(Key{}.ClassID(1)), Goto: "no-such-chain"})
			},
			"a rule, after a reset of an element in a missing table": func(tx *Tx) {
				tx.Add(tables[1], some, first)
				tx.Reset()
				tx.SetChain(ip4, jump)
			},
			"a chain in a missing table":  func(tx *Tx) { tx.SetChain(tables[1], Chain{Name: "empty"}) },
			"a rule in an existing table": func(tx *Tx) { tx.SetChain(ip4, jump) },
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				tx := &Tx{}
				tx.AddTable(ip4)
				commit(t, k, tx)
				bad := &Tx{}
				build(bad)
				err := k.Commit(t.Context(), bad)
				if _, refused := errors.AsType[*RefusedError](err); refused || !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%v, refused: %v, want ENOENT, not refused", err, refused)
				}
			})
		}
	}
}

// A transaction that cannot be encoded is not sent, neither at once nor with the next one.
func TestTransactionThatCannotBeEncoded(t *testing.T) {
	conn, _ := realKernel(t)
	bad := &Tx{}
	bad.AddTable(ip4)
	bad.AddSet(ip4, Set{Name: "bad", Key: []Type{Type(99)}})
	if err := conn.Commit(context.Background(), bad); err == nil {
		t.Fatal("a set of an unknown type was created")
	}
	good := &Tx{}
	good.AddTable(tables[1])
	commit(t, conn, good)
	if s := read(t, conn, ip4); s != nil {
		t.Errorf("the first transaction created:\n%s", s)
	}
}

func TestCancelled(t *testing.T) {
	conn, _ := realKernel(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	tx := &Tx{}
	tx.AddTable(ip4)
	if err := conn.Commit(ctx, tx); !errors.Is(err, context.Canceled) {
		t.Errorf("commit: %v", err)
	}
	if _, err := conn.Read(ctx, ip4, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("read: %v", err)
	}
	if err := conn.DeleteTables(ctx, ip4); !errors.Is(err, context.Canceled) {
		t.Errorf("delete: %v", err)
	}
	if s := read(t, conn, ip4); s != nil {
		t.Errorf("a cancelled transaction was written:\n%s", s)
	}
}

// Without privilege the kernel grants small buffers only. A transaction of the size that
// Room returns works with them, whatever its contents are.
func TestSmallBuffers(t *testing.T) {
	const unprivileged = 212992 / 2 // net.core.wmem_max; the kernel doubles it
	for name, fill := range map[string]func(tx *Tx, i int){
		"elements": func(tx *Tx, i int) { tx.Add(ip4, some, Element{Key: string(Key{}.Addr(addr(IP4, i)))}) },
		"comments": func(tx *Tx, i int) {
			tx.Add(ip4, some, Element{Key: string(Key{}.Addr(addr(IP4, i))), Comment: fmt.Sprintf("%0127d", i)})
		},
		"sets": func(tx *Tx, i int) {
			tx.AddSet(ip4, Set{Name: fmt.Sprintf("clients-%d", i), Key: []Type{Addr}, Dynamic: true, Size: 1000})
		},
		"chains": func(tx *Tx, i int) {
			tx.SetChain(ip4, Chain{Name: fmt.Sprintf("chain-%d", i), Rules: []Rule{
				NewRule(Remember("clients", time.Hour, Random(1, 3), Priority(), Source(IP4))),
				NewRule(TranslateFrom(IP4, "backends", Destination(IP4), L4Proto(), DestinationPort(), Priority())),
			}})
		},
		"ends": func(tx *Tx, _ int) { tx.FlushChain(ip4, "other") },
	} {
		t.Run(name, func(t *testing.T) {
			conn, _ := realKernel(t)
			commit(t, conn, allOf(IP4, ip4))
			conn.buffer = unprivileged
			if err := conn.redial(); err != nil {
				t.Fatal(err)
			}
			if conn.Room() > 2*unprivileged {
				t.Fatalf("room for %d bytes in a buffer of %d", conn.Room(), 2*unprivileged)
			}
			tx := &Tx{}
			for i := 0; tx.Bytes() < conn.Room()-perObject; i++ {
				fill(tx, i)
			}
			commit(t, conn, tx)
		})
	}
}

// A Conn stays in its namespace when it replaces its socket.
func TestRecoversInItsNamespace(t *testing.T) {
	conn, _ := realKernel(t)
	other, _ := realKernel(t)
	bad := &Tx{}
	bad.AddSet(ip4, some)
	if err := conn.Commit(context.Background(), bad); !errors.Is(err, unix.ENOENT) {
		t.Fatalf("a set in a missing table: %v", err)
	}
	tx := &Tx{}
	tx.AddTable(ip4)
	commit(t, conn, tx)
	if read(t, conn, ip4) == nil || read(t, other, ip4) != nil {
		t.Error("the table is in the wrong namespace")
	}
}

// Read does not fail while another program writes.
func TestReadsWhileOthersWrite(t *testing.T) {
	conn, netns := realKernel(t)
	writer, err := Open(Options{NetNS: netns})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = writer.Close() }()
	commit(t, conn, allOf(IP4, ip4))
	done := make(chan error, 1)
	go func() {
		for i := range 300 {
			tx := &Tx{}
			tx.SetChain(ip4, Chain{Name: fmt.Sprintf("c%d", i%10)})
			tx.Add(ip4, some, Element{Key: string(Key{}.Addr(addr(IP4, i)))})
			if i >= 10 {
				tx.DeleteChain(ip4, fmt.Sprintf("c%d", (i+1)%10))
			}
			if err := writer.Commit(context.Background(), tx); err != nil && !errors.Is(err, unix.ENOENT) {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		default:
			read(t, conn, ip4)
		}
	}
}
