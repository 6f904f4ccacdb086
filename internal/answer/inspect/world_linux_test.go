package inspect

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/plane/sizes"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/source/files"
)

var update = flag.Bool("update", false, "write the golden files")

// kernel is a plane that takes anything, unless told to refuse or to hold.
type kernel struct {
	refuse error
	hold   chan struct{} // a write waits for it
	edits  int           // of others, found by the next comparison
}

func (k *kernel) Refresh(context.Context) error            { return nil }
func (k *kernel) Remove(context.Context) ([]string, error) { return nil, nil }

func (k *kernel) Watch(context.Context, func(), func(plane.Edit)) error {
	return errors.New("not part of the loop")
}

func (k *kernel) Plan(c route.Change) plane.Plan {
	n := len(c.Touched) + k.edits
	k.edits = 0
	return &writing{k, n}
}

type writing struct {
	kernel *kernel
	steps  int
}

func (w *writing) Steps() int     { return w.steps }
func (w *writing) Kept() int      { return 7 }
func (w *writing) String() string { return "" }

func (w *writing) Apply(ctx context.Context) error {
	if w.kernel.hold != nil {
		select {
		case <-w.kernel.hold:
		case <-ctx.Done():
		}
	}
	return w.kernel.refuse
}

// world is a daemon without a kernel.
type world struct {
	t       *testing.T
	store   *cluster.Store
	loop    *proxy.Loop
	kernel  *kernel
	history *History
	*Inspector
}

// start runs one in the bubble of a test, after tune has had its way.
func start(t *testing.T, tune func(*world, *Options)) *world {
	t.Helper()
	w := &world{t: t, store: cluster.NewStore(), kernel: &kernel{}, history: NewHistory()}
	w.store.SetLocalAddresses([]netip.Addr{netip.MustParseAddr("192.168.0.4")})
	counted := sizes.New()
	opt := Options{
		Store: w.store, History: w.history, Sizes: counted.Sizes,
		Status: func(context.Context) Status { return Status{} },
		Diff:   func(context.Context) (plane.Plan, error) { return made(""), nil },
		Local:  func(context.Context) ([]netip.Addr, error) { return nil, nil },
		Plane:  nftables.Kind().Facts, Selector: convert.Selector,
	}
	if tune != nil {
		tune(w, &opt)
	}
	w.loop = proxy.New(proxy.Options{
		Store: w.store, Plane: w.kernel, Log: slog.New(slog.DiscardHandler),
		Compiler: route.NewCompiler(route.Options{
			NodeName: "node-a", Detector: route.DetectorOptions{Kind: route.DetectNodeCIDR},
		}),
		Followers: []proxy.Follower{counted},
		Report:    w.history.Report, Observe: w.history.Observe,
	})
	opt.Loop = w.loop
	w.Inspector = New(opt)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _ = w.loop.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		synctest.Wait()
	})
	return w
}

// between does something while the loop waits for a change.
func (w *world) between(do func()) {
	w.t.Helper()
	synctest.Wait()
	do()
	if _, err := w.loop.View(w.t.Context()); err != nil { // the loop sees what was done
		w.t.Fatal(err)
	}
}

// load reads the manifests; the loop starts when that is done.
func (w *world) load() {
	w.t.Helper()
	src := files.New(w.store, files.Options{
		Paths: []string{"testdata/world.yaml"}, NodeName: "node-a", Report: w.history.Report,
	})
	if err := src.Load(); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// golden compares with a file in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant:\n%s", name, got, want)
	}
}

// name is that of a Service in the world.
func name(namespace, name string) cluster.Name { return cluster.Name{Namespace: namespace, Name: name} }

// made is a plan by its text.
type made string

func (m made) Steps() int                { return strings.Count(string(m), "\n") }
func (made) Kept() int                   { return 0 }
func (m made) String() string            { return string(m) }
func (made) Apply(context.Context) error { return errors.New("a comparison must not write") }
