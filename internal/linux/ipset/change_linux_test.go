package ipset

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

const tcp, udp, sctp = unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP

func saved(t *testing.T, netns int) []string {
	t.Helper()
	var out []byte
	kerneltest.Do(t, netns, func() (err error) {
		out, err = exec.Command("ipset", "save").CombinedOutput()
		return err
	})
	return slices.Sorted(strings.Lines(string(out)))
}

// Each type of set is created with members, which ipset prints and List returns.
func TestSetsAreCreatedFilledAndListed(t *testing.T) {
	netns := kerneltest.Namespace(t)
	sets := New(netns)
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	four, six := addr("10.96.0.1"), addr("fd00::1")
	want := map[string]*Set{
		"PORT": {Definition{Type: Port}, map[Member]uint32{{Port: 30000}: 0, {Port: 65535}: 0}},
		"IP":   {Definition{Type: IP}, map[Member]uint32{{Addr: four}: 0}},
		"6-IP": {Definition{Type: IP, IPv6: true}, map[Member]uint32{{Addr: six}: 0}},
		"P": {
			Definition{Type: IPPort},
			map[Member]uint32{{Addr: four, Protocol: tcp, Port: 80}: 0, {Addr: four, Protocol: sctp, Port: 80}: 0},
		},
		"6-MARK": {
			Definition{Type: IPPort, IPv6: true, Marks: true},
			map[Member]uint32{{Addr: six, Protocol: udp, Port: 53}: 0xb5000007},
		},
		"IP2": {
			Definition{Type: IPPortIP}, map[Member]uint32{{Addr: four, Protocol: tcp, Port: 80, To: prefix("10.0.0.1/32")}: 0},
		},
		"6-IP2": {
			Definition{Type: IPPortIP, IPv6: true},
			map[Member]uint32{{Addr: six, Protocol: tcp, Port: 80, To: prefix("fd00::2/128")}: 0},
		},
		"NET": {
			Definition{Type: IPPortNet},
			map[Member]uint32{
				{Addr: four, Protocol: tcp, Port: 80, To: prefix("10.0.0.0/8")}:   0,
				{Addr: four, Protocol: tcp, Port: 80, To: prefix("10.96.0.1/32")}: 0,
			},
		},
		"6-NET": {
			Definition{Type: IPPortNet, IPv6: true},
			map[Member]uint32{{Addr: six, Protocol: tcp, Port: 80, To: prefix("fd00::/8")}: 0},
		},
	}
	var changes []Command
	var names []string
	for name, set := range want {
		names = append(names, name)
		changes = append(changes, Command{Op: Create, Set: name, Definition: set.Definition})
		for m, mark := range set.Members {
			changes = append(changes, Command{Op: Add, Set: name, Definition: set.Definition, Member: m, Mark: mark})
		}
	}
	for range 2 { // the second time everything exists
		if err := sets.Apply(t.Context(), changes); err != nil {
			t.Fatal(err)
		}
	}
	got, err := sets.List(t.Context(), append(names, "absent"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(Member{})); diff != "" {
		t.Errorf("sets (-want +got):\n%s", diff)
	}

	// What Change prints is what ipset prints, and ipset restores it.
	lines := ""
	for _, c := range changes {
		lines += c.String() + "\n"
	}
	other := kerneltest.Namespace(t)
	kerneltest.Do(t, other, func() error {
		cmd := exec.Command("ipset", "restore")
		cmd.Stdin = strings.NewReader(lines)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if again, err := New(other).List(t.Context(), names); err != nil ||
		!cmp.Equal(want, again, cmpopts.EquateComparable(Member{})) {
		t.Errorf("restored from\n%s: %v\n%s", lines, err, cmp.Diff(want, again, cmpopts.EquateComparable(Member{})))
	}

	for i := range changes {
		if changes[i].Op = Destroy; changes[i].Member != (Member{}) {
			changes[i].Op = Delete
		}
	}
	slices.SortStableFunc(changes, func(a, b Command) int { return int(b.Op) - int(a.Op) })
	if err := sets.Apply(t.Context(), changes); err != nil {
		t.Error(err)
	}
	if left := saved(t, netns); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func TestTheMarkOfAMemberIsChanged(t *testing.T) {
	sets := New(kerneltest.Namespace(t))
	k, m := Definition{Type: IPPort, Marks: true}, Member{Addr: netip.MustParseAddr("10.0.0.1"), Protocol: tcp, Port: 80}
	if err := sets.Apply(t.Context(), []Command{
		{Op: Create, Set: "S", Definition: k},
		{Op: Add, Set: "S", Definition: k, Member: m, Mark: 1},
		{Op: Add, Set: "S", Definition: k, Member: m, Mark: 2},
	}); err != nil {
		t.Fatal(err)
	}
	if got, err := sets.List(t.Context(), []string{"S"}); err != nil || got["S"].Members[m] != 2 {
		t.Errorf("got %v, %v", got, err)
	}
}

// A large set takes several messages of a listing.
func TestALargeSetIsListedAsAWhole(t *testing.T) {
	sets := New(kerneltest.Namespace(t))
	k := Definition{Type: IPPort, IPv6: true}
	changes := []Command{{Op: Create, Set: "LARGE", Definition: k}}
	a := netip.MustParseAddr("fd00::1")
	for n := range 3000 {
		changes = append(changes, Command{
			Op: Add, Set: "LARGE", Definition: k, Member: Member{Addr: a, Protocol: tcp, Port: uint16(n + 1)},
		})
	}
	if err := sets.Apply(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	if got, err := sets.List(t.Context(), []string{"LARGE"}); err != nil || len(got["LARGE"].Members) != 3000 {
		t.Errorf("%d members, %v", len(got["LARGE"].Members), err)
	}
}

func TestErrorsOfSetsHaveAReason(t *testing.T) {
	sets := New(kerneltest.Namespace(t))
	for want, changes := range map[string][]Command{
		"ipset create S hash:none family inet hashsize 1024 maxelem 1048576: this kernel does not have the type of set": {
			{Op: Create, Set: "S", Definition: Definition{Type: "hash:none"}},
		},
		"it exists with another type": {
			{Op: Create, Set: "T", Definition: Definition{Type: IP}}, {Op: Create, Set: "T", Definition: Definition{Type: Port}},
		},
		"ipset add ABSENT 80": {{Op: Add, Set: "ABSENT", Definition: Definition{Type: Port}, Member: Member{Port: 80}}},
	} {
		if err := sets.Apply(t.Context(), changes); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// One of many members is refused: the error names it, and those before it are there.
func TestOneOfManyMembersIsRefused(t *testing.T) {
	sets := New(kerneltest.Namespace(t))
	k := Definition{Type: IPPort}
	if err := sets.Apply(t.Context(), []Command{{Op: Create, Set: "HERE", Definition: k}}); err != nil {
		t.Fatal(err)
	}
	var changes []Command
	for n := range 300 {
		m := Member{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: tcp, Port: uint16(n + 1)}
		changes = append(changes, Command{Op: Add, Set: "HERE", Definition: k, Member: m})
	}
	changes[200].Set = "ABSENT"
	if err := sets.Apply(t.Context(), changes); err == nil ||
		!strings.HasPrefix(err.Error(), "ipset add ABSENT 10.96.0.1,tcp:201: ") {
		t.Errorf("got %v", err)
	}
	if list, err := sets.List(t.Context(), []string{"HERE"}); err != nil || len(list["HERE"].Members) < 200 {
		t.Errorf("%v, %v, want at least 200 members", list, err)
	}
}
