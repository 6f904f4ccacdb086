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

// testLoop is a loop with a store, a plane and a follower that record their calls.
type testLoop struct {
	t        *testing.T
	loop     *Loop
	store    *cluster.Store
	listed   func() // marks the store as complete
	plane    *recorder
	follower *recordingFollower
	log      bytes.Buffer
	syncs    []Sync
	problems []route.Problem
	stop     context.CancelFunc
	ended    chan error
}

// start runs a loop in the synctest bubble of a test; tune may change its options.
func start(t *testing.T, tune func(*Options)) *testLoop {
	t.Helper()
	w := &testLoop{
		t: t, store: cluster.NewStore(), plane: newRecorder(), follower: &recordingFollower{}, ended: make(chan error, 1),
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

// setService adds a Service, or changes its port.
func (w *testLoop) setService(name string, port uint16) {
	addr := netip.AddrFrom4([4]byte{10, 96, 0, name[0]})
	w.store.SetService(&cluster.Service{
		Name:       cluster.Name{Namespace: "default", Name: name},
		ClusterIPs: []netip.Addr{addr},
		Ports:      []cluster.ServicePort{{Protocol: cluster.TCP, Port: port}},
	})
}

func (w *testLoop) deleteService(name string) {
	w.store.DeleteService(cluster.Name{Namespace: "default", Name: name})
}

// blockWrite makes the loop write a Service, and blocks the write until release is called.
// The loop takes all changes that the test makes meanwhile together.
func (w *testLoop) blockWrite() (release func()) {
	w.t.Helper()
	hold := make(chan struct{})
	w.plane.hold = hold
	w.setService("slow", 1)
	w.wantOps("apply +slow")
	return func() { close(hold) }
}

// advance lets fake time pass. It synchronizes with the goroutine of the plane, as timers
// alone do not for the race detector.
func (w *testLoop) advance(d time.Duration) {
	w.plane.fence.Add(1)
	time.Sleep(d)
	synctest.Wait()
}

// wantEndAtOnce stops the loop, which must end without an error and without waiting.
func (w *testLoop) wantEndAtOnce() {
	w.t.Helper()
	began := time.Now()
	w.stop()
	if err := <-w.ended; err != nil {
		w.t.Errorf("Run = %v, want nil", err)
	}
	if waited := time.Since(began); waited != 0 {
		w.t.Errorf("ended after %v, want at once", waited)
	}
}

// wantOps waits until all goroutines are blocked, and compares the calls of the plane since the last call.
func (w *testLoop) wantOps(want string) {
	w.t.Helper()
	synctest.Wait()
	if got := w.plane.takeOps(); got != want {
		w.t.Errorf("calls of the plane:\n%s\nwant:\n%s", got, want)
	}
}

// wantNotified compares the changes that the follower received since the last call.
func (w *testLoop) wantNotified(want string) {
	w.t.Helper()
	synctest.Wait()
	if got := w.follower.take(); got != want {
		w.t.Errorf("changes for the follower:\n%s\nwant:\n%s", got, want)
	}
}

// wantLog compares the messages in the log since the last call.
func (w *testLoop) wantLog(want ...string) {
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
