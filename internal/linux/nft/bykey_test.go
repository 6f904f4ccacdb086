package nft

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// numbered returns an element of the map fronts.
func numbered(f Family, i int) Element {
	return Element{
		Key:  string(Key{}.Addr(addr(f, i)).Proto(6).Port(80)),
		Data: string(Key{}.ClassID(uint32(i))), Comment: fmt.Sprint("ns/name-", i),
	}
}

// keysOf returns the keys of elements in a range, as a expected.
func keysOf(f Family, from, to int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := from; i < to; i++ {
			if !yield(numbered(f, i).Key) {
				return
			}
		}
	}
}

// filled returns a connection to a kernel that has a map with n elements, and takes it for large.
func filled(t *testing.T, table Table, n int) (conn *Conn, netns int) {
	t.Helper()
	conn, netns = realKernel(t)
	conn.x.large = 1
	tx := &Tx{}
	tx.AddTable(table)
	tx.AddSet(table, frontends)
	for i := range n {
		tx.Add(table, frontends, numbered(table.Family, i))
		commitFull(t, conn, tx)
	}
	commit(t, conn, tx)
	return conn, netns
}

// counts reports whether this kernel reports the number of elements of a set. Otherwise sets are listed.
func counts(t *testing.T, c *Conn, table Table) bool {
	t.Helper()
	n, err := c.exchange(table).count(frontends.Name)
	if err != nil {
		t.Fatal(err)
	}
	if n == 0 {
		t.Log("this kernel does not report the number of elements; sets are listed")
	}
	return n > 0
}

// A set is read by its keys if they are expected, also together with others and twice, and
// listed if it has an element with another key. In both cases all is read.
func TestReadsByKeys(t *testing.T) {
	const n = 3*keysPerRequest + 7
	for _, table := range tables {
		f := table.Family
		extra := fmt.Sprintf("{ %s . tcp . 80 : 1:2 }", addr(f, n))
		for name, of := range map[string]struct {
			expected []iter.Seq[string]
			edit     string // an element that another program adds
			byKey    bool
		}{
			"its keys":             {[]iter.Seq[string]{keysOf(f, 0, n)}, "", true},
			"its keys and others":  {[]iter.Seq[string]{keysOf(f, -20, n+100)}, "", true},
			"every other exists":   {[]iter.Seq[string]{keysOf(f, n/2, n+n/2), keysOf(f, 0, n/2)}, "", true},
			"some keys twice":      {[]iter.Seq[string]{keysOf(f, 0, n), keysOf(f, 10, 100)}, "", true},
			"none of its keys":     {[]iter.Seq[string]{keysOf(f, n, 5*n)}, "", false},
			"all but one key":      {[]iter.Seq[string]{keysOf(f, 1, n)}, "", false},
			"no keys":              {nil, "", false},
			"an element was added": {[]iter.Seq[string]{keysOf(f, 0, n)}, extra, false},
		} {
			t.Run(table.String()+"/"+name, func(t *testing.T) {
				conn, netns := filled(t, table, n)
				want := n
				if of.edit != "" {
					runNft(t, netns, "add", "element", f.String(), table.Name, frontends.Name, of.edit)
					want++
				}
				expected := ExpectedKeys{frontends.Name, func(*State) iter.Seq[string] { return chain(of.expected) }}
				state, err := conn.Read(context.Background(), table, []ExpectedKeys{expected})
				if err != nil {
					t.Fatal(err)
				}
				elements := state.Sets[frontends.Name].Elements
				if len(elements) != want {
					t.Errorf("read %d elements, want %d", len(elements), want)
				}
				for i := range n {
					e := numbered(f, i)
					if got, _ := elements.Get(e.Key); got != e {
						t.Fatalf("read %q, want %q", got, e)
					}
				}
				if !counts(t, conn, table) {
					return
				}
				x := conn.exchange(table)
				_, ok, err := x.readExpected(frontends.Name, chain(of.expected))
				if ok != of.byKey || err != nil {
					t.Errorf("read by keys: %v, %v; want %v", ok, err, of.byKey)
				}
			})
		}
	}
}

func chain(all []iter.Seq[string]) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, keys := range all {
			for key := range keys {
				if !yield(key) {
					return
				}
			}
		}
	}
}

