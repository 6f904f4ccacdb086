package proxy

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

// world is a loop with a store before it and a recorder behind it.
type world struct {
	t        *testing.T
	loop     *Loop
	store    *cluster.Store
	listed   func() // everything was listed once
	plane    *recorder
	follower *listener
	log      bytes.Buffer
	syncs    []Sync
	problems []route.Problem
	stop     context.CancelFunc
	ended    chan error
}

// start runs a loop in the bubble of a test; tune may change its options.
func start(t *testing.T, tune func(*Options)) *world {
	t.Helper()
	w := &world{
		t: t, store: cluster.NewStore(), plane: newRecorder(), follower: &listener{}, ended: make(chan error, 1),
	}
	w.listed = w.store.Feed()
	opt := Options{
		Store: w.store, Compiler: route.NewCompiler(route.Options{}), Plane: w.plane,
		Followers: []Follower{w.follower},
		Log:       slog.New(slog.NewTextHandler(&w.log, nil)),
		Report:    func(p []route.Problem) { w.problems = append(w.problems, p...) },
		Observe:   func(s Sync) { w.syncs = append(w.syncs, s) },
	}
	if tune != nil {
		tune(&opt)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w.stop = cancel
	w.loop = New(opt)
	go func() { w.ended <- w.loop.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		synctest.Wait()
	})
	return w
}

// put adds a service, or gives the one there another port.
func (w *world) put(name string, port uint16) {
	addr := netip.AddrFrom4([4]byte{10, 96, 0, name[0]})
	w.store.SetService(&cluster.Service{
		Name:       cluster.Name{Namespace: "default", Name: name},
		ClusterIPs: []netip.Addr{addr},
		Ports:      []cluster.ServicePort{{Protocol: cluster.TCP, Port: port}},
	})
}

func (w *world) remove(name string) {
	w.store.DeleteService(cluster.Name{Namespace: "default", Name: name})
}

// slow has the loop write something that takes until release is called. What the
// test does meanwhile the loop takes together; while it is idle it may take a
// part of it.
func (w *world) slow() (release func()) {
	w.t.Helper()
	hold := make(chan struct{})
	w.plane.hold = hold
	w.put("slow", 1)
	w.diary("apply +slow")
	return func() { close(hold) }
}

// pass lets time pass. Timers alone do not order what goroutines do.
func (w *world) pass(d time.Duration) {
	w.plane.fence.Add(1)
	time.Sleep(d)
	synctest.Wait()
}

// diary waits until nothing moves and compares what the plane had to do.
func (w *world) diary(want string) {
	w.t.Helper()
	synctest.Wait()
	if got := w.plane.read(); got != want {
		w.t.Errorf("the plane had to do:\n%s\nwant:\n%s", got, want)
	}
}

func (w *world) told(want string) {
	w.t.Helper()
	synctest.Wait()
	if got := w.follower.read(); got != want {
		w.t.Errorf("followers were told:\n%s\nwant:\n%s", got, want)
	}
}

// logged compares the messages since the last call.
func (w *world) logged(want ...string) {
	w.t.Helper()
	synctest.Wait()
	var got []string
	for line := range strings.Lines(w.log.String()) {
		_, rest, _ := strings.Cut(line, "level=")
		got = append(got, strings.ReplaceAll(strings.TrimSpace(rest), `"`, ""))
	}
	w.log.Reset()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		w.t.Errorf("logged:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
