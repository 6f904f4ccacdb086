package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/rogpeppe/go-internal/txtar"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/health"
	"github.com/sluice-proxy/sluice/internal/linux/nft"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/plane/nftables"
	"github.com/sluice-proxy/sluice/internal/plane/sizes"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/source/files"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

var update = flag.Bool("update", false, "write what is compared in scripts of a daemon anew")

// testsInNamespace are the tests of this package, with a namespace to make others in when not started by root.
type testsInNamespace struct{ m *testing.M }

// Run implements testscript.TestingM.
func (t testsInNamespace) Run() int { return kerneltest.Main(t.m) }

// enter puts this goroutine, and the programs that it starts, into a network namespace. Its thread ends with it.
func enter(netns int) error {
	runtime.LockOSThread()
	return unix.Setns(netns, unix.CLONE_NEWNET)
}

// TestDaemonScripts runs the scripts with a daemon, each in its own network namespace.
func TestDaemonScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/daemon/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			netns := kerneltest.Namespace(t)
			testscript.Run(t, testscript.Params{
				Files: []string{file}, UpdateScripts: *update,
				Setup: func(env *testscript.Env) error {
					env.Vars = append(env.Vars, "HOME="+env.WorkDir, noPause)
					return enter(netns)
				},
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"exits": exits, "await": await, "lines": lines,
				},
			})
		})
	}
}

// docs/commands.md shows the real output.
func TestCommandsPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string][]byte{}
	for _, name := range []string{"get", "watch"} {
		script, err := txtar.ParseFile("testdata/daemon/" + name + ".txtar")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range script.Files {
			if f.Name == "services.txt" || f.Name == "web-backends.txt" || f.Name == "want/services.out" {
				shown[f.Name] = f.Data
			}
		}
	}
	if shown["status"], err = os.ReadFile("../answer/inspect/testdata/status-quiet.txt"); err != nil {
		t.Fatal(err)
	}
	for name, text := range shown {
		if len(text) == 0 || !bytes.Contains(page, text) {
			t.Errorf("docs/commands.md lacks %s:\n%s", name, text)
		}
	}
	if len(shown) != 4 {
		t.Errorf("compared %d, want 4", len(shown))
	}
}

// docs/balancing.md shows the real output.
func TestBalancingPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/balancing.md")
	if err != nil {
		t.Fatal(err)
	}
	script, err := txtar.ParseFile("testdata/daemon/balancing.txtar")
	if err != nil {
		t.Fatal(err)
	}
	if f := script.Files[0]; f.Name != "balancing.txt" || !bytes.Contains(page, append([]byte("backends\n"), f.Data...)) {
		t.Errorf("docs/balancing.md lacks %s:\n%s", f.Name, f.Data)
	}
}

// docs/explain.md shows the real output: one answer completely, and some lines of another.
func TestExplainPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/explain.md")
	if err != nil {
		t.Fatal(err)
	}
	script, err := txtar.ParseFile("testdata/script/explain.txtar")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string][]byte{}
	for _, f := range script.Files {
		switch f.Name {
		case "page-nftables.txt":
			shown["the answer"] = f.Data
		case "page-iptables.txt":
			for line := range bytes.Lines(f.Data) {
				if bytes.Contains(line, []byte("KUBE-")) {
					shown[string(line)] = line
				}
			}
		}
	}
	for name, text := range shown {
		if !bytes.Contains(page, text) {
			t.Errorf("docs/explain.md lacks %s:\n%s", name, text)
		}
	}
	if len(shown) != 4 {
		t.Errorf("compared %d, want 4", len(shown))
	}
}

// await runs a program until it succeeds:
//
//	await PROGRAM ARG...
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: await program arg...")
	}
	const patience = 20 * time.Second // of a busy machine
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := ts.Exec(args[0], args[1:]...)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%v, and does not change", err)
		}
	}
}

