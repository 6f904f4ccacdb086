//go:build linux

package apiserver

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/sluice-proxy/sluice/internal/event"
	"github.com/sluice-proxy/sluice/internal/source/kube"
	"github.com/sluice-proxy/sluice/test/harness"
)

// testRecorder is a Recorder that runs as a user of the API server.
type testRecorder struct {
	*kube.Recorder
	log      *harness.Log
	requests atomic.Int32 // that it has started, one at a time
}

// startRecorder runs a Recorder for node A as a user until the test ends.
func (w *testEnv) startRecorder(user string) *testRecorder {
	w.Helper()
	u, err := w.env.AddUser(envtest.User{Name: user}, nil)
	w.must(err)
	rec := &testRecorder{log: &harness.Log{}}
	config := rest.CopyConfig(u.Config())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			rec.requests.Add(1)
			return next.RoundTrip(r)
		})
	})
	client, err := kube.NewClient(config)
	w.must(err)
	r := kube.NewRecorder(kube.RecorderOptions{
		Client: client, NodeName: w.lab.NodeA.Name(), Log: slog.New(slog.NewTextHandler(rec.log, nil)),
	})
	rec.Recorder = r
	ended := make(chan error, 1)
	go func() { ended <- r.Run(w.Context()) }()
	w.Cleanup(func() {
		if err := <-ended; err != nil {
			w.Errorf("record Events: %v", err)
		}
	})
	return rec
}

// roundTrip implements http.RoundTripper with a function.
type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// waitEvents waits until kubectl describe would show exactly these Events of Sluice for an object. It ignores Events
// of the API server, whose repair controller warns of a Service whose address it does not know yet.
func (w *testEnv) waitEvents(namespace string, obj runtime.Object, want ...string) {
	w.Helper()
	var got []string
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		list, err := w.Client.CoreV1().Events(namespace).SearchWithContext(w.Context(), scheme.Scheme, obj)
		w.must(err)
		got = nil
		for _, e := range list.Items {
			if e.ReportingController != "kube-proxy" {
				continue
			}
			again := ""
			if e.Series != nil {
				again = " again"
			}
			got = append(got, fmt.Sprintf("%s %s %s %s/%s%s: %s", e.Type, e.Reason, e.Action, e.ReportingController,
				e.ReportingInstance, again, e.Message))
		}
		slices.Sort(got)
		got = slices.Compact(got) // each daemon on this node has recorded its start
		if slices.Equal(got, want) {
			return
		}
	}
	w.Errorf("events:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
}

// testEvents records Events with the rights of kube-proxy.
func testEvents(w *testEnv) {
	svc, err := w.Client.CoreV1().Services(w.ns).Create(w.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	w.must(err)
	r := w.startRecorder("system:kube-proxy")
	r.Record(event.Starting())
	taken := event.HealthPortFailed(w.ns, "web", errors.New("port 30000 is taken"))
	r.Record(taken)
	on := "kube-proxy/" + w.lab.NodeA.Name()
	w.waitEvents(w.ns, svc, "Warning FailedToStartServiceHealthcheck Listen "+on+": port 30000 is taken")
	r.Record(taken)
	w.waitEvents(w.ns, svc, "Warning FailedToStartServiceHealthcheck Listen "+on+" again: port 30000 is taken")

	// A long note is truncated, not rejected.
	r.Record(event.Event{
		Object: event.Object{Kind: "Service", Namespace: w.ns, Name: "web"},
		Type:   event.Warning, Reason: "InvalidAddress", Action: "Program", Note: strings.Repeat("ä", 4000),
	})
	w.waitEvents(w.ns, svc,
		"Warning FailedToStartServiceHealthcheck Listen "+on+" again: port 30000 is taken",
		"Warning InvalidAddress Program "+on+": "+strings.Repeat("ä", 510)+"…",
	)

	// kubectl searches the Events of a Node with its name as UID.
	node := &corev1.ObjectReference{Kind: "Node", Name: w.lab.NodeA.Name(), UID: types.UID(w.lab.NodeA.Name())}
	w.waitEvents(metav1.NamespaceAll, node, "Normal Starting StartKubeProxy "+on+": ")
	if r.log.String() != "" {
		w.Errorf("the log:\n%s", r.log)
	}
}

// testEventsForbidden records Events without permission.
func testEventsForbidden(w *testEnv) {
	r := w.startRecorder("nobody")
	for _, name := range []string{"a", "b", "c", "d"} {
		r.Record(event.HealthPortFailed(w.ns, name, errors.New("taken")))
	}
	// When the last request starts, the answers to the others have been handled.
	w.eventually(func() error {
		if n := r.requests.Load(); n < 4 {
			return fmt.Errorf("%d of 4 requests", n)
		}
		return nil
	})
	if text := r.log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "refuses Events") {
		w.Errorf("the log:\n%s", text)
	}
}
