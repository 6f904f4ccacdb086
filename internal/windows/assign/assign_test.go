package assign_test

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-proxy/sluice/internal/testing/assigntest"
	"github.com/sluice-proxy/sluice/internal/windows/assign"
)

func addrs(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, s := range list {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

func open(t *testing.T, f *assigntest.Fake) *assign.Assigner {
	t.Helper()
	a, err := assign.New(f)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func add(t *testing.T, a *assign.Assigner, list ...string) {
	t.Helper()
	if failed := a.Add(t.Context(), addrs(list...)); len(failed) > 0 {
		t.Fatal(failed)
	}
}

func retain(t *testing.T, a *assign.Assigner, keep ...string) []netip.Addr {
	t.Helper()
	gone, err := a.Retain(addrs(keep...))
	if err != nil {
		t.Fatal(err)
	}
	return gone
}

func has(t *testing.T, f *assigntest.Fake, want ...string) {
	t.Helper()
	if got := f.Addrs(); !slices.Equal(got, addrs(want...)) {
		t.Errorf("the host has %v, want %v", got, want)
	}
}

// An address is added once, and removed when nobody wants it. What the host had before stays.
func TestAddAndRetain(t *testing.T) {
	f := assigntest.New(addrs("192.0.2.1")...)
	a := open(t, f)
	add(t, a, "10.96.0.10", "10.96.0.10", "192.0.2.1", "fd00::10")
	add(t, a, "10.96.0.10")
	has(t, f, "10.96.0.10", "192.0.2.1", "fd00::10")
	if gone := retain(t, a, "10.96.0.10"); !slices.Equal(gone, addrs("fd00::10")) {
		t.Errorf("removed %v", gone)
	}
	if gone := retain(t, a); !slices.Equal(gone, addrs("10.96.0.10")) {
		t.Errorf("removed %v", gone)
	}
	has(t, f, "192.0.2.1")
}

// After a crash the next run keeps the addresses that it wants and removes the others.
func TestAfterACrash(t *testing.T) {
	f := assigntest.New()
	add(t, open(t, f), "10.96.0.10", "10.96.0.11", "10.96.0.12")
	next := open(t, f)
	add(t, next, "10.96.0.11", "10.96.0.13")
	retain(t, next, "10.96.0.11", "10.96.0.13")
	has(t, f, "10.96.0.11", "10.96.0.13")
	retain(t, open(t, f))
	has(t, f)
}

// An address that another program added in place of one of this program stays.
func TestAnAddressOfAnotherProgram(t *testing.T) {
	f := assigntest.New()
	a := open(t, f)
	add(t, a, "10.96.0.10")
	f.Put(assign.Row{Addr: addrs("10.96.0.10")[0], Usable: true})
	if gone := retain(t, a); len(gone) > 0 {
		t.Errorf("removed %v", gone)
	}
	has(t, f, "10.96.0.10")
}

// An address that cannot be added does not keep others from being added.
func TestARefusedAddress(t *testing.T) {
	f := assigntest.New()
	f.Refuse(addrs("10.96.0.10")[0])
	a := open(t, f)
	failed := a.Add(t.Context(), addrs("10.96.0.10", "10.96.0.11"))
	if got := slices.Collect(maps.Keys(failed)); !slices.Equal(got, addrs("10.96.0.10")) {
		t.Errorf("failed: %v", failed)
	}
	has(t, f, "10.96.0.11")
	if got := a.Addrs(); !slices.Equal(got, addrs("10.96.0.11")) {
		t.Errorf("it says that it added %v", got)
	}
}

// Addresses that another program removed are added again, even if the first attempt fails.
func TestRestore(t *testing.T) {
	f := assigntest.New()
	a := open(t, f)
	add(t, a, "10.96.0.10")
	if err := f.Delete(addrs("10.96.0.10")[0]); err != nil {
		t.Fatal(err)
	}
	f.Refuse(addrs("10.96.0.10")[0])
	if err := a.Restore(t.Context()); err == nil {
		t.Error("no error, although the address could not be added")
	}
	f.Allow(addrs("10.96.0.10")[0])
	if err := a.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	has(t, f, "10.96.0.10")
}

// slow is a host on which addresses never become usable, or are found on another host.
type slow struct {
	*assigntest.Fake
	duplicate bool
}

func (s slow) Rows() ([]assign.Row, error) {
	rows, err := s.Fake.Rows()
	for i := range rows {
		rows[i].Usable, rows[i].Duplicate = false, s.duplicate
	}
	return rows, err
}

func TestAnAddressThatIsNotUsable(t *testing.T) {
	for duplicate, want := range map[bool]string{false: "not usable yet", true: "another host has"} {
		synctest.Test(t, func(t *testing.T) {
			s := slow{assigntest.New(), duplicate}
			a, err := assign.New(s)
			if err != nil {
				t.Fatal(err)
			}
			err = a.Add(t.Context(), addrs("10.96.0.10"))[addrs("10.96.0.10")[0]]
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
			if gone := retain(t, a); len(gone) != 1 {
				t.Errorf("removed %v", gone)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	loopback, hns, other := assign.Candidate{ID: 1, Name: "Loopback Pseudo-Interface 1", Loopback: true},
		assign.Candidate{ID: 2, Name: "vEthernet (HNS Internal NIC)"}, assign.Candidate{ID: 3, Name: "Ethernet"}
	for _, tt := range []struct {
		name string
		all  []assign.Candidate
		want uint64
	}{
		{"", []assign.Candidate{other, loopback, hns}, 2},
		{"", []assign.Candidate{other, loopback}, 1},
		{"ethernet", []assign.Candidate{other, loopback, hns}, 3},
		{"", []assign.Candidate{other}, 0},
		{"Wi-Fi", []assign.Candidate{other, loopback, hns}, 0},
	} {
		if got, err := assign.Choose(tt.all, tt.name); got.ID != tt.want || (err != nil) != (tt.want == 0) {
			t.Errorf("%q of %v: %v, %v", tt.name, tt.all, got, err)
		}
	}
}