// lagging succeeds when the daemon has something to write.
func lagging() {
	var s inspect.Status
	err := admin.Dial(admin.Options{}).Get(context.Background(), "/status", nil, &s)
	if err != nil || s.Lag.Since.IsZero() {
		os.Exit(1)
	}
}

// fetch prints a page of the daemon. It fails if the page does not have a line:
//
//	exec fetch ADDRESS [LINE]
func fetch() {
	r, err := http.Get("http://" + os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "fetch:", err)
		os.Exit(1)
	}
	page, err := io.ReadAll(r.Body)
	fmt.Printf("%s", page)
	if err != nil || len(os.Args) > 2 && !bytes.Contains(page, []byte("\n"+os.Args[2]+"\n")) {
		os.Exit(1)
	}
}

// daemon is the part of a daemon that answers commands, over a kernel in memory, with the
// manifests in the folders of its arguments. The file "difference", if it exists, is the
// difference between that kernel and the rules that it should have.
func daemon() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := serveFolder(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "daemon:", err)
		os.Exit(1)
	}
}

func serveFolder(ctx context.Context, folders []string) error {
	door, err := admin.Listen(ctx, admin.Options{})
	if err != nil {
		return err
	}
	store, history, counted, synced := cluster.NewStore(), inspect.NewHistory(), sizes.New(), &atomic.Bool{}
	store.SetLocalAddresses([]netip.Addr{netip.MustParseAddr("192.168.0.4")})
	store.SetStandIn(&cluster.Node{Name: "node-a", Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.4")}})
	src := files.New(store, files.Options{Paths: folders, NodeName: "node-a", Report: history.Report})
	loop := proxy.New(proxy.Options{
		Store: store, Compiler: route.NewCompiler(route.Options{NodeName: "node-a"}),
		Plane: nftables.New(nft.NewFake(), nftables.Options{Families: route.Families()}),
		Log:   slog.New(slog.DiscardHandler), Followers: []proxy.Follower{counted},
		Observe: func(s proxy.Sync) {
			history.Observe(s)
			synced.Store(true)
		},
	})
	i := inspect.New(inspect.Options{
		Loop: loop, Store: store, History: history, Sizes: counted.Sizes, Diff: difference, Plane: nftables.Kind().Facts,
		Local:    func(context.Context) ([]netip.Addr, error) { return nil, nil },
		Selector: convert.Selector,
		Status:   func(context.Context) inspect.Status { return known(synced.Load()) },
	})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return src.Run(ctx) })
	group.Go(func() error { return loop.Run(ctx) })
	group.Go(func() error { return door.Serve(ctx, i.Handler()) })
	return group.Wait()
}

// known is the state that other parts of the daemon report.
func known(synced bool) inspect.Status {
	s := inspect.Status{
		Version: "v1.2.0", PID: os.Getpid(), Mode: inspect.Mode{Name: "nftables", Reason: "the default"},
		Source: inspect.Source{Kind: "manifests", State: source.State{From: "services", Connected: true}}, Since: time.Now(),
	}
	s.Health.State = health.Starting
	if synced {
		s.Health.State = health.Healthy
	}
	if why, err := os.ReadFile("sick"); err == nil {
		s.Health = health.Summary{State: health.Sick, Reason: string(bytes.TrimSpace(why))}
	}
	return s
}

func difference(context.Context) (plane.Plan, error) {
	text, err := os.ReadFile("difference")
	switch {
	case errors.Is(err, os.ErrNotExist):
		return made(""), nil
	case bytes.HasPrefix(text, []byte("error: ")):
		return nil, errors.New(string(bytes.TrimSpace(text[len("error: "):])))
	}
	return made(text), err
}

// made is a plan by its text.
type made string

func (m made) Steps() int                { return strings.Count(string(m), "\n") }
func (made) Kept() int                   { return 0 }
func (m made) String() string            { return string(m) }
func (made) Apply(context.Context) error { return errors.New("a comparison must not write") }
