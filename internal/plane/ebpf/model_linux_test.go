package ebpf

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/linux/bpf"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/testing/planetest"
	"github.com/sluice-proxy/sluice/test/lab"
	"github.com/sluice-proxy/sluice/test/seeds"
)

func TestMain(m *testing.M) {
	if r, is := refusals()[kerneltest.Role()]; is {
		if err := openRefused(r); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	lab.Main(m)
}

// The model test: after any sequence of changes, failures and restarts the maps equal those of a new plane, and
// after each single step every frontend has a backend at all of its slots.

func TestModelOnTheFake(t *testing.T) {
	for seed := range seeds.Of(t, 40) {
		if err := planetest.NewModel(seed, subject(newFake())).Run(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestModelOnTheKernel(t *testing.T) {
	count, clusters := map[string]int{}, 0
	for seed := range seeds.Of(t, 4) {
		k := newRestarting(t)
		if err := planetest.NewModel(seed, k.subject()).RunFor(seeds.Rounds(t, planetest.Rounds)); err != nil {
			t.Fatal(err)
		}
		k.add(count)
		clusters++
	}
	for _, o := range []bpf.Operation{bpf.Grow, bpf.Attach, bpf.Pin} {
		if clusters > 1 && (count[string(o)] == 0 || count[failed(o)] == 0) {
			t.Errorf("operations %v, want some of %s, also failed ones", count, o)
		}
	}
}

// The rules of the plane beneath fail as well, and other programs delete them.
func TestModelAboveNFTables(t *testing.T) {
	for seed := range seeds.Of(t, 1) {
		k := newRestarting(t)
		conn, err := nft.Open(nft.Options{NetNS: k.options.NetNS})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() }) // nothing is left to lose
		s := k.subject()
		s.Plane = func(opt route.Options) plane.Plane {
			packets := nftables.New(faultyRules{conn, s.Faults}, nftables.Options{Families: opt.Families, Mark: 0x4000})
			return k.plane(opt, packets)
		}
		s.Edit = func(w *planetest.World) error {
			if w.Chance(2) {
				return edit(w, k)
			}
			family := planetest.Pick(w.Rand, nft.IP4, nft.IP6)
			return conn.DeleteTables(context.Background(), nft.Table{Family: family, Name: nftables.TableName})
		}
		if err := planetest.NewModel(seed, s).RunFor(seeds.Rounds(t, planetest.Rounds)); err != nil {
			t.Fatal(err)
		}
	}
}

// faultyRules is nf_tables, whose reads and writes sometimes fail.
type faultyRules struct {
	nftables.Kernel
	*planetest.Faults
}

func (k faultyRules) Room() int { return 1000 * k.Faults.Room }

func (k faultyRules) Read(ctx context.Context, t nft.Table, expected []nft.ExpectedKeys) (*nft.State, error) {
	if err := k.Faults.Read(); err != nil {
		return nil, err
	}
	return k.Kernel.Read(ctx, t, expected)
}

func (k faultyRules) Commit(ctx context.Context, tx *nft.Tx) error {
	return k.Write(func() error { return k.Kernel.Commit(ctx, tx) })
}

// restarting is a kernel that opens a new Conn for each plane, as a restart of the program does: the Conn adopts
// pinned maps and programs. The maps are small, so that they grow, and operations sometimes fail.
type restarting struct {
	*bpf.Conn
	t       *testing.T
	options bpf.Options
	faults  *planetest.Faults
	counts  map[string]int // of operations
}

func newRestarting(t *testing.T) *restarting {
	t.Helper()
	k := &restarting{t: t, options: testOptions(t), faults: &planetest.Faults{Room: 1}, counts: map[string]int{}}
	k.options.FirstSize = 1 // so that maps grow often
	k.options.Fault = func(o bpf.Operation) error {
		k.counts[string(o)]++
		steps := 1
		if o == bpf.Grow {
			steps = 8 // growth is rarer than other operations, and should fail as often
		}
		for range steps {
			if err := k.faults.Step(); err != nil {
				k.counts[failed(o)]++
				return err
			}
		}
		return nil
	}
	k.restart()
	t.Cleanup(func() {
		if _, err := k.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return k
}

func failed(o bpf.Operation) string { return "failed " + string(o) }

func (k *restarting) restart() {
	k.t.Helper()
	if k.Conn != nil {
		_ = k.Close() // as if it were killed
	}
	conn, err := bpf.Open(k.options)
	if err != nil {
		k.t.Fatal(err)
	}
	k.Conn = conn
}

func (k *restarting) add(to map[string]int) {
	for o, n := range k.counts {
		to[o] += n
	}
}

func (k *restarting) plane(_ route.Options, packets plane.Plane) plane.Plane {
	k.restart()
	p := New(faulty{k, k.faults}, Options{Packets: packets, Ramp: k.ramp})
	p.room = k.faults.Room
	return p
}

// ramp calls Ramp of the Conn that is open then.
func (k *restarting) ramp(backends []bpf.Member, window time.Duration) error {
	return k.Ramp(backends, window)
}

func (k *restarting) subject() planetest.Subject {
	s := subject(k)
	s.Faults = k.faults
	s.Plane = func(opt route.Options) plane.Plane { return k.plane(opt, noPackets{}) }
	return s
}

func realKernel(t *testing.T) *bpf.Conn {
	t.Helper()
	conn, err := bpf.Open(testOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := conn.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// testOptions returns options with a bpffs, a cgroup and a network namespace of the test.
func testOptions(t *testing.T) bpf.Options {
	t.Helper()
	kerneltest.NeedPrograms(t)
	return bpf.Options{
		Dir: filepath.Join(lab.BPFFS(t), "sluice"), Cgroup: lab.Cgroup(t), NetNS: kerneltest.Namespace(t), Durations: true,
	}
}

// faulty is a kernel whose reads and writes sometimes fail, also in the middle.
type faulty struct {
	Kernel
	*planetest.Faults
}

func (k faulty) Read(ctx context.Context) (bpf.State, error) {
	if err := k.Faults.Read(); err != nil {
		return nil, err
	}
	return k.Kernel.Read(ctx)
}

func (k faulty) Write(ctx context.Context, steps []bpf.Step) error {
	for len(steps) > 0 {
		n := min(len(steps), max(1, k.Room/2))
		if err := k.Faults.Write(func() error { return k.Kernel.Write(ctx, steps[:n]) }); err != nil {
			return err
		}
		steps = steps[n:]
	}
	return nil
}

func subject(k Kernel) planetest.Subject {
	faults := &planetest.Faults{Room: 1}
	return planetest.Subject{
		Faults: faults, Rooms: []int{1, 2, 5, 40, 1 << 20},
		Plane: func(route.Options) plane.Plane {
			p := New(faulty{k, faults}, Options{Packets: noPackets{}})
			p.room = faults.Room
			return p
		},
		State:   func(*route.Table) (string, error) { return text(k) },
		Scratch: func() planetest.Subject { return subject(newFake()) },
		Edit:    func(w *planetest.World) error { return edit(w, k) },
		Audit:   &audit{kernel: k},
	}
}

// text prints all entries but the programs, whose version differs between the kernel and the fake.
func text(k Kernel) (string, error) {
	state, err := k.Read(context.Background())
	var b strings.Builder
	for _, key := range slices.SortedFunc(maps.Keys(state), order) {
		value := state[key]
		if key.Table == bpf.Programs {
			value = fmt.Sprint(value == k.Version())
		}
		b.WriteString(bpf.Entry{Key: key, Value: value}.String() + "\n")
	}
	return b.String(), err
}

// edit makes edits that another program might make.
func edit(w *planetest.World, k Kernel) error {
	state, err := k.Read(context.Background())
	if err != nil {
		return err
	}
	var steps []bpf.Step
	for _, key := range slices.SortedFunc(maps.Keys(state), order) {
		e := bpf.Entry{Key: key, Value: state[key]}
		switch {
		case key.Table == bpf.Programs:
		case w.Chance(6):
			steps = append(steps, bpf.Step{Entry: e, Remove: true})
		case w.Chance(6):
			e.Value = strings.Repeat("\x01", len(e.Value))
			steps = append(steps, bpf.Step{Entry: e})
		case w.Chance(6) && key.Table == bpf.Slots:
			e.Data = "foreign" + e.Data[7:]
			steps = append(steps, bpf.Step{Entry: e})
		}
	}
	return k.Write(context.Background(), steps)
}

// audit verifies after each step that each slot of each frontend has a backend, and that UDP sockets may stay on it.
// If there are many entries, as with Maglev tables, it verifies after some steps only.
type audit struct {
	kernel Kernel
	edited bool  // an edit by another program has made holes
	wrong  error // the first hole
	skip   int   // how many steps are not verified
}

// Begin implements planetest.Audit.
func (a *audit) Begin(*planetest.Model) { a.edited, a.wrong = a.holes() != nil, nil }

// Note implements planetest.Audit.
func (a *audit) Note() {
	if a.skip--; a.skip < 0 && !a.edited && a.wrong == nil {
		a.wrong = a.holes()
	}
}

// End implements planetest.Audit.
func (a *audit) End(*planetest.Model) error {
	if a.wrong != nil {
		return a.wrong
	}
	return a.holes()
}

// holes returns an error if a slot of a frontend has no backend, or a backend of UDP is no member.
func (a *audit) holes() error {
	state, err := a.kernel.Read(context.Background())
	if err != nil {
		return err
	}
	a.skip = len(state) / 200
	for k, v := range state {
		if k.Table != bpf.Frontends {
			continue
		}
		pool := v[:16]
		for i := range binary.NativeEndian.Uint32([]byte(v)[16:]) {
			slot, there := state[bpf.Key{Table: bpf.Slots, Data: pool + string(binary.NativeEndian.AppendUint32(nil, i))}]
			if !there {
				return fmt.Errorf("%s has no slot %d", bpf.Entry{Key: k, Value: v}, i)
			}
			member := bpf.Key{Table: bpf.Members, Data: pool + slot[:20]}
			if _, is := state[member]; !is && k.Data[18] == unix.IPPROTO_UDP {
				return fmt.Errorf("%s has slot %d, but not %s", bpf.Entry{Key: k, Value: v}, i, member)
			}
		}
	}
	return nil
}

// noPackets is a packet plane that has nothing to write.
type noPackets struct{}

func (noPackets) Refresh(context.Context) error { return nil }
func (noPackets) Plan(route.Change) plane.Plan  { return nothing{} }
func (noPackets) Watch(ctx context.Context, subscribed func(), _ func(plane.Edit)) error {
	subscribed()
	<-ctx.Done()
	return nil
}
func (noPackets) Remove(context.Context) ([]string, error) { return nil, nil }

type nothing struct{}

func (nothing) Steps() int                  { return 0 }
func (nothing) Kept() int                   { return 0 }
func (nothing) String() string              { return "" }
func (nothing) Apply(context.Context) error { return nil }