// Keys are expected from the sets without expected keys and those that come earlier in the list, whatever the order of
// the sets in the kernel.
func TestExpectedKeysFollowEachOther(t *testing.T) {
	table := tables[0]
	conn, _ := realKernel(t)
	conn.x.large = 1
	commit(t, conn, allOf(table.Family, table))
	tx := &Tx{}
	for _, s := range []Set{frontends, backends, some} {
		for _, e := range everyElement(table.Family)[s.Name] {
			tx.Add(table, s, e)
		}
	}
	commit(t, conn, tx)
	var sizes []int
	expected := func(set Set, after ...Set) ExpectedKeys {
		return ExpectedKeys{set.Name, func(s *State) iter.Seq[string] {
			for _, other := range after {
				sizes = append(sizes, len(s.Sets[other.Name].Elements))
			}
			return func(yield func(string) bool) {
				for _, e := range everyElement(table.Family)[set.Name] {
					if !yield(e.Key) {
						return
					}
				}
			}
		}}
	}
	state, err := conn.Read(context.Background(), table, []ExpectedKeys{
		expected(backends, frontends), expected(some, frontends, backends),
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []int{3, 3, 2}; !slices.Equal(sizes, want) {
		t.Errorf("expected saw sets of %d elements, want %d", sizes, want)
	}
	for _, s := range []Set{frontends, backends, some} {
		got := valuesOf(state.Sets[s.Name])
		if !sameElements(got, everyElement(table.Family)[s.Name]) {
			t.Errorf("%s: read %q", s.Name, got)
		}
	}
}

// A small receive buffer does not hold the answers to a request. Then the set is listed, now and later.
func TestReadsByKeysWithASmallBuffer(t *testing.T) {
	table := tables[0]
	const n = 1000
	conn, _ := filled(t, table, n)
	if err := conn.sock.SetReadBuffer(8 << 10); err != nil {
		t.Fatal(err)
	}
	expected := ExpectedKeys{frontends.Name, func(*State) iter.Seq[string] { return keysOf(table.Family, 0, n) }}
	state, err := conn.Read(context.Background(), table, []ExpectedKeys{expected})
	if err != nil || len(state.Sets[frontends.Name].Elements) != n {
		t.Fatalf("read %d elements, %v; want %d", state.Count(), err, n)
	}
	if counts(t, conn, table) && conn.x.large != math.MaxInt {
		t.Error("the set is read by its keys again")
	}
}

// Other programs may change other tables all the time.
func TestReadsByKeysWhileOthersWrite(t *testing.T) {
	table := tables[0]
	const n = 20_000
	conn, netns := filled(t, table, n)
	other, err := Open(Options{NetNS: netns})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			tx := &Tx{}
			tx.AddTable(tables[1])
			err := errors.Join(other.Commit(context.Background(), tx), other.DeleteTables(context.Background(), tables[1]))
			if err != nil {
				t.Error(err)
				return
			}
		}
	}()
	x := conn.exchange(table)
	elements, ok, err := x.readExpected(frontends.Name, keysOf(table.Family, 0, n))
	close(stop)
	<-stopped
	if counts(t, conn, table) && (!ok || len(elements) != n) || err != nil {
		t.Errorf("read %d elements, %v, %v; want %d", len(elements), ok, err, n)
	}
}

// Bytes that are not elements are an error, or elements; never a panic.
func FuzzDecodeElements(f *testing.F) {
	conn, _ := realKernel(f)
	table := tables[0]
	tx := allOf(table.Family, table)
	for _, s := range everySet() {
		for _, e := range everyElement(table.Family)[s.Name] {
			tx.Add(table, s, e)
		}
	}
	commit(f, conn, tx)
	x := conn.exchange(table)
	for _, s := range everySet() {
		x.beginElements(unix.NLM_F_DUMP, s.Name)
		if err := x.do(func(m netlink.Message) error { f.Add(m.Data[nfgenHeader:]); return nil }); err != nil {
			f.Fatal(err)
		}
	}
	// A comment longer than its attribute.
	f.Add([]byte("\x14\x00\x03\x80\x10\x00\x01\x80\x06\x00\x06\x00\x00\xff\x00\x00"))
	f.Add([]byte(strings.Repeat("\x08\x00\x03\x80\x04\x00\x01\x80", 3)))
	f.Fuzz(func(t *testing.T, attributes []byte) {
		total := 0
		_ = decodeElements(attributes, "", func(e received) {
			total += len(e.id()) + len(e.Data) + len(e.Goto) + len(e.Comment)
		})
		if total > 2*len(attributes) {
			t.Errorf("%d bytes contain elements of %d", len(attributes), total)
		}
	})
}
