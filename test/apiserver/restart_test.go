//go:build linux

package apiserver

import (
	"fmt"
	"strings"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/test/lab"
)

func withName(name string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Name = name }
}

func testRestart(w *testEnv) {
	w.setEndpoints("stays", w.pods[0])
	w.setEndpoints("goes", w.pods[0])
	w.setEndpoints("changes", w.pods[0])
	stays := w.createService(withName("stays"))
	goes := w.createService(withName("goes"))
	changes := w.createService(withName("changes"))
	p := w.run()
	w.waitReached(w.client, targets(stays, 80), w.pods[0])
	w.waitReached(w.client, targets(goes, 80), w.pods[0])
	p.Stop()
	before := w.rules()
	w.waitReached(w.client, targets(stays, 80), w.pods[0]) // the rules work without Sluice

	p = w.run()
	first, err := p.First(w.Context())
	w.must(err)
	if !first.Full() || first.Steps != 0 {
		w.Errorf("a restart without changes took %d steps, want 0", first.Steps)
	}
	// The changes of a later Service show that the restart is complete.
	w.setEndpoints("later", w.pods[0])
	later := targets(w.createService(withName("later")), 80)
	w.waitReached(w.client, later, w.pods[0])
	w.deleteService("later")
	w.waitOutcome(w.client, later, lab.TimedOut)
	p.Stop()
	if diff := cmp.Diff(before, w.rules()); diff != "" {
		w.Errorf("a restart without changes changed rules (-before, +after):\n%s", diff)
	}

	w.deleteService("goes")
	w.setEndpoints("changes", w.pods[1])
	flow, r := w.client.Open(lab.Probe{Protocol: lab.TCP, To: targets(stays, 80)[0]})
	if r.Outcome != lab.Answered {
		w.Fatalf("while Sluice is down: %s", r)
	}
	defer flow.Close()
	p = w.run()
	first, err = p.First(w.Context())
	w.must(err)
	if first.Steps == 0 || first.Steps > 20 {
		w.Errorf("one deleted and one changed Service took %d steps, want 1 to 20", first.Steps)
	}
	w.waitOutcome(w.client, targets(goes, 80), lab.TimedOut)
	w.waitReached(w.client, targets(changes, 80), w.pods[1])
	w.waitReached(w.client, targets(stays, 80), w.pods[0])
	if r := flow.Ask([]byte("ping")); r.Outcome != lab.Answered || !r.Echoed {
		w.Errorf("the connection did not survive the restart: %s", r)
	}
}

func testServerDown(w *testEnv) {
	w.setEndpoints("stays", w.pods[0])
	w.setEndpoints("goes", w.pods[0])
	stays, goes := w.createService(withName("stays")), w.createService(withName("goes"))
	p := w.run()
	w.waitReached(w.client, targets(stays, 80), w.pods[0])
	w.waitReached(w.client, targets(goes, 80), w.pods[0])

	// The API server is down: the rules stay.
	w.must(w.StopServer())
	w.waitUnreachable(p, 1)
	w.waitReached(w.client, targets(stays, 80), w.pods[0])
	w.must(w.StartServer())
	w.eventually(w.checkServerUp)

	// It is up again: the watches reconnect.
	late := w.createService(withName("late"))
	w.setEndpoints("late", w.pods[1])
	w.waitReached(w.client, targets(late, 80), w.pods[1])
	w.deleteService("late")
	w.waitOutcome(w.client, targets(late, 80), lab.TimedOut)

	// It is down and Sluice is restarted. While shutting down, the API server removes the
	// endpoint of its own Service, which Sluice still receives.
	w.must(w.StopServer())
	w.waitUnreachable(p, 2)
	p.Stop()
	before := w.rules()
	p = w.run()
	w.waitUnreachable(p, 1)
	if n := len(p.Syncs()); n > 0 {
		w.Errorf("%d writes without an API server", n)
	}
	if diff := cmp.Diff(before, w.rules()); diff != "" {
		w.Errorf("the rules changed (-before, +after):\n%s", diff)
	}
	w.must(w.StartServer())
	w.eventually(w.checkServerUp)
	w.waitReached(w.client, targets(stays, 80), w.pods[0])
	w.setEndpoints("stays", w.pods[2])
	w.waitReached(w.client, targets(stays, 80), w.pods[2])
	w.deleteService("goes")
	w.waitOutcome(w.client, targets(goes, 80), lab.TimedOut)
}

// waitUnreachable waits until the log reports for the nth time that the API server is unreachable.
func (w *testEnv) waitUnreachable(p *Proxy, nth int) {
	w.Helper()
	w.eventually(func() error {
		if n := strings.Count(p.Log(), "Cannot reach the API server"); n < nth {
			return fmt.Errorf("the log reports %d times that the API server is unreachable, want %d:\n%s", n, nth, p.Log())
		}
		return nil
	})
}

// testDisconnected disconnects Sluice from the API server. It must get the changes made meanwhile from a new list.
func testDisconnected(w *testEnv) {
	g := newFilterProxy(w.T, w.Cluster)
	w.setEndpoints("stays", w.pods[0])
	w.setEndpoints("goes", w.pods[0])
	w.setEndpoints("changes", w.pods[0])
	stays := w.createService(withName("stays"))
	goes := w.createService(withName("goes"))
	changes := w.createService(withName("changes"))
	p := Run(w, w.lab.NodeA, "--master="+g.URL)
	w.waitReached(w.client, targets(goes, 80), w.pods[0])
	w.waitReached(w.client, targets(changes, 80), w.pods[0])
	w.waitReached(w.client, targets(stays, 80), w.pods[0])

	g.disconnect()
	writes := len(w.reported(p))
	w.deleteService("goes")
	w.setEndpoints("changes", w.pods[1])
	fresh := w.createService(withName("fresh"))
	w.setEndpoints("fresh", w.pods[2])
	w.waitUnreachable(p, 1)
	if n := len(w.reported(p)); n != writes {
		w.Errorf("%d writes while disconnected", n-writes)
	}
	w.waitReached(w.client, targets(goes, 80), w.pods[0])

	// A restart empties the watch cache of the API server, so that watches cannot resume.
	w.must(w.StopServer())
	w.must(w.StartServer())
	w.eventually(w.checkServerUp)
	g.reconnect()
	w.waitReached(w.client, targets(fresh, 80), w.pods[2])
	w.waitReached(w.client, targets(changes, 80), w.pods[1])
	w.waitOutcome(w.client, targets(goes, 80), lab.TimedOut)
	w.waitReached(w.client, targets(stays, 80), w.pods[0])
}

// checkServerUp returns an error if the API server does not answer.
func (w *testEnv) checkServerUp() error {
	_, err := w.Client.Discovery().ServerVersion()
	return err
}
