//go:build linux

package apiserver

import (
	"fmt"
	"strings"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/test/lab"
)

// named gives a Service another name than "web".
func named(name string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Name = name }
}

func testRestart(w *world) {
	w.back("stays", w.pods[0])
	w.back("goes", w.pods[0])
	w.back("changes", w.pods[0])
	stays, goes, changes := w.create(named("stays")), w.create(named("goes")), w.create(named("changes"))
	p := w.run()
	w.reaches(w.client, targets(stays, 80), w.pods[0])
	w.reaches(w.client, targets(goes, 80), w.pods[0])
	p.Stop()
	before := w.rules()
	w.reaches(w.client, targets(stays, 80), w.pods[0]) // the kernel goes on alone

	p = w.run()
	first, err := p.First(w.Context())
	w.must(err)
	if !first.Full() || first.Steps != 0 {
		w.Errorf("with nothing changed the restart took %d steps, want 0", first.Steps)
	}
	// What a later Service comes and goes after is all that the restart does.
	w.back("later", w.pods[0])
	later := targets(w.create(named("later")), 80)
	w.reaches(w.client, later, w.pods[0])
	w.remove("later")
	w.ends(w.client, later, lab.TimedOut)
	p.Stop()
	if diff := cmp.Diff(before, w.rules()); diff != "" {
		w.Errorf("with nothing changed the restart changed (-before, +now):\n%s", diff)
	}

	w.remove("goes")
	w.back("changes", w.pods[1])
	flow, r := w.client.Open(lab.Probe{Protocol: lab.TCP, To: targets(stays, 80)[0]})
	if r.Outcome != lab.Answered {
		w.Fatalf("while Sluice is down: %s", r)
	}
	defer flow.Close()
	p = w.run()
	first, err = p.First(w.Context())
	w.must(err)
	if first.Steps == 0 || first.Steps > 20 {
		w.Errorf("one Service gone and one changed took %d steps", first.Steps)
	}
	w.ends(w.client, targets(goes, 80), lab.TimedOut)
	w.reaches(w.client, targets(changes, 80), w.pods[1])
	w.reaches(w.client, targets(stays, 80), w.pods[0])
	if r := flow.Ask([]byte("still there?")); r.Outcome != lab.Answered || !r.Echoed {
		w.Errorf("the connection did not live through the restart: %s", r)
	}
}

func testServerDown(w *world) {
	w.back("stays", w.pods[0])
	w.back("goes", w.pods[0])
	stays, goes := w.create(named("stays")), w.create(named("goes"))
	p := w.run()
	w.reaches(w.client, targets(stays, 80), w.pods[0])
	w.reaches(w.client, targets(goes, 80), w.pods[0])

	// Down: the rules stay.
	w.must(w.StopServer())
	w.unreachable(p, 1)
	w.reaches(w.client, targets(stays, 80), w.pods[0])
	w.must(w.StartServer())
	w.eventually(w.up)

	// Up again: the watches come back by themselves.
	late := w.create(named("late"))
	w.back("late", w.pods[1])
	w.reaches(w.client, targets(late, 80), w.pods[1])
	w.remove("late")
	w.ends(w.client, targets(late, 80), lab.TimedOut)

	// Down, and Sluice restarted. Going down, the API server takes the endpoint of
	// its own Service away, which Sluice still hears of.
	w.must(w.StopServer())
	w.unreachable(p, 2)
	p.Stop()
	before := w.rules()
	p = w.run()
	w.unreachable(p, 1)
	if n := len(p.Syncs()); n > 0 {
		w.Errorf("%d writes without an API server", n)
	}
	if diff := cmp.Diff(before, w.rules()); diff != "" {
		w.Errorf("the rules changed (-before, +now):\n%s", diff)
	}
	w.must(w.StartServer())
	w.eventually(w.up)
	w.reaches(w.client, targets(stays, 80), w.pods[0])
	w.back("stays", w.pods[2])
	w.reaches(w.client, targets(stays, 80), w.pods[2])
	w.remove("goes")
	w.ends(w.client, targets(goes, 80), lab.TimedOut)
}

// unreachable waits until the log says for the nth time that there is no API server.
func (w *world) unreachable(p *Proxy, nth int) {
	w.Helper()
	w.eventually(func() error {
		if n := strings.Count(p.Log(), "Cannot reach the API server"); n < nth {
			return fmt.Errorf("the log says %d times that the API server cannot be reached, want %d:\n%s", n, nth, p.Log())
		}
		return nil
	})
}

// testUnseen: Sluice loses the API server, and what happens then it learns from
// the list it makes afterwards.
func testUnseen(w *world) {
	g := newGate(w.T, w.Cluster)
	w.back("stays", w.pods[0])
	w.back("goes", w.pods[0])
	w.back("changes", w.pods[0])
	stays, goes, changes := w.create(named("stays")), w.create(named("goes")), w.create(named("changes"))
	p := Run(w, w.lab.NodeA, "--master="+g.URL)
	w.reaches(w.client, targets(goes, 80), w.pods[0])
	w.reaches(w.client, targets(changes, 80), w.pods[0])

	g.cut()
	writes := len(p.Syncs())
	w.remove("goes")
	w.back("changes", w.pods[1])
	fresh := w.create(named("fresh"))
	w.back("fresh", w.pods[2])
	w.unreachable(p, 1)
	if n := len(p.Syncs()); n != writes {
		w.Errorf("%d writes while cut off", n-writes)
	}
	w.reaches(w.client, targets(goes, 80), w.pods[0])

	// The API server forgets the past too, so that watches cannot go on.
	w.must(w.StopServer())
	w.must(w.StartServer())
	w.eventually(w.up)
	g.mend()
	w.reaches(w.client, targets(fresh, 80), w.pods[2])
	w.reaches(w.client, targets(changes, 80), w.pods[1])
	w.ends(w.client, targets(goes, 80), lab.TimedOut)
	w.reaches(w.client, targets(stays, 80), w.pods[0])
}

// up says whether the API server answers.
func (w *world) up() error {
	_, err := w.Client.Discovery().ServerVersion()
	return err
}
