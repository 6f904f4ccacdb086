package ebpf

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/bpf"
	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/planetest"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/test/lab"
)

func TestMain(m *testing.M) {
	if bpf.IsClient(os.Args) { // of a self-test
		if err := bpf.Client(os.Args, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	lab.Main(m)
}

// The model test: after any sequence of changes, failures and restarts the maps equal those made from scratch, and
// after each single step every frontend leads to a backend at all of its slots.

// A failure reports its seed: -args -seed N -seeds 1 repeats it.
var (
	firstSeed = flag.Uint64("seed", 0, "first seed of the model test")
	seeds     = flag.Uint64("seeds", 40, "number of random clusters of the model test; a tenth of it on the kernel")
)

func TestModelOnTheFake(t *testing.T) {
	for seed := *firstSeed; seed < *firstSeed+*seeds; seed++ {
		if err := planetest.NewModel(seed, subject(bpf.NewFake())).Run(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func TestModelOnTheKernel(t *testing.T) {
	for seed := *firstSeed; seed < *firstSeed+(*seeds+9)/10; seed++ {
		if err := planetest.NewModel(seed, subject(realKernel(t))).Run(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func realKernel(t *testing.T) *bpf.Conn {
	t.Helper()
	kerneltest.NeedPrograms(t)
	conn, err := bpf.Open(bpf.Options{Dir: filepath.Join(lab.BPFFS(t), "sluice"), Cgroup: lab.Cgroup(t), NetNS: kerneltest.Namespace(t)})
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
		Plane: func(opt route.Options) plane.Plane {
			p := New(faulty{k, faults}, Options{Families: opt.Families, Packets: noPackets{}})
			p.room = faults.Room
			return p
		},
		State:   func(*route.Table) (string, error) { return text(k) },
		Scratch: func() planetest.Subject { return subject(bpf.NewFake()) },
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

// audit verifies after each step that no frontend leads nowhere.
type audit struct {
	kernel Kernel
	edited bool  // another program has made holes
	wrong  error // the first hole
}

// Begin implements planetest.Audit.
func (a *audit) Begin(*planetest.Model) { a.edited, a.wrong = a.holes() != nil, nil }

// Note implements planetest.Audit.
func (a *audit) Note() {
	if !a.edited && a.wrong == nil {
		a.wrong = a.holes()
	}
}

// End implements planetest.Audit.
func (a *audit) End(*planetest.Model) error {
	a.edited = false
	a.Note()
	return a.wrong
}

func (a *audit) holes() error {
	state, err := a.kernel.Read(context.Background())
	if err != nil {
		return err
	}
	for k, v := range state {
		if k.Table != bpf.Frontends {
			continue
		}
		for i := range binary.NativeEndian.Uint32([]byte(v)[16:]) {
			slot := bpf.Key{Table: bpf.Slots, Data: v[:16] + string(binary.NativeEndian.AppendUint32(nil, i))}
			if _, there := state[slot]; !there {
				return fmt.Errorf("%s has no slot %d", bpf.Entry{Key: k, Value: v}, i)
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
